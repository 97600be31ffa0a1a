//! Keys that these scripts write are those that today's scripts know, and the reverse.

use redlatch::internals::SCRIPTS;

use crate::rig::{self, FENCE, FENCE_TTL_MS, HALF_US, HOUR_MS, LOCK, Rig};
use crate::wire::Value;

const RESERVATION: &str = "redlatch:writer:lock";

/// Runs a script of today.
fn run(rig: &mut Rig, name: &str, keys: &[&str], args: &[&str]) -> Value {
    let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script of today");
    let key_count = keys.len().to_string();
    rig.call(&[&["EVAL", script.text, &key_count], keys, args].concat())
}

#[test]
fn today_s_release_ends_a_grant() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1);
    assert!(first.park().is_granted());
    assert_eq!(run(&mut rig, "extend", &[LOCK], &[&first.value, "9000000"]), Value::Int(1));
    assert_eq!(run(&mut rig, "release", &[LOCK], &[&first.value]), Value::Int(1));
}

#[test]
fn today_s_fence_and_this_one_agree() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).fenced();
    assert!(first.park().is_granted());
    let [half, life, ttl] = [HALF_US, FENCE_TTL_MS, HOUR_MS].map(|it| it.to_string());
    let token = first.token.to_string();
    let release = [first.value.as_str(), &token, &half, &half, &life];
    assert_eq!(run(&mut rig, "fenced_release", &[LOCK, FENCE], &release), Value::Int(1));
    let stale = ["v", &ttl, &token, &half, &half, &life];
    let refused = run(&mut rig, "fenced_acquire", &[LOCK, FENCE], &stale);
    assert_eq!(refused.list()[..2], [Value::Int(1), Value::Int(first.token)]);
    let newer = (first.token + 1).to_string();
    let fresh = ["v", &ttl, &newer, &half, &half, &life];
    assert_eq!(run(&mut rig, "fenced_acquire", &[LOCK, FENCE], &fresh), Value::Text("OK".into()));
    first.waits();
    let args = ["v", &newer, &half, &half, &life];
    assert_eq!(rig.run(rig::FENCED_RELEASE, &args), Value::Int(2), "its token is stale: rung");
    assert_eq!(first.messages(), [first.ring()]);
}

#[test]
fn today_s_readers_and_these_share_a_set() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).reader();
    let keys = [LOCK, RESERVATION];
    assert_eq!(run(&mut rig, "shared_acquire", &keys, &["today", "3600000"]), Value::Text("OK".into()));
    assert!(first.park().is_granted());
    assert_eq!(rig.readers().len(), 2);
    assert_eq!(run(&mut rig, "shared_extend", &[LOCK], &[&first.value, "7200000"]), Value::Int(1));
    assert_eq!(run(&mut rig, "shared_release", &[LOCK], &[&first.value, "0"]), Value::Int(1));
    assert_eq!(rig.run(rig::SHARED_RELEASE, &["today"]), Value::Int(1));
    assert_eq!(rig.call(&["EXISTS", LOCK]), Value::Int(0));
}

#[test]
fn each_script_survives_the_loader() {
    for script in rig::SCRIPTS {
        for line in script.lines().filter(|it| !it.trim_start().starts_with("--")) {
            assert!(!line.contains('"') && !line.contains("[["), "another kind of string: {line}");
            assert_eq!(line.matches('\'').count() % 2, 0, "a string ends in its line: {line}");
        }
    }
}
