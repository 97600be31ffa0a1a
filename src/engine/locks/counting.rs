//! Counters, times and events of locks, where a flow must do more than increment a number.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Locks;
use super::op::Held;
use super::renewal::loss_lead;
use super::slab::Id;
use crate::engine::ground::Ground;
use crate::event::Event;
use crate::lock::Ttl;

/// Records the times and the event of a noted lock's acquisition.
#[cold]
#[inline(never)]
pub(crate) fn note_acquired(ground: &mut Ground, locks: &Locks, id: Id) {
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
        let holder = locks.accounts.find(id).and_then(|account| account.waited().holder);
        ground.events.push(|| Event::Acquired { resource, attempts, took, holder });
    }
}

/// Counts the end of a held lock or of a cancelled attempt, and records its time and event.
#[cold]
#[inline(never)]
pub(crate) fn note_ended(ground: &mut Ground, locks: &mut Locks, id: Id) {
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

/// Counts a lock left to its TTL or for a time after it was `held` this long. `is_lost`: masters showed that
/// the lock was lost before.
#[cold]
pub(crate) fn note_left(ground: &mut Ground, locks: &Locks, id: Id, held: Duration, is_lost: bool) {
    if is_lost {
        ground.stats.lost += 1;
        note_hold(ground, locks, id, held, |resource, held| Event::Lost { resource, held });
    } else {
        ground.stats.left += 1;
        note_hold(ground, locks, id, held, |resource, held| Event::Left { resource, held });
    }
}

/// Counts the loss of a held lock once.
#[cold]
pub(crate) fn note_lost(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let held = locks.ops.get_mut(id).held_mut().expect("it was held");
    let (since, valid_until) = (held.since, held.valid_until);
    if std::mem::replace(&mut held.is_counted, true) {
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

/// Records the hold time of a timed lock, and the event of its end.
fn note_hold(
    ground: &mut Ground,
    locks: &Locks,
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

/// Counts a near loss, once for each end of the validity. A lock that is already over is no near loss.
pub(crate) fn note_near_loss(ground: &mut Ground, locks: &mut Locks, id: Id, left: Duration) {
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

/// Counts a successful extension of a lock that had this validity and TTL before.
pub(crate) fn count_extension(
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
