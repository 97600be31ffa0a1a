//! Messages and exit codes of each command when masters hang, are full or refuse the login.

use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{Finished, expect, finish, redlatch};

/// The most used commands that ask masters, quick commands first.
const COMMANDS: [&[&str]; 9] = [
    &["doctor"],
    &["fleet", "status"],
    &["fleet", "init", "--new"],
    &["ls"],
    &["inspect", "a"],
    &["run", "a", "--", "true"],
    &["unlock", "a", "--force"],
    &["bench", "--time", "100ms"],
    &["drill", "--time", "1s"],
];

/// Both streams, in one line.
fn said(finished: &Finished) -> String {
    let text = format!("{} {}", finished.stdout, finished.stderr);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn with(urls: &[String], words: &[&str]) -> Command {
    let mut command = redlatch(urls);
    command.args(words);
    command
}

#[test]
fn last_words_of_a_full_server_are_shown() {
    let mut fleet = Fleet::start(1);
    assert_eq!(fleet.master(0).ask("CONFIG SET maxclients 1").text(), "OK");
    let plain = fleet.urls();
    let with_login = [plain[0].replace("redis://", "redis://:pw@")];
    for urls in [&plain[..], &with_login] {
        for words in COMMANDS {
            let said = said(&finish(&mut with(urls, words)));
            let expected = "after \"ERR max number of clients reached\" (raise maxclients there";
            assert!(said.contains(expected), "{words:?}: {said}");
            assert!(!said.contains("login was refused"), "{words:?}: {said}");
        }
    }
}

/// One full master, one hung, and one with another password.
fn troubled(fleet: &mut Fleet) -> Vec<String> {
    fleet.master(0).ask("CONFIG SET maxmemory 1");
    fleet.master(2).ask("CONFIG SET requirepass other");
    fleet.master(1).stop();
    let mut urls = fleet.urls();
    urls[2] = urls[2].replace("redis://", "redis://:wrong@");
    urls
}

#[test]
fn doctor_begins_with_its_verdict() {
    let mut fleet = Fleet::start(5);
    let urls = troubled(&mut fleet);
    let doctor = ["doctor", "--time-limit", "9s", "--trust", "--connect-timeout", "300ms"];
    let found = finish(&mut with(&urls, &doctor));
    expect(&found, 69, &[]);
    let verdict = "2 of 5 masters can grant a lock, 3 are needed: no lock can be acquired now\n";
    assert!(found.stdout.starts_with(verdict), "{}", found.stdout);
    assert!(found.stdout.contains(&format!("{}: login refused\n", fleet.urls()[2])), "{}", found.stdout);
    fleet.master(1).cont();
    let found = finish(&mut with(&urls, &doctor));
    expect(&found, 2, &[]);
    let verdict = "3 of 5 masters can grant a lock, 3 are needed: none of them may fail\n";
    assert!(found.stdout.starts_with(verdict), "{}", found.stdout);
}

#[test]
fn doctor_advises_to_declare_a_new_fleet() {
    let fleet = Fleet::start(3);
    let found = finish(&mut with(&fleet.urls(), &["doctor", "--time-limit", "9s"]));
    expect(&found, 69, &[]);
    assert!(found.stdout.contains("redlatch fleet init"), "{}", found.stdout);
}

#[test]
fn a_refused_login_is_no_server_to_start() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| _ = master.ask("CONFIG SET requirepass other"));
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", "redis://:wrong@")).collect();
    for words in [&["doctor"][..], &["fleet", "status"], &["fleet", "init", "--new"]] {
        let said = said(&finish(&mut with(&urls, words)));
        assert!(said.contains("login") && said.contains("WRONGPASS"), "{words:?}: {said}");
        for wrong in ["no answer", "not answer", "start it"] {
            assert!(!said.contains(wrong), "{words:?}: {wrong:?} is in {said}");
        }
    }
    // A database that does not exist is not a failed login.
    let urls: Vec<_> =
        fleet.urls().iter().map(|url| url.replace("redis://", "redis://:other@") + "/99").collect();
    let said = said(&finish(&mut with(&urls, &["doctor", "--time-limit", "9s"])));
    assert!(said.contains("correct the database") && !said.contains("login"), "{said}");
}

