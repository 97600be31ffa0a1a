//! Answer of a master to an attempt, or the reason why it gave none.

use std::sync::Arc;
use std::time::Duration;

/// Answer of one master to one attempt, or the reason why it gave none.
///
/// It is exhaustive: a master grants, refuses, fails or is not waited for, and a tool that judges votes has
/// to treat each case. A further reason is a further [`Failure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// The master carried out the command: it set the key or its TTL, or deleted the key.
    Granted,
    /// An explicit refusal. To an acquisition: a key is in the way. To an extension: the key is gone or has
    /// another value.
    Refused {
        /// Time left of the key that is in the way, if the master was asked and answered.
        holder: HolderTtl,
    },
    /// Neither of these, for this reason.
    Failed(Failure),
    /// No answer when the outcome was already fixed; a late answer is still handled.
    Pending,
}

/// Time left of a key that is in the way, as a master reported it.
///
/// It is exhaustive: these are all replies that `PTTL` has, and the absence of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HolderTtl {
    /// The master was not asked, or has not answered.
    #[default]
    Unknown,
    /// The key expires after this time at the latest unless its holder extends it.
    Left(Duration),
    /// The key has no TTL, unlike those of locks; it stays until somebody deletes it.
    Never,
    /// The key was gone when the master was asked.
    Gone,
}

/// Reason why a master's vote is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// There was no usable connection.
    NotConnected {
        /// Reason: the end of the last connection or attempt to connect, or a first attempt under way.
        why: Arc<str>,
    },
    /// The connection broke after this command, or an earlier one for this lock, was queued.
    ConnectionLost,
    /// No answer by the limit of the attempt.
    NoAnswer {
        /// Time for which the client waited.
        limit: Duration,
    },
    /// The master still owed an earlier answer, so it was not asked.
    Silent,
    /// The answer does not count: the master may have restarted lately, and forgotten a lock that still
    /// lives.
    Quarantined {
        /// Time until it counts.
        left: Duration,
        /// Whether it started lately, and nothing that this client knows shows that it was in use: `redlatch
        /// fleet init` may declare it.
        is_new: bool,
    },
    /// The masters were not asked: another caller of this client holds the lock, or was ahead of this one in
    /// the wait queue.
    Queued,
    /// The master's queue of bytes (8 MiB) or of owed replies (262,144) was full, so it was not asked.
    QueueFull,
    /// The master was never sent this lock, so it cannot extend it.
    NotHeld,
    /// The master's first answer showed this very request as carried out before, as another address of the
    /// same server does.
    SameServer,
    /// The master refused the fencing token, and wrote nothing.
    TokenRefused(TokenRefusal),
    /// An error reply, cut off at 160 bytes ([`crate::limits::ERROR_TEXT_SIZE_MAX`]).
    Replied(Box<str>),
}

impl Failure {
    /// Returns whether the master refused because the login lacks a right.
    pub(crate) fn is_missing_right(&self) -> bool {
        matches!(self, Self::Replied(text) if names_missing_right(text))
    }

    /// Returns whether the server itself refused to run the command.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Replied(text) if is_refusal(text))
    }

    /// Returns whether the master has more to do than it can: the lock's wait queue there is full, or it
    /// answers too late.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::NoAnswer { .. }) || self.is_queue_of_lock_full()
    }

    /// Returns whether this master's wait queue of a lock is full, as `park.lua` replies.
    pub(crate) fn is_queue_of_lock_full(&self) -> bool {
        matches!(self, Self::Replied(text) if text.starts_with("ERR too many wait for this lock"))
    }
}

/// Returns whether this error reply is the refusal of an ACL, also within a script.
#[must_use]
pub fn names_missing_right(text: &str) -> bool {
    ["NOPERM", "ERR The user executing the script", "ERR ACL failure in script"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// How the errors begin with which a server itself refuses to run a command.
const REFUSALS: [&str; 14] = [
    "NOPERM",
    "NOAUTH",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "LOADING",
    "BUSY ",
    "MASTERDOWN ",
    "MOVED ",
    "REDIRECT ",
    "CLUSTERDOWN ",
    "TRYAGAIN ",
    "ERR unknown command",
];

/// Whether a server refused to run a command: it was not carried out, unless a proxy says so.
#[must_use]
pub fn is_refusal(text: &str) -> bool {
    REFUSALS.iter().any(|refusal| text.starts_with(refusal))
}

/// Reason why a master refused a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// The master has seen a token that is at least as large.
    Stale,
    /// The master's clock is too far ahead of the token.
    Past {
        /// Time by which it is ahead.
        by: Duration,
    },
    /// The master's clock is too far behind the token.
    Future {
        /// Time by which it is behind.
        by: Duration,
    },
}
