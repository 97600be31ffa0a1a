//! What is asked of an engine, and what it answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inspection::{ForceUnlocked, Inspection};
use super::slab::Id;
use crate::error::{AcquireError, ExtendError, ForceUnlockError, InspectError, ReleaseError};
use crate::lock::{FencingToken, InputError, MasterSet, Resource, Token, Ttl};

/// Names one lock of one [`Engine`](crate::engine::Engine), from [`submit`](crate::engine::Engine::submit) of its acquisition to its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(super) Id);

impl OpId {
    /// A small number that no other lock has at the same time.
    pub(crate) const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// What can be asked of the engine.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Request<'a> {
    /// Acquire a lock. Answered by [`Outcome::Acquire`].
    Acquire {
        /// The lock's name; the configured prefix is put in front.
        resource: Resource<'a>,
        /// How long it lives on the masters unless it is extended.
        ttl: Ttl,
        /// How long to go on trying; zero makes one attempt, at once. Who waits stands in line behind those of this engine
        /// who hold the lock or wait for it.
        wait: Duration,
        /// Validity that must be left when it is handed out; zero asks for any.
        min_validity: Duration,
    },
    /// Acquire a lock with a fencing token: a [`Grant::fencing_token`] that is larger than that of each earlier fenced holder
    /// of the same lock. It excludes plain locks of the same name, which have no token. Answered by [`Outcome::Acquire`].
    AcquireFenced {
        /// The lock's name.
        resource: Resource<'a>,
        /// How long it lives on the masters unless it is extended.
        ttl: Ttl,
        /// How long to go on trying; zero makes one attempt, and another one where the token was refused if the answers
        /// came before the limit of the first.
        wait: Duration,
        /// Validity that must be left when it is handed out.
        min_validity: Duration,
        /// The caller's wall clock, as the time since 1970. It only saves a round trip if it agrees with the clocks of the
        /// masters.
        wall: Duration,
    },
    /// Acquire a fair lock: of those who wait for it whoever asked first has it first, whichever client it is of; see
    /// [`crate::LockRequest::fair`]. It excludes locks of the same name that are not fair, but those ask no queue: all who
    /// use a resource should be fair. Answered by [`Outcome::Acquire`].
    AcquireFair {
        /// The lock's name.
        resource: Resource<'a>,
        /// How long it lives on the masters unless it is extended.
        ttl: Ttl,
        /// How long to wait for it. With zero it is had only if it is free and nobody waits. A waiter asks the masters at
        /// least once in a third of [`crate::limits::FAIR_HEARTBEAT`], and each time is an attempt.
        wait: Duration,
        /// Validity that must be left when it is handed out.
        min_validity: Duration,
    },
    /// Acquire a lock together with other readers: it excludes whoever has the lock alone, by any request, and is excluded by
    /// that. Readers of one engine do not stand in line, neither behind each other nor behind others. Answered by
    /// [`Outcome::Acquire`].
    AcquireShared {
        /// The lock's name.
        resource: Resource<'a>,
        /// How long it lives on the masters unless it is extended.
        ttl: Ttl,
        /// How long to go on trying; zero makes one attempt, at once.
        wait: Duration,
        /// Validity that must be left when it is handed out.
        min_validity: Duration,
    },
    /// Keep new readers out of a lock that is being acquired for one alone, from the next refusal on while it waits: without
    /// it readers that come and go can keep it waiting for ever. Readers that have the lock keep it. Where several wait in
    /// this engine it is done for the first of them. Has no outcome.
    KeepReadersOut {
        /// The lock.
        lock: OpId,
    },
    /// Make no more than so many attempts for a lock that is being acquired; it ends with the error of the last one, if not
    /// with its wait before. One attempt behind the confirmation of a subscription is made in addition. Has no outcome of
    /// its own.
    Limit {
        /// The lock.
        lock: OpId,
        /// Attempts in all, those that were made included; zero is one.
        attempts_max: u32,
    },
    /// Give a held lock a new TTL, counted from now. Answered by [`Outcome::Extend`].
    Extend {
        /// The lock.
        lock: OpId,
        /// The new TTL.
        ttl: Ttl,
    },
    /// Keep a held lock: it is extended to its TTL at a third of it, again and again, until it is released, for at most this
    /// long since it was acquired, and [`crate::limits::RENEWAL_COUNT_MAX`] times. A renewal that fails is tried again after
    /// [`crate::limits::RENEWAL_PAUSE_MAX`] at most, until the validity ends or the loss is certain.
    Keep {
        /// The lock.
        lock: OpId,
        /// The longest time in all; the configured `max_hold` if that is shorter.
        max_hold: Duration,
        /// Whether an [`Outcome::Renewal`] of each renewal is wanted.
        reported: bool,
    },
    /// Tell once of the loss of a held lock: by [`Outcome::Lost`], a tenth of its validity before that ends, if it is not
    /// extended before; or when masters have shown that it is lost. Not told of a lock that is released before.
    Watch {
        /// The lock.
        lock: OpId,
    },
    /// Release a lock in whatever state it is. One that is held may pass to the next in line within this engine.
    ///
    /// An acquisition under way is cancelled and has no outcome, an extension under way fails. A release of a lock that is being released is the same one, with one outcome.
    Release {
        /// The lock.
        lock: OpId,
        /// Whether an [`Outcome::Release`] is wanted.
        awaited: bool,
    },
    /// Wait for the random time that an acquisition of this engine waits after as many failed attempts, the last of which took
    /// so long. Answered by [`Outcome::Paused`]; a release of it cancels it.
    Pause {
        /// Attempts that failed.
        attempts: u32,
        /// How long the last one took; the pause is longer.
        took: Duration,
    },
    /// Ask each master what it holds of a lock, whoever's it is. Answered by [`Outcome::Inspect`] when each that can be asked
    /// has answered, or at the answer limit of the longest TTL. It is a vote for nothing, and a release of it cancels it.
    Inspect {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Delete a lock on each master that can be asked, whoever holds it; a key that is no lock stays. The holder is not told,
    /// and may go on as if it held the lock. Answered by [`Outcome::ForceUnlock`], like [`Request::Inspect`].
    ForceUnlock {
        /// The lock's name.
        resource: Resource<'a>,
    },
}

/// A request was not taken; nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many locks as [`crate::limits::OPERATION_COUNT_MAX`] are in hand, or as many callers as
    /// [`crate::limits::QUEUED_COUNT_MAX`] stand in line for this one.
    #[error(
        "too many locks in hand, or too many callers in line for this one; release some, or try again later"
    )]
    Overloaded,
    /// The request cannot work.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A fork of the process cannot use its parent's client. Only from [`crate::Redlock::submit`].
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

