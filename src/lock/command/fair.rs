//! The commands of fair locks: scripts over three keys, the lock's own, which is that of a plain lock of the
//! same name, and the queue of those who wait for it, as two sorted sets: each waiter's ticket and its
//! heartbeat. `scripts/fair_queue.lua` says what they are; both sets expire when nobody comes for twice the
//! time of a heartbeat.
//!
//! | script | by | the queue |
//! | --- | --- | --- |
//! | `fair_try` | a caller that does not wait | stays as it is |
//! | `fair_join` | a waiter that has no number yet | has the waiter at its end |
//! | `fair_wait` | a waiter that has a number | has the waiter at its number |
//! | `fair_leave` | a waiter that gives up, or has released the lock | loses the waiter; the first is notified |
//! | `fair_notify` | a waiter that has released a part of the lock | stays as it is; the first is notified |
//!
//! The ids of waiters start with [`crate::lock::TOKEN_MARK`]. A set whose first member does not belongs to
//! another application: it stays as it is, and the lock is not granted where it is in the way of the queue.

use super::answer::{WrongShape, failure};
use super::entry::{Entry, encode_beside, encode_decimal_bulk, encode_joined, key_bytes};
use super::scripts::{FAIR_JOIN, FAIR_LEAVE, FAIR_NOTIFY, FAIR_TRY, FAIR_WAIT, Script};
use crate::limits;
use crate::lock::{Failure, HolderTtl, Token};
use crate::resp::{self, Array, Reply};
use std::time::Duration;

/// Start of a queue's keys, behind the prefix: no lock may have a name that starts like this.
pub(crate) const FAIR_NAME: &[u8] = b"redlatch:fair:";
const TICKETS_NAME: &[u8] = b"redlatch:fair:t:";
const HEARTBEATS_NAME: &[u8] = b"redlatch:fair:h:";
/// Part of a waiter's channel between the prefix and its id.
const CHANNEL_NAME: &[u8] = b"redlatch:fair:c:";

/// The largest ticket that is believed: beyond it the scripts' numbers are no longer exact.
const TICKET_MAX: u64 = (1 << 53) - 1;

/// A waiter for a fair lock, as its masters know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) id: Token,
    pub(crate) ticket: Place,
    /// Bytes of the prefix that all keys have.
    pub(crate) prefix_size: usize,
}

/// Where in the queue it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: it has the lock only if nobody waits.
    Outside,
    /// Where it is, or at the end.
    AtEnd,
    /// Before all with a larger number.
    Number(u64),
}

/// Tries, by the script for the waiter's place in the queue.
pub(crate) fn encode_fair_acquire(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    ttl_ms: u64,
    waiter: &Waiter,
) {
    let named = match waiter.ticket {
        Place::Outside => FAIR_TRY,
        Place::AtEnd => FAIR_JOIN,
        Place::Number(_) => FAIR_WAIT,
    };
    named.encode_head(out, script);
    let value = encode_keys(out, entry, waiter.prefix_size);
    out.extend_from_slice(value);
    encode_decimal_bulk(out, ttl_ms);
    if waiter.ticket == Place::Outside {
        return encode_decimal_bulk(out, heartbeat_ms());
    }
    resp::encode_bulk(out, waiter.id.as_bytes());
    encode_decimal_bulk(out, heartbeat_ms());
    encode_decimal_bulk(out, limits::FAIR_QUEUE_COUNT_MAX);
    if let Place::Number(number) = waiter.ticket {
        encode_decimal_bulk(out, number);
    }
}

/// Leaves the queue; with `notifies` the first who waits is notified if the lock is free. The entry's value
/// does not matter.
pub(crate) fn encode_fair_leave(out: &mut Vec<u8>, entry: &Entry, waiter: &Waiter, notifies: bool) {
    FAIR_LEAVE.encode_head(out, Script::Sha);
    encode_keys(out, entry, waiter.prefix_size);
    resp::encode_bulk(out, waiter.id.as_bytes());
    encode_decimal_bulk(out, heartbeat_ms());
    if notifies {
        encode_channels(out, entry, waiter);
    } else {
        resp::encode_bulk(out, b"");
    }
}

/// Notifies the first who waits if the lock is free, unless that is this waiter. The entry's value does not
/// matter.
pub(crate) fn encode_fair_notify(out: &mut Vec<u8>, entry: &Entry, waiter: &Waiter) {
    FAIR_NOTIFY.encode_head(out, Script::Sha);
    encode_keys(out, entry, waiter.prefix_size);
    resp::encode_bulk(out, waiter.id.as_bytes());
    encode_decimal_bulk(out, heartbeat_ms());
    encode_channels(out, entry, waiter);
}

