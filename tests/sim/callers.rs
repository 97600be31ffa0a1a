//! Clients used like `Client`: a completion table stands between the callers and their engine.
//!
//! Callers are tasks: they are woken, fetch their answers late, and give up at any moment. Each answer is
//! judged when it arrives, as without a completion table, and again when it is fetched: it must be the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use rand::RngExt;
use redlatch::completions::{CompletionToken, Completions, OutcomeKind};
use redlatch::engine::{OpId, Outcome};

use crate::client::{Pending, Worker};
use crate::clock::{MS, Time};
use crate::network::chance;
use crate::world::{World, note};

#[derive(Default)]
pub struct Callers {
    pub completions: Completions,
    /// The callers are busy elsewhere, and fetch nothing.
    pub are_away: bool,
    asked: Vec<Asked>,
}

/// A caller's expected or unfetched answer.
struct Asked {
    lock: OpId,
    ticket: CompletionToken,
    question: OutcomeKind,
    wakes: Arc<Count>,
    /// The answer, and when the caller looks at it.
    answer: Option<(Outcome, Time)>,
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Callers {
    /// When the next caller looks at an answer that has arrived.
    pub fn next_look(&self) -> Option<Time> {
        if self.are_away {
            return None;
        }
        self.asked.iter().filter_map(|it| it.answer.as_ref()).map(|(_, at)| *at).min()
    }

    fn waits_for(&self, lock: OpId) -> Option<usize> {
        self.asked.iter().position(|it| it.lock == lock)
    }
}

impl World {
    fn count_call(&mut self, what: &'static str) {
        *self.statistics.calls.entry(what).or_default() += 1;
    }

    /// Registers a caller for this answer.
    pub fn ask(&mut self, client: usize, lock: OpId, pending: Pending) {
        let question = match pending {
            Pending::Acquire => OutcomeKind::Acquire,
            Pending::Extend => OutcomeKind::Extend,
            Pending::Release => OutcomeKind::Release,
        };
        self.ask_question(client, lock, question);
    }

    pub fn ask_question(&mut self, client: usize, lock: OpId, question: OutcomeKind) {
        let Some(callers) = &mut self.clients[client].callers else { return };
        let ticket = callers.completions.expect(lock, question);
        let wakes = Arc::<Count>::default();
        callers.completions.wait_as_task(ticket, &Waker::from(wakes.clone()));
        callers.asked.push(Asked { lock, ticket, question, wakes, answer: None });
        self.deliver(client);
    }

    /// Moves outcomes from the engine to the completion table, and judges them. Also called before each
    /// request; see [`Completions::expect`].
    pub fn deliver(&mut self, client: usize) {
        let now = self.local(client);
        let it = &mut self.clients[client];
        let Some(callers) = &mut it.callers else { return };
        callers.completions.deliver(now, &mut it.engine);
        std::iter::from_fn(|| callers.completions.pop_woken()).for_each(Waker::wake);
        let mut answers = Vec::new();
        for index in 0..callers.asked.len() {
            let asked = &callers.asked[index];
            let Some(answer) = callers.completions.outcome(asked.ticket).filter(|_| asked.answer.is_none())
            else {
                continue;
            };
            let is_late = chance(&mut self.rng, 500_000);
            let look_at = self.now + if is_late { self.rng.random_range(0..=100 * MS) } else { 0 };
            answers.push((asked.lock, answer.clone(), asked.wakes.0.load(Ordering::Relaxed)));
            callers.asked[index].answer = Some((answer.clone(), look_at));
        }
        for (lock, answer, wake_count) in answers {
            if wake_count != 1 {
                self.checker.violate(format!("c{client} {lock:?}: its caller was woken {wake_count} times"));
            }
            self.take_outcome(client, lock, answer);
        }
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

    /// Callers whose time has come fetch their answers, or give up although the answer is there.
    pub fn look(&mut self, client: usize) {
        loop {
            let Some(callers) = self.clients[client].callers.as_ref().filter(|it| !it.are_away) else {
                return;
            };
            let is_due = |it: &Asked| it.answer.as_ref().is_some_and(|(_, at)| *at <= self.now);
            let Some(index) = callers.asked.iter().position(is_due) else { break };
            // At the end, every caller wants its answer.
            let (lock, question) = (callers.asked[index].lock, callers.asked[index].question);
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
        // Some callers look before they are woken, or have moved to another task.
        if chance(&mut self.rng, 50_000)
            && let Some(callers) = &mut self.clients[client].callers
        {
            for asked in callers.asked.iter_mut().filter(|it| it.answer.is_none()) {
                asked.wakes = Arc::default();
                let before =
                    callers.completions.wait_as_task(asked.ticket, &Waker::from(asked.wakes.clone()));
                if before.is_none() {
                    self.checker.violate(format!("c{client}: the waker of a caller that waits is lost"));
                }
            }
        }
    }

    /// Some callers do not wait for an extension or release that they have just requested.
    pub fn grow_impatient(&mut self, client: usize, worker: usize, lock: OpId) {
        let is_pending = self.clients[client].lock(lock).is_some_and(|it| it.pending.is_some());
        if is_pending && self.clients[client].callers.is_some() && chance(&mut self.rng, 200_000) {
            self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=20 * MS);
        }
    }

    /// Whether a caller drops its extension, and keeps the lock.
    pub fn drops_extension(&mut self, client: usize, worker: usize, lock: OpId) -> bool {
        let it = self.clients[client].lock(lock).and_then(|it| it.pending);
        let is_extending = it.is_some_and(|(pending, _)| pending == Pending::Extend);
        if !is_extending || self.clients[client].callers.is_none() || chance(&mut self.rng, 500_000) {
            return false;
        }
        self.end_asking(client, lock);
        self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=50 * MS);
        true
    }

