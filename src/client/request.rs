//! [`LockRequest`]: a lock to be acquired, with all its options, and [`Acquire`], its acquisition.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::completions::Question;
use super::guard::Guard;
use super::handle::Client;
use super::name::HeldName;
use super::pending::{Ask, How, Pending, resolve_cancellable};
use super::shared::{Core, Stopped};
use crate::cancel::{Cancel, Registration};
use crate::clock;
use crate::engine::{Grant, OpId, Outcome, Request, Validity};
use crate::error::{AcquireError, Denial, Report, Round};
use crate::lock::{HolderLabel, LockName, MasterId, Resource, Vote};
use crate::mutants::mutant;
use crate::options::{
    Options, auto_extend_method, fair_method, label_method, option_methods, request_methods,
};

impl Client {
    /// Returns a request for the lock of this name; see [`LockName`]. It borrows the client, and the name if
    /// that is a reference. [`Client::lock_owned`] and [`LockRequest::into_owned`] give requests that can be
    /// stored and spawned.
    pub fn lock<'a, 'n: 'a>(&'a self, name: impl Into<LockName<'n>>) -> LockRequest<'a> {
        LockRequest::new(Cow::Borrowed(self), name.into())
    }

    /// Returns a request like [`Client::lock`] that owns a handle and the name. It can be stored, sent to
    /// another thread and spawned, and so can its future. A borrowed name is copied once; the guard shares
    /// the name without a copy.
    ///
    /// ```no_run
    /// # async fn start(client: redlatch::Client) {
    /// let acquiring = client.lock_owned("orders:42").acquire_async();
    /// tokio::spawn(async move {
    ///     if let Ok(guard) = acquiring.await {
    ///         // … work while guard.is_valid() …
    ///         let _ = guard.release_async().await;
    ///     }
    /// });
    /// # }
    /// ```
    pub fn lock_owned<'n>(&self, name: impl Into<LockName<'n>>) -> LockRequest<'static> {
        LockRequest::new(Cow::Owned(self.clone()), name.into().into_shared().into())
    }

    /// Starts to acquire several unrelated locks, with one write for each master. Each result comes from its
    /// own [`Acquire`], by [`Acquire::wait`] or by awaiting it. Dropping one gives up that lock only.
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

/// Request for one lock; made by [`Client::lock`] and [`Client::lock_owned`]. It sends nothing before one of
/// the acquire calls.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockRequest<'a> {
    pub(super) client: Cow<'a, Client>,
    pub(super) resource: LockName<'a>,
    pub(super) options: Options,
    pub(super) label: Option<Cow<'a, str>>,
    pub(super) cancel: Option<Cancel>,
}

impl<'a> LockRequest<'a> {
    pub(super) const fn new(client: Cow<'a, Client>, resource: LockName<'a>) -> Self {
        Self { client, resource, options: Options::new(), label: None, cancel: None }
    }

    request_methods!();
    label_method!('a);
    fair_method!(options);
    auto_extend_method!(options);

    /// Returns the same request with a handle, a name and a label of its own.
    pub fn into_owned(self) -> LockRequest<'static> {
        LockRequest {
            client: Cow::Owned(self.client.into_owned()),
            resource: self.resource.into_shared().into(),
            options: self.options,
            label: self.label.map(|label| Cow::Owned(label.into_owned())),
            cancel: self.cancel,
        }
    }

    /// Makes one attempt, in about one round trip.
    ///
    /// Returns within the answer limit ([`crate::ConfigBuilder::answer_timeout`]). A refused attempt that
    /// asks for the holder's time takes up to twice that. If the connections were closed while the client was
    /// idle, it takes up to 200 ms more ([`crate::limits::REVIVE_MAX`]).
    ///
    /// # Errors
    /// [`AcquireError`] distinguishes contention from an outage, and has what each master said.
    pub fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Returns the future of [`LockRequest::try_acquire`], for tasks; [`Acquire`] says what dropping it does.
    pub fn try_acquire_async(self) -> Acquire<'a> {
        self.wait(Duration::ZERO).acquire_async()
    }

    /// Acquires the lock, and retries after random delays until the wait is over. The default wait is the
    /// TTL.
    ///
    /// # Errors
    /// [`AcquireError`] of the last attempt. A lock that was acquired in part is released.
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        self.acquire_async().wait()
    }

    /// Returns the future of [`LockRequest::acquire`], for tasks; [`Acquire`] says what dropping it does.
    pub fn acquire_async(self) -> Acquire<'a> {
        Acquire::new(self)
    }
}

/// Acquisition under way: a future for any executor, or a value to [`Acquire::wait`] for.
///
/// It sends nothing before it is polled or waited for, unless it comes from [`Client::acquire_all`].
///
/// It is cancel-safe: dropping it never blocks and gives the acquisition up. Everything that it acquired so
/// far is released in the background, and its place in a queue is lost.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct Acquire<'a> {
    /// `None` once it was cancelled.
    pending: Option<Pending<Acquisition<'a>>>,
    registration: Option<Registration>,
}

