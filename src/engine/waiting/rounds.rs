//! The rounds of an attempt that is parked in the masters' queues (`parking.rs`).
//!
//! Each round is an attempt with a new token, which replaces the last round's. `locks/next.rs` says when a
//! round begins and what follows it.
//!
//! # Why two never hold
//!
//! Five rules make it so. P1, P2 and P3 stand beside the code that keeps them; the scripts keep the others:
//!
//! - P4. A master writes a token once when it executes the attempt's command, or once when it serves the
//!   entry: with the full TTL from that moment. It also writes a token in a swap, with the full TTL, and in a
//!   repair, with the rest of the validity. Only a swap overwrites another token, which the swap names. A
//!   script reports a write only after it.
//! - P5. A master removes a token before that TTL ends only for a command that names the token, by force, or
//!   by losing its memory. After a loss of memory its votes do not count until everything that it may have
//!   forgotten is over (quarantine).
//!
//! Assume that A holds with one token and B with another at the same moment. Some master is in both quorums.
//! If it lost no memory since its first write of either token, its key equals both tokens at that moment (P1,
//! P3 to P5: both deadlines count from before the writes). That is impossible. If it lost its memory between
//! the writes, B was decided after the quarantine, which outlasts A's validity. If it lost its memory after
//! both writes, it wrote the second token over the first. Only a swap does that, after the first token's
//! holder has given the lock up (P2). A snapshot restores entries whose channels belong to ended connections:
//! nobody receives the grant, so the script takes it back. The proof uses no tickets, rings, stays or
//! freshness.
//!
//! # The token that a park replaces
//!
//! The replaced token belongs to a claim whose release has begun. The answer to the park also answers that
//! release: the old token is gone from that master. The answer is no proof if a connection broke meanwhile
//! that may still deliver the old park; then the release is repeated as usual.

use std::mem::take;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::parking::{Event, Parked, Place};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::claim::Claim;
use crate::engine::locks::mode;
use crate::engine::locks::next::Input;
use crate::engine::locks::op::Op;
use crate::engine::locks::slab::{Id, Slab};
use crate::engine::locks::{hold, release};
use crate::engine::masters::Masters;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::timers::claim_timer;
use crate::limits;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::park::{self, Looked, Park, ParkAnswer};
use crate::lock::command::scripts::Script;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Ttl, Vote, whole_ms, whole_us};

/// Whether an acquisition can park now, because enough masters can park it.
pub(crate) fn can_park(now: Instant, fleet: &Fleet, op: &Op) -> bool {
    op.tries.brake.may_park(now) && fleet.can_park()
}

/// Whether an acquisition wants to park, and can.
pub(crate) fn parks(now: Instant, fleet: &Fleet, op: &Op) -> bool {
    op.parks && can_park(now, fleet, op)
}

/// Begins the first or the next round. `before` is the claim of the previous attempt. Returns the masters
/// that the round leaves out on purpose.
pub(crate) fn begin(core: &mut Core, id: Id, before: Id) -> MasterSet {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let (now, op) = (ground.now, locks.ops.get_mut(id));
    let claim_id = op.claim;
    let limit = locks.claims.get(claim_id).answer_limit;
    let (mut kept, mut held_by_old) = (None, MasterSet::EMPTY);
    let mut ticket_us = fleet.masters_us(op.asked.submitted);
    let old = locks.claims.find_mut(before).filter(|claim| claim.owner() == Some(id));
    let has_old = old.is_some();
    if let Some(old) = old {
        held_by_old = old.holders();
        if let Some(parked) = old.parked.as_mut() {
            let is_waiting = parked.waiting.has(fleet.quorum);
            parked.place.give_back(old.tally.granted, is_waiting);
            (kept, ticket_us) = (Some(take(&mut parked.place)), parked.ticket_us());
        }
        // P2: a command that ends a token (a park that replaces it, an unpark, a release, a swap) is sent only
        // when its round is over for this client, or its lock is given up. While the round runs, nothing else
        // is sent for the token, even over a later connection.
        old.is_owned = false;
        old.begin_release(now, held_by_old, MasterSet::EMPTY);
        ground.timers.arm(claim_timer(before), now + limit);
    }
    let (waits, ttl) = (op.asked.wait_until.is_some(), op.asked.ttl);
    let mut memory = None;
    let claim = locks.claims.get_mut(claim_id);
    claim.parked.put(|over| {
        Parked::new(now, Some(ticket_us), over, |over| {
            if let Some(place) = kept {
                memory = Some(over);
                return place;
            }
            let mut place = Place::new(fleet.count(), &mut ground.rng, over);
            place.note_sent(held_by_old, before);
            place
        })
    });
    let parked = claim.parked_mut();
    parked.begin(now, limit, ttl, waits, &mut ground.rng);
    let aside = parked.place.aside;
    if let Some(memory) = memory {
        locks.claims.get_mut(before).parked_mut().place = memory;
    }
    let owing = owing(&locks.claims, &locks.claims.get(claim_id).parked().place);
    op.tries.obstacle.clear();
    (op.is_noted, op.parks) = (true, true);
    let usable = fleet.usable;
    for master in usable.without(owing).without(aside).iter() {
        send(core, master, id);
    }
    for master in aside.iter() {
        release::end_round(core, master, id);
    }
    if has_old {
        release::free_if_done(&mut core.locks, before);
    }
    owing.intersection(usable).union(aside)
}

