//! Tasks whose answers have come, and which of them the loop leader wakes.
//!
//! ```text
//!   loop leader ── wakes the first task of each thread ──► that task enters the client ── wakes the others
//!        └──── wakes all of them if none has entered within RELAY_MAX
//! ```
//!
//! For most executors, a wake-up from another thread costs a write to their event queue, and a wake-up from
//! their own thread costs nothing. Without the relay, each answer of 128 tasks on one thread cost such a
//! write.
//!
//! Owns the tasks to wake, and does not know their answers. Keeps the order of the answers. No task waits
//! longer than [`RELAY_MAX`] for another task.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::sleeper::Thread;

/// Longest time that a task waits for another task to wake it, before the loop leader does: 1 ms, the
/// shortest sleep of the event queue.
pub(super) const RELAY_MAX: Duration = Duration::from_millis(1);

/// Largest number of threads that are distinguished.
const THREAD_COUNT_MAX: usize = 16;

/// Tasks to wake; see the [module](self).
#[derive(Debug)]
pub(super) struct Relay {
    /// In the order of their answers.
    tasks: VecDeque<(Waker, Thread)>,
    /// Number of `tasks` that the leader leaves to the first woken task of their thread.
    left_count: usize,
    /// Threads of which a task was woken and has not entered since.
    threads: Vec<Thread>,
    /// When the loop leader wakes the remaining tasks.
    until: Option<Instant>,
}

