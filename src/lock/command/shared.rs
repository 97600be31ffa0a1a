//! The commands of shared locks, which any number of readers hold together.
//!
//! Readers are members of a sorted set *at the lock's own key*: a member is a reader's value, its score the
//! millisecond of the master's wall clock at which its time ends. The key expires with the last reader. So an
//! exclusive lock needs nothing special: `SET NX` is refused while the key exists, from any library, and
//! `PTTL` shows when the last reader's time ends. No command of one kind touches a key of the other kind: the
//! master replies `WRONGTYPE`, which proves "not yours" ([`super::answer::is_wrong_type`]).
//!
//! One more member, the [`MARKER`], identifies the set. Its score is the lowest, so no purge removes it. The
//! first reader adds the marker; the set goes with its last reader. A reader is refused if the key is a
//! sorted set without the marker, has another type, or has no TTL, and so belongs to somebody else. Extension
//! and release need not check the marker, because they only change a set with their own value. Expired
//! readers count for nothing, and are removed when another reader comes or goes.

use super::answer::{WrongShape, failure, ttl_of};
use super::entry::{Entry, encode_decimal_bulk, encode_lock_and_queue};
use super::scripts::{SHARED_ACQUIRE_QUEUE, SHARED_EXTEND, Script};
use crate::lock::vote::{Failure, Vote};
use crate::resp::{self, Reply};

/// Distinguishes a set of readers from other sorted sets. Its number changes with the meaning of members or
/// scores.
pub(crate) const MARKER: &[u8] = b"redlatch:readers:1";

/// Joins the readers of a lock, if nobody else holds it or waits for it. The reply is a [`shared_vote`].
pub(crate) fn encode_shared_acquire_queue(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    ttl_ms: u64,
    prefix_size: usize,
) {
    SHARED_ACQUIRE_QUEUE.encode_head(out, script);
    let (key, value) = entry.parts();
    encode_lock_and_queue(out, key, prefix_size);
    out.extend_from_slice(value);
    encode_decimal_bulk(out, ttl_ms);
}

/// Extends a reader's time, if the reader is there.
pub(crate) fn encode_shared_extend(out: &mut Vec<u8>, script: Script, entry: &Entry, ttl_ms: u64) {
    SHARED_EXTEND.encode_head(out, script);
    out.extend_from_slice(&entry.bytes);
    encode_decimal_bulk(out, ttl_ms);
}

/// `ZREVRANK key marker`: number of readers, including expired readers not yet removed. Other keys have no
/// marker.
pub(crate) fn encode_reader_count(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*3\r\n$8\r\nZREVRANK\r\n");
    out.extend_from_slice(key);
    resp::encode_bulk(out, MARKER);
}

/// The vote in a reply to [`encode_shared_acquire_queue`]. An error is never a no (I16).
pub(crate) fn shared_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    let holder = match *reply {
        Reply::Simple(b"OK") => return Ok(Vote::Granted),
        Reply::Simple(b"OWN") => return Ok(Vote::Failed(Failure::SameServer)),
        Reply::Error(text) => return Ok(Vote::Failed(failure(text))),
        Reply::Integer(left_ms) if left_ms != -2 => ttl_of(left_ms)?,
        _ => return Err(WrongShape),
    };
    Ok(Vote::Refused { holder })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{HolderTtl, Token};

    fn encoded(write: impl FnOnce(&mut Vec<u8>, &Entry)) -> String {
        let (mut entry, mut out) = (Entry::EMPTY, Vec::new());
        entry.set(b"p:", b"\r\nname", &Token::UNSET);
        write(&mut out, &entry);
        out.escape_ascii().to_string()
    }

    fn command(words: &[&[u8]]) -> String {
        let mut out = Vec::new();
        resp::encode_command(&mut out, words);
        out.escape_ascii().to_string()
    }

    #[test]
    fn reader_commands_have_the_locks_key() {
        let (lock, value): (&[u8], _) = (b"p:\r\nname", [0; Token::SIZE]);
        for script in [Script::Sha, Script::Text] {
            let name = |text: &'static str, sha: &'static str| match script {
                Script::Sha => [b"EVALSHA", sha.as_bytes()],
                Script::Text => [b"EVAL".as_slice(), text.as_bytes()],
            };
            let [by, what] = name(SHARED_EXTEND.text, SHARED_EXTEND.sha);
            assert_eq!(
                encoded(|out, entry| encode_shared_extend(out, script, entry, 7)),
                command(&[by, what, b"1", lock, &value, b"7"])
            );
        }
        assert_eq!(
            encoded(|out, entry| encode_reader_count(out, entry.key())),
            command(&[b"ZREVRANK", lock, MARKER])
        );
    }

    #[test]
    fn a_readers_longest_request_is_within_the_limit() {
        use crate::limits::{
            HOLDER_LABEL_SIZE_MAX, MAX_TTL_MAX, PREFIX_SIZE_MAX, REQUEST_SIZE_MAX, RESOURCE_SIZE_MAX,
        };
        let (mut entry, mut out) = (Entry::EMPTY, Vec::new());
        entry.set(&[b'p'; PREFIX_SIZE_MAX], &[b'n'; RESOURCE_SIZE_MAX], &Token::UNSET);
        entry.add_label(&Token::UNSET, &[b'l'; HOLDER_LABEL_SIZE_MAX]);
        let ttl_ms = u64::try_from(MAX_TTL_MAX.as_millis()).expect("small");
        encode_shared_acquire_queue(&mut out, Script::Text, &entry, ttl_ms, PREFIX_SIZE_MAX);
        assert!(out.len() <= REQUEST_SIZE_MAX, "{} bytes", out.len());
    }

    #[test]
    fn a_reader_gets_the_time_left_of_obstacles() {
        let refused = |holder| Ok(Vote::Refused { holder });
        assert_eq!(shared_vote(&Reply::Simple(b"OK")), Ok(Vote::Granted));
        assert_eq!(shared_vote(&Reply::Simple(b"OWN")), Ok(Vote::Failed(Failure::SameServer)));
        let left = HolderTtl::Left(Duration::from_millis(7));
        assert_eq!(shared_vote(&Reply::Integer(7)), refused(left));
        assert_eq!(shared_vote(&Reply::Integer(0)), refused(HolderTtl::Left(Duration::ZERO)));
        assert_eq!(shared_vote(&Reply::Integer(-1)), refused(HolderTtl::Never));
        for text in ["NOSCRIPT x", "OOM x", "WRONGTYPE x", ""] {
            let vote = shared_vote(&Reply::Error(text.as_bytes()));
            assert_eq!(vote, Ok(Vote::Failed(Failure::Replied(text.into()))));
        }
        for reply in [
            Reply::Simple(b"QUEUED"),
            Reply::Integer(-2),
            Reply::Integer(i64::MIN),
            Reply::Bulk(b"OK"),
            Reply::NullBulk,
            Reply::NullArray,
        ] {
            assert_eq!(shared_vote(&reply), Err(WrongShape), "{reply:?}");
        }
    }
}
