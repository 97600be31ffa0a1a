//! Health, statistics and events of clients.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use redlatch::status::MasterState;
use redlatch::{Client, Config, ConfigBuilder, Event, Quarantine};
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{Blocking, PATIENCE, eventually};

use crate::harness::{LONG, TTL, config, open, within};

// I134
#[test]
fn health_counts_the_masters_that_may_fail() {
    let mut fleet = Fleet::start(5);
    let client = open(&fleet.urls(), LONG);
    for (killed, (may_fail, has_quorum)) in
        [(2, true), (1, true), (0, true), (0, false)].into_iter().enumerate()
    {
        eventually(PATIENCE, "the health follows the masters", || {
            let health = client.health();
            (health.may_fail, health.has_quorum) == (may_fail, has_quorum)
        });
        assert_eq!(client.lock("a").ttl(TTL).try_acquire().is_ok(), has_quorum, "{killed} are dead");
        let stats = client.stats();
        assert_eq!((stats.may_fail(), stats.ready() >= stats.quorum), (may_fail, has_quorum));
        if killed < 3 {
            fleet.master(killed).kill();
        }
    }
    assert!(
        client.health().to_string().starts_with("2 of 5 masters count: no quorum"),
        "{}",
        client.health()
    );
}

// I134
#[test]
fn a_fleet_in_quarantine_is_not_ready() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(Master::restart);
    let max_ttl = Duration::from_secs(2);
    let settings = Config::builder().masters(fleet.urls()).max_ttl(max_ttl).answer_timeout(LONG);
    let client = settings.connect().expect("an event loop");
    let health = client.health();
    assert!(!health.has_quorum, "{health:#}");
    let is_young = |it: &redlatch::status::MasterStatus| matches!(it.state, MasterState::Quarantined(_));
    assert!(health.masters.iter().all(is_young), "{health:#}");
    eventually(PATIENCE, "the quarantine ends", || client.health().has_quorum);
    assert!(client.lock("a").ttl(max_ttl).try_acquire().is_ok());
    let quarantined = client.stats().masters[0].quarantined;
    assert!(quarantined > Duration::ZERO && quarantined <= max_ttl * 2, "{quarantined:?}");
}

#[test]
fn a_replica_is_not_ready() {
    let Some(mut fleet) = Fleet::servers(2) else { return };
    let other = fleet.urls()[0].rsplit(':').next().expect("a port").to_owned();
    assert_eq!(fleet.master(1).ask(&format!("REPLICAOF 127.0.0.1 {other}")).text(), "OK");
    let client = open(&fleet.urls()[1..], LONG);
    let health = client.health();
    assert!(!health.has_quorum && health.to_string().contains("it is a replica"), "{health:#}");
    assert_eq!(client.masters(), health.masters);
}

/// Settings of a client, and the receiver of its events.
fn observed(fleet: &Fleet) -> (ConfigBuilder, Receiver<Event>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let observe = move |event: &Event| drop(sender.lock().expect("no panic").send(event.clone()));
    (config(&fleet.urls(), LONG).on_event(observe), receiver)
}

fn next_of(events: &Receiver<Event>, is_it: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        if is_it(&event) {
            return event;
        }
    }
}

#[test]
fn an_observer_gets_locks_and_masters_in_order() {
    let mut fleet = Fleet::start(3);
    let (settings, events) = observed(&fleet);
    let client = settings.connect().expect("an event loop");
    for _ in 0..3 {
        let event = events.recv_timeout(PATIENCE).expect("an event");
        assert!(matches!(event, Event::Connected { is_reconnect: false, .. }), "{event:?}");
    }
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    assert!(client.lock("a").ttl(TTL).try_acquire().is_err());
    guard.release().expect("confirmed");
    let names: Vec<_> = (0..3).map(|_| events.recv_timeout(PATIENCE).expect("an event")).collect();
    let [Event::Acquired { resource, attempts: 1, .. }, Event::Denied { .. }, Event::Released { .. }] =
        &names[..]
    else {
        panic!("{names:?}")
    };
    assert_eq!(resource, "a");
    // Nobody calls the client, so its own thread must report the loss.
    fleet.master(1).kill();
    let lost = next_of(&events, |it| !matches!(it, Event::Connected { .. }));
    assert!(
        matches!(&lost, Event::Disconnected { master, .. } if **master == *client.masters()[1].name),
        "{lost:?}"
    );
    fleet.master(1).restart();
    next_of(&events, |it| matches!(it, Event::Restarted { .. }));
    assert_eq!((client.stats().reconnects(), client.stats().restarts()), (1, 1));
}

