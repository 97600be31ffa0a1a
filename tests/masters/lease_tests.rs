//! What a lease says of its lock, on real masters, when extensions fail, clients are confused or the process
//! stops.

use std::time::{Duration, Instant};

use redlatch::engine::{Request, Resource};
use redlatch::status::MasterState;
use redlatch::{ExtendError, HeldLocks, Options, limits};
use redlatch_support::{Fleet, PATIENCE, Proxy, assert_sooner, eventually};

use crate::lock_tests::{ANSWER_TIMEOUT, TTL, open, settings, state};

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
    // The handshake tried one SET, and another one recorded the fleet. The third is this attempt's, and is
    // answered before this question.
    eventually(PATIENCE, "the SET is carried out", || {
        fleet.master(0).ask("INFO commandstats").text().contains("cmdstat_set:calls=3")
    });
    let error = redlock.lock("a").ttl(TTL).try_acquire().err();
    // The fault: the master is skipped although its answer can be read.
    let was_skipped = error.as_ref().is_some_and(|error| error.to_string().contains("not asked, as"));
    assert!(!was_skipped, "{error:?}, {:?}", state(&redlock, 0));
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

/// The drain needs room, which the ended waiters free.
#[test]
fn a_redlock_full_of_waiters_drains() {
    // This many requests take a while on a slow machine.
    const LONG: Duration = Duration::from_secs(100);
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(LONG));
    let mut leases = Vec::new();
    let mut count = 0;
    // Each request waits behind a lock of the same client, so it sends nothing.
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
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Release), 0, "it releases each lock");
    assert_eq!(fleet.master(0).key_count(), "0");
}
