//! The commands of the lock protocol as bytes, and their replies as votes.
//!
//! Sources: `SET NX PX` with a random value and the compare-and-delete script are those of Redis's page on distributed
//! locks; the native commands are Valkey's `DELIFEQ` and `SET IFEQ`, and Redis's `DELEX`. No form without its
//! comparison exists here (I10): a `DELEX` that lost its condition would delete anybody's key. What deletes by force, for
//! people who ask for just that, is in a file of its own.

mod fair;
mod fenced;
mod force;
mod inspect;
mod scripts;
mod shared;

use super::{Failure, HolderTtl, Token, Ttl, Vote};
use crate::limits;
use crate::mutants::mutant;
use crate::resp::{self, Reply};
pub(crate) use fair::{
    FAIR_NAME, FAIR_SCRIPT, FairAnswer, FairTold, Place, Waiter, Way, encode_fair_acquire,
    encode_fair_channel, encode_fair_leave, fair_answer,
};
pub(crate) use fenced::{
    FENCED_ACQUIRE_SCRIPT, FENCED_RELEASE_SCRIPT, FENCED_TELLING_SCRIPT, Fence, FencedAnswer, Refusal,
    Script, Told, encode_fenced_acquire, encode_fenced_release, encode_fenced_repair, fenced_answer,
};
use memchr::{memchr, memmem};
use std::time::Duration;

pub(crate) use force::{encode_forced_delete, forced_answer};
pub(crate) use inspect::{encode_value, reader_count, time_left, value};
pub use scripts::{NamedScript, SCRIPTS};
pub(crate) use shared::{
    INTENT_NAME, SHARED_FOLLOWING, SHARED_SCRIPTS, encode_intent, encode_load, encode_reader_count,
    encode_shared_acquire, encode_shared_extend, encode_shared_release, shared_vote,
};

/// Deletes the key if it still holds the token.
pub(crate) const RELEASE_SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// The same, and tells those who wait for the lock in a message on the channel named like the key. If they are many, a
/// second message tells how many, so that not all of them come. Where the user may not publish, nobody is told.
pub(crate) const TELLING_SCRIPT: &str = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) local n=redis.pcall('publish',KEYS[1],'') if type(n)=='number' and n>3 then redis.pcall('publish',KEYS[1],n) end return 1 else return 0 end";

/// Sets the key's TTL if it still holds the token.
pub(crate) const EXTEND_SCRIPT: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";

/// Sets the key to another token with a TTL of its own if it still holds the first one.
///
/// A server at its memory limit refuses a script's `SET`, unless the script has written before. This one takes no memory,
/// so a `PEXPIRE`, which is never refused, goes before it.
pub(crate) const SWAP_SCRIPT: &str = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('pexpire',KEYS[1],ARGV[3]) redis.call('set',KEYS[1],ARGV[2],'px',ARGV[3]) return 1 else return 0 end";

/// SHA-1 of [`RELEASE_SCRIPT`] as the servers compute it.
const RELEASE_SHA: &str = "b998f9dfb154cdbea8cda65ad5177aadf0e945a2";
/// SHA-1 of [`TELLING_SCRIPT`].
pub(crate) const TELLING_SHA: &str = "5933056f90a2bc1d11a960282dc78a3199ab5ac0";
/// SHA-1 of [`EXTEND_SCRIPT`].
const EXTEND_SHA: &str = "53f2c61c14d7b92a6f44852b306cc8ed3636d4db";
/// SHA-1 of [`SWAP_SCRIPT`].
const SWAP_SHA: &str = "e4975e6d8e4814dcc271cedbf9abad377e06a755";

const SET_HEAD: &[u8] = b"*6\r\n$3\r\nSET\r\n";
const NX_PX: &[u8] = b"$2\r\nNX\r\n$2\r\nPX\r\n";
const TOKEN_HEAD: &[u8] = b"$20\r\n";
const CRLF: &[u8] = b"\r\n";

const RELEASE_EVALSHA: &[u8] =
    b"*5\r\n$7\r\nEVALSHA\r\n$40\r\nb998f9dfb154cdbea8cda65ad5177aadf0e945a2\r\n$1\r\n1\r\n";
const TELLING_EVALSHA: &[u8] =
    b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n5933056f90a2bc1d11a960282dc78a3199ab5ac0\r\n$1\r\n1\r\n";
const EXTEND_EVALSHA: &[u8] =
    b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n53f2c61c14d7b92a6f44852b306cc8ed3636d4db\r\n$1\r\n1\r\n";
