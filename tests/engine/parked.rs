//! Attempts that wait in the masters' queues: rounds, votes, rings, and ends.

use std::time::Duration;

use redlatch::engine::Outcome;
use redlatch::error::HolderTtl;
use redlatch::scripts::SCRIPTS;
use redlatch::{AcquireError, Options, Quarantine};

use crate::model::{Dialect, digest, fence_key, queue_key};
use crate::rig::Rig;
use crate::{defaults, denied, granted, ms};

pub(crate) const KEY: &[u8] = b"a";
/// Another client's value, with a label.
pub(crate) const OTHER: &[u8] = b"another-clients-tok!\tworker";
/// Another client's connection number at a model master.
const OTHER_CONN: usize = 1000;

/// Masters on which another client holds the lock for a minute.
fn rig_with_other(count: usize) -> Rig {
    with_other(Rig::new(count, defaults))
}

pub(crate) fn with_other(mut rig: Rig) -> Rig {
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(KEY, OTHER, Some(until)));
    rig
}

fn waiting() -> Options {
    Options::new().ttl(ms(10_000)).wait(ms(60_000))
}

/// The other client releases the lock on a master, which serves a waiter. The message is not yet read.
pub(crate) fn free(rig: &mut Rig, index: usize) {
    let (now, master) = (rig.now, &mut rig.masters[index]);
    master.carry_out_over(OTHER_CONN, now, &[b"DEL", KEY], &mut Vec::new());
    let serve = SCRIPTS.iter().find(|script| script.name == "serve").expect("there is one");
    let words: [&[u8]; 6] = [b"EVAL", serve.text.as_bytes(), b"3", KEY, &queue_key(KEY), &fence_key(KEY)];
    master.carry_out_over(OTHER_CONN, now, &words, &mut Vec::new());
}

fn free_all(rig: &mut Rig) {
    (0..rig.masters.len()).for_each(|index| free(rig, index));
    rig.pump();
}

fn forget_logs(rig: &mut Rig) {
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
}

/// Scripts sent to a master since the last call.
fn scripts(rig: &mut Rig, index: usize) -> Vec<&'static str> {
    let log = std::mem::take(&mut rig.masters[index].log);
    // A new connection tests a script on another key.
    let by_digest = log.iter().filter(|words| words[0] == b"EVALSHA" && words[3].ends_with(KEY));
    let name = |sha: &[u8]| SCRIPTS.iter().find(|script| script.sha.as_bytes() == sha).map(|it| it.name);
    by_digest.filter_map(|words| name(&words[1])).collect()
}

/// Vote of the only waiter.
fn vote(rig: &Rig) -> Vec<u8> {
    let parked = rig.masters[0].parked(rig.now, KEY);
    assert_eq!(parked.len(), 1);
    parked[0].vote.clone()
}

/// Each master sends a message with this payload.
fn say(rig: &mut Rig, payload: &[u8]) {
    (0..rig.masters.len()).for_each(|index| say_at(rig, index, payload));
    rig.pump();
}

fn say_at(rig: &mut Rig, index: usize, payload: &[u8]) {
    let head = format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", payload.len());
    rig.receive(index, &[head.as_bytes(), payload, b"\r\n"].concat());
}

/// Sends the votes that a stranger would guess.
fn say_guesses(rig: &mut Rig) {
    for (index, generation) in (0..4_u32).flat_map(|index| (0..4_u32).map(move |it| (index, it))) {
        for [first, second] in [[index, generation], [generation, index]] {
            for vote in
                [[first.to_le_bytes(), second.to_le_bytes()], [first.to_be_bytes(), second.to_be_bytes()]]
            {
                say(rig, &vote.concat());
                say(rig, &[&vote.concat()[..], b"r"].concat());
            }
        }
    }
}

#[track_caller]
fn check_nothing_left(rig: &mut Rig) {
    rig.run_for(ms(20));
    let queues: Vec<_> = rig.masters.iter().map(|master| master.parked(rig.now, KEY).len()).collect();
    assert_eq!(queues, vec![0; rig.masters.len()], "entries stay");
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (0, 0));
}

#[test]
fn queue_place_counts_as_one_retry() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", waiting());
    rig.run_for(ms(3000));
    free_all(&mut rig);
    assert_eq!(granted(&mut rig).attempts, 2);
    let stats = rig.engine.stats(rig.now);
    assert_eq!((stats.retries, stats.acquired), (1, 1));
}

