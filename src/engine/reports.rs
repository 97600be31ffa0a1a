//! Reports for people: the answers of masters in a round, their status, and how much is under way.

use std::time::Instant;

use bytes::Bytes;

use super::Engine;
use super::claim::{Claim, Release};
use super::connection::State;
use super::fair::Ticket;
use super::fleet::Fleet;
use super::link::Link;
use super::op::Op;
use super::renewal::loss_lead;
use super::request::{LinkId, OpId, Validity};
use super::stats::Stats;
use super::status::{Health, MasterState, MasterStatus};
use super::trouble::Warning;
use crate::error::{AcquireError, Report, Round};
use crate::lock::command::{self, ReleaseBy};
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Tally, Vote};

impl Engine {
    /// Returns when the validity of a held lock ends, or ended.
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        Some(self.locks.ops.find(lock.0)?.held()?.valid_until)
    }

    /// Whether this lock's operation goes on: it is acquired, held or released.
    pub(crate) fn has(&self, lock: OpId) -> bool {
        self.locks.ops.find(lock.0).is_some()
    }

    /// Returns where the validity of a lock that is being acquired or held ends, for other threads to read.
    #[must_use]
    pub fn validity(&self, lock: OpId) -> Option<Validity> {
        Some(self.locks.ops.find(lock.0)?.validity.clone())
    }

    /// Returns the masters known to hold a held lock, late answers included. The margin is their number above
    /// the quorum.
    #[must_use]
    pub fn granted(&self, lock: OpId) -> Option<MasterSet> {
        let op = self.locks.ops.find(lock.0)?;
        op.held().map(|_| self.locks.claims.get(op.claim).tally.granted)
    }

    /// Returns how many masters above the quorum are known to hold a held lock. As many masters may lose it
    /// without harm.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        self.granted(lock).map_or(0, |granted| granted.count().saturating_sub(self.masters.fleet.quorum))
    }

    /// Whether a lock is over, or so nearly over that its loss is or was reported to the caller that asked
    /// for it.
    #[must_use]
    pub fn is_losing(&self, now: Instant, lock: OpId) -> bool {
        let held = self.locks.ops.find(lock.0).and_then(Op::held);
        held.is_none_or(|held| now + loss_lead(held.ttl) >= held.valid_until)
    }

    /// Returns what was counted and timed since the engine was made.
    #[must_use]
    pub fn stats(&self, now: Instant) -> Stats {
        let is_ready = |master| self.master_state(now, master).counts();
        Stats {
            notified: self.masters.subscriptions.woken_count(),
            events_dropped: self.ground.events.dropped_count,
            holder_label: self.ground.config.holder_label.clone(),
            operations: self.locks.ops.count(),
            claims: self.locks.claims.count(),
            masters: self
                .masters
                .fleet
                .links()
                .map(|link| link.snapshot(now, is_ready(link.master)))
                .collect(),
            ..self.ground.stats.clone()
        }
    }

    /// Returns whether [`Engine::poll_event`] has an event.
    #[must_use]
    pub(crate) fn has_event(&self) -> bool {
        !self.ground.events.is_empty()
    }

    /// Returns the state of the connection to a master.
    #[must_use]
    pub fn master_state(&self, now: Instant, master: MasterId) -> MasterState {
        let link = self.masters.fleet.link(master);
        match &link.connection.state {
            State::Down { .. } => MasterState::Down(link.why.clone()),
            State::Connecting { .. } | State::Handshake { .. } if link.connection.has_failed() => {
                MasterState::Down(link.why.clone())
            }
            State::Connecting { .. } | State::Handshake { .. } => MasterState::Connecting,
            State::Ready { .. } if link.silent_since.is_some() => MasterState::Silent,
            State::Ready { .. } => match link.quarantined_until.filter(|at| *at > now) {
                Some(at) => MasterState::Quarantined(at - now),
                None => MasterState::Ready,
            },
        }
    }

    /// Returns whether a quorum of masters can grant locks, and the status of each master.
    #[must_use]
    pub fn health(&self, now: Instant) -> Health {
        let masters = self.masters().map(|master| self.master_status(now, master)).collect();
        Health::new(masters, self.masters.fleet.quorum)
    }

    /// Returns the status of a master.
    #[must_use]
    pub fn master_status(&self, now: Instant, master: MasterId) -> MasterStatus {
        let link = self.masters.fleet.link(master);
        let mut warnings = link.warnings(now);
        if let Some(refusal) = self.masters.subscriptions.refusal(master) {
            warnings.push(Warning::NotSubscribed { refusal: refusal.into() });
        }
        if let Some(error) = self.masters.login_error(master) {
            warnings.push(Warning::CredentialsFailed { error: error.clone() });
        }
        MasterStatus {
            name: self.ground.config.labels[master.index()].clone(),
            state: self.master_state(now, master),
            version: link.learnt.version.clone(),
            run_id: link.learnt.run_id.clone(),
            release_command: match link.by.release {
                ReleaseBy::DelIfEq => "DELIFEQ",
                ReleaseBy::DelEx => "DELEX IFEQ",
                ReleaseBy::EvalSha | ReleaseBy::Eval => "EVALSHA",
            },
            refused: link.learnt.refused.clone(),
            warnings,
        }
    }

    /// Returns how the latest attempt of an acquisition failed that goes on: the error with which it would
    /// end now. `None` before its first attempt has failed, and while masters are asked for the holder.
    #[must_use]
    pub fn last_failure(&self, now: Instant, lock: OpId) -> Option<AcquireError> {
        let op = self.locks.ops.find(lock.0).filter(|op| op.is_denied())?;
        let denied = op.tries.denied.as_deref().filter(|denied| denied.asked.is_empty())?.clone();
        Some(op.denial(now, denied, &op.tries.holders, self.locks.held_by(now, lock.0)))
    }

    /// Returns the number of locks that are being acquired, are held, or whose release is awaited.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.locks.ops.count()
    }

    /// Returns the number of tokens that may be on some master: those of held locks, and those whose release
    /// is not yet proven everywhere.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.locks.claims.count()
    }

    /// Returns the connections for subscriptions that are open or being opened.
    pub fn subscription_links(&self) -> impl Iterator<Item = LinkId> + use<> {
        self.masters.subscriptions.open_links().iter().map(LinkId::Subscription)
    }

    /// Returns how often a release notification has brought the next attempt of an acquisition forward.
    #[must_use]
    pub const fn woken_count(&self) -> u64 {
        self.masters.subscriptions.woken_count()
    }

    /// Returns the number of replies that are owed over a connection.
    #[must_use]
    pub fn owed_count(&self, link: impl Into<LinkId>) -> usize {
        match link.into() {
            LinkId::Commands(master) => self.masters.fleet.owed_count(master),
            LinkId::Subscription(master) => self.masters.subscriptions.owed_count(master),
        }
    }

    /// Returns whether each usable master has answered all its commands.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.masters.fleet.is_answered()
    }

    /// Returns whether a connection for commands is being opened: its address, its credentials or its first
    /// replies are awaited.
    pub(crate) fn is_connecting(&self) -> bool {
        let is_connecting = |link: &Link| !link.connection.is_ready() && !link.connection.is_down();
        self.masters.fleet.ready != self.masters.fleet.all && self.masters.fleet.links().any(is_connecting)
    }

    /// Returns whether a quorum of masters is ready to be asked.
    #[must_use]
    pub const fn has_quorum(&self) -> bool {
        self.masters.fleet.usable.has(self.masters.fleet.quorum)
    }

    /// Returns whether each master is ready or has failed at least once since the start.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.masters.fleet.links().all(|link| link.connection.is_ready() || link.connection.has_failed())
    }

    /// Returns the ticket of a fair lock that is waited for or held, once a quorum of masters has reported
    /// it, until the release. A caller that asks after that does not get the lock before it, within the
    /// bounds that [`Options::fair`](crate::Options::fair) names.
    #[must_use]
    pub fn ticket(&self, lock: OpId) -> Option<Ticket> {
        self.locks.ops.find(lock.0)?.policy.queuing()?.ticket(self.masters.fleet.quorum)
    }
}

