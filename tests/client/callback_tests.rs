//! Functions of the caller's own that the client calls: they may panic, block, and use the client that calls them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use redlatch::{AcquireError, Client};

use crate::fleet::Fleet;
use crate::harness::{LONG, PATIENCE, TTL, assert_nothing_left, block_on, config, open, poll_with, within};

/// A lock that is lost soon, for it is not extended.
const BRIEF: Duration = Duration::from_millis(300);

/// A client with a delay function of the test's own, and another client that holds the lock `held`.
fn contend(fleet: &Fleet, delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> (Client, Client) {
    let settings = config(&fleet.urls(), LONG).wake_waiters(false).ask_holder(false).retry_delay_by(delay);
    let client = Client::open(settings.build().expect("valid settings")).expect("an event loop");
    (client, open(&fleet.urls(), LONG))
}

#[test]
fn a_delay_function_that_panics_harms_nobody() {
    let mut fleet = Fleet::start(3);
    let called = Arc::new(AtomicUsize::new(0));
    let calls = called.clone();
    let (client, other) = contend(&fleet, move |_| {
        calls.fetch_add(1, Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("a delay function panics"));
    });
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let mine = client.lock("mine").ttl(TTL).acquire().expect("free");
    let its = client.clone();
    let thread = thread::spawn(move || its.lock("held").ttl(TTL).wait(PATIENCE).acquire().map(drop));
    let its = client.clone();
    let task =
        thread::spawn(move || block_on(its.lock("held").ttl(TTL).wait(PATIENCE).acquire_async()).map(drop));
    crate::fleet::eventually(PATIENCE, "the function is called", || called.load(Ordering::SeqCst) > 3);
    assert!(within("is_valid", {
        let client = client.clone();
        move || {
            drop(client.lock("beside").ttl(TTL).acquire().expect("free"));
            mine.is_valid()
        }
    }));
    held.release().expect("confirmed");
    for waiting in [thread, task] {
        within("a waiter", move || waiting.join().expect("no panic")).expect("released");
    }
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_delay_function_that_uses_its_client_gets_an_error() {
    let mut fleet = Fleet::start(3);
    let its_client = Arc::new(OnceLock::<Client>::new());
    let (its, errors) = (its_client.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = errors.clone();
    let (client, other) = contend(&fleet, move |_| {
        let client = its.get().expect("it is set");
        seen.lock().expect("no panic").push(client.lock("inner").try_acquire().expect_err("it is locked"));
        Duration::from_millis(1)
    });
    assert!(its_client.set(client.clone()).is_ok());
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let refused = within("the acquisition", {
        let client = client.clone();
        move || client.lock("held").ttl(TTL).wait(PATIENCE).tries(2).acquire().map(drop)
    });
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    let error = errors.lock().expect("no panic").pop().expect("it was called");
    assert!(error.to_string().contains("retry_delay_by"), "{error}");
    drop(held);
    assert_eq!(other.settle(PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

/// Loses a lock while the event loop is driven in some way, and has the callback acquire another one.
fn acquires_in_callback(client: &Client) {
    let guard = client.lock("lost").ttl(BRIEF).acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    let its = client.clone();
    guard.on_lost(move || {
        let acquired = its.lock("instead").ttl(TTL).acquire();
        let _ = sender.send(acquired.map(drop));
    });
    receiver.recv_timeout(PATIENCE).expect("the callback returns").expect("free");
}

#[test]
fn a_loss_callback_may_acquire_while_a_caller_leads() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let its = client.clone();
    let leader = thread::spawn(move || its.lock("held").ttl(TTL).wait(PATIENCE).acquire().map(drop));
    acquires_in_callback(&client);
    held.release().expect("confirmed");
    within("the leader", move || leader.join().expect("no panic")).expect("released");
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_loss_callback_may_acquire_on_an_idle_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    acquires_in_callback(&client);
    assert_nothing_left(&client, &mut fleet);
}

#[cfg(all(unix, feature = "tokio"))]
#[test]
fn a_loss_callback_may_acquire_on_a_driven_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.spawn(client.drive_on_tokio());
    acquires_in_callback(&client);
    drop(runtime);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_loss_callback_that_blocks_keeps_nobody_waiting() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("lost").ttl(BRIEF).acquire().expect("free");
    let (started, is_started) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    guard.on_lost(move || {
        let _ = started.send(());
        let _ = ended.recv();
    });
    is_started.recv_timeout(PATIENCE).expect("the callback is called");
    within("a task and a thread", {
        let client = client.clone();
        move || {
            drop(block_on(client.lock("a").ttl(TTL).acquire_async()).expect("free"));
            drop(client.lock("b").ttl(TTL).acquire().expect("free"));
        }
    });
    drop((guard, end));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_loss_callback_that_panics_ends_alone() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("lost").ttl(BRIEF).acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    for number in 0..3 {
        let sender = sender.clone();
        guard.on_lost(move || {
            let _ = sender.send(number);
            std::panic::resume_unwind(Box::new("a callback panics"));
        });
    }
    for number in 0..3 {
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(number), "each is called, in order");
    }
    drop(client.lock("a").ttl(TTL).acquire().expect("the client goes on"));
    drop(guard);
    assert_nothing_left(&client, &mut fleet);
}

/// Waits for a lock of its client when it is woken.
struct Blocks {
    client: Client,
    result: Mutex<Option<Result<(), AcquireError>>>,
    is_done: AtomicBool,
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let acquired = self.client.lock("inner").ttl(TTL).acquire().map(drop);
        *self.result.lock().expect("no panic") = Some(acquired);
        self.is_done.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_that_blocks_on_its_client_gets_an_error() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let blocks = Arc::new(Blocks {
        client: client.clone(),
        result: Mutex::default(),
        is_done: AtomicBool::new(false),
    });
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(blocks.clone())).is_pending());
    crate::fleet::eventually(PATIENCE, "the waker returns", || blocks.is_done.load(Ordering::SeqCst));
    let error =
        blocks.result.lock().expect("no panic").take().expect("it is done").expect_err("it would hang");
    assert!(error.to_string().contains("waker"), "{error}");
    drop(block_on(acquiring).expect("free"));
    assert_nothing_left(&client, &mut fleet);
}

/// Notes its number when it is woken.
struct Numbered(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic").push(self.0);
    }
}

#[test]
fn tasks_are_woken_in_the_order_of_their_answers() {
    const COUNT: usize = 100;
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    fleet.masters().for_each(|master| master.stop());
    let names: Vec<_> = (0..COUNT).map(|number| format!("lock {number}")).collect();
    let mut batch = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
    let order = Arc::<Mutex<Vec<usize>>>::default();
    for (number, acquiring) in batch.iter_mut().enumerate() {
        let waker = Waker::from(Arc::new(Numbered(number, order.clone())));
        assert!(poll_with(acquiring, &waker).is_pending());
    }
    fleet.masters().for_each(|master| master.cont());
    crate::fleet::eventually(PATIENCE, "all are woken", || order.lock().expect("no panic").len() == COUNT);
    assert!(order.lock().expect("no panic").is_sorted(), "{order:?}");
    drop(batch);
    assert_nothing_left(&client, &mut fleet);
}
