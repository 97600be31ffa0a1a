//! What tests and benchmarks share: servers, a proxy, certificates, texts in `tests/golden`, and patience.
//!
//! The library's unit tests have another copy of the library's types than this package. They use what names
//! none of these types.

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
pub use wait::{PATIENCE, Until, assert_sooner, block_on, eventually};
