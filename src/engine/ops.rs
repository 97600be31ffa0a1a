//! The table of operations.

use std::time::Instant;

use super::op::Op;
use super::slab::{Id, Slab};
use crate::limits;
use crate::lock::Ttl;

/// Operations by their ids. An id that came from a caller or with a reply may be stale, so it is looked for
/// with [`Ops::find`]; any other is of an operation that is there, and [`Ops::op`] asserts that.
#[derive(Debug)]
pub(super) struct Ops {
    table: Slab<Op>,
}

impl Ops {
    pub(super) const fn new() -> Self {
        Self { table: Slab::new(limits::OPERATION_COUNT_MAX) }
    }

    /// Takes a slot with whatever its last operation left there; `None` if the table is full.
    #[inline]
    pub(super) fn take(&mut self, now: Instant, ttl: Ttl) -> Option<(Id, &mut Op)> {
        self.table.take(|| Op::blank(now, ttl))
    }

    /// Frees a slot; ids of its operation find nothing from now on.
    #[inline]
    pub(super) fn free(&mut self, id: Id) {
        self.table.free(id);
    }

    /// The operation of an id that may be stale.
    #[inline]
    pub(super) fn find(&self, id: Id) -> Option<&Op> {
        self.table.find(id)
    }

    #[inline]
    pub(super) fn find_mut(&mut self, id: Id) -> Option<&mut Op> {
        self.table.find_mut(id)
    }

    /// The operation of an id that is in use.
    #[inline]
    pub(super) fn op(&self, id: Id) -> &Op {
        self.table.find(id).unwrap_or_else(|| gone())
    }

    #[inline]
    pub(super) fn op_mut(&mut self, id: Id) -> &mut Op {
        self.table.find_mut(id).unwrap_or_else(|| gone())
    }

    /// The id of the operation in a slot, if there is one.
    pub(super) fn occupant(&self, place: u32) -> Option<Id> {
        self.table.occupant(place)
    }

    /// The id of the operation in a slot that is known to be taken: it is in a queue.
    pub(super) fn id_at(&self, place: u32) -> Id {
        self.table.occupant(place).unwrap_or_else(|| gone())
    }

    /// All ids as of now, for walking the table while changing it.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        self.table.ids()
    }

    /// Number of operations.
    pub(super) fn count(&self) -> usize {
        self.table.count()
    }
}

#[cold]
#[inline(never)]
fn gone() -> ! {
    panic!("an operation is gone while it is in use")
}
