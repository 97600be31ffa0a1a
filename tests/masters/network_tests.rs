//! Contests while the network or the servers behind it misbehave.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use redlatch::status::MasterState;
use redlatch::{HeldLocks, Quarantine, limits};

use crate::blocking::Blocking;
use crate::contest::{Contest, Rules, TTL};
use crate::fleet::{Fleet, Master, Place, command, eventually};
use crate::lock_tests::{self, PATIENCE, drive, open, settings, state};
use crate::lockers::{Mode, Way};
use crate::netns::Netns;
use crate::proxy::Proxy;
use crate::rogue::Rogue;

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
        // Within the first command or reply, on the border of the next, and beyond.
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
    // A number answers no command that could be under way. (A stray OK in the place of a SET's reply is a
    // vote.)
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
    // The kernel sends on what was on its way. So a master may have a `SET`, or serve a waiter that has gone,
    // when its client has long given it up: the place in the queue has an end, and so has the key.
    contest.pass(limits::STAY + TTL);
    contest.finish(&mut fleet);
}

#[test]
fn servers_that_are_no_redis_give_no_votes() {
    let mut fleet = Fleet::start(4);
    let rogues = [
        Rogue::start(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        Rogue::start(Vec::new()),            // never answers the handshake
        Rogue::start(b"+OK\r\n".repeat(50)), // nobody asked
    ];
    let urls = [fleet.urls(), rogues.iter().map(Rogue::url).collect()].concat();
    let rules = Rules { quarantine: Quarantine::Trust, ready_count: Some(4), ..Rules::default() };
    let mut contest = Contest::start("garbage, mute, unasked", &urls, &rules);
    contest.survives("three of seven are no Redis", 40);
    contest.finish(&mut fleet);
    assert!(rogues.iter().all(|rogue| rogue.visitor_count() >= 4));
}

#[test]
fn an_unrequested_reply_ends_the_connection() {
    let mut fleet = Fleet::start(3);
    let (proxies, urls) = proxies(&fleet);
    let mut redlock = open(settings(&urls));
    drive(&mut redlock, "all are connected", |it| (0..3).all(|index| state(it, index) == MasterState::Ready));
    for _ in 0..3 {
        let reconnects = |it: &Blocking| [0, 1].map(|index: usize| it.stats().masters[index].reconnects);
        let before = reconnects(&redlock);
        proxies[0].inject_replies(b"+OK\r\n");
        proxies[1].inject_replies(b"+OK\r\n");
        // Not at the same moment: the first may be back already. Nor to no request, if a release is still
        // owed its answer.
        let mut given_up = [false; 2];
        drive(&mut redlock, "both are given up", |it| {
            for (index, given_up) in given_up.iter_mut().enumerate() {
                // On a busy machine it may be back before anybody looks.
                *given_up |= reconnects(it)[index] > before[index];
                *given_up |=
                    matches!(state(it, index), MasterState::Down(why) if why.starts_with("a reply "));
            }
            given_up == [true; 2]
        });
        // One of three is left until they are back.
        let lease = redlock.lock("a").ttl(lock_tests::TTL).wait(PATIENCE).acquire().expect("they come back");
        redlock.release(lease).expect("confirmed");
        drive(&mut redlock, "all are back", |it| (0..3).all(|index| state(it, index) == MasterState::Ready));
    }
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    assert!(fleet.masters().all(|master| master.key_count() == "0"));
}

const IPV4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const IPV6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A fleet with a master at each of these addresses, if this machine has them.
fn fleet_at(hosts: &[IpAddr]) -> Option<Fleet> {
    for host in hosts {
        if let Err(error) = TcpListener::bind((*host, 0)) {
            println!("skipped: no {host} here: {error}");
            return None;
        }
    }
    Some(Fleet::start_at(hosts.iter().map(|&host| Place { host, ..Place::default() }).collect()))
}

/// A lock is acquired on all masters at these URLs, extended and released, by the library and by the command
/// line. An examination reaches them, too.
fn lock_by_library_and_command_line(fleet: &mut Fleet, urls: &[String]) {
    let mut redlock = open(settings(urls));
    drive(&mut redlock, "all are connected", |it| {
        it.masters().iter().all(|master| master.state == MasterState::Ready)
    });
    let mut lease = redlock.lock("a").ttl(lock_tests::TTL).wait(PATIENCE).acquire().expect("free");
    drive(&mut redlock, "all have it", |it| it.margin(&lease) == urls.len() - urls.len() / 2 - 1);
    redlock.extend(&mut lease, lock_tests::TTL).expect("held");
    redlock.release(lease).expect("confirmed");
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    #[cfg(feature = "cli")]
    {
        fleet.masters().for_each(|master| assert_eq!(master.ask("CONFIG RESETSTAT").text(), "OK"));
        let ran = command(env!("CARGO_BIN_EXE_redlatch"))
            .args(["run", "--trust", "--answer-timeout", "3s", "--wait", "20s", "a", "--", "echo", "locked"])
            .env("REDLATCH_MASTERS", urls.join(","))
            .output()
            .expect("it was built");
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(0), b"locked\n".as_slice()), "{ran:?}");
        eventually(PATIENCE, "each master had the lock", || {
            fleet.masters().all(|master| master.ask("INFO commandstats").text().contains("cmdstat_set:"))
        });
        let config = settings(urls).build().expect("valid settings");
        let findings = redlatch::doctor::examine(&config, Duration::from_secs(9)).expect("threads");
        let unreachable = findings.iter().find(|it| it.problem.code() == "unreachable");
        assert_eq!(unreachable, None);
    }
    eventually(PATIENCE, "nothing is left", || fleet.masters().all(|it| it.key_count() == "0"));
}

