//! The queues of fair locks on a model master: two sorted sets, of the waiters' tickets and of their
//! heartbeats.

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

/// What a waiter tries with.
struct Attempt<'a> {
    value: &'a [u8],
    ttl: &'a [u8],
    id: &'a [u8],
    heartbeat: i64,
}

/// Whether no more may wait.
fn is_full(queue: Option<&SortedSet>, count_max: i64) -> bool {
    i64::try_from(queue.map_or(0, SortedSet::count)).expect("small") >= count_max
}

impl ModelMaster {
    /// Waiters for a lock.
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
        script: &str,
        keys: [&[u8]; 3],
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        match (script, args) {
            ("fair_try", &[value, ttl, heartbeat]) => self.try_fair(now, keys, [value, ttl, heartbeat]),
            ("fair_join", &[value, ttl, id, heartbeat, count_max]) => {
                let attempt = Attempt { value, ttl, id, heartbeat: integer(heartbeat)? };
                self.join_fair(now, keys, &attempt, integer(count_max)?)
            }
            ("fair_wait", &[value, ttl, id, heartbeat, count_max, ticket]) => {
                let attempt = Attempt { value, ttl, id, heartbeat: integer(heartbeat)? };
                self.wait_fair(now, keys, &attempt, (integer(count_max)?, integer(ticket)?))
            }
            ("fair_leave", &[id, heartbeat, channels]) => {
                self.leave_fair(now, keys, id, integer(heartbeat)?, channels)
            }
            ("fair_notify", &[id, heartbeat, channels]) => {
                self.notify_fair(now, keys, id, integer(heartbeat)?, channels)
            }
            _ => panic!("no script is called like this"),
        }
    }

    /// A caller that does not wait.
    fn try_fair(
        &mut self,
        now: Instant,
        keys: [&[u8]; 3],
        [value, ttl, heartbeat]: [&[u8]; 3],
    ) -> Result<Answer, Refusal> {
        let [lock, tickets, heartbeats] = keys;
        if let Some(answer) = self.take_free(now, keys, value, ttl)? {
            return Ok(answer);
        }
        if let Some(foreign) = self.purge_queue(now, tickets, heartbeats, integer(heartbeat)?)? {
            return Ok(foreign);
        }
        let ahead = self.data.sorted_set(now, tickets)?.map_or(0, SortedSet::count);
        if let Some(answer) = self.in_the_way(now, keys, -1, ahead)? {
            return Ok(answer);
        }
        self.data.set(lock, value, Some(now + millis(ttl)?))?;
        Ok(Answer::numbers(&[2, -1, 0, 0]))
    }

    /// A waiter without a number.
    fn join_fair(
        &mut self,
        now: Instant,
        keys: [&[u8]; 3],
        attempt: &Attempt<'_>,
        count_max: i64,
    ) -> Result<Answer, Refusal> {
        let [_, tickets, heartbeats] = keys;
        if let Some(answer) = self.take_free(now, keys, attempt.value, attempt.ttl)? {
            return Ok(answer);
        }
        if let Some(foreign) = self.purge_queue(now, tickets, heartbeats, attempt.heartbeat)? {
            return Ok(foreign);
        }
        let queue = self.data.sorted_set(now, tickets)?;
        let known = queue.and_then(|queue| queue.score(attempt.id)).map(whole);
        let last = queue.and_then(SortedSet::last_score).map_or(0, whole);
        let number = known.unwrap_or(last + 1);
        if known.is_none() {
            if is_full(queue, count_max) {
                return Ok(Answer::Error(TOO_MANY.to_vec()));
            }
            self.data.add(now, tickets, &[(score(number), attempt.id)])?;
        }
        self.attempt_fair(now, keys, attempt, number)
    }

    /// A waiter with a number.
    fn wait_fair(
        &mut self,
        now: Instant,
        keys: [&[u8]; 3],
        attempt: &Attempt<'_>,
        (count_max, number): (i64, i64),
    ) -> Result<Answer, Refusal> {
        let [_, tickets, heartbeats] = keys;
        if let Some(foreign) = self.purge_queue(now, tickets, heartbeats, attempt.heartbeat)? {
            return Ok(foreign);
        }
        let queue = self.data.sorted_set(now, tickets)?;
        let known = queue.and_then(|queue| queue.score(attempt.id)).map(whole);
        if known.is_none() && is_full(queue, count_max) {
            return Ok(Answer::Error(TOO_MANY.to_vec()));
        }
        if known != Some(number) {
            self.data.add(now, tickets, &[(score(number), attempt.id)])?;
        }
        self.attempt_fair(now, keys, attempt, number)
    }

    /// A waiter with a ticket gives a heartbeat and tries.
    fn attempt_fair(
        &mut self,
        now: Instant,
        keys: [&[u8]; 3],
        attempt: &Attempt<'_>,
        number: i64,
    ) -> Result<Answer, Refusal> {
        let [lock, tickets, heartbeats] = keys;
        let &Attempt { value, ttl, id, heartbeat } = attempt;
        let now_ms = self.wall.ms(now);
        self.data.add(now, heartbeats, &[(score(now_ms + heartbeat), id)])?;
        let end = now + Duration::from_millis((LIFE * heartbeat).unsigned_abs());
        self.data.expire(now, tickets, end);
        self.data.expire(now, heartbeats, end);
        let ahead = self.data.sorted_set(now, tickets)?.and_then(|queue| queue.rank(id)).expect("it waits");
        if let Some(answer) = self.in_the_way(now, keys, number, ahead)? {
            return Ok(answer);
        }
        self.data.set(lock, value, Some(now + millis(ttl)?))?;
        self.data.add(now, heartbeats, &[(score(now_ms + heartbeat.min(integer(ttl)?)), id)])?;
        Ok(Answer::numbers(&[2, number, 0, 0]))
    }

    /// The lock is set where nobody has it nor waits.
    fn take_free(
        &mut self,
        now: Instant,
        [lock, tickets, _]: [&[u8]; 3],
        value: &[u8],
        ttl: &[u8],
    ) -> Result<Option<Answer>, Refusal> {
        if self.is_taken(now, lock) || self.data.is_taken(now, tickets) {
            return Ok(None);
        }
        self.data.set(lock, value, Some(now + millis(ttl)?))?;
        Ok(Some(Answer::numbers(&[2, -1, 0, 0])))
    }

    /// The lock is held, or others are before this waiter.
    fn in_the_way(
        &mut self,
        now: Instant,
        [lock, tickets, heartbeats]: [&[u8]; 3],
        number: i64,
        ahead: usize,
    ) -> Result<Option<Answer>, Refusal> {
        let (left, ahead) = (self.data.time_left(now, lock), i64::try_from(ahead).expect("small"));
        if left != -2 {
            return Ok(Some(Answer::numbers(&[0, number, ahead, left])));
        }
        if ahead == 0 {
            return Ok(None);
        }
        let left = self.first_left(now, tickets, heartbeats)?;
        Ok(Some(Answer::numbers(&[1, number, ahead, left])))
    }

    /// A waiter gives up, or has released.
    fn leave_fair(
        &mut self,
        now: Instant,
        [lock, tickets, heartbeats]: [&[u8]; 3],
        id: &[u8],
        heartbeat: i64,
        channels: &[u8],
    ) -> Result<Answer, Refusal> {
        if self.data.is_taken(now, tickets) {
            if let Some(foreign) = self.purge_queue(now, tickets, heartbeats, heartbeat)? {
                return Ok(foreign);
            }
            self.data.remove(now, tickets, id)?;
            self.data.remove(now, heartbeats, id)?;
        }
        self.notify_first(now, lock, tickets, [id, channels])?;
        Ok(Answer::Integer(0))
    }

    /// A waiter has released a part of the lock, and stays.
    fn notify_fair(
        &mut self,
        now: Instant,
        [lock, tickets, heartbeats]: [&[u8]; 3],
        id: &[u8],
        heartbeat: i64,
        channels: &[u8],
    ) -> Result<Answer, Refusal> {
        if self.data.is_taken(now, tickets)
            && let Some(foreign) = self.purge_queue(now, tickets, heartbeats, heartbeat)?
        {
            return Ok(foreign);
        }
        self.notify_first(now, lock, tickets, [id, channels])?;
        Ok(Answer::Integer(0))
    }

    /// Whether somebody else's set is there.
    fn is_foreign(&self, now: Instant, key: &[u8]) -> Result<bool, Refusal> {
        let first = self.data.sorted_set(now, key)?.and_then(SortedSet::first);
        Ok(first.is_some_and(|first| !first.starts_with(ID_MARK)))
    }

    /// Removes tickets whose heartbeat is over, and those that outlast any; or says that somebody else's set
    /// is there.
    fn purge_queue(
        &mut self,
        now: Instant,
        tickets: &[u8],
        heartbeats: &[u8],
        heartbeat: i64,
    ) -> Result<Option<Answer>, Refusal> {
        if self.is_foreign(now, tickets)? || self.is_foreign(now, heartbeats)? {
            return Ok(Some(Answer::Error(FOREIGN.to_vec())));
        }
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
        Ok(None)
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

    /// Somebody does not wait any longer, or has released: reports who is next, if that is another one and
    /// the lock is free.
    fn notify_first(
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
