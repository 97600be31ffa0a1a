//! Votes in, verdict out: the quorum table, and the earliest moment at which an outcome is certain.

use super::master_set::MasterSet;

/// Quorum of N masters, listed rather than computed so that a reader can check each row. Index 0 is unused.
const QUORUM: [usize; 33] = [
    0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, //
    9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 16, 16, 17,
];

/// Returns the quorum of `master_count` configured masters: a majority, no matter how many are reachable
/// (I4).
///
/// # Panics
/// If `master_count` is 0 or above 32 ([`crate::limits::MASTER_COUNT_MAX`]), which no configuration allows.
#[must_use]
pub const fn quorum(master_count: usize) -> usize {
    assert!(master_count >= 1 && master_count < QUORUM.len());
    QUORUM[master_count]
}

/// The votes of one round; each master is in at most one set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Masters that granted.
    pub granted: MasterSet,
    /// Masters that refused.
    pub refused: MasterSet,
    /// Masters that failed.
    pub failed: MasterSet,
}

/// Outcome of a round, if it is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A quorum granted.
    Granted,
    /// A quorum is out of reach, although enough masters answered or may still answer: somebody else holds
    /// keys.
    Contended,
    /// A quorum is out of reach because too many masters failed or do not count.
    NoQuorum,
    /// Later votes decide.
    Open,
}

impl Tally {
    /// Returns the verdict over `master_count` masters. Votes of `quarantined` masters do not count (I8).
    #[must_use]
    pub(crate) fn verdict(&self, master_count: usize, quarantined: MasterSet) -> Verdict {
        let needed = quorum(master_count);
        if quarantined.is_empty() && self.granted.has(needed) {
            return Verdict::Granted;
        }
        let spare = master_count - needed;
        let missing = self.failed.union(quarantined);
        if self.granted.without(quarantined).count() >= needed {
            Verdict::Granted
        } else if missing.count() > spare {
            Verdict::NoQuorum
        } else if missing.union(self.refused).count() > spare {
            Verdict::Contended
        } else {
            Verdict::Open
        }
    }

    /// Returns the masters that have voted.
    #[must_use]
    pub(crate) const fn heard(&self) -> MasterSet {
        self.granted.union(self.refused).union(self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::MasterId;

    // I4
    #[test]
    fn quorum_table_is_a_strict_majority() {
        for count in 1..=32 {
            assert_eq!(quorum(count), count / 2 + 1, "{count} masters");
        }
    }

    /// Every assignment of {silent, granted, refused, failed} × {counted, quarantined} to up to five masters.
    #[test]
    fn the_verdict_agrees_with_counting_by_hand() {
        for count in 1..=5_usize {
            for case in 0..8_usize.pow(u32::try_from(count).expect("small")) {
                let (mut tally, mut quarantined) = (Tally::default(), MasterSet::EMPTY);
                let (mut yes, mut no, mut missing) = (0, 0, 0);
                for index in 0..count {
                    let master = MasterId::new(index).expect("small");
                    let kind = case / 8_usize.pow(u32::try_from(index).expect("small")) % 8;
                    match kind % 4 {
                        1 => tally.granted.insert(master),
                        2 => tally.refused.insert(master),
                        3 => tally.failed.insert(master),
                        _ => {}
                    }
                    if kind >= 4 {
                        quarantined.insert(master);
                        missing += 1;
                    } else {
                        yes += usize::from(kind == 1);
                        no += usize::from(kind == 2);
                        missing += usize::from(kind == 3);
                    }
                }
                let majority = count / 2 + 1;
                let expected = if yes >= majority {
                    Verdict::Granted
                } else if count - missing < majority {
                    Verdict::NoQuorum
                } else if count - missing - no < majority {
                    Verdict::Contended
                } else {
                    Verdict::Open
                };
                assert_eq!(
                    tally.verdict(count, quarantined),
                    expected,
                    "{count} masters, case {case}: {tally:?}"
                );
            }
        }
    }
}
