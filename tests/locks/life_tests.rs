//! Whole lives of locks, in threads and in tasks on any executor, with one client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{
    Acquire, AcquireError, Client, ConfigBuilder, Connect, ConnectError, Extend, Guard, LockRequest, Release,
    limits,
};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{
    Count, LONG, TTL, assert_nothing_left, config, drive_on_tokio, open, poll_with, within,
};

/// Handles can be sent and shared, as the compiler checks.
#[allow(dead_code, reason = "it is enough that it compiles")]
fn goes_everywhere() {
    fn is_shared<T: Send + Sync + 'static>() {}
    fn is_sent<T: Send>(_: T) {}
    is_shared::<Client>();
    is_shared::<Guard>();
    is_shared::<Release>();
    is_shared::<Connect>();
    fn futures<'a>(acquire: Acquire<'a>, extend: Extend<'a>, request: LockRequest<'a>) {
        is_sent(acquire);
        is_sent(extend);
        is_sent(request);
    }
}

/// Counts holders, of which there may be one at a time.
#[derive(Default)]
struct Witness {
    is_held: AtomicBool,
    count: AtomicUsize,
}

impl Witness {
    fn enter(&self, guard: &Guard) {
        assert!(!self.is_held.swap(true, Ordering::SeqCst), "two hold it");
        assert!(guard.is_valid());
    }

    fn exit(&self, guard: &Guard) {
        assert!(guard.is_valid(), "the lock did not outlast the test");
        assert!(self.is_held.swap(false, Ordering::SeqCst));
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

fn ask<'a>(client: &'a Client, name: &'a String) -> LockRequest<'a> {
    client.lock(name).ttl(TTL).wait(PATIENCE)
}

fn live(client: &Client, name: &String) {
    let begun = Instant::now();
    let mut guard = ask(client, name).acquire().expect("free");
    assert_eq!(guard.resource(), name.as_bytes());
    assert!(guard.is_valid() && guard.remaining() <= TTL && guard.valid_until() > begun + TTL / 2);
    assert!(matches!(client.lock(name).try_acquire(), Err(AcquireError::Contended(_))));
    let before = guard.valid_until();
    guard.extend(TTL).expect("held");
    assert!(guard.valid_until() > before && guard.margin() <= 1);
    assert!(!guard.release().expect("confirmed").was_already_gone());
    drop(ask(client, name).acquire().expect("free again"));
}

async fn live_async(client: &Client, name: &String) {
    let begun = Instant::now();
    let mut guard = ask(client, name).acquire_async().await.expect("free");
    assert!(guard.is_valid() && guard.remaining() <= TTL && guard.valid_until() > begun + TTL / 2);
    let denied = client.lock(name).wait(Duration::ZERO).acquire_async().await;
    assert!(matches!(denied, Err(AcquireError::Contended(_))));
    let before = guard.valid_until();
    guard.extend_async(TTL).await.expect("held");
    assert!(guard.valid_until() > before);
    assert!(!guard.release_async().await.expect("confirmed").was_already_gone());
    drop(ask(client, name).acquire_async().await.expect("free again"));
}

#[test]
fn a_lock_lives_in_a_spinning_thread() {
    let mut fleet = Fleet::start(3);
    for spin in [Duration::ZERO, Duration::from_micros(50), limits::SPIN_MAX] {
        let settings = config(&fleet.urls(), LONG).spin(spin).build().expect("valid settings");
        let client = Client::open(settings).expect("an event loop");
        (0..50).for_each(|round| live(&client, &format!("orders:{}", round % 3)));
        assert_nothing_left(&client, &mut fleet);
    }
}

/// An executor that runs a future to its end.
type Executor = fn(Pin<Box<dyn Future<Output = ()> + Send>>);

fn on_tokio(mut builder: tokio::runtime::Builder) -> tokio::runtime::Runtime {
    builder.enable_all().build().expect("a runtime")
}

const EXECUTORS: [(&str, Executor); 4] = [
    ("a bare loop", |future| block_on(future)),
    ("smol", |future| smol::block_on(future)),
    ("tokio, one thread", |future| on_tokio(tokio::runtime::Builder::new_current_thread()).block_on(future)),
    ("tokio, many threads", |future| {
        on_tokio(tokio::runtime::Builder::new_multi_thread())
            .block_on(async { tokio::spawn(future).await.expect("no panic") });
    }),
];

#[test]
fn a_lock_lives_in_any_executors_task() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for (name, run) in EXECUTORS {
        println!("{name}");
        let its = client.clone();
        run(Box::pin(async move {
            for round in 0..50 {
                live_async(&its, &format!("orders:{}", round % 3)).await;
            }
        }));
    }
    assert_nothing_left(&client, &mut fleet);
}

/// Threads and tasks that hold the same few locks in turn, and each a lock that nobody else uses.
fn contend(client: &Client, is_driven: bool) {
    const CALLERS: usize = 12;
    const ROUNDS: usize = 40;
    let witnesses: [Witness; 3] = Default::default();
    let names = ["orders:0", "orders:1", "orders:2"].map(str::to_owned);
    let visit = |caller: usize, round: usize| (caller + round) % names.len();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (names, witnesses) = (&names, &witnesses);
            scope.spawn(move || {
                let own = format!("own:{caller}");
                for round in 0..ROUNDS {
                    let place = visit(caller, round);
                    let guard = ask(client, &names[place]).acquire().expect("in time");
                    witnesses[place].enter(&guard);
                    witnesses[place].exit(&guard);
                    if round % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.release().expect("confirmed");
                    }
                    live(client, &own);
                }
            });
        }
        let runtime = on_tokio(tokio::runtime::Builder::new_current_thread());
        let tasks = tokio::task::LocalSet::new();
        let drive = is_driven.then(|| runtime.spawn(drive_on_tokio(client.clone())));
        runtime.block_on(tasks.run_until(async {
            let task = async |caller: usize| {
                let own = format!("own:task:{caller}");
                for round in 0..ROUNDS {
                    let place = visit(caller, round);
                    let guard = ask(client, &names[place]).acquire_async().await.expect("in time");
                    witnesses[place].enter(&guard);
                    tokio::task::yield_now().await;
                    witnesses[place].exit(&guard);
                    if round % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.release_async().await.expect("confirmed");
                    }
                    live_async(client, &own).await;
                }
            };
            let mut running: Vec<_> = (0..CALLERS).map(|caller| Box::pin(task(caller))).collect();
            // All futures run in this one task. Each is polled when any is woken, so wake-ups meant for
            // others are common.
            std::future::poll_fn(|context| {
                running.retain_mut(|it| it.as_mut().poll(context).is_pending());
                if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }));
        drop((drive, runtime));
    });
    let count: usize = witnesses.iter().map(|it| it.count.load(Ordering::SeqCst)).sum();
    assert_eq!(count, 2 * CALLERS * ROUNDS);
}

