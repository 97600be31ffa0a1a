//! Applications that request a slot of a pool: like a `Client`, they follow the steps of [`SlotAcquisition`].
//!
//! The slots of a pool, and its door, are judged like other locks. Also, a handed-out slot has its lock's
//! number.

use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::completions::OutcomeKind;
use redlatch::compose::slot_acquisition::{SlotAcquisition, SlotStep, door_options};
use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::pool::{door_name, slot_name};
use redlatch::{AcquireError, Options};

use crate::client::Client;
use crate::clock::{MS, Time};
use crate::network::chance;
use crate::world::{World, note};

/// The pool of random histories.
pub const POOL: &[u8] = b"pool";

/// A worker that acquires a slot, holds it, and releases it.
#[derive(Default)]
pub struct SlotWorker {
    /// Time of its next action.
    due: Time,
    is_directed: bool,
    count: u32,
    options: Options,
    /// `None` unless a slot is being acquired.
    acquisition: Option<SlotAcquisition<OpId>>,
    asked: Vec<(u32, OpId)>,
    look: Option<OpId>,
    /// A search is being submitted: with a `Client`, it may be answered before its id is known.
    begins_look: bool,
    door: Option<OpId>,
    pause: Option<OpId>,
    /// Number of its steps.
    step: u64,
    /// Number of its searches.
    pub look_count: u64,
    pub held: Option<(u32, OpId)>,
    /// How the last failed acquisition failed.
    pub failed: Option<AcquireError>,
}

impl SlotWorker {
    /// A worker that acts only when told to.
    pub fn directed() -> Self {
        Self { is_directed: true, ..Self::default() }
    }

    pub fn of_pool(count: u32) -> Self {
        Self { count, ..Self::default() }
    }

    pub const fn due(&self) -> Time {
        if self.is_directed { Time::MAX } else { self.due }
    }

    /// Its process is gone, and with it all its state.
    pub fn forget(&mut self, now: Time) {
        let (count, is_directed) = (self.count, self.is_directed);
        *self = Self { due: now, count, is_directed, ..Self::default() };
    }

    pub const fn is_under_way(&self) -> bool {
        self.acquisition.is_some()
    }

    /// Whether it waits for the door.
    pub const fn is_at_door(&self) -> bool {
        self.door.is_some()
    }

    /// The requested slots with their operations.
    pub fn asked(&self) -> &[(u32, OpId)] {
        &self.asked
    }

    fn owns(&self, op: OpId) -> bool {
        [self.look, self.door, self.pause].contains(&Some(op)) || self.asked.iter().any(|(_, it)| *it == op)
    }
}

fn stopped() -> AcquireError {
    AcquireError::Stopped("it was drained".into())
}

/// Names of a pool's locks.
pub fn names(count: u32) -> impl Iterator<Item = Vec<u8>> {
    let slots = (0..count).map(|slot| slot_name(POOL, slot).to_vec());
    slots.chain([door_name(POOL).to_vec()])
}

impl World {
    pub fn begin_slot(&mut self, client: usize, index: usize, count: u32, options: Options) {
        let now = self.local(client);
        note!(self, "c{client} asks for one of {count} slots, {options:?}");
        let seed = self.rng.random();
        let (acquisition, step) = SlotAcquisition::begin(now, &self.config, count, &options, seed);
        let worker = &mut self.clients[client].slots[index];
        (worker.count, worker.options, worker.acquisition) = (count, options, Some(acquisition));
        (worker.failed, worker.look_count, worker.due) = (None, 0, Time::MAX);
        self.follow_slot(client, index, step);
    }

