//! The access rights of docs/rights.md: each line is complete, also in an ACL file.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use redlatch::{Client, Quarantine};
use redlatch_support::settle;
use redlatch_support::{Fleet, Master, PATIENCE};

use crate::error_tests::ok;
use crate::refusal_tests::{KINDS, Kind, RIGHTS, TTL, acquire, inspect, open};

const PAGE: &str = include_str!("../../docs/rights.md");

/// The page's feature sets, in its order.
const FEATURES: [&[Kind]; 2] = [&[Kind::Plain, Kind::Fenced, Kind::Fair], &KINDS];

/// The rules of the page's `redis-cli` lines, each with its kinds of locks.
fn rules() -> Vec<(&'static str, &'static [Kind])> {
    let rules: Vec<_> = PAGE.lines().filter_map(|line| line.strip_prefix("ACL SETUSER ")).collect();
    assert_eq!(rules.len(), FEATURES.len(), "lines of the page for redis-cli");
    rules.into_iter().zip(FEATURES).collect()
}

/// Makes every call for these locks as the user `locker`.
#[track_caller]
fn use_all(master: &Master, kinds: &[Kind]) {
    let [client, other] = [(); 2].map(|()| open(master, "locker:PASSWORD@"));
    let status = client.masters().remove(0);
    assert_eq!(status.warnings, [], "{kinds:?}");
    let is_native = |name: &str| ["SET IFEQ", "DELIFEQ", "DELEX IFEQ"].contains(&name);
    assert!(status.refused.iter().all(|(name, _)| is_native(name)), "{:?}", status.refused);
    for &kind in kinds {
        let mut guard = acquire(&client, kind);
        guard.extend(TTL).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        inspect(&other, kind.name()).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let waiter = kind.request(&other, kind.name()).wait(PATIENCE).acquire_async();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.block());
            guard.release().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            let guard = waiting.join().expect("no panic").unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            client.force_unlock(kind.name()).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            drop(guard);
        });
    }
    assert_eq!([settle(&client, PATIENCE), settle(&other, PATIENCE)], [0, 0]);
}

#[test]
fn each_line_for_redis_cli_is_enough() {
    let mut fleet = Fleet::start(1);
    for (rule, kinds) in rules() {
        let master = fleet.master(0);
        ok(master, "SCRIPT FLUSH");
        ok(master, "FLUSHALL");
        ok(master, &format!("ACL SETUSER {rule}"));
        use_all(master, kinds);
    }
}

#[test]
fn each_line_for_an_acl_file_is_enough() {
    let path = std::env::temp_dir().join(format!("redlatch-{}.acl", std::process::id()));
    fs::write(&path, "").expect("a temporary file");
    let mut fleet = Fleet::start_with(1, &["--aclfile", path.to_str().expect("UTF-8")]);
    for (rule, kinds) in rules() {
        fs::write(&path, format!("user {rule}\n")).expect("a temporary file");
        let master = fleet.master(0);
        ok(master, "SCRIPT FLUSH");
        ok(master, "FLUSHALL");
        ok(master, "ACL LOAD");
        use_all(master, kinds);
    }
    fs::remove_file(&path).expect("a temporary file");
}

/// `missing_right_is_named_where_needed` proves that each of these rights is needed.
#[test]
fn rights_line_contains_only_needed_rights() {
    let (rule, _) = rules()[FEATURES.len() - 1];
    let given: BTreeSet<_> = rule.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
    let elsewhere = ["&", "~", "select", "delifeq", "delex"];
    let needed: BTreeSet<_> = RIGHTS.into_iter().filter(|right| !elsewhere.contains(right)).collect();
    assert_eq!(given, needed);
}

#[test]
fn the_plain_rights_suffice_for_strict_mode() {
    let mut fleet = Fleet::start(1);
    let (rule, _) = rules()[0];
    let master = fleet.master(0);
    ok(master, &format!("ACL SETUSER {rule}"));
    let url = master.url().replace("redis://", "redis://locker:PASSWORD@");
    let max_ttl = Duration::from_millis(500);
    let config =
        Client::builder().master(url).prefix("lock:").max_ttl(max_ttl).quarantine(Quarantine::Strict);
    let client = Client::open(config.build().expect("valid settings")).expect("an event loop");
    client.lock("a").wait(PATIENCE).acquire().expect("counted after max_ttl").release().expect("confirmed");
    assert!(master.ask("GET lock:redlatch:mark").text().contains(' '), "there is no mark");
}
