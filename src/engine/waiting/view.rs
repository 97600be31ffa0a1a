//! The view that callers have of a wait that is over.

use crate::engine::Engine;
use crate::engine::request::OpId;
use crate::error::Waited;

impl Engine {
    /// Returns how long the acquisition of a held lock took, and for whom it waited. `None` if the lock is
    /// not held.
    #[must_use]
    pub fn waited(&self, lock: OpId) -> Option<Waited> {
        let locks = &self.core.locks;
        let op = locks.ops.find(lock.0)?;
        op.held()?;
        let at_once = || Waited { attempts: op.tries.count, ..Waited::default() };
        Some(locks.accounts.find(lock.0).map_or_else(at_once, |account| account.waited.clone()))
    }
}
