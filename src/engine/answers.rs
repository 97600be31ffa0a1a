//! Answers: from a master's bytes to the claims and operations that they concern.

use super::core::Core;
use super::locks::Locks;
use super::locks::claim::Counted;
use super::locks::slab::Id;
use super::locks::{acquire, hold, release};
use super::masters::link::Taken;
use super::masters::owed::{Answer, Fact, Owed, Tag, Verb};
use super::masters::record::Found;
use super::masters::trouble::Trouble;
use super::script;
use super::waiting::rounds::Heard;
use super::waiting::{handover, rounds};
use super::{Engine, queries};
use crate::lock::command;
use crate::lock::command::answer::Refusal;
use crate::lock::{Failure, MasterId, MasterSet, Vote};

impl Engine {
    pub(super) fn recv_commands(&mut self, master: MasterId, size: usize) {
        if self.core.masters.fleet.recv_done(self.core.ground.now, master, size) {
            self.hear_again(master);
        }
        loop {
            self.count_usual(master);
            if !self.core.locks.decided.is_empty() {
                self.handle_decided();
            }
            let has_more = self.core.masters.fleet.link(master).connection.wire.has_received();
            if !has_more || !self.recv_any(master) {
                return;
            }
        }
    }

    /// A master was silent or had no room: sends it what it missed.
    #[cold]
    #[inline(never)]
    fn hear_again(&mut self, master: MasterId) {
        let (was_silent, has_room) = self.core.masters.fleet.hear_again(master);
        if was_silent {
            hold::repair(&mut self.core, master);
            rounds::rejoin(&mut self.core, master);
        }
        if has_room {
            release::release_orphans(&mut self.core, master);
        }
    }

