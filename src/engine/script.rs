//! Scripts that a master has forgotten, as after `SCRIPT FLUSH`, or that it needs in place of a native command while its
//! memory is full: the request once more, with the script in full. An attempt that was decided meanwhile is not sent again;
//! then the script is loaded by itself.

use std::time::Instant;

use super::Engine;
use super::fence::{fence, tells_within};
use super::link::Owed;
use super::slab::Id;
use crate::lock::command::{self, ExtendBy, ReleaseBy, Script};
use crate::lock::{Failure, MasterId, MasterSet, Vote};
use crate::mutants::mutant;

impl Engine {
    /// The master needs the script: sends it with the command, which also makes it known again.
    pub(super) fn send_whole_script(&mut self, now: Instant, master: MasterId, owed: Owed) {
        let (fleet, only) = (&mut self.fleet, MasterSet::only(master));
        let sent = match owed {
            Owed::Release(id) | Owed::ReleaseFenced(id) => {
                let Some(claim) = self.claims.find(id) else { return };
                let fence = claim.fence.map(|token| fence(&self.config, token));
                fleet.send(only, Owed::ReleaseWhole(id), |out| match &fence {
                    None => command::encode_release(out, ReleaseBy::Eval, &claim.entry, claim.tells),
                    Some(fence) => {
                        let tells = tells_within(claim);
                        command::encode_fenced_release(out, Script::Whole, &claim.entry, fence, tells);
                    }
                })
            }
            Owed::Extend(id, round) => {
                // An extension that has given way to a later one may not come behind it, with an answer nobody expects.
                let Some(op) = self.ops.find(id).filter(|op| op.round == round) else { return };
                let claim = self.claims.claim(op.claim);
                fleet.send(only, Owed::ExtendWhole(id, round), |out| {
                    command::encode_extend(out, ExtendBy::Eval, &claim.entry, op.ttl)
                })
            }
            Owed::Swap(id, from) => self.send_whole_swap(now, master, id, from),
            Owed::AcquireFenced(id) => self.send_whole_fenced(master, id),
            Owed::AcquireFair(id) => self.send_whole_fair(master, id),
            Owed::AcquireShared(_) | Owed::ExtendShared(..) | Owed::ReleaseShared(_) => {
                match self.send_whole_shared(master, owed) {
                    Some(sent) => sent,
                    None => return,
                }
            }
            _ => return,
        };
        if !sent.is_empty() {
            return;
        }
        let failure = Failure::QueueFull;
        match owed {
            Owed::Extend(id, round) | Owed::ExtendShared(id, round) => {
                self.handle_extend_vote(now, master, id, round, Vote::Failed(failure));
            }
            Owed::Release(id) | Owed::ReleaseFenced(id) | Owed::ReleaseShared(id) => {
                self.handle_release_answer(now, master, id, command::ReleaseAnswer::Failed(failure));
            }
            Owed::Swap(id, from) => self.fail_swap(now, master, id, from, failure),
            Owed::AcquireFenced(id) | Owed::AcquireFair(id) | Owed::AcquireShared(id) => {
                self.load_scripts_of(master, owed);
                self.handle_acquire_vote(now, master, id, Vote::Failed(failure))
            }
            _ => {}
        }
    }

    /// The other masters decided the attempt, and its release is on its way: loads the script for the next attempt. Else a
    /// master that always answers last would never carry out an attempt.
    fn load_scripts_of(&mut self, master: MasterId, owed: Owed) {
        let scripts: &[&str] = match owed {
            _ if mutant!(LateScriptForgotten) => return,
            Owed::AcquireFenced(_) => &[command::FENCED_ACQUIRE_SCRIPT],
            Owed::AcquireFair(_) => &[command::FAIR_SCRIPT],
            Owed::AcquireShared(_) => &command::SHARED_SCRIPTS,
            _ => return,
        };
        let only = MasterSet::only(master);
        for script in scripts {
            self.fleet.send(only, Owed::Aside, |out| command::encode_load(out, script));
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
        let owed = Owed::SwapWhole(id, from);
        let sent = self.fleet.send(MasterSet::only(master), owed, |out| {
            command::encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
        });
        self.claims.claim_mut(id).note_swap(now);
        sent
    }
}
