//! A panic with the client's mutex held, in each role that a thread can have: every other caller gets an
//! error, and none hangs.
//!
//! There is no master, so acquisitions end by their deadlines, and the leader then meets the broken answer.

mod alone;
#[cfg(unix)]
mod steps;

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Wake};
use std::time::Duration;

use redlatch_support::PATIENCE;

use super::*;
use crate::client::guard::HeldName;
use crate::client::pending::{Ask, Pending, submit_all};
use crate::client::{Acquire, Client, Count};
use crate::config::{Config, Quarantine};
use crate::engine::{HeldLocks, OpId, Outcome, Request, Resource};
use crate::error::{AcquireError, LockReentrantError};
use crate::event::Event;
use crate::options::Options;

/// Wait of callers that only the end of the client answers in time.
const LONG: Duration = PATIENCE.saturating_mul(10);
/// Wait whose end meets the broken answer.
const BRIEF: Duration = Duration::from_millis(100);

fn client() -> Client {
    // Nothing listens on this port.
    let config = Config::builder().masters(["redis://127.0.0.1:1"]).retry_delay(BRIEF..=BRIEF);
    Client::open(config.build().expect("valid settings")).expect("an event loop")
}

/// Masters in quarantine decide a fenced attempt before they answer, and still get its commands.
#[cfg(unix)]
// I155
#[test]
fn call_answered_at_once_is_written() {
    let double = redlatch_testing::Double::start(1).expect("a master");
    let config = crate::config::tests::of_double(&double).quarantine(Quarantine::Strict);
    let client = Client::open(config.build().expect("valid settings")).expect("an event loop");
    let denied = client.lock("a").fenced().try_acquire();
    assert!(matches!(denied, Err(AcquireError::NoQuorum(_))), "{denied:?}");
    assert!(!client.shared().lock().driver.engine.has_queued());
}

/// Runs a call that must not hang.
#[track_caller]
fn within<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn poll(acquiring: &mut Acquire<'_>, count: &Arc<Count>) -> Poll<Result<(), AcquireError>> {
    let waker = Waker::from(count.clone());
    Pin::new(acquiring).poll(&mut Context::from_waker(&waker)).map_ok(drop)
}

fn has_stopped<T>(result: &Result<T, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Stopped(_)))
}

/// A thread that waits for a lock until the client ends.
fn block(client: &Client) -> mpsc::Receiver<Result<(), AcquireError>> {
    let (sender, receiver) = mpsc::channel();
    let its = client.clone();
    thread::spawn(move || sender.send(its.lock("blocked").wait(LONG).acquire().map(drop)));
    while client.shared().peek(|inner| inner.completions.waiting_count()) == Some(0) {
        thread::yield_now();
    }
    receiver
}

/// Lets a thread or a task wait, lets `strike` break the client, and checks what all other callers get.
fn all_others_get_an_error(has_thread: bool, strike: impl FnOnce(&Client)) {
    let client = client();
    let blocked = has_thread.then(|| block(&client));
    let count = Arc::<Count>::default();
    let mut waiting = client.lock("waiting").wait(LONG).acquire_async();
    assert!(poll(&mut waiting, &count).is_pending());
    strike(&client);
    if let Some(blocked) = blocked {
        let result = blocked.recv_timeout(PATIENCE).expect("a blocked caller is answered");
        assert!(has_stopped(&result), "{result:?}");
    }
    let start = clock::now();
    while count.get() == 0 {
        assert!(clock::now() - start < PATIENCE, "a task is not woken");
        thread::yield_now();
    }
    assert!(matches!(poll(&mut waiting, &count), Poll::Ready(result) if has_stopped(&result)));
    drop(waiting);
    within("what comes later", move || {
        assert!(has_stopped(&client.lock("later").acquire()));
        assert_eq!(client.masters().len(), 1);
        drop(client);
    });
}

