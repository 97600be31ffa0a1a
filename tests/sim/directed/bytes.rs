//! What arrives from the wire.

use super::*;

// I17
pub fn a_header_reserves_no_memory() -> Verdict {
    let mut world = world(1, 1, defaults);
    let now = world.local(0);
    let engine = &mut world.clients[0].engine;
    let text = b"$1000000\r\nabc";
    engine.recv_space(id(0))[..text.len()].copy_from_slice(text);
    engine.recv_done(now, id(0), text.len());
    let size = engine.recv_space(id(0)).len();
    demand(size <= 2 * redlatch::limits::READ_SIZE, &format!("{size} bytes were reserved for a promise"))
}

// I17
pub fn arrays_are_nested_to_the_limit_only() -> Verdict {
    let input = [&b"*1\r\n".repeat(redlatch::limits::REPLY_DEPTH_MAX + 1)[..], b":1\r\n"].concat();
    let is_refused = matches!(resp::decode(&input), Err(ProtocolError::NestingTooDeep));
    demand(is_refused, "a deeper nesting was taken")
}

tests!(a_header_reserves_no_memory, arrays_are_nested_to_the_limit_only,);
