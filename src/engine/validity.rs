//! Where the end of a lock's validity has moved since its grant, as other threads read it without the engine.
//!
//! Owns one moment. Does not know the lock. Each slot of an operation has one, which its next occupants use
//! again, so an acquisition allocates none, and only an extension or a loss writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// End of a lock's validity, as other threads read it without the engine. Clones show the same moment.
#[derive(Debug, Clone)]
pub struct Validity(Arc<Moved>);

#[derive(Debug)]
struct Moved {
    base: Instant,
    /// Nanoseconds since `base`, for 584 years; [`UNMOVED`] as long as the grant's end stands.
    until_ns: AtomicU64,
}

const UNMOVED: u64 = u64::MAX;

impl Validity {
    /// No moment is before `base`.
    pub(crate) fn new(base: Instant) -> Self {
        Self(Arc::new(Moved { base, until_ns: AtomicU64::new(UNMOVED) }))
    }

    /// Another lock begins.
    pub(super) fn reset(&self) {
        self.0.until_ns.store(UNMOVED, Ordering::Release);
    }

    /// The validity ends then.
    pub(super) fn move_to(&self, until: Instant) {
        let until_ns = until.saturating_duration_since(self.0.base).as_nanos();
        self.0.until_ns.store(u64::try_from(until_ns).unwrap_or(UNMOVED - 1), Ordering::Release);
    }

    /// Returns the end of the validity, by the clock of this crate, of a lock that was `granted` until then.
    #[must_use]
    #[inline]
    pub fn until(&self, granted: Instant) -> Instant {
        match self.0.until_ns.load(Ordering::Acquire) {
            UNMOVED => granted,
            until_ns => self.0.base + Duration::from_nanos(until_ns),
        }
    }
}
