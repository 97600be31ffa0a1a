//! How the masters are, for people, and how much is under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::State;
use super::{Engine, LinkId};
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
        let link = self.fleet.link(master);
        let state = match &link.connection.state {
            State::Down { .. } => MasterState::Down(link.why.clone()),
            State::Connecting { .. } | State::Handshake { .. } if link.has_failed() => {
                MasterState::Down(link.why.clone())
            }
            State::Connecting { .. } | State::Handshake { .. } => MasterState::Connecting,
            State::Ready { .. } if link.silent_since.is_some() => MasterState::Silent,
            State::Ready { .. } => match link.quarantined_until.filter(|at| *at > now) {
                Some(at) => MasterState::Quarantined(at - now),
                None => MasterState::Ready,
            },
        };
        let mut warnings = link.warnings(now);
        if let Some(text) = self.subscriptions.refusal(master) {
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

    /// Locks that are being acquired, held, or whose release is awaited.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.ops.count()
    }

    /// Tokens that may be on some master: those of held locks and those whose release is not yet proven everywhere.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.claims.count()
    }

    /// The connections for news that are open or being opened.
    pub fn news_links(&self) -> impl Iterator<Item = LinkId> + use<> {
        self.subscriptions.open_links().iter().map(LinkId::News)
    }

    /// How often so far a message that a lock was released brought the next attempt of an acquisition forward.
    #[must_use]
    pub const fn woken_count(&self) -> u64 {
        self.subscriptions.woken_count()
    }

    /// Replies that are owed over a connection.
    #[must_use]
    pub fn owed_count(&self, link: impl Into<LinkId>) -> usize {
        match link.into() {
            LinkId::Commands(master) => self.fleet.owed_count(master),
            LinkId::News(master) => self.subscriptions.owed_count(master),
        }
    }

    /// Whether each master that answers has answered all it was sent.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.fleet.usable().iter().all(|master| self.owed_count(master) == 0)
    }

    /// Whether a quorum of masters is ready to be asked.
    #[must_use]
    pub const fn has_quorum(&self) -> bool {
        self.fleet.usable().has(self.fleet.quorum())
    }

    /// Whether each master is ready or has failed at least once since the start.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.fleet.links().all(|link| link.is_ready() || link.has_failed())
    }
}