#[test]
fn polling_waiter_parks_without_another_attempt() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", waiting());
    rig.run_for(ms(100));
    (0..2).for_each(|index| rig.stop_master(index));
    rig.run_for(ms(1600));
    (0..2).for_each(|index| rig.resume_master(index));
    let was_sent = |rig: &Rig, word: &[u8]| rig.masters[0].log.iter().flatten().any(|it| it == word);
    let parks = |rig: &mut Rig| {
        forget_logs(rig);
        rig.run_for(ms(1));
        was_sent(rig, digest("park").as_bytes())
    };
    assert!((0..3000).any(|_| parks(&mut rig)));
    assert!(!was_sent(&rig, b"SET"), "it asked first");
}

#[test]
fn reconnected_master_is_soon_asked_again() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", waiting());
    rig.run_for(ms(500));
    forget_logs(&mut rig);
    rig.reset_conn(0);
    // At most 50 ms until the reconnect, and 100 ms until the next round.
    rig.run_for(ms(150));
    assert_eq!(scripts(&mut rig, 0), ["park", "unpark"], "its place there ended with the connection");
}

#[test]
fn a_message_of_an_earlier_round_changes_nothing() {
    let mut rig = rig_with_other(3);
    let lock = rig.acquire_with("a", waiting());
    let old = vote(&rig);
    rig.run_for(ms(1500));
    assert_ne!(vote(&rig), old, "no round has begun");
    rig.run_for(ms(100));
    forget_logs(&mut rig);
    let current = vote(&rig);
    for payload in [&old[..], b"\0\0\0\0\0\0\0\0", b"01234567"] {
        say(&mut rig, payload);
        say(&mut rig, &[payload, b"r"].concat());
    }
    rig.run_for(ms(5));
    assert_eq!((rig.outcome(), vote(&rig)), (None, current.clone()));
    assert!(!scripts(&mut rig, 0).contains(&"park"));
    // A ring with the right vote begins a round.
    say(&mut rig, &[&current[..], b"r"].concat());
    rig.run_for(ms(1));
    assert_ne!(vote(&rig), current);
    // The caller leaves, and with it all its attempts.
    let current = vote(&rig);
    rig.release(lock, false);
    say(&mut rig, &current);
    say(&mut rig, &[&current[..], b"r"].concat());
    assert_eq!(rig.outcome(), None);
    check_nothing_left(&mut rig);
}

/// No master sends such messages. Votes are places of claims, so a stranger could guess them.
// I109
#[test]
fn messages_for_an_unparked_lock_change_nothing() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    say_guesses(&mut rig);
    assert_eq!((rig.outcome(), rig.engine.margin(lock)), (None, 1));
    rig.release(lock, false);
    check_nothing_left(&mut rig);
}

/// The claim reuses the memory of a claim that waited.
// I109
#[test]
fn messages_for_a_left_lock_change_nothing() {
    let mut rig = rig_with_other(3);
    let lock = rig.acquire_with("a", waiting());
    rig.run_for(ms(100));
    free_all(&mut rig);
    granted(&mut rig);
    rig.engine.leave(rig.now, lock).expect("it is held");
    say_guesses(&mut rig);
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 3));
    check_nothing_left(&mut rig);
}

#[test]
fn a_long_ttl_is_rung_and_asks_again() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", Options::new().ttl(ms(20_000)).wait(ms(60_000)));
    rig.run_for(ms(100));
    forget_logs(&mut rig);
    free_all(&mut rig);
    rig.run_for(ms(1));
    let grant = granted(&mut rig);
    assert!(grant.valid_until > rig.now + ms(19_700), "its validity counts from the new round");
    assert_eq!(rig.engine.stats(rig.now).notified, 3, "the ring of each master");
    assert!(scripts(&mut rig, 0).contains(&"park"));
}

#[test]
fn quorum_of_rings_starts_the_next_round() {
    let mut rig = with_other(Rig::new(3, |builder| builder.answer_timeout(ms(200))));
    // The masters are 30 ms away.
    (0..3).for_each(|index| rig.stall_replies(index));
    let other = rig.acquire("b", 10_000, 0);
    rig.run_for(ms(30));
    rig.end_stalls();
    granted(&mut rig);
    rig.release(other, false);
    rig.acquire_with("a", Options::new().ttl(ms(20_000)).wait(ms(60_000)));
    rig.run_for(ms(100));
    free(&mut rig, 0);
    rig.run_for(ms(2));
    assert_eq!(rig.outcome(), None, "one ring waits for a second one");
    free(&mut rig, 1);
    rig.run_for(ms(2));
    assert_eq!(granted(&mut rig).attempts, 2);
}

