//! Releases: of a held lock, of a cancelled acquisition, and of what a failed attempt left.
//!
//! A release goes to every master that may hold the key, after everything sent before. It is repeated until
//! every master has answered or the key has expired (I9).
//!
//! A lock left for a time ends in the same way, with another command: each master gets the rest of the time
//! as the key's TTL, again over a new connection, until it answers. A master without an answer gets a release
//! when the time is over. An answer counts within the answer limit after its sending. A master whose answer
//! comes later may have started the time later, too, so it gets the time that is then left.

use std::time::Instant;

use super::Locks;
use super::claim::{Claim, Counted, Course, NO_RELEASE, Votes};
use super::leaving::Leaving;
use super::mode::{send_release, send_rest};
use super::op::OpState;
use super::slab::{Id, Slab};
use super::{counting, deny, reports};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::masters::Masters;
use crate::engine::masters::link::Predecessor;
use crate::engine::masters::owed::Owed;
use crate::engine::request::{Left, Outcome, Released};
use crate::engine::timers::claim_timer;
use crate::error::{ExtendError, LeaveError, ReleaseError};
use crate::limits;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::park;
use crate::lock::command::scripts::Script;
use crate::lock::{Failure, MasterId, MasterSet, Vote};

/// Ends an operation, and releases what it has or may get.
#[inline(never)]
pub(crate) fn submit(core: &mut Core, id: Id, awaited: bool) -> Step {
    let Core { ground, locks, .. } = core;
    let Some(op) = locks.ops.find_mut(id) else {
        report_nothing_left(ground, id, awaited);
        return Step::Done;
    };
    match op.state() {
        OpState::Releasing => Step::Done,
        _ => end(core, id, awaited),
    }
}

/// Reports a release with nothing left to release.
#[cold]
fn report_nothing_left(ground: &mut Ground, id: Id, awaited: bool) {
    if awaited {
        let nothing = Released { deleted: 0, absent: 0, unanswered: 0 };
        ground.report_outcome(id, Outcome::Release(Ok(nothing)));
    }
}

/// Ends an operation in any state but a release.
#[inline(always)]
fn end(core: &mut Core, id: Id, awaited: bool) -> Step {
    let Core { ground, locks, .. } = core;
    let op = locks.ops.get_mut(id);
    let is_noted = op.is_noted;
    // An expired lock is counted as lost, and a noted one is timed or observed.
    let mut is_usual = false;
    if let Some(held) = op.held_mut() {
        let under_way = held.extension.take();
        if under_way.is_some_and(|extension| !extension.is_renewal) {
            ground.report_outcome(id, Outcome::Extend(Err(ExtendError::NotHeld)));
        }
        is_usual = !is_noted && ground.now < held.valid_until;
    }
    let claim_id = op.claim;
    let Some(claim) = locks.claims.find_mut(claim_id).filter(|claim| claim.owner() == Some(id)) else {
        return stop_waiting(core, id, awaited);
    };
    if !locks.queues.leave_if_alone(id.index) {
        return Step::PassOn { id, awaited };
    }
    let (op, claim) = if is_usual {
        ground.stats.released += 1;
        (op, claim)
    } else {
        if op.is_asking() {
            leave_rounds(core, id);
        }
        let Core { ground, locks, .. } = core;
        counting::note_ended(ground, locks, id);
        (locks.ops.get_mut(id), locks.claims.get_mut(claim_id))
    };
    let due = core.ground.now + claim.answer_limit;
    if awaited {
        op.enter(OpState::Releasing);
    } else {
        claim.is_owned = false;
        core.locks.ops.free(id);
    }
    let is_under_way = release_claim(core, due, claim_id);
    if awaited && !is_under_way {
        settle(core, claim_id);
    }
    Step::Done
}

/// Ends an operation in a queue or between two attempts, or whose last claim is being released already.
#[cold]
#[inline(never)]
fn stop_waiting(core: &mut Core, id: Id, awaited: bool) -> Step {
    let op = core.locks.ops.get(id);
    core.ground.stats.abandoned += u64::from(!matches!(op.state(), OpState::Query));
    deny::end_op(core, id);
    report_nothing_left(&mut core.ground, id, awaited);
    Step::Done
}

