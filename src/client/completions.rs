//! The completion table: a slot for each outcome of an engine that a caller expects.
//!
//! Owns the outcomes that were not fetched, and the wakers of their callers. Does not know connections, time
//! or the thread that drives the engine. Each outcome reaches its own caller or nobody, and a lock that
//! nobody waits for any more is released.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Instant;

use super::relay::Relay;
use super::sleeper::Thread;
use crate::engine::{Engine, OpId, Outcome, Request};

/// The slots; see the [module](self).
#[derive(Debug)]
pub struct Completions {
    slots: Vec<Completion>,
    free: Vec<usize>,
    /// Token of each operation's next outcome, by the operation's place.
    tokens: Vec<Option<CompletionToken>>,
    /// Slots for which a thread sleeps. Each slot knows its place here.
    threads: Vec<usize>,
    /// Number of slots for which a task waits.
    task_count: usize,
    /// Number of slots whose outcome has not come.
    waiting_count: usize,
    /// Callers to notify of the loss of a lock.
    loss_listeners: HashMap<OpId, Vec<LossListener>>,
    /// Number of loss tokens so far.
    loss_token_count: u64,
    /// Wakers of threads and loss listeners, called in this order after the mutex is released.
    woken: VecDeque<Waker>,
    /// Tasks to wake afterwards.
    relay: Relay,
}

/// Entitles to one outcome, to fetch or to abandon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionToken {
    /// Operation with the outcome.
    pub op: OpId,
    slot: usize,
}

/// Identifies a loss listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossToken(u64);

/// What happens to a loss listener when its lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The task is woken, and finds out.
    Task,
    /// The callback is not called.
    Callback,
}

/// A caller to notify of the loss of a lock.
#[derive(Debug)]
struct LossListener {
    token: LossToken,
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
    /// Answer to leaving a lock for a time.
    Leave,
    /// Answer to an inspection.
    Inspect,
    /// Answer to a search for free slots.
    FreeSlots,
    /// Answer to a forced unlock.
    ForceUnlock,
    /// End of a pause.
    Pause,
    /// End of a drain.
    Drain,
}

#[derive(Debug)]
enum Completion {
    Free,
    Waiting(OutcomeKind, AwaitedBy),
    Done(Outcome),
}

/// Caller of an outcome that has not come.
#[derive(Debug)]
enum AwaitedBy {
    /// Nobody yet, or a caller that checks again without a wake-up.
    Nobody,
    /// A task, and the thread that polled it last.
    Task(Waker, Thread),
    /// A sleeping thread, at this place of the list.
    Thread(Waker, usize),
}

impl AwaitedBy {
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
                | (Self::FreeSlots, Outcome::FreeSlots(_))
                | (Self::ForceUnlock, Outcome::ForceUnlock(_))
                | (Self::Pause, Outcome::Paused)
                | (Self::Drain, Outcome::Drained(_))
        )
    }
}

/// Initial room for sleeping threads and due wakers. Their number depends on timing, and acquiring a lock
/// must not allocate for them.
const WAITER_CAPACITY: usize = 64;

impl Default for Completions {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            tokens: Vec::new(),
            threads: Vec::with_capacity(WAITER_CAPACITY),
            task_count: 0,
            waiting_count: 0,
            loss_listeners: HashMap::new(),
            loss_token_count: 0,
            woken: VecDeque::with_capacity(WAITER_CAPACITY),
            relay: Relay::with_capacity(WAITER_CAPACITY),
        }
    }
}

