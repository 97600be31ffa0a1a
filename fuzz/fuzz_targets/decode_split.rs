//! Any bytes in any pieces give the same replies and the same error as in one piece.
#![no_main]

#[allow(dead_code, reason = "each target checks some of the properties")]
#[path = "../properties.rs"]
mod properties;

use libfuzzer_sys::fuzz_target;
use properties::splits_like_one_piece;

fuzz_target!(|input: &[u8]| {
    // The first bytes say where to cut, repeatedly; the rest is the stream.
    let (cuts, stream) = input.split_at(input.len().min(8));
    let mut cuts = cuts.iter().cycle();
    splits_like_one_piece(stream, |_| cuts.next().map_or(1, |&size| usize::from(size)));
});
