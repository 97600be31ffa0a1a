//! Each kind of lock, and each way to wait.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::engine::Request;
use redlatch::{AcquireError, Client, Event, Guard, LockEnd, limits};
use redlatch_support::{Blocking, PATIENCE, eventually};
use tokio::task::JoinSet;

use crate::{SHORT, TTL, asked, await_held, await_waiters, contended, open, start};

/// Starts a thread that waits for a lock.
fn wait(client: &Client, name: &'static str) -> thread::JoinHandle<Guard> {
    let client = client.clone();
    thread::spawn(move || client.lock(name).ttl(TTL).wait(PATIENCE).acquire().expect("it is released"))
}

#[test]
fn a_release_wakes_the_waiter_of_another_client() {
    let double = start(3);
    let [holder, waiting] = [open(&double), open(&double)];
    let held = holder.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&double, "a");
    let waiter = wait(&waiting, "a");
    await_waiters(&double, "a", 1);
    held.release().expect("confirmed");
    let guard = waiter.join().expect("no panic");
    assert!(guard.is_valid());
    let stats = waiting.stats();
    assert!(stats.notified > 0, "it was served");
    assert_eq!(stats.acquired, 1);
}

/// Other tests check the order, which needs time on a busy machine.
#[test]
fn fair_waiters_are_served_one_by_one() {
    let double = start(3);
    let clients = [(); 4].map(|()| open(&double));
    let fair = |client: &Client| client.lock_owned("a").fair().ttl(TTL).wait(PATIENCE);
    let held = fair(&clients[0]).acquire().expect("free");
    await_held(&double, "a");
    let inside = AtomicUsize::new(1);
    thread::scope(|scope| {
        for (count, client) in clients.iter().enumerate().skip(1) {
            let (request, inside) = (fair(client), &inside);
            scope.spawn(move || {
                let guard = request.acquire().expect("it is released");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().expect("confirmed");
            });
            await_waiters(&double, "a", count);
        }
        inside.fetch_sub(1, Ordering::SeqCst);
        held.release().expect("confirmed");
    });
    let waited = clients[1..].iter().map(|client| client.stats());
    assert!(waited.into_iter().all(|stats| (stats.acquired, stats.released) == (1, 1) && stats.notified > 0));
}

#[test]
fn fencing_tokens_rise_from_client_to_client() {
    let double = start(5);
    let clients = [open(&double), open(&double)];
    let mut last = None;
    for round in 0..20 {
        let guard = clients[round % 2].lock("a").fenced().ttl(TTL).wait(PATIENCE).acquire().expect("free");
        let token = guard.fencing_token();
        assert!(token.is_some() && token > last, "{token:?} after {last:?}");
        last = token;
        let fences = double.masters().map(|master| asked(master, &["GET", "redlatch:fence:a"]));
        let has_token = |fence: &String| token.is_some_and(|token| *fence == token.to_string());
        assert!(fences.filter(has_token).count() >= 3, "a quorum remembers it");
        guard.release().expect("confirmed");
    }
    let held = clients[0].lock("a").fenced().ttl(TTL).wait(PATIENCE).acquire().expect("free");
    contended(clients[1].lock("a").fenced().try_acquire());
    drop(held);
}

#[test]
fn readers_share_and_a_writer_waits_for_them() {
    let double = start(3);
    let [first, second, writer] = [open(&double), open(&double), open(&double)];
    let readers = [&first, &second].map(|client| {
        let request = client.rw_lock("a").read();
        request.ttl(TTL).wait(PATIENCE).acquire().expect("readers share")
    });
    await_held(&double, "a");
    contended(writer.rw_lock("a").write().fenced().try_acquire());
    let request = writer.rw_lock("a").write().fenced().ttl(TTL).wait(PATIENCE);
    let waiter = thread::spawn(move || request.acquire().expect("they leave"));
    await_waiters(&double, "a", 1);
    for reader in readers {
        reader.release().expect("confirmed");
    }
    let held = waiter.join().expect("no panic");
    assert!(held.fencing_token().is_some(), "a writer may be fenced");
    contended(first.rw_lock("a").read().try_acquire());
    drop(held);
}

