//! [`LockRequest`]: a lock to be acquired, with all that can be said of how, and [`Acquire`], its acquisition.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::desk::Question;
use super::guard::Guard;
use super::handle::Client;
use super::pending::{Ask, How, Pending, future};
use super::shared::{Core, Stopped};
use crate::clock;
use crate::engine::{Grant, OpId, Outcome, Request};
use crate::error::{AcquireError, Denial, Report, Round};
use crate::limits;
use crate::lock::{HolderTtl, InputError, MasterId, Resource, Vote};
use crate::mutants::mutant;

impl Client {
    /// A request for the lock of this name: 1 to [`crate::limits::RESOURCE_SIZE_MAX`] bytes.
    pub fn lock<'a>(&'a self, resource: &'a (impl AsRef<[u8]> + ?Sized)) -> LockRequest<'a> {
        let (resource, min_validity) = (resource.as_ref(), Duration::ZERO);
        LockRequest {
            client: self,
            resource,
            ttl: None,
            wait: None,
            tries: None,
            min_validity,
            auto_extend: None,
            is_fenced: false,
            is_fair: false,
            is_shared: false,
            keeps_readers_out: false,
        }
    }

    /// Starts to acquire several unrelated locks, with one write for each master. The results are had one by one: by
    /// [`Acquire::wait`] or by awaiting each; those that are dropped are given up.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let names = ["orders:1", "orders:2", "orders:3"];
    /// for acquiring in client.acquire_all(names.iter().map(|name| client.lock(name))) {
    ///     match acquiring.wait() {
    ///         Ok(guard) => println!("{:?}", guard.resource().escape_ascii()),
    ///         Err(error) => println!("{error}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_all<'a>(&self, requests: impl IntoIterator<Item = LockRequest<'a>>) -> Vec<Acquire<'a>> {
        let mut batch: Vec<_> = requests.into_iter().map(Acquire::new).collect();
        self.submit_all(batch.iter_mut().map(|it| (it.client().is(self), it)), Acquire::submit);
        batch
    }
}

/// A lock to be acquired; made by [`Client::lock`].
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockRequest<'a> {
    pub(super) client: &'a Client,
    pub(super) resource: &'a [u8],
    pub(super) ttl: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) tries: Option<u32>,
    pub(super) min_validity: Duration,
    pub(super) auto_extend: Option<Duration>,
    pub(super) is_fenced: bool,
    pub(super) is_fair: bool,
    pub(super) is_shared: bool,
    pub(super) keeps_readers_out: bool,
}

impl<'a> LockRequest<'a> {
    /// How long the lock lives on the masters unless it is extended: at least 1 ms more than the drift allowance, at most
    /// the configured `max_ttl`. By default [`crate::limits::TTL_DEFAULT`], or `max_ttl` if that is shorter.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to go on trying; zero makes one attempt. By default as long as the TTL: by then the lock of a holder that
    /// died is free.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The most attempts that are made at the masters; zero is one. By default as many as the wait allows, which still bounds
    /// them: give a long wait where only the count is to. To stand in line behind others of this client is no attempt.
    /// One attempt right after masters confirm a subscription to releases is made in addition, and not counted here.
    pub const fn tries(mut self, tries: u32) -> Self {
        self.tries = Some(tries);
        self
    }

