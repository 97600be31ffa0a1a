//! A job once per interval: the unit of `examples/systemd` from docs/recipes.md, on five machines.

use std::process::Command;
use std::time::Duration;

use redlatch::env::parse_time;
use redlatch_support::{Fleet, PATIENCE, eventually, root};

use crate::harness::{PATIENT, Running, exists, expect, finish, redlatch};

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).expect("an example")
}

/// Value of a setting that the unit contains once.
fn value(unit: &str, key: &str) -> String {
    let file = read(&format!("examples/systemd/nightly-report.{unit}"));
    let mut values = file.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("the {unit} has no {key}")).to_owned();
    assert_eq!(values.next(), None, "{key}");
    value
}

/// The words between `redlatch` and the command.
fn options() -> Vec<String> {
    let words = value("service", "ExecStart");
    let (options, _) = words.split_once(" -- ").expect("a command");
    let options = options.strip_prefix("/usr/local/bin/redlatch ").expect("the program");
    options.split(' ').map(str::to_owned).collect()
}

/// The unit on one machine, with its file's variables and another command.
fn machine(fleet: &Fleet, command: &[&str]) -> Command {
    let mut run = redlatch(&fleet.urls());
    let file = read("examples/systemd/fleet.env");
    let variables =
        file.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    run.envs(variables.filter(|(name, _)| *name != "REDLATCH_MASTERS"));
    let options = options();
    let (subcommand, options) = options.split_first().expect("a subcommand");
    run.arg(subcommand).args(PATIENT).args(options).arg("--").args(command);
    run
}

#[test]
fn one_of_five_machines_runs_the_unit() {
    let fleet = Fleet::start(3);
    let mut first = Running::start(&mut machine(&fleet, &["sh", "-c", "echo $$"]));
    let report = first.line();
    // The other machines start after the report is done.
    eventually(PATIENCE, "the report is done", || !exists(&report));
    for _ in 1..5 {
        let late = finish(&mut machine(&fleet, &["echo", "report"]));
        assert_eq!(late.code.map(|code| code.to_string()), Some(value("service", "SuccessExitStatus")));
        assert_eq!((&late.stdout[..], &late.stderr[..]), ("", ""));
    }
    // The rest of the interval exceeds the maximum TTL, so the program stays.
    first.signal("TERM");
    expect(&first.finish(), 0, &["cuts the --at-least time"]);
    assert_eq!(finish(&mut machine(&fleet, &["echo", "report"])).stdout, "", "shortened to the maximum TTL");
}

#[test]
fn example_least_time_exceeds_the_start_spread() {
    let options = options();
    let after = |option: &str| options.iter().skip_while(|word| *word != option).nth(1).cloned();
    let least = after("--at-least").expect("a least time");
    let time = |text: &str| parse_time(text).expect("a time");
    let spread = time(&value("timer", "RandomizedDelaySec")) + time(&value("timer", "AccuracySec"));
    // Twice the spread: as much again for clock differences and slow starts.
    assert!(time(&least) >= 2 * spread && time(&least) < Duration::from_secs(24 * 3600), "{least}");
    assert_eq!(after("--max-ttl"), None, "a longer quarantine for all");
    assert!(read("examples/systemd/fleet.env").contains("REDLATCH_MAX_TTL=30s\n"));
    let late = read("examples/systemd/nightly-report.timer");
    assert!(!late.lines().any(|line| line.starts_with("Persistent=")), "hours late");
    // The page has the same recipe.
    assert!(read("docs/recipes.md").contains(&format!("redlatch run --quiet --at-least {least} ")));
}
