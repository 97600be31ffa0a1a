//! Clients that are a whole `Client`: its mutex, completions, futures and guards stand between the callers and
//! the engine, and its drive takes the place of a background thread.
//!
//! Callers are tasks: they are woken, fetch their answers late, and give up at any moment. Each answer is
//! judged when it arrives, as without a `Client`, and again when it is fetched: a task gets its lock unless
//! the validity has ended. The client is judged after each call: its drive turns in time for everything that
//! is due or left to do, each answer wakes its task once, and no waker is called with the mutex held.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rand::{Rng, RngExt};
use redlatch::completions::OutcomeKind;
use redlatch::engine::{Engine, OpId, Outcome};
use redlatch::simulated::{self, Call, Fetched, SimulatedClient, Times, Watch};
use redlatch::{AcquireError, Config, LockHandle};

use crate::client::{Client, Pending, Worker};
use crate::clock::{MS, Time};
use crate::network::chance;
use crate::world::{World, note};

/// A `Client` and its tasks.
pub struct Tasks {
    // First: after its drop, the drops of calls and guards do nothing.
    simulated: SimulatedClient,
    calls: Calls,
    /// The tasks are busy elsewhere, and fetch nothing.
    pub are_away: bool,
    /// Whether something has come for the drive since its last turn.
    pub has_arrivals: bool,
    /// Whether the drive has turned in the present turn of the process.
    pub has_turned: bool,
}

/// What the tasks own.
#[derive(Default)]
struct Calls {
    asked: Vec<Asked>,
    guards: Vec<(OpId, redlatch::Guard)>,
    /// Reports of losses that tasks await.
    watches: Vec<(OpId, Watch)>,
}

/// A task's call, whose answer is expected or not fetched.
struct Asked {
    lock: OpId,
    question: OutcomeKind,
    call: Call,
    /// What the first poll returned, unless the task had to wait.
    fetched: Option<Fetched>,
    /// The answer, and when the task looks at it.
    answer: Option<(Outcome, Time)>,
}

impl Tasks {
    pub fn open(config: &Arc<Config>, seed: [u8; 32], times: Times) -> (Self, Engine) {
        let (simulated, engine) = SimulatedClient::open(config, seed, times);
        let tasks = Self {
            simulated,
            calls: Calls::default(),
            are_away: false,
            has_arrivals: false,
            has_turned: false,
        };
        (tasks, engine)
    }

    /// When the next task looks at an answer that has arrived.
    pub fn next_look(&self) -> Option<Time> {
        if self.are_away {
            return None;
        }
        self.calls.asked.iter().filter_map(|it| it.answer.as_ref()).map(|(_, at)| *at).min()
    }

    fn waits_for(&self, lock: OpId) -> Option<usize> {
        self.calls.asked.iter().position(|it| it.lock == lock)
    }

    fn has_guard(&self, lock: OpId) -> bool {
        self.calls.guards.iter().any(|(its, _)| *its == lock)
    }
}

impl Calls {
    fn take_guard(&mut self, lock: OpId) -> Option<redlatch::Guard> {
        let place = self.guards.iter().position(|(its, _)| *its == lock)?;
        Some(self.guards.swap_remove(place).1)
    }
}

impl Client {
    /// When the drive turns next; at once if it was woken, or something has come for it.
    pub fn next_lead(&self, now: Time) -> Option<Time> {
        let simulated = &self.tasks.as_ref()?.simulated;
        let is_called = simulated.wakes().count() > 0 || self.tasks.as_ref()?.has_arrivals;
        if is_called { Some(now) } else { simulated.planned().map(|at| self.clock.when(at)) }
    }

    /// Whether everything that was submitted may be written. A `Client` may leave this to its drive.
    pub fn is_flushed(&self) -> bool {
        self.tasks.is_none() || !self.engine.has_queued()
    }

    /// Something has come for the drive.
    pub fn note_arrival(&mut self) {
        self.tasks.iter_mut().for_each(|it| it.has_arrivals = true);
    }
}

impl World {
    fn count_call(&mut self, what: &'static str) {
        *self.statistics.calls.entry(what).or_default() += 1;
    }

    pub fn times(&self, client: usize) -> Times {
        (self.local(client), self.wall(client))
    }

    /// Calls the client as a task, and judges what the client does afterwards.
    fn call<T>(&mut self, client: usize, call: impl FnOnce(&redlatch::Client, &mut Calls) -> T) -> T {
        let times = self.times(client);
        let Client { tasks, engine, .. } = &mut self.clients[client];
        let Tasks { simulated, calls, .. } = tasks.as_mut().expect("its callers are tasks");
        let result = simulated.call(times, engine, |client| call(client, calls));
        self.check_sleep(client);
        result
    }

