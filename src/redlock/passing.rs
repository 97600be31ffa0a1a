//! Handles of locks of the pipelined form.

use std::time::Duration;

use super::Redlock;
use crate::clock;
use crate::engine::OpId;
use crate::error::LeaveError;
use crate::handle::LockHandle;

impl Redlock {
    /// Returns a handle of a lock of the pipelined form, which only releases it; see
    /// [`Guard::to_handle`](crate::Guard::to_handle). `None` if the lock is not held, or in a fork of the
    /// process.
    #[must_use]
    pub fn handle(&self, lock: OpId) -> Option<LockHandle> {
        if self.is_forked() { None } else { self.driver.engine.handle(clock::now(), clock::wall(), lock) }
    }

    /// Leaves a lock of the pipelined form, and returns the handle by which a
    /// [`Client`](crate::Client::adopt) adopts it before its validity ends; there it has this TTL. It sends
    /// nothing: extend the lock before, if it is to be kept for longer.
    ///
    /// # Errors
    /// [`LeaveError`]. The lock is as it was.
    pub fn pass(&mut self, lock: OpId, ttl: Duration) -> Result<LockHandle, LeaveError> {
        self.check_process().map_err(LeaveError::Stopped)?;
        self.driver.engine.pass(clock::now(), clock::wall(), lock, ttl)
    }
}
