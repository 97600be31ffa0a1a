//! Guards of expired locks end like any others, and leave nothing in the client.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redlatch::{Client, ExtendError, Guard, HeldLocks, LockEnd};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, SHORT, TTL, assert_nothing_left, open, within};

/// TTL of locks that a test lets expire.
const BRIEF: Duration = Duration::from_millis(100);

fn expired(client: &Client, name: &str) -> Guard {
    let guard = client.lock(name).ttl(BRIEF).wait(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "its end", || !guard.is_valid());
    guard
}

/// The client has no operation and no claim left, and has counted each lost lock.
#[track_caller]
fn assert_forgotten(client: &Client, fleet: &mut Fleet, lost_count: u64) {
    eventually(PATIENCE, "it is forgotten", || client.stats().operations == 0);
    assert_nothing_left(client, fleet);
    let stats = client.stats();
    assert_eq!((stats.lost, stats.released, stats.held()), (lost_count, 0, 0));
}

#[test]
fn an_expired_guard_is_forgotten_however_it_ends() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    drop(expired(&client, "a"));
    assert_forgotten(&client, &mut fleet, 1);
    // Some of its keys may outlast the validity by the drift allowance.
    expired(&client, "a").release().expect("confirmed");
    assert_forgotten(&client, &mut fleet, 2);
    drop(expired(&client, "a").release_async());
    assert_forgotten(&client, &mut fleet, 3);
    expired(&client, "a").leave().expect_err("it is over");
    assert_forgotten(&client, &mut fleet, 4);
    let mut guard = expired(&client, "a");
    assert_eq!(guard.extend(TTL), Err(ExtendError::Expired));
    drop(guard);
    assert_forgotten(&client, &mut fleet, 5);
}

/// The masters hang for longer than a kept lock can wait. When they resume, they keep nothing of it.
#[test]
fn a_kept_lock_that_fails_at_last_is_forgotten() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    for lost_count in 1..3 {
        let request = client.lock("a").ttl(Duration::from_millis(900)).auto_extend(TTL).wait(PATIENCE);
        let guard = request.acquire().expect("free");
        // Neither future is polled before the end.
        let (lost, later) = (guard.lost(), guard.lost());
        fleet.masters().for_each(|master| master.stop());
        assert_eq!(block_on(lost), LockEnd::Lost);
        eventually(PATIENCE, "its end", || !guard.is_valid());
        fleet.masters().for_each(|master| master.cont());
        assert_eq!(block_on(later), LockEnd::Lost);
        drop(guard);
        assert_forgotten(&client, &mut fleet, lost_count);
    }
}

/// The drain itself lasts as long as the masters hang.
#[test]
fn a_drain_notifies_watchers_before_it_ends() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let kept = client.lock("a").ttl(TTL).auto_extend(TTL).acquire().expect("free");
    let plain = client.lock("b").ttl(TTL).acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    for guard in [&kept, &plain] {
        let sender = sender.clone();
        guard.on_lost(move || sender.send(()).expect("the test waits"));
    }
    fleet.masters().for_each(|master| master.stop());
    let its = client.clone();
    let draining = thread::spawn(move || its.drain(10 * PATIENCE, HeldLocks::Release));
    for _ in 0..2 {
        receiver.recv_timeout(PATIENCE).expect("its loss is reported");
    }
    assert!(!draining.is_finished(), "the masters cannot have confirmed anything");
    assert!(!kept.is_valid() && !plain.is_valid());
    fleet.masters().for_each(|master| master.cont());
    assert_eq!(within("the drain", move || draining.join().expect("no panic")), 0);
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[]");
    }
}
