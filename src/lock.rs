//! The nouns of the algorithm: [`Resource`], [`Token`], [`Ttl`], [`Drift`], [`MasterSet`], [`Vote`].
//!
//! Each is a small value whose constructor checks it, so that the engine never meets an invalid one. Nothing
//! here knows of connections or of time passing. Keeps invariants I4 (quorum of the configured masters), I5
//! (a set, not a count, of votes) and I10 (release and extend compare: the only command here that does not is
//! that of a forced unlock).

pub(crate) mod command;
mod fencing;
mod label;
mod name;
mod tally;
mod vote;

use std::fmt;
use std::time::Duration;

use rand::Rng;

use crate::limits;
use crate::mutants::mutant;
use crate::words::Rounded;
use command::park::{CHANNEL_NAME, WAIT_NAME};
#[doc(hidden)]
pub use command::scripts::{NamedScript, SCRIPTS};
use fencing::FENCE_NAME;
pub use fencing::FencingToken;
pub(crate) use fencing::Window;
pub use label::HolderLabel;
pub(crate) use label::{encode_label, label_in, label_part_size, split_value};
pub use name::LockName;
pub use tally::{Tally, Verdict, quorum};
pub use vote::{Failure, HolderTtl, TokenRefusal, Vote};

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

/// Random value that names a lock's holder on the masters: 20 bytes, new for every attempt.
///
/// It makes a release safe: only a key that still holds this value is deleted. `Display` is hexadecimal.
/// Treat it as a secret among cooperating processes: a process that knows it can release the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; Self::SIZE]);

impl Token {
    /// Number of bytes of a token: 20, as Redis's page on distributed locks proposes.
    pub const SIZE: usize = 20;

    /// Placeholder where no token was drawn yet; no master ever gets it.
    pub(crate) const UNSET: Self = Self([0; Self::SIZE]);

    /// Draws a token; the generator must be a cryptographic one.
    #[inline]
    pub(crate) fn random(rng: &mut impl Rng) -> Self {
        if mutant!(ValueReused) {
            return Self::UNSET;
        }
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        bytes[8..16].copy_from_slice(&rng.next_u64().to_le_bytes());
        bytes[16..].copy_from_slice(&rng.next_u32().to_le_bytes());
        Self(bytes)
    }

    /// Returns the bytes as the masters store them.
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

/// Allowance for the difference of clocks while a lock is held: a share of the TTL in parts per million, and
/// 2 ms.
///
/// The 2 ms cover the masters' expiry granularity of 1 ms and the rounding of both sides. The assumption that
/// clocks differ by a bounded rate is that of Gray and Cheriton, "Leases: An Efficient Fault-Tolerant
/// Mechanism for Distributed File Cache Consistency" (1989).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drift {
    ppm: u32,
}

impl Drift {
    const FIXED: Duration = Duration::from_millis(2);

    /// The customary 1 % of the TTL.
    pub const DEFAULT: Self = Self { ppm: 10_000 };

    /// A drift of `ppm` parts per million of the TTL, besides the 2 ms.
    ///
    /// # Errors
    /// [`InputError::DriftTooLarge`] above [`limits::DRIFT_PPM_MAX`].
    pub const fn from_ppm(ppm: u32) -> Result<Self, InputError> {
        if ppm > limits::DRIFT_PPM_MAX { Err(InputError::DriftTooLarge { ppm }) } else { Ok(Self { ppm }) }
    }

    /// The allowance for one TTL, rounded up to the nanosecond.
    #[must_use]
    pub fn of(&self, ttl: Duration) -> Duration {
        let share = (ttl.as_nanos() * u128::from(self.ppm)).div_ceil(1_000_000);
        // A TTL is at most a week, so its share fits 64 bits; a larger argument gets the largest allowance.
        Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX)).saturating_add(Self::FIXED)
    }
}

/// Time to live of a lock on the masters: whole milliseconds, and at least 1 ms more than the drift
/// allowance.
///
/// It carries its validity (TTL minus drift), so the deadline of an attempt is one addition.
#[derive(Debug, Clone, Copy)]
pub struct Ttl {
    ms: u64,
    validity: Duration,
    drift: Drift,
}

impl PartialEq for Ttl {
    /// Time and drift; the validity follows from them.
    fn eq(&self, other: &Self) -> bool {
        self.ms == other.ms && self.drift == other.drift
    }
}

impl Eq for Ttl {}

impl Ttl {
    /// Checks a TTL against the drift and the agreed maximum. A fraction of a millisecond is cut off.
    ///
    /// # Errors
    /// [`InputError::TtlTooShort`] if less than 1 ms would be left after the drift,
    /// [`InputError::TtlTooLong`] above `max_ttl`: a master that restarted votes again after `max_ttl`, so no
    /// lock may live longer.
    pub fn new(ttl: Duration, drift: Drift, max_ttl: Duration) -> Result<Self, InputError> {
        if ttl > max_ttl {
            return Err(InputError::TtlTooLong { ttl, max_ttl });
        }
        let ms = u64::try_from(ttl.as_millis()).map_err(|_| InputError::TtlTooLong { ttl, max_ttl })?;
        let whole = Duration::from_millis(ms);
        let mut drift_allowed = drift.of(whole);
        if mutant!(NoDrift) {
            drift_allowed = Duration::ZERO;
        }
        match whole.checked_sub(drift_allowed) {
            Some(validity) if validity >= Duration::from_millis(1) => Ok(Self { ms, validity, drift }),
            _ => Err(InputError::TtlTooShort { ttl, drift: drift.of(whole) }),
        }
    }

