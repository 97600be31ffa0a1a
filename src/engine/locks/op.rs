//! An operation: one caller's request, from `submit` to its last outcome.

use std::time::{Duration, Instant};

use super::claim::Claim;
use super::mode::Wanted;
use super::obstacle::Obstacle;
use super::renewal::{Renewal, loss_lead};
use super::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::masters::wall_clock::WallClock;
use crate::engine::queries::query::Query;
use crate::engine::request::Validity;
use crate::engine::waiting::brake::Brake;
use crate::error::{AcquireError, Denial, HeldBy, Report, Waited};
use crate::lock::command;
use crate::lock::{HolderTtl, Kind, MasterSet, Resource, Tally, Ttl, Vote};

#[derive(Debug)]
pub(crate) struct Op {
    /// The key as an encoded bulk string, while the operation waits. Otherwise the claim has it.
    pub(crate) key: Vec<u8>,
    /// The holder's label; empty without one.
    pub(crate) label: Vec<u8>,
    pub(crate) asked: Asked,
    pub(crate) tries: Tries,
    /// Kind of the lock.
    pub(crate) mode: Wanted,
    /// Whether the operation stands in no wait queue of this engine, and asks the masters from the start.
    pub(crate) is_fair: bool,
    /// Whether the next attempt waits in the masters' queues, if enough masters can park it.
    pub(crate) parks: bool,
    /// Claim of the latest attempt.
    pub(crate) claim: Id,
    state: OpState,
    /// The query of an operation in the state [`OpState::Query`].
    pub(crate) query: Option<Box<Query>>,
    /// End of the validity after the latest move, for other threads to read.
    pub(crate) validity: Validity,
    /// Whether the engine records more than the counts of acquisitions and releases, because the operation is
    /// timed, is observed, or had to wait.
    pub(crate) is_noted: bool,
    /// Whether the acquisition and hold times are recorded.
    pub(crate) is_timed: bool,
    /// Whether the round trip of the next attempt is measured.
    pub(crate) is_sampled: bool,
    /// Whether attempts need more than a `SET NX` of a token: a script or a label.
    pub(crate) is_special: bool,
}

/// Times and limits asked for an acquisition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) submitted: Instant,
    /// TTL of the acquisition, or of the last extension.
    pub(crate) ttl: Ttl,
    pub(crate) min_validity: Duration,
    /// Attempts start before this time; without a time there is only one attempt.
    pub(crate) wait_until: Option<Instant>,
    /// Largest number of attempts, if limited.
    pub(crate) attempts_max: Option<u32>,
    /// Longest time for which the lock is renewed, if it is renewed.
    pub(crate) max_hold: Option<Duration>,
}

impl Asked {
    /// Returns the times of an operation that acquires nothing.
    pub(crate) const fn of_query(now: Instant, ttl: Ttl) -> Self {
        Self {
            submitted: now,
            ttl,
            min_validity: Duration::ZERO,
            wait_until: None,
            attempts_max: None,
            max_hold: None,
        }
    }
}

/// The attempts of an acquisition so far, and their results.
#[derive(Debug)]
pub(crate) struct Tries {
    /// Attempts started.
    pub(crate) count: u32,
    /// Whether the acquisition ever waited in a queue, in this engine or on a master.
    pub(crate) has_queued: bool,
    /// Keeps the acquisition from parking, and slows it down, after too few masters could park it.
    pub(crate) brake: Brake,
    /// The latest failure of an attempt.
    pub(crate) denied: Option<Box<Denied>>,
    /// Consecutive hand-overs up to the latest attempt; `None` if that was not one. See [`Op::streak`].
    pub(crate) streak: Option<HandoverStreak>,
    /// Masters whose votes do not count for the current attempt, in addition to masters in quarantine at the
    /// decision.
    pub(crate) excluded: MasterSet,
    /// The key in the way of the latest attempt, or of the waiting round.
    pub(crate) obstacle: Obstacle,
}

/// State of an operation. Owns no memory, so a transition drops nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OpState {
    /// No master and no wait queue was asked.
    New,
    /// Other callers of this engine come before it, or its turn is due.
    Queued { turn: Turn },
    /// An attempt failed; the next one starts at `retry_at`.
    Waiting { retry_at: Instant },
    /// An attempt waits for votes. If it is parked, its round says when it ends.
    Acquiring { deadline: Instant },
    /// The last attempt was refused, and the refusing masters are being asked about the holder.
    Asking { deadline: Instant },
    /// The lock is held, or has expired without a release.
    Held(Held),
    /// The caller waits for the release. The claim says how long.
    Releasing,
    /// A query, a pause or a drain: no lock.
    Query,
}

