//! Attempts: the `SET` to all masters, the verdict at the earliest reply that fixes it, and the next try.

use std::time::Duration;

use rand::RngExt;

use super::claim::{Claim, Course, Votes};
use super::fair::{Policy, Queuing};
use super::ground::Ground;
use super::kind::{AttemptAnswer, Tag};
use super::locks::Locks;
use super::masters::Masters;
use super::mode::{self, Gathered, ModeState};
use super::op::{Asked, Cause, Denied, HandoverStreak, Held, Op, OpState, Tries};
use super::owed::{Owed, Question, Verb};
use super::queries::DRAINED;
use super::slab::Id;
use super::timers::op_timer;
use super::{
    Grant, OpId, Outcome, SubmitError, counting, defects, hold, keep, queries, release, reports, turns,
    waiting,
};
use crate::error::{AcquireError, Round};
use crate::limits;
use crate::lock::command;
use crate::lock::{
    Failure, HolderLabel, HolderTtl, InputError, MasterId, MasterSet, Resource, Token, Verdict, Vote,
};
use crate::mutants::mutant;
use crate::options::{Mode, Options, WaitPolicy};

/// A retry follows the end of a holder's time by at most this, so that waiters do not all come at once.
const HOLDER_JITTER: Duration = Duration::from_millis(2);

pub(super) fn submit_acquire(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    resource: Resource<'_>,
    options: &Options,
    label: Option<HolderLabel<'_>>,
) -> Result<OpId, SubmitError> {
    let now = ground.now;
    if locks.is_drained && !mutant!(DrainedAcquires) {
        return Err(SubmitError::Stopped(DRAINED.into()));
    }
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
        return Err(counting::refuse_acquisition(ground, resource));
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
        ground.pace.time(now, op);
    }
    if !is_ordinary && !prepare(ground, locks, id, options, label) {
        command::entry::encode_key(
            &mut locks.ops.get_mut(id).key,
            &ground.config.prefix,
            resource.as_bytes(),
        );
        start_attempt(ground, masters, locks, id, None);
        return Ok(OpId(id));
    }
    if waits {
        return turns::enqueue(ground, masters, locks, id, resource);
    }
    start_attempt(ground, masters, locks, id, Some(resource));
    Ok(OpId(id))
}

/// Whether options that are not the ordinary ones go together.
#[cold]
fn check_options(ground: &Ground, options: &Options) -> Result<(), InputError> {
    mode::check(options)?;
    match options.auto_extend {
        Some(Duration::ZERO) => Err(InputError::AutoExtendZero),
        Some(_) if ground.config.max_hold.is_zero() => Err(InputError::MaxHoldZero),
        _ => Ok(()),
    }
}

/// Gives a new acquisition what its options ask beyond the ordinary, and its label. Returns whether it
/// takes part in the wait queues of this engine.
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
    let is_plain = matches!((options.mode, options.policy), (Mode::Plain, WaitPolicy::Notified));
    op.is_special |= !is_plain || !op.label.is_empty();
    let waits = op.asked.wait_until.is_some();
    op.mode = ModeState::new(options.mode);
    if options.keeps_readers_out && waits && op.mode.is_queued() {
        op.reservation = Some(Box::default());
    }
    match options.policy {
        WaitPolicy::Notified if mutant!(ReadersQueue) => true,
        WaitPolicy::Notified => op.mode.is_queued() || !waits,
        WaitPolicy::Fair => {
            let queuing = Queuing::new(Token::marked(&mut ground.rng), waits, &ground.config);
            op.policy = Policy::Queue(Box::new(queuing));
            if waits {
                // A queue of its own: it is never behind another of this engine.
                let hash = locks.queues.hash(op.channel());
                locks.queues.found(id.index, hash);
            }
            false
        }
    }
}

