//! The queues of fair locks on a model master: the script as the servers carry it out.
//!
//! A master that loses or reloads its data loses all queues, whatever else it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redlatch::resp::{self, Reply};

use super::{ModelMaster, Refusal, millis, number};

const FAIR_SHA: &[u8] = b"02d9ee81584b636cc1e0a982c4e02708eeee8ca2";
/// Scripts with a deliberate defect, which are only ever sent in full.
const HEAD_UNCHECKED: &[u8] = b"whoever asks has a fair lock";
const DEAD_STAY: &[u8] = b"the tickets of the dead stay";
const TOO_MANY: &str = "ERR too many wait for this lock";

/// One heartbeat and as many again: what a queue outlives the last word by.
const LIFE: i64 = 2;
/// Tickets that one call removes, of each of two kinds.
const PURGED_MAX: usize = 100;

/// The queues of all locks.
#[derive(Default)]
pub struct Queues {
    by_key: BTreeMap<Vec<u8>, Queue>,
    /// Tickets that went without their waiters' doing since somebody looked.
    pub lost: Vec<Vec<u8>>,
}

#[derive(Default)]
pub struct Queue {
    /// Ticket and id of each waiter, as they stand.
    tickets: BTreeSet<(i64, Vec<u8>)>,
    /// By id, when its heartbeat is over, in milliseconds since 1970.
    heartbeats: BTreeMap<Vec<u8>, i64>,
    expires: Option<Instant>,
}

impl Queues {
    /// The queue of a lock, without what is over.
    pub fn of(&mut self, now: Instant, key: &[u8]) -> &mut Queue {
        let queue = self.by_key.entry(key.to_vec()).or_default();
        if queue.expires.is_some_and(|at| at <= now) {
            self.lost.extend(std::mem::take(queue).tickets.into_iter().map(|(_, id)| id));
        }
        queue
    }

    /// All of them are gone.
    pub fn lose(&mut self) {
        for queue in std::mem::take(&mut self.by_key).into_values() {
            self.lost.extend(queue.tickets.into_iter().map(|(_, id)| id));
        }
    }

    /// Removes tickets whose heartbeat is over, and those that outlast any. Returns whether there were such.
    pub fn purge(
        &mut self,
        now: Instant,
        key: &[u8],
        now_ms: i64,
        heartbeat_ms: i64,
        with_over: bool,
    ) -> bool {
        let queue = self.of(now, key);
        let over = if with_over { now_ms } else { 0 };
        let mut order: Vec<_> = queue.heartbeats.iter().map(|(id, end)| (*end, id.clone())).collect();
        order.sort();
        let is_over = |(end, _): &&(i64, Vec<u8>)| *end <= over;
        let is_endless = |(end, _): &&(i64, Vec<u8>)| *end > now_ms + heartbeat_ms;
        let gone = order.iter().filter(is_over).take(PURGED_MAX);
        let gone: Vec<_> = gone.chain(order.iter().filter(is_endless).take(PURGED_MAX)).collect();
        for (_, id) in &gone {
            queue.remove(id);
        }
        let lost: Vec<_> = gone.into_iter().map(|(_, id)| id.clone()).collect();
        let has_written = !lost.is_empty();
        self.lost.extend(lost);
        has_written
    }
}

impl Queue {
    pub fn remove(&mut self, id: &[u8]) {
        self.tickets.retain(|(_, other)| other != id);
        self.heartbeats.remove(id);
        if self.tickets.is_empty() {
            self.expires = None;
        }
    }

    pub fn count(&self) -> usize {
        self.tickets.len()
    }

    pub fn ticket(&self, id: &[u8]) -> Option<i64> {
        self.tickets.iter().find(|(_, other)| other == id).map(|(ticket, _)| *ticket)
    }

    pub fn first(&self) -> Option<&[u8]> {
        self.tickets.first().map(|(_, id)| id.as_slice())
    }

    /// How many stand before it, of one that stands there; all of them else.
    pub fn ahead(&self, id: &[u8]) -> usize {
        self.tickets.iter().position(|(_, other)| other == id).unwrap_or(self.tickets.len())
    }

    /// Puts a waiter where its ticket says, or at the end with 0, and hears it; returns its ticket.
    pub fn join(&mut self, now: Instant, id: &[u8], ticket: i64, now_ms: i64, heartbeat_ms: i64) -> i64 {
        let known = self.ticket(id);
        let last = self.tickets.last().map_or(0, |(ticket, _)| *ticket);
        let ticket = if ticket == 0 { known.unwrap_or(last + 1) } else { ticket };
        self.tickets.retain(|(_, other)| other != id);
        self.tickets.insert((ticket, id.to_vec()));
        self.hear(id, now_ms + heartbeat_ms);
        let life = Duration::from_millis((LIFE * heartbeat_ms).unsigned_abs());
        self.expires = Some(now + life);
        ticket
    }

