//! One set of connections for many threads and tasks: [`Client`], its requests and its guards.

// First, so that rustdoc shows `connect` and `lock` before all other methods of `Client`, and the methods of
// `LockRequest` in the order of their file.
mod request;

mod callbacks;
pub mod completions;
mod guard;
mod handle;
mod inspect;
mod loss;
mod passing;
mod pending;
mod reentrant;
mod relay;
#[cfg(all(unix, feature = "tokio"))]
mod runtime;
mod shared;
#[cfg(all(unix, feature = "simulator"))]
pub mod simulated;
mod sleeper;
#[cfg(feature = "tracing")]
mod trace;
#[cfg(not(feature = "tracing"))]
#[path = "client/no_trace.rs"]
mod trace;
mod wait;
mod work;

pub use guard::{Extend, Guard, Release};
pub use handle::{Client, Connect};
pub use inspect::FreeSlots;
pub use loss::{LockEnd, Lost};
pub use passing::IntoHandleError;
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use request::{Acquire, LockRequest, RwLock};
#[cfg(unix)]
pub use shared::background::{Drive, DriveEnded};
#[cfg(test)]
pub(crate) use sleeper::Count;
pub use wait::Pause;
