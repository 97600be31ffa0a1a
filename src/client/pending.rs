//! What was asked of a client and is not answered yet: futures for any executor, which a thread can wait for, too.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::desk::{Question, Ticket};
use super::guard::Guard;
use super::lingering::note_drop;
use super::shared::{Core, Stopped};
use super::{Client, LockRequest};
use crate::clock;
use crate::engine::{Grant, OpId, Outcome, Released, Request};
use crate::error::{AcquireError, Denial, ExtendError, ReleaseError, Report, Round};
use crate::limits;
use crate::lock::{HolderTtl, InputError, MasterId, Resource, Vote};
use crate::mutants::mutant;

/// A lock that is being acquired: a future for any executor, or something to [`Acquire::wait`] for.
///
/// Nothing is sent before it is polled or waited for, unless it comes from [`Client::acquire_all`]. Dropping it gives the
/// acquisition up: that never blocks, and what was acquired so far is released in the background.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct Acquire<'a>(Pending<Acquisition<'a>>);

/// An extension under way: a future for any executor, or something to [`Extend::wait`] for.
///
/// Nothing is sent before it is polled or waited for, unless it comes from [`Client::extend_all`]. Dropping it leaves the
/// extension to itself: the guard's validity then ends as before or as asked for.
#[must_use = "nothing is extended before this is awaited"]
#[derive(Debug)]
pub struct Extend<'g>(Pending<Extension<'g>>);

/// A release under way: a future for any executor, or something to [`Release::wait`] for.
///
/// Dropping it, at any time, has the lock released in the background.
#[must_use = "the answer of the masters is in here"]
#[derive(Debug)]
pub struct Release(Pending<Guard>);

