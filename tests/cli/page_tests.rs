//! The pages for newcomers are right: each `sh` block runs in one shell, and must print the `text` block
//! after it. `REDLATCH_GOLDEN=write` writes the present output into the page.
//!
//! Times, addresses, names and process ids vary, so they are masked in both texts. Lines that begin with two
//! blanks are details of a master: only their presence is compared.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use redlatch_support::{Fleet, root};

use crate::harness::{Leftovers, command};

/// How long a step may take without a line of output. A step of `start.md` compiles the library.
const STEP_PATIENCE: Duration = Duration::from_secs(300);
/// How long a background command may take to print what the page shows.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(20);
/// Directory of the masters in the pages. Each test replaces it.
const PAGE_DIR: &str = "/tmp/redlatch";
/// Printed by the shell at the end of a step.
const END: &str = "::the step is over::";

/// A block of commands, and its output.
#[derive(Debug)]
struct Step {
    commands: String,
    printed: String,
    /// Place of the output in the page; empty and right after the commands if they print nothing.
    place: Range<usize>,
}

/// Kind and content of each code block of a page.
fn blocks(page: &str) -> Vec<(&str, Range<usize>)> {
    let mut blocks = Vec::new();
    let (mut at, mut open) = (0, None);
    for line in page.split_inclusive('\n') {
        if let Some(kind) = line.strip_prefix("```") {
            match open.take() {
                None => open = Some((kind.trim_end(), at + line.len())),
                Some((kind, start)) => blocks.push((kind, start..at)),
            }
        }
        at += line.len();
    }
    blocks
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut was_sh = false;
    for (kind, place) in blocks(page) {
        let text = page[place.clone()].to_owned();
        match kind {
            "sh" => {
                steps.push(Step { commands: text, printed: String::new(), place: place.end..place.end });
            }
            "text" if was_sh => {
                let step = steps.last_mut().expect("a block of commands before it");
                (step.printed, step.place) = (text, place);
            }
            _ => {}
        }
        was_sh = kind == "sh";
    }
    steps
}

/// Masks a line's varying parts.
fn masked_line(line: &str) -> String {
    if line.starts_with("  ") {
        return "  …".to_owned();
    }
    // Too few masters in both cases: whether one more has answered is chance.
    let line = line.replace(" 1 of 3 masters", " 0 of 3 masters");
    let is_end = |char: char| " ,;()={}".contains(char);
    let mut before = "";
    line.split_inclusive(is_end)
        .map(|word| {
            let bare = word.trim_end_matches(is_end);
            // Process ids are small just after the machine's start.
            let is_process = std::mem::replace(&mut before, bare) == "process";
            if is_process { format!("PROCESS{}", &word[bare.len()..]) } else { masked_word(word, bare) }
        })
        .collect()
}

#[test]
fn numbers_of_processes_are_masked() {
    let line = |process| masked_line(&format!("masters: process {process} is not the master; exit code 75"));
    assert_eq!(line("7"), line("22839"));
    assert!(line("7").ends_with("exit code 75"));
}

fn masked_word(word: &str, bare: &str) -> String {
    let number = bare.trim_end_matches(|char: char| !char.is_ascii_digit());
    let unit = bare[number.len()..].trim_end_matches(':');
    let is_number = number.starts_with(|char: char| char.is_ascii_digit());
    let mask = match bare {
        _ if bare.starts_with("redis://127.0.0.1:") => "ADDRESS",
        _ if bare.len() >= 16 && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID",
        _ if is_number && ["ns", "µs", "ms", "s"].contains(&unit) => "TIME",
        _ if is_number && unit.is_empty() && number.len() >= 4 => "NUMBER",
        _ if is_label(bare) => "HOLDER",
        _ => bare,
    };
    format!("{mask}{}", &word[bare.len()..])
}

/// `HOST:PID:PROGRAM`.
fn is_label(word: &str) -> bool {
    let parts: Vec<&str> = word.split(':').collect();
    parts.len() == 3 && !parts[1].is_empty() && parts[1].bytes().all(|byte| byte.is_ascii_digit())
}

