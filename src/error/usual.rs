//! Errors of everyday calls, re-exported at the crate's root.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use super::ErrorClass;
use super::{
    Denial, InputError, OVERLOADED, Report, fmt_lost, fmt_not_acquired, fmt_not_extended, fmt_unconfirmed,
};
use crate::words::Rounded;

/// Error of an acquisition. While the client lives, it releases in the background what the attempts may have
/// left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Enough masters answer, but another holder has keys on too many of them; or another caller of this
    /// client holds the lock, or is ahead in its wait queue. A fair lock also fails like this while waiters
    /// are ahead in the masters' queue, and a reader while a writer keeps new readers out. Wait or retry.
    Contended(Box<Denial>),
    /// Too few masters can grant: they are unreachable, silent, in quarantine, or answer with errors; they
    /// refused the fencing token; or a fair lock's queue is full, at 4,096 waiters
    /// ([`crate::limits::WAITER_COUNT_MAX`]), which is [`ErrorClass::Overloaded`]. The report says which. A
    /// wait ends at once if the quarantine of too many masters outlasts it.
    NoQuorum(Box<Denial>),
    /// A quorum granted, but less validity was left than asked for. Usually this process was late, because
    /// slow masters end an attempt through its answer limit. Ask for a longer TTL.
    Expired(Box<Denial>),
    /// The client has too many locks (131,072), too many callers wait for this lock (4,096), or too many
    /// bytes or replies are outstanding. The acquisition does not wait. Release some locks, or retry later.
    Overloaded,
    /// A [`Cancel`](crate::Cancel) handle ended the acquisition. Everything it acquired is being released.
    Cancelled,
    /// The request is invalid; nothing was sent.
    Input(#[from] InputError),
    /// The client is unusable: it was drained, its event loop failed, this is a fork of its process, or the
    /// call comes from a waker that the client is calling.
    Stopped(Arc<str>),
}

impl AcquireError {
    /// Returns whether another attempt would fail, too: the client has stopped or is overloaded, the handle was
    /// cancelled, or the request is wrong.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Input(_) | Self::Stopped(_) | Self::Overloaded | Self::Cancelled)
    }

    /// Returns whether a quorum of masters refused because the login lacks a right. Waiting does not help then.
    #[must_use]
    pub fn lacks_rights(&self) -> bool {
        matches!(self, Self::NoQuorum(denial) if denial.report.lacks_rights())
    }

    /// Whether the masters may have had too little time, if the caller's wait is over. Then this error says
    /// nothing about them, and an earlier failure counts. For later attempts, the engine knows the earlier
    /// failure.
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
    /// Too many masters no longer have the key, or never had it, so a quorum is impossible. Stop the
    /// protected work.
    #[error(fmt = fmt_lost)]
    Lost(Report),
    /// Too few masters confirmed. The lock stays valid as before, or as long as the new TTL if that ends
    /// earlier; retry until then.
    #[error(fmt = fmt_not_extended)]
    NoQuorum(Report),
    /// The extension would exceed the longest total time that a lock may be held, one hour by default.
    #[error("the extension would pass max_hold, which is {}; release the lock, and acquire it anew", Rounded(*max_hold))]
    HoldLimit {
        /// The effective limit: the configured one, or the automatic extension's if that is shorter.
        max_hold: Duration,
    },
    /// Another extension of this lock is in progress.
    #[error("another extension of this lock is in progress; wait for it")]
    Busy,
    /// The lock is not held by this client: a drain has released it, or it belongs to another client. Another
    /// caller may hold it.
    #[error("the lock is not held by this client; acquire it first")]
    NotHeld,
    /// The TTL is invalid; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: its event loop failed, this is a fork of its process, or the call comes from a
    /// waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of a release that may not have worked. After [`Self::Unconfirmed`] it continues in the background,
/// until the keys have expired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too few masters answered, so the lock may exclude others until its TTL ends.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// A drain has released the lock.
    #[error("the lock is not held by this client; acquire it first")]
    NotHeld,
    /// The client is unusable: its event loop failed, this is a fork of its process, or the call comes from a
    /// waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of work under a lock. Contains the work's result, if there is one, for checking what was done.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T = ()> {
    /// The lock was not acquired, and the work did not begin.
    #[error(fmt = fmt_not_acquired)]
    Acquire(#[from] AcquireError),
    /// The lock was lost before the work ended, and another caller may have worked meanwhile. `None` if the
    /// loss ended the work. Also returned if the release showed that too many masters had lost the lock
    /// within its validity.
    #[error("the lock was lost before its work ended; check what the work did")]
    Lost(Option<T>),
}

/// Omits the value, which may not implement `Debug`.
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
