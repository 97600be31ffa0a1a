//! Waiters and the outcomes of an engine: a completion for each question, and a slot in which its answer is
//! kept.
//!
//! Owns the outcomes that have come and were not fetched, and whom to wake for them. Does not know
//! connections, time and who drives the engine. Keeps that each outcome reaches the caller that asked for it
//! or nobody, and that a lock which nobody waits for any more is released.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Instant;

use super::relay::{Relay, Thread};
use crate::engine::{Engine, OpId, Outcome, Request};
use crate::mutants::mutant;

/// The slots; see the [module](self).
#[derive(Debug)]
pub struct Completions {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The question about each operation that has no answer yet, by the operation's place.
    questions: Vec<Option<CompletionToken>>,
    /// Slots for which a thread sleeps; each knows its place here.
    threads: Vec<usize>,
    /// Slots for which a task waits.
    task_count: usize,
    /// Slots whose outcome has not come.
    waiting_count: usize,
    /// Whom to notify of the loss of a lock.
    watchers: HashMap<OpId, Vec<Watching>>,
    /// How many there ever were.
    watcher_count: u64,
    /// Threads and watchers to be woken, in this order, as soon as that can be done without harm.
    woken: VecDeque<Waker>,
    /// Tasks to be woken after them.
    relay: Relay,
}

/// Entitles to one answer, to be fetched or abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionToken {
    /// What the question is about.
    pub op: OpId,
    slot: usize,
}

/// A caller that is to be notified of the loss of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watcher(u64);

/// What becomes of a watcher whose lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// It is woken, and finds out.
    Task,
    /// It is not called any more.
    Callback,
}

#[derive(Debug)]
struct Watching {
    watcher: Watcher,
    waker: Waker,
    audience: Audience,
}

/// Kind of the outcome that a call expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// Answer to an acquisition.
    Acquire,
    /// Answer to an extension.
    Extend,
    /// Answer to an awaited release.
    Release,
    /// Answer to a lock that is left for a time.
    Leave,
    /// Answer to an inspection.
    Inspect,
    /// Answer to a forced unlock.
    ForceUnlock,
    /// End of a pause.
    Pause,
    /// End of a drain.
    Drain,
}

#[derive(Debug)]
enum Slot {
    Free,
    Waiting(OutcomeKind, Waiter),
    Done(Outcome),
}

/// Waiters for an outcome that has not come.
#[derive(Debug)]
enum Waiter {
    /// Nobody yet, or somebody who looks again without being woken.
    Nobody,
    /// A task, and the thread that polled it last.
    Task(Waker, Thread),
    /// A thread that sleeps, at this place of the list.
    Thread(Waker, usize),
}

impl Waiter {
    fn into_waker(self) -> Option<Waker> {
        match self {
            Self::Nobody => None,
            Self::Task(waker, _) | Self::Thread(waker, _) => Some(waker),
        }
    }
}

impl OutcomeKind {
    const fn is_answered_by(self, outcome: &Outcome) -> bool {
        matches!(
            (self, outcome),
            (Self::Acquire, Outcome::Acquire(_))
                | (Self::Extend, Outcome::Extend(_))
                | (Self::Release, Outcome::Release(_))
                | (Self::Leave, Outcome::Leave(_))
                | (Self::Inspect, Outcome::Inspect(_))
                | (Self::ForceUnlock, Outcome::ForceUnlock(_))
                | (Self::Pause, Outcome::Paused)
                | (Self::Drain, Outcome::Drained(_))
        )
    }
}

/// Threads that sleep and wakers to be called, for which there is room from the start: they come by chance,
/// and are not to allocate in the middle of a lock.
const WAITER_CAPACITY: usize = 64;

impl Default for Completions {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            questions: Vec::new(),
            threads: Vec::with_capacity(WAITER_CAPACITY),
            task_count: 0,
            waiting_count: 0,
            watchers: HashMap::new(),
            watcher_count: 0,
            woken: VecDeque::with_capacity(WAITER_CAPACITY),
            relay: Relay::with_capacity(WAITER_CAPACITY),
        }
    }
}