    /// Carries out the next step.
    fn follow_slot(&mut self, client: usize, index: usize, step: SlotStep<OpId>) {
        self.give_up_step(client, index);
        let worker = &mut self.clients[client].slots[index];
        worker.step += 1;
        let number = worker.step;
        match step {
            SlotStep::Try { slot, from } => {
                self.ask_for_slot(client, index, slot, Duration::ZERO);
                if self.clients[client].slots[index].step == number {
                    self.look_for_slots(client, index, from);
                }
            }
            SlotStep::Stand(slots, wait) => {
                *self.statistics.outcomes.entry("slots waited for in their queues").or_default() += 1;
                for slot in slots {
                    if self.clients[client].slots[index].step == number {
                        self.ask_for_slot(client, index, slot, wait);
                    }
                }
            }
            SlotStep::Look(from) => self.look_for_slots(client, index, from),
            SlotStep::Enter(left) => {
                *self.statistics.outcomes.entry("door waited for").or_default() += 1;
                let options = door_options(&self.config, left);
                match self.submit_with(client, &door_name(POOL), options) {
                    Some(door) => self.clients[client].slots[index].door = Some(door),
                    None => {
                        self.answer_slot(client, index, |it, now| Some(it.entered(now, Err(stopped()))));
                    }
                }
            }
            SlotStep::Pause(time) => {
                let pause = self.submit_pause(client, 0, time, time);
                self.clients[client].slots[index].pause = Some(pause);
            }
            SlotStep::Held(slot, lock) => self.hold_slot(client, index, slot, lock),
            SlotStep::Failed(error) => {
                note!(self, "c{client} is denied a slot: {error}");
                *self.statistics.outcomes.entry("slot denied").or_default() += 1;
                self.clients[client].slots[index].failed = Some(error);
                self.end_slot_acquisition(client, index);
            }
        }
    }

    fn ask_for_slot(&mut self, client: usize, index: usize, slot: u32, wait: Duration) {
        let options = self.clients[client].slots[index].options.wait(wait);
        match self.submit_with(client, &slot_name(POOL, slot), options) {
            Some(lock) => self.clients[client].slots[index].asked.push((slot, lock)),
            None => self.answer_slot(client, index, |it, now| it.tried(now, slot, Err(stopped()))),
        }
    }

    /// The engine is drained, and refuses the request.
    fn answer_slot(
        &mut self,
        client: usize,
        index: usize,
        answer: impl FnOnce(&mut SlotAcquisition<OpId>, Instant) -> Option<SlotStep<OpId>>,
    ) {
        let now = self.local(client);
        let acquisition = self.clients[client].slots[index].acquisition.as_mut();
        if let Some(step) = acquisition.and_then(|it| answer(it, now)) {
            self.follow_slot(client, index, step);
        }
    }

    fn look_for_slots(&mut self, client: usize, index: usize, from: u32) {
        let pool = Resource::new(POOL).expect("a valid name");
        let count = self.clients[client].slots[index].count;
        let request = Request::FreeSlots { pool, count, from };
        let worker = &mut self.clients[client].slots[index];
        (worker.begins_look, worker.look_count) = (true, worker.look_count + 1);
        let Some(look) = self.try_submit_query(client, POOL, request, OutcomeKind::FreeSlots) else {
            self.clients[client].slots[index].begins_look = false;
            return self.answer_slot(client, index, |it, now| it.looked(now, Err(stopped())));
        };
        let worker = &mut self.clients[client].slots[index];
        if std::mem::take(&mut worker.begins_look) {
            worker.look = Some(look);
        }
    }

    /// A slot is handed out: it must be the lock of this number.
    fn hold_slot(&mut self, client: usize, index: usize, slot: u32, lock: OpId) {
        note!(self, "c{client} holds slot {slot}: {lock:?}");
        *self.statistics.outcomes.entry("slot acquired").or_default() += 1;
        let key = self.checker.guard(client, lock).map(|guard| guard.key.clone());
        if key.is_none_or(|key| key != slot_name(POOL, slot)) {
            self.checker.violate(format!("c{client} is handed slot {slot} with the lock of another one"));
        }
        self.clients[client].slots[index].held = Some((slot, lock));
        self.end_slot_acquisition(client, index);
    }

    /// Ends the acquisition, and frees the door for the next worker.
    fn end_slot_acquisition(&mut self, client: usize, index: usize) {
        let pause = self.rng.random_range(0..=self.habits.pause_max);
        let worker = &mut self.clients[client].slots[index];
        worker.due = self.now + pause;
        let door = worker.acquisition.take().and_then(|mut it| it.take_door());
        if let Some(door) = door {
            self.submit_release(client, door, false);
        }
    }