#[test]
fn a_status_needs_an_answer_of_each_master() {
    let mut fleet = Fleet::start(3);
    let status = |args: &[&str]| {
        let words = [&["fleet", "status", "--time-limit", "20s", "--connect-timeout", "20s"], args].concat();
        finish(&mut with(&fleet.urls(), &words)).code
    };
    expect(&finish(&mut with(&fleet.urls(), &["fleet", "init", "--new"])), 0, &[]);
    assert_eq!(status(&[]), Some(0));
    assert_eq!(status(&["--max-ttl", "9s"]), Some(1));
    fleet.master(0).kill();
    let status = |args: &[&str]| {
        let words = [&["fleet", "status", "--time-limit", "20s", "--connect-timeout", "20s"], args].concat();
        finish(&mut with(&fleet.urls(), &words)).code
    };
    assert_eq!(status(&[]), Some(69));
    assert_eq!(status(&["--max-ttl", "9s"]), Some(1), "one that was asked differs");
}

#[test]
fn a_forgotten_prefix_ends_a_wait() {
    let mut fleet = Fleet::start(3);
    let rule = "ACL SETUSER locker on >pw ~lock:* &lock:* +@all";
    fleet.masters().for_each(|master| _ = master.ask(rule));
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
    let patient = ["--trust", "--connect-timeout", "20s"];
    for words in [
        &["run", "--wait", "1h", "a", "--", "true"][..],
        &["run", "-v", "a", "--", "true"],
        &["run", "--wait", "1h", "--shared", "a", "--", "true"],
        &["run", "--wait", "1h", "--fair", "a", "--", "true"],
        &["run", "--wait", "1h", "--fenced", "a", "--", "true"],
        &["run", "--wait", "1h", "--slots", "2", "a", "--", "true"],
        &["run", "--wait", "1h", "--also", "b", "a", "--", "true"],
        &["acquire", "--wait", "1h", "--handle", "./verdict-handle", "a"],
    ] {
        let command = [&words[..1], &patient, &words[1..]].concat();
        let finished = finish(&mut with(&urls, &command));
        expect(&finished, 69, &["grant them, or set the prefix (--prefix)"]);
        // Two attempts within an outage's grace, and more while a busy machine still connects.
        let (before, _) = finished.stderr.split_once(" attempt").expect("a number of attempts");
        let count = before.rsplit(' ').next().and_then(|count| count.parse::<u32>().ok());
        assert!(count.is_some_and(|count| count <= 10), "{}", finished.stderr);
    }
    let command = [&["run", "--prefix", "lock:", "a"], &patient[..], &["--", "true"]].concat();
    expect(&finish(&mut with(&urls, &command)), 0, &[]);
}

#[test]
fn a_hung_master_costs_one_answer_timeout() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| _ = master.ask("SET a held PX 3600000"));
    fleet.master(1).stop();
    let urls = fleet.urls();
    for (words, code) in [(&["inspect", "a"][..], 75), (&["ls"], 0), (&["unlock", "--force", "b"], 0)] {
        let took = |args: &[&str]| {
            let begun = Instant::now();
            let finished = finish(&mut with(&urls, &[words, args].concat()));
            let took = begun.elapsed();
            expect(&finished, code, &[]);
            let said = said(&finished);
            assert!(said.contains(&format!("{}: ", urls[1])), "{words:?}: {said}");
            took
        };
        // A slow machine may need several tries.
        eventually(PATIENCE, "it waits once", || took(&["--trust"]) < Duration::from_millis(1600));
        eventually(PATIENCE, "the option counts", || {
            took(&["--trust", "--answer-timeout", "200ms"]) < Duration::from_millis(800)
        });
    }
}
