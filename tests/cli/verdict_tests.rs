//! What each command says of masters that are hung, full or refuse the login, and its exit code.

use std::process::Command;

use crate::fleet::Fleet;
use crate::harness::{Finished, finish, redlatch};

/// The most used commands that ask masters, short ones first.
const COMMANDS: [&[&str]; 9] = [
    &["doctor"],
    &["fleet", "status"],
    &["fleet", "init", "--new"],
    &["ls"],
    &["inspect", "a"],
    &["run", "a", "--", "true"],
    &["unlock", "a", "--force"],
    &["bench", "--time", "100ms"],
    &["drill", "--time", "1s"],
];

/// What it said, on both streams, in one line.
fn said(finished: &Finished) -> String {
    let text = format!("{} {}", finished.stdout, finished.stderr);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn with(urls: &[String], words: &[&str]) -> Command {
    let mut command = redlatch(urls);
    command.args(words);
    command
}

#[test]
fn last_words_of_a_full_server_are_shown() {
    let mut fleet = Fleet::start(1);
    assert_eq!(fleet.master(0).ask("CONFIG SET maxclients 1").text(), "OK");
    let plain = fleet.urls();
    let with_login = [plain[0].replace("redis://", "redis://:pw@")];
    for urls in [&plain[..], &with_login] {
        for words in COMMANDS {
            let said = said(&finish(&mut with(urls, words)));
            let expected = "after \"ERR max number of clients reached\" (raise maxclients there";
            assert!(said.contains(expected), "{words:?}: {said}");
            assert!(!said.contains("login was refused"), "{words:?}: {said}");
        }
    }
}
