//! The engine under operations in any order: a seeded run of the property of the fuzz target `engine_ops`.
//!
//! The seeds are fixed, so a failure repeats in every run. `scripts/fuzz` searches further.

#[path = "../fuzz/engine_ops.rs"]
mod engine_ops;

use engine_ops::engine_keeps_its_promises;

/// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers in every version.
fn random_bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()[0]
    };
    (0..size).map(|_| next()).collect()
}

#[test]
fn random_operations_break_no_promise() {
    for seed in 0..1500 {
        let input = random_bytes(seed, 20 + usize::try_from(seed % 500).expect("small"));
        if std::panic::catch_unwind(|| engine_keeps_its_promises(&input)).is_err() {
            panic!("seed {seed}");
        }
    }
}

/// Related operations, which random bytes seldom form: another client acquires a lock, and a caller waits for
/// it; the other client releases it, and the waiter is served; the holder releases it.
const STORY: [&[u8]; 3] =
    [&[255, 6, 0, 38, 68, 26, 26, 26, 12, 26], &[255, 7, 26, 12, 26, 12, 26], &[6, 0, 1, 26]];

/// Events in between.
const EVENTS: [&[u8]; 11] = [
    // A millisecond passes, or fifty.
    &[137, 0],
    &[169, 0],
    // An inspection, a forced deletion, a pause, and the end of one of them.
    &[254, 0],
    &[254, 3],
    &[254, 13],
    &[254, 6],
    // A ring for a waiter, a ring for any client, a message without meaning; a connection breaks.
    &[255, 2],
    &[255, 1, 0, 3],
    &[255, 3],
    &[15, 0],
    // A fenced lock with another name is acquired and released.
    &[32, 38, 117, 26, 6, 0, 1],
];

#[test]
fn a_waiter_is_always_notified() {
    let mut woken_count = 0;
    for seed in 0..1500 {
        let drawn = random_bytes(seed, 100);
        // Any client that is connected and does not park.
        let mut input = vec![drawn[0], drawn[1] & !64, 32, drawn[3]];
        for (part, pair) in STORY.iter().cycle().zip(drawn[4..].chunks_exact(2)) {
            input.extend_from_slice(part);
            match (EVENTS.get(usize::from(pair[0]) % 16), pair[0] / 16) {
                (Some(event), _) => input.extend_from_slice(event),
                (None, 0) => input.push(pair[1]),
                (None, _) => {}
            }
        }
        match std::panic::catch_unwind(|| engine_keeps_its_promises(&input)) {
            Ok(count) => woken_count += count,
            Err(_) => panic!("seed {seed}"),
        }
    }
    assert!(woken_count > 1000, "only {woken_count} messages counted");
}

/// Saved inputs of the fuzz target.
#[test]
fn saved_fuzz_inputs_break_no_promise() {
    let folder = format!("{}/fuzz/corpus/engine_ops", env!("CARGO_MANIFEST_DIR"));
    // A package from the registry lacks them.
    let Ok(entries) = std::fs::read_dir(&folder) else { return };
    for entry in entries {
        engine_keeps_its_promises(&std::fs::read(entry.expect("readable").path()).expect("readable"));
    }
}
