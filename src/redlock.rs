//! [`Redlock`]: the protocol in the caller's own loop, without a background thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::{Config, ConfigBuilder};
use crate::driver::{ConnectError, Driver, Poller, PollerWaker};
use crate::engine::{Health, HeldLocks, Left, MasterStatus, OpId, Outcome, Request, Stats, SubmitError};
use crate::error::{AcquireError, Waited};
use crate::process::Process;

/// Lock client for a dedicated thread. It sends and reads nothing between calls.
///
/// It implements the Redlock algorithm of Redis's page on distributed locks over all configured masters, or
/// with one master the single-instance lock of that page. [`Redlock::submit`] queues requests,
/// [`Redlock::turn`] writes them and reads answers, and [`Redlock::poll_outcome`] returns outcomes. So one
/// thread can keep many locks in progress. For calls that wait for one lock use [`Client`](crate::Client).
///
/// It also reconnects only inside calls; call [`Redlock::turn`] from time to time if the service is idle.
/// Dropping a `Redlock` writes queued requests, as far as that does not block, and closes the connections.
/// Locks still held end with their TTL.
///
/// A forked process cannot use it: calls return errors or nothing, and drops do nothing. Connect again in the
/// child.
///
/// ```no_run
/// use redlatch::engine::{Outcome, Request, Resource};
/// use redlatch::{Options, Redlock};
/// use std::time::Duration;
///
/// let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let mut redlock = Redlock::connect(masters)?;
/// let options = Options::new().wait(Duration::from_secs(2));
/// for order in 0..100 {
///     let name = format!("orders:{order}");
///     let resource = Resource::new(name.as_bytes())?;
///     redlock.submit(Request::Acquire { resource, options, label: None })?;
/// }
/// let mut left = 100;
/// while left > 0 {
///     redlock.turn(Duration::from_secs(1))?;
///     while let Some((lock, outcome)) = redlock.poll_outcome() {
///         match outcome {
///             Outcome::Acquire(Ok(grant)) => {
///                 // … work until `grant.valid_until` …
///                 redlock.submit(Request::Release { lock, awaited: true })?;
///             }
///             Outcome::Acquire(Err(_)) | Outcome::Release(_) => left -= 1,
///             _ => {}
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Redlock {
    driver: Driver,
    poller: Poller,
    process: Arc<Process>,
}

/// Ends the sleep of [`Redlock::turn`].
struct LoopWaker {
    poller: PollerWaker,
    process: Arc<Process>,
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        // A fork's event queue is its parent's.
        if !self.process.is_forked() {
            self.poller.wake();
        }
    }
}

