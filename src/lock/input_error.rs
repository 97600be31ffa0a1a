//! Input that is refused before anything is sent.

use std::time::Duration;

use crate::limits;
use crate::words::Rounded;

/// Input that was refused before anything was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// An empty name.
    #[error("the lock's name is empty; give at least one byte")]
    ResourceEmpty,
    /// A name of more than 1,024 bytes.
    #[error("the lock's name has {size} bytes; give at most {}", limits::RESOURCE_SIZE_MAX)]
    ResourceTooLong {
        /// Length of the name in bytes.
        size: usize,
    },
    /// The name of a key that the client itself keeps on the masters.
    #[error(
        "this name is reserved for redlatch's own keys; choose a name that does not start with redlatch:"
    )]
    ResourceReserved,
    /// An empty holder label.
    #[error("the holder label is empty; give at least one character, or leave it out")]
    LabelEmpty,
    /// A holder label of more than 64 bytes.
    #[error("the holder label has {size} bytes; give at most {}", limits::HOLDER_LABEL_SIZE_MAX)]
    LabelTooLong {
        /// Length of the label in bytes.
        size: usize,
    },
    /// A holder label with a control character.
    #[error("the holder label has a control character; give printable text")]
    LabelUnprintable,
    /// A lock that is both fair and fenced.
    #[error("a lock cannot be both fair and fenced; ask for one of the two")]
    FairAndFenced,
    /// A lock that is both shared and fenced.
    #[error("a shared lock has no fencing token; ask for a shared lock or for a fenced one")]
    SharedFenced,
    /// A lock that is both shared and fair.
    #[error("a lock cannot be both shared and fair, as readers come in together; ask for one of the two")]
    SharedFair,
    /// `auto_extend` with a time of zero.
    #[error(
        "auto_extend(0) would never extend the lock; give the longest time to hold it, or leave auto_extend out"
    )]
    AutoExtendZero,
    /// `auto_extend` with a configured `max_hold` of zero, which allows no extension.
    #[error(
        "max_hold is zero, so auto_extend would never extend the lock; raise max_hold, or leave auto_extend out"
    )]
    MaxHoldZero,
    /// An empty set of locks.
    #[error("no lock is named; name at least one")]
    SetEmpty,
    /// A set of fair locks.
    #[error("a set of locks cannot be fair; leave fair out")]
    SetFair,
    /// A set of more than 256 locks.
    #[error("{count} different locks are named; name at most {}", limits::SET_SIZE_MAX)]
    SetTooLarge {
        /// Number of different names.
        count: usize,
    },
    /// A pool of no slots, or of more than 1,024.
    #[error("a pool of {count} slots is asked for; give 1 to {}", limits::SLOT_COUNT_MAX)]
    SlotCount {
        /// Number of slots asked for.
        count: u32,
    },
    /// A shared or fair slot.
    #[error("a slot can be neither shared nor fair, as its waiters have a queue already; leave both out")]
    SlotMode,
    /// A TTL that leaves less than 1 ms after the drift allowance.
    #[error(
        "a TTL of {} is too short; give more than 1ms beyond the drift allowance of {}", Rounded(*ttl), Rounded(*drift)
    )]
    TtlTooShort {
        /// The TTL asked for.
        ttl: Duration,
        /// The drift allowance for this TTL.
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
    /// A minimum validity that no acquisition with this TTL can reach.
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
        /// The drift asked for, in parts per million.
        ppm: u32,
    },
}