/// Draws a token and queues the `SET` on every usable master (I6: a token for each attempt). One that
/// waits has the key with it, others give the lock's name.
pub(super) fn start_attempt(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    resource: Option<Resource<'_>>,
) {
    let now = ground.now;
    let op = locks.ops.get_mut(id);
    let Some((claim_id, claim)) = locks.claims.take(|| Claim::blank(now)) else {
        return start_with_room(ground, masters, locks, id, resource);
    };
    ground.terms.fit(op.asked.ttl, masters.fleet.round_trip_limit, &ground.config);
    claim.begin(now, id, Token::random(&mut ground.rng), op.asked.ttl, ground.terms.answer_limit);
    match resource {
        Some(resource) => claim.entry.set(&ground.config.prefix, resource.as_bytes(), &claim.token),
        None => claim.entry.set_key(&op.key, &claim.token),
    }
    claim.asked = if !op.is_special {
        masters.fleet.queue(
            masters.fleet.usable,
            Owed::round(Verb::Acquire, Tag::Plain, 0, claim_id),
            |out| {
                command::encode_acquire(out, &claim.entry, &ground.terms.tail);
            },
        )
    } else {
        claim.course = Course::Attempt(id);
        let tail = &ground.terms.tail;
        op.send_unusual_attempt(&mut masters.fleet, now, claim_id, claim, &ground.wall_clock, tail)
    };
    let deadline = op.await_votes(claim_id, now + ground.terms.answer_limit);
    op.tries.streak.count = 0;
    if op.tries.is_subscribed {
        masters.subscriptions.begin_attempt(id);
    }
    if !claim.asked.has(masters.fleet.quorum) && masters.fleet.usable.has(masters.fleet.quorum) {
        return refuse_overload(ground, masters, locks, id, claim_id);
    }
    if !mutant!(NoTimeOut) {
        ground.timers.arm(op_timer(id), deadline);
    }
    if claim.asked != masters.fleet.all || masters.fleet.has_quarantines() {
        note_unasked(masters, locks, claim_id);
        decide_acquire(ground, masters, locks, id);
    }
}

/// The queues of too many masters are full: to wait for room would be one more queue. An attempt that
/// some had room for is released.
#[cold]
fn refuse_overload(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id, claim_id: Id) {
    let claim = locks.claims.get_mut(claim_id);
    claim.owner = None;
    let due = ground.now + claim.answer_limit;
    release::release_claim(ground, masters, locks, due, claim_id);
    counting::end_denied(ground, masters, locks, id, AcquireError::Overloaded);
}

/// Begins the attempt of an operation that a lock is handed over to, with the masters that were sent the
/// swap or a `SET`.
pub(super) fn start_handed_over(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    claim_id: Id,
    streak: HandoverStreak,
    asked: MasterSet,
) {
    let op = locks.ops.get_mut(id);
    let claim = locks.claims.get_mut(claim_id);
    claim.asked = asked;
    let deadline = op.await_votes(claim_id, ground.now + claim.answer_limit);
    op.tries.streak = streak;
    ground.stats.hand_overs += 1;
    ground.timers.arm(op_timer(id), deadline);
    note_unasked(masters, locks, claim_id);
    decide_acquire(ground, masters, locks, id);
}

/// The table of claims is full: leaves orphans to their TTL, and starts if that made room.
#[cold]
fn start_with_room(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    resource: Option<Resource<'_>>,
) {
    release::forget_orphans(ground, locks);
    if locks.claims.is_full() {
        counting::end_denied(ground, masters, locks, id, AcquireError::Overloaded);
    } else {
        start_attempt(ground, masters, locks, id, resource);
    }
}

/// Masters known to be down or silent, or without room in their queues, vote `Failed` at once.
fn note_unasked(masters: &mut Masters, locks: &mut Locks, claim_id: Id) {
    let claim = locks.claims.get_mut(claim_id);
    for master in masters.fleet.all.without(claim.asked).iter() {
        claim.record(master, Vote::Failed(masters.fleet.why_unasked(master)));
        masters.fleet.link_mut(master).stats.unanswered += 1;
    }
}

