//! Loss callbacks and the caller's own wakers: they may panic, block, and use the client that calls them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use redlatch::error::LockReentrantError;
use redlatch::{Acquire, AcquireError, Cancel, Client, Guard, HeldLocks, ReentrantLock};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{
    Count, LONG, TTL, assert_nothing_left, assert_nothing_left_of, drive_on_tokio, open, poll_once,
    poll_with, within,
};

/// TTL of a lock that is soon lost, because nobody extends it.
const BRIEF: Duration = Duration::from_millis(300);

/// Acquires a lock that is soon lost.
fn acquire_brief(client: &Client, name: &str) -> Guard {
    loop {
        match client.lock(name).ttl(BRIEF).wait(PATIENCE).acquire() {
            Ok(guard) => return guard,
            // The answer comes too late on a slow machine.
            Err(AcquireError::Expired(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Loses a lock while some thread drives the event loop; the callback acquires another lock.
fn acquires_in_callback(client: &Client) {
    let guard = acquire_brief(client, "lost");
    let (sender, receiver) = mpsc::channel();
    let its = client.clone();
    guard.on_lost(move || {
        let acquired = its.lock("instead").ttl(TTL).acquire();
        let _ = sender.send(acquired.map(drop));
    });
    receiver.recv_timeout(PATIENCE).expect("the callback returns").expect("free");
}

// I121
#[test]
fn loss_callback_acquires_while_a_caller_leads() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let its = client.clone();
    let leader = thread::spawn(move || its.lock("held").ttl(TTL).wait(PATIENCE).acquire().map(drop));
    acquires_in_callback(&client);
    held.release().expect("confirmed");
    within("the leader", move || leader.join().expect("no panic")).expect("released");
    assert_nothing_left_of(&[&client, &other], &mut fleet);
}

#[test]
fn loss_callback_acquires_on_an_idle_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    acquires_in_callback(&client);
    assert_nothing_left(&client, &mut fleet);
}

#[cfg(unix)]
#[test]
fn loss_callback_acquires_on_a_driven_client() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.spawn(drive_on_tokio(client.clone()));
    acquires_in_callback(&client);
    drop(runtime);
    assert_nothing_left(&client, &mut fleet);
}

// I121
#[test]
fn a_loss_callback_that_blocks_keeps_nobody_waiting() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = acquire_brief(&client, "lost");
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

// I121
#[test]
fn a_loss_callback_that_panics_ends_alone() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = acquire_brief(&client, "lost");
    let (sender, receiver) = mpsc::channel();
    for number in 0..3 {
        let sender = sender.clone();
        guard.on_lost(move || {
            let _ = sender.send(number);
            std::panic::resume_unwind(Box::new("a callback panics"));
        });
    }
    let called: BTreeSet<_> =
        (0..3).map(|_| receiver.recv_timeout(PATIENCE).expect("each is called")).collect();
    assert_eq!(called, BTreeSet::from([0, 1, 2]));
    drop(client.lock("a").ttl(TTL).acquire().expect("the client goes on"));
    drop(guard);
    assert_nothing_left(&client, &mut fleet);
}

// I121
#[test]
fn a_late_loss_callback_runs_on_another_thread() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = acquire_brief(&client, "lost");
    eventually(PATIENCE, "it is over", || !guard.is_valid());
    let (sender, receiver) = mpsc::channel();
    guard.on_lost(move || sender.send(thread::current().id()).expect("it is waited for"));
    let called_on = receiver.recv_timeout(PATIENCE).expect("it is called");
    assert_ne!(called_on, thread::current().id());
    drop(guard);
    assert_nothing_left(&client, &mut fleet);
}

/// Work that a waker does once.
type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Does its work at the first wake-up, and keeps the result.
struct Does<T> {
    work: Mutex<Option<Work<T>>>,
    result: Mutex<Option<T>>,
}

impl<T> Does<T> {
    fn new(work: impl FnOnce() -> T + Send + 'static) -> Arc<Self> {
        Arc::new(Self { work: Mutex::new(Some(Box::new(work))), result: Mutex::new(None) })
    }

    /// The result, once the waker has returned.
    #[track_caller]
    fn result(&self) -> T {
        eventually(PATIENCE, "the waker returns", || self.result.lock().expect("no panic").is_some());
        self.result.lock().expect("no panic").take().expect("it is there")
    }
}

impl<T: Send + 'static> Wake for Does<T> {
    fn wake(self: Arc<Self>) {
        let work = self.work.lock().expect("no panic").take();
        if let Some(work) = work {
            let result = work();
            *self.result.lock().expect("no panic") = Some(result);
        }
    }
}

/// A client that lives until the program ends, for futures that a waker owns.
fn leaked(fleet: &Fleet) -> &'static Client {
    Box::leak(Box::new(open(&fleet.urls(), LONG)))
}

/// A blocking call that a handle may cancel. Returns the error.
type Blocking = fn(&Client, &Cancel) -> Result<(), String>;

