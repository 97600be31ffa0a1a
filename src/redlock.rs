//! [`Redlock`]: the protocol owned by one thread, without a background thread and without a hand-off.

mod passing;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crate::cancel::{Cancel, Registration};
use crate::clock;
use crate::config::{Config, ConfigBuilder};
use crate::driver::{ConnectError, Driver, Poller, PollerWaker};
use crate::engine::{
    Health, HeldLocks, Left, MasterStatus, OpId, Outcome, Released, Request, Stats, SubmitError,
};
use crate::error::{AcquireError, ExtendError, LeaveError, ReleaseError, Waited};
use crate::limits;
use crate::lock::{FencingToken, HolderLabel, LockName, Resource, Token};
use crate::options::{Options, fair_method, held_methods, option_methods, request_methods, time_methods};
use crate::process::Process;

/// Lock client for one thread. Nothing is sent or read between its calls.
///
/// It implements the Redlock algorithm of Redis's page on distributed locks over all configured masters. With
/// one master it is the single-instance lock of the same page. Blocking calls drive the event loop on the
/// caller's own thread. They return by the limits that options and configuration set, unless your `on_event`
/// function delays them. The pipelined form ([`Redlock::submit`], [`Redlock::turn`],
/// [`Redlock::poll_outcome`]) has many locks under way at once.
///
/// It also reconnects inside calls only; a service that is idle for long calls [`Redlock::turn`] now and
/// then. Dropping a `Redlock` writes queued requests, as far as that needs no waiting, and closes the
/// connections. Leases that outlive it end by their TTL.
///
/// A fork of the process cannot use it: its calls return errors or nothing, its leases are not valid, and
/// drops do nothing. Connect anew in the child.
///
/// ```no_run
/// use redlatch::Redlock;
/// use std::time::Duration;
///
/// let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let mut redlock = Redlock::connect(masters)?;
/// let lease = redlock.lock("orders:42").wait(Duration::from_secs(2)).acquire()?;
/// // … work while lease.is_valid() …
/// drop(lease); // the next call releases it; `release` waits for the answer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Redlock {
    driver: Driver,
    poller: Poller,
    /// State that its leases share with it.
    origin: Arc<Origin>,
    /// Outcomes of the pipelined form that a blocking call came across.
    set_aside: VecDeque<(OpId, Outcome)>,
    /// When the loop was last driven.
    last_turn: Instant,
}

/// Where a lease comes from.
struct Origin {
    process: Process,
    /// Locks whose lease was dropped, to be released by the next call.
    dropped: Mutex<Vec<OpId>>,
    /// Whether a drain has released the locks of all leases.
    is_released: AtomicBool,
}

impl Origin {
    fn dropped(&self) -> MutexGuard<'_, Vec<OpId>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the sleep of a [`Redlock::turn`].
struct LoopWaker {
    poller: PollerWaker,
    origin: Arc<Origin>,
}

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        // The event queue of a fork is its parent's.
        if !self.origin.process.is_forked() {
            self.poller.wake();
        }
    }
}

