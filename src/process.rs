//! Tells a process from its fork.
//!
//! A fork has copies of the parent's connections and locks, but none of its threads. Anything that the child
//! did with them would happen in the parent's name, so it is refused. `forbid(unsafe_code)` rules out a fork
//! handler.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::clock;

/// Shorter than any fork: the kernel copies the page tables and starts the child.
const FORK_TIME_MIN_NS: u64 = 10_000;

/// The process that created a value.
#[derive(Debug)]
pub(crate) struct Process {
    id: u32,
    made: Instant,
    /// When the process was last checked, in nanoseconds since `made`; 0 is never.
    checked_ns: AtomicU64,
}

impl Process {
    pub(crate) fn own() -> Self {
        Self { id: process::id(), made: clock::now(), checked_ns: AtomicU64::new(0) }
    }

    /// Whether the current process is a fork.
    pub(crate) fn is_forked(&self) -> bool {
        self.is_forked_at(clock::now())
    }

    /// [`Process::is_forked`], given the current time. Asks the system only if the last check is longer ago
    /// than the shortest fork takes.
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

    /// In a fork, the reason why it cannot use this process's value.
    pub(crate) fn check(&self) -> Result<(), Arc<str>> {
        self.check_at(clock::now())
    }

    /// [`Process::check`], given the current time.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fork_check_is_skipped_only_briefly() {
        let at = |ns: u64| Duration::from_nanos(ns);
        // Last check, current time, and whether a fork is then noticed.
        for (checked_ns, now_ns, is_fork_seen) in [
            (0, 0, true),
            (0, 9_999, true),
            (1, 10_000, false),
            (1, 10_001, true),
            (20_000, 20_000, false),
            (20_000, 29_999, false),
            (20_000, 30_000, true),
            // By another thread, which read the clock later.
            (20_000, 10_000, false),
        ] {
            for (id, is_forked) in [(process::id(), false), (process::id() + 1, is_fork_seen)] {
                let own = Process { id, ..Process::own() };
                own.checked_ns.store(checked_ns, Ordering::Relaxed);
                let now = own.made + at(now_ns);
                let rows = format!("{checked_ns}, {now_ns}, {is_forked}");
                assert_eq!(own.is_forked_at(now), is_forked, "{rows}");
                let noted = if is_fork_seen && !is_forked { now_ns } else { checked_ns };
                assert_eq!(own.checked_ns.load(Ordering::Relaxed), noted, "{rows}");
                if is_forked {
                    let why = own.check_at(now).expect_err("a fork");
                    assert!(
                        why.starts_with(&format!("it belongs to process {id}, of which this is a fork")),
                        "{why}"
                    );
                }
            }
        }
    }
}
