//! [`Lease`]: a lock held by a [`Redlock`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Origin;
#[cfg(doc)]
use super::{LeaseRequest, Redlock};
use crate::clock;
use crate::engine::OpId;
use crate::lock::{FencingToken, Token};
use crate::mutants::mutant;

/// Lock held by a [`Redlock`].
///
/// Dropping it queues its release, which goes out with the next call of its `Redlock`, in one write with all
/// that the call sends. The drop never blocks, and may happen on another thread or in a panic. To send the
/// release at once, call [`Redlock::release`], or [`Redlock::flush`] after the drop.
#[must_use = "dropping the lease releases the lock"]
pub struct Lease {
    pub(super) lock: OpId,
    pub(super) token: Token,
    pub(super) fencing_token: Option<FencingToken>,
    /// By the clock of this crate, as all that the engine reports.
    pub(super) valid_until: Instant,
    pub(super) origin: Arc<Origin>,
    /// Whether the drop is to queue a release.
    pub(super) is_armed: bool,
}

impl Lease {
    /// Returns the random value that the masters hold for this lock.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Returns the fencing token of a lock from [`LeaseRequest::fenced`]: it is larger than the token of each
    /// earlier fenced holder. `None` for any other lock.
    #[must_use]
    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    /// Returns the end of the validity, to be compared with [`Instant::now`]. Nothing is promised after it:
    /// stop the protected work before.
    ///
    /// With the feature `suspend`, time in which the machine slept counts; on Linux, [`Instant::now`] does
    /// not count it. The returned moment is right until the machine sleeps again: call this again, or call
    /// [`Lease::is_valid`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        clock::to_std(self.deadline())
    }

    /// Returns the validity left; zero once it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(clock::now())
    }

    /// Returns whether the validity lasts; always false in a fork of the process.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let deadline = self.deadline();
        clock::now() < deadline
    }

    /// By the clock of this crate.
    fn deadline(&self) -> Instant {
        let origin = &self.origin;
        let is_over = origin.process.is_forked() || origin.is_released.load(Ordering::Acquire);
        if is_over { clock::now() } else { self.valid_until }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A fork may have inherited the mutex locked.
        if self.is_armed && !self.origin.process.is_forked() && !mutant!(DropForgets) {
            self.origin.dropped().push(self.lock);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}
