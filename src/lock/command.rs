//! Commands of the lock protocol as bytes, and their replies as votes.
//!
//! Sources: `SET NX PX` with a random value, and compare-and-delete in a script, come from Redis's page on
//! distributed locks. The native commands are Valkey's `DELIFEQ` and `SET IFEQ`, and Redis's `DELEX`. Each
//! encoder here includes the comparison (I10): a `DELEX` without its condition would delete anybody's key.
//! The forced deletion, which compares nothing, is in `command/query.rs`.

pub(crate) mod adopt;
pub(crate) mod answer;
pub(crate) mod entry;
pub(crate) mod fenced;
pub(crate) mod park;
pub(crate) mod query;
pub mod scripts;
pub(crate) mod shared;
pub(crate) mod slots;

use super::ttl::Ttl;
use entry::{AcquireTail, Entry, encode_decimal_bulk};
use scripts::Script;

const SET_HEAD: &[u8] = b"*6\r\n$3\r\nSET\r\n";

const RELEASE_DELIFEQ: &[u8] = b"*3\r\n$7\r\nDELIFEQ\r\n";
const RELEASE_DELEX: &[u8] = b"*4\r\n$5\r\nDELEX\r\n";
const IFEQ: &[u8] = b"$4\r\nIFEQ\r\n";

/// Command that compares the token, and then deletes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseBy {
    /// `DELIFEQ key token`, Valkey 9.0.
    DelIfEq,
    /// `DELEX key IFEQ token`, Redis 8.4.
    DelEx,
    /// The script by its digest.
    EvalSha,
    /// The script in full, after `NOSCRIPT`.
    Eval,
}

/// Command that compares the token, and then sets the TTL (extension) or another token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtendBy {
    /// `SET key token IFEQ token PX ttl`, Valkey 8.1 and Redis 8.4.
    SetIfEq,
    /// The script by its digest.
    EvalSha,
    /// The script in full, after `NOSCRIPT`.
    Eval,
}

/// `SET key token NX PX ttl`
#[inline]
pub(crate) fn encode_acquire(out: &mut Vec<u8>, entry: &Entry, tail: &AcquireTail) {
    out.extend_from_slice(SET_HEAD);
    out.extend_from_slice(&entry.bytes);
    out.extend_from_slice(&tail.0);
}

/// The same for a TTL that is not at hand as a tail.
pub(crate) fn encode_set(out: &mut Vec<u8>, entry: &Entry, ttl_ms: u64) {
    out.extend_from_slice(SET_HEAD);
    out.extend_from_slice(&entry.bytes);
    entry::encode_tail(out, ttl_ms);
}

/// Compares and deletes.
#[inline]
pub(crate) fn encode_release(out: &mut Vec<u8>, by: ReleaseBy, entry: &Entry) {
    match by {
        ReleaseBy::EvalSha => scripts::RELEASE.encode_head(out, Script::Sha),
        ReleaseBy::DelIfEq => out.extend_from_slice(RELEASE_DELIFEQ),
        ReleaseBy::DelEx => {
            let (key, token) = entry.parts();
            out.extend_from_slice(RELEASE_DELEX);
            out.extend_from_slice(key);
            out.extend_from_slice(IFEQ);
            return out.extend_from_slice(token);
        }
        ReleaseBy::Eval => scripts::RELEASE.encode_head(out, Script::Text),
    }
    out.extend_from_slice(&entry.bytes);
}

/// Compares and sets the TTL.
pub(crate) fn encode_extend(out: &mut Vec<u8>, by: ExtendBy, entry: &Entry, ttl: Ttl) {
    match by {
        ExtendBy::EvalSha => scripts::EXTEND.encode_head(out, Script::Sha),
        ExtendBy::Eval => scripts::EXTEND.encode_head(out, Script::Text),
        ExtendBy::SetIfEq => out.extend_from_slice(b"*7\r\n$3\r\nSET\r\n"),
    }
    out.extend_from_slice(&entry.bytes);
    if by == ExtendBy::SetIfEq {
        out.extend_from_slice(IFEQ);
        out.extend_from_slice(entry.parts().1);
        out.extend_from_slice(b"$2\r\nPX\r\n");
    }
    encode_decimal_bulk(out, ttl.as_millis());
}

