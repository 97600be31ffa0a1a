//! What can go wrong with each operation, with what every master said.
//!
//! Contention, an outage and a misconfiguration are different errors. A failed operation loses nothing: whatever an
//! attempt may have left on a master is released, now or when that master can be reached again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::{Failure, HolderTtl, InputError, TokenRefusal, Vote, quorum};

/// Which command the votes of a [`Report`] answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// Acquiring the lock.
    Acquire,
    /// Extending its TTL.
    Extend,
    /// Releasing it; a granted vote is a deleted key.
    Release,
}

/// What each master said in one round.
///
/// `{}` is one line for a log; `{:#}` has a line for each master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The round.
    pub round: Round,
    /// Name (its URL without login) and vote of each master, in the order of the configuration.
    pub votes: Vec<(Arc<str>, Vote)>,
}

impl Report {
    /// How many masters a quorum is.
    #[must_use]
    pub fn quorum(&self) -> usize {
        quorum(self.votes.len())
    }

    /// How many masters granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.votes.iter().filter(|(_, vote)| *vote == Vote::Granted).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.round {
            Round::Acquire => "granted",
            Round::Extend => "extended",
            Round::Release => "deleted",
        };
        write!(f, "{} of {} masters {done}, {} needed", self.granted(), self.votes.len(), self.quorum())?;
        for (index, (master, vote)) in self.votes.iter().enumerate() {
            let separator = if f.alternate() {
                "\n  "
            } else if index == 0 {
                ": "
            } else {
                "; "
            };
            write!(f, "{separator}{master} ")?;
            match vote {
                Vote::Granted => f.write_str(done)?,
                Vote::Refused { holder } => match self.round {
                    Round::Acquire => write!(f, "refused: held by another{}", ShownHolder(*holder))?,
                    Round::Extend => f.write_str("no longer has this lock")?,
                    Round::Release => f.write_str("had no such lock any more")?,
                },
                Vote::Failed(failure) => write!(f, "{failure}")?,
                Vote::Pending => f.write_str("was not waited for")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected { why } => write!(f, "is not connected: {why}"),
            Self::ConnectionLost => f.write_str("lost the connection before it answered"),
            Self::NoAnswer { limit } => write!(f, "did not answer within {limit:?}"),
            Self::Silent => f.write_str(
                "was skipped: it still owes an answer from before (stopped, or answer_timeout too short)",
            ),
            Self::Quarantined { left } => {
                write!(
                    f,
                    "does not count for another {left:.1?}: it may have restarted lately and forgotten a lock (max_ttl)"
                )
            }
            Self::Queued => f.write_str("was not asked: other callers of this client came first"),
            Self::OthersFirst { ahead } => write!(f, "refused: {ahead} wait for it who asked before"),
            Self::QueueFull => f.write_str("was skipped: its queue is full"),
            Self::NotHeld => f.write_str("was not part of this lock"),
            Self::SameServer => {
                f.write_str("is the same server as another one here, and votes once: list each server once")
            }
            Self::TokenRefused(TokenRefusal::Stale) => {
                f.write_str("refused the fencing token: it has seen a larger one")
            }
            Self::TokenRefused(TokenRefusal::Past { by }) => {
                write!(
                    f,
                    "refused the fencing token: its clock is {by:.1?} ahead of it (clocks of masters differ)"
                )
            }
            Self::TokenRefused(TokenRefusal::Future { by }) => {
                write!(
                    f,
                    "refused the fencing token: its clock is {by:.1?} behind it (clocks of masters differ)"
                )
            }
            Self::Replied(text) => write!(f, "replied with an error: {text}{}", advice(text)),
        }
    }
}

/// What a person can do about the usual error replies.
fn advice(text: &str) -> &'static str {
    let code = text.split(' ').next().unwrap_or_default();
    match code {
        // A script that the user may not run to its end: Redis 7; Redis 8 and Valkey.
        "ERR"
            if text.starts_with("ERR The user executing the script")
                || text.starts_with("ERR ACL failure in script") =>
        {
            " (the ACL user lacks a command or key that the script uses; docs/operating.md lists the rights)"
        }
        "NOAUTH" | "WRONGPASS" => " (check user and password in this master's URL)",
        "NOPERM" => " (the ACL user lacks a command or the key pattern)",
        "READONLY" => " (this is a replica; list its master instead)",
        "OOM" => " (out of memory: raise maxmemory; keep the policy noeviction)",
        "MISCONF" => " (it cannot write its snapshot; look at its log and disk)",
        "LOADING" => " (it is reading its data set; it will be back by itself)",
        "MOVED" | "CLUSTERDOWN" => " (this is a cluster node; use independent masters)",
        _ => "",
    }
}

struct ShownHolder(HolderTtl);

