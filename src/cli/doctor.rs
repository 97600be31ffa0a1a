//! Examination of a fleet: what is wrong with its masters and settings, why that matters, and what to do.
//!
//! [`examine`] opens one more connection to each master, and changes no key there. `redlatch doctor` prints its
//! findings.
//!
//! ```no_run
//! use redlatch::Config;
//! use redlatch_cli::doctor::{Finding, Severity, examine};
//! use std::time::Duration;
//!
//! let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
//! let config = Config::builder().masters(masters).build()?;
//! let findings = examine(&config, Duration::from_secs(5))?;
//! let is_serious = |it: &&Finding| it.severity >= Severity::Warning;
//! for finding in findings.iter().filter(is_serious) {
//!     println!("{}: {finding}; {}", finding.problem.code(), finding.advice());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A finding is a value, so a caller can match on [`Problem`], and compare by its stable
//! [code](Problem::code).

#[doc(hidden)]
pub mod candidates;
#[doc(hidden)]
pub mod facts;
mod finding;
#[doc(hidden)]
pub mod judge;
mod rights;

use std::time::Duration;

use redlatch::{Config, ConnectError};

pub use facts::CLOCK_RATE_LIMIT_MIN;
pub use finding::{Finding, Problem, Severity};

/// Examines the masters of a configuration, all at the same time, and returns after about `limit` at the
/// latest. Each look-up, each attempt to connect and each exchange takes at most the configuration's
/// `connect_timeout`. Its threads end at `limit`, too. Only a lookup of a name and a call of the credentials
/// provider that hang cannot be interrupted: the thread of each ends when it returns. With a limit of 10 s or
/// more ([`CLOCK_RATE_LIMIT_MIN`]) it takes at least 5 s, and measures
/// the rates of the masters' clocks against this machine's.
///
/// Returns what was found, the heaviest first.
///
/// It changes no key: rights are tried with commands on an absent key. The scripts among them stay in the
/// master's script cache, and a command that the login may not run leaves an entry in its ACL log.
///
/// # Errors
/// [`ConnectError`] if the certificates of the configuration cannot be used, or if the system gives no
/// thread. A master that cannot be asked is a finding.
pub fn examine(config: &Config, limit: Duration) -> Result<Vec<Finding>, ConnectError> {
    Ok(judge::judge(config, &facts::ask_all(config, limit)?))
}
