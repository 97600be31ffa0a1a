//! Fair locks on real servers: those who wait have the lock in the order in which they came.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::error::InputError;
use redlatch::internals::settle;
use redlatch::status::MasterState;
use redlatch::{AcquireError, Client, ErrorClass, Guard, limits};

use crate::fleet::{Fleet, Master, eventually};
use crate::harness::{LONG, PATIENCE, TTL, assert_nothing_left, config, open, within};

/// Until so many tickets stand in the queue of each of these masters.
fn await_tickets(fleet: &mut Fleet, masters: std::ops::Range<usize>, count: usize) {
    for index in masters {
        eventually(PATIENCE, "they stand in the queue", || {
            fleet.master(index).ask("ZCARD redlatch:fair:t:a").text() == count.to_string()
        });
    }
}

/// Puts the first ticket into each queue, of somebody who will say nothing any more.
fn put_ticket(fleet: &mut Fleet, id: &str) {
    for master in fleet.masters() {
        let put = "local n=redis.call('time')[1]*1000 redis.call('zadd',KEYS[1],0,ARGV[1]) \
            return redis.call('zadd',KEYS[2],n+3000,ARGV[1])";
        let keys = ["redlatch:fair:t:a", "redlatch:fair:h:a"];
        // With the beginning by which a queue is known.
        let id = format!("redlatch:1:{id}");
        let words = ["EVAL", put, "2", keys[0], keys[1], &id];
        assert_eq!(master.command(&words.map(str::as_bytes)).text(), "1");
    }
}

/// A thread that waits for the lock; its first ticket stands on these masters, behind so many others.
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
    await_tickets(fleet, masters, ahead + 1);
    waiter
}

