//! Readers and writers of one lock in one queue.

use crate::rig::{HOUR_MS, LOCK, Rig, SHARED_ACQUIRE, SHARED_RELEASE, Waiter};
use crate::wire::Value;

fn release(rig: &mut Rig, reader: &Waiter) -> i64 {
    rig.run(SHARED_RELEASE, &[&reader.value]).int()
}

#[test]
fn readers_share_the_lock() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    assert!(first.park().is_granted());
    assert!(second.park().is_granted());
    let mut readers = rig.readers();
    readers.sort();
    assert_eq!(readers, [first.value.clone(), second.value.clone()]);
    assert!((HOUR_MS / 2..=HOUR_MS + 1).contains(&rig.call(&["PTTL", LOCK]).int()));
    assert_eq!(release(&mut rig, &first), 1);
    assert_eq!(release(&mut rig, &first), 0);
    assert_eq!(rig.readers(), [second.value.clone()]);
    assert_eq!(release(&mut rig, &second), 1);
    assert_eq!(rig.call(&["EXISTS", LOCK]).int(), 0);
}

#[test]
fn a_release_serves_readers_up_to_a_writer() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    let (mut writer, mut last) = (rig.waiter(3), rig.waiter(4).reader());
    first.waits();
    second.waits();
    writer.waits();
    last.waits();
    assert_eq!(rig.release("other"), 2);
    assert_eq!(first.messages(), [first.vote.clone()]);
    assert_eq!(second.messages(), [second.vote.clone()]);
    assert_eq!(rig.waiting(), [writer.name(), last.name()], "the writer keeps later readers out");
    assert_eq!(release(&mut rig, &first), 1, "a reader is left");
    assert_eq!(release(&mut rig, &second), 2);
    rig.assert_holds(&writer);
    assert_eq!(rig.release(&writer.value), 2);
    assert_eq!(rig.readers(), [last.value.clone()]);
}

#[test]
fn foreign_set_is_never_joined() {
    let mut rig = Rig::new();
    rig.call(&["ZADD", LOCK, "1", "x"]);
    rig.call(&["PEXPIRE", LOCK, "1000000"]);
    let mut first = rig.waiter(1).reader();
    first.waits();
    assert_eq!(rig.serve(), 0);
    assert_eq!(rig.call(&["ZCARD", LOCK]).int(), 1);
}

/// A reader's first attempt.
fn acquire(rig: &mut Rig, value: &str) -> Value {
    rig.run(SHARED_ACQUIRE, &[value, &HOUR_MS.to_string()])
}

#[test]
fn a_live_first_entry_refuses_a_reader() {
    let mut rig = Rig::new();
    assert_eq!(acquire(&mut rig, "a"), Value::Text("OK".into()));
    let mut writer = rig.waiter(1);
    writer.waits();
    let left_ms = acquire(&mut rig, "b").int();
    assert!((1..=HOUR_MS).contains(&left_ms), "{left_ms}");
    assert_eq!(acquire(&mut rig, "a"), Value::Text("OWN".into()), "it is there already");
    assert_eq!(rig.readers(), ["a"]);
    assert_eq!(writer.unpark(&mut rig), 0);
    assert_eq!(acquire(&mut rig, "b"), Value::Text("OK".into()));
    rig.call(&["DEL", LOCK]);
    rig.hold("other");
    writer.next_round();
    writer.fresh_ms = 0;
    writer.waits();
    rig.call(&["DEL", LOCK]);
    let left_ms = acquire(&mut rig, "c").int();
    assert!((1..=HOUR_MS).contains(&left_ms), "also where the lock is free: {left_ms}");
    assert_eq!(rig.call(&["EXISTS", LOCK]).int(), 0);
    assert_eq!(writer.messages(), [""; 0], "nobody is served");
}
