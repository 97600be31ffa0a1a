//! The simulator: whole clients against model masters on a virtual clock, with everything that can go wrong.
//!
//! One seed is one history. CONTRIBUTING.md says how to replay one.
//!
//! ```text
//! history   seed -> participants and faults               directed   schedules that seeds rarely meet
//!    │                                                       │         mutants: the planted bugs that they find
//! faults, world ── turn ──────────── application ── tasks    │
//!    │               a client's steps   its requests, to an engine or by a `Client`
//!    │                                  queries, sets, slots, owners   other requests
//! server ── src/testing/model   a master    network ── bytes under way     clock ── true and shown time
//!   └── lua    the real scripts             scripts ── compared with the model   breaks ── one change each
//!                                           table ── scripts without a Rust model
//! judge ── checker   what is true, and what the callers got
//! ```

// A simulated client has a drive, which needs Unix.
#![cfg(unix)]

/// Makes each schedule a test.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        mod tests {
            $(#[test] fn $name() { assert_eq!(super::$name(), Ok(())); })*
        }

        /// All schedules.
        #[allow(dead_code, reason = "not all are run with scripts that are broken")]
        pub const ALL: &[fn() -> crate::directed::Verdict] = &[$($name),*];
    };
}

mod application;
mod breaks;
mod checker;
mod client;
mod clock;
mod defects;
mod directed;
mod faults;
mod handles;
mod history;
mod judge;
mod lua;
mod network;
mod owners;
mod parked;
mod parked_tests;
mod queries;
mod scripts;
mod server;
mod sets;
mod slots;
mod sockets;
mod table;
mod tasks;
mod turn;
mod world;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use history::Report;
use redlatch_testing::model;
use world::Statistics;

/// Seeds of a plain `cargo test`; `REDLATCH_SEEDS=0..2500` replaces them.
const SEEDS: Range<u64> = 0..300;
/// Seeds for histories with the real scripts; `REDLATCH_LUA_SEEDS` replaces them. `REDLATCH_SCRIPTS=lua` replays one.
const LUA_SEEDS: Range<u64> = 0..40;
/// Lines shown of a failing history.
const TRACE_SHOWN: usize = 150;
/// Pause between progress lines of a long run.
const PROGRESS_PAUSE: Duration = Duration::from_secs(10);

// I23, I37, I43, I45, I46, I48, I57, I94, I131, I141
#[test]
fn histories_keep_every_rule() {
    let seeds = seeds("REDLATCH_SEEDS", SEEDS);
    let total = Run::new(seeds.clone(), None, Scripts::Models).go();
    assert_eq!(total.history_count, seeds.end - seeds.start);
    // A few histories on request need not meet every fault.
    if total.history_count >= SEEDS.end {
        assert_coverage(&total);
    }
}

/// Masters with a real Lua give the same history, to the byte, as masters with models of the scripts.
#[test]
fn the_scripts_themselves_give_the_same_histories() {
    let seeds = seeds("REDLATCH_LUA_SEEDS", LUA_SEEDS);
    let total = Run::new(seeds.clone(), None, Scripts::Themselves).go();
    assert_eq!(total.history_count, seeds.end - seeds.start);
}

/// `scripts/soak` sets the time; otherwise this does nothing.
#[test]
fn soak() {
    let Ok(seconds) = std::env::var("REDLATCH_SOAK_SECONDS") else { return };
    let limit = Duration::from_secs(seconds.parse().expect("REDLATCH_SOAK_SECONDS is a number"));
    let first = match std::env::var("REDLATCH_SEED") {
        Ok(seed) => seed.parse().expect("REDLATCH_SEED is a number"),
        // Other seeds every time.
        Err(_) => RandomState::new().hash_one(0) >> 16,
    };
    println!("histories from seed {first} on, for {limit:?}");
    let total = Run::new(first..u64::MAX, Some(limit), Scripts::Models).go();
    total.print();
    assert!(total.history_count > 0);
}

#[test]
fn replay() {
    let Ok(seed) = std::env::var("REDLATCH_SEED") else { return };
    let is_lua = std::env::var("REDLATCH_SCRIPTS").is_ok_and(|scripts| scripts == "lua");
    let scripts = if is_lua { Scripts::Themselves } else { Scripts::Models };
    let report = scripts.run(seed.parse().expect("REDLATCH_SEED is a number"), true);
    report.trace.iter().for_each(|line| println!("{line}"));
    assert_eq!(report.violation, None);
}

// I25
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let mut before = None;
    for seed in 0..20 {
        let digest = history::run(seed, false).digest;
        assert_eq!(digest, history::run(seed, true).digest, "seed {seed}");
        assert_ne!(before, Some(digest), "seed {seed} is like the one before");
        before = Some(digest);
    }
}

/// A check that no fault ever reaches proves nothing.
fn assert_coverage(total: &Total) {
    for (_, name) in history::FAULTS {
        assert!(total.statistics.faults.contains_key(name), "never: {name}");
    }
    let calls = total.statistics.calls.len();
    assert_eq!(calls, 14, "not everything was done with callers: {:?}", total.statistics.calls);
    for state in ["down", "connecting", "ready", "quarantined", "silent"] {
        let is_seen = total.statistics.link_steps.keys().any(|(_, to)| *to == state);
        assert!(is_seen, "no link was ever {state}");
    }
    let answers = [
        "acquired",
        "contended",
        "no quorum",
        "extended",
        "lost",
        "not extended",
        "released",
        "handed over",
        "woken by a message",
        "acquired with a fencing token",
        "acquired by a reader",
        "set acquired",
        "set denied",
        "set given up",
        "set waits for the lock in its way",
        "taken again",
        "hold fetched too late",
        "inspected",
        "unlocked by force",
        "paused",
        "acquired fairly",
        "acquired fairly after a wait",
    ];
    for name in answers {
        assert!(total.statistics.outcomes.contains_key(name), "never: {name}");
    }
}

