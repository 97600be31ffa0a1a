//! What makes a master's vote count: handshake, quarantine, answers in time, one vote for each server.

use crate::rig::{Rig, id};
use redlatch::error::{Failure, Vote};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Options, Quarantine, limits};

use crate::{defaults, denied, granted, ms, no_quorum};

#[test]
fn a_late_master_is_skipped_until_it_answers() {
    let mut rig = Rig::new(3, defaults);
    rig.stop_master(2);
    rig.stop_master(1);
    rig.acquire("a", 10_000, 0);
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let denial = no_quorum(&mut rig);
    assert_eq!(denial.report.votes[1].1, Vote::Failed(Failure::NoAnswer { limit: ms(50) }));
    // The next acquisition skips the silent masters, and is decided at once.
    rig.acquire("b", 10_000, 0);
    assert_eq!(no_quorum(&mut rig).report.votes[1].1, Vote::Failed(Failure::Silent));
    // The resumed master carries out SET and release in order, which leaves nothing, and counts again.
    rig.resume_master(1);
    assert_eq!((rig.holder_count("a"), rig.engine.owed_count(id(1))), (0, 0));
    rig.acquire("b", 10_000, 0);
    assert_eq!(granted(&mut rig).granted.count(), 2);
}

#[test]
fn a_silent_master_is_reconnected_after_a_while() {
    let mut rig = Rig::new(1, defaults);
    rig.stop_master(0);
    rig.acquire("a", 10_000, 0);
    rig.run_for(ms(50));
    no_quorum(&mut rig);
    rig.run_for(limits::SILENCE_MAX);
    rig.resume_master(0);
    rig.run_for(limits::BACKOFF_MAX);
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
}

#[test]
fn slow_master_is_not_skipped() {
    let mut rig = Rig::new(1, defaults);
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stall_replies(0);
    rig.acquire("b", 10_000, 0);
    rig.run_for(ms(30));
    // It answers an earlier request meanwhile, so it is known to be alive.
    rig.receive(0, b"+OK\r");
    rig.run_for(ms(30));
    no_quorum(&mut rig);
    let status = rig.engine.master_status(rig.now, id(0));
    assert_eq!(status.state, MasterState::Ready);
}

#[test]
fn unread_master_is_not_marked_silent() {
    let mut rig = Rig::new(1, defaults);
    rig.stall_replies(0);
    rig.acquire("a", 10_000, 0);
    rig.jump(ms(60));
    rig.engine.handle_unread(rig.now);
    rig.pump();
    no_quorum(&mut rig);
    assert_eq!(rig.engine.master_status(rig.now, id(0)).state, MasterState::Ready);
}

/// The wait ends at the same moment as the quarantine.
#[test]
fn ended_quarantine_is_not_reported() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    rig.reset_conn(0);
    let restarted = rig.now;
    rig.masters[0].restart("run0b", restarted);
    rig.run_for(ms(2500));
    let MasterState::Quarantined(left) = rig.engine.master_status(rig.now, id(0)).state else {
        panic!("it has restarted")
    };
    rig.run_for(left - ms(10));
    (1..3).for_each(|index| rig.masters[index].put(b"a", b"other", None));
    rig.stall_replies(0);
    rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(10)).fair());
    rig.run_for(ms(10));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    assert_eq!(denial.report.votes[0].1, Vote::Pending, "{denial}");
}

/// A master that has just started.
fn start_late(rig: &mut Rig, index: usize) {
    rig.masters[index].started = rig.now;
}

// I118
#[test]
fn a_wait_shorter_than_the_quarantine_fails() {
    let mut rig = Rig::unconnected(3, |builder| builder.max_ttl(ms(10_000)));
    (0..2).for_each(|index| start_late(&mut rig, index));
    rig.pump();
    let end = rig.now + ms(10_102);
    rig.acquire("a", 1000, 5000);
    let denial = no_quorum(&mut rig);
    for (_, vote) in &denial.report.votes[..2] {
        assert!(
            matches!(vote, Vote::Failed(Failure::Quarantined { left, .. }) if rig.now + *left >= end),
            "{denial}"
        );
    }
    assert!(denial.to_string().contains("not counted for another 10."), "{denial}");
    let state = rig.engine.master_status(rig.now, id(0)).state;
    let MasterState::Quarantined(left) = state else { panic!("{state:?}") };
    rig.acquire_with("a", Options::new().ttl(ms(1000)).wait(left));
    no_quorum(&mut rig);
    // A long enough wait is worth it, also for a master that may return in time.
    rig.acquire("a", 1000, 20_000);
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(19_000));
    granted(&mut rig);
}

// I118
#[test]
fn a_wait_goes_on_for_a_returning_master() {
    let mut rig = Rig::unconnected(3, |builder| builder.max_ttl(ms(10_000)));
    start_late(&mut rig, 0);
    rig.refuse(1, true);
    rig.pump();
    rig.acquire("a", 1000, 5000);
    rig.run_for(ms(1000));
    assert_eq!(rig.outcome(), None);
    rig.refuse(1, false);
    rig.run_for(ms(3000));
    assert_eq!(granted(&mut rig).granted.iter().filter(|master| *master != id(0)).count(), 2);
}

#[test]
fn waiter_awaits_masters_that_disconnected_in_quarantine() {
    let mut rig = Rig::unconnected(3, |builder| builder.max_ttl(ms(10_000)));
    (0..2).for_each(|index| start_late(&mut rig, index));
    rig.pump();
    for index in 0..2 {
        rig.refuse(index, true);
        rig.reset_conn(index);
    }
    rig.acquire("a", 1000, 5000);
    rig.run_for(ms(4900));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(100));
    no_quorum(&mut rig);
}

