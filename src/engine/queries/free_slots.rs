//! The slots of a pool, as a quorum of masters reports them.

use std::sync::Arc;

use crate::lock::command::slots::{FREE, SlotMark};
use crate::lock::{Failure, HolderTtl, MasterId, Vote};

/// Result of a search for a pool's free slots.
///
/// Exhaustive: a caller must treat each case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotLook {
    /// Slots that a quorum of masters reports as free, at least one, in no order.
    Free(Vec<u32>),
    /// No slot is free: a quorum of masters reports the same holder for each.
    Taken,
    /// No slot is free on a quorum, and the masters differ: other callers are acquiring or releasing slots.
    Contested,
    /// Fewer masters than a quorum have reported. Lists each master's name and the reason; a master that has
    /// reported is listed as a refusal.
    Unknown(Vec<(Arc<str>, Vote)>),
}

#[derive(Debug)]
pub(crate) struct FreeSlots {
    count: u32,
    /// Slot at the first place.
    from: u32,
    quorum: usize,
    /// Marks by place, of each master that has reported. A report ends where the master stopped looking.
    reports: Vec<Vec<SlotMark>>,
    /// Why the other masters have no report.
    failures: Vec<(MasterId, Failure)>,
}

/// How many masters agree about a slot.
struct Tally {
    free: usize,
    /// Masters that report the same holder.
    taken: usize,
}

impl FreeSlots {
    pub(crate) const fn new(count: u32, from: u32, quorum: usize) -> Self {
        Self { count, from, quorum, reports: Vec::new(), failures: Vec::new() }
    }

    pub(crate) fn add(&mut self, report: Vec<SlotMark>) {
        self.reports.push(report);
    }

    pub(crate) fn fail(&mut self, master: MasterId, failure: Failure) {
        self.failures.push((master, failure));
    }

    /// Whether the search is decided with `to_come` reports missing: a slot is free, or no missing report can
    /// free one or settle that all are taken.
    pub(crate) fn is_decided(&self, to_come: usize) -> bool {
        let may_be = |count: usize| count + to_come >= self.quorum;
        match self.look(&[]) {
            SlotLook::Free(_) | SlotLook::Taken => true,
            SlotLook::Unknown(_) => false,
            SlotLook::Contested => {
                !self.tallies().any(|it| may_be(it.free)) && !self.tallies().all(|it| may_be(it.taken))
            }
        }
    }

    pub(crate) fn look(&self, labels: &[Arc<str>]) -> SlotLook {
        if self.reports.len() < self.quorum {
            return SlotLook::Unknown(self.votes(labels));
        }
        let free = (0..).zip(self.tallies()).filter(|(_, tally)| tally.free >= self.quorum);
        let free: Vec<u32> = free.map(|(place, _)| (self.from + place) % self.count).collect();
        if !free.is_empty() {
            SlotLook::Free(free)
        } else if self.tallies().all(|it| it.taken >= self.quorum) {
            SlotLook::Taken
        } else {
            SlotLook::Contested
        }
    }

    fn votes(&self, labels: &[Arc<str>]) -> Vec<(Arc<str>, Vote)> {
        let vote = |(index, label): (usize, &Arc<str>)| {
            let failed = self.failures.iter().find(|(master, _)| master.index() == index);
            let reported = Vote::Refused { holder: HolderTtl::Unknown };
            (label.clone(), failed.map_or(reported, |(_, failure)| Vote::Failed(failure.clone())))
        };
        labels.iter().enumerate().map(vote).collect()
    }

    /// Returns the tally of each place.
    fn tallies(&self) -> impl Iterator<Item = Tally> {
        (0..self.count as usize).map(|place| {
            let marks = || self.reports.iter().filter_map(move |report| report.get(place));
            let alike = |mark: &SlotMark| marks().filter(|it| *it == mark).count();
            let holders = marks().filter(|mark| **mark != FREE);
            Tally { free: alike(&FREE), taken: holders.map(alike).max().unwrap_or(0) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports about three slots, beginning with slot 2. Each letter is a holder, `.` a free slot.
    fn after(reports: &[&str]) -> FreeSlots {
        let mut free = FreeSlots::new(3, 2, 2);
        reports.iter().for_each(|report| free.add(report.bytes().map(|letter| [letter; 4]).collect()));
        free
    }

    // I78
    #[test]
    fn a_slot_is_free_where_a_quorum_says_so() {
        for (reports, look) in [
            (&["a..", ".b."][..], SlotLook::Free(vec![1])),
            (&[".bc", "abc", ".bc"], SlotLook::Free(vec![2])),
            (&["...", "."], SlotLook::Free(vec![2])),
            (&["abc.", "abc."], SlotLook::Taken),
            (&["abc", "bbc", ".b."], SlotLook::Contested),
            (&["a"], SlotLook::Unknown(Vec::new())),
        ] {
            assert_eq!(after(reports).look(&[]), look, "{reports:?}");
        }
    }

    // I79
    #[test]
    fn slots_are_taken_by_holders_that_a_quorum_knows() {
        let look = |reports: &[&str]| after(reports).look(&[]);
        // No two masters agree about all slots.
        assert_eq!(look(&["ab.", ".bc", "a.c"]), SlotLook::Taken);
        assert_eq!(look(&["abc", "abc", "abd"]), SlotLook::Taken);
        assert_eq!(look(&["abc", "abd", "abe"]), SlotLook::Contested, "the votes for one are split");
        assert_eq!(look(&["ab.", "abc"]), SlotLook::Contested);
    }

    #[test]
    fn look_ends_once_remaining_answers_cannot_matter() {
        assert!(!after(&["."]).is_decided(2), "there is no quorum");
        assert!(after(&["abc", "abc"]).is_decided(1));
        assert!(after(&["ab.", "cb."]).is_decided(1));
        assert!(!after(&["abc", "bbc"]).is_decided(1), "the third may agree with one of them");
        assert!(!after(&["ab.", "abc"]).is_decided(1), "the third may say that it is free");
        assert!(after(&["abc", "bca", "cab"]).is_decided(0));
    }
}
