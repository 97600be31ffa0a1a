//! Fair locks: what is sent for them, and what masters may say of their queues.

use std::time::Duration;

use redlatch::engine::OpId;
use redlatch::status::MasterState;
use redlatch::{AcquireError, Options};

use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

fn acquire(rig: &mut Rig, wait: Duration) -> OpId {
    rig.acquire_with("a", Options::new().wait(wait).fair())
}

fn logs(rig: &mut Rig) -> Vec<Vec<String>> {
    rig.masters.iter_mut().map(|master| master.take_log()).collect()
}

#[test]
fn a_free_fair_lock_takes_one_round_trip() {
    let mut rig = Rig::new(3, defaults);
    let first = acquire(&mut rig, Duration::ZERO);
    assert_eq!(granted(&mut rig).attempts, 1);
    rig.release(first, false);
    logs(&mut rig);
    let lock = acquire(&mut rig, ms(1000));
    let grant = granted(&mut rig);
    assert_eq!((grant.attempts, grant.fencing_token), (1, None));
    assert_eq!(logs(&mut rig), vec![vec!["EVALSHA"]; 3], "the script is known by then");
    rig.release(lock, false);
    assert_eq!(logs(&mut rig), vec![vec!["EVALSHA", "EVALSHA"]; 3], "the release, and the end of the ticket");
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count(), rig.engine.operation_count()), (0, 0, 0));
}

#[test]
fn a_caller_without_wait_sends_one_command() {
    let mut rig = Rig::new(3, defaults);
    acquire(&mut rig, ms(1000));
    granted(&mut rig);
    logs(&mut rig);
    acquire(&mut rig, Duration::ZERO);
    assert!(matches!(denied(&mut rig), AcquireError::Contended(denial) if denial.attempts == 1));
    assert_eq!(logs(&mut rig)[0], ["EVALSHA"]);
    let now = rig.now;
    assert!(rig.masters.iter().all(|master| master.ticket_count(now, b"a") == 0));
}

#[test]
fn a_fair_lock_respects_the_attempts_limit() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    // The attempt behind the confirmation of the subscription is one more.
    rig.acquire_with("a", Options::new().wait(ms(60_000)).fair().max_attempts(4));
    rig.advance(ms(59_000));
    assert!(matches!(denied(&mut rig), AcquireError::Contended(denial) if denial.attempts == 5));
}

#[test]
fn a_fair_waiter_subscribes_to_its_own_channel() {
    for (options, channel_count) in [(Options::new().fair(), 1), (Options::new(), 2)] {
        let mut rig = Rig::new(1, defaults);
        rig.masters[0].put(b"a", b"other", None);
        rig.acquire_with("a", options.wait(ms(60_000)));
        rig.advance(ms(100));
        let is_subscription = |args: &&Vec<Vec<u8>>| args[0] == b"SUBSCRIBE";
        let subscription = rig.masters[0].log.iter().find(is_subscription).expect("it waits");
        assert_eq!(subscription.len() - 1, channel_count);
    }
}

