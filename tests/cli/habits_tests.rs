//! Shell conventions: variables, lists, quiet runs, completions, manual pages.

use std::collections::BTreeSet;
use std::process::Command;

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{Finished, PATIENT, Running, expect, finish, redlatch, trusting};

/// The options of `PATIENT` as variables.
const PATIENT_VARIABLES: [(&str, &str); 3] = [
    ("REDLATCH_QUARANTINE", "trust"),
    ("REDLATCH_ANSWER_TIMEOUT", "5s"),
    ("REDLATCH_CONNECT_TIMEOUT", "20s"),
];

/// `redlatch` with settings from variables only.
fn by_variables(urls: &[String]) -> Command {
    let mut command = redlatch(urls);
    command.envs(PATIENT_VARIABLES);
    command
}

/// Runs a command that prints its key on the first master.
fn key_in_use(fleet: &mut Fleet, command: &mut Command) -> String {
    let mut run = Running::start_with_stdin(command.args(["r", "--", "sh", "-c", "echo held; read line"]));
    assert_eq!(run.line(), "held");
    let mut keys = String::new();
    // The first master may be outside the quorum.
    eventually(PATIENCE, "the first master grants the lock", || {
        keys = fleet.master(0).keys();
        keys != "[]"
    });
    run.send("\n");
    expect(&run.finish(), 0, &[]);
    // It may also be outside the quorum that confirmed the release.
    eventually(PATIENCE, "the first master has no key", || fleet.master(0).key_count() == "0");
    keys
}

// I146
#[test]
fn variables_are_settings_and_options_override_them() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    let key = key_in_use(&mut fleet, by_variables(&urls).arg("run"));
    assert_eq!(key, "[r]");
    let key = key_in_use(&mut fleet, by_variables(&urls).env("REDLATCH_PREFIX", "lock:").arg("run"));
    assert_eq!(key, "[lock:r]");
    let overriding = &mut by_variables(&urls);
    overriding.env("REDLATCH_PREFIX", "lock:").args(["run", "--prefix", "job:"]);
    assert_eq!(key_in_use(&mut fleet, overriding), "[job:r]");

    let too_long = &mut by_variables(&urls);
    too_long.env("REDLATCH_MAX_TTL", "20s").args(["run", "--ttl", "25s", "r", "--", "true"]);
    expect(&finish(too_long), 64, &["--ttl is 25s", "maximum TTL of 20s"]);
    expect(&finish(too_long.env("REDLATCH_MAX_TTL", "25s")), 0, &[]);
    // `--trust` and `--strict` replace the variable.
    let strict = &mut by_variables(&urls);
    strict.env("REDLATCH_QUARANTINE", "strict").args(["run", "--trust", "r", "--", "true"]);
    expect(&finish(strict), 0, &[]);
}

// I146
#[test]
fn bad_settings_name_option_and_variable() {
    let url = "redis://me:s3cret@127.0.0.1:1";
    for (variable, value, said) in [
        ("REDLATCH_MAX_TTL", "30", "--max-ttl (REDLATCH_MAX_TTL): give a time such as"),
        ("REDLATCH_MAX_TTL", "8days", "--max-ttl (REDLATCH_MAX_TTL): max_ttl is 192h; give"),
        ("REDLATCH_ANSWER_TIMEOUT", "soon", "--answer-timeout (REDLATCH_ANSWER_TIMEOUT): give a time"),
        ("REDLATCH_CONNECT_TIMEOUT", "-1s", "--connect-timeout (REDLATCH_CONNECT_TIMEOUT): give a time"),
        ("REDLATCH_DRIFT_PPM", "1%", "--drift-ppm (REDLATCH_DRIFT_PPM): give a whole number"),
        (
            "REDLATCH_QUARANTINE",
            "never",
            "--trust, --strict (REDLATCH_QUARANTINE): give uptime, strict or trust",
        ),
        (
            "REDLATCH_TLS_CERT",
            "/a.pem",
            "--tls-key (REDLATCH_TLS_KEY): give the file; REDLATCH_TLS_CERT is of no",
        ),
        ("REDLATCH_MAX_TTL", url, "--max-ttl (REDLATCH_MAX_TTL): give a time such as"),
        ("REDLATCH_MASTERS", "redis://a,me:s3cret@b", "--master (REDLATCH_MASTERS): master 2 does not begin"),
        ("REDLATCH_MASTERS", " , ,", "--master (REDLATCH_MASTERS): no masters given; give the URLs"),
    ] {
        let command = &mut redlatch(&[url.to_owned()]);
        let finished = finish(command.env(variable, value).args(["run", "r", "--", "true"]));
        expect(&finished, 64, &[said]);
        assert!(!finished.stderr.contains("s3cret"), "{}", finished.stderr);
    }
}

