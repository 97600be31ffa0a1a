//! Examination of a fleet: what is wrong with its masters and settings, why that matters, and what to do.
//!
//! [`examine`] asks each master over a connection of its own, and changes nothing there. The command line
//! shows the same as `redlatch doctor`.
//!
//! ```no_run
//! use redlatch::Config;
//! use redlatch::doctor::{Severity, examine};
//! use std::time::Duration;
//!
//! let masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
//! let config = Config::builder().masters(masters).build()?;
//! let diagnosis = examine(&config, Duration::from_secs(5))?;
//! for finding in diagnosis.findings.iter().filter(|finding| finding.severity >= Severity::Warning) {
//!     println!("{}: {finding}; {}", finding.problem.code(), finding.advice());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A finding is a value, so a caller can match on [`Problem`], and compare by its stable
//! [code](Problem::code).

mod facts;
mod finding;
mod gather;
mod judge;
mod rights;

use std::time::Duration;

use crate::config::Config;
use crate::driver::ConnectError;
use crate::driver::probe::{ProbeError, each};

pub use facts::{ClockOffset, Facts, Master, MasterAnswer, Rights, RoundTrip, Server, Settings};
pub use finding::{Finding, Problem, RestartLoss, Severity};
pub use rights::Feature;

/// Result of an examination.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Each master with its facts, in the order of the configuration.
    pub masters: Vec<Master>,
    /// What was found, the heaviest first; empty for a healthy fleet.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns the weight of the heaviest finding; `None` without findings.
    #[must_use]
    pub fn severity(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// Returns the number of masters that answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.masters.iter().filter(|master| master.facts().is_some()).count()
    }
}

/// Part of the limit for which round trips are measured.
const ROUND_TRIP_SHARE: u32 = 4;

/// Examines the masters of a configuration, all at the same time, and returns after about `limit` at the
/// latest. Each connection, and each exchange over it, takes at most the configuration's `connect_timeout`.
/// Its threads end at `limit`, too. Only a lookup of a name and a call of the credentials provider that hang
/// cannot be interrupted: the thread of each ends when it returns.
///
/// It writes nothing: rights are tried with commands that change nothing. A command that the login may not
/// run leaves an entry in the ACL log of the master.
///
/// # Errors
/// [`ConnectError`] if the certificates of the configuration cannot be used, or if the system gives no
/// thread. A master that cannot be asked is a finding.
pub fn examine(config: &Config, limit: Duration) -> Result<Diagnosis, ConnectError> {
    let settings = config.clone();
    let time = limit / ROUND_TRIP_SHARE;
    let answers = each(config, limit, move |probe, _| gather::gather(probe, &settings, time))?;
    let masters = config.labels.iter().zip(answers).map(|(name, answer)| Master {
        name: name.clone(),
        state: match answer {
            Ok(facts) => MasterAnswer::Facts(Box::new(facts)),
            Err(ProbeError::Unreachable(why)) => MasterAnswer::Unreachable { why },
            Err(ProbeError::LoginRefused(why)) => MasterAnswer::LoginRefused { why },
        },
    });
    let masters: Vec<_> = masters.collect();
    let findings = judge::judge(config, &masters);
    Ok(Diagnosis { masters, findings })
}