#[test]
fn an_impossible_fair_answer_ends_the_connection() {
    let wrong: [&[u8]; 5] =
        [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*4\r\n:7\r\n:1\r\n:0\r\n:0\r\n", b"*1\r\n:2\r\n"];
    for reply in wrong {
        let mut rig = Rig::new(3, defaults);
        rig.stop(0);
        let lock = acquire(&mut rig, Duration::ZERO);
        rig.receive(0, reply);
        rig.pump();
        assert!(!granted(&mut rig).granted.contains(id(0)), "{}", reply.escape_ascii());
        let state = rig.engine.master_status(rig.now, id(0)).state;
        assert!(!matches!(state, MasterState::Ready), "{}: {state:?}", reply.escape_ascii());
        rig.resume(0);
        rig.release(lock, false);
        // What may come late over the connection that ended is owed until its TTL is over.
        rig.advance(ms(12_000));
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
    }
}

#[test]
fn impossible_queue_numbers_give_no_ticket() {
    for numbers in ["9223372036854775807", "-9223372036854775808", "0", "-1"] {
        let mut rig = Rig::new(3, defaults);
        (0..3).for_each(|index| rig.stop(index));
        let lock = acquire(&mut rig, ms(10_000));
        for index in 0..3 {
            let reply = format!("*4\r\n:1\r\n:{numbers}\r\n:{numbers}\r\n:{numbers}\r\n");
            rig.receive(index, reply.as_bytes());
        }
        rig.pump();
        assert_eq!(rig.engine.ticket(lock), None, "{numbers}");
        // They answered once in place of the masters, who now do for themselves.
        (0..3).for_each(|index| drop(rig.cut(index)));
        (0..3).for_each(|index| rig.resume(index));
        rig.advance(ms(5000));
        assert!(granted(&mut rig).attempts > 1, "{numbers}");
    }
}

#[test]
fn the_next_attempt_settles_different_numbers() {
    let mut rig = Rig::new(3, defaults);
    let now = rig.now;
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    rig.masters[2].put_ticket(now, b"a", b"redlatch:1:another", 41);
    // The first two answers are of a quorum that does not agree.
    rig.hold(0);
    let lock = acquire(&mut rig, ms(60_000));
    assert_eq!(rig.engine.ticket(lock).map(|ticket| ticket.number), Some(42));
    let own = rig.engine.ticket(lock).expect("as above").id;
    for master in [1, 2] {
        assert_eq!(rig.masters[master].ticket(now, b"a", own.as_bytes()), Some(42));
    }
}

#[test]
fn the_slowest_master_learns_the_script() {
    for kind in ["fair", "fenced", "shared"] {
        let mut rig = Rig::new(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
        rig.masters[2].flush_scripts();
        logs(&mut rig);
        let options = Options::new().wait(ms(60_000));
        let options = match kind {
            "fair" => options.fair(),
            "fenced" => options.fenced(),
            _ => options.shared(),
        };
        rig.submit_with("a", options);
        // Each attempt is refused by the others, and its release is on its way, when this one asks for the
        // script.
        let mut ask_for = |time: u64| {
            for _ in 0..time / 20 {
                rig.hold(2);
                rig.advance(ms(20));
                rig.deliver(2);
            }
            rig.masters[2].take_log()
        };
        let sent = |log: &[String], name: &str| log.iter().filter(|sent| *sent == name).count();
        let first = ask_for(1000);
        assert!(sent(&first, "SCRIPT") > 0, "{kind}: {first:?}");
        let later = ask_for(7000);
        assert_eq!((sent(&later, "SCRIPT"), sent(&later, "EVAL")), (0, 0), "{kind}: {later:?}");
        assert!(sent(&later, "EVALSHA") > 2, "{kind}: {later:?}");
    }
}

#[test]
fn many_unknown_attempts_load_scripts_once() {
    for (kind, script_count) in [("fair", 5), ("fenced", 3), ("shared", 3)] {
        let mut rig = Rig::new(1, defaults);
        for round in 0..2 {
            rig.masters[0].flush_scripts();
            logs(&mut rig);
            rig.hold(0);
            for index in 0..20 {
                let name = format!("{round} {index}");
                let options = Options::new().wait(Duration::ZERO);
                let options = match kind {
                    "fair" => options.fair(),
                    "fenced" => options.fenced(),
                    _ => options.shared(),
                };
                rig.submit_with(&name, options);
            }
            rig.pump();
            rig.deliver(0);
            let log = rig.masters[0].take_log();
            let sent = |name: &str| log.iter().filter(|sent| *sent == name).count();
            assert_eq!((sent("EVAL"), sent("SCRIPT")), (20, script_count), "{kind}: {log:?}");
        }
    }
}

#[test]
fn a_restarted_masters_number_does_not_count() {
    let mut rig = Rig::new(5, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    // Two of five answer: no quorum has a number.
    (2..5).for_each(|index| rig.stop(index));
    let lock = acquire(&mut rig, ms(60_000));
    rig.disconnect(0);
    let now = rig.now;
    rig.masters[0].restart("other", now);
    while !matches!(rig.engine.master_status(rig.now, id(0)).state, MasterState::Quarantined(_)) {
        rig.advance(ms(1));
    }
    rig.resume(2);
    assert_eq!(rig.engine.ticket(lock), None, "two of five have the number still");
    (3..5).for_each(|index| rig.resume(index));
    rig.advance(ms(5000));
    assert_eq!(rig.engine.ticket(lock).map(|ticket| ticket.number), Some(1));
}
