//! Inspection and forced deletion: one round trip, a deadline, and no effect on any vote.

use std::time::Duration;

use redlatch::engine::{OpId, Outcome, Request, Resource, SlotLook, SubmitError};
use redlatch::error::{Failure, HolderTtl, InputError, Vote};
use redlatch::inspection::{Inspection, KeyState, LockStatus};
use redlatch::pool::slot_name;
use redlatch::{AcquireError, limits};

use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

fn inspect(rig: &mut Rig, name: &str) -> OpId {
    let resource = Resource::new(name).expect("valid");
    let op = rig.engine.submit(rig.now, Request::Inspect { resource }).expect("room");
    rig.pump();
    op
}

fn force_unlock(rig: &mut Rig, name: &str) {
    let resource = Resource::new(name).expect("valid");
    rig.engine.submit(rig.now, Request::ForceUnlock { resource }).expect("room");
    rig.pump();
}

#[track_caller]
fn inspected(rig: &mut Rig) -> Inspection {
    match rig.outcome() {
        Some(Outcome::Inspect(inspection)) => inspection,
        other => panic!("no answer to a look but {other:?}"),
    }
}

#[test]
fn an_inspection_takes_one_round_trip() {
    let mut rig = Rig::new(3, defaults);
    rig.acquire("a", 10_000, 0);
    let token = granted(&mut rig).token;
    rig.run_for(ms(1000));
    let until = rig.now + ms(5000);
    rig.masters[2].put(b"a", b"somebody else's", Some(until));
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    inspect(&mut rig, "a");
    let inspection = inspected(&mut rig);
    let own = KeyState::Holds { value: token.as_bytes().as_slice().into(), left: HolderTtl::Left(ms(9000)) };
    assert_eq!((&inspection.masters[0].1, &inspection.masters[1].1), (&own, &own));
    assert_eq!(inspection.masters[2].1.value(), Some(b"somebody else's".as_slice()));
    assert_eq!(
        (inspection.holder(), inspection.remaining()),
        (Some(token.as_bytes().as_slice()), HolderTtl::Left(ms(9000)))
    );
    assert_eq!(rig.masters[0].take_log(), ["GETRANGE", "ZREVRANK", "PTTL"]);
    inspect(&mut rig, "b");
    assert_eq!(inspected(&mut rig).status(), LockStatus::Free);
    assert_eq!(rig.engine.operation_count(), 1, "a look is over with its answer");
}

// I76
#[test]
fn an_inspection_ends_with_each_masters_reason() {
    let mut rig = Rig::new(5, defaults);
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.masters[1].errors.insert("GETRANGE".into(), "NOPERM x".into());
    rig.masters[2].put_list(b"a");
    rig.stop_master(3);
    rig.stop_master(4);
    inspect(&mut rig, "a");
    rig.reset_conn(4);
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let states = inspected(&mut rig).masters;
    let failure = |index: usize| match &states[index].1 {
        KeyState::Failed(failure) => failure,
        other => panic!("{other:?}"),
    };
    assert!(matches!(failure(0), Failure::NotConnected { .. }));
    assert!(matches!(failure(1), Failure::Replied(text) if text.starts_with("NOPERM")));
    assert!(matches!(failure(2), Failure::Replied(text) if text.starts_with("WRONGTYPE")));
    assert_eq!(failure(3), &Failure::NoAnswer { limit: ms(50) });
    assert_eq!(failure(4), &Failure::ConnectionLost);
    // A late reply finds no operation, and keeps the order of replies.
    rig.resume_master(3);
    assert_eq!((rig.outcome(), rig.engine.owed_count(id(3))), (None, 0));
}

/// The readers' key holds no text.
#[test]
fn an_inspection_says_why_readers_are_not_counted() {
    let mut rig = Rig::new(1, defaults);
    rig.masters[0].put_list(b"a");
    rig.masters[0].errors.insert("ZREVRANK".into(), "NOPERM x".into());
    inspect(&mut rig, "a");
    let state = &inspected(&mut rig).masters[0].1;
    let is_named = matches!(state, KeyState::Failed(Failure::Replied(text)) if text.starts_with("NOPERM"));
    assert!(is_named, "{state:?}");
}

