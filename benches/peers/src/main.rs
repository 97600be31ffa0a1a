//! Compares redlatch with its peers, for `benches/scripts/bench`. The library beside it shows the flow.
//!
//! ```text
//! peers [--quick] [--only ID]… [--write ROOT] [--json FILE]
//! peers --render ROOT                                the pages again, from the results of the last run
//! peers child JOB, peers once JOB PAIRS              its own processes
//! ```

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use redlatch_peers::child::{self, Job};
use redlatch_peers::report::{self, Options};

const USAGE: &str =
    "usage: peers [--quick] [--only SCENARIO]... [--write ROOT] [--json FILE] | --render ROOT";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["child", job] => child::serve(&Job::from_json(job)),
        ["once", job, pairs] => child::play_once(&Job::from_json(job), pairs.parse().expect("a number")),
        ["--render", root] => exit(report::render(Path::new(root))),
        words => match options(words) {
            Ok(options) => exit(report::run(&options, progress)),
            Err(message) => {
                eprintln!("peers: {message}\n{USAGE}");
                ExitCode::from(64)
            }
        },
    }
}

fn exit(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("peers: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(words: &[&str]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let mut value = || words.next().copied().ok_or(format!("{word} wants a value"));
        match word {
            "--quick" => options.quick = true,
            "--only" => options.only.push(value()?.to_owned()),
            "--write" => options.write = Some(PathBuf::from(value()?)),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("{other} is not known")),
        }
    }
    report::check(&options)?;
    Ok(options)
}

/// On a terminal, one line that is rewritten; otherwise nothing.
fn progress(text: &str) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[2K{text}").and_then(|()| err.flush());
    }
}