/// Returns the masters that owe an answer to the last park. They get no second park before (P2).
fn owing(claims: &Slab<Claim>, place: &Place) -> MasterSet {
    let owes = |(master, last): &(MasterId, Id)| {
        let parked = claims.find(*last).and_then(|claim| claim.parked.as_ref());
        parked.is_some_and(|parked| parked.owing.contains(*master))
    };
    place.all_last().filter(owes).map(|(master, _)| master).collect()
}

/// Sends the current round to a master that owes no answer to an earlier round. A master that cannot park
/// gets the release of the last token, then an attempt that does not wait.
fn send(core: &mut Core, master: MasterId, id: Id) {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let (now, only) = (ground.now, MasterSet::only(master));
    fleet.ask_due_facts(now);
    let op = locks.ops.get_mut(id);
    if !op.mode.counts_quarantined() && fleet.quarantined(now).contains(master) {
        op.tries.excluded.insert(master);
    }
    let claim_id = op.claim;
    if !fleet.parkers.contains(master) {
        release::end_round(core, master, id);
        return attempt(core, master, id);
    }
    let before = locks.claims.get(claim_id).parked().place.last(master);
    let owed = Owed::round(Verb::Acquire, Tag::Parked, 0, claim_id);
    let sent = encode(ground, fleet, locks, master, owed, id, before, Script::Sha);
    if sent.is_empty() {
        locks.claims.get_mut(claim_id).record(master, Vote::Failed(Failure::QueueFull));
        return;
    }
    let replaced = locks.claims.find_mut(before).filter(|_| before != claim_id);
    let replaced = replaced.and_then(|claim| claim.release.as_mut());
    let is_answer =
        replaced.is_some_and(|release| release.owed.contains(master) && !release.sent.contains(master));
    let claim = locks.claims.get_mut(claim_id);
    claim.asked = claim.asked.union(only);
    claim.tally.failed.remove(master);
    let parked = claim.parked_mut();
    parked.place.note_sent(only, claim_id);
    parked.note_sent(now, master, is_answer.then_some(before));
    claim.note_sent(now);
    if is_answer {
        locks.claims.get_mut(before).release_mut().sent.insert(master);
    }
}

/// Queues a park of the current round on a master. It replaces the token of the claim `before`.
#[expect(clippy::too_many_arguments, reason = "each is a part of the state")]
pub(crate) fn encode(
    ground: &Ground,
    fleet: &mut Fleet,
    locks: &Locks,
    master: MasterId,
    owed: Owed,
    id: Id,
    before: Id,
    script: Script,
) -> MasterSet {
    let op = locks.ops.get(id);
    let claim = locks.claims.get(op.claim);
    let (place, ticket_us) = (&claim.parked().place, claim.parked().ticket_us());
    let old = locks.claims.find(before).filter(|_| before != op.claim);
    let channel = fleet.link(master).learnt.channel.clone();
    let stay = if op.asked.wait_until.is_some() { limits::STAY } else { Duration::ZERO };
    let park = Park {
        id: &place.waiter,
        round: place.round,
        ticket_us,
        at_us: locks.claims.find(before).and_then(|before| before.entry_at(master)).unwrap_or(ticket_us),
        waited_us: whole_us(ground.now - op.asked.submitted),
        old_value: old.map_or(b"", |old| old.entry.value()),
        yields: place.yields,
        kind: mode::with_fence(&ground.config, claim.kind),
        stay_ms: whole_ms(stay),
        fresh_ms: whole_ms(freshness(op.asked.ttl)),
        grant_ms: op.asked.ttl.as_millis(),
        channel: &channel,
        vote: op.claim.to_bytes(),
        prefix_size: ground.config.prefix.len(),
    };
    fleet.queue(MasterSet::only(master), owed, |out| park::encode_park(out, script, &claim.entry, &park))
}

