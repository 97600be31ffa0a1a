//! Parked attempts and the other scripts understand each other's keys.

use redlatch::scripts::SCRIPTS;

use crate::rig::{self, FENCE, FENCE_TTL_MS, HALF_US, HOUR_MS, LOCK, QUEUE, Rig};
use crate::wire::Value;

/// Runs a script as clients send it.
fn run(rig: &mut Rig, name: &str, keys: &[&str], args: &[&str]) -> Value {
    let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script");
    let key_count = keys.len().to_string();
    rig.call(&[&["EVAL", script.text, &key_count], keys, args].concat())
}

#[test]
fn a_plain_release_ends_a_grant() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1);
    assert!(first.park().is_granted());
    assert_eq!(run(&mut rig, "extend", &[LOCK], &[&first.value, "9000000"]), Value::Int(1));
    assert_eq!(run(&mut rig, "release", &[LOCK], &[&first.value]), Value::Int(1));
}

#[test]
fn a_fenced_attempt_and_a_parked_one_have_one_fence() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).fenced();
    assert!(first.park().is_granted());
    let [half, life, ttl] = [HALF_US, FENCE_TTL_MS, HOUR_MS].map(|it| it.to_string());
    let token = first.token.to_string();
    let release = [first.value.as_str(), &token, &half, &half, &life];
    assert_eq!(run(&mut rig, "fenced_release_serve", &[LOCK, QUEUE, FENCE], &release), Value::Int(1));
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
fn readers_that_park_and_others_share_a_set() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).reader();
    let keys = [LOCK, QUEUE];
    assert_eq!(run(&mut rig, "shared_acquire_queue", &keys, &["today", "3600000"]), Value::Text("OK".into()));
    assert!(first.park().is_granted());
    assert_eq!(rig.readers().len(), 2);
    assert_eq!(run(&mut rig, "shared_extend", &[LOCK], &[&first.value, "7200000"]), Value::Int(1));
    assert_eq!(run(&mut rig, "shared_release_serve", &[LOCK, QUEUE, FENCE], &[&first.value]), Value::Int(1));
    assert_eq!(rig.run(rig::SHARED_RELEASE, &["today"]), Value::Int(1));
    assert_eq!(rig.call(&["EXISTS", LOCK]), Value::Int(0));
}

#[test]
fn foreign_value_is_neither_swapped_nor_adopted() {
    let mut rig = Rig::new();
    rig.hold("other");
    let adopt = ["mine", "next", "9000000", ""];
    assert_eq!(run(&mut rig, "swap", &[LOCK], &adopt[..3]), Value::Int(0));
    assert_eq!(run(&mut rig, "adopt", &[LOCK, FENCE], &adopt), Value::Int(0));
    assert_eq!(rig.holder().as_deref(), Some("other"));
    // A server's error is no answer about the lock.
    rig.call(&["ACL", "SETUSER", "default", "-get"]);
    let refused = run(&mut rig, "adopt", &[LOCK, FENCE], &adopt);
    assert!(matches!(refused, Value::Error(_)), "{refused:?}");
}
