//! The table of claims.

use std::time::Instant;

use super::claim::Claim;
use super::slab::{Id, Slab};
use crate::limits;

/// Claims by their ids. An id that came with a reply may be stale, and so may that of an operation's latest attempt once it
/// has failed: these are looked for with [`Claims::find`]. Any other is of a claim that is there, and [`Claims::claim`]
/// asserts that.
#[derive(Debug)]
pub(super) struct Claims {
    table: Slab<Claim>,
}

impl Claims {
    pub(super) const fn new() -> Self {
        Self { table: Slab::new(limits::CLAIM_COUNT_MAX) }
    }

    /// Takes a slot with whatever its last claim left there; `None` if the table is full.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<(Id, &mut Claim)> {
        self.table.take(|| Claim::blank(now))
    }

    /// Frees a slot; ids of its claim find nothing from now on.
    #[inline]
    pub(super) fn free(&mut self, id: Id) {
        self.table.free(id);
    }

    /// The claim of an id that may be stale.
    #[inline]
    pub(super) fn find(&self, id: Id) -> Option<&Claim> {
        self.table.find(id)
    }

    #[inline]
    pub(super) fn find_mut(&mut self, id: Id) -> Option<&mut Claim> {
        self.table.find_mut(id)
    }

    /// The claim of an id that is in use: its operation holds it or acquires with it.
    #[inline]
    pub(super) fn claim(&self, id: Id) -> &Claim {
        self.table.find(id).unwrap_or_else(|| gone())
    }

    #[inline]
    pub(super) fn claim_mut(&mut self, id: Id) -> &mut Claim {
        self.table.find_mut(id).unwrap_or_else(|| gone())
    }

    /// The id of the claim in a slot, if there is one.
    pub(super) fn occupant(&self, place: u32) -> Option<Id> {
        self.table.occupant(place)
    }

    /// All ids as of now, for walking the table while changing it.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        self.table.ids()
    }

    /// Number of claims.
    pub(super) fn count(&self) -> usize {
        self.table.count()
    }

    /// Whether [`Claims::take`] would find no slot.
    pub(super) fn is_full(&self) -> bool {
        self.table.is_full()
    }
}

#[cold]
#[inline(never)]
fn gone() -> ! {
    panic!("a claim is gone while it is in use")
}
