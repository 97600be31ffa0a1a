//! `redlatch fleet`: a declared new fleet locks at once. A fleet that may be in use is not declared.

use std::process::Command;

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{Finished, Running, expect, finish, redlatch};
use crate::terminal::Session;

/// Options whose limits a busy machine does not exceed.
const PATIENT: [&str; 6] = ["--prefix", "p:", "--answer-timeout", "5s", "--connect-timeout", "20s"];

fn fleet_command(urls: &[String], subcommand: &str) -> Command {
    let mut command = redlatch(urls);
    command.args(["fleet", subcommand, "--time-limit", "25s"]).args(PATIENT);
    command
}

fn init(urls: &[String]) -> Finished {
    finish(fleet_command(urls, "init").arg("--new"))
}

/// Acquires a free lock, without trust.
fn run_once(urls: &[String]) -> Finished {
    finish(redlatch(urls).arg("run").args(PATIENT).args(["--wait", "20s", "a", "--", "true"]))
}

/// The records under the prefix `p:`.
fn records(fleet: &mut Fleet) -> Vec<String> {
    fleet.masters().map(|master| master.ask("GET p:redlatch:fleet").text()).collect()
}

// I36
#[test]
fn first_lock_on_new_masters_needs_no_wait() {
    let mut fleet = Fleet::start(5);
    let urls = fleet.urls();
    let declared = init(&urls);
    expect(&declared, 0, &[]);
    assert!(declared.stdout.contains("declared on 5 masters, max TTL 30s"), "{}", declared.stdout);
    for record in records(&mut fleet) {
        assert!(record.starts_with("redlatch:fleet:1 declared ") && record.contains(" new="), "{record}");
    }
    // The wait is shorter than the quarantine of 30 s: without the declaration this fails at once.
    expect(&run_once(&urls), 0, &[]);
    // Not under another prefix, nor after a restart.
    let mut other = redlatch(&urls);
    other.args(["run", "--prefix", "q:", "--wait", "1ms", "--connect-timeout", "20s", "a", "--", "true"]);
    expect(&finish(&mut other), 69, &["may have restarted"]);
    fleet.masters().take(3).for_each(|master| master.restart());
    let mut after = redlatch(&urls);
    after.args(["run", "--prefix", "p:", "--wait", "1ms", "--connect-timeout", "20s", "a", "--", "true"]);
    expect(&finish(&mut after), 69, &["may have restarted"]);
}

/// Redis 7.0 lacks `SET IFEQ`, which the second phase needs.
#[test]
fn init_names_the_right_to_run_scripts() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| _ = master.ask("ACL SETUSER default -eval"));
    let urls = fleet.urls();
    expect(&init(&urls), 69, &["it lacks SET IFEQ", "grant +eval"]);
    fleet.masters().for_each(|master| _ = master.ask("ACL SETUSER default +eval"));
    expect(&init(&urls), 0, &[]);
}

#[test]
fn strict_run_does_not_await_every_master() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    let max_ttl = ["--max-ttl", "1h"];
    expect(&finish(fleet_command(&urls, "init").arg("--new").args(max_ttl)), 0, &[]);
    fleet.master(2).restart();
    let mut run = redlatch(&urls);
    run.args(["run", "--strict"]).args(PATIENT).args(max_ttl);
    let finished = finish(run.args(["a", "--", "true"]));
    expect(&finished, 0, &[]);
    assert_eq!(finished.stderr, "", "two are a quorum, and one will not count for an hour");
}