impl OpState {
    /// Whether this state may follow another one.
    #[inline(always)]
    const fn may_follow(&self, before: &Self) -> bool {
        match self {
            Self::New => false,
            Self::Acquiring { .. } => matches!(
                before,
                Self::New | Self::Queued { .. } | Self::Waiting { .. } | Self::Acquiring { .. }
            ),
            Self::Queued { .. } => matches!(before, Self::New | Self::Queued { .. } | Self::Waiting { .. }),
            Self::Waiting { .. } | Self::Asking { .. } | Self::Held(_) => {
                matches!(before, Self::Acquiring { .. })
            }
            Self::Releasing => matches!(before, Self::New | Self::Acquiring { .. } | Self::Held(_)),
            Self::Query => matches!(before, Self::New),
        }
    }
}

/// A lock that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) since: Instant,
    pub(crate) valid_until: Instant,
    /// TTL of the current validity. An extension's TTL replaces it once the extension has succeeded, or at
    /// once if it is shorter.
    pub(crate) ttl: Ttl,
    /// Number of extensions started. Distinguishes a late answer to one extension from an answer to the next.
    pub(crate) round: u32,
    pub(crate) extension: Option<Extension>,
    /// Renewals of the lock, if the caller asked for them.
    pub(crate) renewal: Option<Renewal>,
    /// Whether the loss is still to report.
    pub(crate) notifies_loss: bool,
    /// Whether the lock is counted as lost.
    pub(crate) is_counted: bool,
    /// Whether the current end of the validity is counted as a near loss.
    pub(crate) is_near_loss: bool,
}

/// When a queued operation starts its attempt, unless it gets a hand-over first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// When the callers before it are gone.
    Later,
    /// When the holder's validity has ended. That end may still move.
    AfterHolder(Instant),
    At(Instant),
}

/// Consecutive hand-overs of a lock that never became free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandoverStreak {
    /// Number of hand-overs.
    pub(crate) count: u32,
    pub(crate) since: Instant,
}

/// An extension under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extension {
    pub(crate) deadline: Instant,
    /// The new `valid_until` after success, counted from the sending of the extension (I3).
    pub(crate) valid_until: Instant,
    pub(crate) tally: Tally,
    /// Whether this is a renewal rather than the caller's extension.
    pub(crate) is_renewal: bool,
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Contended,
    NoQuorum,
    Expired,
}

/// How an attempt failed.
#[derive(Debug, Clone)]
pub(crate) struct Denied {
    pub(crate) cause: Cause,
    pub(crate) report: Report,
    /// Number of refusing masters that must become free for a quorum.
    pub(crate) missing_count: usize,
    /// Masters that owe an answer about the holder's time.
    pub(crate) asked: MasterSet,
}

impl Op {
    /// Begins an attempt in this mode. Returns the kind of its claim.
    pub(crate) fn begin_mode(&mut self, fleet: &Fleet, now: Instant, wall_clock: &WallClock) -> Kind {
        let Tries { obstacle, excluded, .. } = &mut self.tries;
        self.mode.begin_attempt(fleet, now, wall_clock, obstacle, excluded)
    }

    /// Adds the label to the value of a new claim.
    pub(crate) fn add_label(&self, claim: &mut Claim) {
        if !self.label.is_empty() {
            claim.entry.add_label(&claim.token, &self.label);
        }
    }

    /// Placeholder in a slot before its first operation.
    pub(crate) fn blank(now: Instant, ttl: Ttl) -> Self {
        Self {
            key: Vec::new(),
            label: Vec::new(),
            asked: Asked::of_query(now, ttl),
            tries: Tries {
                count: 0,
                has_queued: false,
                brake: Brake::OFF,
                denied: None,
                streak: None,
                excluded: MasterSet::EMPTY,
                obstacle: Obstacle::NONE,
            },
            mode: Wanted::PLAIN,
            is_fair: false,
            parks: false,
            claim: Id::NOBODY,
            state: OpState::New,
            query: None,
            validity: Validity::new(now),
            is_noted: false,
            is_timed: false,
            is_sampled: false,
            is_special: false,
        }
    }