impl fmt::Display for ShownHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            HolderTtl::Unknown => Ok(()),
            HolderTtl::Left(left) => write!(f, " for at most {left:?}"),
            HolderTtl::Never => {
                f.write_str(" by a key without TTL, which no lock is: delete it by hand if it is stale")
            }
            HolderTtl::Gone => f.write_str(", and free since"),
        }
    }
}

/// The story of an acquisition that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Attempts made; none if the wait ended in line behind other callers of this client.
    pub attempts: u32,
    /// Time from the request to the answer.
    pub took: Duration,
    /// When a quorum of masters may be free again, if the holder neither extends nor releases.
    pub holder: HolderTtl,
    /// The last attempt's votes.
    pub report: Report,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, took, .. } = self;
        write!(f, "after {attempts} attempt{}", if *attempts == 1 { "" } else { "s" })?;
        if took.is_zero() {
            // Masters may have been asked: there were too few of them.
            f.write_str(", decided before any answer; ")?
        } else {
            write!(f, " in {took:.1?}; ")?
        }
        // The report's own form, one line or many, follows the caller's.
        fmt::Display::fmt(&self.report, f)
    }
}

/// Why a lock was not acquired. Whatever the attempt left behind is being released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Enough masters answer, and somebody else holds keys on too many of them; or another caller of this client holds the
    /// lock or stood before this one in line for it. Also, of a fair lock, if others wait who asked before; and of a reader, if
    /// a writer keeps new readers out, for [`crate::limits::INTENT_TIME`] or a little more. Wait or try again.
    Contended(Box<Denial>),
    /// Too few masters can grant: they are unreachable, silent, in error or in quarantine; or they refused the fencing token, as
    /// their clocks differ; or the queue of a fair lock is full ([`crate::limits::FAIR_QUEUE_COUNT_MAX`]). The report tells which.
    /// A wait ends at once if the quarantine of too many masters outlasts it.
    NoQuorum(Box<Denial>),
    /// A quorum granted, but by then less validity was left than asked for. Ask for a longer TTL.
    Expired(Box<Denial>),
    /// The client has as many locks in hand, as many callers in line for this one, or as much on its way to the masters as
    /// it may have. It is said at once; release some, or try again later.
    Overloaded,
    /// It was ended by its [`Cancel`](crate::Cancel) handle. What it had is released.
    Cancelled,
    /// The request itself cannot work; nothing was sent.
    Input(#[from] InputError),
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call comes from a function
    /// or a waker that the client is calling.
    Stopped(Arc<str>),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contended(denial) => {
                let is_held = |(_, vote): &(_, Vote)| matches!(vote, Vote::Refused { .. });
                let is_queued = |(_, vote): &(_, Vote)| matches!(vote, Vote::Failed(Failure::OthersFirst { .. }));
                let mut votes = denial.report.votes.iter();
                if votes.clone().any(is_queued) && !votes.any(is_held) {
                    f.write_str("others wait for the lock who asked before")?;
                } else {
                    f.write_str("the lock is held by another")?;
                }
                match denial.holder {
                    HolderTtl::Left(left) => write!(f, " and may be free in {left:?} ")?,
                    other => write!(f, "{} ", ShownHolder(other))?,
                }
                fmt::Display::fmt(denial, f)
            }
            Self::NoQuorum(denial) => {
                f.write_str("no quorum of masters ")?;
                fmt::Display::fmt(denial, f)
            }
            Self::Expired(denial) => {
                f.write_str("the lock expired while it was being acquired ")?;
                fmt::Display::fmt(denial, f)
            }
            Self::Cancelled => f.write_str("the acquisition was cancelled"),
            Self::Overloaded => f.write_str(
                "too many locks in hand, too many callers in line for this one, or too much on its way to the masters; \
                 release some, or try again later",
            ),
            Self::Input(error) => fmt::Display::fmt(error, f),
            Self::Stopped(why) => write!(f, "the client cannot be used: {why}"),
        }
    }
}

/// Why a lock was not extended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// Its validity had ended; nothing was sent. Somebody else may hold it.
    #[error("the lock's validity has ended; it cannot be extended any more")]
    Expired,
    /// So many masters no longer have the key, or never had it, that no quorum can be left. Stop the protected work.
    #[error(fmt = fmt_lost)]
    Lost(Report),
    /// Too few masters answered. The lock is valid as long as it was before, or as the TTL asked for if that is sooner;
    /// try again until then.
    #[error(fmt = fmt_not_extended)]
    NoQuorum(Report),
    /// Extending would pass the longest total time that a lock may be held.
    #[error("the lock may be held for {max_hold:?} in all (max_hold); release it and acquire it anew")]
    HoldLimit {
        /// The configured limit.
        max_hold: Duration,
    },
    /// Another extension of this lock is under way.
    #[error("another extension of this lock is under way")]
    Busy,
    /// The lock is not held by this client: it was released, or never acquired.
    #[error("the lock is not held by this client")]
    NotHeld,
    /// The TTL cannot work; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call comes from a function
    /// or a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Why a release is not known to have worked. It goes on in the background, until the keys have expired at the latest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// So few masters answered that the lock may still bar others until its TTL has passed.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// The lease belongs to another client.
    #[error("the lock is not held by this client")]
    NotHeld,
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call comes from a function
    /// or a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Why masters were not asked what they hold of a lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The client has as many locks and questions in hand as it may have.
    #[error("too many locks and questions in hand; try again later")]
    Overloaded,
    /// The name cannot be a lock's; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call comes from a function
    /// or a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Why a forced unlock is not known to have worked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForceUnlockError {
    /// So few masters deleted the lock, or had none, that it may still bar others until its TTL has passed. Nothing goes on in the background.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// The client has as many locks and questions in hand as it may have.
    #[error("too many locks and questions in hand; try again later")]
    Overloaded,
    /// The name cannot be a lock's; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client cannot be used: its event loop cannot go on, this is a fork of its process, or the call comes from a function
    /// or a waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Why several locks were not acquired together. None of them is held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\": {source}", resource.escape_ascii())]
