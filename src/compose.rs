//! Kinds of locks that consist of other locks. Each file decides which of them to acquire, wait for and release; the
//! client's files of the same kind carry the decisions out.

pub mod holds;
pub mod set_acquisition;
pub mod slot_acquisition;