/// One host has an old password for a master; the other host's list lacks a master.
// I30
#[test]
fn two_holders_by_settings_are_never_silent() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&init(&urls), 0, &[]);
    fleet.master(2).ask("ACL SETUSER locker on >new ~* &* +@all");
    let with_login = |login: &str| urls[2].replace("redis://", &format!("redis://locker:{login}@"));
    let run = |urls: &[String]| {
        let mut command = redlatch(urls);
        command.args(["run", "--quiet"]).args(PATIENT).args(["a", "--", "sh", "-c", "echo held; read line"]);
        command
    };
    let mut one = Running::start_with_stdin(&mut run(&[urls[0].clone(), urls[1].clone(), with_login("old")]));
    assert_eq!(one.line(), "held");
    let mut other = Running::start_with_stdin(&mut run(&[with_login("new")]));
    assert_eq!(other.line(), "held", "the assumption that clients agree is broken");
    for (mut run, said) in [
        (one, "the login was refused: WRONGPASS"),
        (other, "the fleet's record has 3 masters, and this client 1; give all clients one list"),
    ] {
        run.send("\n");
        let finished = run.finish();
        expect(&finished, 0, &[&urls[2], said]);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

// I30
#[test]
fn each_command_that_locks_says_a_contradiction() {
    let fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&init(&urls), 0, &[]);
    let said =
        "all 3 masters: the fleet's record has max_ttl 30s, and this client 29s; give all clients the same";
    let started = |subcommand: &[&str]| {
        let mut command = redlatch(&urls);
        command.args(subcommand).args(PATIENT).args(["--max-ttl", "29s"]);
        command
    };
    let handle = std::env::temp_dir().join(format!("redlatch-contradiction-{}", std::process::id()));
    let handle = handle.to_str().expect("UTF-8");
    for (subcommand, rest) in [
        (&["run", "--quiet"][..], &["a", "--", "true"][..]),
        (&["acquire", "--quiet", "--handle", handle], &["b"]),
        (&["bench", "--pairs", "10"], &[]),
        (&["drill", "--time", "1s"], &[]),
    ] {
        let finished = finish(started(subcommand).args(rest));
        expect(&finished, 0, &[said]);
        assert_eq!(finished.stderr.matches("max_ttl").count(), 1, "{}", finished.stderr);
    }
    std::fs::remove_file(handle).expect("it was written");
    let mut leader = Running::start(started(&["elect", "--quiet"]).args(["c", "--", "sleep", "1000"]));
    leader.wait_for_stderr(said);
    leader.signal("TERM");
    leader.finish();
    let strict = finish(started(&["run", "--quiet", "--strict"]).args(["d", "--", "true"]));
    expect(
        &strict,
        69,
        &["29s; give all clients the same: strict mode refuses a master with other declared settings"],
    );
}

// I36
#[test]
fn a_fleet_in_use_is_not_declared() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    let refused = |fleet: &mut Fleet, said: &str| {
        let before = fleet.masters().map(|master| master.ask("DBSIZE").text()).collect::<Vec<_>>();
        expect(&init(&urls), 1, &["nothing is declared", said]);
        let after = fleet.masters().map(|master| master.ask("DBSIZE").text()).collect::<Vec<_>>();
        assert_eq!(before, after, "nothing changed: {said}");
    };
    for (key, said) in [
        ("p:a", "has 1 key behind the prefix"),
        ("p:redlatch:mark", "has 1 key behind the prefix"),
        ("p:redlatch:fleet", "holds no record"),
    ] {
        fleet.master(1).ask(&format!("SET {key} x"));
        refused(&mut fleet, said);
        fleet.master(1).ask(&format!("DEL {key}"));
    }
    for command in ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"] {
        assert_eq!(fleet.master(0).ask(command).text(), "OK");
        refused(&mut fleet, "is a replica or was one");
    }
    fleet.master(0).restart();
    let client = fleet.master(2).send(&[b"CLIENT", b"SETNAME", b"redlatch/9.9.9"]);
    eventually(PATIENCE, "it is named", || {
        fleet.master(2).ask("CLIENT LIST").text().contains("name=redlatch/9.9.9")
    });
    refused(&mut fleet, "has 1 connection of redlatch");
    drop(client);
    eventually(PATIENCE, "it is gone", || {
        !fleet.master(2).ask("CLIENT LIST").text().contains("name=redlatch")
    });
    fleet.master(2).kill();
    expect(&init(&urls), 1, &["nothing is declared", "does not answer"]);
    fleet.master(2).restart();
    // Another application's key under another prefix does not matter.
    fleet.master(0).ask("SET other x");
    expect(&init(&urls), 0, &[]);
    // A completed `init` may run again, and changes nothing.
    let before = records(&mut fleet);
    expect(&init(&urls), 0, &[]);
    assert_eq!(records(&mut fleet), before);
    fleet.master(0).restart();
    expect(&init(&urls), 1, &["has the record of a fleet"]);
}