impl Completions {
    /// Says that the answer to a question about this operation is wanted: the next one of that kind. What the
    /// engine has answered before must have been delivered.
    pub fn expect(&mut self, op: OpId, question: OutcomeKind) -> CompletionToken {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            // Room for all, so that freeing never allocates.
            self.free.reserve(self.slots.len());
            self.slots.len() - 1
        });
        self.slots[slot] = Slot::Waiting(question, Waiter::Nobody);
        self.waiting_count += 1;
        let completion = CompletionToken { op, slot };
        if op.index() >= self.questions.len() {
            self.questions.resize(op.index() + 1, None);
        }
        let before = self.questions[op.index()].replace(completion);
        assert!(before.is_none_or(|it| it.op == op), "the answer to the question before was not delivered");
        completion
    }

    /// Whether an answer about this operation is to come.
    pub(super) fn is_asked(&self, op: OpId) -> bool {
        self.questions.get(op.index()).is_some_and(|question| question.is_some_and(|it| it.op == op))
    }

    /// Takes the outcomes that the engine has, and notes whom to wake.
    pub fn deliver(&mut self, now: Instant, engine: &mut Engine) {
        while let Some((op, outcome)) = engine.poll_outcome() {
            if let Outcome::Lost(_) = outcome {
                self.woken.extend(wakers(self.watchers.remove(&op)));
                continue;
            }
            let question = self.questions.get(op.index()).copied().flatten();
            let is_own = |completion: &CompletionToken| completion.op == op || mutant!(AnswerToNextCaller);
            match question.filter(|completion| is_own(completion) && self.expects(*completion, &outcome)) {
                Some(completion) => {
                    match self.end_waiting(completion) {
                        Waiter::Nobody => {}
                        Waiter::Thread(waker, _) => self.woken.push_back(waker),
                        Waiter::Task(waker, thread) => self.relay.push(waker, thread),
                    }
                    self.slots[completion.slot] = Slot::Done(outcome);
                }
                None => release_unwanted(now, engine, op, &outcome),
            }
        }
    }

    fn expects(&self, completion: CompletionToken, outcome: &Outcome) -> bool {
        matches!(&self.slots[completion.slot], Slot::Waiting(question, _) if question.is_answered_by(outcome))
    }

    /// Whether the answer has come.
    #[must_use]
    pub fn is_done(&self, completion: CompletionToken) -> bool {
        matches!(self.slots[completion.slot], Slot::Done(_))
    }

    /// The answer if it has come, to be fetched yet.
    #[must_use]
    pub fn answer(&self, completion: CompletionToken) -> Option<&Outcome> {
        match &self.slots[completion.slot] {
            Slot::Done(outcome) => Some(outcome),
            Slot::Free | Slot::Waiting(..) => None,
        }
    }

    /// Questions whose answer is to come or to be fetched.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Fetches the answer if it has come; the completion is void then.
    pub fn take(&mut self, completion: CompletionToken) -> Option<Outcome> {
        if !self.is_done(completion) {
            return None;
        }
        self.free.push(completion.slot);
        match std::mem::replace(&mut self.slots[completion.slot], Slot::Free) {
            Slot::Done(outcome) => Some(outcome),
            Slot::Free | Slot::Waiting(..) => None,
        }
    }

    /// Says that nobody will fetch the answer. A lock that was acquired is released, and one that is being
    /// acquired is given up. Returns the waker that is not needed any more: dropping it may run anybody's
    /// code.
    pub fn abandon(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        completion: CompletionToken,
    ) -> Option<Waker> {
        let waker = match &self.slots[completion.slot] {
            Slot::Free => return None,
            Slot::Done(outcome) => {
                release_unwanted(now, engine, completion.op, outcome);
                None
            }
            Slot::Waiting(question, _) => {
                let goes_on =
                    matches!(question, OutcomeKind::Extend | OutcomeKind::Release | OutcomeKind::Leave);
                if !goes_on && !mutant!(AbandonForgets) {
                    // A release is always taken, and cancels an acquisition or a query.
                    let _ = engine.submit(now, Request::Release { lock: completion.op, awaited: false });
                }
                self.end_waiting(completion).into_waker()
            }
        };
        self.slots[completion.slot] = Slot::Free;
        self.free.push(completion.slot);
        waker
    }

    /// A task waits: it is woken when the answer has come. Returns the waker that this one replaces, as
    /// [`Completions::abandon`] does.
    pub fn wait_as_task(&mut self, completion: CompletionToken, waker: &Waker) -> Option<Waker> {
        match &mut self.slots[completion.slot] {
            Slot::Waiting(_, Waiter::Task(old, thread)) => {
                *thread = Thread::own();
                let is_same = old.will_wake(waker);
                (!is_same).then(|| std::mem::replace(old, waker.clone()))
            }
            Slot::Waiting(_, waiter) => {
                *waiter = Waiter::Task(waker.clone(), Thread::own());
                self.task_count += 1;
                None
            }
            Slot::Free | Slot::Done(_) => None,
        }
    }

    /// A thread is about to sleep: it is woken when the answer has come, or by
    /// [`Completions::sleeping_thread`].
    pub(super) fn wait_as_thread(&mut self, completion: CompletionToken, waker: Waker) {
        self.stop_waiting(completion);
        if let Slot::Waiting(_, waiter) = &mut self.slots[completion.slot] {
            *waiter = Waiter::Thread(waker, self.threads.len());
            self.threads.push(completion.slot);
        }
    }

    /// The task or thread does not sleep for now.
    pub(super) fn stop_waiting(&mut self, completion: CompletionToken) -> Option<Waker> {
        self.take_waiter(completion).into_waker()
    }

    fn take_waiter(&mut self, completion: CompletionToken) -> Waiter {
        let Slot::Waiting(_, waiter) = &mut self.slots[completion.slot] else { return Waiter::Nobody };
        let waiter = std::mem::replace(waiter, Waiter::Nobody);
        match &waiter {
            Waiter::Nobody => {}
            Waiter::Task(..) => self.task_count -= 1,
            Waiter::Thread(_, place) => {
                self.threads.swap_remove(*place);
                if let Some(&moved) = self.threads.get(*place)
                    && let Slot::Waiting(_, Waiter::Thread(_, its_place)) = &mut self.slots[moved]
                {
                    *its_place = *place;
                }
            }
        }
        waiter
    }

    /// The question has its answer, or does not want one; returns whoever waited.
    fn end_waiting(&mut self, completion: CompletionToken) -> Waiter {
        let waiter = self.take_waiter(completion);
        self.waiting_count -= 1;
        // Of two questions about one operation the later one stays: an abandoned extension, and the release.
        let question = &mut self.questions[completion.op.index()];
        question.take_if(|it| *it == completion);
        waiter
    }

    /// Has the loss of a lock reported to one more, or to one that watched before by another waker, once; the
    /// engine must have been asked to report it. Returns the waker that this one replaces, as
    /// [`Completions::abandon`] does.
    pub fn watch(
        &mut self,
        lock: OpId,
        watcher: Option<Watcher>,
        waker: &Waker,
        audience: Audience,
    ) -> (Watcher, Option<Waker>) {
        let watchers = self.watchers.entry(lock).or_default();
        if let Some(it) = watchers.iter_mut().find(|it| Some(it.watcher) == watcher) {
            let is_same = it.waker.will_wake(waker);
            return (it.watcher, (!is_same).then(|| std::mem::replace(&mut it.waker, waker.clone())));
        }
        let watcher = Watcher(self.watcher_count);
        self.watcher_count += 1;
        watchers.push(Watching { watcher, waker: waker.clone(), audience });
        (watcher, None)
    }

    /// One does not watch any more. Returns what would have woken it, as [`Completions::abandon`] does.
    pub fn unwatch_one(&mut self, lock: OpId, watcher: Watcher) -> Option<Waker> {
        let watchers = self.watchers.get_mut(&lock)?;
        let place = watchers.iter().position(|it| it.watcher == watcher)?;
        Some(watchers.swap_remove(place).waker)
    }

    /// The lock is being released: wakes the tasks that await its loss, and returns the callbacks that are
    /// not called any more, as [`Completions::abandon`] does.
    pub fn unwatch(&mut self, lock: OpId) -> Vec<Waker> {
        if self.watchers.is_empty() {
            return Vec::new();
        }
        let watchers = self.watchers.remove(&lock).unwrap_or_default();
        let (tasks, callbacks): (Vec<_>, Vec<_>) =
            watchers.into_iter().partition(|it| it.audience == Audience::Task);
        self.woken.extend(tasks.into_iter().map(|it| it.waker));
        callbacks.into_iter().map(|it| it.waker).collect()
    }

    /// Makes the next answer a panic, as a broken invariant would.
    #[cfg(test)]
    pub(super) fn break_questions(&mut self) {
        self.questions.iter_mut().flatten().for_each(|question| question.slot = usize::MAX);
    }

    /// What wakes one of the sleeping threads.
    pub(super) fn sleeping_thread(&self) -> Option<Waker> {
        match &self.slots[*self.threads.last()?] {
            Slot::Waiting(_, Waiter::Thread(waker, _)) => Some(waker.clone()),
            _ => None,
        }
    }

    /// Tasks that wait.
    pub(super) const fn task_count(&self) -> usize {
        self.task_count
    }

    /// Answers that are waited for.
    pub(super) const fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// Adds one to be woken before all others.
    pub(super) fn wake_first(&mut self, waker: Waker) {
        self.woken.push_front(waker);
    }

    /// Adds one to be woken.
    pub(super) fn wake_too(&mut self, waker: Waker) {
        self.woken.push_back(waker);
    }

    /// The next one to be woken. To be called until there is none.
    pub fn pop_woken(&mut self) -> Option<Waker> {
        self.woken.pop_front().or_else(|| self.relay.pop())
    }

    /// The next one that the loop leader wakes; others are left to those; see [`Relay`].
    pub(super) fn pop_woken_as_leader(&mut self, now: Instant) -> Option<Waker> {
        self.woken.pop_front().or_else(|| self.relay.pop_first(now))
    }

    /// Whether somebody is to be woken.
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.relay.is_empty()
    }

    /// A caller has entered, and nobody is left to it.
    pub(super) fn end_relay(&mut self) {
        self.relay.end();
    }

    /// Whether the loop leader has somebody to wake.
    pub(super) fn wakes_as_leader(&mut self) -> bool {
        !self.woken.is_empty() || self.relay.has_first()
    }

    /// When the loop leader has to wake those whom it left to others.
    pub(super) fn relay_until(&self) -> Option<Instant> {
        self.relay.until()
    }

    /// Wakes all who wait: no answer will come any more.
    pub(super) fn give_up(&mut self) {
        for slot in &mut self.slots {
            if let Slot::Waiting(_, waiter) = slot
                && let Some(waker) = std::mem::replace(waiter, Waiter::Nobody).into_waker()
            {
                self.woken.push_back(waker);
            }
        }
        self.woken.extend(wakers(std::mem::take(&mut self.watchers).into_values()));
        self.threads.clear();
        self.task_count = 0;
    }
}

fn wakers(watchers: impl IntoIterator<Item = Vec<Watching>>) -> impl Iterator<Item = Waker> {
    watchers.into_iter().flatten().map(|it| it.waker)
}

/// Nobody wants this outcome: what it has acquired must not be kept.
fn release_unwanted(now: Instant, engine: &mut Engine, op: OpId, outcome: &Outcome) {
    if let Outcome::Acquire(Ok(_)) = outcome
        && !mutant!(AbandonForgets)
    {
        // A release is always taken, and this one's outcome is not wanted.
        let _ = engine.submit(now, Request::Release { lock: op, awaited: false });
    }
}
