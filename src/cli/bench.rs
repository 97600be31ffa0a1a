//! `redlatch bench`: how fast these masters grant and release locks.
//!
//! One thread keeps `depth` pairs of acquire and release under way over one set of connections, each pair on
//! its own key. The next pair starts when another one ends, so a slow master slows the load down (a closed
//! loop).

mod args;
mod ping;
mod report;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant, SystemTime};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::{AcquireError, HeldLocks, Options, Redlock, ReleaseError};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::exit::{Exit, code};
use super::interrupt::Interrupt;
use super::message::Message;
use super::options::{self, Contradictions};
use super::output::{self, say};
pub(crate) use args::Args;
use report::{Limit, Measured, Progress, Report};

/// Attempts before the measurement, to warm up connections, scripts and caches.
const WARM_UP_COUNT: u64 = 200;

/// Pause between a failed attempt and the next new attempt.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Longest turn of the event loop.
const TURN_LIMIT: Duration = Duration::from_millis(50);

/// Duration of the round-trip measurement.
const PING_TIME: Duration = Duration::from_millis(200);

/// Longest wait at the end for releases under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    args.check()?;
    let config = args.masters.config()?;
    config.ttl(args.ttl)?;
    let interrupt = Interrupt::catch(&[SIGINT, SIGTERM])?;
    let mut redlock = Redlock::open(config)?;
    let mut contradictions = Contradictions::default();
    contradictions.look(&redlock.masters());
    options::wait_for_all(&mut redlock, || interrupt.has_come())?;
    if let Some(code) = interrupt.code() {
        return Ok(code);
    }
    let round_trip = ping::measure(&redlock, PING_TIME);
    let round_trip = round_trip.inspect_err(|exit| say(Message::NoRoundTrip { error: &exit.why })).ok();
    let mut load = Load::new(redlock, args, &interrupt);
    load.run(Limit::Pairs(WARM_UP_COUNT), false)?;
    let limit = args.pairs.map_or(Limit::Time(args.time), Limit::Pairs);
    let measured = load.run(limit, true)?;
    let masters = load.redlock.masters();
    contradictions.look(&masters);
    let left = load.redlock.drain(CLOSE_LIMIT, HeldLocks::Leave);
    if left > 0 {
        say(Message::ReleasesUnconfirmed { left });
    }
    let report = Report { args, masters, round_trip, measured };
    output::print_until(report.text(), || interrupt.has_come())?;
    let done = if report.measured.pairs > 0 { 0 } else { code::NO_QUORUM };
    Ok(interrupt.code().unwrap_or(done))
}

/// Load on the masters: keys, and pairs under way.
struct Load<'a> {
    redlock: Redlock,
    args: &'a Args,
    keys: Vec<String>,
    /// Unused keys. Taken from the front, returned at the back.
    free_keys: VecDeque<usize>,
    flights: HashMap<OpId, Flight>,
    interrupt: &'a Interrupt,
    /// Measurements of the current phase.
    measured: Measured,
    /// When new attempts may start again after a failure.
    resume_at: Instant,
}

/// An acquire or a release under way.
struct Flight {
    key: usize,
    submitted: Instant,
}

impl<'a> Load<'a> {
    fn new(redlock: Redlock, args: &'a Args, interrupt: &'a Interrupt) -> Self {
        let key_count = args.key_count();
        let nanos = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let run = format!("{:x}-{nanos:x}", std::process::id());
        Self {
            redlock,
            args,
            keys: (0..key_count).map(|index| format!("redlatch-bench:{run}:{index}")).collect(),
            free_keys: (0..key_count).collect(),
            flights: HashMap::with_capacity(args.depth),
            interrupt,
            measured: Measured::default(),
            resume_at: Instant::now(),
        }
    }

    /// Keeps the load up until the limit or a signal, then waits for the pairs under way. Shows the progress
    /// if `is_shown`.
    fn run(&mut self, limit: Limit, is_shown: bool) -> io::Result<Measured> {
        let mut progress = Progress { limit, shown_at: Duration::ZERO };
        let start = Instant::now();
        let mut now = start;
        let mut attempts = 0;
        self.resume_at = start;
        loop {
            let is_over = |attempts| self.interrupt.has_come() || limit.is_reached(attempts, now - start);
            if is_over(attempts) && self.flights.is_empty() {
                break;
            }
            while !is_over(attempts) && now >= self.resume_at && self.flights.len() < self.args.depth {
                attempts += 1;
                self.start_pair();
            }
            let pause = self.resume_at.saturating_duration_since(now);
            self.redlock.turn(if pause.is_zero() { TURN_LIMIT } else { pause.min(TURN_LIMIT) })?;
            now = Instant::now();
            while let Some((lock, outcome)) = self.redlock.poll_outcome() {
                self.handle_outcome(now, lock, outcome);
            }
            if is_shown {
                progress.show(now - start, attempts, self.measured.pairs);
            }
        }
        self.measured.elapsed = start.elapsed();
        Ok(std::mem::take(&mut self.measured))
    }

    fn start_pair(&mut self) {
        let Some(key) = self.free_keys.pop_front() else { return };
        let resource = Resource::new(&self.keys[key]).expect("a short name");
        let submitted = Instant::now();
        let options = Options::new().ttl(self.args.ttl);
        let options = if self.args.fair {
            // Nobody else wants the key, so nothing waits. A fair caller without a wait would join no queue.
            options.fair()
        } else {
            options.wait(Duration::ZERO)
        };
        match self.redlock.submit(Request::Acquire { resource, options, label: None }) {
            Ok(lock) => {
                self.flights.insert(lock, Flight { key, submitted });
            }
            Err(error) => {
                self.measured.note_error("overloaded", &error);
                self.free_keys.push_back(key);
                self.resume_at = submitted + PAUSE_AFTER_FAILURE;
            }
        }
    }

    /// `now` must be read after the turn that brought the outcome.
    fn handle_outcome(&mut self, now: Instant, lock: OpId, outcome: Outcome) {
        let Some(Flight { key, submitted }) = self.flights.remove(&lock) else { return };
        let took = now - submitted;
        match outcome {
            Outcome::Acquire(Ok(_)) => {
                self.measured.acquire.record(took);
                let submitted = Instant::now();
                let awaited = !self.args.no_await_release;
                let released = self.redlock.submit(Request::Release { lock, awaited });
                assert!(released.is_ok(), "a release is always taken");
                if awaited {
                    self.flights.insert(lock, Flight { key, submitted });
                    return;
                }
                self.measured.pairs += 1;
            }
            Outcome::Release(Ok(_)) => {
                self.measured.release.record(took);
                self.measured.pairs += 1;
            }
            Outcome::Acquire(Err(error)) => {
                self.measured.note_error(kind_of(&error), &error);
                self.resume_at = now + PAUSE_AFTER_FAILURE;
            }
            Outcome::Release(Err(error)) => {
                let kind = match error {
                    ReleaseError::Unconfirmed(_) => "release unconfirmed",
                    _ => "stopped",
                };
                self.measured.note_error(kind, &error);
                self.resume_at = now + PAUSE_AFTER_FAILURE;
            }
            _ => unreachable!("nothing else was asked for"),
        }
        self.free_keys.push_back(key);
    }
}

const fn kind_of(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::Contended(_) => "contended",
        AcquireError::NoQuorum(_) => "no quorum",
        AcquireError::Expired(_) => "expired",
        AcquireError::Overloaded => "overloaded",
        AcquireError::Input(_) => "input",
        _ => "stopped",
    }
}
