//! Slots: each holder has a number of its own, and waiters get released slots.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use redlatch::error::{HeldBy, InputError};
use redlatch::inspection::LockStatus;
use redlatch::{AcquireError, Cancel, Client, Options, SlotGuard, SlotsRequest, limits};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, config, open, poll_once, within};

/// More slots than the first waiter queues for.
const MANY: u32 = limits::SLOT_STAND_MAX + 4;

fn slots(client: &Client, count: u32) -> SlotsRequest {
    client.slots("pool", count).ttl(TTL).wait(PATIENCE)
}

fn acquire(request: SlotsRequest, is_async: bool) -> Result<SlotGuard, AcquireError> {
    if is_async { block_on(request.acquire_async()) } else { request.acquire() }
}

fn take_all(client: &Client, count: u32) -> Vec<SlotGuard> {
    (0..count).map(|_| slots(client, count).try_acquire().expect("one is free")).collect()
}

// I78
#[test]
fn each_holder_has_a_number_of_its_own() {
    let mut fleet = Fleet::start(3);
    let clients = [(); 3].map(|()| open(&fleet.urls(), LONG));
    for count in [1, 2, MANY] {
        let held: Vec<SlotGuard> = thread::scope(|scope| {
            let threads: Vec<_> = (0..count as usize)
                .map(|index| {
                    let request = slots(&clients[index % 3], count);
                    scope.spawn(move || acquire(request, index % 2 == 0).expect("one is free"))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let numbers: BTreeSet<u32> = held.iter().map(SlotGuard::slot).collect();
        assert_eq!(numbers, (0..count).collect());
        for slot in &held {
            let name = format!("redlatch:slot:{}:pool", slot.slot());
            assert_eq!((slot.resource_str(), slot.pool()), (Some(&*name), b"pool".as_slice()));
            assert!(slot.is_valid());
            let inspection = clients[0].inspect(&name).expect("masters answer");
            assert_eq!(inspection.status(), LockStatus::Held);
        }
        let error = slots(&clients[0], count).try_acquire().expect_err("all are taken");
        assert!(matches!(error, AcquireError::Contended(_)), "{error}");
        drop(held);
        clients.iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
    }
    assert_nothing_left(&clients[0], &mut fleet);
}

#[test]
fn a_refusal_names_the_holders() {
    let fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    for count in [1, 3] {
        let take = |index| {
            slots(&other, count).holder_label(format!("job {index}")).try_acquire().expect("one is free")
        };
        let taken: Vec<_> = (0..count).map(take).collect();
        let refuse = |wait| {
            let error = slots(&client, count).wait(wait).acquire().expect_err("all are taken");
            let AcquireError::Contended(denial) = &error else { panic!("{error}") };
            assert_eq!(denial.held_by, HeldBy::Slots(count));
            for holder in &denial.slots {
                let index = taken.iter().position(|slot| slot.slot() == holder.slot).expect("it is taken");
                assert_eq!(holder.label.as_deref(), Some(&*format!("job {index}")), "{error}");
            }
            let text = if count == 1 { "the only slot of pool \"pool\" is taken" } else { "all 3 slots of" };
            assert!(error.to_string().starts_with(text), "{error}");
            denial.slots.len()
        };
        assert_eq!(refuse(Duration::ZERO), 1);
        // A waiting caller stands in the queue of each slot, unless the machine is slow.
        let mut wait = Duration::from_millis(50);
        while refuse(wait) < count as usize {
            wait *= 2;
            assert!(wait < PATIENCE);
        }
        drop(taken);
        [&client, &other].into_iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
    }
}

/// The other masters grant at once, but differ about another slot, so the search waits for the slow master.
#[test]
fn a_slow_master_delays_no_caller() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), TTL);
    (0..2)
        .for_each(|index| drop(fleet.master(index).ask(&format!("SET redlatch:slot:0:pool {index}-holder"))));
    fleet.master(2).stop();
    for is_async in [false, true] {
        let request = slots(&client, 2).wait(Duration::ZERO);
        let slot = within("it waits for the slow master", move || acquire(request, is_async));
        let slot = slot.expect("two of three grant");
        assert_eq!(slot.slot(), 1);
        slot.release().expect("two of three confirm");
    }
    fleet.master(2).cont();
}

#[test]
fn invalid_pool_is_refused_at_once() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    for count in [0, limits::SLOT_COUNT_MAX + 1] {
        let error = slots(&client, count).acquire().expect_err("no pool");
        assert_eq!(error, AcquireError::Input(InputError::SlotCount { count }));
    }
    for options in [Options::new().shared(), Options::new().fair()] {
        let error = block_on(slots(&client, 3).options(options).acquire_async()).expect_err("no slot");
        assert_eq!(error, AcquireError::Input(InputError::SlotMode));
    }
    for (name, refusal) in [
        ("", InputError::ResourceEmpty),
        ("redlatch:slot:1:pool", InputError::ResourceReserved),
        ("redlatch:door:pool", InputError::ResourceReserved),
    ] {
        let error = client.slots(name, 3).acquire().expect_err("no name");
        assert_eq!(error, AcquireError::Input(refusal));
    }
    let error = client.lock("redlatch:slot:1:pool").acquire().expect_err("it is a slot's");
    assert_eq!(error, AcquireError::Input(InputError::ResourceReserved));
    let longest = "p".repeat(limits::RESOURCE_SIZE_MAX);
    let slot = client.slots(&longest, limits::SLOT_COUNT_MAX).acquire().expect("a long name is one, too");
    drop(slot);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_released_slot_goes_to_a_waiter() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    for count in [1, 3, MANY] {
        for (waiter, is_async) in [(&client, false), (&client, true), (&other, false), (&other, true)] {
            let mut taken = take_all(&other, count);
            let request = slots(waiter, count);
            let waiting = thread::spawn(move || acquire(request, is_async));
            await_door(waiter);
            let released = taken.remove(count as usize / 2);
            let number = released.slot();
            drop(released);
            let slot = within("it waits for a slot", move || waiting.join().expect("no panic"));
            assert_eq!(slot.expect("one is free").slot(), number);
            drop(taken);
            [&client, &other].into_iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
        }
    }
    assert_nothing_left(&client, &mut fleet);
}

