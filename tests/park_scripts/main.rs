//! The scripts of parked attempts on a real server: how a master delays an attempt until the lock is free.
//!
//! The scripts are those of the crate (`redlatch::internals::SCRIPTS`). A test
//! parks waiters over connections of their own, which receive votes as RESP3 pushes. The constants of time
//! are larger here than in the files, so that no pause of the machine ends a stay.

mod beside;
mod ends;
mod fenced;
mod queue;
mod readers;
mod rig;
mod serving;
mod wire;
