//! Acquisitions: the request, the verdict at the first reply that settles it, and what follows a failed
//! attempt.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::Locks;
use super::attempt;
use super::claim::Votes;
use super::mode::{self, Learner, Wanted};
use super::next::{Act, By, Facts, Input, Phase, next};
use super::op::{Asked, Cause, Denied, Held, Op, OpState};
use super::slab::Id;
use super::{counting, deny, hold, release, reports};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::masters::Masters;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Question};
use crate::engine::queries::DRAINED;
use crate::engine::request::{Grant, Outcome, SubmitError};
use crate::engine::waiting::{accounting, pauses, rounds, turns};
use crate::error::Round;
use crate::limits;
use crate::lock::command;
use crate::lock::{
    self, Failure, HolderLabel, HolderTtl, InputError, MasterId, MasterSet, Resource, ScriptAnswer, Verdict,
    Vote,
};
use crate::options::{Mode, Options, WaitPolicy};

/// Longest delay of a retry after the holder's time has ended. The delay is random, so that waiters do not
/// all retry at once.
const HOLDER_JITTER: Duration = Duration::from_millis(2);

/// Takes an acquisition. Its first attempt begins at once, unless it waits behind other callers of this
/// engine.
#[inline(always)]
pub(crate) fn submit(
    core: &mut Core,
    resource: Resource<'_>,
    options: &Options,
    label: Option<HolderLabel<'_>>,
) -> Result<(Id, Step), SubmitError> {
    let Core { ground, masters, locks } = core;
    if locks.is_drained {
        return Err(SubmitError::Stopped(DRAINED.into()));
    }
    let now = ground.now;
    let ttl = ground.terms.ttl_of(options.ttl, &ground.config)?;
    let wait = options.wait.unwrap_or(ttl.as_duration());
    if options.min_validity >= ttl.validity() {
        let (asked, validity) = (options.min_validity, ttl.validity());
        return Err(InputError::MinValidityTooLong { asked, validity }.into());
    }
    let is_ordinary = options.is_ordinary() && label.is_none() && ground.config.holder_label.is_none();
    if !is_ordinary {
        check_options(ground, options)?;
    }
    let waits = !wait.is_zero();
    let wait_until = waits.then(|| now.checked_add(wait).unwrap_or(now + limits::FOREVER));
    let Some((id, op)) = locks.ops.take(|| Op::blank(now, ttl)) else {
        return Err(ground.refuse_acquisition(resource));
    };
    op.begin(Asked {
        submitted: now,
        ttl,
        min_validity: options.min_validity,
        wait_until,
        attempts_max: options.max_attempts,
        max_hold: options.auto_extend,
    });
    if ground.pace.is_due() {
        let is_sampled = ground.pace.time(now);
        op.note_timed(is_sampled);
    }
    let mut parks = false;
    if is_ordinary || prepare(ground, locks, id, options, label) {
        if waits {
            locks.ops.get_mut(id).set_key(&ground.config.prefix, resource);
            if !turns::enqueue(ground, &masters.fleet, locks, id, resource)? {
                return Ok((id, Step::Done));
            }
            if locks.contended.may_have(now) {
                turns::park_if_contended(now, locks, id);
                parks = rounds::parks(now, &masters.fleet, locks.ops.get(id));
            }
        }
    } else {
        let op = locks.ops.get_mut(id);
        op.set_key(&ground.config.prefix, resource);
        parks = rounds::parks(now, &masters.fleet, op);
    }
    let by = if parks { By::Park } else { By::Set };
    Ok((id, attempt::begin(core, id, by, Some(resource))))
}

/// Checks that unusual options fit together.
#[cold]
fn check_options(ground: &Ground, options: &Options) -> Result<(), InputError> {
    lock::check(options)?;
    match options.auto_extend {
        Some(Duration::ZERO) => Err(InputError::AutoExtendZero),
        Some(_) if ground.config.max_hold.is_zero() => Err(InputError::MaxHoldZero),
        _ => Ok(()),
    }
}

