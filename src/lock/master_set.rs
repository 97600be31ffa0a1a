//! Masters, as places in the configured list, and sets of masters.

use std::fmt;

use crate::limits;

/// Place of a master in the configured list, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterId(u8);

impl MasterId {
    /// Returns the master at `index` of the list; `None` from 32 on, the largest number of masters.
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
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns the first `count` masters of the list.
    #[must_use]
    pub const fn first(count: usize) -> Self {
        if count >= 32 { Self(u32::MAX) } else { Self((1 << count) - 1) }
    }

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
        // Counting is slow without a CPU instruction for it, and many sets are empty.
        if self.0 == 0 { 0 } else { self.0.count_ones() as usize }
    }

    /// Returns whether the set has at least `count` masters. Cheaper than counting if `count` is small.
    #[inline]
    #[must_use]
    pub const fn has(self, count: usize) -> bool {
        // Avoids counting for the usual quorums.
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
