//! How many holds the owner of a reentrant lock has, and what becomes of the lock with the first and the last
//! of them.
//!
//! ```text
//!           first caller asks the masters        answer           last hold ends
//!   Free ────────────────────────────► Acquiring ──────► Held(n) ──────────────► Free, and released
//!    ▲                                  │ ▲ │ others join   ▲ │
//!    └─ failed for all, or given up ────┘ └─┘ or go on      └─┘ taken again, or a hold ends: no command
//! ```
//!
//! An attempt lasts for the shortest wait of its callers, so nobody waits beyond its own. Its failure is the
//! answer to each caller whose wait does not reach further. Callers with a longer wait go on together, with
//! an attempt for the shortest wait among them. So there are no more attempts than callers, however early
//! each of them fails.
//!
//! Owns the counts and the waits. Does not know connections, the clock and how callers wait: the time is an
//! argument, so that the simulator counts and goes on by the same rules as a [`crate::ReentrantLock`]. Keeps
//! that a hold is counted before its caller knows of it, that nobody gets a hold of a lock that is over, and
//! that the lock is held at the masters from the first hold to the last and no longer.

use std::time::Instant;

use crate::error::{AcquireError, LockReentrantError};
use crate::limits;

/// The holds of one owner; `A` is what is being acquired for it, `L` the lock that it has.
#[derive(Debug)]
pub enum Holds<A, L> {
    /// Nothing is held, nothing asked for.
    Free,
    /// The first hold is being acquired.
    Acquiring {
        /// The attempt that answers it.
        attempt: A,
        /// When it ends at the latest.
        until: Instant,
        /// When the wait of each caller ends that wants a hold: not before the attempt.
        waits: Vec<Instant>,
    },
    /// The lock is held, or was and its holds have not ended.
    Held {
        /// The lock.
        lock: L,
        /// Holds that have not ended; those that were acquired and not fetched yet count.
        hold_count: usize,
    },
}

impl<A, L> Holds<A, L> {
    /// Holds that have not ended.
    pub const fn count(&self) -> usize {
        match self {
            Self::Held { hold_count, .. } => *hold_count,
            Self::Free | Self::Acquiring { .. } => 0,
        }
    }

    /// The lock, also one that is over.
    pub const fn lock(&self) -> Option<&L> {
        match self {
            Self::Held { lock, .. } => Some(lock),
            Self::Free | Self::Acquiring { .. } => None,
        }
    }

    /// One hold more of a lock that this owner has; `None` if it has none.
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

    /// The first caller asks for the lock, which is free, and waits until then.
    pub fn begin(&mut self, attempt: A, wait_until: Instant) {
        *self = Self::Acquiring { attempt, until: wait_until, waits: vec![wait_until] };
    }

    /// One caller more wants what is being acquired, and waits until then. All callers of an owner wait for
    /// equally long, so the attempt ends no later.
    pub fn join(&mut self, wait_until: Instant) {
        if let Self::Acquiring { waits, .. } = self {
            waits.push(wait_until);
        }
    }

    /// The attempt got the lock: each caller that wants one has its hold.
    pub fn acquired(&mut self, lock: L) {
        let Self::Acquiring { waits, .. } = self else { unreachable!("there is no attempt") };
        *self = Self::Held { lock, hold_count: waits.len() };
    }

    /// The attempt failed. Returns the end of the waits whose callers it answers. If callers are left, they
    /// need another attempt until the new `until`. After an error that no attempt can mend, nobody is left.
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

    /// A caller that would wait until then does not want what is being acquired any more. Returns the attempt
    /// after the last one, to be given up.
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

    /// One hold less. Returns the lock after the last one, to be released.
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

    /// A caller fetches the hold that was counted for it: perhaps long after, so the lock may be over (I2).
    /// Then the hold ends, and the lock is to be released if it was the last.
    ///
    /// # Errors
    /// [`LockReentrantError::Lost`], with what is left.
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