/// How masters run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scripts {
    Models,
    /// With a real Lua. A history that differs from the models' is a violation.
    Themselves,
}

impl Scripts {
    fn run(self, seed: u64, is_traced: bool) -> Report {
        if self == Self::Models {
            return history::run(seed, is_traced);
        }
        let mut report = lua::with_lua(|| history::run(seed, is_traced));
        if report.digest != history::run(seed, false).digest {
            let why = "the scripts give another history than their models";
            report.violation.get_or_insert_with(|| why.to_owned());
        }
        report
    }
}

/// Histories on all cores.
struct Run {
    next: AtomicU64,
    end: u64,
    start: Instant,
    limit: Option<Duration>,
    scripts: Scripts,
    total: Mutex<Total>,
}

#[derive(Default)]
struct Total {
    history_count: u64,
    took: Duration,
    shown_at: Duration,
    statistics: Statistics,
    /// Digest of all results in any order: equal unless some history differs.
    digest: u64,
}

impl Run {
    fn new(seeds: Range<u64>, limit: Option<Duration>, scripts: Scripts) -> Self {
        let (next, total) = (AtomicU64::new(seeds.start), Mutex::default());
        Self { next, end: seeds.end, start: Instant::now(), limit, scripts, total }
    }

    fn go(self) -> Total {
        let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..thread_count).for_each(|_| drop(scope.spawn(|| self.work()))));
        let mut total = self.total.into_inner().expect("no thread panicked");
        total.took = self.start.elapsed();
        println!("{}; digest {:016x}", total.summary(), total.digest);
        total
    }

    fn work(&self) {
        while self.limit.is_none_or(|limit| self.start.elapsed() < limit) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            let report = self.scripts.run(seed, false);
            if let Some(violation) = report.violation {
                self.fail(seed, &violation);
            }
            let mut total = self.total.lock().expect("no thread panicked");
            total.add(seed, &report);
            total.took = self.start.elapsed();
            if total.took >= total.shown_at + PROGRESS_PAUSE {
                total.shown_at = total.took;
                eprintln!("{}", total.summary());
            }
        }
    }

    fn fail(&self, seed: u64, violation: &str) -> ! {
        let trace = self.scripts.run(seed, true).trace;
        let shown = trace[trace.len().saturating_sub(TRACE_SHOWN)..].join("\n");
        let scripts = if self.scripts == Scripts::Themselves { "REDLATCH_SCRIPTS=lua " } else { "" };
        panic!(
            "{shown}\n\nseed {seed}: {violation}\nreplay with: \
             {scripts}REDLATCH_SEED={seed} scripts/defects test --test sim replay -- --nocapture"
        );
    }
}

impl Total {
    fn add(&mut self, seed: u64, report: &Report) {
        self.history_count += 1;
        let (own, other) = (&mut self.statistics, &report.statistics);
        let Statistics { faults, link_steps, outcomes, calls, guard_count, void_count, .. } = other;
        let mut hasher = DefaultHasher::new();
        (seed, report.digest, faults, link_steps, outcomes, calls, guard_count, void_count).hash(&mut hasher);
        self.digest = self.digest.wrapping_add(hasher.finish());
        own.simulated += other.simulated;
        own.event_count += other.event_count;
        own.guard_count += other.guard_count;
        own.void_count += other.void_count;
        add_counts(&mut own.faults, &other.faults);
        add_counts(&mut own.link_steps, &other.link_steps);
        add_counts(&mut own.outcomes, &other.outcomes);
        add_counts(&mut own.calls, &other.calls);
    }

    fn summary(&self) -> String {
        let seconds = self.took.as_secs_f64();
        let simulated = Duration::from_nanos(self.statistics.simulated).as_secs_f64();
        format!(
            "{} histories in {seconds:.0} s: {:.0} a second; {simulated:.0} s simulated, {:.0} times real time",
            self.history_count,
            f64::from(u32::try_from(self.history_count).unwrap_or(u32::MAX)) / seconds,
            simulated / seconds,
        )
    }

    fn print(&self) {
        let Statistics { event_count, guard_count, void_count, .. } = &self.statistics;
        println!(
            "\n{event_count} events, {guard_count} locks held, {void_count} of them beyond what is promised"
        );
        println!("\nfaults");
        self.statistics.faults.iter().for_each(|(name, count)| println!("{count:>10}  {name}"));
        println!("\nanswers");
        self.statistics.outcomes.iter().for_each(|(name, count)| println!("{count:>10}  {name}"));
        println!("\ncallers");
        self.statistics.calls.iter().for_each(|(name, count)| println!("{count:>10}  {name}"));
        println!("\nlinks, as seen after one turn in ten");
        for ((from, to), count) in &self.statistics.link_steps {
            println!("{count:>10}  {from} -> {to}");
        }
    }
}

fn add_counts<K: Ord + Copy>(own: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>) {
    other.iter().for_each(|(name, count)| *own.entry(*name).or_default() += count);
}

fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

fn seeds(variable: &str, default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(variable) else { return default };
    range(&text).unwrap_or_else(|| panic!("{variable} is FIRST..END"))
}