/// Lets the leading thread meet an answer that makes it panic, and waits for the end of the client.
fn strike_the_leader(client: &Client) {
    let has_stopped = || client.shared().with(|_| ()).is_err();
    let start = clock::now();
    while !has_stopped() {
        let count = Arc::<Count>::default();
        let mut short = client.lock("short").wait(BRIEF).acquire_async();
        let is_new = poll(&mut short, &count).is_pending();
        let _ = client.shared().with(|inner| inner.completions.break_tokens());
        // On a slow machine the answer may have come before.
        while is_new && count.get() == 0 && !has_stopped() {
            assert!(clock::now() - start < PATIENCE, "nobody meets the broken answer");
            thread::yield_now();
        }
    }
}

/// A thread that leads until it panics.
fn lead<T: Send + 'static>(
    client: &Client,
    lead: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<()> {
    let before = client.shared().peek(|inner| inner.completions.waiting_count());
    let leader = thread::spawn(move || drop(lead()));
    while client.shared().peek(|inner| inner.completions.waiting_count()) == before {
        thread::yield_now();
    }
    leader
}

// I120
#[test]
fn a_panic_of_a_leading_caller_stops_all() {
    all_others_get_an_error(false, |client| {
        let its = client.clone();
        let leader = lead(client, move || its.lock("led").wait(LONG).acquire().map(drop));
        strike_the_leader(client);
        drop(leader.join());
    });
}

// I120
#[test]
fn a_panic_of_the_clients_own_thread_stops_all() {
    all_others_get_an_error(false, strike_the_leader);
}

// I120
#[test]
fn a_panic_under_the_lock_stops_all_at_once() {
    for has_thread in [false, true] {
        all_others_get_an_error(has_thread, |client| {
            let its = client.clone();
            let user = thread::spawn(move || its.shared().with(|_| resume_unwind(Box::new("struck"))));
            drop(user.join());
        });
        all_others_get_an_error(has_thread, |client| {
            let its = client.clone();
            // The next caller that takes the mutex finds out.
            let user = thread::spawn(move || its.shared().peek(|_| resume_unwind(Box::new("struck"))));
            drop(user.join());
        });
        all_others_get_an_error(has_thread, |client| {
            let its = client.clone();
            let task = thread::spawn(move || {
                its.shared().poll(Waker::noop(), true, |_| resume_unwind(Box::new("struck")))
            });
            drop(task.join());
        });
        all_others_get_an_error(has_thread, |client| {
            let its = client.clone();
            let caller = thread::spawn(move || {
                its.shared().wait(OutcomeKind::Acquire, None, |_| resume_unwind(Box::new("struck")))
            });
            drop(caller.join());
        });
    }
}

/// The other callers learn of it from the panicking thread: nobody else enters the client.
#[cfg(unix)]
#[test]
fn panic_under_a_driven_clients_mutex_stops_all() {
    all_others_get_an_error(false, |client| {
        // Neither turned, as it would find out, nor dropped.
        std::mem::forget(client.drive().expect("a descriptor"));
        let its = client.clone();
        let user = thread::spawn(move || its.shared().with(|_| resume_unwind(Box::new("struck"))));
        drop(user.join());
    });
}

// I120
#[cfg(unix)]
#[test]
fn a_panic_of_a_drive_stops_all() {
    all_others_get_an_error(false, |client| {
        let mut drive = client.drive().expect("a descriptor");
        let driving = thread::spawn(move || while drive.turn(Waker::noop()).is_ok() {});
        strike_the_leader(client);
        within("the drive", move || drop(driving.join()));
    });
}

// I120
#[test]
fn a_panic_in_a_reentrant_attempt_answers_all() {
    let client = client();
    let lock = client.lock("reentrant").wait(LONG).reentrant();
    let its = lock.clone();
    let leader = lead(&client, move || its.lock().map(drop));
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let mut joined = lock.lock_async();
    assert!(Pin::new(&mut joined).poll(&mut Context::from_waker(&waker)).is_pending());
    let its = lock.clone();
    let blocked = thread::spawn(move || its.lock().map(drop));
    strike_the_leader(&client);
    drop(leader.join());
    within("a blocked caller", move || blocked.join()).expect("no panic of its own").expect_err("an error");
    let start = clock::now();
    while count.get() == 0 {
        assert!(clock::now() - start < PATIENCE, "a task is not woken");
        thread::yield_now();
    }
    match Pin::new(&mut joined).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(Err(LockReentrantError::Acquire(error))) => {
            assert!(matches!(error, AcquireError::Stopped(_)), "{error}")
        }
        other => panic!("{other:?}"),
    }
    drop(joined);
    assert_eq!(lock.hold_count(), 0);
}

