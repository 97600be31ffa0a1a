//! The pause between two attempts of which the later one is not parked behind a refusal.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::brake::Brake;
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::op::{Cause, Op};
use crate::engine::locks::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::link::Link;
use crate::limits;

/// Latest start of another attempt behind one that failed and took so long, to be answered before the wait ends.
/// `None` if no attempt may follow.
pub(crate) fn last_start(
    now: Instant,
    fleet: &Fleet,
    op: &Op,
    cause: Cause,
    took: Duration,
) -> Option<Instant> {
    let wait_until = op.asked.wait_until?;
    let last = wait_until.checked_sub(took.max(Duration::from_millis(1)))?;
    let is_hopeless = cause == Cause::NoQuorum && is_quarantined_until(fleet, wait_until);
    (last > now + took && !op.has_tried_enough() && !is_hopeless).then_some(last)
}

/// Draws the time of the next attempt: after a random delay that is longer than the attempt was and grows. It is
/// longer if a quorum refused for missing rights.
pub(crate) fn plan_attempt(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    took: Duration,
    last: Instant,
    lacks_rights: bool,
) -> Instant {
    if locks.ops.get(id).parking.is_some() {
        plan_park(ground, locks, id);
    }
    let tries = &locks.ops.get(id).tries;
    let pause_min = if lacks_rights { limits::RIGHTS_PAUSE } else { Duration::ZERO };
    let delay = (pause_min + draw_pause(ground, took, tries.count)).max(tries.braked_for(ground.now));
    last.min(ground.now + delay)
}

/// An acquisition loses its place, or gets none: plans when it parks again. Until then it polls; behind a
/// brake it asks nobody.
fn plan_park(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let mut failures = locks.claims.get(op.claim).failures.iter();
    let pause = if failures.any(|(_, failure)| failure.is_overload()) {
        op.tries.brake.pull(&mut ground.rng)
    } else {
        op.tries.brake = Brake::OFF;
        limits::PARK_PAUSE
    };
    op.tries.polls_until = Some(ground.now + pause);
}

/// Whether so many masters are in quarantine to the end of the wait that no attempt before it can
/// succeed. One that is not connected may need none when it is back.
fn is_quarantined_until(fleet: &Fleet, wait_until: Instant) -> bool {
    let is_late = |link: &&Link| {
        link.connection.is_ready() && link.quarantined_until.is_some_and(|at| at >= wait_until)
    };
    let late_count = fleet.links().filter(is_late).count();
    late_count > fleet.spare()
}

/// A random pause after an attempt that took so long, the more of them the longer.
pub(crate) fn draw_pause(ground: &mut Ground, took: Duration, attempts: u32) -> Duration {
    // At least a millisecond: known-down masters fail an attempt in no time at all.
    let floor = took.max(Duration::from_millis(1));
    if let Some(asked) = ground.config.retry_delay_after(attempts) {
        // Longer than the attempt was, and at random times all the same: else clients that met once would
        // meet again.
        return asked.max(floor) + ground.rng.random_range(Duration::ZERO..=floor);
    }
    let base = floor.max(ground.config.retry_delay_min);
    let doubled = base.saturating_mul(1 << attempts.min(16));
    let range = doubled.min(ground.config.retry_delay_max.max(base));
    base + ground.rng.random_range(Duration::ZERO..=range)
}
