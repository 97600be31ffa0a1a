//! An examination: the facts of all masters, then what is to be said of them.

use std::time::Duration;

use super::facts::{ExaminedMaster, ask_all};
use super::finding::Finding;
use super::judge::judge;
use crate::config::Config;
use crate::driver::ConnectError;

/// Result of an examination.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// Each master with its facts, in the order of the configuration.
    pub masters: Vec<ExaminedMaster>,
    /// Findings, the most severe first.
    pub findings: Vec<Finding>,
}

/// Examines the masters of a configuration; see [`super::examine`].
///
/// # Errors
/// As [`super::examine`].
pub fn diagnose(config: &Config, limit: Duration) -> Result<Diagnosis, ConnectError> {
    Ok(Diagnosis::new(config, ask_all(config, limit)?))
}

impl Diagnosis {
    /// The facts, and the findings that follow.
    #[must_use]
    pub fn new(config: &Config, masters: Vec<ExaminedMaster>) -> Self {
        let findings = judge(config, &masters);
        Self { masters, findings }
    }
}
