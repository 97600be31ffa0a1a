//! Masters that were replicas: a full resync replaces the memory of a running process.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::status::MasterState;
use redlatch::{Config, ConfigBuilder, Quarantine};
use redlatch_support::{Blocking, Fleet, Master, PATIENCE, Proxy, command, eventually};

use crate::lock_tests::{ANSWER_TIMEOUT, drive, open, state};

const MAX_TTL: Duration = Duration::from_secs(3);

/// The quarantine for this `max_ttl`: 1 % and 2 ms more.
const WATCH: Duration = Duration::from_millis(3032);

const MODES: [Quarantine; 2] = [Quarantine::Uptime, Quarantine::Strict];

fn settings(urls: &[String], quarantine: Quarantine) -> ConfigBuilder {
    Config::builder().masters(urls).quarantine(quarantine).max_ttl(MAX_TTL).answer_timeout(ANSWER_TIMEOUT)
}

/// A client that counts all masters' votes.
fn counting(urls: &[String], quarantine: Quarantine) -> Blocking {
    let mut redlock = open(settings(urls, quarantine));
    wait_for_all(&mut redlock);
    redlock
}

fn wait_for_all(redlock: &mut Blocking) {
    drive(redlock, "all masters count", |it| it.masters().iter().all(|it| it.state == MasterState::Ready));
}

fn replication(master: &mut Master, field: &str) -> String {
    let info = master.ask("INFO replication").text();
    let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}

/// Makes the master a replica of the server at this port, and waits until it has the data.
fn follow(master: &mut Master, port: u16) {
    assert_eq!(master.ask(&format!("REPLICAOF 127.0.0.1 {port}")).text(), "OK");
    eventually(PATIENCE, "the link is up", || replication(master, "master_link_status") == "up");
}

fn promote(master: &mut Master) {
    assert_eq!(master.ask("REPLICAOF NO ONE").text(), "OK");
}

/// Ends all clients' connections, and waits until this client is back.
fn reconnect(master: &mut Master, redlock: &mut Blocking) {
    let before = redlock.stats().masters[0].reconnects;
    // Its connections have subscribed.
    master.ask("CLIENT KILL TYPE pubsub");
    drive(redlock, "it is connected again", |it| it.stats().masters[0].reconnects > before);
}

fn is_quarantined(redlock: &Blocking) -> bool {
    matches!(state(redlock, 0), MasterState::Quarantined(_))
}

/// A waiter meets the replicas; a client that asks nothing needs its connections to end.
// I37
#[test]
fn masters_resynced_from_nothing_give_no_lock_twice() {
    thread::scope(|scope| {
        for (quarantine, waits) in MODES.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
            scope.spawn(move || resync_from_nothing(quarantine, waits));
        }
    });
}

fn resync_from_nothing(quarantine: Quarantine, waits: bool) {
    let ttl = MAX_TTL * 3;
    let what = format!("{quarantine:?}, waits: {waits}");
    let mut fleet = Fleet::start(3);
    // By default, a resync takes 5 s to begin.
    let mut empty = Fleet::start_with(1, &["--repl-diskless-sync-delay", "2"]);
    let client = || {
        let mut redlock = open(settings(&fleet.urls(), quarantine).max_ttl(ttl));
        wait_for_all(&mut redlock);
        redlock
    };
    let [mut holder, mut rival] = [(); 2].map(|()| client());
    let lease = holder.lock("x").ttl(ttl).wait(PATIENCE).acquire().expect("free");
    let rival_lock = move || {
        let second = rival.lock("x").ttl(ttl).wait(PATIENCE).acquire().expect("in the end");
        let granted = Instant::now();
        let restarts = rival.stats().restarts();
        rival.release(second).expect("confirmed");
        (granted, restarts)
    };
    let (waiter, late) =
        if waits { (Some(thread::spawn(rival_lock)), None) } else { (None, Some(rival_lock)) };
    // All at once, so that the lock stays valid for long afterwards.
    let port = empty.master(0).port();
    for master in fleet.masters() {
        assert_eq!(master.ask(&format!("REPLICAOF 127.0.0.1 {port}")).text(), "OK");
    }
    for master in fleet.masters() {
        eventually(PATIENCE, "the link is up", || replication(master, "master_link_status") == "up");
    }
    fleet.masters().for_each(promote);
    fleet.masters().for_each(|master| drop(master.ask("CLIENT KILL TYPE normal")));
    if !waits {
        fleet.masters().for_each(|master| drop(master.ask("CLIENT KILL TYPE pubsub")));
    }
    assert_eq!(fleet.master(0).ask("EXISTS x").text(), "0", "its memory is another one");
    assert!(Instant::now() < lease.valid_until(), "{what}: the resync took too long");
    let (granted, restarts) = match (waiter, late) {
        (Some(waiter), _) => waiter.join().expect("no panic"),
        (None, late) => late.expect("one of both")(),
    };
    assert!(granted >= lease.valid_until(), "{what}: two hold it for {:?}", lease.valid_until() - granted);
    assert_eq!(restarts, 3, "{what}");
}

