//! What masters report of a lock when they are asked, and what follows from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Report;
use crate::lock::{Failure, HolderTtl, Vote, quorum};

/// What each master holds of a lock, as it reported at some moment between the question and the answer.
///
/// It is for people and for tools, and nothing to act on: by the time it is read anything may have changed,
/// so who needs the lock acquires it. Value and time are read one after the other: when a lock changes hands
/// in between, the time is that of the next holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Name (its URL without login) and answer of each master, in the order of the configuration.
    pub masters: Vec<(Arc<str>, KeyState)>,
}

/// What one master reported of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// It has no such key, and would have it if it ever had: it is in no quarantine.
    Absent,
    /// It has the key.
    Holds {
        /// The value, at most [`crate::limits::VALUE_SHOWN_MAX`] bytes of it: of a lock of this crate the 20
        /// bytes of its [`crate::Token`]. Asked for just before the time left: it is empty if the key
        /// came in between.
        value: Box<[u8]>,
        /// How long it keeps the key unless it is extended; [`HolderTtl::Left`], or [`HolderTtl::Never`] for
        /// a key without TTL, which no lock is.
        left: HolderTtl,
    },
    /// Readers have the lock together.
    Shared {
        /// How many, at the most: those count, too, whose time is over and who have not gone yet.
        readers: usize,
        /// When the time of the last of them ends unless it is extended; [`HolderTtl::Never`] if somebody
        /// took its end away.
        left: HolderTtl,
    },
    /// It could not be asked, gave no answer in time or an error, such as `WRONGTYPE` for a key that is no
    /// lock; or it has no such key and is in quarantine, so that it may have forgotten one.
    Failed(Failure),
}

/// How a lock stands, by what a quorum of masters reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// A quorum has no such key: the next attempt may have it.
    Free,
    /// A quorum holds the same value.
    Held,
    /// Readers have it on a quorum, together or each on masters of its own: others may join them.
    Shared,
    /// A quorum answered, and none of these is so: what an attempt or a release under way, a lost master or a
    /// lock of other clients with other masters leaves. Nobody may be able to acquire it before some of these
    /// keys have expired.
    Split,
    /// Fewer than a quorum answered.
    Unknown,
}

impl Inspection {
    /// How the lock stands.
    #[must_use]
    pub fn status(&self) -> LockStatus {
        let count = |is: fn(&KeyState) -> bool| self.masters.iter().filter(|(_, told)| is(told)).count();
        let quorum = quorum(self.masters.len());
        if self.holder().is_some() {
            LockStatus::Held
        } else if count(|told| matches!(told, KeyState::Shared { .. })) >= quorum {
            LockStatus::Shared
        } else if count(|told| matches!(told, KeyState::Absent)) >= quorum {
            LockStatus::Free
        } else if count(|told| !matches!(told, KeyState::Failed(_))) >= quorum {
            LockStatus::Split
        } else {
            LockStatus::Unknown
        }
    }

    /// Whether a quorum of the configured masters holds the same value: one has the lock alone. False also if
    /// too few answered; see [`Inspection::status`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder().is_some()
    }

    /// The value that a quorum of the configured masters holds, if there is one: that of the holder's
    /// [`crate::Guard::token`].
    #[must_use]
    pub fn holder(&self) -> Option<&[u8]> {
        let values = || self.masters.iter().filter_map(|(_, told)| told.value());
        let quorum = quorum(self.masters.len());
        values().find(|value| values().filter(|other| other == value).count() >= quorum)
    }

    /// For how long a quorum still holds the holder's value if it neither extends nor releases, by the
    /// masters' clocks: the holder's own validity ends earlier, by the drift allowance at least. Of a lock
    /// that is [`LockStatus::Shared`], for how long a quorum has readers. [`HolderTtl::Gone`] if nobody holds
    /// the lock, [`HolderTtl::Never`] if it is held by keys without TTL.
    #[must_use]
    pub fn remaining(&self) -> HolderTtl {
        let holder = self.holder();
        let held = self.masters.iter().filter(|(_, told)| match told {
            KeyState::Shared { .. } => holder.is_none(),
            told => holder.is_some() && told.value() == holder,
        });
        // The longest first: without TTL is longest.
        let mut left: Vec<Duration> = held
            .map(|(_, told)| match told {
                KeyState::Holds { left: HolderTtl::Left(left), .. }
                | KeyState::Shared { left: HolderTtl::Left(left), .. } => *left,
                _ => Duration::MAX,
            })
            .collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        match left.get(quorum(self.masters.len()) - 1) {
            Some(&Duration::MAX) => HolderTtl::Never,
            Some(&left) => HolderTtl::Left(left),
            None => HolderTtl::Gone,
        }
    }
}

