//! Overload: the error comes at once, and no request waits unseen.

use std::time::{Duration, Instant};

use redlatch::error::LockReentrantError;
use redlatch::{AcquireError, limits};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on};

use crate::harness::{LONG, TTL, assert_nothing_left, open, poll_once};

/// Well below the masters' answer limit.
const PROMPT: Duration = Duration::from_secs(10);

// I130, I154
#[test]
fn bytes_beyond_the_queues_are_overload_at_once() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    fleet.masters().for_each(|master| master.stop());
    let width = limits::RESOURCE_SIZE_MAX;
    let names: Vec<String> = (0..20_000).map(|index| format!("{index:0width$}")).collect();
    let begun = Instant::now();
    let mut taken = Vec::new();
    for name in &names {
        let mut acquiring = client.lock(name).ttl(TTL).wait(PATIENCE).acquire_async();
        match poll_once(&mut acquiring) {
            std::task::Poll::Pending => taken.push(acquiring),
            std::task::Poll::Ready(Err(AcquireError::Overloaded)) => break,
            std::task::Poll::Ready(other) => panic!("{other:?}"),
        }
    }
    assert!((1000..names.len()).contains(&taken.len()), "{} taken", taken.len());
    // A name for which nobody waits: a caller would otherwise join its queue inside the client.
    let [.., other, _, _, _] = names.as_slice() else { panic!("there are more") };
    let others = &names[names.len() - 3..];
    // Each kind of request gets the error, and no thread is put to sleep.
    assert!(matches!(client.lock(other).wait(PATIENCE).acquire(), Err(AcquireError::Overloaded)));
    let batch = client.acquire_all(others.iter().map(|name| client.lock(name).wait(PATIENCE)));
    assert!(batch.into_iter().all(|it| matches!(it.block(), Err(AcquireError::Overloaded))));
    let request = || client.lock_owned(other.clone()).wait(PATIENCE);
    assert!(matches!(block_on(request().acquire_async()), Err(AcquireError::Overloaded)));
    assert!(matches!(request().fair().acquire(), Err(AcquireError::Overloaded)));
    assert!(matches!(request().shared().acquire(), Err(AcquireError::Overloaded)));
    let overloaded = LockReentrantError::Acquire(AcquireError::Overloaded);
    assert_eq!(request().reentrant().lock().map(drop), Err(overloaded.clone()));
    assert_eq!(block_on(request().reentrant().lock_async()).map(drop), Err(overloaded));
    let set = || client.lock_set([other]).wait(PATIENCE);
    assert!(set().acquire().is_err_and(|error| error.source == AcquireError::Overloaded));
    assert!(block_on(set().acquire_async()).is_err_and(|error| error.source == AcquireError::Overloaded));
    let candidate = client.lead(other.clone());
    assert!(matches!(candidate.campaign(), Err(AcquireError::Overloaded)));
    assert!(matches!(block_on(candidate.campaign_async()), Err(AcquireError::Overloaded)));
    let took = begun.elapsed();
    assert!(took < PROMPT, "{took:?}");
    fleet.masters().for_each(|master| master.cont());
    let guards: Vec<_> = taken.into_iter().map(|it| block_on(it).expect("taken")).collect();
    drop(client.lock("room again").ttl(TTL).acquire().expect("free"));
    drop(guards);
    assert_eq!(settle(&client, PATIENCE), 0, "locks left on some master");
    // A campaign may have reached a master with room, so its fence stays.
    fleet.masters().for_each(|master| drop(master.ask(&format!("DEL redlatch:fence:{other}"))));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn locks_beyond_the_limit_are_overload_at_once() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let names: Vec<String> = (0..limits::OPERATION_COUNT_MAX).map(|index| index.to_string()).collect();
    let mut guards = Vec::with_capacity(names.len());
    for names in names.chunks(4096) {
        let batch = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
        guards.extend(batch.into_iter().map(|it| it.block().expect("free")));
    }
    let begun = Instant::now();
    assert!(matches!(client.lock("a").wait(PATIENCE).acquire(), Err(AcquireError::Overloaded)));
    assert!(matches!(block_on(client.lock("a").acquire_async()), Err(AcquireError::Overloaded)));
    let took = begun.elapsed();
    assert!(took < PROMPT, "{took:?}");
    drop(guards.pop());
    guards.push(client.lock("a").ttl(TTL).acquire().expect("room for one"));
    drop(guards);
    assert_nothing_left(&client, &mut fleet);
}
