//! `redlatch run --slots`: at most a given number of commands at once, each with a number.

use std::collections::BTreeSet;

use redlatch_support::{Fleet, PATIENCE, eventually, root};

use crate::harness::{FOREVER, PATIENT, Running, expect, finish, holder_count, redlatch, trusting};

/// The page's recipe, with another command.
// I80
#[test]
fn three_of_eight_machines_run_at_once() {
    let recipes = std::fs::read_to_string(root().join("docs/recipes.md")).expect("a page");
    let options = ["--slots", "3", "--wait", "2h", "migrate"];
    assert!(recipes.contains(&format!("redlatch run {} -- ./migrate.sh", options.join(" "))));
    let mut fleet = Fleet::start(3);
    let log = std::env::temp_dir().join(format!("redlatch-slots-{}", std::process::id()));
    let script = format!(
        "echo \"+$REDLATCH_SLOT\" >>{log}; sleep 0.1; echo \"-$REDLATCH_SLOT\" >>{log}",
        log = log.display()
    );
    let machines: Vec<_> = (0..8)
        .map(|_| Running::start(trusting(&fleet, "run").args(options).args(["--", "sh", "-c", &script])))
        .collect();
    machines.into_iter().for_each(|machine| expect(&machine.finish(), 0, &[]));
    let lines = std::fs::read_to_string(&log).expect("each has written");
    std::fs::remove_file(&log).expect("it is there");
    let mut inside = BTreeSet::new();
    for line in lines.lines() {
        let slot = line[1..].parse::<u32>().expect("a number");
        assert!(slot < 3, "{lines}");
        match line.starts_with('+') {
            true => assert!(inside.insert(slot), "two have slot {slot}: {lines}"),
            false => assert!(inside.remove(&slot), "{lines}"),
        }
    }
    assert_eq!((lines.lines().count(), inside.len()), (16, 0), "{lines}");
    for slot in 0..3 {
        assert_eq!(holder_count(&mut fleet, &format!("redlatch:slot:{slot}:migrate")), 0);
    }
}

