//! Locks that pass to another process with a [`LockHandle`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::completions::OutcomeKind;
use super::guard::{Guard, HeldName};
use super::handle::Client;
use super::pending::{Ask, Pending};
use super::shared::{Inner, Shared, Stopped};
use crate::clock;
use crate::engine::{HandleAct, OpId, Outcome, Released, Request, Validity};
use crate::error::{
    AcquireError, AdoptError, ExtendError, LeaveError, ReleaseError, ReleaseHandleError, Report, Round,
};
use crate::handle::LockHandle;

impl Guard {
    /// Gives up the lock for a handle, with which another process adopts the lock within `keep`. First
    /// extends the lock to `keep`, for at most the answer limit of one round. Then ends the guard without a
    /// release, like [`Guard::leave`]. The lock stays on the masters until `keep` is over, whether it is
    /// adopted or not.
    ///
    /// `keep` counts from now, and is at most the configured `max_ttl`. The adopted lock has this guard's TTL
    /// again, and the rest of its automatic extension. Treat the handle as a secret.
    ///
    /// ```no_run
    /// use redlatch::{Client, LockHandle};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = Client::connect(["redis://10.0.0.1"])?;
    /// let request = client.lock("orders:42");
    /// let guard = request.auto_extend(Duration::from_secs(600)).acquire()?;
    /// let message = guard.into_handle(Duration::from_secs(20))?.to_string();
    ///
    /// // In the other process, with a client of the same masters and prefix:
    /// let guard = client.adopt(&message.parse::<LockHandle>()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`IntoHandleError`] contains the guard: go on with it, retry, or drop it to release the lock.
    pub fn into_handle(self, keep: Duration) -> Result<LockHandle, IntoHandleError> {
        let ttl = self.ttl_or(keep);
        let extended = self.extension(keep).wait();
        self.pass(ttl, extended)
    }

    /// Like [`Guard::into_handle`], for tasks. `keep` counts from the first poll.
    ///
    /// Dropping it before it is ready releases the lock in the background.
    pub async fn into_handle_async(self, keep: Duration) -> Result<LockHandle, IntoHandleError> {
        let ttl = self.ttl_or(keep);
        let extended = self.extension(keep).await;
        self.pass(ttl, extended)
    }

    /// Returns a handle that can only release the lock ([`Client::release_handle`]): for a supervisor that
    /// sees this process die, and frees the lock before its TTL ends. The guard goes on. `None` if the lock
    /// is no longer held, or in a forked child process.
    ///
    /// The handle stays right while the lock is extended. Treat it as a secret.
    #[must_use]
    pub fn to_handle(&self) -> Option<LockHandle> {
        let (now, wall, lock) = (clock::now(), clock::wall(), self.lock());
        self.client().shared().peek(|inner| inner.driver.engine.handle(now, wall, lock)).flatten()
    }

    fn ttl_or(&self, keep: Duration) -> Duration {
        self.to_handle().map_or(keep, |handle| handle.ttl())
    }

    pub(super) fn pass(
        mut self,
        ttl: Duration,
        extended: Result<(), ExtendError>,
    ) -> Result<LockHandle, IntoHandleError> {
        let client = self.client().clone();
        let passed = extended.and_then(|()| {
            let passed = client.shared().with(|inner| {
                let (now, wall) = (clock::now(), clock::wall());
                let handle = inner.driver.engine.pass(now, wall, self.lock(), ttl)?;
                // As in [`Guard::leave`].
                inner.deliver();
                self.disarm(inner, "passed");
                Ok(handle)
            });
            passed.map_err(ExtendError::Stopped)?.map_err(|error| match error {
                LeaveError::Expired => ExtendError::Expired,
                _ => ExtendError::NotHeld,
            })
        });
        passed.map_err(|source| IntoHandleError { guard: Box::new(self), source })
    }
}

/// Error of [`Guard::into_handle`]: the lock was not given up.
///
/// Contains the guard, so that no lock is lost with an error. Dropping the error releases the lock.
#[must_use = "dropping it releases the lock"]
pub struct IntoHandleError {
    guard: Box<Guard>,
    source: ExtendError,
}

impl IntoHandleError {
    /// Returns why the lock was not extended to `keep`: an error of [`Guard::extend`].
    #[must_use]
    pub const fn reason(&self) -> &ExtendError {
        &self.source
    }

    /// Returns the guard, which is as valid as after a failed [`Guard::extend`].
    pub fn into_guard(self) -> Guard {
        *self.guard
    }
}

impl fmt::Display for IntoHandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl fmt::Debug for IntoHandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoHandleError").field("guard", &self.guard).field("source", &self.source).finish()
    }
}

impl std::error::Error for IntoHandleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Client {
    /// Takes over the lock of a handle, which another process made with [`Guard::into_handle`]. Asks all
    /// masters once and waits for nobody: returns within the answer limit of one round.
    ///
    /// The guard holds the lock with the first guard's TTL, counted from now, and with a new token. The
    /// handle is used up and cannot be adopted again, and late commands of its first holder change nothing.
    /// Automatic extension continues for the rest of its time. A fenced lock keeps its fencing token.
    ///
    /// Unreachable masters keep the handle's value until they are back, or until its time has ended.
    ///
    /// # Errors
    /// [`AdoptError`]. After [`AdoptError::NoQuorum`] a retry may succeed.
    pub fn adopt(&self, handle: &LockHandle) -> Result<Guard, AdoptError> {
        Pending::new(AdoptCall { client: self.clone(), handle: handle.clone() }).wait()
    }