// I76
#[test]
fn a_quarantined_master_is_not_called_free() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    rig.reset_conn(2);
    let now = rig.now;
    rig.masters[2].restart("run2b", now);
    rig.run_for(ms(2500));
    inspect(&mut rig, "a");
    let inspection = inspected(&mut rig);
    assert!(
        matches!(inspection.masters[2].1, KeyState::Failed(Failure::Quarantined { .. })),
        "{inspection:?}"
    );
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    inspect(&mut rig, "a");
    assert_eq!(inspected(&mut rig).masters.iter().filter(|it| it.1.value().is_some()).count(), 3);
}

#[test]
fn inspected_value_is_truncated() {
    let mut rig = Rig::new(1, defaults);
    rig.masters[0].put(b"a", &vec![b'x'; limits::REPLY_SIZE_MAX + 1], None);
    inspect(&mut rig, "a");
    let inspection = inspected(&mut rig);
    assert_eq!(inspection.holder().map(<[u8]>::len), Some(limits::VALUE_SHOWN_MAX));
    assert_eq!(inspection.remaining(), HolderTtl::Never);
}

// I76
#[test]
fn an_answer_to_an_inspection_is_no_vote() {
    let mut rig = Rig::new(3, defaults);
    (0..3).for_each(|index| rig.stall_replies(index));
    // A cancelled inspection's slot has a lock in it when the answers come.
    let look = inspect(&mut rig, "a");
    rig.release(look, false);
    rig.acquire("a", 10_000, 0);
    (0..3).for_each(|index| rig.stop_master(index));
    rig.end_stalls();
    assert_eq!(granted(&mut rig).attempts, 1);
    assert!((0..3).all(|index| rig.engine.owed_count(id(index)) == 0));
}

/// An inspection is cancelled. The next lock in its slot must ask the masters, too.
#[test]
fn lock_reuses_no_answer_of_a_cancelled_inspection() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(5000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"another-clients-tok!\tworker", Some(until)));
    (0..3).for_each(|index| rig.stall_replies(index));
    let look = inspect(&mut rig, "a");
    rig.release(look, false);
    rig.acquire("a", 10_000, 0);
    rig.end_stalls();
    match denied(&mut rig) {
        AcquireError::Contended(denial) => assert_eq!(denial.holder_label.as_deref(), Some("worker")),
        other => panic!("{other}"),
    }
}

// I75
#[test]
fn only_a_forced_unlock_deletes_without_comparing() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[0].log.clear();
    let first = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.extend(first, 20_000);
    let next = rig.acquire("a", 10_000, 5000);
    rig.release(first, true);
    rig.run_for(ms(100));
    rig.release(next, true);
    rig.run_for(ms(100));
    rig.outcomes.clear();
    let before = rig.masters[0].take_log();
    assert!(
        before.iter().any(|name| name == "EVALSHA") && !before.iter().any(|name| name == "EVAL"),
        "{before:?}"
    );
    rig.masters[1].put(b"a", b"somebody else's", None);
    force_unlock(&mut rig, "a");
    let Some(Outcome::ForceUnlock(done)) = rig.outcome() else { panic!("an answer") };
    assert_eq!((done.deleted(), done.absent(), done.unanswered()), (1, 2, 0));
    assert_eq!(rig.masters[0].take_log(), ["EVAL"]);
    assert_eq!(rig.holder_count("a"), 0);
}

// I75
#[test]
fn a_forced_unlock_leaves_other_keys() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[0].put_list(b"a");
    rig.masters[1].put_sorted_set(b"a", None);
    force_unlock(&mut rig, "a");
    let Some(Outcome::ForceUnlock(done)) = rig.outcome() else { panic!("an answer") };
    assert_eq!((done.deleted(), done.absent(), done.unanswered()), (0, 1, 2));
    for (_, vote) in &done.report.votes[..2] {
        assert!(matches!(vote, Vote::Failed(Failure::Replied(text)) if text.contains("nothing was deleted")));
    }
    assert_eq!(done.report.votes[2].1, Vote::Refused { holder: HolderTtl::Gone });
    assert!((0..2).all(|index| rig.masters[index].is_taken(rig.now, b"a")), "a key of others is deleted");
}

