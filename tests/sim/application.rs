//! Requests of the applications to their clients, and their use of the answers.

use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::completions::OutcomeKind;
use redlatch::engine::{Grant, HolderLabel, OpId, Outcome, Request, Resource};
use redlatch::simulated::Call;
use redlatch::{AcquireError, ExtendError, LockHandle, Mode, Options, WaitPolicy};

use crate::checker::Waiter;
use crate::client::{Lock, Pending, Worker};
use crate::clock::{MS, SECOND, Time};
use crate::network::chance;
use crate::queries;
use crate::world::{World, described, note, shown};

/// The label part of values, for callers that have a label.
pub const LABEL: &str = "web-3:4711:billing";

impl World {
    pub fn submit_acquire(
        &mut self,
        client: usize,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
    ) -> Option<OpId> {
        let options = self.draw_options(ttl, wait);
        self.submit_with(client, key, options)
    }

    /// Draws options for a lock of any kind in this world.
    pub fn draw_options(&mut self, ttl: Duration, wait: Duration) -> Options {
        let is_fenced = self.habits.fenced_ppm > 0 && chance(&mut self.rng, self.habits.fenced_ppm);
        let is_fair = self.habits.fair_ppm > 0 && chance(&mut self.rng, self.habits.fair_ppm);
        let is_shared = self.habits.shared_ppm > 0 && chance(&mut self.rng, self.habits.shared_ppm);
        let options = Options::new().ttl(ttl).wait(wait);
        match (is_shared, is_fair, is_fenced) {
            (true, ..) => options.shared(),
            (false, true, _) => options.fair(),
            (false, false, true) => options.fenced(),
            (false, false, false) => options,
        }
    }

    pub fn submit_fenced(
        &mut self,
        client: usize,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
    ) -> Option<OpId> {
        self.submit_with(client, key, Options::new().ttl(ttl).wait(wait).fenced())
    }

    pub fn submit_fair(&mut self, client: usize, key: &[u8], ttl: Duration, wait: Duration) -> Option<OpId> {
        self.submit_with(client, key, Options::new().ttl(ttl).wait(wait).fair())
    }

    pub fn submit_shared(
        &mut self,
        client: usize,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
    ) -> Option<OpId> {
        self.submit_with(client, key, Options::new().ttl(ttl).wait(wait).shared())
    }

    pub fn submit_with(&mut self, client: usize, key: &[u8], options: Options) -> Option<OpId> {
        let ttl = self.config.ttl(options.ttl.expect("it is given")).expect("a valid TTL");
        let wait = options.wait.expect("it is given");
        let now = self.local(client);
        let is_labelled = self.habits.label_ppm > 0 && chance(&mut self.rng, self.habits.label_ppm);
        let label = is_labelled.then_some(LABEL);
        self.deliver(client);
        let lock = match self.clients[client].tasks {
            None => self.submit_to_engine(client, key, options, label)?,
            Some(_) => {
                let make = |it: &redlatch::Client| Call::acquire(it, key, options, label);
                self.begin_call(client, OutcomeKind::Acquire, make)?
            }
        };
        self.clients[client].taken_count += 1;
        // One round and the question for the holder, or the whole wait.
        let deadline = now + if wait.is_zero() { 2 * self.config.answer_limit(ttl) } else { wait };
        note!(self, "c{client} asks for {}, {options:?}, {label:?}, as {lock:?}", shown(key));
        self.clients[client].locks.push((
            lock,
            Lock {
                key: key.to_vec(),
                ttl: ttl.as_duration(),
                pending: Some((Pending::Acquire, deadline)),
                is_held: false,
                is_shared: options.mode == Mode::Shared,
                is_kept: options.auto_extend.is_some(),
                is_watched_in_time: false,
                loss_notified_at: None,
            },
        ));
        if options.policy == WaitPolicy::Fair {
            self.checker.waiters.push(Waiter::new(client, lock, key, self.now));
        }
        self.deliver(client);
        self.wake(client, self.now);
        Some(lock)
    }