from_submit_error! { AcquireError InspectError ForceUnlockError }

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// To [`Request::Acquire`], [`Request::AcquireFenced`], [`Request::AcquireFair`] and [`Request::AcquireShared`].
    Acquire(Result<Grant, AcquireError>),
    /// To [`Request::Extend`]: the end of the new validity.
    Extend(Result<Instant, ExtendError>),
    /// To a reported [`Request::Keep`], for each renewal: the end of the new validity, or why it failed. A renewal that gives
    /// way to a [`Request::Extend`] has none.
    ///
    /// No renewal follows [`ExtendError::Lost`], nor [`ExtendError::HoldLimit`], which is reported as soon as none will follow. After any
    /// other error the next one follows while the validity lasts.
    Renewal(Result<Instant, ExtendError>),
    /// To [`Request::Watch`]: the lock is not kept any longer, and its validity ends or has ended at this time.
    Lost(Instant),
    /// To an awaited [`Request::Release`].
    Release(Result<Released, ReleaseError>),
    /// To [`Request::Pause`].
    Paused,
    /// To [`Request::Inspect`].
    Inspect(Inspection),
    /// To [`Request::ForceUnlock`].
    ForceUnlock(ForceUnlocked),
}

/// A lock that was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The value that the masters hold.
    pub token: Token,
    /// Larger than that of each fenced holder before, if it was asked for by [`Request::AcquireFenced`].
    pub fencing_token: Option<FencingToken>,
    /// When its validity ends: TTL minus drift after the attempt began, whenever the answers came.
    pub valid_until: Instant,
    /// Masters that had granted when a quorum was reached; later ones are counted by [`super::Engine::granted`].
    pub granted: MasterSet,
    /// Attempts that it took, at least 1.
    pub attempts: u32,
}

/// A release that was carried out as far as a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Masters that had the key and deleted it, when the answer was given.
    pub deleted: usize,
    /// Masters that no longer had it.
    pub absent: usize,
    /// Masters that had not answered; they are released in the background.
    pub unanswered: usize,
}

impl Released {
    /// Whether the lock was already gone everywhere: expired, or released before. That is no error.
    #[must_use]
    pub const fn was_already_gone(&self) -> bool {
        self.deleted == 0
    }
}
