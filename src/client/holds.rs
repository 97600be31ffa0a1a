//! How many holds the owner of a reentrant lock has, and what becomes of the lock with the first and the last
//! of them.
//!
//! ```text
//!           first caller asks the masters        answer           last hold ends
//!   Free ────────────────────────────► Acquiring ──────► Held(n) ──────────────► Free, and released
//!    ▲                                  │  ▲ others join    ▲ │
//!    └────────── refused, given up ─────┘  └─ and wait      └─┘ taken again, or a hold ends: no command
//! ```
//!
//! Owns the counts. Does not know connections, the clock and the callers that wait, so that the simulator
//! counts by the same rules as a [`crate::ReentrantLock`]. Keeps that a hold is counted before its caller
//! knows of it, that nobody gets a hold of a lock that is over, and that the lock is held at the masters from
//! the first hold to the last and no longer.

use crate::error::LockReentrantError;
use crate::limits;
use crate::mutants::mutant;

/// The holds of one owner; `A` is what is being acquired for it, `L` the lock that it has.
#[derive(Debug)]
pub enum Holds<A, L> {
    /// Nothing is held, nothing asked for.
    Free,
    /// The first hold is being acquired.
    Acquiring {
        /// What answers it.
        attempt: A,
        /// Callers that want a hold.
        caller_count: usize,
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
        if !is_valid(lock) && !mutant!(LostTakenAgain) {
            return Some(Err(LockReentrantError::Lost { hold_count: *hold_count }));
        }
        if *hold_count >= limits::HOLD_COUNT_MAX {
            return Some(Err(LockReentrantError::TooManyHolds));
        }
        *hold_count += 1;
        Some(Ok(()))
    }

    /// The first caller asks for the lock, which is free.
    pub fn begin(&mut self, attempt: A) {
        *self = Self::Acquiring { attempt, caller_count: 1 };
    }

    /// One caller more wants what is being acquired.
    pub fn join(&mut self) {
        if let Self::Acquiring { caller_count, .. } = self
            && !mutant!(JoinedUncounted)
        {
            *caller_count += 1;
        }
    }

    /// The attempt has its answer: with a lock each caller that wants one has its hold.
    pub fn finish(&mut self, lock: Option<L>) {
        let Self::Acquiring { caller_count, .. } = self else { unreachable!("there is no attempt") };
        *self = match lock {
            Some(lock) => Self::Held { lock, hold_count: *caller_count },
            None => Self::Free,
        };
    }

    /// A caller does not want what is being acquired any more. Returns the attempt after the last one, to be
    /// given up.
    #[must_use = "an attempt that nobody wants is to be given up"]
    pub fn leave(&mut self) -> Option<A> {
        let Self::Acquiring { caller_count, .. } = self else { return None };
        *caller_count -= 1;
        if *caller_count > 0 {
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
        if *hold_count > 0 && !mutant!(HoldsEndWithFirst) {
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
        if self.lock().is_some_and(is_valid) || mutant!(FetchedHoldUnchecked) {
            return Ok(());
        }
        let last = self.end();
        Err((LockReentrantError::Lost { hold_count: self.count() }, last))
    }
}
