//! Counts the engine alone, and a client over TLS (`scripts/instructions`):
//!
//! ```text
//! engine_count                      a line for each kind of lock and depth: requests, allocations per pair
//! engine_count KIND DEPTH ROUNDS    runs this many rounds, for callgrind
//! ```

#[path = "../engine_loop.rs"]
mod engine_loop;
mod tls;

use std::alloc::System;

use engine_loop::{EngineLoop, Kind};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tls::TlsLoop;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TLS: &str = "tls";
const MASTER_COUNT: usize = 5;
/// Rounds before the counted ones, which bring buffers to their final size; and counted rounds.
const WARM_UP_COUNT: usize = 100;
const ROUND_COUNT: usize = 400;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, depth, rounds] = &args[..] else { return print_counts() };
    let number = |text: &String| text.parse().expect("a number");
    if kind == TLS {
        let mut client = TlsLoop::new(number(depth));
        return (0..number(rounds)).for_each(|_| client.pairs());
    }
    let (_, kind) = Kind::ALL.into_iter().find(|(name, _)| name == kind).expect("a kind");
    let mut engine = EngineLoop::new(kind, MASTER_COUNT, number(depth));
    (0..number(rounds)).for_each(|_| engine.pairs());
}

fn print_counts() {
    for (name, kind) in Kind::ALL {
        for depth in [1, 128] {
            let mut engine = EngineLoop::new(kind, MASTER_COUNT, depth);
            let allocations = allocations(depth, || engine.pairs());
            let requests = engine.count_requests() as f64 / depth as f64;
            println!("{name} {depth} {requests:.2} {allocations:.2}");
        }
    }
    for depth in [1, 128] {
        let mut client = TlsLoop::new(depth);
        let allocations = allocations(depth, || client.pairs());
        println!("{TLS} {depth} 2.00 {allocations:.2}"); // an attempt and a release, to one master
    }
}

/// Allocations for each pair.
fn allocations(depth: usize, mut pairs: impl FnMut()) -> f64 {
    (0..WARM_UP_COUNT).for_each(|_| pairs());
    let region = Region::new(COUNTED);
    (0..ROUND_COUNT).for_each(|_| pairs());
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / (ROUND_COUNT * depth) as f64
}