/// A master did not know the script of a park, and the park is not repeated: the master has no entry of it.
/// The token that the park would replace is released separately.
pub(crate) fn note_unsent(core: &mut Core, master: MasterId, claim_id: Id) {
    let Some(claim) = core.locks.claims.find_mut(claim_id) else { return };
    let parked = claim.parked_mut();
    parked.masters.remove(master);
    let Some(replaced) = parked.take_replaced(master) else { return };
    let release = core.locks.claims.find_mut(replaced).and_then(|claim| claim.release.as_mut());
    if let Some(release) = release.filter(|release| release.owed.contains(master)) {
        release.sent.remove(master);
        release::send_end(core, replaced, MasterSet::only(master));
    }
}

/// Sends the current round as an attempt to a master that cannot park.
fn attempt(core: &mut Core, master: MasterId, id: Id) {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let only = MasterSet::only(master);
    let op = locks.ops.get(id);
    let claim_id = op.claim;
    let claim = locks.claims.get(claim_id);
    let owed = Owed::round(Verb::Acquire, Tag::Of(claim.kind.mode()), 0, claim_id);
    let sent = mode::send_attempt(fleet, only, owed, claim, op.asked.ttl.as_millis(), Script::Sha);
    let claim = locks.claims.get_mut(claim_id);
    claim.parked_mut().place.note_sent(only, claim_id);
    claim.asked = claim.asked.union(sent);
    claim.note_sent(ground.now);
    if sent.is_empty() {
        claim.record(master, Vote::Failed(Failure::QueueFull));
    }
}

/// Effect of an answer to a park.
pub(crate) enum Heard {
    Vote(Vote),
    /// No vote yet.
    Then(Step),
}

/// Takes the answer to a park.
pub(crate) fn handle_answer(core: &mut Core, master: MasterId, claim_id: Id, answer: ParkAnswer) -> Heard {
    let now = core.ground.now;
    let Some(claim) = core.locks.claims.find_mut(claim_id) else { return Heard::Then(Step::Done) };
    let id = claim.op;
    let parked = claim.parked_mut();
    let replaced = parked.take_replaced(master);
    parked.owing.remove(master);
    if let ParkAnswer::Granted(seen) | ParkAnswer::Own(seen) | ParkAnswer::Waiting(seen, _) = &answer {
        if !parked.note_at(master, seen.ticket_us)
            && let Some(release) = claim.release.as_mut()
        {
            release.astray = release.astray.union(MasterSet::only(master).intersection(release.sent));
        }
        core.masters.fleet.note_clock(now, master, seen.now_us);
        if seen.has_more {
            release::serve_on(core, master, claim_id);
        }
    }
    if let Some(replaced) = replaced {
        // An error does not tell what the script did before it.
        let its = match &answer {
            ParkAnswer::Failed(failure) => ReleaseAnswer::Failed(failure.clone()),
            _ => ReleaseAnswer::Absent,
        };
        release::handle_answer(core, master, replaced, its);
    }
    if let ParkAnswer::Failed(failure) = &answer {
        core.masters.fleet.note_park_refused(master, failure);
    }
    if let Some((current, claim)) = core.locks.waiting_round(id)
        && current != claim_id
    {
        // The answer belongs to an earlier round: the current round follows, unless it was sent already.
        let asked = claim.asked;
        let is_owed = !asked.contains(master);
        if is_owed && core.masters.fleet.usable.contains(master) {
            send(core, master, id);
        }
    }
    follow_answer(core, master, claim_id, answer)
}

