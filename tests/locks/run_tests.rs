//! Work under a lock: `LockRequest::run` and `run_async`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client, ErrorClass, Guard, HeldLocks, LockRequest, RunError};
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, SHORT, TTL, assert_nothing_left, await_held, await_no_keys, open, poll_once};

/// A renewed lock with a TTL of one second, so that a loss shows soon.
fn renewed(client: &Client) -> LockRequest<'_> {
    client.lock("a").ttl(Duration::from_secs(1)).wait(PATIENCE).auto_extend(PATIENCE)
}

/// Work that ends only with the lock's loss.
fn until_lost(guard: &Guard) {
    let given_up = Instant::now() + PATIENCE;
    while guard.is_valid() {
        assert!(Instant::now() < given_up, "no loss shows");
        thread::sleep(Duration::from_millis(1));
    }
}

fn force_unlock(client: &Client) {
    client.force_unlock("a").expect("a quorum deletes it");
}

#[test]
fn finished_work_returns_value_and_frees_lock() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let request = || client.lock("a").ttl(TTL);
    let margin = request().run(|guard| guard.margin()).expect("free");
    assert!(margin <= 1);
    assert_nothing_left(&client, &mut fleet);
    let text = "borrowed".to_owned();
    let size = block_on(request().run_async(async |guard| {
        guard.extend_async(TTL).await.expect("held");
        text.len()
    }));
    assert_eq!(size, Ok(text.len()));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn work_is_spawned_with_its_lock() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let results = runtime.block_on(async {
        let spawned = [7, 8].map(|number| {
            let request = client.lock_owned("a").ttl(TTL).wait(PATIENCE);
            tokio::spawn(request.run_async(async move |_: &mut Guard| {
                tokio::task::yield_now().await;
                number
            }))
        });
        let mut results = Vec::new();
        for task in spawned {
            results.push(task.await.expect("no panic"));
        }
        results
    });
    assert_eq!(results, [Ok(7), Ok(8)]);
}

#[test]
fn work_does_not_begin_without_the_lock() {
    let fleet = Fleet::start(3);
    let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let _held = holder.lock("a").ttl(TTL).try_acquire().expect("free");
    let begun = AtomicBool::new(false);
    let begin = || begun.store(true, Ordering::SeqCst);
    let request = || client.lock("a").ttl(TTL).wait(Duration::ZERO);
    for refused in [request().run(|_| begin()), block_on(request().run_async(async |_| begin()))] {
        let error = refused.expect_err("another client holds it");
        assert!(matches!(error, RunError::Acquire(AcquireError::Contended(_))), "{error:?}");
        assert!(error.is_contended() && error.to_string().contains("held by another client"), "{error}");
    }
    assert!(!begun.into_inner());
}

#[test]
fn loss_shown_by_renewal_ends_the_work() {
    let fleet = Fleet::start(3);
    let (client, breaker) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let lost = renewed(&client).run(|guard| {
        force_unlock(&breaker);
        until_lost(guard);
        7
    });
    assert_eq!(lost, Err(RunError::Lost(Some(7))));
    assert_eq!(lost.expect_err("lost").class(), ErrorClass::Lost);
    let lost = block_on(renewed(&client).run_async(async |_| {
        force_unlock(&breaker);
        std::future::pending::<()>().await;
    }));
    assert_eq!(lost, Err(RunError::Lost(None)));
}

// I113
#[test]
fn a_loss_by_the_clock_ends_the_work() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    // Neither renewals nor the release get an answer.
    let lost = renewed(&client).run(|guard| {
        fleet.masters().for_each(|master| master.stop());
        until_lost(guard);
    });
    assert_eq!(lost, Err(RunError::Lost(Some(()))));
    fleet.masters().for_each(|master| master.cont());
    let lost = block_on(renewed(&client).run_async(async |_| {
        fleet.masters().for_each(|master| master.stop());
        std::future::pending::<()>().await;
    }));
    assert_eq!(lost, Err(RunError::Lost(None)));
    fleet.masters().for_each(|master| master.cont());
}

/// Without renewals, only the answers to the release show the loss.
// I113
#[test]
fn loss_shown_by_release_is_an_error() {
    let mut fleet = Fleet::start(3);
    let (client, breaker) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    // A late `SET` would restore the key on one master, and one missing answer would hide the loss.
    let mut break_lock = || {
        await_held(&mut fleet, "a");
        force_unlock(&breaker);
    };
    let lost = client.lock("a").ttl(TTL).run(|guard| {
        break_lock();
        guard.is_valid()
    });
    assert_eq!(lost, Err(RunError::Lost(Some(true))));
    let lost = block_on(client.lock("a").ttl(TTL).run_async(async |_| break_lock()));
    assert_eq!(lost, Err(RunError::Lost(Some(()))));
}

