//! Scripts that a master does not know, for example after `SCRIPT FLUSH`, or needs in place of a native
//! command while its memory is full. `lock/command/scripts.rs` describes how scripts reach a master.
//!
//! The request is repeated with the script in full. After an attempt, all scripts of that kind of lock are
//! loaded too. An attempt that has been decided is not repeated, but its scripts are loaded; otherwise a
//! master that always answers last would never run an attempt.

use super::masters::Masters;
use super::masters::fleet::Fleet;
use super::masters::owed::{Answer, Owed, Tag, Verb};
use crate::engine::core::Core;
use crate::engine::locks::slab::Id;
use crate::engine::locks::{attempt, mode};
use crate::engine::waiting::rounds;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::park::ParkAnswer;
use crate::lock::command::scripts::Script;
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
        Verb::Acquire | Verb::Swap => {
            // The first repetition brings the script; behind it the digest suffices.
            let is_coming = verb == Verb::Acquire && fleet.link(master).scripts_loading[tag.place()];
            let script = if is_coming { Script::Sha } else { Script::Text };
            let owed = Owed::round(verb, tag, number, id).with(script);
            attempt::send_again(ground, fleet, locks, master, owed, script)
        }
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
            // A replaced extension must not arrive after the later extension, release or rest: nobody expects
            // its answer.
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
    if fleet.link(master).scripts_loading[tag.place()] {
        return;
    }
    let [first @ .., last] = tag.scripts() else { unreachable!("a plain lock's attempt is no script") };
    let only = MasterSet::only(master);
    for script in first {
        fleet.queue(only, Owed::Ignored, |out| script.encode_load(out));
    }
    let sent = fleet.queue(only, Owed::Scripts(tag), |out| last.encode_load(out));
    fleet.link_mut(master).scripts_loading[tag.place()] = !sent.is_empty();
}