#[test]
fn an_owner_takes_its_lock_again() {
    let double = start(3);
    let [client, other] = [open(&double), open(&double)];
    let lock = client.lock("a").ttl(TTL).reentrant();
    let (outer, inner) = (lock.lock().expect("free"), lock.lock().expect("its own"));
    await_held(&double, "a");
    drop(outer);
    contended(other.lock("a").try_acquire());
    assert!(inner.release().expect("confirmed").is_some());
    drop(other.lock("a").wait(PATIENCE).acquire().expect("free"));
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let double = start(3);
    let [client, other] = [open(&double), open(&double)];
    let held = other.lock("b").ttl(TTL).acquire().expect("free");
    await_held(&double, "b");
    let refused = client.lock_set(["a", "b", "c"]).try_acquire();
    let why = refused.expect_err("one is held").source;
    assert!(matches!(why, AcquireError::Contended(_)), "{why:?}");
    held.release().expect("confirmed");
    let set = client.lock_set(["a", "b", "c"]).ttl(TTL).wait(PATIENCE).acquire().expect("all are free");
    for name in ["a", "b", "c"] {
        contended(other.lock(name).try_acquire());
    }
    drop(set);
}

#[test]
fn slots_have_numbers_and_an_end() {
    let double = start(3);
    let clients = [open(&double), open(&double)];
    let take = |index: usize| clients[index % 2].slots("pool", 3).ttl(TTL).wait(PATIENCE);
    let held: Vec<_> = (0..3).map(|index| take(index).acquire().expect("one is free")).collect();
    assert_eq!(held.iter().map(|slot| slot.slot()).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2]));
    contended(take(0).try_acquire());
    let request = take(1);
    let waiter = thread::spawn(move || request.acquire().expect("one is released"));
    let freed = held[1].slot();
    held.into_iter().nth(1).expect("three").release().expect("confirmed");
    let next = waiter.join().expect("no panic");
    assert!(next.is_valid() && next.slot() < 3, "{freed} or one of the dropped ones");
}

#[test]
fn a_handle_passes_a_lock_on() {
    let double = start(3);
    let [first, second] = [open(&double), open(&double)];
    let guard = first.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&double, "a");
    let handle = guard.into_handle(Duration::from_secs(100)).expect("extended");
    let adopted = second.adopt(&handle).expect("it is there");
    contended(first.lock("a").try_acquire());
    adopted.release().expect("confirmed");
    second.adopt(&handle).expect_err("only once");
}

#[test]
fn kept_locks_are_renewed_on_the_masters() {
    let double = start(3);
    let client = open(&double);
    let guard = client.lock("a").ttl(Duration::from_secs(3)).auto_extend(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "it is extended", || client.stats().extended > 0);
    drop(guard);
}

#[test]
fn an_adoption_fetched_too_late_is_none() {
    let double = start(3);
    let [first, second] = [open(&double), open(&double)];
    let brief = || first.lock("a").ttl(SHORT).wait(PATIENCE).acquire();
    // On a slow machine, the answer comes too late.
    let guard = std::iter::repeat_with(brief).find_map(Result::ok).expect("free");
    let handle = guard.into_handle(Duration::from_secs(100)).expect("extended");
    let mut adopting = pin!(second.adopt_async(&handle));
    let mut poll = || adopting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    let polled = Instant::now();
    eventually(PATIENCE, "its TTL is over", || polled.elapsed() > SHORT);
    let mut adopted = poll();
    eventually(PATIENCE, "it is answered", || {
        if adopted.is_pending() {
            adopted = poll();
        }
        adopted.is_ready()
    });
    assert!(matches!(adopted, Poll::Ready(Err(_))), "{adopted:?}");
}

#[test]
fn a_leader_is_followed_after_the_ttl_of_its_candidate() {
    let double = start(3);
    let ttl = TTL / 4;
    let leadership = open(&double).lead("a").ttl(ttl).campaign().expect("free");
    assert!(leadership.guard().remaining() <= ttl && leadership.guard().remaining() > ttl / 2);
}

#[test]
fn a_set_ends_with_the_first_of_its_locks() {
    let double = start(1);
    let client = open(&double);
    let set = client.lock_set(["a", "b"]).ttl(TTL).acquire().expect("both are free");
    let mut lost = pin!(set.lost());
    let mut poll = || lost.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    let mut guards = set.into_guards();
    guards.pop().expect("two").release().expect("confirmed");
    assert_eq!(poll(), Poll::Ready(LockEnd::Released));
}

#[test]
fn a_loss_counts_more_than_a_release_of_the_set() {
    let double = start(1);
    let client = open(&double);
    for lost in [0, 1] {
        let set = client.lock_set(["a", "b"]).ttl(TTL).acquire().expect("both are free");
        let mut end = pin!(set.lost());
        let mut poll = || end.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        let mut guards = set.into_guards();
        let released = guards.remove(1 - lost);
        let mut lost = guards.remove(0);
        asked(double.master(0), &["DEL", lost.resource_str().expect("text")]);
        lost.extend(TTL).expect_err("it is lost");
        released.release().expect("confirmed");
        assert_eq!(poll(), Poll::Ready(LockEnd::Lost), "{lost:?}");
    }
}

