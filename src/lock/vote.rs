//! A master's answer to an attempt, or the reason why there is none.

use std::sync::Arc;
use std::time::Duration;

/// A master's answer to an attempt, or the reason why there is none.
///
/// Exhaustive: a master grants, refuses, fails or is not needed, and a tool that judges votes must treat
/// each case. New reasons become new variants of [`Failure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// The master executed the command: it set the key or its TTL, or deleted the key.
    Granted,
    /// An explicit refusal. For an acquisition, another key is in the way. For an extension, the key is gone
    /// or has another value.
    Refused {
        /// Remaining time of the key in the way, if the master was asked and answered.
        holder: HolderTtl,
    },
    /// Neither granted nor refused, for this reason.
    Failed(Failure),
    /// No answer when the outcome was certain. A late answer is still handled.
    Pending,
}

/// Remaining time of the key in the way, as a master reported it.
///
/// Exhaustive: it covers all replies of `PTTL`, and the lack of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HolderTtl {
    /// The master was not asked, or has not answered.
    #[default]
    Unknown,
    /// The key expires within this time unless its holder extends it.
    Left(Duration),
    /// The key has no TTL, unlike any lock's key; it stays until somebody deletes it.
    Never,
    /// The key was gone when the master was asked.
    Gone,
}

/// Reason why a master's vote is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No usable connection.
    NotConnected {
        /// Why the last connection or attempt ended, or that the first attempt is in progress.
        why: Arc<str>,
    },
    /// The connection broke after this command, or an earlier command for this lock, was queued.
    ConnectionLost,
    /// No answer within the limit of the attempt.
    NoAnswer {
        /// Time for which the client waited.
        limit: Duration,
    },
    /// Not asked, because the master still owed an earlier answer.
    Silent,
    /// Answered, but the answer does not count: the master may have restarted and forgotten a lock that still
    /// lives.
    Quarantined {
        /// Time until the master counts.
        left: Duration,
        /// Whether the master started recently without any known sign of use, so that `redlatch fleet init`
        /// may declare it new.
        is_new: bool,
    },
    /// Not asked: another caller of this client holds the lock, or is ahead in the wait queue.
    Queued,
    /// Not asked: the master's outbox (8 MiB) or its queue of owed replies (262,144) was full.
    QueueFull,
    /// Not asked to extend: the lock was never sent to this master.
    NotHeld,
    /// The master's first answer showed this very request as already executed, as when two addresses reach
    /// one server.
    SameServer,
    /// The master refused the fencing token, and wrote nothing.
    TokenRefused(TokenRefusal),
    /// An error reply, cut off at 160 bytes ([`crate::limits::ERROR_TEXT_SIZE_MAX`]).
    Replied(Box<str>),
}

impl Failure {
    /// Returns whether the login lacks a right for the command.
    #[must_use]
    pub fn is_missing_right(&self) -> bool {
        matches!(self, Self::Replied(text) if names_missing_right(text))
    }

    /// Returns whether the server refused to run the command. Unless a proxy replied, the command had no effect.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Replied(text) if is_refusal(text))
    }

    /// Whether the master is overloaded: its wait queue for the lock is full, or it answers too late.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::NoAnswer { .. }) || self.is_queue_of_lock_full()
    }

    /// Whether the master's wait queue for the lock is full, as `park.lua` replies.
    pub(crate) fn is_queue_of_lock_full(&self) -> bool {
        matches!(self, Self::Replied(text) if text.starts_with("ERR too many wait for this lock"))
    }
}

/// Whether an error reply is an ACL's refusal, also inside a script.
pub(crate) fn names_missing_right(text: &str) -> bool {
    ["NOPERM", "ERR The user executing the script", "ERR ACL failure in script"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Beginnings of the errors of a server that refuses to run a command.
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

fn is_refusal(text: &str) -> bool {
    REFUSALS.iter().any(|refusal| text.starts_with(refusal))
}

/// Reason why a master refused a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// The master has seen a token at least as large.
    Stale,
    /// The master's clock is too far ahead of the token.
    Past {
        /// Time by which the clock is ahead.
        by: Duration,
    },
    /// The master's clock is too far behind the token.
    Future {
        /// Time by which the clock is behind.
        by: Duration,
    },
}
