//! An event loop of the user's own in place of the client's thread.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::Drive;

use crate::fleet::Fleet;
use crate::harness::{LONG, PATIENCE, TTL, block_on, open, poll_once};

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
    // Since this the client's own thread sits in the event loop.
    drop(block_on(client.lock("before").ttl(TTL).acquire_async()).expect("free"));
    let mut drive = client.drive().expect("a descriptor");
    // At once, before that thread knows.
    drive.turn(std::task::Waker::noop()).expect("the client lives");
    let given_up = Instant::now() + PATIENCE;
    for round in 0.. {
        let name = format!("orders:{round}");
        let mut acquiring = client.lock(&name).ttl(TTL).acquire_async();
        assert!(poll_once(&mut acquiring).is_pending());
        // Nobody turns: an answer now would be by the client's thread.
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
