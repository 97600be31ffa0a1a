//! [`LockRequest`]: a lock to acquire, with its options. [`Acquire`]: its acquisition. [`RwLock`]: a name
//! with requests to read and to write.
//!
//! Contains the first calls of a program, `Client::connect` and `Client::lock`, so that rustdoc shows them
//! first.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::completions::OutcomeKind;
use super::guard::{Guard, HeldName};
use super::handle::Client;
use super::pending::{Ask, Pending, submit_all};
use super::shared::{Inner, Shared, Stopped};
use super::trace::AcquireSpan;
use crate::cancel::{Cancel, Registration};
use crate::clock;
use crate::config::ConfigBuilder;
use crate::driver::ConnectError;
use crate::engine::{Grant, OpId, Outcome, Request, Validity};
use crate::error::{AcquireError, Denial, Report, Round};
use crate::lock::{HolderLabel, LockName, MasterId, Vote};
use crate::options::{
    Options, auto_extend_method, fair_method, option_methods, request_methods, time_methods,
};

impl Client {
    /// Connects to the masters at these URLs with default settings, on this thread; see [`Client::open`]. In
    /// a task, await [`Client::connect_async`].
    ///
    /// # Errors
    /// [`ConnectError`]. An unreachable master is no error.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::builder().masters(urls).connect()
    }

    /// Returns a request for the lock of this name; see [`LockName`]. The request borrows the client, and the
    /// name if it is a reference. [`Client::lock_owned`] and [`LockRequest::into_owned`] return requests that
    /// can be stored and spawned.
    pub fn lock<'a, 'n: 'a>(&'a self, name: impl Into<LockName<'n>>) -> LockRequest<'a> {
        LockRequest::new(Cow::Borrowed(self), name.into())
    }

    /// Connects with the settings in the environment, such as `REDLATCH_MASTERS`, on this thread.
    /// [`ConfigBuilder::from_env`] lists the variables, which the command line reads, too. In a task, await
    /// `ConfigBuilder::from_env()?.connect_async()`.
    ///
    /// # Errors
    /// [`ConnectError::Config`] names a missing or wrong variable. An unreachable master is no error.
    pub fn from_env() -> Result<Self, ConnectError> {
        ConfigBuilder::from_env()?.connect()
    }

    /// Returns a request like [`Client::lock`] that owns a handle and the name. The request and its future
    /// can be stored, sent to another thread and spawned. A borrowed name is copied once, and the guard
    /// shares the copy.
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
        LockRequest::new(Cow::Owned(self.clone()), name.into().into_owned())
    }

    /// Starts to acquire several independent locks, with one write for each master. Each [`Acquire`] has its
    /// own result: call [`Acquire::block`], or await it. Dropping one gives up only its lock.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let names = ["orders:1", "orders:2", "orders:3"];
    /// let requests = names.iter().map(|name| client.lock(name));
    /// for acquiring in client.acquire_all(requests) {
    ///     match acquiring.block() {
    ///         Ok(guard) => println!("{:?}", guard.resource().escape_ascii()),
    ///         Err(error) => println!("{error}"),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_all<'a>(&self, requests: impl IntoIterator<Item = LockRequest<'a>>) -> Vec<Acquire<'a>> {
        let mut batch: Vec<_> = requests.into_iter().map(LockRequest::acquire_async).collect();
        batch.iter_mut().for_each(Acquire::open_span);
        submit_all(self.shared(), batch.iter_mut().map(|it| &mut it.pending));
        batch
    }

    /// Returns the lock of this name, for many readers or one writer; see [`LockName`]. A borrowed name is
    /// copied once, and the lock's requests and guards share the copy.
    pub fn rw_lock<'n>(&self, name: impl Into<LockName<'n>>) -> RwLock {
        RwLock { client: self.clone(), resource: name.into().into_shared() }
    }
}

/// Request for one lock; made by [`Client::lock`] and [`Client::lock_owned`]. Sends nothing before an acquire
/// call or an `.await`.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls or an `.await`"]
pub struct LockRequest<'a> {
    pub(super) client: Cow<'a, Client>,
    pub(super) resource: LockName<'a>,
    pub(super) options: Options,
    pub(super) label: Option<Cow<'a, str>>,
    pub(super) cancel: Option<Registration>,
}

impl<'a> LockRequest<'a> {
    pub(super) const fn new(client: Cow<'a, Client>, resource: LockName<'a>) -> Self {
        Self { client, resource, options: Options::new(), label: None, cancel: None }
    }

    time_methods!(options);