#[test]
fn master_lists_may_have_blanks_and_commas() {
    let fleet = Fleet::start(3);
    let urls = fleet.urls();
    for list in [urls.join(", ") + ",", urls.join(" "), format!("\n{}\n", urls.join(",\n"))] {
        let command = &mut redlatch(&[]);
        command.env("REDLATCH_MASTERS", &list).arg("run").args(PATIENT).args(["-v", "r", "--", "true"]);
        // A lock needs two masters, and does not wait for the third.
        expect(&finish(command), 0, &["of 3 masters"]);
        let command = &mut redlatch(&[]);
        command.env_remove("REDLATCH_MASTERS").args(["run", "-m", &list]).args(PATIENT);
        expect(&finish(command.args(["r", "--", "true"])), 0, &[]);
    }
}

#[test]
fn a_quiet_run_says_nothing_of_contention() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| drop(master.ask("SET r other PX 600000")));
    let refused = |args: &[&str]| finish(trusting(&fleet, "run").args(args).args(["r", "--", "true"]));
    let Finished { code, stdout, stderr } = refused(&["--quiet", "--wait", "400ms"]);
    assert_eq!((code, &stdout[..], &stderr[..]), (Some(75), "", ""));
    expect(&refused(&[]), 75, &["is held by another client"]);
    assert_eq!(refused(&["-q", "-E", "0"]).code, Some(0));
    expect(&refused(&["-q", "-v"]), 64, &["--quiet", "--verbose"]);
    // Errors are still printed.
    fleet.masters().for_each(|master| master.kill());
    let dead = finish(redlatch(&fleet.urls()).args(["run", "-q", "--trust", "r", "--", "true"]));
    expect(&dead, 69, &["no quorum"]);
}

#[test]
fn a_wait_forever_ends_by_the_lock() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| drop(master.ask("SET r stuck")));
    let wait = ["-v", "--wait", "forever", "r", "--", "echo", "mine"];
    let mut waiter = Running::start(trusting(&fleet, "run").args(wait));
    waiter.wait_for_stderr("waiting: lock \"r\" is held");
    fleet.masters().for_each(|master| drop(master.ask("DEL r")));
    let waited = waiter.finish();
    expect(&waited, 0, &["acquired in"]);
    assert_eq!(waited.stdout, "mine\n");
    let soon = finish(trusting(&fleet, "run").args(["--wait", "never", "r", "--", "true"]));
    expect(&soon, 64, &["--wait", "or forever"]);
}

#[test]
fn a_command_without_dashes_gets_advice() {
    let urls = ["redis://127.0.0.1:1".to_owned()];
    for args in [&["r", "echo", "hi"][..], &["--ttl", "3s", "r", "tar", "-c"], &["r", "redis://me:s3cret@h"]]
    {
        let finished = finish(redlatch(&urls).arg("run").args(args));
        expect(
            &finished,
            64,
            &["write -- between the lock's name and the command: redlatch run NAME -- COMMAND"],
        );
        assert!(!finished.stderr.contains("s3cret"));
    }
    // Other unknown words keep clap's message.
    expect(&finish(redlatch(&urls).args(["run", "r", "--verbos", "--", "true"])), 64, &["--verbos"]);
    let extra = finish(redlatch(&urls).args(["run", "r", "extra", "--", "true"]));
    expect(&extra, 64, &["unexpected argument 'extra'"]);
    expect(&finish(redlatch(&urls).args(["inspect", "r", "echo"])), 64, &["unexpected argument 'echo'"]);
}

