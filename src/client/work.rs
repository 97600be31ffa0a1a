//! Work under a lock: it begins with the grant, and ends at the loss.
//!
//! A layer over [`LockRequest`] and [`Guard`], as the leader election is, which ends its work by
//! [`unless_lost`], too.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use super::guard::Guard;
use super::loss::Lost;
use super::request::LockRequest;
use crate::clock;
use crate::engine::{Released, quorum};
use crate::error::{ReleaseError, RunError};

impl<'a> LockRequest<'a> {
    /// Acquires the lock, does the work and releases the lock; returns what the work returned.
    ///
    /// Nothing interrupts a thread: work that may outlast [`Guard::valid_until`] must return soon after
    /// [`Guard::is_valid`] has become false. [`LockRequest::auto_extend`] renews the lock meanwhile; without
    /// it the work has the validity of one TTL, unless it calls [`Guard::extend`]. A panic of the work
    /// releases the lock in the background and goes on.
    ///
    /// It waits for the lock as [`LockRequest::acquire`] does, and after the work for the masters as
    /// [`Guard::release`] does. A release that they do not confirm is no error: it goes on in the background.
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
    /// [`RunError::Acquire`] if the work did not begin. [`RunError::Lost`], with what the work returned, if
    /// the lock was lost before.
    pub fn run<T>(self, work: impl FnOnce(&mut Guard) -> T) -> Result<T, RunError<T>> {
        let mut guard = self.acquire()?;
        let value = work(&mut guard);
        let done = Done::under(&guard, Some(value))?;
        done.released(guard.release())
    }

    /// Acquires the lock, does the work and releases the lock, for tasks on any executor; returns what the
    /// work returned.
    ///
    /// The work is dropped at its next `.await` when the lock is lost or about to be lost, as [`Guard::lost`]
    /// reports it: a tenth of the validity before its end, or when masters have shown the loss. So it must
    /// not block. [`LockRequest::auto_extend`] renews the lock meanwhile; without it the work has nine tenths
    /// of the validity of one TTL, unless it calls [`Guard::extend_async`].
    ///
    /// The work is an async closure, `async |guard| …`. The older form `|guard| async { … }` does not compile,
    /// because its future cannot borrow the guard.
    ///
    /// Dropping the future drops the work, then releases the lock in the background. So does a panic of the
    /// work. A release that the masters do not confirm is no error: it goes on in the background.
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
    /// work ended; with its value if the work blocked beyond the validity, or the release showed the loss.
    pub async fn run_async<T, W: AsyncFnOnce(&mut Guard) -> T>(self, work: W) -> Result<T, RunError<T>> {
        let mut guard = self.acquire_async().await?;
        let lost = guard.lost();
        let value = unless_lost(work(&mut guard), lost).await;
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
    /// Looks at the lock at the end of the work. No value is work that the loss ended.
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

    /// An answer within the validity may prove a loss that nothing showed before: by a forced unlock, or by
    /// masters that restarted.
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

/// Does the work unless the lock is lost before, and drops it in both cases.
pub(super) async fn unless_lost<F: Future>(work: F, mut lost: Lost) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if Pin::new(&mut lost).poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}
