//! The simulator: whole clients against model masters on a virtual clock, with everything that can go wrong.
//!
//! One seed is one history. To run more, or others, than the test does:
//!
//! ```text
//! REDLATCH_SEEDS=0..20000 cargo test --profile sim --test sim histories -- --nocapture
//! REDLATCH_SEED=4711      cargo test --profile sim --test sim replay -- --nocapture      with a trace
//! ```

mod checker;
mod client;
mod clock;
mod directed;
mod faults;
mod history;
mod model;
#[cfg(redlatch_mutants)]
mod mutants;
mod network;
mod world;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Histories of a plain `cargo test`.
const SEEDS: Range<u64> = 0..300;
/// Lines of a failing history that are shown.
const TRACE_SHOWN: usize = 150;

#[test]
fn histories_keep_every_rule() {
    let seeds = match std::env::var("REDLATCH_SEEDS") {
        Ok(text) => range(&text).expect("REDLATCH_SEEDS is FIRST..END"),
        Err(_) => SEEDS,
    };
    let start = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new((0_u64, Duration::ZERO));
    let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let report = history::run(seed, false);
                    if let Some(violation) = report.violation {
                        fail(seed, &violation);
                    }
                    let mut total = total.lock().expect("no panic");
                    total.0 += 1;
                    total.1 += Duration::from_nanos(report.statistics.simulated);
                }
            });
        }
    });
    let (count, simulated) = total.into_inner().expect("no panic");
    let took = start.elapsed();
    println!("{count} histories, {simulated:?} simulated in {took:?}");
    assert_eq!(count, seeds.end - seeds.start);
}

#[test]
fn replay() {
    if let Ok(seed) = std::env::var("REDLATCH_SEED") {
        let seed = seed.parse().expect("REDLATCH_SEED is a number");
        let report = history::run(seed, true);
        report.trace.iter().for_each(|line| println!("{line}"));
        println!("{:?}", report.statistics);
        assert_eq!(report.violation, None);
    }
}

fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

fn fail(seed: u64, violation: &str) -> ! {
    let trace = history::run(seed, true).trace;
    let shown = trace[trace.len().saturating_sub(TRACE_SHOWN)..].join("\n");
    panic!(
        "{shown}\n\nseed {seed}: {violation}\nreplay with: REDLATCH_SEED={seed} cargo test --profile sim --test sim replay -- --nocapture"
    );
}