    /// Acquires the lock. Retries until the [wait](LockRequest::wait) is over, by default one TTL.
    ///
    /// Blocks the thread. In a task, await [`LockRequest::acquire_async`] or the request itself.
    ///
    /// # Errors
    /// [`AcquireError`]. A lock that was acquired in part is released.
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        self.acquire_async().block()
    }

    /// Returns the future of [`LockRequest::acquire`], for tasks. [`Acquire`] says what dropping it does.
    pub const fn acquire_async(self) -> Acquire<'a> {
        Acquire { pending: Pending::new(self), span: AcquireSpan::NEW }
    }

    /// Makes one attempt, in about one round trip.
    ///
    /// Returns within the answer limit ([`crate::ConfigBuilder::answer_timeout`]). A refused attempt that
    /// asks for the holder's remaining time, or repeats with another fencing token, takes up to twice as
    /// long. If the connections were closed while the client was idle, it takes up to 200 ms more
    /// ([`crate::limits::REVIVE_MAX`]).
    ///
    /// # Errors
    /// [`AcquireError`] distinguishes contention from an outage. Its [`Denial`] contains each master's
    /// answer.
    pub fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Returns the future of [`LockRequest::try_acquire`], for tasks. [`Acquire`] says what dropping it does.
    pub fn try_acquire_async(self) -> Acquire<'a> {
        self.wait(Duration::ZERO).acquire_async()
    }

    request_methods!('a, Registration::new);
    fair_method!(options);
    auto_extend_method!(options);

    /// Returns this request with owned copies of its client handle, name and label.
    pub fn into_owned(self) -> LockRequest<'static> {
        LockRequest {
            client: Cow::Owned(self.client.into_owned()),
            resource: self.resource.into_owned(),
            options: self.options,
            label: self.label.map(|label| Cow::Owned(label.into_owned())),
            cancel: self.cancel,
        }
    }
}

/// Acquisition under way: a future for any executor, or a value to [`Acquire::block`] on.
///
/// Sends nothing before its first poll or `block`, unless it comes from [`Client::acquire_all`].
///
/// Cancel-safe: dropping it gives up the acquisition. Everything acquired so far is released in the
/// background, and the place in a queue is lost. The drop does not block, unless it drops the client's last
/// handle.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct Acquire<'a> {
    pending: Pending<LockRequest<'a>>,
    span: AcquireSpan,
}

impl Acquire<'_> {
    /// Blocks this thread: at most for the request's wait, and up to 200 ms more after an idle time. Without
    /// a wait see [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn block(mut self) -> Result<Guard, AcquireError> {
        match self.resolve(|pending| Poll::Ready(pending.wait())) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }

    /// Returns the error with which the acquisition would end now, for a program that shows why it waits.
    /// `None` before the first attempt has failed, while masters are asked for the holder, and in a forked
    /// child process.
    #[must_use]
    pub fn last_failure(&self) -> Option<AcquireError> {
        let op = self.pending.token()?.op;
        let shared = self.pending.ask().client.shared();
        shared.peek(|inner| inner.driver.engine.last_failure(inner.now(), op)).flatten()
    }

    /// Waits for the result on this thread, or polls it for a task, within the span of the acquisition.
    fn resolve(
        &mut self,
        ask: impl FnOnce(&mut Pending<LockRequest<'_>>) -> Poll<Result<Guard, AcquireError>>,
    ) -> Poll<Result<Guard, AcquireError>> {
        self.open_span();
        let Self { pending, span } = self;
        let mut result = span.within(|| ask(pending));
        let LockRequest { resource, options, .. } = pending.ask();
        match &mut result {
            Poll::Ready(Ok(guard)) => {
                let holder = if span.is_open() { guard.waited().holder } else { None };
                span.granted(resource.as_bytes(), options.mode, &mut guard.hold, holder);
            }
            Poll::Ready(Err(error)) => span.failed(error),
            Poll::Pending => {}
        }
        result
    }

    fn open_span(&mut self) {
        let LockRequest { resource, options, .. } = self.pending.ask();
        self.span.open(resource.as_bytes(), options.mode);
    }
}

/// Awaiting a request awaits [`LockRequest::acquire_async`].
///
/// ```no_run
/// # async fn pay(client: redlatch::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").await?;
/// # Ok(())
/// # }
/// ```
impl<'a> IntoFuture for LockRequest<'a> {
    type Output = Result<Guard, AcquireError>;
    type IntoFuture = Acquire<'a>;

    fn into_future(self) -> Acquire<'a> {
        self.acquire_async()
    }
}

impl Future for Acquire<'_> {
    type Output = Result<Guard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.resolve(|pending| pending.poll_with(context.waker()))
    }
}

/// What an acquisition keeps for its guard.
#[derive(Debug)]
pub(super) struct Submitted {
    at: Instant,
    name: HeldName,
    /// `None` if the acquisition ended at once.
    validity: Option<Validity>,
}

