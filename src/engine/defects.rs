//! Code of deliberate defects alone. The switches stand where the rules are kept; `mutants.rs` lists them.

use super::ground::Ground;
use super::kind::Kind;
use super::locks::Locks;
use super::masters::Masters;
use super::mode::ModeState;
use super::op::Op;
use super::slab::Id;
use super::{keep, queries};
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

/// The votes for one fencing token count for the next one.
#[cold]
pub(super) fn keep_votes(locks: &mut Locks, id: Id, granted: MasterSet) {
    locks.claims.get_mut(locks.ops.get(id).claim).tally.granted = granted;
}

/// A lock that is handed over has a fencing token that no master knows.
#[cold]
pub(super) fn feign_token(ground: &mut Ground, locks: &mut Locks, id: Id, claim: Id) {
    let (op, claim) = (locks.ops.get_mut(id), locks.claims.get_mut(claim));
    if let ModeState::Fenced(fencing) = &mut op.mode {
        claim.kind =
            Kind::Fenced(fencing.begin_attempt(ground.wall_clock.masters_us(ground.now), MasterSet::EMPTY));
    }
}

/// A release leaves the connection of its `SET`.
#[cold]
pub(super) fn release_on_other_connection(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
) {
    let Some(claim) = locks.claims.find(id) else { return };
    let is_answered = claim.tally.granted.union(claim.tally.refused);
    for master in claim.asked.without(is_answered).iter() {
        masters.fleet.fail(ground, master, "a release takes another connection");
        locks.claims.ids().for_each(|id| locks.claims.get_mut(id).note_stray(master, true));
    }
}

/// The forced deletions that a lost connection owed go out over the next one.
#[cold]
pub(super) fn repeat_forced_deletions(masters: &mut Masters, locks: &mut Locks, master: MasterId) {
    for id in locks.ops.ids() {
        if queries::query_at(locks, master, id).is_some() {
            queries::send_forced_deletion(masters, locks, MasterSet::only(master), id);
        }
    }
}

/// The release of a held lock is reported as its loss, or does not end its renewals.
#[inline(always)]
pub(super) fn keeps_on(ground: &mut Ground, locks: &mut Locks, id: Id) -> bool {
    if mutant!(ReleaseReportedAsLoss) && locks.ops.find(id).is_some() {
        keep::report_loss(ground, locks, id);
    }
    mutant!(RenewedAfterRelease)
        && locks.ops.find(id).and_then(Op::held).is_some_and(|held| held.renewal.is_some())
}
