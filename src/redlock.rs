//! [`Redlock`]: the protocol in a loop of one thread, without a background thread and without a hand-off.

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

/// Lock client for one thread that does nothing else. Nothing is sent or read between its calls.
///
/// It implements the Redlock algorithm of Redis's page on distributed locks over all configured masters. With
/// one master it is the single-instance lock of the same page. Requests are queued with [`Redlock::submit`],
/// written and answered in [`Redlock::turn`], and their outcomes come from [`Redlock::poll_outcome`]. This way
/// one thread keeps many locks in progress. For calls that wait for one lock use [`Client`](crate::Client).
///
/// It also reconnects inside calls only; a service that is idle for long calls [`Redlock::turn`] now and
/// then. Dropping a `Redlock` writes queued requests, as far as that needs no waiting, and closes the
/// connections. Locks that it still holds end by their TTL.
///
/// A fork of the process cannot use it: its calls return errors or nothing, and drops do nothing. Connect
/// anew in the child.
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

/// Ends the sleep of a [`Redlock::turn`].
struct LoopWaker {
    poller: PollerWaker,
    process: Arc<Process>,
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        // The event queue of a fork is its parent's.
        if !self.process.is_forked() {
            self.poller.wake();
        }
    }
}

impl Redlock {
    /// Connects to the masters at these URLs with default settings; see [`Redlock::open`].
    ///
    /// # Errors
    /// [`ConnectError`]. A master that cannot be reached is no error.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::open(Config::builder().masters(urls).build()?)
    }

    /// Returns the default settings, to be changed and given to [`Redlock::open`].
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Config::builder()
    }

    /// Connects with these settings.
    ///
    /// Returns when each master is ready or has failed once. Once a quorum is ready it waits for the other
    /// masters for as long again as the quorum took, at least 20 ms ([`crate::limits::STRAGGLER_WAIT`]). The limit
    /// is twice the `connect_timeout`, 2 s by default.
    ///
    /// Later calls go on trying to reach missing masters. [`Redlock::masters`] reports their state.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system gives no event queue or randomness.
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let (mut driver, mut poller) = Driver::new(Arc::new(config))?;
        driver.settle(&mut poller)?;
        let mut redlock = Self { driver, poller, process: Arc::new(Process::own()) };
        redlock.report_events();
        Ok(redlock)
    }

    /// Returns how many masters above the quorum are known to hold this lock. As many masters may lose it
    /// without harm. The id must be of this `Redlock`. 0 in a fork of the process.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        if self.is_forked() { 0 } else { self.driver.engine.margin(lock) }
    }

    /// Returns how long the acquisition of this lock took, and for whom it waited; empty in a fork.
    #[must_use]
    pub fn waited(&self, lock: OpId) -> Waited {
        let waited = self.driver.engine.waited(lock);
        waited.filter(|_| !self.is_forked()).unwrap_or_default()
    }

    /// Returns the status of each master, in the order of the configuration; empty in a fork of the process.
    #[must_use]
    pub fn masters(&self) -> Vec<MasterStatus> {
        self.health().masters
    }

    /// Returns whether the votes of a quorum of masters count, how many more may fail, and the status of each
    /// master. It is as of the last call that drove the event loop. Without masters in a fork of the process.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.is_forked() { Health::default() } else { self.driver.engine.health(clock::now()) }
    }

    /// Returns what was counted and timed since this client was made. All is zero in a fork of the process.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.is_forked() { Stats::default() } else { self.driver.engine.stats(clock::now()) }
    }

    /// Returns for how long the machine was suspended since the first client of this process was made: the
    /// time that [`Instant::now`] did not count. It is zero without the feature `suspend`, and on platforms
    /// that the feature does not support.
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
    /// The caller keeps the returned id and releases each acquired lock: no guard does so. Automatic extension
    /// ([`Options::auto_extend`](crate::Options::auto_extend)) goes on only while the loop turns. To leave a lock
    /// to its TTL, send nothing for it, or [`Request::LeaveFor`].
    ///
    /// # Errors
    /// [`SubmitError`]; the request was not queued then. A refused [`Request::Drain`] ends acquisitions and
    /// locks all the same.
    pub fn submit(&mut self, request: Request<'_>) -> Result<OpId, SubmitError> {
        self.check_process().map_err(SubmitError::Stopped)?;
        self.driver.submit(clock::now(), request)
    }

    /// Writes queued requests, waits at most `limit` for answers, and handles those that arrived. It does not
    /// wait while an outcome is ready to be polled.
    ///
    /// # Errors
    /// An error of the operating system's event queue, or of a fork of the process. The `Redlock` cannot be
    /// used after it.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        self.check_process().map_err(|why| io::Error::other(why.to_string()))?;
        let limit = if self.driver.engine.has_outcome() { Duration::ZERO } else { limit };
        let result = self.driver.turn(&mut self.poller, Some(limit));
        self.report_events();
        result
    }

    /// Returns a waker that ends the sleep of a [`Redlock::turn`] from any thread, or else the next sleep of
    /// this client. It does nothing in a fork of the process.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(LoopWaker { poller: self.driver.waker(), process: self.process.clone() }))
    }

    /// Writes queued requests, as far as that needs no waiting. It does nothing in a fork of the process.
    pub fn flush(&mut self) {
        if self.is_forked() {
            return;
        }
        self.driver.flush();
        self.report_events();
    }

    /// Calls the observer with the events that have come.
    fn report_events(&mut self) {
        while let Some(event) = self.driver.engine.poll_event() {
            if let Some(observer) = &self.config().observer {
                observer.call(&event);
            }
        }
    }

    /// Returns the next outcome. Compare its times with [`Instant::now`]. It returns
    /// `None` in a fork of the process, as acquired locks are the parent's.
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

    /// Returns how the latest attempt of an acquisition failed that goes on: the error with which it would end
    /// now. `None` before its first attempt has failed, and while masters are asked for the holder.
    #[must_use]
    pub fn last_failure(&self, lock: OpId) -> Option<AcquireError> {
        if self.is_forked() { None } else { self.driver.engine.last_failure(clock::now(), lock) }
    }

    /// Returns when the validity of a lock ends, or ended, to be compared with [`Instant::now`]. With the
    /// feature `suspend` it comes earlier by the time that the machine slept; see [`Guard::valid_until`].
    ///
    /// [`Guard::valid_until`]: crate::Guard::valid_until
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        if self.is_forked() { None } else { self.driver.engine.valid_until(lock).map(clock::to_std) }
    }

    /// Ends the locks of this client within `limit`, and the client.
    ///
    /// It gives up acquisitions, and releases held locks or leaves them to their TTL, as `held` says. Returns
    /// when nothing is left to release on any master, or after `limit`, with the number of locks and failed
    /// attempts not released everywhere; 0 in a fork.
    pub fn drain(mut self, limit: Duration, held: HeldLocks) -> usize {
        if self.is_forked() {
            return 0;
        }
        let request = Request::Drain { held, limit };
        let drain = self.submit(request).or_else(|_| {
            // It has ended the acquisitions under way: there is room once their outcomes are fetched.
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
