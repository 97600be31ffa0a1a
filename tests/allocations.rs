//! `Redlock` allocates nothing for a lock once it has been warmed up.

#[path = "masters/fleet.rs"]
mod fleet;

use std::alloc::System;
use std::time::Duration;

use fleet::Fleet;
use redlatch::engine::{OpId, Outcome, Request};
use redlatch::lock::Resource;
use redlatch::{Config, Quarantine, Redlock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_pair_allocates_nothing_in_steady_state() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let mut redlock = Redlock::open(config.build().expect("valid")).expect("an event loop");
    raise_high_water_mark(&mut redlock);
    for is_awaited in [true, false] {
        let mut pairs = |count| {
            for _ in 0..count {
                let mut lease = redlock.acquire("orders:42", TTL, PATIENCE).expect("free");
                redlock.extend(&mut lease, TTL).expect("held");
                if is_awaited {
                    redlock.release(lease).expect("confirmed");
                } else {
                    drop(lease);
                }
            }
        };
        pairs(100);
        let region = Region::new(COUNTED);
        pairs(1000);
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "awaited: {is_awaited}, {change:?}");
    }
    let first = submit(&mut redlock);
    let mut held = pass_on(&mut redlock, first, 100);
    let region = Region::new(COUNTED);
    held = pass_on(&mut redlock, held, 1000);
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "handed over, {change:?}");
    redlock.submit(Request::Release { lock: held, awaited: false }).expect("always taken");
    // The check can fail: an allocation is seen.
    let region = Region::new(COUNTED);
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(region.change().allocations, 1);
}

fn submit(redlock: &mut Redlock) -> OpId {
    let ttl = redlock.ttl(TTL).expect("valid");
    let resource = Resource::new("orders:42").expect("valid");
    let request = Request::Acquire { resource, ttl, wait: PATIENCE, min_validity: Duration::ZERO };
    redlock.submit(request).expect("room")
}

/// The lock passes from caller to caller, from the `first` on, with always one more in line. Returns the last one.
fn pass_on(redlock: &mut Redlock, first: OpId, count: usize) -> OpId {
    let mut last = first;
    for _ in 0..count {
        let next = submit(redlock);
        while redlock.poll_outcome().is_none_or(|(lock, _)| lock != last) {
            redlock.turn(PATIENCE).expect("the loop runs");
        }
        redlock.submit(Request::Release { lock: last, awaited: false }).expect("always taken");
        last = next;
    }
    last
}

/// More locks at once than the measured pairs have commands: a slow minority may lag behind by all of them.
fn raise_high_water_mark(redlock: &mut Redlock) {
    let ttl = redlock.ttl(TTL).expect("valid");
    let names: Vec<String> = (0..5000).map(|index| format!("warm:{index}")).collect();
    for name in &names {
        let (resource, wait) = (Resource::new(name).expect("valid"), Duration::ZERO);
        redlock.submit(Request::Acquire { resource, ttl, wait, min_validity: wait }).expect("room");
    }
    let mut released_count = 0;
    while released_count < names.len() {
        redlock.turn(PATIENCE).expect("the loop runs");
        while let Some((lock, outcome)) = redlock.poll_outcome() {
            match outcome {
                Outcome::Acquire(Ok(_)) => {
                    redlock.submit(Request::Release { lock, awaited: true }).expect("always taken");
                }
                Outcome::Release(Ok(_)) => released_count += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}
