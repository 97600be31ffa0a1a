//! The engine under operations in any order: a seeded run of the property that the fuzz target `engine_ops` checks.
//!
//! The seeds are fixed, so a failure comes back in every run. `cargo +nightly fuzz run engine_ops` looks further.

#[path = "../fuzz/engine_ops.rs"]
mod engine_ops;

use engine_ops::engine_keeps_its_promises;

/// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers with every version of every package.
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

/// The saved inputs of the fuzz target.
#[test]
fn saved_fuzz_inputs_break_no_promise() {
    let folder = format!("{}/fuzz/corpus/engine_ops", env!("CARGO_MANIFEST_DIR"));
    // A package from the registry comes without them.
    let Ok(entries) = std::fs::read_dir(&folder) else { return };
    for entry in entries {
        engine_keeps_its_promises(&std::fs::read(entry.expect("readable").path()).expect("readable"));
    }
}
