//! The adoption of a lock by another client: a script that compares the value and replaces it.

use super::entry::{Entry, encode_beside, encode_decimal_bulk};
use super::scripts::{ADOPT, FENCE_NAME, Script};
use crate::lock::fencing::FencingToken;
use crate::lock::ttl::Ttl;
use crate::resp;

/// Compares with the value of `old` and replaces it with the value of `new`; both must have the same key.
/// Sends the script in full, since adoptions are rare. The reply has the form of a reply to a swap
/// ([`super::answer::compare_vote`]).
pub(crate) fn encode_adopt(
    out: &mut Vec<u8>,
    old: &Entry,
    new: &Entry,
    ttl: Ttl,
    token: Option<FencingToken>,
    prefix_size: usize,
) {
    let (key, old_value) = old.parts();
    let (new_key, new_value) = new.parts();
    assert!(key == new_key, "a lock is adopted under its own name");
    ADOPT.encode_head(out, Script::Text);
    out.extend_from_slice(key);
    encode_beside(out, key, prefix_size, FENCE_NAME);
    out.extend_from_slice(old_value);
    out.extend_from_slice(new_value);
    encode_decimal_bulk(out, ttl.as_millis());
    match token {
        Some(token) => encode_decimal_bulk(out, token.as_u64()),
        None => resp::encode_bulk(out, b""),
    }
}
