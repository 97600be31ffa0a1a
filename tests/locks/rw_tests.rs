//! Readers that share a lock, and writers that have it alone.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::error::{HolderTtl, InputError};
use redlatch::inspection::{KeyState, LockStatus};
use redlatch::{AcquireError, Client, ConfigBuilder, ExtendError, Guard};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, assert_sooner, eventually};

use crate::harness::{
    LONG, SHORT, TTL, assert_nothing_left, await_held, await_no_keys, await_waiters, config, open, within,
};

/// Longer than any test: a waiter that gets the lock in time was served.
const NEVER: Duration = Duration::from_secs(600);

/// A client that almost never polls.
fn patient(urls: &[String]) -> ConfigBuilder {
    config(urls, LONG).ask_holder(false).retry_delay(NEVER..=NEVER)
}

fn build(builder: ConfigBuilder) -> Client {
    builder.connect().expect("an event loop")
}

fn is_contended<T>(result: &Result<T, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Contended(_)))
}

/// Waits until each master has the reader, so that nothing of it is under way.
fn settled(guard: Guard) -> Guard {
    eventually(PATIENCE, "all masters have it", || guard.margin() == 1);
    guard
}

#[test]
fn readers_of_one_client_hold_together() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.rw_lock("a");
    let guards: Vec<Guard> =
        (0..5).map(|_| lock.read().ttl(TTL).wait(PATIENCE).acquire().expect("shared")).collect();
    assert!(guards.iter().all(Guard::is_valid));
    assert!(is_contended(&lock.write().try_acquire()) && is_contended(&client.lock("a").try_acquire()));
    let begun = Instant::now();
    // A reader that requests the writer's lock waits for itself until its wait ends.
    assert!(is_contended(&lock.write().wait(Duration::from_millis(200)).acquire()));
    assert_sooner(begun, PATIENCE, "a writer that its own reader blocks waits for the TTL");
    drop(guards);
    drop(lock.write().ttl(TTL).wait(PATIENCE).acquire().expect("nobody reads"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn reader_is_renewed_and_its_loss_reported() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let ttl = Duration::from_secs(1);
    let guard = client.lock("a").shared().ttl(ttl).auto_extend(NEVER).acquire().expect("free");
    let guard = settled(guard);
    let first_end = guard.valid_until();
    eventually(PATIENCE, "two renewals", || guard.valid_until() > first_end + ttl / 2);
    assert!(guard.is_valid(), "nobody extended it");
    assert!(is_contended(&client.lock("a").try_acquire()));
    let (sender, receiver) = mpsc::channel();
    // The receiver may be gone.
    guard.on_lost(move || sender.send(()).unwrap_or_default());
    client.force_unlock("a").expect("the masters answer");
    receiver.recv_timeout(PATIENCE).expect("masters show that it is lost");
    let mut guard = guard;
    assert!(matches!(guard.extend(ttl), Err(ExtendError::Expired | ExtendError::Lost(_))));
    assert!(guard.release().expect("confirmed").was_already_gone());
    await_no_keys(&mut fleet);
}

#[test]
fn an_inspection_counts_readers_and_force_ends_them() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guards: Vec<Guard> =
        (0..2).map(|_| settled(client.lock("a").shared().ttl(TTL).acquire().expect("shared"))).collect();
    let inspection = client.inspect("a").expect("the masters answer");
    assert_eq!(
        (inspection.status(), inspection.is_held(), inspection.holder()),
        (LockStatus::Shared, false, None)
    );
    assert!(
        matches!(inspection.remaining(), HolderTtl::Left(left) if left > TTL / 2 && left <= TTL + TTL / 100)
    );
    let is_two =
        |state: &KeyState| matches!(state, KeyState::Shared { readers: 2, left: HolderTtl::Left(_) });
    assert!(inspection.masters.iter().all(|(_, state)| is_two(state)), "{inspection:?}");
    assert!(client.force_unlock("a").expect("the masters answer").deleted() >= 2);
    drop(client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("nobody is in the way"));
    drop(guards);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn all_readers_follow_a_writer_and_vice_versa() {
    within("each has its turn", || {
        let mut fleet = Fleet::start(3);
        let clients = [(); 3].map(|()| build(patient(&fleet.urls())));
        let alone = clients[0].lock("a").ttl(TTL).try_acquire().expect("free");
        await_held(&mut fleet, "a");
        let readers: Vec<_> = [0, 1, 1, 2]
            .map(|index| clients[index].clone())
            .map(|client| {
                thread::spawn(move || {
                    client.lock("a").shared().ttl(TTL).wait(PATIENCE).acquire().expect("served")
                })
            })
            .into();
        await_waiters(&mut fleet, 0..3, "a", 4);
        alone.release().expect("confirmed");
        let readers: Vec<_> = readers.into_iter().map(|it| it.join().expect("no panic")).collect();
        let writer = clients[0].clone();
        let writer = thread::spawn(move || writer.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        // A reader that a quorum has served does not ask the third master, which may grant the writer a part.
        eventually(PATIENCE, "it stands in the queues of a quorum", || {
            let counts = fleet.masters().map(|master| master.ask("ZCARD redlatch:wait:a").text());
            counts.filter(|count| count == "1").count() >= 2
        });
        for (index, reader) in readers.into_iter().enumerate() {
            if index % 2 == 0 {
                drop(reader);
            } else {
                reader.release().expect("confirmed");
            }
        }
        drop(writer.join().expect("no panic").expect("served"));
        clients.iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
        await_no_keys(&mut fleet);
    });
}

#[test]
fn writers_tokens_rise_across_readers() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock = client.rw_lock("a");
    let mut last = None;
    for _ in 0..3 {
        let guard = lock.write().fenced().ttl(TTL).wait(PATIENCE).acquire().expect("free");
        assert!(guard.fencing_token() > last, "{:?} after {last:?}", guard.fencing_token());
        last = guard.fencing_token();
        guard.release().expect("confirmed");
        let guard = lock.read().ttl(TTL).wait(PATIENCE).acquire().expect("free");
        assert_eq!(guard.fencing_token(), None);
        assert!(is_contended(&lock.write().fenced().try_acquire()));
        guard.release().expect("confirmed");
    }
    assert_eq!(lock.read().fenced().acquire().err(), Some(AcquireError::Input(InputError::SharedFenced)));
    assert_eq!(settle(&client, PATIENCE), 0);
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[redlatch:fence:a]");
    }
}

#[test]
fn sets_and_reentrant_locks_can_be_shared() {
    let mut fleet = Fleet::start(3);
    let clients = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let sets = clients.each_ref().map(|client| client.lock_set(["a", "b"]).shared().ttl(TTL).acquire());
    let sets = sets.map(|set| set.expect("shared"));
    assert!(is_contended(&clients[0].lock("b").ttl(TTL).try_acquire()));
    let owners =
        clients.each_ref().map(|client| client.lock("a").shared().ttl(TTL).wait(PATIENCE).reentrant());
    let holds = owners.each_ref().map(|owner| [owner.lock(), owner.lock()].map(|hold| hold.expect("shared")));
    assert!(owners.iter().all(|owner| owner.hold_count() == 2));
    drop((sets, holds));
    drop(clients[0].lock_set(["a", "b"]).ttl(TTL).wait(PATIENCE).acquire().expect("nobody reads"));
    clients.iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
    await_no_keys(&mut fleet);
}
