//! Drops of futures at every stage, of guards on any thread, and of the last handle.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, ExtendError, Guard, Release, limits};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, Raw, block_on, eventually};

use crate::harness::{
    Count, LONG, TTL, assert_nothing_left, await_connections, await_no_keys, open, poll_once, poll_with,
    within,
};

/// Well below the masters' answer limit, for which no drop waits.
const PROMPT: Duration = Duration::from_secs(5);

/// Each request gets its own answer.
fn assert_answers_are_right(client: &Client, fleet: &mut Fleet) {
    for round in 0..20 {
        let name = format!("right:{round}");
        let mut guard = client.lock(&name).ttl(TTL).acquire().expect("free");
        let token = guard.token().as_bytes().to_vec();
        guard.extend(TTL).expect("held");
        eventually(PATIENCE, "each master has it", || {
            fleet.masters().all(|master| master.ask(&format!("GET {name}")) == Raw::Text(token.clone()))
        });
        let released = if round % 2 == 0 { guard.release() } else { block_on(guard.release_async()) };
        assert!(!released.expect("confirmed").was_already_gone());
    }
}

/// Gives something up half-way, while `held` keeps others from the lock.
type Stage = fn(&Client);

fn never_polled(client: &Client) {
    drop(client.lock("a").acquire_async());
}

fn polled_once(client: &Client) {
    let mut acquiring = client.lock("a").acquire_async();
    assert!(poll_once(&mut acquiring).is_pending());
}

fn polled_with_another_waker(client: &Client) {
    let mut acquiring = client.lock("a").acquire_async();
    for _ in 0..3 {
        let waker = Waker::from(Arc::<Count>::default());
        if poll_with(&mut acquiring, &waker).is_ready() {
            return;
        }
    }
}

fn behind_others(client: &Client) {
    let mut acquiring = client.lock("held").wait(LONG).acquire_async();
    assert!(poll_once(&mut acquiring).is_pending());
    // By now there have been several attempts.
    thread::sleep(Duration::from_millis(30));
}

fn half_of_a_batch(client: &Client) {
    let names = ["a", "b", "held", "c"];
    let batch = client.acquire_all(names.map(|name| client.lock(name).wait(LONG)));
    for mut acquiring in batch.into_iter().skip(1) {
        let _ = poll_once(&mut acquiring);
    }
}

fn by_a_batch_never_fetched(client: &Client) {
    drop(client.acquire_all(["a", "b", "held"].map(|name| client.lock(name).wait(LONG))));
}

const STAGES: [Stage; 6] = [
    never_polled,
    polled_once,
    polled_with_another_waker,
    behind_others,
    half_of_a_batch,
    by_a_batch_never_fetched,
];

// I119
#[test]
fn a_dropped_acquisition_leaves_nothing_at_any_stage() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let other = open(&fleet.urls(), LONG);
    for (index, stage) in STAGES.into_iter().enumerate() {
        let held = other.lock("held").ttl(TTL).acquire().expect("free");
        stage(&client);
        assert_eq!(settle(&client, PATIENCE), 0, "stage {index}");
        held.release().expect("confirmed");
        assert_eq!(settle(&other, PATIENCE), 0);
        assert_nothing_left(&client, &mut fleet);
        assert_answers_are_right(&client, &mut fleet);
    }
}

#[test]
fn an_outcome_that_nobody_fetches_is_released() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let count = Arc::<Count>::default();
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(count.clone())).is_pending());
    eventually(PATIENCE, "the outcome is there", || count.get() == 1);
    assert_eq!(fleet.master(0).key_count(), "1");
    drop(acquiring);
    assert_nothing_left(&client, &mut fleet);
    assert_answers_are_right(&client, &mut fleet);
}

