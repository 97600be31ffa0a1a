//! The tables of an engine: operations, claims and wait queues.

pub(super) mod acquire;
pub(super) mod adopt;
pub(super) mod attempt;
pub(super) mod claim;
pub(super) mod counting;
pub(super) mod deny;
pub(super) mod doubts;
pub(super) mod fence;
pub(super) mod hold;
pub(super) mod leave;
pub(super) mod leaving;
pub(super) mod mode;
pub(super) mod next;
pub(super) mod obstacle;
pub(super) mod op;
pub(super) mod release;
pub(super) mod renewal;
pub(super) mod reports;
pub(super) mod sharing;
pub(super) mod slab;
pub(super) mod terms;

use std::time::Instant;

use bytes::Bytes;
use rand::Rng;

use self::claim::Claim;
use self::next::Phase;
use self::op::{Held, Op, OpState};
use self::slab::{Id, Slab};
use super::ground::Ground;
use super::queries::query::Query;
use super::timers::op_timer;
use super::waiting::account::Accounts;
use super::waiting::contended::Contended;
use super::waiting::parking::Parked;
use super::waiting::wait_queues::WaitQueues;
use crate::config::Config;
use crate::error::HeldBy;
use crate::lock::{MasterId, command};

#[derive(Debug)]
pub(super) struct Locks {
    pub(super) ops: Slab<Op>,
    pub(super) claims: Slab<Claim>,
    /// Operations of this engine that hold a lock or wait for one, by key.
    pub(super) queues: WaitQueues,
    /// Locks for which the next waiter parks at once.
    pub(super) contended: Contended,
    /// Wait times of the operations that had to wait.
    pub(super) accounts: Accounts,
    /// Number of releases after short holds. One in 64 of them serves waiters anyway.
    pub(super) short_holds: u64,
    /// Claims that the counted replies may have decided.
    pub(super) decided: Vec<Id>,
    /// Whether new acquisitions are refused.
    pub(super) is_drained: bool,
}

impl Locks {
    pub(super) fn new(now: Instant, operations: usize, rng: &mut impl Rng) -> Self {
        Self {
            ops: Slab::new(operations),
            claims: Slab::new(2 * operations),
            queues: WaitQueues::new(rng),
            contended: Contended::new(now),
            accounts: Accounts::default(),
            short_holds: 0,
            decided: Vec::new(),
            is_drained: false,
        }
    }

    /// Sets a timer for the operation's deadline.
    pub(super) fn arm(&self, ground: &mut Ground, id: Id) {
        if let Some(at) = self.deadline(id) {
            ground.timers.arm(op_timer(id), at);
        }
    }

    /// Returns when an operation needs work, whatever else happens.
    pub(super) fn deadline(&self, id: Id) -> Option<Instant> {
        let op = self.ops.find(id)?;
        match self.waiting_round(id) {
            None => op.deadline(),
            Some((_, claim)) => {
                let due = claim.parked().deadline();
                Some(op.asked.wait_until.map_or(due, |until| until.min(due)))
            }
        }
    }

    /// Returns the claim of the round with which an acquisition waits in the masters' queues. Flows
    /// that have the claim of an attempt under way read `claim.parked` instead.
    pub(super) fn waiting_round(&self, id: Id) -> Option<(Id, &Claim)> {
        let op = self.ops.find(id).filter(|op| op.is_asking())?;
        let claim = self.claims.find(op.claim)?;
        (claim.is_owned && claim.parked.is_some()).then_some((op.claim, claim))
    }

    /// Returns the phase of an acquisition that does not have its lock.
    pub(super) fn phase(&self, id: Id) -> Option<Phase> {
        match self.ops.find(id)?.state() {
            OpState::Queued { .. } => Some(Phase::Behind),
            OpState::Acquiring { .. } if self.waiting_round(id).is_some() => Some(Phase::Parked),
            OpState::Acquiring { .. } => Some(Phase::Asking),
            OpState::Waiting { .. } => Some(Phase::Pausing),
            OpState::Asking { .. } => Some(Phase::Naming),
            OpState::New | OpState::Held(_) | OpState::Releasing | OpState::Query => None,
        }
    }

    pub(super) fn round_mut(&mut self, id: Id) -> Option<&mut Parked> {
        let (claim, _) = self.waiting_round(id)?;
        self.claims.get_mut(claim).parked.as_mut()
    }

    /// Returns a lock that must be held.
    pub(super) fn held(&self, id: Id) -> &Held {
        self.ops.get(id).held().expect("the lock is held")
    }

    /// Returns the first operation in the wait queue of this operation's key, which may be this operation.
    #[inline]
    pub(super) fn head_for(&self, id: Id) -> Option<u32> {
        let key = self.key_of(id.index);
        self.queues.find(self.queues.hash(key), |place| self.key_of(place) == key)
    }

    /// The lock's key as an encoded bulk string.
    #[inline]
    pub(super) fn key_of(&self, place: u32) -> &[u8] {
        let op = self.ops.at(place);
        match self.claims.find(op.claim) {
            Some(claim) if op.key.is_empty() => claim.entry.key(),
            _ => &op.key,
        }
    }

    /// Returns the name of an operation's lock.
    pub(super) fn name_of(&self, config: &Config, id: Id) -> Bytes {
        Bytes::copy_from_slice(command::entry::name_in(self.key_of(id.index), config.prefix.len()))
    }

    /// Returns the end of a held lock's validity, which may be over.
    pub(super) fn held_until(&self, place: u32) -> Option<Instant> {
        self.ops.at(place).held().map(|held| held.valid_until)
    }

    /// Returns the holder of the lock that this operation did not get.
    pub(super) fn held_by(&self, now: Instant, id: Id) -> HeldBy {
        if self.is_held_here(now, id) { HeldBy::ThisClient } else { self.ops.get(id).readers() }
    }

    /// Whether another operation of this engine has the lock.
    #[cold]
    fn is_held_here(&self, now: Instant, id: Id) -> bool {
        let is_holder = |place: u32| self.held_until(place) > Some(now);
        if self.ops.get(id).is_fair {
            // Fair requests stand in no queue of this engine.
            let key = self.key_of(id.index);
            return self.ops.ids().any(|it| is_holder(it.index) && self.key_of(it.index) == key);
        }
        self.head_for(id).is_some_and(is_holder)
    }

    /// Returns an operation's query, if this master still owes it an answer.
    pub(super) fn query_at(&mut self, master: MasterId, id: Id) -> Option<&mut Query> {
        let query = self.ops.find_mut(id)?.query.as_deref_mut()?;
        query.asked.contains(master).then_some(query)
    }
}
