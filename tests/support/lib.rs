//! Shared by tests and benchmarks: servers, a proxy, certificates, golden texts, and patience.
//!
//! This package's copy of the library differs from the copy under unit test. So unit tests use only items
//! that name no type of the library.

mod blocking;
#[cfg(feature = "certificates")]
mod certificates;
mod fleet;
mod golden;
pub mod judge;
mod page;
mod proxy;
mod rules;
mod shown;
pub mod stage;
mod wait;

pub use blocking::{Blocking, Lease, LeaseRequest};
#[cfg(feature = "certificates")]
pub use certificates::Certificates;
pub use fleet::{Connection, Fleet, Master, Place, Raw, command, free_port, valkey_9};
pub use golden::{assert_golden, root};
pub use page::{differing, wrapped};
pub use proxy::Proxy;
pub use rules::broken_rule;
pub use shown::{Shown, Style};
pub use wait::{PATIENCE, Until, assert_sooner, block_on, eventually, settle};
