//! Locks across N independent Redis or Valkey masters in about one round trip.
#![warn(missing_docs, unreachable_pub)]
pub mod engine;
pub mod limits;
pub mod lock;
pub mod resp;

mod config;
mod driver;
mod error;
mod redlock;
mod wire;

pub use config::{Config, ConfigBuilder, ConfigError, MasterUrl, Quarantine, UrlError};
pub use error::{AcquireError, Denial, ExtendError, ReleaseError, Report, Round};
pub use redlock::{ConnectError, Lease, Redlock};
