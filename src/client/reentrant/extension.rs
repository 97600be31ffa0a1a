//! The extension of a reentrant lock by one of its holds, for all of them.

use std::time::Duration;

use crate::client::completions::Question;
use crate::client::guard;
use crate::client::handle::Client;
use crate::client::pending::Ask;
use crate::client::shared::{Core, Stopped};
use crate::engine::{OpId, Outcome};
use crate::error::ExtendError;

/// The extension of the lock for one of its holds.
pub(super) struct Extension {
    pub(super) client: Client,
    pub(super) lock: OpId,
    pub(super) ttl: Duration,
}

impl Ask for Extension {
    const QUESTION: Question = Question::Extend;
    type Answer = ();
    type Error = ExtendError;

    fn client(&self) -> &Client {
        &self.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ExtendError> {
        core.deliver();
        // An answer is for one hold: that of another one is to come.
        if core.completions.is_asked(self.lock) {
            return Err(ExtendError::Busy);
        }
        guard::submit_extension(core, self.lock, self.ttl)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<(), ExtendError> {
        guard::extension_result(outcome)
    }

    fn stopped(why: Stopped) -> ExtendError {
        ExtendError::Stopped(why)
    }
}
