//! The commands of fenced locks. Each is a script over two keys: the lock's key, the same as a plain lock's,
//! and the fence, which holds the largest token that this master accepted.
//!
//! A master grants the lock if nobody holds it and the token is larger than the fence and within the window
//! around the master's clock. The script writes the fence before the lock, so a failure in between locks
//! nothing. A release compares and deletes, and raises the fence to its token, so that a late command is too
//! old. Nothing here lowers or deletes a fence. A fence that is not all digits belongs to another
//! application: it stays, and the lock is not granted there.
//!
//! Tokens are written as given: Lua's `tostring` would lose digits. As Lua numbers they are exact below 2^53.

use super::answer::{WrongShape, failure, ttl_of};
use super::entry::{Entry, encode_beside, encode_decimal_bulk};
use super::scripts::{FENCE_NAME, FENCED_ACQUIRE, Script};
use crate::lock::fencing::{FencingToken, Window};
use crate::lock::vote::{Failure, HolderTtl};
use crate::resp::{Array, Reply};

/// Age beyond any token's, so that no token is too old.
const ANY_AGE_US: u64 = 1 << 52;

/// A lock's fencing token, and the settings that all fences of a client share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    pub(crate) token: FencingToken,
    pub(crate) window: Window,
    /// Size of the prefix of all keys, in bytes.
    pub(crate) prefix_size: usize,
}

/// Sets lock and fence if both are allowed. The token of a held lock may be of any age: it is still refused
/// under a newer fence, or if it is too new for the clock.
pub(crate) fn encode_fenced_acquire(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    ttl_ms: u64,
    fence: &Fence,
    is_held: bool,
) {
    let past_us = if is_held { ANY_AGE_US } else { fence.window.half_us };
    FENCED_ACQUIRE.encode_head(out, script);
    let (key, value) = entry.parts();
    out.extend_from_slice(key);
    encode_beside(out, key, fence.prefix_size, FENCE_NAME);
    out.extend_from_slice(value);
    for number in [ttl_ms, fence.token.as_u64(), past_us, fence.window.half_us, fence.window.life_ms] {
        encode_decimal_bulk(out, number);
    }
}

/// A master's answer to [`encode_fenced_acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FencedAnswer {
    /// Lock and fence are set.
    Granted,
    /// The key has this value already, from an earlier request with the same token; its TTL began then.
    Own,
    /// Nothing was written.
    Refused(FenceState),
    /// An error reply. Whatever was written will be released.
    Failed(Failure),
}

/// State of lock and fence, reported with a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FenceState {
    pub(crate) refusal: Refusal,
    /// The largest token accepted, or zero.
    pub(crate) fence: u64,
    pub(crate) holder: HolderTtl,
    /// The master's clock, in microseconds since 1970.
    pub(crate) time_us: u64,
}

/// What prevents a fenced lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Somebody else's key.
    Busy,
    /// A fence at least as large as the token.
    Stale,
    /// The token is too old for the master's clock.
    Past,
    /// The token is too new for the master's clock.
    Future,
}