// I85
#[test]
fn an_extension_reveals_a_forced_unlock() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stop_master(2);
    force_unlock(&mut rig, "a");
    rig.run_for(ms(50));
    let Some(Outcome::ForceUnlock(done)) = rig.outcome() else { panic!("an answer") };
    assert_eq!((done.deleted(), done.absent(), done.unanswered()), (2, 0, 1));
    assert!(rig.engine.valid_until(lock) > Some(rig.now), "it is not told");
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    let is_reported = |rig: &mut Rig| matches!(rig.outcome(), Some(Outcome::Extend(Err(_))));
    assert!(is_reported(&mut rig));
    // Its own masters do not restore the lock either, in whatever order the answers come.
    assert_eq!((rig.holder_count("a"), rig.masters[2].value(rig.now, b"a").is_some()), (1, true));
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    assert!(is_reported(&mut rig));
    rig.resume_master(2);
    rig.run_for(Duration::from_secs(1));
    assert_eq!(rig.holder_count("a"), 0, "a lock that was broken is not put back");
}

#[test]
fn a_pause_is_random_and_can_be_cancelled() {
    let mut rig = Rig::new(1, defaults);
    let mut times = Vec::new();
    for _ in 0..8 {
        let begun = rig.now;
        rig.engine
            .submit(rig.now, Request::Pause { attempts: 3, took: ms(5), limit: ms(1000) })
            .expect("room");
        while rig.outcome().is_none() {
            rig.run_for(Duration::from_micros(100));
        }
        times.push(rig.now - begun);
    }
    assert!(times.iter().all(|time| (ms(5)..=ms(46)).contains(time)), "{times:?}");
    assert!(times.iter().any(|time| *time != times[0]), "{times:?}");
    let pause = rig
        .engine
        .submit(rig.now, Request::Pause { attempts: 1, took: ms(5), limit: ms(1000) })
        .expect("room");
    rig.release(pause, false);
    rig.run_for(ms(100));
    assert_eq!((rig.outcome(), rig.engine.operation_count()), (None, 0));
    let begun = rig.now;
    rig.engine.submit(rig.now, Request::Pause { attempts: 3, took: ms(5), limit: ms(2) }).expect("room");
    while rig.outcome().is_none() {
        rig.run_for(Duration::from_micros(100));
    }
    assert!(rig.now - begun <= ms(2) + Duration::from_micros(100), "the limit ends it");
}

// I76
#[test]
fn impossible_query_reply_ends_the_connection() {
    for (replies, is_forced) in [
        (b":1\r\n".as_slice(), false),
        (b"+OK\r\n", false),
        (b"$-1\r\n", false),
        (b"$1\r\nx\r\n+OK\r\n", false),
        (b"$1\r\nx\r\n:-3\r\n", false),
        (b"*0\r\n", false),
        (b"+OK\r\n", true),
        (b":3\r\n", true),
        (b"$1\r\nx\r\n", true),
    ] {
        let mut rig = Rig::new(1, defaults);
        rig.stop_master(0);
        if is_forced {
            force_unlock(&mut rig, "a");
        } else {
            inspect(&mut rig, "a");
        }
        rig.receive(0, replies);
        rig.refuse(0, true);
        rig.pump();
        let is_lost = match rig.outcome() {
            Some(Outcome::Inspect(it)) => it.masters[0].1 == KeyState::Failed(Failure::ConnectionLost),
            Some(Outcome::ForceUnlock(it)) => {
                it.report.votes[0].1 == redlatch::error::Vote::Failed(Failure::ConnectionLost)
            }
            _ => false,
        };
        assert!(is_lost, "{}", replies.escape_ascii());
    }
}

#[test]
fn masters_that_agree_show_the_longest_time() {
    let mut rig = Rig::new(5, defaults);
    let until = rig.now + ms(5000);
    rig.masters[0].put(b"a", b"x", None);
    rig.masters[1].put(b"a", b"x", Some(until));
    inspect(&mut rig, "a");
    let shown = format!("{:#}", inspected(&mut rig));
    assert!(shown.contains("without a TTL: no lock"), "{shown}");
}