/// Masked lines of an output. Consecutive details become one line.
fn masked(output: &str) -> Vec<String> {
    let mut lines: Vec<String> = output.lines().map(masked_line).collect();
    lines.dedup_by(|line, before| line == before && line == "  …");
    lines
}

/// A shell that runs one step after another, like a person's.
struct Shell {
    stdin: std::process::ChildStdin,
    lines: Receiver<String>,
    child: std::process::Child,
    _leftovers: Leftovers,
}

impl Shell {
    fn start(dir: &Path, urls: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_redlatch"));
        let path = std::env::var("PATH").unwrap_or_default();
        let bin_dir = program.parent().expect("a directory").display();
        let mut command = command("bash");
        command.arg("--norc").current_dir(root());
        command.env("PATH", format!("{bin_dir}:{path}"));
        // With this test's variables, Cargo would rebuild packages.
        for (name, _) in std::env::vars_os() {
            let is_own = name.to_str().is_some_and(|name| name.starts_with("CARGO_"));
            if is_own && !["CARGO_HOME", "CARGO_TARGET_DIR"].iter().any(|kept| name == *kept) {
                command.env_remove(name);
            }
        }
        // Limits that a busy machine does not exceed.
        command.env("REDLATCH_ANSWER_TIMEOUT", "1s");
        command.env("CARGO_NET_OFFLINE", "true").env("TMPDIR", dir);
        command
            .env("REDLATCH_MASTERS", urls)
            .env("REDLATCH_QUARANTINE", if urls.is_empty() { "" } else { "trust" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let leftovers = Leftovers::of(&mut command);
        let mut child = command.spawn().expect("bash runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut stdin = child.stdin.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        stdin.write_all(b"exec 2>&1\n").expect("bash reads");
        Self { stdin, lines, child, _leftovers: leftovers }
    }

    /// Runs a step to its end, and until it has printed as many lines as the page shows: a background command
    /// may be slower than its shell.
    fn run(&mut self, commands: &str, line_count: usize) -> String {
        let step = format!("{commands}code=$?; echo '{END}'; (exit $code)\n");
        self.stdin.write_all(step.as_bytes()).expect("bash reads");
        let (mut printed, mut is_over) = (String::new(), false);
        while !is_over || masked(&printed).len() < line_count {
            let patience = if is_over { OUTPUT_PATIENCE } else { STEP_PATIENCE };
            match self.lines.recv_timeout(patience) {
                Ok(line) if line == END => is_over = true,
                Ok(line) => printed += &format!("{line}\n"),
                Err(_) if is_over => break,
                Err(_) => panic!("it does not end:\n{commands}\nafter it printed\n{printed}"),
            }
        }
        printed
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The commands of a page, adapted to existing builds: the program under test is in the path, examples are
/// built with all features, and a program outside the checkout shares the library's build.
fn as_tested(commands: &str) -> String {
    let lines = commands.lines().filter(|line| !line.starts_with("cargo install "));
    let commands: String = lines.map(|line| format!("{line}\n")).collect();
    let target =
        format!("CARGO_TARGET_DIR={}/pages cargo run --quiet --manifest", env!("CARGO_TARGET_TMPDIR"));
    commands.replace("--features tracing", "--all-features").replace("cargo run --quiet --manifest", &target)
}

/// Follows the steps of a page.
fn follow(name: &str, urls: &str) {
    let dir =
        std::env::temp_dir().join(format!("redlatch-page-{}-{}", std::process::id(), name.replace('/', "-")));
    fs::create_dir_all(&dir).expect("a directory");
    let text_of_dir = dir.to_str().expect("text");
    let path = root().join(name);
    let mut page = fs::read_to_string(&path).expect("the page");
    let mut shell = Shell::start(&dir, urls);
    let mut found = Vec::new();
    for Step { commands, printed, place } in steps(&page) {
        let commands = as_tested(&commands).replace(PAGE_DIR, text_of_dir);
        let expected = masked(&printed);
        let got = shell.run(&commands, expected.len()).replace(text_of_dir, PAGE_DIR);
        if masked(&got) != expected {
            println!("{name}: the page says that\n{commands}prints\n{printed}and it printed\n{got}");
            found.push((place, got));
        }
    }
    shell.run(&format!("scripts/masters stop -d {text_of_dir} >/dev/null 2>&1\n"), 0);
    drop(shell);
    fs::remove_dir_all(&dir).ok();
    if found.is_empty() {
        return;
    }
    assert!(
        std::env::var_os("REDLATCH_GOLDEN").is_some_and(|mode| mode == "write"),
        "{name} differs, see above"
    );
    for (place, got) in found.into_iter().rev() {
        page.replace_range(place, &got);
    }
    fs::write(&path, page).expect("the page can be written");
}

#[test]
fn start_page_prints_what_it_shows() {
    follow("docs/start.md", "");
}

#[test]
fn readme_prints_what_it_shows() {
    follow("README.md", "");
}

/// The page's block with the output of `examples/tracing.rs`.
#[test]
fn tracing_example_prints_what_its_page_shows() {
    let fleet = Fleet::start(3);
    follow("docs/monitoring.md", &fleet.urls().join(","));
}

#[test]
fn start_page_shows_the_example() {
    let page = include_str!("../../docs/start.md");
    let program = blocks(page).into_iter().find(|(kind, _)| kind.starts_with("rust")).expect("a program").1;
    assert_eq!(&page[program], include_str!("../../examples/first.rs"));
}

/// A page shows an example in full, so that a pasted copy compiles.
#[test]
fn examples_in_pages_hide_nothing() {
    let root = root();
    let docs = fs::read_dir(root.join("docs")).expect("the pages").map(|entry| entry.expect("a page").path());
    let mut count = 0;
    for path in
        docs.chain([root.join("README.md")]).filter(|path| path.extension().is_some_and(|it| it == "md"))
    {
        let page = fs::read_to_string(&path).expect("a page");
        for (_, place) in blocks(&page).into_iter().filter(|(kind, _)| kind.starts_with("rust")) {
            let example = &page[place];
            let is_hidden = |line: &str| line.trim() == "#" || line.trim_start().starts_with("# ");
            assert!(!example.lines().any(is_hidden), "{} hides lines of\n{example}", path.display());
            if path.ends_with("embedding.md") {
                assert!(example.lines().count() <= 25, "more than 25 lines:\n{example}");
            }
            count += 1;
        }
    }
    assert!(count > 20, "{count} examples");
}

/// The lines of code in the doc comments of a file, with their numbers.
fn doc_code(source: &str) -> Vec<(usize, &str)> {
    let (mut code, mut kind) = (Vec::new(), None);
    for (index, line) in source.lines().enumerate() {
        let comment = line.trim_start();
        let Some(text) = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")) else {
            kind = None;
            continue;
        };
        let text = text.strip_prefix(' ').unwrap_or(text);
        if let Some(fence) = text.strip_prefix("```") {
            kind = if kind.is_none() { Some(fence) } else { None };
        } else if kind.is_some_and(|kind| kind != "text") && !text.starts_with("# ") {
            code.push((index + 1, text));
        }
    }
    code
}

#[test]
fn examples_in_rustdoc_fit_80_columns() {
    let (mut dirs, mut count, mut wide) = (vec![root().join("src")], 0, Vec::new());
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let source = fs::read_to_string(&path).expect("text");
                let code = doc_code(&source);
                count += code.len();
                let too_wide = code.into_iter().filter(|(_, line)| line.chars().count() > 80);
                wide.extend(too_wide.map(|(number, line)| format!("{}:{number}: {line}", path.display())));
            }
        }
    }
    assert!(count > 300, "{count} lines of examples");
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn masks_keep_the_words() {
    let line = r#"redlatch: lock "a" is held by another client (vm:22910:sh), for at most 4.9s unless"#;
    assert_eq!(
        masked_line(line),
        r#"redlatch: lock "a" is held by another client (HOLDER), for at most TIME unless"#
    );
    assert_eq!(masked_line("fleet 2e150bdea8bcf075 declared on 3 masters"), "fleet ID declared on 3 masters");
    assert_eq!(masked("a\n  b\n  c\nredis://127.0.0.1:7\n"), ["a", "  …", "ADDRESS"]);
    assert_ne!(masked("exit code 75"), masked("exit code 69"));
}
