//! What a lease says of its lock, on real masters, when extensions fail, clients are mixed up or the process
//! is stopped.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::engine::{Outcome, Request, Resource};
use redlatch::error::LeaveError;
use redlatch::status::MasterState;
use redlatch::{
    AcquireError, Cancel, ExtendError, HeldLocks, Options, Redlock, ReleaseError, Waited, limits,
};

use crate::fleet::{Fleet, assert_sooner, eventually};
use crate::lock_tests::{ANSWER_TIMEOUT, PATIENCE, TTL, drive, open, settings, state};
use crate::proxy::Proxy;

#[test]
fn a_lease_never_outlives_its_keys() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.addrs()[0]);
    let mut redlock = open(settings(&[proxy.url()]).answer_timeout(Duration::from_secs(1)));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    proxy.stall_replies(true);
    let error = redlock.extend(&mut lease, Duration::from_secs(2)).expect_err("no answer");
    assert!(matches!(error, ExtendError::NoQuorum(_)), "{error}");
    eventually(PATIENCE, "the shorter TTL ends", || fleet.master(0).ask("EXISTS a").text() == "0");
    assert!(!lease.is_valid(), "valid for {:?} more, and the key is gone", lease.remaining());
}

#[test]
fn a_lost_lease_is_not_valid() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    fleet.master(0).ask("SET a somebody-else");
    let error = redlock.extend(&mut lease, TTL).expect_err("lost");
    assert!(matches!(error, ExtendError::Lost(_)), "{error}");
    assert!(!lease.is_valid(), "valid for {:?} more", lease.remaining());
}

#[test]
fn an_unsent_extension_changes_no_lease() {
    let fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()).max_hold(Duration::from_millis(500)));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let before = lease.valid_until();
    let error = redlock.extend(&mut lease, Duration::from_secs(1)).expect_err("too long in all");
    assert!(matches!(error, ExtendError::HoldLimit { .. }), "{error}");
    assert_eq!(lease.valid_until(), before);
    assert!(redlock.extend(&mut lease, Duration::from_millis(2)).is_err(), "shorter than the drift");
    assert_eq!(lease.valid_until(), before);
}

#[test]
fn outcomes_set_aside_keep_their_order() {
    let fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let submit = |redlock: &mut Redlock, name: &str| {
        let (resource, label) = (Resource::new(name).expect("valid"), None);
        let options = Options::new().ttl(TTL).wait(PATIENCE);
        redlock.submit(Request::Acquire { resource, options, label }).expect("room")
    };
    let mut asked = ["a", "b", "c"].map(|name| submit(&mut redlock, name)).to_vec();
    let lease = redlock.lock("d").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    asked.push(submit(&mut redlock, "e"));
    eventually(PATIENCE, "all are answered", || {
        redlock.turn(Duration::ZERO).expect("the loop runs");
        redlock.stats().acquired == 5
    });
    let answered: Vec<_> = std::iter::from_fn(|| redlock.poll_outcome()).map(|(lock, _)| lock).collect();
    assert_eq!(answered, asked);
    drop(lease);
}

#[test]
fn a_call_releases_what_was_dropped_before() {
    let mut fleet = Fleet::start(1);
    // No key ends by itself within the patience of this test.
    let mut redlock = open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let lease = redlock.lock("a").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    drop(lease);
    let _other = redlock.lock("b").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "it is released", || fleet.master(0).ask("EXISTS a").text() == "0");
}

/// The first answer came later than the last call that waited, and the time of an engine never goes back.
#[test]
fn turns_alone_release_what_was_dropped_before() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let leases =
        ["a", "b"].map(|name| redlock.lock(name).ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free"));
    for (lease, left) in leases.into_iter().zip([1, 0]) {
        drop(lease);
        eventually(PATIENCE, "it is released", || {
            redlock.turn(Duration::ZERO).expect("the loop runs");
            redlock.stats().claims == left
        });
        assert_eq!(fleet.master(0).ask("EXISTS a b").text(), left.to_string());
    }
}

#[test]
fn a_lost_lease_cannot_be_left_and_is_released() {
    let fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let lease = redlock.lock("a").ttl(Duration::from_millis(200)).wait(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "its validity ends", || !lease.is_valid());
    redlock.leave(lease).expect_err("it is lost");
    eventually(PATIENCE, "it is released", || {
        redlock.turn(Duration::ZERO).expect("the loop runs");
        redlock.stats().operations == 0
    });
}

