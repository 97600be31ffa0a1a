//! Readers and writers of one lock in one queue.

use crate::rig::{FORCE_UNLOCK, HOUR_MS, LOCK, QUEUE, Rig, SHARED_ACQUIRE, SHARED_RELEASE, Waiter};
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
fn a_writer_waits_for_all_readers() {
    let mut rig = Rig::new();
    let (mut reader, mut writer) = (rig.waiter(1).reader(), rig.waiter(2));
    assert!(reader.park().is_granted());
    let answer = writer.waits();
    assert_eq!((answer.readers, answer.label.as_str()), (1, ""));
    assert!((1..=HOUR_MS + 1).contains(&answer.left_ms), "{answer:?}");
    assert_eq!(rig.serve(), 0);
    assert_eq!(rig.readers(), [reader.value.clone()]);
    assert_eq!(rig.run(FORCE_UNLOCK, &[]).int(), 2);
    rig.assert_holds(&writer);
}

#[test]
fn granted_reader_admits_waiting_readers() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    second.waits();
    rig.call(&["DEL", LOCK]);
    assert!(first.park().is_granted());
    assert_eq!(second.messages(), [second.vote.clone()]);
    assert_eq!(rig.readers().len(), 2);
}

// I71
#[test]
fn one_call_serves_64_readers() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut wire = rig.waiter(1).reader();
    let channel = wire.channel.clone();
    for place in 1..=66 {
        wire.place = place;
        wire.value = format!("token-{place:014}");
        wire.vote = format!("v{place:07}");
        wire.ticket += 1;
        wire.at = wire.ticket.to_string();
        wire.waits();
    }
    assert_eq!(wire.channel, channel);
    assert_eq!(rig.release("other"), 2 + 4, "and more");
    assert_eq!(rig.readers().len(), 64);
    assert_eq!(rig.serve(), 1);
    assert_eq!(rig.readers().len(), 66);
    assert_eq!(wire.messages().len(), 66);
}

#[test]
fn an_unreceived_reader_leaves_the_others() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    first.waits();
    second.channel = "redlatch:c:nobody".to_owned();
    second.grant_ms = 2 * HOUR_MS;
    second.waits();
    assert_eq!(rig.release("other"), 2);
    assert_eq!(rig.readers(), [first.value.clone()]);
    let ttl_ms = rig.call(&["PTTL", LOCK]).int();
    assert!(ttl_ms <= HOUR_MS + 1, "the end is that of the last reader left: {ttl_ms}");
    assert_eq!(rig.waiting(), [""; 0]);
}

#[test]
fn an_unreceived_reader_leaves_no_set() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1).reader();
    first.channel = "redlatch:c:nobody".to_owned();
    first.waits();
    assert_eq!(rig.release("other"), 1);
    assert_eq!(rig.call(&["EXISTS", LOCK, QUEUE]).int(), 0);
}

#[test]
fn a_short_grant_cuts_no_reader_short() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    assert!(first.park().is_granted());
    second.grant_ms = 1;
    assert!(second.park().is_granted());
    assert!(rig.call(&["PTTL", LOCK]).int() > HOUR_MS / 2);
    rig.assert_reader(&first);
}

#[test]
fn readers_next_round_ends_the_previous_one() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1).reader(), rig.waiter(2).reader());
    assert!(first.park().is_granted());
    assert!(second.park().is_granted());
    first.next_round();
    assert!(first.park().is_granted());
    assert_eq!(rig.readers().len(), 2);
    rig.assert_reader(&first);
    rig.assert_reader(&second);
    assert_eq!(second.unpark(&mut rig), 1);
    assert_eq!(rig.readers(), [first.value.clone()]);
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

#[test]
fn a_dead_first_entry_refuses_no_reader() {
    let mut rig = Rig::new();
    for stay_ms in [1, 11 * HOUR_MS] {
        rig.call(&["FLUSHALL"]);
        rig.hold("other");
        let mut writer = rig.waiter(1);
        writer.stay_ms = stay_ms;
        writer.waits();
        rig.call(&["DEL", LOCK]);
        let end_ms = rig.now_ms() + 1;
        rig.pass(end_ms);
        assert_eq!(acquire(&mut rig, "a"), Value::Text("OK".into()), "{stay_ms}");
        assert_eq!(rig.waiting(), [writer.name()], "it stays for the next that serves");
    }
}

#[test]
fn a_foreign_queue_refuses_no_reader() {
    let mut rig = Rig::new();
    let end_ms = rig.now_ms() + HOUR_MS;
    let lookalike = format!("{:32}{end_ms:013}", "redlatch:2:");
    for words in [&["SET", QUEUE, "x"][..], &["ZADD", QUEUE, "1", &lookalike], &["HSET", QUEUE, "x", "y"]] {
        rig.call(&["FLUSHALL"]);
        rig.call(words);
        assert_eq!(acquire(&mut rig, "a"), Value::Text("OK".into()), "{words:?}");
        assert_eq!(rig.call(&["EXISTS", QUEUE]).int(), 1, "it stays");
    }
}

#[test]
fn writer_or_foreign_set_refuses_a_reader() {
    let mut rig = Rig::new();
    rig.hold("other");
    let left_ms = acquire(&mut rig, "a").int();
    assert!((1..=HOUR_MS).contains(&left_ms), "{left_ms}");
    rig.call(&["DEL", LOCK]);
    rig.call(&["ZADD", LOCK, "1", "x"]);
    assert_eq!(acquire(&mut rig, "a").int(), -1);
}
