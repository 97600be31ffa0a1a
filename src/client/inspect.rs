//! Inspection of locks, and their deletion by force.

use std::sync::Arc;

use super::completions::OutcomeKind;
use super::handle::Client;
use super::pending::{Ask, Pending};
use super::shared::{Inner, Shared, Stopped};
use crate::engine::{ForceUnlocked, Inspection, OpId, Outcome, Request};
use crate::error::{ForceUnlockError, InspectError};
use crate::lock::{LockName, Resource, quorum};

impl Client {
    /// Returns what each master holds of the lock of this name, whoever the holder is, in one round trip.
    ///
    /// Returns when each usable master has answered, or at the answer limit of the longest TTL
    /// ([`crate::ConfigBuilder::answer_timeout`]). After an idle time it takes up to 200 ms more. Takes no
    /// part in any lock, and changes nothing.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let inspection = client.inspect("orders:42")?;
    /// println!("{}, {:?}", inspection.status(), inspection.remaining());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`InspectError`]. A missing answer of a master is part of the [`Inspection`].
    pub fn inspect<'n>(&self, name: impl Into<LockName<'n>>) -> Result<Inspection, InspectError> {
        Pending::new(InspectCall { client: self, name: name.into() }).wait()
    }

    /// Returns the future of [`Client::inspect`], for tasks. Sends nothing before its first poll.
    /// Cancel-safe: dropping it changes nothing.
    pub fn inspect_async<'a, 'n: 'a>(
        &'a self,
        name: impl Into<LockName<'n>>,
    ) -> impl Future<Output = Result<Inspection, InspectError>> + Send + 'a {
        Pending::new(InspectCall { client: self, name: name.into() })
    }

    /// Deletes the lock of this name on all usable masters, **whoever holds it**: one holder alone, or all
    /// readers.
    ///
    /// This breaks the lock. The holder is not notified, and goes on as if it held the lock, beside the next
    /// holder. So exclusion is not promised for this lock until the old holder's validity has ended. A holder
    /// learns of the loss from its next extension, and with automatic extension from
    /// [`crate::Guard::on_lost`]. A fencing token still stops the old holder at a storage that checks tokens.
    ///
    /// Each master serves the first waiters in its queue, as after a release. A client that only polls tries
    /// again after its own pause. Callers of this client that wait behind a holder of the same client go on
    /// waiting for that holder.
    ///
    /// For operators who know that the holder is dead, and cannot wait for the end of its TTL.
    ///
    /// Deletes only keys that can be locks: a string, which may be a lock of another library, or a set of
    /// readers. A key of any other type stays, and its master answers with an error.
    ///
    /// # Errors
    /// [`ForceUnlockError::Unconfirmed`] if fewer than a quorum deleted a lock or had none. A holder that
    /// extends the lock may restore deleted keys.
    pub fn force_unlock<'n>(&self, name: impl Into<LockName<'n>>) -> Result<ForceUnlocked, ForceUnlockError> {
        Pending::new(ForceUnlockCall { client: self, name: name.into() }).wait()
    }

    /// Returns the future of [`Client::force_unlock`], for tasks. Sends nothing before its first poll. Safe
    /// to drop, but not cancel-safe: dropping it does not take back a deletion that was sent.
    pub fn force_unlock_async<'a, 'n: 'a>(
        &'a self,
        name: impl Into<LockName<'n>>,
    ) -> impl Future<Output = Result<ForceUnlocked, ForceUnlockError>> + Send + 'a {
        Pending::new(ForceUnlockCall { client: self, name: name.into() })
    }
}

#[derive(Debug)]
struct InspectCall<'a> {
    client: &'a Client,
    name: LockName<'a>,
}

impl Ask for InspectCall<'_> {
    const OUTCOME: OutcomeKind = OutcomeKind::Inspect;
    const STOPPED: fn(Stopped) -> InspectError = InspectError::Stopped;
    type Answer = Inspection;
    type Error = InspectError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), InspectError> {
        let resource = Resource::of_any_lock(self.name.as_bytes())?;
        Ok((inner.submit(Request::Inspect { resource })?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<Inspection, InspectError> {
        match outcome {
            Outcome::Inspect(inspection) => Ok(inspection),
            _ => unreachable!("an inspection is answered by its own outcome"),
        }
    }
}

#[derive(Debug)]
struct ForceUnlockCall<'a> {
    client: &'a Client,
    name: LockName<'a>,
}

impl Ask for ForceUnlockCall<'_> {
    const OUTCOME: OutcomeKind = OutcomeKind::ForceUnlock;
    const STOPPED: fn(Stopped) -> ForceUnlockError = ForceUnlockError::Stopped;
    type Answer = ForceUnlocked;
    type Error = ForceUnlockError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), ForceUnlockError> {
        let resource = Resource::of_any_lock(self.name.as_bytes())?;
        Ok((inner.submit(Request::ForceUnlock { resource })?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<ForceUnlocked, ForceUnlockError> {
        match outcome {
            Outcome::ForceUnlock(done) => {
                let count = done.report.votes.len();
                if count - done.unanswered() >= quorum(count) {
                    Ok(done)
                } else {
                    Err(ForceUnlockError::Unconfirmed(done.report))
                }
            }
            _ => unreachable!("a forced unlock is answered by its own outcome"),
        }
    }
}
