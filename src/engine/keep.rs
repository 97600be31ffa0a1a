//! Keeping a lock that is held: its renewals, and the report of its loss.
//!
//! The loss is reported by the local clock, a tenth of the validity before it ends, whatever the masters
//! answer; or at once, when masters that cannot have the key leave no quorum.

use std::time::{Duration, Instant};

use super::ground::Ground;
use super::locks::Locks;
use super::masters::Masters;
use super::op::{Held, Op};
use super::renewal::{Extended, Renewal};
use super::slab::Id;
use super::{Outcome, counting, hold};
use crate::error::ExtendError;
use crate::limits;
use crate::lock::Ttl;
use crate::mutants::mutant;

/// Keeps a held lock from now on, for `max_hold` in all.
pub(super) fn begin_renewal(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    since: Instant,
    max_hold: Duration,
) {
    let held = locks.ops.get_mut(id).held_mut().expect("a lock that is kept is held");
    let max_hold = max_hold.min(ground.config.max_hold);
    let hold_until = since.checked_add(max_hold).unwrap_or(since + limits::FOREVER);
    let renewal = held.renewal.insert(Renewal::new(held.ttl, hold_until));
    renewal.plan(ground.now, since, held.ttl, ground.ticks, &mut ground.rng);
    locks.arm(ground, id);
}

/// Reports each renewal of a held lock from now on; also that none follows, if the last one was before
/// this.
#[cold]
#[inline(never)]
pub(super) fn submit_report_renewals(ground: &mut Ground, locks: &mut Locks, id: Id) {
    if let Some(op) = locks.ops.find_mut(id)
        && let Some(Held { renewal: Some(renewal), valid_until, extension, .. }) = op.held_mut()
    {
        renewal.is_reported = true;
        if extension.is_none() && ground.now < *valid_until {
            report_renewals_end(ground, locks, id);
        }
    }
}

/// Reports the loss of a held lock, once.
pub(super) fn submit_notify_loss(ground: &mut Ground, locks: &mut Locks, id: Id) {
    if let Some(held) = locks.ops.find_mut(id).and_then(Op::held_mut) {
        held.notifies_loss = true;
        locks.arm(ground, id);
    }
}

/// Something may be due for a lock that is held.
pub(super) fn handle_held_timeout(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let held = locks.held(id);
    if held.extension.is_some_and(|extension| extension.deadline <= now) {
        hold::miss_extend(ground, masters, locks, id);
    }
    if locks.held(id).warn_at().is_some_and(|at| at <= now) {
        report_loss(ground, locks, id);
    }
    let held = locks.held(id);
    let is_due = held.renewal.and_then(|renewal| renewal.renew_at).is_some_and(|at| at <= now);
    if is_due && held.extension.is_none() {
        renew(ground, masters, locks, id);
    }
}

/// Sends an extension whose outcome is reported only if the caller asked for it. It is one like the
/// caller's own, which replaces it; one that fails is tried again until the validity ends.
fn renew(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let Some(Held { renewal: Some(renewal), valid_until, .. }) = op.held_mut() else {
        unreachable!("only a held lock that is kept is renewed")
    };
    let Some(ttl) = renewal.next_ttl(ground.now, *valid_until, ground.config.drift, ground.config.max_ttl)
    else {
        return report_renewals_end(ground, locks, id);
    };
    extend_as_renewal(ground, masters, locks, id, ttl);
}

/// Sends an extension that nobody but the keeping of the lock asks for.
pub(super) fn extend_as_renewal(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    ttl: Ttl,
) {
    if let Err(error) = hold::start_extend(ground, masters, locks, id, ttl) {
        // The validity has ended, or the longest hold is reached.
        return report_renewal(ground, locks, id, &Err(error));
    }
    if let Some(Held { valid_until, extension: Some(extension), .. }) = locks.ops.get_mut(id).held_mut() {
        extension.is_renewal = true;
        if mutant!(RenewalWithoutLimit) {
            extension.deadline = *valid_until;
        }
    }
    hold::decide_extend(ground, masters, locks, id);
}

/// An extension has its verdict: plans what follows for a lock that is kept.
pub(super) fn follow_extension(ground: &mut Ground, locks: &mut Locks, id: Id, is_extended: bool) {
    let op = locks.ops.get_mut(id);
    let ttl = op.asked.ttl;
    let held = op.held_mut().expect("it was held to be extended");
    let (valid_until, held_ttl) = (held.valid_until, held.ttl);
    let Some(renewal) = &mut held.renewal else { return };
    let extended = Extended { valid_until, ttl, held_ttl, is_extended };
    renewal.follow(ground.now, extended, ground.config.drift, ground.ticks, &mut ground.rng);
    if ground.now < valid_until {
        report_renewals_end(ground, locks, id);
    }
    locks.arm(ground, id);
}

/// Reports how a renewal ended, if the caller asked for it.
pub(super) fn report_renewal(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    result: &Result<Instant, ExtendError>,
) {
    if locks.held(id).renewal.is_some_and(|renewal| renewal.is_reported) {
        ground.report_outcome(id, Outcome::Renewal(result.clone()));
    }
}

/// Reports that the longest hold lets no renewal follow, if that is so.
fn report_renewals_end(ground: &mut Ground, locks: &mut Locks, id: Id) {
    if let Held { renewal: Some(renewal), since, .. } = locks.held(id)
        && renewal.renew_at.is_none()
        && !mutant!(RenewalEndUnreported)
    {
        let limit = ExtendError::HoldLimit { max_hold: renewal.hold_until - *since };
        report_renewal(ground, locks, id, &Err(limit));
    }
}

/// Reports, once, that a lock is lost or about to be, and keeps it no longer.
pub(super) fn report_loss(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let Some(held) = locks.ops.get_mut(id).held_mut() else { return };
    let valid_until = held.valid_until;
    if std::mem::take(&mut held.notifies_loss) {
        if !mutant!(KeptAfterLoss) {
            held.renewal = None;
        }
        ground.report_outcome(id, Outcome::Lost(valid_until));
        counting::note_near_loss(ground, locks, id, valid_until.saturating_duration_since(ground.now));
    }
}
