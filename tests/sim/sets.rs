//! Applications that request several locks together: like a `Client`, they follow the steps of
//! [`SetAcquisition`].
//!
//! The locks of a set are judged like any others. Also: a set is handed out whole, nothing is held during a
//! wait, and a set is valid only while each of its locks is.

use std::time::Duration;

use rand::RngExt;
use redlatch::Options;
use redlatch::compose::set_acquisition;
use redlatch::compose::set_acquisition::{Failed, SetAcquisition, SetStep};
use redlatch::engine::{OpId, Outcome};

use crate::clock::{MS, Time};
use crate::network::chance;
use crate::world::{World, note, shown};

/// A worker that acquires several locks together, holds them, and releases them.
#[derive(Default)]
pub struct SetWorker {
    /// Time of its next action.
    due: Time,
    is_directed: bool,
    /// Sorted, without duplicates.
    names: Vec<Vec<u8>>,
    ttl: Duration,
    /// `None` unless the set is being acquired.
    acquisition: Option<SetAcquisition<OpId>>,
    asked: Vec<(usize, OpId)>,
    /// All requests since the set's beginning.
    asked_ever: Vec<OpId>,
    pause: Option<OpId>,
    pub held: Vec<OpId>,
    /// How the last failed acquisition failed.
    pub failed: Option<Failed>,
}

impl SetWorker {
    /// A worker that acts only when told to.
    pub fn directed() -> Self {
        Self { is_directed: true, ..Self::default() }
    }

    pub const fn due(&self) -> Time {
        if self.is_directed { Time::MAX } else { self.due }
    }

    /// Its process is gone, and with it all its state.
    pub fn forget(&mut self, now: Time) {
        *self = Self { due: now, ..Self::default() };
    }

    pub const fn is_under_way(&self) -> bool {
        self.acquisition.is_some()
    }

    /// Whether it has waited for one of its locks, has it, and requests the others.
    pub const fn has_waited(&self) -> bool {
        let count = self.names.len();
        self.acquisition.is_some() && self.asked_ever.len() > count + 1 && self.asked.len() + 1 == count
    }

    fn owns(&self, lock: OpId) -> bool {
        self.pause == Some(lock) || self.asked.iter().any(|(_, asked)| *asked == lock)
    }
}

impl World {
    pub fn begin_set(
        &mut self,
        client: usize,
        index: usize,
        names: &[&[u8]],
        (ttl, wait): (Duration, Duration),
        min_validity: Duration,
    ) {
        let now = self.local(client);
        let mut names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        names.sort_unstable();
        names.dedup();
        note!(self, "c{client} asks for {} locks together, wait {wait:?}", names.len());
        let options = Options::new().wait(wait).min_validity(min_validity);
        let (acquisition, step) = SetAcquisition::begin(now, self.config.clone(), names.len(), &options);
        let set = &mut self.clients[client].sets[index];
        (set.names, set.ttl, set.acquisition, set.failed) = (names, ttl, Some(acquisition), None);
        set.due = Time::MAX;
        set.asked_ever.clear();
        self.follow_set(client, index, step);
    }

    /// Carries out the next step.
    fn follow_set(&mut self, client: usize, index: usize, step: SetStep<OpId>) {
        if !matches!(step, SetStep::Ask(_) | SetStep::Held(_)) {
            self.check_set_is_free(client, index);
        }
        match step {
            SetStep::Ask(places) => {
                places.into_iter().for_each(|place| self.ask_for_place(client, index, place, Duration::ZERO));
            }
            SetStep::Wait(place, wait) => {
                *self.statistics.outcomes.entry("set waits for the lock in its way").or_default() += 1;
                self.ask_for_place(client, index, place, wait);
            }
            SetStep::Pause { attempts, took, limit } => {
                let op = self.submit_pause(client, attempts, took, limit);
                self.clients[client].sets[index].pause = Some(op);
            }
            SetStep::Held(locks) => self.hold_set(client, index, locks),
            SetStep::Failed(failed) => {
                note!(self, "c{client} is denied a set, for its lock {}: {}", failed.place, failed.error);
                *self.statistics.outcomes.entry("set denied").or_default() += 1;
                let pause = self.rng.random_range(0..=self.habits.pause_max);
                let set = &mut self.clients[client].sets[index];
                (set.acquisition, set.failed, set.due) = (None, Some(failed), self.now + pause);
            }
        }
    }