#[test]
fn a_declaration_that_was_cut_short_is_completed() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&init(&urls), 0, &[]);
    let whole = records(&mut fleet);
    // As if the second phase had reached only one master, and a client had begun to work.
    for (index, record) in whole.iter().enumerate().skip(1) {
        let (pending, _) = record.split_once(" new=").expect("named");
        fleet.master(index).command(&[b"SET", b"p:redlatch:fleet", pending.as_bytes()]);
    }
    fleet.master(0).ask("SET p:a held");
    expect(&init(&urls), 0, &[]);
    assert_eq!(records(&mut fleet), whole);
}

#[test]
fn a_person_types_a_sentence() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&finish(&mut fleet_command(&urls, "init")), 64, &["give --new"]);
    let script = format!("\"$REDLATCH\" fleet init --time-limit 25s {}; echo ended $?", PATIENT.join(" "));
    for (typed, code, found) in [("yes\n", "1", "nil"), ("these masters are new\n", "0", "redlatch:fleet:1")]
    {
        let Some(mut session) = Session::start(&urls, &script) else { return };
        session.wait_for("redlatch: 3 masters will count at once");
        session.type_in(typed);
        assert_eq!(session.wait_for("ended "), code);
        session.finish();
        assert!(records(&mut fleet).iter().all(|record| record.starts_with(found)), "{found}");
    }
}

#[test]
fn unknown_clients_need_the_sentence() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("ACL SETUSER founder on >pw ~p:* +get +set +info +scan +ping +exists");
    let urls = [fleet.urls()[0].replace("redis://", "redis://founder:pw@")];
    expect(&init(&urls), 64, &["does not list its clients"]);
    fleet.master(0).ask("ACL SETUSER founder -scan");
    expect(&init(&urls), 1, &["does not let all keys be listed"]);
    assert_eq!(records(&mut fleet), ["nil"]);
}

/// The search stops among foreign keys, so the fleet may have keys that it did not reach.
#[test]
fn unscanned_keys_do_not_prove_a_fleet_new() {
    let mut fleet = Fleet::start(1);
    let many = "for it = 1, 100000 do redis.call('SET', 'other:' .. it, it) end";
    fleet.master(0).command(&[b"EVAL", many.as_bytes(), b"0"]);
    expect(&init(&fleet.urls()), 1, &["does not let all keys be listed"]);
    assert_eq!(records(&mut fleet), ["nil"]);
}

#[test]
fn a_record_that_is_refused_says_why() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("ACL SETUSER founder on >pw ~p:* +get +info +scan +ping +client|list");
    let urls = [fleet.urls()[0].replace("redis://", "redis://founder:pw@")];
    expect(&init(&urls), 69, &["NOPERM"]);
    assert_eq!(records(&mut fleet), ["nil"]);
}

#[test]
fn hundreds_of_connections_are_counted() {
    let mut fleet = Fleet::start(1);
    let urls = fleet.urls();
    let name: [&[u8]; 3] = [b"CLIENT", b"SETNAME", b"redlatch/9.9.9"];
    let clients: Vec<_> = (0..200).map(|_| fleet.master(0).send(&name)).collect();
    eventually(PATIENCE, "they are named", || {
        fleet.master(0).ask("CLIENT LIST").text().matches("name=redlatch/9.9.9").count() == clients.len()
    });
    expect(&init(&urls), 1, &["has 200 connections of redlatch"]);
    let status = finish(&mut fleet_command(&urls, "status"));
    assert!(status.stdout.contains("client redlatch/9.9.9: 200 connections"), "{}", status.stdout);
}