/// Compares, then replaces one lock's token with another lock's token and TTL. Both locks must have the same
/// key.
pub(crate) fn encode_swap(out: &mut Vec<u8>, by: ExtendBy, old: &Entry, new: &Entry, ttl: Ttl) {
    let (key, old_token) = old.parts();
    let (new_key, new_token) = new.parts();
    assert!(key == new_key, "a lock is handed over to a waiter for the same");
    match by {
        ExtendBy::EvalSha => scripts::SWAP.encode_head(out, Script::Sha),
        ExtendBy::Eval => scripts::SWAP.encode_head(out, Script::Text),
        ExtendBy::SetIfEq => out.extend_from_slice(b"*7\r\n$3\r\nSET\r\n"),
    }
    out.extend_from_slice(key);
    if by == ExtendBy::SetIfEq {
        out.extend_from_slice(new_token);
        out.extend_from_slice(IFEQ);
        out.extend_from_slice(old_token);
        out.extend_from_slice(b"$2\r\nPX\r\n");
    } else {
        out.extend_from_slice(old_token);
        out.extend_from_slice(new_token);
    }
    encode_decimal_bulk(out, ttl.as_millis());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{Drift, Token};
    use crate::resp;
    use query::{encode_pttl, encode_value};

    fn token() -> Token {
        Token(*b"0123456789abcdefghij")
    }

    fn ttl(ms: u64) -> Ttl {
        Ttl::new(Duration::from_millis(ms), Drift::DEFAULT, Duration::from_secs(86_400)).expect("valid")
    }

    #[test]
    fn templates_equal_the_general_encoder() {
        let (key, token) = (b"a\r\nb".as_slice(), token());
        let mut entry = Entry::EMPTY;
        entry.set(b"a\r", b"\nb", &token);
        let value = token.as_bytes().as_slice();
        let mut next = Entry::EMPTY;
        next.set_key(entry.key(), &Token([b'z'; Token::SIZE]));
        let next_value = [b'z'; Token::SIZE].as_slice();
        let check = |args: &[&[u8]], write: &dyn Fn(&mut Vec<u8>)| {
            let (mut expected, mut out) = (Vec::new(), Vec::new());
            resp::encode_command(&mut expected, args);
            write(&mut out);
            assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        };
        for ms in [4_u64, 9, 10, 99, 100, 12_345, 86_400_000] {
            let digits = ms.to_string();
            let digits = digits.as_bytes();
            let mut tail = AcquireTail::default();
            tail.set(ms);
            check(&[b"SET", key, value, b"NX", b"PX", digits], &|out| encode_acquire(out, &entry, &tail));
            for (by, name, code) in [
                (ExtendBy::EvalSha, "EVALSHA", scripts::EXTEND.sha),
                (ExtendBy::Eval, "EVAL", scripts::EXTEND.text),
            ] {
                let args = [name.as_bytes(), code.as_bytes(), b"1", key, value, digits];
                check(&args, &|out| encode_extend(out, by, &entry, ttl(ms)));
            }
            check(&[b"SET", key, value, b"IFEQ", value, b"PX", digits], &|out| {
                encode_extend(out, ExtendBy::SetIfEq, &entry, ttl(ms));
            });
            for (by, name, code) in [
                (ExtendBy::EvalSha, "EVALSHA", scripts::SWAP.sha),
                (ExtendBy::Eval, "EVAL", scripts::SWAP.text),
            ] {
                let args = [name.as_bytes(), code.as_bytes(), b"1", key, value, next_value, digits];
                check(&args, &|out| encode_swap(out, by, &entry, &next, ttl(ms)));
            }
            check(&[b"SET", key, next_value, b"IFEQ", value, b"PX", digits], &|out| {
                encode_swap(out, ExtendBy::SetIfEq, &entry, &next, ttl(ms));
            });
        }
        let release = |args: &[&[u8]], by| check(args, &|out| encode_release(out, by, &entry));
        release(&[b"EVALSHA", scripts::RELEASE.sha.as_bytes(), b"1", key, value], ReleaseBy::EvalSha);
        release(&[b"EVAL", scripts::RELEASE.text.as_bytes(), b"1", key, value], ReleaseBy::Eval);
        release(&[b"DELIFEQ", key, value], ReleaseBy::DelIfEq);
        release(&[b"DELEX", key, b"IFEQ", value], ReleaseBy::DelEx);
        check(&[b"PTTL", key], &|out| encode_pttl(out, entry.key()));
        check(&[b"GETRANGE", key, b"0", b"255"], &|out| encode_value(out, entry.key()));
    }

    // I74
    #[test]
    fn a_label_is_part_of_each_value() {
        let (key, token) = (b"a\r\nb".as_slice(), token());
        let mut entry = Entry::EMPTY;
        entry.set(b"a\r", b"\nb", &token);
        entry.add_label(&token, b"web-3:4711");
        let value = b"0123456789abcdefghij\tweb-3:4711".as_slice();
        let mut next = Entry::EMPTY;
        next.set_key(entry.key(), &Token([b'z'; Token::SIZE]));
        let next_value = [b'z'; Token::SIZE].as_slice();
        let check = |args: &[&[u8]], write: &dyn Fn(&mut Vec<u8>)| {
            let (mut expected, mut out) = (Vec::new(), Vec::new());
            resp::encode_command(&mut expected, args);
            write(&mut out);
            assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        };
        let mut tail = AcquireTail::default();
        tail.set(700);
        check(&[b"SET", key, value, b"NX", b"PX", b"700"], &|out| encode_acquire(out, &entry, &tail));
        check(&[b"SET", key, value, b"IFEQ", value, b"PX", b"700"], &|out| {
            encode_extend(out, ExtendBy::SetIfEq, &entry, ttl(700));
        });
        check(&[b"SET", key, next_value, b"IFEQ", value, b"PX", b"700"], &|out| {
            encode_swap(out, ExtendBy::SetIfEq, &entry, &next, ttl(700));
        });
        let release = |args: &[&[u8]], by| check(args, &|out| encode_release(out, by, &entry));
        release(&[b"DELIFEQ", key, value], ReleaseBy::DelIfEq);
        release(&[b"DELEX", key, b"IFEQ", value], ReleaseBy::DelEx);
        release(&[b"EVALSHA", scripts::RELEASE.sha.as_bytes(), b"1", key, value], ReleaseBy::EvalSha);
    }

    #[test]
    fn the_next_attempt_keeps_the_key_changes_token() {
        let (mut first, mut next) = (Entry::EMPTY, Entry::EMPTY);
        first.set(b"a\r", b"\nb", &token());
        assert_eq!(first.key(), b"$4\r\na\r\nb\r\n");
        next.set_key(first.key(), &Token([b'z'; Token::SIZE]));
        assert_eq!(next.bytes, [first.key(), b"$20\r\nzzzzzzzzzzzzzzzzzzzz\r\n"].concat());
        assert_eq!(Entry::EMPTY.key(), b"");
    }
}
