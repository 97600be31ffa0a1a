//! Any bytes: redis-protocol takes them for the same reply, but for the differences that `properties.rs`
//! lists.
#![no_main]

#[allow(dead_code, reason = "each target checks some of the properties")]
#[path = "../properties.rs"]
mod properties;

use libfuzzer_sys::fuzz_target;
use properties::agrees_with_redis_protocol;

fuzz_target!(|input: &[u8]| agrees_with_redis_protocol(input));