#[test]
fn a_redlocks_observer_is_called_after_each_call() {
    let fleet = Fleet::start(3);
    let (settings, events) = observed(&fleet);
    let mut redlock = Blocking::open(settings.build().expect("valid")).expect("an event loop");
    assert_eq!(events.try_iter().count(), 3);
    let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
    assert!(matches!(events.try_recv(), Ok(Event::Acquired { .. })));
    redlock.release(lease).expect("confirmed");
    assert!(matches!(events.try_recv(), Ok(Event::Released { .. })));
    let stats = redlock.stats();
    assert_eq!((stats.acquired, stats.released, stats.held()), (1, 1, 0));
    assert!(redlock.health().has_quorum && redlock.health().may_fail == 1);
}

// I133
#[test]
fn an_observer_that_panics_harms_nobody() {
    let fleet = Fleet::start(3);
    let settings = config(&fleet.urls(), LONG).on_event(|_| std::panic::resume_unwind(Box::new("it panics")));
    let client = settings.connect().expect("an event loop");
    let settings = config(&fleet.urls(), LONG).on_event(|_| std::panic::resume_unwind(Box::new("it panics")));
    let mut redlock = Blocking::open(settings.build().expect("valid")).expect("an event loop");
    within("both go on", move || {
        for _ in 0..20 {
            client.lock("a").ttl(TTL).acquire().expect("free").release().expect("confirmed");
            let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
            redlock.release(lease).expect("confirmed");
        }
    });
}

// I133
#[test]
fn an_observer_may_look_at_its_client() {
    let fleet = Fleet::start(3);
    let slot = Arc::new(OnceLock::<Client>::new());
    let (sender, seen) = mpsc::channel();
    let sender = Mutex::new(sender);
    let its = slot.clone();
    let observe = move |_: &Event| {
        if let Some(client) = its.get() {
            // Would hang if the observer ran with the client's mutex locked.
            let state = (client.health().has_quorum, client.stats().acquired);
            let _ = sender.lock().expect("no panic").send(state);
        }
    };
    let settings = config(&fleet.urls(), LONG).on_event(observe);
    let client = settings.connect().expect("an event loop");
    assert!(slot.set(client.clone()).is_ok());
    within("the observer returns", move || {
        client.lock("a").ttl(TTL).acquire().expect("free").release().expect("confirmed");
    });
    while seen.recv_timeout(PATIENCE).expect("an event of the lock") != (true, 1) {}
}

// I133
#[test]
fn an_observer_that_blocks_stops_no_other_thread() {
    let fleet = Fleet::start(3);
    let (end, ended) = mpsc::channel::<()>();
    let (entered, is_entered) = mpsc::channel();
    let (entered, ended) = (Mutex::new(entered), Mutex::new(ended));
    let observe = move |event: &Event| {
        if let Event::Acquired { resource, .. } = event
            && resource == "first"
        {
            entered.lock().expect("no panic").send(()).expect("it is waited for");
            let _ = ended.lock().expect("no panic").recv();
        }
    };
    let settings = config(&fleet.urls(), LONG).on_event(observe).quarantine(Quarantine::Trust);
    let client = settings.connect().expect("an event loop");
    let its = client.clone();
    let blocked = thread::spawn(move || drop(its.lock("first").ttl(TTL).acquire().expect("free")));
    is_entered.recv_timeout(PATIENCE).expect("the observer is called");
    let other = open(&fleet.urls(), LONG);
    let held = other.lock("led").ttl(TTL).acquire().expect("free");
    within("other threads go on", move || {
        let its = client.clone();
        let leading = thread::spawn(move || its.lock("led").ttl(TTL).wait(PATIENCE).acquire().map(drop));
        let is_refused = || client.stats().masters.iter().any(|master| master.refused > 0);
        eventually(PATIENCE, "a thread waits, and leads", is_refused);
        // More events than the observer's queue holds.
        for _ in 0..redlatch::limits::EVENT_COUNT_MAX {
            client.lock("other").ttl(TTL).acquire().expect("free").release().expect("confirmed");
        }
        assert!(client.stats().events_dropped > 0);
        held.release().expect("confirmed");
        leading.join().expect("no panic").expect("released");
    });
    drop(end);
    blocked.join().expect("no panic");
}

#[test]
fn an_observer_ends_with_its_client() {
    let fleet = Fleet::start(1);
    let kept = Arc::new(());
    let its = kept.clone();
    let client = config(&fleet.urls(), LONG).on_event(move |_| _ = &its).connect().expect("an event loop");
    drop(client.lock("a").acquire().expect("free"));
    drop(client);
    eventually(PATIENCE, "its thread has ended", || Arc::strong_count(&kept) == 1);
}
