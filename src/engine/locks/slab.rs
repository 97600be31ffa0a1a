//! A table of reused slots. An id distinguishes one occupant of a slot from the next.

/// A slot and the generation of its occupant. An id of an earlier occupant finds nothing (I7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) index: u32,
    generation: u32,
}

impl Id {
    /// An id of no entry: an even generation marks a free slot.
    pub(crate) const NOBODY: Self = Self { index: u32::MAX, generation: 0 };

    /// Returns the id as bytes, for a caller that passes it back.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.index.to_le_bytes(), self.generation.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// Returns the id with these bytes, which may be arbitrary. An even generation gives `None`: in a free
    /// slot it would find the last occupant's value.
    pub(crate) fn from_bytes([a, b, c, d, e, f, g, h]: [u8; 8]) -> Option<Self> {
        let (index, generation) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        (generation % 2 == 1).then_some(Self { index, generation })
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// Odd while the slot is taken. Grows by one whenever the slot is taken or freed.
    generation: u32,
    value: T,
}

/// A freed value stays in its slot, so that the next occupant can reuse its memory. Use [`Slab::find`] for an
/// id that may be stale, and [`Slab::get`] for the id of an existing entry, which it asserts.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    count_max: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new(count_max: usize) -> Self {
        assert!(count_max < u32::MAX as usize);
        Self { slots: Vec::new(), free: Vec::new(), count_max }
    }

    /// Returns the number of taken slots.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether [`Slab::take`] would find no slot.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.count_max
    }

    /// Takes a slot with the last occupant's value, or a new one with `blank`. `None` if the table is full.
    #[inline]
    pub(crate) fn take(&mut self, blank: impl FnOnce() -> T) -> Option<(Id, &mut T)> {
        if self.free.is_empty() && !self.add_slot(blank) {
            return None;
        }
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        Some((Id { index, generation: slot.generation }, &mut slot.value))
    }

    #[cold]
    #[expect(clippy::cast_possible_truncation, reason = "count_max is below u32::MAX")]
    fn add_slot(&mut self, blank: impl FnOnce() -> T) -> bool {
        let has_room = self.slots.len() < self.count_max;
        if has_room {
            // Reserves room for every slot, so that freeing never allocates.
            self.free.reserve(self.slots.len() + 1);
            self.free.push(self.slots.len() as u32);
            self.slots.push(Slot { generation: 0, value: blank() });
        }
        has_room
    }

    /// Frees a slot. Its occupant's id then finds nothing.
    #[inline]
    pub(crate) fn free(&mut self, id: Id) {
        if let Some(slot) = self.slots.get_mut(id.index as usize)
            && slot.generation == id.generation
        {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    /// Returns the entry of an id that may be stale, because it came from a caller or with a reply.
    #[inline]
    pub(crate) fn find(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { Some(&slot.value) } else { None }
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, id: Id) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { Some(&mut slot.value) } else { None }
    }

    /// Returns the entry of an id in use.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> &T {
        self.find(id).unwrap_or_else(|| gone())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> &mut T {
        self.find_mut(id).unwrap_or_else(|| gone())
    }

    /// Returns the entry in a taken slot.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &T {
        self.slots
            .get(index as usize)
            .filter(|slot| slot.generation % 2 == 1)
            .map_or_else(|| gone(), |slot| &slot.value)
    }

    /// Returns the id of a slot's current occupant.
    pub(crate) fn occupant(&self, index: u32) -> Option<Id> {
        let generation = self.slots.get(index as usize)?.generation;
        (generation % 2 == 1).then_some(Id { index, generation })
    }

    /// Returns the id of the occupant of a taken slot.
    pub(crate) fn id_at(&self, index: u32) -> Id {
        self.occupant(index).unwrap_or_else(|| gone())
    }

    /// Returns the current ids, so that the caller can change the table while iterating.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> + use<T> {
        let taken: Vec<Id> =
            (0..self.slots.len()).filter_map(|index| self.occupant(u32::try_from(index).ok()?)).collect();
        taken.into_iter()
    }
}

/// A rare part of a slot's value, in a box. The box stays for the next occupant that needs one. Only as large
/// as a pointer, to keep the slot small.
#[derive(Debug)]
pub(crate) struct Kept<T>(Option<Box<Boxed<T>>>);

#[derive(Debug)]
struct Boxed<T> {
    /// Whether the part belongs to the current occupant of the slot.
    is_there: bool,
    part: T,
}

impl<T> Kept<T> {
    pub(crate) const NONE: Self = Self(None);

    /// Gives the occupant the part that `make` returns. `make` may take memory out of an earlier occupant's
    /// part.
    pub(crate) fn put(&mut self, make: impl FnOnce(Option<&mut T>) -> T) {
        let part = make(self.0.as_mut().map(|boxed| &mut boxed.part));
        let boxed = Boxed { is_there: true, part };
        match &mut self.0 {
            Some(memory) => **memory = boxed,
            none => *none = Some(Box::new(boxed)),
        }
    }

    /// Takes the part from the occupant, but keeps the memory.
    #[inline(always)]
    pub(crate) const fn clear(&mut self) {
        if let Some(boxed) = &mut self.0 {
            boxed.is_there = false;
        }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.as_ref().is_some()
    }

    pub(crate) fn is_none(&self) -> bool {
        self.as_ref().is_none()
    }

    pub(crate) fn as_ref(&self) -> Option<&T> {
        self.0.as_ref().filter(|boxed| boxed.is_there).map(|boxed| &boxed.part)
    }

    pub(crate) fn as_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut().filter(|boxed| boxed.is_there).map(|boxed| &mut boxed.part)
    }
}

#[cold]
#[inline(never)]
fn gone() -> ! {
    panic!("an entry is gone while it is in use")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_an_earlier_occupant_finds_nothing() {
        let mut slab = Slab::<Vec<u8>>::new(2);
        let first = slab.take(|| vec![7]).expect("room").0;
        slab.free(first);
        slab.free(first);
        assert_eq!((slab.count(), slab.find(first)), (0, None));
        let (second, value) = slab.take(|| unreachable!("the memory is reused")).expect("room");
        assert_eq!((second.index, value.as_slice()), (first.index, [7].as_slice()));
        assert_eq!(slab.find(first), None);
        assert_eq!(slab.find_mut(first), None);
        let third = slab.take(Vec::new).expect("room").0;
        assert!(slab.is_full() && slab.take(Vec::new).is_none(), "the limit holds");
        assert_eq!(slab.ids().collect::<Vec<_>>(), [second, third]);
    }

    #[test]
    fn cleared_part_keeps_its_memory() {
        let mut kept = Kept::<Vec<u8>>::NONE;
        kept.put(|over| {
            assert_eq!(over, None);
            Vec::with_capacity(7)
        });
        kept.clear();
        assert!(kept.is_none() && kept.as_ref().is_none() && kept.as_mut().is_none());
        kept.put(|over| std::mem::take(over.expect("the last one")));
        assert!(kept.is_some());
        assert_eq!(kept.as_ref().map(Vec::capacity), Some(7));
    }
}
