//! Counters, times and events: a scenario for each, in which only that counter moves.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::engine::{Request, Resource, SubmitError};
use redlatch::stats::Stats;
use redlatch::{Options, limits};

use crate::model::fence_key;
use crate::rig::Rig;
use crate::{defaults, granted, ms};

/// Counters of a scenario; all others are zero.
type Counts = &'static [(&'static str, u64)];

/// A scenario: name, events, and expected counters.
type Row = (&'static str, fn(&mut Rig), Counts);

/// Counters above zero, as Prometheus gets them, summed over all masters.
fn counted(stats: &Stats) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let page = stats.to_prometheus();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let name = name.split('{').next().expect("a name");
        let short = name.strip_prefix("redlatch_").and_then(|name| name.strip_suffix("_total"));
        let Some(short) = short.filter(|short| !short.ends_with("seconds")) else { continue };
        *counts.entry(short.to_owned()).or_default() += value.parse::<u64>().expect("a count");
    }
    counts.retain(|_, count| *count > 0);
    counts
}

/// Counters of acquisitions and locks.
fn lives(stats: &Stats) -> BTreeMap<String, u64> {
    let mut counts = counted(stats);
    counts.retain(|name, _| !name.starts_with("master_") && !name.starts_with("lock_"));
    counts
}

/// Counters of masters.
fn masters(stats: &Stats) -> BTreeMap<String, u64> {
    let mut counts = counted(stats);
    counts.retain(|name, _| name.starts_with("master_"));
    counts
}

pub(crate) fn stats(rig: &Rig) -> Stats {
    rig.engine.stats(rig.now)
}

fn held_by_another(rig: &mut Rig, time: Duration) {
    let until = rig.now + time;
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
}

fn empty_all(rig: &mut Rig) {
    rig.masters.iter_mut().for_each(|master| master.load_keys(Default::default()));
}

fn kept() -> Options {
    Options::new().ttl(ms(10_000)).wait(Duration::ZERO).auto_extend(ms(60_000))
}

