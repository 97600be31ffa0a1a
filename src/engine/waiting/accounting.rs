//! Notes for whom acquisitions wait, and how long. Their callers and the statistics get it when the wait is
//! over. An acquisition that gets its lock at once does not come here, but for those that are timed.

use std::sync::Arc;
use std::time::Instant;

use super::account::Accounts;
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::mode::ModeState;
use crate::engine::locks::op::{Op, OpState};
use crate::engine::locks::slab::Id;
use crate::error::AcquireError;
use crate::lock::command;

/// An operation joins the wait queue that has this head.
pub(crate) fn join(now: Instant, locks: &mut Locks, id: Id, head: u32) {
    change(locks, |accounts, locks| {
        let (account, sightings) = accounts.of(id);
        account.join(now);
        let (op, key) = (locks.ops.at(head), locks.key_of(head));
        let hash = locks.queues.hash(key);
        match op.state() {
            OpState::Held(_) => sightings.see(now, hash, key, label_of(op), || op.shared_label()),
            // Its rounds report the holder.
            OpState::Parked => sightings.confirm(now, hash, key),
            _ => {}
        }
    });
}

/// An operation leaves its queue without the lock: to ask by itself, or to poll.
pub(crate) fn leave(now: Instant, locks: &mut Locks, id: Id) {
    let rounds = locks.ops.get(id).parking.as_ref().map_or(0, |parking| parking.round);
    locks.accounts.of(id).0.leave(now, rounds);
}

/// Others have the lock that an attempt asked for.
pub(crate) fn note_refused(now: Instant, locks: &mut Locks, id: Id) {
    locks.accounts.of(id).0.is_contended = true;
    // One that stays in no queue has its only report by now.
    let op = locks.ops.get(id);
    if let (Some(parking), None) = (op.parking.as_ref(), op.asked.wait_until) {
        let label = parking.holder_label.clone();
        see(now, locks, id, label);
    }
}

/// A parked round goes on: a quorum of masters, or all that were asked, report the holder.
pub(crate) fn note_waiting(now: Instant, locks: &mut Locks, id: Id, quorum: usize) {
    let op = locks.ops.get(id);
    let (parking, claim) = (op.parking(), locks.claims.get(op.claim));
    let waiting = parking.waiting;
    if waiting.is_empty() {
        return;
    }
    // A fair one stands there from its beginning.
    let since = if op.is_fair { op.asked.submitted } else { now };
    let is_answered = claim.asked.without(claim.tally.heard().union(waiting)).is_empty();
    let label = (waiting.has(quorum) || is_answered).then(|| parking.holder_label.clone());
    let op = locks.ops.get_mut(id);
    op.tries.has_queued |= op.asked.wait_until.is_some();
    locks.accounts.of(id).0.join(since);
    if let Some(label) = label {
        see(now, locks, id, label);
    }
}

/// Masters that refused an attempt have answered the question for the holder.
pub(crate) fn note_holder(now: Instant, locks: &mut Locks, id: Id) {
    let label = locks.ops.get(id).tries.denied.as_ref().and_then(|denied| denied.holder_label.clone());
    see(now, locks, id, label);
}

/// A report names the holder that is in the way of an operation.
fn see(now: Instant, locks: &mut Locks, id: Id, label: Option<Arc<str>>) {
    change(locks, |accounts, locks| {
        let key = locks.key_of(id.index);
        accounts.of(id).1.see(now, locks.queues.hash(key), key, label.as_deref(), || label.clone());
    });
}

/// An operation has the lock. If it had to wait, its wait is over, and it is in the way of others now.
pub(crate) fn note_acquired(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let account = locks.accounts.find(id);
    if !locks.ops.get(id).has_waited() && account.is_none_or(|account| !account.is_contended) {
        return;
    }
    settle(ground, locks, id);
    change(locks, |accounts, locks| {
        let (op, key) = (locks.ops.get(id), locks.key_of(id.index));
        let hash = locks.queues.hash(key);
        accounts.of(id).1.see(ground.now, hash, key, label_of(op), || op.shared_label());
    });
}

/// An operation ends without the lock: its wait is over, and the error says for whom it was.
pub(crate) fn note_denied(ground: &mut Ground, locks: &mut Locks, id: Id, error: &mut AcquireError) {
    let (AcquireError::Contended(denial) | AcquireError::NoQuorum(denial) | AcquireError::Expired(denial)) =
        error
    else {
        return;
    };
    settle(ground, locks, id);
    denial.waited.clone_from(&locks.accounts.of(id).0.waited);
}

/// The wait of an operation is over: completes its account, and counts its lock as contended if it was.
fn settle(ground: &mut Ground, locks: &mut Locks, id: Id) {
    leave(ground.now, locks, id);
    change(locks, |accounts, locks| {
        let (account, sightings) = accounts.of(id);
        let (op, key, now) = (locks.ops.get(id), locks.key_of(id.index), ground.now);
        let (hash, submitted) = (locks.queues.hash(key), op.asked.submitted);
        let waited = &mut account.waited;
        (waited.total, waited.attempts) = (now.saturating_duration_since(submitted), op.tries.count);
        let mut longest = Default::default();
        for (label, time) in sightings.between(hash, key, submitted, now) {
            waited.add(label, time);
            longest = time.max(longest);
        }
        waited.rank();
        if account.is_contended && ground.config.contended_names {
            let name = command::entry::name_in(key, ground.config.prefix.len());
            let holder = sightings.last(hash, key).map(|label| &**label);
            ground.stats.contended_names.note(name, account.waited.total, longest, holder);
        }
    });
}

/// Changes the accounts, with the other tables to read.
fn change(locks: &mut Locks, change: impl FnOnce(&mut Accounts, &Locks)) {
    let mut accounts = std::mem::take(&mut locks.accounts);
    change(&mut accounts, locks);
    locks.accounts = accounts;
}

/// The label by which masters report an operation's lock: they report none of readers.
fn label_of(op: &Op) -> Option<&str> {
    let label = str::from_utf8(&op.label).ok().filter(|label| !label.is_empty());
    label.filter(|_| !matches!(op.mode, ModeState::Shared))
}
