//! Locks that are given up without a release: left to their TTL, or for a time.

use std::time::{Duration, Instant};

use redlatch::error::{InputError, LeaveError};
use redlatch::{AcquireError, Guard, Left, LockEnd};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, await_no_keys, open, poll_once};

/// The shortest and the longest remaining time of a key over all masters.
fn times_left(fleet: &mut Fleet, key: &str) -> (Duration, Duration) {
    let left = fleet.masters().map(|master| {
        let left_ms = master.ask(&format!("PTTL {key}")).text();
        // Negative if there is no key.
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

// I42
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

// I43
#[test]
fn lock_left_for_a_time_outlives_its_client() {
    type Leave = fn(Guard, Duration) -> Result<Left, LeaveError>;
    let ways: [(&str, Leave); 2] =
        [("a thread", Guard::leave_for), ("a task", |guard, rest| block_on(guard.leave_for_async(rest)))];
    for (how, leave) in ways {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let guard = client.lock("a").ttl(Duration::from_secs(10)).acquire().expect("free");
        await_keys(&mut fleet, "a");
        let rest = Duration::from_secs(25);
        let before = Instant::now();
        let left = leave(guard, rest).expect("confirmed");
        assert!(left.held_until <= before + rest && before + rest <= left.latest_end, "{how}: {left:?}");
        assert_eq!((left.unanswered, client.stats().left, client.stats().claims), (0, 1, 0), "{how}");
        drop(client);
        let (shortest, longest) = times_left(&mut fleet, "a");
        assert!(Duration::from_secs(10) < shortest && longest <= rest, "{how}: {shortest:?} to {longest:?}");
        let other = open(&fleet.urls(), LONG);
        assert!(matches!(other.lock("a").try_acquire(), Err(AcquireError::Contended(_))), "{how}");
    }
}

// I43
#[test]
fn a_dropped_guard_releases_always() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let unpolled = guard.leave_for_async(Duration::from_secs(20));
    await_keys(&mut fleet, "a");
    drop(unpolled);
    await_no_keys(&mut fleet);
    // A guard that could not be left is released, too.
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let refused = guard.leave_for(Duration::from_secs(3600 * 24 * 8));
    assert!(matches!(refused, Err(LeaveError::Input(InputError::TtlTooLong { .. }))), "{refused:?}");
    await_no_keys(&mut fleet);
    // After its first poll, the call goes on although its future is dropped.
    let guard = client.lock("a").ttl(Duration::from_secs(10)).acquire().expect("free");
    let mut polled = Box::pin(guard.leave_for_async(Duration::from_secs(25)));
    let _ = poll_once(&mut polled);
    drop(polled);
    eventually(PATIENCE, "it is left", || times_left(&mut fleet, "a").0 > Duration::from_secs(10));
    eventually(PATIENCE, "the client has the answers", || client.stats().left == 1);
}

// I42
#[test]
fn sets_can_be_left() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    client.lock_set(["a", "b"]).ttl(TTL).acquire().expect("free").leave().expect("held");
    assert_eq!(client.stats().left, 2);
    for name in ["a", "b"] {
        assert!(matches!(client.lock(name).try_acquire(), Err(AcquireError::Contended(_))), "{name}");
        await_keys(&mut fleet, name);
    }
}

/// One lock of the set is over, and the other one was extended.
#[test]
fn broken_set_leaves_its_remaining_locks() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut set = client.lock_set(["a", "b"]).ttl(Duration::from_secs(5)).acquire().expect("free");
    fleet.masters().for_each(|master| assert_eq!(master.ask("SET a foreign PX 600000").text(), "OK"));
    let refused = set.extend(TTL).expect_err("one is lost");
    assert_eq!(&*refused.resource, b"a");
    eventually(PATIENCE, "the lost one is over", || !set.guards()[0].is_valid());
    assert!(set.guards()[1].is_valid());
    let error = set.leave().expect_err("one is over");
    assert_eq!(&*error.resource, b"a");
    assert_eq!(client.stats().left, 1);
    drop(client);
    for master in fleet.masters() {
        assert_eq!(master.ask("EXISTS b").text(), "1");
    }
}
