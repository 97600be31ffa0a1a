//! Scripts that a master does not know, as after `SCRIPT FLUSH`, or that it needs in place of a native
//! command while its memory is full. `lock/command/scripts.rs` says how scripts reach a master.
//!
//! The request goes out once more with the script in full. Behind an attempt, all scripts of that kind of
//! lock are loaded. An attempt that was decided meanwhile is not sent again, but its scripts are loaded: else
//! a master that always answers last would never carry out an attempt.

use std::time::Instant;

use super::Engine;
use super::kind::Tag;
use super::mode;
use super::owed::{Owed, Shape, Verb};
use super::slab::Id;
use crate::lock::command::scripts::Script;
use crate::lock::command::{self, ExtendBy};
use crate::lock::{Failure, MasterId, MasterSet, Vote};
use crate::mutants::mutant;

impl Engine {
    /// The master needs the script: sends it with the command, which also makes it known again.
    pub(super) fn send_whole_script(&mut self, now: Instant, master: MasterId, owed: Owed) {
        let Owed::Round { verb, tag, number, id, .. } = owed else {
            // The waiter has gone, and its ticket ends with its heartbeat. The next one is to leave in time.
            return self.load_scripts(master, Tag::Fair);
        };
        let only = MasterSet::only(master);
        let sent = match verb {
            Verb::Acquire => self.send_whole_attempt(only, owed, id),
            Verb::Swap => self.send_whole_swap(now, master, id, number),
            Verb::Release => {
                let Some(claim) = self.claims.find(id) else { return };
                mode::send_scripted_release(&mut self.fleet, only, owed.whole(), claim, Script::Text)
            }
            Verb::Rest => {
                let Some(claim) = self.claims.find_mut(id) else { return };
                match claim.rest_to_repeat(now) {
                    Some(ttl) => mode::send_rest(&mut self.fleet, only, id, claim, ttl, Script::Text),
                    None => {
                        claim.release_mut().sent.remove(master);
                        return self.follow_rest(now, master, id);
                    }
                }
            }
            Verb::Extend => {
                // An extension that has given way to a later one, to a release or to a rest may not come
                // behind it, with an answer nobody expects.
                let Some(op) = self.ops.find(id) else { return };
                if op.held().is_none_or(|held| held.round != number) {
                    return;
                }
                let claim = self.claims.get(op.claim);
                if claim.release.is_some() {
                    return;
                }
                mode::send_extend(&mut self.fleet, only, owed.whole(), claim, op.asked.ttl, Script::Text)
            }
            Verb::Repair => unreachable!("never by a digest"),
        };
        if verb == Verb::Acquire {
            self.load_scripts(master, tag);
        }
        if !sent.is_empty() {
            return;
        }
        let failure = Failure::QueueFull;
        match verb {
            Verb::Extend => self.handle_extend_vote(now, master, id, number, Vote::Failed(failure)),
            Verb::Release => {
                self.handle_release_answer(now, master, id, command::answer::ReleaseAnswer::Failed(failure));
            }
            Verb::Rest => self.handle_rest_answer(now, master, id, Vote::Failed(failure)),
            Verb::Swap => self.fail_swap(now, master, id, number, failure),
            Verb::Acquire | Verb::Repair => self.handle_acquire_vote(now, master, id, Vote::Failed(failure)),
        }
    }

    /// Loads the scripts of an attempt and of what may follow it, unless they are on their way.
    fn load_scripts(&mut self, master: MasterId, tag: Tag) {
        if self.fleet.link(master).scripts_loading[tag as usize] || mutant!(LateScriptForgotten) {
            return;
        }
        let [first @ .., last] = tag.scripts() else { unreachable!("a plain lock's attempt is no script") };
        let only = MasterSet::only(master);
        for script in first {
            self.fleet.queue(only, Owed::Ignored(Shape::Any), |out| script.encode_load(out));
        }
        let sent = self.fleet.queue(only, Owed::Scripts(tag), |out| last.encode_load(out));
        self.fleet.link_mut(master).scripts_loading[tag as usize] = !sent.is_empty();
    }

    /// An attempt once more, unless its release is on its way already, which it would come behind.
    fn send_whole_attempt(&mut self, to: MasterSet, owed: Owed, id: Id) -> MasterSet {
        let claim = self.claims.find(id).filter(|claim| claim.release.is_none());
        let Some((claim, owner)) = claim.and_then(|claim| Some((claim, claim.owner?))) else {
            return MasterSet::EMPTY;
        };
        self.ops.get_mut(owner).send_attempt(&mut self.fleet, to, owed.whole(), claim, Script::Text)
    }

    /// Not if the one that it is handed to is being released by now: that release is on its way, and would be
    /// overtaken.
    fn send_whole_swap(&mut self, now: Instant, master: MasterId, id: Id, from: u32) -> MasterSet {
        let old = self.claims.occupant(from).and_then(|from| self.claims.find(from));
        let (Some(old), Some(new)) = (old.filter(|old| old.has_successor(id)), self.claims.find(id)) else {
            return MasterSet::EMPTY;
        };
        if new.release.is_some() && !mutant!(SwapBehindRelease) {
            return MasterSet::EMPTY;
        }
        let Some(owner) = new.owner else { return MasterSet::EMPTY };
        let ttl = self.ops.get(owner).asked.ttl;
        let owed = Owed::round(Verb::Swap, Tag::Plain, from, id).whole();
        let sent = self.fleet.queue(MasterSet::only(master), owed, |out| {
            command::encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
        });
        self.claims.get_mut(id).note_swap(now);
        sent
    }
}
