//! `redlatch ls`: the locks on the masters, and keys that are no locks.

use std::process::Command;

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Running, expect, finish, redlatch, trusting};
use crate::terminal::Session;

fn list(fleet: &Fleet) -> Command {
    let mut command = trusting(fleet, "ls");
    command.args(["--prefix", "p[1]:"]);
    command
}

/// The list as JSON, by name.
fn listed(fleet: &Fleet) -> serde_json::Map<String, serde_json::Value> {
    let finished = finish(list(fleet).arg("--json"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let all: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let locks = all["locks"].as_array().expect("a list");
    locks.iter().map(|lock| (lock["name"].as_str().expect("a name").to_owned(), lock.clone())).collect()
}

#[test]
fn a_prefix_stands_for_itself() {
    let fleet = Fleet::start(1);
    for byte in ["*", "?", "[x]", "\\"] {
        let prefix = format!("p{byte}q:");
        let mut command = trusting(&fleet, "run");
        command.args(["--prefix", &prefix, "own", "--", "sh", "-c", FOREVER]);
        let _holder = Running::start(&mut command);
        let mut command = trusting(&fleet, "ls");
        command.args(["--prefix", &prefix]);
        eventually(PATIENCE, &prefix, || finish(&mut command).stdout.contains("own"));
    }
}

/// Checks each field of a lock without a holder, and of a lock with a label.
fn assert_fields(all: &serde_json::Map<String, serde_json::Value>) {
    let split = serde_json::json!({
        "name": "split", "status": "split", "kind": "plain", "holder": null, "holder_label": null,
        "remaining_ms": null, "holding": 2, "masters": 3, "queued": 0,
    });
    assert_eq!(all["split"], split);
    assert_eq!(all["plain"]["holder"].as_str().map(str::len), Some(40), "{}", all["plain"]);
    assert_eq!(all["plain"]["holder_label"], "host 7");
    assert!(all["plain"]["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 20_000));
}

// I148
#[test]
fn locks_are_listed_by_kind_and_quorum() {
    let mut fleet = Fleet::start(3);
    let empty = finish(&mut list(&fleet));
    expect(&empty, 0, &[]);
    assert_eq!(empty.stdout, "");
    let hold = |args: &[&str]| {
        let mut command = trusting(&fleet, "run");
        command.args(["--prefix", "p[1]:", "--ttl", "20s"]).args(args);
        let mut run = Running::start(command.args(["--", "sh", "-c"]).arg(format!("echo inside; {FOREVER}")));
        assert_eq!(run.line(), "inside");
        run
    };
    let _holders = [
        hold(&["--label", "host 7", "plain"]),
        hold(&["--fenced", "orders:fenced"]),
        hold(&["--fair", "--wait", "20s", "fair"]),
        hold(&["--shared", "readers"]),
    ];
    let waiter = |args: &[&str]| {
        let mut command = trusting(&fleet, "run");
        command.args(["--prefix", "p[1]:", "--wait", "60s"]).args(args).args(["--", "true"]);
        Running::start(&mut command)
    };
    let _waiters = [waiter(&["--fair", "fair"]), waiter(&["plain"])];
    for (index, value) in ["one", "two"].into_iter().enumerate() {
        fleet.master(index).ask(&format!("SET p[1]:split {value} PX 600000"));
    }
    fleet.master(0).ask("SET p[1]:part one PX 600000");
    // Only one master has a fence, and only one has a waiter.
    fleet.master(0).ask("SET p[1]:redlatch:fence:part 7 PX 600000");
    fleet.master(1).ask("ZADD p[1]:redlatch:wait:split 1 redlatch:1:somebody");
    // Keys that are no locks, and a key under another prefix, which this prefix would match as a pattern.
    fleet.master(0).ask("RPUSH p[1]:list x");
    fleet.masters().for_each(|master| _ = master.ask("SET p[1]:forever x"));
    fleet.master(0).ask("SET p1:other one PX 600000");
    let mut all = listed(&fleet);
    eventually(PATIENCE, "both waiters are counted", || {
        all = listed(&fleet);
        ["fair", "plain"].iter().all(|name| all[*name]["queued"].as_i64() >= Some(1))
    });
    let shown = |name: &str| {
        let text = |field: &str| all[name][field].as_str().expect("a text").to_owned();
        (text("status"), text("kind"), all[name]["holding"].as_i64().expect("a number"))
    };
    let expected = |status: &str, kind: &str, holding| (status.to_owned(), kind.to_owned(), holding);
    assert_eq!(
        all.keys().collect::<Vec<_>>(),
        ["fair", "orders:fenced", "part", "plain", "readers", "split"]
    );
    assert_eq!(shown("plain"), expected("held", "plain", 3));
    assert_eq!(shown("orders:fenced"), expected("held", "fenced", 3));
    assert_eq!(shown("fair"), expected("held", "plain", 3));
    assert_eq!(shown("readers"), expected("shared", "readers", 3));
    assert_eq!(shown("split"), expected("split", "plain", 2));
    assert_eq!(shown("part"), expected("free", "fenced", 1));
    assert_fields(&all);
    let some = finish(list(&fleet).arg("orders:*"));
    expect(&some, 0, &[]);
    let lines: Vec<_> = some.stdout.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["STATE", "ON", "LEFT", "KIND", "WAITERS", "NAME", "by", "HOLDER"]
    );
    assert!(lines[1].starts_with("held    3/3 ") && lines.len() == 2, "{}", some.stdout);
    let text = finish(&mut list(&fleet));
    expect(&text, 0, &["not listed: 2 keys"]);
    assert_eq!(text.stdout.lines().count(), 7, "{}", text.stdout);
}

// I148
#[test]
fn a_list_needs_a_quorum_and_rights() {
    let mut fleet = Fleet::start(3);
    for master in fleet.masters() {
        master.ask("SET p[1]:a one PX 600000");
        master.ask("ACL SETUSER locker on >pw ~* &* +get +getrange +zrevrank +pttl +info +ping +echo");
    }
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
    let refused = finish(redlatch(&urls).args(["ls", "--trust"]));
    expect(&refused, 69, &["0 of 3 masters count, 2 needed", "NOPERM", "scan"]);
    for master in fleet.masters() {
        master.ask("ACL SETUSER locker +scan");
    }
    let some = finish(redlatch(&urls).args(["ls", "--trust", "--prefix", "p[1]:"]));
    expect(&some, 0, &[]);
    assert!(some.stdout.contains(" ? a by one"), "waiters are unknown: {}", some.stdout);
    fleet.master(0).kill();
    let two = finish(&mut list(&fleet));
    let said = format!("{}: Connection refused", fleet.urls()[0]);
    expect(&two, 0, &[&said]);
    assert!(two.stdout.contains("\nheld    2/3 "), "{}", two.stdout);
    fleet.master(1).kill();
    expect(&finish(&mut list(&fleet)), 69, &["1 of 3 masters count, 2 needed"]);
}

#[test]
fn a_list_fits_into_forty_columns() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("SET orders:42 somebody PX 600000");
    let script = "stty cols 40 && \"$REDLATCH\" ls --trust";
    let Some(session) = Session::start(&fleet.urls(), script) else { return };
    session.wait_for("orders:42");
    let (_, screen) = session.finish();
    assert!(screen.contains("  held 1/1 "), "{screen}");
    assert!(screen.lines().all(|line| line.trim_end().chars().count() <= 40), "{screen}");
    let script = "\"$REDLATCH\" ls --trust; echo ended";
    for (columns, is_table) in [(59, false), (60, true)] {
        let Some(session) = Session::start_with_width(&fleet.urls(), script, columns) else { return };
        session.wait_for("ended");
        let (_, screen) = session.finish();
        assert_eq!(screen.contains("STATE"), is_table, "{screen}");
    }
}

// I148
#[test]
fn long_foreign_keys_are_ignored() {
    let mut fleet = Fleet::start(3);
    let prefix = "p".repeat(256);
    for master in fleet.masters() {
        for index in 0..400 {
            let key = format!("{prefix}{index:0>9000}");
            master.command(&[b"SET", key.as_bytes(), b"x", b"PX", b"600000"]);
        }
        // The longest names of a lock and a slot, and keys one byte longer.
        for (kind, size) in
            [("", 1024), ("", 1025), ("redlatch:slot:1023:", 1024), ("redlatch:slot:1023:", 1025)]
        {
            let key = format!("{prefix}{kind}{}", "n".repeat(size));
            master.command(&[b"SET", key.as_bytes(), b"one", b"PX", b"600000"]);
        }
    }
    let finished = finish(trusting(&fleet, "ls").args(["--json", "--prefix", &prefix]));
    assert_eq!((finished.code, &*finished.stderr), (Some(0), ""));
    let all: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let names: Vec<_> = all["locks"].as_array().expect("a list").iter().map(|lock| &lock["name"]).collect();
    let pool = "n".repeat(1024);
    assert_eq!(names, [pool.as_str(), &format!("redlatch:slot:1023:{pool}")]);
}

// I147
#[test]
fn names_and_labels_forge_no_columns() {
    let mut fleet = Fleet::start(1);
    let token = "0123456789abcdefghij";
    let label = "x\u{202e}\u{200b}  held    1/1";
    let value = format!("{token}\t{label}");
    let name = "a by b\u{202e}  1/1";
    fleet.master(0).command(&[b"SET", name.as_bytes(), value.as_bytes(), b"PX", b"600000"]);
    let list = finish(&mut trusting(&fleet, "ls"));
    expect(&list, 0, &[]);
    assert!(list.stdout.is_ascii(), "{}", list.stdout);
    let line = list.stdout.lines().nth(1).expect("a lock");
    assert!(
        line.contains(" a\\x20by\\x20b\\xe2\\x80\\xae\\x20\\x201/1 by x\\u{202e}\\u{200b}\\u{20}\\u{20}held"),
        "{line}"
    );
    let inspection = finish(trusting(&fleet, "inspect").arg(name));
    assert!(
        inspection.stdout.is_ascii() && !inspection.stdout.contains("held    1/1"),
        "{}",
        inspection.stdout
    );
    let refused = finish(trusting(&fleet, "run").arg(name).args(["--", "true"]));
    expect(&refused, 75, &[]);
    assert!(!refused.stderr.contains(['\u{202e}', '\u{200b}']), "{}", refused.stderr);
    // JSON keeps the text, in ASCII.
    for subcommand in [vec!["ls"], vec!["inspect", name]] {
        let json = finish(trusting(&fleet, subcommand[0]).arg("--json").args(&subcommand[1..]));
        assert!(json.stdout.is_ascii(), "{}", json.stdout);
        let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        let of = if subcommand.len() == 1 { &json["locks"][0] } else { &json };
        assert_eq!(of["holder_label"], label);
    }
}

#[test]
fn a_quarantine_that_decides_nothing_is_no_failure() {
    let mut fleet = Fleet::start(3);
    (0..2).for_each(|index| drop(fleet.master(index).ask("SET a 12345678901234567890 PX 3600000")));
    let finished = finish(redlatch(&fleet.urls()).arg("ls"));
    expect(&finished, 0, &[]);
    assert!(finished.stdout.contains("held"), "{}", finished.stdout);
    assert_eq!(finished.stderr, "");
}
