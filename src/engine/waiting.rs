//! How a refused attempt waits: the pause before the next one, and what ends it early.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::fair::Next;
use super::ground::Ground;
use super::link::Link;
use super::locks::Locks;
use super::masters::Masters;
use super::op::OpState;
use super::slab::Id;
use super::subscription::Subscription;
use super::{acquire, turns};
use crate::limits;
use crate::lock::command;
use crate::mutants::mutant;

/// A waiter that is notified when the lock is free, or the heartbeat of the first one over, comes so much
/// later at most.
const FAIR_JITTER: Duration = Duration::from_millis(2);

/// Whether so many masters are in quarantine to the end of the wait that no attempt before it can
/// succeed. One that is not connected may need none when it is back.
pub(super) fn is_quarantined_beyond_wait(masters: &Masters, locks: &Locks, id: Id) -> bool {
    let Some(wait_until) = locks.ops.get(id).asked.wait_until else { return false };
    let is_late = |link: &&Link| {
        link.connection.is_ready() && link.quarantined_until.is_some_and(|at| at >= wait_until)
    };
    let late_count = masters.fleet.links().filter(is_late).count();
    late_count > masters.fleet.spare() && !mutant!(WaitsInQuarantine)
}

/// When to try again, after a random delay that is longer than the attempt was and grows; `None` to give
/// up.
pub(super) fn next_attempt(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    started: Instant,
) -> Option<Instant> {
    let now = ground.now;
    let op = locks.ops.get(id);
    if op.has_tried_enough() && !mutant!(TriesUnlimited) {
        return None;
    }
    let wait_until = op.asked.wait_until?;
    let took = now - started;
    // The last attempt is made early enough to be answered before the wait ends.
    let last = wait_until.checked_sub(took.max(Duration::from_millis(1)))?;
    if op.policy.queuing().is_some() {
        let delay = fair_pause(ground, masters, locks, id, took);
        return (last > now + took).then(|| last.min(now + delay));
    }
    let attempts = op.tries.count;
    let able = masters.fleet.usable.without(masters.fleet.mute());
    let bounds = if op.tries.is_subscribed { masters.subscriptions.pause_bounds(id, able) } else { None };
    // An attempt that had a part of it met others that want it, not a holder.
    let is_held = locks.claims.get(op.claim).tally.granted.is_empty();
    let delay = match bounds {
        Some(_) if mutant!(NoTimerBehindWake) => limits::TIME_LIMIT_MAX,
        Some(bounds) if is_held && ground.config.retry_delays.is_none() => {
            ground.rng.random_range(bounds).max(took)
        }
        _ => draw_pause(ground, took, attempts),
    };
    (last > now + took).then(|| last.min(now + delay))
}

/// A random pause after an attempt that took so long, the more of them the longer.
pub(super) fn draw_pause(ground: &mut Ground, took: Duration, attempts: u32) -> Duration {
    // At least a millisecond: known-down masters fail an attempt in no time at all.
    let floor = took.max(Duration::from_millis(1));
    if let Some(asked) = ground.config.retry_delay_after(attempts) {
        // Longer than the attempt was, and at random times all the same: else clients that met once would
        // meet again.
        return asked.max(floor) + ground.rng.random_range(Duration::ZERO..=floor);
    }
    let base = floor.max(ground.config.retry_delay_min);
    let doubled = base.saturating_mul(1 << attempts.min(16));
    let mut range = doubled.min(ground.config.retry_delay_max.max(base));
    if mutant!(NoJitter) {
        range = Duration::ZERO;
    }
    base + ground.rng.random_range(Duration::ZERO..=range)
}

