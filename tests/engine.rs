//! The rules that the engine keeps, each on model masters with a virtual clock.

#[path = "sim/model.rs"]
mod model;
#[path = "sim/rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use redlatch::engine::{Grant, MasterState, Outcome, Request, SubmitError};
use redlatch::lock::{Failure, HolderTtl, InputError, Resource, Vote};
use redlatch::{AcquireError, ConfigBuilder, Denial, ExtendError, Quarantine, ReleaseError, limits};
use rig::{Rig, id};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn defaults(builder: ConfigBuilder) -> ConfigBuilder {
    builder
}

#[track_caller]
fn granted(rig: &mut Rig) -> Grant {
    match rig.outcome() {
        Some(Outcome::Acquire(Ok(grant))) => grant,
        other => panic!("no grant but {other:?}"),
    }
}

#[track_caller]
fn denied(rig: &mut Rig) -> AcquireError {
    match rig.outcome() {
        Some(Outcome::Acquire(Err(error))) => error,
        other => panic!("no denial but {other:?}"),
    }
}

#[track_caller]
fn no_quorum(rig: &mut Rig) -> Box<Denial> {
    match denied(rig) {
        AcquireError::NoQuorum(denial) => denial,
        other => panic!("{other}"),
    }
}

#[test]
fn a_lock_is_handed_out_at_the_quorum_and_late_grants_add_to_its_margin() {
    let mut rig = Rig::new(5, defaults);
    (0..5).for_each(|index| rig.hold(index));
    let lock = rig.acquire("a", 10_000, 0);
    rig.deliver(0);
    rig.deliver(1);
    assert_eq!(rig.outcome(), None, "two of five are no quorum");
    rig.deliver(2);
    assert_eq!(granted(&mut rig).granted.count(), 3);
    assert_eq!(rig.engine.margin(lock), 0);
    rig.deliver(3);
    rig.deliver(4);
    assert_eq!(rig.engine.margin(lock), 2);
}

#[test]
fn the_deadline_counts_from_the_start_whenever_the_replies_come() {
    let mut rig = Rig::new(5, |builder| builder.answer_timeout(ms(5000)));
    (0..5).for_each(|index| rig.hold(index));
    let start = rig.now;
    rig.acquire("a", 10_000, 0);
    rig.advance(ms(3000));
    (0..3).for_each(|index| rig.deliver(index));
    assert_eq!(granted(&mut rig).valid_until, start + ms(9898));
}

#[test]
fn a_quorum_that_comes_too_late_is_not_handed_out_and_is_released() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(20_000)));
    (0..3).for_each(|index| rig.hold(index));
    rig.acquire("a", 10_000, 0);
    // The replies arrive while the process sleeps past the deadline.
    rig.jump(ms(9898));
    rig.deliver_all();
    assert!(matches!(denied(&mut rig), AcquireError::Expired(_)));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn the_asked_for_validity_must_be_left() {
    let mut rig = Rig::new(1, |builder| builder.answer_timeout(ms(5000)));
    let ttl = rig.engine.config().ttl(ms(1000)).expect("valid");
    let request = |min| Request::Acquire {
        resource: Resource::new("a").expect("valid"),
        ttl,
        wait: Duration::ZERO,
        min_validity: min,
    };
    let refused = rig.engine.submit(rig.now, request(ms(988)));
    assert!(matches!(refused, Err(SubmitError::Input(InputError::MinValidityTooLong { .. }))), "{refused:?}");
    rig.hold(0);
    rig.engine.submit(rig.now, request(ms(900))).expect("room");
    rig.pump();
    rig.jump(ms(88));
    rig.deliver(0);
    assert!(matches!(denied(&mut rig), AcquireError::Expired(_)));
}