#[test]
fn the_doctor_finds_other_settings_and_near_prefixes() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    // Many foreign keys, so that each search takes several pages.
    let many = "for it = 1, 9000 do redis.call('SET', 'other:' .. it, it) end";
    fleet.masters().for_each(|master| drop(master.command(&[b"EVAL", many.as_bytes(), b"0"])));
    expect(&init(&urls), 0, &[]);
    let codes = |prefix: &str, max_ttl: &str| {
        let mut doctor = redlatch(&urls);
        doctor.args(["doctor", "--json", "--time-limit", "9s", "--connect-timeout", "20s"]);
        let found =
            finish(doctor.args(["--answer-timeout", "20s", "--prefix", prefix, "--max-ttl", max_ttl]));
        let found: serde_json::Value = serde_json::from_str(&found.stdout).expect("JSON");
        let codes = found["findings"].as_array().expect("a list").iter();
        let about = |it: &serde_json::Value| it["masters"].as_array().map_or(0, Vec::len);
        codes.map(|it| (it["code"].as_str().expect("a text").to_owned(), about(it))).collect::<Vec<_>>()
    };
    // Each finding is about all masters.
    let has = |codes: &[(String, usize)], code: &str| codes.contains(&(code.to_owned(), 3));
    let same = codes("p:", "30s");
    assert!(!has(&same, "fleet-differs") && !has(&same, "near-prefix"), "{same:?}");
    let shorter = codes("p:", "29s");
    assert!(has(&shorter, "fleet-differs"), "{shorter:?}");
    let near = codes("q:", "30s");
    assert!(has(&near, "near-prefix") && !has(&near, "fleet-differs"), "{near:?}");
    for master in fleet.masters() {
        master.ask("DEL p:redlatch:fleet");
        master.ask("RPUSH p:redlatch:fleet x");
    }
    let foreign = codes("p:", "30s");
    assert!(has(&foreign, "no-fleet-record"), "a key of another type: {foreign:?}");
}

#[test]
fn the_status_shows_settings_clients_and_differences() {
    let fleet = Fleet::start(3);
    let urls = fleet.urls();
    let empty = finish(&mut fleet_command(&urls, "status"));
    expect(&empty, 0, &[]);
    assert!(empty.stdout.contains("no record of a fleet"), "{}", empty.stdout);
    expect(&init(&urls), 0, &[]);
    let mut run = Running::start_with_stdin(redlatch(&urls).arg("run").args(PATIENT).args([
        "a",
        "--",
        "sh",
        "-c",
        "echo held; read line",
    ]));
    assert_eq!(run.line(), "held");
    let status = finish(fleet_command(&urls, "status").arg("--json"));
    expect(&status, 0, &[]);
    let shown: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!((&shown["origin"], &shown["max_ttl_ms"]), (&"declared".into(), &30_000.into()));
    let name = concat!("redlatch/", env!("CARGO_PKG_VERSION"));
    assert_eq!(shown["clients"], serde_json::json!([{ "name": name, "connections": 1 }]));
    let other = finish(fleet_command(&urls, "status").args(["--max-ttl", "9s"]));
    expect(&other, 1, &[]);
    assert!(other.stdout.contains("differs: all 3 masters:"), "{}", other.stdout);
    let short = finish(&mut fleet_command(&urls[..2], "status"));
    expect(&short, 1, &[]);
    let narrow = format!(
        "stty cols 40; \"$REDLATCH\" fleet status --time-limit 25s --max-ttl 9s {}; echo ended $?",
        PATIENT.join(" ")
    );
    if let Some(session) = Session::start_with_width(&urls, &narrow, 40) {
        assert_eq!(session.wait_for("ended "), "1");
        let (_, screen) = session.finish();
        let wide = screen.lines().filter(|line| line.trim_end().chars().count() > 40);
        assert_eq!(wide.count(), 0, "{screen}");
    }
    run.send("\n");
    expect(&run.finish(), 0, &[]);
}
