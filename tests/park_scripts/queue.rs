//! Entries and their places: old values and entries, tickets, full and foreign queues.

use crate::rig::{Answer, FENCE, HOUR_MS, LOCK, QUEUE, RELEASE, Rig};

#[test]
fn a_second_park_replaces_the_entry() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1);
    first.waits();
    for at in [first.at.clone(), String::new()] {
        first.next_round();
        first.at = at;
        first.waits();
        assert_eq!(rig.waiting(), [first.name()]);
    }
    assert_eq!(rig.release("other"), 2);
    rig.assert_holds(&first);
    assert_eq!(first.messages(), [first.vote.clone()]);
}

#[test]
fn a_late_park_keeps_the_later_entry() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut late) = (rig.waiter(1), rig.waiter(1));
    first.next_round();
    first.waits();
    let entries = rig.entries();
    late.waits();
    assert_eq!(rig.entries(), entries);
    rig.call(&["DEL", LOCK]);
    late.waits();
    rig.assert_holds(&first);
}

#[test]
fn a_waiter_that_yields_serves_another() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    assert!(first.park().is_granted());
    second.waits();
    first.next_round();
    first.yields = true;
    first.waits();
    rig.assert_holds(&second);
    assert_eq!(second.messages(), [second.vote.clone()]);
    assert_eq!(rig.waiting(), [first.name()]);
}

/// Fills the queue with a dead waiter's entries, whose stay ends at this millisecond.
fn fill(rig: &mut Rig, stay_end: i64) {
    let script = "for i = 1, ARGV[1] do redis.call('zadd', KEYS[1], '1' .. i, 'redlatch:1:' .. \
                  string.format('%012.0f', i) .. 'p00000001' .. string.format('%013.0f', ARGV[2]) .. \
                  '0000000000000' .. '0000000001' .. '001' .. 'c' .. '12345678' .. 'value' .. i) end";
    rig.call(&["EVAL", script, "1", QUEUE, "4096", &stay_end.to_string()]);
}

#[test]
fn a_full_queue_refuses_and_serves() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    assert!(first.park().is_granted());
    second.ticket = 1;
    second.asked_us = 0;
    second.waits();
    let stay_end = rig.now_ms() + HOUR_MS;
    fill(&mut rig, stay_end);
    first.next_round();
    let Answer::Error(text) = first.park() else { panic!("it is full") };
    assert!(text.starts_with("ERR too many wait"), "{text}");
    rig.assert_holds(&second);
    assert_eq!(second.messages(), [second.vote.clone()], "the old value went, so the next is served");
}

/// The dead of a crowd that came after a waiter.
// I71
#[test]
fn dead_entries_behind_a_live_head_make_room() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut head = rig.waiter(1);
    (head.ticket, head.asked_us) = (1, 0);
    head.waits();
    fill(&mut rig, 1);
    rig.call(&["ZREMRANGEBYRANK", QUEUE, "-1", "-1"]);
    assert_eq!(rig.entry_count(), 4096);
    for place in 2..102 {
        rig.waiter(place).waits();
    }
    let count = rig.entry_count();
    assert!((4096 - 64..4096).contains(&count), "{count}");
}

// I72
#[test]
fn heartbeat_in_full_queue_keeps_its_place() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.waits();
    let stay_end = rig.now_ms() + HOUR_MS;
    fill(&mut rig, stay_end);
    rig.call(&["ZREMRANGEBYRANK", QUEUE, "0", "0"]);
    for _ in 0..3 {
        assert_eq!(rig.entry_count(), 4096);
        assert!(matches!(second.park(), Answer::Error(_)), "it is full");
        first.next_round();
        first.waits();
    }
}

/// Code in front of the script that counts the entries returned to it.
const COUNTING: &str = "local looked, raw = 0, redis local function count(found) \
    for _, it in ipairs(type(found) == 'table' and found or {}) do \
    if string.sub(it, 1, 9) == 'redlatch:' then looked = looked + 1 end end return found end \
    local redis = {call = function(...) return count(raw.call(...)) end, \
    pcall = function(...) return count(raw.pcall(...)) end, error_reply = raw.error_reply, \
    status_reply = raw.status_reply} local function run() ";

