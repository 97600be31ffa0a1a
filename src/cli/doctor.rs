//! Examination of a fleet: what is wrong with its masters and settings, why it matters, and what to do.
//!
//! [`examine`] opens one more connection to each master, and changes no key there. `redlatch doctor` prints
//! the findings.
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
//! A finding is a value: match on its [`Problem`], or compare the stable [code](Problem::code).

pub(crate) mod candidates;
pub(crate) mod facts;
mod finding;
pub(crate) mod judge;
mod rights;

use std::time::Duration;

use redlatch::{Config, ConnectError};

pub use facts::CLOCK_RATE_LIMIT_MIN;
pub use finding::{Finding, Problem, Severity};

/// Examines all masters of a configuration at the same time, and returns the findings, most severe first.
///
/// Returns within about `limit`. Each lookup of a name, each connect and each exchange takes at most the
/// configuration's `connect_timeout`. With a limit of at least 10 s ([`CLOCK_RATE_LIMIT_MIN`]) the call takes
/// at least 5 s, and compares the rates of the masters' clocks with this machine's. The threads of the call end
/// at `limit`, too, except threads that hang in a lookup or in the credentials provider, which cannot be
/// interrupted.
///
/// Changes no key: rights are tried with commands on an absent key. The scripts among these commands stay in
/// the master's script cache, and a command that the login may not run leaves an entry in the ACL log.
///
/// # Errors
/// [`ConnectError`] if the configuration's certificates cannot be used, or if the system refuses a thread. A
/// master that cannot be asked is a finding.
pub fn examine(config: &Config, limit: Duration) -> Result<Vec<Finding>, ConnectError> {
    Ok(judge::judge(config, &facts::ask_all(config, limit)?))
}
