//! What a delay function of the caller's own does with the client that calls it, for when it has returned:
//! until then its thread has the client locked.

use std::fmt;
use std::sync::{Mutex, PoisonError};

type Work<C> = Box<dyn FnOnce(&C) + Send>;

/// Work for a client `C`, in the order in which it was left.
pub(super) struct Later<C>(Mutex<Vec<Work<C>>>);

impl<C> Later<C> {
    pub(super) fn push(&self, work: impl FnOnce(&C) + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take(&self) -> Vec<Work<C>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<C> Default for Later<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C> fmt::Debug for Later<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}
