//! Attempts: how each begins, and how its command is repeated for a master that did not know the script.
//!
//! | an attempt | asks by | goes to |
//! | --- | --- | --- |
//! | for a lock | a `SET`, or the script of its mode | the usable masters |
//! | that waits in the masters' queues (`rounds.rs`) | a park | the usable masters that owe no answer to the last park |
//! | for the lock of another caller here (`handover.rs`) | a swap; a `SET` where that caller has no key | the usable masters |
//! | for the lock of a handle (`adopt.rs`) | the script of an adoption | the usable masters |
//!
//! Each attempt is a new claim with a new token (I6), and counts from its start (I1).

use super::Locks;
use super::claim::Claim;
use super::next::By;
use super::slab::Id;
use super::{mode, release};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::masters::Masters;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::timers::{claim_timer, op_timer};
use crate::engine::waiting::rounds;
use crate::lock::command::adopt::encode_adopt;
use crate::lock::command::scripts::Script;
use crate::lock::command::{ExtendBy, encode_acquire, encode_swap};
use crate::lock::{MasterId, MasterSet, Resource, Token, Ttl};

/// In place of the claim that a swap releases: an adoption releases none.
const NO_CLAIM: u32 = u32::MAX;

/// Begins an attempt: draws a token, and queues the command on each usable master. `resource` names the lock
/// of an operation without a key.
pub(crate) fn begin(core: &mut Core, id: Id, by: By<'_>, resource: Option<Resource<'_>>) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let now = ground.now;
    fleet.ask_due_facts(now);
    let (claim_id, claim) = release::take_claim(ground, &mut locks.claims);
    let op = locks.ops.get_mut(id);
    let is_usual = matches!(by, By::Set) && !op.is_special;
    // P1: the start is read before any byte with the token is queued. The token belongs to this attempt alone.
    let terms = ground.terms.fit(op.asked.ttl, fleet.round_trip_limit, &ground.config);
    claim.begin(now, id, Token::random(&mut ground.rng), op.asked.ttl, terms.answer_limit);
    match resource {
        Some(resource) if op.key.is_empty() => {
            claim.entry.set(&ground.config.prefix, resource.as_bytes(), &claim.token);
        }
        _ => claim.entry.set_key(&op.key, &claim.token),
    }
    let before = op.claim;
    op.tries.count += 1;
    let deadline = op.await_votes(claim_id, now + terms.answer_limit);
    if !is_usual {
        return ask(core, id, by, before);
    }
    let owed = op.owed(Tag::PLAIN, claim_id);
    claim.asked = fleet.queue(fleet.usable, owed, |out| encode_acquire(out, &claim.entry, &terms.tail));
    if claim.asked != fleet.all || fleet.has_quarantines() {
        return await_votes(core, id, true, MasterSet::EMPTY);
    }
    ground.timers.arm(op_timer(id), deadline);
    Step::Done
}

/// The commands are queued. Every master without one counts as failed, except the masters `left` out on
/// purpose.
#[cold]
#[inline(never)]
fn await_votes(core: &mut Core, id: Id, is_set: bool, left: MasterSet) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let op = locks.ops.get_mut(id);
    let claim_id = op.claim;
    let claim = locks.claims.get_mut(claim_id);
    if is_set && !claim.asked.has(fleet.quorum) && fleet.usable.has(fleet.quorum) {
        // Too many masters have a full queue. Waiting for room would be another queue.
        op.take_key(claim);
        release::release_attempt(core, claim_id);
        return Step::Refuse(id);
    }
    let is_asked_everywhere = claim.asked == fleet.all && !fleet.has_quarantines();
    if !is_asked_everywhere {
        fleet.fail_unasked(claim, left);
    }
    locks.arm(ground, id);
    if is_asked_everywhere { Step::Done } else { Step::Decide(id) }
}

