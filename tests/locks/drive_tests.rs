//! A user's event loop in place of the client's thread.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::status::MasterState;
use redlatch::{AcquireError, Cancel, Client, Drive};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::batch_tests::work;
use crate::harness::{LONG, TTL, await_held, open, poll_once, within};

/// Turns until the future is ready.
fn drive_until_ready<F: Future + Unpin>(drive: &mut Drive, future: &mut F) -> F::Output {
    let given_up = Instant::now() + PATIENCE;
    loop {
        if let std::task::Poll::Ready(output) = poll_once(future) {
            return output;
        }
        assert!(Instant::now() < given_up, "the drive does not drive");
        drive.turn(std::task::Waker::noop()).expect("the client lives");
    }
}

#[test]
fn a_drive_takes_over_and_gives_back() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    // From this call on, the client's own thread drives the event loop.
    drop(block_on(client.lock("before").ttl(TTL).acquire_async()).expect("free"));
    let mut drive = client.drive().expect("a descriptor");
    // Turned at once, before the client's thread notices.
    drive.turn(std::task::Waker::noop()).expect("the client lives");
    let given_up = Instant::now() + PATIENCE;
    for round in 0.. {
        let name = format!("orders:{round}");
        let mut acquiring = client.lock(&name).ttl(TTL).acquire_async();
        assert!(poll_once(&mut acquiring).is_pending());
        // Nobody turns, so only the client's thread could bring an answer now.
        thread::sleep(Duration::from_millis(50));
        if let std::task::Poll::Ready(guard) = poll_once(&mut acquiring) {
            drop(guard.expect("free"));
            assert!(Instant::now() < given_up, "the client's thread goes on to lead");
            continue;
        }
        drop(drive_until_ready(&mut drive, &mut acquiring).expect("free"));
        break;
    }
    drop(drive);
    drop(block_on(client.lock("after").ttl(TTL).acquire_async()).expect("free"));
}

/// A waiting thread leads without help, even if a handle may cancel its wait.
// I124
#[test]
fn blocking_call_needs_no_drive() {
    type Call = fn(&Client, &Cancel, Duration) -> Result<(), AcquireError>;
    let calls: [Call; 3] = [
        |client, cancel, wait| client.lock("a").ttl(TTL).wait(wait).cancel_with(cancel).acquire().map(drop),
        |client, cancel, wait| {
            client.slots("pool", 1).ttl(TTL).wait(wait).cancel_with(cancel).acquire().map(drop)
        },
        |client, cancel, wait| {
            let set = client.lock_set(["a", "b"]).ttl(TTL).wait(wait).cancel_with(cancel).acquire();
            set.map(drop).map_err(|error| error.source)
        },
    ];
    let fleet = Fleet::start(3);
    for call in calls {
        let client = open(&fleet.urls(), LONG);
        let mut drive = client.drive().expect("a descriptor");
        drive.turn(std::task::Waker::noop()).expect("the client lives");
        let cancel = Cancel::new();
        let calling = |wait| {
            let (client, cancel) = (client.clone(), cancel.clone());
            thread::spawn(move || call(&client, &cancel, wait))
        };
        let end =
            |calling: thread::JoinHandle<_>| within("a call", move || calling.join()).expect("no panic");
        assert_eq!(end(calling(PATIENCE)), Ok(()));
        let holder = open(&fleet.urls(), LONG);
        let _held = holder.lock("a").ttl(TTL).acquire().expect("free");
        let _slot = holder.slots("pool", 1).ttl(TTL).acquire().expect("free");
        assert!(matches!(end(calling(Duration::ZERO)), Err(AcquireError::Contended(_))));
        // One thread leads, and one sleeps beside it.
        let waiting = [calling(PATIENCE * 10), calling(PATIENCE * 10)];
        eventually(PATIENCE, "both wait", || client.stats().operations >= 2);
        cancel.cancel();
        for calling in waiting {
            assert_eq!(end(calling), Err(AcquireError::Cancelled));
        }
    }
}

/// A call for a slot writes the release of the door before it ends.
#[test]
fn failed_slot_call_leaves_its_door_without_drive() {
    let mut fleet = Fleet::start(3);
    let holder = open(&fleet.urls(), LONG);
    let _held = holder.slots("pool", 1).ttl(TTL).try_acquire().expect("free");
    await_held(&mut fleet, "redlatch:slot:0:pool");
    let client = open(&fleet.urls(), LONG);
    let _drive = client.drive().expect("a descriptor");
    let cancel = Cancel::new();
    let request = client.slots("pool", 1).ttl(TTL).wait(LONG).cancel_with(&cancel);
    let waiting = thread::spawn(move || request.acquire());
    await_held(&mut fleet, "redlatch:door:pool");
    // With a long TTL, only a release can delete the door's key.
    fleet.masters().for_each(|master| drop(master.ask("PEXPIRE redlatch:door:pool 600000")));
    cancel.cancel();
    let error = within("the cancel", move || waiting.join().expect("no panic")).expect_err("cancelled");
    assert!(matches!(error, AcquireError::Cancelled), "{error}");
    eventually(PATIENCE, "the door is left", || {
        fleet.masters().all(|master| master.ask("EXISTS redlatch:door:pool").text() == "0")
    });
}

/// A failed set writes its releases before its call ends.
#[test]
fn failed_set_releases_without_a_drive() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let holder = open(&fleet.urls(), LONG);
    let _held = holder.lock("b").ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "b");
    let client = open(&fleet.urls(), LONG);
    let mut drive = client.drive().expect("a descriptor");
    eventually(PATIENCE, "each master is connected", || {
        drive.turn(std::task::Waker::noop()).expect("the client lives");
        client.masters().iter().all(|master| master.state == MasterState::Ready)
    });
    let before: Vec<usize> = fleet.masters().map(|master| work(master).command_count).collect();
    let refused = client.lock_set(["a", "b"]).ttl(TTL).try_acquire().expect_err("held");
    assert!(matches!(refused.source, AcquireError::Contended(_)), "{refused}");
    eventually(PATIENCE, "each was asked for both", || {
        fleet.masters().zip(&before).all(|(master, before)| work(master).command_count >= before + 2)
    });
    eventually(PATIENCE, "the other lock is given back", || {
        fleet.masters().all(|master| master.ask("EXISTS a").text() == "0")
    });
}