const LIVES: &[Row] = &[
    (
        "released",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, true);
            // A second time: nothing is left to release.
            rig.release(lock, true);
        },
        &[("acquired", 1), ("released", 1)],
    ),
    (
        "dropped",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, false);
        },
        &[("acquired", 1), ("released", 1)],
    ),
    (
        "contended",
        |rig| {
            held_by_another(rig, ms(60_000));
            rig.acquire("a", 10_000, 0);
        },
        &[("contended", 1)],
    ),
    (
        "no quorum",
        |rig| {
            (0..2).for_each(|index| drop(rig.masters[index].errors.insert("SET".into(), "OOM x".into())));
            rig.acquire("a", 10_000, 0);
        },
        &[("no_quorum", 1)],
    ),
    (
        "expired",
        |rig| {
            (0..3).for_each(|index| rig.stall_replies(index));
            rig.acquire("a", 40, 0);
            rig.jump(ms(40));
            rig.end_stalls();
        },
        &[("expired", 1)],
    ),
    (
        "abandoned in an attempt",
        |rig| {
            (0..3).for_each(|index| rig.stall_replies(index));
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, false);
            rig.end_stalls();
        },
        &[("abandoned", 1)],
    ),
    (
        "abandoned in a pause",
        |rig| {
            held_by_another(rig, ms(60_000));
            let lock = rig.acquire("a", 10_000, 60_000);
            rig.release(lock, true);
        },
        &[("abandoned", 1)],
    ),
    (
        "abandoned in an attempt before others",
        |rig| {
            (0..3).for_each(|index| rig.stall_replies(index));
            let first = rig.acquire("a", 10_000, 60_000);
            rig.acquire("a", 10_000, 60_000);
            rig.release(first, false);
            rig.end_stalls();
            rig.run_for(ms(100));
        },
        &[("abandoned", 1), ("acquired", 1)],
    ),
    (
        "abandoned in a queue",
        |rig| {
            let held = rig.acquire("a", 10_000, 0);
            let lock = rig.acquire("a", 10_000, 60_000);
            rig.release(lock, false);
            rig.release(held, false);
        },
        &[("acquired", 1), ("abandoned", 1), ("released", 1)],
    ),
    (
        "a query is none of these",
        |rig| {
            let resource = Resource::new("a").expect("valid");
            rig.stall_replies(0);
            let query = rig.engine.submit(rig.now, Request::Inspect { resource }).expect("room");
            rig.release(query, false);
        },
        &[],
    ),
    (
        "released too late",
        |rig| {
            let lock = rig.acquire("a", 1000, 0);
            rig.run_for(ms(988));
            assert_eq!(stats(rig).held(), 1, "nobody has noticed it");
            rig.release(lock, true);
        },
        &[("acquired", 1), ("lost", 1)],
    ),
    (
        "proven lost, then released",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            empty_all(rig);
            rig.extend(lock, 10_000);
            assert_eq!((stats(rig).lost, stats(rig).held()), (1, 0), "at once");
            rig.release(lock, true);
        },
        &[("acquired", 1), ("lost", 1), ("extensions_failed", 1)],
    ),
    (
        "reported as nearly lost",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("taken");
            rig.run_for(ms(9500));
            rig.release(lock, true);
        },
        &[("acquired", 1), ("near_losses", 1), ("released", 1)],
    ),
    (
        "extended in time",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.run_for(ms(5000));
            rig.extend(lock, 10_000);
        },
        &[("acquired", 1), ("extended", 1)],
    ),
    (
        "extended in the last moment",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.run_for(ms(9500));
            rig.extend(lock, 10_000);
        },
        &[("acquired", 1), ("extended", 1), ("near_losses", 1)],
    ),
    (
        "reported as nearly lost, then extended in the last moment, and again",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("taken");
            rig.run_for(ms(9500));
            rig.extend(lock, 10_000);
            assert_eq!(stats(rig).near_losses, 1, "one for both");
            rig.run_for(ms(9500));
            rig.extend(lock, 10_000);
        },
        &[("acquired", 1), ("extended", 2), ("near_losses", 2)],
    ),
    (
        "left to its TTL",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            rig.engine.leave(rig.now, lock).expect("held");
        },
        &[("acquired", 1), ("left", 1)],
    ),
    (
        "left for a time, and released again at last",
        |rig| {
            let lock = rig.acquire("a", 10_000, 0);
            let request = Request::LeaveFor { lock, rest: ms(20_000) };
            rig.engine.submit(rig.now, request).expect("taken");
            rig.pump();
            rig.release(lock, false);
        },
        &[("acquired", 1), ("left", 1)],
    ),
    (
        "renewed, then not",
        |rig| {
            rig.acquire_with("a", kept());
            rig.run_for(ms(4000));
            let errors = |rig: &mut Rig, command: &str| {
                rig.masters.iter_mut().for_each(|it| drop(it.errors.insert(command.into(), "OOM x".into())));
            };
            errors(rig, "EVALSHA");
            let before = stats(rig).extensions_failed;
            while stats(rig).extensions_failed == before {
                rig.run_for(ms(10));
            }
        },
        &[("acquired", 1), ("extended", 1), ("extensions_failed", 1)],
    ),
    (
        "retried",
        |rig| {
            held_by_another(rig, ms(300));
            rig.acquire("a", 10_000, 2000);
            while stats(rig).acquired == 0 {
                rig.run_for(ms(10));
            }
            let attempts = u64::from(granted(rig).attempts);
            assert_eq!(stats(rig).retries, attempts - 1);
            rig.outcomes.clear();
            // Checked here because the number is random.
            let retries = stats(rig).retries;
            assert!((1..100).contains(&retries), "{retries}");
        },
        &[("acquired", 1), ("retries", u64::MAX)],
    ),
    (
        "repeated with a larger fencing token",
        |rig| {
            let fence = rig.masters[0].wall_us(rig.now) + 1_000_000;
            let until = rig.now + ms(60_000);
            rig.masters.iter_mut().for_each(|master| {
                master.put(&fence_key(b"a"), fence.to_string().as_bytes(), Some(until));
            });
            rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(Duration::ZERO).fenced());
            assert_eq!((granted(rig).attempts, stats(rig).retries), (2, 1));
        },
        &[("acquired", 1), ("retries", u64::MAX)],
    ),
    (
        "handed over",
        |rig| {
            let first = rig.acquire("a", 10_000, 0);
            rig.acquire("a", 10_000, 60_000);
            rig.release(first, false);
        },
        &[("acquired", 2), ("released", 1), ("hand_overs", 1)],
    ),
    (
        "repaired",
        |rig| {
            rig.stop_master(2);
            rig.acquire("first", 10_000, 0);
            rig.run_for(ms(100));
            rig.acquire("a", 10_000, 0);
            rig.resume_master(2);
        },
        &[("acquired", 2), ("repairs", 1)],
    ),
    (
        "orphaned",
        |rig| {
            rig.stop_master(2);
            let lock = rig.acquire("a", 1000, 0);
            rig.release(lock, false);
            rig.refuse(2, true);
            rig.reset_conn(2);
            rig.run_for(ms(5000));
            assert_eq!(stats(rig).claims, 0);
        },
        &[("acquired", 1), ("released", 1), ("orphans", 1)],
    ),
    (
        "overloaded",
        |rig| {
            rig.acquire("a", 10_000, 0);
            for _ in 0..limits::QUEUED_COUNT_MAX {
                rig.submit_acquire("a", 10_000, 60_000);
            }
            let resource = Resource::new("a").expect("valid");
            let request =
                Request::Acquire { resource, options: Options::new().wait(ms(60_000)), label: None };
            assert_eq!(rig.engine.submit(rig.now, request), Err(SubmitError::Overloaded));
        },
        &[("acquired", 1), ("overloaded", 1)],
    ),
];