const SWAP_EVALSHA: &[u8] =
    b"*7\r\n$7\r\nEVALSHA\r\n$40\r\ne4975e6d8e4814dcc271cedbf9abad377e06a755\r\n$1\r\n1\r\n";
const RELEASE_DELIFEQ: &[u8] = b"*3\r\n$7\r\nDELIFEQ\r\n";
const RELEASE_DELEX: &[u8] = b"*4\r\n$5\r\nDELEX\r\n";
const IFEQ: &[u8] = b"$4\r\nIFEQ\r\n";

/// How one master compares and deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseBy {
    /// `DELIFEQ key token`, Valkey 9.0.
    DelIfEq,
    /// `DELEX key IFEQ token`, Redis 8.4 and Valkey 9.2.
    DelEx,
    /// The script by its digest.
    EvalSha,
    /// The script in full, after the master said `NOSCRIPT`.
    Eval,
}

impl ReleaseBy {
    /// Whether it is a script, which can tell those who wait by itself.
    pub(crate) const fn is_script(self) -> bool {
        matches!(self, Self::EvalSha | Self::Eval)
    }
}

/// How one master compares and sets: the TTL of an extension, or another token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtendBy {
    /// `SET key token IFEQ token PX ttl`, Valkey 8.1 and Redis 8.4.
    SetIfEq,
    /// The script by its digest.
    EvalSha,
    /// The script in full, after the master said `NOSCRIPT`.
    Eval,
}

/// What a lock is on a master, key and token as two encoded bulk strings: the form in which most commands have them.
#[derive(Debug, Default)]
pub(crate) struct Entry(Vec<u8>);

impl Entry {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// Becomes the entry of a lock named `name`, in the memory that there is.
    #[inline]
    pub(crate) fn set(&mut self, prefix: &[u8], name: &[u8], token: &Token) {
        self.0.clear();
        resp::encode_bulk_header(&mut self.0, prefix.len() + name.len());
        self.0.extend_from_slice(prefix);
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(&end_of_entry(token));
    }

    /// Becomes the entry of the lock whose [`Entry::key`] is given.
    pub(crate) fn set_key(&mut self, key: &[u8], token: &Token) {
        self.0.clear();
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(&end_of_entry(token)[CRLF.len()..]);
    }

    /// Becomes that of the intent beside a lock's key.
    pub(crate) fn set_intent(&mut self, key: &[u8], prefix_size: usize, token: &Token) {
        self.0.clear();
        shared::encode_intent_key(&mut self.0, key, prefix_size);
        self.0.extend_from_slice(&end_of_entry(token)[CRLF.len()..]);
    }

    /// The key as an encoded bulk string.
    pub(crate) fn key(&self) -> &[u8] {
        self.parts().0
    }

    /// Key and token, as encoded bulk strings.
    fn parts(&self) -> (&[u8], &[u8]) {
        self.0.split_at(self.0.len().saturating_sub(TOKEN_BULK_SIZE))
    }
}

/// The key of a lock named `name` as an encoded bulk string, which is [`Entry::key`] of all its entries.
pub(crate) fn encode_key(out: &mut Vec<u8>, prefix: &[u8], name: &[u8]) {
    resp::encode_bulk_header(out, prefix.len() + name.len());
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    out.extend_from_slice(CRLF);
}

const TOKEN_BULK_SIZE: usize = TOKEN_HEAD.len() + Token::SIZE + CRLF.len();

/// The CRLF behind the name, and the token as an encoded bulk string.
#[inline]
fn end_of_entry(token: &Token) -> [u8; CRLF.len() + TOKEN_BULK_SIZE] {
    let mut end = *b"\r\n$20\r\n....................\r\n";
    end[CRLF.len() + TOKEN_HEAD.len()..][..Token::SIZE].copy_from_slice(token.as_bytes());
    end
}

/// What follows the entry in [`encode_acquire`]: `NX PX ttl`, to be encoded anew only when the TTL changes.
#[derive(Debug, Default)]
pub(crate) struct AcquireTail(Vec<u8>);

impl AcquireTail {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(crate) fn set(&mut self, ttl_ms: u64) {
        self.0.clear();
        self.0.extend_from_slice(NX_PX);
        encode_decimal_bulk(&mut self.0, ttl_ms);
    }
}

