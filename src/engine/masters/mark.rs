//! The mark: a key on each master that shows other clients how old the memory of the master's process is, and
//! how long a client has watched the process.
//!
//! ```text
//!  <prefix>redlatch:mark = "<run_id> <history> <first_seen_us> <watched_ms>"
//! ```
//!
//! The history names the last promotion (`handshake::Replication`), or is `-`; so is an unknown time of first
//! sight. A mark is valid only for its process and history, so neither a mark restored from a snapshot, a
//! replica or another server counts, nor a mark from before a failover. Clients read it in the handshake. The
//! first client that meets a promoted process writes a mark, from which later clients in default mode count.
//! A client in strict mode writes one at the end of its watch, unless the mark then shows a longer watch. A
//! mark of another process or history is deleted by compare, and a mark is written only if the key is absent.
//! Other content belongs to another application, and stays.

use std::fmt;
use std::time::Duration;

use super::record::{hex, number};
use crate::lock::MARK_NAME;
use crate::lock::command::answer::WrongShape;
use crate::resp::Reply;
use crate::words;

/// Names of the two requests in messages.
pub(crate) const READING: &str = "GET of the mark";
pub(crate) const WRITING: &str = "SET of the mark";
/// Why a mark is not written over another application's key.
pub(crate) const FOREIGN: &str =
    "the key PREFIXredlatch:mark is no mark; choose another prefix, or delete the key";

/// Content of the mark's key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum MarkFound {
    /// Not read yet.
    #[default]
    Unread,
    /// No key.
    Absent,
    /// The mark of some process.
    Known(Mark),
    /// Something else.
    Foreign,
    /// The master refused the read.
    Refused(Box<str>),
}

/// What a client has stored on a master about its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The process.
    pub(crate) run_id: Box<str>,
    /// Identity of its last promotion, as in `Replication`.
    pub(crate) promotion: Option<u64>,
    /// When a client first saw this process after this promotion, by the master's clock in microseconds since
    /// 1970.
    pub(crate) first_seen_us: Option<u64>,
    /// Longest time for which one client has watched it.
    pub watched: Duration,
}

/// The key of the mark.
pub fn key(prefix: &[u8]) -> Vec<u8> {
    [prefix, MARK_NAME].concat()
}

impl MarkFound {
    /// Decodes the reply to `GET`.
    pub(crate) fn from_reply(reply: &Reply<'_>) -> Result<Self, WrongShape> {
        match reply {
            Reply::NullBulk => Ok(Self::Absent),
            Reply::Bulk(text) => Ok(Mark::parse(text).map_or(Self::Foreign, Self::Known)),
            Reply::Error(text) if text.starts_with(b"WRONGTYPE") => Ok(Self::Foreign),
            Reply::Error(text) => Ok(Self::Refused(words::error_text(text))),
            _ => Err(WrongShape),
        }
    }

    /// The mark, if it is valid for this process with this last promotion.
    pub(crate) fn of(&self, run_id: Option<&str>, promotion: Option<u64>) -> Option<&Mark> {
        let Self::Known(mark) = self else { return None };
        Some(mark).filter(|mark| mark.is_of(run_id, promotion))
    }
}

impl Mark {
    /// Parses a mark; `None` if the text is not a mark.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let words: Vec<_> = text.split(' ').collect();
        let [run_id, history, first_seen, watched] = words[..] else { return None };
        let is_in_run_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_run_id = !run_id.is_empty() && run_id.bytes().all(is_in_run_id);
        Some(Self {
            run_id: Some(run_id).filter(|_| is_run_id)?.into(),
            promotion: if history == "-" { None } else { Some(hex(history)?) },
            first_seen_us: if first_seen == "-" { None } else { Some(number(first_seen)?) },
            watched: Duration::from_millis(number(watched)?),
        })
    }

    /// Whether the mark is valid for this process with this last promotion. A server shows a promotion for at
    /// least `repl-backlog-ttl`; if it shows none, the mark's history does not matter.
    #[must_use]
    pub fn is_of(&self, run_id: Option<&str>, promotion: Option<u64>) -> bool {
        let is_of_process = run_id == Some(&*self.run_id);
        let is_of_history = promotion.is_none() || promotion == self.promotion;
        is_of_process && is_of_history
    }

    /// Time since a client first saw the process, by the master's clock. `None` if either time is unknown, or
    /// the clock was set back.
    #[must_use]
    pub fn seen_for(&self, clock_us: Option<u64>) -> Option<Duration> {
        Some(Duration::from_micros(clock_us?.checked_sub(self.first_seen_us?)?))
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.run_id)?;
        match self.promotion {
            Some(promotion) => write!(f, "{promotion:016x} ")?,
            None => f.write_str("- ")?,
        }
        match self.first_seen_us {
            Some(first_seen_us) => write!(f, "{first_seen_us} ")?,
            None => f.write_str("- ")?,
        }
        write!(f, "{}", self.watched.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &[u8]) -> MarkFound {
        MarkFound::from_reply(&Reply::Bulk(text)).expect("text")
    }

    #[test]
    fn a_mark_counts_for_its_process_and_history_only() {
        let text = "abc 00000000000000ff 1700000000000000 30302";
        let mark = found(text.as_bytes());
        let MarkFound::Known(known) = &mark else { panic!("{mark:?}") };
        assert_eq!((known.to_string().as_str(), known.watched), (text, Duration::from_millis(30_302)));
        assert_eq!(known.seen_for(Some(1_700_000_000_000_007)), Some(Duration::from_micros(7)));
        assert_eq!([known.seen_for(Some(1_699_999_999_999_999)), known.seen_for(None)], [None, None]);
        let is_of = |run_id, promotion| mark.of(run_id, promotion).is_some();
        assert!(is_of(Some("abc"), Some(0xff)) && is_of(Some("abc"), None));
        assert!(!is_of(Some("abc"), Some(0xfe)) && !is_of(Some("abd"), Some(0xff)) && !is_of(None, None));
        let never = found(b"abc - - 1");
        assert!(never.of(Some("abc"), None).is_some() && never.of(Some("abc"), Some(1)).is_none());
    }

    #[test]
    fn foreign_value_is_no_mark() {
        let malformed: &[&[u8]] = &[
            b"",
            b"abc",
            b"abc 1",
            b"abc - - ",
            b"abc - - -1",
            b"abc - - +1",
            b"abc - - 1.5",
            b"abc - - 1 ",
            b"abc - -  1",
            b"abc - -1 1",
            b"abc ff - 1",
            b"abc 00000000000000fF - 1",
            b"a.c - - 1",
            b" - - 1",
            b"abc - - 1\n",
            b"abc - - \xff",
            b"abc - - 18446744073709551616",
        ];
        for mark in malformed {
            assert_eq!(found(mark), MarkFound::Foreign, "{}", mark.escape_ascii());
        }
    }

    #[test]
    fn foreign_and_unreadable_marks_are_distinguished() {
        let of = |text| MarkFound::from_reply(&Reply::Error(text));
        assert_eq!(of(b"WRONGTYPE Operation against a key"), Ok(MarkFound::Foreign));
        assert_eq!(of(b"NOPERM no"), Ok(MarkFound::Refused("NOPERM no".into())));
        assert_eq!(MarkFound::from_reply(&Reply::NullBulk), Ok(MarkFound::Absent));
        assert_eq!(MarkFound::from_reply(&Reply::Integer(1)), Err(WrongShape));
    }
}