    pub fn is_lead_due(&self, client: usize) -> bool {
        self.clients[client].next_lead(self.now).is_some_and(|at| at <= self.now)
    }

    /// Turns the drive, if it is time.
    pub fn lead(&mut self, client: usize) {
        let (is_due, times) = (self.is_lead_due(client), self.times(client));
        let Client { tasks: Some(tasks), engine, .. } = &mut self.clients[client] else { return };
        tasks.has_turned = is_due;
        if is_due {
            tasks.has_arrivals = false;
            tasks.simulated.turn(times, engine);
            self.check_sleep(client);
        }
    }

    /// Nobody sleeps while an outcome can come and nobody leads: the drive turns before anything is due (I155).
    fn check_sleep(&mut self, client: usize) {
        let Some(Tasks { simulated, has_arrivals, .. }) = &self.clients[client].tasks else { return };
        if simulated.wakes().was_locked() {
            return self.checker.violate(format!("c{client}: its drive is woken with the mutex held"));
        }
        let is_called = *has_arrivals || simulated.wakes().count() > 0;
        let (due, planned) = (simulated.due(), simulated.planned());
        let is_late = due.is_some_and(|due| planned.is_none_or(|planned| due < planned));
        if is_late && !is_called {
            let what = match self.clients[client].engine.has_queued() {
                true => "requests that nobody writes",
                false => "work that is due",
            };
            self.checker.violate(format!("c{client}: its drive sleeps beside {what}"));
        }
    }

    /// Begins a task's call. Returns its operation; `None` if the client refuses the request.
    pub fn begin_call(
        &mut self,
        client: usize,
        question: OutcomeKind,
        make: impl FnOnce(&redlatch::Client) -> Call,
    ) -> Option<OpId> {
        self.call(client, |it, calls| {
            let mut call = make(it);
            let fetched = match call.poll() {
                Poll::Ready(fetched) => Some(fetched),
                Poll::Pending => None,
            };
            let lock = call.op()?;
            calls.asked.push(Asked { lock, question, call, fetched, answer: None });
            Some(lock)
        })
    }

    /// Judges the outcomes that have come. Also called before each request, and after it.
    pub fn deliver(&mut self, client: usize) {
        let Some(tasks) = &self.clients[client].tasks else { return };
        let mut come = Vec::new();
        if tasks.calls.asked.iter().any(|it| it.answer.is_none()) {
            come = self.call(client, |_, calls| {
                let expected = calls.asked.iter().enumerate().filter(|(_, it)| it.answer.is_none());
                expected.filter_map(|(index, it)| Some((index, it.call.outcome()?))).collect()
            });
        }
        let mut answers = Vec::new();
        for (index, answer) in come {
            let is_late = chance(&mut self.rng, 500_000);
            let look_at = self.now + if is_late { self.rng.random_range(0..=100 * MS) } else { 0 };
            let Some(tasks) = &mut self.clients[client].tasks else { return };
            let asked = &mut tasks.calls.asked[index];
            asked.answer = Some((answer.clone(), look_at));
            let (lock, wakes) = (asked.lock, asked.call.wakes());
            let wake_count = wakes.count() + usize::from(asked.fetched.is_some());
            if wake_count != 1 || wakes.was_locked() {
                let how = if wakes.was_locked() { "with the mutex held" } else { "or answered at once" };
                let why = format!("c{client} {lock:?}: its task is woken {how}, {wake_count} times");
                self.checker.violate(why);
            }
            answers.push((lock, answer));
        }
        for (lock, answer) in answers {
            self.take_outcome(client, lock, answer);
        }
        self.hear_losses(client);
        // An extension that nobody awaits may have prolonged or shortened a lock.
        self.follow_all(client);
    }

    /// Updates this client's guards from its engine.
    fn follow_all(&mut self, client: usize) {
        let guards = self.checker.guards.iter().filter(|guard| guard.client == client);
        let engine = &self.clients[client].engine;
        let changed = guards.filter_map(|guard| {
            let now_until = engine.valid_until(guard.lock).filter(|until| *until != guard.valid_until)?;
            Some((
                guard.lock,
                now_until > guard.valid_until,
                guard.token.clone(),
                engine.granted(guard.lock)?,
            ))
        });
        for (lock, is_prolonged, token, granted) in changed.collect::<Vec<_>>() {
            self.follow_validity(client, lock);
            if is_prolonged {
                self.check_granted(client, &token, granted);
                self.checker.count_masters(client, lock, granted);
                self.check_guard(client, lock);
            }
        }
    }