fn look(rig: &mut Rig, count: u32, from: u32) {
    let pool = Resource::new("pool").expect("valid");
    rig.engine.submit(rig.now, Request::FreeSlots { pool, count, from }).expect("room");
    rig.pump();
}

#[track_caller]
fn looked(rig: &mut Rig) -> SlotLook {
    match rig.outcome() {
        Some(Outcome::FreeSlots(look)) => look,
        other => panic!("no answer to a look for slots but {other:?}"),
    }
}

/// Another client holds these slots on this master.
fn take_slots(rig: &mut Rig, master: usize, slots: impl IntoIterator<Item = u32>) {
    for slot in slots {
        rig.masters[master].put(&slot_name(b"pool", slot), b"other", None);
    }
}

#[test]
fn look_finds_slots_free_on_a_quorum() {
    let mut rig = Rig::new(3, defaults);
    take_slots(&mut rig, 0, [0, 1]);
    take_slots(&mut rig, 1, [0, 2]);
    take_slots(&mut rig, 2, [0]);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    rig.stop_master(2);
    look(&mut rig, 4, 3);
    assert_eq!(looked(&mut rig), SlotLook::Free(vec![3]), "two of three are enough");
    assert_eq!(rig.masters[0].take_log(), ["EVAL"]);
    rig.resume_master(2);
    assert_eq!((rig.outcome(), rig.engine.owed_count(id(2))), (None, 0));
    // No slot is free on two of the first masters that answer, so the search waits for the third.
    take_slots(&mut rig, 0, [3]);
    rig.stop_master(2);
    look(&mut rig, 4, 0);
    assert_eq!(rig.outcome(), None);
    rig.resume_master(2);
    rig.pump();
    assert_eq!(looked(&mut rig), SlotLook::Free(vec![1, 2, 3]));
    assert_eq!(rig.engine.operation_count(), 0, "a look is over with its answer");
}

#[test]
fn a_look_ends_without_a_quorum() {
    let mut rig = Rig::new(3, defaults);
    rig.stop_master(0);
    rig.masters[1].errors.insert("EVAL".into(), "NOPERM x".into());
    look(&mut rig, 4, 0);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let SlotLook::Unknown(votes) = looked(&mut rig) else { panic!("two have not reported") };
    let shown: Vec<_> = votes.iter().map(|(_, vote)| format!("{vote:?}")).collect();
    assert!(shown[0].contains("NoAnswer") && shown[1].contains("NOPERM x"), "{shown:?}");
}

/// Each of three masters reports another holder. Two more may agree with one of them; one more changes
/// nothing.
#[test]
fn look_ends_with_a_needed_connection() {
    let mut rig = Rig::new(5, defaults);
    for (index, holder) in [&b"first"[..], b"second", b"third"].into_iter().enumerate() {
        rig.masters[index].put(&slot_name(b"pool", 0), holder, None);
    }
    (3..5).for_each(|index| rig.stop_master(index));
    look(&mut rig, 1, 0);
    assert_eq!(rig.outcome(), None);
    drop(rig.break_conn(3));
    assert_eq!(looked(&mut rig), SlotLook::Contested);
}

#[test]
fn forgotten_slot_is_not_free() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    take_slots(&mut rig, 0, 0..2);
    rig.reset_conn(2);
    let now = rig.now;
    rig.masters[2].restart("run2b", now);
    rig.run_for(ms(2500));
    look(&mut rig, 2, 0);
    assert_eq!(looked(&mut rig), SlotLook::Contested, "one of two masters that count has them");
}

#[test]
fn an_impossible_look_is_refused() {
    let mut rig = Rig::new(3, defaults);
    let pool = Resource::new("pool").expect("valid");
    for count in [0, limits::SLOT_COUNT_MAX + 1] {
        let refused = rig.engine.submit(rig.now, Request::FreeSlots { pool, count, from: 0 });
        assert_eq!(refused, Err(SubmitError::Input(InputError::SlotCount { count })));
    }
}
