//! Queries about a lock's key: looking at it, and deleting it whoever holds it.
//!
//! The deletion is the only command that does not compare the value. It is separate from release and
//! extension, which always compare (I10), and only `Request::ForceUnlock` sends it. It deletes anything that
//! may be a lock: a string, possibly of another library, or a set of readers. A key of any other type belongs
//! to somebody else and stays.

use super::answer::{ReleaseAnswer, WrongShape, failure, holder_ttl, is_wrong_type};
use crate::limits;
use crate::lock::vote::{Failure, HolderTtl};
use crate::resp::Reply;

/// `PTTL key`: the holder's remaining time. The key is an [`super::entry::Entry::key`].
pub(crate) fn encode_pttl(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$4\r\nPTTL\r\n");
    out.extend_from_slice(key);
}

/// `GETRANGE key 0 255`. Unlike `GET`, its reply is bounded, whatever another application has stored there.
pub(crate) fn encode_value(out: &mut Vec<u8>, key: &[u8]) {
    const _: () = assert!(limits::VALUE_SHOWN_MAX == 256, "the last place below is one less");
    out.extend_from_slice(b"*4\r\n$8\r\nGETRANGE\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"$1\r\n0\r\n$3\r\n255\r\n");
}

/// `GETDEL key`: deletes a string, but no key of another type.
pub(crate) fn encode_forced_delete(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$6\r\nGETDEL\r\n");
    out.extend_from_slice(key);
}

/// The answer in a reply to [`encode_forced_delete`].
pub(crate) fn forced_answer(reply: &Reply<'_>) -> Result<ReleaseAnswer, WrongShape> {
    match reply {
        Reply::Bulk(_) => Ok(ReleaseAnswer::Deleted),
        Reply::NullBulk => Ok(ReleaseAnswer::Absent),
        Reply::Error(text) => Ok(ReleaseAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The value in a reply to [`encode_value`], empty if there is no key; or the error.
pub(crate) fn value(reply: &Reply<'_>) -> Result<Result<Box<[u8]>, Failure>, WrongShape> {
    match reply {
        Reply::Bulk(value) if value.len() <= limits::VALUE_SHOWN_MAX => Ok(Ok(Box::from(*value))),
        Reply::Error(text) => Ok(Err(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The number of readers in a reply to [`super::shared::encode_reader_count`], zero if the key is no set of
/// readers; or the error.
pub(crate) fn reader_count(reply: &Reply<'_>) -> Result<Result<usize, Failure>, WrongShape> {
    match *reply {
        Reply::Integer(count) => usize::try_from(count).map(Ok).map_err(|_| WrongShape),
        Reply::NullBulk => Ok(Ok(0)),
        Reply::Error(text) if is_wrong_type(text) => Ok(Ok(0)),
        Reply::Error(text) => Ok(Err(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The remaining time in a reply to [`encode_pttl`], or the error.
pub(crate) fn time_left(reply: &Reply<'_>) -> Result<Result<HolderTtl, Failure>, WrongShape> {
    match reply {
        Reply::Error(text) => Ok(Err(failure(text))),
        other => holder_ttl(other).map(Ok),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_or_foreign_key_has_no_readers() {
        assert_eq!(reader_count(&Reply::Integer(3)), Ok(Ok(3)));
        for reply in [Reply::NullBulk, Reply::Error(b"WRONGTYPE x")] {
            assert_eq!(reader_count(&reply), Ok(Ok(0)), "{reply:?}");
        }
        let failed = Failure::Replied("OOM x".into());
        assert_eq!(reader_count(&Reply::Error(b"OOM x")), Ok(Err(failed)));
        assert_eq!(reader_count(&Reply::Integer(-1)), Err(WrongShape));
        assert_eq!(reader_count(&Reply::Bulk(b"1")), Err(WrongShape));
    }
}
