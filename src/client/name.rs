//! The name of a lock that a guard holds: a copy in memory that the client lends, or shared without a copy.

use bytes::Bytes;

/// The name that a guard has.
#[derive(Debug)]
pub(super) enum HeldName {
    /// A copy in memory that the client lends.
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl HeldName {
    pub(super) const NONE: Self = Self::Copied(Vec::new());

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Copied(name) => name,
            Self::Shared(name) => name,
        }
    }
}
