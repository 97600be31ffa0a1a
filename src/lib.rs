//! Locks across N independent Redis or Valkey masters in about one round trip.
//!
//! # Promises
//!
//! - **Exclusion.** At most one guard of a lock is valid at any moment, or any number of shared ones. This
//!   holds while fewer masters than the lock's [margin](Guard::margin) + 1 lose its key or let it expire
//!   early, while the rates of the clocks differ by less than the drift allowance (1 % + 2 ms), and while all
//!   clients share the list of masters, the prefix and the maximum TTL.
//! - **Fencing.** The tokens of successive [fenced](LockRequest::fenced) guards grow, whatever pauses and
//!   delays happen, within the bounds of `docs/fencing.md`.
//! - **Deadlines.** Every call returns by the limit that its options and the configuration set, if the
//!   process gets CPU time and your wakers and callbacks return.
//!
//! Nothing is promised for work that is done after [`Guard::valid_until`], unless the storage checks the
//! fencing token. With one master the lock is the single-instance lock of the same algorithm. The page
//! `docs/guarantees.md` of the repository has the assumptions in full.
//!
//! # Use
//!
//! A thread blocks:
//!
//! ```no_run
//! use redlatch::{AcquireError, Client};
//! use std::time::Duration;
//!
//! let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//! match client.lock("orders:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(2)).acquire() {
//!     Ok(guard) => {
//!         // … the protected work, while guard.is_valid() …
//!         drop(guard); // released in the background; `release` waits for the masters
//!     }
//!     Err(AcquireError::Contended(denial)) => println!("another client holds it: {denial}"),
//!     Err(error) => return Err(error.into()), // an outage, and what each master said
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A task awaits, on any executor; futures need no runtime:
//!
//! ```no_run
//! # async fn import(client: redlatch::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let request = client.lock("orders:42").auto_extend(std::time::Duration::from_secs(600));
//! request
//!     .run_async(async |guard| {
//!         // … the protected work, which a loss of the lock ends at its next `.await` …
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Client`] is for many threads and tasks. [`Redlock`] is for one thread, and has no background thread.
//! [`engine::Engine`] is the protocol without I/O, for an event loop of your own. Every future is safe to
//! drop at any time; its own page says what a drop does.
//!
//! # Kinds of locks
//!
//! | need | call |
//! | --- | --- |
//! | extended while the work goes on | [`LockRequest::auto_extend`] |
//! | acquired, and released after the work | [`LockRequest::run`], [`LockRequest::run_async`] |
//! | in the order of arrival, between processes | [`LockRequest::fair`] |
//! | a number for storage that refuses late writers | [`LockRequest::fenced`] |
//! | many readers, one writer | [`Client::rw_lock`] |
//! | several locks, all or none | [`Client::lock_set`] |
//! | at most K at a time, each with a number | [`Client::slots`] |
//! | many locks, each by itself | [`Client::acquire_all`] |
//! | taken again by its owner | [`LockRequest::reentrant`] |
//! | by one leader at a time, for long | [`Client::lead`] |
//! | passed to another process, released for one that died | [`Guard::into_handle`], [`Guard::to_handle`] |
//! | inspected, deleted by force | [`Client::inspect`], [`Client::force_unlock`] |
//! | ended from another thread | [`LockRequest::cancel_with`] |
//!
//! # Monitoring
//!
//! [`Client::stats`] counts locks and samples their times: [`Stats::to_prometheus`] is the text for a scrape.
//! [`Client::health`] is for a readiness probe. [`ConfigBuilder::on_event`] takes a function that is called
//! with [`Event`]s. The page `docs/monitoring.md` of the repository has alert rules.
//!
//! [`Stats::to_prometheus`]: stats::Stats::to_prometheus
//!
//! # Algorithm
//!
//! redlatch implements the [Redlock
//! algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) as a low-level
//! multiplexed RESP2 client: non-blocking sockets to all masters, one event loop, and pipelined `SET NX PX`
//! and compare-and-delete.
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
//!   resp ──┘     RESP2 encoder, RESP2 and RESP3 decoder
//! ```
//!
//! # Features
//!
//! - `suspend`: deadlines count the time in which the machine was suspended, on Linux and Android; without
//!   it, and elsewhere, they count as [`std::time::Instant`] does. For laptops, and virtual machines that are
//!   put to sleep. See [`Lease::valid_until`].
//! - `tracing`: spans of acquisitions and held locks in the caller's context, for the crate `tracing`; and
//!   `trace_events`, an observer that emits its events. The page `docs/monitoring.md` lists the spans.
//! - `metrics`: `record_metrics`, which feeds the crate `metrics`. [`Stats::to_prometheus`] needs neither.
//! - `tls`: `rediss://` URLs and their settings, `Tls`. It uses rustls with ring, and needs a C compiler to
//!   build.
//! - `doctor`: the module `doctor`, which finds what is wrong with a fleet.
//! - `testing`: the module `testing`, real servers for your tests; for development only.
//! - `double`: in that module, masters in the process of a test. The page `docs/testing.md` of the repository
//!   has a service with its tests. It needs a C compiler to build.
//! - `cli`: the command line, with `doctor`, `suspend` and `tls`.
//!
//! None is on by default. The page `docs/versions.md` of the repository lists what each of them pulls in, and
//! what a version promises.