#[test]
fn a_command_has_its_slot_beside_its_token() {
    let fleet = Fleet::start(3);
    let script = "echo \"$REDLATCH_RESOURCE $REDLATCH_SLOT\"; echo \"$REDLATCH_FENCING_TOKEN\"";
    let run = finish(
        trusting(&fleet, "run")
            .args(["-v", "--max-ttl", "10h", "--ttl", "10h"])
            .args(["--slots", "1", "--fenced", "pool", "--", "sh", "-c", script]),
    );
    let took = run.stderr.split_once("acquired in ").and_then(|(_, rest)| rest.split_once(';'));
    let seconds = |took: &str| took.strip_suffix('s')?.parse().ok();
    assert!(took.is_some_and(|(took, _)| seconds(took).unwrap_or(0.0) < 36000.0), "{}", run.stderr);
    expect(&run, 0, &["it is slot 0 of 1, counted from 0", "slot 0 of pool \"pool\" acquired in"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines[0], "pool 0");
    assert!(lines[1].parse::<u64>().is_ok(), "{lines:?}");
    // A command without a slot must not inherit the number of an outer command.
    let mut run = trusting(&fleet, "run");
    run.env("REDLATCH_SLOT", "7").args(["pool", "--", "sh", "-c", "echo \"<$REDLATCH_SLOT>\""]);
    assert_eq!(finish(&mut run).stdout, "<>\n");
}

/// A command that holds one slot of the pool `jobs` with this many slots.
fn hold_slot(fleet: &Fleet, count: &str) -> Running {
    let script = format!("echo in; {FOREVER}");
    let mut holder =
        Running::start(trusting(fleet, "run").args(["--slots", count, "jobs", "--", "sh", "-c", &script]));
    holder.line();
    holder
}

/// Both slots are held, but this login lacks the right to search.
#[test]
fn slots_behind_a_refused_look_are_not_busy() {
    let mut fleet = Fleet::start(3);
    let rule = "ACL SETUSER blind on >pw ~* &* +@all -eval";
    fleet.masters().for_each(|master| assert_eq!(master.ask(rule).text(), "OK"));
    let holders = [hold_slot(&fleet, "2"), hold_slot(&fleet, "2")];
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", "redis://blind:pw@")).collect();
    let mut run = redlatch(&urls);
    let refused = finish(run.arg("run").args(PATIENT).args(["--slots", "2", "jobs", "--", "true"]));
    expect(&refused, 69, &["NOPERM", "+eval"]);
    drop(holders);
}

#[test]
fn slots_are_listed_inspected_and_unlocked() {
    let mut fleet = Fleet::start(3);
    let mut holder = hold_slot(&fleet, "1");
    let refused = finish(trusting(&fleet, "run").args(["--slots", "1", "jobs", "--", "true"]));
    expect(&refused, 75, &["the only slot of pool \"jobs\" is taken: slot 0 ("]);
    assert!(fleet.masters().all(|master| master.calls("zadd") == 0), "it has not stood in a queue");
    let waiting = Running::start(
        trusting(&fleet, "run").args(["--slots", "1", "-w", "1h", "jobs", "--", "echo", "next"]),
    );
    eventually(PATIENCE, "it is at the door", || holder_count(&mut fleet, "redlatch:door:jobs") == 3);
    let mut ended = Running::start(
        trusting(&fleet, "run").args(["-v", "--slots", "1", "-w", "1h", "jobs", "--", "true"]),
    );
    ended.wait_for_stderr("waiting up to ");
    ended.signal("TERM");
    expect(&ended.finish(), 143, &["pool \"jobs\" is not held"]);
    let list = finish(&mut trusting(&fleet, "ls")).stdout;
    assert!(list.contains(" jobs slot 0 by ") && list.contains(" jobs door by "), "{list}");
    let list = finish(trusting(&fleet, "ls").arg("--json")).stdout;
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let slot = list["locks"].as_array().expect("a list").iter().find(|lock| lock["slot"] == 0);
    assert_eq!(slot.expect("a slot")["pool"], "jobs");
    let inspect = |args: &[&str]| finish(trusting(&fleet, "inspect").args(args));
    expect(&inspect(&["--slot", "0", "jobs"]), 75, &[]);
    expect(&inspect(&["jobs"]), 0, &["if it is a pool of slots, give --slots COUNT"]);
    let held = inspect(&["--slots", "1", "jobs"]);
    assert!(held.stdout.starts_with("slot 0: held on 3 of 3 masters, for at most "), "{}", held.stdout);
    assert_eq!((held.code, held.stdout.lines().count(), held.stderr.as_str()), (Some(75), 1, ""));
    let pool = inspect(&["--slots", "2", "jobs"]);
    assert!(pool.stdout.ends_with("\nslot 1: free on 3 of 3 masters\n"), "{}", pool.stdout);
    assert_eq!(pool.code, Some(0));
    let json: serde_json::Value =
        serde_json::from_str(&inspect(&["--slots", "2", "--json", "jobs"]).stdout).expect("JSON");
    assert_eq!([0, 1].map(|slot| json["slots"][slot]["status"].as_str()), [Some("held"), Some("free")]);
    expect(&inspect(&["--slots", "1025", "jobs"]), 64, &["a pool of 1025 slots is asked for"]);
    expect(
        &finish(trusting(&fleet, "unlock").args(["--force", "--slot", "0", "jobs"])),
        0,
        &["slot 0 of pool"],
    );
    assert_eq!(waiting.finish().stdout, "next\n");
    holder.signal("KILL");
    holder.wait_for_exit();
}

#[test]
fn slots_that_cannot_be_give_64() {
    let fleet = Fleet::start(1);
    for (options, said) in [
        (&["--slots", "0"][..], "a pool of 0 slots is asked for; give 1 to 1024"),
        (&["--slots", "2000"], "a pool of 2000 slots is asked for; give 1 to 1024"),
        (&["--slots", "-1"], "-1"),
        (&["--slots", "3", "--shared"], "'--slots <COUNT>' cannot be used with"),
        (&["--slots", "3", "--fair"], "'--slots <COUNT>' cannot be used with"),
        (&["--slots", "3", "--also", "other"], "'--slots <COUNT>' cannot be used with"),
    ] {
        let run = finish(trusting(&fleet, "run").args(options).args(["pool", "--", "true"]));
        expect(&run, 64, &[said]);
    }
}
