//! An examination of peers whose replies no Redis server sends, among them an endless one.

use std::time::Duration;

use redlatch::{Config, Quarantine};
use redlatch_cli::doctor::{Severity, examine};
use redlatch_testing::Double;

fn start(size: usize) -> Double {
    Double::start(size).expect("free ports")
}

/// Codes of the errors that an examination finds, without the expected `trust-unsynced`.
fn errors(double: &Double) -> Vec<&'static str> {
    let config: Config = double.config().quarantine(Quarantine::Trust).build().expect("valid settings");
    let found = examine(&config, Duration::from_secs(9)).expect("it can ask");
    let errors = found.iter().filter(|finding| finding.severity == Severity::Error);
    let errors = errors.inspect(|finding| println!("{finding}"));
    errors.map(|finding| finding.problem.code()).filter(|code| *code != "trust-unsynced").collect()
}

const WORDS: [&str; 4] = [
    "ERR unsupported command",
    "ERR Command is not available",
    "ERR command not allowed, with args beginning with: x",
    "FORBIDDEN",
];

#[test]
fn peer_refusing_in_any_words_is_found() {
    let double = start(3);
    assert_eq!(errors(&double), [""; 0], "of a double that refuses nothing");
    for words in WORDS {
        for command in ["SET", "GET", "PEXPIRE", "DEL", "ZADD", "PUBLISH", "TIME", "SUBSCRIBE"] {
            double.master(0).refuse(command, words);
            assert_eq!(errors(&double), ["odd-answer"], "{command}: {words}");
            double.master(0).allow(command);
        }
        for command in ["EVAL", "EVALSHA"] {
            double.master(0).refuse(command, words);
            assert!(errors(&double).contains(&"no-scripts"), "{command}: {words}");
            double.master(0).allow(command);
        }
    }
}

#[test]
fn no_time_is_too_long_for_an_examination() {
    let double = start(1);
    examine(&double.config().build().expect("valid"), Duration::MAX).expect("threads");
}
