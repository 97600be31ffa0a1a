//! Rounds of a parked attempt while a master is silent, refuses, or is slow.

use std::time::Duration;

use redlatch::engine::Outcome;
use redlatch::error::{Failure, HolderTtl, Vote};
use redlatch::status::{MasterState, Warning};
use redlatch::{AcquireError, Options, limits};

use crate::model::digest;
use crate::parked::{KEY, OTHER, free, with_other};
use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

/// Shortest pause before a part of a lock is given back.
const PART_TIME_MIN: Duration = ms(20);

fn fair() -> Options {
    Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair()
}

/// The lock's value on a master.
fn value(rig: &Rig, index: usize) -> Option<Vec<u8>> {
    rig.masters[index].value(rig.now, KEY).map(<[u8]>::to_vec)
}

/// No master serves, because the key expired.
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

/// The answers count as missed after at most 500 ms. The next regular round comes after 750 ms.
#[test]
fn part_is_returned_despite_a_silent_master() {
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
fn minority_grants_are_kept_briefly() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[0].load_keys(Default::default());
    rig.acquire_with("a", fair());
    let part = value(&rig, 0);
    rig.run_for(PART_TIME_MIN - Duration::from_nanos(1));
    assert_eq!(value(&rig, 0), part);
    rig.run_for(PART_TIME_MIN + ms(1));
    assert_ne!(value(&rig, 0), part);
}

/// With one failed master, both others are needed.
#[test]
fn denial_counts_both_remaining_masters() {
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
fn master_without_time_command_gets_no_park() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[0].errors.insert("TIME".to_owned(), "NOPERM x".to_owned());
    rig.pump();
    let mut rig = with_other(rig);
    rig.acquire_with("a", fair());
    rig.run_for(ms(100));
    let queues: Vec<_> = rig.masters.iter().map(|master| master.parked(rig.now, KEY).len()).collect();
    assert_eq!(queues, [0, 1, 1]);
}

/// Two masters disconnect halfway through the wait of 1.4 s.
#[test]
fn parked_time_does_not_lengthen_the_retry_pause() {
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

/// The master answers when an entry of that age is no longer served.
#[test]
fn late_park_refusal_restores_the_key() {
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

/// The last round's answer was lost with the connection.
#[test]
fn reconnected_master_gets_the_pending_park() {
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

/// The master gets the running round 102 ms before its quarantine ends, and may have forgotten fences of that
/// time.
#[test]
fn fenced_vote_from_quarantine_never_counts() {
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
fn released_park_of_unknown_script_is_undone() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[2].load_keys(Default::default());
    rig.masters[2].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
    rig.stall_replies(2);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)));
    rig.run_for(ms(5));
    // The park is void when the master asks for the script.
    rig.masters[2].errors.clear();
    rig.release(lock, false);
    assert!(value(&rig, 2).is_some());
    rig.end_stall(2);
    rig.pump();
    assert_eq!(value(&rig, 2), None, "the key of the first attempt stays");
}

