//! Batches: one write for each master, and a result for each lock.

use std::time::{Duration, Instant};

use redlatch::error::InputError;
use redlatch::{AcquireError, Client, ExtendError, Guard};
use redlatch_support::settle;
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, SHORT, TTL, assert_nothing_left, await_subscribed, open, within};

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}:{index}")).collect()
}

fn acquire_all(client: &Client, names: &[String]) -> Vec<Guard> {
    let requests = names.iter().map(|name| client.lock(name).ttl(TTL));
    client.acquire_all(requests).into_iter().map(|it| it.block().expect("free")).collect()
}

/// Number of reads and commands of a master so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) read_count: usize,
    /// Number of acquisitions, extensions and releases.
    pub(crate) command_count: usize,
}

/// The double counts nothing.
pub(crate) fn work(master: &mut Master) -> Work {
    let info = master.counted("INFO everything").unwrap_or_default();
    let number =
        |text: &str| text.split(',').next().and_then(|text| text.parse::<usize>().ok()).expect("a number");
    let found = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map_or(0, number);
    let commands = ["set", "evalsha", "delifeq", "delex"];
    let command_count = commands.iter().map(|name| found(&format!("cmdstat_{name}:calls="))).sum();
    Work { read_count: found("total_reads_processed:"), command_count }
}

/// Asserts that each master got this many commands in one write. The double counts nothing.
pub(crate) fn assert_one_read(fleet: &mut Fleet, count: usize, before: &[Work], what: &str) {
    for (master, before) in fleet.masters().zip(before) {
        if master.counted("PING").is_none() {
            return;
        }
        // The test's own questions: the two outside of the loop, and those in it.
        let mut question_count = 2;
        eventually(PATIENCE, "the batch is read", || {
            question_count += 1;
            work(master).command_count >= before.command_count + count
        });
        assert_eq!(work(master).read_count - before.read_count - question_count, 1, "{what}");
    }
}

#[test]
fn a_batch_is_one_write_per_master() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    await_subscribed(&mut fleet);
    let names = names("orders", 40);
    for is_async in [false, true] {
        // First finishes the last round's releases and the commands of new connections.
        assert_eq!(settle(&client, PATIENCE), 0);
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        let acquiring = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
        let mut guards: Vec<Guard> = acquiring
            .into_iter()
            .map(|it| if is_async { block_on(it) } else { it.block() }.expect("free"))
            .collect();
        assert_one_read(&mut fleet, 40, &before, &format!("acquisitions, async: {is_async}"));
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        for extending in client.extend_all(&mut guards, TTL) {
            if is_async { block_on(extending) } else { extending.block() }.expect("held");
        }
        assert_one_read(&mut fleet, 40, &before, &format!("extensions, async: {is_async}"));
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        for releasing in client.release_all(guards) {
            let released = if is_async { block_on(releasing) } else { releasing.block() };
            assert!(!released.expect("confirmed").was_already_gone());
        }
        assert_one_read(&mut fleet, 40, &before, &format!("releases, async: {is_async}"));
    }
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn one_failed_request_fails_no_other_in_batch() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let other = open(&fleet.urls(), LONG);
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let requests = [
        client.lock("a"),
        client.lock(""),
        client.lock("b").ttl(TTL * 2),
        client.lock("held").wait(Duration::ZERO),
        client.lock("c"),
    ];
    let mut results: Vec<_> = client.acquire_all(requests).into_iter().map(|it| it.block()).collect();
    let last = results.pop().expect("five").expect("free");
    assert_eq!(last.resource(), b"c");
    assert!(matches!(results.pop(), Some(Err(AcquireError::Contended(_)))));
    assert!(matches!(results.pop(), Some(Err(AcquireError::Input(InputError::TtlTooLong { .. })))));
    assert!(matches!(results.pop(), Some(Err(AcquireError::Input(_)))));
    let first = results.pop().expect("one is left").expect("free");
    assert_eq!(first.resource(), b"a");
    let mut guards = [first, last];
    let results: Vec<_> = client.extend_all(&mut guards, TTL * 2).into_iter().map(|it| it.block()).collect();
    assert!(results.iter().all(|it| matches!(it, Err(ExtendError::Input(_)))), "{results:?}");
    drop((guards, held));
    assert_eq!(settle(&client, PATIENCE), 0);
    assert_nothing_left(&other, &mut fleet);
}

