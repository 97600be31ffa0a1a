//! Masters' answers to an inspection or a forced unlock, and the lock status that follows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Report;
use crate::lock::{Failure, HolderTtl, Vote, quorum, split_value};
use crate::words::{self, Counted, Labelled, Printable, Rounded};

/// What each master reports about a lock's key, at some moment between question and answer.
///
/// `{}` is one line: `held on 3 of 5 masters, for at most 3.2s`. `{:#}` adds a line for each group of masters
/// with the same report, with the value that they hold.
///
/// For people and tools to read, not to act on: everything may have changed since. To use the lock, acquire
/// it. Value and time are read one after the other; if the lock changes hands in between, the time is the
/// next holder's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Name (URL without login) and report of each master, in the order of the configuration.
    pub masters: Vec<(Arc<str>, KeyState)>,
}

/// State of a lock's key on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// The key does not exist, and the master is not in quarantine.
    Absent,
    /// The key exists.
    Holds {
        /// First 256 bytes of the value ([`crate::limits::VALUE_SHOWN_MAX`]). For a lock of this crate: the
        /// 20 bytes of its [`crate::Token`], then the holder's label if it has one; see [`KeyState::holder`].
        /// Read just before the time left, so empty if the key was set in between.
        value: Box<[u8]>,
        /// Time left unless the key is extended: [`HolderTtl::Left`]; or [`HolderTtl::Never`] for a key
        /// without TTL, which is no lock.
        left: HolderTtl,
    },
    /// Readers hold the lock together.
    Shared {
        /// Upper bound of the number of readers: expired readers not yet removed count too.
        readers: usize,
        /// The last reader's time left unless it extends; [`HolderTtl::Never`] if somebody removed the key's
        /// TTL.
        left: HolderTtl,
    },
    /// The master could not be asked, gave no timely answer, or answered with an error, such as `WRONGTYPE`
    /// for a key that is no lock. Or it has no key but is in quarantine, so it may have forgotten one.
    Failed(Failure),
}

/// Status of a lock, from the reports of a quorum of masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// A quorum has no key: the next attempt may succeed.
    Free,
    /// A quorum holds the same value.
    Held,
    /// A quorum holds readers, the same or different ones. Others may join.
    Shared,
    /// A quorum answered, but none of the above holds: during an attempt or a release, after a master was
    /// lost, or with clients that use another list of masters. Possibly nobody can acquire the lock before
    /// some keys expire.
    Split,
    /// Fewer than a quorum gave a usable answer.
    Unknown,
}

impl Inspection {
    /// Returns the status of the lock.
    #[must_use]
    pub fn status(&self) -> LockStatus {
        let count = |is: fn(&KeyState) -> bool| self.masters.iter().filter(|(_, state)| is(state)).count();
        let quorum = quorum(self.masters.len());
        if self.value().is_some() {
            LockStatus::Held
        } else if count(|state| matches!(state, KeyState::Shared { .. })) >= quorum {
            LockStatus::Shared
        } else if count(|state| matches!(state, KeyState::Absent)) >= quorum {
            LockStatus::Free
        } else if count(|state| !matches!(state, KeyState::Failed(_))) >= quorum {
            LockStatus::Split
        } else {
            LockStatus::Unknown
        }
    }

