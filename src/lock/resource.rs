//! Names of locks.

use std::fmt;

use super::command::park::{CHANNEL_NAME, WAIT_NAME};
use super::fencing::FENCE_NAME;
use super::input_error::InputError;
use crate::limits;

/// Key of the mark behind the prefix (`Quarantine::Strict`): no lock of any mode may have this name, for the
/// mark would overwrite it.
pub(crate) const MARK_NAME: &[u8] = b"redlatch:mark";

/// How keys begin behind the prefix on which commands are tried that change nothing: a lock with such a name
/// would be found there.
pub(crate) const PROBE_NAME: &[u8] = b"redlatch:probe:";

/// Name of a lock: 1 to 1,024 bytes ([`limits::RESOURCE_SIZE_MAX`]) of any value. `redlatch:mark` is
/// reserved, and so are names that start with `redlatch:fence:`, `redlatch:wait:`, `redlatch:c:` or
/// `redlatch:probe:`.
///
/// ```
/// use redlatch::engine::Resource;
/// assert!(Resource::new("orders:42").is_ok());
/// assert!(Resource::new("").is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a>(&'a [u8]);

impl<'a> Resource<'a> {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InputError`] if the name is empty, longer than 1,024 bytes, or reserved.
    pub fn new<B: AsRef<[u8]> + ?Sized>(name: &'a B) -> Result<Self, InputError> {
        let name = name.as_ref();
        match name.len() {
            1..=limits::RESOURCE_SIZE_MAX if !is_own_name(name) => Ok(Self(name)),
            0 => Err(InputError::ResourceEmpty),
            1..=limits::RESOURCE_SIZE_MAX => Err(InputError::ResourceReserved),
            size => Err(InputError::ResourceTooLong { size }),
        }
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// Whether a key of the client's own has this name behind the prefix.
fn is_own_name(name: &[u8]) -> bool {
    // Nearly all names differ from these in their first byte.
    name.first() == Some(&b'r')
        && (name == MARK_NAME
            || [FENCE_NAME, WAIT_NAME, CHANNEL_NAME, PROBE_NAME].iter().any(|own| name.starts_with(own)))
}

impl fmt::Debug for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_bounds() {
        assert!(Resource::new(&vec![0; limits::RESOURCE_SIZE_MAX]).is_ok());
        assert_eq!(
            Resource::new(&vec![0; limits::RESOURCE_SIZE_MAX + 1]),
            Err(InputError::ResourceTooLong { size: limits::RESOURCE_SIZE_MAX + 1 })
        );
        assert_eq!(Resource::new("redlatch:mark"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:fence:a"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:wait:a"), Err(InputError::ResourceReserved));
        assert!(Resource::new("redlatch:wait").is_ok());
        assert_eq!(Resource::new("redlatch:c:a"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:probe:doctor"), Err(InputError::ResourceReserved));
        assert!(Resource::new("redlatch:marks").is_ok());
        assert!(Resource::new("redlatch:fence").is_ok());
    }
}