    /// Counts a master's grants and deletions up to the first other reply, and notes the claims that they may
    /// have decided. Everything else is done elsewhere, to leave the registers to this loop.
    #[inline(always)]
    fn count_usual(&mut self, master: MasterId) {
        let fleet = &mut self.core.masters.fleet;
        let Locks { claims, decided, .. } = &mut self.core.locks;
        let quorum = fleet.quorum;
        let link = fleet.link_mut(master);
        let votes = &mut link.stats;
        link.connection.wire.take_known(|owed, received| {
            let (rest, counted) = match owed {
                Owed::Round { verb: Verb::Acquire, tag: Tag::PLAIN, id, .. } => {
                    let rest = command::answer::split_granted(received)?;
                    votes.granted += 1;
                    let claim = claims.find_mut(*id);
                    (rest, claim.map(|claim| claim.count_grant(master, quorum, &mut votes.late)))
                }
                Owed::Round { verb: Verb::Release, id, .. } => {
                    let rest = command::answer::split_deleted(received)?;
                    (rest, claims.find_mut(*id).map(|claim| claim.count_deleted(master, quorum)))
                }
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

    /// Handles the claims that counted replies may have decided.
    #[inline(never)]
    fn handle_decided(&mut self) {
        let mut handled_count = 0;
        while let Some(&id) = self.core.locks.decided.get(handled_count) {
            let core = &mut self.core;
            handled_count += 1;
            // The claim may have ended since.
            let Some(claim) = core.locks.claims.find(id) else { continue };
            match claim.owner() {
                Some(op) if claim.release.is_none() => {
                    let step = acquire::decide(core, op);
                    self.perform_rare(step);
                }
                Some(_) => release::check(core, id),
                None => {}
            }
        }
        self.core.locks.decided.clear();
    }

    /// Handles one reply of any kind. False if none is complete. Not inlined, because it is rarely needed.
    #[inline(never)]
    fn recv_any(&mut self, master: MasterId) -> bool {
        let core = &mut self.core;
        match core.masters.fleet.link_mut(master).next_answer() {
            Ok(Some(Taken { answer, timed, refusal })) => {
                if let Some(claim) = timed.and_then(|id| core.locks.claims.find(id)) {
                    let round_trip = core.ground.now.saturating_duration_since(claim.started);
                    core.masters.fleet.note_round_trip(master, round_trip);
                }
                let answer = match answer {
                    Answer::WantsScript(owed) => script::send_whole(core, master, owed),
                    answer => answer,
                };
                self.handle_answer(master, answer);
                if let Some((refusal, text)) = refusal {
                    self.handle_refusal(master, refusal, &text);
                }
                true
            }
            Ok(None) => false,
            Err(why) => {
                self.fail_link(master, &why);
                false
            }
        }
    }

    /// Handles a refusal that tells something about the master.
    #[cold]
    fn handle_refusal(&mut self, master: MasterId, refusal: Refusal, text: &str) {
        let fleet = &mut self.core.masters.fleet;
        if !fleet.ready.contains(master) {
            return;
        }
        match refusal {
            Refusal::Elsewhere => {
                if command::answer::is_of_replica(text.as_bytes()) {
                    // The next connection may not reveal that it was a replica.
                    fleet.link_mut(master).doubt();
                }
                self.fail_link(master, &Trouble::Elsewhere { refusal: text }.to_string());
            }
            Refusal::Blocked if fleet.link_mut(master).wants_lookup(self.core.ground.now) => {
                fleet.wishes.look_up(master);
            }
            Refusal::Blocked => {}
        }
    }

    /// Takes a fact that was asked for again. Ends the connection if necessary.
    fn handle_fact(&mut self, master: MasterId, fact: Fact) {
        let Core { ground, masters, .. } = &mut self.core;
        if let Some(why) = masters.fleet.take_fact(ground, master, fact) {
            self.fail_link(master, &why);
        }
    }

    fn handle_answer(&mut self, master: MasterId, answer: Answer) {
        let core = &mut self.core;
        let step = match answer {
            Answer::Acquire(id, vote) => acquire::handle_vote(core, master, id, vote),
            Answer::Attempt(id, answer) => acquire::handle_answer(core, master, id, answer),
            Answer::Park(id, answer) => match rounds::handle_answer(core, master, id, answer) {
                Heard::Vote(vote) => acquire::handle_vote(core, master, id, vote),
                Heard::Then(step) => step,
            },
            Answer::Granted(id) if rounds::handle_grant(core, master, id) => {
                acquire::handle_vote(core, master, id, Vote::Granted)
            }
            Answer::Granted(_) => return,
            Answer::Ring(id) => rounds::handle_ring(core, master, id),
            Answer::NoChannel(why) => return core.masters.fleet.note_channel_refused(master, why),
            Answer::Holder(id, ttl) => acquire::handle_holder(core, master, id, ttl),
            Answer::Swap(id, from, vote) => {
                self.handle_swap(master, id, from, vote);
                return;
            }
            Answer::SwapUnsent(id, from) => {
                // The swap cannot be repeated, so the key it should have replaced is released separately.
                let failed = Vote::Failed(Failure::QueueFull);
                if let Some(from) = self.handle_swap(master, id, from, failed) {
                    release::send_end(&mut self.core, from, MasterSet::only(master));
                }
                return;
            }
            Answer::HandshakeDone => return self.handle_ready(master),
            Answer::Release(id, answer, has_more) => {
                return release::handle_served_answer(core, master, id, answer, has_more);
            }
            Answer::Looked(id, looked) => return rounds::handle_look(core, master, id, looked),
            Answer::Rest(id, vote) => return release::handle_rest_answer(core, master, id, vote),
            Answer::RestOver(id) => return release::handle_rest_over(core, master, id),
            Answer::Extend(id, round, vote) => return hold::handle_vote(core, master, id, round, vote),
            Answer::Repair(id, round, vote) => {
                return hold::handle_repair_vote(core, master, id, round, &vote);
            }
            Answer::Value(id, value) => return queries::handle_value(&mut core.locks, master, id, value),
            Answer::ReaderCount(id, count) => {
                return queries::handle_reader_count(&mut core.locks, master, id, count);
            }
            Answer::TimeLeft(id, left) => return queries::handle_time_left(core, master, id, left),
            Answer::FreeSlots(id, slots) => return queries::handle_free_slots(core, master, id, slots),
            Answer::ForcedDelete(id, answer) => {
                return queries::handle_forced_delete(core, master, id, answer);
            }
            Answer::Login(refusal) => {
                return core.masters.handle_login_answer(&mut core.ground, master, refusal);
            }
            Answer::Mark(answer) => return core.masters.fleet.handle_mark(&mut core.ground, master, answer),
            Answer::Fact(fact) => return self.handle_fact(master, fact),
            Answer::Record(found) => return self.handle_record(master, found),
            // Without a mark, later clients must watch for themselves; this client has finished its watch.
            Answer::NotWritten(what, text) => {
                return core.masters.fleet.link_mut(master).learnt.note_refused(what, text);
            }
            Answer::WantsScript(_) => unreachable!("the script was sent"),
            Answer::Ignored => return,
        };
        self.perform(step);
    }

    /// A fleet record was read again.
    fn handle_record(&mut self, master: MasterId, found: Found) {
        self.core.masters.fleet.handle_record(&mut self.core.ground, master, found);
        self.refuse_declared();
    }

    /// Handles the answer to a swap: a vote for the claim `id` that gets the lock, and the answer to the
    /// release of the claim in the slot `from`. Returns the latter if it still exists.
    fn handle_swap(&mut self, master: MasterId, id: Id, from: u32, vote: Vote) -> Option<Id> {
        let answer = handover::as_release_answer(&vote);
        let step = acquire::handle_vote(&mut self.core, master, id, vote);
        self.perform(step);
        let released = handover::released_for(&self.core.locks, id, from)?;
        release::handle_answer(&mut self.core, master, released, answer);
        handover::released_for(&self.core.locks, id, from)
    }
}
