//! State of the masters, for probes and for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::trouble::{Warning, is_of_settings};
use crate::words::Rounded;

/// Whether locks can be acquired now, and the state of each master; from
/// [`Client::health`](crate::Client::health) and [`Redlock::health`](crate::Redlock::health).
///
/// `{}` is one line for a log; `{:#}` has a line for each master.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Health {
    /// Whether the votes of a quorum of masters count now. Suits a readiness probe.
    pub has_quorum: bool,
    /// Number of voting masters that may fail before the quorum is lost. Zero without a quorum.
    pub may_fail: usize,
    /// Status of each master, in the order of the configuration.
    pub masters: Vec<MasterStatus>,
}

/// Status of one master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterStatus {
    /// URL of the master, without the login.
    pub name: Arc<str>,
    /// State of the connection.
    pub state: MasterState,
    /// Version that the server reports; `None` before the first report.
    pub version: Option<Box<str>>,
    /// Identity of the server's process; `None` before the first report.
    pub run_id: Option<Box<str>>,
    /// Command that usually releases plain locks there: `DELIFEQ`, `DELEX IFEQ` or `EVALSHA`.
    pub release_command: &'static str,
    /// Optional commands that the server refused, with the error texts.
    pub refused: Vec<(&'static str, Box<str>)>,
    /// Faults of the server as a lock master. `Display` gives one sentence each.
    pub warnings: Vec<Warning>,
}

/// State of the connection to a master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterState {
    /// Not connected, for this reason.
    Down(Arc<str>),
    /// First attempt to connect in progress.
    Connecting,
    /// Connected: its votes count.
    Ready,
    /// Connected and asked; its votes count after this time.
    Quarantined(Duration),
    /// Owes an answer that is late; gets no acquisitions until it sends something.
    Silent,
}

impl Health {
    pub(crate) fn new(masters: Vec<MasterStatus>, quorum: usize) -> Self {
        let counting = masters.iter().filter(|master| master.state.counts()).count();
        Self { has_quorum: counting >= quorum, may_fail: counting.saturating_sub(quorum), masters }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counting = self.masters.iter().filter(|master| master.state.counts()).count();
        write!(f, "{counting} of {} masters count", self.masters.len())?;
        match (self.has_quorum, self.may_fail) {
            (false, _) => f.write_str(": no quorum")?,
            (true, 0) => f.write_str(": a quorum, and none may fail")?,
            (true, may_fail) => write!(f, ": a quorum, and {may_fail} more may fail")?,
        }
        let mut separator = if f.alternate() { "\n  " } else { ": " };
        for MasterStatus { name, state, warnings, .. } in &self.masters {
            if f.alternate() || !state.counts() || !warnings.is_empty() {
                write!(f, "{separator}{name} {state}")?;
                warnings.iter().try_for_each(|warning| write!(f, "; {warning}"))?;
                separator = if f.alternate() { "\n  " } else { ", " };
            }
        }
        Ok(())
    }
}

impl fmt::Display for MasterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(why) => write!(f, "is not connected: {why}"),
            Self::Connecting => f.write_str("is being connected"),
            Self::Ready => f.write_str("counts"),
            Self::Quarantined(left) => write!(f, "is in quarantine for another {}", Rounded(*left)),
            Self::Silent => f.write_str("still owes an answer"),
        }
    }
}

impl MasterState {
    /// Returns whether the votes of the master count now.
    #[must_use]
    pub const fn counts(&self) -> bool {
        matches!(self, Self::Ready)
    }

    /// Returns whether the master is not connected because of this client's settings: it refused the login,
    /// or is listed twice. Waiting does not help then.
    #[must_use]
    pub fn is_of_settings(&self) -> bool {
        matches!(self, Self::Down(why) if is_of_settings(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_names_each_master_that_does_not_count() {
        let status = |name: &str, state| MasterStatus {
            name: name.into(),
            state,
            version: None,
            run_id: None,
            release_command: "EVALSHA",
            refused: Vec::new(),
            warnings: Vec::new(),
        };
        let states = [MasterState::Ready, MasterState::Silent, MasterState::Connecting];
        let names = ["one", "two", "three"];
        let masters = names.into_iter().zip(states).map(|(name, state)| status(name, state));
        let mut health = Health::new(masters.collect(), 2);
        assert_eq!(
            format!("{health}\n{health:#}"),
            "1 of 3 masters count: no quorum: two still owes an answer, three is being connected\n\
             1 of 3 masters count: no quorum\n  one counts\n  two still owes an answer\n  three is being connected"
        );
        // A master that counts is named if it has faults.
        health.masters.truncate(2);
        let evicting = Warning::Evicting { policy: "allkeys-lru".into() };
        let unreported = Warning::Unreported { fields: "run_id".into(), info_refusal: None };
        let faults = format!("; {evicting}; {unreported}");
        health.masters[0].warnings = vec![evicting, unreported];
        assert_eq!(
            format!("{health}\n{health:#}"),
            format!(
                "1 of 2 masters count: no quorum: one counts{faults}, two still owes an answer\n\
                 1 of 2 masters count: no quorum\n  one counts{faults}\n  two still owes an answer"
            )
        );
    }
}