// I131
#[test]
fn each_end_of_a_lock_has_its_counter() {
    for (name, run, expected) in LIVES {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
        run(&mut rig);
        let mut counts = lives(&stats(&rig));
        // The number of retries is random, and checked there.
        counts.entry("retries".to_owned()).and_modify(|count| *count = u64::MAX);
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(counts, expected, "{name}");
    }
}

const MASTERS: &[Row] = &[
    (
        "granted",
        |rig| {
            rig.acquire("a", 10_000, 0);
        },
        &[("master_granted", 3)],
    ),
    (
        "granted to a script",
        |rig| {
            rig.acquire_with("a", Options::new().ttl(ms(10_000)).shared());
        },
        &[("master_granted", 3), ("master_errors", 0)],
    ),
    (
        "granted late",
        |rig| {
            rig.stall_replies(2);
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, false);
            rig.end_stall(2);
        },
        &[("master_granted", 3), ("master_late_grants", 1)],
    ),
    (
        "refused",
        |rig| {
            held_by_another(rig, ms(60_000));
            rig.acquire("a", 10_000, 0);
        },
        &[("master_refused", 3)],
    ),
    (
        "errors",
        |rig| {
            rig.masters[1].errors.insert("SET".into(), "OOM x".into());
            rig.acquire("a", 10_000, 0);
        },
        &[("master_granted", 2), ("master_errors", 1)],
    ),
    (
        "no answer in time",
        |rig| {
            (0..3).for_each(|index| rig.stop_master(index));
            rig.acquire("a", 10_000, 0);
            rig.run_for(ms(60));
        },
        &[("master_unanswered", 3)],
    ),
    (
        "not asked",
        |rig| {
            rig.refuse(2, true);
            rig.reset_conn(2);
            rig.acquire("a", 10_000, 0);
        },
        &[("master_granted", 2), ("master_unanswered", 1)],
    ),
    (
        "connection lost",
        |rig| {
            rig.stall_replies(0);
            rig.stall_replies(1);
            rig.acquire("a", 10_000, 0);
            rig.refuse(0, true);
            rig.reset_conn(0);
            rig.end_stall(1);
        },
        &[("master_granted", 2), ("master_unanswered", 1)],
    ),
    (
        "reconnected",
        |rig| {
            rig.reset_conn(1);
            rig.run_for(ms(100));
        },
        &[("master_reconnects", 1)],
    ),
    (
        "restarted",
        |rig| {
            rig.reset_conn(1);
            let now = rig.now;
            rig.masters[1].restart("other", now);
            rig.run_for(ms(100));
        },
        &[("master_reconnects", 1), ("master_restarts", 1)],
    ),
];

