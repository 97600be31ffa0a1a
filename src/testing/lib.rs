//! Masters for tests of services that take locks with [`redlatch`]: name this package under
//! `[dev-dependencies]`. On Unix.
//!
//! - [`Double`]: model masters in the process of the test, without any server.
//! - [`Fleet`]: real Redis or Valkey servers on free loopback ports. A test needs
//!   `redis-server` or `valkey-server` in `PATH`, or another program named in the environment variable
//!   `REDLATCH_SERVER`.
//!
//! A test can stop, kill and restart masters of both kinds.
//!
//! ```no_run
//! use redlatch_testing::Fleet;
//!
//! let mut fleet = Fleet::start(5)?;
//! let client = fleet.config().connect()?;
//! let guard = client.lock("orders:42").acquire()?;
//!
//! fleet.master(0).stop()?; // it hangs: connections stand, and nothing answers
//! fleet.master(1).kill(); // it is gone, with all its keys
//! assert!(client.lock("orders:43").acquire().is_ok(), "three of five");
//!
//! fleet.master(0).resume()?;
//! fleet.master(1).restart()?; // empty, on the same port
//! drop(guard);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cleaning up
//!
//! A fleet ends only processes that it started, and removes their directory, when it is dropped, even in a
//! panic. If a fleet is in a `static`, or if the test program is killed, nothing is dropped and the servers
//! stay. [`Server::pid_dir`] records each process, so that you can clean up. A Ctrl-C at the terminal reaches
//! servers and test program alike.

#![cfg(unix)]
#![warn(missing_docs, unreachable_pub)]

mod connection;
mod double;
mod error;
mod master;
#[doc(hidden)] // The simulator, the engine's tests and the fuzz targets have the double's masters.
pub mod model;
mod port;
mod server;

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, process};

use redlatch::{Config, ConfigBuilder, Quarantine};

pub use connection::Connection;
pub use double::{Double, DoubleMaster};
pub use error::FleetError;
pub use master::Master;
pub use port::free_port;
pub use redlatch::probe::Answer as Reply;
pub use server::Server;

/// Answer timeout of a test's clients. A busy machine is no outage.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Connect timeout of a test's clients.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for a server to answer a command of a test.
const COMMAND_PATIENCE: Duration = Duration::from_secs(20);

/// Independent servers on loopback, one per master. A drop ends the servers and removes their files.
#[derive(Debug)]
pub struct Fleet {
    masters: Vec<Master>,
}

impl Fleet {
    /// Starts this number of servers that keep nothing on disk. Returns when all of them answer.
    ///
    /// # Errors
    /// See [`FleetError`]. Servers that were already started are ended.
    pub fn start(size: usize) -> Result<Self, FleetError> {
        Self::start_with(vec![Server::new(); size])
    }

    /// Starts one server for each of these settings. Returns when all of them answer.
    ///
    /// ```no_run
    /// use redlatch_testing::{Fleet, Server};
    ///
    /// let server = Server::new().password("s3cret").persistent();
    /// let fleet = Fleet::start_with(vec![server; 3])?;
    /// # Ok::<(), redlatch_testing::FleetError>(())
    /// ```
    ///
    /// # Errors
    /// See [`FleetError`]. Servers that were already started are ended.
    pub fn start_with(servers: impl IntoIterator<Item = Server>) -> Result<Self, FleetError> {
        let dir = Arc::new(Directory::create()?);
        let mut masters = Vec::new();
        for (index, server) in servers.into_iter().enumerate() {
            masters.push(Master::spawn(dir.clone(), index, server)?);
        }
        for master in &mut masters {
            master.await_first_start()?;
        }
        Ok(Self { masters })
    }

    /// Returns the URLs of all masters, with passwords if there are any.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.masters.iter().map(Master::url).collect()
    }

    /// Returns settings for clients of these masters. **For tests only**: with [`Quarantine::Trust`], because
    /// otherwise freshly started servers grant nothing for `max_ttl`.
    ///
    /// To test what a restart loses, set [`Quarantine::Uptime`] and a short `max_ttl`. The answer timeout is
    /// 2 s and the connect timeout 5 s, so that a busy machine is no outage. A call that waits for hanging
    /// masters takes as long.
    #[must_use]
    pub fn config(&self) -> ConfigBuilder {
        config_of(self.urls()).quarantine(Quarantine::Trust)
    }

    /// Returns the master with this index, in the order of [`Fleet::urls`].
    ///
    /// # Panics
    /// If there is no such master.
    #[must_use]
    pub fn master(&mut self, index: usize) -> &mut Master {
        &mut self.masters[index]
    }

    /// Iterates over all masters.
    pub fn masters(&mut self) -> impl Iterator<Item = &mut Master> {
        self.masters.iter_mut()
    }

    /// Returns the masters, for instance one for each thread. A drop of a master ends it.
    #[must_use]
    pub fn into_masters(self) -> Vec<Master> {
        self.masters
    }
}

/// Settings with which a busy machine is no outage.
fn config_of(urls: Vec<String>) -> ConfigBuilder {
    Config::builder().masters(urls).answer_timeout(ANSWER_TIMEOUT).connect_timeout(CONNECT_TIMEOUT)
}

/// Directory of a fleet, removed with the last master.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Self, FleetError> {
        let random = RandomState::new().hash_one(0) & 0xffff_ffff;
        let path = env::temp_dir().join(format!("redlatch-fleet-{}-{random:08x}", process::id()));
        fs::create_dir(&path).map_err(|error| FleetError::io("cannot create", &path, error))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that cannot be removed fails no test.
        let _ = fs::remove_dir_all(&self.0);
    }
}