pub(super) fn handle_acquire_vote(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    vote: Vote,
) {
    let stats = &mut masters.fleet.link_mut(master).stats;
    stats.count_vote(&vote);
    let is_counted = |votes| match votes {
        Votes::AddToMargin if mutant!(StragglersCancelled) => false,
        Votes::Decide | Votes::AddToMargin => true,
        Votes::Void => false,
    };
    let Some(claim) = locks.claims.find_mut(id).filter(|claim| is_counted(claim.votes)) else {
        stats.late += u64::from(vote == Vote::Granted);
        return;
    };
    claim.record(master, vote);
    if let Some(op) = claim.owner {
        decide_acquire(ground, masters, locks, op);
    }
}

/// The answer to an attempt that has a script: a vote, and more than one.
#[inline(never)]
pub(super) fn handle_attempt_answer(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    answer: AttemptAnswer,
) {
    let Some(claim) = locks.claims.find_mut(id) else { return };
    let op = match claim.course {
        Course::Attempt(attempter) => locks.ops.find_mut(attempter).map(Op::learner),
        Course::HandedOver(_) | Course::Left(_) => None,
    };
    if let Some(vote) = mode::vote(answer, master, claim, op, masters.fleet.quorum) {
        handle_acquire_vote(ground, masters, locks, master, id, vote);
    }
}

/// A grant or a deletion was counted that may decide something; the claim may have ended since.
#[inline]
pub(super) fn handle_counted(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let Some(claim) = locks.claims.find(id) else { return };
    match claim.owner {
        Some(op) if claim.release.is_none() => decide_acquire(ground, masters, locks, op),
        Some(op) => release::settle_release(ground, masters, locks, id, op),
        None => {}
    }
}

pub(super) fn decide_acquire(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let op = locks.ops.get_mut(id);
    let OpState::Acquiring { .. } = op.state else { return };
    let quarantined = masters.fleet.quarantined(now).union(op.mode.excluded());
    let claim = locks.claims.get_mut(op.claim);
    let cause = match claim.tally.verdict(masters.fleet.count(), quarantined) {
        Verdict::Open => return,
        Verdict::Contended => match handle_refused(ground, masters, locks, id, quarantined) {
            Some(cause) => cause,
            None => return,
        },
        Verdict::NoQuorum => Cause::NoQuorum,
        Verdict::Granted => {
            // The deadline counts from the start of the attempt, and is tested last (I2, I3).
            let mut valid_until = claim.started + op.asked.ttl.validity();
            if mutant!(DeadlineFromQuorum) {
                valid_until = now + op.asked.ttl.validity();
            }
            if mutant!(HandoverFromReply) && op.tries.streak.count > 0 {
                valid_until = now + op.asked.ttl.validity();
            }
            if now + op.asked.min_validity < valid_until || mutant!(DeadlineUnchecked) {
                claim.votes = Votes::AddToMargin;
                claim.notifies = ground.config.wakes_waiters;
                // A client that has waited lately is one of many, and so its locks are wanted, too.
                claim.publishers = masters.subscriptions.ready();
                op.state = OpState::Held(Held::new(claim.started, valid_until, op.asked.ttl));
                let granted = claim.tally.granted;
                let grant = Grant {
                    token: claim.token,
                    fencing_token: claim.kind.fencing_token(),
                    valid_until,
                    granted,
                    attempts: op.tries.count,
                };
                let hash = locks.queues.hash(claim.entry.key());
                let since = claim.started;
                ground.stats.acquired += 1;
                ground.report_outcome(id, Outcome::Acquire(Ok(grant)));
                let is_queued = op.mode.is_queued();
                let (may_found, max_hold) = (op.asked.wait_until.is_none(), op.asked.max_hold);
                if op.is_noted {
                    counting::note_acquired(ground, locks, id);
                }
                if let Some(max_hold) = max_hold {
                    keep::begin_renewal(ground, locks, id, since, max_hold);
                }
                if !is_queued {
                    waiting::unwatch(ground, masters, locks, id);
                } else if !may_found || !locks.queues.found_first(id.index, hash) {
                    turns::note_held(ground, masters, locks, id);
                }
                return;
            }
            Cause::Expired
        }
    };
    fail_attempt(ground, masters, locks, id, cause);
}