/// Beside them at most sixteen that it removes, and the first one a few times.
// I71
#[test]
fn no_call_looks_at_more_than_64_entries() {
    let mut rig = Rig::new();
    let stay_end = rig.now_ms() + HOUR_MS;
    let id = "waiter-own..";
    let park = |at: &str, stay: &str| {
        let value = "value-of-20-bytes...";
        [id, "2", "5", at, "0", "old", "1", "p", stay, "800", "7000", "c", "votevote", "", value]
            .map(str::to_owned)
    };
    let calls = [
        ("park", park("5", "3000").to_vec()),
        ("park", park("5", "0").to_vec()),
        ("unpark", ["5", "value", "", "", ""].map(str::to_owned).to_vec()),
        ("unpark", ["", "value", "", "", ""].map(str::to_owned).to_vec()),
        ("serve", Vec::new()),
        ("release_serve", vec!["other".to_owned()]),
        ("swap_parked", ["", "other", "new", "7000"].map(str::to_owned).to_vec()),
        ("force_unlock_serve", Vec::new()),
        ("shared_acquire_queue", ["own", "7000"].map(str::to_owned).to_vec()),
    ];
    for (script, args) in &calls {
        for is_dead in [false, true] {
            rig.call(&["FLUSHALL"]);
            fill(&mut rig, if is_dead { 1 } else { stay_end });
            rig.hold("other");
            let text =
                redlatch::scripts::SCRIPTS.iter().find(|it| it.name == *script).expect("it is there").text;
            let text = format!("{COUNTING} {text} end run() return looked");
            let keys = if ["swap_parked", "shared_acquire_queue"].contains(script) { "2" } else { "3" };
            let names = [LOCK, QUEUE, FENCE];
            let names = &names[..keys.parse().expect("a number")];
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let looked = rig.call(&[&["EVAL", &text, keys], names, &args].concat()).int();
            assert!(looked <= 64 + 16 + 4, "{script}, dead {is_dead}: {looked}");
        }
    }
}

#[test]
fn each_waiter_learns_of_the_holder() {
    let mut rig = Rig::new();
    rig.hold("20-bytes-of-a-token.\tworker 7");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    for (answer, is_first) in [(first.waits(), true), (second.waits(), false), (first.waits(), true)] {
        assert!((1..=HOUR_MS).contains(&answer.left_ms), "{answer:?}");
        assert_eq!((answer.is_first, answer.readers, answer.label.as_str()), (is_first, 0, "\\tworker 7"));
    }
    rig.call(&["PERSIST", LOCK]);
    assert_eq!(second.waits().left_ms, -1, "no end");
    rig.hold("a longer token of another library");
    assert_eq!(first.waits().label, "", "no part of a token");
    let value = format!("20-bytes-of-a-token.\t{}", "x".repeat(1000));
    rig.hold(&value);
    assert_eq!(first.waits().label.len(), "\\t".len() + 65, "one byte more than a label may have");
}

#[test]
fn park_without_read_rights_still_waits() {
    let mut rig = Rig::new();
    rig.hold("other");
    let mut first = rig.waiter(1);
    rig.call(&["ACL", "SETUSER", "default", "-pttl"]);
    let answer = first.park();
    rig.call(&["ACL", "SETUSER", "default", "+@all"]);
    let Answer::Waiting(answer) = answer else { panic!("its entry is there: {answer:?}") };
    assert_eq!((answer.is_first, answer.left_ms), (true, -3));
    assert_eq!(rig.waiting(), [first.name()]);
}

#[test]
fn a_foreign_queue_fails_a_park() {
    let mut rig = Rig::new();
    for words in [&["SET", QUEUE, "x"][..], &["ZADD", QUEUE, "1", "x"]] {
        rig.call(&["FLUSHALL"]);
        rig.call(words);
        let mut first = rig.waiter(1);
        assert!(matches!(first.park(), Answer::Error(_)), "{words:?}");
        assert_eq!(rig.holder(), None);
        assert_eq!(rig.call(&["EXISTS", QUEUE]).int(), 1);
        rig.hold(&first.value);
        first.next_round();
        assert!(matches!(first.park(), Answer::Error(_)), "{words:?}");
        assert_eq!(rig.holder(), None, "the value of the round before is gone all the same");
    }
}

#[test]
fn a_full_memory_serves_behind_the_delete() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.waits();
    rig.run(RELEASE, &["nobody's"]); // the server knows the script
    rig.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(second.park(), Answer::Error(_)), "no entry");
    assert_eq!(rig.waiting(), [first.name()]);
    assert_eq!(rig.release("other"), 2);
    rig.assert_holds(&first);
}

#[test]
fn a_refused_write_notifies_nobody() {
    let mut rig = Rig::new();
    rig.hold("other");
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    first.waits();
    rig.call(&["DEL", LOCK]);
    rig.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(rig.serve(), 0);
    assert_eq!(first.messages(), [""; 0]);
    assert_eq!(rig.waiting(), [first.name()]);
    rig.call(&["CONFIG", "SET", "maxmemory", "0"]);
    second.waits();
    rig.assert_holds(&first);
}

#[test]
fn a_park_without_rights_serves_the_next() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.waiter(1), rig.waiter(2));
    assert!(first.park().is_granted());
    second.waits();
    rig.call(&["ACL", "SETUSER", "default", "-zadd"]);
    first.next_round();
    first.yields = false;
    first.ticket += 10_000;
    let answer = first.park();
    rig.call(&["ACL", "SETUSER", "default", "+@all"]);
    assert!(matches!(answer, Answer::Error(_)), "{answer:?}");
    rig.assert_holds(&second);
}