/// Releases what a finished attempt may have left.
#[cold]
#[inline(never)]
pub(crate) fn release_attempt(core: &mut Core, id: Id) {
    let claim = core.locks.claims.get_mut(id);
    claim.is_owned = false;
    let due = core.ground.now + claim.answer_limit;
    release_claim(core, due, id);
}

/// The wait is over, or the lock is held: ends the earlier rounds' tokens that no later round replaced, and
/// notes whether the lock is contended.
#[cold]
#[inline(never)]
pub(crate) fn leave_rounds(core: &mut Core, id: Id) {
    let Core { ground, locks, .. } = core;
    let Some(parked) = locks.claims.get(locks.ops.get(id).claim).parked.as_ref() else { return };
    let hash = locks.queues.hash(locks.key_of(id.index));
    locks.contended.note(ground.now, hash, parked.place.has_waited);
    for master in core.masters.fleet.all.iter() {
        end_round(core, master, id);
    }
}

/// Ends the token last sent to a master, if that token belongs to an earlier round.
pub(crate) fn end_round(core: &mut Core, master: MasterId, id: Id) {
    let current = core.locks.ops.get(id).claim;
    let last = core.locks.claims.get(current).parked().place.last(master);
    let release = core.locks.claims.find(last).filter(|_| last != current).and_then(|claim| claim.release);
    if release.is_some_and(|release| release.owed.contains(master) && !release.sent.contains(master)) {
        send_end(core, last, MasterSet::only(master));
    }
}

/// A lock is left before masters have answered its park: the tokens that the park would replace there are
/// released. A forgotten claim needs no call, because the claims of its older tokens end before it.
pub(crate) fn forget_replaced(locks: &mut Locks, id: Id) {
    let replaced = locks.claims.get(id).parked.as_ref().into_iter().flat_map(|parked| parked.all_replaced());
    for (master, old) in replaced.collect::<Vec<_>>() {
        if let Some(release) = locks.claims.find_mut(old).and_then(|claim| claim.release.as_mut()) {
            release.sent.remove(master);
        }
    }
}

/// Starts to release a claim on every master that may hold its key, after everything sent before. A silent
/// master processes the release in order; a master with a full queue gets it later. Answers are late after
/// `due`; the claim needs no work before. Returns false if no answer will come.
// Inlined, because most of the work of a release request is here.
#[inline(always)]
fn release_claim(core: &mut Core, due: Instant, id: Id) -> bool {
    let claim = core.locks.claims.get_mut(id);
    debug_assert!(claim.release.is_none(), "a claim is released once");
    let owed = claim.holders();
    let is_short_hold =
        core.ground.now < claim.started + limits::SERVED_HOLD_MIN && claim.votes != Votes::Decide;
    core.locks.short_holds += u64::from(is_short_hold);
    claim.serves = core.ground.config.wakes_waiters
        && (!is_short_hold || core.locks.short_holds.is_multiple_of(limits::SHORT_HOLDS_PER_SERVE));
    let sent = send_release(&mut core.masters.fleet, owed, id, claim);
    claim.begin_release(core.ground.now, owed, sent);
    core.ground.timers.arm(claim_timer(id), due);
    if owed.is_empty() {
        free_if_done(&mut core.locks, id);
    }
    !owed.intersection(core.masters.fleet.usable).is_empty()
}

/// Gives up a held lock for a time: sends the rest to each master that may hold its key, after everything
/// sent before. Returns false if no answer will come.
pub(crate) fn leave_claim(core: &mut Core, id: Id, leaving: Leaving) -> bool {
    let claim = core.locks.claims.get_mut(id);
    let owed = claim.holders();
    claim.course = Course::Left(Box::new(leaving));
    claim.begin_release(core.ground.now, owed, MasterSet::EMPTY);
    core.ground.timers.arm(claim_timer(id), core.ground.now + claim.answer_limit);
    send_end(core, id, owed);
    !core.locks.claims.get_mut(id).release_mut().sent.is_empty()
}

