//! `Redlock` by itself, and fencing tokens of several clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::engine::{Request, Resource};
use redlatch::status::MasterState;
use redlatch::{AcquireError, ConfigBuilder, Event, Options, limits};
use redlatch_support::stage::Fleet;
use redlatch_support::{Blocking, PATIENCE, assert_sooner, eventually};

use crate::harness::{LONG, TTL, await_held, await_no_keys, config, open};

/// It knows whether each master is up or down.
fn opened(settings: ConfigBuilder) -> Blocking {
    let settings = settings.connect_timeout(PATIENCE).build().expect("valid settings");
    Blocking::open(settings).expect("an event loop")
}

#[test]
fn dropped_redlock_writes_its_queued_requests() {
    let mut fleet = Fleet::start(3);
    let mut redlock = opened(config(&fleet.urls(), LONG));
    let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "a");
    redlock.submit(Request::Release { lock: lease.id(), awaited: false }).expect("always taken");
    drop(redlock);
    await_no_keys(&mut fleet);
}

/// No later call turns the event loop.
#[test]
fn redlock_reports_events_when_opened_and_flushed() {
    let fleet = Fleet::start(1);
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let reported = events.clone();
    let observe = move |event: &Event| reported.lock().expect("no panic").push(event.clone());
    let mut redlock = opened(config(&fleet.urls(), LONG).on_event(observe));
    let first = std::mem::take(&mut *events.lock().expect("no panic"));
    assert!(matches!(first[..], [Event::Connected { .. }]), "{first:?}");
    let lease = redlock.lock("a").ttl(TTL).try_acquire().expect("free");
    events.lock().expect("no panic").clear();
    drop(lease);
    redlock.flush();
    let flushed = events.lock().expect("no panic");
    assert!(matches!(flushed[..], [Event::Released { .. }]), "{flushed:?}");
}

#[test]
fn call_after_idle_time_waits_for_no_event() {
    let fleet = Fleet::start(1);
    let mut redlock = opened(config(&fleet.urls(), LONG));
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

// I12
#[test]
fn fencing_tokens_rise_from_client_to_client() {
    let mut fleet = Fleet::start(5);
    let clients = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let mut last = None;
    for round in 0..20 {
        let guard = clients[round % 2].lock("a").fenced().ttl(TTL).wait(PATIENCE).acquire().expect("free");
        let token = guard.fencing_token();
        assert!(token.is_some() && token > last, "{token:?} after {last:?}");
        last = token;
        let fences = fleet.masters().map(|master| master.ask("GET redlatch:fence:a").text());
        let has_token = |fence: &String| token.is_some_and(|token| *fence == token.to_string());
        assert!(fences.filter(has_token).count() >= 3, "a quorum remembers it");
        guard.release().expect("confirmed");
    }
    let held = clients[0].lock("a").fenced().ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let refused = clients[1].lock("a").fenced().try_acquire();
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    drop(held);
}

#[test]
fn a_waker_ends_a_turn_from_another_thread() {
    let fleet = Fleet::start(1);
    let mut redlock = opened(config(&fleet.urls(), LONG));
    let waker = redlock.waker();
    let started = Instant::now();
    // A turn may end for another reason.
    for _ in 0..200 {
        let (is_woken, before_turn) = (AtomicBool::new(false), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                before_turn.wait();
                is_woken.store(true, Ordering::Release);
                waker.wake_by_ref();
            });
            before_turn.wait();
            redlock.turn(PATIENCE).expect("the loop runs");
            while !is_woken.load(Ordering::Acquire) {
                redlock.turn(PATIENCE).expect("the loop runs");
            }
        });
        assert_sooner(started, PATIENCE, "a turn that nothing wakes lasts that long");
    }
}

#[test]
fn a_turn_waits_unless_an_outcome_is_there() {
    let fleet = Fleet::start(1);
    let mut redlock = opened(config(&fleet.urls(), LONG).max_ttl(2 * PATIENCE));
    let resource = Resource::new("a").expect("valid");
    let options = Options::new().ttl(2 * PATIENCE).wait(PATIENCE);
    redlock.submit(Request::Acquire { resource, options, label: None }).expect("room");
    let _held = redlock.lock("b").ttl(2 * PATIENCE).wait(PATIENCE).acquire().expect("free");
    let begun = Instant::now();
    redlock.turn(PATIENCE).expect("the loop runs");
    assert_sooner(begun, PATIENCE, "a turn that overlooks the outcome lasts that long");
    assert!(redlock.poll_outcome().is_some());
    let limit = Duration::from_millis(20);
    eventually(PATIENCE, "it waits when nothing comes", || {
        let begun = Instant::now();
        redlock.turn(limit).expect("the loop runs");
        begun.elapsed() >= limit
    });
}

#[test]
fn a_turn_does_not_wait_with_outcomes() {
    let mut fleet = Fleet::start(1);
    let url = fleet.urls();
    fleet.master(0).kill();
    let mut redlock = opened(config(&url, LONG));
    assert!(matches!(redlock.masters()[0].state, MasterState::Down(_)));
    let (resource, options) = (Resource::new("a").expect("valid"), Options::new().wait(Duration::ZERO));
    redlock.submit(Request::Acquire { resource, options, label: None }).expect("room");
    let start = Instant::now();
    redlock.turn(PATIENCE).expect("the loop runs");
    assert!(redlock.poll_outcome().is_some());
    assert_sooner(start, LONG, "an attempt that waits for an answer lasts that long");
}
