//! `redlatch bench`: how fast these masters grant and release locks.
//!
//! One thread keeps `depth` pairs of acquire and release under way over one set of connections, each on a key
//! of its own. A pair's acquire starts when its slot is free, so a slow master slows the load down too (a
//! closed loop).

mod ping;
mod report;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use redlatch::engine::{OpId, Outcome, Request, Resource, quorum};
use redlatch::internals::env::parse_time;
use redlatch::stats::Histogram;
use redlatch::status::MasterState;
use redlatch::{AcquireError, HeldLocks, Options, Redlock, ReleaseError, limits};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::exit::{Exit, code};
use super::interrupt::Interrupt;
use super::message::Message;
use super::options::{self, Enough, MasterOptions, check_bounds, check_time};
use super::output::{self, say};
use report::{Progress, Report};

/// Measure acquire and release pairs per second, and their latency.
///
/// Acquires and releases locks on keys of its own for five seconds, unless an option says otherwise, and
/// shows percentiles of the latency beside the round trip of a PING in the same run. A percentile is at most
/// an eighth too long; mean and maximum are exact. Loads the masters: not for busy ones.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Pairs under way at the same time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    depth: usize,

    /// Different locks to use in turn [default: four times the depth, at least 1000].
    #[arg(long, value_name = "COUNT")]
    keys: Option<usize>,

    /// Stop after this many attempts.
    #[arg(long, value_name = "COUNT", conflicts_with = "time")]
    pairs: Option<u64>,

    /// Stop after this time.
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    time: Duration,

    /// The locks' TTL; at most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    ttl: Duration,

    /// Do not wait for the answers to releases; they go out in one write with the next acquire.
    #[arg(long)]
    no_await_release: bool,

    /// Ask for fair locks.
    #[arg(long)]
    fair: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  0 if at least one pair succeeded, 64 bad usage, 69 if none did or too few masters can grant,
  70 if the operating system refused something, 130 after Ctrl-C, 143 after SIGTERM

Examples:
  redlatch bench -m redis://a,redis://b,redis://c                  one lock after the other: the latency
  redlatch bench --depth 64 --no-await-release --pairs 1000000     many at once: the throughput
  redlatch bench --json --time 2s | jq .acquire_us.p99";

/// The most pairs under way: releases that a master still owes need room besides.
const DEPTH_MAX: usize = limits::OPERATION_COUNT_MAX / 4;

/// The most keys: each keeps its name in memory.
const KEY_COUNT_MAX: usize = 10_000_000;

/// Attempts before the measurement, which nothing is counted of: connections, scripts and caches get warm.
const WARM_UP_COUNT: u64 = 200;

/// How long no new attempts start after one that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// How long one turn of the event loop lasts at most.
const TURN_LIMIT: Duration = Duration::from_millis(50);

/// How long the round trip is measured.
const PING_TIME: Duration = Duration::from_millis(200);

/// How long the end waits for releases that are under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Runs the subcommand; the result is the program's exit code.
pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let key_count = args.keys.unwrap_or((args.depth.saturating_mul(4)).max(1000));
    check(args, key_count)?;
    let config = args.masters.config(|builder| builder)?;
    config.ttl(args.ttl)?;
    let interrupt = Interrupt::catch(&[SIGINT, SIGTERM])?;
    let mut redlock = Redlock::open(config)?;
    options::wait_for_masters(&mut redlock, Enough::All, true, || interrupt.has_come())?;
    if let Some(code) = interrupt.code() {
        return Ok(code);
    }
    let round_trip = ping::measure(&redlock, PING_TIME);
    let round_trip = round_trip.inspect_err(|exit| say(Message::NoRoundTrip { error: &exit.why })).ok();
    let mut load = Load::new(redlock, args, key_count, interrupt.clone());
    load.run(Limit::Pairs(WARM_UP_COUNT), &mut Progress::hidden())?;
    let limit = args.pairs.map_or(Limit::Time(args.time), Limit::Pairs);
    let measured = load.run(limit, &mut Progress::new(limit))?;
    let masters = load.redlock.masters();
    let left = load.redlock.drain(CLOSE_LIMIT, HeldLocks::Leave);
    if left > 0 {
        say(Message::ReleasesUnconfirmed { left });
    }
    let report = Report {
        master_count: masters.len(),
        ready_count: masters.iter().filter(|master| master.state == MasterState::Ready).count(),
        quorum: quorum(masters.len()),
        depth: args.depth,
        key_count,
        ttl: args.ttl,
        awaits_release: !args.no_await_release,
        fair: args.fair,
        round_trip,
        measured,
    };
    output::print_until(report.text(args.json), &interrupt)?;
    let done = if report.measured.pairs > 0 { 0 } else { code::NO_QUORUM };
    Ok(interrupt.code().unwrap_or(done))
}

fn check(args: &Args, key_count: usize) -> Result<(), Exit> {
    let Args { depth, pairs, time, .. } = args;
    check_bounds("--depth", *depth, 1, DEPTH_MAX)?;
    // No two pairs share a key.
    check_bounds("--keys", key_count, *depth, KEY_COUNT_MAX)?;
    check_bounds("--pairs", pairs.unwrap_or(1), 1, u64::MAX)?;
    check_time("--time", *time)
}

