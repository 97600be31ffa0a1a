//! Any sequence of operations on one engine: see `engine_ops.rs`.
#![no_main]

#[path = "../engine_ops.rs"]
mod engine_ops;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    engine_ops::engine_keeps_its_promises(input);
});
