//! Locks that end by themselves, on real servers: left to their TTL, or kept for a least time.

use std::time::{Duration, Instant};

use redlatch::internals::settle;
use redlatch::{AcquireError, Client, Guard, HeldLocks, InputError, LeaveError, LockEnd, Redlock};

use crate::fleet::{Fleet, eventually};
use crate::harness::{LONG, PATIENCE, TTL, assert_nothing_left, await_no_keys, block_on, config, open};

/// The shortest and the longest time left to the key on any master.
fn times_left(fleet: &mut Fleet, key: &str) -> (Duration, Duration) {
    let left = fleet.masters().map(|master| {
        let left_ms = master.ask(&format!("PTTL {key}")).text();
        // Without a key it is negative.
        Duration::from_millis(left_ms.parse().unwrap_or(0))
    });
    let left: Vec<Duration> = left.collect();
    (*left.iter().min().expect("a master"), *left.iter().max().expect("a master"))
}

fn await_keys(fleet: &mut Fleet, key: &str) {
    for master in fleet.masters() {
        eventually(PATIENCE, "it has the key", || master.ask(&format!("EXISTS {key}")).text() == "1");
    }
}

#[test]
fn a_left_lock_stays_after_its_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).auto_extend(Duration::from_secs(600)).acquire().expect("free");
    let lost = guard.lost();
    await_keys(&mut fleet, "a");
    guard.leave().expect("held");
    assert_eq!(block_on(lost), LockEnd::Released, "nothing is to be feared for it");
    assert_eq!((client.stats().left, settle(&client, Duration::ZERO)), (1, 0), "nothing is under way");
    drop(client);
    let other = open(&fleet.urls(), LONG);
    assert!(matches!(other.lock("a").try_acquire(), Err(AcquireError::Contended(_))));
    let (_, longest) = times_left(&mut fleet, "a");
    assert!(longest <= TTL, "{longest:?}");
}

#[test]
fn a_lock_that_masters_lost_cannot_be_left() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let mut guard = client.lock("a").ttl(TTL).acquire().expect("free");
    fleet.master(0).ask("DEL a");
    guard.extend(TTL).expect_err("it is lost");
    assert_eq!(guard.leave(), Err(LeaveError::Expired));
    assert_eq!((client.stats().left, client.stats().lost), (0, 1));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_least_time_outlives_guard_and_client() {
    type End = fn(Guard);
    let ends: [(&str, End); 4] = [
        ("released", |guard| assert!(guard.release().expect("confirmed").is_kept)),
        ("released in a task", |guard| {
            assert!(block_on(guard.release_async()).expect("confirmed").is_kept);
        }),
        ("dropped", drop),
        ("dropped in a release", |guard| drop(guard.release_async())),
    ];
    for (how, end) in ends {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let begun = Instant::now();
        let request = client.lock("a").ttl(Duration::from_secs(10)).hold_at_least(Duration::from_secs(25));
        let guard = request.acquire().expect("free");
        await_keys(&mut fleet, "a");
        end(guard);
        drop(client);
        eventually(PATIENCE, how, || times_left(&mut fleet, "a").0 > Duration::from_secs(10));
        let (_, longest) = times_left(&mut fleet, "a");
        assert!(longest <= Duration::from_secs(25), "{how}: {longest:?} after {:?}", begun.elapsed());
        let other = open(&fleet.urls(), LONG);
        assert!(matches!(other.lock("a").try_acquire(), Err(AcquireError::Contended(_))), "{how}");
    }
}

#[test]
fn a_least_time_ends_by_itself() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let least = Duration::from_millis(600);
    let begun = Instant::now();
    drop(client.lock("a").ttl(TTL).hold_at_least(least).acquire().expect("free"));
    let next = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("it ends");
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    drop(next);
    await_no_keys(&mut fleet);
}

#[test]
fn a_least_time_beyond_max_ttl_is_kept_by_the_client() {
    let mut fleet = Fleet::start(3);
    let short = Duration::from_secs(2);
    let settings = config(&fleet.urls(), LONG).max_ttl(short).build().expect("valid settings");
    let client = Client::open(settings).expect("an event loop");
    let least = Duration::from_secs(5);
    let begun = Instant::now();
    drop(client.lock("a").ttl(short).hold_at_least(least).acquire().expect("free"));
    await_keys(&mut fleet, "a");
    let other = open(&fleet.urls(), LONG);
    let next = other.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("it ends");
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    drop(next);
    assert_nothing_left(&other, &mut fleet);
    assert_eq!(settle(&client, PATIENCE), 0);
}

#[test]
fn a_lock_that_nobody_fetched_has_no_least_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let batch = client.acquire_all([client.lock("a").ttl(TTL).hold_at_least(Duration::from_secs(3000))]);
    await_keys(&mut fleet, "a");
    drop(batch);
    await_no_keys(&mut fleet);
    // Nor has a set of which one lock is taken.
    let taken = client.lock("b").ttl(TTL).acquire().expect("free");
    let set = client.lock_set(["a", "b"]).ttl(TTL).hold_at_least(Duration::from_secs(3000)).try_acquire();
    set.expect_err("one is taken");
    taken.release().expect("confirmed");
    await_no_keys(&mut fleet);
    assert_eq!(client.stats().left, 0);
}

#[test]
fn sets_and_reentrant_locks_have_least_times() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let least = Duration::from_secs(20);
    let set = client.lock_set(["a", "b"]).ttl(TTL).hold_at_least(least).acquire().expect("free");
    assert!(set.release().expect("confirmed").iter().all(|released| released.is_kept));
    let set = client.lock_set(["c", "d"]).ttl(TTL).acquire().expect("free");
    set.leave().expect("held");
    let lock = client.lock("e").ttl(TTL).hold_at_least(least).reentrant();
    let (one, two) = (lock.lock().expect("free"), lock.lock().expect("held"));
    drop(one);
    assert!(two.release().expect("confirmed").is_some_and(|released| released.is_kept));
    assert_eq!(client.stats().left, 5);
    for name in ["a", "b", "c", "d", "e"] {
        assert!(matches!(client.lock(name).try_acquire(), Err(AcquireError::Contended(_))), "{name}");
        await_keys(&mut fleet, name);
    }
    let too_long = client.lock("f").hold_at_least(Duration::from_secs(3601)).acquire();
    assert!(matches!(too_long, Err(AcquireError::Input(InputError::HoldAtLeastTooLong { .. }))));
}

#[test]
fn leases_can_be_left_and_kept() {
    let mut fleet = Fleet::start(3);
    let settings = config(&fleet.urls(), LONG).build().expect("valid settings");
    let mut redlock = Redlock::open(settings).expect("an event loop");
    let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
    redlock.leave(lease).expect("held");
    let least = Duration::from_secs(25);
    let lease = redlock.lock("b").ttl(Duration::from_secs(10)).hold_at_least(least).acquire().expect("free");
    assert!(redlock.release(lease).expect("confirmed").is_kept);
    drop(redlock.lock("c").ttl(Duration::from_secs(10)).hold_at_least(least).acquire().expect("free"));
    redlock.flush();
    assert_eq!((redlock.stats().left, redlock.drain(PATIENCE, HeldLocks::Leave)), (3, 0));
    for name in ["a", "b", "c"] {
        eventually(PATIENCE, name, || times_left(&mut fleet, name).0 > Duration::from_secs(10));
    }
}