#[test]
fn a_refusal_is_fixed_at_the_reply_that_rules_a_quorum_out() {
    let mut rig = Rig::new(5, |builder| builder.ask_holder(false));
    let until = rig.now + ms(5000);
    (0..3).for_each(|index| rig.masters[index].put(b"a", b"other", Some(until)));
    (0..5).for_each(|index| rig.hold(index));
    rig.acquire("a", 10_000, 0);
    (0..5).for_each(|index| drop(rig.masters[index].take_log()));
    rig.deliver(3);
    rig.deliver(0);
    rig.deliver(1);
    assert_eq!(rig.outcome(), None, "a quorum is still possible");
    rig.deliver(2);
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention has its own error") };
    assert_eq!(denial.report.votes[4].1, Vote::Pending);
    rig.deliver(4);
    // Master 3 granted, master 4 had not answered: both are released, and those that refused are left alone.
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    assert_eq!(logs, [vec![], vec![], vec![], vec!["EVALSHA"], vec!["EVALSHA"]]);
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (3, 0));
}

#[test]
fn a_denied_caller_is_told_when_a_quorum_may_be_free() {
    let mut rig = Rig::new(5, defaults);
    for (index, left) in [(0, 700), (1, 300), (2, 500), (3, 900)] {
        let until = rig.now + ms(left);
        rig.masters[index].put(b"a", b"other", Some(until));
    }
    rig.acquire("a", 10_000, 0);
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    // Known when the outcome was fixed: masters 0 to 2 refused. Two others may be free, so one of the three must be.
    assert_eq!(denial.holder, HolderTtl::Left(ms(300)));
    let mut rig = Rig::new(1, defaults);
    rig.masters[0].put(b"a", b"stuck", None);
    rig.acquire("a", 10_000, 0);
    let error = denied(&mut rig);
    assert!(error.to_string().contains("without TTL"), "{error}");
}

#[test]
fn an_error_reply_is_not_a_refusal_and_is_released_too() {
    let mut rig = Rig::new(3, defaults);
    for index in 0..2 {
        rig.masters[index].errors.insert("SET".into(), "OOM command not allowed".into());
    }
    rig.acquire("a", 10_000, 0);
    let denial = no_quorum(&mut rig);
    assert!(
        matches!(&denial.report.votes[0].1, Vote::Failed(Failure::Replied(text)) if text.starts_with("OOM"))
    );
    for master in &mut rig.masters {
        assert_eq!(master.take_log().last().map(String::as_str), Some("EVALSHA"));
    }
    // An error on a minority is data.
    rig.masters[1].errors.clear();
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
}

