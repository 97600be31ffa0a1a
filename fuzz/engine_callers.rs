//! The callers of `engine_ops.rs`: their requests, and the deadlines of the answers.

use std::fmt::Write;
use std::hash::Hash;
use std::time::{Duration, Instant};

use redlatch::engine::{Grant, MasterSet, OpId, Outcome, Request, Resource, SubmitError, Ttl};
use redlatch::status::MasterState;
use redlatch::{AcquireError, ExtendError, Options, ReleaseError};

use super::net::Token;
use super::{LOCK_COUNT_MAX, MAX_HOLD, MAX_TTL, Run, id};

pub const NAMES: [&str; 4] = ["a", "b", "a\r\nb", "c"];

/// In milliseconds. The first few and the last are refused.
const TTLS: [u64; 14] = [0, 1, 2, 3, 4, 5, 10, 50, 100, 500, 1000, 1999, 2000, 2001];

const WAITS: [Duration; 7] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(7),
    Duration::from_millis(50),
    Duration::from_millis(120),
    Duration::MAX,
];

/// A lock as its caller sees it.
#[derive(Debug)]
pub struct Lock {
    id: OpId,
    name: &'static str,
    is_shared: bool,
    is_fair: bool,
    ttl: Ttl,
    submitted: Instant,
    waits: bool,
    min_validity: Duration,
    stage: Stage,
    /// Deadline for the outcome of the acquisition or the awaited release. `None` waits for ever.
    deadline: Option<Instant>,
    /// Whether an acquisition whose time is up may have asked for the holder's time.
    may_ask: bool,
    token: Token,
    /// When the successful attempt began.
    since: Instant,
    /// The last end of validity that the caller got.
    promised: Instant,
    /// Deadline for the answer to the extension under way.
    extension: Option<Instant>,
    /// End of the validity if the extension succeeds.
    extends_to: Instant,
    /// Outcomes that must be there at once.
    due_extends: usize,
    due_releases: usize,
    /// Longest time for which a round of this lock waits for answers.
    limit: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Acquiring,
    Held,
    Releasing,
    Gone,
}

