//! Work under a lock: it begins with the grant, and ends with a loss.
//!
//! A layer over [`LockRequest`] and [`Guard`].

use std::time::Instant;

use super::guard::Guard;
use super::request::LockRequest;
use crate::clock;
use crate::engine::{Released, quorum};
use crate::error::{ReleaseError, RunError};

impl<'a> LockRequest<'a> {
    /// Acquires the lock, does the work and releases the lock. Returns the work's result.
    ///
    /// Nothing interrupts a thread: work that may outlast [`Guard::valid_until`] must return soon after
    /// [`Guard::is_valid`] becomes false. [`LockRequest::auto_extend`] renews the lock meanwhile. Without it,
    /// the work has the validity of one TTL, unless it calls [`Guard::extend`]. A panic in the work releases
    /// the lock in the background, and propagates.
    ///
    /// Waits for the lock like [`LockRequest::acquire`], and for the masters after the work like
    /// [`Guard::release`]. An unconfirmed release is no error: it goes on in the background.
    ///
    /// ```no_run
    /// # fn next_batch() -> bool { false }
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let max_hold = std::time::Duration::from_secs(3600);
    /// let request = client.lock("reindex").auto_extend(max_hold);
    /// let count = request.run(|guard| {
    ///     let mut count = 0;
    ///     while guard.is_valid() && next_batch() {
    ///         count += 1;
    ///     }
    ///     count
    /// })?;
    /// println!("{count} batches, all under the lock");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RunError::Acquire`] if the work did not begin. [`RunError::Lost`], with the work's result, if the
    /// lock was lost before the work ended.
    pub fn run<T>(self, work: impl FnOnce(&mut Guard) -> T) -> Result<T, RunError<T>> {
        let mut guard = self.acquire()?;
        let value = work(&mut guard);
        let done = Done::under(&guard, Some(value))?;
        done.released(guard.release())
    }

    /// Acquires the lock, does the work and releases the lock, for tasks on any executor. Returns the work's
    /// result.
    ///
    /// The work is dropped at its next `.await` when the lock is lost or about to be lost, as [`Guard::lost`]
    /// reports it: a tenth of the validity before its end, or when masters have shown the loss. So the work
    /// must not block. [`LockRequest::auto_extend`] renews the lock meanwhile. Without it, the work has nine
    /// tenths of the validity of one TTL, unless it calls [`Guard::extend_async`].
    ///
    /// The work is an async closure, `async |guard| …`. The older form `|guard| async { … }` does not compile,
    /// because its future cannot borrow the guard.
    ///
    /// Dropping the future, or a panic in the work, drops the work and then releases the lock in the
    /// background. An unconfirmed release is no error: it goes on in the background.
    ///
    /// ```no_run
    /// # async fn charge() -> u32 { 7 }
    /// # async fn start(client: redlatch::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let max_hold = std::time::Duration::from_secs(600);
    /// let request = client.lock("orders:42").auto_extend(max_hold);
    /// let receipt = request.run_async(async |_guard| charge().await).await?;
    /// # let _: u32 = receipt;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Acquire`] if the work did not begin. [`RunError::Lost`] if the lock was lost before the
    /// work ended; with the work's result if the work blocked beyond the validity, or if the release showed
    /// the loss.
    pub async fn run_async<T, W: AsyncFnOnce(&mut Guard) -> T>(self, work: W) -> Result<T, RunError<T>> {
        let mut guard = self.acquire_async().await?;
        let lost = guard.lost();
        let value = lost.race(work(&mut guard)).await;
        let done = Done::under(&guard, value)?;
        done.released(guard.release_async().await)
    }
}

/// Work that ended while its lock was valid.
struct Done<T> {
    value: T,
    valid_until: Instant,
    master_count: usize,
}

impl<T> Done<T> {
    /// Checks the lock at the end of the work. Work that a loss ended has no value.
    fn under(guard: &Guard, value: Option<T>) -> Result<Self, RunError<T>> {
        let now = clock::now();
        let valid_until = guard.deadline_at(now);
        match value {
            Some(value) if now < valid_until => {
                Ok(Self { value, valid_until, master_count: guard.client().config().master_count() })
            }
            lost => Err(RunError::Lost(lost)),
        }
    }

    /// An answer within the validity may prove a loss that nothing showed before: a forced unlock, or
    /// restarted masters.
    fn released(self, release: Result<Released, ReleaseError>) -> Result<T, RunError<T>> {
        let Self { value, valid_until, master_count } = self;
        match release {
            Ok(Released { absent, .. })
                if master_count - absent < quorum(master_count) && clock::now() < valid_until =>
            {
                Err(RunError::Lost(Some(value)))
            }
            _ => Ok(value),
        }
    }
}
