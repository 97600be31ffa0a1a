//! The commands of parked attempts, which a master delays until the lock is free. Each is a script over the
//! lock's key and its queue; most also use the fence. `scripts/queue.lua` describes the queue, and
//! `scripts/serve.lua` how a master serves it.
//!
//! | script | sent by | afterwards the lock's key and queue |
//! | --- | --- | --- |
//! | `park` | a waiter, each round | grant the waiter, or hold its entry in place of its last round's entry |
//! | `unpark` | a waiter that gives up, a holder that had parked | lack the value and its entry; the first waiter is served |
//! | `serve` | the first waiter | keep everything; the first waiter is served |
//! | `release_serve` and others | a holder | lack the value; the first waiter is served |
//! | `swap_parked` | a hand-over to another caller of the client | have the new token, and no entry of the old one |
//! | `shared_acquire_queue` | a reader that is not parked | have the reader, if nobody waits |
//!
//! A waiter is notified on the channel of the connection that sent its park, whose name is unguessable. The
//! message is the attempt's vote, which reveals nothing about the token.

use std::sync::Arc;

use super::answer::{ReleaseAnswer, WrongShape, failure, is_wrong_type, ttl_of};
use super::entry::{Entry, digit, encode_beside, encode_decimal_bulk, encode_lock_and_queue};
use super::fenced::{Fence, FenceState, Refusal, refusal_of};
use super::scripts::{FENCE_NAME, FORCE_UNLOCK_SERVE, PARK, SERVE, SWAP_PARKED, Script, UNPARK};
use crate::lock::fencing::Window;
use crate::lock::kind::Kind;
use crate::lock::label::label_in;
use crate::lock::ttl::Ttl;
use crate::lock::vote::{Failure, HolderTtl};
use crate::resp::{self, Array, Reply};

/// Part of a channel's name between the prefix and its random digits. No lock's name may start with it.
pub(crate) const CHANNEL_NAME: &[u8] = b"redlatch:c:";

/// Largest round that fits an entry. Later rounds send this number too.
const ROUND_MAX: u32 = 99_999_999;

/// Sizes in bytes of a fenced waiter's token, half its window, and the TTL of its fence, in an entry.
const TOKEN_WIDTH: usize = 16;
const HALF_WIDTH: usize = 12;
const LIFE_WIDTH: usize = 10;

/// Follows the vote in a message that does not grant, but asks for another attempt.
const RING_MARK: u8 = b'r';

/// One round of a waiter, as sent to one master.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Park<'a> {
    /// Distinguishes the waiter from all others.
    pub(crate) id: &'a [u8; 12],
    /// Number of this attempt of the waiter.
    pub(crate) round: u32,
    /// The place in the queue that the waiter asks for.
    pub(crate) ticket_us: u64,
    /// The place of its last entry there: as the master reported it, otherwise as asked for.
    pub(crate) at_us: u64,
    /// Time since the waiter first asked.
    pub(crate) waited_us: u64,
    /// The value last sent to this master; empty if none was.
    pub(crate) old_value: &'a [u8],
    /// Whether other waiters are served first if the key has the old value.
    pub(crate) yields: bool,
    pub(crate) kind: Kind<Fence>,
    /// How long the entry stays; zero for an attempt that leaves no entry.
    pub(crate) stay_ms: u64,
    /// How long the master may grant through a message; after that it rings.
    pub(crate) fresh_ms: u64,
    pub(crate) grant_ms: u64,
    pub(crate) channel: &'a [u8],
    /// The message that reports a grant.
    pub(crate) vote: [u8; 8],
    /// Size of the prefix of all keys, in bytes.
    pub(crate) prefix_size: usize,
}

/// Tries, and stays in the queue if the lock is not free for this waiter.
pub(crate) fn encode_park(out: &mut Vec<u8>, script: Script, entry: &Entry, park: &Park<'_>) {
    PARK.encode_head(out, script);
    let value = encode_keys(out, entry, park.prefix_size);
    resp::encode_bulk(out, park.id);
    encode_decimal_bulk(out, u64::from(park.round.min(ROUND_MAX)));
    encode_decimal_bulk(out, park.ticket_us);
    encode_decimal_bulk(out, park.at_us);
    encode_decimal_bulk(out, park.waited_us);
    resp::encode_bulk(out, park.old_value);
    encode_decimal_bulk(out, u64::from(park.yields));
    resp::encode_bulk(out, &[park.kind.mode().letter()]);
    for number in [park.stay_ms, park.fresh_ms, park.grant_ms] {
        encode_decimal_bulk(out, number);
    }
    resp::encode_bulk(out, park.channel);
    resp::encode_bulk(out, &park.vote);
    match park.kind.fenced() {
        Some(fence) => encode_fenced_part(out, &fence),
        None => resp::encode_bulk(out, b""),
    }
    out.extend_from_slice(value);
}