    fn submit_to_engine(
        &mut self,
        client: usize,
        key: &[u8],
        options: Options,
        label: Option<&str>,
    ) -> Option<OpId> {
        let (now, wall) = (self.local(client), self.wall(client));
        let resource = Resource::of_any_lock(key).expect("a valid name");
        let label = label.map(|label| HolderLabel::new(label).expect("a valid label"));
        let engine = &mut self.clients[client].engine;
        if options.mode == Mode::Fenced {
            engine.handle_wall_clock(now, wall);
        }
        engine.submit(now, Request::Acquire { resource, options, label }).ok()
    }

    pub fn submit_extend(&mut self, client: usize, lock: OpId, ttl: Duration) {
        let ttl = self.config.ttl(ttl).expect("a valid TTL");
        let now = self.local(client);
        if !self.end_asking(client, lock) {
            return;
        }
        self.deliver(client);
        note!(self, "c{client} extends {lock:?} to {:?}", ttl.as_duration());
        if self.clients[client].tasks.is_none() {
            let request = Request::Extend { lock, ttl: ttl.as_duration() };
            self.clients[client].engine.submit(now, request).expect("always taken");
        } else if !self.extend_as_task(client, lock, ttl.as_duration()) {
            return self.checker.violate(format!("c{client} cannot extend {lock:?}"));
        }
        let deadline = now + self.config.answer_limit(ttl);
        if let Some(it) = self.clients[client].lock(lock) {
            it.pending = Some((Pending::Extend, deadline));
        }
        self.deliver(client);
        self.follow_validity(client, lock);
        self.wake(client, self.now);
    }

    /// The longest answer limit of any TTL, extended for 300 owed replies. Masters that owe more than 100
    /// extend it.
    pub fn release_limit(&self) -> Duration {
        let longest = self.config.ttl(self.config_max_ttl()).expect("valid");
        self.config.answer_limit(longest) + Duration::from_millis(20)
    }

    pub fn submit_release(&mut self, client: usize, lock: OpId, awaited: bool) {
        if !self.end_asking(client, lock) {
            return;
        }
        self.deliver(client);
        let now = self.local(client);
        note!(self, "c{client} releases {lock:?}");
        self.checker.end_guard(client, lock);
        self.checker.end_waiting(client, lock);
        let deadline = now + self.release_limit();
        let is_awaited = match self.clients[client].tasks {
            None => {
                let request = Request::Release { lock, awaited };
                self.clients[client].engine.submit(now, request).expect("always taken");
                awaited
            }
            Some(_) => self.release_as_task(client, lock, awaited),
        };
        if is_awaited && let Some(it) = self.clients[client].lock(lock) {
            it.pending = Some((Pending::Release, deadline));
            it.is_held = false;
            self.deliver(client);
        } else {
            if awaited {
                self.leave_lock(client, lock);
            }
            self.clients[client].forget(lock);
            self.deliver(client);
        }
        self.wake(client, self.now);
    }

    /// Leaves a lock to its TTL, or for the rest of a time. A lock whose validity has ended is released.
    pub fn submit_leave(&mut self, client: usize, lock: OpId, rest: Option<Duration>) {
        if rest.is_none() && self.clients[client].tasks.is_some() {
            self.leave_now(client, lock, false);
            return;
        }
        let now = self.local(client);
        if self.clients[client].engine.valid_until(lock).is_none_or(|end| end <= now) {
            return self.submit_release(client, lock, rest.is_some());
        }
        note!(self, "c{client} leaves {lock:?}, for {rest:?}");
        self.note_left(client, lock);
        match rest {
            None => {
                self.checker.end_guard(client, lock);
                self.clients[client].engine.leave(now, lock).expect("valid");
                self.clients[client].forget(lock);
            }
            Some(rest) => {
                // The answer may prolong it.
                self.checker.limit_guard(client, lock, now);
                let deadline = now + self.release_limit();
                let request = Request::LeaveFor { lock, rest };
                self.clients[client].engine.submit(now, request).expect("always taken");
                if let Some(it) = self.clients[client].lock(lock) {
                    it.pending = Some((Pending::Release, deadline));
                    it.is_held = false;
                }
            }
        }
        self.wake(client, self.now);
    }

