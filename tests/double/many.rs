//! A thousand doubles in one run, and the duration of a lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{AcquireError, HeldLocks, limits};
use redlatch_support::{PATIENCE, eventually};
use redlatch_testing::Double;

use crate::{TTL, contended, open, start};

const COUNT: usize = 1_000;
/// Number of threads that use doubles at the same time, as in a test run.
const THREADS: usize = 8;

/// A lock that is refused to another client, lost in an outage of the majority, and acquired again.
fn live(double: &Double) {
    let [client, other] = [open(double), open(double)];
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    contended(other.lock("a").try_acquire());
    guard.release().expect("confirmed");
    other.lock("a").wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
}

#[test]
fn a_thousand_doubles_live_in_one_run() {
    let (next, done, start_at) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    let work = || {
        while next.fetch_add(1, Ordering::Relaxed) < COUNT {
            live(&start(3));
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(done.into_inner(), COUNT);
    println!("{COUNT} doubles of three masters, {THREADS} at once: {:?}", start_at.elapsed());
}

/// The drain takes the place of an acquisition that it ends.
#[test]
fn a_client_without_room_is_drained() {
    let double = Double::start(1).expect("a free port");
    let client = double.config().connect().expect("an event loop");
    double.master(0).kill();
    eventually(PATIENCE, "it notices", || !client.health().has_quorum);
    let request = |number: usize| client.lock(number.to_string()).wait(10 * PATIENCE);
    let acquiring = client.acquire_all((0..limits::OPERATION_COUNT_MAX).map(request));
    assert!(matches!(client.lock("a").try_acquire(), Err(AcquireError::Overloaded)));
    assert_eq!(client.drain(Duration::ZERO, HeldLocks::Leave), 0);
    assert!(client.health().masters.is_empty(), "it has stopped");
    drop(acquiring);
}