const CANCELLED: &str = "polled after it was cancelled";

impl<'a> Acquire<'a> {
    pub(super) fn new(mut request: LockRequest<'a>) -> Self {
        let registration = request.cancel.take().map(Registration::new);
        Self { pending: Some(Pending::new(Acquisition::new(request))), registration }
    }

    pub(super) fn client(&self) -> &Client {
        self.pending.as_ref().expect(CANCELLED).ask().client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.pending.as_mut().expect(CANCELLED).submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<Guard, AcquireError>> {
        match &mut self.registration {
            None => self.pending.as_mut().expect(CANCELLED).resolve(how),
            Some(registration) => resolve_cancellable(registration, &mut self.pending, how),
        }
    }

    /// Waits on this thread. Returns by the end of the request's wait, or of one attempt if that is later.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn wait(mut self) -> Result<Guard, AcquireError> {
        match self.resolve(How::Thread) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }
}

impl Future for Acquire<'_> {
    type Output = Result<Guard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.resolve(How::Task(context))
    }
}

/// What [`Acquire`] asks.
#[derive(Debug)]
struct Acquisition<'a> {
    request: LockRequest<'a>,
    asked: Asked,
}

impl<'a> Acquisition<'a> {
    const fn new(request: LockRequest<'a>) -> Self {
        Self { request, asked: Asked::NOTHING }
    }
}

/// What an acquisition keeps for its answer.
#[derive(Debug)]
struct Asked {
    /// The guard's name.
    name: HeldName,
    submitted: Option<Instant>,
    /// `None` before it was submitted.
    validity: Option<Validity>,
}

impl Asked {
    const NOTHING: Self = Self { name: HeldName::NONE, submitted: None, validity: None };
}

impl Ask for Acquisition<'_> {
    const QUESTION: Question = Question::Acquire;
    type Answer = Guard;
    type Error = AcquireError;

    fn client(&self) -> &Client {
        &self.request.client
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
    fn submit(&self, core: &mut Core, asked: &mut Asked) -> Result<OpId, AcquireError> {
        let name = self.resource.as_bytes();
        let resource = Resource::new(&name)?;
        let label = self.label.as_deref().map(HolderLabel::new).transpose()?;
        let op = core.submit(Request::Acquire { resource, options: self.options, label })?;
        asked.name = match self.resource.shared() {
            None => HeldName::Copied(core.take_name(name)),
            Some(name) => HeldName::Shared(name.clone()),
        };
        asked.submitted = Some(clock::now());
        asked.validity = core.driver.engine.validity(op);
        Ok(op)
    }

    /// The guard of the lock that it was answered with.
    fn guard(&self, asked: &mut Asked, op: OpId, outcome: Outcome) -> Result<Guard, AcquireError> {
        match outcome {
            Outcome::Acquire(result) => {
                let grant = result?;
                let mut min_validity = self.options.min_validity;
                if mutant!(FetchedAnyValidity) {
                    min_validity = Duration::ZERO;
                }
                let name = std::mem::replace(&mut asked.name, HeldName::NONE);
                let validity = asked.validity.take().expect("it was submitted");
                let guard = Guard::new(Client::clone(&self.client), op, validity, &grant, name);
                // Looked at last (I2): a task may fetch its answer long after it came. The guard's drop
                // releases the lock.
                let now = clock::now();
                if now + min_validity >= guard.deadline() && !mutant!(FetchedUnchecked) {
                    return Err(self.expired(now, asked, &grant));
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
        let report = Report { votes: votes.collect(), ..Report::new(Round::Acquire, self.resource.clone()) };
        let took = asked.submitted.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        AcquireError::Expired(Box::new(Denial { attempts: grant.attempts, took, ..Denial::new(report) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lock::{MasterSet, Token};

    #[test]
    fn too_little_validity_left_is_expired() {
        // Nothing listens there.
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let client = Client::open(config).expect("an event loop");
        let name = Resource::new("a").expect("a name");
        let fetch = |min_validity: Duration| {
            let options = Options::new().wait(Duration::ZERO);
            let op = client
                .shared()
                .with(|core| core.submit(Request::Acquire { resource: name, options, label: None }));
            let op = op.expect("it goes on").expect("there is room");
            let grant = Grant {
                token: Token::UNSET,
                fencing_token: None,
                valid_until: clock::now() + Duration::from_secs(1000),
                granted: MasterSet::EMPTY,
                attempts: 1,
            };
            let request = client.lock("a").min_validity(min_validity);
            let validity = Some(Validity::new(clock::now()));
            let mut asked = Asked { validity, ..Asked::NOTHING };
            request.guard(&mut asked, op, Outcome::Acquire(Ok(grant))).map(drop)
        };
        fetch(Duration::ZERO).expect("it has the validity");
        fetch(Duration::from_secs(100)).expect("it has the validity");
        let error = fetch(Duration::from_secs(2000)).expect_err("it has less");
        assert!(matches!(error, AcquireError::Expired(_)), "{error}");
    }
}
