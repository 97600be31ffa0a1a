//! The referee: each library meets the same faults on the same kind of masters, and `redlatch drill` is the
//! witness.
//!
//! ```text
//!   referee ──► contest ──► Fleet, proxies, clocks      masters of its own for each contest
//!                  │   └──► faults                      harms and heals them until the time is up
//!                  └──────► redlatch drill --contender  starts the contenders, and judges what they write
//!   table, JSON ◄── outcomes
//! ```
//!
//! `benches/scripts/referee` sets everything up, and passes variables that name the available libraries.

#![warn(unreachable_pub)]

mod contest;
mod faults;
mod libraries;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use contest::{Contest, Outcome};
use faults::Fault;
use libraries::{NO_LOCK, TRUSTING};

fn main() -> ExitCode {
    let mut only = Vec::new();
    let mut json_file = None;
    let mut time = Duration::from_secs(10);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().expect("each option has a value");
        match arg.as_str() {
            "--only" => only.push(value),
            "--json" => json_file = Some(value),
            "--seconds" => time = Duration::from_secs(value.parse().expect("whole seconds")),
            _ => panic!("unknown option {arg}"),
        }
    }
    let contests: Vec<Contest> = libraries::all()
        .into_iter()
        .flat_map(|library| Fault::ALL.map(|fault| Contest { library: library.clone(), fault, time }))
        .filter(|it| it.is_of(&only))
        .collect();
    let machine = table::machine();
    let mut outcomes = Vec::new();
    for (index, contest) in contests.iter().enumerate() {
        let outcome = contest.run();
        eprintln!("referee: {} of {}: {}", index + 1, contests.len(), outcome.line());
        outcomes.push(outcome);
    }
    print!("{}", table::markdown(&machine, &outcomes));
    if let Some(file) = json_file {
        std::fs::write(&file, table::json(&machine, &outcomes)).expect("the JSON is written");
    }
    let blind = blind(&outcomes);
    blind.iter().for_each(|what| {
        eprintln!(
            "referee: the witness is blind: it found no two holders of {what}; the other results are void"
        )
    });
    ExitCode::from(u8::from(!blind.is_empty()))
}

/// Controls that should have failed, but did not in any contest.
fn blind(outcomes: &[Outcome]) -> Vec<&'static str> {
    let loses_locks =
        |fault| matches!(fault, Fault::RestartedRow | Fault::RestartedPairs | Fault::RestartedMajority);
    let shows =
        |control, it: &Outcome| it.library == control && (control == NO_LOCK || loses_locks(it.fault));
    let is_missed = |control: &&'static str| {
        let mut contests = outcomes.iter().filter(|it| shows(*control, it)).peekable();
        contests.peek().is_some() && contests.all(|it| it.two_holders == 0)
    };
    [NO_LOCK, TRUSTING].into_iter().filter(is_missed).collect()
}
