//! Every error that a real server can be made to send: on one master of three it is no obstacle, on two the
//! failed attempt names it, and nothing stays behind.
//!
//! `NOSCRIPT` and evictions are in `lock_tests.rs`.

use std::time::{Duration, Instant};

use redlatch::AcquireError;
use redlatch::error::Vote;
use redlatch_support::{Fleet, Master, PATIENCE, eventually, free_port};

use crate::lock_tests::{TTL, drive, open, settings};

/// A master's fault.
struct Trouble {
    /// Part of the text about this master in a failed attempt's report.
    words: &'static str,
    login: &'static str,
    begin: fn(&mut Master),
    end: fn(&mut Master),
}

const NO_LOGIN: &str = "";
const LOGIN: &str = "locker:pw@";

#[test]
fn a_master_that_refuses_writes_is_named() {
    check(&[
        Trouble {
            words: "OOM command not allowed",
            login: NO_LOGIN,
            begin: |it| ok(it, "CONFIG SET maxmemory 1"),
            end: |it| ok(it, "CONFIG SET maxmemory 0"),
        },
        Trouble {
            words: "a replica; list its master",
            login: NO_LOGIN,
            begin: |it| ok(it, "REPLICAOF 127.0.0.1 1"),
            end: |it| ok(it, "REPLICAOF NO ONE"),
        },
        Trouble {
            words: "MASTERDOWN Link with MASTER is down",
            login: NO_LOGIN,
            begin: |it| {
                ok(it, "CONFIG SET replica-serve-stale-data no replica-read-only no");
                ok(it, "REPLICAOF 127.0.0.1 1");
            },
            end: |it| ok(it, "REPLICAOF NO ONE"),
        },
        Trouble {
            words: "NOREPLICAS Not enough good replicas",
            login: NO_LOGIN,
            begin: |it| ok(it, "CONFIG SET min-replicas-to-write 1"),
            end: |it| ok(it, "CONFIG SET min-replicas-to-write 0"),
        },
        Trouble {
            words: "MISCONF",
            login: NO_LOGIN,
            begin: fail_snapshot,
            end: |it| ok(it, "CONFIG SET stop-writes-on-bgsave-error no"),
        },
    ]);
}

#[test]
fn a_busy_master_is_named_and_no_obstacle() {
    check(&[
        Trouble {
            words: "BUSY",
            login: NO_LOGIN,
            begin: |it| {
                drop(it.send(&[b"EVAL", b"while true do end", b"0"]));
                eventually(PATIENCE, "the script is found too long", || {
                    it.ask("PING").text().starts_with("BUSY")
                });
            },
            end: |it| {
                ok(it, "SCRIPT KILL");
                eventually(PATIENCE, "the script ends", || it.ask("PING").text() == "PONG");
            },
        },
        Trouble {
            words: "answer", // it did not, or was skipped for that
            login: NO_LOGIN,
            begin: |it| ok(it, "CLIENT PAUSE 100000 WRITE"),
            end: |it| ok(it, "CLIENT UNPAUSE"),
        },
        Trouble { words: "not connected", login: NO_LOGIN, begin: Master::shutdown, end: Master::restart },
        Trouble { words: "LOADING", login: NO_LOGIN, begin: load_slowly, end: end_loading },
        Trouble {
            words: "CLUSTERDOWN",
            login: NO_LOGIN,
            begin: |it| {
                let bus_port = free_port().to_string();
                it.restart_with(&["--cluster-enabled", "yes", "--cluster-port", &bus_port]);
            },
            end: |it| it.restart_with(&[]),
        },
    ]);
}

#[test]
fn a_locked_master_is_named_and_no_obstacle() {
    check(&[
        Trouble {
            words: "NOAUTH Authentication required",
            login: NO_LOGIN,
            begin: |it| {
                ok(it, "CONFIG SET requirepass secret");
                it.ask("CLIENT KILL SKIPME yes");
            },
            end: |it| assert_eq!(it.command(&[b"CONFIG", b"SET", b"requirepass", b""]).text(), "OK"),
        },
        Trouble {
            words: "WRONGPASS",
            login: LOGIN,
            begin: |it| {
                ok(it, "ACL SETUSER locker resetpass >other");
                it.ask("CLIENT KILL USER locker");
            },
            end: |it| ok(it, "ACL SETUSER locker resetpass >pw"),
        },
        Trouble {
            words: "NOPERM",
            login: LOGIN,
            begin: |it| ok(it, "ACL SETUSER locker -set"),
            end: |it| ok(it, "ACL SETUSER locker +set"),
        },
        Trouble {
            words: "max number of clients reached",
            login: NO_LOGIN,
            begin: |it| {
                ok(it, "CONFIG SET maxclients 1");
                it.ask("CLIENT KILL SKIPME yes");
            },
            end: |it| ok(it, "CONFIG SET maxclients 100"),
        },
    ]);
}