#[test]
fn replicas_and_backups_quarantine_nobody() {
    for quarantine in MODES {
        let (mut fleet, mut other) =
            (Fleet::start_with(1, &["--repl-diskless-sync-delay", "0"]), Fleet::start(1));
        let mut redlock = counting(&fleet.urls(), quarantine);
        let (urls, port) = (fleet.urls(), fleet.addrs()[0].port());
        let master = fleet.master(0);
        let mut check = |master: &mut Master, what: &str| {
            reconnect(master, &mut redlock);
            assert_eq!((state(&redlock, 0), redlock.stats().restarts()), (MasterState::Ready, 0), "{what}");
        };
        let before = replication(master, "master_replid");
        follow(other.master(0), port);
        assert_ne!(replication(master, "master_replid"), before, "it drew a new one");
        check(master, "a first replica");
        promote(other.master(0));
        let mut backup = command("redis-cli");
        backup
            .args(["-p", &port.to_string(), "--rdb", "/dev/null"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        backup.status().expect("it runs");
        check(master, "a backup");
        let before = replication(master, "master_replid");
        assert_eq!(master.ask("CONFIG SET repl-backlog-ttl 1").text(), "OK");
        eventually(PATIENCE, "the backlog expires", || replication(master, "repl_backlog_active") == "0");
        assert_ne!(replication(master, "master_replid"), before, "it drew a new one");
        check(master, "an expired backlog");
        if quarantine == Quarantine::Strict {
            drive(&mut redlock, "the mark is there", |_| master.ask("EXISTS redlatch:mark").text() == "1");
        }
        let next = open(settings(&urls, quarantine));
        assert_eq!(state(&next, 0), MasterState::Ready, "a new client");
    }
}

/// Redis 7 mistakes its snapshot's offset for the offset of a followed master.
#[test]
fn a_restart_from_a_snapshot_costs_one_quarantine() {
    for quarantine in MODES {
        let (mut fleet, mut other) =
            (Fleet::start_with(1, &["--repl-diskless-sync-delay", "0", "--save", "3600 1"]), Fleet::start(1));
        let mut redlock = counting(&fleet.urls(), quarantine);
        let (urls, port) = (fleet.urls(), fleet.addrs()[0].port());
        let master = fleet.master(0);
        follow(other.master(0), port);
        master.ask("SET kept yes");
        master.shutdown();
        master.restart();
        println!("it shows {}", replication(master, "second_repl_offset"));
        drive(&mut redlock, "it is known as restarted", |it| it.stats().restarts() == 1);
        assert!(is_quarantined(&redlock), "{quarantine:?}");
        wait_for_all(&mut redlock);
        for _ in 0..3 {
            reconnect(master, &mut redlock);
            assert_eq!(
                (state(&redlock, 0), redlock.stats().restarts()),
                (MasterState::Ready, 1),
                "{quarantine:?}"
            );
        }
        if quarantine == Quarantine::Strict {
            drive(&mut redlock, "the mark is there", |_| {
                master.ask("GET redlatch:mark").text().ends_with(&format!(" {}", WATCH.as_millis()))
            });
        }
        let next = open(settings(&urls, quarantine));
        assert_eq!(state(&next, 0), MasterState::Ready, "{quarantine:?}: a new client");
    }
}

#[test]
fn a_failover_and_back_ends_a_mark() {
    for quarantine in MODES {
        let (mut fleet, mut other) =
            (Fleet::start(1), Fleet::start_with(1, &["--repl-diskless-sync-delay", "0"]));
        let (mut first, urls) = (counting(&fleet.urls(), quarantine), fleet.urls());
        let master = fleet.master(0);
        if quarantine == Quarantine::Strict {
            drive(&mut first, "the mark is there", |_| master.ask("EXISTS redlatch:mark").text() == "1");
        }
        drop(first);
        // The other server has the mark, too, and returns it.
        follow(other.master(0), master.port());
        promote(other.master(0));
        follow(master, other.master(0).port());
        promote(master);
        let promoted = Instant::now();
        let next = open(settings(&urls, quarantine));
        assert!(is_quarantined(&next), "{quarantine:?}: {:?}", state(&next, 0));
        drop(next);
        // In default mode, short-lived clients do not wait for ever.
        if quarantine == Quarantine::Uptime {
            eventually(PATIENCE, "a new client counts it", || {
                state(&open(settings(&urls, quarantine)), 0) == MasterState::Ready
            });
            assert!(promoted.elapsed() >= WATCH, "{:?}", promoted.elapsed());
        }
    }
}

// I39
#[test]
fn a_stable_name_leads_to_the_new_master() {
    for quarantine in [Quarantine::Uptime, Quarantine::Trust] {
        let mut fleet = Fleet::start_with(2, &["--repl-diskless-sync-delay", "0"]);
        let addrs = fleet.addrs();
        follow(fleet.master(1), addrs[0].port());
        let proxy = Proxy::start(addrs[0]);
        let mut redlock = counting(&[proxy.url()], quarantine);
        if quarantine == Quarantine::Trust {
            // Otherwise the write of the fleet's record may meet READONLY before the acquisition does.
            drive(&mut redlock, "the fleet's record is written", |_| {
                fleet.master(0).ask("EXISTS redlatch:fleet").text() == "1"
            });
        }
        promote(fleet.master(1));
        follow(fleet.master(0), addrs[1].port());
        proxy.lead_to(addrs[1]);
        let error = redlock.lock("a").ttl(MAX_TTL).try_acquire().expect_err("a replica").to_string();
        assert!(error.contains("READONLY"), "{error}");
        assert!(!redlock.health().has_quorum, "{:#}", redlock.health());
        let lease = redlock.lock("a").ttl(MAX_TTL).wait(PATIENCE).acquire().expect("by the new master");
        assert_eq!(fleet.master(1).ask("EXISTS a").text(), "1");
        assert!(redlock.health().has_quorum);
        assert_eq!((proxy.accepted_count(), redlock.stats().restarts()), (2, 1), "one connection more");
        redlock.release(lease).expect("confirmed");
    }
}