impl Run<'_> {
    /// Half of all locks are requested with a valid TTL.
    fn pick_ttl(byte: usize) -> Duration {
        let ms = Duration::from_millis(TTLS[byte % TTLS.len()]);
        match byte / TTLS.len() {
            0 if byte.is_multiple_of(2) => Duration::MAX,
            0 | 1 => ms + Duration::from_nanos(999_999),
            _ => ms,
        }
    }

    pub(super) fn acquire(&mut self, name: usize) {
        let (ttl_byte, how) = (self.source.byte(), self.source.byte());
        if self.locks.len() >= LOCK_COUNT_MAX {
            return;
        }
        let ttl = Self::pick_ttl(ttl_byte);
        let own = self.engine.config().ttl(ttl);
        let validity = own.as_ref().map_or(Duration::from_secs(1), |ttl| ttl.validity());
        let wait = WAITS[how % WAITS.len()];
        let min_validity = match how / 16 {
            0 => validity,
            1 => validity - Duration::from_nanos(1),
            2 => Duration::from_millis(2),
            _ => Duration::ZERO,
        };
        let name = NAMES[name % NAMES.len()];
        let resource = Resource::new(name).expect("valid");
        let options = Options::new().ttl(ttl).wait(wait).min_validity(min_validity);
        let options = match how / 16 % 4 {
            3 => options.fenced(),
            1 => options.fair(),
            2 => options.shared(),
            _ => options,
        };
        // A clock that roughly agrees with the masters'.
        self.engine.handle_wall_clock(self.now, Duration::from_secs(3600));
        let (is_fair, is_shared) = (how / 16 % 4 == 1, how / 16 % 4 == 2);
        let before = (self.engine.operation_count(), self.engine.claim_count());
        let result = self.engine.submit(self.now, Request::Acquire { resource, options, label: None });
        match result {
            Ok(lock) => {
                let ttl = own.expect("a TTL that cannot work is taken");
                assert!(min_validity < ttl.validity());
                let limit = self.engine.config().answer_limit(ttl);
                let waits = !wait.is_zero();
                let deadline = if waits { self.now.checked_add(wait) } else { Some(self.now + limit) };
                assert!(self.by_id.insert(lock, self.locks.len()).is_none(), "one id for two locks");
                self.locks.push(Lock {
                    id: lock,
                    name,
                    is_shared,
                    is_fair,
                    ttl,
                    submitted: self.now,
                    waits,
                    min_validity,
                    stage: Stage::Acquiring,
                    deadline,
                    may_ask: !waits,
                    token: Token::new(),
                    since: self.now,
                    promised: self.now,
                    extension: None,
                    extends_to: self.now,
                    due_extends: 0,
                    due_releases: 0,
                    limit,
                });
            }
            Err(SubmitError::Input(error)) => {
                assert!(own.is_err() || min_validity >= validity, "{error}");
                assert_eq!((self.engine.operation_count(), self.engine.claim_count()), before);
            }
            Err(error) => panic!("a few locks of one process: {error}"),
        }
    }

    fn pick_lock(&mut self) -> Option<usize> {
        let pick = self.source.byte();
        // The newest locks are the most likely to be held.
        let count = self.locks.len();
        let index = if pick < 128 { count.checked_sub(1 + pick % 4)? } else { pick % count.max(1) };
        (index < count).then_some(index)
    }

    pub(super) fn extend(&mut self) {
        let Some(index) = self.pick_lock() else { return };
        let ttl_byte = self.source.byte();
        let asked = Self::pick_ttl(ttl_byte);
        // Earlier requests belong to the last extension.
        self.count_all_requests();
        let (lock, now) = (self.locks[index].id, self.now);
        let valid_until = self.engine.valid_until(lock);
        assert_eq!(self.engine.submit(now, Request::Extend { lock, ttl: asked }), Ok(lock));
        let config = self.engine.config();
        let ttl = config.ttl(asked).ok().map(|ttl| (ttl, config.answer_limit(ttl)));
        let held = &mut self.locks[index];
        let started = ttl.filter(|(ttl, _)| {
            held.stage == Stage::Held
                && held.extension.is_none()
                && valid_until.is_some_and(|until| now < until)
                && (now - held.since) + ttl.as_duration() <= MAX_HOLD
        });
        let Some((ttl, limit)) = started else {
            held.due_extends += 1;
            return;
        };
        held.limit = held.limit.max(limit);
        held.extension = Some(now + limit);
        held.extends_to = now + ttl.validity();
        self.tokens.get_mut(&held.token).expect("its SET was seen").round += 1;
    }

    pub(super) fn release(&mut self) {
        let Some(index) = self.pick_lock() else { return };
        let awaited = self.source.byte().is_multiple_of(2);
        self.release_lock(index, awaited);
    }

    fn release_lock(&mut self, index: usize, awaited: bool) {
        let lock = self.locks[index].id;
        assert_eq!(self.engine.submit(self.now, Request::Release { lock, awaited }), Ok(lock));
        let now = self.now;
        let lock = &mut self.locks[index];
        if lock.extension.take().is_some() {
            lock.due_extends += 1;
        }
        match lock.stage {
            Stage::Acquiring | Stage::Held if awaited => {
                lock.stage = Stage::Releasing;
                lock.deadline = Some(now + lock.limit);
            }
            Stage::Acquiring | Stage::Held => lock.stage = Stage::Gone,
            // The same release, with one outcome.
            Stage::Releasing => {}
            Stage::Gone => lock.due_releases += usize::from(awaited),
        }
    }

    pub(super) fn release_all(&mut self, awaited: bool) {
        for index in 0..self.locks.len() {
            if matches!(self.locks[index].stage, Stage::Acquiring | Stage::Held) {
                self.release_lock(index, awaited);
            }
        }
        self.settle_step();
    }

    // ---- what must hold ----

    pub(super) fn drain_outcomes(&mut self) {
        if !self.engine.has_outcome() {
            assert_eq!(self.engine.poll_outcome(), None);
            self.step_number += 1;
            return;
        }
        // A grant is judged by the commands to its masters.
        self.count_all_requests();
        while let Some((id, outcome)) = self.engine.poll_outcome() {
            let mut shown = format!("{outcome:?}");
            if self.take_query(id, &outcome) {
                shown.hash(&mut self.history);
                continue;
            }
            let index = *self.by_id.get(&id).expect("a lock that was submitted");
            match outcome {
                Outcome::Acquire(result) => {
                    assert_eq!(self.locks[index].stage, Stage::Acquiring, "{shown}");
                    match result {
                        Ok(grant) => self.take_grant(index, &grant),
                        Err(error) => {
                            write!(shown, "{error:#}").expect("memory");
                            assert!(!matches!(error, AcquireError::Overloaded | AcquireError::Input(_)));
                            self.locks[index].stage = Stage::Gone;
                        }
                    }
                }
                Outcome::Extend(result) => self.take_extension(index, result),
                Outcome::Release(result) => {
                    if let Err(ReleaseError::Unconfirmed(report)) = &result {
                        write!(shown, "{report:#}").expect("memory");
                    }
                    let lock = &mut self.locks[index];
                    if lock.stage == Stage::Releasing {
                        lock.stage = Stage::Gone;
                        self.check_released(index, &result);
                    } else {
                        assert!(lock.due_releases > 0, "a release nobody asked for: {shown}");
                        lock.due_releases -= 1;
                        assert!(matches!(result, Ok(it) if it.was_already_gone() && it.absent == 0));
                    }
                }
                other => panic!("nothing else was asked for: {other:?}"),
            }
            shown.hash(&mut self.history);
        }
        self.step_number += 1;
    }

    /// Checks I2, I4, I7, I8, and that no name has two holders.
    fn take_grant(&mut self, index: usize, grant: &Grant) {
        let lock = &self.locks[index];
        let validity = lock.ttl.validity();
        assert!(grant.valid_until > self.now + lock.min_validity, "handed out too late");
        let log = self.tokens.get(grant.token.as_bytes().as_slice()).expect("its SET was seen");
        assert_eq!(log.key, lock.name.as_bytes());
        assert!(grant.valid_until <= log.first_seen + validity, "counts from after the start");
        if grant.attempts == 1 && (lock.waits || lock.is_fair) {
            // The lock may have queued first, or its first round was too late.
            assert!(grant.valid_until >= lock.submitted + validity);
        } else if grant.attempts == 1 {
            assert_eq!(grant.valid_until, lock.submitted + validity);
        } else {
            // A lock may be handed over just when the first attempt failed, and an attempt with a refused
            // fencing token is repeated at once.
            let may_be_tried_again = lock.waits || grant.fencing_token.is_some();
            assert!(may_be_tried_again && grant.valid_until >= lock.submitted + validity);
        }
        assert!(grant.granted.count() >= self.quorum, "{grant:?}");
        let mut counted = 0;
        for master in grant.granted.iter() {
            let said = log.granted_on.get(&master.index()).copied();
            assert!(log.ended >> master.index() & 1 == 0, "a token that was ended counts: {grant:?}");
            assert!(
                said.is_some_and(|number| self.peers[master.index()].is_current(number, self.step_number)),
                "master {} never said so: {grant:?}",
                master.index()
            );
            let state = self.engine.master_status(self.now, master).state;
            counted += usize::from(!matches!(state, MasterState::Quarantined(_)));
        }
        assert!(counted >= self.quorum, "votes in quarantine count: {grant:?}");
        assert_eq!(self.engine.valid_until(lock.id), Some(grant.valid_until));
        for other in &self.locks {
            let is_valid = other.stage == Stage::Held
                && self.engine.valid_until(other.id).is_some_and(|at| at > self.now);
            assert!(
                !(self.is_honest
                    && is_valid
                    && other.name == lock.name
                    && !(other.is_shared && lock.is_shared))
                    || self.broken_names.contains(lock.name),
                "two hold {:?}: {other:?}, {grant:?}",
                lock.name
            );
        }
        let lock = &mut self.locks[index];
        lock.stage = Stage::Held;
        lock.token = grant.token.as_bytes().to_vec();
        lock.since = grant.valid_until - validity;
        lock.promised = grant.valid_until;
    }

    fn take_extension(&mut self, index: usize, result: Result<Instant, ExtendError>) {
        let lock = &mut self.locks[index];
        let is_immediate = matches!(
            result,
            Err(ExtendError::Busy
                | ExtendError::NotHeld
                | ExtendError::HoldLimit { .. }
                | ExtendError::Input(_))
        );
        if is_immediate || (matches!(result, Err(ExtendError::Expired)) && lock.due_extends > 0) {
            assert!(lock.due_extends > 0, "an extension nobody asked for: {result:?}");
            lock.due_extends -= 1;
            return;
        }
        assert!(lock.extension.take().is_some(), "an extension nobody asked for: {result:?}");
        if let Ok(until) = result {
            assert!(until > self.now, "extended into the past");
            assert_eq!(until, lock.extends_to, "counted from anything but its sending");
            assert!(self.now < lock.promised, "one that had ended came back");
            assert_eq!(self.engine.valid_until(lock.id), Some(until));
            lock.promised = until;
            let log = &self.tokens[&lock.token];
            let granted = log.extended.get(&log.round).copied().unwrap_or_default();
            assert!(granted.count_ones() as usize >= self.quorum, "extended on {granted:b} only");
        }
    }

    fn check_released(&self, index: usize, result: &Result<redlatch::Released, ReleaseError>) {
        let Ok(released) = result else { return };
        let count = self.peers.len();
        assert!(released.deleted + released.absent + released.unanswered <= count, "{released:?}");
        assert!(count - released.unanswered >= self.quorum, "{released:?}");
        if let Some(log) = self.tokens.get(&self.locks[index].token)
            && self.is_honest
        {
            assert!(released.deleted <= log.deleted.count_ones() as usize, "{released:?}");
        }
    }

    /// The engine's view of its locks must agree with their callers'.
    pub(super) fn check_locks(&mut self) {
        let next = self.engine.next_timeout().map(|(at, _)| at);
        let (mut live_count, mut held_count) = (0, 0);
        for lock in &self.locks {
            assert_eq!((lock.due_extends, lock.due_releases), (0, 0), "an answer is missing: {lock:?}");
            live_count += usize::from(lock.stage != Stage::Gone);
            held_count += usize::from(lock.stage == Stage::Held);
            let is_held = lock.stage == Stage::Held;
            let (valid_until, granted) = (self.engine.valid_until(lock.id), self.engine.granted(lock.id));
            assert_eq!((valid_until.is_some(), granted.is_some()), (is_held, is_held), "{lock:?}");
            assert!(valid_until.is_none_or(|at| at <= lock.promised), "valid for longer than promised");
            let granted = granted.unwrap_or_default();
            assert_eq!(self.engine.margin(lock.id), granted.count().saturating_sub(self.quorum));
            if is_held {
                self.check_holders(lock, granted);
            }
            let wake_by = match lock.stage {
                // The answers about the holder's time may take one more limit.
                Stage::Acquiring => lock.deadline.map(|at| if lock.may_ask { at + lock.limit } else { at }),
                Stage::Releasing => lock.deadline,
                Stage::Held => lock.extension,
                Stage::Gone => None,
            };
            if let Some(at) = wake_by {
                assert!(next.is_some_and(|next| next <= at.max(self.now)), "nobody wakes {lock:?}");
            }
        }
        for query in &self.queries {
            let is_woken = next.is_some_and(|next| query.deadline.is_none_or(|at| next <= at.max(self.now)));
            assert!(is_woken, "nobody wakes {query:?}");
        }
        assert_eq!(self.engine.operation_count(), live_count + self.queries.len());
        assert!(self.engine.claim_count() >= held_count);
    }

    fn check_holders(&self, lock: &Lock, granted: MasterSet) {
        let holders = self.tokens[&lock.token].holders;
        for master in granted.iter() {
            assert!(holders >> master.index() & 1 == 1, "master {} does not hold {lock:?}", master.index());
        }
    }

    /// I22: after timeouts are handled, nothing that was due is open.
    pub(super) fn check_deadlines(&mut self) {
        let now = self.now;
        self.check_queries();
        for lock in &mut self.locks {
            let is_open = matches!(lock.stage, Stage::Acquiring | Stage::Releasing);
            if is_open && lock.deadline.is_some_and(|at| at <= now) {
                assert!(lock.stage == Stage::Acquiring && lock.may_ask, "not answered in time: {lock:?}");
                lock.may_ask = false;
                lock.deadline = Some(now + lock.limit);
            }
            assert!(lock.extension.is_none_or(|at| at > now), "no answer to the extension: {lock:?}");
        }
    }

    /// The latest deadline of any caller.
    pub(super) fn last_deadline(&self) -> Instant {
        let of = |lock: &Lock| match lock.stage {
            Stage::Gone => None,
            Stage::Held => lock.extension,
            Stage::Acquiring | Stage::Releasing => lock.deadline.map(|at| at + lock.limit),
        };
        let queries = self.queries.iter().filter_map(|query| query.deadline);
        self.locks.iter().filter_map(of).chain(queries).max().unwrap_or(self.now).max(self.now)
    }

    pub(super) fn longest_ttl(&self) -> Ttl {
        self.engine.config().ttl(MAX_TTL).expect("valid")
    }

    pub(super) fn limit_max(&self) -> Duration {
        self.locks.iter().map(|lock| lock.limit).max().unwrap_or_default()
    }

    /// At the end, healthy masters must grant a lock with a new name, unless a master may still be in
    /// quarantine.
    pub(super) fn a_lock_can_be_had(&mut self) {
        let ready = |index| self.engine.master_status(self.now, id(index)).state == MasterState::Ready;
        let ready_count = (0..self.peers.len()).filter(|index| ready(*index)).count();
        assert!(ready_count >= self.quorum, "only {ready_count} are ready");
        let resource = Resource::new("fresh").expect("valid");
        let request =
            Request::Acquire { resource, options: Options::new().wait(Duration::ZERO), label: None };
        let lock = self.engine.submit(self.now, request).expect("room");
        (0..self.peers.len()).for_each(|index| {
            self.send_piece(index, usize::MAX);
            self.peers[index].carry_out(self.now);
            let conn = self.peers[index].conn.as_mut();
            let bytes = conn.map(|conn| std::mem::take(&mut conn.to_engine)).unwrap_or_default();
            let space = self.engine.recv_space(id(index));
            space[..bytes.len()].copy_from_slice(&bytes);
            self.engine.recv_done(self.now, id(index), bytes.len());
        });
        let outcome = self.engine.poll_outcome();
        assert!(
            matches!(outcome, Some((it, Outcome::Acquire(Ok(_)))) if it == lock),
            "nobody is in the way: {outcome:?}"
        );
    }
}
