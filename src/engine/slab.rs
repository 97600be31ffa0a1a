//! A table of reused slots whose ids tell one occupant from the next.

/// The place of an entry and the generation of its occupant; an id of an earlier occupant finds nothing (I7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) index: u32,
    generation: u32,
}

impl Id {
    /// An id that nobody ever has.
    pub(super) const NOBODY: Self = Self { index: u32::MAX, generation: 0 };
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    taken: bool,
    value: Option<T>,
}

/// Values stay in their slots when freed, so that the next occupant can reuse their memory.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    count_max: usize,
}

impl<T> Slab<T> {
    pub(super) const fn new(count_max: usize) -> Self {
        assert!(count_max < u32::MAX as usize);
        Self { slots: Vec::new(), free: Vec::new(), count_max }
    }

    /// How many slots are taken.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether [`Slab::insert`] would find no slot.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.count_max
    }

    /// Puts in what `make` builds from the slot's last value, whose memory it can reuse; `None` if the table is full.
    #[expect(clippy::cast_possible_truncation, reason = "count_max is below u32::MAX")]
    pub(super) fn insert(&mut self, make: impl FnOnce(Option<T>) -> T) -> Option<Id> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, taken: false, value: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(make(slot.value.take()));
        slot.taken = true;
        Some(Id { index, generation: slot.generation })
    }

    /// Frees a slot; ids of its occupant find nothing from now on.
    pub(super) fn free(&mut self, id: Id) {
        if let Some(slot) = self.slots.get_mut(id.index as usize)
            && slot.taken
            && slot.generation == id.generation
        {
            slot.taken = false;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    pub(super) fn find(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation && slot.taken { slot.value.as_ref() } else { None }
    }

    pub(super) fn find_mut(&mut self, id: Id) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation && slot.taken { slot.value.as_mut() } else { None }
    }

    /// The id of whoever is in a slot now.
    pub(super) fn occupant(&self, index: u32) -> Option<Id> {
        let slot = self.slots.get(index as usize)?;
        slot.taken.then_some(Id { index, generation: slot.generation })
    }

    /// All ids as of now, for walking the table while changing it.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> + use<T> {
        let taken: Vec<Id> =
            (0..self.slots.len()).filter_map(|index| self.occupant(u32::try_from(index).ok()?)).collect();
        taken.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_an_earlier_occupant_finds_nothing() {
        let mut slab = Slab::<Vec<u8>>::new(2);
        let first = slab.insert(|old| old.unwrap_or(vec![7])).expect("room");
        slab.free(first);
        slab.free(first);
        assert_eq!((slab.count(), slab.find(first)), (0, None));
        let second = slab.insert(|old| old.expect("the memory is reused")).expect("room");
        assert_eq!((second.index, slab.find(second)), (first.index, Some(&vec![7])));
        assert_eq!(slab.find(first), None);
        assert_eq!(slab.find_mut(first), None);
        let third = slab.insert(|_| Vec::new()).expect("room");
        assert!(slab.is_full() && slab.insert(|_| Vec::new()).is_none(), "the limit holds");
        assert_eq!(slab.ids().collect::<Vec<_>>(), [second, third]);
    }
}
