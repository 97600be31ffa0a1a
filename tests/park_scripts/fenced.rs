//! Fenced waiters: a token counts only above the fence and within the window.

use crate::rig::{Answer, FENCE, FENCE_TTL_MS, FENCED_RELEASE, HALF_US, LOCK, Rig, UNPARK, Waiter};
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
fn a_stale_own_token_is_answered() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).fenced();
    let largest = first.token;
    rig.call(&["SET", FENCE, &largest.to_string()]);
    let answer = first.waits();
    assert_eq!((answer.reason, answer.fence), (1, largest));
    assert_eq!(rig.waiting(), [first.name()], "it keeps its place");
    assert_eq!(rig.holder(), None);
    assert_eq!(first.messages(), [""; 0], "its own entry is never rung");
}

#[test]
fn a_stale_token_without_stay_serves_the_next() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1).fenced(), rig.waiter(2));
    second.waits();
    rig.call(&["SET", FENCE, &first.token.to_string()]);
    rig.call(&["DEL", LOCK]);
    first.stay_ms = 0;
    assert_eq!(first.waits().reason, 1);
    rig.assert_holds(&second);
}

#[test]
fn entry_with_an_outlying_token_is_removed() {
    let mut rig = Rig::new();
    for (way, reason) in [(-2, 2), (2, 3)] {
        rig.call(&["FLUSHALL"]);
        rig.hold("other");
        let (mut first, mut second) = (rig.waiter(1).fenced(), rig.waiter(2));
        first.token += way * HALF_US;
        first.waits();
        second.waits();
        assert_eq!(rig.release("other"), 2);
        rig.assert_holds(&second);
        assert_eq!(first.messages(), [""; 0]);
        assert_eq!(rig.waiting(), [""; 0]);
        assert_eq!(rig.release(&second.value), 1);
        let answer = first.waits();
        assert_eq!((answer.reason, answer.is_first), (reason, false));
        assert_eq!(rig.waiting(), [""; 0]);
        assert_eq!(fence(&mut rig), 0);
    }
}

#[test]
fn a_foreign_fence_keeps_nobody_else_out() {
    let mut rig = Rig::new();
    for foreign in ["x", "12x", "x12", "1.5"] {
        rig.call(&["FLUSHALL"]);
        rig.hold("other");
        rig.call(&["SET", FENCE, foreign]);
        let (mut first, mut second) = (rig.waiter(1).fenced(), rig.waiter(2));
        first.waits();
        second.waits();
        assert_eq!(rig.release("other"), 2);
        rig.assert_holds(&second);
        assert_eq!(rig.release(&second.value), 1);
        assert_eq!(first.park(), Answer::Error("ERR the fence is no number".to_owned()), "{foreign}");
        assert_eq!(rig.waiting(), [""; 0]);
        assert_eq!(rig.call(&["GET", FENCE]), Value::Text(foreign.to_owned()));
    }
}

#[test]
fn a_fence_of_another_type_fails_a_fenced_park() {
    let mut rig = Rig::new();
    rig.call(&["LPUSH", FENCE, "x"]);
    let Answer::Error(error) = rig.waiter(1).fenced().park() else { panic!("no fence can be read") };
    assert!(error.starts_with("WRONGTYPE"), "{error}");
    assert_eq!((rig.holder(), rig.waiting()), (None, vec![]));
}

#[test]
fn a_fence_that_cannot_be_written_keeps_the_lock_free() {
    let mut rig = Rig::new();
    let mut own = rig.waiter(1).fenced();
    own.fence_ttl_ms = 0; // which SET refuses
    assert!(matches!(own.park(), Answer::Error(_)), "nobody waits");
    assert_eq!(rig.holder(), None);
    rig.hold("other");
    own.waits();
    rig.call(&["DEL", LOCK]);
    assert_eq!(rig.serve(), 0);
    assert_eq!((rig.holder(), fence(&mut rig)), (None, 0));
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

#[test]
fn an_unpark_raises_the_fence_of_a_holder() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1).fenced();
    let token = first.token.to_string();
    let [half, life] = [HALF_US, FENCE_TTL_MS].map(|it| it.to_string());
    assert_eq!(first.unpark(&mut rig), 0, "it never held");
    assert_eq!(fence(&mut rig), 0);
    let mut second = rig.waiter(2).fenced();
    rig.hold("other");
    second.token = first.token;
    second.waits();
    rig.call(&["DEL", LOCK]);
    assert_eq!(rig.run(UNPARK, &["", &first.value, &token, &half, &life]).int(), 0);
    assert_eq!(fence(&mut rig), first.token, "also where the lock is gone");
    assert_eq!(second.messages(), [second.ring()], "before others are judged by it");
}
