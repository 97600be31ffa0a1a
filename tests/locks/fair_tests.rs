//! Fair locks: waiters get the lock in the order in which they asked.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::error::InputError;
use redlatch::status::MasterState;
use redlatch::{AcquireError, Client, ErrorClass, Guard, limits};
use redlatch_support::settle;
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, Raw, eventually};

use crate::harness::{
    LONG, TTL, assert_nothing_left, await_held, await_no_keys, await_waiters, config, open, within,
};

/// Clients that know the masters' time. An idle client reads its handshake's answers late.
fn clients<const N: usize>(fleet: &Fleet) -> [Client; N] {
    let clients = [(); N].map(|()| open(&fleet.urls(), LONG));
    clients.iter().enumerate().for_each(|(number, client)| {
        drop(client.lock(format!("clock of {number}")).fair().ttl(TTL).wait(PATIENCE).acquire());
        assert_eq!(settle(client, PATIENCE), 0);
    });
    clients
}

/// Holds the lock on all masters. A waiter would get a free master's vote instead of queueing there.
fn hold(client: &Client, fleet: &mut Fleet) -> Guard {
    let guard = client.lock("a").fair().ttl(TTL).try_acquire().expect("free");
    await_held(fleet, "a");
    guard
}

/// Puts this many waiters in front of each queue. Their rings go to this channel. Each stays as long as a
/// waiter that shows no sign of life.
fn put_waiters(fleet: &mut Fleet, count: u64, channel: &str) {
    // Arguments: id, mode and round; end of the stay, freshness, TTL of a grant; channel with its size, vote,
    // value.
    let put = "local t, c = redis.call('TIME'), ARGV[2] local stay = t[1] * 1000 + ARGV[3] \
        for i = 1, tonumber(ARGV[1]) do redis.call('ZADD', KEYS[1], i, 'redlatch:1:' .. \
        string.format('%012dp%08d%013.0f%013d%010d%03d%svoteless%020d', i, 1, stay, 0, 10000, #c, c, i)) end \
        return redis.call('ZCARD', KEYS[1])";
    let (count, stay_ms) = (count.to_string(), limits::STAY.as_millis().to_string());
    let words = ["EVAL", put, "1", "redlatch:wait:a", &count, channel, &stay_ms];
    for master in fleet.masters() {
        assert_eq!(master.command(&words.map(str::as_bytes)).text(), count);
    }
}

/// Starts a thread that waits for the lock, and waits until it stands in these masters' queues behind this
/// many others.
fn wait_behind(
    fleet: &mut Fleet,
    masters: std::ops::Range<usize>,
    client: &Client,
    ahead: usize,
) -> thread::JoinHandle<Guard> {
    let client = client.clone();
    let waiter = thread::spawn(move || {
        client.lock("a").fair().ttl(TTL).wait(PATIENCE).acquire().expect("it is released in time")
    });
    await_waiters(fleet, masters, "a", ahead + 1);
    waiter
}

/// Lets the client learn the masters' time. Each answer carries it, and the fastest counts. Returns the
/// largest of the fastest round trips: the client's clocks differ from the masters' by less.
fn learn_the_time(client: &Client) -> Duration {
    let round_trips = (0..10).map(|_| {
        let begun = Instant::now();
        let guard = client.lock("time").fair().ttl(TTL).acquire().expect("free");
        // `inspect` returns after the last answer to the acquisition.
        client.inspect("time").expect("the masters answer");
        let round_trip = begun.elapsed();
        guard.release().expect("the masters answer");
        round_trip
    });
    round_trips.min().expect("there are some")
}

/// Lets this many waiters of several clients ask one after another. Returns the order in which they get the
/// lock.
fn order_of_waiters<const N: usize>(fleet: &mut Fleet, count: usize) -> Vec<usize> {
    let clients = clients::<N>(fleet);
    // Callers this far apart are served in order.
    let gap = 2 * clients.iter().map(learn_the_time).max().expect("there are some");
    let guard = hold(&clients[0], fleet);
    let (sender, receiver) = mpsc::channel();
    let masters = 0..fleet.masters().count();
    let waiters: Vec<_> = (0..count)
        .map(|number| {
            let waiter = wait_behind(fleet, masters.clone(), &clients[number % N], number);
            let sender = sender.clone();
            thread::sleep(gap);
            thread::spawn(move || {
                let guard = waiter.join().expect("no panic");
                sender.send(number).expect("the test goes on");
                guard.release().expect("the masters answer");
            })
        })
        .collect();
    guard.release().expect("the masters answer");
    waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
    assert_nothing_left(&clients[0], fleet);
    receiver.try_iter().collect()
}