    /// Returns whether a quorum of the configured masters holds the same value, so that nobody else can
    /// acquire the lock. Also false if too few masters answered; see [`Inspection::status`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.value().is_some()
    }

    /// Returns the holder's [`crate::Guard::token`] if a quorum of the configured masters holds the same
    /// value. For another library's lock, returns the whole value.
    #[must_use]
    pub fn holder(&self) -> Option<&[u8]> {
        self.value().map(|value| split_value(value).0)
    }

    /// Returns the holder's label ([`crate::ConfigBuilder::holder_label`]) if a quorum holds the same value
    /// with a label. The readers of a shared lock are only counted.
    #[must_use]
    pub fn holder_label(&self) -> Option<&str> {
        split_value(self.value()?).1.map(|label| label.as_str())
    }

    /// Returns the value that a quorum of the configured masters holds.
    fn value(&self) -> Option<&[u8]> {
        let values = || self.masters.iter().filter_map(|(_, state)| state.value());
        let quorum = quorum(self.masters.len());
        values().find(|value| values().filter(|other| other == value).count() >= quorum)
    }

    /// Returns how long a quorum still holds the holder's value, unless it extends or releases, by the
    /// masters' clocks. The holder's own validity ends earlier. For a [`LockStatus::Shared`] lock: how long a
    /// quorum still has readers. [`HolderTtl::Gone`] if nobody holds the lock, [`HolderTtl::Never`] if keys
    /// without TTL do.
    #[must_use]
    pub fn remaining(&self) -> HolderTtl {
        let holder = self.value();
        let held = self.masters.iter().filter(|(_, state)| match state {
            KeyState::Shared { .. } => holder.is_none(),
            state => holder.is_some() && state.value() == holder,
        });
        // Longest first; no TTL counts as longest.
        let mut left: Vec<Duration> = held
            .map(|(_, state)| match state {
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

    /// Returns one line for each group of masters with the same report. Shows their longest time.
    fn lines(&self) -> Vec<String> {
        let lines = self.masters.iter().map(|(master, state)| {
            let what = state.what();
            let alike = self.masters.iter().filter(|(_, other)| other.what() == what);
            let left = alike.map(|(_, other)| other.left()).max_by_key(|left| match left {
                HolderTtl::Left(left) => *left,
                HolderTtl::Never => Duration::MAX,
                HolderTtl::Gone | HolderTtl::Unknown => Duration::ZERO,
            });
            (&**master, format!("{what}{}", End(left.unwrap_or_default())))
        });
        words::grouped(lines, self.masters.len())
    }
}

impl KeyState {
    /// Returns the value, if the key holds one.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Holds { value, .. } => Some(value),
            Self::Absent | Self::Shared { .. } | Self::Failed(_) => None,
        }
    }

    /// Returns the holder's token and label, if the key holds a value. For another library's lock, the token
    /// is the whole value.
    #[must_use]
    pub fn holder(&self) -> Option<(&[u8], Option<&str>)> {
        let (token, label) = split_value(self.value()?);
        Some((token, label.map(|label| label.as_str())))
    }

    /// Returns the key's time left.
    const fn left(&self) -> HolderTtl {
        match self {
            Self::Holds { left, .. } | Self::Shared { left, .. } => *left,
            Self::Absent | Self::Failed(_) => HolderTtl::Gone,
        }
    }

    /// Returns the report without the time.
    fn what(&self) -> String {
        match self {
            Self::Absent => "free".to_owned(),
            Self::Holds { value, .. } => {
                let (token, label) = split_value(value);
                format!("held by {}{}", Printable(token), Labelled(label.map(|label| label.as_str())))
            }
            Self::Shared { readers, .. } => Counted(*readers, "reader").to_string(),
            Self::Failed(failure) => failure.to_string(),
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
            Self::Unknown => "unknown: no quorum of masters gave a usable answer",
        })
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, holder) = (self.masters.len(), self.value());
        let count =
            |is: &dyn Fn(&KeyState) -> bool| self.masters.iter().filter(|(_, state)| is(state)).count();
        match self.status() {
            LockStatus::Free => {
                let count = count(&|state| matches!(state, KeyState::Absent));
                write!(f, "free on {count} of {all} masters")?;
            }
            LockStatus::Held => {
                let count = count(&|state| state.value() == holder);
                write!(f, "held on {count} of {all} masters{}", End(self.remaining()))?;
            }
            LockStatus::Shared => {
                let count = count(&|state| matches!(state, KeyState::Shared { .. }));
                write!(f, "shared by readers on {count} of {all} masters{}", End(self.remaining()))?;
            }
            LockStatus::Split => write!(f, "{} ({})", LockStatus::Split, Counted(all, "master"))?,
            LockStatus::Unknown => {
                let count = count(&|state| !matches!(state, KeyState::Failed(_)));
                write!(f, "unknown: {count} of {all} masters gave a usable answer, {} needed", quorum(all))?;
            }
        }
        if f.alternate() {
            self.lines().iter().try_for_each(|line| write!(f, "\n  {line}"))?;
        }
        Ok(())
    }
}

