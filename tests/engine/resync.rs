//! Former replicas, whose memory a full resync replaced without a new `run_id`; and masters that name another
//! server as the master.

use std::time::Duration;

use redlatch::engine::{HandleAct, Request};
use redlatch::error::Vote;
use redlatch::status::{MasterState, Warning};
use redlatch::{ConfigBuilder, Event, Options, Quarantine, limits};

use crate::model::Keys;
use crate::parked::{OTHER, free, with_other};
use crate::rig::{Rig, id};
use crate::{defaults, granted, ms, no_quorum};

const MARK: &[u8] = b"p:redlatch:mark";

/// The quarantine of a `max_ttl` of 10 s: 1 % and 2 ms more.
const WATCH: Duration = ms(10_102);

/// Time after which an open connection asks again.
const FACTS_PAUSE: Duration = ms(60_000);

const READONLY: &str = "READONLY You can't write against a read only replica.";

fn mode(mode: Quarantine) -> impl Fn(ConfigBuilder) -> ConfigBuilder {
    move |builder| builder.max_ttl(ms(10_000)).prefix("p:").quarantine(mode)
}

fn observed(builder: ConfigBuilder) -> ConfigBuilder {
    mode(Quarantine::Uptime)(builder).on_event(|_| unreachable!("an engine calls none"))
}

fn state(rig: &Rig, index: usize) -> MasterState {
    rig.engine.master_status(rig.now, id(index)).state
}

/// Remaining quarantine of the only master.
#[track_caller]
fn left(rig: &Rig) -> Duration {
    match state(rig, 0) {
        MasterState::Ready => Duration::ZERO,
        MasterState::Quarantined(left) => left,
        other => panic!("{other:?}"),
    }
}

fn mark(rig: &Rig) -> String {
    String::from_utf8_lossy(rig.masters[0].value(rig.now, MARK).unwrap_or_default()).into_owned()
}

fn restarts(rig: &Rig) -> u64 {
    rig.engine.stats(rig.now).restarts()
}

fn handshakes(rig: &Rig) -> usize {
    rig.masters[0].log.iter().filter(|args| args[0] == b"ECHO").count()
}

fn events(rig: &mut Rig) -> Vec<Event> {
    std::iter::from_fn(|| rig.engine.poll_event()).collect()
}

/// The connection breaks, the master changes, and the client reconnects.
fn reconnect_after(rig: &mut Rig, change: impl FnOnce(&mut Rig)) {
    rig.refuse(0, true);
    rig.reset_conn(0);
    change(rig);
    rig.refuse(0, false);
    rig.run_for(limits::BACKOFF_MAX);
}

/// A new client of the same master, which it takes from the other client.
fn next_client(rig: &mut Rig, settings: impl Fn(ConfigBuilder) -> ConfigBuilder) -> Rig {
    let mut next = Rig::unconnected(1, settings);
    std::mem::swap(&mut next.masters, &mut rig.masters);
    next.jump(rig.now.saturating_duration_since(next.now));
    next.pump();
    next
}

/// A client in this mode that counts the only master.
fn counting(settings: impl Fn(ConfigBuilder) -> ConfigBuilder) -> Rig {
    let mut rig = Rig::new(1, settings);
    rig.run_for(WATCH);
    assert_eq!(left(&rig), Duration::ZERO);
    rig
}

// ---- evidence ----

// I37
#[test]
fn a_resynced_process_counts_as_another_one() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict, Quarantine::Trust] {
        let mut rig = counting(|builder| mode(quarantine)(builder).on_event(|_| {}));
        reconnect_after(&mut rig, |rig| rig.masters[0].resync(Keys::new()));
        let is_trusted = quarantine == Quarantine::Trust;
        assert_eq!(left(&rig) > WATCH - limits::BACKOFF_MAX, !is_trusted, "{quarantine:?}");
        assert_eq!(restarts(&rig), 1, "{quarantine:?}");
        assert!(events(&mut rig).iter().any(|it| matches!(it, Event::Restarted { .. })), "{quarantine:?}");
        // The same evidence a second time is nothing new.
        let end = rig.now + left(&rig);
        reconnect_after(&mut rig, |_| {});
        assert_eq!(restarts(&rig), 1, "{quarantine:?}");
        rig.run_for(end.saturating_duration_since(rig.now));
        assert_eq!(left(&rig), Duration::ZERO, "{quarantine:?}");
        // Another promotion is new evidence, also after the same master and at the same offset.
        reconnect_after(&mut rig, |rig| rig.masters[0].resync(Keys::new()));
        assert_eq!(restarts(&rig), 2, "{quarantine:?}");
    }
}

