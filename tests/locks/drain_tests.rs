//! The end of a client within a stated time: `drain` and `drain_async`.

use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use redlatch::{AcquireError, Client, HeldLocks, LockEnd};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{Count, LONG, TTL, await_no_keys, config, open, poll_once, poll_with, within};

/// Limit of a drain that cannot finish.
const LIMIT: Duration = Duration::from_millis(200);

#[track_caller]
fn assert_acquires_nothing(client: &Client) {
    let refused = client.lock("later").ttl(TTL).try_acquire();
    assert!(matches!(refused, Err(AcquireError::Stopped(_))), "{refused:?}");
}

fn drain(client: &Client, limit: Duration, held: HeldLocks, is_async: bool) -> usize {
    if is_async { block_on(client.drain_async(limit, held)) } else { client.drain(limit, held) }
}

/// A drain that reports success has released every key, so this need not wait.
#[track_caller]
fn assert_no_keys(fleet: &mut Fleet) {
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[]");
    }
}

// I117
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
        // The fair waiters have left no entries.
        assert_no_keys(&mut fleet);
    }
}

// I117
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
        // Acquisitions are refused as soon as the drain begins.
        eventually(PATIENCE, "it has begun", || client.lock("b").ttl(TTL).try_acquire().is_err());
        assert!(receiver.recv_timeout(LIMIT).is_err(), "it ends before the lock");
        assert!(guard.is_valid());
        drop(guard);
        receiver.recv_timeout(PATIENCE).expect("it ends with the lock");
        assert_eq!(draining.join().expect("no panic"), 0);
        assert_no_keys(&mut fleet);
    }
}

// I117
#[test]
fn lock_left_by_drain_outlives_the_client() {
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

// I117
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
    // Checked before the guards are dropped.
    assert_no_keys(&mut fleet);
    drop((guard, other, set));
}

/// The drain may take long, as with an unreachable master.
#[test]
fn callback_set_during_a_drain_is_called() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    fleet.master(2).stop();
    let its = client.clone();
    let draining = thread::spawn(move || its.drain(PATIENCE, HeldLocks::Release));
    eventually(PATIENCE, "the lock is taken away", || !guard.is_valid());
    let (sender, receiver) = mpsc::channel();
    guard.on_lost(move || sender.send(()).expect("the test waits"));
    receiver.recv_timeout(PATIENCE).expect("the loss is reported");
    fleet.master(2).cont();
    assert_eq!(draining.join().expect("no panic"), 0);
}

#[test]
fn a_stopped_client_is_not_ready() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    eventually(PATIENCE, "it is ready", || client.health().has_quorum);
    assert_eq!(client.drain(PATIENCE, HeldLocks::Release), 0);
    let health = client.health();
    assert!(!health.has_quorum && health.masters.is_empty(), "{health:#}");
}

/// The background thread does nothing while another thread drives, but still learns of the end.
#[test]
fn drained_driven_client_leaves_no_thread() {
    let fleet = Fleet::start(3);
    // The client owns its settings.
    let kept = Arc::new(());
    let its = kept.clone();
    let client = config(&fleet.urls(), LONG).on_event(move |_| _ = &its).connect().expect("an event loop");
    let drive = client.drive().expect("a descriptor");
    assert_eq!(client.drain(PATIENCE, HeldLocks::Leave), 0);
    drop((drive, client));
    eventually(PATIENCE, "its thread has ended", || Arc::strong_count(&kept) == 1);
}

// I117
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
    assert_no_keys(&mut fleet);
}

// I117
#[test]
fn drain_without_a_quorum_ends_in_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    (0..2).for_each(|index| fleet.master(index).kill());
    drop(guard);
    let its = client.clone();
    let left = within("the drain", move || its.drain(LIMIT, HeldLocks::Release));
    assert_eq!(left, 1, "two masters cannot confirm");
}

// I117
#[test]
fn a_guard_ends_well_beside_a_drain() {
    let fleet = Fleet::start(3);
    for round in 0..20 {
        let client = open(&fleet.urls(), LONG);
        let names = (0..4).map(|index| format!("{round}-{index}"));
        let guards: Vec<_> = names.map(|name| client.lock(&name).ttl(TTL).acquire().expect("free")).collect();
        let drains = [HeldLocks::Leave, HeldLocks::Release].map(|held| {
            let its = client.clone();
            thread::spawn(move || its.drain(PATIENCE, held))
        });
        let ends: Vec<_> = guards
            .into_iter()
            .enumerate()
            .map(|(index, mut guard)| {
                let its = client.clone();
                thread::spawn(move || {
                    let _ = its.inspect("other");
                    match index % 2 {
                        0 => guard.release().map(drop).map_err(|error| error.to_string()),
                        _ => guard.extend(TTL).map_err(|error| error.to_string()),
                    }
                })
            })
            .collect();
        for end in ends {
            match within("the end", move || end.join().expect("no panic")) {
                Ok(()) => {}
                Err(why) => assert!(why.contains("not held") || why.contains("drained"), "{why}"),
            }
        }
        for drain in drains {
            within("the drain", move || drain.join().expect("no panic"));
        }
    }
}

#[test]
fn answer_before_the_end_is_returned() {
    let fleet = Fleet::start(3);
    for _ in 0..30 {
        let client = open(&fleet.urls(), LONG);
        let guard = client.lock("a").ttl(TTL).acquire().expect("free");
        let its = client.clone();
        let draining = thread::spawn(move || its.drain(PATIENCE, HeldLocks::Leave));
        eventually(PATIENCE, "it has begun", || client.lock("b").ttl(TTL).try_acquire().is_err());
        // The drain waits for this release and ends with it.
        let released = guard.release().map_err(|error| error.to_string());
        assert!(!released.expect("confirmed").was_already_gone());
        assert_eq!(within("the drain", move || draining.join().expect("no panic")), 0);
    }
}

// I117
#[test]
fn a_drain_without_time_still_releases() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    fleet.masters().for_each(|master| master.stop());
    assert_eq!(client.drain(Duration::ZERO, HeldLocks::Release), 1, "nothing is confirmed yet");
    assert!(!guard.is_valid());
    fleet.masters().for_each(|master| master.cont());
    await_no_keys(&mut fleet);
}

/// Nobody will report a loss after the client's end.
#[test]
fn ended_client_wakes_watchers_of_its_locks() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let count = Arc::<Count>::default();
    let mut lost = guard.lost();
    assert!(poll_with(&mut lost, &Waker::from(count.clone())).is_pending());
    let (sender, receiver) = mpsc::channel();
    guard.on_lost(move || sender.send(()).expect("the test waits"));
    assert_eq!(client.drain(LIMIT, HeldLocks::Leave), 1);
    eventually(PATIENCE, "the task is woken", || count.get() == 1);
    receiver.recv_timeout(PATIENCE).expect("the callback is called");
    assert_eq!(block_on(lost), LockEnd::Lost);
}