#[test]
fn silent_master_gets_the_park_when_it_answers() {
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

/// Another master disconnects then, so that only this one's answer can make a quorum.
#[test]
fn silent_master_counts_as_asked_once_it_answers() {
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

/// The last round's answer comes late. There is no room for the running round: for its park, or for an
/// attempt if the master no longer parks.
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

/// How often a master was sent this script.
fn script_count(rig: &Rig, index: usize, name: &str) -> usize {
    let sha = digest(name);
    rig.masters[index].log.iter().filter(|words| words.get(1).is_some_and(|it| it == sha.as_bytes())).count()
}

/// Lets time pass until a master was sent this many parks.
fn run_to_park(rig: &mut Rig, index: usize, count: usize) {
    while script_count(rig, index, "park") < count {
        rig.run_for(ms(1));
    }
}

/// Another client holds two of three masters, so the waiter has a part of the lock on the third.
fn with_part(mut rig: Rig) -> Rig {
    let until = rig.now + ms(60_000);
    rig.masters[..2].iter_mut().for_each(|master| master.put(KEY, OTHER, Some(until)));
    rig.acquire_with("a", fair());
    rig
}

/// Without the release, the client's own key would refuse the attempt.
#[test]
fn polling_attempt_first_releases_its_earlier_token() {
    let mut rig = Rig::unconnected(3, |builder| builder.answer_timeout(ms(4000)));
    rig.masters[2].errors.insert("HELLO".to_owned(), "NOPROTO unsupported protocol version".to_owned());
    rig.pump();
    let mut rig = with_part(rig);
    for count in 2..4 {
        let before = value(&rig, 2);
        run_to_park(&mut rig, 0, count);
        let after = value(&rig, 2);
        assert!(before.is_some() && after.is_some() && before != after, "round {count}");
    }
}

#[test]
fn part_ends_when_its_master_is_set_aside() {
    let mut rig = with_part(Rig::new(3, |builder| builder.answer_timeout(ms(4000))));
    run_to_park(&mut rig, 0, 4);
    assert_eq!((value(&rig, 2), script_count(&rig, 2, "park")), (None, 3));
}

/// A master grants the lock to a waiter that had set another master aside: by a message, or by answering the
/// next round.
#[test]
fn a_grant_asks_masters_set_aside_again() {
    for is_served in [true, false] {
        let mut rig = with_part(Rig::new(3, defaults));
        rig.run_for(ms(1500));
        assert_eq!(value(&rig, 2), None, "it is set aside");
        let count = script_count(&rig, 0, "park");
        // The round that the grant began, or the one that follows it.
        if is_served {
            free(&mut rig, 0);
            run_to_park(&mut rig, 0, count + 1);
        } else {
            rig.masters[0].load_keys(Default::default());
            run_to_park(&mut rig, 0, count + 2);
        }
        assert_eq!(granted(&mut rig).granted.count(), 2, "served: {is_served}");
    }
}

#[test]
fn master_without_park_rights_is_polled() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[0].errors.insert("EVALSHA".into(), "NOPERM x".into());
    rig.acquire_with("a", fair());
    drop(rig.masters[0].take_log());
    rig.run_for(ms(1100));
    assert_eq!(script_count(&rig, 0, "park"), 0);
    assert!(rig.masters[0].take_log().contains(&"SET".to_owned()), "an attempt that waits for nothing");
    let warnings = rig.engine.master_status(rig.now, id(0)).warnings;
    assert_eq!(warnings, [Warning::NotParking { refusal: "NOPERM x".into() }]);
}

#[test]
fn swap_beside_an_entry_sends_unknown_script_whole() {
    let mut rig = with_other(Rig::new(3, defaults));
    let first = rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)));
    (0..3).for_each(|index| free(&mut rig, index));
    rig.pump();
    granted(&mut rig);
    rig.acquire("a", 10_000, 60_000);
    rig.masters.iter_mut().for_each(|master| master.flush_scripts());
    drop(rig.masters[0].take_log());
    rig.release(first, false);
    granted(&mut rig);
    assert_eq!(rig.masters[0].take_log(), ["EVALSHA", "EVAL"]);
}

/// The master cannot park, and its refusal comes after the answer limit.
#[test]
fn late_refusal_is_no_failure() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[2].errors.insert("HELLO".to_owned(), "NOPROTO unsupported protocol version".to_owned());
    rig.pump();
    let mut rig = with_other(rig);
    rig.stall_replies(2);
    rig.acquire_with("a", fair().wait(ms(601)));
    rig.run_for(ms(600));
    rig.end_stall(2);
    rig.run_for(ms(1));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    assert!(matches!(denial.report.votes[2].1, Vote::Refused { .. }), "{denial}");
}

/// The park is sent again after 600 ms, and its entry may be served for 3 s from then on.
#[test]
fn resent_entry_is_tracked_from_its_last_send() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[2].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
    rig.stall_replies(2);
    rig.acquire_with("a", fair());
    rig.run_for(ms(600));
    rig.masters[2].errors.clear();
    rig.end_stall(2);
    (0..2).for_each(|index| free(&mut rig, index));
    rig.pump();
    granted(&mut rig);
    for (time, is_put_back) in [(ms(2600), false), (ms(500), true)] {
        rig.run_for(time);
        rig.masters[2].log.clear();
        rig.reset_conn(2);
        rig.run_for(ms(60));
        let puts =
            rig.masters[2].log.iter().filter(|words| words.starts_with(&[b"SET".to_vec(), KEY.to_vec()]));
        assert_eq!(puts.count() == 1, is_put_back, "behind another {time:?}");
    }
}

