//! Waiting in a client's event loop: for any future, or for a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::completions::OutcomeKind;
use super::handle::Client;
use super::pending::{Ask, Pending};
use super::shared::{Inner, Shared, Stopped};
use crate::cancel::{Cancel, Registration};
use crate::engine::{OpId, Outcome, Request};
use crate::error::AcquireError;
use crate::limits;

impl Client {
    /// Waits on this thread until the future is ready, for futures of this client and what is made of them. The
    /// thread itself drives the client meanwhile, as in the blocking calls, so answers do not cross threads.
    ///
    /// The first poll may take up to 200 ms longer after an idle time, as for [`LockRequest::try_acquire`].
    /// Polls must not block, except in calls of this client: while this thread polls, other callers may wait for
    /// their answers. Renewals and reports of a loss stay on time.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let both = client.block_on(async {
    ///     let guard = client.lock("orders").await?;
    ///     client.pause(std::time::Duration::from_millis(20)).await?;
    ///     Ok::<_, redlatch::AcquireError>((guard, client.lock("stock").await?))
    /// })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AcquireError::Stopped`] in a waker that the thread calls which drives this client: it would wait for
    /// itself. The future is not polled.
    ///
    /// [`LockRequest::try_acquire`]: crate::LockRequest::try_acquire
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, AcquireError> {
        self.shared().block_on(future).map_err(AcquireError::Stopped)
    }

    /// Calls `poll`, and sends the requests of all futures of this client that it polls for the first time with
    /// one write for each master, as [`Client::acquire_all`] does for acquisitions. Returns what `poll` returns.
    ///
    /// For futures of your own that ask for several things at once. Without a batch, the first poll of each
    /// future may write. A set writes by itself. `poll` must not block.
    pub fn batch<T>(&self, poll: impl FnOnce() -> T) -> T {
        self.shared().collect(poll)
    }

    /// Returns a future that is ready after this time. It needs no timer of a runtime, and ends early with
    /// the client or by [`Pause::cancel_with`].
    ///
    /// ```no_run
    /// # fn poll_the_queue() {}
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// # let stop = redlatch::Cancel::new();
    /// let interval = std::time::Duration::from_secs(60);
    /// while client.pause(interval).cancel_with(&stop).block().is_ok() {
    ///     poll_the_queue();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause(&self, time: Duration) -> Pause {
        // `took` is the lower bound, and `limit` the upper bound.
        self.retry_pause(0, time, time)
    }

    /// Returns the random pause of an acquisition after this many failed attempts, of which the last one took
    /// `took`: for retries of your own. The pause grows with the number of attempts from
    /// [`ConfigBuilder::retry_delay`], lasts at least `took`, but never longer than `limit`.
    ///
    /// [`ConfigBuilder::retry_delay`]: crate::ConfigBuilder::retry_delay
    pub fn retry_pause(&self, attempts: u32, took: Duration, limit: Duration) -> Pause {
        // Longer times overflow the clock.
        let [took, limit] = [took, limit].map(|time| time.min(limits::FOREVER));
        Pause(Pending::new(PauseCall { client: self.clone(), cancel: None, attempts, took, limit }))
    }
}

/// A pause in a client's event loop: a future for any executor, or a value to [`Pause::block`] on; made by
/// [`Client::pause`] and [`Client::retry_pause`].
///
/// Begins with its first poll. Cancel-safe: dropping it ends it. Fails with [`AcquireError::Cancelled`],
/// [`AcquireError::Stopped`], or [`AcquireError::Overloaded`] if the client has too many calls under way.
#[must_use = "it begins when it is awaited"]
#[derive(Debug)]
pub struct Pause(Pending<PauseCall>);

impl Pause {
    /// Lets this handle end the pause early.
    pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
        self.0.ask_mut().cancel = Some(Registration::new(cancel));
        self
    }

    /// Blocks this thread until the pause is over.
    ///
    /// # Errors
    /// As the future's.
    pub fn block(mut self) -> Result<(), AcquireError> {
        self.0.wait()
    }
}

impl Future for Pause {
    type Output = Result<(), AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

#[derive(Debug)]
pub(super) struct PauseCall {
    pub(super) client: Client,
    pub(super) cancel: Option<Registration>,
    pub(super) attempts: u32,
    pub(super) took: Duration,
    pub(super) limit: Duration,
}

impl Ask for PauseCall {
    const OUTCOME: OutcomeKind = OutcomeKind::Pause;
    const STOPPED: fn(Stopped) -> AcquireError = AcquireError::Stopped;
    type Answer = ();
    type Error = AcquireError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), AcquireError> {
        let Self { attempts, took, limit, .. } = *self;
        let request = Request::Pause { attempts, took, limit };
        Ok((inner.submit(request).map_err(|_| AcquireError::Overloaded)?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), _: Outcome) -> Result<(), AcquireError> {
        Ok(())
    }

    fn cancellation(&mut self) -> Option<(&mut Registration, AcquireError)> {
        Some((self.cancel.as_mut()?, AcquireError::Cancelled))
    }
}

#[cfg(test)]
mod tests;
