//! Ends of attempts and locks: unpark and forced unlock.

use crate::rig::{FORCE_UNLOCK, LOCK, Rig, UNPARK};

#[test]
fn an_unpark_removes_the_entry() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.waits();
    second.waits();
    assert_eq!(first.unpark(&mut rig), 0);
    assert_eq!(rig.waiting(), [second.name()]);
    second.at.clear();
    assert_eq!(second.unpark(&mut rig), 0);
    assert_eq!(rig.waiting(), [""; 0], "also where its ticket is unknown");
    assert_eq!(rig.holder().as_deref(), Some("other"));
}

#[test]
fn an_unpark_deletes_the_key_and_serves() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    assert!(first.park().is_granted());
    second.waits();
    assert_eq!(first.unpark(&mut rig), 2);
    rig.assert_holds(&second);
    assert_eq!(second.messages(), [second.vote.clone()]);
    assert_eq!(second.unpark(&mut rig), 1);
    assert_eq!(rig.holder(), None);
    assert_eq!(second.unpark(&mut rig), 0);
}

#[test]
fn a_forced_unlock_serves() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1);
    first.waits();
    assert_eq!(rig.run(FORCE_UNLOCK, &[]).int(), 2);
    rig.assert_holds(&first);
    assert_eq!(rig.run(FORCE_UNLOCK, &[]).int(), 1);
    assert_eq!(rig.run(FORCE_UNLOCK, &[]).int(), 0);
    rig.call(&["HSET", LOCK, "x", "y"]);
    assert!(rig.run(FORCE_UNLOCK, &[]).error().starts_with("WRONGTYPE"));
}

#[test]
fn an_unpark_without_rights_is_an_error() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1);
    first.waits();
    rig.call(&["ACL", "SETUSER", "default", "-get"]);
    let answer = rig.run(UNPARK, &["", &first.value, "", "", ""]);
    rig.call(&["ACL", "SETUSER", "default", "+@all"]);
    assert!(!answer.error().is_empty(), "it is no absence");
}
