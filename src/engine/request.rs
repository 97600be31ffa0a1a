//! What is asked of an engine, and what it answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inspection::{ForceUnlocked, Inspection};
use super::slab::Id;
use crate::error::{AcquireError, ExtendError, ForceUnlockError, InspectError, ReleaseError};
use crate::lock::{FencingToken, InputError, MasterSet, Resource, Token};
use crate::options::Options;

/// Names one lock of one [`Engine`](crate::engine::Engine), from [`submit`](crate::engine::Engine::submit) of
/// its acquisition to its release.
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
    ///
    /// A request that waits queues behind those callers of this engine that hold the lock or wait for it,
    /// unless it is shared or fair.
    Acquire {
        /// The lock's name; the configured prefix is put in front.
        resource: Resource<'a>,
        /// What is asked of it.
        options: Options,
    },
    /// Give a held lock a new TTL, counted from now. Answered by [`Outcome::Extend`].
    Extend {
        /// The lock.
        lock: OpId,
        /// The new TTL.
        ttl: Duration,
    },
    /// Report each renewal of a held lock that is extended automatically, by an [`Outcome::Renewal`]. No
    /// effect on a lock without [`Options::auto_extend`].
    ReportRenewals {
        /// The lock.
        lock: OpId,
    },
    /// Report once the loss of a held lock: by [`Outcome::Lost`], a tenth of its validity before that ends,
    /// if it is not extended before; or when masters have shown that it is lost. Not reported of a lock that
    /// is released before.
    NotifyLoss {
        /// The lock.
        lock: OpId,
    },
    /// Release a lock in whatever state it is. One that is held may pass to the next in line within this
    /// engine.
    ///
    /// An acquisition under way is cancelled and has no outcome, an extension under way fails. A release of a
    /// lock that is being released is the same one, with one outcome.
    Release {
        /// The lock.
        lock: OpId,
        /// Whether an [`Outcome::Release`] is wanted.
        awaited: bool,
    },
    /// Wait for the random time that an acquisition of this engine waits after as many failed attempts, the
    /// last of which took so long. Answered by [`Outcome::Paused`]; a release of it cancels it.
    Pause {
        /// Attempts that failed.
        attempts: u32,
        /// How long the last one took; the pause is longer.
        took: Duration,
    },
    /// Ask each master what it holds of a lock, whoever's it is. Answered by [`Outcome::Inspect`] when each
    /// that can be asked has answered, or at the answer limit of the longest TTL. It is a vote for nothing,
    /// and a release of it cancels it.
    Inspect {
        /// The lock's name.
        resource: Resource<'a>,
    },
    /// Delete a lock on each master that can be asked, whoever holds it; a key that is no lock stays. The
    /// holder is not notified, and may go on as if it held the lock. Answered by [`Outcome::ForceUnlock`],
    /// like [`Request::Inspect`].
    ForceUnlock {
        /// The lock's name.
        resource: Resource<'a>,
    },
}

/// A request was not taken; nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many locks as [`crate::limits::OPERATION_COUNT_MAX`] are in hand, or as many callers as
    /// [`crate::limits::QUEUED_COUNT_MAX`] stand in line for this one.
    #[error("{}", crate::error::OVERLOADED)]
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
    /// To [`Request::Acquire`].
    Acquire(Result<Grant, AcquireError>),
    /// To [`Request::Extend`]: the end of the new validity.
    Extend(Result<Instant, ExtendError>),
    /// To [`Request::ReportRenewals`], for each renewal: the end of the new validity, or why it failed. A
    /// renewal that gives way to a [`Request::Extend`] has none.
    ///
    /// No renewal follows [`ExtendError::Lost`], nor [`ExtendError::HoldLimit`], which is reported as soon as
    /// none will follow. After any other error the next one follows while the validity lasts.
    Renewal(Result<Instant, ExtendError>),
    /// To [`Request::NotifyLoss`]: the lock is not kept any longer, and its validity ends or has ended at
    /// this time.
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
#[non_exhaustive]
pub struct Grant {
    /// The value that the masters hold.
    pub token: Token,
    /// Larger than the token of each earlier fenced holder, if the mode is
    /// [`Mode::Fenced`](crate::Mode::Fenced).
    pub fencing_token: Option<FencingToken>,
    /// When its validity ends: TTL minus drift after the attempt began, whenever the answers came.
    pub valid_until: Instant,
    /// Masters that had granted when a quorum was reached; later ones are counted by
    /// [`super::Engine::granted`].
    pub granted: MasterSet,
    /// Attempts that it took, at least 1.
    pub attempts: u32,
}

/// A release that was carried out as far as a quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
