//! The delay function of the caller's own, which is called with the client locked: it may panic, look, drop
//! and call.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use redlatch::internals::settle;
use redlatch::{AcquireError, Client, ReentrantLock};

use crate::fleet::{Fleet, eventually};
use crate::harness::{
    LONG, PATIENCE, TTL, assert_nothing_left, await_connections, block_on, config, open, poll_once, within,
};

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
    eventually(PATIENCE, "the function is called", || called.load(Ordering::SeqCst) > 3);
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
fn a_delay_function_using_its_client_gets_an_error() {
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
        move || client.lock("held").ttl(TTL).wait(PATIENCE).max_attempts(2).acquire().map(drop)
    });
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    let error = errors.lock().expect("no panic").pop().expect("it was called");
    assert!(error.to_string().contains("retry_delay_by"), "{error}");
    drop(held);
    assert_eq!(settle(&other, PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

/// Has the delay function of the client called at least once, while another client holds the lock.
fn be_refused(client: &Client, other: &Client) {
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let its = client.clone();
    let refused = within("the acquisition", move || {
        its.lock("held").ttl(TTL).wait(PATIENCE).max_attempts(2).acquire().map(drop)
    });
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    held.release().expect("confirmed");
    assert_eq!(settle(other, PATIENCE), 0);
}

#[test]
fn a_delay_function_may_look_at_a_reentrant_lock() {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(OnceLock::<ReentrantLock>::new());
    let (is_held, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (seen_count, looked_count) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (its, held, seen, looked) = (slot.clone(), is_held.clone(), seen_count.clone(), looked_count.clone());
    let (client, other) = contend(&fleet, move |_| {
        let lock = its.get().expect("it is set");
        // The other thread looks meanwhile, or waits for this function to return.
        let before = looked.load(Ordering::SeqCst);
        for _ in 0..1000 {
            thread::yield_now();
            if looked.load(Ordering::SeqCst) > before + 1 {
                break;
            }
        }
        seen.fetch_max(lock.hold_count(), Ordering::SeqCst);
        held.fetch_or(lock.is_held(), Ordering::SeqCst);
        Duration::from_millis(1)
    });
    let lock = client.lock("mine").ttl(TTL).reentrant();
    let hold = lock.lock().expect("free");
    assert!(slot.set(lock.clone()).is_ok());
    let (over, looked) = (is_over.clone(), looked_count);
    let looking = thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            let _ = (hold.is_valid(), hold.remaining());
            looked.fetch_add(1, Ordering::SeqCst);
        }
        drop(hold);
    });
    be_refused(&client, &other);
    is_over.store(true, Ordering::SeqCst);
    within("the other thread", move || looking.join()).expect("no panic");
    assert_eq!(seen_count.load(Ordering::SeqCst), 1);
    assert!(!is_held.load(Ordering::SeqCst), "a client that is locked cannot say so");
    assert_nothing_left(&client, &mut fleet);
}

/// Drops something in the delay function of its client; nothing of it is left then.
fn dropped_in_delay_function<T: Send + 'static>(what: &str, make: impl FnOnce(&'static Client) -> T) {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(Mutex::new(None::<Box<dyn Any + Send>>));
    let its = slot.clone();
    let (client, other) = contend(&fleet, move |_| {
        drop(its.lock().expect("no panic").take());
        Duration::from_millis(1)
    });
    let client: &'static Client = Box::leak(Box::new(client));
    let made = make(client);
    *slot.lock().expect("no panic") = Some(Box::new(made));
    be_refused(client, &other);
    assert!(slot.lock().expect("no panic").is_none(), "{what}: the function is called");
    assert_eq!(settle(client, PATIENCE), 0, "{what}");
    assert_nothing_left(client, &mut fleet);
}

#[test]
fn what_a_delay_function_drops_is_released() {
    dropped_in_delay_function("a guard", |client| client.lock("mine").ttl(TTL).acquire().expect("free"));
    dropped_in_delay_function("a set", |client| {
        client.lock_set(["a", "b"].as_slice()).ttl(TTL).acquire().expect("free")
    });
    dropped_in_delay_function("an acquisition", |client| {
        let mut acquiring = client.lock("mine").ttl(TTL).acquire_async();
        assert!(poll_once(&mut acquiring).is_pending());
        acquiring
    });
    dropped_in_delay_function("a release", |client| {
        client.lock("mine").ttl(TTL).acquire().expect("free").release_async()
    });
    dropped_in_delay_function("a hold", |client| {
        client.lock("mine").ttl(TTL).reentrant().lock().expect("free")
    });
    dropped_in_delay_function("a hold that is being taken", |client| {
        let lock: &'static ReentrantLock = Box::leak(Box::new(client.lock("mine").ttl(TTL).reentrant()));
        let mut taking = lock.lock_async();
        assert!(poll_once(&mut taking).is_pending());
        taking
    });
}

