//! Turns: which operation of this engine asks the masters for a lock that several operations want.
//!
//! Keeps I22 for queued waiters: each gets its answer by the end of its wait.

use std::time::{Duration, Instant};

use super::{accounting, pauses};
use crate::engine::core::Core;
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::op::{OpState, Turn};
use crate::engine::locks::slab::Id;
use crate::engine::masters::Masters;
use crate::engine::masters::fleet::Fleet;
use crate::engine::request::SubmitError;
use crate::limits;
use crate::lock::Resource;

/// Takes an acquisition that may wait. Returns whether it asks the masters, because nobody here wants the
/// lock. Otherwise it queues behind the callers that do.
///
/// Callers that may wait form a queue, and only its first waiter asks the masters. So to other clients, all
/// callers of one process are one contender. While an operation of this engine holds the lock, nobody asks;
/// the release hands the lock over (`handover.rs`). If the holder's validity ends without a release, a timer
/// gives the first waiter its turn. An acquisition that does not wait passes the queue and asks the masters;
/// it heads the queue while it holds the lock.
pub(crate) fn enqueue(
    ground: &mut Ground,
    fleet: &Fleet,
    locks: &mut Locks,
    id: Id,
    resource: Resource<'_>,
) -> Result<bool, SubmitError> {
    let Some(head) = head_or_begin(locks, id) else { return Ok(true) };
    if locks.queues.count(head) > limits::QUEUED_COUNT_MAX {
        locks.ops.free(id);
        return Err(ground.refuse_acquisition(resource));
    }
    locks.queues.join(id.index, head);
    let op = locks.ops.get_mut(id);
    op.enter(OpState::Queued { turn: Turn::Later });
    (op.tries.has_queued, op.is_noted, op.parks) = (true, true, true);
    accounting::join(ground.now, locks, id, head);
    tend_queue(ground, fleet, locks, head, Duration::ZERO);
    locks.arm(ground, id);
    Ok(false)
}

/// No other caller of this engine wants the lock: parks without a `SET` first if other clients are known to
/// want it. An acquisition with a limited number of attempts still begins with a `SET`, because a park lasts
/// for the whole wait.
#[cold]
pub(crate) fn park_if_contended(now: Instant, locks: &mut Locks, id: Id) {
    let hash = locks.queues.hash(locks.key_of(id.index));
    let is_contended = locks.contended.has(now, hash);
    let op = locks.ops.get_mut(id);
    op.parks = is_contended && op.asked.attempts_max.is_none();
}

/// Returns the head of the queue for this operation's key. Without a queue, the operation starts one as its
/// head.
#[inline]
fn head_or_begin(locks: &mut Locks, id: Id) -> Option<u32> {
    let key = locks.key_of(id.index);
    let hash = locks.queues.hash(key);
    let head = locks.queues.find(hash, |place| locks.key_of(place) == key);
    if head.is_none() {
        locks.queues.begin(id.index, hash);
    }
    head
}

/// An operation got the lock: makes it the head of its queue.
#[inline(never)]
pub(crate) fn note_held(core: &mut Core, id: Id) {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let place = id.index;
    let head = if locks.queues.has(place) { locks.queues.ahead(place) } else { head_or_begin(locks, id) };
    if let Some(head) = head {
        locks.queues.lead(place, head);
        // Only the first waiter behind a holder asks the masters, so the old holder has lost the lock.
        if locks.held_until(head).is_some() {
            locks.queues.leave(head);
        }
    }
    tend_queue(ground, fleet, locks, place, Duration::ZERO);
}

/// Removes an operation from its queue, if it is in one. `took` is as in [`tend_queue`].
pub(crate) fn leave_queue(ground: &mut Ground, fleet: &Fleet, locks: &mut Locks, id: Id, took: Duration) {
    let place = id.index;
    let (ahead, behind) = (locks.queues.ahead(place), locks.queues.behind(place));
    locks.queues.leave(place);
    // The new head gets a turn.
    let head = ahead.or(behind).filter(|place| locks.queues.is_head(*place));
    if let Some(head) = head {
        tend_queue(ground, fleet, locks, head, took);
    }
}

/// Plans the first waiter's turn, if this operation is the head of its queue.
pub(crate) fn tend_queue_of(ground: &mut Ground, fleet: &Fleet, locks: &mut Locks, id: Id) {
    if locks.ops.find(id).is_some() && locks.queues.is_head(id.index) {
        tend_queue(ground, fleet, locks, id.index, Duration::ZERO);
    }
}

/// Plans the turn of a queue's first waiter: when the holder's validity ends. Without a holder it parks at
/// once. If it cannot park, it asks after a pause like that after a failed attempt that `took` this long,
/// because others want the lock too.
fn tend_queue(ground: &mut Ground, fleet: &Fleet, locks: &mut Locks, head: u32, took: Duration) {
    let now = ground.now;
    let held_until = locks.held_until(head);
    let first = if held_until.is_some() { locks.queues.behind(head) } else { Some(head) };
    let Some(first) = first.map(|place| locks.ops.id_at(place)) else { return };
    let op = locks.ops.get(first);
    let OpState::Queued { turn } = op.state() else { return };
    // The pause leaves time for an answer before the wait ends.
    let left = op.asked.wait_until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
    let turn = match (held_until.filter(|at| now < *at), *turn) {
        (Some(at), _) => Turn::AfterHolder(at),
        (None, Turn::At(at)) => Turn::At(at),
        // No pause is needed: the masters' queues put earlier waiters first.
        (None, _) if fleet.can_park() => Turn::At(now),
        (None, _) => Turn::At(now + pauses::draw_pause(ground, took, 1).min(left / 2)),
    };
    locks.ops.get_mut(first).enter(OpState::Queued { turn });
    locks.arm(ground, first);
}

/// Whether an acquisition behind others, or after a pause, asks the masters now: its turn has come, and no
/// acquisition that did not wait has the lock.
pub(crate) fn may_ask(now: Instant, locks: &Locks, id: Id) -> bool {
    let is_behind = locks.queues.ahead(id.index).is_some_and(|ahead| locks.held_until(ahead) > Some(now));
    match locks.ops.get(id).state() {
        OpState::Queued { turn } => matches!(turn, Turn::At(at) if *at <= now) && !is_behind,
        _ => !is_behind,
    }
}

/// An acquisition stands behind others, perhaps again.
pub(crate) fn stand_behind(ground: &mut Ground, fleet: &Fleet, locks: &mut Locks, id: Id) {
    let ahead = locks.queues.ahead(id.index);
    locks.ops.get_mut(id).enter(OpState::Queued { turn: Turn::Later });
    tend_queue(ground, fleet, locks, ahead.unwrap_or(id.index), Duration::ZERO);
}
