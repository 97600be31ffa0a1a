//! The extension of a reentrant lock by one of its holds, for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::completions::Question;
use crate::client::guard;
use crate::client::handle::Client;
use crate::client::pending::{Ask, Pending};
use crate::client::shared::{Core, Stopped};
use crate::engine::{OpId, Outcome};
use crate::error::ExtendError;

/// The extension of the lock for one of its holds.
pub(super) struct Extension {
    client: Client,
    is_under_way: Arc<AtomicBool>,
    lock: OpId,
    ttl: Duration,
}

impl Extension {
    /// Asks for it, unless another hold extends the lock: an answer is for one caller.
    pub(super) fn begin(
        client: &Client,
        is_under_way: &Arc<AtomicBool>,
        lock: OpId,
        ttl: Duration,
    ) -> Result<Pending<Self>, ExtendError> {
        if is_under_way.swap(true, Ordering::SeqCst) {
            return Err(ExtendError::Busy);
        }
        let (client, is_under_way) = (client.clone(), is_under_way.clone());
        Ok(Pending::new(Self { client, is_under_way, lock, ttl }))
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.is_under_way.store(false, Ordering::SeqCst);
    }
}

impl Ask for Extension {
    const QUESTION: Question = Question::Extend;
    type Answer = ();
    type Error = ExtendError;

    fn client(&self) -> &Client {
        &self.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ExtendError> {
        guard::submit_extension(core, self.lock, self.ttl)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<(), ExtendError> {
        guard::extension_result(outcome)
    }

    fn stopped(why: Stopped) -> ExtendError {
        ExtendError::Stopped(why)
    }
}
