//! Output and exit code of each command in each state of its lock, compared with `tests/golden/transcripts`.
//! Times, addresses, tokens and process ids are left out. The state of a free lock is shown in full, other
//! states by their differences (`2=`: two lines are the same).

use std::path::Path;

use redlatch_support::{Fleet, assert_golden, differing, wrapped};

use crate::harness::{Finished, PATIENT, finish, redlatch};

/// Command lines in shell words; `FILE` is a path of the test.
const LINES: &[&str] = &[
    "run --verbose a -- true",
    "run --verbose a -- sh -c 'exit 3'",
    "run --verbose a -- sh -c 'kill -TERM $$'",
    "run --verbose a -- /nowhere/program",
    "run --verbose a -- /etc/passwd",
    "run --verbose --fenced a -- sh -c 'test -n \"$REDLATCH_FENCING_TOKEN\"'",
    "run --verbose --shared a -- true",
    "run --verbose --fair --wait 0s a -- true",
    "run --verbose --wait 0s a --also b -- true",
    "run --verbose --slots 1 a -- sh -c 'exit $REDLATCH_SLOT'",
    "run --wait 0s a -- true",
    "run --quiet a -- true",
    "run --quiet --conflict-exit-code 9 a -- true",
    "run --conflict-exit-code 9 a -- true",
    "run --verbose --at-least 3s a -- true",
    "run --verbose --handle FILE a -- true",
    "acquire --verbose --handle FILE a",
    "acquire --verbose --handle FILE a",
    "acquire --verbose --handle FILE b",
    "release --handle FILE",
    "release --handle FILE",
    "inspect a",
    "inspect --json a",
    "inspect --slot 0 a",
    "ls",
    "ls --json",
    "ls 'b*'",
    "unlock a",
    "unlock --force a",
    "unlock --force --slot 0 a",
    "unlock --force a",
    "bench --pairs 3 --keys 5 --ttl 7s",
    "bench --time 0s",
    "drill --time 0s",
    "fleet status",
    "fleet init",
    "run --ttl 31s a -- true",
    "run --ttl 1ms a -- true",
    "run --at-least 25h a -- true",
    "run --slots 0 a -- true",
    "run --slots 1025 a -- true",
    "run --slots 1 --fenced a -- true",
    "run --fair --fenced a -- true",
    "run --label '' a -- true",
    "run a true",
    "elect a true",
    "run '' -- true",
    "generate nothing",
    "generate man nothing",
    "generate man generate",
    "inspect",
];

/// States of the masters: name, commands that create the state, and number of killed masters.
const STATES: &[(&str, &[&str], usize)] = &[
    ("free", &[], 0),
    ("held", &["SET a twenty-bytes-of-tok.\tdb-1 PX 3600000", "SET redlatch:slot:0:a x PX 3600000"], 0),
    ("a key of another type", &["RPUSH a x", "RPUSH redlatch:slot:0:a x"], 0),
    ("a key without a TTL", &["SET a x", "SET redlatch:slot:0:a x"], 0),
    ("refusing", &["CONFIG SET min-replicas-to-write 1"], 0),
    ("down", &[], 1),
];

/// Splits a line into words, as a shell does.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for char in line.chars() {
        match char {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            char => words.last_mut().expect("a word").push(char),
        }
    }
    words
}

