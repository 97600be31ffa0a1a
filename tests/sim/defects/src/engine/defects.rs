//! Longer code of planted bugs.

use super::core::Core;
use super::ground::Ground;
use super::locks::Locks;
use super::locks::mode::Wanted;
use super::locks::op::Op;
use super::locks::slab::Id;
use super::masters::owed::{Owed, Question};
use super::request::Outcome;
use crate::lock::command::park::encode_force_unlock_serve;
use crate::lock::{Kind, MasterId, MasterSet};

impl Locks {
    /// Counts the votes for one fencing token for the next one.
    #[cold]
    pub(super) fn kept_votes(&self, id: Id) -> MasterSet {
        let op = self.ops.get(id);
        match (&op.mode, self.claims.find(op.claim)) {
            (Wanted::Of(Kind::Fenced(_)), Some(before)) if op.is_asking() && before.parked.is_none() => {
                before.tally.granted
            }
            _ => MasterSet::EMPTY,
        }
    }

    /// Gives a handed-over lock a fencing token that no master knows.
    #[cold]
    pub(super) fn feign_token(&mut self, ground: &Ground, id: Id, claim: Id) {
        let (op, claim) = (self.ops.get_mut(id), self.claims.get_mut(claim));
        if let Some(fencing) = op.mode.fencing() {
            let masters_us = ground.wall_clock.masters_us(ground.now);
            claim.kind = Kind::Fenced(fencing.begin_attempt(masters_us));
        }
    }

    /// Reports the release of a held lock as its loss.
    #[cold]
    pub(super) fn report_release_as_loss(&mut self, ground: &mut Ground, id: Id) {
        if let Some(held) = self.ops.find_mut(id).and_then(Op::held_mut)
            && std::mem::take(&mut held.notifies_loss)
        {
            ground.report_outcome(id, Outcome::Lost(held.valid_until));
        }
    }

    /// Whether a lock is held and renewed.
    #[cold]
    pub(super) fn is_renewed(&self, id: Id) -> bool {
        self.ops.find(id).and_then(Op::held).is_some_and(|held| held.renewal.is_some())
    }

    /// The claim of the operation that has replaced another one in its slot.
    #[cold]
    pub(super) fn claim_in_slot(&self, id: Id) -> Id {
        let next = self.ops.occupant(id.index).and_then(|id| self.ops.find(id));
        next.map_or(Id::NOBODY, |op| op.claim)
    }
}

impl Core {
    /// A release leaves its `SET`'s connection, which ends silently.
    #[cold]
    pub(super) fn release_on_other_connection(&mut self, id: Id) {
        let Self { ground, masters, locks } = self;
        let Some(claim) = locks.claims.find(id) else { return };
        let is_answered = claim.tally.granted.union(claim.tally.refused);
        for master in claim.asked.without(is_answered).iter() {
            masters.fleet.fail(ground, master, "a release takes another connection");
            for id in locks.claims.ids() {
                let claim = locks.claims.get_mut(id);
                claim.note_stray(master);
                claim.doubts.connection_lost.remove(master);
            }
        }
    }

    /// Sends forced deletions that a lost connection owed over the next connection.
    #[cold]
    pub(super) fn repeat_forced_deletions(&mut self, master: MasterId) {
        let Self { masters, locks, .. } = self;
        let prefix_size = masters.fleet.config.prefix.len();
        for id in locks.ops.ids() {
            if locks.query_at(master, id).is_some() {
                let (owed, key) =
                    (Owed::Query { question: Question::ForcedDelete, id }, &locks.ops.get(id).key);
                masters.fleet.queue(MasterSet::only(master), owed, |out| {
                    encode_force_unlock_serve(out, key, prefix_size);
                });
            }
        }
    }
}
