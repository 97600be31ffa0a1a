use std::fmt;

use super::command::park::CHANNEL_NAME;
use super::command::scripts::{FENCE_NAME, PROBE_NAME, WAIT_NAME};
use super::input_error::InputError;
use crate::limits;
use crate::pool::{DOOR_NAME, LockOfPool, SLOT_NAME};

/// Key of the mark, without the prefix (`Quarantine::Strict`). No lock of any mode may have this name: the
/// mark would overwrite it.
pub(crate) const MARK_NAME: &[u8] = b"redlatch:mark";

/// Key of the fleet's record, without the prefix. No lock may have this name either.
pub(crate) const FLEET_NAME: &[u8] = b"redlatch:fleet";

/// Name of a lock: 1 to 1,024 bytes ([`limits::RESOURCE_SIZE_MAX`]) of any value. The names `redlatch:mark`
/// and `redlatch:fleet` are reserved, and so are names that start with `redlatch:fence:`, `redlatch:wait:`,
/// `redlatch:c:`, `redlatch:probe:`, `redlatch:slot:` or `redlatch:door:`.
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

    /// Checks a name that may also be the name of a slot's lock or of a pool's door ([`pool`](crate::pool)).
    ///
    /// # Errors
    /// As [`Resource::new`]; limits apply to the pool's name.
    pub fn of_any_lock<B: AsRef<[u8]> + ?Sized>(name: &'a B) -> Result<Self, InputError> {
        let name = name.as_ref();
        match LockOfPool::parse(name) {
            Some(lock) => Resource::new(lock.pool).map(|_| Self(name)),
            None => Self::new(name),
        }
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// Whether the name is reserved for a key of the client's own.
fn is_own_name(name: &[u8]) -> bool {
    // Nearly all names differ in their first byte.
    name.first() == Some(&b'r')
        && ([MARK_NAME, FLEET_NAME].contains(&name)
            || [FENCE_NAME, WAIT_NAME, CHANNEL_NAME, PROBE_NAME, SLOT_NAME, DOOR_NAME]
                .iter()
                .any(|own| name.starts_with(own)))
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
        assert_eq!(Resource::new(""), Err(InputError::ResourceEmpty));
        assert!(Resource::new(&vec![0; limits::RESOURCE_SIZE_MAX]).is_ok());
        assert_eq!(
            Resource::new(&vec![0; limits::RESOURCE_SIZE_MAX + 1]),
            Err(InputError::ResourceTooLong { size: limits::RESOURCE_SIZE_MAX + 1 })
        );
        assert_eq!(Resource::new("redlatch:mark"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:fleet"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:fence:a"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:wait:a"), Err(InputError::ResourceReserved));
        assert!(Resource::new("redlatch:wait").is_ok());
        assert_eq!(Resource::new("redlatch:c:a"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:probe:doctor"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:slot:1:a"), Err(InputError::ResourceReserved));
        assert_eq!(Resource::new("redlatch:door:a"), Err(InputError::ResourceReserved));
        assert!(Resource::new("redlatch:marks").is_ok());
        assert!(Resource::new("redlatch:fleets").is_ok());
        assert!(Resource::new("redlatch:fence").is_ok());
    }

    #[test]
    fn slots_and_doors_can_be_looked_at() {
        let longest = [b"redlatch:slot:1023:".as_slice(), &[b'a'; limits::RESOURCE_SIZE_MAX]].concat();
        for name in [b"redlatch:slot:1023:a", b"redlatch:door:a".as_slice(), b"a", &longest] {
            assert_eq!(Resource::of_any_lock(name).map(|it| it.0), Ok(name));
        }
        for name in ["redlatch:slot:01:a", "redlatch:slot:1024:a", "redlatch:slot::a", "redlatch:mark"] {
            assert_eq!(Resource::of_any_lock(name), Err(InputError::ResourceReserved), "{name}");
        }
        let inner = Resource::of_any_lock("redlatch:door:redlatch:slot:1:a");
        assert_eq!(inner, Err(InputError::ResourceReserved));
    }
}