/// Sets the unusual options of a new acquisition, and its label. Returns whether the acquisition uses the
/// wait queues of this engine.
#[cold]
#[inline(never)]
fn prepare(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    options: &Options,
    label: Option<HolderLabel<'_>>,
) -> bool {
    let op = locks.ops.get_mut(id);
    if let Some(label) = label.map(|label| label.as_str()).or(ground.config.holder_label.as_deref()) {
        op.label.extend_from_slice(label.as_bytes());
    }
    let is_plain = matches!((options.mode, options.policy), (Mode::Plain, WaitPolicy::Cohort));
    op.is_special |= !is_plain || !op.label.is_empty();
    let waits = op.asked.wait_until.is_some();
    op.mode = Wanted::new(options.mode);
    match options.policy {
        WaitPolicy::Cohort => op.mode.is_queued() || !waits,
        WaitPolicy::Fair => {
            (op.is_fair, op.parks) = (true, true);
            false
        }
    }
}

/// Takes a vote for a claim. A late vote decides nothing.
pub(crate) fn handle_vote(core: &mut Core, master: MasterId, id: Id, vote: Vote) -> Step {
    let stats = &mut core.masters.fleet.link_mut(master).stats;
    stats.count_vote(&vote);
    if let Vote::Failed(failure) = &vote
        && failure.is_refusal()
        && let Some(claim) = core.locks.claims.find_mut(id)
    {
        claim.doubts.unrun.insert(master);
    }
    let Some(claim) = core.locks.claims.find_mut(id).filter(|claim| claim.votes != Votes::Void) else {
        stats.late += u64::from(vote == Vote::Granted);
        return Step::Done;
    };
    claim.record(master, vote);
    claim.owner().map_or(Step::Done, Step::Decide)
}

/// Takes the answer to a script. It contains a vote and may contain more.
#[inline(never)]
pub(crate) fn handle_answer(core: &mut Core, master: MasterId, id: Id, answer: ScriptAnswer) -> Step {
    let (now, locks) = (core.ground.now, &mut core.locks);
    let Some(claim) = locks.claims.find_mut(id) else { return Step::Done };
    let op = locks.ops.find_mut(claim.op);
    let op = op.map(|op| Learner { now, mode: &mut op.mode, obstacle: &mut op.tries.obstacle });
    match mode::vote(answer, master, claim, op) {
        Some(vote) => handle_vote(core, master, id, vote),
        None => Step::Done,
    }
}

/// Decides the attempt in progress, if there is one and the votes suffice.
pub(crate) fn decide(core: &mut Core, id: Id) -> Step {
    let Core { ground, masters, locks } = core;
    let now = ground.now;
    let op = locks.ops.get_mut(id);
    let OpState::Acquiring { .. } = op.state() else { return Step::Done };
    let quarantined = masters.fleet.quarantined(now).union(op.tries.excluded);
    let claim = locks.claims.get_mut(op.claim);
    match claim.tally.verdict(masters.fleet.count(), quarantined) {
        Verdict::Open if claim.parked.is_some() => {
            accounting::note_waiting(now, locks, id, masters.fleet.quorum);
            return rounds::follow_votes(core, id);
        }
        Verdict::Open => return Step::Done,
        Verdict::Contended => return Step::Follow(id, judge(core, id, quarantined)),
        Verdict::NoQuorum => return Step::Follow(id, Input::Unanswered),
        Verdict::Granted => {}
    }
    // The validity counts from the start of the attempt, and is tested last (I2, I3).
    let valid_until = claim.started + op.asked.ttl.validity();
    if now + op.asked.min_validity >= valid_until {
        if let Some(parked) = claim.parked.as_mut() {
            parked.place.note_late();
        }
        return Step::Follow(id, Input::Late);
    }
    let is_parked = claim.parked.is_some();
    claim.votes = Votes::AddToMargin;
    op.enter(OpState::Held(Held::new(claim.started, valid_until, op.asked.ttl)));
    let grant = Grant {
        token: claim.token,
        fencing_token: claim.kind.fencing_token(),
        valid_until,
        granted: claim.tally.granted,
        attempts: op.tries.count,
    };
    let hash = locks.queues.hash(claim.entry.key());
    let since = claim.started;
    ground.stats.acquired += 1;
    ground.report_outcome(id, Outcome::Acquire(Ok(grant)));
    let is_queued = op.mode.is_queued() && !op.is_fair;
    let (may_begin, max_hold) = (op.asked.wait_until.is_none(), op.asked.max_hold);
    if op.is_noted {
        accounting::note_acquired(now, locks, id);
        counting::note_acquired(ground, locks, id);
    }
    if is_parked {
        rounds::hold(core, id);
    }
    let Core { ground, locks, .. } = core;
    if let Some(max_hold) = max_hold {
        hold::begin_renewal(ground, locks, id, since, max_hold);
    }
    if is_queued && (!may_begin || !locks.queues.begin_first(id.index, hash)) {
        turns::note_held(core, id);
    }
    Step::Done
}