// I131
#[test]
fn each_answer_of_a_master_has_its_counter() {
    for (name, run, expected) in MASTERS {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
        rig.masters.iter_mut().for_each(|master| master.load_scripts());
        run(&mut rig);
        let expected = expected.iter().filter(|(_, count)| *count > 0);
        let expected: BTreeMap<_, _> = expected.map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(masters(&stats(&rig)), expected, "{name}");
    }
}

#[test]
fn a_release_notification_is_counted() {
    let mut rig = Rig::new(3, defaults);
    held_by_another(&mut rig, ms(60_000));
    rig.acquire("a", 10_000, 30_000);
    rig.run_for(ms(200));
    assert_eq!(stats(&rig).notified, 0);
    let resource = Resource::new("a").expect("valid");
    rig.engine.submit(rig.now, Request::ForceUnlock { resource }).expect("room");
    rig.pump();
    assert_eq!(stats(&rig).acquired, 1);
    assert_eq!((stats(&rig).notified, rig.engine.woken_count()), (2, 2), "the messages of a quorum");
}

// I131
#[test]
fn the_time_in_quarantine_counts_until_its_end() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    assert_eq!((stats(&rig).may_fail(), stats(&rig).masters[1].quarantined), (1, Duration::ZERO));
    rig.reset_conn(1);
    let now = rig.now;
    rig.masters[1].restart("other", now);
    rig.run_for(ms(4000));
    let under_way = stats(&rig).masters[1].quarantined;
    assert!((ms(1000)..=ms(4000)).contains(&under_way), "{under_way:?}");
    assert_eq!((stats(&rig).may_fail(), stats(&rig).masters[1].is_ready), (0, false));
    // After a reconnect it is in the same quarantine.
    rig.reset_conn(1);
    rig.run_for(ms(20_000));
    let whole = stats(&rig).masters[1].quarantined;
    assert!((ms(9000)..=ms(10_200)).contains(&whole), "{whole:?}");
    rig.run_for(ms(20_000));
    rig.acquire("a", 1000, 0);
    rig.run_for(ms(20_000));
    assert_eq!(stats(&rig).masters[1].quarantined, whole, "it is over");
    assert_eq!(stats(&rig).since(&stats(&rig)).masters[1].quarantined, Duration::ZERO);
    assert_eq!((stats(&rig).may_fail(), stats(&rig).masters[1].is_ready), (1, true));
}

// I132
#[test]
fn acquisitions_waits_and_holds_are_timed() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(100)));
    (0..3).for_each(|index| rig.stall_replies(index));
    let lock = rig.acquire("a", 10_000, 0);
    rig.run_for(ms(7));
    rig.end_stalls();
    rig.run_for(ms(500));
    rig.release(lock, false);
    let at_first = stats(&rig);
    assert_eq!(at_first.acquire_time.sum(), ms(7));
    assert_eq!((at_first.hold_time.sum(), at_first.hold_time.max()), (ms(507), ms(507)));
    assert_eq!((at_first.acquire_time.count(), at_first.hold_time.count()), (1, 1));
    assert_eq!(at_first.wait_time.count(), 0, "it did not wait");
    for master in &at_first.masters {
        assert_eq!((master.round_trip.count(), master.round_trip.sum()), (1, ms(7)));
    }
    // Behind another caller of the same engine.
    let first = rig.acquire("a", 10_000, 0);
    let second = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(300));
    rig.release(first, false);
    rig.release(second, false);
    let since = stats(&rig).since(&at_first);
    assert_eq!((since.acquired, since.wait_time.count()), (2, 1));
    assert_eq!((since.wait_time.sum(), since.acquire_time.sum()), (ms(300), ms(300)));
    assert_eq!(since.hold_time.count(), 2);
    // A wait without success is a wait, too.
    held_by_another(&mut rig, ms(60_000));
    rig.acquire("a", 10_000, 100);
    rig.run_for(ms(200));
    let last = stats(&rig).since(&at_first);
    assert_eq!((last.contended, last.wait_time.count(), last.acquire_time.count()), (1, 2, 2));
    rig.acquire("a", 10_000, 0);
    let last = stats(&rig).since(&at_first);
    assert_eq!((last.contended, last.wait_time.count()), (2, 2), "one attempt is no wait");
}