#[test]
fn a_foreign_lease_is_refused() {
    let mut fleet = Fleet::start(1);
    let patient = || open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let (mut first, mut second) = (patient(), patient());
    // No key ends by itself within the patience of this test.
    let mut lease = first.lock("a").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    let left = first.lock("b").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    let other = first.lock("f").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    // These have the same places in their own client.
    let _own = ["c", "d", "e"].map(|name| second.lock(name).ttl(2 * PATIENCE).try_acquire().expect("free"));
    assert_eq!(second.extend(&mut lease, TTL), Err(ExtendError::NotHeld));
    assert_eq!((second.margin(&lease), second.waited(&lease)), (0, Waited::default()));
    assert_eq!(second.release(lease), Err(ReleaseError::NotHeld));
    assert_eq!(second.leave_for(left, TTL), Err(LeaveError::NotHeld));
    assert_eq!(second.leave(other), Err(LeaveError::NotHeld));
    second.flush();
    assert_eq!(second.stats().held(), 3);
    assert_eq!(fleet.master(0).ask("EXISTS a b c d e").text(), "5");
    first.flush();
    eventually(PATIENCE, "its own client releases them", || fleet.master(0).ask("EXISTS a b").text() == "0");
}

#[test]
fn a_foreign_lease_has_no_margin() {
    let fleet = Fleet::start(3);
    let patient = || open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let (mut first, mut second) = (patient(), patient());
    let lease = first.lock("a").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    // It has the same place in its own client.
    let own = second.lock("b").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "each master has granted it", || {
        second.turn(Duration::from_millis(1)).expect("the loop runs");
        second.margin(&own) == 1
    });
    assert_eq!(second.margin(&lease), 0);
}

#[test]
fn a_turn_waits_unless_an_outcome_is_there() {
    let fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let resource = Resource::new("a").expect("valid");
    let options = Options::new().ttl(2 * PATIENCE).wait(PATIENCE);
    redlock.submit(Request::Acquire { resource, options, label: None }).expect("room");
    let _held = redlock.lock("b").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    let begun = Instant::now();
    redlock.turn(PATIENCE).expect("the loop runs");
    assert_sooner(begun, PATIENCE, "a turn that overlooks the outcome lasts that long");
    assert!(redlock.poll_outcome().is_some());
    let limit = Duration::from_millis(20);
    eventually(PATIENCE, "it waits when nothing comes", || {
        let begun = Instant::now();
        redlock.turn(limit).expect("the loop runs");
        begun.elapsed() >= limit
    });
}

#[test]
fn a_pause_before_writing_silences_no_master() {
    let mut fleet = Fleet::start(1);
    let limit = Duration::from_millis(50);
    let mut redlock = open(settings(&fleet.urls()).answer_timeout(limit));
    let (ttl, wait) = (TTL, Duration::ZERO);
    let resource = Resource::new("b").expect("valid");
    redlock
        .submit(Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None })
        .expect("room");
    std::thread::sleep(limit * 2);
    redlock.turn(Duration::ZERO).expect("the loop runs");
    // The handshake tried one SET, another one recorded the fleet; the third one is this attempt's, and its
    // answer is on its way before this one's.
    eventually(PATIENCE, "the SET is carried out", || {
        fleet.master(0).ask("INFO commandstats").text().contains("cmdstat_set:calls=3")
    });
    let error = redlock.lock("a").ttl(TTL).try_acquire().err();
    // What must not be: the master is skipped although its answer is there to be read.
    let was_skipped = error.as_ref().is_some_and(|error| error.to_string().contains("not asked, as"));
    assert!(!was_skipped, "{error:?}, {:?}", state(&redlock, 0));
}

#[test]
fn an_arrived_answer_is_never_late() {
    let mut fleet = Fleet::start(1);
    let limit = Duration::from_millis(50);
    let mut redlock = open(settings(&fleet.urls()).answer_timeout(limit));
    let (ttl, wait) = (TTL, Duration::ZERO);
    let resource = Resource::new("a").expect("valid");
    redlock
        .submit(Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None })
        .expect("room");
    redlock.flush();
    eventually(PATIENCE, "the SET is carried out", || fleet.master(0).ask("EXISTS a").text() == "1");
    // The server has been round its loop once more, so the SET's answer is out; only then this process is
    // stopped.
    fleet.master(0).ask("PING");
    std::thread::sleep(limit * 2);
    redlock.turn(Duration::ZERO).expect("the loop runs");
    let outcome = redlock.poll_outcome();
    assert!(matches!(outcome, Some((_, Outcome::Acquire(Ok(_))))), "{outcome:?}");
}

#[test]
fn a_turn_does_not_wait_with_outcomes() {
    let mut fleet = Fleet::start(1);
    let url = fleet.urls();
    fleet.master(0).kill();
    let mut redlock = open(settings(&url));
    assert!(matches!(state(&redlock, 0), MasterState::Down(_)));
    let (ttl, wait) = (TTL, Duration::ZERO);
    let resource = Resource::new("a").expect("valid");
    redlock
        .submit(Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None })
        .expect("room");
    let start = Instant::now();
    redlock.turn(PATIENCE).expect("the loop runs");
    assert!(redlock.poll_outcome().is_some());
    assert_sooner(start, ANSWER_TIMEOUT, "an attempt that waits for an answer lasts that long");
}

