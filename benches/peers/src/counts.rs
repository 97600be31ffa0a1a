//! Costs of a pair in counts, on which the machine's load has no effect: allocations, system calls,
//! instructions.
//!
//! Each is the difference of two run lengths, so that starting and connecting do not count.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::child::Job;
use crate::rivals::Peer;

/// Pairs of all callers in the shorter and the longer run.
const PAIRS: (usize, usize) = (1_024, 3_072);
/// The same for rough figures, and under valgrind, which is fifty times slower.
const FEW_PAIRS: (usize, usize) = (256, 768);
/// `timeout` ends a longer run, which must have hung.
const RUN_LIMIT_S: &str = "60";

/// Per pair.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Counts {
    pub peer: Peer,
    pub callers: usize,
    pub allocations: Option<f64>,
    pub system_calls: Option<f64>,
    pub instructions: Option<f64>,
}

/// Counters available on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    pub system_calls: bool,
    pub instructions: bool,
}

impl Counters {
    /// Finds the counters that work here. A quick run leaves out instructions, which take longest.
    pub fn find(quick: bool) -> Self {
        let works = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        Self {
            system_calls: works(&["perf", "stat", "-e", "raw_syscalls:sys_enter", "true"]),
            instructions: !quick && works(&["valgrind", "--tool=none", "true"]),
        }
    }
}

/// Counts for the job's peer, with temporary files in `dir`.
pub fn count(job: &Job, counters: Counters, quick: bool, dir: &Path) -> Counts {
    let callers = job.work.callers;
    let pairs = if quick { FEW_PAIRS } else { PAIRS };
    let per_pair = |(short, long): (usize, usize), run: &dyn Fn(usize) -> Option<f64>| {
        let pairs = |count: usize| (count / callers).max(1);
        let (short, long) = (pairs(short), pairs(long));
        let difference = run(long)? - run(short)?;
        #[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
        Some((difference / ((long - short) * callers) as f64).max(0.0))
    };
    Counts {
        peer: job.peer,
        callers,
        allocations: per_pair(pairs, &|pairs| allocations(job, pairs)),
        system_calls: if counters.system_calls {
            per_pair(pairs, &|pairs| system_calls(job, pairs, dir))
        } else {
            None
        },
        instructions: if counters.instructions {
            per_pair(FEW_PAIRS, &|pairs| instructions(job, pairs))
        } else {
            None
        },
    }
}

fn sibling(name: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new("timeout");
    command.args(["-k", "5", RUN_LIMIT_S]).arg(program.with_file_name(name));
    command
}

/// Counted by the program `allocations`.
fn allocations(job: &Job, pairs: usize) -> Option<f64> {
    let output = sibling("allocations").args([job.to_json(), pairs.to_string()]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// All threads of the process, counted by the kernel.
fn system_calls(job: &Job, pairs: usize, dir: &Path) -> Option<f64> {
    let file = dir.join("perf");
    let program = std::env::current_exe().ok()?;
    let mut command = Command::new("timeout");
    command.args(["-k", "5", RUN_LIMIT_S, "perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o"]);
    command.arg(&file).arg(program).args(["once", &job.to_json(), &pairs.to_string()]);
    if !command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?.success() {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let counts = text.lines().filter_map(|line| line.split(',').next()?.parse::<f64>().ok());
    Some(counts.sum())
}

/// User instructions of all threads, counted by callgrind.
fn instructions(job: &Job, pairs: usize) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let mut command = Command::new("timeout");
    command.args(["-k", "5", RUN_LIMIT_S, "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program).args(["once", &job.to_json(), &pairs.to_string()]);
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}
