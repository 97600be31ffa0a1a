//! [`Guard`]: a lock held by a [`Client`].

use std::fmt;
use std::time::{Duration, Instant};

use super::Client;
use super::pending::{Extend, Release};
use super::shared::Core;
use crate::clock;
use crate::engine::{Grant, OpId, Released};
use crate::error::{ExtendError, ReleaseError};
use crate::lock::{FencingToken, Token};
use crate::mutants::mutant;

/// A lock held by a [`Client`].
///
/// Dropping it releases the lock in the background: that never blocks, works in a panic and on any thread, and the
/// release goes out with the client's next write, after [`crate::limits::DROP_LINGER`] at most.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    client: Client,
    lock: OpId,
    token: Token,
    fencing_token: Option<FencingToken>,
    resource: Vec<u8>,
    /// Whether the drop is to release.
    is_armed: bool,
}

impl Guard {
    pub(super) const fn new(client: Client, lock: OpId, grant: &Grant, resource: Vec<u8>) -> Self {
        let Grant { token, fencing_token, .. } = *grant;
        Self { client, lock, token, fencing_token, resource, is_armed: true }
    }

    /// The lock's name, without the configured prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// The value that the masters hold.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Larger than that of each earlier fenced holder of this lock, if it came from [`crate::LockRequest::fenced`].
    #[must_use]
    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    /// When its validity ends, to be compared with [`Instant::now`]. After this moment nothing is promised: stop the
    /// protected work before. An extension that is lost or was dropped half-way counts, too.
    ///
    /// With the feature `suspend` the time that the machine has slept counts, which [`Instant::now`] does not on Linux:
    /// the moment is right until the machine sleeps again, so ask anew, or ask [`Guard::is_valid`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        clock::to_std(self.deadline())
    }

    /// The validity left, zero when it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(clock::now())
    }

    /// Whether the validity has not ended. Never true in a fork of the process.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let deadline = self.deadline();
        clock::now() < deadline
    }

    /// By the clock of this crate.
    fn deadline(&self) -> Instant {
        let deadline = self.client.shared().peek(|core| core.driver.engine.valid_until(self.lock));
        deadline.flatten().unwrap_or_else(clock::now)
    }

    /// How many masters above the quorum are known to hold this lock: so many may lose it without harm.
    #[must_use]
    pub fn margin(&self) -> usize {
        self.client.shared().peek(|core| core.driver.engine.margin(self.lock)).unwrap_or(0)
    }

    /// The client that holds it.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Gives the lock a new TTL, counted from now, if a quorum of masters still has it.
    ///
    /// # Errors
    /// [`ExtendError`]; the lock is valid as long as it was before, unless the error says that it is lost.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        self.extend_async(ttl).wait()
    }

    /// As [`Guard::extend`], for tasks.
    pub const fn extend_async(&mut self, ttl: Duration) -> Extend<'_> {
        Extend::new(self, ttl)
    }

    /// Releases the lock and waits until a quorum of masters has confirmed it. A lock that has expired is an answer
    /// ([`Released::was_already_gone`]), not an error.
    ///
    /// # Errors
    /// [`ReleaseError`] if too few masters answered in time; the release goes on in the background.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.release_async().wait()
    }

    /// As [`Guard::release`], for tasks.
    pub const fn release_async(self) -> Release {
        Release::new(self)
    }

    pub(super) const fn lock(&self) -> OpId {
        self.lock
    }

    /// The lock is being released: nothing is left for the drop to do.
    pub(super) fn disarm(&mut self, core: &mut Core) {
        self.is_armed = false;
        core.give_name(std::mem::take(&mut self.resource));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_armed || mutant!(DropForgets) {
            return;
        }
        let shared = self.client.shared();
        if let Ok(mut core) = shared.enter() {
            core.release_dropped(self.lock);
            core.give_name(std::mem::take(&mut self.resource));
            shared.leave(core);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resource", &self.resource.escape_ascii().to_string())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