/// An attempt was refused that took so long, and the operation goes on waiting: sees to it that it is
/// notified of a release.
pub(super) fn watch(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id, took: Duration) {
    if !ground.config.wakes_waiters {
        return;
    }
    if masters.subscriptions.note_refused(id, took) {
        return follow_watch(ground, masters, locks, id);
    }
    if !masters.subscriptions.has_room() {
        return;
    }
    let op = locks.ops.get_mut(id);
    op.tries.is_subscribed = true;
    let group = op.waiter().group(&mut ground.rng).map(|group| {
        let mut channel = Vec::new();
        command::wake::encode_group_channel(&mut channel, op.channel(), ground.config.prefix.len(), group);
        channel.into()
    });
    let watch = Subscription::new(id, op.waiter(), op.channel(), group, took);
    masters.subscriptions.watch(ground, watch);
    masters.subscriptions.open(ground, masters.fleet.ready);
}

/// The operation has its lock, or has given up.
#[inline]
pub(super) fn unwatch(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    if std::mem::take(&mut locks.ops.get_mut(id).tries.is_subscribed) {
        masters.subscriptions.unwatch(ground, id);
    }
}

/// Brings the next attempt of one that waits forward, if its notification says so. During an attempt it
/// is looked at when that has failed.
pub(super) fn follow_watch(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let OpState::Waiting { retry_at } = &mut op.state else { return };
    let Some(wake) = masters.subscriptions.wake(ground, id) else { return };
    if wake.at < *retry_at {
        *retry_at = wake.at;
        op.tries.extra_count += u32::from(wake.is_extra);
        if wake.is_woken {
            masters.subscriptions.note_woken();
        }
        locks.arm(ground, id);
    }
}

/// The pause between two attempts is over: makes the next one, unless the whole wait has passed
/// meanwhile, as it may when this process was stopped.
pub(super) fn end_pause(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    if locks.ops.get(id).asked.wait_until.is_some_and(|until| until <= ground.now) {
        acquire::deny(ground, masters, locks, id);
    } else {
        turns::take_turn(ground, masters, locks, id);
    }
}

/// How long a fair lock waits before the next attempt, after one that took so long. Its claim is still
/// there.
#[cold]
#[inline(never)]
fn fair_pause(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    took: Duration,
) -> Duration {
    let op = locks.ops.get(id);
    let queuing = op.policy.queuing().expect("the lock is fair");
    let (tally, attempts) = (&locks.claims.get(op.claim).tally, op.tries.count);
    let next = queuing.next(tally, masters.fleet.spare(), masters.fleet.quorum, attempts);
    if next == Next::AtOnce {
        return Duration::ZERO;
    }
    let third = limits::FAIR_HEARTBEAT / 3;
    let heartbeat = ground.rng.random_range(third * 3 / 4..=third);
    let jitter = ground.rng.random_range(Duration::from_millis(1)..=FAIR_JITTER);
    let pause = match next {
        Next::AtOnce | Next::Random => draw_pause(ground, took, attempts),
        _ if !masters.subscriptions.is_confirmed(id) => draw_pause(ground, took, attempts),
        Next::Heartbeat => heartbeat,
        Next::After(left) => left + jitter,
    };
    pause.min(heartbeat)
}

/// An attempt was refused: leaves its reservation on all masters if it is one that keeps readers out, and
/// goes on waiting until then. Returns when the next attempt is to be made, early enough to renew it.
#[inline]
pub(super) fn keep_readers_out(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    retry_at: Option<Instant>,
) -> Option<Instant> {
    let op = locks.ops.get_mut(id);
    let (Some(retry_at), Some(reservation)) = (retry_at, &mut op.reservation) else { return retry_at };
    let answers = masters.fleet.answer_limit(op.asked.ttl);
    Some(retry_at.min(reservation.send(&mut masters.fleet, ground.now, &op.key, answers, &mut ground.rng)))
}

/// A writer has the lock, or has given up: readers need not stay out for its sake any more.
#[inline]
pub(super) fn withdraw_reservation(masters: &mut Masters, locks: &mut Locks, id: Id, has_lock: bool) {
    let op = locks.ops.get_mut(id);
    if let Some(reservation) = op.reservation.take() {
        reservation.withdraw(&mut masters.fleet, &op.key, has_lock);
    }
}