// I37
#[test]
fn a_new_replication_id_is_no_evidence() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        let mut rig = counting(mode(quarantine));
        reconnect_after(&mut rig, |rig| rig.masters[0].forget_promotion());
        assert_eq!((left(&rig), restarts(&rig)), (Duration::ZERO, 0), "{quarantine:?}");
        rig.masters[0].forget_promotion();
        rig.run_for(FACTS_PAUSE);
        assert_eq!((left(&rig), handshakes(&rig)), (Duration::ZERO, 2), "{quarantine:?}");
        let next = next_client(&mut rig, mode(quarantine));
        assert_eq!(left(&next), Duration::ZERO, "{quarantine:?}");
    }
}

// I37
#[test]
fn an_expired_backlog_quarantines_nobody() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        let mut rig = counting(mode(quarantine));
        reconnect_after(&mut rig, |rig| rig.masters[0].resync(Keys::new()));
        rig.run_for(WATCH);
        assert_eq!(left(&rig), Duration::ZERO, "{quarantine:?}");
        reconnect_after(&mut rig, |rig| rig.masters[0].forget_promotion());
        assert_eq!((left(&rig), restarts(&rig)), (Duration::ZERO, 1), "{quarantine:?}");
        let next = next_client(&mut rig, mode(quarantine));
        assert_eq!(left(&next), Duration::ZERO, "{quarantine:?}");
    }
}

/// Redis 7 keeps a snapshot's offset.
// I37
#[test]
fn a_restart_with_an_offset_costs_one_quarantine() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        let mut rig = counting(mode(quarantine));
        reconnect_after(&mut rig, |rig| {
            rig.masters[0].restart_from_snapshot("run0b", rig.now);
            rig.masters[0].second_offset = 5;
        });
        let next = next_client(&mut rig, mode(quarantine));
        rig.masters = next.masters;
        assert!(left(&rig) > WATCH - limits::BACKOFF_MAX, "{quarantine:?}");
        rig.run_for(WATCH);
        reconnect_after(&mut rig, |_| {});
        assert_eq!((left(&rig), restarts(&rig)), (Duration::ZERO, 1), "{quarantine:?}");
        let next = next_client(&mut rig, mode(quarantine));
        assert_eq!(left(&next), Duration::ZERO, "{quarantine:?}");
    }
}

// ---- the mark ----

// I37
#[test]
fn later_clients_count_from_the_first_sight() {
    let uptime = mode(Quarantine::Uptime);
    let mut rig = Rig::unconnected(1, &uptime);
    rig.masters[0].resync(Keys::new());
    rig.pump();
    assert_eq!(left(&rig), WATCH, "its hour of uptime proves nothing");
    let first = mark(&rig);
    assert!(first.starts_with("run0 ") && first.ends_with(" 3600000000 0"), "{first}");
    rig.jump(ms(5000));
    let mut second = next_client(&mut rig, &uptime);
    assert!(left(&second) <= WATCH - ms(5000) && left(&second) > WATCH - ms(6000), "{:?}", left(&second));
    assert_eq!(mark(&second), first);
    // In strict mode, each client watches by itself, and then says so.
    let mut strict = next_client(&mut second, mode(Quarantine::Strict));
    assert_eq!((left(&strict), mark(&strict)), (WATCH, first.clone()));
    strict.run_for(WATCH);
    assert_eq!(mark(&strict), format!("{}10102", first.strip_suffix('0').expect("no watch")));
    let mut third = next_client(&mut strict, &uptime);
    assert_eq!(left(&third), Duration::ZERO);
    assert_eq!(left(&next_client(&mut third, mode(Quarantine::Strict))), Duration::ZERO);
}

