//! Code of deliberate defects alone. The switches stand where the rules are kept; `mutants.rs` lists them.

use std::time::Instant;

use super::Engine;
use super::kind::Kind;
use super::mode::ModeState;
use super::op::Op;
use super::slab::Id;
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

impl Engine {
    /// The votes for one fencing token count for the next one.
    #[cold]
    pub(super) fn keep_votes(&mut self, id: Id, granted: MasterSet) {
        self.claims.get_mut(self.ops.get(id).claim).tally.granted = granted;
    }

    /// A lock that is handed over has a fencing token that no master knows.
    #[cold]
    pub(super) fn feign_token(&mut self, now: Instant, id: Id, claim: Id) {
        let (op, claim) = (self.ops.get_mut(id), self.claims.get_mut(claim));
        if let ModeState::Fenced(fencing) = &mut op.mode {
            claim.kind =
                Kind::Fenced(fencing.begin_attempt(self.wall_clock.masters_us(now), MasterSet::EMPTY));
        }
    }

    /// A release leaves the connection of its `SET`.
    #[cold]
    pub(super) fn release_on_other_connection(&mut self, now: Instant, id: Id) {
        let Some(claim) = self.claims.find(id) else { return };
        let is_answered = claim.tally.granted.union(claim.tally.refused);
        for master in claim.asked.without(is_answered).iter() {
            self.fail_link(now, master, "a release takes another connection");
        }
        self.claims.get_mut(id).doubts.connection_lost = MasterSet::EMPTY;
    }

    /// The forced deletions that a lost connection owed go out over the next one.
    #[cold]
    pub(super) fn repeat_forced_deletions(&mut self, master: MasterId) {
        for id in self.ops.ids() {
            if self.query_at(master, id).is_some() {
                self.send_forced_deletion(MasterSet::only(master), id);
            }
        }
    }

    /// The release of a held lock is reported as its loss, or does not end its renewals.
    #[inline(always)]
    pub(super) fn keeps_on(&mut self, now: Instant, id: Id) -> bool {
        if mutant!(ReleaseReportedAsLoss) && self.ops.find(id).is_some() {
            self.report_loss(now, id);
        }
        mutant!(RenewedAfterRelease)
            && self.ops.find(id).and_then(Op::held).is_some_and(|held| held.renewal.is_some())
    }
}