    /// The validity that must be left when the lock is handed out, less than the TTL minus the drift. By default any.
    pub const fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = min_validity;
        self
    }

    /// Keeps the lock while its guard lives: extends it again and again, at a third of the TTL, for at most `max_hold` since
    /// it was acquired (or the configured `max_hold`, if that is shorter) and [`crate::limits::RENEWAL_COUNT_MAX`] times.
    /// Zero is [`AcquireError::Input`], as it is if the configured `max_hold` is zero.
    ///
    /// A renewal that fails is tried again after [`crate::limits::RENEWAL_PAUSE_MAX`] at most, until the validity ends; [`Guard::on_lost`] and [`Guard::lost`] tell of it in time. The
    /// lock still ends a TTL after its process dies. What is due for many locks goes out in one write for each master.
    pub const fn auto_extend(mut self, max_hold: Duration) -> Self {
        self.auto_extend = Some(max_hold);
        self
    }

    /// Asks for a [`Guard::fencing_token`], for storage that checks it. The lock excludes plain ones of the same name; they
    /// have no token. It costs each master a script where a plain lock is a `SET`, and never passes from one caller of this
    /// client to the next without being free in between.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let guard = client.lock("orders:42").fenced().acquire()?;
    /// let token = guard.fencing_token().expect("it was asked for").as_u64();
    /// // UPDATE orders SET …, fence = $token WHERE id = 42 AND fence <= $token
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn fenced(mut self) -> Self {
        self.is_fenced = true;
        self
    }

    /// Asks for a fair lock: those who wait for it have it in the order in which they came, whichever client they are of. Each
    /// has a ticket in a queue at the masters, and the lock is granted to the smallest one of them.
    ///
    /// What is promised: once a waiter's ticket stands, one or two round trips after it asked, nobody who asks after that has
    /// the lock before it, as long as the waiter lives and its masters keep their data. It is overtaken only by those who
    /// asked at the same time as it did, or while masters that restarted have forgotten its ticket or have not heard of it
    /// for [`crate::limits::FAIR_HEARTBEAT`]. A waiter that died holds the others up for that long at the most, however many died
    /// with it. Exclusion never depends on the queue.
    ///
    /// A fair lock excludes locks of the same name that are not fair. Those ask no queue, and are not told of its waiters:
    /// **let all who use a resource be fair.** Callers of one client each have a ticket, and do not pass the lock on among
    /// themselves. [`LockRequest::try_acquire`] has it only if it is free and nobody waits, and leaves no ticket. Each sign of
    /// life of a waiter, about one a second, is one of its [`LockRequest::tries`]. It can be neither [`LockRequest::fenced`] nor
    /// [`LockRequest::shared`]: that is [`AcquireError::Input`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let guard = client.lock("printer").fair().wait(Duration::from_secs(60)).acquire()?;
    /// # guard.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn fair(mut self) -> Self {
        self.is_fair = true;
        self
    }

    /// Asks for the lock of a reader: any number of them have it together, and nobody has it alone meanwhile, by any other
    /// request of this or another client or library. Readers stand in no line and are not handed the lock: those who wait
    /// try together when it turns free. They can be neither fenced nor fair: that is [`crate::AcquireError::Input`]. It costs each master a script where a plain lock is a
    /// `SET`. See [`crate::RwLock`], also for who comes first and why there is no way from reading to writing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let guard = client.lock("prices").shared().acquire()?;
    /// // … read while guard.is_valid() …
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// Keeps new readers out while this request waits for a lock that others read, from its first refusal on: it has the lock
    /// when those who have it now are done, at the end of their TTL at the latest unless they extend it. Without it
    /// readers that come and go can keep it waiting until its wait is over. If its client dies, readers come in again
    /// [`crate::limits::INTENT_TIME`] later, and twice the answer limit. No effect on readers and on requests that do not
    /// wait; of several callers of one client who wait in line it is done for the first.
    pub const fn keep_readers_out(mut self) -> Self {
        self.keeps_readers_out = true;
        self
    }

    /// Makes one attempt, in about one round trip.
    ///
    /// Returns within the answer limit ([`crate::ConfigBuilder::answer_timeout`]), twice that if it is refused and asks how long
    /// the holder's time still is, and [`crate::limits::REVIVE_MAX`] more if the connections were closed while the client
    /// was idle.
    ///
    /// # Errors
    /// [`AcquireError`] tells contention from an outage, with what each master said.
    pub fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Acquires the lock, trying again after random delays until the wait is over.
    ///
    /// # Errors
    /// [`AcquireError`] of the last attempt; whatever was acquired in part is released.
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        self.acquire_async().wait()
    }

    /// As [`LockRequest::acquire`], for tasks.
    pub const fn acquire_async(self) -> Acquire<'a> {
        Acquire::new(self)
    }
}

/// A lock that is being acquired: a future for any executor, or something to [`Acquire::wait`] for.
///
/// Nothing is sent before it is polled or waited for, unless it comes from [`Client::acquire_all`]. Dropping it gives the
/// acquisition up: that never blocks, and what was acquired so far is released in the background.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct Acquire<'a>(Pending<Acquisition<'a>>);

impl<'a> Acquire<'a> {
    pub(super) const fn new(request: LockRequest<'a>) -> Self {
        Self(Pending::new(Acquisition { request, asked: Asked::NOTHING }))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask().client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.0.submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<Guard, AcquireError>> {
        self.0.resolve(how)
    }

    /// Waits on this thread; returns by the end of the request's wait, or of one attempt if that is later.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn wait(self) -> Result<Guard, AcquireError> {
        self.0.wait()
    }
}

future!(Acquire<'_>, Result<Guard, AcquireError>);

/// What [`Acquire`] asks.
#[derive(Debug)]
struct Acquisition<'a> {
    request: LockRequest<'a>,
    asked: Asked,
}

/// What an acquisition keeps for its answer.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The guard's copy of the name.
    name: Vec<u8>,
    submitted: Option<Instant>,
}

impl Asked {
    pub(super) const NOTHING: Self = Self { name: Vec::new(), submitted: None };
}

impl Ask for Acquisition<'_> {
    const QUESTION: Question = Question::Acquire;
    type Answer = Guard;
    type Error = AcquireError;

    fn client(&self) -> &Client {
        self.request.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, AcquireError> {
        self.request.submit(core, &mut self.asked)
    }

    fn answer(&mut self, op: OpId, outcome: Outcome) -> Result<Guard, AcquireError> {
        self.request.guard(&mut self.asked, op, outcome)
    }

    fn stopped(why: Stopped) -> AcquireError {
        AcquireError::Stopped(why)
    }
}