/// When a phase ends.
#[derive(Debug, Clone, Copy)]
enum Limit {
    Pairs(u64),
    Time(Duration),
}

/// Measurements of one phase.
#[derive(Default)]
struct Measured {
    acquire: Histogram,
    release: Histogram,
    pairs: u64,
    elapsed: Duration,
    /// How often each kind of error came, and the first of them in words.
    errors: BTreeMap<&'static str, (u64, String)>,
}

impl Measured {
    fn note_error(&mut self, kind: &'static str, error: &dyn fmt::Display) {
        self.errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
    }
}

/// The load on the masters: its keys, and the pairs under way.
struct Load {
    redlock: Redlock,
    ttl: Duration,
    depth: usize,
    awaits_release: bool,
    fair: bool,
    keys: Vec<String>,
    /// Keys that no pair uses; taken from the front, given back at the end.
    free_keys: VecDeque<usize>,
    flights: HashMap<OpId, Flight>,
    interrupt: Interrupt,
}

/// An acquire or a release under way.
struct Flight {
    key: usize,
    submitted: Instant,
}

impl Load {
    fn new(redlock: Redlock, args: &Args, key_count: usize, interrupt: Interrupt) -> Self {
        let nanos = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let run = format!("{:x}-{nanos:x}", std::process::id());
        Self {
            redlock,
            ttl: args.ttl,
            depth: args.depth,
            awaits_release: !args.no_await_release,
            fair: args.fair,
            keys: (0..key_count).map(|index| format!("redlatch-bench:{run}:{index}")).collect(),
            free_keys: (0..key_count).collect(),
            flights: HashMap::with_capacity(args.depth),
            interrupt,
        }
    }

    /// Keeps the load up until the limit or a signal, then lets what is under way end.
    fn run(&mut self, limit: Limit, progress: &mut Progress) -> io::Result<Measured> {
        let mut measured = Measured::default();
        let start = Instant::now();
        let mut now = start;
        let mut attempts = 0;
        let mut resume_at = start;
        loop {
            let is_over = self.interrupt.has_come()
                || match limit {
                    Limit::Pairs(count) => attempts >= count,
                    Limit::Time(time) => now - start >= time,
                };
            if is_over && self.flights.is_empty() {
                break;
            }
            while !is_over && now >= resume_at && self.flights.len() < self.depth {
                if matches!(limit, Limit::Pairs(count) if attempts >= count) {
                    break;
                }
                attempts += 1;
                self.start_pair(&mut measured, &mut resume_at);
            }
            let pause = resume_at.saturating_duration_since(now);
            self.redlock.turn(if pause.is_zero() { TURN_LIMIT } else { pause.min(TURN_LIMIT) })?;
            now = Instant::now();
            while let Some((lock, outcome)) = self.redlock.poll_outcome() {
                self.handle_outcome(now, lock, outcome, &mut measured, &mut resume_at);
            }
            progress.show(now - start, attempts, measured.pairs);
        }
        measured.elapsed = start.elapsed();
        Ok(measured)
    }

    fn start_pair(&mut self, measured: &mut Measured, resume_at: &mut Instant) {
        let Some(key) = self.free_keys.pop_front() else { return };
        let resource = Resource::new(&self.keys[key]).expect("a short name");
        let submitted = Instant::now();
        let options = Options::new().ttl(self.ttl);
        let options = if self.fair {
            // Nobody else wants it. A caller that does not wait would have no place in a queue.
            options.fair()
        } else {
            options.wait(Duration::ZERO)
        };
        match self.redlock.submit(Request::Acquire { resource, options, label: None }) {
            Ok(lock) => {
                self.flights.insert(lock, Flight { key, submitted });
            }
            Err(error) => {
                measured.note_error("overloaded", &error);
                self.free_keys.push_back(key);
                *resume_at = submitted + PAUSE_AFTER_FAILURE;
            }
        }
    }

    /// `now` was read after the turn that brought the outcome.
    fn handle_outcome(
        &mut self,
        now: Instant,
        lock: OpId,
        outcome: Outcome,
        measured: &mut Measured,
        resume_at: &mut Instant,
    ) {
        let Some(Flight { key, submitted }) = self.flights.remove(&lock) else { return };
        let took = now - submitted;
        match outcome {
            Outcome::Acquire(Ok(_)) => {
                measured.acquire.record(took);
                let submitted = Instant::now();
                let awaited = self.awaits_release;
                let released = self.redlock.submit(Request::Release { lock, awaited });
                assert!(released.is_ok(), "a release is always taken");
                if awaited {
                    self.flights.insert(lock, Flight { key, submitted });
                    return;
                }
                measured.pairs += 1;
            }
            Outcome::Release(Ok(_)) => {
                measured.release.record(took);
                measured.pairs += 1;
            }
            Outcome::Acquire(Err(error)) => {
                measured.note_error(kind_of(&error), &error);
                *resume_at = now + PAUSE_AFTER_FAILURE;
            }
            Outcome::Release(Err(error)) => {
                measured.note_error(
                    match error {
                        ReleaseError::Unconfirmed(_) => "release unconfirmed",
                        _ => "stopped",
                    },
                    &error,
                );
                *resume_at = now + PAUSE_AFTER_FAILURE;
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
