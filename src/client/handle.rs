//! [`Client`]: the handle that callers clone. How it is opened, what it reports, how it ends.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::callbacks::Callbacks;
use super::completions::OutcomeKind;
use super::pending::{Ask, Pending};
#[cfg(all(unix, feature = "tokio"))]
use super::runtime;
#[cfg(unix)]
use super::shared::background::Drive;
use super::shared::{Inner, Shared, Stopped};
use crate::caught::caught;
use crate::clock;
use crate::config::{Config, ConfigBuilder};
use crate::driver::{ConnectError, Driver};
use crate::engine::{Health, HeldLocks, MasterStatus, OpId, Outcome, Request, Stats, SubmitError};
use crate::error::ConfigError;

/// Lock client for many threads and tasks. Clones share one set of connections and one event loop.
///
/// Implements the Redlock algorithm of Redis's page on distributed locks over all configured masters. With
/// one master it is the single-instance lock of that page. A blocking call drives the loop on its own thread
/// if it can, so a lone caller usually pays for no hand-over between threads. Futures need no particular
/// executor: a background thread of the client drives the loop for them, reconnects, and releases the locks
/// of dropped guards.
///
/// [`crate::Redlock`] works without that thread, for one owner.
///
/// Guards are handles, too. Dropping the last handle waits at most 100 ms ([`crate::limits::CLOSE_WAIT`]) for
/// queued releases, and not at all after [`Client::drain`] or [`Client::drain_async`] has stopped the client.
///
/// A forked child process cannot use the client: calls that ask masters return errors, drops do nothing, and
/// [`Client::drain`] has nothing to wait for. Connect again in the child.
///
/// ```no_run
/// use redlatch::Client;
/// use std::time::Duration;
///
/// let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let client = Client::connect(masters)?;
/// let request = client.lock("orders:42").ttl(Duration::from_secs(10));
/// let guard = request.wait(Duration::from_secs(2)).acquire()?;
/// // … work while guard.is_valid() …
/// drop(guard); // released in the background; `release` waits for the masters
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a task, on any executor, call the methods that end in `_async`. Every other method that waits for
/// masters blocks the thread:
///
/// ```no_run
/// # use redlatch::Client;
/// # async fn task(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").acquire_async().await?;
/// let _ = guard.release_async().await; // an error: it goes on in the background
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

impl ConfigBuilder {
    /// Connects with these settings, on this thread; see [`Client::open`].
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let builder = redlatch::Client::builder().masters(urls);
    /// let client = builder.max_ttl(Duration::from_secs(20)).connect()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`]. An unreachable master is no error.
    pub fn connect(self) -> Result<Client, ConnectError> {
        Client::open(self.build()?)
    }

    /// Returns the future of [`ConfigBuilder::connect`], for tasks. [`Connect`] says what dropping it does,
    /// and [`Client::connect_async`] which thread drives the client.
    ///
    /// # Errors
    /// As [`ConfigBuilder::connect`].
    pub fn connect_async(self) -> Connect {
        match self.build() {
            Ok(config) => Client::open_async(config),
            Err(error) => Connect { state: ConnectState::Invalid(error) },
        }
    }
}

/// Dropped with the last clone or guard.
struct Handle {
    shared: Arc<Shared>,
    config: Arc<Config>,
    callbacks: Callbacks,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Client {
    /// Returns a builder with the default settings; [`ConfigBuilder::connect`] then connects.
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Config::builder()
    }