impl Completions {
    /// Returns a token for the operation's next outcome of this kind. The engine's earlier outcomes must have
    /// been delivered.
    pub fn expect(&mut self, op: OpId, kind: OutcomeKind) -> CompletionToken {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Completion::Free);
            // Room for all slots, so that freeing a slot never allocates.
            self.free.reserve(self.slots.len());
            self.slots.len() - 1
        });
        self.slots[slot] = Completion::Waiting(kind, AwaitedBy::Nobody);
        self.waiting_count += 1;
        let completion = CompletionToken { op, slot };
        if op.index() >= self.tokens.len() {
            self.tokens.resize(op.index() + 1, None);
        }
        let before = self.tokens[op.index()].replace(completion);
        assert!(before.is_none_or(|it| it.op == op), "the outcome before was not delivered");
        completion
    }

    /// Whether an outcome of this operation is still to come.
    pub(super) fn is_expected(&self, op: OpId) -> bool {
        self.tokens.get(op.index()).is_some_and(|token| token.is_some_and(|it| it.op == op))
    }

    /// Takes the engine's outcomes, and notes the wakers of their callers. Returns the number of these
    /// callers.
    pub fn deliver(&mut self, now: Instant, engine: &mut Engine) -> usize {
        let mut caller_count = 0;
        while let Some((op, outcome)) = engine.poll_outcome() {
            if let Outcome::Lost(_) = outcome {
                self.woken.extend(wakers(self.loss_listeners.remove(&op)));
                continue;
            }
            let token = self.tokens.get(op.index()).copied().flatten();
            match token.filter(|completion| completion.op == op && self.expects(*completion, &outcome)) {
                Some(completion) => {
                    let caller = self.end_waiting(completion);
                    caller_count += usize::from(!matches!(caller, AwaitedBy::Nobody));
                    match caller {
                        AwaitedBy::Nobody => {}
                        AwaitedBy::Thread(waker, _) => self.woken.push_back(waker),
                        AwaitedBy::Task(waker, thread) => self.relay.push(waker, thread),
                    }
                    self.slots[completion.slot] = Completion::Done(outcome);
                }
                None => release_unwanted(now, engine, op, &outcome),
            }
        }
        caller_count
    }

    fn expects(&self, completion: CompletionToken, outcome: &Outcome) -> bool {
        matches!(&self.slots[completion.slot], Completion::Waiting(kind, _) if kind.is_answered_by(outcome))
    }

    /// Returns whether the outcome has come.
    #[must_use]
    pub fn is_done(&self, completion: CompletionToken) -> bool {
        matches!(self.slots[completion.slot], Completion::Done(_))
    }

    /// Returns the outcome if it has come, without fetching it.
    #[must_use]
    pub fn outcome(&self, completion: CompletionToken) -> Option<&Outcome> {
        match &self.slots[completion.slot] {
            Completion::Done(outcome) => Some(outcome),
            Completion::Free | Completion::Waiting(..) => None,
        }
    }

    /// Returns the number of outcomes that are still to come or to be fetched.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Fetches the outcome if it has come. The token is void afterwards.
    pub fn take(&mut self, completion: CompletionToken) -> Option<Outcome> {
        let slot = &mut self.slots[completion.slot];
        if !matches!(slot, Completion::Done(_)) {
            return None;
        }
        let Completion::Done(outcome) = std::mem::replace(slot, Completion::Free) else { unreachable!() };
        self.free.push(completion.slot);
        Some(outcome)
    }

    /// Abandons an outcome. An acquired lock is released, and an acquisition under way is given up. Returns
    /// the unneeded waker, because dropping it may run foreign code.
    pub fn abandon(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        completion: CompletionToken,
    ) -> Option<Waker> {
        let waker = match &self.slots[completion.slot] {
            Completion::Free => return None,
            Completion::Done(outcome) => {
                release_unwanted(now, engine, completion.op, outcome);
                None
            }
            Completion::Waiting(kind, _) => {
                let goes_on = matches!(kind, OutcomeKind::Extend | OutcomeKind::Release | OutcomeKind::Leave);
                if !goes_on {
                    // A release is always accepted, and cancels an acquisition or a query.
                    let _ = engine.submit(now, Request::Release { lock: completion.op, awaited: false });
                }
                self.end_waiting(completion).into_waker()
            }
        };
        self.slots[completion.slot] = Completion::Free;
        self.free.push(completion.slot);
        waker
    }

    /// Wakes this task when the outcome has come. Returns the replaced waker, like [`Completions::abandon`].
    pub fn wait_as_task(&mut self, completion: CompletionToken, waker: &Waker) -> Option<Waker> {
        match &mut self.slots[completion.slot] {
            Completion::Waiting(_, AwaitedBy::Task(old, thread)) => {
                *thread = Thread::own();
                let is_same = old.will_wake(waker);
                (!is_same).then(|| std::mem::replace(old, waker.clone()))
            }
            Completion::Waiting(_, waiter) => {
                *waiter = AwaitedBy::Task(waker.clone(), Thread::own());
                self.task_count += 1;
                None
            }
            Completion::Free | Completion::Done(_) => None,
        }
    }

    /// Wakes this thread, which is about to sleep, when the outcome has come or through
    /// [`Completions::sleeping_thread`]. No task may wait for the outcome.
    pub(super) fn wait_as_thread(&mut self, completion: CompletionToken, waker: Waker) {
        if let Completion::Waiting(_, waiter) = &mut self.slots[completion.slot] {
            *waiter = AwaitedBy::Thread(waker, self.threads.len());
            self.threads.push(completion.slot);
        }
    }

    /// Forgets the waiting task or thread. Returns its waker, like [`Completions::abandon`].
    pub(super) fn stop_waiting(&mut self, completion: CompletionToken) -> Option<Waker> {
        self.take_waiter(completion).into_waker()
    }

    fn take_waiter(&mut self, completion: CompletionToken) -> AwaitedBy {
        let Completion::Waiting(_, waiter) = &mut self.slots[completion.slot] else {
            return AwaitedBy::Nobody;
        };
        let waiter = std::mem::replace(waiter, AwaitedBy::Nobody);
        match &waiter {
            AwaitedBy::Nobody => {}
            AwaitedBy::Task(..) => self.task_count -= 1,
            AwaitedBy::Thread(_, place) => {
                self.threads.swap_remove(*place);
                if let Some(&moved) = self.threads.get(*place)
                    && let Completion::Waiting(_, AwaitedBy::Thread(_, its_place)) = &mut self.slots[moved]
                {
                    *its_place = *place;
                }
            }
        }
        waiter
    }

    /// Ends the wait for an outcome that has come, or that nobody wants. Returns its caller.
    fn end_waiting(&mut self, completion: CompletionToken) -> AwaitedBy {
        let waiter = self.take_waiter(completion);
        self.waiting_count -= 1;
        // Of two tokens of one operation (an abandoned extension, and the release) the later one stays.
        self.tokens[completion.op.index()].take_if(|it| *it == completion);
        waiter
    }

    /// Registers a waker to call once when the lock is lost, or replaces the waker of an earlier
    /// registration. The engine must have been asked to report the loss. Returns the replaced waker, like
    /// [`Completions::abandon`].
    pub fn notify_loss(
        &mut self,
        lock: OpId,
        token: Option<LossToken>,
        waker: &Waker,
        audience: Audience,
    ) -> (LossToken, Option<Waker>) {
        let listeners = self.loss_listeners.entry(lock).or_default();
        if let Some(it) = listeners.iter_mut().find(|it| Some(it.token) == token) {
            let is_same = it.waker.will_wake(waker);
            return (it.token, (!is_same).then(|| std::mem::replace(&mut it.waker, waker.clone())));
        }
        let token = LossToken(self.loss_token_count);
        self.loss_token_count += 1;
        listeners.push(LossListener { token, waker: waker.clone(), audience });
        (token, None)
    }

    /// Removes a loss listener. Returns its waker, like [`Completions::abandon`].
    pub fn end_loss_listener(&mut self, lock: OpId, token: LossToken) -> Option<Waker> {
        let listeners = self.loss_listeners.get_mut(&lock)?;
        let place = listeners.iter().position(|it| it.token == token)?;
        Some(listeners.swap_remove(place).waker)
    }

    /// Wakes the tasks that await the loss of a lock, because the lock is being released. Returns the
    /// callbacks that will not be called, like [`Completions::abandon`].
    pub fn end_loss_listeners(&mut self, lock: OpId) -> Vec<Waker> {
        if self.loss_listeners.is_empty() {
            return Vec::new();
        }
        let listeners = self.loss_listeners.remove(&lock).unwrap_or_default();
        let (tasks, callbacks): (Vec<_>, Vec<_>) =
            listeners.into_iter().partition(|it| it.audience == Audience::Task);
        self.woken.extend(tasks.into_iter().map(|it| it.waker));
        callbacks.into_iter().map(|it| it.waker).collect()
    }

    /// Makes the next outcome a panic, like a broken invariant.
    #[cfg(test)]
    pub(super) fn break_tokens(&mut self) {
        self.tokens.iter_mut().flatten().for_each(|token| token.slot = usize::MAX);
    }

    pub(super) fn sleeping_thread(&self) -> Option<Waker> {
        match &self.slots[*self.threads.last()?] {
            Completion::Waiting(_, AwaitedBy::Thread(waker, _)) => Some(waker.clone()),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    pub(super) const fn task_count(&self) -> usize {
        self.task_count
    }

    pub(super) const fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    pub(super) fn wake_too(&mut self, waker: Waker) {
        self.woken.push_back(waker);
    }

    /// Returns the next waker to call. Call this until it returns `None`.
    pub fn pop_woken(&mut self) -> Option<Waker> {
        self.woken.pop_front().or_else(|| self.relay.pop())
    }

    /// Returns the next waker that the loop leader calls. The leader leaves some tasks to others; see
    /// [`Relay`].
    pub(super) fn pop_woken_as_leader(&mut self, now: Instant) -> Option<Waker> {
        self.woken.pop_front().or_else(|| self.relay.pop_first(now))
    }

    /// Whether a waker is left to call.
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.relay.is_empty()
    }

    /// How often this waker is among the wakers to call.
    pub(super) fn woken_count(&self, waker: &Waker) -> usize {
        self.woken.iter().chain(self.relay.wakers()).filter(|other| other.will_wake(waker)).count()
    }

    /// Ends the relay, when a caller has entered and no task is left for it to wake.
    pub(super) fn end_relay(&mut self) {
        self.relay.end();
    }

    /// When the loop leader must wake the tasks that it left to others.
    pub(super) fn relay_until(&self) -> Option<Instant> {
        self.relay.until()
    }

    /// Wakes all callers, because no further outcome will come.
    pub(super) fn give_up(&mut self) {
        for slot in &mut self.slots {
            if let Completion::Waiting(_, waiter) = slot
                && let Some(waker) = std::mem::replace(waiter, AwaitedBy::Nobody).into_waker()
            {
                self.woken.push_back(waker);
            }
        }
        self.woken.extend(wakers(std::mem::take(&mut self.loss_listeners).into_values()));
        self.threads.clear();
        self.task_count = 0;
    }
}

