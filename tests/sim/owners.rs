//! Owners of reentrant locks: several callers that take one lock again and again. As in a `Client`, [`Holds`]
//! counts, and decides how callers go on after a failed attempt.
//!
//! The lock is judged like any other. Also: masters hold it exactly from the first hold to the last, nobody
//! gets a hold of a lost lock, there are no more attempts than callers, and no attempt outlasts a caller's
//! wait.

use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::compose::holds::Holds;
use redlatch::engine::{OpId, Outcome};

use crate::clock::{MS, Time};
use crate::world::{World, note};

/// An owner, which excludes all others.
pub struct Owner {
    pub holds: Holds<OpId, OpId>,
    key: Vec<u8>,
    /// TTL and wait of its request, the same for each caller; drawn for the first.
    terms: Option<(Duration, Duration)>,
    pub attempts_max: Option<u32>,
    /// Since the lock was free: callers that wanted it, and attempts for them.
    joined_count: usize,
    attempt_count: usize,
    pub callers: Vec<OwnCaller>,
    is_directed: bool,
}

/// A thread or task of an owner.
#[derive(Debug, Clone, Copy)]
pub struct OwnCaller {
    pub state: CallerState,
    pub due: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerState {
    Outside,
    /// It wants the lock that is being acquired, and waits until this time.
    Joined(Instant),
    /// A hold was counted for it, but it has not fetched the hold.
    Counted,
    Inside,
}

impl Owner {
    pub fn new(caller_count: usize) -> Self {
        let callers = vec![OwnCaller { state: CallerState::Outside, due: 0 }; caller_count];
        Self {
            holds: Holds::Free,
            key: b"a".to_vec(),
            terms: None,
            attempts_max: None,
            joined_count: 0,
            attempt_count: 0,
            callers,
            is_directed: false,
        }
    }

    /// An owner whose callers act only when told to.
    pub fn directed(caller_count: usize) -> Self {
        Self { is_directed: true, ..Self::new(caller_count) }
    }

    /// Its process is gone, and with it all its state.
    pub fn forget(&mut self, now: Time) {
        (self.holds, self.terms) = (Holds::Free, None);
        self.callers.fill(OwnCaller { state: CallerState::Outside, due: now });
    }

    pub fn due(&self) -> Time {
        if self.is_directed {
            return Time::MAX;
        }
        self.callers.iter().map(|caller| caller.due).min().unwrap_or(Time::MAX)
    }

    pub const fn is_busy(&self) -> bool {
        !matches!(self.holds, Holds::Free)
    }

    fn inside_count(&self) -> usize {
        let is_counted = |it: &&OwnCaller| matches!(it.state, CallerState::Counted | CallerState::Inside);
        self.callers.iter().filter(is_counted).count()
    }
}

impl World {
    /// A caller wants a hold.
    pub fn enter(&mut self, client: usize, index: usize, caller: usize, ttl: Duration, wait: Duration) {
        let now = self.local(client);
        let it = &mut self.clients[client];
        let (owner, engine) = (&mut it.owners[index], &it.engine);
        owner.terms = Some((ttl, wait));
        let is_valid = |lock: &OpId| engine.valid_until(*lock).is_some_and(|at| now < at);
        let state = match owner.holds.take_again(is_valid) {
            Some(Ok(())) => CallerState::Inside,
            Some(Err(_)) => CallerState::Outside,
            None if owner.is_busy() => {
                owner.joined_count += 1;
                owner.holds.join(now + wait);
                CallerState::Joined(now + wait)
            }
            None => {
                (owner.joined_count, owner.attempt_count) = (1, 0);
                let lock = self.attempt(client, index, now + wait);
                self.clients[client].owners[index].holds.begin(lock, now + wait);
                CallerState::Joined(now + wait)
            }
        };
        note!(self, "c{client} owner {index} caller {caller} enters: {state:?}");
        let is_again = state == CallerState::Inside;
        if is_again {
            *self.statistics.outcomes.entry("taken again").or_default() += 1;
            self.check_entered(client, index);
        }
        self.set_caller(client, index, caller, state);
    }

    /// Begins an attempt for an owner's callers.
    fn attempt(&mut self, client: usize, index: usize, until: Instant) -> OpId {
        let wait = until.saturating_duration_since(self.local(client));
        let owner = &mut self.clients[client].owners[index];
        owner.attempt_count += 1;
        let (ttl, _) = owner.terms.expect("a caller has asked");
        let (key, attempts_max) = (owner.key.clone(), owner.attempts_max);
        let options = self.draw_options(ttl, wait);
        let options = attempts_max.map_or(options, |max| options.max_attempts(max));
        self.submit_with(client, &key, options).expect("room")
    }

    /// A caller checks whether its counted hold is still one.
    pub fn fetch_hold(&mut self, client: usize, index: usize, caller: usize) {
        let now = self.local(client);
        let it = &mut self.clients[client];
        let engine = &it.engine;
        let is_valid = |lock: &OpId| engine.valid_until(*lock).is_some_and(|at| now < at);
        match it.owners[index].holds.fetch(is_valid) {
            Ok(()) => {
                self.set_caller(client, index, caller, CallerState::Inside);
                self.check_entered(client, index);
            }
            Err((_, last)) => {
                *self.statistics.outcomes.entry("hold fetched too late").or_default() += 1;
                self.set_caller(client, index, caller, CallerState::Outside);
                last.into_iter().for_each(|lock| self.submit_release(client, lock, false));
            }
        }
    }

