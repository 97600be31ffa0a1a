//! Whose turn it is to ask the masters for a lock, among the operations of this engine that want the same.
//!
//! Callers that may wait form a wait queue, and only its first waiter asks the masters: as many callers of
//! one process are one contender to the others. While an operation of this engine holds the lock nobody asks
//! at all; the lock is handed over when it is released (`handover.rs`). A holder that lets the validity end
//! without a release holds nobody up any longer: the first waiter has a timer for that end. An acquisition
//! that does not wait goes past the queue to the masters, and is its head while it holds the lock.
//!
//! ```text
//!               nobody there                      votes
//!  enqueue ────────────────► Acquiring ◄───────────────────────► Waiting (a pause; still the first waiter)
//!       │ others before it       ▲  │ quorum                        │ a local holder came meanwhile
//!       ▼          take_turn     │  ▼                               │
//!    Queued ─────────────────────┘ Held ── released ──────────────► │
//!       ▲ Later, AfterHolder, At       handed over to the next, or the next one's turn comes At a time
//!       └───────────────────────────────────────────────────────────┘
//! ```
//!
//! Keeps I22 for waiters in a queue: each is answered by the end of its wait.

use std::time::Duration;

use bytes::Bytes;

use super::fair::{self, Leaving};
use super::ground::Ground;
use super::locks::Locks;
use super::masters::Masters;
use super::op::{OpState, Turn};
use super::slab::Id;
use super::{OpId, SubmitError, acquire, counting, waiting};
use crate::error::{AcquireError, Denial, HeldBy, Report, Round};
use crate::limits;
use crate::lock::command;
use crate::lock::{Failure, HolderTtl, Resource, Vote};
use crate::mutants::mutant;

/// An acquisition that may wait: asks the masters if nobody here wants the lock, else waits behind those
/// who do.
pub(super) fn enqueue(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    resource: Resource<'_>,
) -> Result<OpId, SubmitError> {
    let op = locks.ops.get_mut(id);
    command::entry::encode_key(&mut op.key, &ground.config.prefix, resource.as_bytes());
    let Some(head) = found_queue(locks, id) else {
        acquire::start_attempt(ground, masters, locks, id, None);
        return Ok(OpId(id));
    };
    if mutant!(NobodyQueues) {
        acquire::start_attempt(ground, masters, locks, id, None);
        return Ok(OpId(id));
    }
    if locks.queues.count(head) > limits::QUEUED_COUNT_MAX {
        locks.ops.free(id);
        return Err(counting::refuse_acquisition(ground, resource));
    }
    locks.queues.join(id.index, head);
    let op = locks.ops.get_mut(id);
    op.state = OpState::Queued { turn: Turn::Later };
    (op.tries.has_queued, op.is_noted) = (true, true);
    tend_queue(ground, locks, head, Duration::ZERO);
    locks.arm(ground, id);
    Ok(OpId(id))
}

/// The head of the queue for the key of this operation; without one it becomes that itself.
#[inline]
fn found_queue(locks: &mut Locks, id: Id) -> Option<u32> {
    let key = locks.key_of(id.index);
    let hash = locks.queues.hash(key);
    let head = locks.queues.find(hash, |place| locks.key_of(place) == key);
    if head.is_none() {
        locks.queues.found(id.index, hash);
    }
    head
}

/// An operation has the lock: the others stand behind it. Not inlined, as its caller has enough to do.
#[inline(never)]
pub(super) fn note_held(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    waiting::withdraw_reservation(masters, locks, id, true);
    waiting::unwatch(ground, masters, locks, id);
    let place = id.index;
    let head = if locks.queues.has(place) { locks.queues.ahead(place) } else { found_queue(locks, id) };
    if let Some(head) = head {
        locks.queues.lead(place, head);
        // Only the first behind a holder asks the masters, so that one has lost the lock.
        if locks.held_until(head).is_some() {
            locks.queues.leave(head);
        }
    }
    tend_queue(ground, locks, place, Duration::ZERO);
}

/// Frees an operation that is over.
pub(super) fn end_op(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    waiting::withdraw_reservation(masters, locks, id, false);
    waiting::unwatch(ground, masters, locks, id);
    leave_queue(ground, locks, id, Duration::ZERO);
    let op = locks.ops.get_mut(id);
    if let Some(queuing) = op.policy.take_queuing() {
        let leaving = Leaving { queuing, key: std::mem::take(&mut op.key), was_held: false };
        fair::leave(&mut masters.fleet, &leaving);
    }
    locks.ops.get_mut(id).query = None;
    locks.ops.free(id);
}

/// Leaves its queue, if it is in one. `took` is as in [`Engine::tend_queue`].
pub(super) fn leave_queue(ground: &mut Ground, locks: &mut Locks, id: Id, took: Duration) {
    let place = id.index;
    let (ahead, behind) = (locks.queues.ahead(place), locks.queues.behind(place));
    locks.queues.leave(place);
    // The new head gets a turn.
    let head = ahead.or(behind).filter(|place| locks.queues.is_head(*place));
    if let Some(head) = head {
        tend_queue(ground, locks, head, took);
    }
}