// I132
#[test]
fn of_many_acquisitions_a_share_is_timed() {
    let mut rig = Rig::new(3, defaults);
    let pairs = |rig: &mut Rig, count: u32, pause: Duration| {
        let before = stats(rig);
        for _ in 0..count {
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, false);
            rig.now += pause;
        }
        stats(rig).since(&before)
    };
    let slow = pairs(&mut rig, 100, limits::TIMED_PAUSE);
    assert_eq!((slow.acquired, slow.acquire_time.count(), slow.hold_time.count()), (100, 100, 100));
    let few = pairs(&mut rig, limits::TIMED_SHARE, Duration::ZERO);
    assert_eq!(few.acquire_time.count(), few.acquired, "all of a few that come at once");
    let fast = pairs(&mut rig, 100 * limits::TIMED_SHARE, limits::TIMED_PAUSE / 100);
    let timed = fast.acquire_time.count();
    assert!((95..=105).contains(&timed), "{timed} of {}", fast.acquired);
    assert_eq!(fast.hold_time.count(), timed);
    // A waiter is timed for another reason, whether or not it is in the sample.
    let before = stats(&rig);
    for _ in 0..10 * limits::TIMED_SHARE {
        let locks = [rig.acquire("a", 10_000, 0), rig.acquire("a", 10_000, 60_000)];
        locks.into_iter().for_each(|lock| rig.release(lock, false));
    }
    let waited = stats(&rig).since(&before);
    assert!(waited.acquire_time.count() < waited.acquired / 2, "{waited:?}");
    assert_eq!(waited.hold_time.count(), waited.acquire_time.count());
    let pauses = (limits::TIMED_PAUSE * limits::TIMED_SHARE).div_duration_f64(limits::ROUND_TRIP_PAUSE);
    let sampled = Duration::from_secs(fast.masters[0].round_trip.count());
    assert!(sampled >= Duration::from_secs(1) && sampled.as_secs_f64() <= pauses + 1.0, "{sampled:?}");
    let slow = pairs(&mut rig, 100, limits::TIMED_PAUSE);
    assert!(slow.acquire_time.count() >= 100 - u64::from(limits::TIMED_SHARE), "{slow:?}");
}

/// The caller waits behind its own client's holder, in pauses, or in the masters' queues.
#[test]
fn each_wait_is_timed_though_few_acquisitions_are() {
    for (is_own, is_woken) in [(true, true), (false, false), (false, true)] {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(is_woken));
        for _ in 0..limits::TIMED_SHARE * 3 / 2 {
            let lock = rig.acquire("a", 10_000, 0);
            rig.release(lock, false);
        }
        let before = stats(&rig);
        let holder = is_own.then(|| rig.acquire("a", 10_000, 0));
        if !is_own {
            held_by_another(&mut rig, ms(300));
        }
        rig.acquire("a", 10_000, 60_000);
        rig.run_for(ms(200));
        holder.into_iter().for_each(|lock| rig.release(lock, false));
        rig.run_for(ms(2000));
        let since = stats(&rig).since(&before);
        let expected = (1 + u64::from(is_own), 0, 1);
        let counts = (since.acquired, since.acquire_time.count(), since.wait_time.count());
        assert_eq!(counts, expected, "own: {is_own}, woken: {is_woken}");
    }
}

#[test]
fn a_page_for_prometheus_shows_no_login() {
    let urls = vec!["redis://me:s3cret@host-a:7000".to_owned(), "redis://:s3cret@[::1]:7001/2".to_owned()];
    let rig = Rig::with_urls(urls, defaults);
    let page = stats(&rig).to_prometheus();
    assert!(!page.contains("s3cret") && !page.contains("me:"), "{page}");
    assert!(page.contains("redlatch_master_ready{master=\"redis://host-a:7000\"} 0\n"), "{page}");
}