#[test]
fn a_master_that_misses_its_deadline_is_skipped_until_it_answers() {
    let mut rig = Rig::new(3, defaults);
    rig.stop(2);
    rig.stop(1);
    rig.acquire("a", 10_000, 0);
    assert_eq!(rig.outcome(), None);
    rig.advance(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.advance(ms(1));
    let denial = no_quorum(&mut rig);
    assert_eq!(denial.report.votes[1].1, Vote::Failed(Failure::NoAnswer { limit: ms(50) }));
    // The next acquire is not sent to the silent ones, and knows its answer at once.
    rig.acquire("b", 10_000, 0);
    assert_eq!(no_quorum(&mut rig).report.votes[1].1, Vote::Failed(Failure::Silent));
    // Going on, it carries out SET and release in order, which leaves nothing, and counts again.
    rig.resume(1);
    assert_eq!((rig.holder_count("a"), rig.engine.owed_count(id(1))), (0, 0));
    rig.acquire("b", 10_000, 0);
    assert_eq!(granted(&mut rig).granted.count(), 2);
}

#[test]
fn a_silent_master_is_reconnected_after_a_while() {
    let mut rig = Rig::new(1, defaults);
    rig.stop(0);
    rig.acquire("a", 10_000, 0);
    rig.advance(ms(50));
    no_quorum(&mut rig);
    rig.advance(limits::SILENCE_MAX);
    rig.resume(0);
    rig.advance(limits::BACKOFF_MAX);
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
}

#[test]
fn a_master_that_is_only_slow_is_not_skipped() {
    let mut rig = Rig::new(1, defaults);
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.hold(0);
    rig.acquire("b", 10_000, 0);
    rig.advance(ms(30));
    // It answers an earlier request meanwhile, so it is alive.
    rig.receive(0, b"+OK\r");
    rig.advance(ms(30));
    no_quorum(&mut rig);
    let status = rig.engine.master_status(rig.now, id(0));
    assert_eq!(status.state, MasterState::Ready);
}

#[test]
fn a_grant_is_void_when_its_connection_breaks_before_the_verdict() {
    let mut rig = Rig::new(3, defaults);
    rig.hold(1);
    rig.hold(2);
    rig.acquire("a", 10_000, 0);
    rig.disconnect(0);
    rig.deliver(1);
    assert_eq!(rig.outcome(), None, "one grant was lost with its connection");
    rig.deliver(2);
    assert_eq!(granted(&mut rig).granted.iter().collect::<Vec<_>>(), [id(1), id(2)]);
}

#[test]
fn an_unanswered_set_is_released_first_thing_after_the_reconnect() {
    let mut rig = Rig::new(3, defaults);
    rig.hold(0);
    rig.masters[1].errors.insert("SET".into(), "OOM x".into());
    rig.masters[2].errors.insert("SET".into(), "OOM x".into());
    rig.acquire("a", 10_000, 0);
    no_quorum(&mut rig);
    // The SET was carried out; neither its reply nor the release's came through.
    rig.masters[0].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.disconnect(0);
    rig.masters[0].errors.clear();
    rig.deliver(0);
    drop(rig.masters[0].take_log());
    assert_eq!(rig.engine.claim_count(), 1);
    let is_echo = |args: &Vec<Vec<u8>>| args[0] == b"ECHO";
    while !rig.masters[0].log.iter().any(is_echo) {
        rig.advance(Duration::from_micros(100));
    }
    // In the same instant in which the connection has proved itself.
    let log = rig.masters[0].take_log();
    let echo = log.iter().position(|name| name == "ECHO").expect("a handshake");
    assert_eq!(log[echo + 1..], ["EVALSHA"], "{log:?}");
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn a_lock_whose_connections_all_broke_is_still_released_everywhere() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..3).for_each(|index| rig.refuse(index, true));
    (0..3).for_each(|index| rig.disconnect(index));
    rig.release(lock, true);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Err(ReleaseError::Unconfirmed(_))))), "{outcome:?}");
    assert_eq!(rig.holder_count("a"), 3);
    (0..3).for_each(|index| rig.refuse(index, false));
    rig.advance(ms(2000));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_release_that_came_before_its_set_is_repeated() {
    let mut rig = Rig::new(1, defaults);
    rig.stop(0);
    rig.acquire("a", 10_000, 0);
    let set = rig.cut(0);
    no_quorum(&mut rig);
    rig.resume(0);
    rig.advance(ms(500));
    assert_eq!(
        rig.masters[0].take_log().last().map(String::as_str),
        Some("EVALSHA"),
        "released, and found nothing"
    );
    // Only now the SET of the broken connection is carried out.
    rig.carry_out(0, set);
    assert_eq!(rig.holder_count("a"), 1);
    rig.advance(ms(2000));
    assert_eq!(rig.holder_count("a"), 0, "long before its TTL ends");
    rig.advance(ms(10_000));
    assert_eq!(rig.engine.claim_count(), 0, "and not for ever");
}

#[test]
fn a_restarted_master_does_not_count_until_every_lock_it_forgot_has_expired() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    rig.refuse(2, true);
    rig.disconnect(2);
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    // Master 1 comes back empty; with masters 1 and 2 a rival would have two votes for a lock that is held.
    rig.disconnect(1);
    let restarted = rig.now;
    rig.masters[1].restart("run1b", restarted);
    rig.refuse(2, false);
    rig.advance(ms(2500));
    rig.outcomes.clear();
    let seasoned = match rig.engine.master_status(rig.now, id(1)).state {
        MasterState::Quarantined(left) => rig.now + left,
        other => panic!("{other:?}"),
    };
    assert!(seasoned >= restarted + ms(10_102), "TTL plus drift after the restart at the earliest");
    rig.acquire("a", 10_000, 0);
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
    assert_eq!(rig.holder_count("a"), 1, "what the refused attempt set is released");
    // One tick short it does not count, and then it does.
    rig.refuse(2, true);
    rig.disconnect(2);
    rig.advance(seasoned - rig.now - Duration::from_nanos(1));
    rig.acquire("b", 10_000, 0);
    let denial = no_quorum(&mut rig);
    assert!(matches!(denial.report.votes[1].1, Vote::Failed(Failure::Quarantined { .. })), "{denial}");
    rig.advance(Duration::from_nanos(1));
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
}

