//! The mark of strict mode: a key on each master by which a client tells others for how long it has watched the very
//! process that they are connected to.
//!
//! ```text
//!  <prefix>redlatch:mark = "<run_id> <watched_ms>"
//! ```
//!
//! A mark speaks for the process that it names and for no other, so one that comes back with a snapshot, from a replica
//! or over a connection behind which the server was replaced counts for nothing. It is read in the handshake, and
//! written by who has watched for the whole time itself: at the end of the watch it is read once more, so that a mark
//! of a longer watch, written meanwhile, stays.

use std::time::Duration;

use super::Engine;
use super::link::Owed;
use crate::lock::command::{self, WrongShape};
use crate::lock::{MARK_NAME, MasterId, MasterSet};
use crate::mutants::mutant;
use crate::resp::{self, Reply};

/// The two requests as a person is told that a server refused them.
pub(super) const READING: &str = "GET of the mark";
const WRITING: &str = "SET of the mark";

/// What a master said to the request for its mark.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MarkAnswer {
    /// For how long the process that it tells to be was watched; zero without a mark that says so.
    Watched(Duration),
    /// It does not let the mark be read.
    Failed(Box<str>),
}

/// The key of the mark.
pub(super) fn key(prefix: &[u8]) -> Vec<u8> {
    [prefix, MARK_NAME].concat()
}

/// The mark in a reply to `GET`, as far as it is about the process with this `run_id`.
pub(super) fn answer(reply: &Reply<'_>, run_id: Option<&str>) -> Result<MarkAnswer, WrongShape> {
    match reply {
        Reply::NullBulk => Ok(MarkAnswer::Watched(Duration::ZERO)),
        Reply::Bulk(mark) => Ok(MarkAnswer::Watched(watched(mark, run_id))),
        // Not even a string: as good as malformed, and overwritten like it.
        Reply::Error(text) if text.starts_with(b"WRONGTYPE") => Ok(MarkAnswer::Watched(Duration::ZERO)),
        Reply::Error(text) => Ok(MarkAnswer::Failed(command::error_text(text))),
        _ => Err(WrongShape),
    }
}

/// For how long the process with this `run_id` was watched by this mark; zero if it is about another or malformed.
pub(super) fn watched(mark: &[u8], run_id: Option<&str>) -> Duration {
    if mutant!(MarkOfOtherProcess) {
        return Duration::from_secs(3600);
    }
    let digits = run_id.and_then(|run_id| mark.strip_prefix(run_id.as_bytes())?.strip_prefix(b" "));
    // Digits only: what a number's own parser takes beyond them was not written by this module.
    let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
    let ms = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    ms.map(Duration::from_millis).unwrap_or_default()
}

impl Engine {
    /// This client's own watch over a master is over: looks whether a mark says so already.
    pub(super) fn read_mark(&mut self, master: MasterId) {
        let key = key(&self.config.prefix);
        self.broadcast.send(&mut self.links, MasterSet::only(master), Owed::MarkRead, |out| {
            resp::encode_command(out, &[b"GET", &key]);
        });
    }

    /// Writes the mark, unless there is one that serves all whom this client's would serve.
    pub(super) fn handle_mark(&mut self, master: MasterId, answer: MarkAnswer) {
        let link = &mut self.links[master.index()];
        let watched = self.config.quarantine_time();
        match (answer, &link.learnt.run_id) {
            (MarkAnswer::Failed(text), _) => link.learnt.note_refused(READING, text),
            (MarkAnswer::Watched(longest), Some(run_id)) if longest < watched => {
                let key = key(&self.config.prefix);
                let mark = format!("{run_id} {}", watched.as_millis());
                self.broadcast.send(&mut self.links, MasterSet::only(master), Owed::MarkWritten, |out| {
                    resp::encode_command(out, &[b"SET", &key, mark.as_bytes()]);
                });
            }
            _ => {}
        }
    }

    /// Whoever comes later has to watch for itself then; this client has.
    pub(super) fn handle_mark_refused(&mut self, master: MasterId, text: Box<str>) {
        self.links[master.index()].learnt.note_refused(WRITING, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_for_the_process_that_it_names_only() {
        let told = |mark: &[u8]| answer(&Reply::Bulk(mark), Some("abc"));
        assert_eq!(told(b"abc 30302"), Ok(MarkAnswer::Watched(Duration::from_millis(30_302))));
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
            b"abd 1",
            b"ab 1",
            b"abcd 1",
            b" abc 1",
            b"abc 18446744073709551616",
            b"abc 1\n",
            b"abc \xff",
        ];
        for mark in malformed {
            assert_eq!(told(mark), Ok(MarkAnswer::Watched(Duration::ZERO)), "{}", mark.escape_ascii());
        }
        assert_eq!(answer(&Reply::Bulk(b"abc 1"), None), Ok(MarkAnswer::Watched(Duration::ZERO)));
        assert_eq!(answer(&Reply::NullBulk, Some("abc")), Ok(MarkAnswer::Watched(Duration::ZERO)));
    }

    #[test]
    fn a_mark_of_another_type_is_none_and_one_that_may_not_be_read_is_told() {
        let wrong_type = Reply::Error(b"WRONGTYPE Operation against a key");
        assert_eq!(answer(&wrong_type, Some("abc")), Ok(MarkAnswer::Watched(Duration::ZERO)));
        assert_eq!(
            answer(&Reply::Error(b"NOPERM no"), Some("abc")),
            Ok(MarkAnswer::Failed("NOPERM no".into()))
        );
        assert_eq!(answer(&Reply::Integer(1), Some("abc")), Err(WrongShape));
    }
}