    fn note_left(&mut self, client: usize, lock: OpId) {
        let token = self.checker.guard(client, lock).map(|guard| guard.token.clone());
        if let Some(facts) = token.and_then(|token| self.checker.facts.get_mut(&token)) {
            facts.is_left = true;
        }
        self.checker.end_waiting(client, lock);
    }

    /// A task leaves its lock to the TTL, or passes it on; it releases a lock whose validity has ended.
    pub fn leave_now(&mut self, client: usize, lock: OpId, is_passed: bool) -> Option<LockHandle> {
        if !self.end_asking(client, lock) {
            return None;
        }
        self.deliver(client);
        let now = self.local(client);
        if self.clients[client].engine.valid_until(lock).is_none_or(|end| end <= now) {
            self.submit_release(client, lock, false);
            return None;
        }
        note!(self, "c{client} leaves {lock:?}, passed on: {is_passed}");
        self.note_left(client, lock);
        let handle = self.leave_as_task(client, lock, is_passed);
        self.checker.end_guard(client, lock);
        self.clients[client].forget(lock);
        self.deliver(client);
        self.wake(client, self.now);
        handle
    }

    pub fn submit_watch(&mut self, client: usize, lock: OpId) {
        let now = self.local(client);
        let is_losing = self.clients[client].engine.is_losing(now, lock);
        if let Some(it) = self.clients[client].lock(lock) {
            it.is_watched_in_time = !is_losing;
        }
        match self.clients[client].tasks {
            None => drop(self.clients[client].engine.submit(now, Request::NotifyLoss { lock })),
            Some(_) => self.watch_as_task(client, lock),
        }
        self.wake(client, self.now);
    }

    pub fn config_max_ttl(&self) -> Duration {
        *self.habits.ttls.iter().max().expect("at least one")
    }

    /// Updates the guard from its engine.
    pub fn follow_validity(&mut self, client: usize, lock: OpId) {
        let engine = &self.clients[client].engine;
        if let Some(guard) = self.checker.guards.iter_mut().find(|it| it.client == client && it.lock == lock)
            && let Some(valid_until) = engine.valid_until(lock)
        {
            // A lock that was not moved stays valid until then.
            let read = engine.validity(lock).map(|it| it.until(guard.valid_until));
            guard.valid_until = valid_until;
            if read != Some(valid_until) {
                self.checker.violate(format!("c{client} {lock:?}: its guard reads another validity"));
            }
        }
    }

    /// Renewals have no outcome, so a longer validity shows an extension.
    pub fn follow_renewals(&mut self, client: usize) {
        let it = &self.clients[client];
        let renewed: Vec<(OpId, Instant)> = it
            .locks
            .iter()
            .filter(|(_, lock)| lock.is_held && lock.pending.is_none())
            .filter_map(|(lock, _)| {
                let valid_until = it.engine.valid_until(*lock)?;
                (valid_until > self.checker.guard(client, *lock)?.valid_until).then_some((*lock, valid_until))
            })
            .collect();
        for (lock, valid_until) in renewed {
            // A renewal that was under way when the loss was reported may still succeed.
            let notified_at = self.clients[client].lock(lock).and_then(|it| it.loss_notified_at);
            if notified_at.is_some_and(|at| valid_until > at + self.config_max_ttl()) {
                self.checker.violate(format!("c{client} {lock:?}: renewed after its loss was reported"));
            }
            *self.statistics.outcomes.entry("renewed").or_default() += 1;
            self.check_outcome(client, lock, &Outcome::Extend(Ok(valid_until)));
        }
    }

