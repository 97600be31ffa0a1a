//! Options that belong to a request.

use std::time::Duration;

use redlatch::AcquireError;
use redlatch::error::{InputError, LockReentrantError};
use redlatch_support::stage::Fleet;

use crate::harness::{LONG, TTL, assert_nothing_left, config, open};

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
