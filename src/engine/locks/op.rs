//! An operation: one caller's request, from `submit` to its last outcome.

use std::time::{Duration, Instant};

use super::claim::Claim;
use super::kind::Tag;
use super::mode::ModeState;
use super::obstacle::Obstacle;
use super::renewal::{Renewal, loss_lead};
use super::slab::{Id, Kept};
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Verb};
use crate::engine::masters::wall_clock::WallClock;
use crate::engine::queries::query::Query;
use crate::engine::request::Validity;
use crate::engine::waiting::brake::Brake;
use crate::engine::waiting::parking::Parking;
use crate::error::{AcquireError, Denial, HeldBy, Report, Waited};
use crate::handle::Kind;
use crate::lock::command;
use crate::lock::{HolderTtl, MasterSet, Resource, Tally, Ttl, Vote};

#[derive(Debug)]
pub(crate) struct Op {
    /// The key as an encoded bulk string, of one that waits; of others the claim has it.
    pub(crate) key: Vec<u8>,
    /// The holder's label; empty without one.
    pub(crate) label: Vec<u8>,
    pub(crate) asked: Asked,
    pub(crate) tries: Tries,
    /// Mode of the lock.
    pub(crate) mode: ModeState,
    /// Whether it stands in no wait queue of this engine, but asks the masters from the beginning.
    pub(crate) is_fair: bool,
    /// Whether its next attempt waits in the masters' queues, if enough masters can park it.
    pub(crate) parks: bool,
    /// Its place in the masters' queues.
    pub(crate) parking: Kept<Parking>,
    /// The latest attempt's claim.
    pub(crate) claim: Id,
    state: OpState,
    /// The query of an operation in the state [`OpState::Query`].
    pub(crate) query: Option<Box<Query>>,
    /// Where the end of the validity in `state` has moved since the grant, for others to read.
    pub(crate) validity: Validity,
    /// Whether more is to be noted of it than that it was acquired and released: it is timed or observed, or
    /// had to wait.
    pub(crate) is_noted: bool,
    /// Whether the times of its acquisition and its hold are recorded.
    pub(crate) is_timed: bool,
    /// Whether the round trip of its next attempt is measured.
    pub(crate) is_sampled: bool,
    /// Whether its attempts are more than a `SET NX` of a token: a script, with a label, or measured.
    pub(crate) is_special: bool,
}

const NOT_PARKED: &str = "it is parked";

/// Times and limits asked for an acquisition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) submitted: Instant,
    /// By the acquisition, or by the last extension.
    pub(crate) ttl: Ttl,
    pub(crate) min_validity: Duration,
    /// Attempts start before this time only; without it there is one.
    pub(crate) wait_until: Option<Instant>,
    /// Largest number of attempts, if it is limited.
    pub(crate) attempts_max: Option<u32>,
    /// Longest time for which the lock is renewed, if it is kept.
    pub(crate) max_hold: Option<Duration>,
}

impl Asked {
    /// The times of an operation that is no acquisition.
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

/// The attempts of an acquisition so far, and what came of them.
#[derive(Debug)]
pub(crate) struct Tries {
    /// Attempts started.
    pub(crate) count: u32,
    /// Whether it ever waited in a queue behind another, in this engine or on a master.
    pub(crate) has_queued: bool,
    /// Until then it polls, as too few masters could park it.
    pub(crate) polls_until: Option<Instant>,
    /// Slows it down where masters have too much to do.
    pub(crate) brake: Brake,
    /// How the latest attempt failed that did.
    pub(crate) denied: Option<Box<Denied>>,
    /// Consecutive hand-overs up to the latest attempt; `None` if that was not one. See [`Op::streak`].
    pub(crate) streak: Option<HandoverStreak>,
    /// Masters whose votes do not count for the attempt under way, in addition to those in quarantine now.
    pub(crate) excluded: MasterSet,
    /// The key that was in the way of the latest attempt, or is in that of the round that waits.
    pub(crate) obstacle: Obstacle,
}

impl Tries {
    /// For how long it asks nobody, as masters have too much to do.
    pub(crate) fn braked_for(&self, now: Instant) -> Duration {
        let until = self.polls_until.filter(|_| self.brake.is_on());
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// State of an operation. It owns no memory, so a transition drops nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OpState {
    /// Nothing was asked of a master or of a wait queue.
    New,
    /// Others of this engine are to have the lock before it, or its turn is due.
    Queued { turn: Turn },
    /// An attempt failed; the next one starts at `retry_at`.
    Waiting { retry_at: Instant },
    /// An attempt waits for votes. When it ends, the [`Parking`] says if it is parked.
    Acquiring { deadline: Instant },
    /// The only or last attempt was refused; the masters that did are being asked for the holder's time.
    Asking { deadline: Instant },
    /// The lock is held, or was and is not yet released.
    Held(Held),
    /// The caller waits for the release, as long as the claim says.
    Releasing,
    /// No lock at all.
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
    /// TTL that the validity counts with: that of an extension only once it has succeeded, or shortens it.
    pub(crate) ttl: Ttl,
    /// Extensions started; distinguishes a late answer to one from an answer to the next.
    pub(crate) round: u32,
    pub(crate) extension: Option<Extension>,
    /// How the lock is kept, if that is not left to the caller.
    pub(crate) renewal: Option<Renewal>,
    /// Whether its loss is to be reported.
    pub(crate) notifies_loss: bool,
    /// Whether it is counted as lost or left.
    pub(crate) is_counted: bool,
    /// Whether the end of its validity, as it is now, is counted as a near loss.
    pub(crate) is_near_loss: bool,
}

/// When one that waits in a queue makes its attempt, unless the lock is handed over to it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// When those before it are gone.
    Later,
    /// When the holder's validity has ended, which may yet be moved.
    AfterHolder(Instant),
    At(Instant),
}

/// How long a lock has been passing from one operation to the next without being free in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandoverStreak {
    /// How often it was handed over.
    pub(crate) count: u32,
    pub(crate) since: Instant,
}

