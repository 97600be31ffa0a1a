//! Fair locks: their commands, and what masters may answer about their queues.

use std::time::Duration;

use redlatch::engine::{OpId, Request, Resource, SubmitError};
use redlatch::error::InputError;
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

/// Number of waiters in each master's queue.
fn waiters(rig: &Rig) -> Vec<usize> {
    rig.masters.iter().map(|master| master.parked(rig.now, b"a").len()).collect()
}

/// Number and sum of the waits that have ended.
fn wait_times(rig: &Rig) -> (u64, Duration) {
    let times = rig.engine.stats(rig.now).wait_time;
    (times.count(), times.sum())
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
    assert_eq!(logs(&mut rig), vec![vec!["EVALSHA"]; 3], "the release serves whoever waits");
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count(), rig.engine.operation_count()), (0, 0, 0));
}

// I61
#[test]
fn a_caller_without_wait_sends_one_command() {
    let mut rig = Rig::new(3, defaults);
    acquire(&mut rig, ms(1000));
    granted(&mut rig);
    logs(&mut rig);
    acquire(&mut rig, Duration::ZERO);
    assert!(matches!(denied(&mut rig), AcquireError::Contended(denial) if denial.attempts == 1));
    assert_eq!(logs(&mut rig)[0], ["EVALSHA"]);
    assert_eq!((waiters(&rig), rig.engine.claim_count()), (vec![0; 3], 1), "the holder's alone");
    assert_eq!(wait_times(&rig), (0, Duration::ZERO));
}

/// A master that answers again would begin another round, with its own limit.
// I22
#[test]
fn caller_without_wait_ignores_a_returning_master() {
    let mut rig = Rig::new(3, |config| config.answer_timeout(ms(200)));
    (0..3).for_each(|index| rig.stop_master(index));
    acquire(&mut rig, Duration::ZERO);
    rig.reset_conn(2);
    rig.resume_master(2);
    rig.run_for(ms(201));
    assert!(matches!(denied(&mut rig), AcquireError::NoQuorum(_)));
}

/// A second round would make the late grants of the first void.
#[test]
fn caller_without_wait_gets_a_late_grant() {
    let mut rig = Rig::new(3, |config| config.answer_timeout(ms(1500)));
    let lock = acquire(&mut rig, Duration::ZERO);
    granted(&mut rig);
    rig.release(lock, false);
    logs(&mut rig);
    (0..3).for_each(|index| rig.stall_replies(index));
    acquire(&mut rig, Duration::ZERO);
    rig.run_for(ms(1400));
    rig.end_stalls();
    granted(&mut rig);
    assert_eq!(logs(&mut rig), vec![vec!["EVALSHA"]; 3], "one round");
}

#[test]
fn rounds_of_a_parked_waiter_are_one_attempt() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    rig.acquire_with("a", Options::new().wait(ms(10_000)).fair().max_attempts(1));
    rig.run_for(ms(9900));
    assert_eq!((rig.outcome().is_none(), waiters(&rig)), (true, vec![1; 3]), "rounds are no attempts");
    rig.run_for(ms(200));
    assert!(matches!(denied(&mut rig), AcquireError::Contended(denial) if denial.attempts == 1));
    assert_eq!((waiters(&rig), rig.engine.claim_count()), (vec![0; 3], 0));
    assert_eq!(wait_times(&rig), (1, ms(10_000)));
}

/// Bytes that a master sends in place of the answer to a park.
fn answer(rig: &mut Rig, master: usize, reply: &[u8]) {
    rig.receive(master, reply);
    rig.pump();
}

#[test]
fn impossible_park_answer_ends_the_connection() {
    let wrong: [&[u8]; 5] =
        [b"+OK\r\n", b":1\r\n", b"_\r\n", b"*4\r\n:7\r\n:1\r\n:0\r\n:0\r\n", b"*1\r\n:2\r\n"];
    for reply in wrong {
        let mut rig = Rig::new(3, defaults);
        rig.stop_master(0);
        let lock = acquire(&mut rig, Duration::ZERO);
        answer(&mut rig, 0, reply);
        assert!(!granted(&mut rig).granted.contains(id(0)), "{}", reply.escape_ascii());
        let state = rig.engine.master_status(rig.now, id(0)).state;
        assert!(!matches!(state, MasterState::Ready), "{}: {state:?}", reply.escape_ascii());
        rig.resume_master(0);
        rig.release(lock, false);
        // A late park over the ended connection is owed until its TTL ends.
        rig.run_for(ms(15_000));
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
    }
}

