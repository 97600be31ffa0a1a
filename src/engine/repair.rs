//! Asking masters again for locks that they missed while they were away, so that more of them may be lost
//! without harm.
//!
//! Only for a lock that is valid and of which a quorum is known to have the key: then it is nobody else's to
//! take. One that masters have shown to be lost, or that was broken by force, is not put back. The key that
//! is put back ends with those of the other masters. The fence of a fenced lock is set with it.

use std::time::{Duration, Instant};

use super::Engine;
use super::mode;
use super::op::Held;
use super::owed::{Owed, Verb};
use super::slab::Id;
use crate::lock::{MasterId, MasterSet, Vote};
use crate::mutants::mutant;

impl Engine {
    /// A master can be asked again, over a new connection or after a silence.
    pub(super) fn repair(&mut self, now: Instant, master: MasterId) {
        if mutant!(ForcedDeletionAgain) {
            self.repeat_forced_deletions(master);
        }
        for id in self.ops.ids() {
            self.repair_op(now, master, id);
        }
    }

    /// Sends the `SET` of a lock to a master that is not known to hold it for all of its validity.
    pub(super) fn repair_op(&mut self, now: Instant, master: MasterId, id: Id) {
        let op = self.ops.get(id);
        let Some(&Held { valid_until, extension, round, .. }) = op.held() else { return };
        let claim = self.claims.get_mut(op.claim);
        let is_known =
            claim.tally.granted.union(claim.tally.refused).union(claim.doubts.twins).contains(master);
        // Once masters have shown that the quorum is gone, somebody may have had the lock since, or has it.
        let is_proven = claim.tally.granted.has(self.fleet.quorum) || mutant!(RepairUnproven);
        if now >= valid_until || is_known || !is_proven || !self.fleet.usable.contains(master) {
            return;
        }
        // Of an extension under way nobody knows yet how it ends: the grant is to be true in either case.
        let end = extension.map_or(valid_until, |extension| extension.valid_until.max(valid_until));
        let left = end + self.config.drift.of(op.asked.ttl.as_duration()) - now;
        let Some(left_ms) = whole_ms(left).filter(|ms| !claim.may_cut_short(*ms).contains(master)) else {
            return;
        };
        let (only, owed) = (MasterSet::only(master), Owed::round(Verb::Repair, claim.kind.tag(), round, id));
        let sent = mode::send_repair(&mut self.fleet, only, owed, claim, left_ms);
        claim.note_repair(sent);
    }

    /// The answer to a `SET` that was sent again. Only a grant says anything: a key in the way may be this
    /// lock's own, from a `SET` whose answer was lost with its connection. An extension sent since has an
    /// answer of its own.
    pub(super) fn handle_repair_vote(&mut self, master: MasterId, id: Id, round: u32, vote: &Vote) {
        let Some(op) = self.ops.find(id) else { return };
        let Some(held) = op.held() else { return };
        let claim = self.claims.get_mut(op.claim);
        claim.doubts.owes_repair.remove(master);
        if held.round != round {
            return;
        }
        if *vote == Vote::Granted || mutant!(OwnKeyIsBusy) {
            claim.record(master, vote.clone());
            self.stats.repairs += 1;
        }
    }
}

fn whole_ms(time: Duration) -> Option<u64> {
    u64::try_from(time.as_millis()).ok().filter(|ms| *ms > 0)
}