    fn ask_for_place(&mut self, client: usize, index: usize, place: usize, wait: Duration) {
        let set = &self.clients[client].sets[index];
        let (name, ttl) = (set.names[place].clone(), set.ttl);
        let lock = self.submit_acquire(client, &name, ttl, wait).expect("room");
        let set = &mut self.clients[client].sets[index];
        set.asked.push((place, lock));
        set.asked_ever.push(lock);
    }

    /// A set is handed out: it must be whole, and each of its locks valid (I2).
    fn hold_set(&mut self, client: usize, index: usize, locks: Vec<OpId>) {
        note!(self, "c{client} holds a set: {locks:?}");
        *self.statistics.outcomes.entry("set acquired").or_default() += 1;
        let guards: Vec<_> = locks.iter().map(|lock| self.checker.guard(client, *lock)).collect();
        let names = guards.iter().flatten().map(|guard| &guard.key);
        let is_whole = names.eq(&self.clients[client].sets[index].names);
        let is_valid = guards.iter().flatten().all(|guard| self.is_valid(guard));
        if !is_whole {
            self.checker.violate(format!("c{client} is handed a set without some of its locks: {locks:?}"));
        } else if !is_valid {
            self.checker.violate(format!("I2: c{client} is handed a set of which a lock is over"));
        }
        let pause = self.rng.random_range(0..=self.habits.pause_max);
        let set = &mut self.clients[client].sets[index];
        (set.acquisition, set.held, set.due) = (None, locks, self.now + pause);
    }

    /// Takes the answer about a set's lock, or the end of its pause.
    pub fn notify_set(&mut self, client: usize, op: OpId, outcome: &Outcome) {
        let Some(index) = self.set_of(client, op) else { return };
        let now = self.local(client);
        let it = &mut self.clients[client];
        let set = &mut it.sets[index];
        let Some(acquisition) = &mut set.acquisition else { return };
        if set.pause.take_if(|pause| *pause == op).is_some() {
            let step = acquisition.paused(now, Ok(()));
            return self.follow_set(client, index, step);
        }
        let Outcome::Acquire(result) = outcome else { return };
        let asked = set.asked.iter().position(|(_, asked)| *asked == op).expect("it is of this set");
        let (place, lock) = set.asked.swap_remove(asked);
        let (mut back, engine) = (Vec::new(), &it.engine);
        let remaining = |lock: &OpId| {
            engine.valid_until(*lock).map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
        };
        let answer = result.as_ref().map(|_| lock).map_err(Clone::clone);
        let step = acquisition.answer(now, place, answer, &mut back, remaining);
        back.into_iter().for_each(|lock| self.submit_release(client, lock, false));
        if let Some(step) = step {
            self.follow_set(client, index, step);
        }
    }

    /// The set that this operation belongs to, during its acquisition.
    pub fn set_of(&self, client: usize, op: OpId) -> Option<usize> {
        self.clients[client].sets.iter().position(|set| set.owns(op))
    }

    /// Drops the set's future.
    pub fn give_up_set(&mut self, client: usize, index: usize) {
        note!(self, "c{client} gives a set up");
        *self.statistics.outcomes.entry("set given up").or_default() += 1;
        let due = self.now + self.habits.pause_max / 4;
        let set = &mut self.clients[client].sets[index];
        set.due = due;
        let (acquisition, pause, asked) =
            (set.acquisition.take(), set.pause.take(), std::mem::take(&mut set.asked));
        if let Some(pause) = pause {
            self.cancel_query(client, pause);
        }
        for (_, lock) in asked {
            if self.clients[client].tasks.is_some() {
                self.give_up(client, lock);
            } else {
                self.submit_release(client, lock, false);
            }
        }
        for lock in acquisition.map(SetAcquisition::give_up).unwrap_or_default() {
            self.submit_release(client, lock, false);
        }
    }