impl KeyState {
    /// The value, of a key that is there.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Holds { value, .. } => Some(value),
            Self::Absent | Self::Shared { .. } | Self::Failed(_) => None,
        }
    }
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Shared => "shared by readers",
            Self::Split => "split: no quorum holds the same lock, and none is free of it",
            Self::Unknown => "unknown: no quorum of masters answered",
        })
    }
}

/// What a forced unlock has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceUnlocked {
    /// What each master said: granted if it deleted a key, refused if it had none.
    pub report: Report,
}

impl ForceUnlocked {
    /// Masters that deleted a key.
    #[must_use]
    pub fn deleted(&self) -> usize {
        self.report.granted()
    }

    /// Masters that had no such key.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.report.votes.iter().filter(|(_, vote)| matches!(vote, Vote::Refused { .. })).count()
    }

    /// Masters of which nothing is known, and masters whose key is no lock: they may hold the key still.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.report.votes.len() - self.deleted() - self.absent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspection(told: &[&str]) -> Inspection {
        let told = told.iter().map(|told| match *told {
            "" => KeyState::Absent,
            "?" => KeyState::Failed(Failure::Silent),
            "r" => KeyState::Shared { readers: 2, left: HolderTtl::Left(Duration::from_millis(9)) },
            held => {
                let (value, left) = held.split_once(' ').expect("a value and a time");
                let left = match left {
                    "never" => HolderTtl::Never,
                    ms => HolderTtl::Left(Duration::from_millis(ms.parse().expect("a number"))),
                };
                KeyState::Holds { value: value.as_bytes().into(), left }
            }
        });
        Inspection { masters: told.map(|told| ("m".into(), told)).collect() }
    }

    #[test]
    fn the_standing_needs_a_quorum_of_configured_masters() {
        let left = |ms| HolderTtl::Left(Duration::from_millis(ms));
        for (told, standing, remaining) in [
            (["", "", ""], LockStatus::Free, HolderTtl::Gone),
            (["", "", "?"], LockStatus::Free, HolderTtl::Gone),
            (["a 9", "", ""], LockStatus::Free, HolderTtl::Gone),
            (["a 9", "a 7", "a 8"], LockStatus::Held, left(8)),
            (["?", "a 7", "a 8"], LockStatus::Held, left(7)),
            (["b 90", "a 7", "a 8"], LockStatus::Held, left(7)),
            (["a never", "a 7", "a 8"], LockStatus::Held, left(8)),
            (["a never", "a 7", "a never"], LockStatus::Held, HolderTtl::Never),
            (["a 9", "b 9", ""], LockStatus::Split, HolderTtl::Gone),
            (["r", "r", "b 7"], LockStatus::Shared, left(9)),
            (["r", "a 7", "a 7"], LockStatus::Held, left(7)),
            (["r", "", "?"], LockStatus::Split, HolderTtl::Gone),
            (["r", "", ""], LockStatus::Free, HolderTtl::Gone),
            (["a 9", "?", ""], LockStatus::Split, HolderTtl::Gone),
            (["a 9", "?", "?"], LockStatus::Unknown, HolderTtl::Gone),
            (["", "?", "?"], LockStatus::Unknown, HolderTtl::Gone),
        ] {
            let inspection = inspection(&told);
            assert_eq!((inspection.status(), inspection.remaining()), (standing, remaining), "{told:?}");
            assert_eq!(inspection.is_held(), standing == LockStatus::Held);
            assert_eq!(inspection.holder(), inspection.is_held().then_some(b"a".as_slice()));
        }
    }
}
