//! Each program of `examples/`. `storage_tests` of tests/masters has the example of fences.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use redlatch::status::MasterState;
use redlatch::{Client, Config, ConfigBuilder, Quarantine};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, eventually, settle};

#[path = "../../examples/axum.rs"]
mod axum_service;
#[path = "../../examples/blocking.rs"]
mod blocking;
#[path = "../../examples/cron.rs"]
mod cron;
#[path = "../../examples/leader.rs"]
mod leader;
#[path = "../../examples/own_loop_client.rs"]
mod own_loop_client;
#[path = "../../examples/own_loop_engine.rs"]
mod own_loop_engine;
#[path = "../../examples/readiness.rs"]
#[allow(dead_code, reason = "its server is not started here")]
mod readiness;
#[path = "../../examples/single_flight.rs"]
#[allow(dead_code, reason = "a cache in memory replaces its file")]
mod single_flight;
#[path = "../../examples/tokio_service.rs"]
mod tokio_service;
#[path = "../../examples/worker_id.rs"]
mod worker_id;
#[path = "../../examples/workers.rs"]
mod workers;

/// Far longer than a loaded machine delays a master, because most examples make one attempt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

fn config(fleet: &Fleet) -> ConfigBuilder {
    Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(ANSWER_TIMEOUT)
}

/// A client that is connected to each master. Clients with two masters each may share only one; then too few
/// masters refuse the second client for it to know that the lock is held.
fn open(fleet: &Fleet) -> Client {
    let client = Client::open(config(fleet).build().expect("valid settings")).expect("an event loop");
    eventually(PATIENCE, "all are connected", || {
        client.masters().iter().all(|master| master.state == MasterState::Ready)
    });
    client
}

#[test]
fn the_blocking_example_runs_unless_another_holds_it() {
    let fleet = Fleet::start(3);
    let (client, other) = (open(&fleet), open(&fleet));
    let held = other.lock("import").auto_extend(Duration::from_secs(600)).try_acquire().expect("free");
    let mut rows = Vec::new();
    assert!(!blocking::import(&client, &["a"], |_| panic!("it is held")).expect("an answer"));
    held.release().expect("confirmed");
    assert!(blocking::import(&client, &["a", "b"], |row| rows.push(row.to_owned())).expect("free"));
    assert_eq!(rows, ["a", "b"]);
}

// I134
#[test]
fn the_readiness_example_follows_the_quorum() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet);
    let status = |path: &str| readiness::respond(&client, path).0;
    fleet.master(0).kill();
    eventually(PATIENCE, "the loss is noticed", || client.health().may_fail == 0);
    assert_eq!((status("/ready"), status("/live")), ("200 OK", "200 OK"), "one master is missing");
    fleet.master(1).kill();
    eventually(PATIENCE, "the loss is noticed", || status("/ready") == "503 Service Unavailable");
    assert_eq!(status("/live"), "200 OK", "a restart of the process would help nobody");
    assert!(readiness::respond(&client, "/metrics").1.contains("\nredlatch_masters_ready 1\n"));
    fleet.master(1).restart();
    eventually(PATIENCE, "it is back", || status("/ready") == "200 OK");
}

/// Sends a request without a body. Returns status and body of the answer.
fn http(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    (status, body.to_owned())
}

#[test]
fn axum_example_charges_a_payment_once() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (open(&fleet), open(&fleet));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let service = axum_service::Service::new(client);
    let serving = runtime.spawn(axum_service::serve(service, listener, async {
        stopped.await.ok();
    }));
    // A repeated request gets the first one's receipt, both during the charge and later.
    let receipts: BTreeSet<_> = thread::scope(|scope| {
        let requests = [0; 4].map(|_| scope.spawn(|| http(address, "POST /pay/7")));
        requests.into_iter().map(|request| request.join().expect("no panic")).collect()
    });
    assert_eq!(receipts, BTreeSet::from([(200, "receipt 1\n".to_owned())]));
    assert_eq!(http(address, "POST /pay/8"), (200, "receipt 2\n".to_owned()));
    let held = other.lock("payment:9").auto_extend(Duration::from_secs(600)).try_acquire().expect("free");
    assert_eq!(http(address, "POST /pay/9").0, 409, "another instance charges it");
    held.release().expect("confirmed");
    assert_eq!(http(address, "GET /ready").0, 200);
    fleet.master(0).kill();
    fleet.master(1).kill();
    eventually(PATIENCE, "the loss is noticed", || http(address, "GET /ready").0 == 503);
    assert_eq!(http(address, "POST /pay/10").0, 503);
    stop.send(()).expect("it serves");
    runtime.block_on(serving).expect("no panic").expect("no error");
}