/// Gives the head its turn, if this operation is at the head of its queue.
pub(super) fn tend_queue_of(ground: &mut Ground, locks: &mut Locks, id: Id) {
    if locks.ops.find(id).is_some() && locks.queues.is_head(id.index) {
        tend_queue(ground, locks, id.index, Duration::ZERO);
    }
}

/// Sees to it that the first who waits in a queue has a turn: when the holder's validity ends, or after a
/// pause like that after a failed attempt that took so long, as others want the lock too.
pub(super) fn tend_queue(ground: &mut Ground, locks: &mut Locks, head: u32, took: Duration) {
    let now = ground.now;
    let held_until = locks.held_until(head);
    let first = if held_until.is_some() { locks.queues.behind(head) } else { Some(head) };
    let Some(first) = first.map(|place| locks.ops.id_at(place)) else { return };
    let op = locks.ops.get(first);
    let OpState::Queued { turn } = &op.state else { return };
    // Early enough to be answered before its wait ends.
    let left = op.asked.wait_until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
    let turn = match (held_until.filter(|at| now < *at), *turn) {
        (Some(_), _) if mutant!(HolderWaitedForWithoutEnd) => Turn::Later,
        (Some(at), _) => Turn::AfterHolder(at),
        (None, Turn::At(at)) => Turn::At(at),
        (None, _) => Turn::At(now + waiting::draw_pause(ground, took, 1).min(left / 2)),
    };
    locks.ops.get_mut(first).state = OpState::Queued { turn };
    locks.arm(ground, first);
}

/// Something is due for an operation in the queue: its turn, or the end of its wait.
pub(super) fn end_queuing(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    let OpState::Queued { turn } = op.state else { unreachable!("it waits in a queue") };
    if op.asked.wait_until.is_some_and(|until| until <= ground.now) {
        return deny_queued(ground, masters, locks, id);
    }
    match turn {
        Turn::At(at) if at <= ground.now => take_turn(ground, masters, locks, id),
        _ => tend_queue(ground, locks, locks.queues.ahead(id.index).unwrap_or(id.index), Duration::ZERO),
    }
}

/// The first in the queue asks the masters, unless one that did not wait has the lock by now.
pub(super) fn take_turn(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let holder = locks.queues.ahead(id.index).filter(|place| locks.held_until(*place) > Some(ground.now));
    match holder {
        None => {
            ground.stats.retries += u64::from(locks.ops.get(id).tries.count > 0);
            acquire::start_attempt(ground, masters, locks, id, None);
        }
        Some(holder) => {
            locks.ops.get_mut(id).state = OpState::Queued { turn: Turn::Later };
            tend_queue(ground, locks, holder, Duration::ZERO);
        }
    }
}

/// The wait of one in the queue is over: says what is known of the lock, by those before it or by the
/// masters.
pub(super) fn deny_queued(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let op = locks.ops.get(id);
    let key = locks.key_of(id.index);
    let head = locks.queues.find(locks.queues.hash(key), |place| locks.key_of(place) == key);
    let (mut holder, mut held_by, mut asking) = (HolderTtl::Unknown, HeldBy::default(), head);
    let mut holder_label = None;
    if let Some(held_until) = head.and_then(|place| locks.held_until(place)) {
        asking = head.and_then(|place| locks.queues.behind(place)).filter(|_| held_until <= now);
        if let Some(holding) = head.map(|place| locks.ops.at(place))
            && let Some(held) = holding.held()
        {
            // Its keys outlive its validity by the drift allowance.
            let end = held_until + ground.config.drift.of(held.ttl.as_duration());
            holder = if now < end { HolderTtl::Left(end - now) } else { HolderTtl::Gone };
            held_by = HeldBy::ThisClient;
            holder_label = holding.shared_label();
        }
    }
    let asking = asking.filter(|place| *place != id.index);
    let asking = asking.map(|place| locks.ops.at(place));
    let error = match asking.and_then(|asking| Some((asking, asking.tries.denied.as_deref()?))) {
        // Masters answer the same to all who want the lock: contention, or an outage.
        Some((asking, denied)) => op.denial(now, denied.clone(), &asking.tries.holders, asking.readers()),
        None => {
            let labels = ground.config.labels.iter().cloned();
            let votes = labels.map(|label| (label, Vote::Failed(Failure::Queued))).collect();
            let resource = Bytes::copy_from_slice(command::entry::name_in(key, ground.config.prefix.len()));
            let report = Report { round: Round::Acquire, resource, votes };
            let (attempts, took) = (op.tries.count, now - op.asked.submitted);
            let denial = Denial { attempts, took, holder, held_by, holder_label, report };
            AcquireError::Contended(Box::new(denial))
        }
    };
    counting::end_denied(ground, masters, locks, id, error);
}