/// The answer in a reply to [`encode_fenced_acquire`]. An error is never a no (I16).
pub(crate) fn fenced_answer(reply: &Reply<'_>) -> Result<FencedAnswer, WrongShape> {
    match reply {
        Reply::Simple(b"OK") => Ok(FencedAnswer::Granted),
        Reply::Simple(b"OWN") => Ok(FencedAnswer::Own),
        Reply::Array(parts) => fence_state(parts).map(FencedAnswer::Refused),
        Reply::Error(text) => Ok(FencedAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

fn fence_state(parts: &Array<'_>) -> Result<FenceState, WrongShape> {
    let mut elements = parts.iter();
    let mut number = || elements.next().and_then(Reply::number).ok_or(WrongShape);
    let (refusal, fence, left_ms, time_us) = (number()?, number()?, number()?, number()?);
    if parts.len() != 4 {
        return Err(WrongShape);
    }
    let refusal = refusal_of(refusal)?;
    let holder = match refusal {
        Refusal::Busy if left_ms != -2 => ttl_of(left_ms).unwrap_or_default(),
        _ => HolderTtl::Unknown,
    };
    // Another application may have stored any number there.
    let known = |number| u64::try_from(number).unwrap_or(0);
    Ok(FenceState { refusal, fence: known(fence), holder, time_us: known(time_us) })
}

/// The obstacle with this number in the scripts.
pub(super) fn refusal_of(number: i64) -> Result<Refusal, WrongShape> {
    match number {
        0 => Ok(Refusal::Busy),
        1 => Ok(Refusal::Stale),
        2 => Ok(Refusal::Past),
        3 => Ok(Refusal::Future),
        _ => Err(WrongShape),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::Token;
    use crate::resp;

    fn encoded(write: impl FnOnce(&mut Vec<u8>, &Entry, &Fence)) -> String {
        let window = Window::new(Duration::from_secs(30));
        let fence = Fence { token: FencingToken::near(1_800_000_000_000_000), window, prefix_size: 2 };
        let (mut entry, mut out) = (Entry::EMPTY, Vec::new());
        entry.set(b"p:", b"\r\nname", &Token::UNSET);
        write(&mut out, &entry, &fence);
        out.escape_ascii().to_string()
    }

    fn command(words: &[&[u8]]) -> String {
        let mut out = Vec::new();
        resp::encode_command(&mut out, words);
        out.escape_ascii().to_string()
    }

    #[test]
    fn lock_and_fence_share_their_prefix() {
        let (lock, fence, value) =
            (b"p:\r\nname".as_slice(), b"p:redlatch:fence:\r\nname".as_slice(), [0; 20]);
        let (token, half, life) =
            (b"1800000000000000".as_slice(), b"15000000".as_slice(), b"90000".as_slice());
        for (script, name, text) in
            [(Script::Sha, "EVALSHA", FENCED_ACQUIRE.sha), (Script::Text, "EVAL", FENCED_ACQUIRE.text)]
        {
            let [name, text] = [name, text].map(str::as_bytes);
            assert_eq!(
                encoded(|out, entry, fence| encode_fenced_acquire(out, script, entry, 10_000, fence, false)),
                command(&[name, text, b"2", lock, fence, &value, b"10000", token, half, half, life])
            );
        }
        let text = FENCED_ACQUIRE.text.as_bytes();
        assert_eq!(
            encoded(|out, entry, fence| encode_fenced_acquire(out, Script::Text, entry, 7, fence, true)),
            command(&[
                b"EVAL",
                text,
                b"2",
                lock,
                fence,
                &value,
                b"7",
                token,
                b"4503599627370496",
                half,
                life
            ])
        );
    }

    #[test]
    fn the_longest_names_fit_a_request() {
        use crate::limits::{PREFIX_SIZE_MAX, REQUEST_SIZE_MAX, RESOURCE_SIZE_MAX};
        let window = Window::new(crate::limits::MAX_TTL_MAX);
        let fence = Fence { token: FencingToken::near(u64::MAX), window, prefix_size: PREFIX_SIZE_MAX };
        let (mut entry, mut out) = (Entry::EMPTY, Vec::new());
        entry.set(&[b'p'; PREFIX_SIZE_MAX], &[b'n'; RESOURCE_SIZE_MAX], &Token::UNSET);
        encode_fenced_acquire(&mut out, Script::Text, &entry, 604_800_000, &fence, true);
        assert!(out.len() <= REQUEST_SIZE_MAX, "{} bytes", out.len());
    }

    fn answer(reply: &[u8]) -> Result<FencedAnswer, WrongShape> {
        match resp::decode(reply) {
            Ok(resp::Decoded::Complete { reply, .. }) => fenced_answer(&reply),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_answer_is_distinct_and_errors_no_refusal() {
        assert_eq!(answer(b"+OK\r\n"), Ok(FencedAnswer::Granted));
        assert_eq!(answer(b"+OWN\r\n"), Ok(FencedAnswer::Own));
        let parts = |refusal, fence, holder| {
            Ok(FencedAnswer::Refused(FenceState { refusal, fence, holder, time_us: 1_800_000_000_000_000 }))
        };
        let left = HolderTtl::Left(Duration::from_millis(7));
        let rows: [(&[u8], _); 7] = [
            (b"*4\r\n:0\r\n:5\r\n:7\r\n:1800000000000000\r\n", parts(Refusal::Busy, 5, left)),
            (b"*4\r\n:0\r\n:0\r\n:-1\r\n:1800000000000000\r\n", parts(Refusal::Busy, 0, HolderTtl::Never)),
            (b"*4\r\n:0\r\n:0\r\n:-2\r\n:1800000000000000\r\n", parts(Refusal::Busy, 0, HolderTtl::Unknown)),
            (b"*4\r\n:1\r\n:5\r\n:0\r\n:1800000000000000\r\n", parts(Refusal::Stale, 5, HolderTtl::Unknown)),
            (b"*4\r\n:2\r\n:0\r\n:0\r\n:1800000000000000\r\n", parts(Refusal::Past, 0, HolderTtl::Unknown)),
            (b"*4\r\n:3\r\n:0\r\n:0\r\n:1800000000000000\r\n", parts(Refusal::Future, 0, HolderTtl::Unknown)),
            (b"*4\r\n:1\r\n:-9\r\n:0\r\n:1800000000000000\r\n", parts(Refusal::Stale, 0, HolderTtl::Unknown)),
        ];
        for (reply, expected) in rows {
            assert_eq!(answer(reply), expected, "{}", reply.escape_ascii());
        }
        for text in ["NOSCRIPT x", "OOM x", "WRONGTYPE x", ""] {
            let reply = format!("-{text}\r\n");
            assert_eq!(answer(reply.as_bytes()), Ok(FencedAnswer::Failed(Failure::Replied(text.into()))));
        }
        let wrong: [&[u8]; 9] = [
            b"+QUEUED\r\n",
            b":1\r\n",
            b"$2\r\nOK\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n:5\r\n:0\r\n",
            b"*5\r\n:1\r\n:5\r\n:0\r\n:0\r\n:0\r\n",
            b"*4\r\n:4\r\n:5\r\n:0\r\n:0\r\n",
        ];
        for reply in wrong {
            assert_eq!(answer(reply), Err(WrongShape), "{}", reply.escape_ascii());
        }
        assert_eq!(answer(b"*4\r\n:1\r\n$1\r\n5\r\n:0\r\n:0\r\n"), Err(WrongShape));
    }
}
