//! [`Client`]: the handle that callers clone, and what it can say of its masters.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::callbacks::Callbacks;
#[cfg(unix)]
use super::drive::Drive;
use super::shared::{Core, Shared};
use crate::clock;
use crate::config::{Config, ConfigBuilder};
use crate::driver::{ConnectError, Driver};
use crate::engine::{Health, MasterStatus, Stats};

/// Lock client for many threads and tasks: clones share one set of connections and one event loop.
///
/// It implements the Redlock algorithm of Redis's page on distributed locks over all configured masters. With
/// one master it is the single-instance lock of the same page. A blocking call drives the loop on the
/// caller's own thread where it can, so a lone caller pays for no hand-over between threads. Futures need no
/// particular executor. A background thread of the client drives the loop for them; it also reconnects, and
/// releases the locks of dropped guards.
///
/// [`crate::Redlock`] works without that thread, for one owner.
///
/// Guards are handles, too. Dropping the last handle waits at most 100 ms ([`crate::limits::CLOSE_WAIT`]) for
/// queued releases, and not at all after [`Client::drain`] or [`Client::drain_async`].
///
/// A fork of the process cannot use the client: calls that ask masters return errors, drops do nothing, and
/// [`Client::drain`] has nothing to wait for. Connect anew in the child.
///
/// ```no_run
/// use redlatch::Client;
/// use std::time::Duration;
///
/// let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let guard = client.lock("orders:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(2)).acquire()?;
/// // … work while guard.is_valid() …
/// drop(guard); // released in the background; `release` waits for the masters
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The same in a task, on any executor:
///
/// ```no_run
/// # use redlatch::Client;
/// # async fn task(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("orders:42").acquire_async().await?;
/// drop(guard);
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
    /// [`ConnectError`]. A master that cannot be reached is no error.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::open(Config::builder().masters(urls).build()?)
    }

    /// Returns the default settings, to be changed and given to [`Client::open`].
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        Config::builder()
    }

    /// Connects with these settings, on this thread.
    ///
    /// Returns when each master is ready or has failed once. Once a quorum is ready it waits for the other
    /// masters for as long again as the quorum took, at least 20 ms ([`crate::limits::STRAGGLER_WAIT`]). The
    /// limit is twice the `connect_timeout`, 2 s by default.
    ///
    /// The client goes on trying in the background to reach missing masters. [`Client::masters`] reports
    /// their state.
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the operating system gives no event queue, randomness or thread;
    /// `ConnectError::Tls` if certificates or a key of `rediss://` masters cannot be used.
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let config = Arc::new(config);
        let (mut driver, mut poller) = Driver::new(config.clone())?;
        driver.settle(&mut poller)?;
        let shared = Shared::start(driver, poller)?;
        Ok(Self { handle: Arc::new(Handle { shared, config, callbacks: Callbacks::default() }) })
    }

    /// Submits what is this client's; the rest, and all if the client was stopped, is left to its own wait.
    pub(super) fn submit_all<'b, T: 'b>(
        &self,
        batch: impl Iterator<Item = (bool, &'b mut T)>,
        submit: impl Fn(&mut T, &mut Core),
    ) {
        let _ = self.shared().with(|core| {
            batch.filter(|(is_ours, _)| *is_ours).for_each(|(_, it)| submit(it, core));
            core.write_batch();
        });
    }

    /// Returns the status of each master, in the order of the configuration; empty in a fork of the process.
    #[must_use]
    pub fn masters(&self) -> Vec<MasterStatus> {
        self.health().masters
    }

    /// Returns whether a quorum of masters can grant locks, how many more may fail, and the status of each
    /// master. It asks no master and does not block: a master that hangs is noticed when it next misses an
    /// answer.
    ///
    /// A readiness probe returns [`Health::has_quorum`], which changes by itself when masters come back. A
    /// liveness probe must not depend on it: a restart of the process brings no master back, and gives up the
    /// locks that it holds. `docs/monitoring.md` of the repository has an example.
    ///
    /// Without masters, and so without a quorum, in a fork of the process and in a client that has
    /// stopped.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared().peek(|core| core.driver.engine.health(clock::now())).unwrap_or_default()
    }

    /// Returns what was counted and timed since this client was made, of all its handles. All is zero in a
    /// fork of the process.
    ///
    /// It copies some 10 KiB while the client is locked; call it for each scrape, not for each lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().peek(|core| core.driver.engine.stats(clock::now())).unwrap_or_default()
    }

    /// Returns for how long the machine was suspended since the first client of this process was made: the
    /// time that [`std::time::Instant::now`] did not count. It is zero without the feature `suspend`, and on
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

    /// Takes the event loop over from the client's background thread, for an event loop of your own. Use one
    /// drive at a time: of two, only the drive that turned last is woken, and dropping either ends both.
    ///
    /// # Errors
    /// An error if the client has stopped, or if the operating system gives no descriptor.
    #[cfg(unix)]
    pub fn drive(&self) -> std::io::Result<Drive> {
        Drive::new(self.handle.shared.clone())
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// The settings, shared.
    pub(super) fn shared_config(&self) -> &Arc<Config> {
        &self.handle.config
    }

    /// What reports losses by the users' callbacks.
    pub(super) fn callbacks(&self) -> &Callbacks {
        &self.handle.callbacks
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("masters", &self.masters()).finish_non_exhaustive()
    }
}
