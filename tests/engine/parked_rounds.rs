//! Rounds of a parked attempt beside a master that is silent, that refuses, or that takes long.

use std::time::Duration;

use redlatch::engine::Outcome;
use redlatch::error::{Failure, HolderTtl, Vote};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Options, limits};

use crate::parked::{KEY, OTHER, free, with_other};
use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

/// The shortest pause after which a part of a lock is given back.
const PART_TIME_MIN: Duration = ms(20);

fn fair() -> Options {
    Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair()
}

/// The value of the lock on a master.
fn value(rig: &Rig, index: usize) -> Option<Vec<u8>> {
    rig.masters[index].value(rig.now, KEY).map(<[u8]>::to_vec)
}

/// No master serves: the key has gone by itself.
#[test]
fn the_first_waiter_looks_beside_a_silent_master() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.stop_master(2);
    rig.acquire_with("a", fair());
    rig.run_for(ms(600));
    let now = rig.now;
    for master in &mut rig.masters[..2] {
        master.carry_out_over(1000, now, &[b"DEL", KEY], &mut Vec::new());
    }
    rig.run_for(ms(100));
    granted(&mut rig);
}

/// The answers are missed after at most 500 ms, and the next round of its own comes after 750 ms.
#[test]
fn a_part_is_given_back_beside_a_silent_master() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[1].put(KEY, OTHER, None);
    rig.stop_master(2);
    rig.acquire_with("a", fair());
    let part = value(&rig, 0);
    assert!(part.is_some());
    rig.run_for(ms(700));
    assert_ne!(value(&rig, 0), part);
}

#[test]
fn a_part_is_kept_for_a_while() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[0].load_keys(Default::default());
    rig.acquire_with("a", fair());
    let part = value(&rig, 0);
    rig.run_for(PART_TIME_MIN - Duration::from_nanos(1));
    assert_eq!(value(&rig, 0), part);
    rig.run_for(PART_TIME_MIN + ms(1));
    assert_ne!(value(&rig, 0), part);
}

/// With a master that failed, both of the others are needed.
#[test]
fn a_denial_says_when_both_masters_that_are_left_are_free() {
    let mut rig = Rig::new(3, defaults);
    for (index, left) in [(0, 1300), (1, 900)] {
        let until = rig.now + ms(left);
        rig.masters[index].put(KEY, OTHER, Some(until));
    }
    rig.stop_master(2);
    rig.acquire_with("a", fair().wait(ms(600)));
    rig.run_for(ms(600));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    assert_eq!(denial.holder, HolderTtl::Left(ms(700)), "{denial}");
}

#[test]
fn a_master_that_refuses_to_say_its_time_is_not_parked_at() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[0].errors.insert("TIME".to_owned(), "NOPERM x".to_owned());
    rig.pump();
    let mut rig = with_other(rig);
    rig.acquire_with("a", fair());
    rig.run_for(ms(100));
    let queues: Vec<_> = rig.masters.iter().map(|master| master.parked(rig.now, KEY).len()).collect();
    assert_eq!(queues, [0, 1, 1]);
}

/// Two masters disconnect after half of the wait of 1.4 s.
#[test]
fn a_round_that_waited_is_no_long_attempt() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.acquire_with("a", fair().wait(ms(1400)));
    rig.run_for(ms(700));
    for index in 0..2 {
        rig.refuse(index, true);
        rig.reset_conn(index);
    }
    rig.pump();
    assert_eq!(rig.outcome(), None, "there is time for another attempt");
}

/// It answers when an entry of that time is served no more.
#[test]
fn a_master_that_refuses_a_park_late_has_the_key() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
    rig.stall_replies(2);
    rig.masters[2].errors.insert("EVALSHA".into(), "OOM x".into());
    let lock = rig.acquire_with("a", fair());
    granted(&mut rig);
    rig.run_for(ms(3200));
    rig.masters[2].errors.clear();
    rig.end_stall(2);
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
}

