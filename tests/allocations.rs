//! `Redlock` and `Client` allocate nothing for a lock once they have been warmed up, on any thread.

#[path = "masters/fleet.rs"]
mod fleet;

use std::alloc::System;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use fleet::Fleet;
use redlatch::engine::{OpId, Outcome, Request};
use redlatch::lock::Resource;
use redlatch::{Client, Config, Guard, Quarantine, Redlock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(20);

/// All in one test: allocations are counted in the whole process.
#[test]
fn a_pair_allocates_nothing_in_steady_state() {
    redlock_allocates_nothing();
    client_allocates_nothing();
    // The check can fail: an allocation is seen.
    let region = Region::new(COUNTED);
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(region.change().allocations, 1);
}

fn assert_nothing_allocated(region: &Region<'_, System>, what: &str, is_awaited: bool) {
    let change = region.change();
    assert_eq!(
        (change.allocations, change.reallocations),
        (0, 0),
        "{what}, awaited: {is_awaited}, {change:?}"
    );
}

fn redlock_allocates_nothing() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let mut redlock = Redlock::open(config.build().expect("valid")).expect("an event loop");
    raise_high_water_mark(&mut redlock);
    for is_awaited in [true, false] {
        let mut pairs = |count| {
            for _ in 0..count {
                let mut lease = redlock.acquire("orders:42", TTL, PATIENCE).expect("free");
                redlock.extend(&mut lease, TTL).expect("held");
                if is_awaited {
                    redlock.release(lease).expect("confirmed");
                } else {
                    drop(lease);
                }
            }
        };
        pairs(100);
        let region = Region::new(COUNTED);
        pairs(1000);
        assert_nothing_allocated(&region, "Redlock", is_awaited);
    }
    let first = submit(&mut redlock);
    let mut held = pass_on(&mut redlock, first, 100);
    let region = Region::new(COUNTED);
    held = pass_on(&mut redlock, held, 1000);
    assert_nothing_allocated(&region, "Redlock, handed over", false);
    redlock.submit(Request::Release { lock: held, awaited: false }).expect("always taken");
}

fn client_allocates_nothing() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let client = Client::open(config.build().expect("valid")).expect("an event loop");
    let names: Vec<String> = (0..5000).map(warm_name).collect();
    let batch = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
    let guards: Vec<Guard> = batch.into_iter().map(|it| it.wait().expect("free")).collect();
    for releasing in client.release_all(guards) {
        releasing.wait().expect("confirmed");
    }
    wait_beside_leader(&client);
    for is_awaited in [true, false] {
        let pairs = |count| (0..count).for_each(|_| pair(&client, is_awaited));
        pairs(100);
        let region = Region::new(COUNTED);
        pairs(1000);
        assert_nothing_allocated(&region, "Client, a thread", is_awaited);
    }
    block_on(measure_async(&client, "Client, a bare task"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure_async(&client, "Client, a task on tokio"));
    #[cfg(feature = "tokio")]
    {
        runtime.spawn(client.drive_on_tokio());
        runtime.block_on(measure_async(&client, "Client, driven by tokio"));
    }
}

/// The first time that a thread waits while another one leads, it allocates what it sleeps by: by chance, and once.
fn wait_beside_leader(client: &Client) {
    let held = client.lock("held").ttl(TTL).acquire().expect("free");
    let mut waiting = pin!(client.lock("held").ttl(TTL).wait(PATIENCE).acquire_async());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Meanwhile the client's own thread leads whenever this one does not.
    (0..1000).for_each(|_| pair(client, true));
    drop(held);
}

fn pair(client: &Client, is_awaited: bool) {
    let mut guard = client.lock("orders:42").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    guard.extend(TTL).expect("held");
    if is_awaited {
        guard.release().expect("confirmed");
    } else {
        drop(guard);
    }
}

/// Within one future, for what starts an executor allocates.
async fn measure_async(client: &Client, what: &str) {
    for is_awaited in [true, false] {
        let pairs = async |count| {
            for _ in 0..count {
                let request = client.lock("orders:42").ttl(TTL).wait(PATIENCE);
                let mut guard = request.acquire_async().await.expect("free");
                guard.extend_async(TTL).await.expect("held");
                if is_awaited {
                    guard.release_async().await.expect("confirmed");
                } else {
                    drop(guard);
                }
            }
        };
        pairs(100).await;
        let region = Region::new(COUNTED);
        pairs(1000).await;
        assert_nothing_allocated(&region, what, is_awaited);
    }
}

/// The smallest executor: it allocates its waker, once.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn submit(redlock: &mut Redlock) -> OpId {
    let ttl = redlock.ttl(TTL).expect("valid");
    let resource = Resource::new("orders:42").expect("valid");
    let request = Request::Acquire { resource, ttl, wait: PATIENCE, min_validity: Duration::ZERO };
    redlock.submit(request).expect("room")
}

/// The lock passes from caller to caller, from the `first` on, with always one more in line. Returns the last one.
fn pass_on(redlock: &mut Redlock, first: OpId, count: usize) -> OpId {
    let mut last = first;
    for _ in 0..count {
        let next = submit(redlock);
        while redlock.poll_outcome().is_none_or(|(lock, _)| lock != last) {
            redlock.turn(PATIENCE).expect("the loop runs");
        }
        redlock.submit(Request::Release { lock: last, awaited: false }).expect("always taken");
        last = next;
    }
    last
}

/// Longer than the name that is measured: whatever slot that comes to, its memory is large enough.
fn warm_name(index: u32) -> String {
    format!("warmed-up:{index}")
}

/// More locks at once than the measured pairs have commands: a slow minority may lag behind by all of them.
fn raise_high_water_mark(redlock: &mut Redlock) {
    let ttl = redlock.ttl(TTL).expect("valid");
    let names: Vec<String> = (0..5000).map(warm_name).collect();
    for name in &names {
        let (resource, wait, min_validity) = (Resource::new(name).expect("valid"), PATIENCE, Duration::ZERO);
        redlock.submit(Request::Acquire { resource, ttl, wait, min_validity }).expect("room");
    }
    let mut released_count = 0;
    while released_count < names.len() {
        redlock.turn(PATIENCE).expect("the loop runs");
        while let Some((lock, outcome)) = redlock.poll_outcome() {
            match outcome {
                Outcome::Acquire(Ok(_)) => {
                    redlock.submit(Request::Release { lock, awaited: true }).expect("always taken");
                }
                Outcome::Release(Ok(_)) => released_count += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}