    /// Connects with these settings, on this thread.
    ///
    /// Returns when each master is ready or has failed once. Once a quorum is ready, the other masters get
    /// the same time again, at least 20 ms ([`crate::limits::STRAGGLER_WAIT`]). The limit is twice the
    /// `connect_timeout`, 2 s by default.
    ///
    /// The client keeps trying to reach missing masters in the background. [`Client::masters`] reports their
    /// state.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system refuses an event queue, randomness or a thread.
    /// `ConnectError::Tls` if certificates or a key for `rediss://` masters cannot be used.
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let config = Arc::new(config);
        let (mut driver, mut poller) = Driver::new(config.clone())?;
        driver.settle(&mut poller)?;
        let shared = Shared::start(driver, poller)?;
        Ok(Self { handle: Arc::new(Handle { shared, config, callbacks: Callbacks::default() }) })
    }

    /// Returns the future of [`Client::connect`], for tasks.
    ///
    /// With the feature `tokio`, on Unix, a client that is opened in a `current_thread` runtime of tokio is
    /// driven by a task of that runtime, so answers do not cross threads. Locks do not depend on the runtime:
    /// the client's background thread still renews them, ends waits and reconnects on time. That thread leads
    /// when tasks have waited for 20 ms ([`crate::limits::DRIVE_LATE`]) without a turn of the runtime,
    /// because the runtime is blocked or nothing arrives. It leads until the runtime turns again, and for
    /// good once the runtime has ended.
    ///
    /// The runtime must do I/O (`enable_io`). Otherwise tokio panics in that task, and the background thread
    /// drives the client; a program that aborts on a panic ends. In a runtime with several workers, and on
    /// other executors, the feature changes nothing.
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = redlatch::Client::connect_async(urls).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`]. An unreachable master is no error.
    pub fn connect_async<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Connect {
        Self::builder().masters(urls).connect_async()
    }

    /// Returns the future of [`Client::open`], for tasks. [`Connect`] says what dropping it does, and
    /// [`Client::connect_async`] which thread drives the client.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_async(config: Config) -> Connect {
        Connect { state: ConnectState::Idle(Box::new(config)) }
    }

    /// Returns the status of each master, in the order of the configuration. A client that has stopped
    /// returns the last status. The result is empty in a forked child process.
    #[must_use]
    pub fn masters(&self) -> Vec<MasterStatus> {
        self.shared().peek(|inner| inner.driver.engine.health(inner.now()).masters).unwrap_or_default()
    }

    /// Returns whether the votes of a quorum of masters count now, how many more masters may fail, and the
    /// status of each master. Asks no master and does not block: a master that hangs is noticed when it next
    /// misses an answer.
    ///
    /// A readiness probe returns [`Health::has_quorum`], which changes by itself when masters come back. A
    /// liveness probe must not depend on it: a restart of the process repairs no master, and gives up the
    /// locks that the process holds. The page
    /// [monitoring](https://docs.rs/crate/redlatch/latest/source/docs/monitoring.md) has an example.
    ///
    /// In a forked child process, and in a client that has stopped, the result has no masters and no quorum.
    #[must_use]
    pub fn health(&self) -> Health {
        let inner = self.shared().enter();
        inner.map(|inner| inner.driver.engine.health(inner.now())).unwrap_or_default()
    }

    /// Returns counts and times since this client was opened, for all its handles. All are zero in a forked
    /// child process.
    ///
    /// Copies 6 KiB, and 2 KiB for each master, while it holds the client's mutex: call it for each scrape,
    /// not for each lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().peek(|inner| inner.driver.engine.stats(inner.now())).unwrap_or_default()
    }

    /// Returns for how long the machine was suspended since the first client of this process was opened.
    /// [`std::time::Instant::now`] did not count that time. Zero without the feature `suspend`, and on
    /// platforms that the feature does not support.
    #[must_use]
    pub fn suspended(&self) -> Duration {
        clock::suspended()
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.handle.config
    }

    /// Takes over the event loop from the client's background thread, for an event loop of your own. Use one
    /// drive at a time: of two drives, only the one that turned last is woken, and dropping either ends both.
    ///
    /// # Errors
    /// If the client has stopped, or if the operating system refuses a descriptor.
    #[cfg(unix)]
    pub fn drive(&self) -> io::Result<Drive> {
        self.shared().drive(false)
    }

    /// Ends the client's locks and then the client, within `limit`, for the shutdown of a service.
    ///
    /// 1. From now on nothing is acquired. Acquisitions under way and later ones, of all handles, end with
    ///    [`crate::AcquireError::Stopped`].
    /// 2. `held` says what becomes of locks that guards hold: they are released now, or left to their guards.
    /// 3. The call returns when nothing is left to release on any master, or after `limit`.
    /// 4. The client stops. Guards that still hold a lock keep their validity, but nobody renews or releases
    ///    the lock, which ends with its TTL.
    ///
    /// Returns the number of locks and failed attempts that are not released on every master. An unreachable
    /// master keeps their keys until the TTL ends.
    ///
    /// Returns at once in a waker that this client calls. Returns 0 at once in a forked child process.
    ///
    /// ```no_run
    /// # use redlatch::{Client, HeldLocks};
    /// # use std::time::Duration;
    /// # let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let unreleased = client.drain(Duration::from_secs(10), HeldLocks::Leave);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, limit: Duration, held: HeldLocks) -> usize {
        let result = self.draining(limit, held).wait();
        self.end_drain(result)
    }

    /// Returns the future of [`Client::drain`], for tasks. Does nothing before its first poll. Cancel-safe:
    /// dropping it only ends the wait. After a poll the client acquires nothing, finishes its releases, and
    /// serves its guards.
    pub fn drain_async(
        &self,
        limit: Duration,
        held: HeldLocks,
    ) -> impl Future<Output = usize> + Send + use<> {
        let client = self.clone();
        async move {
            let result = client.draining(limit, held).await;
            client.end_drain(result)
        }
    }

    fn draining(&self, limit: Duration, held: HeldLocks) -> Pending<DrainCall> {
        Pending::new(DrainCall { client: self.clone(), limit, held })
    }

    fn end_drain(&self, result: Result<(), NotDrained>) -> usize {
        if result.is_ok() {
            // With a limit of zero nothing has been written yet.
            let _ = self.shared().with(|inner| {
                inner.flush();
                inner.is_drained = true;
            });
            self.shared().stop("it was drained; open a new client");
        }
        // A client that has stopped leaves its locks to their TTL. In a forked child they are the parent's.
        self.shared().peek(|inner| inner.driver.engine.unconfirmed_count()).unwrap_or_default()
    }

    #[cfg(any(test, all(unix, feature = "simulator")))]
    pub(super) fn from_shared(shared: Arc<Shared>, config: Arc<Config>) -> Self {
        Self { handle: Arc::new(Handle { shared, config, callbacks: Callbacks::default() }) }
    }

    /// Number of outcomes that have not come.
    #[cfg(test)]
    pub(crate) fn waiting_count(&self) -> usize {
        self.shared().peek(|inner| inner.completions.waiting_count()).expect("no fork")
    }

    /// Number of bytes that wait for a write to the first master.
    #[cfg(test)]
    pub(crate) fn unsent_size(&self) -> usize {
        let first = crate::lock::MasterId::new(0).expect("small");
        self.shared().peek(|inner| inner.driver.engine.send_ready(first).len()).expect("no fork")
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    pub(super) fn callbacks(&self) -> &Callbacks {
        &self.handle.callbacks
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("masters", &self.masters()).finish_non_exhaustive()
    }
}