#[test]
fn masters_are_reached_over_ipv6() {
    let Some(mut fleet) = fleet_at(&[IPV6; 3]) else { return };
    let urls = fleet.urls();
    assert!(urls.iter().all(|url| url.starts_with("redis://[::1]:")), "{urls:?}");
    lock_by_library_and_command_line(&mut fleet, &urls);
}

#[test]
fn masters_are_reached_by_unix_sockets() {
    let mut fleet = Fleet::start_with_sockets(3, &[]);
    let urls: Vec<String> = fleet.masters().map(|master| master.unix_url()).collect();
    lock_by_library_and_command_line(&mut fleet, &urls);
}

/// Each master listens at one of the name's two addresses only. This test runs itself with a file of host
/// names of its own.
#[test]
fn a_master_is_reached_at_any_address() {
    const NAME: &str = "both.redlatch.test";
    const RENAMED: &str = "REDLATCH_TEST_RENAMED";
    if std::env::var_os(RENAMED).is_some() {
        let mut found: Vec<IpAddr> =
            (NAME, 1).to_socket_addrs().map(|found| found.map(|it| it.ip()).collect()).unwrap_or_default();
        found.sort();
        found.dedup();
        if found != [IPV4, IPV6] {
            return println!("skipped: {NAME} is {found:?} here");
        }
        for hosts in [[IPV4; 3], [IPV6; 3], [IPV4, IPV6, IPV4]] {
            let Some(mut fleet) = fleet_at(&hosts) else { return };
            let url = |master: &mut Master| format!("redis://{NAME}:{}", master.port());
            let urls: Vec<String> = fleet.masters().map(url).collect();
            lock_by_library_and_command_line(&mut fleet, &urls);
        }
        pass_by_silent_addresses(NAME);
        return println!("reached");
    }
    let hosts = std::env::temp_dir().join(format!("redlatch-hosts-{}", std::process::id()));
    std::fs::write(&hosts, format!("{IPV4} localhost {NAME}\n{IPV6} localhost {NAME}\n"))
        .expect("a writable directory");
    let ran = command("unshare")
        .args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""])
        .arg(&hosts)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "network_tests::a_master_is_reached_at_any_address", "--nocapture"])
        .env(RENAMED, "1")
        .output();
    std::fs::remove_file(&hosts).expect("our own file");
    let said = match &ran {
        Ok(ran) => String::from_utf8_lossy(&[&ran.stdout[..], &ran.stderr[..]].concat()).into_owned(),
        Err(error) => error.to_string(),
    };
    if said.contains("running 1 test") && !said.contains("skipped: ") {
        assert!(ran.is_ok_and(|ran| ran.status.success()) && said.contains("reached"), "{said}");
    } else {
        println!("skipped: no name with two addresses here: {said}");
    }
}

/// At the other address of each name somebody listens who never answers.
fn pass_by_silent_addresses(name: &str) {
    let hosts = [IPV4, IPV6, IPV4];
    let Some(mut fleet) = fleet_at(&hosts) else { return };
    let ports: Vec<u16> = fleet.masters().map(|master| master.port()).collect();
    let other = |host: IpAddr| if host == IPV4 { IPV6 } else { IPV4 };
    // Where another test has the port, it stays without.
    let _silent: Vec<_> =
        hosts.iter().zip(&ports).map(|(host, port)| TcpListener::bind((other(*host), *port))).collect();
    let urls: Vec<String> = ports.iter().map(|port| format!("redis://{name}:{port}")).collect();
    let mut redlock = open(settings(&urls).connect_timeout(Duration::from_millis(300)));
    drive(&mut redlock, "each master is reached in its turn", |it| {
        it.masters().iter().all(|master| master.state == MasterState::Ready)
    });
}

fn proxies(fleet: &Fleet) -> (Vec<Proxy>, Vec<String>) {
    let proxies: Vec<Proxy> = fleet.addrs().into_iter().map(Proxy::start).collect();
    let urls = proxies.iter().map(Proxy::url).collect();
    (proxies, urls)
}
