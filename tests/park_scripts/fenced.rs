//! Fenced waiters: a token counts only above the fence and within the window.

use redlatch::scripts::SCRIPTS;

use crate::rig::{FENCE, FENCE_TTL_MS, FENCED_RELEASE, HALF_US, HOUR_MS, LOCK, QUEUE, Rig, Waiter};
use crate::wire::Value;

fn fence(rig: &mut Rig) -> i64 {
    match rig.call(&["GET", FENCE]) {
        Value::Null => 0,
        value => value.text().parse().expect("digits"),
    }
}

fn release(rig: &mut Rig, waiter: &Waiter) -> i64 {
    let [token, half, life] = [waiter.token, HALF_US, FENCE_TTL_MS].map(|it| it.to_string());
    rig.run(FENCED_RELEASE, &[&waiter.value, &token, &half, &half, &life]).int()
}

#[test]
fn a_fenced_park_raises_the_fence() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1).fenced(), rig.waiter(2).fenced());
    assert!(first.park().is_granted());
    assert_eq!(fence(&mut rig), first.token);
    second.waits();
    assert_eq!(release(&mut rig, &first), 2);
    rig.assert_holds(&second);
    assert_eq!(fence(&mut rig), second.token, "a served waiter's, too");
    assert_eq!(second.messages(), [second.vote.clone()]);
    assert!(rig.call(&["PTTL", FENCE]).int() > 0);
}

#[test]
fn waiter_with_a_stale_token_is_rung() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1).fenced(), rig.waiter(2).fenced());
    assert!(first.park().is_granted());
    second.token = first.token;
    second.waits();
    assert_eq!(release(&mut rig, &first), 2);
    assert_eq!(rig.holder(), None);
    assert_eq!(second.messages(), [second.ring()]);
    second.next_round();
    second.token = first.token + 1;
    assert!(second.park().is_granted());
    assert_eq!(fence(&mut rig), second.token);
}

#[test]
fn the_fence_is_written_before_the_lock() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1).fenced();
    first.grant_ms = 0; // which SET refuses
    first.waits();
    rig.call(&["DEL", LOCK]);
    assert_eq!(rig.serve(), 0);
    assert_eq!(fence(&mut rig), first.token, "raised first");
    assert_eq!(rig.holder(), None);
    assert_eq!(first.messages(), [""; 0]);
}

/// Runs a script as clients send it.
fn run_as_sent(rig: &mut Rig, name: &str, keys: &[&str], args: &[&str]) -> Value {
    let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script");
    let key_count = keys.len().to_string();
    rig.call(&[&["EVAL", script.text, &key_count], keys, args].concat())
}

#[test]
fn fenced_and_parked_attempts_share_one_fence() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).fenced();
    assert!(first.park().is_granted());
    let [half, life, ttl] = [HALF_US, FENCE_TTL_MS, HOUR_MS].map(|it| it.to_string());
    let token = first.token.to_string();
    let release = [first.value.as_str(), &token, &half, &half, &life];
    assert_eq!(run_as_sent(&mut rig, "fenced_release_serve", &[LOCK, QUEUE, FENCE], &release), Value::Int(1));
    let stale = ["v", &ttl, &token, &half, &half, &life];
    let refused = run_as_sent(&mut rig, "fenced_acquire", &[LOCK, FENCE], &stale);
    assert_eq!(refused.list()[..2], [Value::Int(1), Value::Int(first.token)]);
    let newer = (first.token + 1).to_string();
    let fresh = ["v", &ttl, &newer, &half, &half, &life];
    assert_eq!(run_as_sent(&mut rig, "fenced_acquire", &[LOCK, FENCE], &fresh), Value::Text("OK".into()));
    first.waits();
    let args = ["v", &newer, &half, &half, &life];
    assert_eq!(rig.run(FENCED_RELEASE, &args), Value::Int(2), "its token is stale: rung");
    assert_eq!(first.messages(), [first.ring()]);
}