/// `SET key token NX PX ttl`
#[inline]
pub(crate) fn encode_acquire(out: &mut Vec<u8>, entry: &Entry, tail: &AcquireTail) {
    out.extend_from_slice(SET_HEAD);
    out.extend_from_slice(&entry.0);
    out.extend_from_slice(&tail.0);
}

/// Compare and delete; a script also tells those who wait, if it is to.
#[inline]
pub(crate) fn encode_release(out: &mut Vec<u8>, by: ReleaseBy, entry: &Entry, tells: bool) {
    match by {
        ReleaseBy::EvalSha if tells => out.extend_from_slice(TELLING_EVALSHA),
        ReleaseBy::EvalSha => out.extend_from_slice(RELEASE_EVALSHA),
        ReleaseBy::DelIfEq => out.extend_from_slice(RELEASE_DELIFEQ),
        ReleaseBy::DelEx => {
            let (key, token) = entry.parts();
            out.extend_from_slice(RELEASE_DELEX);
            out.extend_from_slice(key);
            out.extend_from_slice(IFEQ);
            return out.extend_from_slice(token);
        }
        ReleaseBy::Eval if tells => encode_eval_head(out, 5, TELLING_SCRIPT),
        ReleaseBy::Eval => encode_eval_head(out, 5, RELEASE_SCRIPT),
    }
    out.extend_from_slice(&entry.0);
}

/// `PUBLISH key ""`, with a key from [`Entry::key`]: tells those who wait for the lock that it was released.
pub(crate) fn encode_telling(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*3\r\n$7\r\nPUBLISH\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"$0\r\n\r\n");
}

/// `SUBSCRIBE key`, with a key from [`Entry::key`]: to be told when the lock is released.
pub(crate) fn encode_subscribe(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$9\r\nSUBSCRIBE\r\n");
    out.extend_from_slice(key);
}

/// `UNSUBSCRIBE key`
pub(crate) fn encode_unsubscribe(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n");
    out.extend_from_slice(key);
}

/// Compare and set the TTL.
pub(crate) fn encode_extend(out: &mut Vec<u8>, by: ExtendBy, entry: &Entry, ttl: Ttl) {
    match by {
        ExtendBy::EvalSha => out.extend_from_slice(EXTEND_EVALSHA),
        ExtendBy::Eval => encode_eval_head(out, 6, EXTEND_SCRIPT),
        ExtendBy::SetIfEq => out.extend_from_slice(b"*7\r\n$3\r\nSET\r\n"),
    }
    out.extend_from_slice(&entry.0);
    if by == ExtendBy::SetIfEq {
        out.extend_from_slice(IFEQ);
        out.extend_from_slice(entry.parts().1);
        out.extend_from_slice(b"$2\r\nPX\r\n");
    }
    encode_decimal_bulk(out, ttl.as_millis());
}

/// Compare and put another lock's token in place of the first one's, with a TTL of its own. Both have the same key.
pub(crate) fn encode_swap(out: &mut Vec<u8>, by: ExtendBy, old: &Entry, new: &Entry, ttl: Ttl) {
    let (key, old_token) = old.parts();
    let (new_key, new_token) = new.parts();
    assert!(key == new_key, "a lock is handed over to a waiter for the same");
    match by {
        ExtendBy::EvalSha => out.extend_from_slice(SWAP_EVALSHA),
        ExtendBy::Eval => encode_eval_head(out, 7, SWAP_SCRIPT),
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

/// `PTTL key`, with a key from [`Entry::key`]: what is left of the holder's time.
pub(crate) fn encode_pttl(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$4\r\nPTTL\r\n");
    out.extend_from_slice(key);
}

/// The key of something beside a lock, behind the same prefix, as an encoded bulk string like the lock's own.
fn encode_beside(out: &mut Vec<u8>, key: &[u8], prefix_size: usize, what: &[u8]) {
    let (prefix, name) = key_bytes(key).split_at_checked(prefix_size).unwrap_or_default();
    encode_joined(out, &[prefix, what, name]);
}

/// What an encoded bulk string is about.
fn key_bytes(key: &[u8]) -> &[u8] {
    let start = memchr(b'\n', key).map_or(0, |end| end + 1);
    key.get(start..key.len().saturating_sub(CRLF.len())).unwrap_or_default()
}

/// A bulk string of several parts.
fn encode_joined(out: &mut Vec<u8>, parts: &[&[u8]]) {
    resp::encode_bulk_header(out, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(CRLF);
}

fn encode_eval_head(out: &mut Vec<u8>, argument_count: usize, script: &str) {
    resp::encode_array_header(out, argument_count);
    resp::encode_bulk(out, b"EVAL");
    resp::encode_bulk(out, script.as_bytes());
    resp::encode_bulk(out, b"1");
}

fn encode_decimal_bulk(out: &mut Vec<u8>, number: u64) {
    out.push(b'$');
    encode_decimal(out, u64::from(number.checked_ilog10().unwrap_or(0)) + 1);
    out.extend_from_slice(CRLF);
    encode_decimal(out, number);
    out.extend_from_slice(CRLF);
}

#[inline]
fn encode_decimal(out: &mut Vec<u8>, number: u64) {
    // Most lengths have one or two digits.
    if number < 10 {
        out.push(digit(number));
    } else if number < 100 {
        out.extend_from_slice(&[digit(number / 10), digit(number)]);
    } else {
        encode_decimal(out, number / 100);
        out.extend_from_slice(&[digit(number / 10), digit(number)]);
    }
}

/// The last decimal digit.
const fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// A reply that no command of ours can get: replies and requests no longer match, so the connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongShape;

/// What a master said to a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReleaseAnswer {
    /// The key held the token and is deleted.
    Deleted,
    /// The key was gone or somebody else's.
    Absent,
    /// An error reply: the key may still be there.
    Failed(Failure),
}

/// Whether the master does not know the script that it was asked to run by its digest.
pub(crate) fn is_noscript(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"NOSCRIPT"))
}