/// So many masters refused an attempt that no quorum is left. If it was for its token, makes another
/// attempt with a better one, if there is time; else says how this one failed.
///
/// The votes of the old one are void: each one that counts was given for the token that is handed out.
#[cold]
fn handle_refused(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    quarantined: MasterSet,
) -> Option<Cause> {
    let now = ground.now;
    let half_us = ground.config.window().half_us;
    let op = locks.ops.get_mut(id);
    let claim = locks.claims.get_mut(op.claim);
    let Some(busy) = op.mode.judge(now, &mut ground.wall_clock, &claim.tally, half_us) else {
        return Some(Cause::Contended);
    };
    let in_the_way = claim.tally.failed.union(quarantined).union(busy);
    if in_the_way.count() > masters.fleet.spare() {
        return Some(Cause::Contended);
    }
    let limit = claim.answer_limit;
    let last = op.asked.wait_until.unwrap_or(op.asked.submitted + limit);
    if now >= last || !op.mode.may_repeat() {
        return Some(Cause::NoQuorum);
    }
    let (claim_id, granted) = (op.claim, claim.tally.granted);
    op.key.clear();
    op.key.extend_from_slice(claim.entry.key());
    claim.owner = None;
    release::release_claim(ground, masters, locks, now + limit, claim_id);
    ground.stats.retries += 1;
    locks.ops.get_mut(id).is_noted = true;
    start_attempt(ground, masters, locks, id, None);
    if mutant!(RenumberingKeepsVotes) {
        defects::keep_votes(locks, id, granted);
    }
    None
}

/// Releases what the attempt may have left, then waits for the next one or ends the operation.
fn fail_attempt(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id, cause: Cause) {
    let now = ground.now;
    let op = locks.ops.get(id);
    let claim = locks.claims.get(op.claim);
    let refused = claim.tally.refused;
    // Had every other master granted, this many of those that refused would still have been needed.
    let free_count = masters.fleet.count() - refused.count() - claim.tally.failed.count();
    let missing_count = masters.fleet.quorum.saturating_sub(free_count);
    let report = reports::report(&masters.fleet, ground.now, Round::Acquire, claim, &claim.tally);
    // The label known before is kept until an answer says otherwise: a wait may end before the last one.
    let holder_label = op.tries.denied.as_ref().and_then(|denied| denied.holder_label.clone());
    let mut denied = Denied { cause, report, missing_count, asked: MasterSet::EMPTY, holder_label };
    let (claim_id, started, limit) = (op.claim, claim.started, claim.answer_limit);
    // An attempt that had to end with the wait says nothing of its masters: the one before it does.
    let is_cut_short = now - started < limit && op.asked.wait_until.is_some_and(|until| until <= now);
    let is_hopeless = cause == Cause::NoQuorum && waiting::is_quarantined_beyond_wait(masters, locks, id);
    let retry_at =
        if is_hopeless { None } else { waiting::next_attempt(ground, masters, locks, id, started) };
    let retry_at = if cause == Cause::Contended {
        waiting::keep_readers_out(ground, masters, locks, id, retry_at)
    } else {
        retry_at
    };
    let (op, claim) = (locks.ops.get_mut(id), locks.claims.get_mut(claim_id));
    op.key.clear();
    op.key.extend_from_slice(claim.entry.key());
    claim.owner = None;
    let set_on = claim.holders();
    release::release_claim(ground, masters, locks, now + limit, claim_id);
    let op = locks.ops.get_mut(id);
    if let Some(queuing) = op.policy.queuing() {
        queuing.notify_first(&mut masters.fleet, set_on, &op.key);
    }
    if is_cut_short && op.tries.denied.is_some() {
        return deny(ground, masters, locks, id);
    }
    if is_cut_short && op.tries.has_queued && cause != Cause::Contended {
        return turns::deny_queued(ground, masters, locks, id);
    }
    let gathered = op.gather_holders();
    if retry_at.is_none() {
        turns::leave_queue(ground, locks, id, Duration::ZERO);
    }
    let is_asked = retry_at.is_none() || !masters.subscriptions.follows_release(id);
    if gathered == Gathered::None && ground.config.ask_holder && cause == Cause::Contended && is_asked {
        denied.asked = ask_holders(masters, locks, id, refused, retry_at.is_none());
    }
    let op = locks.ops.get_mut(id);
    op.is_noted |= retry_at.is_some();
    let is_asking = !denied.asked.is_empty();
    op.tries.denied = Some(Box::new(denied));
    op.state = match retry_at {
        Some(retry_at) => OpState::Waiting { retry_at },
        None if is_asking => {
            let deadline = op.asked.wait_until.map_or(now + limit, |until| until.min(now + limit));
            OpState::Asking { deadline }
        }
        None => return deny(ground, masters, locks, id),
    };
    if gathered == Gathered::All {
        finish_asking(ground, masters, locks, id);
    } else {
        locks.arm(ground, id);
    }
    if retry_at.is_some() && cause == Cause::Contended {
        waiting::watch(ground, masters, locks, id, now - started);
    }
}