/// Queues the command of an attempt that may need more than a plain `SET`. `before` is the previous attempt's
/// claim.
#[cold]
#[inline(never)]
fn ask(core: &mut Core, id: Id, by: By<'_>, before: Id) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let (now, op) = (ground.now, locks.ops.get_mut(id));
    let (claim_id, ttl) = (op.claim, op.asked.ttl);
    let claim = locks.claims.get_mut(claim_id);
    op.add_label(claim);
    match by {
        By::Set => {
            claim.kind = op.begin_mode(fleet, now, &ground.wall_clock);
            let owed = op.owed(Tag::Of(claim.kind.mode()), claim_id);
            claim.asked = mode::send_attempt(fleet, fleet.usable, owed, claim, ttl.as_millis(), Script::Sha);
        }
        By::Park | By::Round => {
            // All rounds count as one attempt.
            op.tries.count -= u32::from(matches!(by, By::Round));
            claim.kind = op.begin_mode(fleet, now, &ground.wall_clock);
            let left = rounds::begin(core, id, before);
            return await_votes(core, id, false, left);
        }
        By::Swap(from) => {
            let (old, new) = (locks.claims.get(from), locks.claims.get(claim_id));
            let (holders, usable) = (old.holders(), fleet.usable);
            let to = holders.intersection(usable);
            let swapped = send_swap(fleet, to, (from, old), (claim_id, new), ttl, Script::Sha);
            let owed = Owed::round(Verb::Acquire, Tag::PLAIN, 0, claim_id);
            let rest = usable.without(holders);
            let asked = mode::send_attempt(fleet, rest, owed, new, ttl.as_millis(), Script::Sha);
            // A master without room for the swap gets a release, once there is room or when the answers are
            // due.
            let released = mode::send_release(fleet, holders.without(usable), from, old);
            let old = locks.claims.get_mut(from);
            old.begin_handover(now, claim_id, swapped, released);
            ground.timers.arm(claim_timer(from), now + old.answer_limit);
            locks.claims.get_mut(claim_id).asked = swapped.union(asked);
        }
        By::Handle(handle) => {
            claim.kind = handle.kind;
            op.tries.excluded = fleet.quarantined_at(now);
            let old = handle.entry(&ground.config.prefix);
            let owed = Owed::round(Verb::Swap, Tag::PLAIN, NO_CLAIM, claim_id).whole();
            let native = mode::native_only(fleet, claim.kind);
            let (native, new) = (native.intersection(fleet.usable), &claim.entry);
            let swapped = fleet.send_compared(native, owed, |out, by| encode_swap(out, by, &old, new, ttl));
            let adopted = fleet.queue(fleet.usable.without(native), owed, |out| {
                encode_adopt(out, &old, new, ttl, claim.kind.fencing_token(), ground.config.prefix.len());
            });
            claim.asked = swapped.union(adopted);
        }
    }
    await_votes(core, id, matches!(by, By::Set), MasterSet::EMPTY)
}

/// Queues a swap of one claim's token for another's; returns the masters that had room for it. A parked entry
/// of the old token is removed as well. Otherwise it would be served after the new lock.
fn send_swap(
    fleet: &mut Fleet,
    to: MasterSet,
    (from, old): (Id, &Claim),
    (id, new): (Id, &Claim),
    ttl: Ttl,
    script: Script,
) -> MasterSet {
    let parked = old.parked.as_ref().map_or(MasterSet::EMPTY, |parked| parked.masters).intersection(to);
    let (usual, owed) = (to.without(parked), |tag| Owed::round(Verb::Swap, tag, from.index, id).with(script));
    let swapped = match script {
        Script::Sha => fleet.send_compared(usual, owed(Tag::PLAIN), |out, by| {
            encode_swap(out, by, &old.entry, &new.entry, ttl);
        }),
        Script::Text => fleet.queue(usual, owed(Tag::PLAIN), |out| {
            encode_swap(out, ExtendBy::Eval, &old.entry, &new.entry, ttl);
        }),
    };
    swapped.union(mode::send_parked_swap(fleet, parked, owed(Tag::Parked), old, new, ttl, script))
}

/// Repeats an attempt for a master that did not know its script; with the digest if the script is on its way.
/// Repeats nothing if the lock is over, if its release was sent (the attempt would arrive after it), or if a
/// repair was sent, which does the same. Returns the master if it had room.
pub(crate) fn send_again(
    ground: &Ground,
    fleet: &mut Fleet,
    locks: &mut Locks,
    master: MasterId,
    owed: Owed,
    script: Script,
) -> MasterSet {
    let (only, none) = (MasterSet::only(master), MasterSet::EMPTY);
    let Owed::Round { verb, tag, number, id, .. } = owed else { return none };
    let claim = locks.claims.find(id).filter(|claim| claim.release.is_none());
    let Some((claim, owner)) = claim.and_then(|claim| Some((claim, claim.owner()?))) else { return none };
    let op = locks.ops.get(owner);
    let ttl = op.asked.ttl;
    let sent = if verb == Verb::Swap {
        let from = locks.claims.occupant(number).filter(|from| locks.claims.get(*from).has_successor(id));
        let Some(from) = from else { return none };
        send_swap(fleet, only, (from, locks.claims.get(from)), (id, claim), ttl, script)
    } else if claim.doubts.sent_again.contains(master) {
        return none;
    } else if tag == Tag::Parked {
        // Not after the wait: the masters would keep an entry that nobody renews.
        let Some((_, claim)) = locks.waiting_round(owner) else { return none };
        let before = claim.parked().replaced(master).unwrap_or(Id::NOBODY);
        let sent = rounds::encode(ground, fleet, locks, master, owed, owner, before, script);
        locks.claims.get_mut(id).parked_mut().note_sent(ground.now, master, None);
        sent
    } else if op.held().is_some_and(|held| held.valid_until <= ground.now) {
        return none;
    } else {
        mode::send_attempt(fleet, only, owed, claim, ttl.as_millis(), script)
    };
    locks.claims.get_mut(id).note_sent(ground.now);
    sent
}
