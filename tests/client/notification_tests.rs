//! Clients that wait for one lock are notified when another one releases it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::internals::settle;
use redlatch::{Client, ConfigBuilder};

use crate::fleet::{Fleet, eventually};
use crate::harness::{LONG, PATIENCE, TTL, assert_nothing_left, config, within};

/// Longer than any test: a waiter that gets the lock in time was notified.
const NEVER: Duration = Duration::from_secs(600);

/// A client that does not try again by itself for very long.
fn patient(urls: &[String]) -> ConfigBuilder {
    config(urls, LONG).ask_holder(false).retry_delay(NEVER..=NEVER)
}

fn open(builder: ConfigBuilder) -> Client {
    Client::open(builder.build().expect("valid settings")).expect("an event loop")
}

/// Until so many connections have subscribed to the lock on each of these masters.
fn await_subscribers(fleet: &mut Fleet, masters: std::ops::Range<usize>, count: usize) {
    for index in masters {
        eventually(PATIENCE, "they subscribe", || {
            let reply = fleet.master(index).ask("PUBSUB NUMSUB a").text();
            reply.contains(&format!(" {count}]"))
        });
    }
}

/// So many clients wait for a lock, and each has it once.
fn relay(waiter_count: usize) {
    let mut fleet = Fleet::start(3);
    let holder = open(patient(&fleet.urls()));
    let guard = holder.lock("a").ttl(TTL).try_acquire().expect("free");
    let (sender, receiver) = mpsc::channel();
    for _ in 0..waiter_count {
        let (builder, sender) = (config(&fleet.urls(), LONG), sender.clone());
        thread::spawn(move || {
            let client = open(builder);
            let acquired = client.lock("a").ttl(TTL).wait(PATIENCE).acquire();
            acquired.expect("it is released in time").release().expect("the masters answer");
            sender.send(()).expect("the test goes on");
        });
    }
    await_subscribers(&mut fleet, 0..3, waiter_count);
    guard.release().expect("the masters answer");
    for _ in 0..waiter_count {
        receiver.recv_timeout(PATIENCE).expect("each client has it");
    }
    assert_nothing_left(&holder, &mut fleet);
}

#[test]
fn a_waiting_client_gets_a_release_notification() {
    within("a waiter is notified", || {
        let mut fleet = Fleet::start(5);
        let (first, second) = (open(patient(&fleet.urls())), open(patient(&fleet.urls())));
        let waiting = second.clone();
        for is_fenced in [false, true].repeat(5) {
            let guard = first.lock("a").ttl(TTL).try_acquire().expect("free");
            let waiter = {
                let waiting = waiting.clone();
                thread::spawn(move || {
                    let request = waiting.lock("a").ttl(TTL).wait(PATIENCE);
                    if is_fenced { request.fenced().acquire() } else { request.acquire() }
                })
            };
            await_subscribers(&mut fleet, 0..5, 1);
            guard.release().expect("the masters answer");
            let guard = waiter.join().expect("no panic").expect("it is notified");
            guard.release().expect("the masters answer");
        }
        // Only fences are left.
        assert_eq!((settle(&first, PATIENCE), settle(&second, PATIENCE)), (0, 0));
        assert!(fleet.masters().all(|master| master.ask("EXISTS a").text() == "0"));
    });
}

#[test]
fn ten_and_a_hundred_waiting_clients_all_succeed() {
    within("each of ten clients has the lock", || relay(10));
    within("each of a hundred clients has the lock", || relay(100));
}

#[test]
fn two_hanging_masters_delay_no_notification() {
    within("a waiter is notified", || {
        let mut fleet = Fleet::start(5);
        let short = |urls: &[String]| patient(urls).answer_timeout(Duration::from_millis(500));
        let (first, second) = (open(short(&fleet.urls())), open(short(&fleet.urls())));
        let guard = first.lock("a").ttl(TTL).try_acquire().expect("free");
        let waiter = thread::spawn(move || second.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        await_subscribers(&mut fleet, 0..5, 1);
        (0..2).for_each(|index| fleet.master(index).stop());
        drop(guard);
        let guard = waiter.join().expect("no panic").expect("it is notified");
        (0..2).for_each(|index| fleet.master(index).cont());
        guard.release().expect("the masters answer");
    });
}

/// An ACL without channels, on so many masters; then the rest publish, or nobody does and waiting goes on as
/// without messages.
#[test]
fn masters_that_forbid_messages_are_still_waited_for() {
    within("a waiter gets the lock", || {
        for count in [1, 3] {
            let mut fleet = Fleet::start(3);
            for index in 0..count {
                fleet.master(index).ask("ACL SETUSER default resetchannels");
            }
            let (first, second) = (open(config(&fleet.urls(), LONG)), open(config(&fleet.urls(), LONG)));
            let guard = first.lock("a").ttl(TTL).try_acquire().expect("free");
            let waiting = second.clone();
            let waiter = thread::spawn(move || waiting.lock("a").ttl(TTL).wait(PATIENCE).acquire());
            await_subscribers(&mut fleet, count..3, 1);
            eventually(PATIENCE, "the master's warnings say so", || {
                let says = |client: &Client, words: &str| {
                    client.masters()[0].warnings.iter().any(|warning| warning.to_string().contains(words))
                };
                says(&second, "sends no release notifications") && says(&first, "notify nobody")
            });
            let start = Instant::now();
            guard.release().expect("the masters answer");
            let guard = waiter.join().expect("no panic").expect("it goes on trying");
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
            guard.release().expect("the masters answer");
            assert_nothing_left(&first, &mut fleet);
        }
    });
}

#[test]
fn a_silent_client_neither_publishes_nor_subscribes() {
    within("a waiter gets the lock", || {
        let mut fleet = Fleet::start(3);
        let silent = || open(config(&fleet.urls(), LONG).wake_waiters(false));
        let (first, second) = (silent(), silent());
        let guard = first.lock("a").ttl(TTL).try_acquire().expect("free");
        let waiter = thread::spawn(move || second.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        thread::sleep(Duration::from_millis(50));
        guard.release().expect("the masters answer");
        waiter.join().expect("no panic").expect("it tries again").release().expect("the masters answer");
        for master in fleet.masters() {
            let stats = master.ask("INFO commandstats").text();
            assert!(!stats.contains("cmdstat_publish") && !stats.contains("cmdstat_subscribe"), "{stats}");
        }
    });
}
