//! How a refused attempt waits: the pause before the next one, and what ends it early.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::Engine;
use super::fair::Next;
use super::link::Link;
use super::op::OpState;
use super::slab::Id;
use super::subscription::Subscription;
use crate::limits;
use crate::lock::command;
use crate::mutants::mutant;

/// A waiter that is notified when the lock is free, or the heartbeat of the first one over, comes so much
/// later at most.
const FAIR_JITTER: Duration = Duration::from_millis(2);

impl Engine {
    /// Whether so many masters are in quarantine to the end of the wait that no attempt before it can
    /// succeed. One that is not connected may need none when it is back.
    pub(super) fn is_quarantined_beyond_wait(&self, id: Id) -> bool {
        let Some(wait_until) = self.ops.get(id).asked.wait_until else { return false };
        let is_late = |link: &&Link| {
            link.connection.is_ready() && link.quarantined_until.is_some_and(|at| at >= wait_until)
        };
        let late_count = self.fleet.links().filter(is_late).count();
        late_count > self.fleet.spare() && !mutant!(WaitsInQuarantine)
    }

    /// When to try again, after a random delay that is longer than the attempt was and grows; `None` to give
    /// up.
    pub(super) fn next_attempt(&mut self, now: Instant, id: Id, started: Instant) -> Option<Instant> {
        let op = self.ops.get(id);
        if op.has_tried_enough() && !mutant!(TriesUnlimited) {
            return None;
        }
        let wait_until = op.asked.wait_until?;
        let took = now - started;
        // The last attempt is made early enough to be answered before the wait ends.
        let last = wait_until.checked_sub(took.max(Duration::from_millis(1)))?;
        if op.policy.queuing().is_some() {
            let delay = self.fair_pause(id, took);
            return (last > now + took).then(|| last.min(now + delay));
        }
        let attempts = op.tries.count;
        let able = self.fleet.usable.without(self.fleet.mute());
        let bounds = if op.tries.is_subscribed { self.subscriptions.pause_bounds(id, able) } else { None };
        // An attempt that had a part of it met others that want it, not a holder.
        let is_held = self.claims.get(op.claim).tally.granted.is_empty();
        let delay = match bounds {
            Some(_) if mutant!(NoTimerBehindWake) => limits::TIME_LIMIT_MAX,
            Some(bounds) if is_held && self.config.retry_delays.is_none() => {
                self.rng.random_range(bounds).max(took)
            }
            _ => self.draw_pause(took, attempts),
        };
        (last > now + took).then(|| last.min(now + delay))
    }

    /// A random pause after an attempt that took so long, the more of them the longer.
    pub(super) fn draw_pause(&mut self, took: Duration, attempts: u32) -> Duration {
        // At least a millisecond: known-down masters fail an attempt in no time at all.
        let floor = took.max(Duration::from_millis(1));
        if let Some(asked) = self.config.retry_delay_after(attempts) {
            // Longer than the attempt was, and at random times all the same: else clients that met once would
            // meet again.
            return asked.max(floor) + self.rng.random_range(Duration::ZERO..=floor);
        }
        let base = floor.max(self.config.retry_delay_min);
        let doubled = base.saturating_mul(1 << attempts.min(16));
        let mut range = doubled.min(self.config.retry_delay_max.max(base));
        if mutant!(NoJitter) {
            range = Duration::ZERO;
        }
        base + self.rng.random_range(Duration::ZERO..=range)
    }

    /// An attempt was refused that took so long, and the operation goes on waiting: sees to it that it is
    /// notified of a release.
    pub(super) fn watch(&mut self, now: Instant, id: Id, took: Duration) {
        if !self.config.wakes_waiters {
            return;
        }
        if self.subscriptions.note_refused(id, took) {
            return self.follow_watch(now, id);
        }
        if !self.subscriptions.has_room() {
            return;
        }
        let op = self.ops.get_mut(id);
        op.tries.is_subscribed = true;
        let group = op.waiter().group(&mut self.rng).map(|group| {
            let mut channel = Vec::new();
            command::wake::encode_group_channel(&mut channel, op.channel(), self.config.prefix.len(), group);
            channel.into()
        });
        let watch = Subscription::new(id, op.waiter(), op.channel(), group, took);
        self.subscriptions.watch(now, watch, &mut self.timers);
        self.subscriptions.open(now, self.fleet.ready, &mut self.timers);
    }

