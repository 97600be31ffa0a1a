//! Events for an observer: what each event names, and the bound on waiting events.

use std::time::Duration;

use redlatch::engine::Request;
use redlatch::{AcquireError, ConfigBuilder, Event, HeldLocks, limits};

use crate::rig::Rig;
use crate::stats::stats;
use crate::{defaults, ms};

fn observed(builder: ConfigBuilder) -> ConfigBuilder {
    builder.on_event(|_| unreachable!("an engine does not call it"))
}

fn events(rig: &mut Rig) -> Vec<Event> {
    std::iter::from_fn(|| rig.engine.poll_event()).collect()
}

#[test]
fn events_name_the_lock_without_its_prefix() {
    let mut rig = Rig::new(3, |builder| observed(builder).prefix("p:"));
    let connected: Vec<_> = events(&mut rig);
    assert!(connected.iter().all(|it| matches!(it, Event::Connected { is_reconnect: false, .. })));
    assert_eq!(connected.len(), 3);
    let (resource, took) = (bytes::Bytes::from_static(b"a"), Duration::ZERO);
    let lock = rig.acquire("a", 10_000, 0);
    assert_eq!(
        events(&mut rig),
        [Event::Acquired { resource: resource.clone(), attempts: 1, took, holder: None }]
    );
    rig.acquire("a", 10_000, 0);
    let denied = events(&mut rig);
    assert!(matches!(&denied[..], [Event::Denied { resource, .. }] if resource == "a"), "{denied:?}");
    rig.run_for(ms(20));
    rig.release(lock, false);
    assert_eq!(events(&mut rig), [Event::Released { resource: resource.clone(), held: ms(20) }]);
    let lock = rig.acquire("a", 1000, 0);
    events(&mut rig);
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("taken");
    rig.run_for(ms(950));
    let near = events(&mut rig);
    assert!(matches!(&near[..], [Event::NearLoss { resource, .. }] if resource == "a"), "{near:?}");
    rig.run_for(ms(100));
    rig.release(lock, false);
    assert_eq!(events(&mut rig), [Event::Lost { resource, held: ms(988) }]);
}

#[test]
fn a_masters_ups_and_downs_are_events() {
    let mut rig = Rig::new(3, observed);
    events(&mut rig);
    rig.refuse(1, true);
    rig.reset_conn(1);
    rig.run_for(ms(3000));
    let name = || "redis://m1:6379".into();
    let down = events(&mut rig);
    assert_eq!(down, [Event::Disconnected { master: name(), why: "connection reset".into() }], "once");
    let now = rig.now;
    rig.masters[1].restart("other", now);
    rig.refuse(1, false);
    rig.run_for(ms(3000));
    let up = events(&mut rig);
    assert_eq!(
        up[..2],
        [Event::Connected { master: name(), is_reconnect: true }, Event::Restarted { master: name() },]
    );
    assert!(matches!(&up[2..], [Event::Quarantined { master, .. }] if *master == name()), "{up:?}");
}

// I133
#[test]
fn events_that_nobody_fetches_are_bounded() {
    let mut rig = Rig::new(1, observed);
    events(&mut rig);
    let count = limits::EVENT_COUNT_MAX as u64;
    for _ in 0..count {
        let lock = rig.acquire("a", 10_000, 0);
        rig.release(lock, false);
    }
    assert_eq!((stats(&rig).acquired, stats(&rig).events_dropped), (count, count));
    assert_eq!(events(&mut rig).len() as u64, count);
    rig.acquire("a", 10_000, 0);
    assert_eq!((events(&mut rig).len(), stats(&rig).events_dropped), (1, count));
}

// I133
#[test]
fn without_an_observer_there_is_no_event() {
    let mut rig = Rig::new(1, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    rig.release(lock, false);
    rig.reset_conn(0);
    assert_eq!((events(&mut rig), stats(&rig).events_dropped), (vec![], 0));
}

#[test]
fn a_drain_denies_each_waiter_by_an_event() {
    let mut rig = Rig::new(3, |builder| observed(builder).prefix("p:"));
    rig.masters.iter_mut().for_each(|master| master.put(b"p:a", b"other", None));
    for _ in 0..2 {
        rig.acquire("a", 10_000, 60_000);
    }
    events(&mut rig);
    let request = Request::Drain { held: HeldLocks::Leave, limit: ms(1000) };
    rig.engine.submit(rig.now, request).expect("room");
    let denied = events(&mut rig);
    let is_stopped = |event: &Event| matches!(event, Event::Denied { resource, error: AcquireError::Stopped(_) } if resource == "a");
    assert!(denied.len() == 2 && denied.iter().all(is_stopped), "{denied:?}");
}

#[test]
fn never_connected_master_is_an_event() {
    let mut rig = Rig::unconnected(1, observed);
    rig.refuse(0, true);
    rig.pump();
    let name = "redis://m0:6379".into();
    assert_eq!(events(&mut rig), [Event::Disconnected { master: name, why: "connection refused".into() }]);
}
