//! A client that was opened in a task, and is driven by that task's runtime.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, limits};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on};
use tokio::runtime::{Builder, Runtime};

use crate::harness::{LONG, TTL, assert_nothing_left, await_connections, config, poll_once, within};

/// Name of a client's background thread.
const BACKGROUND: &str = "redlatch";

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Notes the name of each thread that wakes the task.
struct Noting(Waker, Arc<Mutex<Vec<Option<String>>>>);

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic").push(thread::current().name().map(str::to_owned));
        self.0.wake_by_ref();
    }
}

/// Acquires and releases this often. Returns the names of the threads that woke the task.
async fn wakers_of_pairs(client: &Client, count: usize) -> Vec<Option<String>> {
    let names = Arc::<Mutex<Vec<_>>>::default();
    let mut pairs = Box::pin(async {
        for _ in 0..count {
            let guard = client.lock("pairs").ttl(TTL).acquire_async().await.expect("free");
            guard.release_async().await.expect("confirmed");
        }
    });
    poll_fn(|context| {
        let waker = Waker::from(Arc::new(Noting(context.waker().clone(), names.clone())));
        pairs.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await;
    let mut names = names.lock().expect("no panic");
    std::mem::take(&mut *names)
}

/// Whether most wake-ups came from the background thread. On a loaded machine the runtime may sometimes be
/// late.
fn are_from_background(wakers: &[Option<String>]) -> bool {
    let count = wakers.iter().filter(|name| name.as_deref() == Some(BACKGROUND)).count();
    assert!(wakers.len() >= 2, "{wakers:?}");
    count > wakers.len() / 2
}

async fn connect(fleet: &Fleet) -> Client {
    config(&fleet.urls(), LONG).connect_async().await.expect("an event loop")
}

#[test]
fn runtime_of_one_thread_drives_its_client() {
    let mut fleet = Fleet::start(3);
    let runtime = one_thread();
    let client = runtime.block_on(connect(&fleet));
    let wakers = runtime.block_on(wakers_of_pairs(&client, 200));
    assert!(!are_from_background(&wakers), "{wakers:?}");
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn runtime_of_several_workers_leaves_the_background_thread() {
    let fleet = Fleet::start(3);
    let runtime = two_workers();
    let client = runtime.block_on(connect(&fleet));
    let wakers = runtime.block_on(wakers_of_pairs(&client, 200));
    assert!(are_from_background(&wakers), "{wakers:?}");
}

#[test]
fn other_executors_leave_the_background_thread() {
    let fleet = Fleet::start(3);
    let client = block_on(connect(&fleet));
    let wakers = block_on(wakers_of_pairs(&client, 200));
    assert!(are_from_background(&wakers), "{wakers:?}");
    let client = smol::block_on(connect(&fleet));
    let wakers = smol::block_on(wakers_of_pairs(&client, 200));
    assert!(are_from_background(&wakers), "{wakers:?}");
}

// I143
#[test]
fn blocked_runtime_loses_no_kept_lock() {
    const KEPT_TTL: Duration = Duration::from_secs(2);
    let fleet = Fleet::start(3);
    for count in [1, 1000] {
        one_thread().block_on(async {
            let client = connect(&fleet).await;
            let names: Vec<String> = (0..count).map(|index| format!("kept:{index}")).collect();
            let request = |name| client.lock(name).ttl(KEPT_TTL).auto_extend(TTL);
            let mut guards = Vec::new();
            for acquiring in client.acquire_all(names.iter().map(request)) {
                guards.push(acquiring.await.expect("free"));
            }
            thread::sleep(2 * KEPT_TTL);
            let lost_count = guards.iter().filter(|guard| !guard.is_valid()).count();
            assert_eq!(lost_count, 0, "of {count}");
            assert_eq!(client.stats().lost, 0, "of {count}");
            for releasing in client.release_all(guards) {
                assert!(!releasing.await.expect("confirmed").was_already_gone());
            }
        });
    }
}

/// Asserts that acquisitions are fast. Without a leader, each would take the pause between two looks.
fn acquires_soon(client: &Client, what: &str) {
    const ROUNDS: u32 = 20;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        drop(block_on(client.lock("soon").ttl(TTL).acquire_async()).expect("free"));
        let took = start.elapsed();
        assert!(took < limits::LOOK_PAUSE * ROUNDS / 2, "{what}: {took:?}");
    }
}

// I143
#[test]
fn blocked_runtime_delays_no_other_callers() {
    let fleet = Fleet::start(3);
    let runtime = one_thread();
    let client = runtime.block_on(connect(&fleet));
    acquires_soon(&client, "nobody is in the runtime");
    runtime.block_on(async {
        acquires_soon(&client, "an executor inside of a task");
        let its = client.clone();
        within("another thread", move || acquires_soon(&its, "another thread"));
    });
    // The runtime is no longer blocked.
    let wakers = runtime.block_on(wakers_of_pairs(&client, 200));
    assert!(!are_from_background(&wakers), "{wakers:?}");
}

// I143
#[test]
fn static_client_outlives_its_first_runtime() {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let fleet = Fleet::start(3);
    let _fleet =
        within("four runtimes", move || {
            let runtimes: [fn() -> Runtime; 4] = [one_thread, one_thread, two_workers, one_thread];
            for (index, runtime) in runtimes.into_iter().enumerate() {
                let runtime = runtime();
                runtime.block_on(async {
                    if index == 0 {
                        CLIENT.set(connect(&fleet).await).expect("it is the first one");
                    }
                    let client = CLIENT.get().expect("it is open");
                    let start = Instant::now();
                    let wakers = wakers_of_pairs(client, 20).await;
                    assert!(start.elapsed() < limits::LOOK_PAUSE * 10, "{index}: {:?}", start.elapsed());
                    assert_eq!(are_from_background(&wakers), index > 0, "{index}: {wakers:?}");
                });
                // A lock that outlives the runtime, and a task that still waits for the lock when the runtime
                // ends.
                let client = CLIENT.get().expect("it is open");
                let held = runtime.block_on(async { client.lock("held").ttl(TTL).acquire_async().await });
                drop(runtime.spawn(async {
                    CLIENT.get().expect("open").lock("held").wait(TTL).acquire_async().await
                }));
                drop(runtime);
                held.expect("free").release().expect("confirmed");
            }
            fleet
        });
    let client = CLIENT.get().expect("it is open");
    assert_eq!(client.drain(PATIENCE, redlatch::HeldLocks::Release), 0);
}

#[test]
fn dropped_client_ends_its_task() {
    let mut fleet = Fleet::start(3);
    let runtime = one_thread();
    let client = runtime.block_on(connect(&fleet));
    drop(runtime.block_on(client.lock("a").ttl(TTL).acquire_async()).expect("free"));
    assert_eq!(runtime.metrics().num_alive_tasks(), 1);
    drop(client);
    // Even if nobody runs the driving task any more.
    await_connections(&mut fleet, 0);
    let start = Instant::now();
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(start.elapsed() < PATIENCE, "its task goes on");
        runtime.block_on(tokio::task::yield_now());
    }
}

#[test]
fn user_drives_in_place_of_the_runtime() {
    let fleet = Fleet::start(3);
    let runtime = one_thread();
    let client = runtime.block_on(connect(&fleet));
    let drive = client.drive().expect("a descriptor");
    let start = Instant::now();
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(start.elapsed() < PATIENCE, "its task goes on");
        runtime.block_on(tokio::task::yield_now());
    }
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_once(&mut acquiring).is_pending());
    thread::sleep(Duration::from_millis(50));
    assert!(poll_once(&mut acquiring).is_pending(), "the user's loop has not turned");
    drop(drive);
    drop(block_on(acquiring).expect("free"));
}

#[test]
fn runtime_without_io_leaves_the_background_thread() {
    let fleet = Fleet::start(3);
    let wakers = within("pairs", move || {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let client = runtime.block_on(connect(&fleet));
        runtime.block_on(wakers_of_pairs(&client, 200))
    });
    assert!(are_from_background(&wakers), "{wakers:?}");
}
