//! Each way to end or extend a lock, compared with `tests/golden/guards`: with a guard that holds the lock,
//! and with a guard whose lock was released under it, as by a drain.

use std::sync::mpsc;

use super::*;
use crate::client::Count;
use crate::config::tests::of_double;
use crate::engine::HeldLocks;
use redlatch_support::{PATIENCE, assert_golden};
use redlatch_testing::Double;

/// A TTL that no step waits out.
const LONG: Duration = PATIENCE.saturating_mul(10);

/// A call on a guard, and the text that it shows. The call may consume the guard.
type Row = (&'static str, fn(Guard) -> (String, Option<Guard>));

/// Answer of a call: `done`, or the error.
fn said<T>(result: Result<T, impl std::fmt::Display>) -> String {
    result.map_or_else(|error| format!("error, {error}"), |_| "done".to_owned())
}

fn polled_once<T>(call: impl Future<Output = T>) -> String {
    let polled = std::pin::pin!(call).poll(&mut Context::from_waker(Waker::noop()));
    (if polled.is_pending() { "pending" } else { "ready" }).to_owned()
}

const CALLS: &[Row] = &[
    ("drop", |guard| {
        drop(guard);
        (String::new(), None)
    }),
    ("release", |guard| match guard.release() {
        Ok(released) if released.was_already_gone() => ("already gone".to_owned(), None),
        result => (said(result), None),
    }),
    ("leave", |guard| (said(guard.leave()), None)),
    ("leave for a time", |guard| (said(guard.leave_for(LONG / 2)), None)),
    ("leave for no time", |guard| (said(guard.leave_for(Duration::ZERO)), None)),
    ("release, dropped", |guard| (polled_once(guard.release_async()), None)),
    ("leave for a time, dropped", |guard| (polled_once(guard.leave_for_async(LONG / 2)), None)),
    ("extend, dropped", |mut guard| (polled_once(guard.extend_async(LONG / 2)), Some(guard))),
    ("extend", |mut guard| (said(guard.extend(LONG / 2)), Some(guard))),
    ("extend all", |mut guard| {
        let client = guard.client().clone();
        let mut extending = client.extend_all([&mut guard], LONG / 2);
        let is_sent = extending[0].0.token().is_some();
        let result = extending.remove(0).block();
        drop(extending);
        (format!("{}, sent {is_sent}", said(result)), Some(guard))
    }),
    ("release all", |guard| {
        let mut releasing = guard.client().clone().release_all([guard]);
        let is_sent = releasing[0].0.token().is_some();
        (format!("{}, sent {is_sent}", said(releasing.remove(0).block())), None)
    }),
    ("into a handle", |guard| match guard.into_handle(LONG / 2) {
        Ok(handle) => (format!("can be adopted: {}", handle.can_be_adopted()), None),
        Err(error) => (error.reason().to_string(), Some(error.into_guard())),
    }),
    ("to a handle", |guard| match guard.to_handle() {
        Some(handle) => (format!("can be adopted: {}", handle.can_be_adopted()), Some(guard)),
        None => ("no handle".to_owned(), Some(guard)),
    }),
    ("a callback", |guard| {
        let (sender, receiver) = mpsc::channel();
        guard.on_lost(move || _ = sender.send(()));
        let is_over = valid_until(guard.client(), guard.lock()).is_none();
        let is_called = is_over && receiver.recv_timeout(PATIENCE).is_ok();
        (format!("called {is_called}"), Some(guard))
    }),
    ("look", |guard| {
        let (margin, waited, time) = (guard.margin(), guard.waited().attempts, guard.remaining() > LONG / 2);
        (format!("margin {margin}, {waited} attempts, {time}"), Some(guard))
    }),
];

/// A client that has stopped reports no loss later.
#[test]
fn a_callback_for_a_stopped_client_is_called_at_once() {
    let double = Double::start(1).expect("a free port");
    let client = of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("a loop");
    let guard = client.lock("a").ttl(LONG).acquire().expect("free");
    assert_eq!(client.drain(Duration::ZERO, HeldLocks::Leave), 1);
    let (sender, receiver) = mpsc::channel();
    guard.on_lost(move || _ = sender.send(std::thread::current().id()));
    assert_eq!(receiver.try_recv(), Ok(std::thread::current().id()));
}

/// The master gives no answer, and nobody waits for one. A place that is not freed could not be used by later
/// operations.
#[test]
fn abandoned_operation_frees_its_place_at_once() {
    let double = Double::start(1).expect("a free port");
    let client = of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("a loop");
    let held = client.lock("held").ttl(LONG).acquire().expect("free");
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let mut context = Context::from_waker(&waker);
    let mut answered = client.lock("answered").ttl(LONG).acquire_async();
    assert!(Pin::new(&mut answered).poll(&mut context).is_pending());
    let start = clock::now();
    while count.get() == 0 {
        assert!(clock::now() - start < PATIENCE, "it is not answered");
        std::thread::yield_now();
    }
    double.master(0).stop().expect("it runs");
    let mut asked = client.lock("asked").ttl(LONG).acquire_async();
    assert!(Pin::new(&mut asked).poll(&mut context).is_pending());
    drop(held);
    assert_eq!(client.stats().operations, 2, "a guard is dropped");
    drop(answered);
    assert_eq!(client.stats().operations, 1, "an answer that has come is dropped");
    drop(asked);
    assert_eq!(client.stats().operations, 0, "a call under way is dropped");
    double.master(0).resume().expect("it hangs");
}

#[test]
fn each_guard_end_matches_its_golden_file() {
    let double = Double::start(1).expect("a free port");
    let mut page = String::new();
    for (name, call) in CALLS {
        for is_held in [true, false] {
            let client = of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("a loop");
            let guard = client.lock("a").ttl(LONG).wait(PATIENCE).acquire().expect("free");
            let (mut lost, count) = (guard.lost(), Arc::<Count>::default());
            let waker = Waker::from(count.clone());
            let mut context = Context::from_waker(&waker);
            // Polled twice, but it is one listener.
            assert!(Pin::new(&mut lost).poll(&mut context).is_pending());
            assert!(Pin::new(&mut lost).poll(&mut context).is_pending());
            if !is_held {
                let request = Request::Release { lock: guard.lock(), awaited: false };
                let submit = |inner: &mut Inner| {
                    let taken = inner.submit(request);
                    inner.flush();
                    taken
                };
                client.shared().with(submit).expect("it goes on").expect("it is always taken");
            }
            let (shown, guard) = call(guard);
            let woken = count.get();
            let end = Pin::new(&mut lost).poll(&mut context);
            let end = if end.is_ready() { "ended" } else { "goes on" };
            let has_name = client.shared().peek(|inner| inner.take_name(b"").capacity() > 0);
            let has_name = has_name.expect("the client goes on");
            page += &format!("{name}, held {is_held}: {shown}; woken {woken}, {end}, memory {has_name}; ");
            drop(guard);
            let woken = count.get();
            drop(lost);
            // Turns the event loop, after everything that was sent before.
            client.inspect("b").expect("the master answers");
            let (left, claims) = (client.stats().left, client.stats().claims);
            let exists = double.master(0).command(&["EXISTS", "a"]).expect("an answer").text();
            page += &format!("woken {woken}, left {left}, claims {claims}, key {exists}\n");
            assert_eq!(Arc::strong_count(&count), 2, "{page}: a waker is kept");
            drop(client);
            double.master(0).command(&["DEL", "a"]).expect("an answer");
        }
    }
    assert_golden("guards", &page);
}