impl Redlock {
    /// Connects to the masters at these URLs with default settings; see [`Redlock::open`].
    ///
    /// # Errors
    /// [`ConnectError`]. An unreachable master is no error.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::open(Config::builder().masters(urls).build()?)
    }

    /// Returns the default settings, to change and pass to [`Redlock::open`].
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Config::builder()
    }

    /// Connects with these settings.
    ///
    /// Returns when each master is ready or has failed once. Once a quorum is ready, the remaining masters
    /// get the same time again: at least 20 ms ([`crate::limits::STRAGGLER_WAIT`]), at most twice the
    /// `connect_timeout` in total, 2 s by default.
    ///
    /// Later calls keep trying to reach missing masters. [`Redlock::masters`] reports their state.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system provides no event queue or randomness.
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let (mut driver, mut poller) = Driver::new(Arc::new(config))?;
        driver.settle(&mut poller)?;
        let mut redlock = Self { driver, poller, process: Arc::new(Process::own()) };
        redlock.report_events();
        Ok(redlock)
    }

    /// Returns how many masters above the quorum are known to hold this lock. That many may lose it without
    /// harm. The id must come from this `Redlock`. 0 in a fork.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        if self.is_forked() { 0 } else { self.driver.engine.margin(lock) }
    }

    /// Returns how long the acquisition of this lock took, and whom it waited for; empty in a fork.
    #[must_use]
    pub fn waited(&self, lock: OpId) -> Waited {
        let waited = self.driver.engine.waited(lock);
        waited.filter(|_| !self.is_forked()).unwrap_or_default()
    }

    /// Returns the status of each master, in the order of the configuration; empty in a fork.
    #[must_use]
    pub fn masters(&self) -> Vec<MasterStatus> {
        self.health().masters
    }

    /// Returns whether the votes of a quorum of masters count, how many more may fail, and the status of each
    /// master, as of the last call that drove the event loop. Without masters in a fork.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.is_forked() { Health::default() } else { self.driver.engine.health(clock::now()) }
    }

    /// Returns counters and times since this client's start; all zero in a fork.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.is_forked() { Stats::default() } else { self.driver.engine.stats(clock::now()) }
    }

    /// Returns how long the machine was suspended since the start of this process's first client: the time
    /// that [`Instant::now`] did not count. Zero without the feature `suspend`, and on platforms that it does
    /// not support.
    #[must_use]
    pub fn suspended(&self) -> Duration {
        clock::suspended()
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.driver.engine.config()
    }

    /// Queues a request. The next [`Redlock::turn`] or [`Redlock::flush`] writes it.
    ///
    /// Keep the returned id and release each acquired lock; no guard does it. Automatic extension
    /// ([`Options::auto_extend`](crate::Options::auto_extend)) works only while the loop turns. To leave a
    /// lock to its TTL, send nothing for it, or [`Request::LeaveFor`].
    ///
    /// # Errors
    /// [`SubmitError`] if the request was not queued. Even a refused [`Request::Drain`] ends acquisitions and
    /// locks.
    pub fn submit(&mut self, request: Request<'_>) -> Result<OpId, SubmitError> {
        self.check_process().map_err(SubmitError::Stopped)?;
        self.driver.submit(clock::now(), request)
    }

    /// Writes queued requests, waits at most `limit` for answers, and handles them. Does not wait while an
    /// outcome is ready.
    ///
    /// # Errors
    /// An error of the operating system's event queue, or in a fork. The `Redlock` is unusable afterwards.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        self.check_process().map_err(|why| io::Error::other(why.to_string()))?;
        let limit = if self.driver.engine.has_outcome() { Duration::ZERO } else { limit };
        let result = self.driver.turn(&mut self.poller, Some(limit));
        self.report_events();
        result
    }

    /// Returns a waker that ends the current [`Redlock::turn`], or its next sleep, from any thread. Does
    /// nothing in a fork.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(LoopWaker { poller: self.driver.waker(), process: self.process.clone() }))
    }

    /// Writes queued requests, as far as that does not block. Does nothing in a fork.
    pub fn flush(&mut self) {
        if self.is_forked() {
            return;
        }
        self.driver.flush();
        self.report_events();
    }

    /// Calls the observer with waiting events.
    fn report_events(&mut self) {
        while let Some(event) = self.driver.engine.poll_event() {
            if let Some(observer) = &self.config().observer {
                observer.call(&event);
            }
        }
    }

    /// Returns the next outcome. Compare its times with [`Instant::now`]. `None` in a fork, because the locks
    /// belong to the parent.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        if self.is_forked() {
            return None;
        }
        let (lock, mut outcome) = self.driver.engine.poll_outcome()?;
        match &mut outcome {
            Outcome::Acquire(Ok(grant)) => grant.valid_until = clock::to_std(grant.valid_until),
            Outcome::Extend(Ok(valid_until)) | Outcome::Lost(valid_until) => {
                *valid_until = clock::to_std(*valid_until);
            }
            Outcome::Leave(result) => *result = Left::by_clock(result.clone(), clock::to_std),
            _ => {}
        }
        Some((lock, outcome))
    }

    /// Returns how the latest attempt of an acquisition in progress failed: the error with which it would end
    /// now. `None` before its first attempt has failed, and while masters are asked about the holder.
    #[must_use]
    pub fn last_failure(&self, lock: OpId) -> Option<AcquireError> {
        if self.is_forked() { None } else { self.driver.engine.last_failure(clock::now(), lock) }
    }

    /// Returns the end of a lock's validity, to compare with [`Instant::now`]. With the feature `suspend`,
    /// the end is earlier by the time that the machine slept; see [`Guard::valid_until`].
    ///
    /// [`Guard::valid_until`]: crate::Guard::valid_until
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        if self.is_forked() { None } else { self.driver.engine.valid_until(lock).map(clock::to_std) }
    }

    /// Ends this client's locks within `limit`, and the client.
    ///
    /// Gives up acquisitions, and releases held locks or leaves them to their TTL, as `held` says. Returns
    /// when all releases are complete, or after `limit`, with the number of locks and failed attempts not
    /// released everywhere; 0 in a fork.
    pub fn drain(mut self, limit: Duration, held: HeldLocks) -> usize {
        if self.is_forked() {
            return 0;
        }
        let request = Request::Drain { held, limit };
        let drain = self.submit(request).or_else(|_| {
            // The refused drain has ended acquisitions: there is room once their outcomes are fetched.
            while self.poll_outcome().is_some() {}
            self.submit(request)
        });
        let Ok(drain) = drain else { return self.driver.engine.unconfirmed_count() };
        while !std::iter::from_fn(|| self.poll_outcome()).any(|(id, _)| id == drain)
            && self.turn(limit).is_ok()
        {}
        self.driver.engine.unconfirmed_count()
    }

    fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    fn check_process(&self) -> Result<(), Arc<str>> {
        self.process.check()
    }
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.flush();
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("masters", &self.masters()).finish_non_exhaustive()
    }
}
