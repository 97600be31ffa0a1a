//! For whom callers waited, and how long, in guards, refusals and statistics.

use std::time::Duration;

use redlatch::engine::{HolderLabel, OpId, Request, Resource};
use redlatch::error::{Denial, HeldBy};
use redlatch::{AcquireError, Event, Options, Waited};

use crate::model::{fence_key, queue_key};
use crate::rig::Rig;
use crate::{defaults, denied, granted, ms};

const KEY: &[u8] = b"a";
/// Another client's connection number at a model master.
const OTHER_CONN: usize = 1000;
/// Longest time between two reports: a heartbeat.
const BEAT: Duration = ms(1000);

/// Another client gets the lock, with a value that has this label or none.
fn hold_by_other(rig: &mut Rig, label: &str) {
    let value = [b"another-clients-tok!".as_slice(), label.as_bytes()].concat();
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(KEY, &value, Some(until)));
}

/// The other client releases the lock, and the masters serve.
fn free(rig: &mut Rig) {
    let now = rig.now;
    for master in &mut rig.masters {
        master.carry_out_over(OTHER_CONN, now, &[b"DEL", KEY], &mut Vec::new());
        let serve = redlatch::scripts::SCRIPTS.iter().find(|script| script.name == "serve").expect("one");
        let words: [&[u8]; 6] = [b"EVAL", serve.text.as_bytes(), b"3", KEY, &queue_key(KEY), &fence_key(KEY)];
        master.carry_out_over(OTHER_CONN, now, &words, &mut Vec::new());
    }
    rig.pump();
}

