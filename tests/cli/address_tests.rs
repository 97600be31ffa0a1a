//! Masters at each kind of address, reached by the library, the command line and an examination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use redlatch::{Config, ConfigBuilder, HeldLocks, Quarantine};
use redlatch_cli::doctor::examine;
use redlatch_support::{Fleet, Master, PATIENCE, Place, eventually};

use crate::harness::{command, expect, finish, redlatch};

const TTL: Duration = Duration::from_secs(10);

fn settings(urls: &[String]) -> ConfigBuilder {
    let answer_timeout = Duration::from_secs(3);
    Config::builder().masters(urls).quarantine(Quarantine::Trust).answer_timeout(answer_timeout)
}

const IPV4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const IPV6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A fleet with a master at each of these addresses; `None` if this machine lacks one.
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
    let client = settings(urls).connect().expect("an event loop");
    eventually(PATIENCE, "all are connected", || client.stats().ready() == urls.len());
    let mut guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    eventually(PATIENCE, "all have it", || guard.margin() == urls.len() - urls.len() / 2 - 1);
    guard.extend(TTL).expect("held");
    guard.release().expect("confirmed");
    assert_eq!(client.drain(PATIENCE, HeldLocks::Leave), 0);
    fleet.masters().for_each(|master| assert_eq!(master.ask("CONFIG RESETSTAT").text(), "OK"));
    let mut run = redlatch(urls);
    run.args(["run", "--trust", "--answer-timeout", "3s", "--wait", "20s", "a", "--", "echo", "locked"]);
    let ran = finish(&mut run);
    expect(&ran, 0, &[]);
    assert_eq!(ran.stdout, "locked\n");
    eventually(PATIENCE, "each master had the lock", || {
        fleet.masters().all(|master| master.ask("INFO commandstats").text().contains("cmdstat_set:"))
    });
    let config = settings(urls).build().expect("valid settings");
    let findings = examine(&config, Duration::from_secs(9)).expect("threads");
    let unreachable = findings.iter().find(|it| it.problem.code() == "unreachable");
    assert_eq!(unreachable, None);
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

/// Each master listens at only one of the name's two addresses. The test runs itself with a hosts file of its
/// own.
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
        .args(["--exact", "address_tests::a_master_is_reached_at_any_address", "--nocapture"])
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

/// A silent listener has the other address of each name.
fn pass_by_silent_addresses(name: &str) {
    let hosts = [IPV4, IPV6, IPV4];
    let Some(mut fleet) = fleet_at(&hosts) else { return };
    let ports: Vec<u16> = fleet.masters().map(|master| master.port()).collect();
    let other = |host: IpAddr| if host == IPV4 { IPV6 } else { IPV4 };
    // If another test has the port, the address has no listener.
    let _silent: Vec<_> =
        hosts.iter().zip(&ports).map(|(host, port)| TcpListener::bind((other(*host), *port))).collect();
    let urls: Vec<String> = ports.iter().map(|port| format!("redis://{name}:{port}")).collect();
    let client =
        settings(&urls).connect_timeout(Duration::from_millis(300)).connect().expect("an event loop");
    eventually(PATIENCE, "each master is reached in its turn", || client.stats().ready() == urls.len());
}
