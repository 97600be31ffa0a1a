//! [`Client`]: one set of connections for many threads and tasks.

mod callbacks;
pub mod desk;
#[cfg(unix)]
mod drive;
mod guard;
pub mod holds;
mod inspect;
pub mod joint;
mod lingering;
mod parker;
mod pending;
mod reentrant;
mod rw;
mod set;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::config::{Config, ConfigBuilder, RetryDelay};
use crate::driver::{ConnectError, Driver};
use crate::engine::MasterStatus;
use crate::error::AcquireError;
use callbacks::Callbacks;
#[cfg(unix)]
pub use drive::{Drive, DriveEnded};
pub use guard::{Guard, Lost};
pub use inspect::{ForceUnlock, Inspect};
pub use pending::{Acquire, Extend, Release};
pub use reentrant::{Hold, Reenter, ReentrantLock, ReleaseHold};
pub use rw::RwLock;
pub use set::{AcquireSet, ExtendSet, GuardSet, LockSetRequest, LostSet, ReleaseSet};
use shared::{Core, Shared};

/// A lock client for many threads and tasks: clones share one set of connections and one event loop.
///
/// It implements the Redlock algorithm of Redis's page on distributed locks over all configured masters; with one master
/// it is that page's single-instance lock. Blocking calls drive the loop on the caller's own thread where they can, so a
/// lone caller pays for no hand-over to another thread. Futures need no particular executor; a thread of the client's own
/// drives the loop for them, and does what is due when nobody calls: it reconnects, and releases what was dropped.
///
/// [`crate::Redlock`] does without that thread, for one owner.
///
/// Dropping the last handle (guards are handles, too) waits at most [`crate::limits::CLOSE_WAIT`] for queued releases.
/// A fork of the process cannot use the client: calls that ask masters are errors, drops do nothing, and nothing is left to
/// [`Client::settle`]. Connect anew in the child.
///
/// ```no_run
/// use redlatch::Client;
/// use std::time::Duration;
///
/// let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let guard = client.lock("orders:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(2)).acquire()?;
/// // … work while guard.is_valid() …
/// guard.release()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The same in a task, on any executor:
///
/// ```no_run
/// # use redlatch::Client;
/// # async fn task(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").acquire_async().await?;
/// guard.release_async().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