/// So many waiters of three clients ask one after the other; returns the order in which they have it.
fn order_of_waiters(fleet: &mut Fleet, count: usize) -> Vec<usize> {
    let clients: Vec<Client> = (0..3).map(|_| open(&fleet.urls(), LONG)).collect();
    let guard = clients[0].lock("a").fair().ttl(TTL).try_acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    let masters = 0..fleet.masters().count();
    let waiters: Vec<_> = (0..count)
        .map(|number| {
            let waiter = wait_behind(fleet, masters.clone(), &clients[number % 3], number);
            let sender = sender.clone();
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

#[test]
fn fair_waiters_get_the_lock_in_order() {
    within("each waiter has the lock", || {
        for master_count in [1, 3, 5] {
            let mut fleet = Fleet::start(master_count);
            assert_eq!(order_of_waiters(&mut fleet, 8), (0..8).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_caller_that_gives_up_leaves_no_ticket() {
    within("the next one has the lock", || {
        let mut fleet = Fleet::start(3);
        let (first, second) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
        let guard = first.lock("a").fair().ttl(TTL).try_acquire().expect("free");
        let dropped = wait_in_task(&second);
        await_tickets(&mut fleet, 0..3, 1);
        let waiter = wait_behind(&mut fleet, 0..3, &first, 1);
        drop(dropped);
        await_tickets(&mut fleet, 0..3, 1);
        let short = second.lock("a").fair().ttl(TTL).wait(Duration::from_millis(50));
        assert!(matches!(short.acquire(), Err(AcquireError::Contended(_))));
        await_tickets(&mut fleet, 0..3, 1);
        guard.release().expect("the masters answer");
        waiter.join().expect("no panic").release().expect("the masters answer");
        assert_nothing_left(&first, &mut fleet);
        assert_eq!(settle(&second, PATIENCE), 0);
    });
}

/// An acquisition that nobody waits for, polled once.
fn wait_in_task(client: &Client) -> impl Sized {
    let request = client.clone();
    let mut task =
        Box::pin(
            async move { request.lock("a").fair().ttl(TTL).wait(PATIENCE).acquire_async().await.map(drop) },
        );
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(task.as_mut().poll(&mut context).is_pending());
    task
}

#[test]
fn dead_waiters_cost_one_heartbeat_however_many() {
    within("the lock is had", || {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        (0..5).for_each(|number| put_ticket(&mut fleet, &format!("dead {number}")));
        let start = Instant::now();
        let lock = client.lock("a").fair().ttl(TTL);
        let refused = lock.clone().try_acquire().expect_err("others stand before it");
        assert!(matches!(refused, AcquireError::Contended(_)), "{refused}");
        assert!(format!("{refused:#}").contains("5 waiters are ahead in the queue"), "{refused:#}");
        await_tickets(&mut fleet, 0..3, 5);
        let guard = lock.wait(PATIENCE).acquire().expect("they are dead");
        let took = start.elapsed();
        assert!(took > Duration::from_secs(1), "their heartbeats counted: {took:?}");
        assert!(took < 4 * limits::FAIR_HEARTBEAT, "not one after the other: {took:?}");
        guard.release().expect("the masters answer");
        assert_nothing_left(&client, &mut fleet);
    });
}

#[test]
fn fair_order_survives_an_absent_minority() {
    within("each waiter has the lock", || {
        let mut fleet = Fleet::start(3);
        let clients: Vec<Client> = (0..3).map(|_| open(&fleet.urls(), LONG)).collect();
        let guard = clients[0].lock("a").fair().ttl(TTL).try_acquire().expect("free");
        // A quorum grants it. Of a lock on two masters one would be left when one of them is away, and that
        // is no lock.
        eventually(PATIENCE, "the third master has it, too", || guard.margin() == 1);
        fleet.master(2).kill();
        let first = wait_behind(&mut fleet, 0..2, &clients[1], 0);
        fleet.master(2).restart();
        // At its next sign of life the first one has its number there, too; scripts that were lost are sent
        // in full.
        await_tickets(&mut fleet, 0..3, 1);
        let second = wait_behind(&mut fleet, 0..3, &clients[2], 1);
        fleet.masters().for_each(|master| assert_eq!(master.ask("SCRIPT FLUSH").text(), "OK"));
        fleet.master(0).kill();
        drop(guard);
        let guard = first.join().expect("no panic");
        assert!(!second.is_finished(), "it came later");
        drop(guard);
        drop(second.join().expect("no panic"));
        fleet.master(0).restart();
        for client in &clients {
            assert_eq!(settle(client, PATIENCE), 0, "locks left on some master");
        }
    });
}

#[test]
fn fair_and_plain_locks_exclude_each_other() {
    within("each waiter has the lock", || {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let plain = client.lock("a").ttl(TTL).try_acquire().expect("free");
        let fair = client.lock("a").fair().ttl(TTL);
        assert!(matches!(fair.try_acquire(), Err(AcquireError::Contended(_))));
        let waiter = wait_behind(&mut fleet, 0..3, &client, 0);
        plain.release().expect("the masters answer");
        let mut guard = waiter.join().expect("no panic");
        assert!(matches!(client.lock("a").ttl(TTL).try_acquire(), Err(AcquireError::Contended(_))));
        guard.extend(TTL).expect("it is held");
        let other = client.clone();
        let plain = thread::spawn(move || other.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        guard.release().expect("the masters answer");
        plain.join().expect("no panic").expect("free").release().expect("the masters answer");
        assert_nothing_left(&client, &mut fleet);
    });
}

#[test]
fn a_fair_lock_may_be_kept_and_reentrant() {
    within("the lock is had", || {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let ttl = Duration::from_secs(3);
        let guard = client.lock("a").fair().ttl(ttl).auto_extend(TTL).acquire().expect("free");
        let end = guard.valid_until();
        eventually(PATIENCE, "it is kept", || guard.valid_until() > end);
        assert!(
            client.lock("a").fair().ttl(TTL).max_attempts(1).wait(PATIENCE).acquire().is_err(),
            "one try"
        );
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

#[test]
fn the_documented_rights_suffice_for_fair_waiting() {
    within("each waiter has the lock", || {
        let mut fleet = Fleet::start(3);
        let rules = "ACL SETUSER locker on >pw resetkeys ~lock:* resetchannels -@all +set +get +del +pexpire +pttl \
                     +evalsha +script|load +eval +info +echo &lock:* +publish +subscribe +unsubscribe +time +exists \
                     +zadd +zrem +zcard +zscore +zrank +zrange +zrevrange +zrangebyscore";
        fleet.masters().for_each(|master| assert_eq!(master.ask(rules).text(), "OK"));
        let urls: Vec<_> =
            fleet.urls().iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
        let settings = config(&urls, LONG).prefix("lock:").build().expect("valid settings");
        let clients = [(); 2].map(|()| Client::open(settings.clone()).expect("an event loop"));
        let lock = clients[0].lock("a").fair().ttl(TTL);
        let guard = lock.wait(PATIENCE).acquire().expect("allowed");
        let waiting = clients[1].clone();
        let waiter = thread::spawn(move || waiting.lock("a").fair().ttl(TTL).wait(PATIENCE).acquire());
        eventually(PATIENCE, "it stands in the queue, and listens", || {
            fleet.masters().all(|master| {
                master.ask("ZCARD lock:redlatch:fair:t:a").text() == "1"
                    && master.ask("PUBSUB CHANNELS lock:redlatch:fair:c:*").text() != "[]"
            })
        });
        guard.release().expect("the masters answer");
        let guard = waiter.join().expect("no panic").expect("it is notified");
        guard.release().expect("the masters answer");
        assert_nothing_left(&clients[0], &mut fleet);
    });
}

/// Scripts that a master was sent in full, to be carried out or to be known.
fn count_scripts(master: &mut Master) -> u64 {
    let stats = master.ask("INFO commandstats").text();
    let calls = |line: &str| line.split_once(":calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
    let is_sent = |line: &&str| ["cmdstat_eval:", "cmdstat_script"].iter().any(|name| line.starts_with(name));
    stats.lines().filter(is_sent).filter_map(calls).sum()
}

#[test]
fn the_scripts_are_sent_to_each_master_once() {
    let mut fleet = Fleet::start(3);
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
        // Five are loaded behind the first attempt. That is sent in full, too, unless the lock was held and
        // released before the master had answered.
        let sent = count_scripts(master) - before;
        assert!((5..=6).contains(&sent), "{sent}, by their digests from then on: {stats}");
        assert!(!stats.contains("cmdstat_zadd"), "a lock that nobody else wants has no queue: {stats}");
    }
}

#[test]
fn a_queue_that_is_full_says_so() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    put_ticket(&mut fleet, "first");
    let fill = "for i=1,4095 do redis.call('zadd',KEYS[1],i,i) end return redis.call('zcard',KEYS[1])";
    let words = ["EVAL", fill, "1", "redlatch:fair:t:a"];
    assert_eq!(fleet.master(0).command(&words.map(str::as_bytes)).text(), "4096");
    let error = client.lock("a").fair().ttl(TTL).wait(Duration::from_millis(50)).acquire();
    assert!(matches!(error, Err(AcquireError::NoQuorum(_))), "it is no contention: {error:?}");
    let text = error.err().map(|error| format!("{error:#}")).expect("as above");
    assert!(text.contains("too many wait for this lock"), "{text}");
}

#[test]
fn a_full_queue_is_no_outage() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    // More than one attempt removes, as they end before it on a slow machine.
    let fill = "local n=redis.call('time')[1]*1000 for i=1,tonumber(ARGV[1]) do \
        redis.call('zadd',KEYS[1],i,'redlatch:1:'..i) redis.call('zadd',KEYS[2],n+1000,'redlatch:1:'..i) end return 1";
    let count = (2 * limits::FAIR_QUEUE_COUNT_MAX).to_string();
    let words = ["EVAL", fill, "2", "redlatch:fair:t:a", "redlatch:fair:h:a", &count];
    for master in fleet.masters() {
        assert_eq!(master.command(&words.map(str::as_bytes)).text(), "1");
    }
    let request = client.lock("a").fair().ttl(TTL).wait(PATIENCE).max_attempts(1);
    let error = request.acquire().map(drop).expect_err("full");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Overloaded, "{error}");
    assert!(error.to_string().starts_with("the wait queue of lock \"a\" is full"), "{error}");
    assert!(!error.is_outage() && error.is_retryable());
}
