//! Queries about a lock's key: looking at it without touching it, and deleting it whoever holds it.
//!
//! The deletion is the one command that does not compare the value. It is apart from those that release and
//! extend, which always compare (I10), and only `Request::ForceUnlock` sends it. It deletes whatever can be
//! a lock: a string, which may be one of another library, or a set of readers. A key of any other type is
//! somebody else's and stays.

use super::answer::{ReleaseAnswer, WrongShape, failure, holder_ttl, is_wrong_type};
use super::scripts::{FORCE_UNLOCK, Script};
use crate::limits;
use crate::lock::{Failure, HolderTtl};
use crate::resp::Reply;

/// `PTTL key`, with a key from [`super::entry::Entry::key`]: what is left of the holder's time.
pub(crate) fn encode_pttl(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$4\r\nPTTL\r\n");
    out.extend_from_slice(key);
}

/// `GETRANGE key 0 255`: unlike `GET` it has a bounded reply, whatever somebody else has stored there.
pub(crate) fn encode_value(out: &mut Vec<u8>, key: &[u8]) {
    const _: () = assert!(limits::VALUE_SHOWN_MAX == 256, "the last place below is one less");
    out.extend_from_slice(b"*4\r\n$8\r\nGETRANGE\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"$1\r\n0\r\n$3\r\n255\r\n");
}

/// The value in a reply to [`encode_value`], empty without a key; or the error.
pub(crate) fn value(reply: &Reply<'_>) -> Result<Result<Box<[u8]>, Failure>, WrongShape> {
    match reply {
        Reply::Bulk(value) if value.len() <= limits::VALUE_SHOWN_MAX => Ok(Ok(Box::from(*value))),
        Reply::Error(text) => Ok(Err(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The number of readers in a reply to [`super::shared::encode_reader_count`], zero where the key is no set
/// of readers; or the error.
pub(crate) fn reader_count(reply: &Reply<'_>) -> Result<Result<usize, Failure>, WrongShape> {
    match *reply {
        Reply::Integer(count) => usize::try_from(count).map(Ok).map_err(|_| WrongShape),
        Reply::NullBulk => Ok(Ok(0)),
        Reply::Error(text) if is_wrong_type(text) => Ok(Ok(0)),
        Reply::Error(text) => Ok(Err(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The time in a reply to [`encode_pttl`]; or the error.
pub(crate) fn time_left(reply: &Reply<'_>) -> Result<Result<HolderTtl, Failure>, WrongShape> {
    match reply {
        Reply::Error(text) => Ok(Err(failure(text))),
        other => holder_ttl(other).map(Ok),
    }
}

/// Deletes the lock with this key, from [`super::entry::Entry::key`]. The script is sent in full: it is
/// seldom needed.
pub(crate) fn encode_forced_delete(out: &mut Vec<u8>, key: &[u8]) {
    FORCE_UNLOCK.encode_head(out, Script::Text);
    out.extend_from_slice(key);
}

/// The answer in a reply to [`encode_forced_delete`]. A key of another type is no absence, unlike in a
/// release.
pub(crate) fn forced_answer(reply: &Reply<'_>) -> Result<ReleaseAnswer, WrongShape> {
    match reply {
        Reply::Integer(1) => Ok(ReleaseAnswer::Deleted),
        Reply::Integer(0) => Ok(ReleaseAnswer::Absent),
        Reply::Error(text) => Ok(ReleaseAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp;

    #[test]
    fn a_forced_unlock_runs_on_the_locks_key() {
        let (mut expected, mut out) = (Vec::new(), Vec::new());
        resp::encode_command(&mut expected, &[b"EVAL", FORCE_UNLOCK.text.as_bytes(), b"1", b"name"]);
        encode_forced_delete(&mut out, b"$4\r\nname\r\n");
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn another_type_is_neither_deleted_nor_absent() {
        assert_eq!(forced_answer(&Reply::Integer(1)), Ok(ReleaseAnswer::Deleted));
        assert_eq!(forced_answer(&Reply::Integer(0)), Ok(ReleaseAnswer::Absent));
        for text in ["WRONGTYPE x", "OOM x", ""] {
            let answer = forced_answer(&Reply::Error(text.as_bytes()));
            assert!(matches!(answer, Ok(ReleaseAnswer::Failed(_))), "{text}: {answer:?}");
        }
        assert_eq!(forced_answer(&Reply::Integer(2)), Err(WrongShape));
        assert_eq!(forced_answer(&Reply::NullBulk), Err(WrongShape));
    }
}