/// The answer of each master in a round of this claim, for an error.
pub(super) fn report(fleet: &Fleet, now: Instant, round: Round, claim: &Claim, tally: &Tally) -> Report {
    let votes = fleet.links().map(|link| {
        let master = link.master;
        let mut vote = if tally.refused.contains(master) {
            match claim.failure(master) {
                Some(why @ (Failure::TokenRefused(_) | Failure::OthersFirst { .. } | Failure::NotHeld)) => {
                    Vote::Failed(why.clone())
                }
                _ => Vote::Refused { holder: HolderTtl::Unknown },
            }
        } else if tally.granted.contains(master) {
            Vote::Granted
        } else {
            claim.failure(master).cloned().map_or(Vote::Pending, Vote::Failed)
        };
        if let Some(at) = link.quarantined_until
            && at > now
            && matches!(vote, Vote::Granted | Vote::Pending)
            && !matches!(round, Round::Release | Round::Leave)
        {
            vote = Vote::Failed(Failure::Quarantined { left: at - now });
        }
        (fleet.config.labels[master.index()].clone(), vote)
    });
    let resource =
        Bytes::copy_from_slice(command::entry::name_in(claim.entry.key(), fleet.config.prefix.len()));
    Report { round, resource, votes: votes.collect() }
}

/// The same for a release, or a lock that is left for a time: their answers are kept apart.
pub(super) fn release_report(fleet: &Fleet, now: Instant, claim: &Claim, release: &Release) -> Report {
    let tally = Tally { granted: release.deleted, refused: release.absent, failed: MasterSet::EMPTY };
    let round = if claim.leaving().is_some() { Round::Leave } else { Round::Release };
    let mut report = report(fleet, now, round, claim, &tally);
    for ((_, vote), link) in report.votes.iter_mut().zip(fleet.links()) {
        if *vote != Vote::Pending {
            continue;
        }
        *vote = Vote::Failed(match (claim.asked.contains(link.master), link.connection.is_ready()) {
            (false, _) => Failure::NotHeld,
            (true, false) => Failure::NotConnected { why: link.why.clone() },
            (true, true) => Failure::NoAnswer { limit: claim.answer_limit },
        });
    }
    report
}