// I73
#[test]
fn a_master_that_rings_late_has_the_key() {
    let mut rig = rig_with_other(3);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(20_000)).wait(ms(60_000)));
    rig.run_for(ms(100));
    (0..2).for_each(|index| free(&mut rig, index));
    rig.run_for(ms(50));
    granted(&mut rig);
    assert_eq!(rig.engine.margin(lock), 0, "another has it on the third");
    free(&mut rig, 2);
    rig.run_for(ms(1));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.release(lock, false);
    check_nothing_left(&mut rig);
}

#[test]
fn too_little_validity_begins_another_round_at_once() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", waiting().min_validity(ms(9800)));
    rig.run_for(ms(500));
    free_all(&mut rig);
    let grant = granted(&mut rig);
    assert!(grant.valid_until > rig.now + ms(9800));
    assert_eq!((rig.holder_count("a"), grant.attempts), (3, 2));
}

/// Frees the lock, and stops the masters right after their message.
fn free_unheard(rig: &mut Rig) {
    (0..3).for_each(|index| free(rig, index));
    let pushes: Vec<_> = rig.masters.iter_mut().map(|master| std::mem::take(&mut master.pushes)).collect();
    (0..3).for_each(|index| rig.stop_master(index));
    for (index, pushes) in pushes.into_iter().enumerate() {
        pushes.iter().for_each(|(_, message)| rig.receive(index, message));
    }
    rig.pump();
}

#[test]
fn only_consecutive_late_rounds_fail() {
    let mut rig = with_other(Rig::new(3, |builder| builder.answer_timeout(ms(1000))));
    rig.acquire_with("a", waiting().min_validity(ms(9890)).max_attempts(2));
    for _ in 0..3 {
        rig.run_for(ms(1500));
        free_unheard(&mut rig);
        rig = with_other(rig);
        (0..3).for_each(|index| rig.resume_master(index));
        assert_eq!(rig.outcome(), None, "the next round waits behind another client");
    }
}

#[test]
fn second_consecutive_late_round_fails() {
    let mut rig = with_other(Rig::new(3, |builder| builder.answer_timeout(ms(1000))));
    rig.acquire_with("a", waiting().min_validity(ms(9800)).max_attempts(2));
    rig.run_for(ms(500));
    free_unheard(&mut rig);
    rig.now += ms(150);
    (0..3).for_each(|index| rig.resume_master(index));
    let error = denied(&mut rig);
    assert!(matches!(&error, AcquireError::Expired(denial) if denial.attempts == 2), "{error}");
    check_nothing_left(&mut rig);
    assert_eq!(rig.holder_count("a"), 0);
}

/// Such a master gets each round as an ordinary attempt.
#[test]
fn token_exceeds_the_fence_of_unparking_master() {
    let mut rig = Rig::unconnected(5, defaults);
    rig.masters[0].errors.insert("HELLO".to_owned(), "NOPROTO unsupported protocol version".to_owned());
    rig.pump();
    let mut rig = with_other(rig);
    rig.stop_master(4);
    rig.acquire_with("a", waiting().fenced());
    rig.run_for(ms(200));
    let queues: Vec<_> = rig.masters.iter().map(|master| master.parked(rig.now, KEY).len()).collect();
    assert_eq!(queues, [0, 1, 1, 1, 0]);
    let fence = rig.masters[0].wall_us(rig.now) + 5_000_000;
    let until = rig.now + ms(60_000);
    rig.masters[0].put(&fence_key(KEY), fence.to_string().as_bytes(), Some(until));
    // The fourth keeps the other client's key, so the first is needed.
    (0..3).for_each(|index| free(&mut rig, index));
    rig.run_for(ms(3_000));
    let token = granted(&mut rig).fencing_token.expect("it is fenced");
    assert!(token.as_u64() > fence, "{token} is behind {fence}");
}

/// A park replaces the last token. If the lock is left before the park is answered, that token needs a
/// separate release.
#[test]
fn left_lock_leaves_no_earlier_token() {
    let mut rig = rig_with_other(3);
    let lock = rig.acquire_with("a", waiting());
    rig.run_for(ms(100));
    rig.stall_replies(0);
    // Another round, which the first master does not answer.
    rig.run_for(ms(1_500));
    free_all(&mut rig);
    rig.run_for(ms(5));
    granted(&mut rig);
    rig.engine.leave(rig.now, lock).expect("it is held");
    rig.end_stall(0);
    rig.run_for(ms(500));
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (0, 0));
}