// I119
#[test]
fn drops_do_not_wait_for_stopped_masters() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut held = client.lock("held").ttl(TTL).acquire().expect("free");
    let [extended, released, forgotten] =
        ["x", "y", "z"].map(|name| client.lock(name).ttl(TTL).acquire().expect("free"));
    let mut extended = extended;
    fleet.masters().for_each(|master| master.stop());
    let begun = Instant::now();
    STAGES.iter().for_each(|stage| stage(&client));
    assert!(poll_once(&mut extended.extend_async(TTL)).is_pending());
    drop(extended);
    let mut releasing = released.release_async();
    assert!(poll_once(&mut releasing).is_pending());
    drop(releasing);
    drop(forgotten.release_async());
    drop(client.extend_all([&mut held], TTL));
    drop(client.release_all([held]));
    let took = begun.elapsed();
    assert!(took < PROMPT, "{took:?}");
    fleet.masters().for_each(|master| master.cont());
    assert_nothing_left(&client, &mut fleet);
    assert_answers_are_right(&client, &mut fleet);
}

#[test]
fn a_dropped_extension_leaves_the_guard_valid() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let mut guard = client.lock("a").ttl(TTL).acquire().expect("free");
    for is_polled in [false, true] {
        let mut extending = guard.extend_async(TTL);
        if is_polled {
            assert!(poll_once(&mut extending).is_pending());
        }
        drop(extending);
        assert!(guard.is_valid());
        // The dropped extension may still be under way.
        eventually(PATIENCE, "the next extension is made", || match guard.extend(TTL) {
            Ok(()) => true,
            Err(ExtendError::Busy) => false,
            Err(error) => panic!("{error}"),
        });
    }
    let mut extending = guard.extend_async(TTL);
    assert!(poll_once(&mut extending).is_pending());
    drop(extending);
    // Whatever became of the extension, the release gets its own answer.
    assert!(!guard.release().expect("confirmed").was_already_gone());
    assert_nothing_left(&client, &mut fleet);
    assert_answers_are_right(&client, &mut fleet);
}

#[test]
fn a_dropped_release_is_carried_out() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for is_polled in [false, true] {
        let mut releasing = client.lock("a").ttl(TTL).acquire().expect("free").release_async();
        if is_polled {
            assert!(poll_once(&mut releasing).is_pending());
        }
        drop(releasing);
        await_no_keys(&mut fleet);
    }
    assert_answers_are_right(&client, &mut fleet);
}

/// The drop of this value releases a guard, and waits for the release.
struct ReleasedOnDrop(Option<Guard>, Arc<AtomicBool>);

impl Drop for ReleasedOnDrop {
    fn drop(&mut self) {
        let is_released = self.0.take().is_some_and(|guard| guard.release().is_ok());
        self.1.store(is_released, Ordering::SeqCst);
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn Send>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_guard_may_be_dropped_anywhere() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let acquire = || client.lock("a").ttl(TTL).acquire().expect("free");
    let guard = acquire();
    thread::spawn(move || drop(guard)).join().expect("it drops");
    let guard = acquire();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("a panic"));
    }));
    assert!(panicked.is_err());
    let guard = acquire();
    thread::spawn(move || KEPT.with_borrow_mut(|kept| kept.push(Box::new(guard)))).join().expect("it ends");
    // No later call writes the last release: the background thread does.
    await_no_keys(&mut fleet);
    let (guard, is_released) = (acquire(), Arc::new(AtomicBool::new(false)));
    let last = ReleasedOnDrop(Some(guard), is_released.clone());
    thread::spawn(move || KEPT.with_borrow_mut(|kept| kept.push(Box::new(last)))).join().expect("it ends");
    assert!(is_released.load(Ordering::SeqCst));
    assert_answers_are_right(&client, &mut fleet);
}

#[test]
fn blocking_calls_in_a_panics_destructor_are_safe() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let is_released = Arc::new(AtomicBool::new(false));
    let last = ReleasedOnDrop(Some(client.lock("a").ttl(TTL).acquire().expect("free")), is_released.clone());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _last = last;
        std::panic::resume_unwind(Box::new("a panic"));
    }));
    assert!(panicked.is_err() && is_released.load(Ordering::SeqCst));
    assert_answers_are_right(&client, &mut fleet);
}

/// Drops its value at a wake-up, or with itself.
struct Keep<T>(Mutex<Option<T>>);

impl<T: Send + 'static> Wake for Keep<T> {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().expect("nobody panics with it").take());
    }
}

