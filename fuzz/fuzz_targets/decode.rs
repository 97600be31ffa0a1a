//! Any bytes: decoding never panics or allocates, keeps its bounds and agrees with the oracle. Replies
//! generated from the same bytes survive a round trip.
#![no_main]

#[allow(dead_code, reason = "each target checks some of the properties")]
#[path = "../properties.rs"]
mod properties;

use std::alloc::System;

use libfuzzer_sys::fuzz_target;
use properties::{decoding_is_sound, grown_reply_round_trips};
use redlatch::resp::{Decoded, Reply, decode};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fuzz_target!(|input: &[u8]| {
    decoding_allocates_nothing(input);
    decoding_is_sound(input);
    grown_reply_round_trips(input);
});

fn decoding_allocates_nothing(input: &[u8]) {
    let region = Region::new(ALLOCATOR);
    let mut rest = input;
    while let Ok(Decoded::Complete { reply, size }) = decode(rest) {
        count(&reply);
        rest = &rest[size..];
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0));
}

/// Counts all elements, which are decoded on the way.
fn count(reply: &Reply<'_>) -> usize {
    match reply {
        Reply::Array(array) | Reply::Map(array) | Reply::Set(array) | Reply::Push(array) => {
            array.iter().map(|element| count(&element)).sum()
        }
        _ => 1,
    }
}
