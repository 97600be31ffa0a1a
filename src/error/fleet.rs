//! Differences between clients of one fleet.

use std::fmt;
use std::time::Duration;

use crate::words::{Counted, Rounded};

/// Why a fleet's record is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The key belongs to another application.
    #[error("the key PREFIXredlatch:fleet holds no record; choose another prefix, or delete the key")]
    Foreign,
    /// The record is damaged.
    #[error("the fleet's record is damaged; delete PREFIXredlatch:fleet, and a client writes it anew")]
    Damaged,
    /// A later version of this library wrote the record.
    #[error("a newer client wrote the fleet's record; update this one to compare settings")]
    Newer,
    /// The master refuses the read, with this error.
    #[error("the fleet's record cannot be read: {0}")]
    Refused(Box<str>),
}

/// Difference between a fleet's record and this client's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FleetDifference {
    /// Another `max_ttl`.
    MaxTtl {
        /// Value in the record.
        recorded: Duration,
        /// Value of this client.
        ours: Duration,
    },
    /// Another `drift_ppm`.
    DriftPpm {
        /// Value in the record.
        recorded: u32,
        /// Value of this client.
        ours: u32,
    },
    /// Another number of masters.
    MasterCount {
        /// Value in the record.
        recorded: usize,
        /// Value of this client.
        ours: usize,
    },
    /// A master of this client is missing in the record's list, which has another in its place.
    Masters {
        /// Identity of the recorded list.
        recorded: FleetId,
        /// URL of the missing master, without the login.
        missing: Box<str>,
    },
}

/// Identity of a list of masters: a hash of their labels, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FleetId(pub(crate) u64);

impl fmt::Display for FleetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for FleetDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxTtl { recorded, ours } => write!(
                f,
                "the fleet's record has max_ttl {}, and this client {}; give all clients the same",
                Rounded(*recorded),
                Rounded(*ours)
            ),
            Self::DriftPpm { recorded, ours } => write!(
                f,
                "the fleet's record has drift_ppm {recorded}, and this client {ours}; give all clients the same"
            ),
            Self::MasterCount { recorded, ours } => write!(
                f,
                "the fleet's record has {}, and this client {ours}; give all clients one list",
                Counted(*recorded, "master")
            ),
            Self::Masters { recorded, missing } => write!(
                f,
                "the fleet's record has other masters ({recorded}), without {missing}; give all clients one list"
            ),
        }
    }
}