    /// Tasks whose time has come fetch their answers, or give up although the answer is there.
    pub fn look(&mut self, client: usize) {
        loop {
            let Some(tasks) = self.clients[client].tasks.as_ref().filter(|it| !it.are_away) else {
                return;
            };
            let is_due = |it: &Asked| it.answer.as_ref().is_some_and(|(_, at)| *at <= self.now);
            let Some(index) = tasks.calls.asked.iter().position(is_due) else { break };
            // At the end, every task wants its answer.
            let (lock, question) = (tasks.calls.asked[index].lock, tasks.calls.asked[index].question);
            let is_impatient = !self.habits.is_closing && chance(&mut self.rng, 100_000);
            // A set is dropped as a whole, and an owner's callers leave one by one.
            let is_alone = question == OutcomeKind::Acquire && !self.is_of_owner(client, lock)
                || matches!(question, OutcomeKind::Extend | OutcomeKind::Release);
            if is_impatient && let Some(set) = self.set_of(client, lock) {
                self.give_up_set(client, set);
            } else if is_impatient && let Some(worker) = self.slot_worker_of(client, lock) {
                self.give_up_slot(client, worker);
            } else if is_impatient && is_alone {
                self.abandon_at(client, index);
            } else {
                self.fetch_at(client, index);
            }
        }
        // Some tasks look before they are woken, or have moved.
        if chance(&mut self.rng, 50_000) {
            let is_there = self.call(client, |_, calls| {
                let mut expected = calls.asked.iter_mut().filter(|it| it.answer.is_none());
                expected.any(|it| it.call.poll().is_ready())
            });
            if is_there {
                self.checker.violate(format!("c{client}: a task finds an answer that it was not woken for"));
            }
        }
    }