/// Removes the value from the key, and its entry from the queue. Without its place `at_us`, the entry is
/// found only among the first. `fence` is given for a lock that was held: its token raises the fence.
pub(crate) fn encode_unpark(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    at_us: Option<u64>,
    fence: Option<&Fence>,
    prefix_size: usize,
) {
    UNPARK.encode_head(out, script);
    let value = encode_keys(out, entry, prefix_size);
    encode_place(out, at_us);
    out.extend_from_slice(value);
    if let Some(Fence { token, window: Window { half_us, life_ms }, .. }) = fence {
        [token.as_u64(), *half_us, *life_ms].iter().for_each(|it| encode_decimal_bulk(out, *it));
    } else {
        (0..3).for_each(|_| resp::encode_bulk(out, b""));
    }
}

/// Serves the first waiter for the lock with this [`Entry::key`].
pub(crate) fn encode_serve(out: &mut Vec<u8>, script: Script, key: &[u8], prefix_size: usize) {
    SERVE.encode_head(out, script);
    encode_all_keys(out, key, prefix_size);
}

/// Compares, deletes and serves. A fenced lock's token raises its fence; from a shared lock only this reader
/// is removed.
pub(crate) fn encode_release_serve(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    kind: Kind<Fence>,
    prefix_size: usize,
) {
    kind.mode().release_script().encode_head(out, script);
    let value = encode_keys(out, entry, prefix_size);
    out.extend_from_slice(value);
    if let Some(Fence { token, window: Window { half_us, life_ms }, .. }) = kind.fenced() {
        [token.as_u64(), half_us, half_us, life_ms].into_iter().for_each(|it| encode_decimal_bulk(out, it));
    }
}

/// Deletes the lock with this [`Entry::key`], whoever holds it, and serves. Sends the script in full, since
/// forced unlocks are rare.
pub(crate) fn encode_force_unlock_serve(out: &mut Vec<u8>, key: &[u8], prefix_size: usize) {
    FORCE_UNLOCK_SERVE.encode_head(out, Script::Text);
    encode_all_keys(out, key, prefix_size);
}

/// Compares, then replaces one lock's token with another's, and removes the old token's entry. Both locks
/// must have the same key. The reply has the form of a reply to a swap ([`super::answer::compare_vote`]).
pub(crate) fn encode_swap_parked(
    out: &mut Vec<u8>,
    script: Script,
    old: &Entry,
    new: &Entry,
    at_us: Option<u64>,
    ttl: Ttl,
    prefix_size: usize,
) {
    let (key, old_token) = old.parts();
    let (new_key, new_token) = new.parts();
    assert!(key == new_key, "a lock is handed over to a waiter for the same");
    SWAP_PARKED.encode_head(out, script);
    encode_lock_and_queue(out, key, prefix_size);
    encode_place(out, at_us);
    out.extend_from_slice(old_token);
    out.extend_from_slice(new_token);
    encode_decimal_bulk(out, ttl.as_millis());
}

/// Last byte of a sharded channel's name. `serve.lua` sends to a sharded channel with `SPUBLISH`, which
/// subscribers to a pattern do not receive.
pub(crate) const SHARDED: u8 = b's';

/// Appends the name of a connection's channel, without [`SHARDED`].
pub(crate) fn encode_channel(out: &mut Vec<u8>, prefix: &[u8], random: &[u8; 16]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    out.extend_from_slice(prefix);
    out.extend_from_slice(CHANNEL_NAME);
    for byte in random {
        out.extend([byte >> 4, byte & 15].map(|it| DIGITS[usize::from(it)]));
    }
}

/// Encodes all three keys. Returns the encoded value of the entry.
fn encode_keys<'a>(out: &mut Vec<u8>, entry: &'a Entry, prefix_size: usize) -> &'a [u8] {
    let (key, value) = entry.parts();
    encode_all_keys(out, key, prefix_size);
    value
}

