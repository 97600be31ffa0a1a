//! Each master's vote in one round. Masters with the same vote are shown on one line.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::advice::advice;
use crate::limits;
use crate::lock::{Failure, HolderTtl, LockName, TokenRefusal, Vote, quorum};
use crate::words::{self, Rounded};

/// Command that the votes of a [`Report`] answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Round {
    /// Acquisition of the lock.
    Acquire,
    /// Extension of its TTL.
    Extend,
    /// Release or forced unlock; a granted vote means a deleted key.
    Release,
    /// Setting the TTL to the rest of the time for which the lock is left.
    Leave,
}

/// Answers of all masters in one round.
///
/// `{}` is one line for a log; `{:#}` has a line for each group of masters with the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Command of the round.
    pub round: Round,
    /// Name of the lock, without the prefix.
    pub resource: Bytes,
    /// Name (URL without login) and vote of each master, in the order of the configuration.
    pub votes: Vec<(Arc<str>, Vote)>,
}

impl Report {
    /// Returns the report of a round without votes, which can be set. For tests of error handling; see
    /// [`Denial::new`](crate::error::Denial::new).
    #[must_use]
    pub fn new<'n>(round: Round, name: impl Into<LockName<'n>>) -> Self {
        Self { round, resource: name.into().into_shared(), votes: Vec::new() }
    }

    /// Returns the number of masters that form a quorum; 0 in a report without votes.
    #[must_use]
    pub fn quorum(&self) -> usize {
        if self.votes.is_empty() { 0 } else { quorum(self.votes.len().min(limits::MASTER_COUNT_MAX)) }
    }

    /// Returns the number of masters that granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.votes.iter().filter(|(_, vote)| *vote == Vote::Granted).count()
    }

    /// Returns one line for each group of masters with the same answer, with the longest of their times:
    /// `all 5 masters: refused, held for at most 4.4s`.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = self.votes.iter().map(|(master, vote)| {
            let alike = self.votes.iter().map(|(_, other)| other).filter(|other| is_alike(vote, other));
            let vote = alike.max_by_key(|vote| time_in(vote)).unwrap_or(vote);
            (&**master, RoundVote { round: self.round, vote }.to_string())
        });
        words::grouped(lines, self.votes.len())
    }

    /// Returns whether a quorum of masters refused because the login lacks a right.
    #[must_use]
    pub fn lacks_rights(&self) -> bool {
        let lacking =
            self.votes.iter().filter(|(_, vote)| matches!(vote, Vote::Failed(it) if it.is_missing_right()));
        !self.votes.is_empty() && lacking.count() >= self.quorum()
    }

    /// Whether no master was asked, because other callers of the client came first.
    pub(super) fn is_of_queued(&self) -> bool {
        !self.votes.is_empty() && self.votes.iter().all(|(_, vote)| *vote == Vote::Failed(Failure::Queued))
    }

    /// Whether a quorum could grant, were it not for full wait queues of a fair lock.
    pub(super) fn is_queue_full(&self) -> bool {
        let (mut full_count, mut well_count) = (0, 0);
        for (_, vote) in &self.votes {
            match vote {
                Vote::Failed(failure) if failure.is_queue_of_lock_full() => full_count += 1,
                Vote::Failed(_) => {}
                Vote::Granted | Vote::Pending | Vote::Refused { .. } => well_count += 1,
            }
        }
        full_count > 0 && full_count + well_count >= self.quorum()
    }

    /// The word for a granted vote.
    const fn done(round: Round) -> &'static str {
        match round {
            Round::Acquire => "granted",
            Round::Extend => "extended",
            Round::Release => "deleted",
            Round::Leave => "set the remaining time",
        }
    }

    /// Time until the end of quarantines alone makes a quorum possible, and the number of masters in
    /// quarantine. `None` if there is no quarantine, or it is not the only obstacle.
    pub(super) fn quarantine(&self) -> Option<(Duration, usize)> {
        let mut left: Vec<Duration> = Vec::new();
        let mut ready_count = 0;
        for (_, vote) in &self.votes {
            match vote {
                Vote::Failed(Failure::Quarantined { left: time, .. }) => left.push(*time),
                Vote::Granted | Vote::Pending => ready_count += 1,
                Vote::Refused { .. } | Vote::Failed(_) => {}
            }
        }
        left.sort_unstable();
        let missing_count = self.quorum().checked_sub(ready_count + 1)?;
        Some((*left.get(missing_count)?, left.len()))
    }

    /// Whether all masters may belong to a new fleet.
    pub(super) fn is_of_new_masters(&self) -> bool {
        let is_new = |vote: &Vote| matches!(vote, Vote::Failed(Failure::Quarantined { is_new: true, .. }));
        self.votes.iter().all(|(_, vote)| is_new(vote))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.votes.is_empty() {
            return f.write_str("no master was asked");
        }
        let done = Self::done(self.round);
        let count = self.votes.len();
        write!(f, "{} of {count} masters {done}, {} needed", self.granted(), self.quorum())?;
        for (index, line) in self.lines().into_iter().enumerate() {
            let separator = match index {
                _ if f.alternate() => "\n  ",
                0 => ": ",
                _ => "; ",
            };
            write!(f, "{separator}{line}")?;
        }
        Ok(())
    }
}

