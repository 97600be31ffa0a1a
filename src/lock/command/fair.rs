//! The command of fair locks: a script over three keys, the lock's own, which is that of a plain lock of the same name, and
//! the queue of those who wait for it, as two sorted sets: each waiter's ticket, a number, and its heartbeat, the time by the
//! master's own clock up to which the ticket counts without another one.
//!
//! Where nobody holds the lock nor waits for it, it is set, and a waiter without a number leaves no ticket. Else one call
//! joins the queue, gives a heartbeat and tries: the lock is set where it is free and nobody has a smaller ticket. A waiter
//! with a number always joins: so a master that lost its queue has the ticket again, whoever holds the lock elsewhere.
//! Who has no number yet is given the next one of this master. Tickets whose heartbeat is over are removed by each call, a
//! hundred at the most, and so are those that outlast any heartbeat, as after the master's clock was set back. Both sets
//! expire when nobody comes for twice the time of a heartbeat.
//!
//! The ids of waiters start with [`crate::lock::TOKEN_MARK`]. A set whose first member does not belongs to another application: it
//! stays as it is, and the lock is not granted where it is in the way of the queue.
//!
//! A ticket stays where it is when the lock is set: a minority of masters that set it is no lock, and its waiter is to keep
//! its place there. It is removed by the same script in its other form, which also tells the first in the queue that the
//! lock is free.

use super::fenced::{Script, encode_head};
use super::{Entry, WrongShape, encode_beside, encode_decimal_bulk, encode_joined, failure, key_bytes};
use crate::limits;
use crate::lock::{Failure, HolderTtl, Token};
use crate::resp::{self, Array, Reply};
use std::time::Duration;

/// What a key of a queue has between the prefix and the lock's name: no lock may have a name that starts like this.
pub(crate) const FAIR_NAME: &[u8] = b"redlatch:fair:";
const TICKETS_NAME: &[u8] = b"redlatch:fair:t:";
const HEARTBEATS_NAME: &[u8] = b"redlatch:fair:h:";
/// What the channel of a waiter has between the prefix and its id.
const CHANNEL_NAME: &[u8] = b"redlatch:fair:c:";

/// `KEYS`: lock, tickets, heartbeats. `ARGV`: value, TTL in milliseconds, the waiter's id, its ticket, how long a heartbeat
/// lasts in milliseconds, how many may wait. The ticket is a number, 0 for the one that it has here or else the next, or -1
/// for one that does not wait.
///
/// Answers: what is in the way (0 the lock is held, 1 others are before it in the queue, 2 nothing: it is set), the ticket
/// or -1 without one,
/// how many are before it, and what is left of the holder's time as `PTTL` tells it, or of the first one's heartbeat.
///
/// To leave the queue: the ticket is -2, in place of the TTL is what the channel of each waiter starts with, or nothing if
/// nobody is to be told. Answers 0. With -3 the ticket stays, and the first is told if it is another one.
pub(crate) const FAIR_SCRIPT: &str = "local q,b,i,k,h=KEYS[2],KEYS[3],ARGV[3],tonumber(ARGV[4]),tonumber(ARGV[5]) if k>-2 and k<1 and \
redis.call('exists',KEYS[1],q)==0 then redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2]) return {2,-1,0,0} end \
if k<-1 and redis.call('exists',q)==0 then if ARGV[2]~='' and redis.call('exists',KEYS[1])==0 then \
redis.pcall('publish',KEYS[1],'') end return 0 end for _,s in ipairs({q,b}) do local \
m=redis.call('zrange',s,0,0)[1] if m and string.sub(m,1,11)~='redlatch:1:' then return \
redis.error_reply('ERR a set of somebody else is where the queue of this lock belongs') end end local t=redis.call('time') local \
n=t[1]*1000+math.floor(t[2]/1000) for _,r in ipairs({{'-inf',n},{n+h+1,'+inf'}}) do for _,m in \
ipairs(redis.call('zrangebyscore',b,r[1],r[2],'limit',0,100)) do redis.call('zrem',q,m) \
redis.call('zrem',b,m) end end if k==-2 then redis.call('zrem',q,i) redis.call('zrem',b,i) end if k<-1 then \
if ARGV[2]~='' and redis.call('exists',KEYS[1])==0 then local f=redis.call('zrange',q,0,0)[1] if f==i then \
return 0 elseif f then redis.pcall('publish',ARGV[2]..f,'') else redis.pcall('publish',KEYS[1],'') end end \
return 0 end if k>=0 then local s=redis.call('zscore',q,i) if not s and \
redis.call('zcard',q)>=tonumber(ARGV[6]) then return redis.error_reply('ERR too many wait for this lock') \
end if k==0 then if s then k=tonumber(s) else k=(redis.call('zrevrange',q,0,0,'withscores')[2] or 0)+1 end \
end if tonumber(s)~=k then redis.call('zadd',q,k,i) end redis.call('zadd',b,n+h,i) \
redis.call('pexpire',q,2*h) redis.call('pexpire',b,2*h) end local a=redis.call('zrank',q,i) or \
redis.call('zcard',q) local l=redis.call('pttl',KEYS[1]) if l~=-2 then return {0,k,a,l} end if a>0 then \
local f=redis.call('zrange',q,0,0)[1] local e=redis.call('zscore',b,f) if not e then redis.call('zrem',q,f) \
end return {1,k,a,math.max((e or n)-n,0)} end redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2]) if k>=0 then \
redis.call('zadd',b,n+math.min(h,tonumber(ARGV[2])),i) end return {2,k,0,0}";

