//! The errors of the calls in usual code, which the root of the crate names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::ErrorClass;
use super::{
    Denial, InputError, OVERLOADED, Report, fmt_lost, fmt_not_acquired, fmt_not_extended, fmt_unconfirmed,
};
use crate::words::Rounded;

/// Error of an acquisition. While the client lives, what its attempts may have left is released in the
/// background.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Enough masters answer, and another holder has keys on too many of them; or another caller of this
    /// client holds the lock or is ahead of this one in its wait queue. A fair lock also fails like this
    /// while waiters are ahead in the masters' queue. A reader does while a writer keeps new readers out.
    /// Wait or retry.
    Contended(Box<Denial>),
    /// Too few masters can grant. They cannot be reached, are silent, answer with errors or are in
    /// quarantine; or they refused the fencing token; or the queue of a fair lock is full, at 4,096 waiters
    /// ([`crate::limits::WAITER_COUNT_MAX`]), which is [`ErrorClass::Overloaded`]. The report says which.
    /// A wait ends at once if the quarantine of too many masters outlasts it.
    NoQuorum(Box<Denial>),
    /// A quorum granted, and by then less validity was left than asked for. As a rule this process was late:
    /// masters that are too slow end an attempt by its answer limit. Ask for a longer TTL.
    Expired(Box<Denial>),
    /// The client has too many locks (131,072), too many callers wait for this one (4,096), or too many bytes
    /// or answers wait for the masters. An acquisition that meets this does not wait. Release some locks, or
    /// retry later.
    Overloaded,
    /// Its [`Cancel`](crate::Cancel) handle ended it. Everything that it acquired is being released.
    Cancelled,
    /// The request itself cannot work; nothing was sent.
    Input(#[from] InputError),
    /// The client cannot be used: it was drained, its event loop cannot go on, this is a fork of its process,
    /// or the call comes from a waker that the client is calling.
    Stopped(Arc<str>),
}

impl AcquireError {
    /// Whether another attempt would fail, too.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::Input(_) | Self::Stopped(_) | Self::Overloaded | Self::Cancelled)
    }

    /// Returns whether a quorum of masters refused because the login lacks a right.
    #[doc(hidden)]
    #[must_use]
    pub fn lacks_rights(&self) -> bool {
        matches!(self, Self::NoQuorum(denial) if denial.report.lacks_rights())
    }

    /// Whether the masters may have had too little time, if the caller's wait is over. Then this says nothing
    /// of them, and what failed before it does. The engine itself knows what failed before a later attempt.
    pub(crate) fn may_be_cut_short(&self) -> bool {
        matches!(self, Self::NoQuorum(denial) if denial.attempts <= 1)
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denial = match self {
            Self::Contended(denial) => {
                denial.fmt_contended(f)?;
                denial
            }
            Self::NoQuorum(denial) => {
                denial.fmt_no_quorum(f)?;
                denial
            }
            Self::Expired(denial) => {
                let lock = denial.lock();
                write!(
                    f,
                    "{lock} expired while it was acquired; ask for a longer TTL, or check slow masters"
                )?;
                denial
            }
            Self::Cancelled => return f.write_str("the acquisition was cancelled; nothing is held"),
            Self::Overloaded => return f.write_str(OVERLOADED),
            Self::Input(error) => return fmt::Display::fmt(error, f),
            Self::Stopped(why) => return write!(f, "the client cannot be used: {why}"),
        };
        f.write_str(if f.alternate() { "\n  " } else { "; " })?;
        fmt::Display::fmt(denial, f)
    }
}

/// Error of an extension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The validity ended before the extension was sent or confirmed. Another caller may hold the lock. Stop
    /// the protected work.
    #[error("the lock's validity has ended; stop the protected work")]
    Expired,
    /// So many masters no longer have the key, or never had it, that no quorum can be left. Stop the
    /// protected work.
    #[error(fmt = fmt_lost)]
    Lost(Report),
    /// Too few masters confirmed it. The lock is valid as long as it was before, or as the new TTL if that is
    /// sooner; retry until then.
    #[error(fmt = fmt_not_extended)]
    NoQuorum(Report),
    /// The extension would pass the longest total time that a lock may be held, one hour by default.
    #[error("the extension would pass max_hold, which is {}; release the lock, and acquire it anew", Rounded(*max_hold))]
    HoldLimit {
        /// The limit in effect: the configured one, or a shorter one of the automatic extension.
        max_hold: Duration,
    },
    /// Another extension of this lock is under way.
    #[error("another extension of this lock is under way; wait for it")]
    Busy,
    /// The lock is not held by this client: a drain has released it, or it belongs to another client. Another
    /// caller may hold it.
    #[error("the lock is not held by this client; acquire it first")]
    NotHeld,
    /// The TTL cannot work; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call
    /// comes from a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of a release that is not known to have worked. After [`Self::Unconfirmed`] it goes on in the
/// background, until the keys have expired at the latest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// So few masters answered that the lock may exclude others until its TTL has passed.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// A drain has released the lock.
    #[error("the lock is not held by this client; acquire it first")]
    NotHeld,
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call
    /// comes from a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of work under a lock. It has the value of work that returned one, as what was done may need a check.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T = ()> {
    /// The lock was not acquired, and the work did not begin.
    #[error(fmt = fmt_not_acquired)]
    Acquire(#[from] AcquireError),
    /// The lock was lost before the work ended, and another caller may have worked meanwhile; `None` if the
    /// loss ended the work. Also an error if the release showed that so many masters had lost the lock within
    /// its validity that no quorum was left.
    #[error("the lock was lost before its work ended; check what the work did")]
    Lost(Option<T>),
}

/// The value is not shown: it need not have a form for people.
impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) => f.debug_tuple("Acquire").field(error).finish(),
            Self::Lost(value) => {
                f.debug_tuple("Lost").field(&value.as_ref().map(|_| format_args!("_"))).finish()
            }
        }
    }
}
