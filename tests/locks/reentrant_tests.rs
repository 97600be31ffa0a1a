//! Reentrant locks: one owner is inside at a time, with as many holds as it likes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::error::LockReentrantError;
use redlatch::{AcquireError, Cancel, ExtendError, LockEnd, ReentrantGuard};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::batch_tests::work;
use crate::harness::{
    LONG, SHORT, TTL, assert_nothing_left, await_held, await_no_keys, await_subscribed, await_waiters, open,
    poll_once, within,
};

#[test]
fn only_first_and_last_hold_reach_the_masters() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.lock("a").ttl(TTL).reentrant();
    assert!(!lock.is_held() && lock.hold_count() == 0 && lock.resource() == b"a");
    let first = lock.lock().expect("free");
    await_held(&mut fleet, "a");
    let before: Vec<usize> = fleet.masters().map(|it| work(it).command_count).collect();
    let second = block_on(lock.clone().lock_async()).expect("its own");
    let third = lock.lock().expect("its own");
    assert_eq!((lock.hold_count(), first.token()), (3, third.token()));
    assert!(lock.is_held() && third.is_valid() && third.remaining() <= TTL);
    // Another handle is another owner, even of the same client.
    let other = client.lock("a").ttl(TTL).wait(Duration::ZERO).reentrant();
    let refused = other.lock().expect_err("held");
    assert!(matches!(refused, LockReentrantError::Acquire(AcquireError::Contended(_))), "{refused}");
    drop(first);
    assert_eq!(second.release(), Ok(None));
    assert_eq!(lock.hold_count(), 1);
    let after: Vec<usize> = fleet.masters().map(|it| work(it).command_count).collect();
    // The other owner's attempt: a SET, and a release where the SET was not refused.
    assert!(before.iter().zip(&after).all(|(before, after)| *after <= before + 2), "{before:?} {after:?}");
    let released = block_on(third.release_async()).expect("confirmed").expect("the last one");
    assert!(!released.was_already_gone() && !lock.is_held() && lock.hold_count() == 0);
    drop(other.lock().expect("free"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn holds_at_one_time_have_one_fencing_token() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.lock("a").ttl(TTL).fenced().reentrant();
    let tokens = || {
        let (first, second) = (lock.lock().expect("free"), lock.lock().expect("its own"));
        let tokens = [&first, &second].map(|hold| hold.fencing_token().expect("a fenced lock has one"));
        second.release().expect("held");
        first.release().expect("confirmed");
        tokens
    };
    let (before, after) = (tokens(), tokens());
    assert!(before[0] == before[1] && after[0] == after[1] && before[0] < after[0], "{before:?}, {after:?}");
    let plain = client.lock("b").ttl(TTL).reentrant();
    assert_eq!(plain.lock().expect("free").fencing_token(), None);
}

// I82
#[test]
fn callers_of_one_owner_share_one_attempt() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    await_subscribed(&mut fleet);
    let lock = client.lock("a").ttl(TTL).reentrant();
    for round in 0..4 {
        let before: Vec<usize> = fleet.masters().map(|it| work(it).command_count).collect();
        fleet.masters().for_each(|master| master.stop());
        let take = |index: usize| -> thread::JoinHandle<Result<ReentrantGuard, LockReentrantError>> {
            let lock = lock.clone();
            thread::spawn(move || {
                if usize::is_multiple_of(index, 2) { lock.lock() } else { block_on(lock.lock_async()) }
            })
        };
        let mut callers = vec![take(round)];
        eventually(PATIENCE, "the first one asks", || settle(&client, Duration::ZERO) == 1);
        callers.extend((1..8).map(|index| take(round + index)));
        // A dropped caller and a caller that is never polled again delay nobody.
        let (mut given_up, mut stalled) = (lock.lock_async(), lock.lock_async());
        assert!(poll_once(&mut given_up).is_pending() && poll_once(&mut stalled).is_pending());
        drop(given_up);
        thread::sleep(Duration::from_millis(30));
        fleet.masters().for_each(|master| master.cont());
        let holds: Vec<ReentrantGuard> =
            callers.into_iter().map(|it| it.join().expect("no panic").expect("free")).collect();
        assert_eq!(lock.hold_count(), 9, "those who came, and the one that has not fetched its hold");
        drop(stalled);
        assert_eq!(lock.hold_count(), 8);
        drop(holds);
        assert_eq!(settle(&client, PATIENCE), 0);
        let after: Vec<usize> = fleet.masters().map(|it| work(it).command_count).collect();
        // The SET and the release by script, which may be sent once more in full.
        assert!(
            before.iter().zip(&after).all(|(before, after)| *after <= before + 3),
            "{before:?} {after:?}"
        );
    }
    assert_nothing_left(&client, &mut fleet);
}

