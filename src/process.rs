//! The process that made something, as against a fork of it.
//!
//! A fork has copies of the parent's connections, locks and leases, and none of its threads. Whatever the
//! child did with them would be done in the parent's name, so it is refused. `forbid(unsafe_code)` rules out
//! a fork handler.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::clock;

/// No fork takes less: the kernel copies the page tables, and starts the child.
const FORK_TIME_MIN_NS: u64 = 10_000;

/// The process in which it was made.
#[derive(Debug)]
pub(crate) struct Process {
    id: u32,
    made: Instant,
    /// When the process was last seen to be this one, in nanoseconds since `made`; 0 is never.
    checked_ns: AtomicU64,
}

impl Process {
    pub(crate) fn own() -> Self {
        Self { id: process::id(), made: clock::now(), checked_ns: AtomicU64::new(0) }
    }

    /// Whether this is a fork.
    pub(crate) fn is_forked(&self) -> bool {
        self.is_forked_at(clock::now())
    }

    /// Whether this is a fork at this time, which is the present. Asks the system only if the last time is
    /// longer ago than the shortest fork takes.
    pub(crate) fn is_forked_at(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.made).as_nanos();
        let now_ns = u64::try_from(passed).unwrap_or(u64::MAX);
        let checked_ns = self.checked_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(checked_ns) < FORK_TIME_MIN_NS && checked_ns != 0 {
            return false;
        }
        if process::id() != self.id {
            return true;
        }
        self.checked_ns.store(now_ns, Ordering::Relaxed);
        false
    }

    /// An error in a fork: why it may not use what belongs to this process.
    pub(crate) fn check(&self) -> Result<(), Arc<str>> {
        self.check_at(clock::now())
    }

    /// The same at this time, which is the present.
    pub(crate) fn check_at(&self, now: Instant) -> Result<(), Arc<str>> {
        if self.is_forked_at(now) {
            let id = self.id;
            Err(format!("it belongs to process {id}, of which this is a fork; connect anew in the child")
                .into())
        } else {
            Ok(())
        }
    }
}