/// Notes its number when it is woken.
struct Numbered(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("no panic").push(self.0);
    }
}

// I126
#[cfg(unix)]
#[test]
fn an_elected_leader_waits_for_no_waker() {
    let client = client();
    let shared = client.shared();
    let order = Arc::<Mutex<Vec<usize>>>::default();
    let waker = |number| Waker::from(Arc::new(Numbered(number, order.clone())));
    // Nobody leads by itself: a drive is elected, and the background thread leaves the lead to the drive.
    let mut drive = client.drive().expect("a descriptor");
    drive.turn(&waker(0)).expect("it goes on");
    let mut inner = loop {
        let inner = shared.enter().expect("it goes on");
        if inner.poller.is_some() {
            break inner;
        }
        drop(inner);
        thread::yield_now();
    };
    inner.background.drive.as_mut().expect("it drives").has_unsent = true;
    inner.background.sleeps_until = Some(None);
    [waker(1), waker(2)].into_iter().for_each(|waker| inner.completions.wake_too(waker));
    shared.leave(inner);
    let order = order.lock().expect("no panic");
    // Other due work may have woken the drive before.
    assert!(order.starts_with(&[0]) && order.ends_with(&[1, 2]), "{order:?}");
}

/// Takes a hold when it is woken.
struct Locks(crate::client::ReentrantLock, mpsc::Sender<Result<(), LockReentrantError>>);

impl Wake for Locks {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0.lock().map(drop));
    }
}

// I122
#[test]
fn a_waker_of_a_polled_hold_never_deadlocks() {
    let client = client();
    // If another thread took the waker first, the waker waits there for its turn, and proves nothing.
    for _ in 0..10 {
        let lock = client.lock("reentrant").wait(BRIEF).reentrant();
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::from(Arc::new(Locks(lock.clone(), sender)));
        let its = client.clone();
        within("a poll that wakes others", move || {
            its.shared().peek(|inner| inner.completions.wake_too(waker));
            let mut taking = lock.lock_async();
            let _ = Pin::new(&mut taking).poll(&mut Context::from_waker(Waker::noop()));
        });
        within("the waker", move || receiver.recv()).expect("it is called").expect_err("there is no master");
    }
}

/// Names the unit test to run in the program that is started again.
const ANEW: &str = "REDLATCH_UNIT_TEST_ANEW";

// I128
#[test]
fn an_exit_in_a_panic_hook_does_not_hang() {
    const NAME: &str = "client::shared::tests::an_exit_in_a_panic_hook_does_not_hang";
    const CODE: i32 = 7;
    if std::env::var_os(ANEW).is_some() {
        // The harness runs the test on a separate thread, whose destructors run in the exit.
        let client = client();
        let mut waiting = client.lock("waiting").wait(LONG).acquire_async();
        assert!(poll(&mut waiting, &Arc::<Count>::default()).is_pending());
        drop(waiting);
        std::panic::set_hook(Box::new(|_| std::process::exit(CODE)));
        let _ = client.shared().with(|_| panic!("a broken invariant"));
        unreachable!("the hook ends the process");
    }
    let program = std::env::current_exe().expect("this program has a path");
    let mut anew = std::process::Command::new(program);
    let mut child = anew.args(["--exact", NAME]).env(ANEW, NAME).spawn().expect("it starts again");
    let start = clock::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            break status;
        }
        if clock::now() - start > PATIENCE {
            let _ = child.kill();
            panic!("the exit hangs");
        }
        thread::yield_now();
    };
    assert_eq!(status.code(), Some(CODE));
}

/// Another thread read the clock later but entered before. The driver reads the clock, too, when a connection
/// fails.
#[test]
fn the_time_of_an_entry_never_goes_back() {
    let client = client();
    let earlier = clock::now();
    let is_in_order = client.shared().peek(|inner| {
        let entered = inner.now();
        inner.enter_at(earlier);
        let kept = inner.now();
        inner.driver.engine.handle_timeout(clock::now());
        let turned = inner.now();
        // An engine whose time goes back panics in builds with debug assertions.
        inner.deliver();
        earlier < entered && entered == kept && kept < turned
    });
    assert_eq!(is_in_order, Some(true));
}

