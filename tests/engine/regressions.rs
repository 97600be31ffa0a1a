//! Faults of the past. Each test is named after the right behaviour.

use std::time::{Duration, Instant};

use redlatch::engine::{Engine, HandleAct, Outcome, Request, Resource};
use redlatch::status::MasterState;
use redlatch::{Config, ConfigBuilder, ExtendError, Options, Quarantine};

use crate::parked::{free, with_other};
use crate::rig::{Rig, claim_count_max, id, operation_count_max};
use crate::{defaults, granted, ms, no_quorum};

#[test]
fn zero_retry_delay_makes_no_endless_loop() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut rig = Rig::unconnected(1, |b| b.retry_delay(Duration::ZERO..=ms(100)));
        rig.refuse(0, true);
        rig.pump();
        rig.acquire("a", 10_000, 20);
        rig.run_for(ms(30));
        let _ = done.send(rig.outcome().is_some());
    });
    assert_eq!(wait.recv_timeout(Duration::from_secs(10)), Ok(true), "handle_timeout never returns");
}

// I18
#[test]
fn one_stopped_master_of_three_is_skipped() {
    for awaited in [true, false] {
        let mut rig = Rig::new(3, defaults);
        rig.stop_master(2);
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        rig.run_for(ms(100));
        rig.release(lock, awaited);
        rig.run_for(ms(100));
        for _ in 0..100 {
            let lock = rig.acquire("a", 10_000, 0);
            rig.run_for(ms(60));
            rig.release(lock, awaited);
            rig.run_for(ms(60));
        }
        let state = rig.engine.master_status(rig.now, id(2)).state;
        let (owed, claims) = (rig.engine.owed_count(id(2)), rig.engine.claim_count());
        assert!(state != MasterState::Ready, "awaited {awaited}: {state:?}, owed {owed}, claims {claims}");
    }
}

#[test]
fn one_stopped_master_never_overloads_the_client() {
    let mut rig = Rig::new(3, defaults);
    rig.stop_master(2);
    for n in 0..=operation_count_max() {
        let ttl = ms(30_000);
        let resource = Resource::new("b").expect("valid");
        let request =
            Request::Acquire { resource, options: Options::new().ttl(ttl).wait(Duration::ZERO), label: None };
        let lock = rig.engine.submit(rig.now, request).unwrap_or_else(|e| panic!("{n}: {e}"));
        rig.engine.submit(rig.now, Request::Release { lock, awaited: false }).expect("taken");
        if n % 100 == 0 {
            // 50,000 pairs a second
            rig.run_for(ms(2));
            rig.outcomes.clear();
        }
    }
}

#[test]
fn silence_and_one_refusal_prove_no_loss() {
    let mut rig = Rig::new(5, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    assert_eq!(rig.holder_count("a"), 5);
    rig.stop_master(1);
    rig.stop_master(2);
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    let outcome = rig.outcome();
    // Masters 1 to 4 hold it, a quorum.
    assert!(matches!(outcome, Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))), "{outcome:?}");
}

#[test]
fn an_extension_outlives_its_locks_release() {
    let mut rig = Rig::new(1, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stall_replies(0);
    rig.extend(lock, 10_000);
    rig.release(lock, true);
    rig.end_stall(0);
    rig.run_for(ms(1000));
    let all: Vec<_> = rig.outcomes.iter().map(|(_, o)| o.clone()).collect();
    assert_eq!(all.len(), 2, "{all:?}");
}

#[test]
fn the_engine_shows_no_password() {
    let config = Config::builder().master("redis://me:s3cret@h").build().expect("valid");
    let now = Instant::now();
    let mut engine = Engine::new(std::sync::Arc::new(config), [7; 32], now);
    engine.handle_timeout(now);
    assert!(engine.poll_link().is_some());
    engine.handle_connected(now, id(0));
    let shown = format!("{engine:?}");
    let bytes = b"s3cret".map(|b| b.to_string()).join(", ");
    assert!(!shown.contains(&bytes), "in decimal");
}

#[test]
fn noscript_to_the_whole_script_is_a_failure() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut rig = Rig::new(3, defaults);
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        rig.masters[0].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
        rig.masters[0].errors.insert("EVAL".into(), "NOSCRIPT x".into());
        rig.extend(lock, 10_000);
        rig.release(lock, true);
        let _ = done.send(rig.masters[0].take_log());
    });
    let log = wait.recv_timeout(Duration::from_secs(20)).expect("it ends");
    assert_eq!(log[log.len() - 4..], ["EVALSHA", "EVAL", "EVALSHA", "EVAL"]);
}

