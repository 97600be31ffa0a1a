//! Answers: from the bytes that came from a master to the claims and operations that they are about.

use std::time::Instant;

use super::Engine;
use super::claim::{Counted, Course};
use super::kind::{AttemptAnswer, Tag};
use super::mode;
use super::op::Op;
use super::owed::{Answer, Owed, Shape, Verb};
use super::slab::Id;
use crate::lock::MasterId;
use crate::lock::command;

impl Engine {
    pub(super) fn recv_commands(&mut self, now: Instant, master: MasterId, size: usize) {
        if self.fleet.recv_done(now, master, size) {
            self.repair(now, master);
        }
        loop {
            self.count_usual(master);
            if !self.decided.is_empty() {
                self.handle_decided(now);
            }
            if !self.fleet.link(master).connection.wire.has_received() || !self.recv_any(now, master) {
                return;
            }
        }
    }

    /// Counts grants and deletions of a master up to the first other reply, and notes the claims for which
    /// one may have decided something. All that is done about them is elsewhere, so that the loop has the
    /// registers for itself.
    #[inline(always)]
    fn count_usual(&mut self, master: MasterId) {
        let Self { claims, decided, fleet, .. } = self;
        let quorum = fleet.quorum;
        let link = fleet.link_mut(master);
        let votes = &mut link.stats;
        link.connection.wire.take_known(|owed, received| {
            let (rest, counted) = match owed {
                Owed::Round { verb: Verb::Acquire, tag: Tag::Plain, id, .. } => {
                    let rest = command::answer::split_granted(received)?;
                    votes.granted += 1;
                    let claim = claims.find_mut(*id);
                    (rest, claim.map(|claim| claim.count_grant(master, quorum, &mut votes.late)))
                }
                Owed::Round { verb: Verb::Release, id, .. } => {
                    let rest = command::answer::split_deleted(received)?;
                    (rest, claims.find_mut(*id).map(|claim| claim.count_deleted(master, quorum)))
                }
                Owed::Ignored(Shape::Count) => return command::answer::split_unheard(received),
                _ => return None,
            };
            match counted {
                None | Some(Counted::Open) => {}
                Some(Counted::Decides) => decided.push(owed.round_id()),
                Some(Counted::Done) => claims.free(owed.round_id()),
            }
            Some(rest)
        });
    }

    /// Looks after the claims for which counted replies may have decided something.
    #[inline(never)]
    fn handle_decided(&mut self, now: Instant) {
        let mut handled_count = 0;
        while let Some(id) = self.decided.get(handled_count) {
            self.handle_counted(now, *id);
            handled_count += 1;
        }
        self.decided.clear();
    }

    /// Handles one reply of any kind; false if none is whole. Not inlined, for it is rarely needed.
    #[inline(never)]
    fn recv_any(&mut self, now: Instant, master: MasterId) -> bool {
        match self.fleet.link_mut(master).next_answer() {
            Ok(Some((answer, timed))) => {
                if let Some(id) = timed {
                    self.note_round_trip(now, master, id);
                }
                self.handle_answer(now, master, answer);
            }
            Ok(None) => return false,
            Err(why) => {
                self.fail_link(now, master, &why);
                return false;
            }
        }
        true
    }

    fn handle_answer(&mut self, now: Instant, master: MasterId, answer: Answer) {
        match answer {
            Answer::Acquire(id, vote) => self.handle_acquire_vote(now, master, id, vote),
            Answer::Attempt(id, answer) => self.handle_attempt_answer(now, master, id, answer),
            Answer::Release(id, answer) => self.handle_release_answer(now, master, id, answer),
            Answer::Rest(id, vote) => self.handle_rest_answer(now, master, id, vote),
            Answer::Swap(id, from, vote) => self.handle_swap_vote(now, master, id, from, vote),
            Answer::Extend(id, round, vote) => self.handle_extend_vote(now, master, id, round, vote),
            Answer::Holder(id, ttl) => self.handle_holder(now, master, id, ttl),
            Answer::Repair(id, round, vote) => self.handle_repair_vote(master, id, round, &vote),
            Answer::Value(id, value) => self.handle_value(master, id, value),
            Answer::ReaderCount(id, count) => self.handle_reader_count(master, id, count),
            Answer::TimeLeft(id, left) => self.handle_time_left(now, master, id, left),
            Answer::ForcedDelete(id, answer) => self.handle_forced_delete(now, master, id, answer),
            Answer::Login(refusal) => self.handle_login_answer(now, master, refusal),
            Answer::Mark(answer) => self.fleet.handle_mark(master, answer),
            Answer::MarkRefused(text) => self.fleet.handle_mark_refused(master, text),
            Answer::WantsScript(owed) => self.send_whole_script(now, master, owed),
            Answer::Ignored => {}
            Answer::HandshakeDone => self.handle_ready(now, master),
        }
    }

    /// The answer to an attempt that has a script: a vote, and more than one.
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
        if let Some(vote) = mode::vote(answer, master, claim, op, self.fleet.quorum) {
            self.handle_acquire_vote(now, master, id, vote);
        }
    }

    /// A master turned out to be another process: it has forgotten the tickets that it gave.
    pub(super) fn forget_tickets(&mut self, master: MasterId) {
        for id in self.ops.ids() {
            if let Some(queuing) = self.ops.get_mut(id).policy.queuing_mut() {
                queuing.forget(master);
            }
        }
    }
}