#[test]
fn release_grants_first_waiter_by_message() {
    let mut rig = Rig::new(3, defaults);
    let held = acquire(&mut rig, Duration::ZERO);
    granted(&mut rig);
    let waiting = acquire(&mut rig, ms(60_000));
    rig.run_for(ms(100));
    assert_eq!(waiters(&rig), [1; 3]);
    logs(&mut rig);
    rig.release(held, false);
    assert_eq!(granted(&mut rig).attempts, 1);
    assert_eq!(logs(&mut rig), vec![vec!["EVALSHA"]; 3], "the release, and nothing of the waiter");
    assert_eq!((waiters(&rig), rig.engine.woken_count()), (vec![0; 3], 2));
    assert_eq!(wait_times(&rig), (1, ms(100)));
    rig.release(waiting, true);
    rig.run_for(ms(1));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn each_round_ends_the_previous_token() {
    let mut rig = Rig::new(3, defaults);
    // One master is free, so each round gets a part of the lock.
    rig.masters[0].put(b"a", b"other", None);
    rig.masters[1].put(b"a", b"other", None);
    acquire(&mut rig, ms(60_000));
    let first = rig.masters[2].value(rig.now, b"a").map(<[u8]>::to_vec);
    assert!(first.is_some());
    rig.run_for(ms(200));
    let now = rig.now;
    assert_ne!(rig.masters[2].value(now, b"a").map(<[u8]>::to_vec), first, "it gives a part back");
    rig.run_for(ms(5000));
    assert!(rig.engine.claim_count() <= 2, "{} tokens of a waiter", rig.engine.claim_count());
    assert_eq!(
        (rig.holder_count("a"), waiters(&rig)[..2].to_vec()),
        (2, vec![1; 2]),
        "it leaves the part alone"
    );
}

#[test]
fn waiter_returns_to_a_reconnected_master() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    acquire(&mut rig, ms(60_000));
    rig.reset_conn(2);
    let now = rig.now;
    rig.masters[2].restart("other", now);
    rig.masters[2].put(b"a", b"other", None);
    rig.run_for(ms(1500));
    assert_eq!(waiters(&rig), [1; 3]);
}

#[test]
fn master_without_messages_is_polled() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[2].errors.insert("HELLO".to_owned(), "ERR unknown command 'HELLO'".to_owned());
    rig.pump();
    let held = acquire(&mut rig, Duration::ZERO);
    granted(&mut rig);
    assert_eq!(rig.engine.margin(held), 1);
    let waiting = acquire(&mut rig, ms(60_000));
    rig.run_for(ms(100));
    assert_eq!(waiters(&rig), [1, 1, 0]);
    rig.release(held, false);
    rig.run_for(ms(10));
    granted(&mut rig);
    assert_eq!(rig.engine.margin(waiting), 0, "the third is asked in the next round, which never begins");
}