/// Shows each varying number as one letter.
fn masked(text: &str, file: &str) -> String {
    let text = text.replace(file, "FILE");
    let mut shown = String::new();
    for word in text.split_inclusive(|char: char| !(char.is_ascii_alphanumeric() || ".:µ".contains(char))) {
        let word = word.strip_prefix(':').inspect(|_| shown.push(':')).unwrap_or(word);
        let bare = word.trim_end_matches(|char: char| !char.is_ascii_alphanumeric());
        let number = bare.trim_end_matches(|char: char| !char.is_ascii_digit());
        let is_number = bare.starts_with(|char: char| char.is_ascii_digit());
        let is_time = is_number && ["ns", "µs", "ms", "s", "h"].contains(&&bare[number.len()..]);
        let masked = match bare {
            _ if bare.len() == 40 && bare.chars().all(|char| char.is_ascii_hexdigit()) => "TOKEN",
            _ if bare.contains("127.0.0.1:") => "ADDRESS",
            _ if is_time || number.contains('.') && is_number => "TIME",
            bare => bare,
        };
        shown += &format!("{masked}{}", &word[bare.len()..]);
    }
    // Long numbers: process ids and milliseconds.
    let runs = shown.split_inclusive(|char: char| !char.is_ascii_digit()).map(|run| {
        let size = run.bytes().take_while(u8::is_ascii_digit).count();
        if size >= 4 { format!("N{}", &run[size..]) } else { run.to_owned() }
    });
    let shown: String = runs.collect();
    // Column widths depend on the numbers, and a benchmark's locks have random names.
    let is_bench = |line: &str| line.contains("redlatch-bench:");
    let lines =
        shown.lines().filter(|line| !is_bench(line)).map(|line| match line.split_once(" pairs in ") {
            Some((count, _)) => format!("{count} pairs in TIME\n"),
            None => line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n",
        });
    lines.collect()
}

fn run(fleet: &Fleet, line: &str, file: &Path, is_outage: bool) -> Finished {
    let mut command = redlatch(&fleet.urls());
    let file = file.to_str().expect("text");
    let mut words: Vec<String> = words(line).into_iter().map(|word| word.replace("FILE", file)).collect();
    let mut options: Vec<&str> = match &*words[0] {
        "fleet" | "generate" => Vec::new(),
        // Limits that a slow machine does not exceed.
        _ => PATIENT.to_vec(),
    };
    if ["run", "acquire"].contains(&&*words[0]) && !line.contains("--label") {
        options.extend(["--label", "me"]);
    }
    // Otherwise the program would retry for a while.
    if is_outage && ["run", "acquire"].contains(&&*words[0]) && !line.contains("--wait") {
        options.extend(["--wait", "0s"]);
    }
    // Behind the first word: after the command, the options would belong to it.
    words.splice(1..1, options.into_iter().map(str::to_owned));
    finish(command.args(words))
}

#[test]
fn command_output_matches_its_golden_file() {
    let mut fleet = Fleet::start(1);
    let file = std::env::temp_dir().join(format!("redlatch-transcript-{}", std::process::id()));
    // Exit code and lines, by command line and state.
    let mut printed = vec![Vec::new(); LINES.len()];
    for (state, commands, killed_count) in STATES {
        fleet.masters().take(*killed_count).for_each(|master| master.kill());
        for (line, printed) in LINES.iter().zip(&mut printed) {
            for command in *commands {
                let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
                fleet.master(0).command(&words);
            }
            let Finished { code, stdout, stderr } =
                run(&fleet, line, &file, ["refusing", "down"].contains(state));
            let name = file.to_str().expect("text");
            let code = code.map_or_else(|| "-".to_owned(), |code| code.to_string());
            let text = masked(&stdout, name) + &masked(&stderr, name);
            printed.push((code, text.lines().map(str::to_owned).collect::<Vec<_>>()));
            // The next two lines need the handle's lock.
            if *killed_count == 0 && !line.contains("FILE") {
                fleet.master(0).ask("FLUSHALL");
            }
        }
        std::fs::remove_file(&file).ok();
        fleet.masters().take(*killed_count).for_each(|master| master.restart());
        fleet.master(0).ask("CONFIG SET min-replicas-to-write 0");
        fleet.master(0).ask("FLUSHALL");
    }
    let mut page = String::new();
    for (line, printed) in LINES.iter().zip(&printed) {
        page += &format!("# {line}\n");
        let mut usual: &[String] = &[];
        for ((state, ..), (code, lines)) in STATES.iter().zip(printed) {
            let (mark, other) = differing(lines, usual);
            page += &format!("{state}: {code}{mark}\n");
            other.iter().for_each(|line| page += &wrapped(4, line));
            usual = &printed[0].1;
        }
    }
    assert_golden("transcripts", &page);
}