// I82
#[test]
fn a_lost_lock_waits_for_its_holds_end() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let ttl = Duration::from_millis(400);
    let lock = client.lock("a").ttl(ttl).wait(PATIENCE).reentrant();
    let holds = [lock.lock().expect("free"), lock.lock().expect("its own")];
    let notified_count = Arc::new(AtomicUsize::new(0));
    let count = notified_count.clone();
    let its = lock.clone();
    holds[0].on_lost(move || {
        // The callback may look at the lock, because no mutex is locked.
        count.fetch_add(1 + its.hold_count(), Ordering::SeqCst);
    });
    eventually(PATIENCE, "it is over", || !lock.is_held());
    assert!(!holds[0].is_valid() && holds[1].remaining().is_zero());
    assert_eq!((lock.hold_count(), lock.remaining()), (2, Duration::ZERO));
    eventually(PATIENCE, "it is notified", || notified_count.load(Ordering::SeqCst) == 3);
    // Another owner may have the lock by now.
    let other = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("expired");
    assert_eq!(lock.lock().expect_err("lost"), LockReentrantError::Lost { hold_count: 2 });
    assert_eq!(block_on(lock.lock_async()).expect_err("lost"), LockReentrantError::Lost { hold_count: 2 });
    let [first, second] = holds;
    assert_eq!(first.release(), Ok(None));
    drop(second);
    assert!(other.is_valid() && other.release().is_ok_and(|it| !it.was_already_gone()));
    drop(lock.lock().expect("free"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn any_hold_extends_the_lock_for_all() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.lock("a").ttl(TTL / 3).reentrant();
    let (one, other) = (lock.lock().expect("free"), lock.lock().expect("held"));
    assert_eq!(one.resource(), b"a");
    one.extend(TTL / 2).expect("held");
    assert!(other.remaining() > TTL / 3);
    {
        fleet.masters().for_each(|master| master.stop());
        let mut extending = pin!(other.extend_async(TTL));
        assert!(poll_once(&mut extending).is_pending());
        assert_eq!(one.extend(TTL), Err(ExtendError::Busy), "an answer is for one hold");
        fleet.masters().for_each(|master| master.cont());
        eventually(PATIENCE, "the answer has come", || one.remaining() > TTL / 2);
        one.extend(TTL).expect("an answer that nobody has fetched is in nobody's way");
        block_on(extending).expect("held");
    }
    {
        fleet.masters().for_each(|master| master.stop());
        let mut given_up = Box::pin(other.extend_async(TTL));
        assert!(poll_once(&mut given_up).is_pending());
        drop(given_up);
        assert_eq!(one.extend(TTL), Err(ExtendError::Busy), "it was sent");
        fleet.masters().for_each(|master| master.cont());
    }
    eventually(PATIENCE, "the answer has come", || one.extend(TTL).is_ok());
    let lost = one.lost();
    drop(one);
    other.release().expect("confirmed");
    assert_eq!(block_on(lost), LockEnd::Released);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_refusal_reaches_all_joined_callers() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    let lock = client.lock("a").ttl(TTL).wait(SHORT).reentrant();
    let results: Vec<_> = thread::scope(|scope| {
        let callers: Vec<_> = (0..6)
            .map(|index| {
                let lock = &lock;
                scope.spawn(move || {
                    if usize::is_multiple_of(index, 2) { lock.lock() } else { block_on(lock.lock_async()) }
                })
            })
            .collect();
        callers.into_iter().map(|it| it.join().expect("no panic")).collect()
    });
    for result in results {
        assert!(matches!(result, Err(LockReentrantError::Acquire(AcquireError::Contended(_)))), "{result:?}");
    }
    assert!(lock.hold_count() == 0 && !lock.is_held());
    let bad = client.lock("").reentrant();
    assert!(matches!(bad.lock(), Err(LockReentrantError::Acquire(AcquireError::Input(_)))));
    drop(held);
    assert_eq!(settle(&other, PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

/// The cancel handle belongs to the owner's request.
#[test]
fn a_cancelled_request_ends_all_its_callers() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "a");
    let wait = Duration::from_secs(3600);
    for (thread_count, task_count) in [(1, 0), (0, 1), (4, 0), (0, 4), (3, 3)] {
        let cancel = Cancel::new();
        let lock = client.lock("a").ttl(TTL).wait(wait).cancel_with(&cancel).reentrant();
        let callers: Vec<_> = (0..thread_count + task_count)
            .map(|index| {
                let lock = lock.clone();
                let is_task = index >= thread_count;
                thread::spawn(move || {
                    if is_task { block_on(lock.lock_async()) } else { lock.lock() }.map(drop)
                })
            })
            .collect();
        await_waiters(&mut fleet, 0..3, "a", 1);
        cancel.cancel();
        let cancelled = Err(LockReentrantError::Acquire(AcquireError::Cancelled));
        for caller in callers {
            let result = within("a cancelled wait", move || caller.join()).expect("no panic");
            assert_eq!(result, cancelled, "{thread_count} threads, {task_count} tasks");
        }
        assert_eq!(lock.lock().map(drop), cancelled, "it stays cancelled");
        assert_eq!(lock.hold_count(), 0);
    }
    drop(held);
    assert_eq!(settle(&other, PATIENCE), 0);
    let cancel = Cancel::new();
    let lock = client.lock("a").ttl(TTL).wait(wait).cancel_with(&cancel).reentrant();
    let hold = lock.lock().expect("free");
    cancel.cancel();
    drop(lock.lock().expect("a hold of a lock that is held asks nobody"));
    drop(hold);
    assert_nothing_left(&client, &mut fleet);
}

// I82
#[test]
fn dropped_holds_leave_nothing() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.lock("a").ttl(TTL).wait(PATIENCE).reentrant();
    for round in 0..60_u64 {
        let mut callers: Vec<_> = (0..3).map(|_| lock.lock_async()).collect();
        for poll in 0..round / 4 {
            let index = usize::try_from(poll % 3).expect("small");
            if let Some(caller) = callers.get_mut(index)
                && poll_once(caller).is_ready()
            {
                drop(callers.remove(index));
            }
            thread::sleep(Duration::from_micros(20 * round));
        }
        drop(callers);
        eventually(PATIENCE, "no hold is left", || lock.hold_count() == 0);
    }
    // Also in a panic.
    let its = lock.clone();
    let panicked = thread::spawn(move || {
        let _hold = its.lock().expect("free");
        panic!("while it is held");
    });
    assert!(panicked.join().is_err());
    drop(lock);
    await_no_keys(&mut fleet);
    assert_nothing_left(&client, &mut fleet);
}