pub struct AcquireSetError {
    /// The first lock, by name, that was in the way; empty if the set itself cannot be.
    pub resource: Vec<u8>,
    /// What was the matter with it.
    pub source: AcquireError,
}

/// Why not all of several locks were extended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\": {source}", resource.escape_ascii())]
pub struct ExtendSetError {
    /// The first lock, by name, that was not.
    pub resource: Vec<u8>,
    /// What was the matter with it.
    pub source: ExtendError,
}

/// Why not all of several locks are known to be released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\": {source}", resource.escape_ascii())]
pub struct ReleaseSetError {
    /// The first lock, by name, that is not.
    pub resource: Vec<u8>,
    /// What was the matter with it.
    pub source: ReleaseError,
}

/// Why no hold of a reentrant lock was taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReenterError {
    /// The owner has holds still of a lock whose validity has ended. Somebody else may have it: what is done with those holds
    /// is protected no more. It can be acquired anew once they have ended.
    #[error(
        "the lock is lost, and {hold_count} holds of it have not ended; it can be acquired anew once they have"
    )]
    Lost {
        /// Holds that have not ended.
        hold_count: usize,
    },
    /// The owner has [`crate::limits::HOLD_COUNT_MAX`] holds.
    #[error("too many holds of one lock; end some")]
    TooManyHolds,
    /// The attempt of this owner's callers failed.
    #[error(fmt = fmt_not_acquired)]
    Acquire(#[from] AcquireError),
}

fn fmt_not_acquired(error: &AcquireError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fmt::Display::fmt(error, f)
}

// Written out, because a format string would not hand `{:#}` on to the report.

fn fmt_lost(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("the lock is lost: ")?;
    fmt::Display::fmt(report, f)
}

fn fmt_not_extended(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(
        "the lock was not extended; it ends as before, or with the TTL asked for if that is sooner: ",
    )?;
    fmt::Display::fmt(report, f)
}

fn fmt_unconfirmed(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("the release is not confirmed; the lock ends with its TTL at the latest: ")?;
    fmt::Display::fmt(report, f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_servers_acl_refusal_in_a_script_has_its_advice() {
        // The literal words: Redis 7.0; Redis 8.0 and Valkey 8.1; Valkey 9.1; any of them without the place in the script.
        for reply in [
            "ERR The user executing the script can't run this command or subcommand script: \
             1a8c67671c988614eb0c618efa73283c54565629, on @user_script:1.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command \
             arguments script: 567376a027c43920e8c8527167fabbe3a20acfc9, on @user_script:1.",
            "ERR ACL failure in script: User locker has no permissions to run the 'time' command script: \
             1a8c67671c988614eb0c618efa73283c54565629, on @user_script:1.",
            "ERR ACL failure in script: No permissions to access a key script: \
             567376a027c43920e8c8527167fabbe3a20acfc9, on @user_script:1.",
            "ERR ACL failure in script: User locker has no permissions to run the 'time' command script: on \
             @user_script:1.",
            "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User locker has no permissions to run the 'get' command",
        ] {
            assert!(advice(reply).contains("lacks a command or key that the script uses"), "{reply:?}");
        }
    }

    #[test]
    fn each_servers_acl_refusal_of_a_command_has_its_advice() {
        // Each server's literal words: Redis 7.0; Redis 8.0, Valkey 8.1 and Valkey 9.1.
        for reply in [
            "NOPERM this user has no permissions to run the 'get' command",
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM User locker has no permissions to run the 'get' command",
            "NOPERM No permissions to access a key",
        ] {
            assert!(advice(reply).contains("lacks a command or the key pattern"), "{reply:?}");
        }
    }

    #[test]
    fn an_error_of_the_script_itself_is_no_acl_refusal() {
        for reply in ["ERR the fence is no number", "ERR Error running script: ACL failure in script", "ERR"]
        {
            assert_eq!(advice(reply), "", "{reply:?}");
        }
    }
}