impl LockRequest<'_> {
    /// Has the engine take it.
    pub(super) fn submit(&self, core: &mut Core, asked: &mut Asked) -> Result<OpId, AcquireError> {
        let Self { client, resource: name, ttl, wait, min_validity, .. } = *self;
        let config = client.config();
        let resource = Resource::new(&name)?;
        let ttl = config.ttl(ttl.unwrap_or(limits::TTL_DEFAULT.min(config.max_ttl)))?;
        let wait = wait.unwrap_or(ttl.as_duration());
        if self.auto_extend == Some(Duration::ZERO) {
            return Err(InputError::AutoExtendZero.into());
        }
        if self.auto_extend.is_some() && config.max_hold.is_zero() {
            return Err(InputError::MaxHoldZero.into());
        }
        let request = match (self.is_shared, self.is_fair, self.is_fenced) {
            (false, false, false) => Request::Acquire { resource, ttl, wait, min_validity },
            (false, false, true) => {
                Request::AcquireFenced { resource, ttl, wait, min_validity, wall: clock::wall() }
            }
            (false, true, false) => Request::AcquireFair { resource, ttl, wait, min_validity },
            (true, false, false) => Request::AcquireShared { resource, ttl, wait, min_validity },
            (true, _, true) => return Err(InputError::SharedFenced.into()),
            (true, true, false) => return Err(InputError::SharedFair.into()),
            (false, true, true) => return Err(InputError::FairAndFenced.into()),
        };
        let op = core.submit(request)?;
        if let Some(attempts_max) = self.tries {
            // Always taken.
            let _ = core.submit(Request::Limit { lock: op, attempts_max });
        }
        if self.keeps_readers_out {
            // Always taken.
            let _ = core.submit(Request::KeepReadersOut { lock: op });
        }
        asked.name = core.take_name(name);
        asked.submitted = Some(clock::now());
        Ok(op)
    }

    /// The guard of the lock that it was answered with.
    pub(super) fn guard(&self, asked: &mut Asked, op: OpId, outcome: Outcome) -> Result<Guard, AcquireError> {
        match outcome {
            Outcome::Acquire(result) => {
                let grant = result?;
                let Self { client, auto_extend, mut min_validity, .. } = *self;
                if mutant!(FetchedAnyValidity) {
                    min_validity = Duration::ZERO;
                }
                let guard = Guard::new(client.clone(), op, &grant, std::mem::take(&mut asked.name));
                // Looked at last (I2): a task may fetch its answer long after it came. The guard's drop releases the lock.
                let now = clock::now();
                if now + min_validity >= grant.valid_until && !mutant!(FetchedUnchecked) {
                    return Err(self.expired(now, asked, &grant));
                }
                if let Some(max_hold) = auto_extend {
                    client.shared().keep_lock(op, max_hold);
                }
                Ok(guard)
            }
            _ => unreachable!("an acquisition is answered by its own outcome"),
        }
    }

    /// The lock was acquired, and its answer fetched too late.
    fn expired(&self, now: Instant, asked: &Asked, grant: &Grant) -> AcquireError {
        let votes = self.client.config().labels.iter().zip(0..).map(|(label, index)| {
            let has_granted = MasterId::new(index).is_some_and(|master| grant.granted.contains(master));
            (label.clone(), if has_granted { Vote::Granted } else { Vote::Pending })
        });
        let report = Report { round: Round::Acquire, votes: votes.collect() };
        let took = asked.submitted.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        AcquireError::Expired(Box::new(Denial {
            attempts: grant.attempts,
            took,
            holder: HolderTtl::Unknown,
            report,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lock::{MasterSet, Token};

    #[test]
    fn an_answer_with_less_than_the_validity_asked_for_is_expired() {
        // Nothing listens there.
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let client = Client::open(config).expect("an event loop");
        let name = Resource::new("a").expect("a name");
        let fetch = |min_validity: Duration| {
            let ttl = client.config().ttl(limits::TTL_DEFAULT).expect("a TTL");
            let wait = Duration::ZERO;
            let op = client.shared().with(|core| {
                core.submit(Request::Acquire { resource: name, ttl, wait, min_validity: Duration::ZERO })
            });
            let op = op.expect("it goes on").expect("there is room");
            let grant = Grant {
                token: Token::UNSET,
                fencing_token: None,
                valid_until: clock::now() + Duration::from_secs(1000),
                granted: MasterSet::EMPTY,
                attempts: 1,
            };
            let request = client.lock("a").min_validity(min_validity);
            request.guard(&mut Asked::default(), op, Outcome::Acquire(Ok(grant))).map(drop)
        };
        fetch(Duration::ZERO).expect("it has the validity");
        fetch(Duration::from_secs(100)).expect("it has the validity");
        let error = fetch(Duration::from_secs(2000)).expect_err("it has less");
        assert!(matches!(error, AcquireError::Expired(_)), "{error}");
    }
}