#[test]
fn mark_with_a_future_uptime_is_replaced() {
    let uptime = mode(Quarantine::Uptime);
    let mut rig = Rig::unconnected(1, &uptime);
    rig.masters[0].resync(Keys::new());
    rig.pump();
    let later = mark(&rig).replace(" 3600", " 3700");
    rig.masters[0].put(MARK, later.as_bytes(), None);
    let next = next_client(&mut rig, &uptime);
    assert_eq!(left(&next), WATCH);
    assert!(mark(&next).contains(" 3600"), "{}", mark(&next));
}

// I29
#[test]
fn a_mark_that_came_meanwhile_is_not_overwritten() {
    let mut rig = Rig::unconnected(1, mode(Quarantine::Uptime));
    rig.masters[0].resync(Keys::new());
    rig.masters[0].put(MARK, b"run9 - - 1", None);
    rig.stall_replies(0);
    rig.pump();
    rig.masters[0].put(MARK, b"run0 - 17 4", None);
    rig.end_stall(0);
    assert_eq!(mark(&rig), "run0 - 17 4");
}

#[test]
fn foreign_key_at_the_mark_is_kept() {
    let mut rig = Rig::unconnected(1, mode(Quarantine::Uptime));
    rig.masters[0].resync(Keys::new());
    rig.masters[0].put(MARK, b"theirs", None);
    rig.pump();
    assert_eq!((left(&rig), mark(&rig).as_str()), (WATCH, "theirs"));
    let refused = rig.engine.master_status(rig.now, id(0)).refused;
    assert!(refused.iter().any(|(_, text)| text.contains("is no mark")), "{refused:?}");
}

// I37
#[test]
fn a_failover_and_back_ends_a_declaration() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        let settings = mode(quarantine);
        let mut first = Rig::new(1, mode(Quarantine::Trust));
        let record = first.masters[0].value(first.now, b"p:redlatch:fleet").expect("a record").to_vec();
        let new = [&record, b" new=run0".as_slice()].concat();
        first.masters[0].put(b"p:redlatch:fleet", &new, None);
        first.masters[0].started = first.now;
        let mut declared = next_client(&mut first, &settings);
        assert_eq!(left(&declared), Duration::ZERO, "{quarantine:?}");
        let keys = declared.masters[0].keys().clone();
        declared.masters[0].resync(keys);
        let next = next_client(&mut declared, &settings);
        assert_eq!(left(&next), WATCH, "{quarantine:?}");
    }
}

#[test]
fn a_watched_process_that_joins_is_watched_anew() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict, Quarantine::Trust] {
        let mut rig = counting(mode(quarantine));
        let label = "0123456789abcdef";
        let settings = "observed max_ttl_ms=10000 drift_ppm=10000";
        let joining = format!("redlatch:fleet:1 {settings} own={label} of={label}-{label} joining");
        reconnect_after(&mut rig, |rig| rig.masters[0].put(b"p:redlatch:fleet", joining.as_bytes(), None));
        assert!(left(&rig) > WATCH - limits::BACKOFF_MAX, "{quarantine:?}");
        assert_eq!(restarts(&rig), 0, "{quarantine:?}");
    }
}

// ---- connections that stand ----

// I38
#[test]
fn evicting_policy_is_noticed_within_a_minute() {
    let mut rig = counting(mode(Quarantine::Strict));
    rig.masters[0].maxmemory_policy = "allkeys-lru".into();
    rig.run_for(FACTS_PAUSE);
    let MasterState::Down(why) = state(&rig, 0) else { panic!("{:?}", state(&rig, 0)) };
    assert!(why.contains("allkeys-lru"), "{why}");
    rig.masters[0].maxmemory_policy = "noeviction".into();
    rig.run_for(limits::BACKOFF_MAX);
    assert!(left(&rig) > WATCH - limits::BACKOFF_MAX, "it is watched anew");
    // In other modes it is only a warning.
    let mut rig = counting(mode(Quarantine::Uptime));
    rig.masters[0].maxmemory_policy = "allkeys-lru".into();
    rig.run_for(FACTS_PAUSE);
    let warnings = rig.engine.master_status(rig.now, id(0)).warnings;
    assert_eq!(warnings, [Warning::Evicting { policy: "allkeys-lru".into() }]);
}