/// Dropped with the last handle.
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
    /// Connects to the masters at these URLs with default settings; see [`Client::open`].
    ///
    /// # Errors
    /// [`ConnectError`]; a master that cannot be reached is not one.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::open(Config::builder().masters(urls).build()?)
    }

    /// Settings to start from, for [`Client::open`].
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Config::builder()
    }

    /// Connects with these settings, on this thread: returns when each master is ready or has failed once, or shortly
    /// after a quorum is ready ([`crate::limits::STRAGGLER_WAIT`], or as long again as the quorum took), after twice the
    /// `connect_timeout` at most.
    ///
    /// Masters that cannot be reached are tried again in the background; [`Client::masters`] tells how they are.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system gives no event queue, randomness or thread.
    pub fn open(mut config: Config) -> Result<Self, ConnectError> {
        config.retry_delay_by = config.retry_delay_by.as_ref().map(RetryDelay::of_another_client);
        let config = Arc::new(config);
        let (mut driver, mut poller) = Driver::new(config.clone())?;
        driver.settle(&mut poller)?;
        let shared = Shared::start(driver, poller)?;
        Ok(Self { handle: Arc::new(Handle { shared, config, callbacks: Callbacks::default() }) })
    }

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

    /// Starts to extend several locks to the same TTL, with one write for each master. The results are had one by one.
    pub fn extend_all<'g>(
        &self,
        guards: impl IntoIterator<Item = &'g mut Guard>,
        ttl: Duration,
    ) -> Vec<Extend<'g>> {
        let mut batch: Vec<_> = guards.into_iter().map(|guard| Extend::new(guard, ttl)).collect();
        self.submit_all(batch.iter_mut().map(|it| (it.client().is(self), it)), Extend::submit);
        batch
    }

    /// Starts to release several locks, with one write for each master. The results are had one by one; those that are
    /// dropped are released all the same.
    pub fn release_all(&self, guards: impl IntoIterator<Item = Guard>) -> Vec<Release> {
        let mut batch: Vec<_> = guards.into_iter().map(Release::new).collect();
        self.submit_all(batch.iter_mut().map(|it| (it.client().is(self), it)), Release::submit);
        batch
    }

    /// Submits what is this client's; the rest, and all if the client was stopped, is left to its own wait.
    fn submit_all<'b, T: 'b>(
        &self,
        batch: impl Iterator<Item = (bool, &'b mut T)>,
        submit: impl Fn(&mut T, &mut Core),
    ) {
        let _ = self.shared().with(|core| {
            batch.filter(|(is_ours, _)| *is_ours).for_each(|(_, it)| submit(it, core));
            core.write_batch();
        });
    }

    /// How the masters are, in the order of the configuration. Empty in a fork of the process.
    #[must_use]
    pub fn masters(&self) -> Vec<MasterStatus> {
        let statuses = self.shared().peek(|core| {
            let (engine, now) = (&core.driver.engine, clock::now());
            engine.masters().map(|master| engine.master_status(now, master)).collect()
        });
        statuses.unwrap_or_default()
    }

    /// For how long the machine was suspended since the first client of this process was made: what
    /// [`std::time::Instant::now`] has not counted. Zero without the feature `suspend`, and where that does nothing.
    #[must_use]
    pub fn suspended(&self) -> Duration {
        clock::suspended()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.handle.config
    }

    /// Waits at most `limit` until everything queued is released on every master, and returns how many locks are not;
    /// those that are held by guards count. Other handles can go on.
    ///
    /// It does not wait in a waker that this client calls, and is [`usize::MAX`] in its delay function, where it cannot look.
    #[must_use]
    pub fn settle(&self, limit: Duration) -> usize {
        self.shared().settle(limit)
    }

    /// Takes the event loop over from the client's thread, for an event loop of your own. One at a time: of two, only the one
    /// that turned last is woken, and dropping either ends both.
    ///
    /// # Errors
    /// If the client has stopped, or the operating system gives no descriptor.
    #[cfg(unix)]
    pub fn drive(&self) -> std::io::Result<Drive> {
        Drive::new(self.handle.shared.clone())
    }

    /// Drives the event loop on tokio, in place of the client's thread: tasks are then answered without a hand-over
    /// between threads. To be spawned at once, for the thread gives way when this is called; it ends when the last handle of
    /// the client is dropped, and it is no handle itself.
    ///
    /// The runtime must have I/O and time enabled, and go on while locks are waited for.
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redlatch::Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// tokio::spawn(client.drive_on_tokio());
    /// let guard = client.lock("orders:42").acquire_async().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the runtime cannot watch the event queue.
    #[cfg(all(unix, feature = "tokio"))]
    pub fn drive_on_tokio(&self) -> impl Future<Output = std::io::Result<()>> + Send + use<> {
        drive::on_tokio::drive(self.drive())
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("masters", &self.masters()).finish_non_exhaustive()
    }
}

/// A lock to be acquired; made by [`Client::lock`].
#[derive(Debug, Clone, Copy)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockRequest<'a> {
    client: &'a Client,
    resource: &'a [u8],
    ttl: Option<Duration>,
    wait: Option<Duration>,
    tries: Option<u32>,
    min_validity: Duration,
    auto_extend: Option<Duration>,
    is_fenced: bool,
    is_fair: bool,
    is_shared: bool,
    keeps_readers_out: bool,
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
    /// Errors do not end that before the validity ends; [`Guard::on_lost`] and [`Guard::lost`] tell of it in time. The
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
    /// Returns within the answer limit ([`ConfigBuilder::answer_timeout`]), twice that if it is refused and asks how long
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
