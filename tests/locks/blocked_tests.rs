//! Waiting threads and tasks leave the processor to others.

use std::fs;
use std::future::poll_fn;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use redlatch::{Client, HeldLocks};
use redlatch_support::stage::Fleet;
use redlatch_support::{Blocking, PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, await_held, open};

const WAIT: Duration = Duration::from_secs(2);
/// Far above the processor time of two seconds' turns, and far below the processor time of a loop without a pause
/// on a busy machine.
const CPU_TIME_MAX: Duration = Duration::from_millis(500);

/// Processor time of this thread so far.
fn cpu_time() -> Duration {
    let times = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let ran = times.split_whitespace().next().and_then(|ran| ran.parse().ok());
    Duration::from_nanos(ran.expect("a number"))
}

type Call = fn(&Client, Duration);

const CALLS: [(&str, Call); 9] = [
    ("a lock", |client, wait| drop(client.lock("a").ttl(TTL).wait(wait).acquire().expect_err("held"))),
    ("a fair lock", |client, wait| {
        drop(client.lock("a").ttl(TTL).wait(wait).fair().acquire().expect_err("held"));
    }),
    ("a reader", |client, wait| {
        drop(client.rw_lock("a").read().ttl(TTL).wait(wait).acquire().expect_err("held"));
    }),
    ("a set", |client, wait| {
        drop(client.lock_set(["a", "b"]).ttl(TTL).wait(wait).acquire().expect_err("held"));
    }),
    ("a slot", |client, wait| {
        drop(client.slots("pool", 1).ttl(TTL).wait(wait).acquire().expect_err("taken"));
    }),
    ("a lock with reentry", |client, wait| {
        drop(client.lock("a").ttl(TTL).wait(wait).reentrant().lock().expect_err("held"));
    }),
    ("a lock with reentry beside another caller", |client, wait| {
        let lock = client.lock("a").ttl(TTL).wait(wait).reentrant();
        thread::scope(|scope| {
            scope.spawn(|| lock.lock().expect_err("held"));
            eventually(PATIENCE, "the other one has asked", || client.stats().operations == 1);
            lock.lock().expect_err("held");
        });
    }),
    ("a drain", |client, wait| {
        let _guard = client.lock("of the drain").ttl(TTL).acquire().expect("free");
        assert_eq!(client.drain(wait, HeldLocks::Leave), 1);
    }),
    ("a lock by a Redlock", |client, wait| {
        let mut redlock = Blocking::open(client.config().clone()).expect("an event loop");
        drop(redlock.lock("a").ttl(TTL).wait(wait).acquire().expect_err("held"));
    }),
];

#[test]
fn a_thread_that_waits_sleeps() {
    let mut fleet = Fleet::start(3);
    let holder = open(&fleet.urls(), LONG);
    let _held = holder.lock("a").ttl(TTL).acquire().expect("free");
    let _taken = holder.slots("pool", 1).ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "a");
    let urls = fleet.urls();
    thread::scope(|scope| {
        let running = CALLS.map(|(what, call)| {
            let client = open(&urls, LONG);
            let measured = move || {
                let before = cpu_time();
                call(&client, WAIT);
                cpu_time() - before
            };
            (what, scope.spawn(measured))
        });
        for (what, measuring) in running {
            let took = measuring.join().expect("no panic");
            assert!(took < CPU_TIME_MAX, "{what}: it ran for {took:?} of {WAIT:?}");
        }
    });
}

/// A waiting task is polled only for its own events, and no more often than it tries again.
#[test]
fn a_task_that_waits_is_polled_rarely() {
    const POLL_COUNT_MAX: usize = 100;
    let mut fleet = Fleet::start(3);
    let [holder, client] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let _held = holder.lock("a").ttl(TTL).acquire().expect("free");
    let _taken = holder.slots("pool", 1).ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "a");
    let wait = Duration::from_millis(500);
    let request = || client.lock_owned("a").ttl(TTL).wait(wait);
    let lock = request().reentrant();
    let guard = client.lock("mine").ttl(TTL).acquire().expect("free");
    let counts = [
        ("a lock", poll_count(request().acquire_async())),
        ("a fair lock", poll_count(request().fair().acquire_async())),
        ("a set", poll_count(client.lock_set(["a", "b"]).ttl(TTL).wait(wait).acquire_async())),
        ("a slot", poll_count(client.slots("pool", 1).ttl(TTL).wait(wait).acquire_async())),
        ("a lock with reentry", poll_count(lock.lock_async())),
        ("work under a lock", poll_count(request().run_async(async |_| ()))),
        ("a drain", poll_count(client.drain_async(wait, HeldLocks::Leave))),
    ];
    drop(guard);
    for (what, count) in counts {
        assert!(count < POLL_COUNT_MAX, "{what}: {count} polls");
    }
}

fn poll_count<F: Future>(future: F) -> usize {
    let mut future = pin!(future);
    let mut count = 0;
    block_on(poll_fn(|context| {
        count += 1;
        future.as_mut().poll(context).map(drop)
    }));
    count
}