/// Asks the masters that refused how long the key in the way still lives. For the error of an
/// acquisition, its first attempt and the last one also ask for the value, which may have a label; these
/// two, and each that follows one which met readers, for the number of readers.
fn ask_holders(
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    refused: MasterSet,
    is_last: bool,
) -> MasterSet {
    let op = locks.ops.get(id);
    let usable = refused.intersection(masters.fleet.usable);
    if is_last || op.tries.count == 1 {
        masters.fleet.queue(usable, Owed::Query { question: Question::Value, id }, |out| {
            command::query::encode_value(out, &op.key)
        });
    }
    if is_last || op.tries.count == 1 || op.tries.reader_count > 0 {
        masters.fleet.queue(usable, Owed::Query { question: Question::ReaderCount, id }, |out| {
            command::shared::encode_reader_count(out, &op.key)
        });
    }
    masters.fleet.queue(usable, Owed::Query { question: Question::Holder, id }, |out| {
        command::query::encode_pttl(out, &op.key)
    })
}

pub(super) fn handle_holder(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    ttl: HolderTtl,
) {
    let Some(op) = locks.ops.find_mut(id) else { return };
    let Some(denied) = op.denied_lately().filter(|denied| denied.asked.contains(master)) else { return };
    denied.asked.remove(master);
    let is_last = denied.asked.is_empty();
    op.tries.holders.push((master, ttl));
    if is_last {
        finish_asking(ground, masters, locks, id);
    }
}

/// All were heard, or none will be any more: ends the operation, or lets it retry when the holder's time
/// ends.
fn finish_asking(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let Tries { denied: Some(denied), holders, .. } = &op.tries else { unreachable!("an attempt failed") };
    match &mut op.state {
        OpState::Asking { .. } => deny(ground, masters, locks, id),
        OpState::Waiting { retry_at } => {
            if let HolderTtl::Left(left) = denied.holder(holders) {
                let free_at =
                    ground.now + left + ground.rng.random_range(Duration::from_millis(1)..=HOLDER_JITTER);
                *retry_at = free_at.min(*retry_at);
            }
            locks.arm(ground, id);
        }
        _ => unreachable!("it asks or waits"),
    }
}

/// Ends an acquisition with how its latest attempt failed.
pub(super) fn deny(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let denied = locks.ops.get_mut(id).tries.denied.take().expect("an attempt failed");
    let op = locks.ops.get(id);
    let error = op.denial(ground.now, *denied, &op.tries.holders, locks.held_by(ground.now, id));
    counting::end_denied(ground, masters, locks, id, error);
}