#[test]
fn a_long_answer_limit_still_finds_stopped_masters() {
    let mut rig = Rig::new(1, |b| b.answer_timeout(ms(1000)));
    rig.stop_master(0);
    rig.acquire("a", 1000, 0);
    rig.run_for(ms(1000));
    no_quorum(&mut rig);
    rig.run_for(ms(10));
    assert_ne!(rig.engine.master_status(rig.now, id(0)).state, MasterState::Ready);
}

#[test]
fn quarantined_majority_decides_without_answers() {
    let mut rig = Rig::unconnected(5, |b| b.max_ttl(ms(10_000)));
    let now = rig.now;
    (0..3).for_each(|i| rig.masters[i].restart(&format!("r{i}"), now));
    rig.pump();
    rig.stop_master(3);
    rig.stop_master(4);
    (0..3).for_each(|i| rig.stall_replies(i));
    rig.acquire("a", 1000, 0);
    assert!(rig.outcome().is_some());
}

#[test]
fn refused_releases_do_not_overload_the_client() {
    let mut rig = Rig::new(1, defaults);
    // As with an ACL that allows SET and no way to delete.
    rig.masters[0].errors.insert("EVALSHA".into(), "NOPERM x".into());
    for batch in 0..=claim_count_max() / 1000 {
        for index in 0..1000 {
            let lock = rig.submit_acquire(&format!("{batch}:{index}"), 30_000, 0);
            rig.engine.submit(rig.now, Request::Release { lock, awaited: false }).expect("taken");
        }
        rig.jump(ms(1));
        rig.pump();
        rig.masters[0].log.clear();
        assert_eq!(rig.outcomes.drain(..).next(), None, "batch {batch}");
        assert!(rig.engine.claim_count() <= claim_count_max());
    }
}

/// The table is full of claims whose releases are refused, and a waiter is rung for its next round.
#[test]
fn next_round_makes_room_in_a_full_table() {
    let mut rig = with_other(Rig::new(1, |builder| builder.answer_timeout(ms(4000))));
    rig.acquire("a", 30_000, 60_000);
    loop {
        let count = claim_count_max() - rig.engine.claim_count();
        if count == 0 {
            break;
        }
        release_in_vain(&mut rig, count.min(1000));
    }
    free(&mut rig, 0);
    rig.pump();
    granted(&mut rig);
}

#[test]
fn adoption_makes_room_in_a_full_table() {
    let mut rig = Rig::new(1, |builder| builder.answer_timeout(ms(4000)));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let wall = ms(1_700_000_000_000);
    let handle = rig.engine.pass(rig.now, wall, lock, ms(10_000)).expect("it is held");
    while rig.engine.claim_count() < claim_count_max() {
        let count = claim_count_max() - rig.engine.claim_count();
        release_in_vain(&mut rig, count.min(1000));
    }
    let act = HandleAct::Adopt { auto_extend: None };
    assert!(rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).is_ok());
}

/// Acquires and releases this many locks, while the master deletes nothing.
fn release_in_vain(rig: &mut Rig, count: usize) {
    for index in 0..count {
        let lock = rig.submit_acquire(&index.to_string(), 30_000, 0);
        rig.engine.submit(rig.now, Request::Release { lock, awaited: false }).expect("taken");
    }
    let size = rig.engine.send_ready(id(0)).len();
    rig.engine.send_done(id(0), size);
    rig.receive(0, &b"+OK\r\n-NOPERM x\r\n".repeat(count));
    assert_eq!(rig.engine.poll_outcome(), None);
}

#[test]
fn a_failed_handshake_names_its_cause_only() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[1].run_id = "run0".to_owned();
    rig.masters[1].errors.insert("CLIENT".into(), "NOPERM no setname".into());
    rig.pump();
    let MasterState::Down(why) = rig.engine.master_status(rig.now, id(1)).state else { panic!("refused") };
    assert!(!why.contains("NOPERM"), "{why}");
}

#[test]
fn short_waits_detect_a_dead_master() {
    // Repeated short waits on a single stopped master never mark it as silent.
    let mut rig = Rig::new(1, defaults);
    rig.stop_master(0);
    for _ in 0..100 {
        rig.acquire("a", 10_000, 20);
        rig.run_for(ms(20));
        rig.outcomes.clear();
    }
    let state = rig.engine.master_status(rig.now, id(0)).state;
    assert_ne!(state, MasterState::Ready, "2 s of silence");
}