    fn fetch_at(&mut self, client: usize, index: usize) {
        let Some(callers) = &mut self.clients[client].callers else { return };
        let asked = callers.asked.swap_remove(index);
        let fetched = callers.completions.take(asked.ticket);
        note!(self, "c{client} {:?} is fetched", asked.lock);
        if fetched != asked.answer.map(|(answer, _)| answer) {
            self.checker.violate(format!("c{client} {:?}: another answer is fetched than came", asked.lock));
        }
        // A query's answer was already reported when it arrived.
        if let Some(outcome) = fetched
            && asked.question == OutcomeKind::Acquire
        {
            self.notify_family(client, asked.lock, &outcome);
        }
    }

    /// The caller drops its future.
    fn abandon_at(&mut self, client: usize, index: usize) {
        let now = self.local(client);
        let it = &mut self.clients[client];
        let Some(callers) = &mut it.callers else { return };
        let asked = callers.asked.swap_remove(index);
        drop(callers.completions.abandon(now, &mut it.engine, asked.ticket));
        let lock = asked.lock;
        self.checker.end_waiting(client, lock);
        note!(self, "c{client} {lock:?} is given up");
        self.count_call(match (asked.question, &asked.answer) {
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
        match (asked.question, asked.answer) {
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

    /// Abandons an errand at the completion table. Returns whether a caller was waiting.
    pub fn abandon_query(&mut self, client: usize, op: OpId) -> bool {
        let callers = self.clients[client].callers.as_ref();
        let Some(index) = callers.and_then(|callers| callers.waits_for(op)) else { return false };
        self.abandon_at(client, index);
        true
    }

    /// The caller that waits for this lock gives up.
    pub fn give_up(&mut self, client: usize, lock: OpId) {
        let callers = self.clients[client].callers.as_ref();
        if let Some(index) = callers.and_then(|callers| callers.waits_for(lock)) {
            self.abandon_at(client, index);
        }
    }

    /// Forgets a lock; its worker goes on with another.
    fn leave_lock(&mut self, client: usize, lock: OpId) {
        self.clients[client].forget(lock);
        let due = self.now + self.habits.pause_max / 4;
        for worker in self.clients[client].workers.iter_mut().filter(|it| it.lock == Some(lock)) {
            *worker = Worker { lock: None, due };
        }
    }

    /// Before a caller uses its lock otherwise, it fetches answers that have arrived and drops the rest.
    /// Returns false if this ended the lock.
    pub fn end_asking(&mut self, client: usize, lock: OpId) -> bool {
        let Some(callers) = &self.clients[client].callers else { return true };
        let Some(index) = callers.waits_for(lock) else { return true };
        let asked = &callers.asked[index];
        if asked.answer.is_some() {
            self.fetch_at(client, index);
            return true;
        }
        let is_lock = asked.question != OutcomeKind::Extend;
        self.abandon_at(client, index);
        !is_lock
    }

    /// Checks that each slot of the table has a caller.
    pub fn check_callers(&mut self, client: usize) {
        let Some(callers) = &self.clients[client].callers else { return };
        let (kept, asked) = (callers.completions.kept_count(), callers.asked.len());
        if kept != asked {
            self.checker.violate(format!("c{client}: {asked} callers wait, and {kept} slots are taken"));
        }
    }

    /// Checks that nobody waits long after the end.
    pub fn check_no_callers(&mut self, client: usize) {
        self.check_callers(client);
        if let Some(callers) = &self.clients[client].callers
            && !callers.asked.is_empty()
        {
            let count = callers.asked.len();
            self.checker.violate(format!("c{client} ends with {count} callers that wait"));
        }
    }
}