#[test]
fn a_batch_keeps_each_requests_client() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let acquiring = client.acquire_all([client.lock("mine"), other.lock("its"), client.lock("mine too")]);
    let mut guards: Vec<Guard> = acquiring.into_iter().map(|it| it.block().expect("free")).collect();
    assert_eq!(guards[1].resource(), b"its");
    for (index, extending) in client.extend_all(&mut guards, TTL).into_iter().enumerate() {
        extending.block().unwrap_or_else(|error| panic!("{index}: {error}"));
    }
    // Each client counts its own locks.
    assert_eq!((settle(&client, Duration::ZERO), settle(&other, Duration::ZERO)), (2, 1));
    for releasing in client.release_all(guards) {
        assert!(!block_on(releasing).expect("confirmed").was_already_gone());
    }
    assert_eq!(settle(&client, PATIENCE), 0);
    assert_nothing_left(&other, &mut fleet);
}

#[test]
fn batch_results_come_in_any_order() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let names = names("orders", 30);
    let mut acquiring = client.acquire_all(names.iter().map(|name| client.lock(name).ttl(TTL)));
    let mut guards = Vec::new();
    while let Some(it) = acquiring.pop() {
        match acquiring.len() % 3 {
            0 => guards.push(it.block().expect("free")),
            1 => guards.push(block_on(it).expect("free")),
            _ => drop(it),
        }
    }
    guards.iter().zip((0..30).rev().filter(|index| index % 3 < 2)).for_each(|(guard, index)| {
        assert_eq!(guard.resource(), names[index].as_bytes());
    });
    // The given-up locks are free again.
    let again: Vec<String> =
        (0..30).filter(|index| index % 3 == 2).map(|index| names[index].clone()).collect();
    guards.extend(acquire_all(&client, &again));
    drop(client.release_all(guards));
    assert_nothing_left(&client, &mut fleet);
}

// I129
#[test]
fn each_request_without_room_is_answered() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    fleet.master(0).kill();
    // Loops until the client knows of the outage, so that answers are immediate.
    while client.lock("probe").try_acquire().is_ok_and(|guard| guard.release().is_ok()) {}
    let answered = within("a batch without masters", move || {
        let names = names("orders", 3);
        let requests = names.iter().map(|name| client.lock(name).wait(Duration::ZERO));
        let batch = client.acquire_all(requests);
        batch.into_iter().map(|it| it.block().expect_err("no master is up")).collect::<Vec<_>>()
    });
    assert!(answered.iter().all(|it| matches!(it, AcquireError::NoQuorum(_))), "{answered:?}");
}

/// The answers to the first requests do not count as late, because nobody could read them.
#[test]
fn slowly_made_batch_marks_no_master_silent() {
    let fleet = Fleet::start(3);
    let answer_timeout = Duration::from_millis(50);
    let client = open(&fleet.urls(), answer_timeout);
    let slow = |name: String| {
        std::thread::sleep(answer_timeout);
        client.lock_owned(name).ttl(TTL).wait(Duration::ZERO)
    };
    let mut prefixes = 0..;
    // A slow machine may need several tries.
    eventually(PATIENCE, "both locks are acquired", || {
        let names = names(&format!("{}-", prefixes.next().expect("a number")), 2);
        client.acquire_all(names.into_iter().map(slow)).into_iter().all(|it| block_on(it).is_ok())
    });
}

#[test]
fn batch_tasks_learn_of_stopped_masters_in_time() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), SHORT);
    let guard = block_on(client.lock("warm").ttl(TTL).acquire_async()).expect("free");
    block_on(guard.release_async()).expect("confirmed");
    // All background work is done by then, and the background thread sleeps without a deadline.
    std::thread::sleep(8 * SHORT);
    fleet.masters().for_each(|master| master.stop());
    let begun = Instant::now();
    let names = names("orders", 3);
    let batch = client.acquire_all(names.iter().map(|name| client.lock(name).wait(Duration::ZERO)));
    for acquiring in batch {
        assert!(matches!(block_on(acquiring), Err(AcquireError::NoQuorum(_))));
    }
    let took = begun.elapsed();
    assert!((SHORT..SHORT * 20).contains(&took), "{took:?}");
    fleet.masters().for_each(|master| master.cont());
    assert_eq!(settle(&client, PATIENCE), 0);
}
