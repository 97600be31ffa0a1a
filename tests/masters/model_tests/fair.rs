//! The commands of fair locks for `model_tests.rs`.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::commands::{Check, Command, KEYS, TOKENS, numbers};

/// Fair locks: some waiters who come, come again and go; heartbeats so long that only a shorter one finds
/// them endless.
pub(super) fn draw(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    let ids =
        [b"redlatch:1:1".as_slice(), b"redlatch:1:\0\r\n", b"redlatch:1:3", b"redlatch:1:", b"redlatch:1:5"];
    let id = ids[rng.random_range(0..5)];
    let (tickets, heartbeats) = ([b"redlatch:fair:t:", key].concat(), [b"redlatch:fair:h:", key].concat());
    let is_whole = rng.random();
    let heartbeat: &[u8] = if rng.random_range(0..12) == 0 { b"600000" } else { b"900000" };
    if rng.random_range(0..4) == 0 {
        let is_notify = rng.random_range(0..3) == 0;
        let name = if is_notify { "fair_notify" } else { "fair_leave" };
        let channels: &[u8] = if is_notify || rng.random() { b"c:" } else { b"" };
        let rest = [b"3", key, &tickets, &heartbeats, id, heartbeat, channels];
        return Command::of_script(is_whole, name, &rest);
    }
    let is_short = rng.random_range(0..4) == 0;
    let ttl = u64::to_string(&if is_short { rng.random_range(1..=5) } else { 3_600_000 });
    let count_max: &[u8] = if rng.random_range(0..8) == 0 { b"2" } else { b"100" };
    let head = [b"3", key, &tickets, &heartbeats, value, ttl.as_bytes()];
    let (name, rest): (_, &[&[u8]]) = match rng.random_range(0..8) {
        0 => ("fair_try", &[heartbeat]),
        1..4 => ("fair_join", &[id, heartbeat, count_max]),
        4 => ("fair_wait", &[id, heartbeat, count_max, b"1"]),
        5 => ("fair_wait", &[id, heartbeat, count_max, b"2"]),
        6 => ("fair_wait", &[id, heartbeat, count_max, b"7"]),
        _ => ("fair_wait", &[id, heartbeat, count_max, b"4503599627370496"]),
    };
    let command = Command::of_script(is_whole, name, &[&head, rest].concat());
    Command { check: Check::Fair, short_lived: is_short.then_some(key), ..command }
}

/// Whether lock and queue are reported alike: the times left may differ.
pub(super) fn is_queued_alike(server: &[u8], model: &[u8], slack: Duration) -> bool {
    let (Some(of_server), Some(of_model)) = (numbers(server), numbers(model)) else { return server == model };
    let ([reported @ .., left], [other_reported @ .., other_left]) =
        (of_server.as_slice(), of_model.as_slice())
    else {
        return false;
    };
    let slack_ms = i64::try_from(slack.as_millis()).expect("short") + 3;
    reported == other_reported
        && (left - other_left).abs() <= slack_ms
        && (left.is_negative() == other_left.is_negative())
}