/// An extension under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extension {
    pub(crate) deadline: Instant,
    /// The new `valid_until` if it succeeds: counted from its own sending (I3).
    pub(crate) valid_until: Instant,
    pub(crate) tally: Tally,
    /// Whether nobody asked for it but the keeping of the lock.
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
    /// How many of the masters that refused must turn free for a quorum.
    pub(crate) missing_count: usize,
    /// Masters asked for the holder's time that have not answered.
    pub(crate) asked: MasterSet,
}

impl Op {
    /// An attempt in this mode begins: returns the kind of its claim.
    pub(crate) fn begin_mode(&mut self, fleet: &Fleet, now: Instant, wall_clock: &WallClock) -> Kind {
        let Tries { obstacle, excluded, .. } = &mut self.tries;
        self.mode.begin_attempt(fleet, now, wall_clock, obstacle, excluded)
    }

    /// Puts the label into the value of a new claim.
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
                polls_until: None,
                brake: Brake::OFF,
                denied: None,
                streak: None,
                excluded: MasterSet::EMPTY,
                obstacle: Obstacle::NONE,
            },
            mode: ModeState::Plain,
            is_fair: false,
            parks: false,
            parking: Kept::NONE,
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

    /// Starts anew in the memory of the slot's last operation. The first attempt sets the claim.
    #[inline(always)]
    pub(crate) fn begin(&mut self, asked: Asked) {
        self.key.clear();
        self.label.clear();
        self.asked = asked;
        self.state = OpState::New;
        // Taken apart, so that a new field cannot be forgotten here.
        let Tries { count, has_queued, polls_until, brake, denied, streak, excluded, obstacle } =
            &mut self.tries;
        *brake = Brake::OFF;
        (*count, *has_queued, *excluded) = (0, false, MasterSet::EMPTY);
        (*polls_until, *denied, *streak) = (None, None, None);
        obstacle.clear();
        (self.mode, self.is_fair, self.parks) = (ModeState::Plain, false, false);
        self.parking.clear();
        self.validity.reset();
        (self.is_noted, self.is_timed) = (false, false);
        (self.is_sampled, self.is_special) = (false, false);
    }

    /// The request to which replies to its next attempt are owed.
    pub(crate) fn owed(&mut self, tag: Tag, claim: Id) -> Owed {
        if std::mem::take(&mut self.is_sampled) {
            Owed::Timed { tag, id: claim }
        } else {
            Owed::round(Verb::Acquire, tag, 0, claim)
        }
    }

    /// Whether it had to wait: its first attempt failed, or others came first.
    #[inline]
    pub(crate) const fn has_waited(&self) -> bool {
        self.tries.count > 1 || self.tries.has_queued
    }

    /// Whether its caller allows no more attempts.
    pub(crate) const fn has_tried_enough(&self) -> bool {
        match self.asked.attempts_max {
            Some(count_max) => self.tries.count >= count_max,
            None => false,
        }
    }

    /// The place in the masters' queues of one that is parked.
    pub(crate) fn parking(&self) -> &Parking {
        self.parking.as_ref().expect(NOT_PARKED)
    }

    pub(crate) fn parking_mut(&mut self) -> &mut Parking {
        self.parking.as_mut().expect(NOT_PARKED)
    }

    /// When something is to be done for this operation whatever else happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            OpState::Acquiring { deadline } => Some(match self.parking.as_ref().map(Parking::deadline) {
                None => *deadline,
                Some(due) => self.asked.wait_until.map_or(due, |until| until.min(due)),
            }),
            OpState::Asking { deadline } => Some(*deadline),
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

    /// Sets the key of the lock that is asked for.
    pub(crate) fn set_key(&mut self, prefix: &[u8], resource: Resource<'_>) {
        command::entry::encode_key(&mut self.key, prefix, resource.as_bytes());
    }

    /// Takes the key from the claim of an attempt that is over.
    pub(crate) fn take_key(&mut self, claim: &Claim) {
        self.key.clear();
        self.key.extend_from_slice(claim.entry.key());
    }

    /// Enters a state. Nothing else writes it but [`Op::begin`], and [`Op::held_mut`] changes a held lock.
    #[inline(always)]
    pub(crate) fn enter(&mut self, state: OpState) {
        assert!(state.may_follow(&self.state), "no such state follows");
        self.state = state;
    }

    #[inline(always)]
    pub(crate) const fn state(&self) -> &OpState {
        &self.state
    }

    /// Plans the attempt behind one that failed. Nothing else sets its time, and until it begins it is only
    /// brought forward.
    pub(crate) fn retry_by(&mut self, at: Instant) {
        if let OpState::Waiting { retry_at } = &mut self.state {
            *retry_at = at.min(*retry_at);
        } else {
            self.enter(OpState::Waiting { retry_at: at });
        }
    }

    /// Is to be timed, and its round trip measured if it `is_sampled`.
    pub(crate) const fn note_timed(&mut self, is_sampled: bool) {
        (self.is_noted, self.is_timed) = (true, true);
        (self.is_sampled, self.is_special) = (is_sampled, is_sampled);
    }

    /// An attempt begins with this claim, and has its votes at this time or when the wait ends, which is returned.
    /// The rounds of a parked one are one attempt.
    #[inline(always)]
    pub(crate) fn await_votes(&mut self, claim: Id, mut deadline: Instant) -> Instant {
        if let Some(wait_until) = self.asked.wait_until {
            deadline = deadline.min(wait_until);
        }
        self.tries.count += u32::from(self.parking.is_none());
        self.tries.streak = None;
        self.claim = claim;
        self.enter(OpState::Acquiring { deadline });
        deadline
    }

    /// Whether its latest attempt failed, and the next one has not begun.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self.state, OpState::Asking { .. } | OpState::Waiting { .. })
    }

    /// How the latest attempt failed, of one that asks or waits.
    pub(crate) fn denied_lately(&mut self) -> Option<&mut Denied> {
        let is_denied = self.is_denied();
        self.tries.denied.as_deref_mut().filter(|_| is_denied)
    }

    /// The lock, if it is held.
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

    /// Moves the end of the validity of a held lock, for other threads to read, too.
    pub(crate) fn move_validity(&mut self, to: Instant) {
        self.held_mut().expect("it is held").valid_until = to;
        self.validity.move_to(to);
    }

    /// The streak that ends with the lock that this operation has held since then.
    pub(crate) const fn streak(&self, since: Instant) -> HandoverStreak {
        match self.tries.streak {
            Some(streak) => streak,
            None => HandoverStreak { count: 0, since },
        }
    }

    /// The holder's label, for errors of others.
    pub(crate) fn shown_label(&self) -> Option<&str> {
        str::from_utf8(&self.label).ok().filter(|label| !label.is_empty())
    }

    /// Readers that hold the lock, if some are known, else another client.
    pub(crate) fn readers(&self) -> HeldBy {
        match self.tries.obstacle.readers {
            0 => HeldBy::AnotherClient,
            count => HeldBy::Readers(count),
        }
    }

    /// The error of an acquisition that ends with an attempt that failed like this, its own or that of one
    /// before it in the queue, and with what masters reported of the key in the way.
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
    /// A lock that was just acquired.
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

    /// When something is to be done for the lock.
    fn deadline(&self) -> Option<Instant> {
        let due = match &self.extension {
            Some(extension) => Some(extension.deadline),
            None => self.renewal.and_then(|renewal| renewal.renew_at),
        };
        due.into_iter().chain(self.warn_at()).min()
    }

    /// When the loss of the lock is to be reported.
    pub(crate) fn warn_at(&self) -> Option<Instant> {
        // A validity cannot be shorter than its own tenth.
        let lead = loss_lead(self.ttl);
        self.notifies_loss.then(|| self.valid_until.checked_sub(lead).unwrap_or(self.valid_until))
    }
}

impl Denied {
    /// When enough of the masters that refused will be free, by what they reported, if the holder does
    /// nothing.
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