/// Waits until this client's only waiter has the door.
fn await_door(client: &Client) {
    eventually(PATIENCE, "it has the door", || {
        let inspection = client.inspect("redlatch:door:pool").expect("masters answer");
        inspection.status() == LockStatus::Held
    });
}

#[test]
fn max_attempts_does_not_limit_an_awaited_slot() {
    let mut fleet = Fleet::start(3);
    let other = open(&fleet.urls(), LONG);
    // A parked attempt would not try again.
    let client = config(&fleet.urls(), LONG).wake_waiters(false).connect().expect("an event loop");
    let held = other.slots("pool", 1).ttl(TTL).try_acquire().expect("free");
    let request = client.slots("pool", 1).ttl(TTL).wait(PATIENCE).max_attempts(2);
    let waiting = thread::spawn(move || request.acquire());
    eventually(PATIENCE, "it tries on", || waiting.is_finished() || client.stats().retries > 5);
    assert!(!waiting.is_finished());
    drop(held);
    drop(waiting.join().expect("no panic").expect("the slot is free"));
    assert_eq!(settle(&other, PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

// I81
#[test]
fn a_wait_that_is_ended_leaves_nothing() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    for count in [3, MANY] {
        let taken = take_all(&other, count);
        for is_async in [false, true] {
            let cancel = Cancel::new();
            let request = slots(&client, count).cancel_with(&cancel);
            let waiting = thread::spawn(move || acquire(request, is_async));
            await_door(&client);
            cancel.cancel();
            let error = waiting.join().expect("no panic").expect_err("it is cancelled");
            assert_eq!(error, AcquireError::Cancelled);
            assert_eq!(settle(&client, PATIENCE), 0);
        }
        // Whatever the caller waits for after this many polls.
        for polls in 0..12 {
            let mut waiting = Box::pin(slots(&client, count).acquire_async());
            for _ in 0..polls {
                assert!(poll_once(&mut waiting).is_pending());
                thread::sleep(Duration::from_millis(2));
            }
            drop(waiting);
        }
        assert_eq!(settle(&client, PATIENCE), 0);
        let error =
            slots(&client, count).wait(Duration::from_millis(50)).acquire().expect_err("all are taken");
        assert!(matches!(error, AcquireError::Contended(_)), "{error}");
        assert_eq!(settle(&client, PATIENCE), 0);
        drop(taken);
        assert_eq!(settle(&other, PATIENCE), 0);
        fleet.masters().for_each(|master| {
            eventually(PATIENCE, "the queues expire", || master.key_count() == "0");
        });
    }
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn each_slot_has_a_fence_of_its_own() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut largest = [0; 2];
    for _ in 0..10 {
        let held = [(); 2].map(|()| slots(&client, 2).fenced().acquire().expect("one is free"));
        for slot in &held {
            let token = u64::from(slot.fencing_token().expect("it is fenced"));
            let before = std::mem::replace(&mut largest[slot.slot() as usize], token);
            assert!(token > before, "{token} after {before}");
        }
        for slot in held {
            slot.release().expect("confirmed");
        }
    }
}

// I78
#[test]
fn a_smaller_pool_has_the_lower_numbers() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut taken = take_all(&client, 4);
    taken.sort_by_key(SlotGuard::slot);
    let high = taken.split_off(2);
    drop(taken);
    eventually(PATIENCE, "the lower ones are released", || client.stats().claims == 2);
    let low = take_all(&client, 2);
    assert!(low.iter().all(|slot| slot.slot() < 2) && high.iter().all(|slot| slot.slot() >= 2));
    let error = slots(&client, 2).try_acquire().expect_err("both are taken");
    assert!(matches!(error, AcquireError::Contended(_)), "{error}");
    assert!(high.iter().all(|slot| slot.is_valid()), "they stay until they are released");
    drop((low, high));
    assert_nothing_left(&client, &mut fleet);
}