#[test]
fn each_entry_and_each_turn_reads_the_clock() {
    let client = client();
    let read = || client.shared().peek(|inner| inner.now()).expect("no fork");
    let (start, first, second) = (clock::now(), read(), read());
    assert!(start <= first && first < second, "{start:?}, {first:?}, {second:?}");
    // The background thread may lead for a moment.
    let turned = iter::repeat_with(|| {
        let turn = |inner: &mut Inner| {
            let (before, poller) = (inner.now(), inner.poller.take()?);
            inner.end_turn(&poller, false);
            inner.poller = Some(poller);
            Some(before < inner.now())
        };
        client.shared().with(turn).expect("a client that goes on")
    });
    assert_eq!(turned.flatten().next(), Some(true));
}

/// Notes when it is submitted, and is refused.
struct Noting(Arc<Shared>, mpsc::Sender<Instant>);

impl Ask for Noting {
    const OUTCOME: OutcomeKind = OutcomeKind::Release;
    const STOPPED: fn(Stopped) = |_| ();
    type Answer = ();
    type Error = ();
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), ()> {
        self.1.send(inner.now()).map_err(drop)?;
        Err(())
    }

    fn answer(&mut self, _: OpId, (): (), _: Outcome) -> Result<(), ()> {
        unreachable!("it is refused")
    }
}