// I38
#[test]
fn vote_after_a_pause_follows_the_facts() {
    let mut rig = counting(mode(Quarantine::Uptime));
    rig.masters[0].resync(Keys::new());
    rig.jump(FACTS_PAUSE);
    rig.acquire("a", 1000, 0);
    no_quorum(&mut rig);
    assert_eq!(rig.holder_count("p:a"), 1, "it was granted there");
}

/// A client whose process pauses for a minute. Another client holds the lock before, and all masters lose it.
fn paused(wakes_waiters: bool, ttl_ms: u64, before: impl FnOnce(&mut Rig, Options)) -> Rig {
    let settings = |builder: ConfigBuilder| builder.max_ttl(ms(600_000)).wake_waiters(wakes_waiters);
    let mut rig = Rig::new(3, settings);
    let until = rig.now + ms(600_000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", OTHER, Some(until)));
    before(&mut rig, Options::new().ttl(ms(ttl_ms)).wait(ms(500_000)));
    rig.outcomes.clear();
    for master in &mut rig.masters {
        master.resync(Keys::new());
        master.take_log();
    }
    rig.jump(FACTS_PAUSE);
    rig
}

/// The masters get the question before any attempt, and nobody gets the lock.
#[track_caller]
fn assert_asked_first(mut rig: Rig) {
    rig.pump();
    for master in &mut rig.masters {
        let log = master.take_log();
        assert_eq!(log.first().map(String::as_str), Some("INFO"), "{log:?}");
    }
    rig.run_for(ms(1000));
    let has_lock = |rig: &mut Rig| {
        std::iter::from_fn(|| rig.outcome()).any(|it| matches!(it, redlatch::engine::Outcome::Acquire(Ok(_))))
    };
    assert!(!has_lock(&mut rig));
}

// I38
#[test]
fn a_waiter_asks_for_facts_after_a_pause() {
    // The waiter polls, or stands in the queue, where it would be granted the lock or rung.
    for (wakes_waiters, ttl_ms) in [(false, 300_000), (true, 9_000), (true, 300_000)] {
        assert_asked_first(paused(wakes_waiters, ttl_ms, |rig, options| {
            rig.acquire_with("a", options);
            rig.run_for(ms(100));
        }));
    }
}

#[test]
fn a_park_behind_a_late_refusal_follows_facts() {
    let mut rig = paused(true, 300_000, |rig, options| {
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.acquire_with("a", options);
    });
    rig.end_stalls();
    assert_asked_first(rig);
}

#[test]
fn park_at_resumed_master_follows_facts() {
    let mut rig = paused(true, 300_000, |rig, options| {
        rig.stall_replies(0);
        rig.acquire_with("a", options);
        rig.run_for(ms(2000));
    });
    rig.end_stall(0);
    let log = rig.masters[0].take_log();
    assert_eq!(log.first().map(String::as_str), Some("INFO"), "{log:?}");
}

// I38
#[test]
fn busy_client_asks_facts_after_a_pause() {
    let mut rig = paused(true, 300_000, |rig, _| {
        for _ in 0..1000 {
            let lock = rig.acquire("b", 1000, 0);
            rig.release(lock, false);
            rig.jump(Duration::from_micros(10));
        }
    });
    rig.submit_acquire("a", 300_000, 0);
    assert_asked_first(rig);
}

// I38
#[test]
fn adoption_after_a_pause_follows_facts() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(600_000)));
    let lock = rig.acquire("a", 300_000, 0);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    rig.jump(FACTS_PAUSE);
    let handle = rig.engine.pass(rig.now, ms(1_700_000_000_000), lock, ms(300_000)).expect("it is held");
    let act = HandleAct::Adopt { auto_extend: None };
    rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).expect("room");
    rig.pump();
    for master in &mut rig.masters {
        let log = master.take_log();
        assert_eq!(log.first().map(String::as_str), Some("INFO"), "{log:?}");
    }
}

#[test]
fn a_question_without_room_comes_a_second_later() {
    let mut rig = Rig::new(3, mode(Quarantine::Uptime));
    rig.run_for(FACTS_PAUSE - ms(5));
    rig.masters[0].resync(Keys::new());
    fill_outbox(&mut rig, 0);
    rig.jump(ms(6));
    rig.engine.handle_timeout(rig.now);
    rig.run_for(ms(1100) + limits::BACKOFF_MAX);
    assert!(left(&rig) > Duration::ZERO);
}

