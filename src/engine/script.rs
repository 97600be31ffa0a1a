//! Scripts that a master does not know, as after `SCRIPT FLUSH`, or that it needs in place of a native
//! command while its memory is full. `lock/command/scripts.rs` says how scripts reach a master.
//!
//! The request goes out once more with the script in full. Behind an attempt, all scripts of that kind of
//! lock are loaded. An attempt that was decided meanwhile is not sent again, but its scripts are loaded: else
//! a master that always answers last would never carry out an attempt.

use super::ground::Ground;
use super::kind::Tag;
use super::locks::Locks;
use super::masters::Masters;
use super::mode;
use super::owed::{Owed, Shape, Verb};
use super::slab::Id;
use super::{acquire, handover, hold, leave, release};
use crate::lock::command::scripts::Script;
use crate::lock::command::{self, ExtendBy};
use crate::lock::{Failure, MasterId, MasterSet, Vote};
use crate::mutants::mutant;

/// The master needs the script: sends it with the command, which also makes it known again.
pub(super) fn send_whole_script(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    owed: Owed,
) {
    let Owed::Round { verb, tag, number, id, .. } = owed else {
        // The waiter has gone, and its ticket ends with its heartbeat. The next one is to leave in time.
        return load_scripts(masters, master, Tag::Fair);
    };
    let only = MasterSet::only(master);
    let sent = match verb {
        Verb::Acquire => send_whole_attempt(masters, locks, only, owed, id),
        Verb::Swap => send_whole_swap(ground, masters, locks, master, id, number),
        Verb::Release => {
            let Some(claim) = locks.claims.find(id) else { return };
            mode::send_scripted_release(&mut masters.fleet, only, owed.whole(), claim, Script::Text)
        }
        Verb::Rest => {
            let Some(claim) = locks.claims.find_mut(id) else { return };
            match claim.rest_to_repeat(ground.now) {
                Some(ttl) => mode::send_rest(&mut masters.fleet, only, id, claim, ttl, Script::Text),
                None => {
                    claim.release_mut().sent.remove(master);
                    return leave::follow_rest(ground, masters, locks, master, id);
                }
            }
        }
        Verb::Extend => {
            // An extension that has given way to a later one, to a release or to a rest may not come
            // behind it, with an answer nobody expects.
            let Some(op) = locks.ops.find(id) else { return };
            if op.held().is_none_or(|held| held.round != number) {
                return;
            }
            let claim = locks.claims.get(op.claim);
            if claim.release.is_some() {
                return;
            }
            mode::send_extend(&mut masters.fleet, only, owed.whole(), claim, op.asked.ttl, Script::Text)
        }
        Verb::Repair => unreachable!("never by a digest"),
    };
    if verb == Verb::Acquire {
        load_scripts(masters, master, tag);
    }
    if !sent.is_empty() {
        return;
    }
    let failure = Failure::QueueFull;
    match verb {
        Verb::Extend => {
            hold::handle_extend_vote(ground, masters, locks, master, id, number, Vote::Failed(failure))
        }
        Verb::Release => {
            release::handle_release_answer(
                ground,
                masters,
                locks,
                master,
                id,
                command::answer::ReleaseAnswer::Failed(failure),
            );
        }
        Verb::Rest => leave::handle_rest_answer(ground, masters, locks, master, id, Vote::Failed(failure)),
        Verb::Swap => handover::fail_swap(ground, masters, locks, master, id, number, failure),
        Verb::Acquire | Verb::Repair => {
            acquire::handle_acquire_vote(ground, masters, locks, master, id, Vote::Failed(failure))
        }
    }
}

/// Loads the scripts of an attempt and of what may follow it, unless they are on their way.
fn load_scripts(masters: &mut Masters, master: MasterId, tag: Tag) {
    if masters.fleet.link(master).scripts_loading[tag as usize] || mutant!(LateScriptForgotten) {
        return;
    }
    let [first @ .., last] = tag.scripts() else { unreachable!("a plain lock's attempt is no script") };
    let only = MasterSet::only(master);
    for script in first {
        masters.fleet.queue(only, Owed::Ignored(Shape::Any), |out| script.encode_load(out));
    }
    let sent = masters.fleet.queue(only, Owed::Scripts(tag), |out| last.encode_load(out));
    masters.fleet.link_mut(master).scripts_loading[tag as usize] = !sent.is_empty();
}

/// An attempt once more, unless its release is on its way already, which it would come behind.
fn send_whole_attempt(
    masters: &mut Masters,
    locks: &mut Locks,
    to: MasterSet,
    owed: Owed,
    id: Id,
) -> MasterSet {
    let claim = locks.claims.find(id).filter(|claim| claim.release.is_none());
    let Some((claim, owner)) = claim.and_then(|claim| Some((claim, claim.owner?))) else {
        return MasterSet::EMPTY;
    };
    locks.ops.get_mut(owner).send_attempt(&mut masters.fleet, to, owed.whole(), claim, Script::Text)
}

/// Not if the one that it is handed to is being released by now: that release is on its way, and would be
/// overtaken.
fn send_whole_swap(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    from: u32,
) -> MasterSet {
    let old = locks.claims.occupant(from).and_then(|from| locks.claims.find(from));
    let (Some(old), Some(new)) = (old.filter(|old| old.has_successor(id)), locks.claims.find(id)) else {
        return MasterSet::EMPTY;
    };
    if new.release.is_some() && !mutant!(SwapBehindRelease) {
        return MasterSet::EMPTY;
    }
    let Some(owner) = new.owner else { return MasterSet::EMPTY };
    let ttl = locks.ops.get(owner).asked.ttl;
    let owed = Owed::round(Verb::Swap, Tag::Plain, from, id).whole();
    let sent = masters.fleet.queue(MasterSet::only(master), owed, |out| {
        command::encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
    });
    locks.claims.get_mut(id).note_swap(ground.now);
    sent
}