#[test]
fn earlier_connection_does_not_shorten_a_restart_quarantine() {
    let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(10_000)));
    rig.run_for(ms(60_000));
    rig.reset_conn(0);
    let restarted = rig.now;
    rig.masters[0].restart("run0b", restarted);
    rig.run_for(ms(1000));
    rig.acquire("a", 1000, 0);
    no_quorum(&mut rig);
}

#[test]
fn reconnect_to_same_process_is_no_restart() {
    let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(10_000)));
    let start = rig.now;
    rig.masters[0].restart("young", start);
    rig.reset_conn(0);
    rig.run_for(ms(5000));
    rig.reset_conn(0);
    rig.run_for(ms(5200));
    assert!(rig.now > start + ms(10_102));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
}

#[test]
fn a_nameless_master_is_quarantined_at_each_connect() {
    let mut rig = Rig::unconnected(1, |builder| builder.max_ttl(ms(10_000)));
    rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into());
    rig.pump();
    rig.acquire("a", 1000, 0);
    no_quorum(&mut rig);
    assert_eq!(rig.engine.master_status(rig.now, id(0)).refused.len(), 3);
    rig.run_for(ms(10_102));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.reset_conn(0);
    rig.run_for(ms(3000));
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
fn an_impossible_reply_ends_the_connection() {
    for bytes in [b"+QUEUED\r\n".as_slice(), b":1\r\n", b"*0\r\n", b"?", b"$-2\r\n"] {
        let mut rig = Rig::new(1, defaults);
        rig.stop_master(0);
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
    assert!(why.contains("without a request"), "{why}");
}

#[test]
fn login_goes_first_and_failure_is_named() {
    let urls = ["redis://me:right@m0", "redis://me:wrong@m1"];
    let mut rig = Rig::with_urls(urls.map(str::to_owned).to_vec(), defaults);
    rig.masters.iter_mut().for_each(|master| master.password = Some("right".to_owned()));
    rig.pump();
    let states: Vec<_> = (0..2).map(|index| rig.engine.master_status(rig.now, id(index)).state).collect();
    assert_eq!(states[0], MasterState::Ready);
    assert!(
        matches!(&states[1], MasterState::Down(why) if why.contains("the login was refused: WRONGPASS")),
        "{states:?}"
    );
    assert!(!format!("{states:?}").contains("wrong"), "passwords are not shown");
}

#[test]
fn unnamed_process_gets_lost_keys_back() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.reset_conn(0);
    let now = rig.now;
    rig.masters[0].restart("", now);
    assert_eq!(rig.holder_count("a"), 2);
    rig.run_for(ms(2500));
    assert_eq!(rig.holder_count("a"), 3);
}

#[test]
fn slow_handshake_lengthens_the_first_attempt() {
    let mut rig = Rig::unconnected(3, defaults);
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.run_for(ms(80));
    rig.end_stalls();
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.acquire("a", 10_000, 0);
    rig.run_for(ms(200));
    assert!(rig.outcome().is_none(), "these masters are slow");
    rig.end_stalls();
    granted(&mut rig);
}

/// The third master takes 80 ms, and is needed once the second is gone or does not count.
#[test]
fn needed_slow_master_gets_its_full_time() {
    for fault in ["silent", "broken", "quarantined"] {
        let mut rig = Rig::unconnected(3, defaults);
        if fault == "quarantined" {
            start_late(&mut rig, 1);
        }
        rig.stall_replies(2);
        rig.run_for(ms(80));
        rig.end_stall(2);
        if fault == "broken" {
            rig.refuse(1, true);
            rig.reset_conn(1);
        } else if fault == "silent" {
            rig.stop_master(1);
            rig.acquire("b", 10_000, 0);
            granted(&mut rig);
            rig.run_for(ms(60));
            assert_eq!(rig.engine.master_status(rig.now, id(1)).state, MasterState::Silent);
        }
        rig.stall_replies(2);
        rig.acquire("a", 10_000, 0);
        rig.run_for(ms(80));
        rig.end_stall(2);
        granted(&mut rig);
    }
}

#[test]
fn unconnected_master_is_not_called_nameless() {
    let rig = Rig::unconnected(1, defaults);
    assert_eq!(rig.engine.master_status(rig.now, id(0)).warnings, []);
}

#[test]
fn ended_connection_is_not_closed_again() {
    let mut rig = Rig::new(1, defaults);
    rig.reset_conn(0);
    assert_eq!(rig.engine.poll_link(), None);
}

/// The master was silent, so it is sent the lock again before its first answer arrives, which is a refusal.
#[test]
fn refusing_restarted_master_gets_the_lock_again() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let until = rig.now + ms(200);
    rig.masters[2].put(b"a", b"other", Some(until));
    rig.stall_replies(2);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(300));
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Silent);
    rig.end_stall(2);
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.reset_conn(2);
    let now = rig.now;
    rig.masters[2].restart("other", now);
    rig.run_for(ms(2500));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
}

/// Another process answered after the shorter extension was lost, so nothing is under way there.
#[test]
fn an_extension_is_lost_with_one_connection_only() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stop_master(2);
    rig.extend(lock, 2000);
    drop(rig.break_conn(2));
    rig.resume_master(2);
    let now = rig.now;
    rig.masters[2].restart("other", now);
    rig.run_for(ms(500));
    assert_eq!(rig.holder_count("a"), 3);
    rig.reset_conn(2);
    rig.run_for(ms(500));
    rig.extend(lock, 10_000);
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.run_for(ms(5000));
    assert_eq!(rig.holder_count("a"), 3, "the third master was sent the last extension");
}
