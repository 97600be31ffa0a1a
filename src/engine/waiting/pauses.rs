//! The pause between two attempts, unless a refused attempt parks at once.

use std::time::{Duration, Instant};

use rand::RngExt;

use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::claim::Claim;
use crate::engine::locks::op::Op;
use crate::engine::locks::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::link::Link;
use crate::limits;

/// Whether another attempt could be answered before the wait ends, if it takes as long as the failed attempt of
/// this claim.
pub(crate) fn can_retry(now: Instant, fleet: &Fleet, op: &Op, claim: &Claim, is_unanswered: bool) -> bool {
    let Some(wait_until) = op.asked.wait_until else { return false };
    let took = claim.took(now);
    let is_hopeless = is_unanswered && is_quarantined_until(fleet, wait_until);
    let fits = last_start(wait_until, took).is_some_and(|last| last > now + took);
    fits && !op.has_tried_enough() && !is_hopeless
}

/// Returns the latest start of an attempt that takes this long.
fn last_start(wait_until: Instant, took: Duration) -> Option<Instant> {
    wait_until.checked_sub(took.max(Duration::from_millis(1)))
}

/// Returns when the next attempt starts: after a random delay that exceeds the duration of the last attempt
/// and grows. The delay is longer if a quorum lacks rights. The start leaves time for an answer.
pub(crate) fn plan_attempt(ground: &mut Ground, locks: &mut Locks, id: Id, lacks_rights: bool) -> Instant {
    if locks.waiting_round(id).is_some() {
        plan_park(ground, locks, id);
    }
    let Op { asked, tries, claim, .. } = locks.ops.get(id);
    let took = locks.claims.get(*claim).took(ground.now);
    let pause_min = if lacks_rights { limits::RIGHTS_PAUSE } else { Duration::ZERO };
    let delay = (pause_min + draw_pause(ground, took, tries.count)).max(tries.brake.time_left(ground.now));
    let at = ground.now + delay;
    asked.wait_until.and_then(|until| last_start(until, took)).map_or(at, |last| last.min(at))
}

/// An acquisition loses its place, or gets none: plans when it parks again. It polls until then, but a braked
/// acquisition asks nobody.
fn plan_park(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let mut failures = locks.claims.get(op.claim).failures.iter();
    if failures.any(|(_, failure)| failure.is_overload()) {
        op.tries.brake.pull(ground.now, &mut ground.rng);
    } else {
        op.tries.brake.poll(ground.now);
    }
}

/// Whether so many masters stay in quarantine that no attempt can succeed before the wait ends. A
/// disconnected master may need no quarantine when it is back.
fn is_quarantined_until(fleet: &Fleet, wait_until: Instant) -> bool {
    let is_late = |link: &&Link| {
        link.connection.is_ready() && link.quarantined_until.is_some_and(|at| at >= wait_until)
    };
    let late_count = fleet.links().filter(is_late).count();
    late_count > fleet.spare()
}

/// Returns a random pause before the next attempt. The pause grows with the number of attempts and with the
/// duration of the last attempt.
pub(crate) fn draw_pause(ground: &mut Ground, took: Duration, attempts: u32) -> Duration {
    // At least 1 ms, because an attempt fails at once if too many masters are down.
    let floor = took.max(Duration::from_millis(1));
    if let Some(asked) = ground.config.retry_delay_after(attempts) {
        // Longer than the attempt, and random: otherwise clients that collided once would collide again.
        return asked.max(floor) + ground.rng.random_range(Duration::ZERO..=floor);
    }
    let base = floor.max(ground.config.retry_delay_min);
    let doubled = base.saturating_mul(1 << attempts.min(16));
    let range = doubled.min(ground.config.retry_delay_max.max(base));
    base + ground.rng.random_range(Duration::ZERO..=range)
}