/// Answers after the end of the validity do not show a loss: the lock may have expired.
#[test]
fn a_release_behind_the_validity_shows_no_loss() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let fleet = Mutex::new(fleet);
    let each = |what: fn(&mut Master)| fleet.lock().expect("no panic").masters().for_each(what);
    // On a slow machine, the work itself may outlast the validity.
    eventually(PATIENCE, "work that ended in time was not lost", || {
        let request = client.lock("a").ttl(Duration::from_secs(1)).wait(PATIENCE);
        thread::scope(|scope| {
            let done = request.run(|guard| {
                each(Master::stop);
                let left = guard.remaining() + Duration::from_millis(50);
                scope.spawn(move || {
                    thread::sleep(left);
                    each(Master::cont);
                });
            });
            done.is_ok()
        })
    });
}

// I113
#[test]
fn an_unconfirmed_release_is_no_error() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let request = || client.lock("a").ttl(TTL).wait(PATIENCE);
    let done = request().run(|_| fleet.masters().for_each(|master| master.stop()));
    assert_eq!(done, Ok(()));
    fleet.masters().for_each(|master| master.cont());
    await_no_keys(&mut fleet);
    let done = block_on(request().run_async(async |_| fleet.masters().for_each(|master| master.stop())));
    assert_eq!(done, Ok(()));
    fleet.masters().for_each(|master| master.cont());
    // The release goes on in the background.
    await_no_keys(&mut fleet);
}

#[test]
fn a_drain_ends_the_work() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let lost = block_on(client.lock("a").ttl(TTL).run_async(async |_| {
        assert_eq!(client.drain_async(PATIENCE, HeldLocks::Release).await, 0);
        std::future::pending::<()>().await;
    }));
    assert_eq!(lost, Err(RunError::Lost(None)));
}

// I113
#[test]
fn a_panic_of_the_work_releases_the_lock() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let request = || client.lock("a").ttl(TTL);
    let by_thread = catch_unwind(AssertUnwindSafe(|| request().run(|_| panic!("of the work"))));
    await_no_keys(&mut fleet);
    let by_task =
        catch_unwind(AssertUnwindSafe(|| block_on(request().run_async(async |_| panic!("of the work")))));
    await_no_keys(&mut fleet);
    for panicked in [by_thread, by_task] {
        let panicked: Result<Result<(), RunError>, _> = panicked;
        assert_eq!(panicked.expect_err("it goes on").downcast_ref(), Some(&"of the work"));
    }
}

/// Notes its drop.
struct Noted<'a>(&'a AtomicBool);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// I113
#[test]
fn dropping_the_future_drops_the_work_and_releases() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    drop(client.lock("a").run_async(async |_| ()));
    assert_eq!(client.stats().acquired, 0, "nothing was asked");
    let (has_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut running = Box::pin(client.lock("a").ttl(TTL).run_async(async |_| {
        let _noted = Noted(&is_over);
        has_begun.store(true, Ordering::SeqCst);
        std::future::pending::<()>().await;
    }));
    eventually(PATIENCE, "it works", || {
        assert!(poll_once(&mut running).is_pending());
        has_begun.load(Ordering::SeqCst)
    });
    assert!(!is_over.load(Ordering::SeqCst));
    drop(running);
    assert!(is_over.load(Ordering::SeqCst));
    await_no_keys(&mut fleet);
}

/// Work that becomes ready together with a loss takes no further step.
// I113
#[test]
fn a_loss_comes_before_work_that_is_ready() {
    let fleet = Fleet::start(3);
    let (client, breaker) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let (steps, is_ready) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut running: Pin<Box<dyn Future<Output = _>>> = Box::pin(renewed(&client).run_async(async |_| {
        std::future::poll_fn(|_| {
            steps.fetch_add(1, Ordering::SeqCst);
            if is_ready.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }));
    eventually(PATIENCE, "it works", || {
        assert!(poll_once(&mut running).is_pending());
        steps.load(Ordering::SeqCst) == 1
    });
    force_unlock(&breaker);
    eventually(PATIENCE, "the loss shows", || client.stats().lost == 1);
    is_ready.store(true, Ordering::SeqCst);
    assert_eq!(poll_once(&mut running), Poll::Ready(Err(RunError::Lost(None))));
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

// I113
#[test]
fn work_that_blocks_beyond_the_validity_was_lost() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let request = client.lock("a").ttl(Duration::from_millis(300)).wait(PATIENCE);
    let lost = block_on(request.run_async(async |guard| {
        until_lost(guard);
        7
    }));
    assert_eq!(lost, Err(RunError::Lost(Some(7))));
}