    /// Returns the future of [`Client::adopt`], for tasks. Sends nothing before its first poll.
    ///
    /// Safe to drop, but not cancel-safe: dropping it after a poll releases the adopted lock, and the handle
    /// may be used up.
    pub fn adopt_async(
        &self,
        handle: &LockHandle,
    ) -> impl Future<Output = Result<Guard, AdoptError>> + Send + use<> {
        Pending::new(AdoptCall { client: self.clone(), handle: handle.clone() })
    }

    /// Releases the lock of a handle in one round trip, for a supervisor whose process died. Waits until a
    /// quorum of masters has confirmed it, at most for the answer limit of the longest TTL. Each master that
    /// has the lock serves its first waiters.
    ///
    /// With a handle of [`Guard::to_handle`], this breaks a lock that is still held: its holder learns of the
    /// loss from its next extension. A lock that was adopted has another value, and stays.
    ///
    /// A lock that is already gone is no error: see [`Released::was_already_gone`].
    ///
    /// # Errors
    /// [`ReleaseHandleError`].
    pub fn release_handle(&self, handle: &LockHandle) -> Result<Released, ReleaseHandleError> {
        Pending::new(ReleaseCall { client: self.clone(), handle: handle.clone() }).wait()
    }

    /// Returns the future of [`Client::release_handle`], for tasks. Sends nothing before its first poll.
    /// Cancel-safe: dropping it after a poll leaves the release to the background.
    pub fn release_handle_async(
        &self,
        handle: &LockHandle,
    ) -> impl Future<Output = Result<Released, ReleaseHandleError>> + Send + use<> {
        Pending::new(ReleaseCall { client: self.clone(), handle: handle.clone() })
    }
}

#[derive(Debug)]
pub(super) struct AdoptCall {
    pub(super) client: Client,
    pub(super) handle: LockHandle,
}

impl Ask for AdoptCall {
    const OUTCOME: OutcomeKind = OutcomeKind::Acquire;
    const STOPPED: fn(Stopped) -> AdoptError = AdoptError::Stopped;
    type Answer = Guard;
    type Error = AdoptError;
    type Submitted = Option<Validity>;

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, Option<Validity>), AdoptError> {
        let Self { client, handle } = self;
        let resource = || handle.name.clone();
        if !handle.can_be_adopted() {
            return Err(AdoptError::NotPassed { resource: resource() });
        }
        handle.check_fleet(client.config())?;
        let wall = clock::wall();
        if let Some(ago) = handle.ended_ago(wall) {
            return Err(AdoptError::TooOld { resource: resource(), ago });
        }
        let auto_extend = handle.hold_left(wall).filter(|left| !left.is_zero());
        let act = HandleAct::Adopt { auto_extend };
        let op = inner.submit(Request::ByHandle { handle, act })?;
        Ok((op, inner.driver.engine.validity(op)))
    }

    fn answer(
        &mut self,
        op: OpId,
        validity: Option<Validity>,
        outcome: Outcome,
    ) -> Result<Guard, AdoptError> {
        let Outcome::Acquire(result) = outcome else {
            unreachable!("an adoption is answered as an acquisition is")
        };
        let grant = result.map_err(not_adopted)?;
        let validity = validity.expect("a lock that is granted has one");
        let name = HeldName::Shared(self.handle.name.clone());
        let guard = Guard::new(self.client.clone(), op, validity, &grant, name);
        // Checked last (I2). The guard's drop releases the lock.
        let now = clock::now();
        if now >= guard.deadline_at(now) {
            return Err(AdoptError::Expired(Report::new(Round::Acquire, self.handle.name.clone()).into()));
        }
        // Nobody needs the handle's value now. It may still be on a master, come late, or wait in a queue.
        let act = HandleAct::Release { awaited: false };
        let _ = self.client.shared().with(|inner| {
            let _ = inner.submit(Request::ByHandle { handle: &self.handle, act });
            inner.write_batch(now);
        });
        Ok(guard)
    }
}

/// Adoption's error for the error of its attempt.
fn not_adopted(error: AcquireError) -> AdoptError {
    match error {
        AcquireError::Contended(denial) => AdoptError::Gone(denial.report.into()),
        AcquireError::NoQuorum(denial) => AdoptError::NoQuorum(denial.report.into()),
        AcquireError::Expired(denial) => AdoptError::Expired(denial.report.into()),
        AcquireError::Overloaded => AdoptError::Overloaded,
        AcquireError::Input(error) => AdoptError::Input(error),
        AcquireError::Stopped(why) => AdoptError::Stopped(why),
        AcquireError::Cancelled => unreachable!("an adoption has no handle that cancels it"),
    }
}

#[derive(Debug)]
pub(super) struct ReleaseCall {
    pub(super) client: Client,
    pub(super) handle: LockHandle,
}

impl Ask for ReleaseCall {
    const OUTCOME: OutcomeKind = OutcomeKind::Release;
    const STOPPED: fn(Stopped) -> ReleaseHandleError = ReleaseHandleError::Stopped;
    type Answer = Released;
    type Error = ReleaseHandleError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), ReleaseHandleError> {
        self.handle.check_fleet(self.client.config())?;
        let act = HandleAct::Release { awaited: true };
        Ok((inner.submit(Request::ByHandle { handle: &self.handle, act })?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<Released, ReleaseHandleError> {
        match outcome {
            Outcome::Release(Ok(released)) => Ok(released),
            Outcome::Release(Err(ReleaseError::Unconfirmed(report))) => {
                Err(ReleaseHandleError::Unconfirmed(report))
            }
            Outcome::Release(Err(ReleaseError::Stopped(why))) => Err(ReleaseHandleError::Stopped(why)),
            _ => unreachable!("it is answered as a release is, of a lock that is this client's"),
        }
    }
}
