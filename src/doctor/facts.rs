//! What was found out about each master, before anything is judged.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// One master of the configuration, and what the examination found out about it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Master {
    /// Name of the master: its URL without login.
    pub name: Arc<str>,
    /// Its facts, or why there are none.
    pub state: MasterAnswer,
}

/// Result of asking one master.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MasterAnswer {
    /// The master answered.
    Facts(Box<Facts>),
    /// There is no connection, or the master did not answer over it.
    Unreachable {
        /// The reason, with advice.
        why: String,
    },
    /// The master refused the login.
    LoginRefused {
        /// The reason, with advice.
        why: String,
    },
}

/// Facts about a master that answered. A fact that the login may not ask for is `None`.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Facts {
    /// Address of the server; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// Round trip of `PING`.
    pub round_trip: RoundTrip,
    /// Difference of the master's wall clock from the clock of this machine.
    pub clock: Option<ClockOffset>,
    /// Fields of `INFO`.
    pub server: Server,
    /// Settings that `CONFIG GET` shows.
    pub settings: Settings,
    /// Rights of the login.
    pub rights: Rights,
    /// Native command that releases a lock, as `DELIFEQ`; `None` if a script does it.
    pub native_release: Option<&'static str>,
    /// Time until the certificate of the server ends; `None` without TLS.
    pub certificate_left: Option<Duration>,
    /// Time for which some client has observed the server's process, by the mark of strict mode.
    pub observed: Duration,
    /// Error reply to a write that changes nothing.
    pub write_refusal: Option<String>,
}

/// Round trips of some `PING`s, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RoundTrip {
    /// Median.
    pub p50: Duration,
    /// 99th percentile; the longest of up to 100.
    pub p99: Duration,
    /// Number of round trips.
    pub count: usize,
}

/// Difference of two wall clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockOffset {
    /// Milliseconds by which the master is ahead of this machine; negative if it is behind.
    pub ahead_ms: i64,
    /// Largest error of the difference: half a round trip, and a millisecond.
    pub error: Duration,
}

/// Fields of `INFO`, as the server reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Server {
    /// `run_id`: differs for each process.
    pub run_id: Option<Box<str>>,
    /// Version of Redis or Valkey.
    pub version: Option<Box<str>>,
    /// Time since the process started, in whole seconds.
    pub uptime: Option<Duration>,
    /// `master`, or `slave` for a replica.
    pub role: Option<Box<str>>,
    /// Whether it is a node of a cluster.
    pub is_cluster: Option<bool>,
    /// `maxmemory` in bytes; zero is no limit.
    pub maxmemory: Option<u64>,
    /// Memory in use, in bytes.
    pub used_memory: Option<u64>,
    /// What it does at the memory limit; `noeviction` is right for locks.
    pub maxmemory_policy: Option<Box<str>>,
    /// Keys evicted since the start.
    pub evicted_keys: Option<u64>,
    /// Whether it writes an append-only file.
    pub is_append_only: Option<bool>,
    /// Whether the last snapshot and the last writes of the append-only file succeeded.
    pub is_disk_fine: Option<bool>,
}

/// Settings that `CONFIG GET` shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Settings {
    /// `appendfsync`: when the append-only file is written to disk.
    pub appendfsync: Option<Box<str>>,
    /// Whether the file is left unsynced while it is rewritten (`no-appendfsync-on-rewrite`).
    pub skips_fsync_on_rewrite: Option<bool>,
}

/// Rights of the login, found by commands that change nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Rights {
    /// Name of the user; `default` for a login without a name.
    pub user: Box<str>,
    /// Commands that the user may not run, as an ACL names them.
    pub denied: Vec<&'static str>,
    /// Commands that the server does not know.
    pub unknown: Vec<&'static str>,
    /// Whether the keys behind the prefix are out of its reach.
    pub lacks_keys: bool,
    /// Whether the channels behind the prefix are out of its reach.
    pub lacks_channels: bool,
}

impl Facts {
    /// Returns whether every write is on disk before it is answered.
    #[must_use]
    pub fn syncs_each_write(&self) -> Option<bool> {
        match (self.server.is_append_only?, self.settings.appendfsync.as_deref()) {
            (false, _) => Some(false),
            (true, fsync) => {
                Some(fsync? == "always" && !self.settings.skips_fsync_on_rewrite.unwrap_or(false))
            }
        }
    }
}

impl Master {
    /// Returns its facts, if it answered.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        match &self.state {
            MasterAnswer::Facts(facts) => Some(facts),
            MasterAnswer::Unreachable { .. } | MasterAnswer::LoginRefused { .. } => None,
        }
    }
}