#[test]
fn having_known_the_process_before_a_restart_for_long_counts_for_nothing() {
    let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(10_000)));
    rig.advance(ms(60_000));
    rig.disconnect(0);
    let restarted = rig.now;
    rig.masters[0].restart("run0b", restarted);
    rig.advance(ms(1000));
    rig.acquire("a", 1000, 0);
    no_quorum(&mut rig);
}

#[test]
fn an_uptime_may_be_a_second_ahead_of_the_truth() {
    let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(10_000)));
    // Started at the end of a second and asked at the beginning of another, it reports almost a second too much.
    rig.advance(ms(950));
    rig.disconnect(0);
    rig.refuse(0, true);
    let restarted = rig.now;
    rig.masters[0].restart("run0b", restarted);
    rig.advance(ms(2000));
    rig.refuse(0, false);
    rig.advance(ms(2100));
    let MasterState::Quarantined(left) = rig.engine.master_status(rig.now, id(0)).state else {
        panic!("young")
    };
    assert!(rig.now + left >= restarted + ms(10_102), "{left:?}");
}

#[test]
fn a_reconnect_to_the_same_process_is_no_restart() {
    let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(10_000)));
    let start = rig.now;
    rig.masters[0].restart("young", start);
    rig.disconnect(0);
    rig.advance(ms(5000));
    rig.disconnect(0);
    rig.advance(ms(5200));
    assert!(rig.now > start + ms(10_102));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
}

#[test]
fn a_master_that_hides_its_identity_counts_a_quarantine_after_each_connect() {
    let mut rig = Rig::unconnected(1, |builder| builder.max_ttl(ms(10_000)));
    rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into());
    rig.pump();
    rig.acquire("a", 1000, 0);
    no_quorum(&mut rig);
    assert_eq!(rig.engine.master_status(rig.now, id(0)).refused.len(), 3);
    rig.advance(ms(10_102));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.disconnect(0);
    rig.advance(ms(3000));
    rig.acquire("b", 1000, 0);
    no_quorum(&mut rig);
}

#[test]
fn trust_counts_a_restarted_master_at_once() {
    let mut rig = Rig::unconnected(1, |builder| builder.quarantine(Quarantine::Trust));
    let now = rig.now;
    rig.masters[0].restart("young", now);
    rig.pump();
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
}

#[test]
fn one_server_under_two_names_votes_once() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[1].run_id = "run0".to_owned();
    rig.pump();
    rig.acquire("a", 1000, 0);
    assert_eq!(granted(&mut rig).granted.count(), 2);
    let MasterState::Down(why) = rig.engine.master_status(rig.now, id(1)).state else { panic!("refused") };
    assert!(why.contains("same server as redis://m0"), "{why}");
}

#[test]
fn an_extension_counts_from_its_own_sending() {
    let mut rig = Rig::new(5, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.advance(ms(4000));
    let sent = rig.now;
    (0..5).for_each(|index| rig.hold(index));
    rig.extend(lock, 10_000);
    rig.advance(ms(40));
    (0..3).for_each(|index| rig.deliver(index));
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Ok(sent + ms(9898)))));
    rig.advance(ms(9000));
    assert_eq!(rig.holder_count("a"), 5);
}