/// The time shown with a vote.
const fn time_in(vote: &Vote) -> Duration {
    match vote {
        Vote::Refused { holder: HolderTtl::Left(time) }
        | Vote::Failed(Failure::NoAnswer { limit: time } | Failure::Quarantined { left: time, .. }) => *time,
        _ => Duration::ZERO,
    }
}

/// Whether two votes are the same except for their times.
fn is_alike(one: &Vote, other: &Vote) -> bool {
    match (one, other) {
        (Vote::Refused { holder: HolderTtl::Left(_) }, Vote::Refused { holder: HolderTtl::Left(_) }) => true,
        (Vote::Failed(one), Vote::Failed(other)) => match (one, other) {
            (Failure::NoAnswer { .. }, Failure::NoAnswer { .. })
            | (Failure::Quarantined { .. }, Failure::Quarantined { .. }) => true,
            (one, other) => one == other,
        },
        (one, other) => one == other,
    }
}

struct RoundVote<'a> {
    round: Round,
    vote: &'a Vote,
}

impl fmt::Display for RoundVote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.vote, self.round) {
            (Vote::Granted, round) => f.write_str(Report::done(round)),
            (Vote::Refused { holder }, Round::Acquire) => match holder {
                HolderTtl::Unknown => f.write_str("refused"),
                HolderTtl::Left(left) => write!(f, "refused, held for at most {}", Rounded(*left)),
                HolderTtl::Never => f.write_str("refused, held by a key without a TTL"),
                HolderTtl::Gone => f.write_str("refused, but free now"),
            },
            (Vote::Refused { .. }, Round::Extend | Round::Leave) => f.write_str("no longer has this lock"),
            (Vote::Refused { .. }, Round::Release) => f.write_str("had no such lock"),
            (Vote::Failed(failure), _) => write!(f, "{failure}"),
            (Vote::Pending, _) => f.write_str("not needed: already decided"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected { why } => write!(f, "not connected: {why}"),
            Self::ConnectionLost => f.write_str("the connection broke before the answer"),
            Self::NoAnswer { limit } => {
                write!(f, "no answer within {}; check the master, or raise answer_timeout", Rounded(*limit))
            }
            Self::Silent => f.write_str(
                "not asked, as it still owes an earlier answer; check the master, or raise answer_timeout",
            ),
            Self::Quarantined { left, .. } => {
                write!(
                    f,
                    "not counted for another {}: it may have restarted and forgotten a lock",
                    Rounded(*left)
                )
            }
            Self::Queued => f.write_str("not asked: other callers of this client came first"),
            Self::QueueFull => {
                f.write_str("not asked: its queue of requests is full; reduce the load, or check the master")
            }
            Self::NotHeld => f.write_str("never received this lock"),
            Self::SameServer => f.write_str("the same server as another master; list each server once"),
            Self::TokenRefused(TokenRefusal::Stale) => {
                f.write_str("refused the fencing token: it has seen the same or a larger one")
            }
            Self::TokenRefused(TokenRefusal::Past { by }) => write!(
                f,
                "refused the fencing token: its clock is {} ahead; synchronize the masters' clocks",
                Rounded(*by)
            ),
            Self::TokenRefused(TokenRefusal::Future { by }) => write!(
                f,
                "refused the fencing token: its clock is {} behind; synchronize the masters' clocks",
                Rounded(*by)
            ),
            Self::Replied(text) => {
                write!(f, "error reply: {text}")?;
                advice(text).map_or(Ok(()), |advice| write!(f, " ({advice})"))
            }
        }
    }
}