#[test]
fn single_flight_takes_one_lock_per_process() {
    const CALLERS: usize = 250;
    let fleet = Fleet::start(3);
    let clients = [open(&fleet), open(&fleet)];
    let (cache, looks, fills) = (Mutex::new(None), AtomicUsize::new(0), AtomicUsize::new(0));
    let stored = async || {
        looks.fetch_add(1, Ordering::AcqRel);
        *cache.lock().expect("no panic")
    };
    let fill = async || {
        // All callers of both processes have found the cache empty.
        while looks.load(Ordering::Acquire) <= 2 * CALLERS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fills.fetch_add(1, Ordering::AcqRel);
        *cache.lock().expect("no panic") = Some(7);
        Ok(7)
    };
    let flights = clients.clone().map(|client| single_flight::SingleFlight::new(client, "report"));
    let calls = flights.iter().cycle().take(2 * CALLERS).map(|flight| flight.get(&stored, fill()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let values = runtime.block_on(all(calls));
    assert!(values.iter().all(|value| value.as_ref().is_ok_and(|value| *value == 7)), "{values:?}");
    assert_eq!(fills.into_inner(), 1);
    assert_eq!(clients.map(|client| client.stats().acquired), [1, 1], "the other callers wait for the value");
}

#[test]
fn failed_flight_goes_to_the_next_caller() {
    let fleet = Fleet::start(3);
    let flight = single_flight::SingleFlight::new(open(&fleet), "report");
    let fills = AtomicUsize::new(0);
    let fill = async || match fills.fetch_add(1, Ordering::AcqRel) {
        0 => Err("no report".into()),
        _ => Ok(7),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let values = runtime.block_on(all((0..3).map(|_| flight.get(async || None, fill()))));
    let count = |is_ok| values.iter().filter(|value| value.is_ok() == is_ok).count();
    assert_eq!((count(false), count(true)), (1, 2), "{values:?}");
    assert_eq!(fills.into_inner(), 2, "the second caller's value is the third caller's, too");
}

/// Runs all futures at once, in one task.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

#[test]
fn the_service_handles_orders_and_cancels_the_rest() {
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    let fleet = Fleet::start(3);
    let (client, other) = (open(&fleet), open(&fleet));
    let held = other.lock("orders:2").auto_extend(Duration::from_secs(600)).try_acquire().expect("free");
    let work = |_: &str| {
        HANDLED.fetch_add(1, Ordering::AcqRel);
    };
    let shutdown = async {
        while HANDLED.load(Ordering::Acquire) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The service has fetched the answers to both orders.
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let orders = ["orders:1", "orders:2", "orders:3"].map(str::to_owned).to_vec();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let summary = runtime.block_on(tokio_service::serve(client, orders, work, shutdown));
    assert_eq!(summary.failed, 0, "{summary:?}");
    assert_eq!(summary.handled + summary.cancelled, 3, "{summary:?}");
    assert!(summary.cancelled >= 1, "{summary:?}");
    held.release().expect("confirmed");
    for order in ["orders:1", "orders:2", "orders:3"] {
        assert!(other.lock(order).wait(PATIENCE).acquire().is_ok(), "{order} is not released");
    }
}

#[test]
fn terms_of_leaders_rise() {
    let fleet = Fleet::start(3);
    let (alice, bob) = (open(&fleet), open(&fleet));
    let mut terms = Vec::new();
    leader::lead(&alice, |term| {
        terms.push(term);
        assert!(bob.lock("leader").try_acquire().is_err(), "there is a leader");
        if terms.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("free");
    leader::lead(&bob, |term| {
        terms.push(term);
        ControlFlow::Break(())
    })
    .expect("the first one resigned");
    assert!(terms[0] == terms[1] && terms[1] < terms[2], "{terms:?}");
}

#[test]
fn the_cron_job_runs_on_one_machine() {
    let fleet = Fleet::start(3);
    let (first, second) = (open(&fleet), open(&fleet));
    let no_hold = Duration::ZERO;
    let mut runs = 0;
    let has_run = cron::run_once(&first, 7, no_hold, || {
        runs += 1;
        assert!(!cron::run_once(&second, 7, no_hold, || panic!("twice")).expect("an answer"));
        assert!(cron::run_once(&second, 8, no_hold, || ()).expect("another interval"));
    });
    assert!(has_run.expect("free"));
    assert_eq!(runs, 1);
}

#[test]
fn workers_visit_each_account_one_at_a_time() {
    let fleet = Fleet::start(3);
    let client = open(&fleet);
    let accounts: Vec<String> = (0..40).map(|account| format!("accounts:{account}")).collect();
    let inside = Mutex::new(BTreeSet::new());
    let visit = |account: &str| {
        assert!(inside.lock().expect("no panic").insert(account.to_owned()), "two are in {account}");
        thread::yield_now();
        inside.lock().expect("no panic").remove(account);
    };
    assert_eq!(workers::visit_all(&client, 4, &accounts, visit).expect("in time"), 160);
    assert_eq!(settle(&client, PATIENCE), 0);
}

#[test]
fn a_loop_of_ones_own_drives_a_client() {
    let fleet = Fleet::start(3);
    let (client, other) = (open(&fleet), open(&fleet));
    let acquired = own_loop_client::run(&client, client.lock("a").acquire_async()).expect("a loop");
    let guard = acquired.expect("free");
    assert!(other.lock("a").try_acquire().is_err(), "it is held");
    let released = own_loop_client::run(&client, guard.release_async()).expect("a loop");
    // The simultaneous attempt may have been first on one master.
    assert!(!released.expect("confirmed").was_already_gone());
}

#[test]
fn a_loop_of_ones_own_drives_an_engine() {
    let fleet = Fleet::start(3);
    let other = open(&fleet);
    let lock_once = || {
        let config = config(&fleet).build().expect("valid settings");
        own_loop_engine::lock_once(config, fleet.addrs(), "a").expect("a loop")
    };
    let held = other.lock("a").try_acquire().expect("free");
    assert!(!lock_once());
    held.release().expect("confirmed");
    assert!(lock_once());
    assert!(other.lock("a").try_acquire().is_ok(), "it is not released");
}

// I78
#[test]
fn the_worker_ids_never_collide() {
    let fleet = Fleet::start(3);
    let clients = [(); 3].map(|()| open(&fleet));
    let all: Vec<Vec<u64>> = thread::scope(|scope| {
        let issue = |client| {
            let mut ids = worker_id::Ids::open(client, Duration::ZERO).expect("a slot");
            let issued: Vec<u64> = ids.by_ref().take(10_000).collect();
            assert!(issued.is_sorted(), "worker {}", ids.worker());
            issued
        };
        let workers: Vec<_> =
            clients.iter().cycle().take(6).map(|client| scope.spawn(move || issue(client))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    let ids: BTreeSet<u64> = all.iter().flatten().copied().collect();
    assert_eq!(ids.len(), 60_000);
    let mut ids = worker_id::Ids::open(&clients[0], Duration::ZERO).expect("a slot");
    assert!(ids.next().is_some());
    clients[0].drain(PATIENCE, redlatch::HeldLocks::Release);
    assert_eq!(ids.next(), None, "the slot is lost");
}
