//! The scripts of parked attempts on a real server: how a master delays an attempt until the lock is free.
//!
//! The scripts are in `tests/park_scripts/scripts`. No client of the crate sends them: they prepare a coming
//! change. A test parks waiters over connections of their own, which receive votes as RESP3 pushes. The
//! constants of time are larger here than in the files, so that no pause of the machine ends a stay.

mod ends;
mod fenced;
mod queue;
mod readers;
mod rig;
mod serving;
mod today;
mod wire;
