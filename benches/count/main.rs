//! The engine alone, counted (`scripts/instructions`):
//!
//! ```text
//! engine_count                      a line for each kind of lock and depth: requests, allocations per pair
//! engine_count KIND DEPTH ROUNDS    runs so many rounds, for callgrind
//! ```

#[path = "../engine_loop.rs"]
mod engine_loop;

use std::alloc::System;

use engine_loop::{EngineLoop, Kind};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MASTER_COUNT: usize = 5;
/// Rounds before those that are counted, so that each buffer has its size; and these.
const WARM_UP_COUNT: usize = 100;
const ROUND_COUNT: usize = 400;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, depth, rounds] = &args[..] else { return print_counts() };
    let number = |text: &String| text.parse().expect("a number");
    let (_, kind) = Kind::ALL.into_iter().find(|(name, _)| name == kind).expect("a kind");
    let mut engine = EngineLoop::new(kind, MASTER_COUNT, number(depth));
    (0..number(rounds)).for_each(|_| engine.pairs());
}

fn print_counts() {
    for (name, kind) in Kind::ALL {
        for depth in [1, 128] {
            let mut engine = EngineLoop::new(kind, MASTER_COUNT, depth);
            (0..WARM_UP_COUNT).for_each(|_| engine.pairs());
            let region = Region::new(COUNTED);
            (0..ROUND_COUNT).for_each(|_| engine.pairs());
            let change = region.change();
            let allocation_count = change.allocations + change.reallocations;
            let of_pair = |count: usize, rounds: usize| count as f64 / (rounds * depth) as f64;
            let requests = of_pair(engine.count_requests(), 1);
            println!("{name} {depth} {requests:.2} {:.2}", of_pair(allocation_count, ROUND_COUNT));
        }
    }
}
