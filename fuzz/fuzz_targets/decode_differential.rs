//! Any bytes: redis-protocol reads the same reply, except for the differences listed in `properties.rs`.
#![no_main]

#[allow(dead_code, reason = "each target checks some of the properties")]
#[path = "../properties.rs"]
mod properties;

use libfuzzer_sys::fuzz_target;
use properties::agrees_with_redis_protocol;

fuzz_target!(|input: &[u8]| agrees_with_redis_protocol(input));