fn wakers(listeners: impl IntoIterator<Item = Vec<LossListener>>) -> impl Iterator<Item = Waker> {
    listeners.into_iter().flatten().map(|it| it.waker)
}

/// Releases what an unwanted outcome has acquired.
fn release_unwanted(now: Instant, engine: &mut Engine, op: OpId, outcome: &Outcome) {
    if let Outcome::Acquire(Ok(_)) = outcome {
        // A release is always accepted, and nobody wants its outcome.
        let _ = engine.submit(now, Request::Release { lock: op, awaited: false });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::client::Count;
    use crate::clock;
    use crate::config::Config;
    use crate::engine::Resource;
    use crate::options::Options;

    const WAIT: Duration = Duration::from_secs(60);

    /// Tokens of two acquisitions, which end with their wait.
    fn waiting(engine: &mut Engine, completions: &mut Completions) -> [CompletionToken; 2] {
        ["a", "b"].map(|name| {
            let resource = Resource::new(name).expect("a valid name");
            let options = Options::new().wait(WAIT);
            let request = Request::Acquire { resource, options, label: None };
            let op = engine.submit(clock::now(), request).expect("room");
            completions.expect(op, OutcomeKind::Acquire)
        })
    }

    fn engine() -> Engine {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        Engine::new(Arc::new(config), [0; 32], clock::now())
    }

    #[test]
    fn task_is_woken_by_its_latest_polling_thread() {
        for (moves, woken_by_leader) in [(false, 1), (true, 2)] {
            let (mut engine, mut completions) = (engine(), Completions::default());
            let tokens = waiting(&mut engine, &mut completions);
            let waker = Waker::from(Arc::new(Count::default()));
            for token in tokens {
                assert!(completions.wait_as_task(token, &waker).is_none());
            }
            if moves {
                let poll = || completions.wait_as_task(tokens[1], &waker);
                thread::scope(|scope| scope.spawn(poll).join().expect("no panic"));
            }
            let now = clock::now() + WAIT;
            engine.handle_timeout(now);
            completions.deliver(now, &mut engine);
            let woken = std::iter::from_fn(|| completions.pop_woken_as_leader(now)).count();
            assert_eq!(woken, woken_by_leader, "another thread polled the second one: {moves}");
        }
    }

    #[test]
    fn stopped_client_wakes_every_waiting_caller() {
        let (mut engine, mut completions) = (engine(), Completions::default());
        let [task, thread] = waiting(&mut engine, &mut completions);
        let waker = Waker::from(Arc::new(Count::default()));
        assert!(completions.wait_as_task(task, &waker).is_none());
        completions.wait_as_thread(thread, waker);
        completions.give_up();
        assert_eq!((completions.thread_count(), completions.task_count()), (0, 0));
        assert_eq!(std::iter::from_fn(|| completions.pop_woken()).count(), 2);
    }
}
