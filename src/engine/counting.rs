//! Counters, times and events of locks and masters, where a flow has to do more than to increase a number.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::ground::Ground;
use super::locks::Locks;
use super::masters::Masters;
use super::op::Held;
use super::renewal::loss_lead;
use super::slab::Id;
use super::{Outcome, SubmitError, turns};
use crate::error::AcquireError;
use crate::event::Event;
use crate::lock::{MasterId, Resource, Ttl};
use crate::mutants::mutant;

/// Ends an acquisition that did not get the lock.
pub(super) fn end_denied(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    error: AcquireError,
) {
    let op = locks.ops.get(id);
    if op.has_waited() {
        ground.stats.wait_time.record(ground.now.saturating_duration_since(op.asked.submitted));
    }
    ground.stats.count_denial(&error);
    if ground.events.is_observed {
        let (resource, error) = (locks.name_of(&ground.config, id), error.clone());
        ground.events.push(|| Event::Denied { resource, error });
    }
    turns::end_op(ground, masters, locks, id);
    ground.report_outcome(id, Outcome::Acquire(Err(error)));
}

/// There is no room for an acquisition.
#[cold]
pub(super) fn refuse_acquisition(ground: &mut Ground, resource: Resource<'_>) -> SubmitError {
    ground.stats.overloaded += 1;
    ground.events.push(|| {
        let resource = Bytes::copy_from_slice(resource.as_bytes());
        Event::Denied { resource, error: AcquireError::Overloaded }
    });
    SubmitError::Overloaded
}

/// A lock was acquired of which more is to be noted.
#[cold]
#[inline(never)]
pub(super) fn note_acquired(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    let (took, attempts) = (ground.now.saturating_duration_since(op.asked.submitted), op.tries.count);
    if op.is_timed {
        ground.stats.acquire_time.record(took);
    }
    if op.has_waited() {
        ground.stats.wait_time.record(took);
    }
    if ground.events.is_observed {
        let resource = locks.name_of(&ground.config, id);
        ground.events.push(|| Event::Acquired { resource, attempts, took });
    }
}

/// A held lock is released, or an attempt given up: counts it, and notes what is to be noted.
#[cold]
#[inline(never)]
pub(super) fn note_ended(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let Some(&Held { since, valid_until, is_counted, .. }) = locks.ops.get(id).held() else {
        ground.stats.abandoned += 1;
        return;
    };
    if is_counted || ground.now >= valid_until {
        return note_lost(ground, locks, id);
    }
    ground.stats.released += 1;
    note_hold(ground, locks, id, ground.now.saturating_duration_since(since), |resource, held| {
        Event::Released { resource, held }
    });
}

/// A master has answered an attempt whose round trip is measured.
pub(super) fn note_round_trip(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
) {
    if let Some(claim) = locks.claims.find(id) {
        let round_trip = ground.now.saturating_duration_since(claim.started);
        masters.fleet.note_round_trip(master, round_trip);
    }
}

/// A lock is left to its TTL or for a time, after it was `held` so long; or masters showed that it was
/// lost before.
#[cold]
pub(super) fn note_left(ground: &mut Ground, locks: &mut Locks, id: Id, held: Duration, is_lost: bool) {
    if is_lost {
        ground.stats.lost += 1;
        note_hold(ground, locks, id, held, |resource, held| Event::Lost { resource, held });
    } else {
        ground.stats.left += 1;
        note_hold(ground, locks, id, held, |resource, held| Event::Left { resource, held });
    }
}

/// A held lock is over without a release. Counts it once.
#[cold]
pub(super) fn note_lost(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let held = locks.ops.get_mut(id).held_mut().expect("it was held");
    let (since, valid_until) = (held.since, held.valid_until);
    if std::mem::replace(&mut held.is_counted, true) || mutant!(LossUncounted) {
        return;
    }
    ground.stats.lost += 1;
    note_hold(
        ground,
        locks,
        id,
        ground.now.min(valid_until).saturating_duration_since(since),
        |resource, held| Event::Lost { resource, held },
    );
}

/// A lock was held for so long: records the time if it is timed, and the event of its end.
fn note_hold(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    held: Duration,
    event: fn(Bytes, Duration) -> Event,
) {
    if locks.ops.get(id).is_timed {
        ground.stats.hold_time.record(held);
    }
    if ground.events.is_observed {
        let resource = locks.name_of(&ground.config, id);
        ground.events.push(|| event(resource, held));
    }
}

/// The loss of a held lock was reported, or nearly happened: counts it once for each end of the validity.
/// One that is over is no near loss.
pub(super) fn note_near_loss(ground: &mut Ground, locks: &mut Locks, id: Id, left: Duration) {
    let held = locks.ops.get_mut(id).held_mut().expect("it is held");
    if left.is_zero() || std::mem::replace(&mut held.is_near_loss, true) {
        return;
    }
    ground.stats.near_losses += 1;
    if ground.events.is_observed {
        let resource = locks.name_of(&ground.config, id);
        ground.events.push(|| Event::NearLoss { resource, left });
    }
}

/// An extension has succeeded of a lock that was valid until then, with that TTL.
pub(super) fn count_extension(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    (valid_until, ttl): (Instant, Ttl),
) {
    ground.stats.extended += 1;
    let left = valid_until.saturating_duration_since(ground.now);
    if left <= loss_lead(ttl) {
        note_near_loss(ground, locks, id, left);
    }
    locks.ops.get_mut(id).held_mut().expect("it is held").is_near_loss = false;
}

/// A master is taken in.
pub(super) fn report_connected(
    ground: &mut Ground,
    masters: &mut Masters,
    master: MasterId,
    is_reconnect: bool,
    is_restart: bool,
) {
    let name = &ground.config.labels[master.index()];
    ground.events.push(|| Event::Connected { master: name.clone(), is_reconnect });
    if is_restart {
        report_restart(ground, master);
    }
    let name = &ground.config.labels[master.index()];
    if let Some(until) = masters.fleet.link(master).quarantined_until {
        let left = until.saturating_duration_since(ground.now);
        ground.events.push(|| Event::Quarantined { master: name.clone(), left });
    }
}

/// Another process answered in place of the one before, whether it is taken in or not.
pub(super) fn report_restart(ground: &mut Ground, master: MasterId) {
    let name = &ground.config.labels[master.index()];
    ground.events.push(|| Event::Restarted { master: name.clone() });
}