/// Whether the master is at its memory limit, and so refuses a command that might take more.
pub(crate) fn is_out_of_memory(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(b"OOM "))
}

/// What follows the grant that `received` starts with, if it does: nearly all replies to [`encode_acquire`] are one.
#[inline]
pub(crate) fn split_granted(received: &[u8]) -> Option<&[u8]> {
    received.strip_prefix(b"+OK\r\n")
}

/// The same for a deletion, the usual reply to [`encode_release`].
#[inline]
pub(crate) fn split_deleted(received: &[u8]) -> Option<&[u8]> {
    received.strip_prefix(b":1\r\n")
}

/// The same for the usual reply to [`encode_telling`]: nobody waited.
#[inline]
pub(crate) fn split_untold(received: &[u8]) -> Option<&[u8]> {
    received.strip_prefix(b":0\r\n")
}

/// What comes over a connection that has subscribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News<'a> {
    /// The lock with this key was released.
    Freed(&'a [u8]),
    /// So many wait for the lock with this key that was just released.
    Waiting(&'a [u8], u32),
    /// The answer to a `SUBSCRIBE` or `UNSUBSCRIBE`.
    Confirmed,
}

/// Takes apart what a connection that has subscribed is sent, if it is that.
pub(crate) fn news<'a>(reply: &Reply<'a>) -> Option<News<'a>> {
    let Reply::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    match (parts.next()?, parts.next()?, parts.next()?, parts.next()) {
        (Reply::Bulk(b"message"), Reply::Bulk(channel), Reply::Bulk(payload), None) => {
            // Whatever else somebody says there is taken for a release: a hint that is wrong costs one attempt.
            let count = std::str::from_utf8(payload).ok().and_then(|count| count.parse().ok());
            Some(count.map_or(News::Freed(channel), |count| News::Waiting(channel, count)))
        }
        (Reply::Bulk(b"subscribe" | b"unsubscribe"), Reply::Bulk(_), Reply::Integer(_), None) => {
            Some(News::Confirmed)
        }
        _ => None,
    }
}

