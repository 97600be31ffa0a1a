//! Requests that go to the same masters, until they are handed to each of them as one piece.

use std::fmt;

use super::owed::Owed;
use crate::lock::MasterSet;

/// Requests, and the replies that each of the masters will owe for them.
#[derive(Default)]
pub(super) struct Gathered {
    /// For whom requests are gathered, while there are any. Each of them has room for all that may be
    /// gathered.
    pub(super) masters: MasterSet,
    pub(super) bytes: Vec<u8>,
    pub(super) owed: Vec<Owed>,
}

impl fmt::Debug for Gathered {
    /// Without the bytes: a password may be among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered")
            .field("masters", &self.masters)
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}