fn keep<T: Send + 'static>(kept: T) -> Waker {
    Waker::from(Arc::new(Keep(Mutex::new(Some(kept)))))
}

#[test]
fn a_waker_may_drop_guards_and_futures() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let its = client.clone();
    within("guards dropped by a waker", move || {
        let guard = its.lock("a").ttl(TTL).acquire().expect("free");
        let mut acquiring = its.lock("b").ttl(TTL).acquire_async();
        assert!(poll_with(&mut acquiring, &keep(guard)).is_pending());
        eventually(PATIENCE, "the waker drops the lock", || {
            its.lock("a").wait(Duration::ZERO).acquire().is_ok()
        });
    });
    assert_nothing_left(&client, &mut fleet);
    assert_answers_are_right(&client, &mut fleet);
}

#[test]
fn a_dropped_waker_may_drop_guards() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let stopped = client.clone();
    // Without answers, the client keeps the waker.
    let guards: Vec<Guard> =
        ["a", "b", "c"].iter().map(|name| client.lock(name).ttl(TTL).acquire().expect("free")).collect();
    fleet.masters().for_each(|master| master.stop());
    let waiting = within("guards dropped with a waker", move || {
        let mut guards = guards.into_iter();
        let mut next = || keep(guards.next());
        let mut acquiring = stopped.lock("d").ttl(TTL).acquire_async();
        assert!(poll_with(&mut acquiring, &next()).is_pending());
        // Another waker replaces it.
        assert!(poll_once(&mut acquiring).is_pending());
        assert!(poll_with(&mut acquiring, &next()).is_pending());
        drop(acquiring);
        let (client, last) = (stopped.clone(), next());
        thread::spawn(move || {
            let mut acquiring = client.lock("e").ttl(TTL).acquire_async();
            assert!(poll_with(&mut acquiring, &last).is_pending());
            drop(last);
            acquiring.block().map(drop)
        })
    });
    fleet.masters().for_each(|master| master.cont());
    waiting.join().expect("no panic").expect("free");
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn last_handle_releases_earlier_dropped_guards() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let names: Vec<String> = (0..100).map(|index| format!("orders:{index}")).collect();
    let batch = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
    let guards: Vec<Guard> = batch.into_iter().map(|it| it.block().expect("free")).collect();
    drop(client);
    // The last guard holds the last reference to the client.
    drop(guards);
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[]");
    }
}

#[test]
fn last_handle_waits_for_no_stopped_master() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    fleet.masters().for_each(|master| master.stop());
    drop(guard);
    let begun = Instant::now();
    drop(client);
    let took = begun.elapsed();
    assert!(took < limits::CLOSE_WAIT + PROMPT, "{took:?}");
    fleet.masters().for_each(|master| master.cont());
    // The release was written, and is carried out.
    await_no_keys(&mut fleet);
    // The client's thread closes the connections last.
    await_connections(&mut fleet, 0);
}

/// A task that owns all handles of its client.
struct Task(Mutex<Option<Pin<Box<Release>>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn the_background_thread_may_drop_the_last_handle() {
    let mut fleet = Fleet::start(3);
    // The client's thread must not wait for its own end. A slow machine may need several tries.
    eventually(PATIENCE, "it ends soon", || {
        let begun = Instant::now();
        drop_the_last_handle_in_the_background(&mut fleet);
        begun.elapsed() < BACKGROUND_END_MAX
    });
}

/// Less than a client waits for the end of its thread.
const BACKGROUND_END_MAX: Duration = Duration::from_millis(90);

fn drop_the_last_handle_in_the_background(fleet: &mut Fleet) {
    let guard = open(&fleet.urls(), LONG).lock("a").ttl(TTL).acquire().expect("free");
    let task = Arc::new(Task(Mutex::new(Some(Box::pin(guard.release_async())))));
    let waker = Waker::from(task.clone());
    let poll = poll_with(task.0.lock().expect("nobody panics with it").as_mut().expect("kept"), &waker);
    drop((task, waker));
    // From here on, the background thread has the only reference, in the waker that it wakes.
    assert!(matches!(poll, Poll::Pending));
    await_no_keys(fleet);
    // The client's thread closes the connections last.
    await_connections(fleet, 0);
}