/// Fills the outbox of a master that carries out nothing.
pub(crate) fn fill_outbox(rig: &mut Rig, index: usize) {
    let room = |rig: &mut Rig| limits::OUTBOX_SIZE_MAX - rig.engine.send_ready(id(index)).len();
    let (mut place, before) = (0, room(rig));
    let mut put = |rig: &mut Rig, size: usize| {
        place += 1;
        rig.submit_acquire(&format!("{place:0>size$}"), 1000, 0);
    };
    put(rig, 1000);
    let head = before - room(rig) - 1000;
    while room(rig) >= 2 * (1000 + head) {
        put(rig, 1000);
    }
    let half = room(rig) / 2;
    put(rig, half - head);
    let rest = room(rig);
    put(rig, rest - head);
    assert!(room(rig) < 10, "no command fits");
}

#[test]
fn busy_master_is_asked_a_second_later() {
    let mut rig = counting(mode(Quarantine::Uptime));
    rig.masters[0].resync(Keys::new());
    rig.masters[0].errors.insert("INFO".into(), "BUSY Redis is busy running a script.".into());
    rig.run_for(FACTS_PAUSE - WATCH);
    rig.masters[0].errors.clear();
    rig.run_for(ms(1100) + limits::BACKOFF_MAX);
    assert!(left(&rig) > Duration::ZERO);
}

/// The client could not notice a resync any more.
#[test]
fn strict_mode_disconnects_masters_without_info() {
    for quarantine in [Quarantine::Strict, Quarantine::Uptime] {
        let mut rig = counting(mode(quarantine));
        rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into());
        rig.run_for(FACTS_PAUSE);
        let is_left = matches!(state(&rig, 0), MasterState::Down(_));
        assert_eq!(is_left, quarantine == Quarantine::Strict, "{:?}", state(&rig, 0));
    }
}

/// Its next connection shows nothing, because its promotion is forgotten.
// I38
#[test]
fn a_known_replica_is_watched_anew() {
    for by_facts in [false, true] {
        let mut rig = counting(mode(Quarantine::Uptime));
        reconnect_after(&mut rig, |_| {});
        rig.refuse(0, true);
        if by_facts {
            rig.masters[0].role = "slave".into();
            rig.run_for(FACTS_PAUSE);
            rig.masters[0].role = "master".into();
        } else {
            rig.masters[0].errors.insert("SET p:a".into(), READONLY.into());
            rig.acquire("a", 1000, 0);
            rig.masters[0].errors.clear();
        }
        rig.masters[0].load_keys(Keys::new());
        rig.masters[0].forget_promotion();
        rig.refuse(0, false);
        rig.run_for(limits::BACKOFF_MAX);
        assert!(left(&rig) > Duration::ZERO, "{by_facts}");
    }
}

#[test]
fn forbidden_facts_are_not_asked_again() {
    let mut rig = Rig::unconnected(1, mode(Quarantine::Uptime));
    rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into());
    rig.pump();
    let asked = |rig: &Rig| rig.masters[0].log.iter().filter(|args| args[0] == b"INFO").count();
    rig.run_for(FACTS_PAUSE * 2);
    assert_eq!(asked(&rig), 3);
}

// ---- another server is the master now ----

