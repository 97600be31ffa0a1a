//! Tests of the harness: tests do not depend on how they were started, and leave nothing behind.

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Running, command, exists, finish, trusting};

#[test]
fn tests_ignore_no_signal_that_their_starter_ignores() {
    let test = "run_tests::signals_reach_the_command_then_the_lock_ends";
    let script = r#"trap '' HUP INT QUIT TERM PIPE USR1 USR2 TSTP TTIN TTOU; exec "$0" --exact "$1""#;
    let this = std::env::current_exe().expect("this program");
    let finished = finish(command("sh").args(["-c", script]).arg(this).arg(test));
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    assert!(finished.stdout.contains("1 passed"), "{}", finished.stdout);
}

#[test]
fn processes_of_a_test_end_with_it() {
    let fleet = Fleet::start(1);
    let script = format!("trap '' TERM; echo $$; {FOREVER}");
    let mut run = Running::start(trusting(&fleet, "run").args(["r", "--", "sh", "-c", &script]));
    let pid = run.line();
    assert!(exists(&pid));
    drop(run); // as in a test that fails
    eventually(PATIENCE, "the command is gone", || !exists(&pid));
}
