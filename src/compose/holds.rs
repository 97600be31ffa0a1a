//! Number of holds of a reentrant lock's owner, and what the first and the last hold do with the lock.
//!
//! ```text
//!           first caller asks the masters        answer           last hold ends
//!   Free ────────────────────────────► Acquiring ──────► Held(n) ──────────────► Free, and released
//!    ▲                                  │ ▲ │ others join   ▲ │
//!    └─ failed for all, or given up ────┘ └─┘ or go on      └─┘ taken again, or a hold ends: sends nothing
//! ```
//!
//! An attempt lasts for the shortest wait of its callers. Its failure answers every caller whose wait has
//! ended by then; the others go on with another attempt, for the shortest wait among them. So there are no
//! more attempts than callers.
//!
//! A hold is counted before its caller knows of it, and nobody gets a hold of an expired lock. The module has
//! no connections and no clock, so the simulator counts with the same code as a [`crate::ReentrantLock`].

use std::time::Instant;

use crate::error::{AcquireError, LockReentrantError};
use crate::limits;

/// Holds of one owner. `A` is the acquisition under way, `L` the held lock.
#[derive(Debug)]
pub enum Holds<A, L> {
    /// No hold, and no acquisition.
    Free,
    /// The first hold is being acquired.
    Acquiring {
        /// The acquisition that answers the callers.
        attempt: A,
        /// End of the attempt, at the shortest wait.
        until: Instant,
        /// End of each caller's wait: not before the attempt's end.
        waits: Vec<Instant>,
    },
    /// The lock is held, or is lost and still has holds.
    Held {
        /// The lock, which may be lost.
        lock: L,
        /// Holds that have not ended, including holds that were acquired but not fetched.
        hold_count: usize,
    },
}

impl<A, L> Holds<A, L> {
    /// Number of holds that have not ended.
    pub const fn count(&self) -> usize {
        match self {
            Self::Held { hold_count, .. } => *hold_count,
            Self::Free | Self::Acquiring { .. } => 0,
        }
    }

    /// The lock, even a lost one.
    pub const fn lock(&self) -> Option<&L> {
        match self {
            Self::Held { lock, .. } => Some(lock),
            Self::Free | Self::Acquiring { .. } => None,
        }
    }

    /// Counts one hold more of a lock that the owner has; `None` if the owner has none.
    pub fn take_again(
        &mut self,
        is_valid: impl FnOnce(&L) -> bool,
    ) -> Option<Result<(), LockReentrantError>> {
        let Self::Held { lock, hold_count } = self else { return None };
        if !is_valid(lock) {
            return Some(Err(LockReentrantError::Lost { hold_count: *hold_count }));
        }
        if *hold_count >= limits::HOLD_COUNT_MAX {
            return Some(Err(LockReentrantError::TooManyHolds));
        }
        *hold_count += 1;
        Some(Ok(()))
    }

    /// Begins the acquisition for the first caller, which waits until `wait_until`.
    pub fn begin(&mut self, attempt: A, wait_until: Instant) {
        *self = Self::Acquiring { attempt, until: wait_until, waits: vec![wait_until] };
    }

    /// Adds a caller that waits until `wait_until`. All callers of an owner wait equally long, so an earlier
    /// caller's wait ends first, and the attempt need not become shorter.
    pub fn join(&mut self, wait_until: Instant) {
        if let Self::Acquiring { waits, .. } = self {
            waits.push(wait_until);
        }
    }

    /// The attempt got the lock: every caller left has its hold.
    pub fn acquired(&mut self, lock: L) {
        let Self::Acquiring { waits, .. } = self else { unreachable!("there is no attempt") };
        *self = Self::Held { lock, hold_count: waits.len() };
    }

    /// The attempt failed. Returns the time up to which it answers callers, by the end of their wait. Callers
    /// left need another attempt, until the new `until`. An error that waiting cannot resolve answers all.
    pub fn fail(&mut self, now: Instant, error: &AcquireError) -> Instant {
        let Self::Acquiring { until, waits, .. } = self else { unreachable!("there is no attempt") };
        let mut answered_until = now.max(*until);
        if error.is_final() {
            answered_until = waits.iter().copied().fold(answered_until, Instant::max);
        }
        waits.retain(|wait_until| *wait_until > answered_until);
        match waits.iter().min() {
            Some(next) => *until = *next,
            None => *self = Self::Free,
        }
        answered_until
    }

    /// A caller that would wait until `wait_until` gives up its hold. Returns the acquisition if nobody else
    /// wants it.
    #[must_use = "an attempt that nobody wants is to be given up"]
    pub fn leave(&mut self, wait_until: Instant) -> Option<A> {
        let Self::Acquiring { waits, .. } = self else { return None };
        let place = waits.iter().position(|other| *other == wait_until)?;
        waits.swap_remove(place);
        if !waits.is_empty() {
            return None;
        }
        match std::mem::replace(self, Self::Free) {
            Self::Acquiring { attempt, .. } => Some(attempt),
            Self::Free | Self::Held { .. } => None,
        }
    }

    /// Ends a hold. Returns the lock after the last one, to be released.
    #[must_use = "a lock without holds is to be released"]
    pub fn end(&mut self) -> Option<L> {
        let Self::Held { hold_count, .. } = self else { return None };
        *hold_count -= 1;
        if *hold_count > 0 {
            return None;
        }
        match std::mem::replace(self, Self::Free) {
            Self::Held { lock, .. } => Some(lock),
            Self::Free | Self::Acquiring { .. } => None,
        }
    }

    /// A caller fetches the hold that was counted for it. The lock may have ended since then (I2); then this
    /// hold ends, too, and the error carries the lock to release if it was the last hold.
    ///
    /// # Errors
    /// [`LockReentrantError::Lost`] with the number of holds left, and the lock to release.
    pub fn fetch(
        &mut self,
        is_valid: impl FnOnce(&L) -> bool,
    ) -> Result<(), (LockReentrantError, Option<L>)> {
        if self.lock().is_some_and(is_valid) {
            return Ok(());
        }
        let last = self.end();
        Err((LockReentrantError::Lost { hold_count: self.count() }, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_end_at_their_limit() {
        let mut holds: Holds<(), ()> = Holds::Held { lock: (), hold_count: limits::HOLD_COUNT_MAX - 1 };
        assert!(matches!(holds.take_again(|()| true), Some(Ok(()))));
        assert!(matches!(holds.take_again(|()| true), Some(Err(LockReentrantError::TooManyHolds))));
        assert_eq!(holds.count(), limits::HOLD_COUNT_MAX);
    }
}