/// Time for which a lock is still held, as the end of a sentence.
struct End(HolderTtl);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            HolderTtl::Left(left) => write!(f, ", for at most {}", Rounded(left)),
            HolderTtl::Never => f.write_str(" without a TTL: no lock"),
            HolderTtl::Gone | HolderTtl::Unknown => Ok(()),
        }
    }
}

/// Result of a forced unlock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceUnlocked {
    /// Each master's answer: granted if it deleted a key, refused if it had none.
    pub report: Report,
}

impl ForceUnlocked {
    /// Returns the number of masters that deleted a key.
    #[must_use]
    pub fn deleted(&self) -> usize {
        self.report.granted()
    }

    /// Returns the number of masters that had no key.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.report.votes.iter().filter(|(_, vote)| matches!(vote, Vote::Refused { .. })).count()
    }

    /// Returns the number of masters that gave no answer or an error, and may still hold the key.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.report.votes.len() - self.deleted() - self.absent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspection(state: &[&str]) -> Inspection {
        let state = state.iter().map(|state| match *state {
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
        Inspection { masters: state.zip(1..).map(|(state, n)| (format!("m{n}").into(), state)).collect() }
    }

    // I76
    #[test]
    fn the_status_needs_a_quorum_of_configured_masters() {
        let left = |ms| HolderTtl::Left(Duration::from_millis(ms));
        for (state, status, remaining) in [
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
            let inspection = inspection(&state);
            assert_eq!((inspection.status(), inspection.remaining()), (status, remaining), "{state:?}");
            assert_eq!(inspection.is_held(), status == LockStatus::Held);
            assert_eq!(inspection.holder(), inspection.is_held().then_some(b"a".as_slice()));
        }
    }

    #[test]
    fn an_inspection_is_shown_in_one_line() {
        for (state, line, lines) in [
            (["", "", ""], "free on 3 of 3 masters", &["all 3 masters: free"][..]),
            (
                ["a 9", "a 7", ""],
                "held on 2 of 3 masters, for at most 7ms",
                &["m1, m2: held by a, for at most 9ms", "m3: free"],
            ),
            (
                ["a never", "a never", "\n 7"],
                "held on 2 of 3 masters without a TTL: no lock",
                &["m1, m2: held by a without a TTL: no lock", "m3: held by 0a, for at most 7ms"],
            ),
            (
                ["r", "", "r"],
                "shared by readers on 2 of 3 masters, for at most 9ms",
                &["m1, m3: 2 readers, for at most 9ms", "m2: free"],
            ),
            (
                ["a 9", "b 9", ""],
                "split: no quorum holds the same lock, and none is free of it (3 masters)",
                &["m1: held by a, for at most 9ms", "m2: held by b, for at most 9ms", "m3: free"],
            ),
            (
                ["?", "?", ""],
                "unknown: 1 of 3 masters gave a usable answer, 2 needed",
                &[
                    "m1, m2: not asked, as it still owes an earlier answer; check the master, or raise answer_timeout",
                    "m3: free",
                ],
            ),
        ] {
            let inspection = inspection(&state);
            assert_eq!(inspection.to_string(), line);
            assert_eq!(format!("{inspection:#}"), [&[line], lines].concat().join("\n  "));
            assert_eq!(redlatch_support::broken_rule(line), None);
        }
    }
}