/// Queues the release, or the rest of the time, on the masters in `owing` that have answered the last one.
pub(crate) fn send_end(core: &mut Core, id: Id, owing: MasterSet) {
    let Core { ground, masters, locks } = core;
    let claim = locks.claims.get_mut(id);
    claim.serves = ground.config.wakes_waiters;
    let under_way = claim.release_mut().sent;
    let to = owing.without(under_way);
    let is_in_time = claim.is_rest_in_time(ground.now);
    let rest = claim.next_rest(ground.now, &ground.config);
    let sent = match rest {
        Some(ttl) => send_rest(&mut masters.fleet, to, id, claim, ttl, Script::Sha),
        None => send_release(&mut masters.fleet, to, id, claim),
    };
    // A master's answer belongs to the last command that it got.
    let mut unproven = claim.unproven().union(claim.release_mut().unproven.intersection(under_way));
    if rest.is_some() && !is_in_time {
        // Their rest was sent too early: its answer would be late.
        unproven = unproven.union(under_way);
    }
    let release = claim.release_mut();
    release.unproven = unproven;
    release.astray = release.astray.intersection(under_way);
    release.sent = under_way.union(sent);
}

/// Lets a master go on that stopped at its limit while it served waiters after a command of this claim.
#[cold]
#[inline(never)]
pub(crate) fn serve_on(core: &mut Core, master: MasterId, id: Id) {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let Some(claim) = locks.claims.find(id) else { return };
    let prefix_size = ground.config.prefix.len();
    fleet.queue(MasterSet::only(master), Owed::Look(id), |out| {
        park::encode_serve(out, Script::Sha, claim.entry.key(), prefix_size);
    });
}

/// Takes a master's answer to a release. The master may have stopped serving at its limit.
pub(crate) fn handle_served_answer(
    core: &mut Core,
    master: MasterId,
    id: Id,
    answer: ReleaseAnswer,
    has_more: bool,
) {
    if has_more {
        serve_on(core, master, id);
    }
    if let ReleaseAnswer::Failed(failure) = &answer
        && release_natively(core, master, id, failure)
    {
        return;
    }
    handle_answer(core, master, id, answer);
}

/// A master failed to release. If it refused the script, sends it the native command and returns true.
fn release_natively(core: &mut Core, master: MasterId, id: Id, failure: &Failure) -> bool {
    let fleet = &mut core.masters.fleet;
    let is_script =
        |claim: &Claim| claim.kind.mode().is_released_natively() && (claim.serves || claim.parked.is_some());
    let is_refused = !fleet.native_only.contains(master)
        && core.locks.claims.find(id).is_some_and(is_script)
        && fleet.note_script_refused(master, failure);
    if is_refused {
        core.locks.claims.get_mut(id).release_mut().sent.remove(master);
        send_end(core, id, MasterSet::only(master));
    }
    is_refused && core.locks.claims.get_mut(id).release_mut().sent.contains(master)
}

/// Takes a master's answer to a release or a rest. Settles the awaited release if this answer ends it.
pub(crate) fn handle_answer(core: &mut Core, master: MasterId, id: Id, answer: ReleaseAnswer) {
    let Some(claim) = core.locks.claims.find_mut(id) else { return };
    let quorum = core.masters.fleet.quorum;
    let release = claim.release.as_mut().expect(NO_RELEASE);
    match answer {
        ReleaseAnswer::Deleted => {
            return match claim.count_deleted(master, quorum) {
                Counted::Decides => check(core, id),
                Counted::Done => core.locks.claims.free(id),
                Counted::Open => {}
            };
        }
        ReleaseAnswer::Absent => {
            release.absent.insert(master);
            // An absent key is proof on the connection that carried the `SET`; otherwise the `SET` may come
            // later. It is also no proof while the entry waits at another place than the command looked.
            let is_proof = !claim.doubts.connection_lost.contains(master);
            if is_proof && !release.astray.contains(master) {
                release.owed.remove(master);
            }
        }
        ReleaseAnswer::Failed(failure) => claim.failures.push((master, failure)),
    }
    release.sent.remove(master);
    if claim.is_owned { check(core, id) } else { free_if_done(&mut core.locks, id) }
}

