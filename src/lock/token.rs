//! The value of a lock on the masters.

use std::fmt;

use rand::Rng;

/// Random value that identifies a lock's holder on the masters: 20 bytes, new for every attempt.
///
/// It makes a release safe: a key is deleted only if it still holds this value. `Display` is hexadecimal.
/// Treat the token as a secret among cooperating processes: whoever knows it can release the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub(super) [u8; Self::SIZE]);

impl Token {
    /// Size of a token in bytes, as Redis's page on distributed locks proposes.
    pub const SIZE: usize = 20;

    /// Placeholder before a token is drawn; never sent.
    pub(crate) const UNSET: Self = Self([0; Self::SIZE]);

    /// Draws a token. The generator must be cryptographically secure.
    #[inline]
    pub(crate) fn random(rng: &mut impl Rng) -> Self {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        bytes[8..16].copy_from_slice(&rng.next_u64().to_le_bytes());
        bytes[16..].copy_from_slice(&rng.next_u32().to_le_bytes());
        Self(bytes)
    }

    /// Restores a token drawn before.
    pub(crate) const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes as stored on the masters.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
