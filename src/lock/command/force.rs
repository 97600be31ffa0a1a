//! Deleting a lock whoever holds it: the one command that does not compare its value.
//!
//! It is apart from those that release and extend, which always compare (I10), and nothing but
//! `Request::ForceUnlock` sends it. It deletes what can be a lock: a string, which may be one of another
//! library, or a set of readers. A key of any other type is somebody else's and stays.

use super::scripts::FORCE_UNLOCK;
use super::{ReleaseAnswer, Script, WrongShape, failure};
use crate::resp::Reply;

/// Deletes the lock with this key, from [`super::Entry::key`]. The script is sent in full: it is seldom
/// needed.
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
