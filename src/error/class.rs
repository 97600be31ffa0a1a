//! [`ErrorClass`]: what a caller can do about an error, for every operation.

use super::{
    AcquireError, ExtendError, ForceUnlockError, InspectError, LeaveError, LockReentrantError, ReleaseError,
    RunError, SetError,
};

/// Class of an error: what it means for a service, whichever operation failed.
///
/// The errors of all operations have `class()` and this type's methods. They name no master and no lock, so a
/// service may pass them on. The page [errors](https://docs.rs/crate/redlatch/latest/source/docs/errors.md)
/// has a table of all errors.
///
/// ```
/// use redlatch::{AcquireError, ErrorClass};
///
/// /// Status and text of an HTTP answer.
/// fn answer(error: &AcquireError) -> (u16, &'static str) {
///     let status = match error.class() {
///         ErrorClass::Contended => 409,
///         ErrorClass::Outage | ErrorClass::Overloaded => 503,
///         ErrorClass::Cancelled | ErrorClass::Stopped => 503,
///         _ => 500, // a bug of this service
///     };
///     (status, error.public_message())
/// }
///
/// assert_eq!(answer(&AcquireError::Overloaded).0, 503);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Another holder or waiter is in the way. Part of normal work.
    Contended,
    /// Too few masters did their part in time.
    Outage,
    /// The end of the lock is not confirmed, because too few masters answered. The lock may stay for longer;
    /// a lock left for a time may also end earlier. A repeated forced unlock may delete the next holder's
    /// lock: inspect it first.
    Unconfirmed,
    /// Too much is in progress: in this client, in this process, which was late with its answer, or in a fair
    /// lock's wait queue.
    Overloaded,
    /// The lock is over: another caller may hold it.
    Lost,
    /// A [`Cancel`](crate::Cancel) handle of this service ended the call.
    Cancelled,
    /// The client is unusable, for example after a drain or in a fork of its process.
    Stopped,
    /// The call cannot work as it is, because of its arguments or its lock.
    Rejected,
}

impl ErrorClass {
    /// Returns whether another holder or waiter is in the way: no fault, and no reason for an alert.
    #[must_use]
    pub const fn is_contended(self) -> bool {
        matches!(self, Self::Contended)
    }

    /// Returns whether too few masters did their part in time: a reason for an alert.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Outage | Self::Unconfirmed)
    }

    /// Returns whether the same call on the same client may succeed later, and is worth a retry after a
    /// pause.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Contended | Self::Outage | Self::Overloaded)
    }

    /// Returns a text for a service's callers, without addresses, lock names or masters' answers.
    #[must_use]
    pub const fn public_message(self) -> &'static str {
        match self {
            Self::Contended => "another request holds this lock; retry later",
            Self::Outage => "locks are not available at the moment; retry later",
            Self::Unconfirmed => "the end of the lock is not confirmed",
            Self::Overloaded => "too many requests at once; retry later",
            Self::Lost => "the lock ended before the work was done",
            Self::Cancelled => "the request was cancelled",
            Self::Stopped => "locks are no longer available here",
            Self::Rejected => "the lock cannot be used like this",
        }
    }
}

/// Adds the class and its methods to each operation's error.
macro_rules! classes {
    ($($type:ty $([$param:ident])? { $($pattern:pat $(if $guard:expr)? => $class:expr,)* })*) => {$(
        impl$(<$param>)? $type {
            /// Returns the class of this error: what a caller can do about it.
            #[must_use]
            pub fn class(&self) -> $crate::error::ErrorClass {
                match self { $($pattern $(if $guard)? => $class,)* }
            }

            /// Returns whether another holder or waiter is in the way; see
            /// [`ErrorClass::is_contended`](crate::ErrorClass::is_contended).
            #[must_use]
            pub fn is_contended(&self) -> bool {
                self.class().is_contended()
            }

            /// Returns whether too few masters did their part in time; see
            /// [`ErrorClass::is_outage`](crate::ErrorClass::is_outage).
            #[must_use]
            pub fn is_outage(&self) -> bool {
                self.class().is_outage()
            }

            /// Returns whether the same call may succeed later; see
            /// [`ErrorClass::is_retryable`](crate::ErrorClass::is_retryable).
            #[must_use]
            pub fn is_retryable(&self) -> bool {
                self.class().is_retryable()
            }

            /// Returns a text for a service's callers, without addresses; see
            /// [`ErrorClass::public_message`](crate::ErrorClass::public_message).
            #[must_use]
            pub fn public_message(&self) -> &'static str {
                self.class().public_message()
            }
        }
    )*};
}

pub(crate) use classes;

classes! {
    AcquireError {
        Self::Contended(_) => ErrorClass::Contended,
        Self::NoQuorum(denial) if denial.report.is_queue_full() => ErrorClass::Overloaded,
        Self::NoQuorum(_) => ErrorClass::Outage,
        Self::Expired(_) | Self::Overloaded => ErrorClass::Overloaded,
        Self::Cancelled => ErrorClass::Cancelled,
        Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    ExtendError {
        Self::Expired | Self::Lost(_) | Self::NotHeld => ErrorClass::Lost,
        Self::NoQuorum(_) => ErrorClass::Outage,
        Self::Busy => ErrorClass::Overloaded,
        Self::HoldLimit { .. } | Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    ReleaseError {
        Self::Unconfirmed(_) => ErrorClass::Unconfirmed,
        Self::NotHeld => ErrorClass::Lost,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    LeaveError {
        Self::Expired | Self::Lost(_) | Self::NotHeld => ErrorClass::Lost,
        Self::Unconfirmed { .. } => ErrorClass::Unconfirmed,
        Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    InspectError {
        Self::Overloaded => ErrorClass::Overloaded,
        Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    ForceUnlockError {
        // The lock may belong to another holder now, and a repetition would delete it.
        Self::Unconfirmed(_) => ErrorClass::Unconfirmed,
        Self::Overloaded => ErrorClass::Overloaded,
        Self::Input(_) => ErrorClass::Rejected,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    LockReentrantError {
        Self::Lost { .. } => ErrorClass::Lost,
        Self::TooManyHolds => ErrorClass::Overloaded,
        Self::Acquire(error) => error.class(),
    }
    RunError<T> [T] {
        Self::Acquire(error) => error.class(),
        Self::Lost(_) => ErrorClass::Lost,
    }
    SetError<AcquireError> { Self { source, .. } => source.class(), }
    SetError<ExtendError> { Self { source, .. } => source.class(), }
    SetError<ReleaseError> { Self { source, .. } => source.class(), }
    SetError<LeaveError> { Self { source, .. } => source.class(), }
}
