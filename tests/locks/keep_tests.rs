//! Locks that are renewed while their guard lives, and whose loss is reported in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use redlatch::{ExtendError, Guard};
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{Count, LONG, SHORT, assert_nothing_left, open, poll_with};

/// Short, so that a test sees several renewals, but far longer than a loaded machine delays a thread.
const KEPT_TTL: Duration = Duration::from_millis(900);
const FOR_LONG: Duration = Duration::from_secs(600);

#[test]
fn a_kept_lock_outlives_its_ttl_until_dropped() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let guard = client.lock("a").ttl(KEPT_TTL).auto_extend(FOR_LONG).acquire().expect("free");
    let first_end = guard.valid_until();
    eventually(PATIENCE, "three renewals", || guard.valid_until() > first_end + KEPT_TTL);
    assert!(guard.is_valid());
    // The caller may also extend the lock.
    let mut guard = guard;
    guard.extend(Duration::from_secs(5)).expect("held");
    assert!(guard.remaining() > Duration::from_secs(4));
    drop(guard);
    eventually(PATIENCE, "it is released", || fleet.masters().all(|it| it.ask("EXISTS a").text() == "0"));
}

#[test]
fn a_loss_is_reported_while_masters_hang() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let mut guard = client.lock("a").ttl(3 * KEPT_TTL).auto_extend(FOR_LONG).acquire().expect("free");
    let notified_count = Arc::new(AtomicUsize::new(0));
    let count = notified_count.clone();
    guard.on_lost(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    fleet.masters().for_each(|master| master.stop());
    block_on(guard.lost());
    // Reported by the clock, so some of the last tenth is left, unless this thread was delayed for all of it.
    assert!(guard.remaining() <= 3 * KEPT_TTL / 10 + SHORT);
    eventually(PATIENCE, "the callback", || notified_count.load(Ordering::SeqCst) == 1);
    fleet.masters().for_each(|master| master.cont());
    eventually(PATIENCE, "its end", || !guard.is_valid());
    assert_eq!(guard.extend(KEPT_TTL), Err(ExtendError::Expired));
    assert_eq!(notified_count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_proven_loss_is_reported_at_the_renewal() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let guard = client.lock("a").ttl(3 * KEPT_TTL).auto_extend(FOR_LONG).acquire().expect("free");
    fleet.masters().for_each(|master| drop(master.ask("SET a somebody-else")));
    block_on(guard.lost());
    eventually(PATIENCE, "it is over", || !guard.is_valid());
    let other = client.lock("b").ttl(KEPT_TTL).acquire().expect("free");
    let notified_count = Arc::new(AtomicUsize::new(0));
    let count = notified_count.clone();
    other.on_lost(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    other.release().expect("confirmed");
    drop(guard);
    assert_eq!(Arc::strong_count(&notified_count), 1, "the callback is kept though it will never be called");
    assert_eq!(notified_count.load(Ordering::SeqCst), 0);
}

#[test]
fn an_abandoned_loss_notification_wakes_nobody() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), SHORT);
    let guard = client.lock("a").ttl(KEPT_TTL).acquire().expect("free");
    let [first, second, dropped] = std::array::from_fn(|_| Arc::new(Count::default()));
    let mut lost = guard.lost();
    assert!(poll_with(&mut lost, &Waker::from(first.clone())).is_pending());
    assert!(poll_with(&mut lost, &Waker::from(second.clone())).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the task moved");
    let mut other = guard.lost();
    assert!(poll_with(&mut other, &Waker::from(dropped.clone())).is_pending());
    drop(other);
    assert_eq!(Arc::strong_count(&dropped), 1);
    fleet.masters().for_each(|master| master.stop());
    eventually(PATIENCE, "it is notified", || second.get() == 1);
    fleet.masters().for_each(|master| master.cont());
    assert_eq!((first.get(), dropped.get()), (0, 0));
    assert!(poll_with(&mut lost, Waker::noop()).is_ready());
}

/// A task may fetch its guard long after the grant, when the first validity has ended.
#[test]
fn a_kept_lock_is_fetched_late() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut begin = |ttl| {
        let mut acquiring = client.lock("a").ttl(ttl).auto_extend(FOR_LONG).acquire_async();
        assert!(poll_with(&mut acquiring, Waker::noop()).is_pending());
        let granted = |master: &mut Master| master.ask("EXISTS a").text() == "1";
        fleet.masters().for_each(|master| eventually(PATIENCE, "it is granted", || granted(master)));
        acquiring
    };
    // A slow machine may lose a lock with a short TTL.
    let guard = [KEPT_TTL, 4 * KEPT_TTL, 16 * KEPT_TTL].into_iter().find_map(|ttl| {
        let acquiring = begin(ttl);
        thread::sleep(ttl + KEPT_TTL);
        block_on(acquiring).ok().filter(Guard::is_valid)
    });
    guard.expect("it was extended meanwhile").release().expect("confirmed");
    // Dropping the future gives up a lock that was granted but not fetched.
    drop(begin(KEPT_TTL));
    assert_nothing_left(&client, &mut fleet);
}
