//! `redlatch inspect` and `redlatch unlock --force`: output and exit codes.

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Running, expect, finish, holder_count, redlatch, trusting};
use crate::terminal::Session;

#[test]
fn inspect_distinguishes_free_held_split_and_unknown() {
    let mut fleet = Fleet::start(3);
    let inspect = |fleet: &Fleet| finish(trusting(fleet, "inspect").arg("report"));
    let free = inspect(&fleet);
    expect(&free, 0, &[]);
    assert_eq!(free.stdout, "free on 3 of 3 masters\n  all 3 masters: free\n");
    let mut run = Running::start(
        trusting(&fleet, "run").args(["report", "--", "sh", "-c"]).arg(format!("echo inside; {FOREVER}")),
    );
    assert_eq!(run.line(), "inside");
    let mut shown = String::new();
    eventually(PATIENCE, "the slowest master has the lock, too", || {
        let held = inspect(&fleet);
        expect(&held, 75, &[]);
        shown = held.stdout;
        shown.starts_with("held on 3 of 3 masters, for at most ") && shown.contains("held by ")
    });
    let json = finish(trusting(&fleet, "inspect").args(["--json", "report"]));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON and nothing else");
    assert_eq!((json["status"].as_str(), json["masters"].as_array().map(Vec::len)), (Some("held"), Some(3)));
    assert_eq!(json["holder"].as_str().map(str::len), Some(40), "{json}");
    let label = json["holder_label"].as_str().expect("a label");
    assert!(label.ends_with(&format!(":{}:sh", run.id())) && json["masters"][0]["label"] == label, "{json}");
    assert!(shown.contains(&format!(" ({label}), for at most ")), "{shown}");
    assert!(json["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 10_000), "{json}");
    run.signal("TERM");
    run.finish();
    for (index, value) in ["one", "two"].into_iter().enumerate() {
        fleet.master(index).ask(&format!("SET report {value} PX 60000"));
    }
    let split = inspect(&fleet);
    expect(&split, 75, &[]);
    assert!(
        split.stdout.starts_with("split") && split.stdout.contains("held by two, for at most "),
        "{}",
        split.stdout
    );
    fleet.master(1).kill();
    fleet.master(2).kill();
    let unknown = inspect(&fleet);
    expect(&unknown, 69, &[]);
    assert!(unknown.stdout.starts_with("unknown") && unknown.stdout.contains("not connected"));
}

#[test]
fn the_json_has_the_state_of_each_master() {
    let mut fleet = Fleet::start(5);
    let shown = |fleet: &Fleet, name: &str| -> serde_json::Value {
        let finished = finish(trusting(fleet, "inspect").args(["--json", name]));
        serde_json::from_str(&finished.stdout).expect("JSON and nothing else")
    };
    (0..3).for_each(|index| _ = fleet.master(index).ask(&format!("SET held one PX {}", 60_000 + index)));
    fleet.master(3).ask("RPUSH held x");
    let urls = fleet.urls();
    let held = shown(&fleet, "held");
    let left_ms = |index: usize| held["masters"][index]["left_ms"].clone();
    for index in 0..3 {
        assert!(left_ms(index).as_u64().is_some_and(|left| left > 10_000 && left <= 60_002), "{held}");
    }
    let error = held["masters"][3]["error"].clone();
    assert!(error.as_str().is_some_and(|text| text.contains("WRONGTYPE")), "{held}");
    let has_one = |index: usize| {
        let (name, left_ms) = (&urls[index], left_ms(index));
        serde_json::json!({ "name": name, "held": true, "value": "one", "label": null, "left_ms": left_ms })
    };
    // A quorum holds the lock until the first of the three keys expires.
    let remaining_ms = (0..3).filter_map(|index| left_ms(index).as_u64()).min();
    let expected = serde_json::json!({
        "status": "held", "holder": "one", "holder_label": null, "remaining_ms": remaining_ms, "masters": [
            has_one(0), has_one(1), has_one(2),
            { "name": urls[3], "held": null, "error": error },
            { "name": urls[4], "held": false },
        ],
    });
    assert_eq!(held, expected);
    let mut reader = Running::start(
        trusting(&fleet, "run")
            .args(["--shared", "read", "--", "sh", "-c"])
            .arg(format!("echo in; {FOREVER}")),
    );
    assert_eq!(reader.line(), "in");
    eventually(PATIENCE, "all masters have the reader", || holder_count(&mut fleet, "read") == 5);
    let read = shown(&fleet, "read");
    assert_eq!(read["status"], "shared", "{read}");
    for master in read["masters"].as_array().expect("a list") {
        assert_eq!((&master["held"], &master["readers"]), (&true.into(), &1.into()), "{read}");
        assert!(master["left_ms"].as_u64() > Some(0), "{read}");
    }
}

#[test]
fn masters_that_restarted_lately_are_not_called_free() {
    let fleet = Fleet::start(3);
    let inspect = finish(redlatch(&fleet.urls()).args(["inspect", "report"]));
    expect(&inspect, 69, &[]);
    assert!(inspect.stdout.contains("not counted for another"), "{}", inspect.stdout);
}

#[test]
fn unlock_needs_the_flag_and_deletes_any_lock() {
    let mut fleet = Fleet::start(3);
    for master in fleet.masters() {
        master.ask("SET report somebody PX 60000");
    }
    expect(&finish(trusting(&fleet, "unlock").arg("report")), 64, &["--force", "does not notify"]);
    assert_eq!(holder_count(&mut fleet, "report"), 3);
    let unlock = finish(trusting(&fleet, "unlock").args(["--force", "report"]));
    expect(&unlock, 0, &["warning", "is not notified"]);
    assert_eq!(unlock.stdout, "all 3 masters: deleted\n");
    assert_eq!(holder_count(&mut fleet, "report"), 0);
    let again = finish(trusting(&fleet, "unlock").args(["--force", "report"]));
    expect(&again, 0, &[]);
    assert_eq!((&*again.stdout, &*again.stderr), ("all 3 masters: had no such lock\n", ""));
    fleet.masters().for_each(|master| assert_eq!(master.ask("RPUSH list x").text(), "1"));
    let list = finish(trusting(&fleet, "unlock").args(["--force", "list"]));
    expect(&list, 69, &["lock \"list\" may exclude others", "other types are never deleted"]);
    let said =
        list.stdout.starts_with("all 3 masters: ") && list.stdout.contains("no lock: nothing was deleted");
    assert!(said, "{}", list.stdout);
    fleet.masters().for_each(|master| assert_eq!(master.ask("LLEN list").text(), "1"));
    fleet.master(0).kill();
    fleet.master(1).kill();
    let said = ["lock \"report\" may exclude others", "retry when more masters answer"];
    expect(&finish(trusting(&fleet, "unlock").args(["--force", "report"])), 69, &said);
}

#[test]
fn a_refused_run_names_the_holder() {
    let fleet = Fleet::start(3);
    let hold = |label: &str| {
        let mut run = Running::start(
            trusting(&fleet, "run")
                .args(["--label", label, "report", "--", "sh", "-c"])
                .arg(format!("echo inside; {FOREVER}")),
        );
        assert_eq!(run.line(), "inside");
        run
    };
    let refused = || finish(trusting(&fleet, "run").args(["report", "--", "true"]));
    let run = hold("nightly 7");
    expect(&refused(), 75, &["held by another client (nightly 7), for at most "]);
    run.signal("TERM");
    run.finish();
    let run = hold("");
    expect(&refused(), 75, &["held by another client, for at most "]);
    let inspection = finish(trusting(&fleet, "inspect").args(["--json", "report"]));
    let json: serde_json::Value = serde_json::from_str(&inspection.stdout).expect("JSON");
    assert!(json["holder_label"].is_null(), "{json}");
    run.signal("TERM");
    run.finish();
}

#[test]
fn a_bad_label_is_bad_usage() {
    let fleet = Fleet::start(1);
    let long = "x".repeat(65);
    for (label, said) in [(&*long, "65 bytes; give at most 64"), ("two\nlines", "give printable text")] {
        let run = finish(trusting(&fleet, "run").args(["--label", label, "report", "--", "true"]));
        expect(&run, 64, &[said]);
    }
}

#[test]
fn a_watch_shows_each_change_until_nobody_reads() {
    let mut fleet = Fleet::start(3);
    let mut watch = Running::start(trusting(&fleet, "inspect").args(["--watch", "report"]));
    assert_eq!(watch.line(), "free on 3 of 3 masters");
    assert_eq!(watch.line(), "  all 3 masters: free");
    eventually(PATIENCE, "it looks again", || fleet.master(0).calls("pttl") >= 3);
    for master in fleet.masters() {
        master.ask("SET report somebody PX 600000");
    }
    // An inspection may fall between the three commands.
    let mut shown = watch.line();
    while !shown.starts_with("held on 3 of 3 masters") {
        assert_ne!(shown, "free on 3 of 3 masters", "it is shown once");
        shown = watch.line();
    }
    assert!(watch.line().starts_with("  all 3 masters: held by somebody"));
    let mut by_lines = Running::start(trusting(&fleet, "inspect").args(["--watch", "--json", "report"]));
    let line: serde_json::Value = serde_json::from_str(&by_lines.line()).expect("JSON");
    assert_eq!((line["status"].as_str(), line["holder"].as_str()), (Some("held"), Some("somebody")));
    by_lines.signal("TERM");
    by_lines.finish();
    watch.signal("TERM");
    watch.finish();
    // `head` ends after the first line, and with it the watch.
    let script = "{ \"$REDLATCH\" inspect --trust --watch report; echo \"code $?\" >&2; } | head -n 1";
    let mut shell = crate::harness::command("sh");
    shell.args(["-c", script]).env("REDLATCH", env!("CARGO_BIN_EXE_redlatch"));
    let finished = finish(shell.env("REDLATCH_MASTERS", fleet.urls().join(",")));
    assert_eq!(finished.stderr, "code 0\n");
    assert_eq!(holder_count(&mut fleet, "redlatch:fleet"), 0, "a look writes no record");
}

#[test]
fn a_watch_shows_another_number_of_readers() {
    let fleet = Fleet::start(3);
    // Ends the watch if a line is missing.
    let mut watch = crate::harness::command("timeout");
    watch.arg(PATIENCE.as_secs().to_string()).arg(env!("CARGO_BIN_EXE_redlatch"));
    watch.args(["inspect", "--trust", "--watch", "report"]).env("REDLATCH_MASTERS", fleet.urls().join(","));
    let mut watch = Running::start(&mut watch);
    let mut readers = Vec::new();
    for count in ["1 reader", "2 readers"] {
        let mut reader = trusting(&fleet, "run");
        reader.args(["--shared", "report", "--", "sh", "-c"]).arg(format!("echo inside; {FOREVER}"));
        readers.push(Running::start(&mut reader));
        while !watch.line().contains(&format!("all 3 masters: {count}")) {}
    }
    readers.push(watch);
    for run in readers {
        run.signal("TERM");
        run.finish();
    }
}

#[test]
fn a_watch_on_a_terminal_draws_in_place() {
    let mut fleet = Fleet::start(3);
    for (index, holder) in ["one", "another", "a-third"].iter().enumerate() {
        fleet.master(index).ask(&format!("SET report {holder} PX 600000"));
    }
    for (settings, shown) in [("NO_COLOR=", "\x1b[1;33msplit\x1b[0m"), ("NO_COLOR=1", "split")] {
        let watch = "\"$REDLATCH\" inspect --trust --answer-timeout 5s --watch report";
        let script = format!("stty cols 40 && TERM=xterm {settings} {watch}");
        let Some(session) = Session::start(&fleet.urls(), &script) else { return };
        let again = "A\x1b[J";
        eventually(PATIENCE, "it draws again", || session.screen().contains(again));
        let screen = session.screen();
        let header = "lock \"report\", twice a second:\r\n";
        assert!(screen.starts_with(&format!("{header}{shown}: ")), "{screen:?}");
        assert_eq!(screen.contains("\x1b[1;"), shown != "split", "{screen:?}");
        // Moves up by the rows of the first output, without its colour codes.
        let (first, _) = screen.split_once(again).expect("it has");
        let (first, up) = first.rsplit_once("\x1b[").expect("rows");
        assert_eq!(up.parse(), Ok(first.lines().count()), "{screen:?}");
    } // One object a line, which a program reads.
    let script = "TERM=xterm \"$REDLATCH\" inspect --trust --answer-timeout 5s --watch --json report";
    let Some(session) = Session::start_with_width(&fleet.urls(), script, 40) else { return };
    let line_count = |count| session.screen().matches('\n').count() >= count;
    eventually(PATIENCE, "it shows a line", || line_count(1));
    fleet.masters().for_each(|master| drop(master.ask("DEL report")));
    eventually(PATIENCE, "it shows another one", || line_count(2));
    for line in session.screen().lines() {
        let shown: serde_json::Value = serde_json::from_str(line).expect("JSON and nothing else");
        assert_eq!(shown["masters"].as_array().map(Vec::len), Some(3), "{shown}");
    }
}