fn encode_all_keys(out: &mut Vec<u8>, key: &[u8], prefix_size: usize) {
    encode_lock_and_queue(out, key, prefix_size);
    encode_beside(out, key, prefix_size, FENCE_NAME);
}

/// Encodes a ticket; an empty string if it is unknown.
fn encode_place(out: &mut Vec<u8>, at_us: Option<u64>) {
    match at_us {
        Some(at_us) => encode_decimal_bulk(out, at_us),
        None => resp::encode_bulk(out, b""),
    }
}

/// A fenced waiter's part of an entry. Older and newer tokens have the same half window.
fn encode_fenced_part(out: &mut Vec<u8>, fence: &Fence) {
    let Window { half_us, life_ms } = fence.window;
    resp::encode_bulk_header(out, TOKEN_WIDTH + HALF_WIDTH + LIFE_WIDTH);
    encode_padded(out, fence.token.as_u64(), TOKEN_WIDTH);
    encode_padded(out, half_us, HALF_WIDTH);
    encode_padded(out, life_ms, LIFE_WIDTH);
    out.extend_from_slice(b"\r\n");
}

fn encode_padded(out: &mut Vec<u8>, number: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    let mut rest = number;
    for byte in out.iter_mut().skip(start).rev() {
        *byte = digit(rest);
        rest /= 10;
    }
    assert!(rest == 0, "{number} has more than {width} digits");
}

/// A master's answer to [`encode_park`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParkAnswer {
    /// The lock is set.
    Granted(Seen),
    /// The key has this value already, from an earlier request with the same token; its TTL began then.
    Own(Seen),
    /// The lock is not granted. The entry stays for the requested time, except after [`Refusal::Past`],
    /// [`Refusal::Future`], and a round that came too late.
    Waiting(Seen, Waiting),
    /// An error reply. No entry stays; whatever was written will be released.
    Failed(Failure),
}

/// The part common to all answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The waiter's place in the queue there.
    pub(crate) ticket_us: u64,
    /// The master's clock, in microseconds since 1970.
    pub(crate) now_us: u64,
    /// Whether an [`encode_serve`] must follow at once.
    pub(crate) has_more: bool,
}

/// State of lock and queue, as reported to a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) is_first: bool,
    pub(crate) holder: HolderTtl,
    /// Number of readers that hold the lock, including expired readers not yet removed.
    pub(crate) readers: usize,
    pub(crate) label: Option<Arc<str>>,
    /// Why the token is refused, if nothing else is in its way. Never [`Refusal::Busy`].
    pub(crate) refusal: Option<FenceState>,
    /// Digest of the holder's value, as in [`Looked`].
    pub(crate) digest: u32,
}

/// The answer in a reply to [`encode_park`]. An error is never a no (I16).
pub(crate) fn park_answer(reply: &Reply<'_>) -> Result<ParkAnswer, WrongShape> {
    let parts = match reply {
        Reply::Array(parts) => parts,
        Reply::Error(text) => return Ok(ParkAnswer::Failed(failure(text))),
        _ => return Err(WrongShape),
    };
    let mut elements = Elements(parts.iter());
    let kind = elements.number()?;
    let seen = Seen { ticket_us: elements.count()?, now_us: elements.count()?, has_more: elements.flag()? };
    match (kind, parts.len()) {
        (1, 4) => Ok(ParkAnswer::Granted(seen)),
        (2, 4) => Ok(ParkAnswer::Own(seen)),
        (0, 11) => Ok(ParkAnswer::Waiting(seen, waiting(elements, seen.now_us)?)),
        _ => Err(WrongShape),
    }
}

fn waiting<'a>(
    mut elements: Elements<impl Iterator<Item = Reply<'a>>>,
    time_us: u64,
) -> Result<Waiting, WrongShape> {
    let is_first = elements.flag()?;
    let holder = ttl_of(elements.number()?).unwrap_or_default();
    let readers = usize::try_from(elements.count()?).unwrap_or(usize::MAX);
    let label = elements.label()?;
    let refusal = refusal_of(elements.number()?)?;
    let fence = elements.count()?;
    let digest = u32::try_from(elements.number()?).map_err(|_| WrongShape)?;
    let refusal = (refusal != Refusal::Busy).then_some(FenceState {
        refusal,
        fence,
        holder: HolderTtl::Unknown,
        time_us,
    });
    Ok(Waiting { is_first, holder, readers, label, refusal, digest })
}