    /// Starts a new operation in the memory of the slot's last one. The first attempt sets the claim.
    #[inline(always)]
    pub(crate) fn begin(&mut self, asked: Asked) {
        self.key.clear();
        self.label.clear();
        self.asked = asked;
        self.state = OpState::New;
        // Destructured, so that a new field cannot be forgotten here.
        let Tries { count, has_queued, brake, denied, streak, excluded, obstacle } = &mut self.tries;
        *brake = Brake::OFF;
        (*count, *has_queued, *excluded) = (0, false, MasterSet::EMPTY);
        (*denied, *streak) = (None, None);
        obstacle.clear();
        (self.is_fair, self.parks) = (false, false);
        if !matches!(self.mode, Wanted::Of(Kind::Plain)) {
            self.mode = Wanted::PLAIN;
        }
        self.validity.reset();
        (self.is_noted, self.is_timed) = (false, false);
        (self.is_sampled, self.is_special) = (false, false);
    }

    /// Returns the request that the replies to the next attempt answer.
    #[inline(always)]
    pub(crate) fn owed(&mut self, tag: Tag, claim: Id) -> Owed {
        if std::mem::take(&mut self.is_sampled) {
            Owed::Timed { tag, id: claim }
        } else {
            Owed::round(Verb::Acquire, tag, 0, claim)
        }
    }

    /// Whether the operation had to wait: its first attempt failed, or other callers came first.
    #[inline]
    pub(crate) const fn has_waited(&self) -> bool {
        self.tries.count > 1 || self.tries.has_queued
    }

    /// Whether the caller allows no further attempts.
    pub(crate) const fn has_tried_enough(&self) -> bool {
        match self.asked.attempts_max {
            Some(count_max) => self.tries.count >= count_max,
            None => false,
        }
    }

    /// Whether an attempt waits for votes.
    #[inline]
    pub(crate) const fn is_asking(&self) -> bool {
        matches!(self.state, OpState::Acquiring { .. })
    }

    /// Returns when the operation needs work, unless it waits in the masters' queues.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            OpState::Acquiring { deadline } | OpState::Asking { deadline } => Some(*deadline),
            OpState::Waiting { retry_at } => Some(*retry_at),
            OpState::Queued { turn: Turn::Later } => self.asked.wait_until,
            OpState::Queued { turn: Turn::AfterHolder(at) | Turn::At(at) } => {
                Some(self.asked.wait_until.map_or(*at, |until| until.min(*at)))
            }
            OpState::Held(held) => held.deadline(),
            OpState::New | OpState::Releasing => None,
            OpState::Query => self.query.as_ref().map(|query| query.deadline),
        }
    }

    /// Sets the key of the requested lock.
    pub(crate) fn set_key(&mut self, prefix: &[u8], resource: Resource<'_>) {
        command::entry::encode_key(&mut self.key, prefix, resource.as_bytes());
    }

    /// Copies the key from the claim of a finished attempt.
    pub(crate) fn take_key(&mut self, claim: &Claim) {
        self.key.clear();
        self.key.extend_from_slice(claim.entry.key());
    }

    /// Enters a state. Only [`Op::begin`] also writes the state, and [`Op::held_mut`] changes a held lock.
    #[inline(always)]
    pub(crate) fn enter(&mut self, state: OpState) {
        assert!(state.may_follow(&self.state), "no such state follows");
        self.state = state;
    }

    #[inline(always)]
    pub(crate) const fn state(&self) -> &OpState {
        &self.state
    }

    /// Plans the attempt after a failed one. Only this method sets its time, and a planned attempt only moves
    /// forward in time.
    pub(crate) fn retry_by(&mut self, at: Instant) {
        if let OpState::Waiting { retry_at } = &mut self.state {
            *retry_at = at.min(*retry_at);
        } else {
            self.enter(OpState::Waiting { retry_at: at });
        }
    }

    /// Has the operation timed, and its round trip measured if it `is_sampled`.
    pub(crate) const fn note_timed(&mut self, is_sampled: bool) {
        (self.is_noted, self.is_timed) = (true, true);
        self.is_sampled = is_sampled;
    }

    /// Begins an attempt with this claim. Returns when its votes are due: at `deadline`, or when the wait
    /// ends.
    #[inline(always)]
    pub(crate) fn await_votes(&mut self, claim: Id, mut deadline: Instant) -> Instant {
        if let Some(wait_until) = self.asked.wait_until {
            deadline = deadline.min(wait_until);
        }
        self.tries.streak = None;
        self.claim = claim;
        self.enter(OpState::Acquiring { deadline });
        deadline
    }

    /// Whether the latest attempt failed, and the next one has not begun.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self.state, OpState::Asking { .. } | OpState::Waiting { .. })
    }

    /// Returns how the latest attempt failed, while the operation asks or waits.
    pub(crate) fn denied_lately(&mut self) -> Option<&mut Denied> {
        let is_denied = self.is_denied();
        self.tries.denied.as_deref_mut().filter(|_| is_denied)
    }

    /// Returns the lock, if it is held.
    #[inline]
    pub(crate) const fn held(&self) -> Option<&Held> {
        match &self.state {
            OpState::Held(held) => Some(held),
            _ => None,
        }
    }

    #[inline]
    pub(crate) const fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.state {
            OpState::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Moves the end of a held lock's validity, also for other threads.
    pub(crate) fn move_validity(&mut self, to: Instant) {
        self.held_mut().expect("it is held").valid_until = to;
        self.validity.move_to(to);
    }

    /// Returns the streak that includes the lock that this operation has held since `since`.
    pub(crate) const fn streak(&self, since: Instant) -> HandoverStreak {
        match self.tries.streak {
            Some(streak) => streak,
            None => HandoverStreak { count: 0, since },
        }
    }

    /// Returns the label, for the errors of other callers.
    pub(crate) fn shown_label(&self) -> Option<&str> {
        str::from_utf8(&self.label).ok().filter(|label| !label.is_empty())
    }

    /// Returns readers as holders if some are known, otherwise another client.
    pub(crate) fn readers(&self) -> HeldBy {
        match self.tries.obstacle.readers {
            0 => HeldBy::AnotherClient,
            count => HeldBy::Readers(count),
        }
    }

    /// Returns the error of an acquisition that ends with this failed attempt and these reports. The attempt
    /// may belong to a caller before it in the queue.
    pub(crate) fn denial(
        &self,
        now: Instant,
        mut denied: Denied,
        obstacle: &Obstacle,
        held_by: HeldBy,
    ) -> AcquireError {
        let holder = denied.holder(now, obstacle);
        for (master, ttl) in obstacle.times(now) {
            if let Some((_, Vote::Refused { holder })) = denied.report.votes.get_mut(master.index()) {
                *holder = ttl;
            }
        }
        let (attempts, took) = (self.tries.count, now - self.asked.submitted);
        let (holder_label, report) = (obstacle.label.clone(), denied.report);
        let waited = Waited::default();
        let denial =
            Denial { attempts, took, holder, held_by, holder_label, waited, report, slots: Vec::new() };
        match denied.cause {
            Cause::Contended => AcquireError::Contended(Box::new(denial)),
            Cause::NoQuorum => AcquireError::NoQuorum(Box::new(denial)),
            Cause::Expired => AcquireError::Expired(Box::new(denial)),
        }
    }
}

