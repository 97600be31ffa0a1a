//! Looking at a key without touching it: the start of its value, and its time.

use super::{WrongShape, failure, holder_ttl, is_wrong_type};
use crate::limits;
use crate::lock::{Failure, HolderTtl};
use crate::resp::Reply;

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

/// The number of readers in a reply to [`super::encode_reader_count`], zero where the key is no set of
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

/// The time in a reply to [`super::encode_pttl`]; or the error.
pub(crate) fn time_left(reply: &Reply<'_>) -> Result<Result<HolderTtl, Failure>, WrongShape> {
    match reply {
        Reply::Error(text) => Ok(Err(failure(text))),
        other => holder_ttl(other).map(Ok),
    }
}
