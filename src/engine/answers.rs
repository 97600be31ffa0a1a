//! Answers: from the bytes that came from a master to the claims and operations that they are about.

use super::claim::Counted;
use super::kind::Tag;
use super::locks::Locks;
use super::owed::{Answer, Owed, Shape, Verb};
use super::{Engine, acquire, counting, handover, hold, leave, queries, release, script};
use crate::lock::MasterId;
use crate::lock::command;
use crate::mutants::mutant;

impl Engine {
    pub(super) fn recv_commands(&mut self, master: MasterId, size: usize) {
        let Self { ground, masters, locks } = self;
        if masters.fleet.recv_done(ground.now, master, size) {
            hold::repair(ground, masters, locks, master);
        }
        loop {
            self.count_usual(master);
            if !self.locks.decided.is_empty() {
                self.handle_decided();
            }
            let has_more = self.masters.fleet.link(master).connection.wire.has_received();
            if !has_more || !self.recv_any(master) {
                return;
            }
        }
    }

    /// Counts grants and deletions of a master up to the first other reply, and notes the claims for which
    /// one may have decided something. All that is done about them is elsewhere, so that the loop has the
    /// registers for itself.
    #[inline(always)]
    fn count_usual(&mut self, master: MasterId) {
        let fleet = &mut self.masters.fleet;
        let Locks { claims, decided, .. } = &mut self.locks;
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
    fn handle_decided(&mut self) {
        let Self { ground, masters, locks } = self;
        let mut handled_count = 0;
        while let Some(&id) = locks.decided.get(handled_count) {
            acquire::handle_counted(ground, masters, locks, id);
            handled_count += 1;
        }
        locks.decided.clear();
    }

    /// Handles one reply of any kind; false if none is whole. Not inlined, for it is rarely needed.
    #[inline(never)]
    fn recv_any(&mut self, master: MasterId) -> bool {
        let Self { ground, masters, locks } = self;
        match masters.fleet.link_mut(master).next_answer() {
            Ok(Some((answer, timed))) => {
                if let Some(id) = timed {
                    counting::note_round_trip(ground, masters, locks, master, id);
                }
                self.handle_answer(master, answer);
            }
            Ok(None) => return false,
            Err(why) => {
                self.fail_link(master, &why);
                return false;
            }
        }
        true
    }

    fn handle_answer(&mut self, master: MasterId, answer: Answer) {
        let Self { ground, masters, locks } = self;
        match answer {
            Answer::Acquire(id, vote) => {
                acquire::handle_acquire_vote(ground, masters, locks, master, id, vote);
            }
            Answer::Attempt(id, answer) => {
                acquire::handle_attempt_answer(ground, masters, locks, master, id, answer);
            }
            Answer::Release(id, answer) => {
                release::handle_release_answer(ground, masters, locks, master, id, answer);
            }
            Answer::Rest(id, vote) => leave::handle_rest_answer(ground, masters, locks, master, id, vote),
            Answer::Swap(id, from, vote) => {
                handover::handle_swap_vote(ground, masters, locks, master, id, from, vote);
            }
            Answer::Extend(id, round, vote) => {
                hold::handle_extend_vote(ground, masters, locks, master, id, round, vote);
            }
            Answer::Holder(id, ttl) => acquire::handle_holder(ground, masters, locks, master, id, ttl),
            Answer::Repair(id, round, vote) => {
                hold::handle_repair_vote(ground, locks, master, id, round, &vote);
            }
            Answer::Value(id, value) => queries::handle_value(locks, master, id, value),
            Answer::ReaderCount(id, count) => queries::handle_reader_count(locks, master, id, count),
            Answer::TimeLeft(id, left) => {
                queries::handle_time_left(ground, masters, locks, master, id, left);
            }
            Answer::ForcedDelete(id, answer) => {
                queries::handle_forced_delete(ground, masters, locks, master, id, answer);
            }
            Answer::Login(Some(why)) if mutant!(RefusedLoginEnds) => self.fail_link(master, &why),
            Answer::Login(refusal) => masters.handle_login_answer(ground, master, refusal),
            Answer::Mark(answer) => masters.fleet.handle_mark(master, answer),
            Answer::MarkRefused(text) => masters.fleet.handle_mark_refused(master, text),
            Answer::WantsScript(owed) => script::send_whole_script(ground, masters, locks, master, owed),
            Answer::Ignored => {}
            Answer::HandshakeDone => self.handle_ready(master),
        }
    }
}
