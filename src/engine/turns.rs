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

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::fair::{self, Leaving};
use super::op::{OpState, Turn};
use super::slab::Id;
use super::{Engine, OpId, SubmitError};
use crate::error::{AcquireError, Denial, HeldBy, Report, Round};
use crate::limits;
use crate::lock::command;
use crate::lock::{Failure, HolderTtl, Resource, Vote};
use crate::mutants::mutant;

impl Engine {
    /// An acquisition that may wait: asks the masters if nobody here wants the lock, else waits behind those
    /// who do.
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        id: Id,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let op = self.ops.get_mut(id);
        command::entry::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
        let Some(head) = self.found_queue(id) else {
            self.start_attempt(now, id, None);
            return Ok(OpId(id));
        };
        if mutant!(NobodyQueues) {
            self.start_attempt(now, id, None);
            return Ok(OpId(id));
        }
        if self.queues.count(head) > limits::QUEUED_COUNT_MAX {
            self.ops.free(id);
            return Err(self.refuse_acquisition(resource));
        }
        self.queues.join(id.index, head);
        let op = self.ops.get_mut(id);
        op.state = OpState::Queued { turn: Turn::Later };
        (op.tries.has_queued, op.is_noted) = (true, true);
        self.tend_queue(now, head, Duration::ZERO);
        self.arm_op(id);
        Ok(OpId(id))
    }

    /// The head of the queue for the key of this operation; without one it becomes that itself.
    #[inline]
    fn found_queue(&mut self, id: Id) -> Option<u32> {
        let key = self.key_of(id.index);
        let hash = self.queues.hash(key);
        let head = self.queues.find(hash, |place| self.key_of(place) == key);
        if head.is_none() {
            self.queues.found(id.index, hash);
        }
        head
    }

    /// The lock's key as an encoded bulk string; of a fair lock the waiter's channel, so that each has a
    /// queue of its own.
    #[inline]
    pub(super) fn key_of(&self, place: u32) -> &[u8] {
        let op = self.ops.at(place);
        if op.policy.queuing().is_some() { op.channel() } else { self.lock_key_of(place) }
    }

    /// The lock's key as an encoded bulk string.
    #[inline]
    pub(super) fn lock_key_of(&self, place: u32) -> &[u8] {
        let op = self.ops.at(place);
        match self.claims.find(op.claim) {
            Some(claim) if op.key.is_empty() => claim.entry.key(),
            _ => &op.key,
        }
    }

    /// An operation has the lock: the others stand behind it. Not inlined, as its caller has enough to do.
    #[inline(never)]
    pub(super) fn note_held(&mut self, now: Instant, id: Id) {
        self.withdraw_reservation(id, true);
        self.unwatch(now, id);
        let place = id.index;
        let head = if self.queues.has(place) { self.queues.ahead(place) } else { self.found_queue(id) };
        if let Some(head) = head {
            self.queues.lead(place, head);
            // Only the first behind a holder asks the masters, so that one has lost the lock.
            if self.held_until(head).is_some() {
                self.queues.leave(head);
            }
        }
        self.tend_queue(now, place, Duration::ZERO);
    }

    /// When the validity of an operation that holds a lock ends or ended.
    fn held_until(&self, place: u32) -> Option<Instant> {
        self.ops.at(place).held().map(|held| held.valid_until)
    }

    /// Whether another operation of this engine has the lock that this one wants.
    #[cold]
    pub(super) fn is_held_here(&self, now: Instant, id: Id) -> bool {
        let is_holder = |place: u32| place != id.index && self.held_until(place) > Some(now);
        if self.ops.get(id).policy.queuing().is_some() {
            // Fair locks are in no queue of this engine.
            let key = self.lock_key_of(id.index);
            return self.ops.ids().any(|it| is_holder(it.index) && self.lock_key_of(it.index) == key);
        }
        let key = self.key_of(id.index);
        self.queues.find(self.queues.hash(key), |place| self.key_of(place) == key).is_some_and(is_holder)
    }

    /// Frees an operation that is over.
    pub(super) fn end_op(&mut self, now: Instant, id: Id) {
        self.withdraw_reservation(id, false);
        self.unwatch(now, id);
        self.leave_queue(now, id, Duration::ZERO);
        let op = self.ops.get_mut(id);
        if let Some(queuing) = op.policy.take_queuing() {
            let leaving = Leaving { queuing, key: std::mem::take(&mut op.key), was_held: false };
            fair::leave(&mut self.fleet, &leaving);
        }
        self.ops.get_mut(id).query = None;
        self.ops.free(id);
    }

    /// Leaves its queue, if it is in one. `took` is as in [`Engine::tend_queue`].
    pub(super) fn leave_queue(&mut self, now: Instant, id: Id, took: Duration) {
        let place = id.index;
        let (ahead, behind) = (self.queues.ahead(place), self.queues.behind(place));
        self.queues.leave(place);
        // The new head gets a turn.
        let head = ahead.or(behind).filter(|place| self.queues.is_head(*place));
        if let Some(head) = head {
            self.tend_queue(now, head, took);
        }
    }

    /// Gives the head its turn, if this operation is at the head of its queue.
    pub(super) fn tend_queue_of(&mut self, now: Instant, id: Id) {
        if self.ops.find(id).is_some() && self.queues.is_head(id.index) {
            self.tend_queue(now, id.index, Duration::ZERO);
        }
    }

    /// Sees to it that the first who waits in a queue has a turn: when the holder's validity ends, or after a
    /// pause like that after a failed attempt that took so long, as others want the lock too.
    pub(super) fn tend_queue(&mut self, now: Instant, head: u32, took: Duration) {
        let held_until = self.held_until(head);
        let first = if held_until.is_some() { self.queues.behind(head) } else { Some(head) };
        let Some(first) = first.map(|place| self.ops.id_at(place)) else { return };
        let op = self.ops.get(first);
        let OpState::Queued { turn } = &op.state else { return };
        // Early enough to be answered before its wait ends.
        let left = op.asked.wait_until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        let turn = match (held_until.filter(|at| now < *at), *turn) {
            (Some(_), _) if mutant!(HolderWaitedForWithoutEnd) => Turn::Later,
            (Some(at), _) => Turn::AfterHolder(at),
            (None, Turn::At(at)) => Turn::At(at),
            (None, _) => Turn::At(now + self.draw_pause(took, 1).min(left / 2)),
        };
        self.ops.get_mut(first).state = OpState::Queued { turn };
        self.arm_op(first);
    }

    /// Something is due for an operation in the queue: its turn, or the end of its wait.
    pub(super) fn end_queuing(&mut self, now: Instant, id: Id) {
        let op = self.ops.get(id);
        let OpState::Queued { turn } = op.state else { unreachable!("it waits in a queue") };
        if op.asked.wait_until.is_some_and(|until| until <= now) {
            return self.deny_queued(now, id);
        }
        match turn {
            Turn::At(at) if at <= now => self.take_turn(now, id),
            _ => self.tend_queue(now, self.queues.ahead(id.index).unwrap_or(id.index), Duration::ZERO),
        }
    }

    /// The first in the queue asks the masters, unless one that did not wait has the lock by now.
    pub(super) fn take_turn(&mut self, now: Instant, id: Id) {
        let holder = self.queues.ahead(id.index).filter(|place| self.held_until(*place) > Some(now));
        match holder {
            None => {
                self.stats.retries += u64::from(self.ops.get(id).tries.count > 0);
                self.start_attempt(now, id, None);
            }
            Some(holder) => {
                self.ops.get_mut(id).state = OpState::Queued { turn: Turn::Later };
                self.tend_queue(now, holder, Duration::ZERO);
            }
        }
    }

    /// The wait of one in the queue is over: says what is known of the lock, by those before it or by the
    /// masters.
    pub(super) fn deny_queued(&mut self, now: Instant, id: Id) {
        let op = self.ops.get(id);
        let key = self.key_of(id.index);
        let head = self.queues.find(self.queues.hash(key), |place| self.key_of(place) == key);
        let (mut holder, mut held_by, mut asking) = (HolderTtl::Unknown, HeldBy::default(), head);
        let mut holder_label = None;
        if let Some(held_until) = head.and_then(|place| self.held_until(place)) {
            asking = head.and_then(|place| self.queues.behind(place)).filter(|_| held_until <= now);
            if let Some(holding) = head.map(|place| self.ops.at(place))
                && let Some(held) = holding.held()
            {
                // Its keys outlive its validity by the drift allowance.
                let end = held_until + self.config.drift.of(held.ttl.as_duration());
                holder = if now < end { HolderTtl::Left(end - now) } else { HolderTtl::Gone };
                held_by = HeldBy::ThisClient;
                holder_label = holding.shared_label();
            }
        }
        let asking = asking.filter(|place| *place != id.index);
        let asking = asking.map(|place| self.ops.at(place));
        let error = match asking.and_then(|asking| Some((asking, asking.tries.denied.as_deref()?))) {
            // Masters answer the same to all who want the lock: contention, or an outage.
            Some((asking, denied)) => op.denial(now, denied.clone(), &asking.tries.holders, asking.readers()),
            None => {
                let labels = self.config.labels.iter().cloned();
                let votes = labels.map(|label| (label, Vote::Failed(Failure::Queued))).collect();
                let resource = Bytes::copy_from_slice(command::entry::name_in(key, self.config.prefix.len()));
                let report = Report { round: Round::Acquire, resource, votes };
                let (attempts, took) = (op.tries.count, now - op.asked.submitted);
                let denial = Denial { attempts, took, holder, held_by, holder_label, report };
                AcquireError::Contended(Box::new(denial))
            }
        };
        self.end_denied(now, id, error);
    }
}