impl Held {
    /// Returns a lock that was just acquired.
    #[inline]
    pub(crate) const fn new(since: Instant, valid_until: Instant, ttl: Ttl) -> Self {
        Self {
            since,
            valid_until,
            ttl,
            round: 0,
            extension: None,
            renewal: None,
            notifies_loss: false,
            is_counted: false,
            is_near_loss: false,
        }
    }

    /// Returns when the lock needs work.
    fn deadline(&self) -> Option<Instant> {
        let due = match &self.extension {
            Some(extension) => Some(extension.deadline),
            None => self.renewal.and_then(|renewal| renewal.renew_at),
        };
        due.into_iter().chain(self.warn_at()).min()
    }

    /// Returns when the lock's loss must be reported.
    pub(crate) fn warn_at(&self) -> Option<Instant> {
        // Cannot fail: the lead is a tenth of the validity.
        let lead = loss_lead(self.ttl);
        self.notifies_loss.then(|| self.valid_until.checked_sub(lead).unwrap_or(self.valid_until))
    }
}

impl Denied {
    /// Returns when enough refusing masters will be free, by their reports, if the holder does nothing.
    pub(crate) fn holder(&self, now: Instant, obstacle: &Obstacle) -> HolderTtl {
        let (mut left, mut has_never) = (Vec::new(), false);
        for (_, holder) in obstacle.times(now) {
            match holder {
                HolderTtl::Left(time) => left.push(time),
                HolderTtl::Gone => left.push(Duration::ZERO),
                HolderTtl::Never => has_never = true,
                HolderTtl::Unknown => {}
            }
        }
        left.sort_unstable();
        match left.get(self.missing_count.saturating_sub(1)) {
            Some(time) if time.is_zero() => HolderTtl::Gone,
            Some(time) => HolderTtl::Left(*time),
            None if has_never => HolderTtl::Never,
            None => left.last().map_or(HolderTtl::Unknown, |time| HolderTtl::Left(*time)),
        }
    }
}

#[cfg(test)]
mod tests;