    /// Returns the TTL in milliseconds, as the masters get it.
    #[must_use]
    pub const fn as_millis(&self) -> u64 {
        self.ms
    }

    /// Returns the TTL.
    #[must_use]
    pub const fn as_duration(&self) -> Duration {
        Duration::from_millis(self.ms)
    }

    /// Returns TTL minus drift: how long a lock of this TTL is valid after its first byte was queued.
    #[must_use]
    pub const fn validity(&self) -> Duration {
        self.validity
    }
}

/// Error of input that was refused before anything was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A resource name of no bytes.
    #[error("the resource name is empty; give at least one byte")]
    ResourceEmpty,
    /// A resource name of more than 1,024 bytes.
    #[error("the resource name has {size} bytes; give at most {}", limits::RESOURCE_SIZE_MAX)]
    ResourceTooLong {
        /// Bytes of the name.
        size: usize,
    },
    /// The name of a key that the client itself keeps on the masters.
    #[error(
        "a resource name cannot be redlatch:mark, nor start with redlatch:fence:, redlatch:wait:, redlatch:c: \
         or redlatch:probe:; choose another"
    )]
    ResourceReserved,
    /// A holder label of no bytes.
    #[error("the holder label is empty; give at least one character, or leave it out")]
    LabelEmpty,
    /// A holder label of more than 64 bytes.
    #[error("the holder label has {size} bytes; give at most {}", limits::HOLDER_LABEL_SIZE_MAX)]
    LabelTooLong {
        /// Bytes of the label.
        size: usize,
    },
    /// A holder label with a control character.
    #[error("the holder label has a control character; give printable text")]
    LabelUnprintable,
    /// A lock that is to be fair and fenced.
    #[error("a lock cannot be both fair and fenced; ask for one of the two")]
    FairAndFenced,
    /// A lock that is to be shared and fenced.
    #[error("a shared lock has no fencing token; ask for a shared lock or for a fenced one")]
    SharedFenced,
    /// A lock that is to be shared and fair.
    #[error("a lock cannot be both shared and fair, as readers come in together; ask for one of the two")]
    SharedFair,
    /// Automatic extension for no time.
    #[error(
        "auto_extend(0) would never extend the lock; give the longest time to hold it, or leave auto_extend out"
    )]
    AutoExtendZero,
    /// Automatic extension with a configured `max_hold` of zero, which allows no extension.
    #[error(
        "max_hold is zero, so auto_extend would never extend the lock; raise max_hold, or leave auto_extend out"
    )]
    MaxHoldZero,
    /// A set without a lock.
    #[error("no resource is named; name at least one")]
    SetEmpty,
    /// A set of fair locks.
    #[error("a set of locks cannot be fair; leave fair out")]
    SetFair,
    /// A set of more than 256 locks.
    #[error("{count} different resources are named; name at most {}", limits::SET_SIZE_MAX)]
    SetTooLarge {
        /// Different names given.
        count: usize,
    },
    /// Nothing of the TTL would be left after the drift allowance.
    #[error(
        "a TTL of {} is too short; give more than 1ms beyond the drift allowance of {}", Rounded(*ttl), Rounded(*drift)
    )]
    TtlTooShort {
        /// The TTL asked for.
        ttl: Duration,
        /// The allowance for it.
        drift: Duration,
    },
    /// A TTL above the maximum that all clients share, 30 s by default.
    #[error(
        "a TTL of {} is {} above the maximum of {}; ask for less, or raise max_ttl on every client",
        Rounded(*ttl), Rounded(ttl.saturating_sub(*max_ttl)), Rounded(*max_ttl)
    )]
    TtlTooLong {
        /// The TTL asked for.
        ttl: Duration,
        /// The configured maximum.
        max_ttl: Duration,
    },
    /// A minimum validity that no acquisition with this TTL can have.
    #[error(
        "a minimum validity of {} cannot be met, as the TTL leaves {}; ask for less, or a longer TTL",
        Rounded(*asked), Rounded(*validity)
    )]
    MinValidityTooLong {
        /// The minimum validity asked for.
        asked: Duration,
        /// Validity that the TTL leaves after the drift allowance.
        validity: Duration,
    },
    /// A drift allowance above 500,000 ppm.
    #[error("a drift of {ppm} ppm is above the maximum; give at most {} ppm", limits::DRIFT_PPM_MAX)]
    DriftTooLarge {
        /// The drift asked for.
        ppm: u32,
    },
}

/// Place of a master in the configured list, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterId(u8);