#[test]
fn manual_pages_name_each_option() {
    for subcommand in [None, Some("run"), Some("bench"), Some("inspect"), Some("unlock"), Some("generate")] {
        let page = finish(redlatch(&[]).args(["generate", "man"]).args(subcommand));
        expect(&page, 0, &[]);
        let help = finish(redlatch(&[]).args(subcommand).arg("--help"));
        for word in help.stdout.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
            let option = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).replace('-', "\\-");
            assert!(page.stdout.contains(&option), "{subcommand:?}: {word} is not in its page");
        }
        let unknown = page.stdout.lines().find(|line| {
            let is_macro =
                [".ie", ".el", ".TH", ".SH", ".SS", ".TP", ".RS", ".RE", ".nf", ".fi", ".br", ".PP"]
                    .iter()
                    .any(|name| line.starts_with(name));
            line.starts_with(['.', '\'']) && !is_macro
        });
        assert_eq!(unknown, None, "{subcommand:?}");
    }
    let program = finish(redlatch(&[]).args(["generate", "man"])).stdout;
    for subcommand in ["run", "elect", "bench", "inspect", "unlock", "generate", "doctor", "drill", "ls"] {
        assert!(
            program.contains(&format!("redlatch\\-{subcommand}(1)")),
            "{subcommand} is not in: {program}"
        );
    }
    let run = finish(redlatch(&[]).args(["generate", "man", "run"])).stdout;
    assert!(run.contains("REDLATCH_RESOURCE"), "{run}");
    let headings: Vec<_> = run.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
    let options = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "MASTERS"];
    let tls = "\"TLS, FOR MASTERS WITH A REDISS:// URL\"";
    let notes = ["EXIT CODES", "ENVIRONMENT OF THE COMMAND", "WHEN THE LOCK IS LOST", "PROCESSES", "OUTPUT"];
    let last = ["SIGNALS", "IN A TERMINAL", "EXAMPLES"];
    assert_eq!(headings, [&options[..], &[tls], &notes, &last].concat());
    expect(
        &finish(redlatch(&[]).args(["generate", "man", "sprint"])),
        64,
        &["no such page; give run, elect, acquire"],
    );
}

#[test]
fn each_subcommand_has_a_manual_page() {
    let dir = std::env::temp_dir().join(format!("redlatch-man-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for temporary files");
    expect(&finish(redlatch(&[]).args(["generate", "man", "--all"]).arg(&dir)), 0, &[]);
    let pages = std::fs::read_dir(&dir).expect("it is there").flatten();
    let pages: BTreeSet<String> = pages.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    let run = std::fs::read_to_string(dir.join("redlatch-run.1")).expect("a page");
    std::fs::remove_dir_all(&dir).expect("it is there");
    assert_eq!(run, finish(redlatch(&[]).args(["generate", "man", "run"])).stdout);
    // In the order of the program's help.
    let help = finish(redlatch(&[]).arg("--help")).stdout;
    let (_, commands) = help.split_once("Commands:\n").expect("a list");
    let (commands, _) = commands.split_once("\n\n").expect("it ends");
    let words = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<_> = words.filter(|name| !name.is_empty() && *name != "help").collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        assert!(pages.contains(&format!("redlatch-{name}.1")), "{name}: {pages:?}");
    }
    for name in ["redlatch.1", "redlatch-fleet-init.1", "redlatch-fleet-replace.1"] {
        assert!(pages.contains(name), "{name}: {pages:?}");
    }
    let nowhere = finish(redlatch(&[]).args(["generate", "man", "--all", "/nonexistent/man1"]));
    expect(&nowhere, 64, &["/nonexistent/man1: No such file"]);
    assert!(include_str!("../../scripts/release").contains("generate man --all"), "the package has all");
}

#[test]
fn completions_exist_for_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let completions = finish(redlatch(&[]).args(["generate", "completions", shell]));
        expect(&completions, 0, &[]);
        assert!(completions.stdout.contains("max-ttl"), "{shell}");
    }
    let bash = finish(redlatch(&[]).args(["generate", "completions", "bash"])).stdout;
    let script = format!(
        "{bash}\nCOMP_WORDS=(redlatch ru) COMP_CWORD=1; _redlatch redlatch ru redlatch; echo $COMPREPLY"
    );
    let completed = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "run");
    expect(&finish(redlatch(&[]).args(["generate", "completions", "csh"])), 64, &["zsh"]);
}
