//! Options that belong to a request.

use std::time::Duration;

use redlatch::AcquireError;
use redlatch::error::{InputError, LockReentrantError};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on};

use crate::harness::{LONG, TTL, assert_nothing_left, config, open};

#[test]
fn max_attempts_bounds_the_attempts() {
    let mut fleet = Fleet::start(3);
    // Otherwise one more attempt may follow when the subscription is confirmed.
    let settings = config(&fleet.urls(), LONG).wake_waiters(false);
    let client = settings.connect().expect("an event loop");
    let other = open(&fleet.urls(), LONG);
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    let attempts = |error: AcquireError| match error {
        AcquireError::Contended(denial) => denial.attempts,
        error => panic!("{error}"),
    };
    let request = client.lock("a").ttl(TTL).wait(PATIENCE * 10);
    assert_eq!(attempts(request.clone().max_attempts(1).acquire().expect_err("held")), 1);
    assert_eq!(attempts(block_on(request.clone().max_attempts(5).acquire_async()).expect_err("held")), 5);
    match request.clone().max_attempts(3).reentrant().lock() {
        Err(LockReentrantError::Acquire(error)) => assert_eq!(attempts(error), 3),
        other => panic!("{other:?}"),
    }
    drop(held);
    assert_eq!(settle(&other, PATIENCE), 0);
    drop(request.clone().max_attempts(1).acquire().expect("free"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_lock_cannot_be_extended_for_no_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let is_refused = |error| matches!(error, AcquireError::Input(InputError::AutoExtendZero));
    let request = client.lock("a").ttl(TTL).auto_extend(Duration::ZERO);
    assert!(is_refused(request.clone().acquire().expect_err("it is refused")));
    let set = client.lock_set(["a", "b"].as_slice()).auto_extend(Duration::ZERO).acquire();
    assert!(is_refused(set.expect_err("it is refused").source));
    match request.reentrant().lock() {
        Err(LockReentrantError::Acquire(error)) => assert!(is_refused(error)),
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn settings_without_time_forbid_extensions() {
    let mut fleet = Fleet::start(3);
    let settings = config(&fleet.urls(), LONG).max_hold(Duration::ZERO);
    let client = settings.connect().expect("an event loop");
    let request = client.lock("a").ttl(TTL);
    match request.clone().auto_extend(TTL).acquire().expect_err("it is refused") {
        AcquireError::Input(error) => assert!(error.to_string().contains("max_hold"), "{error}"),
        other => panic!("{other}"),
    }
    drop(request.clone().acquire().expect("it need not be extended"));
    assert_nothing_left(&client, &mut fleet);
}
