//! One set of connections for many threads and tasks: [`Client`], what it is asked, and what it gives.

mod callbacks;
pub mod completions;
mod connect;
mod drain;
#[cfg(unix)]
mod drive;
mod election;
mod guard;
mod handle;
pub mod holds;
mod inspect;
mod leaving;
mod lingering;
mod name;
mod parker;
mod pending;
mod reentrant;
mod relay;
mod request;
mod rw;
mod set;
pub mod set_acquisition;
mod shared;

pub use connect::Connect;
pub use drain::settle;
#[cfg(unix)]
pub use drive::{Drive, DriveEnded};
pub use election::{Candidate, Leadership};
pub use guard::{Extend, Guard, LockEnd, Lost, Release};
pub use handle::Client;
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use request::{Acquire, LockRequest};
pub use rw::RwLock;
pub use set::{GuardSet, LockSetRequest};
