//! Locks across N independent Redis or Valkey masters in about one round trip.
//!
//! redlatch implements the [Redlock
//! algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) as a low-level
//! multiplexed RESP2 client: non-blocking sockets to all masters, one event loop, `SET NX PX` and the
//! compare-and-delete release pipelined. With one master it is that page's single-instance lock.
//!
//! ```no_run
//! use redlatch::{AcquireError, Client};
//! use std::time::Duration;
//!
//! let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//! match client.lock("orders:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(2)).acquire() {
//!     Ok(guard) => {
//!         // … the protected work, while guard.is_valid() …
//!         guard.release()?;
//!     }
//!     Err(AcquireError::Contended(denial)) => println!("somebody else holds it: {denial}"),
//!     Err(error) => return Err(error.into()), // an outage, and what each master said
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Client`] is for many threads and tasks, [`Redlock`] for one thread and nothing beside it.
//!
//! # What flows where
//!
//! ```text
//!   Client       threads and tasks, guards        Redlock      one thread, leases
//!      └───────────────────┬─────────────────────────┘
//!   driver       sockets, clock, randomness       one turn(): write, poll, read, time-outs
//!      │
//!   engine       the protocol, without any I/O    operations, claims, links, deadlines
//!    ┌─┴───┐
//!   wire  lock   bytes and owed replies; votes, verdict, commands
//!    │     │
//!   resp ──┘     RESP2 encoder and decoder
//! ```
//!
//! To read the code, start at [`lock`] (the nouns and the quorum), go on with [`engine`] (its contract comes
//! first), and end with [`Redlock`] and [`Client`]. Limits are all in [`limits`].
//!
//! # Promises
//!
//! While fewer masters than the lock's margin + 1 lose or prematurely expire the key, clock rates differ by
//! less than the drift allowance, and all clients share the list of masters (with their databases), the
//! prefix and the maximum TTL, at most one guard of a resource is valid at any instant, or any number of
//! shared ones ([`LockRequest::shared`]). Fencing tokens ([`LockRequest::fenced`]) of successive guards
//! strictly grow, whatever pauses and delays happen. Nothing is promised about work done after the deadline
//! unless the storage checks the token. Every call returns by its deadline. The README says more, and what is
//! not promised.
//!
//! # Kinds of locks
//!
//! | | |
//! | --- | --- |
//! | kept while work goes on | [`LockRequest::auto_extend`] |
//! | first come, first served, between processes | [`LockRequest::fair`] |
//! | with a number for storage that refuses late writers | [`LockRequest::fenced`] |
//! | many readers, one writer | [`Client::rw_lock`] |
//! | several, all or none; many, each by itself | [`Client::lock_set`]; [`Client::acquire_all`] |
//! | taken again by its owner | [`LockRequest::reentrant`] |
//! | looked at, broken | [`Client::inspect`], [`Client::force_unlock`] |
//!
//! # Features
//!
//! - `suspend`: deadlines count the time in which the machine was suspended, on Linux and Android; without
//!   it, and elsewhere, they count as [`std::time::Instant`] does. For laptops, and virtual machines that are
//!   put to sleep. See [`Lease::valid_until`].
//! - `tokio`: `Client::drive_on_tokio`. Futures need neither it nor any other runtime.
//! - `cli`: the command line, with `suspend`.

#![warn(missing_docs, unreachable_pub)]

pub mod engine;
pub mod limits;
pub mod lock;
pub mod resp;

mod client;
mod clock;
mod config;
mod driver;
mod error;
#[cfg(redlatch_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(redlatch_mutants))]
mod mutants;
mod options;
mod process;
mod redlock;
mod wire;
#[doc(hidden)]
pub mod words;

// For the simulator, whose callers do with them what those of a client do.
pub use client::{
    Acquire, Cancel, Client, Extend, Guard, GuardSet, Hold, LockEnd, LockRequest, LockSetRequest, Lost,
    ReentrantLock, Release, RwLock,
};
#[cfg(unix)]
pub use client::{Drive, DriveEnded};
#[doc(hidden)]
pub use client::{desk, holds, joint};
pub use config::{Config, ConfigBuilder, ConfigError, MasterUrl, Quarantine, UrlError};
pub use driver::ConnectError;
pub use engine::{ForceUnlocked, Inspection, Standing, Told};
pub use error::{
    AcquireError, Denial, ExtendError, ForceUnlockError, HeldBy, InspectError, ReleaseError, Report, Round,
};
pub use error::{ReenterError, SetError};
pub use options::{Mode, Options, WaitPolicy};
pub use redlock::{Lease, LeaseRequest, Redlock};

/// Compiles the examples of the README and of the pages.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/cookbook.md")]
#[doc = include_str!("../docs/errors.md")]
#[doc = include_str!("../docs/fair.md")]
#[doc = include_str!("../docs/fencing.md")]
#[doc = include_str!("../docs/guide.md")]
#[doc = include_str!("../docs/migrating.md")]
#[doc = include_str!("../docs/readers-writers.md")]
#[doc = include_str!("../docs/semaphore.md")]
struct Pages;