#[test]
fn an_extension_puts_a_lost_key_back() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let gone = rig.now;
    rig.masters[1].put(b"a", b"gone", Some(gone));
    rig.extend(lock, 10_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.release(lock, false);
    rig.pump();
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn another_process_needs_no_second_release() {
    let mut rig = Rig::new(3, |b| b.quarantine(Quarantine::Trust));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let now = rig.now;
    rig.reset_conn(1);
    rig.masters[1].restart("other", now);
    rig.release(lock, false);
    rig.run_for(ms(200));
    assert_eq!(rig.engine.claim_count(), 0, "long before the TTL");
}

/// The uptime of 3 s may be 2 s, so the process may have started when its predecessor was last heard.
#[test]
fn new_process_needs_no_second_release() {
    let settings = |builder: ConfigBuilder| builder.quarantine(Quarantine::Trust).connect_timeout(ms(5000));
    let mut rig = Rig::new(3, settings);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let heard_at = rig.now;
    rig.reset_conn(1);
    rig.masters[1].restart("other", heard_at - ms(3000));
    rig.stall_replies(1);
    rig.release(lock, false);
    rig.run_for(ms(2000));
    rig.end_stall(1);
    assert_eq!((rig.now - heard_at, rig.engine.claim_count()), (ms(2000), 0));
}

// I145
#[test]
fn a_repeated_password_is_not_shown() {
    for quote in ["'", "`"] {
        let mut rig = Rig::with_urls(vec!["redis://me:s3cret@m0".to_owned()], defaults);
        // As with `rename-command AUTH ""`.
        let text = format!(
            "ERR unknown command {quote}AUTH{quote}, with args beginning with: {quote}me{quote} {quote}s3cret{quote} "
        );
        rig.masters[0].errors.insert("AUTH".into(), text);
        rig.pump();
        let state = rig.engine.master_status(rig.now, id(0)).state;
        let MasterState::Down(why) = &state else { panic!("{state:?}") };
        assert!(why.contains("the login was refused: ERR unknown command"), "{why}");
        rig.acquire("a", 10_000, 0);
        let denial = no_quorum(&mut rig);
        assert!(!format!("{state:?} {denial} {:?}", rig.engine).contains("s3cret"), "{denial}");
    }
}

#[test]
fn a_repaired_key_lives_with_the_extended_lock() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[2].errors.insert("SET a".into(), "OOM x".into());
    let lock = rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.masters[2].errors.clear();
    rig.stall_replies(2);
    rig.acquire("b", 1000, 0);
    granted(&mut rig);
    rig.run_for(ms(100));
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Silent);
    rig.stall_replies(0);
    rig.stall_replies(1);
    rig.extend(lock, 10_000);
    // It speaks during the extension, and is asked again. Its answer comes after the extension's end.
    rig.deliver_some(2, 1);
    rig.end_stall(0);
    rig.end_stall(1);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.end_stall(2);
    let margin = rig.engine.margin(lock);
    rig.run_for(ms(2000));
    assert!(rig.holder_count("a") >= 2 + margin, "{} hold it, margin {margin}", rig.holder_count("a"));
}

#[test]
fn a_broken_connection_does_not_count_as_extended() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.stall_replies(1);
    rig.stop_master(2);
    rig.extend(lock, 10_000);
    let now = rig.now;
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.masters[0].restart("other", now);
    rig.end_stall(1);
    rig.run_for(ms(60));
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))), "{outcome:?}");
}

#[test]
fn master_that_owes_no_reply_is_not_silent() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(2);
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    // The SET was carried out, but its answer is lost. The next connection finds the key.
    rig.reset_conn(2);
    rig.end_stall(2);
    while rig.engine.master_status(rig.now, id(2)).state != MasterState::Ready {
        rig.run_for(ms(1));
    }
    rig.jump(ms(1000));
    rig.pump();
    assert_eq!(rig.engine.owed_count(id(2)), 0);
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Ready);
}

#[test]
fn absence_on_another_server_ends_no_release() {
    let mut rig = Rig::new(1, |b| b.quarantine(Quarantine::Trust));
    rig.stop_master(0);
    rig.acquire("a", 10_000, 0);
    let set = rig.break_conn(0);
    no_quorum(&mut rig);
    rig.resume_master(0);
    // For a moment, the address leads to another server that has also run for an hour.
    let first = std::mem::replace(&mut rig.masters[0].run_id, "other".to_owned());
    rig.run_for(ms(500));
    rig.reset_conn(0);
    rig.masters[0].run_id = first;
    rig.carry_out(0, set);
    rig.run_for(ms(2000));
    assert_eq!(rig.holder_count("a"), 0, "long before its TTL ends");
}

#[test]
fn a_repaired_key_is_released_after_a_refusal() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(2);
    let until = rig.now + ms(1);
    rig.masters[2].put(b"a", b"other", Some(until));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(100));
    assert_eq!(rig.engine.master_status(rig.now, id(2)).state, MasterState::Silent);
    // The refusal arrives after the key in the way has gone.
    rig.end_stall(2);
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.release(lock, false);
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}
