//! Replies as votes.

use std::time::Duration;

use memchr::memmem;

use crate::lock::vote::{Failure, HolderTtl, Vote};
use crate::resp::{Array, Reply};
use crate::words::error_text;

/// A reply that none of our commands can get: requests and replies no longer match, so the connection must
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongShape;

/// Answer of a master to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReleaseAnswer {
    /// The key held the token, and is deleted.
    Deleted,
    /// The key was gone or had another value.
    Absent,
    /// An error reply: the key may still be there.
    Failed(Failure),
}

/// Whether the master does not know the script that the request named by its digest.
pub(crate) fn is_noscript(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"NOSCRIPT"))
}

/// Whether the master is at its memory limit, and so refuses commands that may use more.
pub(crate) fn is_out_of_memory(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"OOM "))
}

/// Whether an error passes on its own: the server loads its data, runs a long script, waits for its own
/// master or for slots to move, or its cluster is down.
pub(crate) fn is_passing(text: &[u8]) -> bool {
    let code = text.split(|byte| *byte == b' ').next();
    matches!(code, Some(b"LOADING" | b"BUSY" | b"TRYAGAIN" | b"MASTERDOWN" | b"CLUSTERDOWN"))
}

/// Error codes of a server that is no longer the master.
const ELSEWHERE: [&[u8]; 4] = [b"READONLY ", b"MOVED ", b"MASTERDOWN ", b"REDIRECT "];

/// Error codes of a master that refuses all writes for a while.
const BLOCKED: [&[u8]; 2] = [b"NOREPLICAS ", b"MISCONF "];

/// A refusal that tells something about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another server is the master now.
    Elsewhere,
    /// The server accepts no writes for a while, for example a master that a failover cut off.
    Blocked,
}

impl Refusal {
    /// What an error reply tells about the server.
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        let is_of = |codes: &[&[u8]]| has_code(text, codes);
        is_of(&ELSEWHERE).then_some(Self::Elsewhere).or_else(|| is_of(&BLOCKED).then_some(Self::Blocked))
    }
}

/// Whether an error comes from a replica.
pub(crate) fn is_of_replica(text: &[u8]) -> bool {
    has_code(text, &ELSEWHERE[..1])
}

/// Whether an error has one of these codes. Before Redis 7, the error of a command inside a script is wrapped
/// in other words.
fn has_code(text: &[u8], codes: &[&[u8]]) -> bool {
    let is_wrapped = text.starts_with(b"ERR Error running script");
    let is_behind = |code: &[u8]| {
        [b": ".as_slice(), b": -"].iter().any(|before| memmem::find(text, &[before, code].concat()).is_some())
    };
    codes.iter().any(|code| text.starts_with(code) || (is_wrapped && is_behind(code)))
}

/// If `received` starts with a grant, the bytes after it. Nearly all replies to [`super::encode_acquire`] are
/// grants.
#[inline]
pub(crate) fn split_granted(received: &[u8]) -> Option<&[u8]> {
    received.strip_prefix(b"+OK\r\n")
}

/// If `received` starts with a deletion, the usual reply to [`super::encode_release`], the bytes after it.
#[inline]
pub(crate) fn split_deleted(received: &[u8]) -> Option<&[u8]> {
    received.strip_prefix(b":1\r\n")
}