/// Its answer to the round before was lost with the connection.
#[test]
fn a_master_that_owed_an_answer_is_parked_at_over_the_next_connection() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.stop_master(0);
    rig.acquire_with("a", fair());
    rig.run_for(ms(1));
    rig.break_conn(0);
    rig.resume_master(0);
    rig.run_for(ms(300));
    assert_eq!(rig.masters[0].parked(rig.now, KEY).len(), 1);
    (0..2).for_each(|index| free(&mut rig, index));
    rig.run_for(ms(1));
    granted(&mut rig);
}

/// It is sent the running round 102 ms before its quarantine ends. Fences of that time it may have forgotten.
#[test]
fn a_fenced_round_sent_in_a_quarantine_does_not_count_behind_it() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)).connect_timeout(ms(60_000)));
    rig.stop_master(2);
    rig.reset_conn(2);
    rig.run_for(ms(2000));
    let restarted = rig.now;
    rig.masters[2].restart("other", restarted);
    rig.run_for(ms(10_500));
    let mut rig = with_other(rig);
    rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)).fenced());
    rig.run_for(ms(500));
    rig.resume_master(2);
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Quarantined(ms(102)));
    rig.run_for(ms(103));
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Ready);
    assert_eq!(rig.masters[2].parked(rig.now, KEY).len(), 1);
    [0, 2].into_iter().for_each(|index| free(&mut rig, index));
    rig.pump();
    assert_eq!(rig.outcome(), None, "one of two grants counts");
    rig.run_for(ms(1000));
    granted(&mut rig);
}

#[test]
fn a_void_park_is_made_up_for_at_once() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[2].load_keys(Default::default());
    rig.masters[2].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
    rig.stall_replies(2);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)));
    rig.run_for(ms(5));
    // The park is void by the time at which the master asks for the script.
    rig.masters[2].errors.clear();
    rig.release(lock, false);
    assert!(value(&rig, 2).is_some());
    rig.end_stall(2);
    rig.pump();
    assert_eq!(value(&rig, 2), None, "the key of the first attempt stays");
}

#[test]
fn a_master_that_was_silent_is_parked_at_when_it_answers() {
    let mut rig = Rig::new(3, defaults);
    rig.stop_master(2);
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(600));
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Silent);
    let mut rig = with_other(rig);
    rig.acquire_with("a", fair());
    rig.resume_master(2);
    assert_eq!(rig.masters[2].parked(rig.now, KEY).len(), 1);
}

/// Another master disconnects then, so that only its answer can make a quorum.
#[test]
fn a_master_that_was_silent_counts_as_asked_from_then_on() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(2);
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(600));
    let mut rig = with_other(rig);
    rig.acquire_with("a", fair());
    rig.stop_master(2);
    rig.end_stall(2);
    rig.pump();
    drop(rig.masters[0].take_log());
    rig.refuse(1, true);
    rig.reset_conn(1);
    rig.run_for(ms(100));
    let sent = rig.masters[0].take_log();
    assert!(!sent.contains(&"SET".to_owned()), "the round goes on: {sent:?}");
}

/// The answer to the round before comes late, and leaves no room for the running one: for its park, or for an
/// attempt where the master parks no more.
#[test]
fn a_round_without_room_has_failed() {
    for refusal in ["BUSY x", "NOPERM x"] {
        let mut rig = Rig::new(1, |builder| builder.answer_timeout(ms(4000)));
        rig.masters[0].errors.insert("EVALSHA".into(), refusal.into());
        rig.stall_replies(0);
        let lock = rig.acquire_with("a", fair().wait(ms(1200)));
        rig.run_for(ms(1000));
        for name in ["n".repeat(limits::RESOURCE_SIZE_MAX), "n".to_owned()] {
            while rig.engine.poll_outcome().is_none() {
                rig.submit_acquire(&name, 10_000, 0);
            }
        }
        rig.deliver_some(0, format!("-{refusal}\r\n").len());
        rig.run_for(ms(200));
        let outcome = rig.outcomes.into_iter().find(|(its, _)| *its == lock);
        let Some((_, Outcome::Acquire(Err(AcquireError::Contended(denial))))) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(denial.report.votes[0].1, Vote::Failed(Failure::QueueFull), "{refusal}: {denial}");
    }
}
