//! Parks and releases of plain locks: which waiter is next, and how it learns of its turn.

use crate::rig::{LOCK, QUEUE, RELEASE, Rig, SWAP};

#[test]
fn a_park_on_a_free_key_is_granted() {
    let mut rig = Rig::new();
    let mut first = rig.waiter(1);
    assert!(first.park().is_granted());
    rig.assert_holds(&first);
    assert_eq!(rig.waiting(), [""; 0], "a grant leaves no entry");
    assert_eq!(first.messages(), [""; 0], "the answer is the vote");
    assert_eq!(rig.call(&["EXISTS", QUEUE]).int(), 0);
}

#[test]
fn a_release_serves_by_ticket_with_a_vote() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    second.waits();
    first.waits();
    assert_eq!(rig.release("other"), 2);
    rig.assert_holds(&first);
    assert_eq!(first.messages(), [first.vote.clone()]);
    assert_eq!(second.messages(), [""; 0]);
    assert_eq!(rig.waiting(), [second.name()], "an entry goes with its grant");
    assert_eq!(rig.release(&first.value), 2);
    rig.assert_holds(&second);
    assert_eq!(rig.release(&second.value), 1, "nobody waits");
    assert_eq!(rig.holder(), None);
}

#[test]
fn a_release_of_another_value_changes_nothing() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1);
    first.waits();
    assert_eq!(rig.release("another"), 0);
    assert_eq!(rig.holder().as_deref(), Some("other"));
    assert_eq!(rig.waiting(), [first.name()]);
}

#[test]
fn unsubscribed_waiter_is_skipped() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.channel = "redlatch:c:nobody".to_owned();
    first.waits();
    second.waits();
    assert_eq!(rig.release("other"), 2);
    rig.assert_holds(&second);
    assert_eq!(rig.waiting(), [""; 0]);
}

#[test]
fn an_entry_past_its_stay_is_removed() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.stay_ms = 1;
    first.waits();
    second.waits();
    let end_ms = rig.now_ms() + 1;
    rig.pass(end_ms);
    assert_eq!(rig.release("other"), 2);
    rig.assert_holds(&second);
    assert_eq!(first.messages(), [""; 0]);
    assert_eq!(rig.waiting(), [""; 0]);
}

#[test]
fn a_stale_waiter_is_rung_for_200_ms() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.fresh_ms = 0;
    first.waits();
    second.waits();
    let before_ms = rig.now_ms();
    assert_eq!(rig.release("other"), 2);
    let after_ms = rig.now_ms();
    assert_eq!(rig.holder(), None, "it is not served");
    assert_eq!(first.messages(), [first.ring()]);
    assert_eq!(second.messages(), [""; 0]);
    assert_eq!(rig.waiting(), [first.name(), second.name()], "it keeps its place");
    let stay_end: i64 = rig.entries()[0][32..45].parse().expect("a number");
    assert!((before_ms + 200..=after_ms + 200).contains(&stay_end), "{before_ms} {stay_end} {after_ms}");
    rig.pass(stay_end);
    assert_eq!(rig.serve(), 1);
    rig.assert_holds(&second);
}

#[test]
fn digest_differs_for_each_value() {
    let mut rig = Rig::new();
    assert_eq!(rig.look(), 0, "nobody has it");
    let mut digests = Vec::new();
    for value in
        ["other", "othes", "pther", "0f8fad5b-d9cb-469f-a165-70867728950e", "a-token-of-20-bytes.\tweb-3"]
    {
        rig.call(&["DEL", LOCK]);
        rig.hold(value);
        let digest = rig.look();
        assert_eq!(rig.look(), digest, "the same value");
        assert!((1..1 << 24).contains(&digest), "{digest}");
        digests.push(digest);
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 5);
    let mut waiter = rig.waiter(1);
    assert_eq!(waiter.waits().digest, rig.look(), "a waiter learns it, too");
    rig.call(&["DEL", LOCK]);
    assert_eq!(rig.look(), 0, "it was notified");
    rig.assert_holds(&waiter);
}

#[test]
fn errors_behind_the_delete_are_swallowed() {
    let mut rig = Rig::new();
    for rights in ["-zrange", "-exists", "-time", "-publish", "-zrem", "-set"] {
        rig.call(&["FLUSHALL"]);
        rig.hold("other");
        let mut first = rig.waiter(1);
        first.waits();
        rig.call(&["ACL", "SETUSER", "default", rights]);
        assert_eq!(rig.run(RELEASE, &["other"]).int(), 1, "{rights}");
        rig.call(&["ACL", "SETUSER", "default", "+@all"]);
        assert_eq!(rig.holder(), None, "{rights}: nothing is left of a grant");
        assert_eq!(first.messages(), [""; 0], "{rights}");
        assert_eq!(rig.waiting(), [first.name()], "{rights}: the entry is back");
    }
}

#[test]
fn a_swap_removes_the_old_entry() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    rig.hold("other");
    first.waits();
    second.waits();
    let args = [first.at.as_str(), &first.value, "new", "1000000"];
    assert_eq!(rig.run(SWAP, &args).int(), 0, "the key is another's");
    assert_eq!(rig.waiting(), [second.name()]);
    assert_eq!(rig.holder().as_deref(), Some("other"));
    assert_eq!(rig.run(SWAP, &["", "other", "new", "1000000"]).int(), 1);
    assert_eq!(rig.holder().as_deref(), Some("new"));
}
