//! Acquire and release pairs through `Redlock`, one at a time or many in flight.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::{Config, ConfigBuilder, Options, Quarantine, Redlock};

const TTL: Duration = Duration::from_secs(10);
/// Far longer than a noisy machine delays an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A client, and the names of the locks that it acquires in turn.
pub(crate) struct LockLoop {
    pub(crate) redlock: Redlock,
    names: Vec<String>,
    /// Index of the next name. The names repeat, so that the masters' tables do not grow.
    next_name: usize,
}

impl LockLoop {
    pub(crate) fn connect(urls: &[String], key_count: usize) -> Self {
        Self::connect_with(urls, key_count, |config| config)
    }

    /// Like [`Self::connect`], with more settings.
    pub(crate) fn connect_with(
        urls: &[String],
        key_count: usize,
        more: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
    ) -> Self {
        let config =
            Config::builder().masters(urls).quarantine(Quarantine::Trust).answer_timeout(ANSWER_TIMEOUT);
        let redlock = Redlock::open(more(config).build().expect("valid settings")).expect("an event loop");

        // Names of the raw loop's length, but distinct: a slow minority may still have to delete the others.
        let names = (0..key_count).map(|index| format!("locks:{index}")).collect();
        Self { redlock, names, next_name: 0 }
    }

    /// One lock at a time. Each release is awaited, or sent together with the next acquisition.
    pub(crate) fn blocking_pairs(&mut self, pair_count: usize, is_awaited: bool) -> Duration {
        let start = Instant::now();
        for _ in 0..pair_count {
            let lock = self.acquire_next();
            if is_awaited {
                self.release(lock);
            } else {
                self.redlock.submit(Request::Release { lock, awaited: false }).expect("always taken");
            }
        }
        start.elapsed()
    }

    /// Durations of this many acquisitions; awaits each release.
    pub(crate) fn acquire_times(&mut self, count: usize) -> Vec<Duration> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let lock = self.acquire_next();
            times.push(start.elapsed());
            self.release(lock);
        }
        times
    }

    /// Acquires the next lock, and waits for it.
    pub(crate) fn acquire_next(&mut self) -> OpId {
        let lock = self.submit_next(Options::new().ttl(TTL).wait(Duration::ZERO));
        let outcome = self.outcome();
        assert!(matches!(outcome, Outcome::Acquire(Ok(_))), "{outcome:?}");
        lock
    }

    /// Releases a lock, and waits until the masters confirm it.
    pub(crate) fn release(&mut self, lock: OpId) {
        self.redlock.submit(Request::Release { lock, awaited: true }).expect("a release is always taken");
        let outcome = self.outcome();
        assert!(matches!(outcome, Outcome::Release(Ok(_))), "{outcome:?}");
    }

    /// Extends a lock, and waits for the outcome.
    pub(crate) fn extend(&mut self, lock: OpId) {
        self.redlock.submit(Request::Extend { lock, ttl: TTL }).expect("room for one more");
        let outcome = self.outcome();
        assert!(matches!(outcome, Outcome::Extend(Ok(_))), "{outcome:?}");
    }

    /// The outcome of the only request.
    fn outcome(&mut self) -> Outcome {
        loop {
            match self.redlock.poll_outcome() {
                Some((_, outcome)) => return outcome,
                None => self.redlock.turn(ANSWER_TIMEOUT).expect("the loop runs"),
            }
        }
    }

    /// `depth` locks in flight at any time, each released as soon as it is held. Needs more names than
    /// `depth`.
    pub(crate) fn pipelined_pairs(&mut self, pair_count: usize, depth: usize) -> Duration {
        self.pipelined_pairs_with(pair_count, depth, Options::new().ttl(TTL).wait(Duration::ZERO))
    }

    /// Like [`LockLoop::pipelined_pairs`], for locks of any kind.
    pub(crate) fn pipelined_pairs_with(
        &mut self,
        pair_count: usize,
        depth: usize,
        options: Options,
    ) -> Duration {
        let start = Instant::now();
        for _ in 0..depth.min(pair_count) {
            self.submit_next(options);
        }
        let (mut submitted_count, mut done_count) = (depth.min(pair_count), 0);
        while done_count < pair_count {
            self.redlock.turn(ANSWER_TIMEOUT).expect("the loop runs");
            while let Some((lock, outcome)) = self.redlock.poll_outcome() {
                match outcome {
                    Outcome::Acquire(Ok(_)) => {
                        let release = Request::Release { lock, awaited: true };
                        self.redlock.submit(release).expect("a release is always taken");
                    }
                    Outcome::Release(Ok(_)) => {
                        done_count += 1;
                        if submitted_count < pair_count {
                            submitted_count += 1;
                            self.submit_next(options);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        start.elapsed()
    }

    fn submit_next(&mut self, options: Options) -> OpId {
        let resource = Resource::new(&self.names[self.next_name]).expect("a valid name");
        self.next_name = (self.next_name + 1) % self.names.len();
        self.redlock.submit(Request::Acquire { resource, options, label: None }).expect("room for one more")
    }
}
