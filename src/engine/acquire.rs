//! Attempts: the `SET` to all masters, the verdict at the earliest reply that fixes it, and the next try.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::claim::{Claim, Course, Votes};
use super::fair::{Policy, Queuing};
use super::kind::Tag;
use super::mode::{self, Gathered, ModeState};
use super::op::{Asked, Cause, Denied, HandoverStreak, Held, Op, OpState, Tries};
use super::owed::{Owed, Question, Verb};
use super::queries::DRAINED;
use super::slab::Id;
use super::timers::op_timer;
use super::{Engine, Grant, OpId, Outcome, SubmitError};
use crate::error::{AcquireError, HeldBy, Round};
use crate::limits;
use crate::lock::command;
use crate::lock::{
    Failure, HolderLabel, HolderTtl, InputError, MasterId, MasterSet, Resource, Token, Verdict, Vote,
};
use crate::mutants::mutant;
use crate::options::{Mode, Options, WaitPolicy};

/// A retry follows the end of a holder's time by at most this, so that waiters do not all come at once.
const HOLDER_JITTER: Duration = Duration::from_millis(2);

impl Engine {
    pub(super) fn submit_acquire(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
        options: &Options,
        label: Option<HolderLabel<'_>>,
    ) -> Result<OpId, SubmitError> {
        if self.is_drained && !mutant!(DrainedAcquires) {
            return Err(SubmitError::Stopped(DRAINED.into()));
        }
        let ttl = self.terms.ttl_of(options.ttl, &self.config)?;
        let wait = options.wait.unwrap_or(ttl.as_duration());
        if options.min_validity >= ttl.validity() {
            let (asked, validity) = (options.min_validity, ttl.validity());
            return Err(InputError::MinValidityTooLong { asked, validity }.into());
        }
        let is_ordinary = options.is_ordinary() && label.is_none() && self.config.holder_label.is_none();
        if !is_ordinary {
            self.check_options(options)?;
        }
        let waits = !wait.is_zero();
        let wait_until = waits.then(|| now.checked_add(wait).unwrap_or(now + limits::FOREVER));
        let Some((id, op)) = self.ops.take(|| Op::blank(now, ttl)) else {
            return Err(self.refuse_acquisition(resource));
        };
        op.begin(Asked {
            submitted: now,
            ttl,
            min_validity: options.min_validity,
            wait_until,
            attempts_max: options.max_attempts,
            max_hold: options.auto_extend,
        });
        if self.pace.is_due() {
            self.pace.time(now, op);
        }
        if !is_ordinary && !self.prepare(id, options, label) {
            command::entry::encode_key(
                &mut self.ops.get_mut(id).key,
                &self.config.prefix,
                resource.as_bytes(),
            );
            self.start_attempt(now, id, None);
            return Ok(OpId(id));
        }
        if waits {
            return self.enqueue(now, id, resource);
        }
        self.start_attempt(now, id, Some(resource));
        Ok(OpId(id))
    }

    /// Whether options that are not the ordinary ones go together.
    #[cold]
    fn check_options(&self, options: &Options) -> Result<(), InputError> {
        mode::check(options)?;
        match options.auto_extend {
            Some(Duration::ZERO) => Err(InputError::AutoExtendZero),
            Some(_) if self.config.max_hold.is_zero() => Err(InputError::MaxHoldZero),
            _ => Ok(()),
        }
    }

