//! Inspection and forced unlocks, from threads and tasks.

use std::time::Duration;

use redlatch::ExtendError;
use redlatch::error::{ForceUnlockError, HolderTtl, InspectError};
use redlatch::inspection::LockStatus;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, assert_sooner, block_on, eventually};

use crate::harness::{LONG, SHORT, TTL, assert_nothing_left, open, poll_once};

#[test]
fn an_inspection_shows_holder_and_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    assert_eq!(client.inspect("a").map(|it| it.status()), Ok(LockStatus::Free));
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    for inspection in [client.inspect("a"), block_on(client.inspect_async("a"))] {
        let inspection = inspection.expect("an answer");
        assert_eq!(inspection.holder(), Some(guard.token().as_bytes().as_slice()));
        let HolderTtl::Left(left) = inspection.remaining() else { panic!("{inspection:?}") };
        assert!(left <= TTL && left > Duration::ZERO && inspection.masters.len() == 3);
    }
    assert!(matches!(client.inspect(""), Err(InspectError::Input(_))));
    // A dropped inspection leaves nothing behind.
    let mut looking = client.inspect_async("a");
    assert!(poll_once(&mut looking).is_pending());
    drop(looking);
    drop(guard);
    assert_nothing_left(&client, &mut fleet);
}

// I75
#[test]
fn a_broken_lock_is_free_at_once() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let mut guard = client.lock("a").ttl(TTL).acquire().expect("free");
    // The third master's `SET` may still be under way.
    eventually(PATIENCE, "all have it", || {
        let held = other.inspect("a").expect("an answer").masters;
        held.iter().all(|(_, state)| state.value().is_some())
    });
    let done = other.force_unlock("a").expect("all answer");
    assert_eq!((done.deleted(), done.unanswered()), (3, 0));
    assert!(guard.is_valid(), "nobody told it");
    let next = block_on(other.lock("a").ttl(TTL).acquire_async()).expect("free");
    assert!(matches!(guard.extend(TTL), Err(ExtendError::Lost(_))));
    assert!(!guard.is_valid());
    // The holder's release still compares the value, and leaves the next holder's lock alone.
    assert!(guard.release().expect("confirmed").was_already_gone());
    assert!(other.inspect("a").expect("an answer").is_held());
    drop(next);
    assert_nothing_left(&other, &mut fleet);
}

#[test]
fn without_a_quorum_queries_say_so_in_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    fleet.master(0).stop();
    fleet.master(1).stop();
    let begun = std::time::Instant::now();
    assert_eq!(client.inspect("a").map(|it| it.status()), Ok(LockStatus::Unknown));
    let unlocked = block_on(client.force_unlock_async("a"));
    assert!(matches!(unlocked, Err(ForceUnlockError::Unconfirmed(_))), "{unlocked:?}");
    assert_sooner(begun, PATIENCE, "a query without a limit waits for the stopped masters");
    fleet.masters().for_each(|master| master.cont());
}