/// Takes the answer to the park of a round in any state: current, held, given up or over.
fn follow_answer(core: &mut Core, master: MasterId, claim_id: Id, answer: ParkAnswer) -> Heard {
    let now = core.ground.now;
    let claim = core.locks.claims.get_mut(claim_id);
    Heard::Vote(match answer {
        ParkAnswer::Granted(_) => {
            claim.parked_mut().note_granted(master);
            Vote::Granted
        }
        ParkAnswer::Own(_) => claim.note_twin(master),
        ParkAnswer::Failed(failure) => {
            // The lock may be held without this master. A repair gives the master the key, once the entry
            // cannot be served there.
            if let Some(owner) = claim.owner() {
                hold::repair_op(core, master, owner);
            }
            Vote::Failed(failure)
        }
        ParkAnswer::Waiting(_, waiting) => {
            core.masters.fleet.link_mut(master).stats.count_vote(&Vote::Refused { holder: waiting.holder });
            let Some(owner) = claim.owner() else { return Heard::Then(Step::Done) };
            // The answer may have been late, so that the master counted as failed.
            claim.tally.failed.remove(master);
            let op = core.locks.ops.get_mut(owner);
            if !op.is_asking() {
                return Heard::Then(Step::Done);
            }
            if let Some(state) = waiting.refusal {
                op.mode.note_refusal(master, state);
            }
            claim.parked_mut().note_waiting(now, master, &waiting);
            let obstacle = &mut op.tries.obstacle;
            obstacle.note(now, master, waiting.holder);
            obstacle.readers = obstacle.readers.max(waiting.readers);
            obstacle.label = waiting.label.or(obstacle.label.take());
            if op.asked.wait_until.is_none() {
                // The acquisition does not wait, so no entry stays.
                claim.parked_mut().masters.remove(master);
                claim.record(master, Vote::Refused { holder: HolderTtl::Unknown });
            }
            return Heard::Then(Step::Decide(owner));
        }
    })
}

/// Takes a grant from a master's queue. Returns whether it is a vote.
///
/// P3: a master's vote is its answer to the park, or its message of a grant, on the connection that carried
/// the park, while that connection stands. The vote counts once, for its round.
pub(crate) fn handle_grant(core: &mut Core, master: MasterId, claim_id: Id) -> bool {
    let Some(claim) = core.locks.claims.find_mut(claim_id) else { return false };
    let is_parked = claim.parked.as_ref().is_some_and(|parked| parked.masters.contains(master));
    let is_lost = claim.doubts.connection_lost.contains(master);
    if !is_parked || is_lost {
        return false;
    }
    claim.parked_mut().note_granted(master);
    claim.note_served(master);
    let waits = claim.owner().is_some_and(|owner| core.locks.ops.get(owner).is_asking());
    core.ground.stats.notified += u64::from(waits);
    true
}

/// Takes a ring for a round. If the lock is already held, a repair gives the master the key.
pub(crate) fn handle_ring(core: &mut Core, master: MasterId, claim_id: Id) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let Some(claim) = locks.claims.find_mut(claim_id) else { return Step::Done };
    let (Some(id), Some(parked)) = (claim.owner(), claim.parked.as_mut()) else { return Step::Done };
    parked.note_ring(ground.now, master, fleet.quorum, fleet.round_trip());
    if locks.ops.get(id).is_asking() {
        ground.stats.notified += 1;
        locks.arm(ground, id);
    } else {
        hold::repair_op(core, master, id);
    }
    Step::Done
}

/// The votes leave the current round open: plans what follows once all masters have answered.
#[cold]
#[inline(never)]
pub(crate) fn follow_votes(core: &mut Core, id: Id) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let op = locks.ops.get_mut(id);
    let (claim, ttl) = (locks.claims.get_mut(op.claim), op.asked.ttl);
    let answered = claim.tally.heard().union(claim.parked().waiting);
    if !claim.asked.without(answered).is_empty() {
        return Step::Done;
    }
    let round_trip = fleet.round_trip();
    let half_us = ground.config.window().half_us;
    let renumbers = op.mode.renumbers(ground.now, &mut ground.wall_clock, &claim.tally, half_us);
    let part = claim.tally.granted;
    let parked = claim.parked_mut();
    parked.plan_give_back(ground.now, part, round_trip, &mut ground.rng);
    if renumbers {
        parked.hasten(ground.now);
    }
    if parked.note_answered() {
        let left = op.tries.obstacle.least_left(ground.now);
        parked.plan_look(ground.now, left, round_trip, ttl, &mut ground.rng);
        op.tries.brake.ease();
    }
    locks.arm(ground, id);
    Step::Done
}

