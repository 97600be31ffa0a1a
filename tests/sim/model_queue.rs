//! The queues of fair locks on a model master: two sorted sets, of the waiters' tickets and of their heartbeats.

use super::commands::{integer, millis};
use super::shared::score;
use super::*;

/// The beginning of a waiter's id.
const ID_MARK: &[u8] = b"redlatch:1:";
const FOREIGN: &[u8] = b"ERR a set of somebody else is where the queue of this lock belongs";
const TOO_MANY: &[u8] = b"ERR too many wait for this lock";

/// One heartbeat and as many again: what a queue outlives the last word by.
const LIFE: i64 = 2;
/// Tickets that one call removes, of each of two kinds.
const PURGED_MAX: usize = 100;

/// The key of the tickets for a lock, without a prefix.
pub fn tickets_key(lock: &[u8]) -> Vec<u8> {
    [b"redlatch:fair:t:", lock].concat()
}

/// The key of the heartbeats.
pub fn heartbeats_key(lock: &[u8]) -> Vec<u8> {
    [b"redlatch:fair:h:", lock].concat()
}

impl ModelMaster {
    /// Who waits for a lock.
    fn queue(&self, now: Instant, lock: &[u8]) -> Option<&SortedSet> {
        self.data.sorted_set(now, &tickets_key(lock)).ok().flatten()
    }

    pub fn ticket_count(&self, now: Instant, lock: &[u8]) -> usize {
        self.queue(now, lock).map_or(0, SortedSet::count)
    }

    /// The number of a waiter's ticket.
    pub fn ticket(&self, now: Instant, lock: &[u8], id: &[u8]) -> Option<i64> {
        self.queue(now, lock).and_then(|queue| queue.score(id)).map(whole)
    }

    /// Up to when a waiter's ticket counts, by this master's wall clock in milliseconds.
    pub fn heartbeat(&self, now: Instant, lock: &[u8], id: &[u8]) -> Option<i64> {
        self.ticket(now, lock, id)?;
        let heartbeats = self.data.sorted_set(now, &heartbeats_key(lock)).ok().flatten();
        heartbeats.and_then(|heartbeats| heartbeats.score(id)).map(whole)
    }

    /// Somebody waits from now on.
    pub fn put_ticket(&mut self, now: Instant, lock: &[u8], id: &[u8], number: i64) {
        let heartbeat = redlatch::limits::FAIR_HEARTBEAT;
        let end_ms = self.wall.ms(now + heartbeat);
        for (key, number) in [(tickets_key(lock), number), (heartbeats_key(lock), end_ms)] {
            self.data.add(now, &key, &[(score(number), id)]).expect("a queue");
            self.data.expire(now, &key, now + 2 * heartbeat);
        }
    }

    pub(super) fn run_fair(
        &mut self,
        now: Instant,
        [lock, tickets, heartbeats]: [&[u8]; 3],
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        let (value, ttl, id, ticket) = (args[0], args[1], args[2], integer(args[3])?);
        let (now_ms, heartbeat) = (self.wall.ms(now), integer(args[4])?);
        let is_queued = self.data.is_taken(now, tickets);
        if (-1..1).contains(&ticket) && !is_queued && !self.is_taken(now, lock) {
            self.data.set(lock, value, Some(now + millis(ttl)?))?;
            return Ok(Answer::numbers(&[2, -1, 0, 0]));
        }
        if ticket < -1 && !is_queued {
            if !ttl.is_empty() && !self.is_taken(now, lock) {
                self.publish(lock, b"");
            }
            return Ok(Answer::Integer(0));
        }
        if self.is_foreign(now, tickets)? || self.is_foreign(now, heartbeats)? {
            return Ok(Answer::Error(FOREIGN.to_vec()));
        }
        self.purge_queue(now, tickets, heartbeats, heartbeat)?;
        if ticket < -1 {
            if ticket == -2 {
                self.data.remove(now, tickets, id)?;
                self.data.remove(now, heartbeats, id)?;
            }
            self.tell_first(now, lock, tickets, [id, ttl])?;
            return Ok(Answer::Integer(0));
        }
        let mut number = ticket;
        if ticket >= 0 {
            let queue = self.data.sorted_set(now, tickets)?;
            let known = queue.and_then(|queue| queue.score(id)).map(whole);
            let last = queue.and_then(SortedSet::last_score).map_or(0, whole);
            let count = i64::try_from(queue.map_or(0, SortedSet::count)).expect("small");
            if known.is_none() && count >= integer(args[5])? {
                return Ok(Answer::Error(TOO_MANY.to_vec()));
            }
            if ticket == 0 {
                number = known.unwrap_or(last + 1);
            }
            if known != Some(number) {
                self.data.add(now, tickets, &[(score(number), id)])?;
            }
            self.data.add(now, heartbeats, &[(score(now_ms + heartbeat), id)])?;
            let end = now + Duration::from_millis((LIFE * heartbeat).unsigned_abs());
            self.data.expire(now, tickets, end);
            self.data.expire(now, heartbeats, end);
        }
        let queue = self.data.sorted_set(now, tickets)?;
        let ahead = queue.map_or(0, |queue| queue.rank(id).unwrap_or_else(|| queue.count()));
        let ahead = i64::try_from(ahead).expect("small");
        let left = self.data.time_left(now, lock);
        if left != -2 {
            return Ok(Answer::numbers(&[0, number, ahead, left]));
        }
        if ahead > 0 {
            let left = self.first_left(now, tickets, heartbeats)?;
            return Ok(Answer::numbers(&[1, number, ahead, left]));
        }
        self.data.set(lock, value, Some(now + millis(ttl)?))?;
        if ticket >= 0 {
            self.data.add(now, heartbeats, &[(score(now_ms + heartbeat.min(integer(ttl)?)), id)])?;
        }
        Ok(Answer::numbers(&[2, number, 0, 0]))
    }