/// The elements of an answer, in order.
struct Elements<I>(I);

impl<'a, I: Iterator<Item = Reply<'a>>> Elements<I> {
    fn number(&mut self) -> Result<i64, WrongShape> {
        self.0.next().and_then(Reply::number).ok_or(WrongShape)
    }

    /// A count; zero for a negative number. Another application may have stored any number, or set the clock.
    fn count(&mut self) -> Result<u64, WrongShape> {
        self.number().map(|number| u64::try_from(number).unwrap_or(0))
    }

    fn flag(&mut self) -> Result<bool, WrongShape> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WrongShape),
        }
    }

    /// A label with its separator; `None` for anything else.
    fn label(&mut self) -> Result<Option<Arc<str>>, WrongShape> {
        match self.0.next().map(Reply::plain) {
            Some(Reply::Bulk(part)) => Ok(label_in(part).map(|label| label.as_str().into())),
            _ => Err(WrongShape),
        }
    }
}

/// A master's answer to [`encode_serve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Looked {
    /// Whether another [`encode_serve`] must follow at once.
    pub(crate) has_more: bool,
    /// Digest of the key's value, if nobody was notified; another digest means another holder. Zero if
    /// unknown.
    pub(crate) digest: u32,
}

/// The answer in a reply to [`encode_serve`]. An error gives no information.
pub(crate) fn looked(reply: &Reply<'_>) -> Result<Looked, WrongShape> {
    let number = match *reply {
        Reply::Integer(number) => u32::try_from(number).map_err(|_| WrongShape)?,
        Reply::Error(_) => return Ok(Looked::default()),
        _ => return Err(WrongShape),
    };
    let is_known = number & 2 == 0;
    is_known.then_some(Looked { has_more: number & 4 != 0, digest: number >> 3 }).ok_or(WrongShape)
}

/// The answer to a release that serves ([`encode_release_serve`] or [`encode_unpark`]), and whether an
/// [`encode_serve`] must follow at once.
pub(crate) fn served_release_answer(reply: &Reply<'_>) -> Result<(ReleaseAnswer, bool), WrongShape> {
    match reply {
        Reply::Error(text) if is_wrong_type(text) => Ok((ReleaseAnswer::Absent, false)),
        other => served_forced_answer(other),
    }
}

/// Like [`served_release_answer`], but for [`encode_force_unlock_serve`]. Unlike for a release, a key of
/// another type does not count as absent.
pub(crate) fn served_forced_answer(reply: &Reply<'_>) -> Result<(ReleaseAnswer, bool), WrongShape> {
    let (number, has_more) = match *reply {
        Reply::Integer(number @ 0..=2) => (number, false),
        Reply::Integer(number @ 4..=6) => (number - 4, true),
        Reply::Error(text) => return Ok((ReleaseAnswer::Failed(failure(text)), false)),
        _ => return Err(WrongShape),
    };
    let answer = if number == 0 { ReleaseAnswer::Absent } else { ReleaseAnswer::Deleted };
    Ok((answer, has_more))
}

/// A push on a connection that has subscribed to its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// The master granted the lock to the attempt with this vote.
    Vote([u8; 8]),
    /// The master asks the waiter whose attempt has this vote for another attempt.
    Ring([u8; 8]),
    /// The answer to `SUBSCRIBE` or `SSUBSCRIBE`.
    Subscribed,
    /// Anything else.
    Other,
}

/// The message in a push; `None` for a reply.
pub(crate) fn message(reply: &Reply<'_>) -> Option<Message> {
    let Reply::Push(parts) = reply else { return None };
    Some(pushed(parts).unwrap_or(Message::Other))
}

fn pushed(parts: &Array<'_>) -> Option<Message> {
    let mut parts = parts.iter();
    match (parts.next()?, parts.next()?, parts.next()?, parts.next()) {
        (Reply::Bulk(b"message" | b"smessage"), Reply::Bulk(_), Reply::Bulk(payload), None) => {
            match payload.split_first_chunk()? {
                (vote, []) => Some(Message::Vote(*vote)),
                (vote, [RING_MARK]) => Some(Message::Ring(*vote)),
                _ => None,
            }
        }
        (Reply::Bulk(b"subscribe" | b"ssubscribe"), Reply::Bulk(_), Reply::Integer(_), None) => {
            Some(Message::Subscribed)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
