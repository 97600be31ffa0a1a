//! What the simulator of `tests/sim` needs of a client's state.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::{Inner, Shared};
use crate::driver::{Driver, Poller};

impl Shared {
    /// State of a client without threads. The caller's thread takes the place of the background thread.
    pub(in crate::client) fn simulated(driver: Driver, poller: Poller) -> Arc<Self> {
        let shared = Self::new(driver, poller);
        shared.peek(|inner| inner.background.thread = Some(thread::current().id()));
        shared
    }
}

impl Inner {
    /// When somebody must turn the loop, though nothing arrives. At once if something is left to do that has
    /// no deadline: a request to write, an outcome to deliver, a caller to wake.
    pub(in crate::client) fn turn_due(&self) -> Option<Instant> {
        let engine = &self.driver.engine;
        let is_unwritten = engine.has_queued() && self.linger_until.is_none();
        let is_left = is_unwritten || engine.has_outcome() || self.completions.has_woken();
        if is_left { Some(self.now()) } else { self.due() }
    }
}
