//! The queue in which events wait for the observer.

use std::collections::VecDeque;

use crate::event::Event;
use crate::limits;

/// Events in their order.
#[derive(Debug)]
pub(super) struct Events {
    is_observed: bool,
    queue: VecDeque<Event>,
    dropped_count: u64,
}

impl Events {
    pub(super) const fn new(is_observed: bool) -> Self {
        Self { is_observed, queue: VecDeque::new(), dropped_count: 0 }
    }

    /// Whether anybody asked for events. Without that none is built.
    #[inline]
    pub(super) const fn is_observed(&self) -> bool {
        self.is_observed
    }

    /// Queues the event that `event` builds, if anybody asked for it and there is room.
    #[inline]
    pub(super) fn push(&mut self, event: impl FnOnce() -> Event) {
        if self.is_observed {
            self.push_observed(event);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_observed(&mut self, event: impl FnOnce() -> Event) {
        if self.queue.len() < limits::EVENT_COUNT_MAX {
            self.queue.push_back(event());
        } else {
            self.dropped_count += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) const fn dropped_count(&self) -> u64 {
        self.dropped_count
    }
}
