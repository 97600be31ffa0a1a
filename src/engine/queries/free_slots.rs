//! Slots of a pool that a quorum of masters reports as free.

use crate::mutants::mutant;

/// The reports so far. A master reports a slot at most once that counts.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    /// The number of slots.
    count: u32,
    quorum: usize,
    reports: usize,
    /// The slots of all reports, sorted.
    slots: Vec<u32>,
}

impl FreeSlots {
    pub(crate) const fn new(count: u32, quorum: usize) -> Self {
        Self { count, quorum, reports: 0, slots: Vec::new() }
    }

    /// Takes the report of one master.
    pub(crate) fn add(&mut self, mut slots: Vec<u32>) {
        slots.sort_unstable();
        slots.dedup();
        self.reports += 1;
        self.slots.extend(slots.into_iter().filter(|slot| *slot < self.count));
        self.slots.sort_unstable();
    }

    /// Whether as many reports as are still to come change nothing: some slots are free on a quorum, or none
    /// can be.
    pub(crate) fn is_decided(&self, to_come: usize) -> bool {
        let most = self.slots.chunk_by(u32::eq).map(<[u32]>::len).max().unwrap_or(0);
        most >= self.quorum || most + to_come < self.quorum && self.reports >= self.quorum
    }

    /// The slots that a quorum reports as free; `None` with fewer reports than a quorum.
    pub(crate) fn into_slots(self) -> Option<Vec<u32>> {
        let mut needed = self.quorum;
        if mutant!(FreeOnAnyMaster) {
            needed = 1;
        }
        let free = self.slots.chunk_by(u32::eq).filter(|reports| reports.len() >= needed);
        (self.reports >= self.quorum).then(|| free.map(|reports| reports[0]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reports: &[&[u32]]) -> FreeSlots {
        let mut free = FreeSlots::new(8, 2);
        reports.iter().for_each(|slots| free.add(slots.to_vec()));
        free
    }

    #[test]
    fn a_slot_is_free_where_a_quorum_says_so() {
        assert_eq!(after(&[&[3, 1], &[5, 3]]).into_slots(), Some(vec![3]));
        assert_eq!(after(&[&[3, 1], &[5], &[1, 9, 7]]).into_slots(), Some(vec![1]));
        assert_eq!(
            after(&[&[9, 3, 3], &[9]]).into_slots(),
            Some(vec![]),
            "one master twice, none of the pool"
        );
        assert_eq!(after(&[&[3]]).into_slots(), None);
    }

    #[test]
    fn a_look_ends_when_the_rest_changes_nothing() {
        assert!(!after(&[&[3]]).is_decided(2));
        assert!(after(&[&[3], &[3]]).is_decided(1));
        assert!(after(&[&[], &[]]).is_decided(1));
        assert!(!after(&[&[3], &[4]]).is_decided(1), "the third may have one of them");
        assert!(!after(&[&[]]).is_decided(1), "the second may be the quorum");
    }
}
