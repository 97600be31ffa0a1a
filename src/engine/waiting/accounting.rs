//! Records how long acquisitions wait, and the last holder in their way, for their callers. Untimed
//! acquisitions that get their lock at once are not recorded here.

use std::time::Instant;

use crate::engine::locks::Locks;
use crate::engine::locks::slab::Id;
use crate::error::AcquireError;

/// An operation joins the wait queue with this head.
pub(crate) fn join(now: Instant, locks: &mut Locks, id: Id, head: u32) {
    let head = locks.ops.at(head);
    let account = locks.accounts.of(id);
    account.join(now);
    if head.held().is_some() {
        account.see(now, head.shown_label());
    }
}

/// An operation leaves its queue without the lock, to ask the masters or to poll.
pub(crate) fn leave(now: Instant, locks: &mut Locks, id: Id) {
    locks.accounts.of(id).leave(now);
}

/// Notes the holder in the way of a refused attempt that is parked but does not wait, because no other report
/// follows.
pub(crate) fn note_refused(now: Instant, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    if locks.waiting_round(id).is_some() && op.asked.wait_until.is_none() {
        locks.accounts.of(id).see(now, op.tries.obstacle.label.as_deref());
    }
}

/// A parked round continues. Notes the holder once a quorum waits, or all asked masters have answered.
pub(crate) fn note_waiting(now: Instant, locks: &mut Locks, id: Id, quorum: usize) {
    let op = locks.ops.get_mut(id);
    let claim = locks.claims.get(op.claim);
    let waiting = claim.parked().waiting;
    if waiting.is_empty() {
        return;
    }
    // A fair request stands in the queue from its start.
    let since = if op.is_fair { op.asked.submitted } else { now };
    let is_answered = claim.asked.without(claim.tally.heard().union(waiting)).is_empty();
    let account = locks.accounts.of(id);
    account.join(since);
    if waiting.has(quorum) || is_answered {
        account.see(now, op.tries.obstacle.label.as_deref());
    }
    op.tries.has_queued |= op.asked.wait_until.is_some();
}

/// The masters that refused an attempt have reported the holder.
pub(crate) fn note_holder(now: Instant, locks: &mut Locks, id: Id) {
    locks.accounts.of(id).see(now, locks.ops.get(id).tries.obstacle.label.as_deref());
}

/// An operation hands its lock over to the next one.
pub(crate) fn note_handover(locks: &mut Locks, from: Id, to: Id) {
    let holder = locks.ops.get(from);
    if let Some(held) = holder.held() {
        locks.accounts.of(to).see(held.since, holder.shown_label());
    }
}

/// An operation got the lock. If it had to wait, its wait is over.
pub(crate) fn note_acquired(now: Instant, locks: &mut Locks, id: Id) {
    if locks.ops.get(id).has_waited() || locks.accounts.find(id).is_some() {
        settle(now, locks, id);
    }
}

/// An operation ends without the lock. Its error names the last holder in the way.
pub(crate) fn note_denied(now: Instant, locks: &mut Locks, id: Id, error: &mut AcquireError) {
    if let AcquireError::Contended(denial) | AcquireError::NoQuorum(denial) | AcquireError::Expired(denial) =
        error
    {
        settle(now, locks, id);
        denial.waited = locks.accounts.of(id).waited();
    }
}

fn settle(now: Instant, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    locks.accounts.of(id).settle(now, op.asked.submitted, op.tries.count);
}
