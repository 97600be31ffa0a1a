//! The callers' view of an engine: its locks, its masters, and the work in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use super::core::Core;
use super::locks::op::{Cause, Op};
use super::locks::renewal::loss_lead;
use super::locks::slab::Id;
use super::locks::{acquire, adopt};
use super::masters::connection::State;
use super::masters::link::Link;
use super::masters::status::{Health, MasterState, MasterStatus};
use super::masters::trouble::Warning;
use super::request::{OpId, Validity};
use super::stats::Stats;
use super::timers::{claim_timer, login_timer, master_timer, op_timer};
use super::waiting::account::Account;
use crate::config::Config;
use crate::error::{AcquireError, Waited};
use crate::handle::LockHandle;
use crate::lock::command::ReleaseBy;
use crate::lock::{MasterId, MasterSet};

impl Engine {
    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &Arc<Config> {
        &self.core.ground.config
    }

    /// Returns the masters in the order of the configuration.
    pub fn masters(&self) -> impl Iterator<Item = MasterId> + use<> {
        self.core.masters.fleet.all.iter()
    }

    /// Returns the end of a held lock's validity, which may be over.
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        Some(self.core.locks.ops.find(lock.0)?.held()?.valid_until)
    }

    /// Whether this lock's operation is in progress: acquiring, held or releasing.
    pub(crate) fn has(&self, lock: OpId) -> bool {
        self.core.locks.ops.find(lock.0).is_some()
    }

    /// Returns the end of the validity of a lock that is being acquired or held, for other threads to read.
    #[must_use]
    pub fn validity(&self, lock: OpId) -> Option<Validity> {
        Some(self.core.locks.ops.find(lock.0)?.validity.clone())
    }

    /// Returns the masters known to hold a held lock, including late answers. The margin is their number
    /// above the quorum.
    #[must_use]
    pub fn granted(&self, lock: OpId) -> Option<MasterSet> {
        let op = self.core.locks.ops.find(lock.0)?;
        op.held().map(|_| self.core.locks.claims.get(op.claim).tally.granted)
    }

    /// Returns a handle of a held lock that can release it, but not adopt it. `wall` is the caller's wall
    /// clock, as time since 1970.
    #[must_use]
    pub fn handle(&self, now: Instant, wall: Duration, lock: OpId) -> Option<LockHandle> {
        let Core { ground, locks, .. } = &self.core;
        let op = locks.ops.find(lock.0)?;
        Some(adopt::handle(ground, locks.claims.get(op.claim), op.held()?, now, wall))
    }

    /// Returns how many masters above the quorum are known to hold a held lock. That many may lose it without
    /// harm.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        self.granted(lock).map_or(0, |granted| granted.count().saturating_sub(self.core.masters.fleet.quorum))
    }

    /// Returns whether a lock is over, or so close to its end that a requested report of its loss is due.
    #[must_use]
    pub fn is_losing(&self, now: Instant, lock: OpId) -> bool {
        let held = self.core.locks.ops.find(lock.0).and_then(Op::held);
        held.is_none_or(|held| now + loss_lead(held.ttl) >= held.valid_until)
    }

    /// Returns counters and times since the engine's start.
    #[must_use]
    pub fn stats(&self, now: Instant) -> Stats {
        let snapshot = |link: &Link| link.snapshot(now, self.master_state(now, link.master).counts());
        Stats {
            events_dropped: self.core.ground.events.dropped_count,
            holder_label: self.core.ground.config.holder_label.clone(),
            operations: self.core.locks.ops.count(),
            claims: self.core.locks.claims.count(),
            masters: self.core.masters.fleet.links().map(snapshot).collect(),
            ..self.core.ground.stats.clone()
        }
    }

    /// Returns the state of the connection to a master.
    #[must_use]
    pub fn master_state(&self, now: Instant, master: MasterId) -> MasterState {
        let link = self.core.masters.fleet.link(master);
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
        Health::new(masters, self.core.masters.fleet.quorum)
    }

    /// Returns the status of a master.
    #[must_use]
    pub fn master_status(&self, now: Instant, master: MasterId) -> MasterStatus {
        let link = self.core.masters.fleet.link(master);
        let mut warnings = link.warnings(now);
        if let Some(error) = self.core.masters.login_error(master) {
            warnings.push(Warning::CredentialsFailed { error: error.clone() });
        }
        MasterStatus {
            name: self.core.ground.config.labels[master.index()].clone(),
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

    /// Returns how the latest attempt of an acquisition in progress failed: the error with which it would end
    /// now. `None` before its first attempt has failed, and while masters are asked about the holder.
    #[must_use]
    pub fn last_failure(&self, now: Instant, lock: OpId) -> Option<AcquireError> {
        let op = self.core.locks.ops.find(lock.0)?;
        if self.core.locks.waiting_round(lock.0).is_some() && op.tries.obstacle.is_reported() {
            let Core { masters, locks, .. } = &self.core;
            let denied = acquire::denied(&masters.fleet, locks, lock.0, Cause::Contended, now);
            return Some(op.denial(now, denied, &op.tries.obstacle, locks.held_by(now, lock.0)));
        }
        let op = Some(op).filter(|op| op.is_denied())?;
        let denied = op.tries.denied.as_deref().filter(|denied| denied.asked.is_empty())?.clone();
        Some(op.denial(now, denied, &op.tries.obstacle, self.core.locks.held_by(now, lock.0)))
    }

    /// Returns how long the acquisition of a held lock took, and whom it waited for. `None` if the lock is
    /// not held.
    #[must_use]
    pub fn waited(&self, lock: OpId) -> Option<Waited> {
        let locks = &self.core.locks;
        let op = locks.ops.find(lock.0)?;
        op.held()?;
        let at_once = || Waited { attempts: op.tries.count, ..Waited::default() };
        Some(locks.accounts.find(lock.0).map_or_else(at_once, Account::waited))
    }

    /// Returns an operation, release, master or login whose deadline has no timer. No such deadline may
    /// exist.
    #[doc(hidden)] // Tests of the engine and the simulator check the timers after each call.
    #[must_use]
    pub fn unarmed(&self) -> Option<String> {
        let Core { ground, masters, locks } = &self.core;
        let armed_at = |timer| ground.timers.armed_at(timer);
        let is_late =
            |timer, due: Option<Instant>| due.is_some_and(|due| armed_at(timer).is_none_or(|at| at > due));
        let op = locks.ops.ids().find(|id| is_late(op_timer(*id), locks.deadline(*id)));
        // A release computes its deadline when its timer fires, so only the timer's existence can be checked.
        let is_released = |id: &Id| locks.claims.get(*id).release.is_some();
        let claim = locks.claims.ids().find(|id| is_released(id) && armed_at(claim_timer(*id)).is_none());
        let link = masters.fleet.links().find(|link| is_late(master_timer(link.master), link.deadline()));
        let login =
            masters.fleet.all.iter().find(|it| is_late(login_timer(*it), masters.logins.deadline(*it)));
        op.map(|id| format!("{:?}", locks.ops.get(id).state()))
            .or_else(|| claim.map(|id| format!("the release {:?}", locks.claims.get(id).release)))
            .or_else(|| link.map(|link| format!("master {:?}", link.master)))
            .or_else(|| login.map(|master| format!("the login of master {master:?}")))
    }

    /// Whether requests were submitted that nobody has flushed since.
    #[doc(hidden)] // The simulator judges whether a client forgets to write.
    #[must_use]
    pub const fn has_queued(&self) -> bool {
        self.core.masters.fleet.has_queued()
    }

    /// Returns the number of locks that are being acquired, held, or released with an awaited outcome.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.core.locks.ops.count()
    }

    /// Returns the number of tokens that may be on some master: of held locks, and of locks whose release is
    /// not confirmed everywhere.
    #[must_use]
    pub fn claim_count(&self) -> usize {
        self.core.locks.claims.count()
    }

    /// Returns how many of these tokens may still be on a master. A token does not count if each master
    /// refused to run its command, for example with `NOPERM`.
    #[must_use]
    pub fn unconfirmed_count(&self) -> usize {
        let claims = &self.core.locks.claims;
        claims.ids().filter(|id| claims.get(*id).may_be_left()).count()
    }

    /// Returns the number of messages from masters to waiters: grants, and requests to ask again.
    #[must_use]
    pub const fn woken_count(&self) -> u64 {
        self.core.ground.stats.notified
    }

    /// Returns the number of replies that a master owes.
    #[must_use]
    pub fn owed_count(&self, master: MasterId) -> usize {
        self.core.masters.fleet.owed_count(master)
    }

    /// Returns whether every usable master has answered all its requests.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.core.masters.fleet.is_answered()
    }

    /// Whether a connection is being opened: its address, credentials or first replies are awaited.
    pub(crate) fn is_connecting(&self) -> bool {
        let is_connecting = |link: &Link| !link.connection.is_ready() && !link.connection.is_down();
        self.core.masters.fleet.ready != self.core.masters.fleet.all
            && self.core.masters.fleet.links().any(is_connecting)
    }

    /// Returns whether a quorum of masters can be asked.
    #[must_use]
    pub const fn has_quorum(&self) -> bool {
        self.core.masters.fleet.usable.has(self.core.masters.fleet.quorum)
    }

    /// Returns whether each master is ready, or has failed at least once since the start.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.core.masters.fleet.links().all(|link| link.connection.is_ready() || link.connection.has_failed())
    }
}
