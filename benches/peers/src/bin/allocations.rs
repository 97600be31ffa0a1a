//! Prints a peer's allocations for a given number of pairs by each caller. A separate program, because a
//! counting allocator would slow other peers down.

use std::alloc::System;

use redlatch_peers::child::Job;
use redlatch_peers::load::Limit;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Pairs of each caller that bring buffers and tables to their final size.
const WARM_UP_PAIRS: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [job, pairs] = args.as_slice() else { panic!("allocations JOB PAIRS") };
    let job = Job::from_json(job);
    let mut rig = job.peer.rig(&job.addresses, &job.work);
    rig.round(Limit::Pairs(WARM_UP_PAIRS));
    rig.settle();
    let region = Region::new(COUNTED);
    let round = rig.round(Limit::Pairs(pairs.parse().expect("a number")));
    let change = region.change();
    assert_eq!(round.errors, 0, "{:?}", round.first_error);
    println!("{}", change.allocations + change.reallocations);
    std::process::exit(0); // without the peer's own ceremony
}