/// The start of each waiter's channel, as an encoded bulk string.
fn encode_channels(out: &mut Vec<u8>, entry: &Entry, waiter: &Waiter) {
    let prefix = key_bytes(entry.key()).get(..waiter.prefix_size).unwrap_or_default();
    encode_joined(out, &[prefix, CHANNEL_NAME]);
}

/// The channel on which a waiter is notified that it is the first, as an encoded bulk string.
pub(crate) fn encode_fair_channel(out: &mut Vec<u8>, prefix: &[u8], id: &Token) {
    encode_joined(out, &[prefix, CHANNEL_NAME, id.as_bytes()]);
}

fn heartbeat_ms() -> u64 {
    u64::try_from(limits::FAIR_HEARTBEAT.as_millis()).unwrap_or(u64::MAX)
}

/// All three keys; returns the encoded value of the entry.
fn encode_keys<'a>(out: &mut Vec<u8>, entry: &'a Entry, prefix_size: usize) -> &'a [u8] {
    let (key, value) = entry.parts();
    out.extend_from_slice(key);
    encode_beside(out, key, prefix_size, TICKETS_NAME);
    encode_beside(out, key, prefix_size, HEARTBEATS_NAME);
    value
}

/// Answer of a master to [`encode_fair_acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FairAnswer {
    /// The lock is set, or is not, and the waiter's ticket stands for as long as a heartbeat lasts.
    Answered(QueueState),
    /// An error reply: whatever was written is released.
    Failed(Failure),
}

/// State of lock and queue, as a master reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueState {
    pub(crate) way: Way,
    /// The waiter's ticket there, if it has a number that can be believed.
    pub(crate) ticket: Option<u64>,
    /// How many are before it.
    pub(crate) ahead: u64,
}

/// Obstacle in the way of a fair lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Somebody has it.
    Held(HolderTtl),
    /// Somebody with a smaller ticket, whose heartbeat lasts for so long.
    Queued(Duration),
    /// Nothing.
    Clear,
}