pub(super) fn handle_op_timeout(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    if op.deadline().is_none_or(|at| at > ground.now) {
        note_missed_set(ground, masters, locks, id);
        locks.arm(ground, id);
        return;
    }
    match &op.state {
        OpState::Acquiring { .. } => miss_acquire(ground, masters, locks, id),
        OpState::Asking { .. } => finish_asking(ground, masters, locks, id),
        OpState::Waiting { .. } => waiting::end_pause(ground, masters, locks, id),
        OpState::Queued { .. } => turns::end_queuing(ground, masters, locks, id),
        OpState::Held(_) => keep::handle_held_timeout(ground, masters, locks, id),
        OpState::Releasing => {}
        OpState::Query => queries::miss_query(ground, masters, locks, id),
    }
    locks.arm(ground, id);
}

/// The lock may be held already; a master that has not answered its `SET` in time is silent all the same.
fn note_missed_set(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    // Its last attempt may have failed, and the claim be gone.
    let Some(claim) = locks.claims.find(locks.ops.get(id).claim) else { return };
    let (limit, missing) = (claim.answer_limit, claim.asked.without(claim.tally.heard()));
    if ground.now - claim.started >= limit {
        missing.iter().for_each(|master| masters.fleet.note_missed(ground, master, limit));
    }
}

/// The attempt's time is over: who has not answered has failed.
fn miss_acquire(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let claim = locks.claims.get_mut(locks.ops.get(id).claim);
    let (started, limit) = (claim.started, claim.answer_limit);
    let missing = claim.asked.without(claim.tally.heard());
    for master in missing.iter() {
        claim.record(master, Vote::Failed(Failure::NoAnswer { limit: now - started }));
        masters.fleet.link_mut(master).stats.unanswered += 1;
    }
    if now - started >= limit {
        missing.iter().for_each(|master| masters.fleet.note_missed(ground, master, limit));
    }
    if mutant!(TimeoutPopsOwed) {
        missing.iter().for_each(|master| masters.fleet.link_mut(master).connection.wire.forget_owed());
    }
    decide_acquire(ground, masters, locks, id);
}

/// A connection broke on which this operation had something under way.
pub(super) fn handle_lost_connection(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
) {
    let op = locks.ops.get_mut(id);
    match &mut op.state {
        OpState::Acquiring { .. } => {
            // Even a grant is void: the master may have lost it with the connection (I7).
            let claim = locks.claims.get_mut(op.claim);
            let mut is_void = !claim.tally.refused.contains(master);
            if mutant!(LostGrantCounted) {
                is_void = false;
            }
            if mutant!(LostSwapCounted) && op.tries.streak.count > 0 {
                is_void = false;
            }
            let is_unanswered = claim.asked.without(claim.tally.heard()).contains(master);
            masters.fleet.link_mut(master).stats.unanswered += u64::from(is_unanswered);
            if is_void {
                claim.record(master, Vote::Failed(Failure::ConnectionLost));
            }
            decide_acquire(ground, masters, locks, id);
        }
        OpState::Held(Held { extension: Some(extension), round, .. }) => {
            let round = *round;
            // Here, too, even a grant is void: a restart may have taken the key since.
            if !extension.tally.refused.union(extension.tally.failed).contains(master) {
                hold::handle_extend_vote(
                    ground,
                    masters,
                    locks,
                    master,
                    id,
                    round,
                    Vote::Failed(Failure::ConnectionLost),
                );
            }
        }
        OpState::Releasing => {
            let claim_id = op.claim;
            release::check_release(ground, masters, locks, claim_id, id);
        }
        OpState::Held(Held { extension: None, .. })
        | OpState::Asking { .. }
        | OpState::Waiting { .. }
        | OpState::Queued { .. }
        | OpState::Query => {}
    }
}