    pub fn take_outcome(&mut self, client: usize, lock: OpId, outcome: Outcome) {
        if let Outcome::Lost(valid_until) = outcome {
            note!(self, "c{client} {lock:?} is reported lost");
            *self.statistics.outcomes.entry("reported lost").or_default() += 1;
            self.check_loss(client, lock, valid_until);
            if self.clients[client].workers.is_empty() {
                self.clients[client].outcomes.push_back((lock, outcome));
            }
            return;
        }
        if queries::is_answer(&outcome) {
            return self.take_query(client, lock, &outcome);
        }
        let (name, expected) = match &outcome {
            Outcome::Acquire(Ok(_)) => ("acquired", Pending::Acquire),
            Outcome::Acquire(Err(AcquireError::Contended(_))) => ("contended", Pending::Acquire),
            Outcome::Acquire(Err(AcquireError::NoQuorum(_))) => ("no quorum", Pending::Acquire),
            Outcome::Acquire(Err(_)) => ("acquire failed otherwise", Pending::Acquire),
            Outcome::Extend(Ok(_)) => ("extended", Pending::Extend),
            Outcome::Extend(Err(ExtendError::Lost(_))) => ("lost", Pending::Extend),
            Outcome::Extend(Err(_)) => ("not extended", Pending::Extend),
            Outcome::Release(Ok(_)) => ("released", Pending::Release),
            Outcome::Release(Err(_)) => ("release not confirmed", Pending::Release),
            Outcome::Leave(_) => ("left for a time", Pending::Release),
            _ => ("other", Pending::Release),
        };
        *self.statistics.outcomes.entry(name).or_default() += 1;
        if let Outcome::Acquire(Ok(grant)) = &outcome {
            self.count_grant(client, lock, grant);
        }
        if expected == Pending::Acquire {
            self.check_turn(client, lock, name == "acquired");
        }
        self.digest.add(self.now, name.as_bytes());
        note!(self, "c{client} {lock:?} {name}{}", described(&outcome));
        let known = self.clients[client].lock(lock).map(|it| it.pending.map(|(pending, _)| pending));
        // A release was submitted later, but an overtaken answer may still arrive.
        let is_overtaken =
            expected != Pending::Release && matches!(known, None | Some(Some(Pending::Release)));
        if is_overtaken {
            return;
        }
        if known != Some(Some(expected)) {
            self.checker.violate(format!("an outcome that nobody waits for: {name}"));
        }
        self.check_outcome(client, lock, &outcome);
        let is_over = matches!(&outcome, Outcome::Acquire(Err(_)) | Outcome::Release(_) | Outcome::Leave(_));
        if let Some(it) = self.clients[client].lock(lock) {
            it.pending = None;
            it.is_held = !is_over;
        }
        if is_over {
            self.clients[client].forget(lock);
        }
        self.notify_worker(client, lock, is_over);
        // A task fetches it later.
        if self.clients[client].tasks.is_none() {
            self.notify_family(client, lock, &outcome);
        }
        if self.clients[client].workers.is_empty() {
            self.clients[client].outcomes.push_back((lock, outcome));
        }
    }

    /// Counts a grant by the lock's kind and by how it was acquired.
    fn count_grant(&mut self, client: usize, lock: OpId, grant: &Grant) {
        let facts = self.checker.facts.get(grant.token.as_bytes().as_slice());
        let kinds = [
            (grant.fencing_token.is_some(), "acquired with a fencing token"),
            (self.clients[client].lock(lock).is_some_and(|it| it.is_shared), "acquired by a reader"),
            (facts.is_some_and(|it| it.is_handed_over), "handed over"),
        ];
        for (_, name) in kinds.into_iter().filter(|(is_so, _)| *is_so) {
            *self.statistics.outcomes.entry(name).or_default() += 1;
        }
    }

    pub fn notify_worker(&mut self, client: usize, lock: OpId, is_over: bool) {
        let Some(index) = self.clients[client].workers.iter().position(|it| it.lock == Some(lock)) else {
            return;
        };
        let ttl = self.clients[client].lock(lock).map_or(Duration::ZERO, |it| it.ttl);
        let ttl = Time::try_from(ttl.as_nanos()).expect("small");
        let pause = if is_over {
            self.rng.random_range(0..=self.habits.pause_max)
        } else if self.rng.random() {
            self.rng.random_range(0..=ttl / 10)
        } else {
            self.rng.random_range(0..=ttl + ttl / 8)
        };
        let worker = &mut self.clients[client].workers[index];
        worker.due = self.now + pause;
        if is_over {
            worker.lock = None;
        } else if self.clients[client].lock(lock).is_some_and(|it| it.is_kept) {
            self.submit_watch(client, lock);
            let worker = &mut self.clients[client].workers[index];
            worker.due = self.now + self.rng.random_range(0..=3 * ttl);
        }
    }