    /// A caller ends its hold, or stops waiting for it.
    pub fn exit(&mut self, client: usize, index: usize, caller: usize) {
        note!(self, "c{client} owner {index} caller {caller} leaves");
        let owner = &mut self.clients[client].owners[index];
        let (given_up, last) = match owner.callers[caller].state {
            CallerState::Outside => (None, None),
            CallerState::Joined(wait_until) => (owner.holds.leave(wait_until), None),
            CallerState::Counted | CallerState::Inside => (None, owner.holds.end()),
        };
        self.set_caller(client, index, caller, CallerState::Outside);
        if let Some(lock) = given_up {
            if self.clients[client].tasks.is_some() {
                self.give_up(client, lock);
            } else {
                self.submit_release(client, lock, false);
            }
        }
        let awaited = self.rng.random();
        last.into_iter().for_each(|lock| self.submit_release(client, lock, awaited));
    }

    fn set_caller(&mut self, client: usize, index: usize, caller: usize, state: CallerState) {
        let pause = match state {
            CallerState::Counted => self.rng.random_range(0..=50 * MS),
            // Most callers wait until they are notified.
            CallerState::Joined(_) if self.rng.random_range(0..4) > 0 => Time::MAX - self.now,
            _ => self.rng.random_range(0..=self.habits.pause_max),
        };
        self.clients[client].owners[index].callers[caller] = OwnCaller { state, due: self.now + pause };
    }

    /// Takes the answer to the attempt of an owner's callers.
    pub fn notify_owner(&mut self, client: usize, op: OpId, outcome: &Outcome) {
        let is_its = |it: &Owner| matches!(it.holds, Holds::Acquiring { attempt, .. } if attempt == op);
        let Some(index) = self.clients[client].owners.iter().position(is_its) else { return };
        let Outcome::Acquire(result) = outcome else { return };
        let now = self.local(client);
        let holds = &mut self.clients[client].owners[index].holds;
        // The time up to which this answers callers, and their new state.
        let (answered_until, state) = match result {
            Ok(_) => {
                holds.acquired(op);
                (None, CallerState::Counted)
            }
            Err(error) => (Some(holds.fail(now, error)), CallerState::Outside),
        };
        for caller in 0..self.clients[client].owners[index].callers.len() {
            let it = self.clients[client].owners[index].callers[caller].state;
            let CallerState::Joined(wait_until) = it else { continue };
            if answered_until.is_none_or(|until| wait_until <= until) {
                self.set_caller(client, index, caller, state);
            }
        }
        self.go_on(client, index);
    }

    /// Begins another attempt for callers left after a failed one.
    fn go_on(&mut self, client: usize, index: usize) {
        let owner = &self.clients[client].owners[index];
        let Holds::Acquiring { until, .. } = owner.holds else { return };
        *self.statistics.outcomes.entry("owner goes on after a failure").or_default() += 1;
        if owner.attempt_count >= owner.joined_count {
            let why = format!("c{client} makes more attempts than it has callers: {}", owner.joined_count);
            return self.checker.violate(why);
        }
        let next = self.attempt(client, index, until);
        if let Holds::Acquiring { attempt, .. } = &mut self.clients[client].owners[index].holds {
            *attempt = next;
        }
    }

    /// Whether an owner acquires this lock.
    pub fn is_of_owner(&self, client: usize, op: OpId) -> bool {
        let is_its = |it: &Owner| matches!(it.holds, Holds::Acquiring { attempt, .. } if attempt == op);
        self.clients[client].owners.iter().any(is_its)
    }

    pub fn work_of_owners(&mut self, client: usize) {
        for index in 0..self.clients[client].owners.len() {
            for caller in 0..self.clients[client].owners[index].callers.len() {
                let it = self.clients[client].owners[index].callers[caller];
                if it.due > self.now || self.clients[client].owners[index].is_directed {
                    continue;
                }
                match it.state {
                    CallerState::Outside if self.habits.is_closing => {
                        self.clients[client].owners[index].callers[caller].due = Time::MAX;
                    }
                    CallerState::Outside => {
                        let drawn = (
                            self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())],
                            Duration::from_nanos(self.rng.random_range(0..=self.habits.wait_max)),
                        );
                        let (ttl, wait) = self.clients[client].owners[index].terms.unwrap_or(drawn);
                        self.enter(client, index, caller, ttl, wait);
                    }
                    CallerState::Counted if self.rng.random_range(0..8) > 0 => {
                        self.fetch_hold(client, index, caller);
                    }
                    CallerState::Joined(_) | CallerState::Counted | CallerState::Inside => {
                        self.exit(client, index, caller);
                    }
                }
            }
        }
    }

    /// Nobody gets a hold of a lost lock (I2).
    fn check_entered(&mut self, client: usize, index: usize) {
        let lock = self.clients[client].owners[index].holds.lock().copied();
        let guard = lock.and_then(|lock| self.checker.guard(client, lock));
        if guard.is_none_or(|guard| !self.is_valid(guard)) {
            self.checker.violate(format!("I2: c{client} is given a hold of a lock that is over"));
        }
    }

    /// Callers are inside exactly while the lock is held, and no attempt outlasts a caller's wait.
    pub fn check_owners(&mut self, client: usize) {
        for owner in &self.clients[client].owners {
            if let Holds::Acquiring { until, waits, .. } = &owner.holds
                && waits.iter().any(|wait_until| wait_until < until)
            {
                return self.checker.violate(format!("c{client}: an attempt outlasts a caller's wait"));
            }
            let (count, inside_count) = (owner.holds.count(), owner.inside_count());
            let is_held = owner.holds.lock().is_some_and(|lock| self.checker.guard(client, *lock).is_some());
            if count != inside_count || is_held != (inside_count > 0) {
                let why = format!(
                    "c{client}: {inside_count} callers have holds, {count} are counted, held: {is_held}"
                );
                return self.checker.violate(why);
            }
        }
    }
}