/// Masters refused the attempt, and no quorum is left. Returns whether holders are in the way, or only the
/// attempt's fencing token. Without time for a better token, the masters count as if they had not answered.
#[cold]
#[inline(never)]
fn judge(core: &mut Core, id: Id, quarantined: MasterSet) -> Input {
    let Core { ground, masters, locks } = core;
    let half_us = ground.config.window().half_us;
    let op = locks.ops.get_mut(id);
    let claim = locks.claims.get(op.claim);
    let Some(busy) = op.mode.judge(ground.now, &mut ground.wall_clock, &claim.tally, half_us) else {
        return Input::Refused;
    };
    let in_the_way = claim.tally.failed.union(quarantined).union(busy);
    if in_the_way.count() > masters.fleet.spare() {
        return Input::Refused;
    }
    let last = op.asked.wait_until.unwrap_or(op.asked.submitted + claim.answer_limit);
    if ground.now < last && op.mode.may_repeat() { Input::TokenRefused } else { Input::Unanswered }
}

/// Does what the table says.
#[cold]
#[inline(never)]
pub(crate) fn follow(core: &mut Core, id: Id, input: Input) -> Step {
    let Some(phase) = core.locks.phase(id) else { return Step::Done };
    let act = next(phase, input, facts(core, id, phase, input));
    match act {
        Act::Stay => return Step::Done,
        Act::Begin(by) => {
            prepare_next(core, id, phase, input);
            return attempt::begin(core, id, by, None);
        }
        Act::Count => return miss(core, id),
        Act::Pause(cause) => return end_attempt(core, id, cause, true),
        Act::Name(cause) => return end_attempt(core, id, cause, false),
        Act::Queue => turns::stand_behind(&mut core.ground, &core.masters.fleet, &mut core.locks, id),
        Act::Hasten => retry_after_holder(&mut core.ground, core.locks.ops.get_mut(id)),
        Act::Deny | Act::DenyQueued => {
            if matches!(phase, Phase::Asking | Phase::Parked) {
                release_failed(core, id);
            }
            if act == Act::Deny {
                deny::deny(core, id)
            } else {
                deny::deny_queued(core, id)
            }
            return Step::Done;
        }
    }
    core.locks.arm(&mut core.ground, id);
    Step::Done
}

/// Gathers the facts that the table asks for.
fn facts(core: &Core, id: Id, phase: Phase, input: Input) -> Facts {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let (now, op) = (ground.now, locks.ops.get(id));
    let is_over = op.asked.wait_until.is_some_and(|until| until <= now);
    let facts = Facts { is_over, parks: rounds::parks(now, fleet, op), ..Facts::default() };
    match phase {
        Phase::Naming => facts,
        Phase::Behind | Phase::Pausing => Facts { may_ask: turns::may_ask(now, locks, id), ..facts },
        Phase::Asking | Phase::Parked => {
            let claim = locks.claims.get(op.claim);
            let waits = op.asked.wait_until.is_some();
            Facts {
                can_park: waits && !is_over && !op.has_tried_enough() && rounds::can_park(now, fleet, op),
                can_retry: pauses::can_retry(now, fleet, op, claim, input == Input::Unanswered),
                is_cut_short: phase == Phase::Asking && is_over && now - claim.started < claim.answer_limit,
                has_failed_before: op.tries.denied.is_some(),
                has_queued: op.tries.has_queued,
                is_first_late: claim.parked.as_ref().is_some_and(|parked| parked.place.is_first_late()),
                ..facts
            }
        }
    }
}

