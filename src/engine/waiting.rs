//! How callers wait for a lock.
//!
//! | a caller | waits |
//! | --- | --- |
//! | behind other callers of this engine, which hold the lock or wait for it | in a queue of this engine (`wait_queues`), until `handover` passes the lock on or `turns` makes the caller the head |
//! | refused, or the next head; a quorum can park it | in the masters' queues: `parking` is its place, `rounds` the flow |
//! | refused; no quorum can park it | for a pause (`pauses`), then it asks again |
//! | with too few answers, or too late ones | for a pause too; then it asks, or parks if it was refused before |
//! | for a lock that this client waited for in the masters' queues lately (`contended`) | like a refused caller, from its first attempt on |
//! | with a fair request | like a refused caller, from its first attempt on; in no queue of this engine |
//! | with a reader's request | like any other caller, but in no queue of this engine |
//!
//! `accounting` records how long each caller waited, and the last holder that it waited for, in the caller's
//! `account`.

pub(super) mod account;
pub(super) mod accounting;
pub(super) mod brake;
pub(super) mod contended;
pub(super) mod handover;
pub(super) mod parking;
pub(super) mod pauses;
pub(super) mod rounds;
pub(super) mod turns;
pub(super) mod wait_queues;