fn shown<T>(result: Result<T, impl ToString>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

const BLOCKING: [Blocking; 10] = [
    |client, _| shown(client.lock("inner").ttl(TTL).acquire()),
    |client, cancel| shown(client.lock("inner").ttl(TTL).cancel_with(cancel).acquire()),
    |client, _| shown(client.lock_set(["inner", "outer"]).ttl(TTL).acquire()),
    |client, cancel| shown(client.lock_set(["inner", "outer"]).ttl(TTL).cancel_with(cancel).acquire()),
    |client, _| shown(client.slots("inner", 2).ttl(TTL).acquire()),
    |client, cancel| shown(client.slots("inner", 2).ttl(TTL).cancel_with(cancel).acquire()),
    |client, cancel| shown(client.lock("inner").ttl(TTL).cancel_with(cancel).reentrant().lock()),
    |client, _| shown(client.lead("inner").ttl(TTL).campaign()),
    |client, _| shown(client.inspect("inner")),
    |client, _| shown(client.force_unlock("inner")),
];

// I122
#[test]
fn a_waker_that_blocks_gets_an_error() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for (number, blocking) in BLOCKING.into_iter().enumerate() {
        let its = client.clone();
        let waker = Does::new(move || blocking(&its, &Cancel::new()));
        let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
        assert!(poll_with(&mut acquiring, &Waker::from(waker.clone())).is_pending());
        let error = waker.result().expect_err("it would hang");
        assert!(error.contains("waker"), "call {number}: {error}");
        drop(block_on(acquiring).expect("free"));
    }
    assert_nothing_left(&client, &mut fleet);
}

// I122
#[test]
fn lock_granted_to_a_refused_waiter_is_released() {
    let mut fleet = Fleet::start(3);
    let client = leaked(&fleet);
    fleet.masters().for_each(|master| master.stop());
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    let mut other: Acquire<'static> = client.lock("b").ttl(TTL).acquire_async();
    assert!(poll_once(&mut other).is_pending());
    let waker = Does::new(move || other.block().map(drop));
    assert!(poll_with(&mut acquiring, &Waker::from(waker.clone())).is_pending());
    fleet.masters().for_each(|master| master.cont());
    waker.result().expect_err("it would hang");
    drop(block_on(acquiring).expect("free"));
    assert_nothing_left(client, &mut fleet);
}

// I122
#[test]
fn drain_inside_a_waker_returns_at_once() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let held = client.lock("held").ttl(TTL).acquire().expect("free");
    let its = client.clone();
    let waker = Does::new(move || its.drain(Duration::MAX, HeldLocks::Leave));
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(waker.clone())).is_pending());
    assert_eq!(waker.result(), 2, "both are held");
    drop((block_on(acquiring).expect("free"), held));
    assert_nothing_left(&client, &mut fleet);
}

// I122
#[test]
fn waiting_for_a_hold_inside_a_waker_fails() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let lock = client.lock("held").ttl(TTL).wait(PATIENCE).reentrant();
    let its = lock.clone();
    let joined = thread::spawn(move || its.lock().map(drop));
    eventually(PATIENCE, "the owner asks", || settle(&client, Duration::ZERO) > 0);
    let its = lock.clone();
    let waker = Does::new(move || its.lock().map(drop));
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(waker.clone())).is_pending());
    let error = waker.result().expect_err("it would hang");
    assert!(
        matches!(&error, LockReentrantError::Acquire(AcquireError::Stopped(why)) if why.contains("waker")),
        "{error}"
    );
    drop(block_on(acquiring).expect("free"));
    held.release().expect("confirmed");
    within("the other caller of the owner", move || joined.join().expect("no panic")).expect("released");
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn waker_may_reenter_its_owners_lock() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lock: ReentrantLock = client.lock("held").ttl(TTL).reentrant();
    let hold = lock.lock().expect("free");
    let its = lock.clone();
    let waker = Does::new(move || its.lock().map(drop));
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(waker.clone())).is_pending());
    waker.result().expect("it is the owner's");
    drop((block_on(acquiring).expect("free"), hold));
    assert_nothing_left(&client, &mut fleet);
}

/// Notes its number at each wake-up.
struct Numbered(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic").push(self.0);
    }
}

// I126
#[test]
fn tasks_wake_in_order_of_answers() {
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
    eventually(PATIENCE, "all are woken", || order.lock().expect("no panic").len() == COUNT);
    assert!(order.lock().expect("no panic").is_sorted(), "{order:?}");
    drop(batch);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn moved_task_is_woken_on_its_new_thread() {
    let fleet = Fleet::start(3);
    let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let held = holder.lock("a").ttl(TTL).acquire().expect("free");
    let [before, after] = std::array::from_fn(|_| Arc::new(Count::default()));
    let mut acquiring = client.lock("a").ttl(TTL).wait(PATIENCE).acquire_async();
    for count in [&before, &after] {
        assert!(poll_with(&mut acquiring, &Waker::from(count.clone())).is_pending());
    }
    assert_eq!(Arc::strong_count(&before), 1, "its waker is kept");
    held.release().expect("confirmed");
    eventually(PATIENCE, "it is woken", || after.get() == 1);
    assert_eq!(before.get(), 0);
    block_on(acquiring).expect("it is there").release().expect("confirmed");
}
