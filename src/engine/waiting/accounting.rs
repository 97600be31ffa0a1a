//! Notes how long acquisitions wait, and who was in their way last. Their callers get it when the wait is
//! over. An acquisition that gets its lock at once does not come here, but for those that are timed.

use std::time::Instant;

use crate::engine::locks::Locks;
use crate::engine::locks::slab::Id;
use crate::error::AcquireError;

/// An operation joins the wait queue that has this head.
pub(crate) fn join(now: Instant, locks: &mut Locks, id: Id, head: u32) {
    let head = locks.ops.at(head);
    let account = locks.accounts.of(id);
    account.join(now);
    if head.held().is_some() {
        account.see(now, head.shown_label());
    }
}

/// An operation leaves its queue without the lock: to ask by itself, or to poll.
pub(crate) fn leave(now: Instant, locks: &mut Locks, id: Id) {
    locks.accounts.of(id).leave(now);
}

/// Notes the holder that refused an attempt. An attempt that stays in no queue gets no further report.
pub(crate) fn note_refused(now: Instant, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    if op.parking.is_some() && op.asked.wait_until.is_none() {
        locks.accounts.of(id).see(now, op.tries.obstacle.label.as_deref());
    }
}

/// A parked round goes on: a quorum of masters, or all that were asked, report the holder.
pub(crate) fn note_waiting(now: Instant, locks: &mut Locks, id: Id, quorum: usize) {
    let op = locks.ops.get_mut(id);
    let (waiting, claim) = (op.parking().waiting, locks.claims.get(op.claim));
    if waiting.is_empty() {
        return;
    }
    // A fair one stands there from its beginning.
    let since = if op.is_fair { op.asked.submitted } else { now };
    let is_answered = claim.asked.without(claim.tally.heard().union(waiting)).is_empty();
    let account = locks.accounts.of(id);
    account.join(since);
    if waiting.has(quorum) || is_answered {
        account.see(now, op.tries.obstacle.label.as_deref());
    }
    op.tries.has_queued |= op.asked.wait_until.is_some();
}

/// Masters that refused an attempt have answered the question for the holder.
pub(crate) fn note_holder(now: Instant, locks: &mut Locks, id: Id) {
    locks.accounts.of(id).see(now, locks.ops.get(id).tries.obstacle.label.as_deref());
}

/// An operation of this engine hands its lock over to the next one.
pub(crate) fn note_handover(locks: &mut Locks, from: Id, to: Id) {
    let holder = locks.ops.get(from);
    if let Some(held) = holder.held() {
        locks.accounts.of(to).see(held.since, holder.shown_label());
    }
}

/// An operation has the lock. If it had to wait, its wait is over.
pub(crate) fn note_acquired(now: Instant, locks: &mut Locks, id: Id) {
    if locks.ops.get(id).has_waited() || locks.accounts.find(id).is_some() {
        settle(now, locks, id);
    }
}

/// An operation ends without the lock: its wait is over, and the error says who was in its way last.
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