impl Ask for LockRequest<'_> {
    const OUTCOME: OutcomeKind = OutcomeKind::Acquire;
    const STOPPED: fn(Stopped) -> AcquireError = AcquireError::Stopped;
    type Answer = Guard;
    type Error = AcquireError;
    type Submitted = Submitted;

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, Submitted), AcquireError> {
        let name = self.resource.as_bytes();
        let resource = self.resource.resource()?;
        let label = self.label.as_deref().map(HolderLabel::new).transpose()?;
        let op = inner.submit(Request::Acquire { resource, options: self.options, label })?;
        let validity = inner.driver.engine.validity(op);
        let name = match self.resource.shared() {
            None => HeldName::Copied(inner.take_name(name)),
            Some(name) => HeldName::Shared(name.clone()),
        };
        Ok((op, Submitted { at: inner.now(), name, validity }))
    }

    fn answer(&mut self, op: OpId, submitted: Submitted, outcome: Outcome) -> Result<Guard, AcquireError> {
        let Outcome::Acquire(result) = outcome else {
            unreachable!("an acquisition is answered by its own outcome")
        };
        let grant = result?;
        let Submitted { at, name, validity } = submitted;
        let validity = validity.expect("a lock that is granted has one");
        let guard = Guard::new(Client::clone(&self.client), op, validity, &grant, name);
        // Checked last (I2): a task may fetch its answer long after the answer came. The guard's drop
        // releases the lock.
        let now = clock::now();
        if now + self.options.min_validity >= guard.deadline_at(now) {
            return Err(self.expired(now.saturating_duration_since(at), &grant));
        }
        Ok(guard)
    }

    fn cancellation(&mut self) -> Option<(&mut Registration, AcquireError)> {
        Some((self.cancel.as_mut()?, AcquireError::Cancelled))
    }
}

impl LockRequest<'_> {
    /// Error of a lock that was acquired, but whose answer was fetched too late.
    fn expired(&self, took: Duration, grant: &Grant) -> AcquireError {
        let votes = self.client.config().labels.iter().zip(0..).map(|(label, index)| {
            let has_granted = MasterId::new(index).is_some_and(|master| grant.granted.contains(master));
            (label.clone(), if has_granted { Vote::Granted } else { Vote::Pending })
        });
        let report = Report { votes: votes.collect(), ..Report::new(Round::Acquire, self.resource.clone()) };
        AcquireError::Expired(Box::new(Denial { attempts: grant.attempts, took, ..Denial::new(report) }))
    }
}

/// Lock that many readers hold together or one writer holds alone; made by [`Client::rw_lock`].
///
/// Only a name, which holds nothing: [`RwLock::read`] returns a [shared](LockRequest::shared) request, and
/// [`RwLock::write`] an ordinary request. A writer excludes readers, writers and plain locks of the name, even
/// of other libraries, and each of them excludes the writer. Readers exclude all but other readers.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let prices = client.rw_lock("prices");
///
/// let guard = prices.read().acquire()?; // beside other readers
/// println!("{:?}", guard.remaining());
/// drop(guard); // before it writes: a reader that asks to write waits for itself
///
/// let guard = prices.write().fenced().acquire()?;
/// println!("{:?}", guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **No upgrade.** A guard to read never becomes a guard to write, or the reverse. A reader that asks to
/// write waits for itself and for every other reader, so two such readers would wait for each other. Release,
/// acquire, then look at the data again. The release of a dropped guard is sent before the next request.
///
/// **Order.** Waiting readers and writers stand in one queue, in the order in which they asked. A reader
/// waits behind a writer that asked before, so a stream of readers keeps no writer waiting. Readers at the
/// head of the queue get the lock together.
#[derive(Debug, Clone)]
pub struct RwLock {
    client: Client,
    resource: Bytes,
}

impl RwLock {
    /// Returns a request to hold the lock together with other readers.
    pub fn read(&self) -> LockRequest<'static> {
        self.client.lock_owned(self.resource.clone()).shared()
    }

    /// Returns a request to hold the lock alone.
    pub fn write(&self) -> LockRequest<'static> {
        self.client.lock_owned(self.resource.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lock::{Resource, Token};

    #[test]
    fn too_little_validity_left_is_expired() {
        // Nothing listens on these ports.
        let config = Config::builder()
            .masters([1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}")))
            .build()
            .expect("valid settings");
        let client = Client::open(config).expect("an event loop");
        let name = Resource::new("a").expect("a name");
        let fetch = |min_validity: Duration| {
            let options = Options::new().wait(Duration::ZERO);
            let op = client
                .shared()
                .with(|inner| inner.submit(Request::Acquire { resource: name, options, label: None }));
            let op = op.expect("it goes on").expect("there is room");
            let grant = Grant {
                token: Token::UNSET,
                fencing_token: None,
                valid_until: clock::now() + Duration::from_secs(1000),
                granted: [MasterId::new(1).expect("small")].into_iter().collect(),
                attempts: 1,
            };
            let mut request = client.lock("a").min_validity(min_validity);
            let validity = Some(Validity::new(clock::now()));
            let submitted = Submitted { at: clock::now(), name: HeldName::NONE, validity };
            request.answer(op, submitted, Outcome::Acquire(Ok(grant))).map(drop)
        };
        fetch(Duration::ZERO).expect("it has the validity");
        fetch(Duration::from_secs(100)).expect("it has the validity");
        let error = fetch(Duration::from_secs(2000)).expect_err("it has less");
        let AcquireError::Expired(denial) = error else { panic!("{error}") };
        let votes: Vec<&Vote> = denial.report.votes.iter().map(|(_, vote)| vote).collect();
        assert_eq!(votes, [&Vote::Pending, &Vote::Granted, &Vote::Pending]);
    }
}
