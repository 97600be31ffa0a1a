//! Asking masters again for locks that they missed while they were away, so that more of them may be lost without harm.
//!
//! Only for a lock that is valid, which is as long as its quorum is proven: then the key is nobody else's to take. The
//! key that is put back ends with those of the other masters.

use std::time::{Duration, Instant};

use super::link::Owed;
use super::op::OpState;
use super::slab::Id;
use super::{Engine, Vote};
use crate::lock::command::{self, AcquireTail};
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

impl Engine {
    /// A master can be asked again, over a new connection or after a silence.
    pub(super) fn repair(&mut self, now: Instant, master: MasterId) {
        for id in self.claims.ids() {
            self.repair_claim(now, master, id);
        }
    }

    fn repair_claim(&mut self, now: Instant, master: MasterId, id: Id) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        let Some(op) = claim.owner.and_then(|op| self.ops.find(op)) else { return };
        let OpState::Held { valid_until, .. } = op.state else { return };
        if now >= valid_until || !claim.is_missed_by(master) {
            return;
        }
        let left = valid_until + self.config.drift.of(op.ttl.as_duration()) - now;
        let Some(left_ms) = whole_ms(left) else { return };
        let mut tail = AcquireTail::EMPTY;
        tail.set(left_ms);
        let (only, owed) = (MasterSet::only(master), Owed::Repair(id));
        let sent = self.broadcast.send(&mut self.links, only, owed, |out| {
            command::encode_acquire(out, &claim.entry, &tail);
        });
        claim.asked = claim.asked.union(sent);
    }

    /// The answer to a `SET` that was sent again. Only a grant tells anything: a key in the way may be this lock's own,
    /// from a `SET` whose answer was lost with its connection.
    pub(super) fn handle_repair_vote(&mut self, master: MasterId, id: Id, vote: &Vote) {
        let Some(claim) = self.claims.find_mut(id).filter(|claim| claim.release.is_none()) else { return };
        if *vote == Vote::Granted || mutant!(OwnKeyIsBusy) {
            claim.record(master, vote.clone());
        }
    }
}

fn whole_ms(time: Duration) -> Option<u64> {
    u64::try_from(time.as_millis()).ok().filter(|ms| *ms > 0)
}