#[test]
fn another_thread_cancels_a_wait() {
    let mut fleet = Fleet::start(3);
    let (mut holder, mut waiter) = (open(settings(&fleet.urls())), open(settings(&fleet.urls())));
    let held = holder.lock("a").ttl(TTL).try_acquire().expect("free");
    let cancel = Cancel::new();
    let handle = cancel.clone();
    let cancelling = thread::spawn(move || {
        eventually(PATIENCE, "it waits", || format!("{handle:?}").contains("waiting_count: 1"));
        handle.cancel();
    });
    let result = waiter.lock("a").ttl(TTL).wait(PATIENCE * 10).cancel_with(&cancel).acquire();
    assert_eq!(result.map(drop), Err(AcquireError::Cancelled));
    cancelling.join().expect("no panic");
    let again = waiter.lock("b").ttl(TTL).cancel_with(&cancel).try_acquire();
    assert_eq!(again.map(drop), Err(AcquireError::Cancelled), "it stays cancelled");
    drop(waiter.lock("b").ttl(TTL).cancel_with(&Cancel::new()).try_acquire().expect("free"));
    holder.release(held).expect("confirmed");
    assert_eq!((waiter.drain(PATIENCE, HeldLocks::Leave), holder.drain(PATIENCE, HeldLocks::Leave)), (0, 0));
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[]");
    }
}

#[test]
fn a_blocking_call_keeps_outcomes_of_the_pipelined_form() {
    let fleet = Fleet::start(1);
    // No deadline ends the sleep of a turn that has an outcome.
    let settings = settings(&fleet.urls()).answer_timeout(10 * PATIENCE).connect_timeout(10 * PATIENCE);
    let mut redlock = open(settings);
    let ttl = PATIENCE + TTL;
    let (resource, options) =
        (Resource::new("a").expect("valid"), Options::new().ttl(ttl).wait(Duration::ZERO));
    let lock = redlock.submit(Request::Acquire { resource, options, label: None }).expect("room");
    // Both go to one master, which answers in order.
    let lease = redlock.lock("b").ttl(ttl).wait(PATIENCE).acquire().expect("free");
    let start = Instant::now();
    redlock.turn(10 * PATIENCE).expect("the loop runs");
    assert_sooner(start, PATIENCE, "a turn that overlooks the outcome lasts ten times that");
    let outcome = redlock.poll_outcome();
    assert!(matches!(outcome, Some((id, Outcome::Acquire(Ok(_)))) if id == lock), "{outcome:?}");
    redlock.release(lease).expect("confirmed");
}

#[test]
fn a_cancelled_wait_asks_for_nothing_any_more() {
    let mut fleet = Fleet::start(1);
    let patient = || open(settings(&fleet.urls()).max_ttl(2 * PATIENCE));
    let (mut holder, mut waiter) = (patient(), patient());
    let held = holder.lock("a").ttl(2 * PATIENCE).try_acquire().expect("free");
    let cancel = Cancel::new();
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut waiter_count = || fleet.master(0).ask("ZCARD redlatch:wait:a").text();
            eventually(PATIENCE, "it waits", || waiter_count() == "1");
            // Nothing else takes its place away.
            fleet.master(0).ask("PERSIST redlatch:wait:a");
            cancel.cancel();
        });
        waiter.lock("a").ttl(2 * PATIENCE).wait(PATIENCE * 10).cancel_with(&cancel).acquire()
    });
    assert_eq!(result.map(drop), Err(AcquireError::Cancelled));
    eventually(PATIENCE, "its place is given up at once", || {
        fleet.master(0).ask("ZCARD redlatch:wait:a").text() == "0"
    });
    drive(&mut waiter, "it is given up", |waiter| waiter.stats().operations == 0);
    assert!(waiter.poll_outcome().is_none(), "nobody awaits its release");
    holder.release(held).expect("confirmed");
    assert_eq!(fleet.master(0).ask("EXISTS a").text(), "0");
}

/// The drain itself needs room, which the waiters that it ends make.
#[test]
fn a_redlock_full_of_waiters_drains() {
    // So many requests take a while on a slow machine.
    const LONG: Duration = Duration::from_secs(100);
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(LONG));
    let mut leases = Vec::new();
    let mut count = 0;
    // Each waits behind a lease of the same client, so that nothing is sent for it.
    let is_full = loop {
        let name = format!("a{}", leases.len());
        leases.push(redlock.lock(&name).ttl(LONG).wait(PATIENCE).acquire().expect("free"));
        let wait = || Request::Acquire {
            resource: Resource::new(&name).expect("a valid name"),
            options: Options::new().ttl(TTL).wait(PATIENCE),
            label: None,
        };
        let before = count;
        while redlock.submit(wait()).is_ok() {
            count += 1;
        }
        if count - before < limits::QUEUED_COUNT_MAX {
            break count + leases.len() == limits::OPERATION_COUNT_MAX;
        }
    };
    assert!(is_full, "{count} wait");
    let holder = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(leases);
    });
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0, "it waits for the holder");
    holder.join().expect("no panic");
    assert_eq!(fleet.master(0).key_count(), "0");
}