    /// Passes a fetched answer to the set, owner or slot worker that asked for it, if any.
    pub fn notify_family(&mut self, client: usize, op: OpId, outcome: &Outcome) {
        self.notify_set(client, op, outcome);
        self.notify_owner(client, op, outcome);
        self.notify_slot(client, op, outcome);
    }

    pub fn work(&mut self, client: usize) {
        self.run_queries(client);
        self.work_on_sets(client);
        self.work_of_owners(client);
        self.work_on_slots(client);
        for index in 0..self.clients[client].workers.len() {
            let worker = self.clients[client].workers[index];
            if worker.due > self.now {
                continue;
            }
            self.clients[client].workers[index].due = Time::MAX;
            match worker.lock {
                None if self.habits.is_closing => {}
                None => self.begin_work(client, index),
                Some(lock) => self.go_on_with_work(client, index, lock),
            }
        }
    }

    pub fn begin_work(&mut self, client: usize, worker: usize) {
        if self.habits.handle_ppm > 0 && self.try_handle(client, worker) {
            return;
        }
        let key = self.habits.keys[self.rng.random_range(0..self.habits.keys.len())].clone();
        let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
        let wait = if self.rng.random() { 0 } else { self.rng.random_range(0..=self.habits.wait_max) };
        let mut options = self.draw_options(ttl, Duration::from_nanos(wait));
        if chance(&mut self.rng, 150_000) {
            options = options.auto_extend(self.rng.random_range(ttl..=4 * ttl));
        }
        let lock = self.submit_with(client, &key, options);
        // Some workers do not wait for the end.
        let patience = chance(&mut self.rng, 100_000).then(|| self.rng.random_range(0..=100 * MS));
        // With a `Client`, the lock may have been denied by now.
        let is_over = lock.is_some_and(|lock| self.clients[client].lock(lock).is_none());
        let patience = patience.or(is_over.then_some(self.habits.pause_max / 4));
        let worker = &mut self.clients[client].workers[worker];
        worker.lock = lock.filter(|_| !is_over);
        worker.due = patience.map_or(Time::MAX, |patience| self.now + patience);
    }

    pub fn go_on_with_work(&mut self, client: usize, worker: usize, lock: OpId) {
        let is_pending = self.clients[client].lock(lock).is_some_and(|it| it.pending.is_some());
        if is_pending && self.drops_extension(client, worker, lock) {
            return;
        }
        let dice: u32 = self.rng.random_range(0..100);
        if is_pending || dice < 35 || (self.habits.is_closing && dice < 70) {
            // This cancels what is under way, so nothing more arrives.
            self.submit_release(client, lock, false);
            self.clients[client].workers[worker] =
                Worker { lock: None, due: self.now + self.habits.pause_max / 4 };
        } else if dice < 60 || self.habits.is_closing {
            self.submit_release(client, lock, true);
            self.grow_impatient(client, worker, lock);
        } else if dice >= 90 && self.habits.handle_ppm > 0 {
            self.pass_on(client, lock);
            self.clients[client].workers[worker] =
                Worker { lock: None, due: self.now + self.habits.pause_max / 4 };
        } else if dice < 95 {
            let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
            self.submit_extend(client, lock, ttl);
            self.grow_impatient(client, worker, lock);
        } else if dice < 98 {
            let rest = self.rng.random_range(Duration::ZERO..=self.config_max_ttl());
            if dice < 97 && self.clients[client].tasks.is_none() {
                self.submit_leave(client, lock, Some(rest));
                self.grow_impatient(client, worker, lock);
            } else {
                self.submit_leave(client, lock, None);
                self.clients[client].workers[worker] =
                    Worker { lock: None, due: self.now + self.habits.pause_max / 4 };
            }
        } else {
            self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=SECOND);
        }
    }
}