/// Options of each mode and waiting policy.
fn kinds() -> [(&'static str, Options); 4] {
    let options = Options::new().ttl(ms(10_000));
    [("plain", options), ("fenced", options.fenced()), ("shared", options.shared()), ("fair", options.fair())]
}

#[track_caller]
fn contended(rig: &mut Rig) -> Denial {
    match denied(rig) {
        AcquireError::Contended(denial) => *denial,
        other => panic!("{other}"),
    }
}

/// Label and time of the last holder.
fn holder(waited: &Waited) -> Option<(&str, Duration)> {
    waited.holder.as_ref().map(|it| (it.label.as_deref().unwrap_or("unknown"), it.time))
}

#[track_caller]
fn assert_near(time: Duration, expected: Duration, error: Duration, what: &str) {
    let is_near = time <= expected + error && time + error >= expected;
    assert!(is_near, "{what}: {time:?} instead of {expected:?}");
}

/// The wait of a lock that the first attempt acquired.
fn no_wait() -> Waited {
    let mut waited = Waited::default();
    waited.attempts = 1;
    waited
}

fn acquire_labelled(rig: &mut Rig, label: &str, options: Options) -> OpId {
    let resource = Resource::new("a").expect("a name");
    let label = Some(HolderLabel::new(label).expect("a valid label"));
    let lock = rig.engine.submit(rig.now, Request::Acquire { resource, options, label }).expect("room");
    rig.pump();
    lock
}

#[test]
fn a_refusal_names_the_holder_in_each_mode() {
    for (kind, options) in kinds() {
        for wait in [Duration::ZERO, ms(5500)] {
            let mut rig = Rig::new(3, defaults);
            hold_by_other(&mut rig, "\tworker");
            rig.acquire_with("a", options.wait(wait));
            rig.run_for(ms(6000));
            let denial = contended(&mut rig);
            assert_eq!(denial.holder_label.as_deref(), Some("worker"), "{kind} {wait:?}");
            let Waited { total, attempts, .. } = denial.waited;
            assert_eq!((total, attempts), (denial.took, denial.attempts), "{kind}");
            assert_eq!(holder(&denial.waited), Some(("worker", wait)), "{kind}: it was there all the time");
            assert_eq!(denial.waited.queued, wait, "{kind}: in the masters' queues");
            let text = denial.to_string();
            assert_eq!(text.contains("in 5.5s, behind worker (5.5s): "), !wait.is_zero(), "{text}");
            assert!(format!("{denial:#}").starts_with(text.split(": ").next().expect("a part")));
        }
    }
}

#[test]
fn refused_attempt_reads_labels_only_if_permitted() {
    for (kind, options) in kinds() {
        let mut rig = Rig::new(3, |builder| builder.ask_holder(false));
        hold_by_other(&mut rig, "\tworker");
        rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
        rig.acquire_with("a", options.wait(Duration::ZERO));
        let denial = contended(&mut rig);
        let is_named = kind == "fair";
        assert_eq!(denial.holder_label.is_some(), is_named, "{kind}: the queue names it");
        assert_eq!(denial.waited.holder.is_some(), is_named, "{kind}");
        assert!(!rig.masters[0].take_log().contains(&"GETRANGE".to_owned()), "{kind}");
    }
}

#[test]
fn a_wait_names_the_last_holder() {
    for (kind, options) in kinds() {
        let mut rig = Rig::new(3, defaults);
        hold_by_other(&mut rig, "\tweb-3");
        let lock = rig.acquire_with("a", options.wait(ms(60_000)));
        rig.run_for(ms(3500));
        hold_by_other(&mut rig, "\tweb-7");
        rig.run_for(ms(4500));
        assert!(rig.outcome().is_none(), "{kind}");
        free(&mut rig);
        let grant = granted(&mut rig);
        let waited = rig.engine.waited(lock).expect("it is held");
        assert_eq!((waited.total, waited.queued, waited.attempts), (ms(8000), ms(8000), grant.attempts));
        let (last, time) = holder(&waited).expect("it was reported");
        assert_eq!(last, "web-7", "{kind}");
        assert_near(time, ms(4500), BEAT, kind);
        // The value stays as it was at the grant.
        rig.run_for(ms(1000));
        assert_eq!(rig.engine.waited(lock), Some(waited), "{kind}");
        rig.release(lock, false);
        assert_eq!(rig.engine.waited(lock), None, "{kind}");
    }
}

#[test]
fn an_acquired_event_names_the_last_holder() {
    let mut rig = Rig::new(3, |builder| builder.on_event(|_| {}));
    hold_by_other(&mut rig, "\tweb-3");
    rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(3500));
    free(&mut rig);
    granted(&mut rig);
    let last = std::iter::from_fn(|| rig.engine.poll_event()).last().expect("an event");
    let Event::Acquired { holder: Some(holder), .. } = last else { panic!("{last:?}") };
    assert_eq!(holder.to_string(), "web-3 (3.5s)");
}

#[test]
fn polling_client_learns_the_holder() {
    let polling =
        |builder: redlatch::ConfigBuilder| builder.wake_waiters(false).retry_delay(ms(100)..=ms(200));
    let mut rig = Rig::new(3, polling);
    hold_by_other(&mut rig, "\tweb-3");
    let lock = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(2000));
    hold_by_other(&mut rig, "\tweb-7");
    rig.run_for(ms(2000));
    free(&mut rig);
    rig.run_for(ms(1000));
    granted(&mut rig);
    let waited = rig.engine.waited(lock).expect("it is held");
    let (last, time) = holder(&waited).expect("it was reported");
    assert_eq!((last, waited.queued), ("web-7", ms(0)));
    assert_near(time, waited.total - ms(2000), ms(400), "web-7");
}

#[test]
fn local_queue_reports_the_holder() {
    let mut rig = Rig::new(3, defaults);
    let options = Options::new().ttl(ms(10_000)).wait(ms(60_000));
    let mut locks: Vec<_> = Vec::new();
    for label in ["job 1", "job 2", "job 3", "job 4"] {
        locks.push(acquire_labelled(&mut rig, label, options));
        rig.run_for(ms(10));
    }
    let at_once = rig.engine.waited(locks[0]).expect("it is held");
    assert_eq!(at_once, no_wait(), "the first attempt got it");
    for lock in &locks[..3] {
        granted(&mut rig);
        rig.run_for(ms(100));
        rig.release(*lock, false);
    }
    granted(&mut rig);
    let waited = rig.engine.waited(locks[3]).expect("it is held");
    assert_eq!((waited.total, waited.queued), (ms(310), ms(310)));
    assert_eq!(waited.to_string(), "310ms, behind job 3 (100ms)");
}

