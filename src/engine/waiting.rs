//! How callers wait for a lock.
//!
//! | a caller | waits |
//! | --- | --- |
//! | behind others of this engine, who hold the lock or wait for it | in a queue of this engine (`wait_queues`): `handover` passes the lock on, or `turns` makes it the head |
//! | that others refused, or the next head; a quorum can park it | in the masters' queues: `parking` is its place, `rounds` the flow |
//! | that others refused, and no quorum can park it | for a pause (`pauses`), then it asks again |
//! | whose attempt too few masters answered, or too late | for a pause, too; then it asks, or parks if it was refused before |
//! | whose client waited in the masters' queues for the same lock lately (`contended`) | as one that others refused, from its first attempt on |
//! | that is fair | as one that others refused, from its first attempt on; in no queue of this engine |
//! | that is a reader | as any other, in no queue of this engine |
//!
//! `accounting` notes how long each of them waited, and for whom last, in its `account`.

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