#[test]
fn an_extension_without_a_quorum_leaves_the_deadline() {
    let mut rig = Rig::new(5, defaults);
    let start = rig.now;
    let lock = rig.acquire("a", 10_000, 0);
    let grant = granted(&mut rig);
    (2..5).for_each(|index| rig.stop(index));
    rig.extend(lock, 20_000);
    rig.advance(ms(50));
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))), "{outcome:?}");
    assert_eq!(grant.valid_until, start + ms(9898));
    // At that deadline it can no longer be extended, though most keys still live.
    (2..5).for_each(|index| rig.resume(index));
    rig.advance(grant.valid_until - rig.now);
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::Expired))));
    let sent = rig.masters[0].log.iter().filter(|args| args[0] == b"EVALSHA").count();
    assert_eq!(sent, 1, "after the deadline nothing is sent");
}

#[test]
fn an_extension_that_most_masters_refuse_says_that_the_lock_is_lost() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    for index in 0..2 {
        let until = rig.now + ms(1000);
        rig.masters[index].put(b"a", b"other", Some(until));
    }
    rig.extend(lock, 10_000);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Extend(Err(ExtendError::Lost(_))))), "{outcome:?}");
    assert_eq!(rig.masters[0].value(rig.now, b"a"), Some(b"other".as_slice()));
    assert_eq!(rig.engine.granted(lock).map(|granted| granted.count()), Some(1));
}

#[test]
fn a_shorter_extension_shortens_the_lock_even_if_it_fails() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(500)));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..3).for_each(|index| rig.hold(index));
    rig.extend(lock, 1000);
    rig.advance(ms(500));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    (0..3).for_each(|index| rig.deliver(index));
    rig.advance(ms(488));
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::Expired))));
}

#[test]
fn extensions_are_refused_beyond_the_longest_hold_and_two_at_a_time() {
    let mut rig = Rig::new(1, |builder| builder.max_hold(ms(15_000)));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.hold(0);
    rig.extend(lock, 10_000);
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::Busy))));
    rig.deliver(0);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.advance(ms(5001));
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::HoldLimit { max_hold: ms(15_000) }))));
}

#[test]
fn a_waiting_acquire_gets_the_lock_soon_after_it_is_free_with_a_new_token() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(300);
    (0..2).for_each(|index| rig.masters[index].put(b"a", b"other", Some(until)));
    rig.acquire("a", 10_000, 2000);
    rig.advance(until - rig.now + ms(3));
    let grant = granted(&mut rig);
    assert!(grant.attempts > 1);
    let sets: Vec<_> =
        rig.masters[2].log.iter().filter(|args| args[0] == b"SET" && args[3] == b"NX").collect();
    assert_eq!(sets.len(), grant.attempts as usize);
    assert!(sets.windows(2).all(|pair| pair[0][2] != pair[1][2]), "each attempt has its own token");
    // Between two attempts the partial key was released.
    let after: Vec<_> =
        rig.masters[2].log.iter().skip_while(|args| args[0] != b"ECHO").map(|args| args[0].clone()).collect();
    assert_eq!(after[1..4], [b"SET".to_vec(), b"EVALSHA".to_vec(), b"SET".to_vec()]);
}

#[test]
fn every_acquire_ends_by_its_deadline_whatever_is_up() {
    for up in 0..=1 {
        for wait in [0, 1, 7, 1000] {
            let mut rig = Rig::unconnected(3, defaults);
            (up..3).for_each(|index| rig.refuse(index, true));
            rig.pump();
            let start = rig.now;
            rig.acquire("a", 10_000, wait);
            while rig.outcomes.is_empty() {
                assert!(rig.now <= start + ms(wait.max(50)), "{up} up, wait {wait}: no answer in time");
                rig.advance(Duration::from_micros(100));
            }
            no_quorum(&mut rig);
        }
    }
}

