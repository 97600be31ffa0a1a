//! A distributed lock over independent Redis or Valkey servers, in about one round trip: the [Redlock
//! algorithm][redlock] with a hand-written RESP codec, one event loop, and one multiplexed connection to each
//! server.
//!
//! # In a thread
//!
//! ```no_run
//! use redlatch::{AcquireError, Client};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
//! let client = Client::connect(masters)?; // one client per process
//! let request = client.lock("orders:42").wait(Duration::from_secs(2));
//! match request.acquire() {
//!     Ok(guard) => {
//!         // … the protected work, while guard.is_valid() …
//!         drop(guard); // releases the lock in the background
//!     }
//!     Err(AcquireError::Contended(denial)) => println!("busy: {denial}"),
//!     Err(error) => return Err(error.into()), // an outage: what each master said
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # In a task
//!
//! On any executor: the futures need no runtime.
//!
//! ```no_run
//! use redlatch::ConfigBuilder;
//! use std::time::Duration;
//!
//! # async fn import() -> Result<(), Box<dyn std::error::Error>> {
//! let client = ConfigBuilder::from_env()?.connect_async().await?;
//! let guard = client.lock("orders:42").await?;
//! // … the protected work, while guard.is_valid() …
//! if let Err(error) = guard.release_async().await {
//!     eprintln!("{error}"); // not confirmed: it goes on in the background
//! }
//!
//! // Renews the lock while the work goes on. If the lock is lost, the work
//! // stops at its next `.await`.
//! let request = client.lock("report").auto_extend(Duration::from_secs(600));
//! request.run_async(async |_guard| { /* … the work … */ }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! - **In tasks, call the methods that end in `_async`.** `guard.release()` blocks the executor's thread, and
//!   the compiler does not notice. For `guard.release().await` it even suggests removing the `.await`, which
//!   compiles and blocks.
//! - `run_async` takes an async closure, `async |guard| …`. The older form `|guard| async { … }` does not
//!   compile, because its future cannot borrow the guard.
//!
//! [`Client`] serves many threads and tasks. [`Redlock`] serves one thread and needs no background thread.
//! [`engine::Engine`] is the protocol without I/O, for your own event loop, and [`resp`] is the codec. Any
//! future may be dropped at any time; its page says what a drop does. The page [embedding] has an example of
//! each.
//!
//! # Kinds of locks
//!
//! | need | call |
//! | --- | --- |
//! | extended during the work | [`LockRequest::auto_extend`] |
//! | acquired, and released after the work | [`LockRequest::run`], [`LockRequest::run_async`] |
//! | in the order of arrival, between processes | [`LockRequest::fair`] |
//! | a growing number, for storage that refuses late writers | [`LockRequest::fenced`] |
//! | many readers, one writer | [`Client::rw_lock`] |
//! | several locks, all or none | [`Client::lock_set`] |
//! | at most K holders, each with a number | [`Client::slots`] |
//! | many independent locks | [`Client::acquire_all`] |
//! | taken again by its owner | [`LockRequest::reentrant`] |
//! | one leader for a long time | [`Client::lead`] |
//! | passed to another process, or released for a process that died | [`Guard::into_handle`], [`Guard::to_handle`] |
//! | inspected, deleted by force | [`Client::inspect`], [`Client::force_unlock`] |
//! | more locks than one fleet of masters carries | [`Fleets`] |
//! | a wait that another thread ends | [`LockRequest::cancel_with`] |
//!
//! # Promises
//!
//! - **Exclusion.** At any moment, at most one guard of a lock is valid, or any number of shared guards. This
//!   holds while at most [`margin`](Guard::margin) masters lose the lock's key or expire it early, while
//!   clock rates differ by less than the drift allowance (1 % + 2 ms), and while all clients share the list
//!   of masters, the prefix and the maximum TTL.
//! - **Fencing.** The tokens of successive [fenced](LockRequest::fenced) guards grow, whatever pauses and
//!   delays happen, within the [bounds of fencing tokens][fencing].
//! - **Deadlines.** Every call returns within the limit of its options and the configuration, if the process
//!   gets CPU time and your wakers and callbacks return.
//!
//! Work after [`Guard::valid_until`] is safe only if the storage checks the fencing token. With one master,
//! the lock is the single-instance lock of the same algorithm. The page [guarantees] lists all assumptions.
//!
//! # Monitoring
//!
//! [`Client::stats`] counts locks and samples their times, and [`Stats::to_prometheus`] formats them for a
//! scrape. [`Client::health`] suits a readiness probe. [`ConfigBuilder::on_event`] sets a function to call
//! with each [`Event`]. The page [monitoring] has alert rules.
//!
//! # Layers
//!
//! ```text
//!   Client     threads and tasks, guards         Redlock     one thread's own loop
//!      └──────────────────┬─────────────────────────┘
//!   driver     sockets, clock, randomness        one turn(): write, poll, read
//!      │
//!   engine     the protocol, without any I/O     operations, claims, deadlines
//!    ┌─┴───┐
//!   wire  lock   bytes and owed replies          votes, verdict, commands
//!    │     │
//!   resp ──┘     RESP2 encoder, RESP2 and RESP3 decoder
//! ```
//!
//! # Features
//!
//! - `suspend`: deadlines include the time for which the machine was suspended, on Linux and Android.
//!   Otherwise they follow [`std::time::Instant`]. For laptops, and virtual machines that are put to sleep.
//!   See [`Guard::valid_until`].
//! - `tokio`: a `current_thread` runtime drives the clients that its tasks open, on Unix. See
//!   [`Client::connect_async`].
//! - `tracing`: spans of acquisitions and held locks in the caller's context, for the crate `tracing`; and
//!   `trace_events`, an observer that emits events. The page [monitoring] lists the spans.
//! - `tls`: `rediss://` URLs and their settings, `Tls`. Uses rustls with ring, which needs a C compiler to
//!   build.
//!
//! All are off by default. The page [versions] lists the packages that each needs, and what a version
//! promises. The command line is the package `redlatch-cli`. It also has a library, which finds what is wrong
//! with a fleet. The package `redlatch-testing` has servers for your tests; the page [testing] shows a service
//! with its tests.
//!
//! [`Stats::to_prometheus`]: stats::Stats::to_prometheus
//! [redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [embedding]: https://docs.rs/crate/redlatch/latest/source/docs/embedding.md
//! [fencing]: https://docs.rs/crate/redlatch/latest/source/docs/fencing.md
//! [guarantees]: https://docs.rs/crate/redlatch/latest/source/docs/guarantees.md
//! [monitoring]: https://docs.rs/crate/redlatch/latest/source/docs/monitoring.md
//! [testing]: https://docs.rs/crate/redlatch/latest/source/docs/testing.md
//! [versions]: https://docs.rs/crate/redlatch/latest/source/docs/versions.md

