//! Requests to an engine and their outcomes; and its requests to its event loop.

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

/// Name of one lock of one [`Engine`](crate::engine::Engine), from [`submit`](crate::engine::Engine::submit)
/// of its acquisition to its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(super) Id);

impl OpId {
    /// A small number that no other lock has at the same time.
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
    /// A request that waits queues behind those callers of this engine that hold the lock or wait for it;
    /// shared and fair ones take no part in this.
    Acquire {
        /// Name of the lock; the configured prefix is put in front.
        resource: Resource<'a>,
        /// Mode, times and limits of the lock.
        options: Options,
        /// Text that follows the token in the lock's value, in place of the configured one
        /// ([`ConfigBuilder::holder_label`](crate::ConfigBuilder::holder_label)).
        label: Option<HolderLabel<'a>>,
    },
    /// Gives a held lock a new TTL, counted from now. Answered by [`Outcome::Extend`].
    Extend {
        /// The lock.
        lock: OpId,
        /// The new TTL.
        ttl: Duration,
    },
    /// Reports once the loss of a held lock, by [`Outcome::Lost`]: a tenth of its validity before that ends,
    /// if it is not extended before, or when masters have shown that it is lost. A lock that its holder gives
    /// up before has no such outcome.
    NotifyLoss {
        /// The lock.
        lock: OpId,
    },
    /// Releases a lock in whatever state it is. A held lock may pass to the next waiter in the queue of this
    /// engine.
    ///
    /// An acquisition under way is cancelled and has no outcome; an extension under way fails. A second
    /// release joins an awaited first one that is under way, with one outcome.
    Release {
        /// The lock.
        lock: OpId,
        /// Whether an [`Outcome::Release`] is wanted.
        awaited: bool,
    },
    /// Gives up a held lock, which stays on the masters for the rest of a time, counted from now; with zero
    /// it is released. Answered by [`Outcome::Leave`]. After an error other than
    /// [`LeaveError::Unconfirmed`] and [`LeaveError::Lost`] the lock is as before; otherwise a later
    /// [`Request::Release`] has no effect.
    ///
    /// Each master gets the rest as the TTL of its key. A master that misses it gets it again after a
    /// reconnect, as a release is, and a release once the time is over, while the engine is driven.
    LeaveFor {
        /// The lock.
        lock: OpId,
        /// The rest of the time, at most `max_ttl`; it is rounded up to the shortest TTL, 6 ms.
        rest: Duration,
    },
    /// Adopts or releases a lock by its handle. The caller has checked that the handle is one of this fleet
    /// ([`LockHandle::check_fleet`]).
    ByHandle {
        /// The handle.
        handle: &'a LockHandle,
        /// Effect on the lock.
        act: HandleAct,
    },
    /// Waits for the random time that an acquisition of this engine waits after as many failed attempts.
    /// Answered by [`Outcome::Paused`]; a release of it cancels it.
    Pause {
        /// Number of failed attempts.
        attempts: u32,
        /// Duration of the last one; the pause is not shorter.
        took: Duration,
        /// The longest pause, whatever else is said.
        limit: Duration,
    },
    /// Asks each master what it holds of a lock, of any holder. Answered by [`Outcome::Inspect`] when each
    /// usable master has answered, or at the answer limit of the longest TTL. It is no
    /// vote, and a release of it cancels it.
    Inspect {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Asks each usable master which slots of a pool are free there. Answered by [`Outcome::FreeSlots`] as
    /// soon as a quorum says the same, or none can, or at the answer limit of the longest TTL. It is no vote,
    /// and a release of it cancels it. A drained engine does not take it.
    FreeSlots {
        /// The pool's name.
        pool: Resource<'a>,
        /// Number of its slots, 1 to 1,024 ([`SLOT_COUNT_MAX`](crate::limits::SLOT_COUNT_MAX)).
        count: u32,
        /// The slot to begin with; those behind the last follow from 0 on. Each master reports the first 4
        /// that are free.
        from: u32,
    },
    /// Deletes a lock on each usable master, whoever holds it; a key of another type than a lock's stays. The
    /// holder gets no notification, and may go on as if it held the lock. Answered by
    /// [`Outcome::ForceUnlock`], as [`Request::Inspect`] is.
    ForceUnlock {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Ends the acquisitions under way and takes no more of them, for ever. Waits until nothing is to be
    /// released any more, at most for `limit`. Answered by [`Outcome::Drained`].
    Drain {
        /// Treatment of the locks that are held.
        held: HeldLocks,
        /// Longest time until the answer.
        limit: Duration,
    },
}

/// Effect on the lock of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleAct {
    /// This engine takes it over, by one attempt that waits for nobody. Answered by [`Outcome::Acquire`].
    ///
    /// Only for a handle whose guard has given the lock up ([`LockHandle::can_be_adopted`]): else two would
    /// hold it.
    Adopt {
        /// Longest time for which the lock is extended automatically.
        auto_extend: Option<Duration>,
    },
    /// Each master that has it releases it, and serves the next waiters. Answered by [`Outcome::Release`].
    Release {
        /// Whether that outcome is wanted.
        awaited: bool,
    },
}

/// Treatment of locks that are held when a client is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldLocks {
    /// They are released at once, also under a guard that still lives: its validity ends before, and its loss
    /// is reported. Its own `release` and `extend` return the error `NotHeld` then, or `Stopped` after the
    /// drain. For work that was stopped before.
    Release,
    /// Their holders go on, and release them while the drain waits. A lock that is held at the end of the
    /// drain stays on the masters until its TTL has run out; nobody renews it or releases it any more.
    Leave,
}

