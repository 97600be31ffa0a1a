//! How callers wait for a lock.
//!
//! Callers of this engine stand in a queue of their own for each lock (`wait_queues`). Its head asks the
//! masters, and parks there if they refuse (`parking` is its place, `rounds` the flow); `turns` chooses the
//! next head, and `handover` passes a lock on from one caller to the next. A head that cannot park asks again
//! after a pause (`pauses`).

pub(super) mod handover;
pub(super) mod parking;
pub(super) mod pauses;
pub(super) mod rounds;
pub(super) mod turns;
pub(super) mod wait_queues;
