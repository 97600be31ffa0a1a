//! The mark of strict mode: a key on each master by which a client reports to others for how long it has
//! watched the very process that they are connected to.
//!
//! ```text
//!  <prefix>redlatch:mark = "<run_id> <watched_ms>"
//! ```
//!
//! A key that holds anything else belongs to another application: it stays, and counts for no watch.
//!
//! A mark speaks for the process that it names and for no other, so one that comes back with a snapshot, from
//! a replica or over a connection behind which the server was replaced counts for nothing. It is read in the
//! handshake, and written by who has watched for the whole time itself: at the end of the watch it is read
//! once more, so that a mark of a longer watch, written meanwhile, stays.

use std::time::Duration;

use crate::lock::MARK_NAME;
use crate::lock::command;
use crate::lock::command::answer::WrongShape;
use crate::mutants::mutant;
use crate::resp::Reply;

/// The names of the two requests in messages.
pub(crate) const READING: &str = "GET of the mark";
pub(crate) const WRITING: &str = "SET of the mark";
/// Why a mark is not written over another application's key.
pub(crate) const FOREIGN: &str =
    "the key PREFIXredlatch:mark is no mark; choose another prefix, or delete the key";

/// Answer of a master to the request for its mark.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkAnswer {
    /// There is no mark.
    Absent,
    /// For how long the process that it claims to be was watched; zero by a mark of another process.
    Observed(Duration),
    /// The key holds something that is no mark.
    Foreign,
    /// It does not let the mark be read.
    Failed(Box<str>),
}

/// The key of the mark.
pub(crate) fn key(prefix: &[u8]) -> Vec<u8> {
    [prefix, MARK_NAME].concat()
}

/// The mark in a reply to `GET`, as far as it is about the process with this `run_id`.
pub(crate) fn answer(reply: &Reply<'_>, run_id: Option<&str>) -> Result<MarkAnswer, WrongShape> {
    match reply {
        Reply::NullBulk => Ok(MarkAnswer::Absent),
        Reply::Bulk(_) | Reply::Error(_) if mutant!(ForeignMarkOverwritten) => {
            Ok(MarkAnswer::Observed(Duration::ZERO))
        }
        Reply::Bulk(mark) if is_mark(mark) => Ok(MarkAnswer::Observed(observed(mark, run_id))),
        Reply::Bulk(_) => Ok(MarkAnswer::Foreign),
        Reply::Error(text) if text.starts_with(b"WRONGTYPE") => Ok(MarkAnswer::Foreign),
        Reply::Error(text) => Ok(MarkAnswer::Failed(command::answer::error_text(text))),
        _ => Err(WrongShape),
    }
}

/// Whether it is the mark of some process: a `run_id` and a number.
fn is_mark(mark: &[u8]) -> bool {
    let mut words = mark.split(|&byte| byte == b' ');
    let (Some(run_id), Some(digits), None) = (words.next(), words.next(), words.next()) else { return false };
    let is_in_run_id = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    !run_id.is_empty()
        && run_id.iter().all(is_in_run_id)
        && !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
}

/// For how long the process with this `run_id` was watched by this mark; zero if it is about another or
/// malformed.
pub(crate) fn observed(mark: &[u8], run_id: Option<&str>) -> Duration {
    if mutant!(MarkOfOtherProcess) {
        return Duration::from_secs(3600);
    }
    let digits = run_id.and_then(|run_id| mark.strip_prefix(run_id.as_bytes())?.strip_prefix(b" "));
    // Digits only: what a number's own parser takes beyond them was not written by this module.
    let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
    let ms = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    ms.map(Duration::from_millis).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_for_its_process_only() {
        let of = |mark: &[u8]| answer(&Reply::Bulk(mark), Some("abc"));
        assert_eq!(of(b"abc 30302"), Ok(MarkAnswer::Observed(Duration::from_millis(30_302))));
        assert_eq!(of(b"abd 1"), Ok(MarkAnswer::Observed(Duration::ZERO)));
        assert_eq!(of(b"abcd-2 1"), Ok(MarkAnswer::Observed(Duration::ZERO)));
        assert_eq!(of(b"abc 18446744073709551616"), Ok(MarkAnswer::Observed(Duration::ZERO)));
        let malformed: &[&[u8]] = &[
            b"",
            b"abc",
            b"abc ",
            b"abc -1",
            b"abc +1",
            b"abc 1.5",
            b"abc 1 ",
            b"abc  1",
            b"abc\t1",
            b"a.c 1",
            b" abc 1",
            b" 1",
            b"abc 1\n",
            b"abc \xff",
        ];
        for mark in malformed {
            assert_eq!(of(mark), Ok(MarkAnswer::Foreign), "{}", mark.escape_ascii());
            assert_eq!(observed(mark, Some("abc")), Duration::ZERO, "{}", mark.escape_ascii());
        }
        assert_eq!(answer(&Reply::Bulk(b"abc 1"), None), Ok(MarkAnswer::Observed(Duration::ZERO)));
        assert_eq!(answer(&Reply::NullBulk, Some("abc")), Ok(MarkAnswer::Absent));
    }

    #[test]
    fn foreign_and_unreadable_marks_are_distinguished() {
        let wrong_type = Reply::Error(b"WRONGTYPE Operation against a key");
        assert_eq!(answer(&wrong_type, Some("abc")), Ok(MarkAnswer::Foreign));
        assert_eq!(
            answer(&Reply::Error(b"NOPERM no"), Some("abc")),
            Ok(MarkAnswer::Failed("NOPERM no".into()))
        );
        assert_eq!(answer(&Reply::Integer(1), Some("abc")), Err(WrongShape));
    }
}
