//! The commands of shared locks: readers, of which any number hold one lock together, and the reservation of
//! a writer.
//!
//! Readers stand in a sorted set *at the lock's own key*: each member is a reader's value, its score the
//! millisecond of the master's wall clock at which its time is over. The key expires with the last of them.
//! So whatever takes the lock for itself alone needs nothing of its own: `SET NX` is refused while the key is
//! there, by any library, and `PTTL` shows when the last reader's time ends. And no command of one kind
//! touches a key of the other: a master says `WRONGTYPE`, which is a proven "not yours"
//! ([`super::answer::is_wrong_type`]).
//!
//! One more member marks the set as one of readers: [`MARKER`], whose score is below all others, so that it
//! never is the last and no purge removes it. The first reader adds it, and the set goes with its last
//! reader. A reader is refused where the key is anything else: a sorted set without the marker, or any key
//! without a TTL, belongs to somebody else and stays as it is. An extension and a release need no look at the
//! marker: they change only a set that has their own value. A set may hold members whose time is over: they
//! count for nothing, and go when another reader comes or goes.
//!
//! A writer that asked for it leaves a *reservation* when it is refused: a key of its own beside the lock,
//! with a short TTL, where new readers are refused while it lives. It is a hint for the sake of the writer's
//! turn; nothing that is safe rests on it. Its value starts with [`crate::lock::TOKEN_MARK`]. A key that
//! holds anything else stays, and then readers are kept out by it for as long as it lives.

use super::answer::{WrongShape, failure};
use super::entry::{Entry, encode_beside, encode_decimal_bulk};
use super::scripts::{SHARED_ACQUIRE, SHARED_EXTEND, SHARED_RELEASE, Script, WRITER_RESERVE};
use crate::lock::{Failure, HolderTtl, Token, Vote};
use crate::mutants::mutant;
use crate::resp::{self, Reply};
use std::time::Duration;

/// Part of a reservation's key between the prefix and the lock's name: no lock may have a name that starts
/// like this.
pub(crate) const RESERVATION_NAME: &[u8] = b"redlatch:writer:";

/// The member that distinguishes a set of readers from a sorted set of anybody else's. Its number changes
/// with the meaning of the members or their scores.
pub(crate) const MARKER: &[u8] = b"redlatch:readers:1";

/// Joins the readers of a lock, if nobody else has or is to have it. `prefix_size` is that of all keys.
pub(crate) fn encode_shared_acquire(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    ttl_ms: u64,
    prefix_size: usize,
) {
    SHARED_ACQUIRE.encode_head(out, script);
    let (key, value) = entry.parts();
    out.extend_from_slice(key);
    encode_reservation_key(out, key, prefix_size);
    out.extend_from_slice(value);
    encode_decimal_bulk(out, ttl_ms);
}

/// Gives a reader a new end, if it is there.
pub(crate) fn encode_shared_extend(out: &mut Vec<u8>, script: Script, entry: &Entry, ttl_ms: u64) {
    SHARED_EXTEND.encode_head(out, script);
    out.extend_from_slice(&entry.bytes);
    encode_decimal_bulk(out, ttl_ms);
}

/// A reader goes; notifies waiters, if it is to and was the last.
pub(crate) fn encode_shared_release(out: &mut Vec<u8>, script: Script, entry: &Entry, notifies: bool) {
    SHARED_RELEASE.encode_head(out, script);
    out.extend_from_slice(&entry.bytes);
    encode_decimal_bulk(out, u64::from(notifies));
}

/// The key of the reservation beside a lock's, both as encoded bulk strings.
pub(crate) fn encode_reservation_key(out: &mut Vec<u8>, key: &[u8], prefix_size: usize) {
    encode_beside(out, key, prefix_size, RESERVATION_NAME);
}

/// Makes an entry that of the reservation beside a lock's key.
pub(crate) fn set_reservation(entry: &mut Entry, key: &[u8], prefix_size: usize, token: &Token) {
    let mut own_key = Vec::new();
    encode_reservation_key(&mut own_key, key, prefix_size);
    entry.set_key(&own_key, token);
}

/// Leaves a reservation, whoever's reservation is there. The script is sent in full: only a writer that was
/// refused sends it.
pub(crate) fn encode_reservation(out: &mut Vec<u8>, entry: &Entry, ttl_ms: u64) {
    WRITER_RESERVE.encode_head(out, Script::Text);
    out.extend_from_slice(&entry.bytes);
    encode_decimal_bulk(out, ttl_ms);
}

/// `ZREVRANK key marker`: how many members are behind the marker of a set of readers, those included whose
/// time is over and who have not gone yet. Any other key has no marker.
pub(crate) fn encode_reader_count(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*3\r\n$8\r\nZREVRANK\r\n");
    out.extend_from_slice(key);
    resp::encode_bulk(out, MARKER);
}

/// The vote in a reply to [`encode_shared_acquire`]. An error is never a no (I16).
pub(crate) fn shared_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    let holder = match *reply {
        Reply::Simple(b"OK") => return Ok(Vote::Granted),
        Reply::Simple(b"OWN") if mutant!(OwnKeyIsGrant) => return Ok(Vote::Granted),
        Reply::Simple(b"OWN") => return Ok(Vote::Failed(Failure::SameServer)),
        Reply::Error(text) => return Ok(Vote::Failed(failure(text))),
        Reply::Integer(-1) => HolderTtl::Never,
        Reply::Integer(left_ms) => match u64::try_from(left_ms) {
            Ok(left_ms) => HolderTtl::Left(Duration::from_millis(left_ms)),
            Err(_) => return Err(WrongShape),
        },
        _ => return Err(WrongShape),
    };
    Ok(Vote::Refused { holder })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp;

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
    fn reader_commands_share_key_and_prefix() {
        let (lock, reservation, value): (&[u8], &[u8], _) =
            (b"p:\r\nname", b"p:redlatch:writer:\r\nname", [0; Token::SIZE]);
        for script in [Script::Sha, Script::Text] {
            let name = |text: &'static str, sha: &'static str| match script {
                Script::Sha => [b"EVALSHA", sha.as_bytes()],
                Script::Text => [b"EVAL".as_slice(), text.as_bytes()],
            };
            let [by, what] = name(SHARED_ACQUIRE.text, SHARED_ACQUIRE.sha);
            assert_eq!(
                encoded(|out, entry| encode_shared_acquire(out, script, entry, 10_000, 2)),
                command(&[by, what, b"2", lock, reservation, &value, b"10000"])
            );
            let [by, what] = name(SHARED_EXTEND.text, SHARED_EXTEND.sha);
            assert_eq!(
                encoded(|out, entry| encode_shared_extend(out, script, entry, 7)),
                command(&[by, what, b"1", lock, &value, b"7"])
            );
            let [by, what] = name(SHARED_RELEASE.text, SHARED_RELEASE.sha);
            for (notifies, flag) in [(false, b"0"), (true, b"1")] {
                assert_eq!(
                    encoded(|out, entry| encode_shared_release(out, script, entry, notifies)),
                    command(&[by, what, b"1", lock, &value, flag])
                );
            }
        }
        let mut own = Entry::EMPTY;
        set_reservation(&mut own, b"$8\r\np:\r\nname\r\n", 2, &Token::UNSET);
        assert_eq!(
            encoded(|out, _| encode_reservation(out, &own, 1200)),
            command(&[b"EVAL", WRITER_RESERVE.text.as_bytes(), b"1", reservation, &value, b"1200"])
        );
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
        encode_shared_acquire(&mut out, Script::Text, &entry, ttl_ms, PREFIX_SIZE_MAX);
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
