//! Masters in the process of a test.

mod hub;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::Poll;

use super::connection::Connection;
use super::error::FleetError;
use super::{COMMAND_PATIENCE, Reply, config_of};
use crate::config::ConfigBuilder;
use hub::{Hub, not_started};

/// Model masters in the process of a test, behind ports of loopback: no server, no file, no other process.
/// A drop ends them.
///
/// They are the masters against which the simulator of this crate checks its histories, in real time. They
/// answer as Redis 7.0 does to what clients of this crate send, and run the same Lua scripts.
///
/// ```
/// use redlatch::AcquireError;
/// use redlatch::testing::Double;
///
/// let double = Double::start(5)?;
/// let client = double.config().connect()?;
/// let guard = client.lock("orders:42").acquire()?;
///
/// double.master(0).stop()?; // it hangs
/// double.master(1).kill(); // it is gone, with all its keys
/// drop(client.lock("orders:43").acquire()?); // three of five are a quorum
///
/// let other = double.config().holder_label("another worker").connect()?;
/// let refused = other.lock("orders:42").try_acquire();
/// assert!(matches!(refused, Err(AcquireError::Contended(_))));
/// # drop(guard);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Bounds
///
/// One thread serves all masters of a double. A double of five takes 8 file descriptors, and a client of it
/// 13: a process with a limit of 1,024 has room for 48 of both at once.
pub struct Double {
    hub: Arc<Hub>,
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
}

impl Double {
    /// Starts this number of masters, which have no keys and say that they have run for a month: they count
    /// at once, also for clients with default settings.
    ///
    /// # Errors
    /// [`FleetError::NoPort`], and [`FleetError::Io`] where the system refuses sockets or a thread.
    pub fn start(size: usize) -> Result<Self, FleetError> {
        let poll = Poll::new().map_err(not_started)?;
        let hub = Arc::new(Hub::new(size, &poll)?);
        let served = hub.clone();
        let serve = move || served.serve(poll);
        let thread = thread::Builder::new().name("redlatch-double".to_owned()).spawn(serve);
        Ok(Self { hub, thread: Some(thread.map_err(not_started)?) })
    }

    /// Returns the URLs of all masters, such as `redis://127.0.0.1:12345`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.masters().map(DoubleMaster::url).collect()
    }

    /// Returns settings for clients of these masters: default ones with an answer timeout of 2 s and a
    /// connect timeout of 5 s, so that a busy machine is no outage. A call that has to wait for hanging
    /// masters takes so long.
    ///
    /// Unlike [`Fleet::config`](super::Fleet::config) it keeps the quarantine: a master counts again
    /// `max_ttl` after its [`restart`](DoubleMaster::restart), as in production.
    #[must_use]
    pub fn config(&self) -> ConfigBuilder {
        config_of(self.urls())
    }

    /// Returns the master with this index, in the order of [`Double::urls`].
    ///
    /// # Panics
    /// If there is no such master.
    #[must_use]
    pub fn master(&self, index: usize) -> DoubleMaster<'_> {
        assert!(index < self.hub.addrs.len(), "the double has {} masters", self.hub.addrs.len());
        DoubleMaster { hub: &self.hub, index }
    }

    /// Iterates over all masters.
    pub fn masters(&self) -> impl Iterator<Item = DoubleMaster<'_>> {
        (0..self.hub.addrs.len()).map(|index| self.master(index))
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Double").field("masters", &self.hub.addrs).finish_non_exhaustive()
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.hub.end();
        if let Some(thread) = self.thread.take() {
            // It has reported its panic itself.
            let _ = thread.join();
        }
    }
}

/// One master of a [`Double`]. Its port stays the same over restarts.
///
/// Each fault is there when the call returns, and lasts until another call takes it back.
#[derive(Clone, Copy)]
pub struct DoubleMaster<'a> {
    hub: &'a Hub,
    index: usize,
}

impl DoubleMaster<'_> {
    /// Returns the address of the master.
    #[must_use]
    pub fn addr(self) -> SocketAddr {
        self.hub.addrs[self.index]
    }

    /// Returns the port of the master.
    #[must_use]
    pub fn port(self) -> u16 {
        self.addr().port()
    }

    /// Returns `redis://HOST:PORT`.
    #[must_use]
    pub fn url(self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Hangs: connections stand and new ones are accepted, and nothing answers. Does nothing if it hangs.
    ///
    /// # Errors
    /// [`FleetError::NotRunning`] after [`DoubleMaster::kill`].
    pub fn stop(self) -> Result<(), FleetError> {
        self.hub.lock().stop(self.index)
    }

    /// Answers again, first what has arrived meanwhile.
    ///
    /// # Errors
    /// [`FleetError::NotRunning`] after [`DoubleMaster::kill`].
    pub fn resume(self) -> Result<(), FleetError> {
        self.hub.lock().resume(self.index)
    }

    /// Ends: its connections are closed, its port refuses, and its keys are gone. Does nothing if it has
    /// ended.
    pub fn kill(self) {
        self.hub.lock().kill(self.index);
    }

    /// Starts again without keys, as another process on the same port, after [`DoubleMaster::kill`] or
    /// instead of it. Clients do not count its votes for `max_ttl`, unless they have
    /// [`Quarantine::Trust`](crate::Quarantine::Trust).
    ///
    /// # Errors
    /// [`FleetError::Io`] if the system refuses the port.
    pub fn restart(self) -> Result<(), FleetError> {
        self.hub.lock().restart(self.index)
    }

    /// Makes each answer to what arrives from now on leave this much later; [`Duration::ZERO`] by default.
    /// With [`Duration::MAX`] it never leaves.
    pub fn delay(self, delay: Duration) {
        self.hub.lock().delay(self.index, delay);
    }

    /// Refuses commands of this name with this error, such as `refuse("SET", "OOM command not allowed")`.
    /// Restarts do not end that. Attempts for locks are `SET` for plain ones and `EVALSHA` for all others.
    pub fn refuse(self, command: &str, error: &str) {
        self.hub.lock().refuse(self.index, command, error);
    }

    /// Carries commands of this name out again.
    pub fn allow(self, command: &str) {
        self.hub.lock().allow(self.index, command);
    }

    /// Sends one command over a connection of its own, and reads the reply. It knows those of strings,
    /// sorted sets, TTLs and messages that clients of this crate send.
    ///
    /// # Errors
    /// If the master does not answer within 20 s, or at once after [`DoubleMaster::kill`].
    pub fn command<A: AsRef<[u8]>>(self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If nothing accepts it.
    pub fn connect(self) -> io::Result<Connection> {
        Connection::open(self.addr(), COMMAND_PATIENCE)
    }
}

impl fmt::Debug for DoubleMaster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DoubleMaster").field(&self.addr()).finish()
    }
}
