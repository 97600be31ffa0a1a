//! The name of a lock: borrowed from the caller while it is asked for, or shared without a copy.

use bytes::Bytes;

/// The name that a request has.
#[derive(Debug, Clone)]
pub(super) enum Name<'a> {
    Borrowed(&'a [u8]),
    Shared(Bytes),
}

/// The name that a guard has.
#[derive(Debug)]
pub(super) enum HeldName {
    /// A copy in memory that the client lends.
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl Name<'_> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(name) => name,
            Self::Shared(name) => name,
        }
    }

    pub(super) fn into_shared(self) -> Name<'static> {
        match self {
            Self::Borrowed(name) => Name::Shared(Bytes::copy_from_slice(name)),
            Self::Shared(name) => Name::Shared(name),
        }
    }
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
