//! Results as Markdown and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use serde_json::json;

use crate::contest::{CONTENDER_COUNT, MASTER_COUNT, Outcome, TTL};
use crate::faults::Fault;

/// Machine and date of the contests.
pub(crate) fn machine() -> String {
    let first_line = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().map(|it| it.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let server = first_line("redis-server", &["--version"]);
    format!(
        "{}; {} cores, load before the run {}; {}; {MASTER_COUNT} masters on loopback, {CONTENDER_COUNT} contenders, TTL {} s",
        first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        std::thread::available_parallelism().map_or(1, usize::from),
        load.split(' ').next().unwrap_or("unknown"),
        server.split(" sha=").next().unwrap_or_default(),
        TTL.as_secs()
    )
}

/// A table of double holders, and a table of all figures for each fault.
pub(crate) fn markdown(machine: &str, outcomes: &[Outcome]) -> String {
    let mut libraries: Vec<&str> = outcomes.iter().map(|it| it.library).collect();
    libraries.dedup();
    let faults: Vec<Fault> =
        Fault::ALL.into_iter().filter(|fault| outcomes.iter().any(|it| it.fault == *fault)).collect();
    let mut text =
        format!("{machine}.\n\nTwo holders at once, within the validity that the library states:\n\n");
    let mut row = |cells: Vec<String>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    row(std::iter::once("").chain(faults.iter().map(|it| it.name())).map(str::to_owned).collect());
    row(vec!["---".to_owned(); faults.len() + 1]);
    for library in libraries {
        let cell = |fault: &Fault| {
            let outcome = outcomes.iter().find(|it| it.library == library && it.fault == *fault);
            outcome.map_or(String::new(), |it| match it.two_holders {
                0 if it.locks_per_second == 0.0 => "no locks".to_owned(),
                0 => "never".to_owned(),
                count => format!("**{count}**"),
            })
        };
        row(std::iter::once(library.to_owned()).chain(faults.iter().map(cell)).collect());
    }
    for fault in faults {
        let mut name = fault.name().to_owned();
        name[..1].make_ascii_uppercase();
        let _ = write!(text, "\n### {name}\n\n{}\n\n", fault.text());
        text.push_str("| | two holders | at work past the validity, beside another | latest call, past its deadline | keys left | longest time without a lock | locks/s |\n|---|---|---|---|---|---|---|\n");
        for it in outcomes.iter().filter(|it| it.fault == fault) {
            let for_ever = if it.keys_for_ever > 0 { " for ever" } else { "" };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {}{for_ever} | {} | {:.1} |",
                it.library,
                it.two_holders,
                it.outlasted,
                if it.late_ms < 1.0 { "–".to_owned() } else { time(it.late_ms) },
                it.keys_left,
                time(it.longest_gap_ms),
                it.locks_per_second
            );
        }
    }
    text
}

fn time(ms: f64) -> String {
    if ms >= 1000.0 { format!("{:.1} s", ms / 1000.0) } else { format!("{ms:.0} ms") }
}

pub(crate) fn json(machine: &str, outcomes: &[Outcome]) -> String {
    let contests: Vec<_> = outcomes
        .iter()
        .map(|it| {
            json!({
                "library": it.library,
                "fault": it.fault.name(),
                "two_holders": it.two_holders,
                "outlasted_beside_a_holder": it.outlasted,
                "latest_call_ms": it.late_ms,
                "keys_left": it.keys_left,
                "keys_for_ever": it.keys_for_ever,
                "longest_gap_ms": it.longest_gap_ms,
                "locks_per_second": it.locks_per_second,
                "failed_contenders": it.failed,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "machine": machine, "contests": contests }))
}