    pub fn release_set(&mut self, client: usize, index: usize, awaited: bool) {
        let locks = std::mem::take(&mut self.clients[client].sets[index].held);
        locks.into_iter().for_each(|lock| self.submit_release(client, lock, awaited));
        self.clients[client].sets[index].due = self.now + self.rng.random_range(0..=self.habits.pause_max);
    }

    pub fn work_on_sets(&mut self, client: usize) {
        for index in 0..self.clients[client].sets.len() {
            let set = &self.clients[client].sets[index];
            if set.due() > self.now {
                continue;
            }
            if set.acquisition.is_some() {
                self.give_up_set(client, index);
            } else if set.held.is_empty() {
                self.draw_set(client, index);
            } else if self.habits.is_closing || chance(&mut self.rng, 700_000) {
                let awaited = self.rng.random();
                self.release_set(client, index, awaited);
            } else {
                self.extend_set(client, index);
            }
        }
    }

    fn draw_set(&mut self, client: usize, index: usize) {
        self.clients[client].sets[index].due = Time::MAX;
        if self.habits.is_closing {
            return;
        }
        let keys = self.habits.keys.clone();
        let mut names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        while names.len() > 2 {
            names.swap_remove(self.rng.random_range(0..names.len()));
        }
        let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
        let wait = if self.rng.random() { 0 } else { self.rng.random_range(0..=self.habits.wait_max) };
        self.begin_set(client, index, &names, (ttl, Duration::from_nanos(wait)), Duration::ZERO);
        if chance(&mut self.rng, 100_000) {
            self.clients[client].sets[index].due = self.now + self.rng.random_range(0..=100 * MS);
        }
    }

    fn extend_set(&mut self, client: usize, index: usize) {
        let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
        for lock in self.clients[client].sets[index].held.clone() {
            let is_quiet = self.clients[client].lock(lock).is_some_and(|it| it.pending.is_none());
            if is_quiet && chance(&mut self.rng, 800_000) {
                self.submit_extend(client, lock, ttl);
            }
        }
        self.clients[client].sets[index].due = self.now + self.rng.random_range(0..=self.habits.pause_max);
    }

    /// Validity of all locks of a set, as its holder sees it.
    pub fn set_validity(&self, client: usize, index: usize) -> Duration {
        let (now, it) = (self.local(client), &self.clients[client]);
        let left = |lock: &OpId| {
            it.engine.valid_until(*lock).map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
        };
        set_acquisition::validity(it.sets[index].held.iter().map(left))
    }

    /// A client that considers a set valid must have each of its locks.
    pub fn check_sets(&mut self, client: usize) {
        for index in 0..self.clients[client].sets.len() {
            if self.set_validity(client, index).is_zero() {
                continue;
            }
            let is_valid =
                |lock: &OpId| self.checker.guard(client, *lock).is_some_and(|guard| self.is_valid(guard));
            if !self.clients[client].sets[index].held.iter().all(is_valid) {
                self.checker.violate(format!("c{client} takes a set for valid of which a lock is over"));
            }
        }
    }

    /// Nothing may be held during a wait for another lock, or after a failure.
    fn check_set_is_free(&mut self, client: usize, index: usize) {
        let asked = &self.clients[client].sets[index].asked_ever;
        let is_own = |lock: &OpId| asked.contains(lock);
        let mut guards = self.checker.guards.iter().filter(|guard| guard.client == client);
        if let Some(guard) = guards.find(|guard| is_own(&guard.lock)) {
            let name = shown(&guard.key);
            self.checker.violate(format!("c{client} keeps {name} of a set that it does not have"));
        }
    }
}