    pub fn hear(&mut self, id: &[u8], end_ms: i64) {
        self.heartbeats.insert(id.to_vec(), end_ms);
    }

    /// How long the first one's heartbeat lasts.
    pub fn first_left(&self, now_ms: i64) -> i64 {
        let end = self.first().and_then(|id| self.heartbeats.get(id));
        end.map_or(0, |end| (end - now_ms).max(0))
    }
}

/// That of the script of fair locks, which has these words, or of one of its two deliberate defects.
pub(super) fn digest(has: impl Fn(&[u8]) -> bool) -> &'static [u8] {
    match (has(b"if a>0 "), has(b"{'-inf',n}")) {
        (false, _) => HEAD_UNCHECKED,
        (_, false) => DEAD_STAY,
        _ => FAIR_SHA,
    }
}

impl ModelMaster {
    /// The script of fair locks. The two deliberate defects in it have digests of their own here.
    pub(super) fn carry_out_fair(
        &mut self,
        now: Instant,
        sha: &[u8],
        lock: &[u8],
        args: &[&[u8]],
        replies: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        assert!([FAIR_SHA, HEAD_UNCHECKED, DEAD_STAY].contains(&sha), "no script is called like this");
        let now_ms = number((self.wall_us(now) / 1000).to_string().as_bytes());
        let (id, ticket, heartbeat) = (args[2], number(args[3]), number(args[4]));
        let is_empty = self.queues.of(now, lock).count() == 0;
        if is_empty && ticket < -1 {
            if self.time_left(now, lock) == -2 && !args[1].is_empty() {
                self.publish(lock, b"");
            }
            resp::encode_reply(replies, &Reply::Integer(0));
            return Ok(());
        }
        if is_empty && ticket < 1 && self.time_left(now, lock) == -2 {
            self.refuse_if_full()?;
            self.put(lock, args[0], Some(now + millis(args[1])));
            tell(replies, [2, -1, 0, 0]);
            return Ok(());
        }
        let has_written = self.queues.purge(now, lock, now_ms, heartbeat, sha != DEAD_STAY);
        if ticket < -1 {
            if ticket == -2 {
                self.queues.of(now, lock).remove(id);
            }
            self.tell_first(now, lock, id, args[1]);
            resp::encode_reply(replies, &Reply::Integer(0));
            return Ok(());
        }
        let (value, ttl, count_max) = (args[0], args[1], number(args[5]));
        let mut number_of = ticket;
        if ticket >= 0 {
            let queue = self.queues.of(now, lock);
            if queue.ticket(id).is_none() && i64::try_from(queue.count()).expect("small") >= count_max {
                resp::encode_reply(replies, &Reply::Error(TOO_MANY.as_bytes()));
                return Ok(());
            }
            if !has_written {
                self.refuse_if_full()?;
            }
            let queue = self.queues.of(now, lock);
            number_of = queue.join(now, id, ticket, now_ms, heartbeat);
        }
        let left = self.time_left(now, lock);
        let queue = self.queues.of(now, lock);
        let ahead = i64::try_from(queue.ahead(id)).expect("small");
        let told = if left != -2 {
            [0, number_of, ahead, left]
        } else if ahead > 0 && sha != HEAD_UNCHECKED {
            [1, number_of, ahead, queue.first_left(now_ms)]
        } else {
            if ticket >= 0 {
                queue.hear(id, now_ms + heartbeat.min(number(ttl)));
            }
            if ticket < 0 && !has_written {
                self.refuse_if_full()?;
            }
            self.put(lock, value, Some(now + millis(ttl)));
            [2, number_of, 0, 0]
        };
        tell(replies, told);
        Ok(())
    }

    /// Somebody does not wait any longer, or has released: tells who is next, if that is another one and the lock is free.
    fn tell_first(&mut self, now: Instant, lock: &[u8], id: &[u8], channels: &[u8]) {
        let is_free = self.time_left(now, lock) == -2;
        let queue = self.queues.of(now, lock);
        if is_free && !channels.is_empty() && queue.first() != Some(id) {
            let channel = queue.first().map_or_else(|| lock.to_vec(), |first| [channels, first].concat());
            self.publish(&channel, b"");
        }
    }
}

fn tell(replies: &mut Vec<u8>, told: [i64; 4]) {
    resp::encode_array_header(replies, told.len());
    told.into_iter().for_each(|number| resp::encode_reply(replies, &Reply::Integer(number)));
}
