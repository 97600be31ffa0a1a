//! Calls the user's observer with events, on a thread of its own: it may be slow or block, and delays nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crate::client::parker::Parker;
use crate::engine::Engine;
use crate::event::{Event, Observer};

/// Events that are taken with the lock given back once.
const TAKEN_COUNT_MAX: usize = 64;

/// The observer of a client.
#[derive(Debug)]
pub(super) struct Observing {
    observer: Observer,
    parker: Arc<Parker>,
    waker: Waker,
    /// Whether its thread will look for events. Changed with the lock held.
    is_awake: AtomicBool,
    has_ended: AtomicBool,
}

impl Observing {
    /// Its thread is about to start.
    pub(super) fn new(observer: Observer) -> Self {
        let (parker, waker) = Parker::pair();
        Self { observer, parker, waker, is_awake: AtomicBool::new(true), has_ended: AtomicBool::new(false) }
    }

    /// Has the events of the engine reported; to be called with the lock held.
    pub(super) fn notify(&self, engine: &Engine) {
        if engine.has_event() && !self.is_awake.swap(true, Ordering::AcqRel) {
            self.waker.wake_by_ref();
        }
    }

    /// Takes events for its thread, with the lock held. If there are none, the thread is about to sleep.
    pub(super) fn take(&self, engine: &mut Engine) -> Vec<Event> {
        let events: Vec<Event> = std::iter::from_fn(|| engine.poll_event()).take(TAKEN_COUNT_MAX).collect();
        self.is_awake.store(!events.is_empty(), Ordering::Release);
        events
    }

    /// Calls the observer with each. A panic of it is caught.
    pub(super) fn report(&self, events: &[Event]) {
        events.iter().for_each(|event| self.observer.call(event));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Sleeps until there are events, or will be no more.
    pub(super) fn park(&self) {
        self.parker.park(None);
    }

    /// No further events come; the thread ends when it has reported those that wait.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}