#![warn(missing_docs, unreachable_pub)]
// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "doctor")]
pub mod doctor;
pub mod engine;
pub mod error;
pub mod limits;
pub mod resp;
#[cfg(all(unix, feature = "testing"))]
pub mod testing;

mod cancel;
mod caught;
mod client;
mod clock;
mod config;
mod driver;
mod event;
mod founding;
mod handle;
mod lock;
#[cfg(redlatch_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(redlatch_mutants))]
mod mutants;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod observe;
mod options;
mod pool;
mod process;
mod redlock;
mod wire;
mod words;

pub use cancel::Cancel;
pub use client::{
    Acquire, Candidate, Client, Connect, Extend, Guard, GuardSet, IntoHandleError, Leadership, LockEnd,
    LockRequest, LockSetRequest, Lost, ReentrantGuard, ReentrantLock, Release, RwLock, SlotGuard,
    SlotsRequest,
};
#[cfg(unix)]
pub use client::{Drive, DriveEnded};
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
#[cfg(feature = "metrics")]
pub use observe::record_metrics;
#[cfg(feature = "tracing")]
pub use observe::trace_events;
pub use options::{Mode, Options, WaitPolicy};
pub use redlock::{Lease, LeaseRequest, Redlock};

/// Results of [`Client::inspect`] and [`Client::force_unlock`].
pub mod inspection {
    pub use crate::engine::queries::inspection::{ForceUnlocked, Inspection, KeyState, LockStatus};
}

/// Results of [`Client::stats`].
pub mod stats {
    pub use crate::engine::masters::clock_rate::ClockRate;
    pub use crate::engine::stats::contended::{ContendedName, ContendedNames};
    pub use crate::engine::stats::histogram::{Bucket, Histogram};
    pub use crate::engine::stats::{MasterStats, Stats};
}

/// Results of [`Client::health`] and [`Client::masters`].
pub mod status {
    pub use crate::engine::masters::status::{Health, MasterState, MasterStatus};
    pub use crate::engine::masters::trouble::Warning;
    pub use crate::error::fleet::{FleetDifference, FleetId, Unusable};
}

/// Items that the command line, the simulator and the fuzz targets share with the library. Not for users:
/// they may change in any version.
#[doc(hidden)]
pub mod internals {
    pub use crate::client::{completions, holds, set_acquisition, settle, slot_acquisition};
    pub use crate::config::env;
    #[cfg(feature = "doctor")]
    pub use crate::doctor::{
        facts::{ClockOffset, ExaminedMaster, Facts, ask_all, time_us},
        judge::{granting, judge},
    };
    #[cfg(feature = "doctor")]
    pub use crate::driver::probe;
    /// The record of a fleet.
    pub mod fleet {
        #[cfg(feature = "doctor")]
        pub use crate::doctor::candidates::{Asked, ask_candidates, ask_old, literal, write_records};
        pub use crate::engine::masters::record::{Found, Origin, Record, Seen};
        pub use crate::error::probe::ProbeError;
        pub use crate::founding::replacement::{OldMaster, Replacement, Step};
        pub use crate::founding::{Candidate, Change, Founding, Refusal, found, seen};
    }
    pub use crate::lock::{Drift, NamedScript, SCRIPTS, Tally, Verdict, whole_ms, whole_us};
    pub use crate::lock::{FENCE_NAME, command::park::WAIT_NAME, split_value};
    /// Masters in a few hundred lines, on any clock.
    #[cfg(all(unix, feature = "double"))]
    pub mod model {
        pub use crate::testing::model::{
            Answer, Data, Dialect, Entry, Interpreter, Keys, ModelMaster, NoCommand, Parked, Protocol,
            Refusal, SortedSet, Value, WITHOUT_LIKENESS, Wall, command, digest, fence_in, fence_key,
            lease_end, leases, lua, parking_script, queue_key, script, token_of,
        };
    }
    pub mod pool {
        pub use crate::pool::{LockOfPool, door_name, slot_name};
    }
    pub mod words {
        pub use crate::words::{Counted, NO_SERVER, Named, Printable, Rounded, Shown, grouped, is_deceptive};
    }
}

/// Compiles the examples of the README and of the pages.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/cookbook.md")]
#[doc = include_str!("../docs/errors.md")]
#[doc = include_str!("../docs/waiting.md")]
#[doc = include_str!("../docs/fencing.md")]
#[doc = include_str!("../docs/guide.md")]
#[doc = include_str!("../docs/handles.md")]
#[doc = include_str!("../docs/migrating.md")]
#[doc = include_str!("../docs/monitoring.md")]
#[doc = include_str!("../docs/readers-writers.md")]
#[doc = include_str!("../docs/semaphore.md")]
#[doc = include_str!("../docs/slots.md")]
#[doc = include_str!("../docs/testing.md")]
struct Pages;
