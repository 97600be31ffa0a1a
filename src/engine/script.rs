//! Scripts that a master has forgotten, as after `SCRIPT FLUSH`, or that it needs in place of a native command while its
//! memory is full: the request once more, with the script in full. An attempt that was decided meanwhile is not sent again;
//! then the script is loaded by itself.

use std::time::Instant;

use super::Engine;
use super::fence::{fence, tells_within};
use super::owed::{Owed, Shape, Tag, Verb};
use super::slab::Id;
use crate::lock::command::{self, ExtendBy, ReleaseBy, Script};
use crate::lock::{Failure, MasterId, MasterSet, Vote};
use crate::mutants::mutant;

impl Engine {
    /// The master needs the script: sends it with the command, which also makes it known again.
    pub(super) fn send_whole_script(&mut self, now: Instant, master: MasterId, owed: Owed) {
        let Owed::Round { verb, tag, number, id, .. } = owed else { unreachable!("a request for a lock") };
        let sent = match (verb, tag) {
            (Verb::Acquire, Tag::Fenced) => self.send_whole_fenced(master, id),
            (Verb::Acquire, Tag::Fair) => self.send_whole_fair(master, id),
            (_, Tag::Shared) => match self.send_whole_shared(master, owed) {
                Some(sent) => sent,
                None => return,
            },
            (Verb::Swap, _) => self.send_whole_swap(now, master, id, number),
            (Verb::Release, _) => {
                let Some(claim) = self.claims.find(id) else { return };
                let fence = claim.fence.map(|token| fence(&self.config, token));
                self.fleet.send(MasterSet::only(master), owed.whole(), |out| match &fence {
                    None => command::encode_release(out, ReleaseBy::Eval, &claim.entry, claim.tells),
                    Some(fence) => {
                        let tells = tells_within(claim);
                        command::encode_fenced_release(out, Script::Whole, &claim.entry, fence, tells);
                    }
                })
            }
            (Verb::Extend, _) => {
                // An extension that has given way to a later one may not come behind it, with an answer nobody expects.
                let Some(op) = self.ops.find(id).filter(|op| op.round == number) else { return };
                let claim = self.claims.claim(op.claim);
                self.fleet.send(MasterSet::only(master), owed.whole(), |out| {
                    command::encode_extend(out, ExtendBy::Eval, &claim.entry, op.ttl)
                })
            }
            (Verb::Acquire | Verb::Repair, _) => unreachable!("never by a digest"),
        };
        if !sent.is_empty() {
            return;
        }
        let failure = Failure::QueueFull;
        match verb {
            Verb::Extend => self.handle_extend_vote(now, master, id, number, Vote::Failed(failure)),
            Verb::Release => {
                self.handle_release_answer(now, master, id, command::ReleaseAnswer::Failed(failure));
            }
            Verb::Swap => self.fail_swap(now, master, id, number, failure),
            Verb::Acquire | Verb::Repair => {
                self.load_scripts_of(master, tag);
                self.handle_acquire_vote(now, master, id, Vote::Failed(failure))
            }
        }
    }

    /// The other masters decided the attempt, and its release is on its way: loads the script for the next attempt. Else a
    /// master that always answers last would never carry out an attempt.
    fn load_scripts_of(&mut self, master: MasterId, tag: Tag) {
        let scripts: &[&str] = match tag {
            _ if mutant!(LateScriptForgotten) => return,
            Tag::Plain => return,
            Tag::Fenced => &[command::FENCED_ACQUIRE_SCRIPT],
            Tag::Fair => &[command::FAIR_SCRIPT],
            Tag::Shared => &command::SHARED_SCRIPTS,
        };
        let only = MasterSet::only(master);
        for script in scripts {
            self.fleet.send(only, Owed::Ignored(Shape::Any), |out| command::encode_load(out, script));
        }
    }

    /// Not if the one that it is handed to is being released by now: that release is on its way, and would be overtaken.
    fn send_whole_swap(&mut self, now: Instant, master: MasterId, id: Id, from: u32) -> MasterSet {
        let old = self.claims.occupant(from).and_then(|from| self.claims.find(from));
        let (Some(old), Some(new)) = (old.filter(|old| old.heir == id), self.claims.find(id)) else {
            return MasterSet::EMPTY;
        };
        if new.release.is_some() && !mutant!(SwapBehindRelease) {
            return MasterSet::EMPTY;
        }
        let Some(owner) = new.owner else { return MasterSet::EMPTY };
        let ttl = self.ops.op(owner).ttl;
        let owed = Owed::swap(id, from).whole();
        let sent = self.fleet.send(MasterSet::only(master), owed, |out| {
            command::encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
        });
        self.claims.claim_mut(id).note_swap(now);
        sent
    }
}
