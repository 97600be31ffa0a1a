//! Contests while the network or the servers behind it misbehave.

use std::time::Duration;

use redlatch::limits;
use redlatch_support::{Fleet, PATIENCE, Proxy, eventually};

use crate::contest::{Contest, Rules, TTL};
use crate::lockers::{Mode, Way};
use crate::netns::Netns;

#[test]
fn broken_connections_give_no_lock_twice() {
    reset_all_along(&Rules::default());
}

#[test]
fn resets_give_sharing_callers_no_lock_twice() {
    reset_all_along(&Rules { way: Way::Client, ..Rules::default() });
}

fn reset_all_along(rules: &Rules) {
    let mut fleet = Fleet::start(5);
    let (proxies, urls) = proxies(&fleet);
    let mut contest = Contest::start("resets, byte by byte", &urls, rules);
    for proxy in &proxies {
        proxy.chunk(1);
        proxy.delay(Duration::from_millis(1));
    }
    contest.survives("bytes come one by one", 10);
    for round in 0..30 {
        let proxy = &proxies[round % proxies.len()];
        // Inside the first command or reply, at its end, and beyond.
        let count = 1 + (round * 7) % 90;
        if round % 2 == 0 {
            proxy.reset_after_reply_bytes(count)
        } else {
            proxy.reset_after_request_bytes(count)
        }
        eventually(PATIENCE, "a connection is reset", || !proxy.is_reset_due());
        if round % 3 == 0 {
            contest.survives("a connection was reset", 1);
        }
    }
    for proxy in &proxies {
        proxy.chunk(usize::MAX);
        proxy.delay(Duration::ZERO);
    }
    contest.recovers("resets");
    contest.finish(&mut fleet);
}

#[test]
fn partitions_by_a_proxy_give_no_lock_twice() {
    part_by_proxies(&Rules::default());
}

#[test]
fn partitions_give_sharing_callers_no_lock_twice() {
    part_by_proxies(&Rules { way: Way::Client, ..Rules::default() });
}

#[test]
fn cut_off_clients_leave_queues_that_go_on() {
    part_by_proxies(&Rules { mode: Mode::Fair, ..Rules::default() });
}

fn part_by_proxies(rules: &Rules) {
    let mut fleet = Fleet::start(5);
    let (mut proxies, urls) = proxies(&fleet);
    let mut contest = Contest::start("partition, refusal, stray replies", &urls, rules);
    let isolate = |proxies: &[Proxy], isolated| proxies.iter().for_each(|proxy| proxy.isolate(isolated));
    isolate(&proxies[..2], true);
    contest.survives("two are cut off", 10);
    contest.pass(TTL);
    isolate(&proxies[..2], false);
    proxies[2].stall_replies(true);
    proxies[3].stall_requests(true);
    contest.survives("one hears and one speaks only", 10);
    proxies[2].stall_replies(false);
    proxies[3].stall_requests(false);
    contest.recovers("partitions in one direction");
    isolate(&proxies[2..], true);
    contest.fails("three are cut off", 10);
    isolate(&proxies[2..], false);
    contest.recovers("a partition without a quorum");
    for proxy in &mut proxies[..2] {
        proxy.refuse(true);
        proxy.drop_connections();
    }
    contest.survives("two refuse connections", 10);
    proxies[..2].iter_mut().for_each(|proxy| proxy.refuse(false));
    contest.pass(TTL);
    // No command under way can be answered with a number. (A stray OK would be a vote, as the answer to a
    // SET.)
    for proxy in &proxies[..2] {
        proxy.inject_replies(b":7\r\n");
    }
    contest.survives("two said what nobody asked", 10);
    contest.recovers("all of this");
    contest.finish(&mut fleet);
}

#[test]
fn partitions_by_the_kernel_give_no_lock_twice() {
    let mut namespaces = Vec::new();
    for index in 0..3 {
        match Netns::new(index) {
            Ok(namespace) => namespaces.push(namespace),
            Err(why) => return println!("skipped: no network namespaces here: {why}"),
        }
    }
    let mut fleet = Fleet::start_at(namespaces.iter().map(Netns::place).collect());
    let mut contest = Contest::start("partition by namespaces", &fleet.urls(), &Rules::default());
    contest.progress("all is well", 10);
    namespaces[0].connect(false);
    contest.survives("one is cut off", 10);
    contest.pass(TTL);
    namespaces[1].connect(false);
    contest.fails("two are cut off", 10);
    namespaces.iter().take(2).for_each(|namespace| namespace.connect(true));
    contest.recovers("a partition");
    for namespace in &namespaces {
        namespace.connect(false);
    }
    contest.fails("all are cut off", 10);
    namespaces.iter().for_each(|namespace| namespace.connect(true));
    contest.recovers("a partition from all");
    // The kernel delivers late bytes. So a master may get a `SET`, or serve a waiter that has gone, long
    // after the client gave it up. The queue's entry ends with its stay, and the key with its TTL.
    contest.pass(limits::STAY + TTL);
    contest.finish(&mut fleet);
}

fn proxies(fleet: &Fleet) -> (Vec<Proxy>, Vec<String>) {
    let proxies: Vec<Proxy> = fleet.addrs().into_iter().map(Proxy::start).collect();
    let urls = proxies.iter().map(Proxy::url).collect();
    (proxies, urls)
}