// I57
#[test]
fn fair_waiters_get_the_lock_in_order() {
    within("each waiter has the lock", || {
        for master_count in [1, 3, 5] {
            let order = order_of_waiters::<3>(&mut Fleet::start(master_count), 8);
            assert_eq!(order, (0..8).collect::<Vec<_>>(), "{master_count} masters");
        }
        assert_eq!(order_of_waiters::<5>(&mut Fleet::start(5), 20), (0..20).collect::<Vec<_>>());
    });
}

/// Names of the waiters in a master's queue, the first one first.
fn waiters(master: &mut Master) -> Vec<Vec<u8>> {
    let Raw::List(entries) = master.ask("ZRANGE redlatch:wait:a 0 -1") else { panic!("a list") };
    entries.iter().map(|entry| entry.bytes().expect("an entry")[11..23].to_vec()).collect()
}

/// The waiter's entry outlives the connection for its stay, and the waiter returns before that.
// I57
#[test]
fn disconnected_waiter_keeps_its_place() {
    within("each waiter has the lock", || {
        let Some(mut fleet) = Fleet::servers(3) else { return };
        let [holder, first, second] = clients(&fleet);
        let guard = hold(&holder, &mut fleet);
        let first = wait_behind(&mut fleet, 0..3, &first, 0);
        let second = wait_behind(&mut fleet, 0..3, &second, 1);
        let master = fleet.master(0);
        let channels = |master: &mut Master| {
            let channels = master.ask("PUBSUB SHARDCHANNELS redlatch:c:*").text();
            channels.trim_matches(['[', ']']).split(", ").map(str::to_owned).collect::<Vec<_>>()
        };
        let (waiters_before, channels_before) = (waiters(master), channels(master));
        assert_eq!((waiters_before.len(), channels_before.len()), (2, 3));
        assert_eq!(master.ask("CLIENT KILL SKIPME yes").text(), "3");
        eventually(PATIENCE, "both are back at their places, and listen elsewhere", || {
            let entries = master.ask("ZRANGE redlatch:wait:a 0 -1").text();
            waiters(master) == waiters_before && !channels_before.iter().any(|it| entries.contains(it))
        });
        guard.release().expect("the masters answer");
        let guard = join_first(first, &second);
        guard.release().expect("the masters answer");
        second.join().expect("no panic").release().expect("the masters answer");
        await_no_keys(&mut fleet);
    });
}

/// The lock of the waiter that must get it first.
fn join_first(first: thread::JoinHandle<Guard>, second: &thread::JoinHandle<Guard>) -> Guard {
    eventually(PATIENCE, "one of them has it", || first.is_finished() || second.is_finished());
    assert!(!second.is_finished(), "the second one came later");
    first.join().expect("no panic")
}

#[test]
fn a_fair_lock_may_be_kept_and_reentrant() {
    within("the lock is had", || {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let ttl = Duration::from_secs(3);
        let guard = client.lock("a").fair().ttl(ttl).auto_extend(TTL).acquire().expect("free");
        eventually(PATIENCE, "each master has it", || guard.margin() == 1);
        let end = guard.valid_until();
        eventually(PATIENCE, "it is kept", || guard.valid_until() > end);
        // A place in the queue counts as one attempt, however long it is kept.
        let next = client.clone();
        let next =
            thread::spawn(move || next.lock("a").fair().ttl(TTL).max_attempts(1).wait(PATIENCE).acquire());
        await_waiters(&mut fleet, 0..3, "a", 1);
        guard.release().expect("the masters answer");
        let guard = next.join().expect("no panic").expect("its turn comes");
        guard.release().expect("the masters answer");
        let fenced = client.lock("a").fair().fenced().acquire();
        assert!(matches!(fenced, Err(AcquireError::Input(InputError::FairAndFenced))));
        let lock = client.lock("a").fair().ttl(TTL).wait(PATIENCE).reentrant();
        let (first, second) = (lock.lock().expect("free"), lock.lock().expect("it is this owner's"));
        drop(first);
        second.release().expect("the masters answer");
        assert_nothing_left(&client, &mut fleet);
    });
}

