//! Masters in the process of a test.

mod hub;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::Poll;

use super::connection::Connection;
use super::error::FleetError;
use super::{COMMAND_PATIENCE, Reply, config_of};
use hub::{Hub, not_started};
use redlatch::ConfigBuilder;

/// Model masters in the process of a test, on loopback ports: no server, no files, no other process. A drop
/// ends them.
///
/// They are the masters of this crate's simulator, but in real time. They answer the commands that clients of
/// this crate send as Redis 7.0 does, and run the same Lua scripts.
///
/// ```
/// use redlatch::AcquireError;
/// use redlatch_testing::Double;
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
/// One thread serves all masters of a double. A double of five takes 8 file descriptors, and a client of five
/// masters takes 13: a process with a limit of 1,024 has room for 48 such pairs.
pub struct Double {
    hub: Arc<Hub>,
    /// `None` after the end.
    thread: Option<JoinHandle<()>>,
}

impl Double {
    /// Starts this number of masters without keys. They report an uptime of a month, so that all clients
    /// count them at once, even with default settings.
    ///
    /// # Errors
    /// [`FleetError::NoPort`], or [`FleetError::Io`] if the system refuses sockets or a thread.
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

    /// Returns settings for clients of these masters: default settings with an answer timeout of 2 s and a
    /// connect timeout of 5 s, so that a busy machine is no outage. A call that waits for hanging masters
    /// takes as long.
    ///
    /// Unlike [`Fleet::config`](super::Fleet::config), these settings keep the quarantine: a master counts
    /// again `max_ttl` after its [`restart`](DoubleMaster::restart), as in production.
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
            // The thread has already reported its panic.
            let _ = thread.join();
        }
    }
}

/// One master of a [`Double`]. Its port stays the same across restarts.
///
/// Each fault takes effect before the call returns, and lasts until another call ends it.
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

    /// Makes the master hang: it accepts connections and keeps them, but answers nothing. Does nothing if the
    /// master already hangs.
    ///
    /// # Errors
    /// [`FleetError::NotRunning`] after [`DoubleMaster::kill`].
    pub fn stop(self) -> Result<(), FleetError> {
        self.hub.lock().stop(self.index)
    }

    /// Makes the master answer again, beginning with the commands that have arrived meanwhile.
    ///
    /// # Errors
    /// [`FleetError::NotRunning`] after [`DoubleMaster::kill`].
    pub fn resume(self) -> Result<(), FleetError> {
        self.hub.lock().resume(self.index)
    }

    /// Ends the master: connections are closed, the port refuses, and the keys are gone. Does nothing if the
    /// master has ended.
    pub fn kill(self) {
        self.hub.lock().kill(self.index);
    }

    /// Starts the master again without keys, as another process on the same port, with or without an earlier
    /// [`DoubleMaster::kill`]. Clients do not count its votes for `max_ttl`, unless they have
    /// [`Quarantine::Trust`](redlatch::Quarantine::Trust).
    ///
    /// # Errors
    /// [`FleetError::Io`] if the system refuses the port.
    pub fn restart(self) -> Result<(), FleetError> {
        self.hub.lock().restart(self.index)
    }

    /// Delays each answer to a command that arrives from now on; [`Duration::ZERO`] by default. With
    /// [`Duration::MAX`] the answers are never sent.
    pub fn delay(self, delay: Duration) {
        self.hub.lock().delay(self.index, delay);
    }

    /// Refuses commands of this name with this error, for example `refuse("SET", "OOM command not allowed")`,
    /// even after restarts. Plain locks are acquired with `SET`, other locks with `EVALSHA`.
    pub fn refuse(self, command: &str, error: &str) {
        self.hub.lock().refuse(self.index, command, error);
    }

    /// Executes commands of this name again.
    pub fn allow(self, command: &str) {
        self.hub.lock().allow(self.index, command);
    }

    /// Returns the names of all keys, in ascending order. This crate's record of the fleet is one of them.
    #[must_use]
    pub fn keys(self) -> Vec<String> {
        self.hub.lock().keys(self.index, Instant::now())
    }

    /// Sends one command over a new connection, and reads the reply. The master knows the commands on
    /// strings, sorted sets, TTLs and messages that clients of this crate send.
    ///
    /// # Errors
    /// If the master does not answer within 20 s, or at once after [`DoubleMaster::kill`].
    pub fn command<A: AsRef<[u8]>>(self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If the connection is not accepted.
    pub fn connect(self) -> io::Result<Connection> {
        Connection::open(self.addr(), COMMAND_PATIENCE)
    }
}

impl fmt::Debug for DoubleMaster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DoubleMaster").field(&self.addr()).finish()
    }
}
