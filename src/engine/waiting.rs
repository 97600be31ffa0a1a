//! How a refused attempt waits: the pause before the next one, and what ends it early.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::core::Core;
use super::fair::Next;
use super::fleet::Fleet;
use super::ground::Ground;
use super::link::Link;
use super::locks::Locks;
use super::masters::Masters;
use super::op::Cause;
use super::slab::Id;
use super::subscription::Subscription;
use crate::limits;
use crate::lock::command;
use crate::mutants::mutant;

/// A waiter that is notified when the lock is free, or the heartbeat of the first one over, comes so much
/// later at most.
const FAIR_JITTER: Duration = Duration::from_millis(2);

/// When an operation tries again after an attempt that failed and took so long; `None` to give up. A writer
/// that keeps readers out leaves its reservation until then.
pub(super) fn plan_attempt(core: &mut Core, id: Id, cause: Cause, took: Duration) -> Option<Instant> {
    let Core { ground, masters, locks } = core;
    if cause == Cause::NoQuorum && is_quarantined_beyond_wait(&masters.fleet, locks, id) {
        return None;
    }
    let retry_at = draw_time(ground, masters, locks, id, took)?;
    let op = locks.ops.get_mut(id);
    match &mut op.reservation {
        Some(reservation) if cause == Cause::Contended => {
            let answers = masters.fleet.answer_limit(op.asked.ttl);
            let fleet = &mut masters.fleet;
            Some(retry_at.min(reservation.send(fleet, ground.now, &op.key, answers, &mut ground.rng)))
        }
        _ => Some(retry_at),
    }
}

/// Whether so many masters are in quarantine to the end of the wait that no attempt before it can
/// succeed. One that is not connected may need none when it is back.
fn is_quarantined_beyond_wait(fleet: &Fleet, locks: &Locks, id: Id) -> bool {
    let Some(wait_until) = locks.ops.get(id).asked.wait_until else { return false };
    let is_late = |link: &&Link| {
        link.connection.is_ready() && link.quarantined_until.is_some_and(|at| at >= wait_until)
    };
    let late_count = fleet.links().filter(is_late).count();
    late_count > fleet.spare() && !mutant!(WaitsInQuarantine)
}

/// Draws the time of the next attempt: after a random delay that is longer than the attempt was and grows,
/// and early enough to be answered before the wait ends; `None` if it cannot be.
fn draw_time(
    ground: &mut Ground,
    masters: &Masters,
    locks: &Locks,
    id: Id,
    took: Duration,
) -> Option<Instant> {
    let op = locks.ops.get(id);
    if op.has_tried_enough() && !mutant!(TriesUnlimited) {
        return None;
    }
    let last = op.asked.wait_until?.checked_sub(took.max(Duration::from_millis(1)))?;
    let delay = if op.policy.queuing().is_some() {
        fair_pause(ground, masters, locks, id, took)
    } else {
        pause(ground, masters, locks, id, took)
    };
    (last > ground.now + took).then(|| last.min(ground.now + delay))
}

/// The pause of a waiter that stands in no queue of the masters.
fn pause(ground: &mut Ground, masters: &Masters, locks: &Locks, id: Id, took: Duration) -> Duration {
    let op = locks.ops.get(id);
    let able = masters.fleet.usable.without(masters.fleet.mute());
    let bounds = if op.tries.is_subscribed { masters.subscriptions.pause_bounds(id, able) } else { None };
    // An attempt that had a part of it met others that want it, not a holder.
    let is_held = locks.claims.get(op.claim).tally.granted.is_empty();
    match bounds {
        Some(_) if mutant!(NoTimerBehindWake) => limits::TIME_LIMIT_MAX,
        Some(bounds) if is_held && ground.config.retry_delays.is_none() => {
            ground.rng.random_range(bounds).max(took)
        }
        _ => draw_pause(ground, took, op.tries.count),
    }
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
pub(super) fn watch(core: &mut Core, id: Id, took: Duration) {
    if !core.ground.config.wakes_waiters {
        return;
    }
    if core.masters.subscriptions.note_refused(id, took) {
        return follow_watch(core, id);
    }
    if !core.masters.subscriptions.has_room() {
        return;
    }
    let op = core.locks.ops.get_mut(id);
    op.tries.is_subscribed = true;
    let group = op.waiter().group(&mut core.ground.rng).map(|group| {
        let mut channel = Vec::new();
        command::wake::encode_group_channel(
            &mut channel,
            op.channel(),
            core.ground.config.prefix.len(),
            group,
        );
        channel.into()
    });
    let watch = Subscription::new(id, op.waiter(), op.channel(), group, took);
    core.masters.subscriptions.watch(&mut core.ground, watch);
    core.masters.subscriptions.open(&mut core.ground, core.masters.fleet.ready);
}

/// The operation has its lock, or has given up.
#[inline]
pub(super) fn unwatch(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    if std::mem::take(&mut locks.ops.get_mut(id).tries.is_subscribed) {
        masters.subscriptions.unwatch(ground, id);
    }
}

/// Brings the next attempt of one that waits forward, if its notification says so. During an attempt it
/// is looked at when that has failed.
pub(super) fn follow_watch(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    let op = locks.ops.get_mut(id);
    let Some(retry_at) = op.retry_at() else { return };
    let Some(wake) = masters.subscriptions.wake(ground, id) else { return };
    if wake.at < retry_at {
        op.retry_by(wake.at);
        op.tries.extra_count += u32::from(wake.is_extra);
        if wake.is_woken {
            masters.subscriptions.note_woken();
        }
        locks.arm(ground, id);
    }
}

/// How long a fair lock waits before the next attempt, after one that took so long. Its claim is still
/// there.
#[cold]
#[inline(never)]
fn fair_pause(ground: &mut Ground, masters: &Masters, locks: &Locks, id: Id, took: Duration) -> Duration {
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

/// A writer has the lock, or has given up: readers need not stay out for its sake any more.
#[inline]
pub(super) fn withdraw_reservation(fleet: &mut Fleet, locks: &mut Locks, id: Id, has_lock: bool) {
    let op = locks.ops.get_mut(id);
    if let Some(reservation) = op.reservation.take() {
        reservation.withdraw(fleet, &op.key, has_lock);
    }
}
