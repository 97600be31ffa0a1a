//! Readers' commands, among all others.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::commands::{Check, Command, KEYS, TOKENS};

/// Readers that come, stay and go, beside other keys. Their TTLs are long, because no race may decide whether
/// a member of a set has expired.
pub(super) fn draw(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    // A queue, or a key of any type.
    let mut queue = [b"redlatch:wait:", key].concat();
    if rng.random_range(0..8) == 0 {
        queue = KEYS.iter().find(|other| **other != key).expect("several").to_vec();
    }
    let ttl = u64::to_string(&rng.random_range(3_600_000..7_200_000));
    let ttl = ttl.as_bytes();
    let is_whole = rng.random();
    match rng.random_range(0..12) {
        0..5 => Command {
            check: Check::TimeLeftOr,
            ..Command::of_script(is_whole, "shared_acquire_queue", &[b"2", key, &queue, value, ttl])
        },
        5..7 => Command::of_script(is_whole, "shared_extend", &[b"1", key, value, ttl]),
        7..9 => {
            let fence = [b"redlatch:fence:", key].concat();
            Command::of_script(is_whole, "shared_release_serve", &[b"3", key, &queue, &fence, value])
        }
        9 => Command::of(&[b"ZREVRANK", key, b"redlatch:readers:1"]),
        10 if rng.random() => Command::of(&[b"SET", &queue, value, b"PX", ttl]),
        10 if rng.random() => Command::of(&[b"ZADD", &queue, b"1", value]),
        10 => Command::of(&[b"DEL", &queue]),
        _ => Command::of(&[b"DEL", key]),
    }
}
