//! Inspection of locks and of slots, and the deletion of locks by force.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::completions::OutcomeKind;
use super::handle::Client;
use super::pending::{Ask, Pending};
use super::shared::{Inner, Shared, Stopped};
use crate::cancel::{Cancel, Registration};
use crate::engine::{ForceUnlocked, Inspection, OpId, Outcome, Request, SlotLook};
use crate::error::{AcquireError, ForceUnlockError, InspectError};
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
        Pending::new(InspectCall { client: Cow::Borrowed(self), name: name.into() }).wait()
    }

    /// Returns the future of [`Client::inspect`], for tasks. Sends nothing before its first poll.
    /// Cancel-safe: dropping it changes nothing.
    pub fn inspect_async<'a, 'n: 'a>(
        &'a self,
        name: impl Into<LockName<'n>>,
    ) -> impl Future<Output = Result<Inspection, InspectError>> + Send + 'a {
        Pending::new(InspectCall { client: Cow::Borrowed(self), name: name.into() })
    }

    /// Returns a future that asks the masters which of the `count` slots of this pool are free, in one round
    /// trip; see [`Client::slots`]. Takes no slot. Each master reports its first 4 free slots, counted from the
    /// slot `from` on, around the end of the pool. Sends nothing before its first poll.
    ///
    /// ```no_run
    /// use redlatch::engine::SlotLook;
    ///
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// match client.free_slots("migrations", 3, 0).block()? {
    ///     SlotLook::Free(slots) => println!("free: {slots:?}"),
    ///     taken => println!("none: {taken:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_slots<'n>(&self, pool: impl Into<LockName<'n>>, count: u32, from: u32) -> FreeSlots {
        let (client, pool) = (self.clone(), pool.into().into_shared());
        FreeSlots(Pending::new(FreeSlotsCall { client, pool, count, from, cancel: None }))
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
        Pending::new(ForceUnlockCall { client: Cow::Borrowed(self), name: name.into() }).wait()
    }

    /// Returns the future of [`Client::force_unlock`], for tasks. Sends nothing before its first poll. Safe
    /// to drop, but not cancel-safe: dropping it does not take back a deletion that was sent.
    pub fn force_unlock_async<'a, 'n: 'a>(
        &'a self,
        name: impl Into<LockName<'n>>,
    ) -> impl Future<Output = Result<ForceUnlocked, ForceUnlockError>> + Send + 'a {
        Pending::new(ForceUnlockCall { client: Cow::Borrowed(self), name: name.into() })
    }
}

#[derive(Debug)]
pub(super) struct InspectCall<'a> {
    pub(super) client: Cow<'a, Client>,
    pub(super) name: LockName<'a>,
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

/// Search for free slots under way: a future for any executor, or a value to [`FreeSlots::block`] on; made by
/// [`Client::free_slots`]. Cancel-safe: dropping it changes nothing.
///
/// Fails with [`AcquireError::Cancelled`], [`AcquireError::Stopped`], [`AcquireError::Overloaded`], or
/// [`AcquireError::Input`] for a wrong name or count. A missing answer of a master is part of the [`SlotLook`].
#[must_use = "nothing is asked before this is awaited"]
#[derive(Debug)]
pub struct FreeSlots(Pending<FreeSlotsCall>);

impl FreeSlots {
    /// Lets this handle end the search from another thread.
    pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
        self.0.ask_mut().cancel = Some(Registration::new(cancel));
        self
    }

    /// Blocks this thread until the masters have answered, at most for the answer limit of the longest TTL
    /// ([`crate::ConfigBuilder::answer_timeout`]).
    ///
    /// # Errors
    /// As the future's.
    pub fn block(mut self) -> Result<SlotLook, AcquireError> {
        self.0.wait()
    }
}

impl Future for FreeSlots {
    type Output = Result<SlotLook, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

#[derive(Debug)]
pub(super) struct FreeSlotsCall {
    pub(super) client: Client,
    pub(super) pool: Bytes,
    pub(super) count: u32,
    pub(super) from: u32,
    pub(super) cancel: Option<Registration>,
}

impl Ask for FreeSlotsCall {
    const OUTCOME: OutcomeKind = OutcomeKind::FreeSlots;
    const STOPPED: fn(Stopped) -> AcquireError = AcquireError::Stopped;
    type Answer = SlotLook;
    type Error = AcquireError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), AcquireError> {
        let (pool, count, from) = (Resource::new(&self.pool)?, self.count, self.from);
        Ok((inner.submit(Request::FreeSlots { pool, count, from })?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<SlotLook, AcquireError> {
        match outcome {
            Outcome::FreeSlots(look) => Ok(look),
            _ => unreachable!("a search is answered by its own outcome"),
        }
    }

    fn cancellation(&mut self) -> Option<(&mut Registration, AcquireError)> {
        Some((self.cancel.as_mut()?, AcquireError::Cancelled))
    }
}

#[derive(Debug)]
pub(super) struct ForceUnlockCall<'a> {
    pub(super) client: Cow<'a, Client>,
    pub(super) name: LockName<'a>,
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