    /// Gives up what the last step left under way.
    fn give_up_step(&mut self, client: usize, index: usize) {
        let worker = &mut self.clients[client].slots[index];
        let (look, pause, door) = (worker.look.take(), worker.pause.take(), worker.door.take());
        let locks: Vec<OpId> = worker.asked.drain(..).map(|(_, lock)| lock).chain(door).collect();
        look.into_iter().chain(pause).for_each(|query| self.cancel_query(client, query));
        for lock in locks {
            if self.clients[client].tasks.is_some() {
                self.give_up(client, lock);
            } else {
                self.submit_release(client, lock, false);
            }
        }
    }

    /// Takes the answer about a slot, the door or a search, or the end of a pause.
    pub fn notify_slot(&mut self, client: usize, op: OpId, outcome: &Outcome) {
        let is_look = matches!(outcome, Outcome::FreeSlots(_));
        let begins = |client: &Client| client.slots.iter().position(|it| is_look && it.begins_look);
        let index = self.slot_worker_of(client, op).or_else(|| begins(&self.clients[client]));
        let Some(index) = index else { return };
        let now = self.local(client);
        let worker = &mut self.clients[client].slots[index];
        let Some(acquisition) = &mut worker.acquisition else { return };
        let step = match outcome {
            Outcome::Acquire(result) => {
                let answer = result.as_ref().map(|_| op).map_err(Clone::clone);
                if worker.door.take_if(|door| *door == op).is_some() {
                    Some(acquisition.entered(now, answer))
                } else {
                    let place = worker.asked.iter().position(|(_, it)| *it == op).expect("it was asked for");
                    let (slot, _) = worker.asked.swap_remove(place);
                    acquisition.tried(now, slot, answer)
                }
            }
            Outcome::FreeSlots(look) => {
                (worker.look, worker.begins_look) = (None, false);
                acquisition.looked(now, Ok(look.clone()))
            }
            Outcome::Paused => {
                worker.pause = None;
                Some(acquisition.paused(now, Ok(())))
            }
            _ => return,
        };
        if let Some(step) = step {
            self.follow_slot(client, index, step);
        }
    }

    /// The worker that this operation belongs to, during its acquisition.
    pub fn slot_worker_of(&self, client: usize, op: OpId) -> Option<usize> {
        self.clients[client].slots.iter().position(|worker| worker.owns(op))
    }

    /// Drops the slot's future.
    pub fn give_up_slot(&mut self, client: usize, index: usize) {
        note!(self, "c{client} gives a slot up");
        *self.statistics.outcomes.entry("slot given up").or_default() += 1;
        self.clients[client].slots[index].step += 1;
        self.give_up_step(client, index);
        self.end_slot_acquisition(client, index);
    }

    pub fn release_slot(&mut self, client: usize, index: usize, awaited: bool) {
        if let Some((_, lock)) = self.clients[client].slots[index].held.take() {
            self.submit_release(client, lock, awaited);
        }
        self.clients[client].slots[index].due = self.now + self.rng.random_range(0..=self.habits.pause_max);
    }

    /// Ends a worker's slot or acquisition.
    pub fn end_slot(&mut self, client: usize, index: usize) {
        if self.clients[client].slots[index].is_under_way() {
            self.give_up_slot(client, index);
        }
        self.release_slot(client, index, false);
    }

    pub fn work_on_slots(&mut self, client: usize) {
        for index in 0..self.clients[client].slots.len() {
            let worker = &self.clients[client].slots[index];
            if worker.due() > self.now {
                continue;
            }
            if worker.acquisition.is_some() {
                self.give_up_slot(client, index);
            } else if worker.held.is_some() {
                let awaited = self.rng.random();
                self.release_slot(client, index, awaited);
            } else {
                self.draw_slot(client, index);
            }
        }
    }

    fn draw_slot(&mut self, client: usize, index: usize) {
        self.clients[client].slots[index].due = Time::MAX;
        if self.habits.is_closing {
            return;
        }
        let count = self.clients[client].slots[index].count;
        let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
        let wait = if self.rng.random() { 0 } else { self.rng.random_range(0..=self.habits.wait_max) };
        let mut options = Options::new().ttl(ttl).wait(Duration::from_nanos(wait));
        if self.habits.fenced_ppm > 0 && self.rng.random() {
            options = options.fenced();
        }
        self.begin_slot(client, index, count, options);
        if chance(&mut self.rng, 100_000) {
            self.clients[client].slots[index].due = self.now + self.rng.random_range(0..=100 * MS);
        }
    }
}
