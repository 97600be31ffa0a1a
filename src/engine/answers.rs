//! Answers to the attempts that have scripts: each is a vote, and says more than one.

use std::time::Instant;

use super::Engine;
use super::mode::ModeState;
use super::slab::Id;
use crate::lock::command::{FairAnswer, FencedAnswer, Way};
use crate::lock::{Failure, HolderTtl, MasterId, Vote};

impl Engine {
    #[inline(never)]
    pub(super) fn handle_fenced_answer(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        answer: FencedAnswer,
    ) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        let vote = match answer {
            FencedAnswer::Granted => Vote::Granted,
            FencedAnswer::Own => claim.note_twin(master),
            FencedAnswer::Failed(failure) => Vote::Failed(failure),
            FencedAnswer::Refused(_) if !claim.counts_grants => return,
            FencedAnswer::Refused(told) => {
                let op = claim.owner.map(|op| self.ops.op_mut(op));
                if let Some(ModeState::Fenced(fencing)) = op.map(|op| &mut op.mode)
                    && let Some(failure) = fencing.note_refusal(master, told)
                {
                    claim.failures.push((master, failure));
                }
                Vote::Refused { holder: told.holder }
            }
        };
        self.handle_acquire_vote(now, master, id, vote);
    }

    #[inline(never)]
    pub(super) fn handle_fair_answer(&mut self, now: Instant, master: MasterId, id: Id, answer: FairAnswer) {
        let quorum = self.fleet.quorum();
        let Some(claim) = self.claims.find_mut(id) else { return };
        let is_counted = claim.counts_grants;
        let vote = match answer {
            FairAnswer::Failed(failure) => Vote::Failed(failure),
            FairAnswer::Told(told) => {
                // The operation may be over, or have left its queues.
                let op = self.ops.find_mut(claim.attempter);
                if let Some(queuing) = op.and_then(|op| op.policy.queuing_mut()) {
                    queuing.note_answer(master, told, is_counted, quorum);
                }
                if is_counted && matches!(told.way, Way::Queued(_)) {
                    claim.failures.push((master, Failure::OthersFirst { ahead: told.ahead }));
                }
                match told.way {
                    Way::Clear => Vote::Granted,
                    Way::Held(holder) => Vote::Refused { holder },
                    Way::Queued(_) => Vote::Refused { holder: HolderTtl::Unknown },
                }
            }
        };
        self.handle_acquire_vote(now, master, id, vote);
    }

    /// A master's answer to a reader: a refusal tells how long what is in the way still lives.
    pub(super) fn handle_shared_vote(&mut self, now: Instant, master: MasterId, id: Id, vote: Vote) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        if vote == Vote::Failed(Failure::SameServer) {
            claim.note_twin(master);
        }
        if !claim.counts_grants {
            return;
        }
        if let (Vote::Refused { holder }, Some(op)) = (&vote, claim.owner.map(|op| self.ops.op_mut(op))) {
            op.holders.push((master, *holder));
        }
        self.handle_acquire_vote(now, master, id, vote);
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