/// Does what is due for a claim with a release in progress: notes late masters, and sends owed commands
/// again, or gives up once the key has expired everywhere.
pub(crate) fn handle_timeout(core: &mut Core, id: Id) {
    let now = core.ground.now;
    let claim = core.locks.claims.get(id);
    // Without a release the deadline is an old one: it belongs to the slot's previous claim.
    let Some(release) = claim.release else { return };
    let (limit, is_owned) = (claim.answer_limit, claim.is_owned);
    let mut due = release.started + limit;
    let may_be_there = now < claim.gone_at(core.ground.config.drift);
    if now >= due && is_owned && may_be_there && claim.leaving().is_none() {
        // A master that is answering earlier commands is not late.
        let backlog = core.masters.fleet.backlog(now, release.owed, limit);
        if !backlog.is_zero() {
            due = now + backlog + limit;
        }
    }
    if now < due {
        return core.ground.timers.arm(claim_timer(id), due);
    }
    for master in release.sent.iter() {
        core.masters.fleet.note_missed(&mut core.ground, master, limit);
    }
    // The caller waits no longer either.
    if is_owned {
        settle(core, id);
    }
    // The claim may have ended with the operation.
    let Some(release) = core.locks.claims.find(id).and_then(|claim| claim.release) else { return };
    send_end(core, id, release.owed);
    let (claim, drift) = (core.locks.claims.get(id), core.ground.config.drift);
    if now >= claim.gone_at(drift) && !claim.is_owned {
        forget_claim(&mut core.ground, &mut core.locks.claims, id);
    } else if let Some(at) = claim.release_deadline(now, drift) {
        core.ground.timers.arm(claim_timer(id), at);
    }
}

/// Settles an awaited release that need not wait for more.
pub(crate) fn check(core: &mut Core, claim_id: Id) {
    let (claim, fleet) = (core.locks.claims.get(claim_id), &core.masters.fleet);
    if claim.is_settled(fleet.count(), fleet.quorum) {
        settle(core, claim_id);
    }
}

/// Reports an awaited release, or a lock left for a time, with the answers so far. Unanswered releases
/// continue without the caller.
pub(crate) fn settle(core: &mut Core, claim_id: Id) {
    let claim = core.locks.claims.get_mut(claim_id);
    let id = claim.owner().expect("the release is awaited");
    claim.is_owned = false;
    let is_left = claim.leaving().is_some();
    let release = claim.release_mut();
    let ((deleted, absent, unanswered), is_over) = (release.counts(), release.owed.is_empty());
    if is_left {
        settle_left(core, claim_id, id);
    } else if unanswered <= core.masters.fleet.spare() {
        // Each branch queues its outcome: building it here and moving it took 28 instructions more.
        let released = Released { deleted, absent, unanswered };
        core.ground.report_outcome(id, Outcome::Release(Ok(released)));
    } else {
        settle_unconfirmed(core, claim_id, id);
    }
    core.locks.ops.free(id);
    if is_over {
        core.locks.claims.free(claim_id);
    }
}

#[cold]
#[inline(never)]
fn settle_unconfirmed(core: &mut Core, claim_id: Id, id: Id) {
    let Core { ground, masters, locks } = core;
    let release = locks.claims.get(claim_id).release.expect(NO_RELEASE);
    let report = reports::release_report(&masters.fleet, ground.now, locks.claims.get(claim_id), &release);
    ground.report_outcome(id, Outcome::Release(Err(ReleaseError::Unconfirmed(report))));
}

/// Takes an answer to the rest of the time. It may be the last one that is awaited.
pub(crate) fn handle_rest_answer(core: &mut Core, master: MasterId, id: Id, vote: Vote) {
    let Some(claim) = core.locks.claims.find_mut(id) else { return };
    let answer = match vote {
        Vote::Granted => {
            claim.note_rest_answer(core.ground.now, master);
            ReleaseAnswer::Deleted
        }
        Vote::Refused { .. } => ReleaseAnswer::Absent,
        Vote::Failed(failure) => ReleaseAnswer::Failed(failure),
        Vote::Pending => unreachable!("it is the vote of a reply"),
    };
    handle_answer(core, master, id, answer);
    follow_rest(core, master, id);
}

/// A master needs the script of a rest, but the time is over: the release follows.
pub(crate) fn handle_rest_over(core: &mut Core, master: MasterId, id: Id) {
    if let Some(claim) = core.locks.claims.find_mut(id) {
        claim.release_mut().sent.remove(master);
        follow_rest(core, master, id);
    }
}

