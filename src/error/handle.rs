//! Errors of handles: of their text, of an adoption, and of a release.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{OVERLOADED, Report, fmt_adopted_late, fmt_gone, fmt_not_adopted, fmt_unconfirmed};
use crate::error::{ErrorClass, classes};
use crate::lock::InputError;
use crate::words::{Named, Rounded};

/// Why bytes or a text are no handle of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHandleError {
    /// Damaged, cut off, or something else.
    #[error("this is no handle of a lock, or a damaged one; have its holder write it anew")]
    Malformed,
    /// Made by a newer version of this crate.
    #[error("the handle has version {version}, of a newer redlatch; upgrade this program")]
    NewerVersion {
        /// Version of the handle's form.
        version: u8,
    },
}

/// The handle belongs to another fleet of masters, or another prefix. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignHandle {
    /// Its client had other masters, or other URLs for them: hosts, ports and databases count.
    #[error(
        "the handle of {} is for other masters, or other URLs of them; give this client the same",
        Named(.resource)
    )]
    OtherMasters {
        /// Name of the lock.
        resource: Bytes,
    },
    /// Its client had another prefix.
    #[error(
        "the handle of {} has the prefix \"{}\", this client has \"{}\"; use one prefix",
        Named(.resource), .prefix.escape_ascii(), .own.escape_ascii()
    )]
    OtherPrefix {
        /// Name of the lock.
        resource: Bytes,
        /// Prefix of the handle.
        prefix: Bytes,
        /// Prefix of this client.
        own: Bytes,
    },
}

/// Error of [`Client::adopt`](crate::Client::adopt). This client does not hold the lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// Too many masters no longer have the handle's value, so a quorum is impossible: the handle was used
    /// before, or the lock was released or has ended. Another caller may hold it.
    #[error(fmt = fmt_gone)]
    Gone(Box<Report>),
    /// The lock has ended, by this machine's wall clock and the end in the handle. Nothing was sent.
    #[error("the handle of {} ended {} ago by this machine's clock; acquire the lock anew", Named(.resource), Rounded(*.ago))]
    TooOld {
        /// Name of the lock.
        resource: Bytes,
        /// Time since its end.
        ago: Duration,
    },
    /// The handle can only release the lock ([`Guard::to_handle`](crate::Guard::to_handle)), because its
    /// guard has not given it up. Nothing was sent.
    #[error(
        "the process that made the handle of {} still holds the lock; this handle only releases it",
        Named(.resource)
    )]
    NotPassed {
        /// Name of the lock.
        resource: Bytes,
    },
    /// The handle belongs to other masters, or another prefix. Nothing was sent.
    #[error(transparent)]
    Foreign(#[from] ForeignHandle),
    /// Too few masters answered or count. If the handle's value was replaced somewhere, the new value is
    /// released in the background; a retry may succeed while a quorum of masters has the handle's value.
    #[error(fmt = fmt_not_adopted)]
    NoQuorum(Box<Report>),
    /// A quorum granted, but no validity was left: the TTL is too short, or this process was late. The lock
    /// is released.
    #[error(fmt = fmt_adopted_late)]
    Expired(Box<Report>),
    /// The client has too many locks, 131,072.
    #[error("{OVERLOADED}")]
    Overloaded,
    /// The handle's name or TTL is invalid for this client, for example because its `max_ttl` is shorter.
    /// Nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: it was drained, its event loop failed, this is a fork of its process, or the
    /// call comes from a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of [`Client::release_handle`](crate::Client::release_handle).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseHandleError {
    /// The handle belongs to other masters, or another prefix. Nothing was sent.
    #[error(transparent)]
    Foreign(#[from] ForeignHandle),
    /// Too few masters answered, so the lock may exclude others until its TTL ends. While the client lives,
    /// the release continues in the background.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// The client has too many locks, 131,072.
    #[error("{OVERLOADED}")]
    Overloaded,
    /// No lock may have the handle's name. Nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: it was drained, its event loop failed, this is a fork of its process, or the
    /// call comes from a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

classes! {
    ForeignHandle { _ => ErrorClass::Rejected, }
    AdoptError {
        Self::Gone(_) | Self::TooOld { .. } => ErrorClass::Lost,
        Self::NotPassed { .. } | Self::Foreign(_) | Self::Input(_) => ErrorClass::Rejected,
        Self::NoQuorum(_) => ErrorClass::Outage,
        Self::Expired(_) | Self::Overloaded => ErrorClass::Overloaded,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
    ReleaseHandleError {
        Self::Foreign(_) | Self::Input(_) => ErrorClass::Rejected,
        Self::Unconfirmed(_) => ErrorClass::Unconfirmed,
        Self::Overloaded => ErrorClass::Overloaded,
        Self::Stopped(_) => ErrorClass::Stopped,
    }
}
