//! `Redlock` by itself, and fencing tokens of several clients.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use redlatch::engine::Request;
use redlatch::{AcquireError, Event, limits};
use redlatch_support::stage::Fleet;
use redlatch_support::{Blocking, PATIENCE};

use crate::harness::{LONG, TTL, await_held, await_no_keys, config, open};

#[test]
fn dropped_redlock_writes_its_queued_requests() {
    let mut fleet = Fleet::start(3);
    let settings = config(&fleet.urls(), LONG).build().expect("valid settings");
    let mut redlock = Blocking::open(settings).expect("an event loop");
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
    let settings = config(&fleet.urls(), LONG).connect_timeout(PATIENCE).on_event(observe);
    let mut redlock = Blocking::open(settings.build().expect("valid settings")).expect("an event loop");
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
fn call_after_idle_time_waits_for_no_event() {
    let fleet = Fleet::start(1);
    let settings = config(&fleet.urls(), LONG).build().expect("valid settings");
    let mut redlock = Blocking::open(settings).expect("an event loop");
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