/// Counts and notes that another attempt or round begins.
fn prepare_next(core: &mut Core, id: Id, phase: Phase, input: Input) {
    let Core { ground, locks, .. } = &mut *core;
    let op = locks.ops.get_mut(id);
    if phase != Phase::Parked || input == Input::TokenRefused {
        ground.stats.retries += u64::from(op.tries.count > 0);
    }
    match (phase, input) {
        (Phase::Behind | Phase::Pausing, _) => accounting::leave(ground.now, locks, id),
        (Phase::Asking, Input::TokenRefused) => {
            // The votes for the old token are void: a vote counts only for the token that the caller gets.
            let claim_id = op.claim;
            op.take_key(locks.claims.get(claim_id));
            op.is_noted = true;
            release::release_attempt(core, claim_id);
        }
        // A park replaces the token.
        (Phase::Asking | Phase::Parked | Phase::Naming, _) => {}
    }
}

/// Releases what a failed attempt may have left on the masters.
fn release_failed(core: &mut Core, id: Id) {
    accounting::leave(core.ground.now, &mut core.locks, id);
    release::leave_rounds(core, id);
    let op = core.locks.ops.get_mut(id);
    let claim_id = op.claim;
    op.take_key(core.locks.claims.get(claim_id));
    release::release_attempt(core, claim_id);
}

/// Ends a failed attempt. Plans the next one if another one follows. Otherwise asks the masters about the
/// holder before the operation ends.
fn end_attempt(core: &mut Core, id: Id, cause: Cause, is_followed: bool) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = &mut *core;
    let now = ground.now;
    if cause == Cause::Contended {
        accounting::note_refused(now, locks, id);
    }
    let mut denied = denied(fleet, locks, id, cause, now);
    let retry_at = is_followed.then(|| pauses::plan_attempt(ground, locks, id, denied.report.lacks_rights()));
    let op = locks.ops.get_mut(id);
    op.parks |= cause == Cause::Contended;
    let claim = locks.claims.get(op.claim);
    let (refused, limit, is_parked) = (claim.tally.refused, claim.answer_limit, claim.parked.is_some());
    release_failed(core, id);
    let Core { ground, masters, locks } = core;
    let op = locks.ops.get_mut(id);
    let is_known = is_parked || op.mode.gather_reports(now, &mut op.tries.obstacle);
    let is_adopted = matches!(op.mode, Wanted::Adopted);
    op.is_noted |= retry_at.is_some();
    if retry_at.is_none() {
        turns::leave_queue(ground, &masters.fleet, locks, id, Duration::ZERO);
    }
    // A parked round has reported time and label. In every mode but the plain one, a refusal has reported the
    // time. An adoption asks nothing: its handle is useless, whoever has the lock.
    let wants_label = retry_at.is_none() && !is_parked;
    if (!is_known || wants_label) && !is_adopted && ground.config.ask_holder && cause == Cause::Contended {
        denied.asked = ask_holders(&mut masters.fleet, locks, id, refused, retry_at.is_none());
    }
    let op = locks.ops.get_mut(id);
    let is_asking = !denied.asked.is_empty();
    op.tries.denied = Some(Box::new(denied));
    if let Some(retry_at) = retry_at {
        op.retry_by(retry_at);
        if is_known {
            retry_after_holder(ground, op);
        }
    } else if is_asking {
        // An attempt that was repeated with another token has used a part of this time.
        let until = op.asked.wait_until.unwrap_or(op.asked.submitted + 2 * limit);
        op.enter(OpState::Asking { deadline: until.min(now + limit) });
    } else {
        deny::deny(core, id);
        return Step::Done;
    }
    locks.arm(ground, id);
    Step::Done
}

/// Describes how an operation's attempt failed.
pub(crate) fn denied(fleet: &Fleet, locks: &Locks, id: Id, cause: Cause, now: Instant) -> Denied {
    let op = locks.ops.get(id);
    let claim = locks.claims.get(op.claim);
    // Number of refusing masters that a quorum still needs, if every master that neither refused nor failed
    // grants.
    let tally = claim.tally_so_far();
    let free_count = fleet.count() - tally.refused.count() - tally.failed.count();
    let missing_count = fleet.quorum.saturating_sub(free_count);
    let report = reports::report(fleet, now, Round::Acquire, claim, &tally);
    Denied { cause, report, missing_count, asked: MasterSet::EMPTY }
}

