//! redlatch itself, in each of its forms.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::{Client, Config, Options, Quarantine, Redlock};
use redlatch_support::Blocking;

use crate::load::{AsyncLocks, BlockingLocks, Keys, Limit, Rig, Round, TTL, Tally, WAIT, Work};

/// Above the slowest round trip of any scenario.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client is driven between rounds, to read what a slow minority still owes.
const SETTLE_TIME: Duration = Duration::from_millis(5);

/// The defaults, except that newly started masters count at once, and that the retry delay has the rivals'
/// bound.
fn config(urls: &[String]) -> Config {
    let builder = Config::builder().masters(urls).quarantine(Quarantine::Trust);
    let builder = builder.retry_delay(Duration::from_millis(1)..=super::retry_delay());
    builder.answer_timeout(ANSWER_TIMEOUT).build().expect("valid settings")
}

fn open(urls: &[String]) -> Redlock {
    Redlock::open(config(urls)).expect("an event loop")
}

fn drive(redlock: &mut Redlock) {
    let end = Instant::now() + SETTLE_TIME;
    while Instant::now() < end {
        redlock.turn(end.saturating_duration_since(Instant::now())).expect("the loop runs");
    }
}

/// `Redlock` with blocking calls, one for each thread.
pub(super) struct OneThread(Blocking);

impl OneThread {
    pub(super) fn connect(urls: &[String]) -> Self {
        Self(Blocking::open(config(urls)).expect("an event loop"))
    }

    pub(super) fn settle(&mut self) {
        drive(&mut self.0);
    }
}

impl BlockingLocks for OneThread {
    fn pair(&mut self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let lease = self.0.lock(key).ttl(TTL).wait(WAIT).acquire().map_err(|error| format!("{error:#}"))?;
        let time = asked.elapsed();
        self.0.release(lease).map_err(|error| error.to_string())?;
        Ok(time)
    }
}

/// `Redlock` with many locks in flight, for one thread and one client.
pub(super) struct Pipelined {
    redlock: Redlock,
    names: Arc<[String]>,
    work: Work,
}

/// A caller that always has a lock in flight.
struct Caller {
    keys: Keys,
    tally: Tally,
    asked: Instant,
    /// Acquisition time of the lock that is being released.
    acquire_time: Duration,
    pairs: usize,
}

impl Pipelined {
    pub(super) fn connect(urls: &[String], work: &Work, names: Arc<[String]>) -> Self {
        Self { redlock: open(urls), names, work: work.clone() }
    }

    fn submit(redlock: &mut Redlock, caller: &mut Caller) -> OpId {
        caller.asked = Instant::now();
        let resource = Resource::new(caller.keys.next_name()).expect("a valid name");
        let ttl = TTL;
        let request = Request::Acquire { resource, options: Options::new().ttl(ttl).wait(WAIT), label: None };
        redlock.submit(request).expect("room for one more")
    }
}

impl Rig for Pipelined {
    fn round(&mut self, limit: Limit) -> Round {
        let start = Instant::now();
        let goes_on = |caller: &Caller| match limit {
            Limit::Time(time) => start.elapsed() < time,
            Limit::Pairs(count) => caller.pairs < count,
        };
        let (redlock, mut under_way) = (&mut self.redlock, HashMap::with_capacity(self.work.callers));
        let callers = (0..self.work.callers).map(|caller| Caller {
            keys: Keys::of(caller, &self.work, &self.names),
            tally: Tally::default(),
            asked: start,
            acquire_time: Duration::ZERO,
            pairs: 0,
        });
        let mut callers: Vec<_> = callers.collect();
        for (index, caller) in callers.iter_mut().enumerate() {
            under_way.insert(Self::submit(redlock, caller), index);
        }
        while !under_way.is_empty() {
            redlock.turn(ANSWER_TIMEOUT).expect("the loop runs");
            while let Some((lock, outcome)) = redlock.poll_outcome() {
                let index = under_way[&lock];
                let caller = &mut callers[index];
                let result = match outcome {
                    Outcome::Acquire(Ok(_)) => {
                        caller.acquire_time = caller.asked.elapsed();
                        let release = Request::Release { lock, awaited: true };
                        redlock.submit(release).expect("a release is always taken");
                        continue;
                    }
                    Outcome::Release(Ok(_)) => Ok(caller.acquire_time),
                    other => Err(format!("{other:?}")),
                };
                caller.tally.note(result);
                caller.pairs += 1;
                under_way.remove(&lock);
                if goes_on(caller) {
                    under_way.insert(Self::submit(redlock, caller), index);
                }
            }
        }
        Tally::sum(callers.into_iter().map(|caller| caller.tally).collect(), start.elapsed())
    }

    fn settle(&mut self) {
        drive(&mut self.redlock);
    }
}

/// `Client`, shared by all callers: clones for threads and for tasks.
#[derive(Clone)]
pub(super) struct Shared(Client);

impl Shared {
    pub(super) fn connect(urls: &[String]) -> Self {
        Self(Client::open(config(urls)).expect("an event loop"))
    }
}

impl BlockingLocks for Shared {
    fn pair(&mut self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let guard = self.0.lock(key).ttl(TTL).wait(WAIT).acquire().map_err(|error| format!("{error:#}"))?;
        let time = asked.elapsed();
        guard.release().map_err(|error| error.to_string())?;
        Ok(time)
    }
}

impl AsyncLocks for Shared {
    async fn pair(&self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let acquiring = self.0.lock(key).ttl(TTL).wait(WAIT).acquire_async();
        let guard = acquiring.await.map_err(|error| format!("{error:#}"))?;
        let time = asked.elapsed();
        guard.release_async().await.map_err(|error| error.to_string())?;
        Ok(time)
    }
}