/// A master has answered its rest. If the time is over, the release follows at once.
fn follow_rest(core: &mut Core, master: MasterId, id: Id) {
    let Some(claim) = core.locks.claims.find(id) else { return };
    let is_over = claim.leaving().is_some_and(|leaving| leaving.until <= core.ground.now);
    if is_over && claim.release.is_some_and(|release| release.owed.contains(master)) {
        send_end(core, id, MasterSet::only(master));
    }
}

/// Reports and counts a lock that was left for a time.
#[cold]
#[inline(never)]
fn settle_left(core: &mut Core, claim_id: Id, id: Id) {
    let result = left(core, claim_id);
    let Core { ground, locks, .. } = core;
    let claim = locks.claims.get(claim_id);
    let (leaving, release) = claim.left();
    // With a rest of zero it was released.
    if leaving.rest.is_some() {
        let held = release.started.saturating_duration_since(leaving.since);
        counting::note_left(ground, locks, id, held, matches!(result, Err(LeaveError::Lost(_))));
    }
    ground.report_outcome(id, Outcome::Leave(result));
}

/// Returns the outcome of a lock that was left for a time.
fn left(core: &Core, claim_id: Id) -> Result<Left, LeaveError> {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let claim = locks.claims.get(claim_id);
    let (leaving, release) = claim.left();
    let latest_end = claim.latest_end(ground.now, ground.config.drift);
    // A quorum that had the key while the lock was valid has had it all the time. A master in quarantine may
    // have received the key lately, and may have voted for another client before it restarted.
    let confirmed = claim.confirmed_rest().without(fleet.quarantined_at(ground.now));
    if confirmed.has(fleet.quorum) && ground.now < leaving.valid_until {
        let held_until = leaving.held_until(release.started);
        return Ok(Left { held_until, latest_end, unanswered: release.counts().2 });
    }
    let report = reports::release_report(fleet, ground.now, claim, release);
    Err(if release.deleted.union(release.owed).has(fleet.quorum) {
        LeaveError::Unconfirmed { report: report.into(), latest_end }
    } else {
        LeaveError::Lost(report)
    })
}

/// A connection broke: its answers to this claim will not come. Returns the operation that owns the claim.
pub(crate) fn lose_answers(core: &mut Core, master: MasterId, id: Id) -> Option<Id> {
    let locks = &mut core.locks;
    let claim = locks.claims.find_mut(id).filter(|claim| claim.asked.contains(master))?;
    claim.note_stray(master);
    claim.owner()
}

/// A link is ready, or has room again: first sends what claims owe to its master.
pub(crate) fn release_orphans(core: &mut Core, master: MasterId) {
    for id in core.locks.claims.ids() {
        let claim = core.locks.claims.get(id);
        if claim.release.is_some_and(|release| release.owed.contains(master)) {
            send_end(core, id, MasterSet::only(master));
        }
    }
}

/// Returns a slot for a new claim. If the table is full, orphans are left to their TTL. That makes room: an
/// operation owns at most one claim, and the table holds twice as many claims.
#[inline(always)]
pub(crate) fn take_claim<'a>(ground: &mut Ground, claims: &'a mut Slab<Claim>) -> (Id, &'a mut Claim) {
    if claims.is_full() {
        forget_orphans(ground, claims);
    }
    claims.take(|| Claim::blank(ground.now)).expect("there is room")
}

/// Leaves the keys of claims without an owner to their TTL. Otherwise a master that releases no locks could
/// keep the other masters from granting new locks.
#[cold]
#[inline(never)]
fn forget_orphans(ground: &mut Ground, claims: &mut Slab<Claim>) {
    for id in claims.ids() {
        if !claims.get(id).is_owned {
            forget_claim(ground, claims, id);
        }
    }
}

/// Ends a claim before each master has confirmed the release.
fn forget_claim(ground: &mut Ground, claims: &mut Slab<Claim>, id: Id) {
    ground.stats.orphans += u64::from(claims.get(id).may_be_left());
    claims.free(id);
}

/// A different process answers for a master: its grants are void.
pub(crate) fn void_grants(locks: &mut Locks, master: MasterId, before: Predecessor) {
    let has_ended = before == Predecessor::Ended;
    for id in locks.claims.ids() {
        locks.claims.get_mut(id).note_restart(master, has_ended);
    }
}

pub(crate) fn free_if_done(locks: &mut Locks, id: Id) {
    if locks.claims.get(id).is_done() {
        locks.claims.free(id);
    }
}