#[test]
fn asking_for_the_holders_time_does_not_prolong_a_wait() {
    let mut rig = Rig::new(1, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    let start = rig.now;
    rig.acquire("a", 10_000, 20);
    while rig.outcomes.is_empty() {
        // From the first refusal on, the master answers no PTTL any more.
        rig.masters[0].errors.insert("PTTL".into(), "BUSY x".into());
        rig.advance(Duration::from_micros(100));
        assert!(rig.now <= start + ms(20), "the wait was over");
    }
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
}

#[test]
fn an_attempt_cut_short_by_the_end_of_the_wait_does_not_make_contention_an_outage() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
    rig.acquire("a", 10_000, 200);
    // From here on the network takes long: the last attempt cannot be answered before the wait ends.
    rig.advance(ms(150));
    (0..3).for_each(|index| rig.hold(index));
    rig.advance(ms(50));
    let error = denied(&mut rig);
    let AcquireError::Contended(denial) = &error else { panic!("{error}") };
    assert!(denial.attempts > 1 && denial.holder != HolderTtl::Unknown, "{error}");
}

#[test]
fn a_wait_that_ended_during_a_pause_of_the_process_starts_no_attempt() {
    let mut rig = Rig::new(1, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    rig.acquire("a", 10_000, 1000);
    let log_size = rig.masters[0].log.len();
    rig.jump(ms(5000));
    rig.pump();
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
    assert_eq!(rig.masters[0].log.len(), log_size);
}

#[test]
fn retries_are_jittered_and_bounded() {
    let mut rig = Rig::new(1, |builder| builder.ask_holder(false));
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    rig.acquire("a", 10_000, 5000);
    let (mut times, mut seen): (Vec<Instant>, usize) = (Vec::new(), 0);
    for _ in 0..6000 {
        rig.advance(ms(1));
        let sets = rig.masters[0].log.iter().filter(|args| args[0] == b"SET").count();
        if sets > seen {
            seen = sets;
            times.push(rig.now);
        }
    }
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).skip(10).collect();
    assert!((30..150).contains(&times.len()), "{} attempts in 5 s", times.len());
    let different: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(different.len() > 10, "random pauses: {pauses:?}");
}

#[test]
fn noscript_is_answered_by_the_whole_script_in_place() {
    let mut rig = Rig::new(1, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.masters[0].flush_scripts();
    drop(rig.masters[0].take_log());
    rig.extend(lock, 20_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.release(lock, true);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Ok(released))) if released.deleted == 1), "{outcome:?}");
    assert_eq!(rig.masters[0].take_log(), ["EVALSHA", "EVAL", "EVALSHA", "EVAL"]);
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn each_master_is_released_by_what_it_knows() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[1].is_native = true;
    rig.masters[2].is_native = true;
    rig.masters[2].errors.insert("DELIFEQ".into(), "ERR unknown command".into());
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    rig.extend(lock, 20_000);
    rig.release(lock, true);
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    assert_eq!(logs, [["EVALSHA", "EVALSHA"], ["SET", "DELIFEQ"], ["SET", "DELEX"]]);
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn a_reply_that_no_request_can_have_ends_the_connection() {
    for bytes in [b"+QUEUED\r\n".as_slice(), b":1\r\n", b"*0\r\n", b"?", b"$-2\r\n"] {
        let mut rig = Rig::new(1, defaults);
        rig.stop(0);
        rig.acquire("a", 10_000, 0);
        rig.receive(0, bytes);
        rig.refuse(0, true);
        rig.pump();
        let denial = no_quorum(&mut rig);
        assert_eq!(
            denial.report.votes[0].1,
            Vote::Failed(Failure::ConnectionLost),
            "{}",
            bytes.escape_ascii()
        );
    }
    let mut rig = Rig::new(1, defaults);
    rig.receive(0, b"+OK\r\n");
    let MasterState::Down(why) = rig.engine.master_status(rig.now, id(0)).state else {
        panic!("still connected")
    };
    assert!(why.contains("no request"), "{why}");
}

