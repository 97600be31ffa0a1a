//! Guards of expired locks end like any others, and leave nothing in the client.

use std::time::Duration;

use redlatch::{Client, ExtendError, Guard};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, open};

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
