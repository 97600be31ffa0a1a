//! Requests to an engine and their outcomes, and the engine's requests to its event loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::locks::slab::Id;
use super::queries::free_slots::SlotLook;
use super::queries::inspection::{ForceUnlocked, Inspection};
use crate::error::{
    AcquireError, AdoptError, ErrorClass, ExtendError, ForceUnlockError, InspectError, LeaveError,
    ReleaseError, ReleaseHandleError, classes,
};
use crate::handle::LockHandle;
use crate::lock::{FencingToken, HolderLabel, InputError, MasterId, MasterSet, Resource, Token};
use crate::options::Options;

/// Identity of one lock of one [`Engine`](crate::engine::Engine), from
/// [`submit`](crate::engine::Engine::submit) to its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(super) Id);

impl OpId {
    /// A small number, unique among the current locks.
    pub(crate) const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// Request to the engine.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Request<'a> {
    /// Acquires a lock. Answered by [`Outcome::Acquire`].
    ///
    /// A waiting request queues behind the callers of this engine that hold the lock or wait for it. Shared
    /// and fair requests do not.
    Acquire {
        /// Name of the lock, without the configured prefix.
        resource: Resource<'a>,
        /// Mode, times and limits of the lock.
        options: Options,
        /// Label after the token in the lock's value, in place of the configured label
        /// ([`ConfigBuilder::holder_label`](crate::ConfigBuilder::holder_label)).
        label: Option<HolderLabel<'a>>,
    },
    /// Gives a held lock a new TTL, counted from the request. Answered by [`Outcome::Extend`].
    Extend {
        /// The lock.
        lock: OpId,
        /// The new TTL.
        ttl: Duration,
    },
    /// Reports the loss of a held lock once, with [`Outcome::Lost`]: when a tenth of its validity is left and
    /// no extension comes in time, or when masters prove the loss. There is no outcome if the holder gives up
    /// the lock first.
    NotifyLoss {
        /// The lock.
        lock: OpId,
    },
    /// Releases a lock in any state. A held lock may pass to the next waiter in this engine's queue.
    ///
    /// An acquisition in progress is cancelled without an outcome; an extension in progress fails. A second
    /// release joins an awaited first release in progress, and both get one outcome.
    Release {
        /// The lock.
        lock: OpId,
        /// Whether to report an [`Outcome::Release`].
        awaited: bool,
    },
    /// Gives up a held lock, but leaves it on the masters for `rest`, counted from the request; zero releases
    /// it. Answered by [`Outcome::Leave`]. After [`LeaveError::Unconfirmed`] or [`LeaveError::Lost`], a later
    /// [`Request::Release`] has no effect; after any other error the lock is unchanged.
    ///
    /// The masters' keys get the rest as their TTL. A master that misses it gets it after a reconnect, or a
    /// release once the time is over, while the engine is driven.
    LeaveFor {
        /// The lock.
        lock: OpId,
        /// Rest of the time, at most `max_ttl`; rounded up to the shortest TTL, 6 ms.
        rest: Duration,
    },
    /// Adopts or releases a lock by its handle. The caller must have checked that the handle belongs to this
    /// fleet ([`LockHandle::check_fleet`]).
    ByHandle {
        /// The handle.
        handle: &'a LockHandle,
        /// Effect on the lock.
        act: HandleAct,
    },
    /// Waits for the random pause of an acquisition after this many failed attempts. Answered by
    /// [`Outcome::Paused`]. A release cancels it.
    Pause {
        /// Number of failed attempts.
        attempts: u32,
        /// Duration of the last attempt, a lower bound of the pause.
        took: Duration,
        /// Upper bound of the pause; takes precedence.
        limit: Duration,
    },
    /// Asks each usable master about a lock's key, whoever holds it. Answered by [`Outcome::Inspect`] when
    /// all have answered, or at the answer limit of the longest TTL. It is no vote. A release cancels it.
    Inspect {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Asks each usable master which slots of a pool are free. Answered by [`Outcome::FreeSlots`] as soon as
    /// a quorum agrees or none can, or at the answer limit of the longest TTL. It is no vote. A release
    /// cancels it. A drained engine refuses it.
    FreeSlots {
        /// The pool's name.
        pool: Resource<'a>,
        /// Number of its slots, 1 to 1,024 ([`SLOT_COUNT_MAX`](crate::limits::SLOT_COUNT_MAX)).
        count: u32,
        /// The slot to begin with; the search wraps around. Each master reports its first 4 free slots.
        from: u32,
    },
    /// Deletes a lock on each usable master, whoever holds it. Keys that are no locks stay. The holder gets
    /// no notice, and may continue as if it held the lock. Answered by [`Outcome::ForceUnlock`] when all have
    /// answered, or at the answer limit of the longest TTL.
    ForceUnlock {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Ends acquisitions in progress, and refuses new ones from now on. Waits until all releases are
    /// complete, at most for `limit`. Answered by [`Outcome::Drained`].
    Drain {
        /// Treatment of held locks.
        held: HeldLocks,
        /// Longest time until the answer.
        limit: Duration,
    },
}

impl Request<'_> {
    /// Whether the engine wants a reading of the wall clock just before this request
    /// ([`Engine::handle_wall_clock`](crate::engine::Engine::handle_wall_clock)): it draws a fencing token.
    pub(crate) const fn wants_wall_clock(&self) -> bool {
        matches!(self, Self::Acquire { options, .. } if options.mode.draws_token())
    }
}

/// Effect on a handle's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleAct {
    /// This engine adopts the lock, with one attempt that waits for nobody. Answered by [`Outcome::Acquire`].
    ///
    /// Only for a handle whose guard has given up the lock ([`LockHandle::can_be_adopted`]). Otherwise two
    /// callers would hold it.
    Adopt {
        /// Longest time for which to extend the lock automatically.
        auto_extend: Option<Duration>,
    },
    /// Each master that holds the lock releases it, and serves waiters. Answered by [`Outcome::Release`].
    Release {
        /// Whether to report that outcome.
        awaited: bool,
    },
}