/// Opening of a client: a future for any executor; made by [`Client::open_async`] and
/// [`Client::connect_async`].
///
/// Does nothing before its first poll. Then a separate thread opens the client, within twice the
/// `connect_timeout`, 2 s by default. No poll blocks. Cancel-safe: if it is dropped before the client is
/// open, that thread closes the client. Dropping it later drops the client's last handle.
#[must_use = "nothing is connected before this is awaited"]
#[derive(Debug)]
pub struct Connect {
    state: ConnectState,
}

#[derive(Debug)]
enum ConnectState {
    Invalid(ConfigError),
    Idle(Box<Config>),
    Opening(Arc<Mutex<Opening>>),
    Over,
}

/// Result of the thread, and the waiting task.
#[derive(Debug, Default)]
struct Opening {
    result: Option<Result<Client, ConnectError>>,
    waker: Option<Waker>,
}

impl Future for Connect {
    type Output = Result<Client, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let opening = match std::mem::replace(&mut self.state, ConnectState::Over) {
            ConnectState::Over => panic!("polled after it was ready"),
            ConnectState::Invalid(error) => return Poll::Ready(Err(error.into())),
            ConnectState::Idle(config) => start(*config)?,
            ConnectState::Opening(opening) => opening,
        };
        let mut shared = opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = shared.result.take() {
            #[cfg(all(unix, feature = "tokio"))]
            result.iter().for_each(|client| runtime::drive(client.shared()));
            return Poll::Ready(result);
        }
        let _replaced = shared.waker.replace(context.waker().clone());
        drop(shared);
        self.state = ConnectState::Opening(opening);
        Poll::Pending
    }
}

/// Opens the client on a separate thread.
fn start(config: Config) -> Result<Arc<Mutex<Opening>>, ConnectError> {
    let opening = Arc::<Mutex<Opening>>::default();
    let its = opening.clone();
    thread::Builder::new().name("redlatch-open".to_owned()).spawn(move || {
        let result = caught(|| Client::open(config));
        let result = result.unwrap_or_else(|| Err(io::Error::other("opening the client panicked").into()));
        let mut shared = its.lock().unwrap_or_else(PoisonError::into_inner);
        shared.result = Some(result);
        let waker = shared.waker.take();
        drop(shared);
        // Dropped before the waker runs foreign code. If the task is gone, this drop ends the client.
        drop(its);
        waker.into_iter().for_each(Waker::wake);
    })?;
    Ok(opening)
}

/// The client cannot be used, or has no room for the request.
#[derive(Debug)]
struct NotDrained;

#[derive(Debug)]
struct DrainCall {
    client: Client,
    limit: Duration,
    held: HeldLocks,
}

impl Ask for DrainCall {
    const OUTCOME: OutcomeKind = OutcomeKind::Drain;
    const STOPPED: fn(Stopped) -> NotDrained = |_| NotDrained;
    type Answer = ();
    type Error = NotDrained;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), NotDrained> {
        let request = Request::Drain { held: self.held, limit: self.limit };
        // The refused request has ended the acquisitions under way, so there is room now.
        let again = |inner: &mut Inner| {
            inner.deliver();
            inner.submit(request)
        };
        let op = inner.submit(request).or_else(|_| again(inner)).map_err(|_: SubmitError| NotDrained)?;
        Ok((op, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<(), NotDrained> {
        match outcome {
            Outcome::Drained(_) => Ok(()),
            _ => unreachable!("a drain is answered by its own outcome"),
        }
    }
}
