//! How the masters are, for people.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use super::link::State;
use crate::lock::MasterId;
use crate::lock::command::ReleaseBy;

/// What is known of one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterStatus {
    /// Its URL without the login.
    pub name: Arc<str>,
    /// The state of its connection.
    pub state: MasterState,
    /// The version that it reports.
    pub version: Option<Box<str>>,
    /// The identity of the process behind it.
    pub run_id: Option<Box<str>>,
    /// The command by which locks are released there.
    pub release_command: &'static str,
    /// Optional commands that it refused, with its words; the last ones, if one was refused repeatedly.
    pub refused: Vec<(&'static str, Box<str>)>,
    /// What is wrong with it as a master of locks, in words.
    pub warnings: Vec<String>,
}

/// The state of a master's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterState {
    /// Not connected, and why.
    Down(Arc<str>),
    /// Being connected, for the reason before if there was one.
    Connecting,
    /// Its votes count.
    Ready,
    /// It is sent commands, and its votes count after this time.
    Quarantined(Duration),
    /// It owes an answer and is skipped until it gives it.
    Silent,
}

impl Engine {
    /// What is known of a master.
    #[must_use]
    pub fn master_status(&self, now: Instant, master: MasterId) -> MasterStatus {
        let link = &self.links[master.index()];
        let state = match &link.state {
            State::Down { .. } => MasterState::Down(link.why.clone()),
            State::Connecting { .. } | State::Handshake { .. } if link.has_failed() => {
                MasterState::Down(link.why.clone())
            }
            State::Connecting { .. } | State::Handshake { .. } => MasterState::Connecting,
            State::Ready { silent_since: Some(_), .. } => MasterState::Silent,
            State::Ready { .. } => match link.seasoned_at.filter(|at| *at > now) {
                Some(at) => MasterState::Quarantined(at - now),
                None => MasterState::Ready,
            },
        };
        let mut warnings = link.warnings(now);
        if let Some(text) = self.news.refusal(master) {
            warnings.push(format!(
                "it does not tell when a lock is released, so who waits tries at random: {text}"
            ));
        }
        MasterStatus {
            name: self.config.labels[master.index()].clone(),
            state,
            version: link.learnt.version.clone(),
            run_id: link.learnt.run_id.clone(),
            release_command: match link.release_by {
                ReleaseBy::DelIfEq => "DELIFEQ",
                ReleaseBy::DelEx => "DELEX IFEQ",
                ReleaseBy::EvalSha | ReleaseBy::Eval => "EVALSHA",
            },
            refused: link.learnt.refused.clone(),
            warnings,
        }
    }
}
