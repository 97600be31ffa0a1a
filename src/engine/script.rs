//! Scripts that a master does not know, for example after `SCRIPT FLUSH`, or needs in place of a native
//! command while its memory is full. `lock/command/scripts.rs` describes how scripts reach a master.
//!
//! The request is repeated with the script in full. After an attempt, all scripts of that kind of lock are
//! loaded too. An attempt that has been decided is not repeated, but its scripts are loaded; otherwise a
//! master that always answers last would never run an attempt.

use super::masters::Masters;
use super::masters::fleet::Fleet;
use super::masters::owed::{Answer, Owed, Verb};
use crate::engine::core::Core;
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::kind::Tag;
use crate::engine::locks::mode;
use crate::engine::locks::slab::Id;
use crate::engine::waiting::rounds;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::park::ParkAnswer;
use crate::lock::command::scripts::Script;
use crate::lock::command::{self, ExtendBy};
use crate::lock::{Failure, MasterId, MasterSet, Vote};

/// The master needs the script: sends it in full with the request, so that the master knows it again. Returns
/// [`Answer::Ignored`] if the request is sent or void, otherwise the answer that replaces its reply.
pub(crate) fn send_whole(core: &mut Core, master: MasterId, owed: Owed) -> Answer {
    let Owed::Round { verb, tag, number, id, .. } = owed else {
        // The next check finds the script.
        load_scripts(&mut core.masters.fleet, master, Tag::Parked);
        return Answer::Ignored;
    };
    core.masters.fleet.ask_due_facts(core.ground.now);
    let Some(sent) = send_again(core, master, verb, tag, number, id) else {
        return if verb == Verb::Rest { Answer::RestOver(id) } else { Answer::Ignored };
    };
    if verb == Verb::Acquire {
        load_scripts(&mut core.masters.fleet, master, tag);
    }
    if !sent.is_empty() {
        return Answer::Ignored;
    }
    let failure = Failure::QueueFull;
    match verb {
        Verb::Extend => Answer::Extend(id, number, Vote::Failed(failure)),
        Verb::Release => Answer::Release(id, ReleaseAnswer::Failed(failure), false),
        Verb::Rest => Answer::Rest(id, Vote::Failed(failure)),
        Verb::Swap => Answer::SwapUnsent(id, number),
        Verb::Acquire if tag == Tag::Parked => {
            rounds::note_unsent(core, master, id);
            Answer::Park(id, ParkAnswer::Failed(failure))
        }
        Verb::Acquire | Verb::Repair => Answer::Acquire(id, Vote::Failed(failure)),
    }
}

/// Repeats a request with its script. Returns the master if it had room, and `None` if the request is void.
fn send_again(
    core: &mut Core,
    master: MasterId,
    verb: Verb,
    tag: Tag,
    number: u32,
    id: Id,
) -> Option<MasterSet> {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let (only, owed) = (MasterSet::only(master), Owed::round(verb, tag, number, id).whole());
    Some(match verb {
        Verb::Acquire => send_whole_attempt(ground, fleet, locks, master, tag, id),
        Verb::Swap => send_whole_swap(ground, fleet, locks, only, tag, number, id),
        Verb::Release if tag == Tag::Parked => {
            mode::send_unpark(fleet, only, owed, locks.claims.find(id)?, Script::Text)
        }
        Verb::Release => mode::send_scripted_release(fleet, only, owed, locks.claims.find(id)?, Script::Text),
        Verb::Rest => {
            let claim = locks.claims.find_mut(id)?;
            let ttl = claim.rest_to_repeat(ground.now)?;
            mode::send_rest(fleet, only, id, claim, ttl, Script::Text)
        }
        Verb::Extend => {
            // An extension superseded by a later one, a release or a rest must not arrive after it, with an
            // answer that nobody expects.
            let op = locks.ops.find(id)?;
            op.held().filter(|held| held.round == number && ground.now < held.valid_until)?;
            let claim = locks.claims.get_mut(op.claim);
            claim.note_sent(ground.now);
            mode::send_extend(fleet, only, owed, claim, op.asked.ttl, Script::Text)
        }
        Verb::Repair => unreachable!("never by a digest"),
    })
}

/// Loads the scripts of an attempt and of the requests that may follow it, unless they are being loaded.
fn load_scripts(fleet: &mut Fleet, master: MasterId, tag: Tag) {
    if fleet.link(master).scripts_loading[tag as usize] {
        return;
    }
    let [first @ .., last] = tag.scripts() else { unreachable!("a plain lock's attempt is no script") };
    let only = MasterSet::only(master);
    for script in first {
        fleet.queue(only, Owed::Ignored, |out| script.encode_load(out));
    }
    let sent = fleet.queue(only, Owed::Scripts(tag), |out| last.encode_load(out));
    fleet.link_mut(master).scripts_loading[tag as usize] = !sent.is_empty();
}

/// Repeats an attempt, unless its lock is over, its release has been sent (the attempt would arrive after
/// it), or a repair has been sent, which does the same. The digest suffices after the first repetition, which
/// brings the script.
fn send_whole_attempt(
    ground: &Ground,
    fleet: &mut Fleet,
    locks: &mut Locks,
    master: MasterId,
    tag: Tag,
    id: Id,
) -> MasterSet {
    let claim =
        locks.claims.find(id).filter(|it| it.release.is_none() && !it.doubts.sent_again.contains(master));
    let Some((claim, owner)) = claim.and_then(|claim| Some((claim, claim.owner?))) else {
        return MasterSet::EMPTY;
    };
    let owed = Owed::round(Verb::Acquire, tag, 0, id);
    let is_coming = fleet.link(master).scripts_loading[tag as usize];
    let (owed, script) = if is_coming { (owed, Script::Sha) } else { (owed.whole(), Script::Text) };
    if tag == Tag::Parked {
        return rounds::send_again(ground, fleet, locks, master, owed, id, script);
    }
    let op = locks.ops.get(owner);
    if op.held().is_some_and(|held| held.valid_until <= ground.now) {
        return MasterSet::EMPTY;
    }
    let sent =
        mode::send_attempt(fleet, MasterSet::only(master), owed, claim, op.asked.ttl.as_millis(), script);
    locks.claims.get_mut(id).note_sent(ground.now);
    sent
}

/// Repeats a swap, unless the new claim's release has been sent and would arrive first.
fn send_whole_swap(
    ground: &Ground,
    fleet: &mut Fleet,
    locks: &mut Locks,
    to: MasterSet,
    tag: Tag,
    from: u32,
    id: Id,
) -> MasterSet {
    let old = locks.claims.occupant(from).and_then(|from| locks.claims.find(from));
    let (Some(old), Some(new)) = (old.filter(|old| old.has_successor(id)), locks.claims.find(id)) else {
        return MasterSet::EMPTY;
    };
    if new.release.is_some() {
        return MasterSet::EMPTY;
    }
    let Some(owner) = new.owner else { return MasterSet::EMPTY };
    let ttl = locks.ops.get(owner).asked.ttl;
    let owed = Owed::round(Verb::Swap, tag, from, id).whole();
    let sent = if tag == Tag::Parked {
        mode::send_parked_swap(fleet, to, owed, old, new, ttl, Script::Text)
    } else {
        fleet.queue(to, owed, |out| {
            command::encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
        })
    };
    locks.claims.get_mut(id).note_sent(ground.now);
    sent
}
