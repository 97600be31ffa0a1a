//! Any sequence of operations on one engine: see `engine_ops.rs`.
//!
//! Best run by `cargo +nightly fuzz run -s none engine_ops -- -max_len=400`: the engine has no unsafe code
//! for the address sanitizer to watch, which takes three quarters of the time otherwise.
#![no_main]

#[path = "../engine_ops.rs"]
mod engine_ops;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    engine_ops::engine_keeps_its_promises(input);
});