/// Treatment of held locks when a client is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldLocks {
    /// Releases them at once, even under a live guard: its validity ends first, and its loss is reported. The
    /// guard's own `release` and `extend` then return `NotHeld`, or `Stopped` after the drain. Stop the work
    /// first.
    Release,
    /// Lets their holders continue and release them during the drain. A lock still held at the end of the
    /// drain stays on the masters until its TTL ends; nobody renews or releases it.
    Leave,
}

/// Error of a request that was not accepted. Nothing was sent, except by a drain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The engine has 131,072 operations ([`crate::limits::OPERATION_COUNT_MAX`]), or 4,096 callers wait for
    /// this lock ([`crate::limits::QUEUED_COUNT_MAX`]).
    #[error("{}", crate::error::OVERLOADED)]
    Overloaded,
    /// The request is invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The engine was drained. Or, from [`crate::Redlock::submit`], a forked process tried to use its
    /// parent's client.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Errors of calls that submit a request and wait for its answer.
macro_rules! from_submit_error {
    ($($name:ident)*) => {$(
        impl From<SubmitError> for $name {
            fn from(error: SubmitError) -> Self {
                match error {
                    SubmitError::Overloaded => Self::Overloaded,
                    SubmitError::Input(error) => Self::Input(error),
                    SubmitError::Stopped(why) => Self::Stopped(why),
                }
            }
        }
    )*};
}

from_submit_error! { AcquireError InspectError ForceUnlockError AdoptError ReleaseHandleError }

classes! {
    SubmitError {
        Self::Overloaded => ErrorClass::Overloaded,
        Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Answer to [`Request::Acquire`] and [`HandleAct::Adopt`].
    Acquire(Result<Grant, AcquireError>),
    /// Answer to [`Request::Extend`]: the end of the new validity.
    Extend(Result<Instant, ExtendError>),
    /// Answer to [`Request::NotifyLoss`]: the engine renews the lock no more. Its validity ends or ended at
    /// this time.
    Lost(Instant),
    /// Answer to an awaited [`Request::Release`] or [`HandleAct::Release`].
    Release(Result<Released, ReleaseError>),
    /// Answer to [`Request::LeaveFor`].
    Leave(Result<Left, LeaveError>),
    /// Answer to [`Request::Pause`].
    Paused,
    /// Answer to [`Request::Inspect`].
    Inspect(Inspection),
    /// Answer to [`Request::FreeSlots`].
    FreeSlots(SlotLook),
    /// Answer to [`Request::ForceUnlock`].
    ForceUnlock(ForceUnlocked),
    /// Answer to [`Request::Drain`]: the number of locks that were not released on every master.
    Drained(usize),
}

/// An acquired lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Random value that the masters hold.
    pub token: Token,
    /// Number larger than every earlier fenced holder's token, in the mode
    /// [`Mode::Fenced`](crate::Mode::Fenced).
    pub fencing_token: Option<FencingToken>,
    /// End of the validity: TTL minus drift after the start of the attempt.
    pub valid_until: Instant,
    /// Masters that had granted when the quorum was reached. [`super::Engine::granted`] includes later ones.
    pub granted: MasterSet,
    /// Number of attempts, at least 1.
    pub attempts: u32,
}