#[test]
fn a_cancelled_acquire_leaves_no_key_and_shifts_no_reply() {
    let mut rig = Rig::new(3, defaults);
    (0..3).for_each(|index| rig.stop(index));
    let lock = rig.acquire("a", 10_000, 0);
    rig.release(lock, false);
    assert_eq!(rig.engine.operation_count(), 0);
    let other = rig.acquire("b", 10_000, 0);
    (0..3).for_each(|index| rig.resume(index));
    assert_eq!(rig.outcomes.len(), 1, "a cancelled acquire has no outcome");
    assert_eq!(rig.outcomes[0].0, other);
    granted(&mut rig);
    assert_eq!((rig.holder_count("a"), rig.holder_count("b"), rig.engine.claim_count()), (0, 3, 1));
    assert!((0..3).all(|index| rig.engine.owed_count(id(index)) == 0));
}

#[test]
fn an_acquire_cancelled_between_two_attempts_ends_there() {
    let mut rig = Rig::new(1, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    let lock = rig.acquire("a", 10_000, 5000);
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(released))) if released.was_already_gone()));
    rig.advance(ms(1000));
    assert_eq!((rig.outcome(), rig.engine.operation_count(), rig.engine.claim_count()), (None, 0, 0));
}

#[test]
fn releasing_what_has_expired_or_was_released_is_an_answer() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.advance(ms(1000));
    for expected_absent in [3, 0] {
        rig.release(lock, true);
        let Some(Outcome::Release(Ok(released))) = rig.outcome() else { panic!("an answer") };
        assert!(released.was_already_gone());
        assert!(released.absent <= expected_absent);
    }
    rig.extend(lock, 1000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
}

#[test]
fn a_release_never_deletes_somebody_elses_key() {
    for is_native in [false, true] {
        let mut rig = Rig::unconnected(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.is_native = is_native);
        rig.pump();
        let lock = rig.acquire("a", 1000, 0);
        granted(&mut rig);
        let until = rig.now + ms(5000);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
        rig.release(lock, true);
        assert_eq!(rig.holder_count("a"), 3);
    }
}

#[test]
fn the_table_of_locks_is_bounded_and_says_so_at_once() {
    let mut rig = Rig::unconnected(1, defaults);
    rig.pump();
    rig.stop(0);
    let mut last = None;
    for count in 1..=limits::OPERATION_COUNT_MAX {
        last = Some(rig.submit_acquire("a", 10_000, 0));
        if count % 10_000 == 0 {
            rig.pump();
        }
    }
    let ttl = rig.engine.config().ttl(ms(1000)).expect("valid");
    let resource = Resource::new("b").expect("valid");
    let request = Request::Acquire { resource, ttl, wait: Duration::ZERO, min_validity: Duration::ZERO };
    assert_eq!(rig.engine.submit(rig.now, request), Err(SubmitError::Overloaded));
    rig.resume(0);
    rig.release(last.expect("some"), false);
    assert!(rig.engine.submit(rig.now, request).is_ok());
}

#[test]
fn login_goes_first_and_a_wrong_one_is_named() {
    let urls = ["redis://me:right@m0", "redis://me:wrong@m1"];
    let mut rig = Rig::with_urls(urls.map(str::to_owned).to_vec(), defaults);
    rig.masters.iter_mut().for_each(|master| master.password = Some("right".to_owned()));
    rig.pump();
    let states: Vec<_> = (0..2).map(|index| rig.engine.master_status(rig.now, id(index)).state).collect();
    assert_eq!(states[0], MasterState::Ready);
    assert!(
        matches!(&states[1], MasterState::Down(why) if why.contains("AUTH was refused: WRONGPASS")),
        "{states:?}"
    );
    assert!(!format!("{states:?}").contains("wrong"), "passwords are not shown");
}

#[test]
fn the_same_seed_and_times_give_the_same_bytes() {
    let run = || {
        let mut rig = Rig::new(3, defaults);
        let until = rig.now + ms(100);
        rig.masters[0].put(b"a", b"other", Some(until));
        rig.masters[1].put(b"a", b"other", Some(until));
        rig.acquire("a", 1000, 500);
        rig.advance(ms(50));
        rig.disconnect(2);
        rig.advance(ms(500));
        rig.masters.into_iter().map(|master| master.log).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}