impl MasterId {
    /// Returns the master at `index` of the list; `None` from 32 on, as no list is that long.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        if index < limits::MASTER_COUNT_MAX { u8::try_from(index).ok().map(Self) } else { None }
    }

    /// Returns the place in the list, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Set of masters. Votes are kept as sets, so that a master can never count twice (I5).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct MasterSet(u32);

impl MasterSet {
    /// Set without a master.
    pub const EMPTY: Self = Self(0);

    /// Returns the first `count` masters of the list.
    #[must_use]
    pub const fn first(count: usize) -> Self {
        if count >= 32 { Self(u32::MAX) } else { Self((1 << count) - 1) }
    }

    /// One master.
    pub(crate) const fn only(master: MasterId) -> Self {
        Self(1 << master.0)
    }

    /// Adds a master.
    pub const fn insert(&mut self, master: MasterId) {
        self.0 |= 1 << master.0;
    }

    /// Removes a master.
    pub const fn remove(&mut self, master: MasterId) {
        self.0 &= !(1 << master.0);
    }

    /// Returns whether the master is in the set.
    #[must_use]
    pub const fn contains(self, master: MasterId) -> bool {
        self.0 & (1 << master.0) != 0
    }

    /// Returns the number of masters in the set.
    #[must_use]
    pub const fn count(self) -> usize {
        // Without an instruction for it counting takes long, and many sets are empty.
        if self.0 == 0 { 0 } else { self.0.count_ones() as usize }
    }

    /// Returns whether the set has at least `count` masters; for small counts cheaper than counting.
    #[inline]
    #[must_use]
    pub const fn has(self, count: usize) -> bool {
        // The usual quorums need no counting, which takes long without an instruction for it.
        let but_one = self.0 & self.0.wrapping_sub(1);
        let but_two = but_one & but_one.wrapping_sub(1);
        match count {
            3 => but_two != 0,
            2 => but_one != 0,
            _ => self.count() >= count,
        }
    }

    /// Returns whether the set has no master.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the masters of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the masters of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the masters of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the masters in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = MasterId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let index = u8::try_from(left.trailing_zeros()).ok().filter(|index| *index < 32)?;
            left &= left - 1;
            Some(MasterId(index))
        })
    }
}

impl FromIterator<MasterId> for MasterSet {
    fn from_iter<I: IntoIterator<Item = MasterId>>(masters: I) -> Self {
        let mut set = Self::EMPTY;
        masters.into_iter().for_each(|master| set.insert(master));
        set
    }
}

impl fmt::Debug for MasterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(MasterId::index)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_reach_from_the_drift_to_the_maximum() {
        let max = Duration::from_secs(30);
        let ttl = |ms| Ttl::new(Duration::from_millis(ms), Drift::DEFAULT, max);
        for ms in 0..=3 {
            assert!(matches!(ttl(ms), Err(InputError::TtlTooShort { .. })), "{ms} ms");
        }
        assert_eq!(ttl(4).map(|ttl| ttl.validity()), Ok(Duration::from_micros(1960)));
        assert_eq!(ttl(10_000).map(|ttl| ttl.validity()), Ok(Duration::from_millis(9898)));
        assert!(ttl(30_000).is_ok());
        assert!(matches!(ttl(30_001), Err(InputError::TtlTooLong { .. })));
        assert!(matches!(Ttl::new(Duration::MAX, Drift::DEFAULT, max), Err(InputError::TtlTooLong { .. })));
        let huge = Duration::from_millis(i64::MAX.unsigned_abs());
        assert!(matches!(Ttl::new(huge, Drift::DEFAULT, max), Err(InputError::TtlTooLong { .. })));
    }

    #[test]
    fn ttl_cuts_off_fractions_of_a_millisecond() {
        let ttl = Ttl::new(Duration::from_micros(99_999), Drift::DEFAULT, Duration::from_secs(1));
        assert_eq!(ttl.map(|ttl| ttl.as_millis()), Ok(99));
    }

    #[test]
    fn drift_never_wraps() {
        let drift = Drift::from_ppm(limits::DRIFT_PPM_MAX).expect("the maximum is allowed");
        assert!(drift.of(Duration::MAX) > Duration::from_secs(1_000_000));
        assert!(Drift::from_ppm(limits::DRIFT_PPM_MAX + 1).is_err());
    }

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

    #[test]
    fn a_master_set_holds_each_master_once() {
        let mut set = MasterSet::EMPTY;
        for index in [31, 0, 7, 7] {
            set.insert(MasterId::new(index).expect("below the limit"));
        }
        assert_eq!(set.count(), 3);
        assert_eq!(set.iter().map(MasterId::index).collect::<Vec<_>>(), [0, 7, 31]);
        assert_eq!([0, 1, 3, 4].map(|count| set.has(count)), [true, true, true, false]);
        assert!(!MasterSet::EMPTY.has(1) && MasterSet::first(32).has(32));
        assert_eq!(MasterSet::first(32).count(), 32);
        assert_eq!(
            MasterSet::first(5).without(set).iter().map(MasterId::index).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        assert_eq!(MasterId::new(32), None);
    }
}