    /// Some tasks do not wait for an extension or release that they have just requested.
    pub fn grow_impatient(&mut self, client: usize, worker: usize, lock: OpId) {
        let is_pending = self.clients[client].lock(lock).is_some_and(|it| it.pending.is_some());
        if is_pending && self.clients[client].tasks.is_some() && chance(&mut self.rng, 200_000) {
            self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=20 * MS);
        }
    }

    /// Whether a task drops its extension, and keeps the lock.
    pub fn drops_extension(&mut self, client: usize, worker: usize, lock: OpId) -> bool {
        let it = self.clients[client].lock(lock).and_then(|it| it.pending);
        let is_extending = it.is_some_and(|(pending, _)| pending == Pending::Extend);
        if !is_extending || self.clients[client].tasks.is_none() || chance(&mut self.rng, 500_000) {
            return false;
        }
        self.end_asking(client, lock);
        self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=50 * MS);
        true
    }

    /// A task fetches its answer. Returns false if this ended a lock, whose validity is over.
    fn fetch_at(&mut self, client: usize, index: usize) -> bool {
        let (asked, fetched) = self.call(client, |_, calls| {
            let mut asked = calls.asked.swap_remove(index);
            let fetched = asked.fetched.take().map_or_else(|| asked.call.poll(), Poll::Ready);
            let is_valid = matches!(&fetched, Poll::Ready(Fetched::Guard(guard)) if guard.is_valid());
            (asked, (fetched, is_valid))
        });
        let (lock, Some((answer, _))) = (asked.lock, asked.answer) else { return true };
        note!(self, "c{client} {lock:?} is fetched");
        let grant = match &answer {
            Outcome::Acquire(Ok(grant)) => Some(grant),
            _ => None,
        };
        match (fetched, grant) {
            ((Poll::Ready(Fetched::Guard(guard)), is_valid), Some(grant)) => {
                if !is_valid {
                    self.checker.violate(format!("I2: c{client} fetches {lock:?} after its deadline"));
                }
                if guard.token() != grant.token {
                    self.checker.violate(format!("c{client} fetches another lock than {lock:?}"));
                }
                if let Some(tasks) = &mut self.clients[client].tasks {
                    tasks.calls.guards.push((lock, guard));
                }
                if self.clients[client].lock(lock).is_some_and(|it| it.is_kept) {
                    self.submit_watch(client, lock);
                }
                self.notify_family(client, lock, &answer);
                true
            }
            ((Poll::Ready(Fetched::Denied(error)), _), Some(_)) => {
                if self.checker.guard(client, lock).is_some_and(|guard| self.is_valid(guard)) {
                    self.checker
                        .violate(format!("c{client} {lock:?}: its task gets no lock, which is valid"));
                }
                self.count_call("lock fetched after its deadline");
                self.checker.end_guard(client, lock);
                self.leave_lock(client, lock);
                // An adoption has another error, which nobody looks at.
                let error = error.unwrap_or(AcquireError::Cancelled);
                self.notify_family(client, lock, &Outcome::Acquire(Err(error)));
                false
            }
            ((Poll::Ready(Fetched::Denied(_)), _), None) => {
                self.notify_family(client, lock, &answer);
                true
            }
            // A query's answer was already reported when it arrived.
            ((Poll::Ready(Fetched::Other), _), None) => true,
            ((fetched, _), _) => {
                let why = format!("c{client} {lock:?}: {fetched:?} is fetched after {answer:?}");
                self.checker.violate(why);
                true
            }
        }
    }

    /// The task drops its future.
    fn abandon_at(&mut self, client: usize, index: usize) {
        let (lock, question, answer) = self.call(client, |_, calls| {
            let asked = calls.asked.swap_remove(index);
            (asked.lock, asked.question, asked.answer)
        });
        self.checker.end_waiting(client, lock);
        note!(self, "c{client} {lock:?} is given up");
        self.count_call(match (question, &answer) {
            (OutcomeKind::Acquire, None) => "acquisition dropped before its answer",
            (OutcomeKind::Acquire, Some((Outcome::Acquire(Ok(_)), _))) => {
                "lock dropped before it was fetched"
            }
            (OutcomeKind::Acquire, Some(_)) => "denial dropped before it was fetched",
            (OutcomeKind::Extend, None) => "extension dropped half-way",
            (OutcomeKind::Extend, Some(_)) => "extension dropped before it was fetched",
            (OutcomeKind::Release | OutcomeKind::Leave, _) => "release dropped half-way",
            (
                OutcomeKind::Inspect
                | OutcomeKind::FreeSlots
                | OutcomeKind::ForceUnlock
                | OutcomeKind::Pause
                | OutcomeKind::Drain,
                _,
            ) => "errand dropped",
        });
        match (question, answer) {
            (OutcomeKind::Acquire, None | Some((Outcome::Acquire(Ok(_)), _))) => {
                self.checker.end_guard(client, lock);
                self.leave_lock(client, lock);
            }
            (OutcomeKind::Extend, None) => {
                if let Some(it) = self.clients[client].lock(lock) {
                    it.pending = None;
                }
            }
            (OutcomeKind::Release, None) => self.leave_lock(client, lock),
            _ => {}
        }
        self.deliver(client);
        self.wake(client, self.now);
    }

    /// Abandons an errand. Returns whether a task was waiting.
    pub fn abandon_query(&mut self, client: usize, op: OpId) -> bool {
        let tasks = self.clients[client].tasks.as_ref();
        let Some(index) = tasks.and_then(|tasks| tasks.waits_for(op)) else { return false };
        self.abandon_at(client, index);
        true
    }

    /// The task that waits for this lock gives up.
    pub fn give_up(&mut self, client: usize, lock: OpId) {
        let tasks = self.clients[client].tasks.as_ref();
        if let Some(index) = tasks.and_then(|tasks| tasks.waits_for(lock)) {
            self.abandon_at(client, index);
        }
    }

    /// Forgets a lock; its worker goes on with another.
    pub fn leave_lock(&mut self, client: usize, lock: OpId) {
        self.clients[client].forget(lock);
        let due = self.now + self.habits.pause_max / 4;
        for worker in self.clients[client].workers.iter_mut().filter(|it| it.lock == Some(lock)) {
            *worker = Worker { lock: None, due };
        }
    }

    /// Before a task uses its lock otherwise, it fetches answers that have arrived and drops the rest. Returns
    /// false if this ended the lock.
    pub fn end_asking(&mut self, client: usize, lock: OpId) -> bool {
        let Some(tasks) = &self.clients[client].tasks else { return true };
        let Some(index) = tasks.waits_for(lock) else { return true };
        let asked = &tasks.calls.asked[index];
        if asked.answer.is_some() {
            return self.fetch_at(client, index);
        }
        let is_lock = asked.question != OutcomeKind::Extend;
        self.abandon_at(client, index);
        !is_lock
    }

    /// A task begins to extend its lock. Returns false if the client refuses.
    pub fn extend_as_task(&mut self, client: usize, lock: OpId, ttl: Duration) -> bool {
        let Some(guard) = self.part_with_guard(client, lock) else { return false };
        let is_asked = self.begin_call(client, OutcomeKind::Extend, |_| Call::extend(&guard, ttl)).is_some();
        if let Some(tasks) = &mut self.clients[client].tasks {
            tasks.calls.guards.push((lock, guard));
        }
        is_asked
    }

    /// A task awaits the report of its lock's loss, from now on or again. Nothing without a guard.
    pub fn watch_as_task(&mut self, client: usize, lock: OpId) {
        if !self.clients[client].tasks.as_ref().is_some_and(|it| it.has_guard(lock)) {
            return;
        }
        self.call(client, |_, calls| {
            let guard = calls.guards.iter().find(|(its, _)| *its == lock);
            let watch = guard.map(|(_, guard)| Watch::begin(guard));
            calls.watches.retain(|(its, _)| *its != lock);
            calls.watches.extend(watch.map(|watch| (lock, watch)));
        });
    }

    /// Judges the reports of losses that have come.
    fn hear_losses(&mut self, client: usize) {
        let Some(tasks) = &self.clients[client].tasks else { return };
        if !tasks.calls.watches.iter().any(|(_, watch)| watch.is_over() || watch.wakes().count() > 0) {
            return;
        }
        let lost = self.call(client, |_, calls| {
            let mut lost = Vec::new();
            calls.watches.retain_mut(|(lock, watch)| {
                let is_over = watch.poll();
                lost.extend(is_over.then_some(*lock));
                !is_over
            });
            lost
        });
        for lock in lost {
            if let Some(valid_until) = self.checker.guard(client, lock).map(|guard| guard.valid_until) {
                self.take_outcome(client, lock, Outcome::Lost(valid_until));
            }
        }
    }

    /// A task parts with its guard, for the call that needs it.
    fn part_with_guard(&mut self, client: usize, lock: OpId) -> Option<redlatch::Guard> {
        self.clients[client].tasks.as_mut()?.calls.take_guard(lock)
    }

    /// A task releases its lock, or drops the guard. Returns whether it awaits the answer.
    pub fn release_as_task(&mut self, client: usize, lock: OpId, awaited: bool) -> bool {
        let Some(guard) = self.part_with_guard(client, lock) else { return false };
        self.end_watch(client, lock);
        if awaited {
            return self.begin_call(client, OutcomeKind::Release, |_| Call::release(guard)).is_some();
        }
        self.call(client, |_, _| drop(guard));
        false
    }

    fn end_watch(&mut self, client: usize, lock: OpId) {
        self.call(client, |_, calls| calls.watches.retain(|(its, _)| *its != lock));
    }

    /// A task leaves its lock to the TTL, or makes a handle of it.
    pub fn leave_as_task(&mut self, client: usize, lock: OpId, is_passed: bool) -> Option<LockHandle> {
        let guard = self.part_with_guard(client, lock)?;
        self.end_watch(client, lock);
        self.call(client, |_, _| {
            if is_passed {
                return simulated::pass(guard);
            }
            guard.leave().ok()?;
            None
        })
    }

    /// A task releases a lock by its handle, and does not wait for the answer.
    pub fn release_handle_as_task(&mut self, client: usize, handle: &LockHandle) {
        self.call(client, |it, _| drop(Call::release_handle(it, handle).poll()));
    }

    /// Checks that each slot of the completion table has a task.
    pub fn check_tasks(&mut self, client: usize) {
        let Some(Tasks { simulated, calls, .. }) = &self.clients[client].tasks else { return };
        let expected = calls.asked.iter().filter(|it| it.fetched.is_none()).count();
        let kept = simulated.kept_count();
        if kept != expected {
            self.checker.violate(format!("c{client}: {expected} tasks wait, and {kept} slots are taken"));
        }
    }

    /// Checks that nobody waits long after the end.
    pub fn check_no_tasks(&mut self, client: usize) {
        self.check_tasks(client);
        if let Some(tasks) = &self.clients[client].tasks
            && !tasks.calls.asked.is_empty()
        {
            let count = tasks.calls.asked.len();
            self.checker.violate(format!("c{client} ends with {count} tasks that wait"));
        }
    }

    /// A new process's engine, and its `Client` if its callers are tasks.
    pub fn new_process(&mut self, config: &Arc<Config>, times: Times) -> (Engine, Option<Tasks>) {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        if self.has_tasks {
            let (tasks, engine) = Tasks::open(config, seed, times);
            (engine, Some(tasks))
        } else {
            (Engine::new(Arc::clone(config), seed, times.0), None)
        }
    }
}