#[test]
fn a_call_in_a_delay_function_is_given_up() {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(Mutex::new(None::<redlatch::Acquire<'static>>));
    let (its, errors) = (slot.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = errors.clone();
    let (client, other) = contend(&fleet, move |_| {
        if let Some(acquiring) = its.lock().expect("no panic").take() {
            seen.lock().expect("no panic").push(acquiring.wait().expect_err("it is locked"));
        }
        Duration::from_millis(1)
    });
    let client: &'static Client = Box::leak(Box::new(client));
    let mut acquiring = client.lock("mine").ttl(TTL).acquire_async();
    assert!(poll_once(&mut acquiring).is_pending());
    *slot.lock().expect("no panic") = Some(acquiring);
    be_refused(client, &other);
    assert_eq!(errors.lock().expect("no panic").len(), 1);
    assert_nothing_left(client, &mut fleet);
}

#[test]
fn a_hold_in_a_delay_function_harms_nobody() {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(OnceLock::<ReentrantLock>::new());
    let (its, errors) = (slot.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = errors.clone();
    let (client, other) = contend(&fleet, move |_| {
        let lock = its.get().expect("it is set");
        let mut taking = lock.lock_async();
        let mut seen = seen.lock().expect("no panic");
        seen.push(lock.lock().expect_err("the client is locked"));
        match poll_once(&mut taking) {
            std::task::Poll::Ready(result) => seen.push(result.expect_err("the client is locked")),
            std::task::Poll::Pending => {}
        }
        Duration::from_millis(1)
    });
    let lock = client.lock("mine").ttl(TTL).wait(PATIENCE).reentrant();
    assert!(slot.set(lock.clone()).is_ok());
    let held = other.lock("mine").ttl(TTL).acquire().expect("free");
    let its = lock.clone();
    let joined = thread::spawn(move || its.lock().map(drop));
    eventually(PATIENCE, "the function is called", || errors.lock().expect("no panic").len() > 2);
    held.release().expect("confirmed");
    within("the other caller", move || joined.join().expect("no panic")).expect("released");
    assert_eq!(lock.hold_count(), 0);
    for error in errors.lock().expect("no panic").iter() {
        assert!(error.to_string().contains("retry_delay_by"), "{error}");
    }
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_loss_in_a_delay_function_is_reported_later() {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(Mutex::new(None::<redlatch::Guard>));
    let (its, is_lost) = (slot.clone(), Arc::new(AtomicBool::new(false)));
    let lost = is_lost.clone();
    let (client, other) = contend(&fleet, move |_| {
        if let Some(guard) = &*its.lock().expect("no panic") {
            let lost = lost.clone();
            guard.on_lost(move || lost.store(true, Ordering::SeqCst));
        }
        Duration::from_millis(1)
    });
    let guard = client.lock("mine").ttl(TTL).acquire().expect("free");
    *slot.lock().expect("no panic") = Some(guard);
    be_refused(&client, &other);
    assert!(!is_lost.load(Ordering::SeqCst), "it is valid");
    fleet.masters().for_each(|master| drop(master.ask("DEL mine")));
    let mut guard = slot.lock().expect("no panic").take().expect("it is there");
    guard.extend(TTL).expect_err("it is lost");
    eventually(PATIENCE, "the loss is reported", || is_lost.load(Ordering::SeqCst));
    drop(guard);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_client_dropped_in_its_delay_function_ends() {
    let mut fleet = Fleet::start(3);
    let slot = Arc::new(Mutex::new(None::<Client>));
    let its = slot.clone();
    let (client, other) = contend(&fleet, move |_| {
        drop(its.lock().expect("no panic").take());
        Duration::from_millis(1)
    });
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let mut acquiring = Box::new(client.lock("held").ttl(TTL).wait(PATIENCE).acquire_async());
    let is_pending = poll_once(&mut acquiring).is_pending();
    std::mem::forget(acquiring);
    assert!(is_pending);
    *slot.lock().expect("no panic") = Some(client);
    eventually(PATIENCE, "the function is called", || slot.lock().expect("no panic").is_none());
    held.release().expect("confirmed");
    drop(other);
    await_connections(&mut fleet, 0);
}
