//! Wakers of callers whose outcomes have come.

use std::iter;
use std::task::Waker;

/// Wakers that are called while the mutex is released once.
pub(super) struct Woken([Option<Waker>; WOKEN_COUNT]);

const WOKEN_COUNT: usize = 32;

impl Woken {
    pub(super) fn take(next: impl FnMut() -> Option<Waker>) -> Self {
        let mut woken = [const { None }; WOKEN_COUNT];
        for (place, waker) in woken.iter_mut().zip(iter::from_fn(next)) {
            *place = Some(waker);
        }
        Self(woken)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = Waker> {
        self.0.into_iter().flatten()
    }

    /// Returns whether there may be more.
    pub(super) fn is_full(&self) -> bool {
        self.0[WOKEN_COUNT - 1].is_some()
    }
}