/// Request for one lock; made by [`Redlock::lock`]. It sends nothing before one of the acquire calls.
/// [`Options::auto_extend`] extends the lock only while its [`Redlock`] is driven, and its [`Lease`] does not
/// show these extensions.
#[derive(Debug)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LeaseRequest<'a> {
    redlock: &'a mut Redlock,
    resource: LockName<'a>,
    options: Options,
    label: Option<Cow<'a, str>>,
    cancel: Option<Registration>,
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
    /// masters for as long again as the quorum took, at least 20 ms ([`limits::STRAGGLER_WAIT`]). The limit
    /// is twice the `connect_timeout`, 2 s by default.
    ///
    /// Later calls go on trying to reach missing masters. [`Redlock::masters`] reports their state.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system gives no event queue or randomness.
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let (mut driver, mut poller) = Driver::new(Arc::new(config))?;
        driver.settle(&mut poller)?;
        let origin = Arc::new(Origin {
            process: Process::own(),
            dropped: Mutex::default(),
            is_released: AtomicBool::default(),
        });
        let (set_aside, last_turn) = (VecDeque::new(), clock::now());
        let mut redlock = Self { driver, poller, origin, set_aside, last_turn };
        redlock.report_events();
        Ok(redlock)
    }

    /// Returns a request for the lock of this name; see [`LockName`].
    ///
    /// It has the options of [`crate::LockRequest`] except automatic extension, as nothing happens between
    /// the calls of a `Redlock`. [`Redlock::submit`] takes that option, too.
    pub fn lock<'a, 'n: 'a>(&'a mut self, name: impl Into<LockName<'n>>) -> LeaseRequest<'a> {
        let (resource, options) = (name.into(), Options::new());
        LeaseRequest { redlock: self, resource, options, label: None, cancel: None }
    }

    /// Waits until an acquisition has its outcome.
    fn hold(
        &mut self,
        request: Request<'_>,
        mut registration: Option<Registration>,
    ) -> Result<Lease, AcquireError> {
        self.revive().map_err(|error| AcquireError::Stopped(error.to_string().into()))?;
        let waker = registration.as_ref().map(|_| self.waker());
        let mut is_cancelled =
            || registration.as_mut().zip(waker.as_ref()).is_some_and(|(it, waker)| it.register(waker));
        if is_cancelled() {
            return Err(AcquireError::Cancelled);
        }
        let lock = self.submit(request)?;
        match self.wait_unless(lock, is_cancelled) {
            Ok(None) => {
                // Always taken, and without an outcome.
                let _ = self.submit(Request::Release { lock, awaited: false });
                self.flush();
                Err(AcquireError::Cancelled)
            }
            Ok(Some(Outcome::Acquire(result))) => result.map(|grant| Lease {
                lock,
                token: grant.token,
                fencing_token: grant.fencing_token,
                valid_until: grant.valid_until,
                origin: self.origin.clone(),
                is_armed: true,
            }),
            Ok(Some(_)) => unreachable!("an acquisition is answered by its own outcome"),
            Err(error) => Err(AcquireError::Stopped(error.to_string().into())),
        }
    }

    /// Gives a held lock a new TTL, counted from now, if a quorum of masters still has it. Returns within the
    /// answer limit of one round ([`ConfigBuilder::answer_timeout`]).
    ///
    /// # Errors
    /// [`ExtendError`]. The lease stays valid as long as before, or as the new TTL if that is sooner, unless
    /// the error says that it is lost.
    pub fn extend(&mut self, lease: &mut Lease, ttl: Duration) -> Result<(), ExtendError> {
        if !self.has_made(lease) {
            return Err(ExtendError::NotHeld);
        }
        let result = match self.ask(lease.lock, Request::Extend { lock: lease.lock, ttl }) {
            Ok(Some(Outcome::Extend(result))) => result,
            Ok(None) => Err(ExtendError::NotHeld),
            Ok(Some(_)) => unreachable!("an extension is answered by its own outcome"),
            Err(why) => Err(ExtendError::Stopped(why)),
        };
        // Also after an error: a shorter TTL counts from its sending, and a lost lock is over at once.
        if let Some(valid_until) = self.driver.engine.valid_until(lease.lock) {
            lease.valid_until = valid_until;
        }
        result.map(drop)
    }

    /// Releases a lock and waits until a quorum of masters has confirmed it, for the answer limit of one
    /// round at most. An expired lock is no error: compare the time with [`Lease::valid_until`] before the
    /// release.
    ///
    /// # Errors
    /// [`ReleaseError::Unconfirmed`] if too few masters answered in time: later calls go on with the release.
    /// A lease of another `Redlock` goes back to that one, as if dropped.
    pub fn release(&mut self, mut lease: Lease) -> Result<Released, ReleaseError> {
        if !self.has_made(&lease) {
            // The drop of the lease leaves it to the client that it belongs to.
            return Err(ReleaseError::NotHeld);
        }
        let lock = lease.lock;
        lease.is_armed = false;
        match self.ask(lock, Request::Release { lock, awaited: true }) {
            Ok(Some(Outcome::Release(result))) => result,
            Ok(_) => unreachable!("a release is always taken, and answered by its own outcome"),
            Err(why) => Err(ReleaseError::Stopped(why)),
        }
    }

    /// Leaves a lock to the end of its TTL: neither a release nor a further extension is sent. Nobody else
    /// gets it before [`Lease::valid_until`].
    ///
    /// # Errors
    /// [`LeaveError`]. A lost lock is released as if dropped.
    pub fn leave(&mut self, mut lease: Lease) -> Result<(), LeaveError> {
        self.check_process().map_err(LeaveError::Stopped)?;
        if !self.has_made(&lease) {
            return Err(LeaveError::NotHeld);
        }
        self.driver.engine.leave(clock::now(), lease.lock)?;
        lease.is_armed = false;
        Ok(())
    }

    /// Gives a lock up, and leaves it on the masters for the rest of a time, as
    /// [`Guard::leave_for`](crate::Guard::leave_for) does. Later calls go on with what is owed to masters
    /// that have not confirmed.
    ///
    /// # Errors
    /// [`LeaveError`], as for [`Guard::leave_for`](crate::Guard::leave_for). A lease of another `Redlock`
    /// goes back to that one, as if dropped.
    pub fn leave_for(&mut self, mut lease: Lease, rest: Duration) -> Result<Left, LeaveError> {
        if !self.has_made(&lease) {
            return Err(LeaveError::NotHeld);
        }
        let lock = lease.lock;
        let outcome = self.ask(lock, Request::LeaveFor { lock, rest });
        // After an error the lease may still have it, and its drop releases it.
        lease.is_armed = self.driver.engine.valid_until(lock).is_some();
        match outcome {
            Ok(Some(Outcome::Leave(result))) => Left::by_clock(result, clock::to_std),
            Ok(_) => unreachable!("this is always taken, and answered by its own outcome"),
            Err(why) => Err(LeaveError::Stopped(why)),
        }
    }

    /// Returns how many masters above the quorum are known to hold this lock. As many masters may lose it
    /// without harm.
    #[must_use]
    pub fn margin(&self, lease: &Lease) -> usize {
        if self.has_made(lease) && !self.is_forked() { self.driver.engine.margin(lease.lock) } else { 0 }
    }

    /// Returns how long the acquisition of this lock took, and for whom it waited; empty in a fork.
    #[must_use]
    pub fn waited(&self, lease: &Lease) -> Waited {
        let waited = self.driver.engine.waited(lease.lock);
        waited.filter(|_| self.has_made(lease) && !self.is_forked()).unwrap_or_default()
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

    /// Queues a request of the pipelined form. The next [`Redlock::turn`], [`Redlock::flush`] or blocking
    /// call writes it.
    ///
    /// The caller keeps the returned id and releases each acquired lock: no lease does so.
    ///
    /// # Errors
    /// [`SubmitError`]; the request was not queued then. A refused [`Request::Drain`] ends acquisitions and
    /// locks all the same.
    pub fn submit(&mut self, request: Request<'_>) -> Result<OpId, SubmitError> {
        self.check_process().map_err(SubmitError::Stopped)?;
        let now = clock::now();
        self.release_dropped(now);
        if let Request::Drain { held: HeldLocks::Release, .. } = request {
            self.origin.is_released.store(true, Ordering::Release);
        }
        self.driver.submit(now, request)
    }

    /// Writes queued requests, waits at most `limit` for answers, and handles those that arrived. It does not
    /// wait while an outcome is ready to be polled.
    ///
    /// # Errors
    /// An error of the operating system's event queue, or of a fork of the process. The `Redlock` cannot be
    /// used after it.
    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        self.check_process().map_err(|why| io::Error::other(why.to_string()))?;
        self.last_turn = clock::now();
        self.release_dropped(self.last_turn);
        let has_outcome = !self.set_aside.is_empty() || self.driver.engine.has_outcome();
        let limit = if has_outcome { Duration::ZERO } else { limit };
        let result = self.driver.turn(&mut self.poller, Some(limit));
        self.report_events();
        result
    }

    /// Returns a waker that ends the sleep of a [`Redlock::turn`] from any thread, or else the next sleep of
    /// this client. It does nothing in a fork of the process.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(LoopWaker { poller: self.driver.waker(), origin: self.origin.clone() }))
    }

    /// Writes queued requests, as far as that needs no waiting. It does nothing in a fork of the process.
    pub fn flush(&mut self) {
        if self.is_forked() {
            return;
        }
        self.release_dropped(clock::now());
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

    /// Returns the next outcome of the pipelined form. Compare its times with [`Instant::now`]. It returns
    /// `None` in a fork of the process, as acquired locks are the parent's.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        if self.is_forked() {
            return None;
        }
        let (lock, mut outcome) = self.set_aside.pop_front().or_else(|| self.driver.engine.poll_outcome())?;
        match &mut outcome {
            Outcome::Acquire(Ok(grant)) => grant.valid_until = clock::to_std(grant.valid_until),
            Outcome::Extend(Ok(valid_until))
            | Outcome::Renewal(Ok(valid_until))
            | Outcome::Lost(valid_until) => *valid_until = clock::to_std(*valid_until),
            Outcome::Leave(result) => *result = Left::by_clock(result.clone(), clock::to_std),
            _ => {}
        }
        Some((lock, outcome))
    }

    /// Returns how the latest attempt of an acquisition of the pipelined form failed that goes on: the error
    /// with which it would end now. `None` before its first attempt has failed, and while masters are asked
    /// for the holder.
    #[must_use]
    pub fn last_failure(&self, lock: OpId) -> Option<AcquireError> {
        if self.is_forked() { None } else { self.driver.engine.last_failure(clock::now(), lock) }
    }

    /// Returns when the validity of a lock of the pipelined form ends, or ended, to be compared with
    /// [`Instant::now`]. With the feature `suspend` it comes earlier by the time that the machine slept; see
    /// [`Lease::valid_until`].
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        if self.is_forked() { None } else { self.driver.engine.valid_until(lock).map(clock::to_std) }
    }

    /// Ends the locks of this client within `limit`, and the client.
    ///
    /// Acquisitions of the pipelined form are given up. `held` says what becomes of locks that leases hold:
    /// they are released now, or left to their leases; a lease that still holds its lock at the end keeps its
    /// validity, and the lock ends with its TTL. Returns when nothing is left to release on any master, or
    /// after `limit`, with the number of locks and failed attempts not released everywhere; 0 in a fork.
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

    /// Whether this lease is one of this client's.
    fn has_made(&self, lease: &Lease) -> bool {
        Arc::ptr_eq(&lease.origin, &self.origin)
    }

    fn is_forked(&self) -> bool {
        self.origin.process.is_forked()
    }

    fn check_process(&self) -> Result<(), Arc<str>> {
        self.origin.process.check()
    }

    /// After an idle time servers may have closed connections: notices it, and gives them a moment to be made
    /// again if there is no quorum without them. Otherwise the first call after a quiet night would fail on
    /// healthy masters. Without a quorum it looks at least for answers that have come meanwhile.
    fn revive(&mut self) -> io::Result<()> {
        let now = clock::now();
        let is_idle = now.duration_since(self.last_turn) >= limits::IDLE_MAX;
        if is_idle || !self.driver.engine.has_quorum() {
            self.turn(Duration::ZERO)?;
        }
        if !is_idle {
            return Ok(());
        }
        loop {
            let left = (now + limits::REVIVE_MAX).saturating_duration_since(clock::now());
            if left.is_zero() || self.driver.engine.has_quorum() {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    /// Queues a request about a lock, and drives the loop until its outcome. `None` if it was not taken.
    fn ask(&mut self, lock: OpId, request: Request<'_>) -> Result<Option<Outcome>, Arc<str>> {
        match self.submit(request) {
            Ok(_) => self.wait_unless(lock, || false).map_err(|error| error.to_string().into()),
            Err(SubmitError::Stopped(why)) => Err(why),
            Err(SubmitError::Overloaded | SubmitError::Input(_)) => Ok(None),
        }
    }

    /// Drives the loop until this lock has its outcome; `None` if it is given up before.
    fn wait_unless(
        &mut self,
        lock: OpId,
        mut is_given_up: impl FnMut() -> bool,
    ) -> io::Result<Option<Outcome>> {
        let result = loop {
            let mut outcomes = std::iter::from_fn(|| self.driver.engine.poll_outcome());
            let aside = &mut self.set_aside;
            let own = outcomes.find_map(|(id, outcome)| match id == lock {
                true => Some(outcome),
                false => {
                    aside.push_back((id, outcome));
                    None
                }
            });
            if own.is_some() || is_given_up() {
                break Ok(own);
            }
            if let Err(error) = self.driver.turn(&mut self.poller, None) {
                break Err(error);
            }
            self.last_turn = clock::now();
        };
        self.report_events();
        result
    }

    /// Queues the release of locks whose lease was dropped since the last call.
    fn release_dropped(&mut self, now: Instant) {
        for lock in self.origin.dropped().drain(..) {
            // A release is always taken, and this one's outcome is not wanted.
            let _ = self.driver.engine.submit(now, Request::Release { lock, awaited: false });
        }
    }
}

impl<'a> LeaseRequest<'a> {
    time_methods!(options);
    request_methods!('a);
    fair_method!(options);

    /// Makes one attempt, in about one round trip.
    ///
    /// Returns within the answer limit ([`ConfigBuilder::answer_timeout`]). A refused attempt that asks for
    /// the holder's time, or repeats with another fencing token, takes up to twice that. If the connections
    /// were closed while the client was idle, it takes up to 200 ms more.
    ///
    /// # Errors
    /// [`AcquireError`] distinguishes contention from an outage; its [`Denial`](crate::error::Denial) has
    /// what each master said.
    pub fn try_acquire(self) -> Result<Lease, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Acquires the lock, and retries until the wait is over at the latest. The default wait is the TTL. A
    /// waiter for a fair lock sends its signs of life meanwhile.
    ///
    /// # Errors
    /// [`AcquireError`]. A lock that was acquired in part is released. [`AcquireError::NoQuorum`] of a fenced
    /// lock may also mean that the clocks of the masters differ too much.
    pub fn acquire(self) -> Result<Lease, AcquireError> {
        let resource = Resource::new(self.resource.as_bytes())?;
        let label = self.label.as_deref().map(HolderLabel::new).transpose()?;
        self.redlock.hold(Request::Acquire { resource, options: self.options, label }, self.cancel)
    }
}

/// Lock held by a [`Redlock`].
///
/// Dropping it queues its release, which goes out with the next call of its `Redlock` that drives the event
/// loop. The drop never blocks, and may happen on another thread or in a panic. To send the release at once,
/// call [`Redlock::release`], or [`Redlock::flush`] after the drop.
#[must_use = "dropping the lease releases the lock"]
pub struct Lease {
    lock: OpId,
    token: Token,
    fencing_token: Option<FencingToken>,
    /// By the clock of this crate, as all that the engine reports.
    valid_until: Instant,
    origin: Arc<Origin>,
    /// Whether the drop is to queue a release.
    is_armed: bool,
}

impl Lease {
    held_methods!();

    /// By the clock of this crate; now, once it is over.
    fn deadline_at(&self, now: Instant) -> Instant {
        let origin = &self.origin;
        let is_over = origin.process.is_forked_at(now) || origin.is_released.load(Ordering::Acquire);
        if is_over { now } else { self.valid_until }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A fork may have inherited the mutex locked.
        if self.is_armed && !self.origin.process.is_forked() {
            self.origin.dropped().push(self.lock);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("remaining", &self.remaining()).finish_non_exhaustive()
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
