//! The commands of readers, asked among all others.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::commands::{Check, Command, KEYS, TOKENS};

/// Readers that come, stay and go, beside whatever else is at the key. Their time is long: a set of which
/// only some are over says nothing of the time, so that a race could decide a reply.
pub(super) fn draw(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    // A reservation, or what may be a key of any kind.
    let mut reservation = [b"redlatch:writer:", key].concat();
    if rng.random_range(0..8) == 0 {
        reservation = KEYS.iter().find(|other| **other != key).expect("several").to_vec();
    }
    let ttl = u64::to_string(&rng.random_range(3_600_000..7_200_000));
    let ttl = ttl.as_bytes();
    let is_whole = rng.random();
    match rng.random_range(0..12) {
        0..5 => Command {
            check: Check::TimeLeftOr,
            ..Command::of_script(is_whole, "shared_acquire", &[b"2", key, &reservation, value, ttl])
        },
        5..7 => Command::of_script(is_whole, "shared_extend", &[b"1", key, value, ttl]),
        7..9 => {
            let notifies: &[u8] = if rng.random() { b"1" } else { b"0" };
            Command::of_script(is_whole, "shared_release", &[b"1", key, value, notifies])
        }
        9 => Command::of(&[b"ZREVRANK", key, b"redlatch:readers:1"]),
        10 if rng.random() => Command::of(&[b"SET", &reservation, value, b"PX", ttl]),
        10 if rng.random() => {
            let value = [b"redlatch:1:", value].concat();
            Command::of_script(true, "writer_reserve", &[b"1", &reservation, &value, ttl])
        }
        10 => Command::of(&[b"DEL", &reservation]),
        _ => Command::of(&[b"DEL", key]),
    }
}
