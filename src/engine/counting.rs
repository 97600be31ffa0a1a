//! Counters, times and events of locks and masters, where a flow has to do more than to increase a number.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::op::Held;
use super::renewal::loss_lead;
use super::slab::Id;
use super::stats::Stats;
use super::{Engine, OpId, Outcome, SubmitError};
use crate::error::AcquireError;
use crate::event::Event;
use crate::lock::command;
use crate::lock::{MasterId, Resource, Ttl};
use crate::mutants::mutant;

impl Engine {
    /// Returns what was counted and timed since the engine was made.
    #[must_use]
    pub fn stats(&self, now: Instant) -> Stats {
        let is_ready = |master| self.master_state(now, master).counts();
        Stats {
            notified: self.subscriptions.woken_count(),
            events_dropped: self.events.dropped_count,
            holder_label: self.config.holder_label.clone(),
            operations: self.ops.count(),
            claims: self.claims.count(),
            masters: self.fleet.links().map(|link| link.snapshot(now, is_ready(link.master))).collect(),
            ..self.stats.clone()
        }
    }

    /// Returns the next event for the observer of the configuration
    /// ([`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event)), which an engine does not call itself.
    /// Without an observer there is none. At most [`limits::EVENT_COUNT_MAX`](crate::limits::EVENT_COUNT_MAX)
    /// wait.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Returns whether [`Engine::poll_event`] has an event.
    #[must_use]
    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The name of the lock of an operation.
    pub(super) fn name_of(&self, id: Id) -> Bytes {
        Bytes::copy_from_slice(command::entry::name_in(self.lock_key_of(id.index), self.config.prefix.len()))
    }

    /// Ends an acquisition that did not get the lock.
    pub(super) fn end_denied(&mut self, now: Instant, id: Id, error: AcquireError) {
        let op = self.ops.get(id);
        if op.has_waited() {
            self.stats.wait_time.record(now.saturating_duration_since(op.asked.submitted));
        }
        self.stats.count_denial(&error);
        if self.events.is_observed {
            let (resource, error) = (self.name_of(id), error.clone());
            self.events.push(|| Event::Denied { resource, error });
        }
        self.end_op(now, id);
        self.outcomes.push_back((OpId(id), Outcome::Acquire(Err(error))));
    }

    /// There is no room for an acquisition.
    #[cold]
    pub(super) fn refuse_acquisition(&mut self, resource: Resource<'_>) -> SubmitError {
        self.stats.overloaded += 1;
        self.events.push(|| {
            let resource = Bytes::copy_from_slice(resource.as_bytes());
            Event::Denied { resource, error: AcquireError::Overloaded }
        });
        SubmitError::Overloaded
    }

    /// A lock was acquired of which more is to be noted.
    #[cold]
    #[inline(never)]
    pub(super) fn note_acquired(&mut self, now: Instant, id: Id) {
        let op = self.ops.get(id);
        let (took, attempts) = (now.saturating_duration_since(op.asked.submitted), op.tries.count);
        if op.is_timed {
            self.stats.acquire_time.record(took);
        }
        if op.has_waited() {
            self.stats.wait_time.record(took);
        }
        if self.events.is_observed {
            let resource = self.name_of(id);
            self.events.push(|| Event::Acquired { resource, attempts, took });
        }
    }

    /// A held lock is released, or an attempt given up: counts it, and notes what is to be noted.
    #[cold]
    #[inline(never)]
    pub(super) fn note_ended(&mut self, now: Instant, id: Id) {
        let Some(&Held { since, valid_until, is_counted, .. }) = self.ops.get(id).held() else {
            self.stats.abandoned += 1;
            return;
        };
        if is_counted || now >= valid_until {
            return self.note_lost(now, id);
        }
        self.stats.released += 1;
        self.note_hold(id, now.saturating_duration_since(since), |resource, held| Event::Released {
            resource,
            held,
        });
    }

    /// A master has answered an attempt whose round trip is measured.
    pub(super) fn note_round_trip(&mut self, now: Instant, master: MasterId, id: Id) {
        if let Some(claim) = self.claims.find(id) {
            let round_trip = now.saturating_duration_since(claim.started);
            self.fleet.note_round_trip(master, round_trip);
        }
    }

    /// A lock is left to its TTL or for a time, after it was `held` so long; or masters showed that it was
    /// lost before.
    #[cold]
    pub(super) fn note_left(&mut self, id: Id, held: Duration, is_lost: bool) {
        if is_lost {
            self.stats.lost += 1;
            self.note_hold(id, held, |resource, held| Event::Lost { resource, held });
        } else {
            self.stats.left += 1;
            self.note_hold(id, held, |resource, held| Event::Left { resource, held });
        }
    }

    /// A held lock is over without a release. Counts it once.
    #[cold]
    pub(super) fn note_lost(&mut self, now: Instant, id: Id) {
        let held = self.ops.get_mut(id).held_mut().expect("it was held");
        let (since, valid_until) = (held.since, held.valid_until);
        if std::mem::replace(&mut held.is_counted, true) || mutant!(LossUncounted) {
            return;
        }
        self.stats.lost += 1;
        self.note_hold(id, now.min(valid_until).saturating_duration_since(since), |resource, held| {
            Event::Lost { resource, held }
        });
    }

    /// A lock was held for so long: records the time if it is timed, and the event of its end.
    fn note_hold(&mut self, id: Id, held: Duration, event: fn(Bytes, Duration) -> Event) {
        if self.ops.get(id).is_timed {
            self.stats.hold_time.record(held);
        }
        if self.events.is_observed {
            let resource = self.name_of(id);
            self.events.push(|| event(resource, held));
        }
    }

    /// The loss of a held lock was reported, or nearly happened: counts it once for each end of the validity.
    /// One that is over is no near loss.
    pub(super) fn note_near_loss(&mut self, id: Id, left: Duration) {
        let held = self.ops.get_mut(id).held_mut().expect("it is held");
        if left.is_zero() || std::mem::replace(&mut held.is_near_loss, true) {
            return;
        }
        self.stats.near_losses += 1;
        if self.events.is_observed {
            let resource = self.name_of(id);
            self.events.push(|| Event::NearLoss { resource, left });
        }
    }

    /// An extension has succeeded of a lock that was valid until then, with that TTL.
    pub(super) fn count_extension(&mut self, now: Instant, id: Id, (valid_until, ttl): (Instant, Ttl)) {
        self.stats.extended += 1;
        let left = valid_until.saturating_duration_since(now);
        if left <= loss_lead(ttl) {
            self.note_near_loss(id, left);
        }
        self.ops.get_mut(id).held_mut().expect("it is held").is_near_loss = false;
    }

    /// A master is taken in.
    pub(super) fn report_connected(
        &mut self,
        now: Instant,
        master: MasterId,
        is_reconnect: bool,
        is_restart: bool,
    ) {
        let name = &self.config.labels[master.index()];
        self.events.push(|| Event::Connected { master: name.clone(), is_reconnect });
        if is_restart {
            self.report_restart(master);
        }
        let name = &self.config.labels[master.index()];
        if let Some(until) = self.fleet.link(master).quarantined_until {
            let left = until.saturating_duration_since(now);
            self.events.push(|| Event::Quarantined { master: name.clone(), left });
        }
    }

    /// Another process answered in place of the one before, whether it is taken in or not.
    pub(super) fn report_restart(&mut self, master: MasterId) {
        let name = &self.config.labels[master.index()];
        self.events.push(|| Event::Restarted { master: name.clone() });
    }
}