/// SHA-1 of [`FAIR_SCRIPT`].
pub(super) const FAIR_SHA: &str = "02d9ee81584b636cc1e0a982c4e02708eeee8ca2";

/// The largest ticket that is believed: beyond it the scripts' numbers are no longer exact.
const TICKET_MAX: u64 = (1 << 53) - 1;

/// Who wants a fair lock, as its masters know it.
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

/// Joins the queue, or says that it is still there, and sets the lock if it is this one's turn.
pub(crate) fn encode_fair_acquire(
    out: &mut Vec<u8>,
    script: Script,
    entry: &Entry,
    ttl_ms: u64,
    waiter: &Waiter,
) {
    encode_head(out, 12, script, FAIR_SCRIPT, FAIR_SHA, b"3");
    let value = encode_keys(out, entry, waiter.prefix_size);
    out.extend_from_slice(value);
    encode_decimal_bulk(out, ttl_ms);
    resp::encode_bulk(out, waiter.id.as_bytes());
    match waiter.ticket {
        Place::Outside => resp::encode_bulk(out, b"-1"),
        Place::AtEnd => encode_decimal_bulk(out, 0),
        Place::Number(number) => encode_decimal_bulk(out, number),
    }
    encode_decimal_bulk(out, heartbeat_ms());
    encode_decimal_bulk(out, limits::FAIR_QUEUE_COUNT_MAX);
}

/// Leaves the queue unless it `stays`, and tells the first who waits if the lock is free. The entry's value does not matter.
pub(crate) fn encode_fair_leave(
    out: &mut Vec<u8>,
    entry: &Entry,
    waiter: &Waiter,
    (tells, stays): (bool, bool),
) {
    encode_head(out, 11, Script::Known, FAIR_SCRIPT, FAIR_SHA, b"3");
    let value = encode_keys(out, entry, waiter.prefix_size);
    out.extend_from_slice(value);
    if tells {
        encode_joined(out, &[prefix(entry, waiter.prefix_size), CHANNEL_NAME]);
    } else {
        resp::encode_bulk(out, b"");
    }
    resp::encode_bulk(out, waiter.id.as_bytes());
    resp::encode_bulk(out, if stays { b"-3" } else { b"-2" });
    encode_decimal_bulk(out, heartbeat_ms());
}

/// The channel on which a waiter is told that it is the first, as an encoded bulk string.
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

fn prefix(entry: &Entry, prefix_size: usize) -> &[u8] {
    key_bytes(entry.key()).get(..prefix_size).unwrap_or_default()
}