#[test]
fn the_end_of_the_wait_ends_a_round() {
    let mut rig = rig_with_other(3);
    rig.acquire_with("a", waiting().wait(ms(5500)));
    rig.run_for(ms(5499));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("it is held") };
    assert_eq!((denial.took, denial.attempts), (ms(5500), 2));
    assert!(matches!(denial.holder, HolderTtl::Left(left) if left <= ms(54_500) && left > ms(54_400)));
    assert_eq!(denial.holder_label.as_deref(), Some("worker"));
    check_nothing_left(&mut rig);
}

#[test]
fn cancelled_caller_leaves_no_entry() {
    let mut rig = rig_with_other(3);
    let lock = rig.acquire_with("a", waiting());
    rig.run_for(ms(1200));
    // A part of the lock is given back with it.
    free(&mut rig, 0);
    rig.pump();
    rig.release(lock, false);
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 2));
    check_nothing_left(&mut rig);
}

#[test]
fn long_held_lock_is_released_by_script() {
    let mut rig = Rig::unconnected(1, defaults);
    rig.masters[0].dialect = Dialect::Valkey9;
    rig.pump();
    for (time, expected) in [(0, "DELIFEQ"), (9, "DELIFEQ"), (10, "EVALSHA")] {
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        rig.run_for(ms(time));
        forget_logs(&mut rig);
        rig.release(lock, false);
        let sha = rig.masters[0].log[0].get(1).cloned();
        assert_eq!(rig.masters[0].take_log(), [expected], "after {time} ms");
        assert_eq!(sha.as_deref() == Some(digest("release_serve").as_bytes()), time == 10);
    }
}

/// Long holds of other locks serve only their own queues.
#[test]
fn each_64th_short_hold_serves_the_queue() {
    let mut rig = Rig::unconnected(1, defaults);
    rig.masters[0].dialect = Dialect::Valkey9;
    rig.pump();
    let served = (1..=128).filter(|number| {
        if number % 10 == 0 {
            let other = rig.acquire("b", 10_000, 0);
            granted(&mut rig);
            rig.run_for(ms(10));
            rig.release(other, false);
        }
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        forget_logs(&mut rig);
        rig.release(lock, false);
        rig.masters[0].take_log() == ["EVALSHA"]
    });
    assert_eq!(served.collect::<Vec<_>>(), [64, 128]);
}

#[test]
fn serving_release_sends_unknown_script_whole() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.dialect = Dialect::Valkey9);
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(10));
    rig.masters.iter_mut().for_each(|master| master.flush_scripts());
    forget_logs(&mut rig);
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
    assert_eq!(rig.masters[0].take_log(), ["EVALSHA", "EVAL"]);
    check_nothing_left(&mut rig);
}

#[test]
fn master_busy_during_handshake_parks_later() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[0].errors.insert("EXISTS".into(), "BUSY x".into());
    rig.pump();
    rig.masters[0].errors.clear();
    rig.run_for(ms(3000));
    let mut rig = with_other(rig);
    rig.acquire_with("a", waiting());
    rig.run_for(ms(10));
    assert_eq!(rig.masters[0].parked(rig.now, KEY).len(), 1);
}

/// Between two short holds, the lock is free for a round trip, in which only its last holder asks.
#[test]
fn repeated_short_holds_still_serve_a_waiter() {
    let mut rig = Rig::new(3, defaults);
    for count in 1..=130 {
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        forget_logs(&mut rig);
        rig.release(lock, false);
        assert_eq!(
            scripts(&mut rig, 0),
            [if count % 64 == 0 { "release_serve" } else { "release" }],
            "{count}"
        );
    }
}

/// Commands to one master for a lock that the other client soon releases.
fn contended_pair(rig: &mut Rig, options: Options) -> Vec<String> {
    forget_logs(rig);
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(KEY, OTHER, Some(until)));
    let lock = rig.acquire_with("a", options);
    rig.run_for(ms(5));
    free_all(rig);
    granted(rig);
    rig.release(lock, false);
    commands(rig)
}

/// Commands to one master for an uncontended lock.
fn free_pair(rig: &mut Rig, options: Options) -> Vec<String> {
    forget_logs(rig);
    let lock = rig.acquire_with("a", options);
    granted(rig);
    rig.release(lock, false);
    commands(rig)
}