    /// Gives a new acquisition what its options ask beyond the ordinary, and its label. Returns whether it
    /// takes part in the wait queues of this engine.
    #[cold]
    #[inline(never)]
    fn prepare(&mut self, id: Id, options: &Options, label: Option<HolderLabel<'_>>) -> bool {
        let op = self.ops.get_mut(id);
        if let Some(label) = label.map(|label| label.as_str()).or(self.config.holder_label.as_deref()) {
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
                let queuing = Queuing::new(Token::marked(&mut self.rng), waits, &self.config);
                op.policy = Policy::Queue(Box::new(queuing));
                if waits {
                    // A queue of its own: it is never behind another of this engine.
                    let hash = self.queues.hash(op.channel());
                    self.queues.found(id.index, hash);
                }
                false
            }
        }
    }

    /// Draws a token and queues the `SET` on every usable master (I6: a token for each attempt). One that
    /// waits has the key with it, others give the lock's name.
    pub(super) fn start_attempt(&mut self, now: Instant, id: Id, resource: Option<Resource<'_>>) {
        let op = self.ops.get_mut(id);
        let Some((claim_id, claim)) = self.claims.take(|| Claim::blank(now)) else {
            return self.start_with_room(now, id, resource);
        };
        self.terms.fit(op.asked.ttl, self.fleet.round_trip_limit, &self.config);
        claim.begin(now, id, Token::random(&mut self.rng), op.asked.ttl, self.terms.answer_limit);
        match resource {
            Some(resource) => claim.entry.set(&self.config.prefix, resource.as_bytes(), &claim.token),
            None => claim.entry.set_key(&op.key, &claim.token),
        }
        claim.asked = if !op.is_special {
            self.fleet.queue(self.fleet.usable, Owed::round(Verb::Acquire, Tag::Plain, 0, claim_id), |out| {
                command::encode_acquire(out, &claim.entry, &self.terms.tail);
            })
        } else {
            claim.course = Course::Attempt(id);
            let tail = &self.terms.tail;
            op.send_unusual_attempt(&mut self.fleet, now, claim_id, claim, &self.wall_clock, tail)
        };
        let deadline = op.await_votes(claim_id, now + self.terms.answer_limit);
        op.tries.streak.count = 0;
        if op.tries.is_subscribed {
            self.subscriptions.begin_attempt(id);
        }
        if !claim.asked.has(self.fleet.quorum) && self.fleet.usable.has(self.fleet.quorum) {
            return self.refuse_overload(now, id, claim_id);
        }
        if !mutant!(NoTimeOut) {
            self.timers.arm(op_timer(id), deadline);
        }
        if claim.asked != self.fleet.all || self.fleet.has_quarantines() {
            self.note_unasked(claim_id);
            self.decide_acquire(now, id);
        }
    }

    /// The queues of too many masters are full: to wait for room would be one more queue. An attempt that
    /// some had room for is released.
    #[cold]
    fn refuse_overload(&mut self, now: Instant, id: Id, claim_id: Id) {
        let claim = self.claims.get_mut(claim_id);
        claim.owner = None;
        let due = now + claim.answer_limit;
        self.release_claim(now, due, claim_id);
        self.end_denied(now, id, AcquireError::Overloaded);
    }

    /// Begins the attempt of an operation that a lock is handed over to, with the masters that were sent the
    /// swap or a `SET`.
    pub(super) fn start_handed_over(
        &mut self,
        now: Instant,
        id: Id,
        claim_id: Id,
        streak: HandoverStreak,
        asked: MasterSet,
    ) {
        let op = self.ops.get_mut(id);
        let claim = self.claims.get_mut(claim_id);
        claim.asked = asked;
        let deadline = op.await_votes(claim_id, now + claim.answer_limit);
        op.tries.streak = streak;
        self.stats.hand_overs += 1;
        self.timers.arm(op_timer(id), deadline);
        self.note_unasked(claim_id);
        self.decide_acquire(now, id);
    }

    /// The table of claims is full: leaves orphans to their TTL, and starts if that made room.
    #[cold]
    fn start_with_room(&mut self, now: Instant, id: Id, resource: Option<Resource<'_>>) {
        self.forget_orphans();
        if self.claims.is_full() {
            self.end_denied(now, id, AcquireError::Overloaded);
        } else {
            self.start_attempt(now, id, resource);
        }
    }

    /// Masters known to be down or silent, or without room in their queues, vote `Failed` at once.
    fn note_unasked(&mut self, claim_id: Id) {
        let claim = self.claims.get_mut(claim_id);
        for master in self.fleet.all.without(claim.asked).iter() {
            claim.record(master, Vote::Failed(self.fleet.why_unasked(master)));
            self.fleet.link_mut(master).stats.unanswered += 1;
        }
    }

    pub(super) fn handle_acquire_vote(&mut self, now: Instant, master: MasterId, id: Id, vote: Vote) {
        let stats = &mut self.fleet.link_mut(master).stats;
        stats.count_vote(&vote);
        let is_counted = |votes| match votes {
            Votes::AddToMargin if mutant!(StragglersCancelled) => false,
            Votes::Decide | Votes::AddToMargin => true,
            Votes::Void => false,
        };
        let Some(claim) = self.claims.find_mut(id).filter(|claim| is_counted(claim.votes)) else {
            stats.late += u64::from(vote == Vote::Granted);
            return;
        };
        claim.record(master, vote);
        if let Some(op) = claim.owner {
            self.decide_acquire(now, op);
        }
    }

    /// A grant or a deletion was counted that may decide something; the claim may have ended since.
    #[inline]
    pub(super) fn handle_counted(&mut self, now: Instant, id: Id) {
        let Some(claim) = self.claims.find(id) else { return };
        match claim.owner {
            Some(op) if claim.release.is_none() => self.decide_acquire(now, op),
            Some(op) => self.settle_release(now, id, op),
            None => {}
        }
    }

    pub(super) fn decide_acquire(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let OpState::Acquiring { .. } = op.state else { return };
        let quarantined = self.fleet.quarantined(now).union(op.mode.excluded());
        let claim = self.claims.get_mut(op.claim);
        let cause = match claim.tally.verdict(self.fleet.count(), quarantined) {
            Verdict::Open => return,
            Verdict::Contended => match self.handle_refused(now, id, quarantined) {
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
                    claim.notifies = self.config.wakes_waiters;
                    // A client that has waited lately is one of many, and so its locks are wanted, too.
                    claim.publishers = self.subscriptions.ready();
                    op.state = OpState::Held(Held::new(claim.started, valid_until, op.asked.ttl));
                    let granted = claim.tally.granted;
                    let grant = Grant {
                        token: claim.token,
                        fencing_token: claim.kind.fencing_token(),
                        valid_until,
                        granted,
                        attempts: op.tries.count,
                    };
                    let hash = self.queues.hash(claim.entry.key());
                    let since = claim.started;
                    self.stats.acquired += 1;
                    self.outcomes.push_back((OpId(id), Outcome::Acquire(Ok(grant))));
                    let is_queued = op.mode.is_queued();
                    let (may_found, max_hold) = (op.asked.wait_until.is_none(), op.asked.max_hold);
                    if op.is_noted {
                        self.note_acquired(now, id);
                    }
                    if let Some(max_hold) = max_hold {
                        self.begin_renewal(now, id, since, max_hold);
                    }
                    if !is_queued {
                        self.unwatch(now, id);
                    } else if !may_found || !self.queues.found_first(id.index, hash) {
                        self.note_held(now, id);
                    }
                    return;
                }
                Cause::Expired
            }
        };
        self.fail_attempt(now, id, cause);
    }

    /// So many masters refused an attempt that no quorum is left. If it was for its token, makes another
    /// attempt with a better one, if there is time; else says how this one failed.
    ///
    /// The votes of the old one are void: each one that counts was given for the token that is handed out.
    #[cold]
    fn handle_refused(&mut self, now: Instant, id: Id, quarantined: MasterSet) -> Option<Cause> {
        let half_us = self.config.window().half_us;
        let op = self.ops.get_mut(id);
        let claim = self.claims.get_mut(op.claim);
        let Some(busy) = op.mode.judge(now, &mut self.wall_clock, &claim.tally, half_us) else {
            return Some(Cause::Contended);
        };
        let in_the_way = claim.tally.failed.union(quarantined).union(busy);
        if in_the_way.count() > self.fleet.spare() {
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
        self.release_claim(now, now + limit, claim_id);
        self.stats.retries += 1;
        self.ops.get_mut(id).is_noted = true;
        self.start_attempt(now, id, None);
        if mutant!(RenumberingKeepsVotes) {
            self.keep_votes(id, granted);
        }
        None
    }

    /// Releases what the attempt may have left, then waits for the next one or ends the operation.
    fn fail_attempt(&mut self, now: Instant, id: Id, cause: Cause) {
        let op = self.ops.get(id);
        let claim = self.claims.get(op.claim);
        let refused = claim.tally.refused;
        // Had every other master granted, this many of those that refused would still have been needed.
        let free_count = self.fleet.count() - refused.count() - claim.tally.failed.count();
        let missing_count = self.fleet.quorum.saturating_sub(free_count);
        let report = self.report(now, Round::Acquire, claim, &claim.tally);
        // The label known before is kept until an answer says otherwise: a wait may end before the last one.
        let holder_label = op.tries.denied.as_ref().and_then(|denied| denied.holder_label.clone());
        let mut denied = Denied { cause, report, missing_count, asked: MasterSet::EMPTY, holder_label };
        let (claim_id, started, limit) = (op.claim, claim.started, claim.answer_limit);
        // An attempt that had to end with the wait says nothing of its masters: the one before it does.
        let is_cut_short = now - started < limit && op.asked.wait_until.is_some_and(|until| until <= now);
        let is_hopeless = cause == Cause::NoQuorum && self.is_quarantined_beyond_wait(id);
        let retry_at = if is_hopeless { None } else { self.next_attempt(now, id, started) };
        let retry_at =
            if cause == Cause::Contended { self.keep_readers_out(now, id, retry_at) } else { retry_at };
        let (op, claim) = (self.ops.get_mut(id), self.claims.get_mut(claim_id));
        op.key.clear();
        op.key.extend_from_slice(claim.entry.key());
        claim.owner = None;
        let set_on = claim.holders();
        self.release_claim(now, now + limit, claim_id);
        let op = self.ops.get_mut(id);
        if let Some(queuing) = op.policy.queuing() {
            queuing.notify_first(&mut self.fleet, set_on, &op.key);
        }
        if is_cut_short && op.tries.denied.is_some() {
            return self.deny(now, id);
        }
        if is_cut_short && op.tries.has_queued && cause != Cause::Contended {
            return self.deny_queued(now, id);
        }
        let gathered = op.gather_holders();
        if retry_at.is_none() {
            self.leave_queue(now, id, Duration::ZERO);
        }
        let is_asked = retry_at.is_none() || !self.subscriptions.follows_release(id);
        if gathered == Gathered::None && self.config.ask_holder && cause == Cause::Contended && is_asked {
            denied.asked = self.ask_holders(id, refused, retry_at.is_none());
        }
        let op = self.ops.get_mut(id);
        op.is_noted |= retry_at.is_some();
        let is_asking = !denied.asked.is_empty();
        op.tries.denied = Some(Box::new(denied));
        op.state = match retry_at {
            Some(retry_at) => OpState::Waiting { retry_at },
            None if is_asking => {
                let deadline = op.asked.wait_until.map_or(now + limit, |until| until.min(now + limit));
                OpState::Asking { deadline }
            }
            None => return self.deny(now, id),
        };
        if gathered == Gathered::All {
            self.finish_asking(now, id);
        } else {
            self.arm_op(id);
        }
        if retry_at.is_some() && cause == Cause::Contended {
            self.watch(now, id, now - started);
        }
    }

    /// Asks the masters that refused how long the key in the way still lives. For the error of an
    /// acquisition, its first attempt and the last one also ask for the value, which may have a label; these
    /// two, and each that follows one which met readers, for the number of readers.
    fn ask_holders(&mut self, id: Id, refused: MasterSet, is_last: bool) -> MasterSet {
        let op = self.ops.get(id);
        let usable = refused.intersection(self.fleet.usable);
        if is_last || op.tries.count == 1 {
            self.fleet.queue(usable, Owed::Query { question: Question::Value, id }, |out| {
                command::query::encode_value(out, &op.key)
            });
        }
        if is_last || op.tries.count == 1 || op.tries.reader_count > 0 {
            self.fleet.queue(usable, Owed::Query { question: Question::ReaderCount, id }, |out| {
                command::shared::encode_reader_count(out, &op.key)
            });
        }
        self.fleet.queue(usable, Owed::Query { question: Question::Holder, id }, |out| {
            command::query::encode_pttl(out, &op.key)
        })
    }

    pub(super) fn handle_holder(&mut self, now: Instant, master: MasterId, id: Id, ttl: HolderTtl) {
        let Some(op) = self.ops.find_mut(id) else { return };
        let Some(denied) = op.denied_lately().filter(|denied| denied.asked.contains(master)) else { return };
        denied.asked.remove(master);
        let is_last = denied.asked.is_empty();
        op.tries.holders.push((master, ttl));
        if is_last {
            self.finish_asking(now, id);
        }
    }

    /// All were heard, or none will be any more: ends the operation, or lets it retry when the holder's time
    /// ends.
    fn finish_asking(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let Tries { denied: Some(denied), holders, .. } = &op.tries else {
            unreachable!("an attempt failed")
        };
        match &mut op.state {
            OpState::Asking { .. } => self.deny(now, id),
            OpState::Waiting { retry_at } => {
                if let HolderTtl::Left(left) = denied.holder(holders) {
                    let free_at =
                        now + left + self.rng.random_range(Duration::from_millis(1)..=HOLDER_JITTER);
                    *retry_at = free_at.min(*retry_at);
                }
                self.arm_op(id);
            }
            _ => unreachable!("it asks or waits"),
        }
    }

    /// Ends an acquisition with how its latest attempt failed.
    pub(super) fn deny(&mut self, now: Instant, id: Id) {
        let denied = self.ops.get_mut(id).tries.denied.take().expect("an attempt failed");
        let op = self.ops.get(id);
        let error = op.denial(now, *denied, &op.tries.holders, self.held_by(now, id));
        self.end_denied(now, id, error);
    }

    /// The holder of a lock that this operation did not get.
    pub(super) fn held_by(&self, now: Instant, id: Id) -> HeldBy {
        if self.is_held_here(now, id) { HeldBy::ThisClient } else { self.ops.get(id).readers() }
    }

    pub(super) fn handle_op_timeout(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        if op.deadline().is_none_or(|at| at > now) {
            self.note_missed_set(now, id);
            self.arm_op(id);
            return;
        }
        match &op.state {
            OpState::Acquiring { .. } => self.miss_acquire(now, id),
            OpState::Asking { .. } => self.finish_asking(now, id),
            OpState::Waiting { .. } => self.end_pause(now, id),
            OpState::Queued { .. } => self.end_queuing(now, id),
            OpState::Held(_) => self.handle_held_timeout(now, id),
            OpState::Releasing => {}
            OpState::Query => self.miss_query(now, id),
        }
        self.arm_op(id);
    }

    /// The lock may be held already; a master that has not answered its `SET` in time is silent all the same.
    fn note_missed_set(&mut self, now: Instant, id: Id) {
        // Its last attempt may have failed, and the claim be gone.
        let Some(claim) = self.claims.find(self.ops.get(id).claim) else { return };
        let (limit, missing) = (claim.answer_limit, claim.asked.without(claim.tally.heard()));
        if now - claim.started >= limit {
            missing.iter().for_each(|master| self.fleet.note_missed(now, master, limit, &mut self.timers));
        }
    }

    /// The attempt's time is over: who has not answered has failed.
    fn miss_acquire(&mut self, now: Instant, id: Id) {
        let claim = self.claims.get_mut(self.ops.get(id).claim);
        let (started, limit) = (claim.started, claim.answer_limit);
        let missing = claim.asked.without(claim.tally.heard());
        for master in missing.iter() {
            claim.record(master, Vote::Failed(Failure::NoAnswer { limit: now - started }));
            self.fleet.link_mut(master).stats.unanswered += 1;
        }
        if now - started >= limit {
            missing.iter().for_each(|master| self.fleet.note_missed(now, master, limit, &mut self.timers));
        }
        if mutant!(TimeoutPopsOwed) {
            missing.iter().for_each(|master| self.fleet.link_mut(master).connection.wire.forget_owed());
        }
        self.decide_acquire(now, id);
    }

    /// A connection broke on which this operation had something under way.
    pub(super) fn handle_lost_connection(&mut self, now: Instant, master: MasterId, id: Id) {
        let op = self.ops.get_mut(id);
        match &mut op.state {
            OpState::Acquiring { .. } => {
                // Even a grant is void: the master may have lost it with the connection (I7).
                let claim = self.claims.get_mut(op.claim);
                let mut is_void = !claim.tally.refused.contains(master);
                if mutant!(LostGrantCounted) {
                    is_void = false;
                }
                if mutant!(LostSwapCounted) && op.tries.streak.count > 0 {
                    is_void = false;
                }
                let is_unanswered = claim.asked.without(claim.tally.heard()).contains(master);
                self.fleet.link_mut(master).stats.unanswered += u64::from(is_unanswered);
                if is_void {
                    claim.record(master, Vote::Failed(Failure::ConnectionLost));
                }
                self.decide_acquire(now, id);
            }
            OpState::Held(Held { extension: Some(extension), round, .. }) => {
                let round = *round;
                // Here, too, even a grant is void: a restart may have taken the key since.
                if !extension.tally.refused.union(extension.tally.failed).contains(master) {
                    self.handle_extend_vote(now, master, id, round, Vote::Failed(Failure::ConnectionLost));
                }
            }
            OpState::Releasing => {
                let claim_id = op.claim;
                self.check_release(now, claim_id, id);
            }
            OpState::Held(Held { extension: None, .. })
            | OpState::Asking { .. }
            | OpState::Waiting { .. }
            | OpState::Queued { .. }
            | OpState::Query => {}
        }
    }
}