/// What a master said to [`encode_fair_acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FairAnswer {
    /// The lock is set, or is not, and the waiter's ticket stands for as long as a heartbeat lasts.
    Told(FairTold),
    /// An error reply: whatever was written is released.
    Failed(Failure),
}

/// What a master told of lock and queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FairTold {
    pub(crate) way: Way,
    /// The waiter's ticket there, if it has a number that can be believed.
    pub(crate) ticket: Option<u64>,
    /// How many are before it.
    pub(crate) ahead: u64,
}

/// What is in the way of a fair lock.
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
        Reply::Array(told) => fair_told(told).map(FairAnswer::Told),
        Reply::Error(text) => Ok(FairAnswer::Failed(failure(text))),
        _ => Err(WrongShape),
    }
}

fn fair_told(told: &Array<'_>) -> Result<FairTold, WrongShape> {
    let mut elements = told.iter();
    let mut number = || match elements.next() {
        Some(Reply::Integer(number)) => Ok(number),
        _ => Err(WrongShape),
    };
    let (way, ticket, ahead, left_ms) = (number()?, number()?, number()?, number()?);
    if told.len() != 4 {
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
    Ok(FairTold { way, ticket, ahead: u64::try_from(ahead).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn commands_have_the_lock_and_its_queue_behind_the_same_prefix() {
        let [lock, tickets, heartbeats] = KEYS;
        let id = [0; 20].as_slice();
        for (script, name, text) in
            [(Script::Known, "EVALSHA", FAIR_SHA), (Script::Whole, "EVAL", FAIR_SCRIPT)]
        {
            for (ticket, number) in [(Place::Outside, "-1"), (Place::AtEnd, "0"), (Place::Number(7), "7")] {
                let waiter = Waiter { ticket, ..WAITER };
                let [name, text, number] = [name, text, number].map(str::as_bytes);
                assert_eq!(
                    encoded(|out, entry| encode_fair_acquire(out, script, entry, 10_000, &waiter)),
                    command(&[
                        name, text, b"3", lock, tickets, heartbeats, id, b"10000", id, number, b"3000",
                        b"4096"
                    ])
                );
            }
        }
        for (tells, channel, number) in [(true, b"p:redlatch:fair:c:".as_slice(), b"-2"), (false, b"", b"-3")]
        {
            assert_eq!(
                encoded(|out, entry| encode_fair_leave(out, entry, &WAITER, (tells, !tells))),
                command(&[
                    b"EVALSHA",
                    FAIR_SHA.as_bytes(),
                    b"3",
                    lock,
                    tickets,
                    heartbeats,
                    id,
                    channel,
                    id,
                    number,
                    b"3000"
                ])
            );
        }
        let mut channel = Vec::new();
        encode_fair_channel(&mut channel, b"p:", &Token::UNSET);
        assert_eq!(channel, [b"$38\r\np:redlatch:fair:c:".as_slice(), id, b"\r\n"].concat());
    }

    #[test]
    fn a_request_of_the_longest_names_is_within_the_limit() {
        use crate::limits::{PREFIX_SIZE_MAX, REQUEST_SIZE_MAX, RESOURCE_SIZE_MAX};
        let waiter = Waiter { ticket: Place::Number(TICKET_MAX), prefix_size: PREFIX_SIZE_MAX, ..WAITER };
        let (mut entry, mut out) = (Entry::EMPTY, Vec::new());
        entry.set(&[b'p'; PREFIX_SIZE_MAX], &[b'n'; RESOURCE_SIZE_MAX], &Token::UNSET);
        encode_fair_acquire(&mut out, Script::Whole, &entry, 604_800_000, &waiter);
        assert!(out.len() <= REQUEST_SIZE_MAX, "{} bytes", out.len());
    }

    fn answer(reply: &[u8]) -> Result<FairAnswer, WrongShape> {
        match resp::decode(reply) {
            Ok(resp::Decoded::Complete { reply, .. }) => fair_answer(&reply),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_answer_is_told_from_the_others_and_no_error_is_a_no() {
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
            let told = FairTold { way, ticket, ahead };
            assert_eq!(answer(reply.as_bytes()), Ok(FairAnswer::Told(told)), "{reply}");
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
