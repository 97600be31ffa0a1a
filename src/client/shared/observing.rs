//! Calls the user's observer with events, without the lock: one thread at a time, so that the events come in
//! their order.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::Engine;
use crate::event::{Event, Observer};

/// Events that are taken with the lock given back once.
const TAKEN_COUNT_MAX: usize = 64;

/// The observer of a client, if it has one.
#[derive(Debug)]
pub(super) struct Observing {
    observer: Option<Observer>,
    /// Whether a thread is calling it. Changed with the lock held, or by that thread.
    is_called: AtomicBool,
}

/// Events that one thread has taken. Dropping them calls the observer with each.
pub(super) struct Observed<'a> {
    observing: &'a Observing,
    events: Vec<Event>,
}

impl Observing {
    pub(super) const fn new(observer: Option<Observer>) -> Self {
        Self { observer, is_called: AtomicBool::new(false) }
    }

    /// Whether events wait, and no other thread calls the observer.
    pub(super) fn is_due(&self, engine: &Engine) -> bool {
        self.observer.is_some() && engine.has_event() && !self.is_called.load(Ordering::Acquire)
    }

    /// Takes events, if that is due.
    pub(super) fn begin(&self, engine: &mut Engine) -> Option<Observed<'_>> {
        if !self.is_due(engine) {
            return None;
        }
        self.is_called.store(true, Ordering::Release);
        let events = std::iter::from_fn(|| engine.poll_event()).take(TAKEN_COUNT_MAX).collect();
        Some(Observed { observing: self, events })
    }
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        // A panic of it is caught there.
        if let Some(observer) = &self.observing.observer {
            self.events.iter().for_each(|event| observer.call(event));
        }
        self.observing.is_called.store(false, Ordering::Release);
    }
}
