//! Answers to the attempts that have scripts: each is a vote, and says more than one.

use std::time::Instant;

use super::Engine;
use super::claim::Course;
use super::kind::AttemptAnswer;
use super::mode;
use super::op::Op;
use super::slab::Id;
use crate::lock::MasterId;

impl Engine {
    #[inline(never)]
    pub(super) fn handle_attempt_answer(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        answer: AttemptAnswer,
    ) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        let op = match claim.course {
            Course::Attempt(attempter) => self.ops.find_mut(attempter).map(Op::learner),
            Course::HandedOver(_) | Course::Left(_) => None,
        };
        if let Some(vote) = mode::vote(answer, master, claim, op, self.fleet.quorum()) {
            self.handle_acquire_vote(now, master, id, vote);
        }
    }

    /// A master turned out to be another process: it has forgotten the tickets that it gave.
    pub(super) fn forget_tickets(&mut self, master: MasterId) {
        for id in self.ops.ids() {
            if let Some(queuing) = self.ops.op_mut(id).policy.queuing_mut() {
                queuing.forget(master);
            }
        }
    }
}
