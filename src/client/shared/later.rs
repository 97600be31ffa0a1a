//! What a delay function of the caller's own does with the client that calls it, for when it has returned: until then its
//! thread has the client locked.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::Shared;

type Work = Box<dyn FnOnce(&Shared) + Send>;

/// In the order in which it was left.
#[derive(Default)]
pub(super) struct Later(Mutex<Vec<Work>>);

impl Later {
    pub(super) fn push(&self, work: impl FnOnce(&Shared) + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take(&self) -> Vec<Work> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}