/// A holder and a waiter of a fair lock on masters without queues. Returns what each of them refused.
fn poll_for_a_fair_lock(fleet: &mut Fleet, clients: [Client; 2]) -> Vec<(&'static str, Box<str>)> {
    let [holder, client] = clients;
    for client in [&holder, &client] {
        let is_refused = || client.masters().iter().all(|master| !master.refused.is_empty());
        eventually(PATIENCE, "each master has refused", is_refused);
    }
    let guard = hold(&holder, fleet);
    let waiting = client.clone();
    let waiter = thread::spawn(move || waiting.lock("a").fair().ttl(TTL).wait(PATIENCE).acquire());
    let attempts = |client: &Client| client.stats().masters.iter().map(|it| it.refused).sum::<u64>();
    let before = attempts(&client);
    eventually(PATIENCE, "it asks again and again", || attempts(&client) > before + 20);
    for master in fleet.masters() {
        assert_eq!(master.key_count(), "1", "there is no queue");
    }
    guard.release().expect("the masters answer");
    waiter.join().expect("no panic").expect("free").release().expect("the masters answer");
    assert_eq!(settle(&client, PATIENCE), 0);
    assert_nothing_left(&holder, fleet);
    client.masters().into_iter().flat_map(|master| master.refused).collect()
}

// I55
#[test]
fn a_server_without_messages_is_polled() {
    within("each waiter has the lock", || {
        let Some(mut fleet) = Fleet::servers_with(3, &["--rename-command", "HELLO", ""]) else { return };
        let clients = [(); 2].map(|()| open(&fleet.urls(), LONG));
        let refused = poll_for_a_fair_lock(&mut fleet, clients);
        assert_eq!(refused.iter().filter(|(name, _)| *name == "HELLO 3").count(), 3, "{refused:?}");
    });
}

// I55
#[test]
fn a_login_that_may_not_queue_is_polled() {
    within("each waiter has the lock", || {
        for missing in ["-subscribe -ssubscribe", "resetchannels", "-zrem", "-zrangebyscore", "-exists"] {
            let Some(mut fleet) = Fleet::servers(3) else { return };
            let rules = format!("ACL SETUSER locker on >pw ~* &* +@all {missing}");
            fleet.masters().for_each(|master| assert_eq!(master.ask(&rules).text(), "OK"));
            let urls: Vec<_> =
                fleet.urls().iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
            let settings = config(&urls, LONG).build().expect("valid settings");
            let clients = [(); 2].map(|()| Client::open(settings.clone()).expect("an event loop"));
            let refused = poll_for_a_fair_lock(&mut fleet, clients);
            let named = refused.iter().filter(|(name, _)| name.starts_with("a waiter's queue")).count();
            assert_eq!(named, 3, "{missing}: {refused:?}");
        }
    });
}

/// Number of scripts that a master got in full, through EVAL or SCRIPT LOAD.
fn count_scripts(master: &mut Master) -> u64 {
    let stats = master.ask("INFO commandstats").text();
    let calls = |line: &str| line.split_once(":calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
    let is_sent = |line: &&str| ["cmdstat_eval:", "cmdstat_script"].iter().any(|name| line.starts_with(name));
    stats.lines().filter(is_sent).filter_map(calls).sum()
}

// I58
#[test]
fn the_scripts_are_sent_to_each_master_once() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let client = open(&fleet.urls(), LONG);
    eventually(PATIENCE, "each master is asked", || {
        client.masters().iter().all(|master| master.state == MasterState::Ready)
    });
    let before: Vec<_> = fleet.masters().map(count_scripts).collect();
    for _ in 0..3 {
        let guard = client.lock("a").fair().ttl(TTL).acquire().expect("free");
        guard.release().expect("the masters answer");
        assert_eq!(settle(&client, PATIENCE), 0);
    }
    for (master, before) in fleet.masters().zip(before) {
        let stats = master.ask("INFO commandstats").text();
        // Four scripts are loaded behind the first attempt. The attempt is sent in full, too, unless the lock
        // was held and released before the master had answered.
        let sent = count_scripts(master) - before;
        assert!((4..=5).contains(&sent), "{sent}, by their digests from then on: {stats}");
        assert!(!stats.contains("cmdstat_zadd"), "a lock that nobody else wants has no queue: {stats}");
    }
}

#[test]
fn a_full_queue_is_no_outage() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let client = open(&fleet.urls(), LONG);
    let _guard = client.lock("a").ttl(TTL).try_acquire().expect("free");
    put_waiters(&mut fleet, limits::WAITER_COUNT_MAX, "redlatch:c:nobody");
    let request = client.lock("a").fair().ttl(TTL).wait(PATIENCE).max_attempts(1);
    let error = request.acquire().map(drop).expect_err("full");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Overloaded, "{error}");
    assert!(error.to_string().starts_with("the wait queue of lock \"a\" is full"), "{error}");
    assert!(!error.is_outage() && error.is_retryable());
}