/// Asks the masters that refused for the key's time left and for its value, which may contain a label. Also
/// asks for the number of readers in a first attempt, in the last one, and after an attempt that met readers;
/// a reader never asks for it. A reader may also be refused because of a waiter.
fn ask_holders(fleet: &mut Fleet, locks: &Locks, id: Id, refused: MasterSet, is_last: bool) -> MasterSet {
    let op = locks.ops.get(id);
    let usable = refused.intersection(fleet.usable);
    fleet.queue(usable, Owed::Query { question: Question::Value, id }, |out| {
        command::query::encode_value(out, &op.key)
    });
    if op.mode.is_queued() && (is_last || op.tries.count == 1 || op.tries.obstacle.readers > 0) {
        fleet.queue(usable, Owed::Query { question: Question::ReaderCount, id }, |out| {
            command::shared::encode_reader_count(out, &op.key)
        });
    }
    fleet.queue(usable, Owed::Query { question: Question::Holder, id }, |out| {
        command::query::encode_pttl(out, &op.key)
    })
}

/// Takes the key's time left from a master. The last report ends the operation, or brings its next attempt
/// forward.
pub(crate) fn handle_holder(core: &mut Core, master: MasterId, id: Id, ttl: HolderTtl) -> Step {
    let Core { ground, locks, .. } = core;
    let Some(op) = locks.ops.find_mut(id) else { return Step::Done };
    let Some(denied) = op.denied_lately().filter(|denied| denied.asked.contains(master)) else {
        return Step::Done;
    };
    denied.asked.remove(master);
    let is_last = denied.asked.is_empty();
    // The refusal may have reported the time already.
    if !op.tries.obstacle.has_report_of(master) {
        op.tries.obstacle.note(ground.now, master, ttl);
    }
    if !is_last {
        return Step::Done;
    }
    accounting::note_holder(ground.now, locks, id);
    Step::Follow(id, Input::Named)
}

/// Moves the next attempt to the end of the holder's time, if that is earlier than planned.
fn retry_after_holder(ground: &mut Ground, op: &mut Op) {
    let denied = op.tries.denied.as_ref().expect("an attempt failed");
    if let HolderTtl::Left(left) = denied.holder(ground.now, &op.tries.obstacle)
        && op.tries.brake.time_left(ground.now).is_zero()
    {
        op.retry_by(ground.now + left + ground.rng.random_range(Duration::from_millis(1)..=HOLDER_JITTER));
    }
}

/// Counts every master that has not answered the `SET` in time as silent. The lock may be held by then.
pub(crate) fn note_missed_set(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    // The claim is gone if the last attempt failed.
    let claim = locks.claims.find(locks.ops.get(id).claim);
    // A master where a round waits has answered.
    let Some(claim) = claim.filter(|claim| claim.parked.is_none()) else { return };
    let (limit, missing) = (claim.answer_limit, claim.asked.without(claim.tally.heard()));
    if ground.now - claim.started >= limit {
        missing.iter().for_each(|master| masters.fleet.note_missed(ground, master, limit));
    }
}

/// The attempt's time is over: every master without an answer has failed.
pub(crate) fn miss(core: &mut Core, id: Id) -> Step {
    let Core { ground, masters, locks } = core;
    let claim = locks.claims.get_mut(locks.ops.get(id).claim);
    masters.fleet.note_unanswered(ground, claim, MasterSet::EMPTY);
    Step::Decide(id)
}

/// The connection that carried an attempt broke. Even a grant is void, because the master may have lost it
/// with the connection (I7).
pub(crate) fn lose_vote(core: &mut Core, master: MasterId, id: Id) -> Step {
    let Core { masters, locks, .. } = core;
    let op = locks.ops.get_mut(id);
    let claim = locks.claims.get_mut(op.claim);
    let is_unanswered = claim.asked.without(claim.tally.heard()).contains(master);
    masters.fleet.link_mut(master).stats.unanswered += u64::from(is_unanswered);
    if !claim.tally.refused.union(claim.tally.failed).contains(master) {
        claim.record(master, Vote::Failed(Failure::ConnectionLost));
    }
    Step::Decide(id)
}
