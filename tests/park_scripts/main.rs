//! The scripts of parked attempts on a real server: how a master delays an attempt until the lock is free.
//!
//! The scripts come from the crate (`redlatch::scripts::SCRIPTS`). Each waiter has its own connection,
//! which receives votes as RESP3 pushes. Time constants are larger than in the files, so that no pause of the
//! machine ends a stay.

mod ends;
mod fenced;
mod queue;
mod readers;
mod rig;
mod serving;
mod wire;
