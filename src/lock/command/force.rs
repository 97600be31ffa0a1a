//! Deleting a key whoever holds it: the one command that does not compare.
//!
//! It is apart from those that release and extend, which always compare (I10), and nothing but
//! `Request::ForceUnlock` sends it.

/// `DEL key`; its reply is as that to [`super::encode_release`].
pub(crate) fn encode_forced_delete(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n");
    out.extend_from_slice(key);
}
