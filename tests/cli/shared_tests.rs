//! `redlatch run --shared`, and its locks in `inspect`.

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Running, expect, finish, holder_count, trusting};

/// A command that holds the lock until it is ended.
fn hold(fleet: &Fleet, flags: &[&str]) -> Running {
    let mut run = Running::start(
        trusting(fleet, "run")
            .args(flags)
            .args(["r", "--", "sh", "-c"])
            .arg(format!("echo inside; {FOREVER}")),
    );
    assert_eq!(run.line(), "inside");
    run
}

#[test]
fn sharing_commands_run_together_and_exclude_others() {
    let mut fleet = Fleet::start(3);
    let shared = [hold(&fleet, &["--shared"]), hold(&fleet, &["-s", "--ttl", "5s"])];
    let alone = finish(trusting(&fleet, "run").args(["r", "--", "true"]));
    expect(&alone, 75, &["lock \"r\" is shared by 2 readers, for at most"]);
    // A majority has both readers; the last master may be about to.
    eventually(PATIENCE, "all masters have both", || {
        finish(trusting(&fleet, "inspect").arg("r")).stdout.contains("all 3 masters: 2 readers")
    });
    let inspect = finish(trusting(&fleet, "inspect").arg("r"));
    expect(&inspect, 75, &[]);
    let is_shown = inspect.stdout.starts_with("shared by readers on 3 of 3 masters, for at most ");
    assert!(is_shown, "{}", inspect.stdout);
    let json = finish(trusting(&fleet, "inspect").args(["--json", "r"])).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON and nothing else");
    let first = &json["masters"][0];
    assert_eq!((json["status"].as_str(), first["readers"].as_u64()), (Some("shared"), Some(2)), "{json}");
    assert!(json["remaining_ms"].as_u64().is_some_and(|left| left > 0 && left <= 10_001), "{json}");
    for run in shared {
        run.signal("TERM");
        expect(&run.finish(), 128 + 15, &[]);
    }
    assert_eq!(holder_count(&mut fleet, "r"), 0, "released before the exit");
    let run = hold(&fleet, &[]);
    expect(&finish(trusting(&fleet, "run").args(["--shared", "r", "--", "true"])), 75, &["held by another"]);
    run.signal("TERM");
    run.finish();
    expect(&finish(trusting(&fleet, "run").args(["--shared", "r", "--", "true"])), 0, &[]);
}

#[test]
fn shared_and_fenced_exclude_each_other() {
    let fleet = Fleet::start(1);
    let both = finish(trusting(&fleet, "run").args(["--shared", "--fenced", "r", "--", "true"]));
    expect(&both, 64, &["cannot be used with"]);
}