impl Relay {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            tasks: VecDeque::with_capacity(capacity),
            left_count: 0,
            threads: Vec::with_capacity(THREAD_COUNT_MAX),
            until: None,
        }
    }

    pub(super) fn push(&mut self, waker: Waker, thread: Thread) {
        self.tasks.push_back((waker, thread));
    }

    /// Next task to wake for a caller other than the loop leader, which has entered and wakes all tasks.
    pub(super) fn pop(&mut self) -> Option<Waker> {
        let task = self.tasks.pop_front().map(|(waker, _)| waker);
        self.left_count = self.left_count.saturating_sub(1);
        if self.tasks.is_empty() {
            self.end();
        }
        task
    }

    /// Forgets the threads, when all tasks are woken and one has entered.
    pub(super) fn end(&mut self) {
        self.threads.clear();
        self.until = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn wakers(&self) -> impl Iterator<Item = &Waker> {
        self.tasks.iter().map(|(waker, _)| waker)
    }

    /// Next task for the loop leader to wake.
    pub(super) fn pop_first(&mut self, now: Instant) -> Option<Waker> {
        if self.until.is_some_and(|until| until <= now) {
            return self.pop();
        }
        while self.tasks.get(self.left_count).is_some_and(|(_, thread)| self.threads.contains(thread)) {
            self.left_count += 1;
        }
        let (waker, thread) = self.tasks.remove(self.left_count)?;
        if self.threads.len() < THREAD_COUNT_MAX {
            self.threads.push(thread);
        }
        self.until.get_or_insert(now + RELAY_MAX);
        Some(waker)
    }

    /// End of the loop leader's sleep, while tasks are left to others.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until.filter(|_| !self.tasks.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::Count;
    use crate::clock;

    /// A relay with a task for each number, last polled by the thread of that number, and the tasks'
    /// wake-ups.
    fn relay(threads: &[usize]) -> (Relay, Vec<Arc<Count>>) {
        let mut relay = Relay::with_capacity(0);
        let counts: Vec<_> = threads.iter().map(|thread| push(&mut relay, *thread)).collect();
        (relay, counts)
    }

    fn push(relay: &mut Relay, thread: usize) -> Arc<Count> {
        let count = Arc::<Count>::default();
        relay.push(Waker::from(count.clone()), Thread(thread));
        count
    }

    fn woken(counts: &[Arc<Count>]) -> Vec<usize> {
        counts.iter().map(|count| count.get()).collect()
    }

    fn lead(relay: &mut Relay, now: Instant) {
        while let Some(waker) = relay.pop_first(now) {
            waker.wake();
        }
    }

    fn enter(relay: &mut Relay) {
        if relay.is_empty() {
            relay.end();
        }
        while let Some(waker) = relay.pop() {
            waker.wake();
        }
    }

    // I93
    #[test]
    fn the_leader_wakes_one_task_of_each_thread() {
        let now = clock::now();
        let (mut relay, counts) = relay(&[1, 1, 2, 1, 2]);
        lead(&mut relay, now);
        assert_eq!(woken(&counts), [1, 0, 1, 0, 0]);
        assert_eq!(relay.until(), Some(now + RELAY_MAX));
        enter(&mut relay);
        assert_eq!(woken(&counts), [1; 5]);
        assert_eq!(relay.until(), None);
    }

    // I93
    #[test]
    fn a_woken_thread_takes_later_answers_too() {
        let now = clock::now();
        let (mut relay, _) = relay(&[1]);
        lead(&mut relay, now);
        assert_eq!(relay.until(), None, "nobody is left");
        let later = [push(&mut relay, 1), push(&mut relay, 3)];
        lead(&mut relay, now);
        assert_eq!(woken(&later), [0, 1]);
        enter(&mut relay);
        // It has entered, so the next answer wakes it again.
        let next = [push(&mut relay, 1), push(&mut relay, 1)];
        lead(&mut relay, now + RELAY_MAX);
        assert_eq!((woken(&later), woken(&next)), (vec![1, 1], vec![1, 0]));
    }

    // I93
    #[test]
    fn the_leader_wakes_all_in_the_end() {
        let now = clock::now();
        let (mut relay, counts) = relay(&[1, 1, 1]);
        lead(&mut relay, now);
        lead(&mut relay, now + RELAY_MAX - Duration::from_nanos(1));
        assert_eq!(woken(&counts), [1, 0, 0]);
        lead(&mut relay, now + RELAY_MAX);
        assert_eq!(woken(&counts), [1; 3]);
        // No task is left to one that never entered: the leader wakes the next one at once.
        let next = [push(&mut relay, 1)];
        lead(&mut relay, now + RELAY_MAX);
        assert_eq!((woken(&next), relay.until()), (vec![1], None));
    }

    #[test]
    fn later_answers_do_not_extend_the_relay() {
        let now = clock::now();
        let (mut relay, counts) = relay(&[1, 1]);
        lead(&mut relay, now);
        let next = [push(&mut relay, 2)];
        lead(&mut relay, now + RELAY_MAX / 2);
        assert_eq!((woken(&counts), woken(&next)), (vec![1, 0], vec![1]));
        assert_eq!(relay.until(), Some(now + RELAY_MAX));
    }

    // I126
    #[test]
    fn tasks_are_woken_in_the_order_of_their_answers() {
        let (mut relay, counts) = relay(&[1, 2, 1, 3, 2, 1]);
        let wake = |waker: Waker| {
            let before = woken(&counts);
            waker.wake();
            woken(&counts).iter().zip(before).position(|(now, before)| *now > before)
        };
        let order = |pop: &mut dyn FnMut() -> Option<Waker>| -> Vec<_> {
            std::iter::from_fn(|| pop().map(wake)).map(|place| place.expect("one of them")).collect()
        };
        assert_eq!(order(&mut || relay.pop_first(clock::now())), [0, 1, 3]);
        assert_eq!(order(&mut || relay.pop()), [2, 4, 5]);
    }

    #[test]
    fn more_threads_than_are_distinguished_are_all_woken() {
        let threads: Vec<_> = (0..2 * THREAD_COUNT_MAX).collect();
        let (mut relay, counts) = relay(&threads);
        lead(&mut relay, clock::now());
        assert_eq!(woken(&counts), vec![1; threads.len()]);
    }
}