impl<'a> Acquire<'a> {
    pub(super) const fn new(request: LockRequest<'a>) -> Self {
        Self(Pending::new(Acquisition { request, asked: Asked::NOTHING }))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask.client()
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

/// Makes a future of what has a [`Pending`] in it.
macro_rules! future {
    ($name:ty, $output:ty) => {
        impl ::std::future::Future for $name {
            type Output = $output;

            fn poll(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<$output> {
                self.0.poll(context)
            }
        }
    };
}
pub(super) use future;

future!(Acquire<'_>, Result<Guard, AcquireError>);
future!(Extend<'_>, Result<(), ExtendError>);
future!(Release, Result<Released, ReleaseError>);

impl<'g> Extend<'g> {
    pub(super) const fn new(guard: &'g mut Guard, ttl: Duration) -> Self {
        Self(Pending::new(Extension { guard, ttl }))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask.client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.0.submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<(), ExtendError>> {
        self.0.resolve(how)
    }

    /// Waits on this thread, for the limit of one answer at most.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    pub fn wait(self) -> Result<(), ExtendError> {
        self.0.wait()
    }
}

impl Release {
    pub(super) const fn new(guard: Guard) -> Self {
        Self(Pending::new(guard))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask.client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.0.submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<Released, ReleaseError>> {
        self.0.resolve(how)
    }

    /// Waits on this thread, for the limit of one answer at most.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn wait(self) -> Result<Released, ReleaseError> {
        self.0.wait()
    }
}

/// Who wants an answer: a thread, which waits until it is there, or a task.
#[derive(Clone, Copy)]
pub(super) enum How<'a, 'b> {
    Thread,
    Task(&'a Context<'b>),
}

/// What can be asked of a client and is answered once.
pub(super) trait Ask {
    const QUESTION: Question;
    type Answer;
    type Error;

    fn client(&self) -> &Client;

    /// Has the engine take the request.
    fn submit(&mut self, core: &mut Core) -> Result<OpId, Self::Error>;

    fn answer(&mut self, op: OpId, outcome: Outcome) -> Result<Self::Answer, Self::Error>;

    fn stopped(why: Stopped) -> Self::Error;
}

/// A request, and how far it is.
#[derive(Debug)]
pub(super) struct Pending<A: Ask> {
    ask: A,
    state: State<A::Error>,
}

#[derive(Debug)]
enum State<E> {
    /// Nothing was sent.
    Idle,
    /// The outcome has not been fetched.
    Waiting(Ticket),
    /// It was refused before anything was sent.
    Refused(E),
    /// All was said.
    Over,
}

impl<A: Ask> Pending<A> {
    pub(super) const fn new(ask: A) -> Self {
        Self { ask, state: State::Idle }
    }

    /// Submits without waiting; the caller sees to it that the request is written.
    fn submit(&mut self, core: &mut Core) {
        self.state = match self.ask.submit(core) {
            Ok(op) => State::Waiting(core.desk.expect(op, A::QUESTION)),
            Err(error) => State::Refused(error),
        };
        // An answer that is there at once frees the operation's place, which the next request of a batch may take.
        core.deliver();
    }

    /// What entitles to the answer; submits the request if that was not done yet. `None` if there will be no answer.
    fn ticket(&mut self, core: &mut Core) -> Option<Ticket> {
        if let State::Idle = self.state {
            self.submit(core);
        }
        match self.state {
            State::Waiting(ticket) => Some(ticket),
            _ => None,
        }
    }

    pub(super) fn wait(mut self) -> Result<A::Answer, A::Error> {
        self.wait_here()
    }

    /// Waits for it, or polls it.
    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<A::Answer, A::Error>> {
        match how {
            How::Thread => Poll::Ready(self.wait_here()),
            How::Task(context) => self.poll(context),
        }
    }

    fn wait_here(&mut self) -> Result<A::Answer, A::Error> {
        let client = self.ask.client().clone();
        let outcome = client.shared().wait(A::QUESTION, |core| self.ticket(core));
        self.finish(outcome)
    }

    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<A::Answer, A::Error>> {
        let client = self.ask.client().clone();
        let is_new = matches!(self.state, State::Idle);
        let outcome = client.shared().poll(context.waker(), is_new, |core| self.ticket(core));
        outcome.map(|outcome| self.finish(outcome))
    }

    /// Makes the answer of an outcome.
    fn finish(&mut self, outcome: Result<Option<Outcome>, Stopped>) -> Result<A::Answer, A::Error> {
        match (outcome, std::mem::replace(&mut self.state, State::Over)) {
            (_, State::Over) => panic!("polled after it was ready"),
            (Ok(Some(outcome)), State::Waiting(ticket)) => self.ask.answer(ticket.op, outcome),
            (_, State::Refused(error)) => Err(error),
            (Err(why), state) => {
                // The client may go on, without this call: the drop gives up what was asked.
                self.state = state;
                Err(A::stopped(why))
            }
            (Ok(_), _) => unreachable!("an outcome is that of a submitted request, and is given once"),
        }
    }
}

impl<A: Ask> Drop for Pending<A> {
    fn drop(&mut self) {
        if let State::Waiting(ticket) = self.state {
            // A client that cannot be used has nothing to give up.
            let client = self.ask.client();
            client.shared().with_or_later(move |core| core.abandon(ticket));
            note_drop(&client.handle.shared);
        }
    }
}

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

/// What [`Extend`] asks.
#[derive(Debug)]
struct Extension<'g> {
    guard: &'g mut Guard,
    ttl: Duration,
}

impl Ask for Extension<'_> {
    const QUESTION: Question = Question::Extend;
    type Answer = ();
    type Error = ExtendError;

    fn client(&self) -> &Client {
        self.guard.client()
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ExtendError> {
        let ttl = self.guard.client().config().ttl(self.ttl)?;
        let request = Request::Extend { lock: self.guard.lock(), ttl };
        core.submit(request).map_err(|_| ExtendError::NotHeld)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<(), ExtendError> {
        match outcome {
            Outcome::Extend(result) => result.map(drop),
            _ => unreachable!("an extension is answered by its own outcome"),
        }
    }

    fn stopped(why: Stopped) -> ExtendError {
        ExtendError::Stopped(why)
    }
}

/// The release of a guard.
impl Ask for Guard {
    const QUESTION: Question = Question::Release;
    type Answer = Released;
    type Error = ReleaseError;

    fn client(&self) -> &Client {
        self.client()
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ReleaseError> {
        self.disarm(core);
        let request = Request::Release { lock: self.lock(), awaited: true };
        core.submit(request).map_err(|_| ReleaseError::NotHeld)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<Released, ReleaseError> {
        match outcome {
            Outcome::Release(result) => result,
            _ => unreachable!("a release is answered by its own outcome"),
        }
    }

    fn stopped(why: Stopped) -> ReleaseError {
        ReleaseError::Stopped(why)
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