#![warn(missing_docs, unreachable_pub)]
// No clock and no I/O, but for the exceptions below and in their files. Unit tests may.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod engine;
pub mod error;
pub mod limits;
pub mod pool;
pub mod resp;

mod cancel;
mod caught;
#[cfg_attr(not(test), expect(clippy::disallowed_types))]
mod client;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, clippy::disallowed_types))]
mod clock;
mod config;
#[cfg_attr(not(test), expect(clippy::disallowed_types))]
mod driver;
mod event;
mod handle;
mod lock;
#[cfg(feature = "tracing")]
mod observe;
mod options;
#[cfg_attr(not(test), expect(clippy::disallowed_methods))]
mod process;
mod redlock;
mod wire;

pub use cancel::Cancel;
pub use client::{
    Acquire, Client, Connect, Extend, FreeSlots, Guard, IntoHandleError, LockEnd, LockRequest, Lost, Pause,
    ReentrantGuard, ReentrantLock, Release, RwLock,
};
#[cfg(unix)]
pub use client::{Drive, DriveEnded};
pub use compose::{
    AcquireSet, AcquireSlot, Candidate, Fleets, FleetsError, GuardSet, Leadership, LockSetRequest, SlotGuard,
    SlotsRequest,
};
pub use config::{Config, ConfigBuilder, Credentials, MasterUrl, Quarantine};
#[cfg(feature = "tls")]
pub use config::{Pem, Tls};
pub use driver::ConnectError;
#[cfg(feature = "tls")]
pub use driver::TlsError;
pub use engine::request::{HeldLocks, Left, Released};
pub use error::class::ErrorClass;
pub use error::usual::{AcquireError, ExtendError, ReleaseError, RunError};
pub use error::waited::{Waited, WaitedFor};
pub use event::Event;
pub use handle::LockHandle;
pub use lock::{FencingToken, LockName, Token};
#[cfg(feature = "tracing")]
pub use observe::trace_events;
pub use options::{Mode, Options, WaitPolicy};
pub use redlock::Redlock;

/// Results of [`Client::inspect`] and [`Client::force_unlock`].
pub mod inspection {
    pub use crate::engine::queries::inspection::{ForceUnlocked, Inspection, KeyState, LockStatus};
}

/// Results of [`Client::stats`].
pub mod stats {
    pub use crate::engine::stats::histogram::{Bucket, Histogram};
    pub use crate::engine::stats::{MasterStats, Stats};
}

/// Results of [`Client::health`] and [`Client::masters`].
pub mod status {
    pub use crate::engine::masters::status::{Health, MasterState, MasterStatus};
    pub use crate::engine::masters::trouble::Warning;
    pub use crate::error::fleet::{FleetDifference, FleetId, Unusable};
}

// Hidden paths, for the other packages of the workspace and for tests. Any version may change them.
#[doc(hidden)] // The simulator names outcomes by their kind.
pub use client::completions;
#[cfg(all(unix, feature = "simulator"))]
#[doc(hidden)] // The simulator runs whole clients.
pub use client::simulated;
#[doc(hidden)] // The simulator runs the decisions about sets, slots and reentrant locks.
pub mod compose;
#[doc(hidden)] // The command line names the variables, and reads times as they are read.
pub use config::env;
#[doc(hidden)] // The command line, the drill and the test kit ask a master beside all locks.
pub use driver::probe;
#[doc(hidden)] // The doctor reads strict mode's mark.
pub use engine::masters::mark;
#[doc(hidden)] // The doctor and `redlatch fleet` read and write the fleet's record.
pub use engine::masters::record;
#[doc(hidden)] // `redlatch fleet` carries its decisions out; the simulator plants bugs in them.
pub mod founding;
#[doc(hidden)] // The model of a master and the doctor's trials of rights run the scripts.
pub use lock::command::scripts;
#[doc(hidden)] // The command line shows names, times and numbers as the errors do.
pub mod words;

/// Compiles the examples of the README and the pages.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/choosing.md")]
#[doc = include_str!("../docs/embedding.md")]
#[doc = include_str!("../docs/errors.md")]
#[doc = include_str!("../docs/waiting.md")]
#[doc = include_str!("../docs/fencing.md")]
#[doc = include_str!("../docs/guide.md")]
#[doc = include_str!("../docs/handles.md")]
#[doc = include_str!("../docs/migrating.md")]
#[doc = include_str!("../docs/monitoring.md")]
#[doc = include_str!("../docs/readers-writers.md")]
#[doc = include_str!("../docs/recipes.md")]
#[doc = include_str!("../docs/slots.md")]
#[doc = include_str!("../docs/testing.md")]
struct Pages;