/// The vote in a reply to [`super::encode_acquire`]. An error is never a no (I16).
pub(crate) fn acquire_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    match reply {
        Reply::Simple(b"OK") => Ok(Vote::Granted),
        Reply::NullBulk => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) => Ok(Vote::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The vote in a reply to [`super::encode_extend`] or [`super::encode_swap`], native or script.
pub(crate) fn compare_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    match reply {
        Reply::Simple(b"OK") | Reply::Integer(1) => Ok(Vote::Granted),
        Reply::NullBulk | Reply::Integer(0) => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) if is_wrong_type(text) => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) => Ok(Vote::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// Whether an error says that the key has another type than this lock's key. It is somebody else's key then,
/// and nothing was written: each command and script checks the key first. Readers and a writer of one lock
/// meet this error.
#[cold]
pub(super) fn is_wrong_type(text: &[u8]) -> bool {
    has_code(text, &[b"WRONGTYPE "])
        // Redis's error for DELEX.
        || text.starts_with(b"ERR Key should be of string type")
}

/// The holder's remaining time, in a reply to [`super::query::encode_pttl`].
pub(crate) fn holder_ttl(reply: &Reply<'_>) -> Result<HolderTtl, WrongShape> {
    match *reply {
        Reply::Integer(left_ms) => ttl_of(left_ms),
        Reply::Error(_) => Ok(HolderTtl::Unknown),
        _ => Err(WrongShape),
    }
}

/// The meaning of a number that `PTTL` returned.
#[inline]
pub(super) fn ttl_of(left_ms: i64) -> Result<HolderTtl, WrongShape> {
    match u64::try_from(left_ms) {
        Ok(left_ms) => Ok(HolderTtl::Left(Duration::from_millis(left_ms))),
        Err(_) if left_ms == -1 => Ok(HolderTtl::Never),
        Err(_) if left_ms == -2 => Ok(HolderTtl::Gone),
        Err(_) => Err(WrongShape),
    }
}

/// The clock in a reply to `TIME`, in microseconds since 1970; `None` if it is no time.
pub(crate) fn clock_us(time: &Array<'_>) -> Option<u64> {
    let mut numbers = time.iter().map(|part| match part.plain() {
        Reply::Bulk(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        Reply::Integer(number) => u64::try_from(number).ok(),
        _ => None,
    });
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    let clock_us = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    // Leaves room for sums and differences in an `i64`.
    (clock_us < 1 << 52).then_some(clock_us)
}

pub(super) fn failure(text: &[u8]) -> Failure {
    Failure::Replied(error_text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_nil_is_a_refusal() {
        let refused = Ok(Vote::Refused { holder: HolderTtl::Unknown });
        assert_eq!(acquire_vote(&Reply::Simple(b"OK")), Ok(Vote::Granted));
        assert_eq!(acquire_vote(&Reply::NullBulk), refused);
        for text in ["LOADING x", "NOSCRIPT x", "OOM x", "READONLY x", "BUSY x", ""] {
            let vote = acquire_vote(&Reply::Error(text.as_bytes()));
            assert_eq!(vote, Ok(Vote::Failed(Failure::Replied(text.into()))));
        }
        for reply in [Reply::Simple(b"QUEUED"), Reply::Integer(1), Reply::Bulk(b"OK"), Reply::NullArray] {
            assert_eq!(acquire_vote(&reply), Err(WrongShape), "{reply:?}");
        }
        assert_eq!(compare_vote(&Reply::Integer(0)), refused);
        assert_eq!(compare_vote(&Reply::NullBulk), refused);
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: x, on @user_script:1.",
            "ERR Error running script (call to f_x): @user_script:1: WRONGTYPE Operation against a key",
            "ERR Key should be of string type if conditions are specified",
        ] {
            assert_eq!(compare_vote(&Reply::Error(text.as_bytes())), refused, "{text}");
        }
        let failed = Vote::Failed(Failure::Replied("OOM WRONGTYPE ".into()));
        assert_eq!(compare_vote(&Reply::Error(b"OOM WRONGTYPE ")), Ok(failed));
        assert_eq!(compare_vote(&Reply::Integer(2)), Err(WrongShape));
    }

    #[test]
    fn a_demoted_master_is_known_by_its_errors() {
        // Errors of Redis 7, of Redis 6 in a script, of a cluster, and of Valkey with redirection.
        for text in [
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only replica. script: 34bb, on @user_script:1.",
            "ERR Error running script (call to f_34bb): @user_script:1: @user_script: 1: -READONLY You can't write \
             against a read only replica. ",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "MOVED 3999 127.0.0.1:6381",
            "REDIRECT 127.0.0.1:6381",
        ] {
            assert_eq!(Refusal::of(text.as_bytes()), Some(Refusal::Elsewhere), "{text}");
        }
        for text in [
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "ERR Error running script (call to f_34bb): @user_script:1: @user_script: 1: -NOREPLICAS Not enough good \
             replicas to write. ",
        ] {
            assert_eq!(Refusal::of(text.as_bytes()), Some(Refusal::Blocked), "{text}");
        }
        for text in ["ERR unknown command 'READONLY '", "ERR a: READONLY x", "READONLYX y", "OOM READONLY "] {
            assert_eq!(Refusal::of(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn holder_time_keeps_absent_and_endless_apart() {
        assert_eq!(holder_ttl(&Reply::Integer(-2)), Ok(HolderTtl::Gone));
        assert_eq!(holder_ttl(&Reply::Integer(-1)), Ok(HolderTtl::Never));
        assert_eq!(holder_ttl(&Reply::Integer(7)), Ok(HolderTtl::Left(Duration::from_millis(7))));
        assert_eq!(holder_ttl(&Reply::Integer(i64::MIN)), Err(WrongShape));
    }
}