/// Does what is due for a parked acquisition.
pub(crate) fn handle_timeout(core: &mut Core, id: Id) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let now = ground.now;
    let op = locks.ops.get(id);
    if op.asked.wait_until.is_some_and(|until| until <= now) {
        return Step::Follow(id, Input::Due);
    }
    let (ttl, left) = (op.asked.ttl, op.tries.obstacle.least_left(now));
    let claim = locks.claims.get_mut(op.claim);
    let event = claim.parked_mut().take_due(now);
    match event {
        None => return Step::Done,
        Some(Event::Round) => {
            claim.parked_mut().place.note_in_time();
            return Step::Follow(id, Input::Due);
        }
        Some(Event::AnswersMissed) => {
            let waiting = claim.parked().waiting;
            fleet.note_unanswered(ground, claim, waiting);
        }
        Some(Event::Look) => {
            let to = claim.parked().first.intersection(fleet.usable).intersection(fleet.parkers);
            fleet.queue(to, Owed::Look(op.claim), |out| {
                park::encode_serve(out, Script::Sha, &op.key, ground.config.prefix.len());
            });
        }
    }
    claim.parked_mut().plan_look(now, left, fleet.round_trip(), ttl, &mut ground.rng);
    if event == Some(Event::Look) { Step::Done } else { Step::Decide(id) }
}

/// Takes the answer to a look of a lock's first waiter.
pub(crate) fn handle_look(core: &mut Core, master: MasterId, claim_id: Id, looked: Looked) {
    if looked.has_more {
        release::serve_on(core, master, claim_id);
    }
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let Some(id) = locks.claims.find(claim_id).and_then(|claim| claim.owner()) else { return };
    let Some(parked) = locks.round_mut(id) else { return };
    if parked.note_value(ground.now, master, looked.digest) {
        parked.hasten_look(ground.now, fleet.round_trip(), &mut ground.rng);
        locks.arm(ground, id);
    }
}

/// A connection broke: its pending answers will not come.
pub(crate) fn note_lost(locks: &mut Locks, master: MasterId) {
    for id in locks.ops.ids() {
        if let Some(parked) = locks.round_mut(id) {
            parked.note_lost(master);
        }
    }
}

/// A master is reachable again, over a new connection or after a silence. If it got the current round before,
/// that round is void there and the next round follows soon. Otherwise it gets the current round.
#[cold]
#[inline(never)]
pub(crate) fn rejoin(core: &mut Core, master: MasterId) {
    for id in core.locks.ops.ids() {
        let Core { ground, locks, .. } = core;
        let Some((_, claim)) = locks.waiting_round(id) else { continue };
        let (parked, is_asked) = (claim.parked(), claim.asked.contains(master));
        if owing(&locks.claims, &parked.place).contains(master) || parked.waiting.contains(master) {
            continue;
        }
        if is_asked {
            // An acquisition that does not wait has only this round, which ends at its limit.
            if locks.ops.get(id).asked.wait_until.is_none() {
                continue;
            }
            let at = ground.now + ground.rng.random_range(Duration::ZERO..=limits::REJOIN_TIME);
            locks.round_mut(id).expect("it waits").hasten(at);
            locks.arm(ground, id);
        } else if !parked.place.aside.contains(master) {
            send(core, master, id);
        }
    }
}

/// The current round became a held lock.
#[cold]
#[inline(never)]
pub(crate) fn hold(core: &mut Core, id: Id) {
    let claim = core.locks.ops.get(id).claim;
    core.locks.claims.get_mut(claim).parked_mut().hold();
    release::leave_rounds(core, id);
}

/// Returns how long a master may grant a parked attempt without a new round. Live waiters send a round in
/// time, and a dead waiter gets a lock of at most 10 s. For a longer TTL, the master rings, and the next
/// round asks for the lock.
fn freshness(ttl: Ttl) -> Duration {
    match ttl.as_duration() {
        ttl if ttl > limits::GRANTED_TTL_MAX => Duration::ZERO,
        ttl if ttl < limits::SHORT_TTL => ttl / 4,
        _ => limits::STAY,
    }
}