#[test]
fn a_set_has_at_most_its_limit_of_locks() {
    let double = start(1);
    let client = open(&double);
    let names = |count| (0..count).map(|number| format!("lock {number}"));
    let set = client.lock_set(names(limits::SET_SIZE_MAX)).ttl(TTL).try_acquire().expect("all are free");
    assert_eq!(set.guards().len(), limits::SET_SIZE_MAX);
    let error = client.lock_set(names(limits::SET_SIZE_MAX + 1)).try_acquire().expect_err("too many");
    assert!(matches!(error.source, AcquireError::Input(_)), "{error}");
}

#[test]
fn an_observer_ends_with_its_client() {
    let double = start(1);
    let kept = Arc::new(());
    let its = kept.clone();
    let client = double.config().on_event(move |_| _ = &its).connect().expect("an event loop");
    drop(client.lock("a").acquire().expect("free"));
    drop(client);
    eventually(PATIENCE, "its thread has ended", || Arc::strong_count(&kept) == 1);
}

#[test]
fn a_redlock_writes_what_is_queued_as_it_is_dropped() {
    let double = start(3);
    let settings = double.config().max_ttl(TTL).answer_timeout(PATIENCE).build().expect("valid settings");
    let mut redlock = Blocking::open(settings).expect("an event loop");
    let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&double, "a");
    redlock.submit(Request::Release { lock: lease.id(), awaited: false }).expect("always taken");
    drop(redlock);
    for master in double.masters() {
        eventually(PATIENCE, "it is released", || asked(master, &["EXISTS", "a"]) == "0");
    }
}

/// No later call turns the event loop.
#[test]
fn a_redlock_reports_events_as_it_opens_and_at_a_flush() {
    let double = start(1);
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let reported = events.clone();
    let observe = move |event: &Event| reported.lock().expect("no panic").push(event.clone());
    let settings = double.config().max_ttl(TTL).answer_timeout(PATIENCE).connect_timeout(PATIENCE);
    let settings = settings.on_event(observe).build().expect("valid settings");
    let mut redlock = Blocking::open(settings).expect("an event loop");
    let opened = std::mem::take(&mut *events.lock().expect("no panic"));
    assert!(matches!(opened[..], [Event::Connected { .. }]), "{opened:?}");
    let lease = redlock.lock("a").ttl(TTL).try_acquire().expect("free");
    events.lock().expect("no panic").clear();
    drop(lease);
    redlock.flush();
    let flushed = events.lock().expect("no panic");
    assert!(matches!(flushed[..], [Event::Released { .. }]), "{flushed:?}");
}

#[test]
fn a_call_after_an_idle_time_waits_for_no_event() {
    let double = start(1);
    let mut redlock =
        Blocking::open(double.config().build().expect("valid settings")).expect("an event loop");
    let took = (0..51).map(|_| {
        thread::sleep(limits::IDLE_MAX);
        let begun = Instant::now();
        let lease = redlock.lock("a").wait(PATIENCE).acquire().expect("free");
        let took = begun.elapsed();
        redlock.release(lease).expect("confirmed");
        took
    });
    // The first call may find late answers to the handshake.
    assert!(took.skip(1).any(|it| it < limits::REVIVE_MAX), "each call waits");
}

/// A quorum's answers to the release show the loss.
#[test]
fn work_is_lost_with_a_quorum_of_keys() {
    for (lost_count, is_lost) in [(1, false), (2, true)] {
        let double = start(3);
        let client = open(&double);
        let result = client.lock("a").ttl(TTL).run(|_| {
            await_held(&double, "a");
            double.master(2).stop().expect("it runs");
            double
                .masters()
                .take(lost_count)
                .for_each(|master| assert_eq!(asked(master, &["DEL", "a"]), "1"));
        });
        assert_eq!(result.is_err(), is_lost, "{lost_count} of 3: {result:?}");
    }
}

#[test]
fn tasks_exclude_each_other() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let double = start(3);
        let client = open(&double);
        let other = open(&double);
        let mut tasks = JoinSet::new();
        // The read and the write are separate on purpose: the lock must make each addition atomic.
        let count = Arc::new(std::sync::Mutex::new(0));
        for index in 0..40 {
            let (client, count) =
                (if index % 2 == 0 { client.clone() } else { other.clone() }, count.clone());
            tasks.spawn(async move {
                let request = client.lock_owned("a").ttl(TTL).wait(PATIENCE);
                request
                    .run_async(async |_| {
                        let before = *count.lock().expect("no panic");
                        tokio::task::yield_now().await;
                        *count.lock().expect("no panic") = before + 1;
                    })
                    .await
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic").expect("each gets the lock");
        }
        assert_eq!(*count.lock().expect("no panic"), 40);
        assert_eq!(asked(double.master(0), &["PING"]), "PONG");
    });
}
