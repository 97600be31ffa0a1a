//! The end of a client within a stated time: `drain` and `drain_async`.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redlatch::{AcquireError, Client, HeldLocks, LockEnd, Redlock};

use crate::fleet::{Fleet, eventually};
use crate::harness::{LONG, PATIENCE, TTL, await_no_keys, block_on, config, open, poll_once, within};

/// Until when a drain waits that a test waits for.
const LIMIT: Duration = Duration::from_millis(200);

#[track_caller]
fn assert_acquires_nothing(client: &Client) {
    let refused = client.lock("later").ttl(TTL).try_acquire();
    assert!(matches!(refused, Err(AcquireError::Stopped(_))), "{refused:?}");
}

fn drain(client: &Client, limit: Duration, held: HeldLocks, is_async: bool) -> usize {
    if is_async { block_on(client.drain_async(limit, held)) } else { client.drain(limit, held) }
}

#[test]
fn a_drain_ends_waiting_acquisitions_with_an_error() {
    for is_async in [false, true] {
        let mut fleet = Fleet::start(3);
        let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
        let held = holder.lock("a").ttl(TTL).acquire().expect("free");
        let mut task = client.lock("a").ttl(TTL).wait(PATIENCE).acquire_async();
        assert!(poll_once(&mut task).is_pending());
        let its = client.clone();
        let threads = [(); 2].map(|()| {
            let its = its.clone();
            thread::spawn(move || its.lock("a").ttl(TTL).wait(PATIENCE).fair().acquire().map(drop))
        });
        eventually(PATIENCE, "they wait", || client.stats().operations == 3);
        assert_eq!(drain(&client, PATIENCE, HeldLocks::Leave, is_async), 0);
        let ended = within("the waiters", move || threads.map(|it| it.join().expect("no panic")));
        for result in ended.into_iter().chain([block_on(task).map(drop)]) {
            assert!(matches!(result, Err(AcquireError::Stopped(_))), "{result:?}");
        }
        assert_acquires_nothing(&client);
        held.release().expect("confirmed");
        await_no_keys(&mut fleet);
    }
}

#[test]
fn a_drain_waits_for_guards_to_release() {
    for is_async in [false, true] {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let guard = client.lock("a").ttl(TTL).auto_extend(PATIENCE).acquire().expect("free");
        let (its, (sender, receiver)) = (client.clone(), mpsc::channel());
        let draining = thread::spawn(move || {
            let count = drain(&its, PATIENCE, HeldLocks::Leave, is_async);
            sender.send(()).expect("the test waits");
            count
        });
        // Acquisitions are refused from its start on.
        eventually(PATIENCE, "it has begun", || client.lock("b").ttl(TTL).try_acquire().is_err());
        assert!(receiver.recv_timeout(LIMIT).is_err(), "it ends before the lock");
        assert!(guard.is_valid());
        drop(guard);
        receiver.recv_timeout(PATIENCE).expect("it ends with the lock");
        assert_eq!(draining.join().expect("no panic"), 0);
        await_no_keys(&mut fleet);
    }
}

#[test]
fn a_lock_left_by_a_drain_outlives_the_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).auto_extend(PATIENCE).acquire().expect("free");
    assert_eq!(client.drain(LIMIT, HeldLocks::Leave), 1);
    assert!(guard.is_valid(), "nobody else can hold it");
    assert_acquires_nothing(&client);
    drop((guard, client));
    for master in fleet.masters() {
        assert_eq!(master.ask("EXISTS a").text(), "1", "nobody releases it any more");
    }
}

#[test]
fn a_drain_releases_under_living_guards() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let other = client.lock("b").ttl(TTL).fair().acquire().expect("free");
    let set = client.lock_set(["c", "d"]).ttl(TTL).acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    guard.on_lost(move || sender.send(()).expect("the test waits"));
    let lost = other.lost();
    assert_eq!(client.drain(PATIENCE, HeldLocks::Release), 0);
    assert!(!guard.is_valid() && !other.is_valid() && !set.is_valid());
    receiver.recv_timeout(PATIENCE).expect("the loss is reported");
    assert_eq!(block_on(lost), LockEnd::Released);
    // Before the guards are dropped.
    await_no_keys(&mut fleet);
    drop((guard, other, set));
}

#[test]
fn a_dropped_drain_leaves_the_guards_served() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    {
        let mut draining = Box::pin(client.drain_async(PATIENCE, HeldLocks::Leave));
        assert!(poll_once(&mut draining).is_pending());
    }
    assert_acquires_nothing(&client);
    assert!(!guard.release().expect("confirmed").was_already_gone());
    assert_eq!(client.drain(PATIENCE, HeldLocks::Leave), 0, "it can be drained again");
    await_no_keys(&mut fleet);
}

#[test]
fn a_drain_beside_a_dead_quorum_ends_in_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    (0..2).for_each(|index| fleet.master(index).kill());
    drop(guard);
    let its = client.clone();
    let left = within("the drain", move || its.drain(LIMIT, HeldLocks::Release));
    assert_eq!(left, 1, "two masters cannot confirm");
}

#[test]
fn a_drained_redlocks_leases_are_over() {
    for held in [HeldLocks::Release, HeldLocks::Leave] {
        let mut fleet = Fleet::start(3);
        let mut redlock =
            Redlock::open(config(&fleet.urls(), LONG).build().expect("valid")).expect("connects");
        let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
        let dropped = redlock.lock("b").ttl(TTL).acquire().expect("free");
        drop(dropped);
        let is_left = held == HeldLocks::Leave;
        let limit = if is_left { LIMIT } else { PATIENCE };
        assert_eq!(redlock.drain(limit, held), usize::from(is_left));
        assert_eq!(lease.is_valid(), is_left);
        for master in fleet.masters() {
            assert_eq!(master.ask("KEYS *").text(), if is_left { "[a]" } else { "[]" });
        }
    }
}