    /// The operation has its lock, or has given up.
    #[inline]
    pub(super) fn unwatch(&mut self, now: Instant, id: Id) {
        if std::mem::take(&mut self.ops.get_mut(id).tries.is_subscribed) {
            self.subscriptions.unwatch(now, id, &mut self.timers);
        }
    }

    /// Brings the next attempt of one that waits forward, if its notification says so. During an attempt it
    /// is looked at when that has failed.
    pub(super) fn follow_watch(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let OpState::Waiting { retry_at } = &mut op.state else { return };
        let Some(wake) = self.subscriptions.wake(now, id, &mut self.rng) else { return };
        if wake.at < *retry_at {
            *retry_at = wake.at;
            op.tries.extra_count += u32::from(wake.is_extra);
            if wake.is_woken {
                self.subscriptions.note_woken();
            }
            self.arm_op(id);
        }
    }

    /// The pause between two attempts is over: makes the next one, unless the whole wait has passed
    /// meanwhile, as it may when this process was stopped.
    pub(super) fn end_pause(&mut self, now: Instant, id: Id) {
        if self.ops.get(id).asked.wait_until.is_some_and(|until| until <= now) {
            self.deny(now, id);
        } else {
            self.take_turn(now, id);
        }
    }

    /// How long a fair lock waits before the next attempt, after one that took so long. Its claim is still
    /// there.
    #[cold]
    #[inline(never)]
    fn fair_pause(&mut self, id: Id, took: Duration) -> Duration {
        let op = self.ops.get(id);
        let queuing = op.policy.queuing().expect("the lock is fair");
        let (tally, attempts) = (&self.claims.get(op.claim).tally, op.tries.count);
        let next = queuing.next(tally, self.fleet.spare(), self.fleet.quorum, attempts);
        if next == Next::AtOnce {
            return Duration::ZERO;
        }
        let third = limits::FAIR_HEARTBEAT / 3;
        let heartbeat = self.rng.random_range(third * 3 / 4..=third);
        let jitter = self.rng.random_range(Duration::from_millis(1)..=FAIR_JITTER);
        let pause = match next {
            Next::AtOnce | Next::Random => self.draw_pause(took, attempts),
            _ if !self.subscriptions.is_confirmed(id) => self.draw_pause(took, attempts),
            Next::Heartbeat => heartbeat,
            Next::After(left) => left + jitter,
        };
        pause.min(heartbeat)
    }

    /// An attempt was refused: leaves its reservation on all masters if it is one that keeps readers out, and
    /// goes on waiting until then. Returns when the next attempt is to be made, early enough to renew it.
    #[inline]
    pub(super) fn keep_readers_out(
        &mut self,
        now: Instant,
        id: Id,
        retry_at: Option<Instant>,
    ) -> Option<Instant> {
        let op = self.ops.get_mut(id);
        let (Some(retry_at), Some(reservation)) = (retry_at, &mut op.reservation) else { return retry_at };
        let answers = self.fleet.answer_limit(op.asked.ttl);
        Some(retry_at.min(reservation.send(&mut self.fleet, now, &op.key, answers, &mut self.rng)))
    }

    /// A writer has the lock, or has given up: readers need not stay out for its sake any more.
    #[inline]
    pub(super) fn withdraw_reservation(&mut self, id: Id, has_lock: bool) {
        let op = self.ops.get_mut(id);
        if let Some(reservation) = op.reservation.take() {
            reservation.withdraw(&mut self.fleet, &op.key, has_lock);
        }
    }
}