#[test]
fn timeout_in_the_queue_names_the_holder() {
    let mut rig = Rig::new(3, defaults);
    acquire_labelled(&mut rig, "job 1", Options::new().ttl(ms(10_000)).wait(ms(1000)));
    granted(&mut rig);
    rig.acquire("a", 10_000, 300);
    rig.run_for(ms(300));
    let own = contended(&mut rig);
    assert_eq!((own.attempts, own.holder_label.as_deref()), (0, Some("job 1")));
    assert_eq!((holder(&own.waited), own.waited.queued), (Some(("job 1", ms(300))), ms(300)));
    // The queue's head learns it from the masters, also for the caller behind it.
    let mut rig = Rig::new(3, defaults);
    hold_by_other(&mut rig, "\tworker");
    rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(100));
    rig.acquire("a", 10_000, 300);
    rig.run_for(ms(300));
    assert_eq!(holder(&contended(&mut rig).waited), Some(("worker", ms(300))));
}

#[test]
fn attempt_at_masters_counts_as_no_queue_wait() {
    let mut rig = Rig::new(3, |config| config.wake_waiters(false));
    let first = rig.acquire("a", 10_000, 1_000);
    granted(&mut rig);
    let second = rig.acquire("a", 10_000, 1_000);
    rig.run_for(ms(300));
    free(&mut rig);
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.engine.leave(rig.now, first).expect("it is held");
    rig.run_for(ms(40));
    rig.end_stalls();
    granted(&mut rig);
    let waited = rig.engine.waited(second).expect("it is held");
    assert_near(waited.total, ms(340), ms(1), "the whole");
    assert_near(waited.queued, ms(300), ms(5), "the queue");
}

/// No answer came in the short time that the queue had left.
#[test]
fn queued_attempt_cut_short_is_no_outage() {
    // A parked attempt would have waited for the key all along.
    let mut rig = Rig::new(3, |config| config.wake_waiters(false));
    let first = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.acquire("a", 10_000, 400);
    rig.run_for(ms(390));
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.engine.leave(rig.now, first).expect("it is held");
    rig.run_for(ms(10));
    let denial = contended(&mut rig);
    assert_eq!((denial.attempts, denial.waited.total), (1, ms(400)), "{denial}");
}

#[test]
fn a_holder_without_a_label_is_unknown() {
    for (kind, options) in kinds() {
        let mut rig = Rig::new(3, defaults);
        hold_by_other(&mut rig, "");
        rig.acquire_with("a", options.wait(ms(3000)));
        rig.run_for(ms(3000));
        let denial = contended(&mut rig);
        assert_eq!(denial.holder_label, None, "{kind}");
        assert_eq!(holder(&denial.waited), Some(("unknown", ms(3000))), "{kind}");
        assert!(denial.report.resource == "a" && denial.waited.to_string().contains("behind unknown (3s)"));
    }
}

#[test]
fn outage_names_no_holder() {
    let mut rig = Rig::new(3, defaults);
    (0..2).for_each(|index| drop(rig.masters[index].errors.insert("SET".into(), "OOM x".into())));
    let lock = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(500));
    rig.masters.iter_mut().for_each(|master| master.errors.clear());
    rig.run_for(ms(5000));
    granted(&mut rig);
    let waited = rig.engine.waited(lock).expect("it is held");
    assert_eq!((holder(&waited), waited.queued), (None, ms(0)), "nobody was in the way");
    assert!(waited.total >= ms(400) && waited.attempts > 1, "{waited:?}");
}