/// A long batch must leave its last call as much time for an answer as its first call.
#[test]
fn each_call_of_a_batch_reads_the_clock() {
    let client = client();
    let (sender, times) = mpsc::channel();
    let mut batch = [(); 3].map(|()| Pending::new(Noting(client.shared().clone(), sender.clone())));
    submit_all(client.shared(), batch.iter_mut());
    let times: Vec<_> = times.try_iter().collect();
    assert!(times.len() == 3 && times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn memory_of_names_is_kept_up_to_its_bound() {
    let client = client();
    let shared = client.shared();
    let kept = |inner: &mut Inner| inner.names.len();
    let named = |inner: &mut Inner| inner.give_name(HeldName::Copied(b"a name".to_vec()));
    shared.with(|inner| inner.give_name(HeldName::NONE)).expect("it goes on");
    assert_eq!(shared.with(kept), Ok(0), "there is no memory in it");
    for _ in 0..=SPARE_NAME_COUNT_MAX {
        shared.with(named).expect("it goes on");
    }
    assert_eq!(shared.with(kept), Ok(SPARE_NAME_COUNT_MAX));
    assert_eq!(shared.with(|inner| inner.take_name(b"b")).as_deref(), Ok(&b"b"[..]));
    assert_eq!(shared.with(kept), Ok(SPARE_NAME_COUNT_MAX - 1));
}

#[test]
fn a_client_that_cannot_start_leaves_no_thread() {
    for failing in ["redlatch", "redlatch-events"] {
        let held = Arc::new(());
        let left = Arc::downgrade(&held);
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).on_event(move |_| drop(held.clone()));
        let config = config.build().expect("valid settings");
        let (driver, poller) = Driver::new(Arc::new(config)).expect("an event loop");
        let started = Shared::start_by(driver, poller, |name, run| match name {
            name if name == failing => Err(io::Error::other("no more threads")),
            _ => Ok(thread::spawn(run)),
        });
        assert!(started.is_err());
        // Anything left holds the settings, and the observer in them.
        let given_up = Instant::now() + PATIENCE;
        while left.strong_count() > 0 {
            assert!(Instant::now() < given_up, "{failing}: something is left");
            thread::yield_now();
        }
    }
}

/// An event loop without a connection, and the events of its observer.
fn observed() -> ((Driver, Poller), mpsc::Receiver<Event>) {
    let (sender, reported) = mpsc::channel();
    let sender = Mutex::new(sender);
    let observe = move |event: &Event| drop(sender.lock().expect("no panic").send(event.clone()));
    let config = Config::builder()
        .masters([1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}")))
        .on_event(observe);
    let config = Arc::new(config.build().expect("valid settings"));
    (Driver::new(config).expect("an event loop"), reported)
}

/// An acquisition that is denied at once.
fn denied(driver: &mut Driver) -> OpId {
    let resource = Resource::new("a").expect("a valid name");
    let request = Request::Acquire { resource, options: Options::new().wait(Duration::ZERO), label: None };
    driver.engine.submit(clock::now(), request).expect("room")
}

/// Nobody else leads, so only the call itself or the leader can wake the observer's thread.
#[test]
fn a_call_and_a_leader_wake_the_observer() {
    let call = |shared: &Shared| _ = shared.with(|inner| denied(&mut inner.driver)).expect("it goes on");
    // Does not release the mutex through `leave`, which would wake the observer.
    let lead = |shared: &Shared| {
        let mut inner = shared.lock();
        denied(&mut inner.driver);
        let (poller, now) = (inner.poller.take().expect("nobody leads"), inner.now());
        drop(shared.lead(inner, poller, Some(now), |_| false).expect("it goes on"));
    };
    let answered = |inner: &mut Inner| {
        let op = denied(&mut inner.driver);
        let token = inner.completions.expect(op, OutcomeKind::Acquire);
        inner.deliver();
        Some(token)
    };
    let refused = |inner: &mut Inner| {
        denied(&mut inner.driver);
        None
    };
    // Not a kind for which a waiting thread turns the loop first.
    let wait = |shared: &Shared| drop(shared.wait(OutcomeKind::Release, None, answered));
    let wait_refused = |shared: &Shared| drop(shared.wait(OutcomeKind::Release, None, refused));
    let poll = |shared: &Shared| assert!(shared.poll(Waker::noop(), true, answered).is_ready());
    let poll_refused = |shared: &Shared| assert!(shared.poll(Waker::noop(), true, refused).is_ready());
    let ends: [&dyn Fn(&Shared); 6] = [&call, &lead, &wait, &wait_refused, &poll, &poll_refused];
    for end in ends {
        let ((driver, poller), reported) = observed();
        let started = Shared::start_by(driver, poller, |name, run| {
            Ok(thread::spawn(if name == "redlatch" { Box::new(|| ()) } else { run }))
        });
        let shared = started.expect("it starts");
        // Again and again, with the observer's thread asleep.
        for _ in 0..100 {
            end(&shared);
            // A leader also finds out that nothing listens.
            let mut events = iter::repeat_with(|| reported.recv_timeout(PATIENCE).expect("it is woken"));
            assert!(events.any(|event| matches!(event, Event::Denied { .. })));
        }
        shared.observing.as_ref().expect("it has an observer").end();
    }
}

/// Each look of the observer's thread enters the client, which reads the clock.
#[test]
fn the_observers_thread_sleeps_while_there_is_no_event() {
    let ((driver, poller), _reported) = observed();
    let started = Shared::start_by(driver, poller, |name, run| {
        Ok(thread::spawn(if name == "redlatch" { Box::new(|| ()) } else { run }))
    });
    let shared = started.expect("it starts");
    let is_quiet = || {
        let before = shared.lock().now();
        thread::sleep(BRIEF / 2);
        shared.lock().now() == before
    };
    let start = clock::now();
    // A loaded machine may delay a thread that never sleeps for a while.
    while !(0..20).all(|_| is_quiet()) {
        assert!(clock::now() - start < PATIENCE, "it looks again and again");
    }
    shared.observing.as_ref().expect("it has an observer").end();
}

#[test]
fn events_before_the_end_are_reported() {
    let ((mut driver, poller), reported) = observed();
    denied(&mut driver);
    // The observer's thread does nothing. This thread replaces it after the client's end.
    let started = Shared::start_by(driver, poller, |name, run| {
        Ok(thread::spawn(if name == "redlatch-events" { Box::new(|| ()) } else { run }))
    });
    let shared = started.expect("it starts");
    assert!(matches!(reported.try_recv(), Err(mpsc::TryRecvError::Empty)));
    shared.close();
    let its = shared.clone();
    within("the end of events", move || its.run_observer(its.observing.as_ref().expect("it has one")));
    assert!(matches!(reported.try_recv(), Ok(Event::Denied { .. })));
}