/// The first waiter gives up its lock before a master has answered the round that granted it.
#[test]
fn next_waiters_rounds_replace_their_own_tokens() {
    let mut rig = with_other(Rig::new(3, defaults));
    let lock = rig.acquire_with("a", fair());
    rig.stall_replies(0);
    rig.run_for(ms(1500));
    (0..3).for_each(|index| free(&mut rig, index));
    rig.run_for(ms(5));
    granted(&mut rig);
    rig.engine.leave(rig.now, lock).expect("it is held");
    rig.end_stall(0);
    rig.run_for(ms(500));
    let mut rig = with_other(rig);
    rig.acquire_with("a", fair());
    rig.run_for(ms(5000));
    assert_eq!(rig.engine.claim_count(), 1, "tokens of earlier rounds are left");
}

/// The answer's round is over, because another one runs or the caller has left.
#[test]
fn a_late_answer_to_a_park_is_counted() {
    for is_refused in [true, false] {
        for goes in [true, false] {
            let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
            let until = rig.now + ms(60_000);
            rig.masters[usize::from(!is_refused)..].iter_mut().for_each(|it| it.put(KEY, OTHER, Some(until)));
            rig.masters[0].load_scripts();
            rig.stall_replies(0);
            let lock = rig.acquire_with("a", fair());
            let answers = |rig: &Rig| {
                let stats = &rig.engine.stats(rig.now).masters[0];
                (stats.refused, stats.granted, stats.late)
            };
            let before = answers(&rig);
            rig.run_for(ms(1100));
            if goes {
                rig.release(lock, false);
            }
            // The next round is answered after it.
            rig.stop_master(0);
            rig.end_stall(0);
            let (refused, granted) = (u64::from(is_refused), u64::from(!is_refused));
            let expected = (before.0 + refused, before.1 + granted, before.2 + granted);
            assert_eq!(answers(&rig), expected, "refused: {is_refused}, the caller goes: {goes}");
        }
    }
}

/// An entry stays for 3 s, and its key lives for 10 s, both plus the drift allowance.
#[test]
fn late_park_is_tracked_longer() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[0].load_scripts();
    rig.stall_replies(0);
    let lock = rig.acquire_with("a", fair());
    run_to_park(&mut rig, 1, 2);
    let begun = rig.now;
    // The answer to the first round, after which the second one is sent.
    rig.run_for(ms(500));
    rig.end_stall(0);
    assert_eq!(script_count(&rig, 0, "park"), 2);
    rig.stop_master(0);
    rig.release(lock, false);
    rig.refuse(0, true);
    let gone_at = begun + ms(500 + 13_000 + 132);
    rig.run_for(gone_at - ms(10) - rig.now);
    assert_eq!(rig.engine.claim_count(), 1, "its key may live");
    rig.run_for(ms(100));
    assert_eq!(rig.engine.claim_count(), 0);
}

/// The park replaces that token, and its answer is missing.
#[test]
fn replaced_token_is_not_released_again() {
    let mut rig = with_other(Rig::new(3, |builder| builder.answer_timeout(ms(100))));
    rig.acquire_with("a", fair());
    rig.run_for(ms(100));
    rig.stall_replies(0);
    run_to_park(&mut rig, 0, 2);
    rig.run_for(ms(300));
    assert_eq!((script_count(&rig, 0, "park"), script_count(&rig, 0, "unpark")), (2, 0));
}

/// The answer comes after the answer limit, and another master fails right after it.
#[test]
fn late_waiting_reply_is_no_failure() {
    let mut rig = with_other(Rig::new(3, defaults));
    rig.masters[0].load_scripts();
    rig.stall_replies(0);
    rig.acquire_with("a", fair());
    rig.run_for(ms(550));
    rig.end_stall(0);
    rig.masters[2].log.clear();
    rig.refuse(1, true);
    rig.reset_conn(1);
    rig.run_for(ms(200));
    let sent = rig.masters[2].take_log();
    assert!(!sent.contains(&"SET".to_owned()), "the round goes on: {sent:?}");
}

/// The claim reuses the memory of a parked claim.
#[test]
fn lock_after_a_parked_one_is_released_normally() {
    let mut rig = with_other(Rig::new(1, defaults));
    let lock = rig.acquire_with("a", fair());
    free(&mut rig, 0);
    rig.pump();
    granted(&mut rig);
    rig.release(lock, false);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.masters[0].log.clear();
    rig.release(lock, false);
    assert_eq!((script_count(&rig, 0, "release"), script_count(&rig, 0, "unpark")), (1, 0));
}