/// Tests each fault on one and on two masters of a new fleet.
fn check(troubles: &[Trouble]) {
    for Trouble { words, login, begin, end } in troubles {
        let args = ["--enable-debug-command yes", "--enable-protected-configs yes", "--lua-time-limit 20"];
        let args: Vec<&str> = args.iter().flat_map(|pair| pair.split(' ')).collect();
        let mut fleet = Fleet::start_with(3, &args);
        fleet.masters().for_each(|it| ok(it, "ACL SETUSER locker on >pw ~* &* +@all"));
        let urls: Vec<String> =
            fleet.urls().iter().map(|url| url.replace("redis://", &format!("redis://{login}"))).collect();
        let mut redlock = open(settings(&urls).answer_timeout(Duration::from_secs(2)));
        begin(fleet.master(0));
        let lease = redlock
            .lock("a")
            .ttl(TTL)
            .wait(PATIENCE)
            .acquire()
            .unwrap_or_else(|error| panic!("{words}: {error:#}"));
        redlock.release(lease).unwrap_or_else(|error| panic!("{words}: {error:#}"));
        begin(fleet.master(1));
        let given_up = Instant::now() + PATIENCE;
        loop {
            let error = redlock.lock("a").ttl(TTL).try_acquire().expect_err(words);
            let AcquireError::NoQuorum(denial) = &error else { panic!("{words}: {error:#}") };
            let says_so =
                |(_, vote): &&(_, Vote)| matches!(vote, Vote::Failed(why) if why.to_string().contains(words));
            if denial.report.votes.iter().filter(says_so).count() == 2 {
                break;
            }
            assert!(Instant::now() < given_up, "{words}: {error:#}");
            redlock.turn(Duration::from_millis(5)).expect("the loop runs");
        }
        end(fleet.master(0));
        end(fleet.master(1));
        let lease = redlock
            .lock("a")
            .ttl(TTL)
            .wait(PATIENCE)
            .acquire()
            .unwrap_or_else(|error| panic!("{words}: {error:#}"));
        redlock.release(lease).unwrap_or_else(|error| panic!("{words}: {error:#}"));
        drive(&mut redlock, words, |_| fleet.masters().all(|it| it.key_count() == "0"));
    }
}

/// Makes a snapshot fail, so that the server refuses writes.
pub(crate) fn fail_snapshot(it: &mut Master) {
    // No snapshot can replace a directory, whatever the user.
    ok(it, "CONFIG SET dbfilename .");
    assert_eq!(it.command(&[b"CONFIG", b"SET", b"save", b"3600 1"]).text(), "OK");
    it.ask("BGSAVE");
    eventually(PATIENCE, "the snapshot fails", || {
        it.ask("INFO persistence").text().contains("rdb_last_bgsave_status:err")
    });
}

/// Restarts a master with much data to load. Needs `--enable-debug-command yes`.
pub(crate) fn load_slowly(it: &mut Master) {
    ok(it, "DEBUG POPULATE 2000 key 1000");
    ok(it, "CONFIG SET rdbcompression no");
    assert_eq!(it.command(&[b"CONFIG", b"SET", b"save", b"3600 1"]).text(), "OK");
    it.shutdown();
    // Microseconds for each key; the server checks its connections after each.
    it.configure(&["--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"]);
    it.restart_unready();
    eventually(PATIENCE, "it is loading", || {
        it.try_command(&[b"PING"]).is_ok_and(|reply| reply.text().starts_with("LOADING"))
    });
}

pub(crate) fn end_loading(it: &mut Master) {
    ok(it, "CONFIG SET key-load-delay 0");
    eventually(PATIENCE, "it has loaded", || it.ask("PING").text() == "PONG");
    ok(it, "FLUSHALL");
}

pub(crate) fn ok(master: &mut Master, line: &str) {
    assert_eq!(master.ask(line).text(), "OK", "{line}");
}