/// Error of a request that was not taken; nothing was sent, except by a drain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The engine has 131,072 operations ([`crate::limits::OPERATION_COUNT_MAX`]), or 4,096 callers wait for
    /// this lock ([`crate::limits::QUEUED_COUNT_MAX`]).
    #[error("{}", crate::error::OVERLOADED)]
    Overloaded,
    /// The request cannot work.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The engine was drained. Or, from [`crate::Redlock::submit`]: a fork of the process cannot use its
    /// parent's client.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// The errors of the calls that submit a request and wait for its answer.
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
    /// Answer to [`Request::NotifyLoss`]: the lock is not kept any longer, and its validity ends or has ended
    /// at this time.
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
    /// Answer to [`Request::Drain`]: the number of locks that are not released on every master.
    Drained(usize),
}

/// Acquired lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Random value that the masters hold.
    pub token: Token,
    /// Number larger than the token of each earlier fenced holder, if the mode is
    /// [`Mode::Fenced`](crate::Mode::Fenced).
    pub fencing_token: Option<FencingToken>,
    /// End of its validity: TTL minus drift after the attempt began, whenever the answers came.
    pub valid_until: Instant,
    /// Masters that had granted when a quorum was reached; [`super::Engine::granted`] has later ones, too.
    pub granted: MasterSet,
    /// Number of attempts, at least 1.
    pub attempts: u32,
}

/// Release that was carried out as far as a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Number of masters that had the key and deleted it, when the answer was given.
    pub deleted: usize,
    /// Number of masters that no longer had it.
    pub absent: usize,
    /// Number of masters that had not confirmed it; they are released in the background.
    pub unanswered: usize,
}

/// Lock that was left for a time: a quorum of masters has the rest as the TTL of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Nobody else gets the lock before this: the rest minus the drift after its sending.
    pub held_until: Instant,
    /// Latest time at which any master may still have the key.
    pub latest_end: Instant,
    /// Number of masters that had not confirmed; they get the rest in the background.
    pub unanswered: usize,
}

impl Left {
    /// A result by another clock, of which `at` returns the times.
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
    /// Returns whether none of the masters that had answered still had the key. That is no error.
    #[must_use]
    pub const fn was_already_gone(&self) -> bool {
        self.deleted == 0
    }
}

/// End of a lock's validity, as other threads read it without the engine. Clones show the same moment.
#[derive(Debug, Clone)]
pub struct Validity(Arc<Moved>);

/// Each slot of an operation has one, which its next occupants use again: an acquisition allocates none, and
/// only an extension or a loss writes it.
#[derive(Debug)]
struct Moved {
    base: Instant,
    /// Nanoseconds since `base`, for 584 years; [`UNMOVED`] as long as the grant's end stands.
    until_ns: AtomicU64,
}

const UNMOVED: u64 = u64::MAX;

impl Validity {
    /// No moment is before `base`.
    pub(crate) fn new(base: Instant) -> Self {
        Self(Arc::new(Moved { base, until_ns: AtomicU64::new(UNMOVED) }))
    }

    /// Another lock begins.
    pub(super) fn reset(&self) {
        self.0.until_ns.store(UNMOVED, Ordering::Release);
    }

    /// The validity ends then.
    pub(super) fn move_to(&self, until: Instant) {
        let until_ns = until.saturating_duration_since(self.0.base).as_nanos();
        self.0.until_ns.store(u64::try_from(until_ns).unwrap_or(UNMOVED - 1), Ordering::Release);
    }

    /// Returns the end of the validity, by the clock of this crate, of a lock that was `granted` until then.
    #[must_use]
    #[inline]
    pub fn until(&self, granted: Instant) -> Instant {
        match self.0.until_ns.load(Ordering::Acquire) {
            UNMOVED => granted,
            until_ns => self.0.base + Duration::from_nanos(until_ns),
        }
    }
}

/// Task of the event loop for one connection, or for one master.
///
/// It is exhaustive: an event loop has to carry out each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkRequest {
    /// Open it, and report the result.
    Connect(MasterId),
    /// Close it, or end the attempt to open it; report nothing about it any more.
    Close(MasterId),
    /// Look the name of this connected master up again: it takes no writes. If the name leads to other
    /// addresses only, close the connection, and report its end.
    LookUp(MasterId),
    /// Ask the provider of the configuration for the credentials of this master, by
    /// [`Config::ask_credentials`](crate::Config::ask_credentials) on another thread, and hand the answer to
    /// [`Engine::handle_credentials`](super::Engine::handle_credentials). It comes only with a provider, and
    /// not again before that answer.
    Credentials(MasterId),
}

/// Reason of a deadline that [`Engine::next_timeout`](super::Engine::next_timeout) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A master is due to be connected, gives no answer in its handshake, or has been silent for too long; or
    /// its credentials are to be renewed.
    Link(MasterId),
    /// An operation's votes are due, or its next attempt.
    Operation,
    /// A release is due, or to be sent again, or its lock has expired.
    Claim,
}