/// The vote in a reply to [`encode_acquire`]. An error is never a no (I16).
pub(crate) fn acquire_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    match reply {
        Reply::Simple(b"OK") => Ok(Vote::Granted),
        Reply::NullBulk => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(_) if mutant!(ErrorIsNo) => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) => Ok(Vote::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The vote in a reply to [`encode_extend`] or [`encode_swap`], native or script.
pub(crate) fn compare_vote(reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    match reply {
        Reply::Simple(b"OK") | Reply::Integer(1) => Ok(Vote::Granted),
        Reply::NullBulk | Reply::Integer(0) => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) if is_wrong_type(text) => Ok(Vote::Refused { holder: HolderTtl::Unknown }),
        Reply::Error(text) => Ok(Vote::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// Whether an error says that the key is of another kind than this lock's: it is somebody else's then, and nothing was
/// written, as each command and script looks at the key before all else. Readers and a writer of one lock meet it. Before
/// Redis 7 a script's error stands behind other words.
#[cold]
fn is_wrong_type(text: &[u8]) -> bool {
    text.starts_with(b"WRONGTYPE ")
        || (text.starts_with(b"ERR Error running script") && memmem::find(text, b": WRONGTYPE ").is_some())
        // Of Redis's DELEX.
        || text.starts_with(b"ERR Key should be of string type")
}

/// The answer in a reply to [`encode_release`].
pub(crate) fn release_answer(reply: &Reply<'_>) -> Result<ReleaseAnswer, WrongShape> {
    match reply {
        Reply::Integer(1) => Ok(ReleaseAnswer::Deleted),
        Reply::Integer(0) => Ok(ReleaseAnswer::Absent),
        Reply::Error(text) if is_wrong_type(text) => Ok(ReleaseAnswer::Absent),
        Reply::Error(text) => Ok(ReleaseAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

/// The holder's time in a reply to [`encode_pttl`].
pub(crate) fn holder_ttl(reply: &Reply<'_>) -> Result<HolderTtl, WrongShape> {
    match *reply {
        Reply::Integer(-2) => Ok(HolderTtl::Gone),
        Reply::Integer(-1) => Ok(HolderTtl::Never),
        Reply::Integer(left_ms) => match u64::try_from(left_ms) {
            Ok(left_ms) => Ok(HolderTtl::Left(Duration::from_millis(left_ms))),
            Err(_) => Err(WrongShape),
        },
        Reply::Error(_) => Ok(HolderTtl::Unknown),
        _ => Err(WrongShape),
    }
}

fn failure(text: &[u8]) -> Failure {
    Failure::Replied(error_text(text))
}

/// An error reply as text to be shown: bounded, and nothing in it that could upset a terminal or a log.
pub(crate) fn error_text(text: &[u8]) -> Box<str> {
    let shown = text.get(..limits::ERROR_TEXT_SIZE_MAX).unwrap_or(text);
    String::from_utf8_lossy(shown).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Drift;

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
            for (by, name, code) in
                [(ExtendBy::EvalSha, "EVALSHA", EXTEND_SHA), (ExtendBy::Eval, "EVAL", EXTEND_SCRIPT)]
            {
                let args = [name.as_bytes(), code.as_bytes(), b"1", key, value, digits];
                check(&args, &|out| encode_extend(out, by, &entry, ttl(ms)));
            }
            check(&[b"SET", key, value, b"IFEQ", value, b"PX", digits], &|out| {
                encode_extend(out, ExtendBy::SetIfEq, &entry, ttl(ms));
            });
            for (by, name, code) in
                [(ExtendBy::EvalSha, "EVALSHA", SWAP_SHA), (ExtendBy::Eval, "EVAL", SWAP_SCRIPT)]
            {
                let args = [name.as_bytes(), code.as_bytes(), b"1", key, value, next_value, digits];
                check(&args, &|out| encode_swap(out, by, &entry, &next, ttl(ms)));
            }
            check(&[b"SET", key, next_value, b"IFEQ", value, b"PX", digits], &|out| {
                encode_swap(out, ExtendBy::SetIfEq, &entry, &next, ttl(ms));
            });
        }
        let release = |args: &[&[u8]], by| check(args, &|out| encode_release(out, by, &entry, false));
        release(&[b"EVALSHA", RELEASE_SHA.as_bytes(), b"1", key, value], ReleaseBy::EvalSha);
        release(&[b"EVAL", RELEASE_SCRIPT.as_bytes(), b"1", key, value], ReleaseBy::Eval);
        release(&[b"DELIFEQ", key, value], ReleaseBy::DelIfEq);
        release(&[b"DELEX", key, b"IFEQ", value], ReleaseBy::DelEx);
        for (by, name, code) in
            [(ReleaseBy::EvalSha, "EVALSHA", TELLING_SHA), (ReleaseBy::Eval, "EVAL", TELLING_SCRIPT)]
        {
            let args = [name.as_bytes(), code.as_bytes(), b"1", key, value];
            check(&args, &|out| encode_release(out, by, &entry, true));
        }
        check(&[b"PTTL", key], &|out| encode_pttl(out, entry.key()));
        check(&[b"GETRANGE", key, b"0", b"255"], &|out| encode_value(out, entry.key()));
        check(&[b"PUBLISH", key, b""], &|out| encode_telling(out, entry.key()));
        check(&[b"SUBSCRIBE", key], &|out| encode_subscribe(out, entry.key()));
        check(&[b"UNSUBSCRIBE", key], &|out| encode_unsubscribe(out, entry.key()));
    }

    #[test]
    fn the_next_attempt_keeps_the_key_and_has_its_own_token() {
        let (mut first, mut next) = (Entry::EMPTY, Entry::EMPTY);
        first.set(b"a\r", b"\nb", &token());
        assert_eq!(first.key(), b"$4\r\na\r\nb\r\n");
        next.set_key(first.key(), &Token([b'z'; Token::SIZE]));
        assert_eq!(next.0, [first.key(), b"$20\r\nzzzzzzzzzzzzzzzzzzzz\r\n"].concat());
        assert_eq!(Entry::EMPTY.key(), b"");
    }

    #[test]
    fn only_an_explicit_nil_is_a_refusal() {
        let refused = Ok(Vote::Refused { holder: HolderTtl::Unknown });
        assert_eq!(acquire_vote(&Reply::Simple(b"OK")), Ok(Vote::Granted));
        assert_eq!(acquire_vote(&Reply::NullBulk), refused);
        for text in ["LOADING x", "NOSCRIPT x", "OOM x", "READONLY x", "BUSY x", ""] {
            let vote = acquire_vote(&Reply::Error(text.as_bytes()));
            assert_eq!(vote, Ok(Vote::Failed(Failure::Replied(text.into()))));
        }
        for reply in [Reply::Simple(b"QUEUED"), Reply::Integer(1), Reply::Bulk(b"OK"), Reply::NullArray] {
            assert_eq!(acquire_vote(&reply), Err(WrongShape), "{reply:?}");
        }
        assert_eq!(compare_vote(&Reply::Integer(0)), refused);
        assert_eq!(compare_vote(&Reply::NullBulk), refused);
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: x, on @user_script:1.",
            "ERR Error running script (call to f_x): @user_script:1: WRONGTYPE Operation against a key",
            "ERR Key should be of string type if conditions are specified",
        ] {
            assert_eq!(compare_vote(&Reply::Error(text.as_bytes())), refused, "{text}");
            assert_eq!(release_answer(&Reply::Error(text.as_bytes())), Ok(ReleaseAnswer::Absent), "{text}");
        }
        let failed = Vote::Failed(Failure::Replied("OOM WRONGTYPE ".into()));
        assert_eq!(compare_vote(&Reply::Error(b"OOM WRONGTYPE ")), Ok(failed));
        assert_eq!(compare_vote(&Reply::Integer(2)), Err(WrongShape));
        assert_eq!(release_answer(&Reply::Integer(2)), Err(WrongShape));
        assert_eq!(release_answer(&Reply::NullBulk), Err(WrongShape));
    }

    #[test]
    fn holder_time_keeps_absent_and_endless_apart() {
        assert_eq!(holder_ttl(&Reply::Integer(-2)), Ok(HolderTtl::Gone));
        assert_eq!(holder_ttl(&Reply::Integer(-1)), Ok(HolderTtl::Never));
        assert_eq!(holder_ttl(&Reply::Integer(7)), Ok(HolderTtl::Left(Duration::from_millis(7))));
        assert_eq!(holder_ttl(&Reply::Integer(i64::MIN)), Err(WrongShape));
    }

    #[test]
    fn news_are_messages_and_confirmations_and_nothing_else() {
        fn check(bytes: &[u8], expected: Option<News<'_>>) {
            let Ok(resp::Decoded::Complete { reply, .. }) = resp::decode(bytes) else {
                panic!("a whole reply")
            };
            assert_eq!(news(&reply), expected);
        }
        check(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n", Some(News::Freed(b"a")));
        check(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\n12\r\n", Some(News::Waiting(b"a", 12)));
        check(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\n-1\r\n", Some(News::Freed(b"a")));
        check(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", Some(News::Confirmed));
        check(b"*3\r\n$8\r\npmessage\r\n$1\r\na\r\n:1\r\n", None);
        check(b"*2\r\n$7\r\nmessage\r\n$1\r\na\r\n", None);
        check(b":1\r\n", None);
    }

    #[test]
    fn error_texts_are_bounded_and_printable() {
        let text = error_text(&[b'\x1b'; 4096]);
        assert_eq!(text.len(), limits::ERROR_TEXT_SIZE_MAX);
        assert!(text.chars().all(|c| c == '?'));
    }
}