#[test]
fn next_lock_does_not_report_an_earlier_wait() {
    let mut rig = Rig::new(3, defaults);
    hold_by_other(&mut rig, "\tworker");
    let lock = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(3000));
    free(&mut rig);
    granted(&mut rig);
    rig.release(lock, false);
    rig.run_for(ms(3_600_000));
    // In the same slot, with the same name.
    let next = rig.acquire("a", 10_000, 60_000);
    granted(&mut rig);
    assert_eq!(rig.engine.waited(next), Some(no_wait()));
    rig.release(next, false);
    // Nobody followed the holder meanwhile, so the hour counts for nobody.
    hold_by_other(&mut rig, "\tworker");
    rig.acquire("a", 10_000, 2000);
    rig.run_for(ms(2000));
    let waited = contended(&mut rig).waited;
    assert_eq!((holder(&waited), waited.queued), (Some(("worker", ms(2000))), ms(2000)));
}

#[test]
fn holder_is_known_despite_a_silent_master() {
    let mut rig = Rig::new(3, defaults);
    hold_by_other(&mut rig, "\tworker");
    rig.stop_master(2);
    rig.acquire("a", 10_000, 300);
    rig.run_for(ms(300));
    assert_eq!(holder(&contended(&mut rig).waited), Some(("worker", ms(300))));
}

/// The question for the value finds no key any more.
#[test]
fn label_survives_the_loss_of_one_masters_key() {
    let mut rig = Rig::new(3, defaults);
    hold_by_other(&mut rig, "\tworker");
    (0..2).for_each(|index| rig.stall_replies(index));
    rig.stop_master(2);
    rig.acquire("a", 10_000, 0);
    rig.masters[1].load_keys(Default::default());
    rig.end_stalls();
    assert_eq!(contended(&mut rig).holder_label.as_deref(), Some("worker"));
}

/// Readers come and go while a writer polls. The writer's last attempt gets no answer, or meets a writer.
#[test]
fn polling_writer_reports_the_latest_readers() {
    for is_last_answered in [false, true] {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(false).retry_delay(ms(100)..=ms(200)));
        let shared = Options::new().ttl(ms(10_000)).wait(Duration::ZERO).shared();
        let first = rig.acquire_with("a", shared);
        granted(&mut rig);
        rig.acquire("a", 10_000, 2000);
        let others = [rig.acquire_with("a", shared), rig.acquire_with("a", shared)];
        rig.run_for(ms(1990));
        rig.outcomes.clear();
        if is_last_answered {
            others.into_iter().chain([first]).for_each(|lock| rig.release(lock, false));
            hold_by_other(&mut rig, "");
        } else {
            (0..3).for_each(|index| rig.stall_replies(index));
        }
        rig.run_for(ms(10));
        let expected = if is_last_answered { HeldBy::AnotherClient } else { HeldBy::Readers(3) };
        assert_eq!(contended(&mut rig).held_by, expected);
    }
}

/// Each round asks again: an earlier round's readers or label say nothing about the present holder.
#[test]
fn parked_waiter_names_only_the_current_holder() {
    for is_read in [false, true] {
        let mut rig = Rig::new(3, defaults);
        let reader = Options::new().ttl(ms(10_000)).wait(Duration::ZERO).shared();
        let readers: Vec<_> = (0..2).filter(|_| is_read).map(|_| rig.acquire_with("a", reader)).collect();
        rig.outcomes.clear();
        if !is_read {
            hold_by_other(&mut rig, "\tworker");
        }
        rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(3000)).fair());
        rig.run_for(ms(1500));
        for reader in readers {
            rig.engine.leave(rig.now, reader).expect("held");
        }
        hold_by_other(&mut rig, "");
        rig.run_for(ms(1500));
        let denial = contended(&mut rig);
        assert_eq!((denial.holder_label, denial.held_by), (None, HeldBy::AnotherClient));
    }
}