    /// Whether somebody else's set is there.
    fn is_foreign(&self, now: Instant, key: &[u8]) -> Result<bool, Refusal> {
        let first = self.data.sorted_set(now, key)?.and_then(SortedSet::first);
        Ok(first.is_some_and(|first| !first.starts_with(ID_MARK)))
    }

    /// Removes tickets whose heartbeat is over, and those that outlast any.
    fn purge_queue(
        &mut self,
        now: Instant,
        tickets: &[u8],
        heartbeats: &[u8],
        heartbeat: i64,
    ) -> Result<(), Refusal> {
        let now_ms = self.wall.ms(now);
        let over = (f64::NEG_INFINITY, score(now_ms));
        let endless = (score(now_ms + heartbeat + 1), f64::INFINITY);
        for (min, max) in [over, endless] {
            let set = self.data.sorted_set(now, heartbeats)?.into_iter().flat_map(SortedSet::iter);
            let gone = set.filter(|(end, _)| (min..=max).contains(end)).take(PURGED_MAX);
            let gone: Vec<_> = gone.map(|(_, id)| id.to_vec()).collect();
            for id in gone {
                self.data.remove(now, tickets, &id)?;
                self.data.remove(now, heartbeats, &id)?;
            }
        }
        Ok(())
    }

    /// How long the first one's heartbeat lasts; without one it is not heard, and goes.
    fn first_left(&mut self, now: Instant, tickets: &[u8], heartbeats: &[u8]) -> Result<i64, Refusal> {
        let first = self.data.sorted_set(now, tickets)?.and_then(SortedSet::first).map(<[u8]>::to_vec);
        let first = first.unwrap_or_default();
        let end = self.data.sorted_set(now, heartbeats)?.and_then(|it| it.score(&first)).map(whole);
        if end.is_none() {
            self.data.remove(now, tickets, &first)?;
        }
        Ok(end.map_or(0, |end| (end - self.wall.ms(now)).max(0)))
    }

    /// Somebody does not wait any longer, or has released: tells who is next, if that is another one and the lock is free.
    fn tell_first(
        &mut self,
        now: Instant,
        lock: &[u8],
        tickets: &[u8],
        [id, channels]: [&[u8]; 2],
    ) -> Result<(), Refusal> {
        if channels.is_empty() || self.is_taken(now, lock) {
            return Ok(());
        }
        let first = self.data.sorted_set(now, tickets)?.and_then(SortedSet::first);
        if first != Some(id) {
            let channel = first.map_or_else(|| lock.to_vec(), |first| [channels, first].concat());
            self.publish(&channel, b"");
        }
        Ok(())
    }
}

/// A score that is a number of milliseconds, or of a ticket.
#[allow(clippy::cast_possible_truncation, reason = "below 2^53")]
fn whole(score: f64) -> i64 {
    score as i64
}