// I39
#[test]
fn burst_of_replica_errors_disconnects_once() {
    for error in [
        READONLY,
        "MOVED 3999 127.0.0.1:6381",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "REDIRECT 127.0.0.1:6381",
    ] {
        let mut rig = Rig::new(3, observed);
        events(&mut rig);
        for index in 0..3 {
            rig.masters[index].errors.insert("SET p:a".into(), error.into());
            rig.masters[index].errors.insert("SET p:b".into(), error.into());
        }
        rig.submit_acquire("a", 1000, 0);
        rig.submit_acquire("b", 1000, 0);
        rig.pump();
        let denial = no_quorum(&mut rig);
        let is_said = |vote: &Vote| matches!(vote, Vote::Failed(why) if why.to_string().contains(error));
        assert_eq!(denial.report.votes.iter().filter(|(_, vote)| is_said(vote)).count(), 2, "{denial}");
        no_quorum(&mut rig);
        assert!(!rig.engine.health(rig.now).has_quorum);
        let seen = events(&mut rig);
        let ends = seen.iter().filter(|it| matches!(it, Event::Disconnected { .. })).count();
        assert_eq!(ends, 3, "{seen:?}");
        let MasterState::Down(why) = state(&rig, 0) else { panic!("{:?}", state(&rig, 0)) };
        assert!(why.contains(error), "{why}");
        rig.masters.iter_mut().for_each(|master| master.errors.clear());
        rig.run_for(limits::BACKOFF_MAX);
        assert_eq!(handshakes(&rig), 2, "{error}");
        // A replica's memory may come from another server.
        assert_eq!(left(&rig) > Duration::ZERO, error == READONLY, "{error}");
        rig.run_for(left(&rig) + ms(1));
        rig.acquire("a", 1000, 0);
        granted(&mut rig);
    }
}

// I39
#[test]
fn a_demoted_masters_earlier_grant_is_void() {
    let mut rig = Rig::new(3, mode(Quarantine::Uptime));
    // The first master grants, and then says that it is a replica. The others have not answered.
    rig.stall_replies(1);
    rig.stall_replies(2);
    rig.submit_acquire("a", 1000, 0);
    rig.pump();
    rig.masters[0].errors.insert("SET p:b".into(), READONLY.into());
    rig.refuse(0, true);
    rig.acquire("b", 1000, 0);
    rig.refuse(2, true);
    rig.reset_conn(2);
    rig.end_stall(1);
    no_quorum(&mut rig);
}

// I39
#[test]
fn votes_pushed_by_a_demoted_master_are_void() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)));
    rig.run_for(ms(100));
    rig.stop_master(1);
    rig.stop_master(2);
    free(&mut rig, 0);
    rig.pump();
    rig.masters[0].errors.insert("SET b".into(), READONLY.into());
    rig.refuse(0, true);
    rig.acquire("b", 1000, 0);
    free(&mut rig, 1);
    rig.resume_master(1);
    let has_lock = |rig: &mut Rig| {
        std::iter::from_fn(|| rig.outcome()).any(|it| matches!(it, redlatch::engine::Outcome::Acquire(Ok(_))))
    };
    assert!(!has_lock(&mut rig), "one of three has granted it over a connection that stands");
}

// I39
#[test]
fn a_replica_is_not_ready_and_asked_quietly() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict, Quarantine::Trust] {
        let mut rig = counting(|builder| mode(quarantine)(builder).on_event(|_| {}));
        events(&mut rig);
        rig.masters[0].role = "slave".into();
        rig.reset_conn(0);
        rig.run_for(ms(60_000));
        let MasterState::Down(why) = state(&rig, 0) else { panic!("{:?}", state(&rig, 0)) };
        assert_eq!(&*why, "it is a replica; list its master instead");
        let (asked, events) = (handshakes(&rig), events(&mut rig));
        assert!((25..100).contains(&asked), "{asked}");
        let is_loud = |event: &&Event| !matches!(event, Event::Restarted { .. });
        assert_eq!(events.iter().filter(is_loud).count(), 2, "lost, and refused: {events:?}");
        assert_eq!(restarts(&rig), 1);
        // One failover counts as one restart.
        rig.masters[0].promote();
        rig.run_for(limits::BACKOFF_MAX);
        let is_trusted = quarantine == Quarantine::Trust;
        assert_eq!(left(&rig) > WATCH - limits::BACKOFF_MAX, !is_trusted, "{quarantine:?}");
        assert_eq!(restarts(&rig), 1);
    }
}

// I39
#[test]
fn name_of_a_refusing_master_is_resolved_again() {
    for error in ["NOREPLICAS Not enough good replicas to write.", "MISCONF Redis is configured to save"] {
        let mut rig = Rig::new(1, mode(Quarantine::Uptime));
        rig.masters[0].errors.insert("SET".into(), error.into());
        for _ in 0..60 {
            rig.acquire("a", 1000, 0);
            no_quorum(&mut rig);
            rig.run_for(ms(200));
        }
        assert_eq!((rig.looked_up.len(), handshakes(&rig)), (3, 1), "in 12 s: {error}");
    }
}