/// Commands to a master for the lock, with scripts by name.
fn commands(rig: &mut Rig) -> Vec<String> {
    let log = std::mem::take(&mut rig.masters[0].log);
    let of_lock = log.iter().filter(|words| words.iter().any(|word| word.ends_with(KEY)));
    let name = |words: &Vec<Vec<u8>>| {
        let script = words[0].starts_with(b"EVAL").then(|| {
            let is_it = |text: &&str| text.as_bytes() == words[1];
            SCRIPTS.iter().find(|script| is_it(&script.sha) || is_it(&script.text)).expect("a script").name
        });
        script.map_or_else(|| String::from_utf8_lossy(&words[0]).into_owned(), str::to_owned)
    };
    of_lock.map(name).collect()
}

const BY_SET: [&str; 2] = ["SET", "release"];
const BY_PARK: [&str; 2] = ["park", "unpark"];
const BY_BOTH: [&str; 3] = ["SET", "park", "unpark"];

// I63
#[test]
fn waiter_of_contended_lock_parks_at_once() {
    let mut rig = Rig::new(5, defaults);
    assert_eq!(contended_pair(&mut rig, waiting())[0], "SET", "nothing is known yet");
    for _ in 0..100 {
        assert_eq!(contended_pair(&mut rig, waiting()), BY_PARK);
        rig.run_for(ms(50));
    }
    // Another name is not contended.
    forget_logs(&mut rig);
    rig.acquire_with("b", waiting());
    granted(&mut rig);
    assert_eq!(rig.masters[0].take_log().len(), 1, "a SET");
}

// I63
#[test]
fn free_lock_is_requested_with_set() {
    let mut rig = Rig::new(3, defaults);
    for _ in 0..3 {
        assert_eq!(free_pair(&mut rig, waiting()), BY_SET);
    }
    contended_pair(&mut rig, waiting());
    assert_eq!(free_pair(&mut rig, waiting()), BY_PARK, "it was contended");
    assert_eq!(free_pair(&mut rig, waiting()), BY_SET, "it was found free");
}

// I63
#[test]
fn a_contended_lock_is_known_for_a_second() {
    for (pause, expected) in [(ms(990), &BY_PARK[..]), (ms(1000), &BY_BOTH[..])] {
        let mut rig = Rig::new(3, defaults);
        contended_pair(&mut rig, waiting());
        rig.run_for(pause);
        assert_eq!(contended_pair(&mut rig, waiting()), expected, "{pause:?}");
    }
}

/// A park lasts for the whole wait.
// I63
#[test]
fn limited_attempts_begin_with_set() {
    let mut rig = Rig::new(3, defaults);
    contended_pair(&mut rig, waiting());
    assert_eq!(contended_pair(&mut rig, waiting().max_attempts(2)), BY_BOTH);
    assert_eq!(free_pair(&mut rig, Options::new().ttl(ms(10_000)).wait(Duration::ZERO)), BY_SET);
}

/// A minority that was given back too often is left alone until something changes elsewhere.
#[test]
fn a_ring_asks_masters_set_aside_again() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[..2].iter_mut().for_each(|master| master.put(KEY, OTHER, Some(until)));
    rig.acquire_with("a", waiting());
    rig.run_for(ms(1500));
    assert_eq!(rig.holder_count("a"), 2, "the third master is set aside");
    forget_logs(&mut rig);
    let ring = [&vote(&rig)[..], b"r"].concat();
    say_at(&mut rig, 0, &ring);
    rig.run_for(ms(5));
    assert_eq!(scripts(&mut rig, 2), ["park"]);
}

#[test]
fn unpark_with_unknown_script_is_sent_twice() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut rig = rig_with_other(3);
        let lock = rig.acquire_with("a", waiting());
        forget_logs(&mut rig);
        for command in ["EVALSHA", "EVAL"] {
            rig.masters[0].errors.insert(command.into(), "NOSCRIPT x".into());
        }
        rig.release(lock, false);
        let _ = done.send(rig.masters[0].take_log());
    });
    let log = wait.recv_timeout(Duration::from_secs(20)).expect("it ends");
    assert_eq!(log, ["EVALSHA", "EVAL"]);
}

#[test]
fn a_reader_repaired_looks_into_its_queue() {
    let mut rig = Rig::new(3, |builder| builder.prefix("p:").quarantine(Quarantine::Trust));
    rig.acquire_with("a", waiting().shared());
    granted(&mut rig);
    rig.reset_conn(0);
    let now = rig.now;
    rig.masters[0].restart("run0b", now);
    forget_logs(&mut rig);
    rig.run_for(ms(2500));
    let repair = rig.masters[0].log.iter().rfind(|words| words[0] == b"EVAL").expect("a repair");
    assert_eq!(repair[3..5], [b"p:a".to_vec(), b"p:redlatch:wait:a".to_vec()]);
}