#[test]
fn one_clients_threads_and_tasks_exclude_each_other() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    contend(&client, false);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn threads_and_driven_tasks_exclude_each_other() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    contend(&client, true);
    assert_nothing_left(&client, &mut fleet);
}

/// Settings without a short limit on connecting.
fn patient(fleet: &Fleet) -> ConfigBuilder {
    config(&fleet.urls(), LONG).connect_timeout(PATIENCE)
}

/// The masters hang meanwhile, so a poll that itself connected would take long.
#[test]
fn a_client_opens_without_blocking_a_task() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| master.stop());
    let mut opening = patient(&fleet).connect_async();
    let count = Arc::<Count>::default();
    assert!(poll_with(&mut opening, &Waker::from(count.clone())).is_pending());
    assert_eq!(count.get(), 0, "it is not open yet");
    fleet.masters().for_each(|master| master.cont());
    eventually(PATIENCE, "it is woken", || count.get() == 1);
    let client = block_on(opening).expect("an event loop");
    live(&client, &"a".to_owned());
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_client_abandoned_while_it_opens_is_closed() {
    let mut fleet = Fleet::start(3);
    for is_polled in [false, true] {
        fleet.masters().for_each(|master| master.stop());
        // The client owns its settings.
        let kept = Arc::new(());
        let its = kept.clone();
        let config = patient(&fleet).on_event(move |_| {
            let _kept = &its;
        });
        let mut opening = config.connect_async();
        if is_polled {
            assert!(poll_with(&mut opening, Waker::noop()).is_pending());
        }
        drop(opening);
        fleet.masters().for_each(|master| master.cont());
        eventually(PATIENCE, "the client is gone", || Arc::strong_count(&kept) == 1);
    }
}

/// A waker that blocks until the client that it announces is gone.
struct UntilGone(Arc<()>, AtomicBool);

impl Wake for UntilGone {
    fn wake(self: Arc<Self>) {
        // Owned by the test, this waker, and the settings.
        eventually(PATIENCE, "the client is gone", || Arc::strong_count(&self.0) == 2);
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn abandoned_open_drops_its_client() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| master.stop());
    let kept = Arc::new(());
    let its = kept.clone();
    let mut opening = patient(&fleet).on_event(move |_| _ = &its).connect_async();
    let waker = Arc::new(UntilGone(kept, AtomicBool::new(false)));
    let kept = waker.0.clone();
    assert!(poll_with(&mut opening, &waker.clone().into()).is_pending());
    drop(opening);
    fleet.masters().for_each(|master| master.cont());
    eventually(2 * PATIENCE, "its waker has seen that", || waker.1.load(Ordering::SeqCst));
    drop(kept);
}

#[test]
fn an_impossible_setting_is_an_error_of_opening() {
    let error = block_on(Client::connect_async(["http://127.0.0.1"])).expect_err("no such scheme");
    assert!(matches!(error, ConnectError::Config(_)), "{error}");
}

/// No time limit of a master ends this before the test's patience does.
#[test]
fn client_opens_beside_a_hanging_master() {
    let mut fleet = Fleet::start(3);
    fleet.master(2).stop();
    let config = config(&fleet.urls(), LONG).connect_timeout(10 * PATIENCE).build().expect("valid settings");
    let client = within("it opens", move || Client::open(config).expect("an event loop"));
    assert!(client.health().has_quorum);
}