/// The answer in a reply to [`encode_fair_acquire`]. An error is never a no (I16).
pub(crate) fn fair_answer(reply: &Reply<'_>) -> Result<FairAnswer, WrongShape> {
    match reply {
        Reply::Array(parts) => queue_state(parts).map(FairAnswer::Answered),
        Reply::Error(text) => Ok(FairAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

fn queue_state(parts: &Array<'_>) -> Result<QueueState, WrongShape> {
    let mut elements = parts.iter();
    let mut number = || match elements.next() {
        Some(Reply::Integer(number)) => Ok(number),
        _ => Err(WrongShape),
    };
    let (way, ticket, ahead, left_ms) = (number()?, number()?, number()?, number()?);
    if parts.len() != 4 {
        return Err(WrongShape);
    }
    let left = u64::try_from(left_ms).map(Duration::from_millis);
    let way = match (way, left) {
        (0, Ok(left)) => Way::Held(HolderTtl::Left(left)),
        (0, Err(_)) if left_ms == -1 => Way::Held(HolderTtl::Never),
        (0, Err(_)) => Way::Held(HolderTtl::Unknown),
        (1, left) => Way::Queued(left.unwrap_or_default()),
        (2, _) => Way::Clear,
        _ => return Err(WrongShape),
    };
    // Somebody may have put any number there.
    let ticket = u64::try_from(ticket).ok().filter(|ticket| (1..TICKET_MAX).contains(ticket));
    Ok(QueueState { way, ticket, ahead: u64::try_from(ahead).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::NamedScript;

    const WAITER: Waiter = Waiter { id: Token::UNSET, ticket: Place::Number(7), prefix_size: 2 };
    const KEYS: [&[u8]; 3] = [b"p:\r\nname", b"p:redlatch:fair:t:\r\nname", b"p:redlatch:fair:h:\r\nname"];

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
    fn lock_and_queue_share_their_prefix() {
        let [lock, tickets, heartbeats] = KEYS;
        let id = [0; 20].as_slice();
        let rows: [(_, _, &[&[u8]]); 3] = [
            (Place::Outside, FAIR_TRY, &[b"3000"]),
            (Place::AtEnd, FAIR_JOIN, &[id, b"3000", b"4096"]),
            (Place::Number(7), FAIR_WAIT, &[id, b"3000", b"4096", b"7"]),
        ];
        for (ticket, named, rest) in rows {
            for (script, [name, text]) in
                [(Script::Sha, ["EVALSHA", named.sha]), (Script::Text, ["EVAL", named.text])]
            {
                let waiter = Waiter { ticket, ..WAITER };
                let [name, text] = [name, text].map(str::as_bytes);
                let head: &[&[u8]] = &[name, text, b"3", lock, tickets, heartbeats, id, b"10000"];
                assert_eq!(
                    encoded(|out, entry| encode_fair_acquire(out, script, entry, 10_000, &waiter)),
                    command(&[head, rest].concat())
                );
            }
        }
        let ends = |named: NamedScript, channels: &[u8]| {
            let sha = named.sha.as_bytes();
            command(&[b"EVALSHA", sha, b"3", lock, tickets, heartbeats, id, b"3000", channels])
        };
        for (notifies, channels) in [(true, b"p:redlatch:fair:c:".as_slice()), (false, b"")] {
            let leave = encoded(|out, entry| encode_fair_leave(out, entry, &WAITER, notifies));
            assert_eq!(leave, ends(FAIR_LEAVE, channels));
        }
        let notify = encoded(|out, entry| encode_fair_notify(out, entry, &WAITER));
        assert_eq!(notify, ends(FAIR_NOTIFY, b"p:redlatch:fair:c:"));
        let mut channel = Vec::new();
        encode_fair_channel(&mut channel, b"p:", &Token::UNSET);
        assert_eq!(channel, [b"$38\r\np:redlatch:fair:c:".as_slice(), id, b"\r\n"].concat());
    }

    #[test]
    fn the_longest_names_fit_a_request() {
        use crate::limits::{PREFIX_SIZE_MAX, REQUEST_SIZE_MAX, RESOURCE_SIZE_MAX};
        let mut entry = Entry::EMPTY;
        entry.set(&[b'p'; PREFIX_SIZE_MAX], &[b'n'; RESOURCE_SIZE_MAX], &Token::UNSET);
        for ticket in [Place::Outside, Place::AtEnd, Place::Number(TICKET_MAX)] {
            let waiter = Waiter { ticket, prefix_size: PREFIX_SIZE_MAX, ..WAITER };
            let mut out = Vec::new();
            encode_fair_acquire(&mut out, Script::Text, &entry, 604_800_000, &waiter);
            assert!(out.len() <= REQUEST_SIZE_MAX, "{} bytes", out.len());
        }
    }

    fn answer(reply: &[u8]) -> Result<FairAnswer, WrongShape> {
        match resp::decode(reply) {
            Ok(resp::Decoded::Complete { reply, .. }) => fair_answer(&reply),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_answer_is_distinct_and_errors_no_refusal() {
        let ms = Duration::from_millis;
        let rows = [
            ([0_i64, 5, 3, 7], Way::Held(HolderTtl::Left(ms(7))), Some(5), 3),
            ([0, 5, 0, -1], Way::Held(HolderTtl::Never), Some(5), 0),
            ([0, 5, 0, -3], Way::Held(HolderTtl::Unknown), Some(5), 0),
            ([1, 9_007_199_254_740_990, 1, 9], Way::Queued(ms(9)), Some(9_007_199_254_740_990), 1),
            ([1, -1, 2, -4], Way::Queued(ms(0)), None, 2),
            ([2, 0, -1, 0], Way::Clear, None, 0),
            ([2, 9_007_199_254_740_991, 0, 0], Way::Clear, None, 0),
        ];
        for ([kind, number, rank, left], way, ticket, ahead) in rows {
            let reply = format!("*4\r\n:{kind}\r\n:{number}\r\n:{rank}\r\n:{left}\r\n");
            let parts = QueueState { way, ticket, ahead };
            assert_eq!(answer(reply.as_bytes()), Ok(FairAnswer::Answered(parts)), "{reply}");
        }
        for text in ["NOSCRIPT x", "OOM x", "WRONGTYPE x", ""] {
            let reply = format!("-{text}\r\n");
            assert_eq!(answer(reply.as_bytes()), Ok(FairAnswer::Failed(Failure::Replied(text.into()))));
        }
        let wrong: [&[u8]; 10] = [
            b"+OK\r\n",
            b":1\r\n",
            b"$2\r\nOK\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n:5\r\n:0\r\n",
            b"*5\r\n:1\r\n:5\r\n:0\r\n:0\r\n:0\r\n",
            b"*4\r\n:3\r\n:5\r\n:0\r\n:0\r\n",
            b"*4\r\n:1\r\n$1\r\n5\r\n:0\r\n:0\r\n",
        ];
        for reply in wrong {
            assert_eq!(answer(reply), Err(WrongShape), "{}", reply.escape_ascii());
        }
    }
}