/// A release confirmed by a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Number of masters that had deleted the key when the quorum was reached.
    pub deleted: usize,
    /// Number of masters that no longer had the key.
    pub absent: usize,
    /// Number of masters that had not confirmed; the release continues there in the background.
    pub unanswered: usize,
}

/// A lock left for a time: a quorum of masters has the rest as the TTL of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Nobody else gets the lock before this time: the sending of the rest, plus the rest minus the drift.
    pub held_until: Instant,
    /// Latest time at which any master may still have the key.
    pub latest_end: Instant,
    /// Number of masters that had not confirmed; they get the rest in the background.
    pub unanswered: usize,
}

impl Left {
    /// Converts a result to another clock, with `at`.
    pub(crate) fn by_clock(
        result: Result<Self, LeaveError>,
        at: fn(Instant) -> Instant,
    ) -> Result<Self, LeaveError> {
        match result {
            Ok(Self { held_until, latest_end, unanswered }) => {
                Ok(Self { held_until: at(held_until), latest_end: at(latest_end), unanswered })
            }
            Err(LeaveError::Unconfirmed { report, latest_end }) => {
                Err(LeaveError::Unconfirmed { report, latest_end: at(latest_end) })
            }
            other => other,
        }
    }
}

impl Released {
    /// Returns whether no master that had answered still had the key. That is no error.
    #[must_use]
    pub const fn was_already_gone(&self) -> bool {
        self.deleted == 0
    }
}

/// End of a lock's validity, readable by other threads without the engine. Clones share it.
#[derive(Debug, Clone)]
pub struct Validity(Arc<Moved>);

/// Belongs to an operation's slot, and is reused by its next occupants: an acquisition allocates none, and
/// only an extension or a loss writes it.
#[derive(Debug)]
struct Moved {
    base: Instant,
    /// Nanoseconds since `base`, enough for 584 years; [`UNMOVED`] while the grant's end is valid.
    until_ns: AtomicU64,
}

const UNMOVED: u64 = u64::MAX;

impl Validity {
    /// No end may be before `base`.
    pub(crate) fn new(base: Instant) -> Self {
        Self(Arc::new(Moved { base, until_ns: AtomicU64::new(UNMOVED) }))
    }

    /// Forgets the last lock's end.
    pub(super) fn reset(&self) {
        self.0.until_ns.store(UNMOVED, Ordering::Release);
    }

    pub(super) fn move_to(&self, until: Instant) {
        let until_ns = until.saturating_duration_since(self.0.base).as_nanos();
        self.0.until_ns.store(u64::try_from(until_ns).unwrap_or(UNMOVED - 1), Ordering::Release);
    }

    /// Returns the end of the validity by this crate's clock, for a lock `granted` until then.
    #[must_use]
    #[inline]
    pub fn until(&self, granted: Instant) -> Instant {
        match self.0.until_ns.load(Ordering::Acquire) {
            UNMOVED => granted,
            until_ns => self.0.base + Duration::from_nanos(until_ns),
        }
    }
}

/// Task for the event loop, about one connection or master.
///
/// Exhaustive: an event loop must perform every task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkRequest {
    /// Open it, and report the result.
    Connect(MasterId),
    /// Close it, or stop opening it; report nothing more about it.
    Close(MasterId),
    /// Look up the name of this connected master again, because it refuses writes. If the name now leads only
    /// to other addresses, close the connection and report its end.
    LookUp(MasterId),
    /// Ask the configured provider for this master's credentials, with
    /// [`Config::ask_credentials`](crate::Config::ask_credentials) on another thread, and pass the answer to
    /// [`Engine::handle_credentials`](super::Engine::handle_credentials). Returned only if a provider is
    /// configured. Never returned again before the answer.
    Credentials(MasterId),
}

/// Reason of a deadline from [`Engine::next_timeout`](super::Engine::next_timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A master must be connected, is late with its handshake, or has been silent for too long; or its
    /// credentials must be renewed.
    Link(MasterId),
    /// An operation's votes are due, or its next attempt.
    Operation,
    /// A release is due or must be repeated, or its lock has expired.
    Claim,
}