#[test]
fn without_a_quorum_that_parks_all_are_polled() {
    let mut rig = Rig::unconnected(3, defaults);
    for master in &mut rig.masters[1..] {
        master.errors.insert("HELLO".to_owned(), "NOPROTO unsupported protocol version".to_owned());
    }
    rig.pump();
    let held = acquire(&mut rig, Duration::ZERO);
    granted(&mut rig);
    let waiting = acquire(&mut rig, ms(60_000));
    rig.run_for(ms(100));
    assert_eq!(waiters(&rig), [0; 3]);
    rig.release(held, false);
    rig.run_for(ms(2000));
    granted(&mut rig);
    rig.release(waiting, false);
    rig.run_for(ms(1));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_refused_channel_stops_parking() {
    let mut rig = Rig::unconnected(1, defaults);
    for command in ["SSUBSCRIBE", "SUBSCRIBE"] {
        rig.masters[0].errors.insert(command.to_owned(), "NOPERM no channel".to_owned());
    }
    rig.pump();
    rig.masters[0].put(b"a", b"other", None);
    acquire(&mut rig, ms(60_000));
    rig.run_for(ms(3000));
    assert_eq!(waiters(&rig), [0]);
    let refused = rig.engine.master_status(rig.now, id(0)).refused;
    assert!(
        refused.iter().any(|(name, why)| name.contains("SUBSCRIBE") && why.contains("NOPERM")),
        "{refused:?}"
    );
}

#[test]
fn busy_server_is_asked_for_its_channel_again() {
    let mut rig = Rig::unconnected(1, defaults);
    rig.masters[0].errors.insert("SSUBSCRIBE".to_owned(), "BUSY Redis is busy running a script".to_owned());
    rig.pump();
    let MasterState::Down(why) = rig.engine.master_status(rig.now, id(0)).state else { panic!("it stands") };
    assert!(why.contains("SSUBSCRIBE was refused: BUSY"), "{why}");
    rig.masters[0].errors.clear();
    rig.masters[0].put(b"a", b"other", None);
    rig.run_for(ms(3000));
    acquire(&mut rig, ms(60_000));
    rig.run_for(ms(100));
    assert_eq!(waiters(&rig), [1]);
}

#[test]
fn without_sharded_channels_others_are_used() {
    let cases = [
        ("", "", true),
        // An old server, and logins that lack a right.
        ("SPUBLISH", "ERR unknown command", false),
        ("SPUBLISH", "NOPERM no", false),
        ("SSUBSCRIBE", "NOPERM no", false),
    ];
    for (command, error, is_sharded) in cases {
        let mut rig = Rig::unconnected(1, defaults);
        rig.masters[0].errors.insert(command.to_owned(), error.to_owned());
        rig.pump();
        rig.masters[0].put(b"a", b"other", None);
        acquire(&mut rig, ms(60_000));
        rig.run_for(ms(3000));
        assert_eq!(waiters(&rig), [1], "it stands in the queue");
        let channels = rig.masters[0].channels();
        assert_eq!(channels.len(), 1, "{command}");
        assert_eq!(channels[0].ends_with(b"s"), is_sharded, "{command}: {error}");
        rig.masters[0].data.keys.remove(b"a".as_slice());
        rig.run_for(ms(2000));
        granted(&mut rig);
        let refused = rig.engine.master_status(rig.now, id(0)).refused;
        let is_named = refused.iter().any(|(name, _)| *name == command);
        assert_eq!(is_named, error.starts_with("NOPERM"), "{refused:?}");
    }
}

// I58
#[test]
fn the_slowest_master_learns_the_script() {
    for kind in ["fenced", "shared"] {
        let mut rig = Rig::new(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
        rig.masters[2].flush_scripts();
        logs(&mut rig);
        let options = Options::new().wait(ms(60_000));
        let options = if kind == "fenced" { options.fenced() } else { options.shared() };
        rig.submit_with("a", options);
        // The other masters refuse each attempt, and its release is under way when this master asks for the
        // script.
        let mut ask_for = |time: u64| {
            for _ in 0..time / 20 {
                rig.stall_replies(2);
                rig.run_for(ms(20));
                rig.end_stall(2);
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

/// A quorum has granted a lock when the third master asks for the script. It must get the key, too, or losing
/// any other master would lose the lock.
#[test]
fn master_that_learns_scripts_late_gets_the_key() {
    for kind in ["fair", "fenced", "shared"] {
        let mut rig = Rig::new(3, defaults);
        rig.masters[2].flush_scripts();
        rig.stall_replies(2);
        let options = Options::new().wait(ms(60_000));
        let options = match kind {
            "fair" => options.fair(),
            "fenced" => options.fenced(),
            _ => options.shared(),
        };
        rig.acquire_with("a", options);
        granted(&mut rig);
        rig.end_stall(2);
        let is_there = |index: usize| match kind {
            "shared" => rig.masters[index].reader_count(rig.now, b"a") == 1,
            _ => rig.masters[index].value(rig.now, b"a").is_some(),
        };
        assert!((0..3).all(is_there), "{kind}");
    }
}

/// A number in the first park since the last call: the ticket, or the milliseconds for which the master may
/// grant without a ring.
fn park_number(rig: &mut Rig, place: usize) -> u64 {
    let log = std::mem::take(&mut rig.masters[0].log);
    let park = log.iter().find(|words| words[0].starts_with(b"EVAL")).expect("a park");
    str::from_utf8(&park[place]).ok().and_then(|digits| digits.parse().ok()).expect("a number")
}

const TICKET: usize = 8;
const FRESHNESS: usize = 15;

/// Answers to parks also carry the masters' time.
#[test]
fn ticket_uses_the_latest_masters_clocks() {
    let mut rig = Rig::new(3, defaults);
    let now = rig.now;
    rig.masters.iter_mut().for_each(|master| master.set_wall(now, 7_000_000_000_000));
    acquire(&mut rig, ms(1000));
    granted(&mut rig);
    logs(&mut rig);
    acquire(&mut rig, ms(1000));
    let ticket = park_number(&mut rig, TICKET);
    assert!(ticket.abs_diff(7_000_000_000_000) < 1000, "{ticket}");
}

#[test]
fn short_ttl_is_granted_for_a_quarter() {
    for (ttl_ms, expected) in [(1999, 1999 / 4), (2000, 3000), (10_000, 3000), (10_001, 0)] {
        let mut rig = Rig::new(3, defaults);
        logs(&mut rig);
        rig.acquire_with("a", Options::new().ttl(ms(ttl_ms)).wait(ms(60_000)).fair());
        assert_eq!(park_number(&mut rig, FRESHNESS), expected, "{ttl_ms}");
    }
}

#[test]
fn waiter_asks_each_second_or_quarter_ttl() {
    for (ttl_ms, rounds) in [(1999, 10..=14), (2000, 20..=27), (4000, 10..=14), (30_000, 10..=14)] {
        let mut rig = Rig::new(3, defaults);
        rig.acquire("a", 30_000, 0);
        let waiter = rig.acquire_with("a", Options::new().ttl(ms(ttl_ms)).wait(ms(60_000)).fair());
        rig.run_for(ms(10_000));
        rig.release(waiter, true);
        let parks = rig.masters[0].log.iter().filter(|words| words.len() > FRESHNESS).count();
        assert!(rounds.contains(&parks), "{ttl_ms}: {parks}");
    }
}

// I59
#[test]
fn many_unknown_attempts_load_scripts_once() {
    for (kind, script_count) in [("fair", 4), ("fenced", 2), ("shared", 3)] {
        let mut rig = Rig::new(1, defaults);
        for round in 0..2 {
            rig.masters[0].flush_scripts();
            logs(&mut rig);
            rig.stall_replies(0);
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
            rig.end_stall(0);
            let log = rig.masters[0].take_log();
            let sent = |name: &str| log.iter().filter(|sent| *sent == name).count();
            assert_eq!((sent("EVAL"), sent("SCRIPT")), (1, script_count), "{kind}: {log:?}");
        }
    }
}

/// A swap would pass the lock on within this client.
#[test]
fn fair_waiter_precedes_an_earlier_plain_waiter() {
    let mut rig = Rig::new(3, defaults);
    let held = acquire(&mut rig, ms(60_000));
    granted(&mut rig);
    let first = acquire(&mut rig, ms(60_000));
    rig.run_for(ms(10));
    let second = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(10));
    for (lock, next) in [(held, first), (first, second)] {
        rig.release(lock, false);
        rig.run_for(ms(10));
        assert_eq!(rig.outcomes.pop_front().map(|(id, _)| id), Some(next));
    }
}

/// The masters answer after 40 ms, when a fair caller stands in their queues and another caller has asked.
#[test]
fn fair_caller_queues_from_the_start() {
    for (is_fair, queued) in [(true, 300), (false, 260)] {
        let mut rig = Rig::new(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
        (0..3).for_each(|index| rig.stall_replies(index));
        let options = Options::new().ttl(ms(10_000)).wait(ms(300));
        rig.acquire_with("a", if is_fair { options.fair() } else { options });
        rig.run_for(ms(40));
        rig.end_stalls();
        rig.run_for(ms(260));
        let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
        assert_eq!(denial.waited.queued, ms(queued), "fair: {is_fair}");
    }
}

#[test]
fn kinds_that_do_not_go_together_are_refused() {
    let mut rig = Rig::new(1, defaults);
    for (options, why) in [
        (Options::new().fair().fenced(), InputError::FairAndFenced),
        (Options::new().fair().shared(), InputError::SharedFair),
        (Options::new().shared().fenced(), InputError::SharedFenced),
    ] {
        let resource = Resource::new("a").expect("valid");
        let request = Request::Acquire { resource, options, label: None };
        assert_eq!(rig.engine.submit(rig.now, request), Err(SubmitError::Input(why)));
    }
    assert_eq!(rig.engine.operation_count(), 0);
}
