//! Leader election: a fenced lock that its holder keeps, and for which candidates campaign again and again.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::{AcquireError, Cancel, Client, FencingToken, Guard, LockName, LockRequest, Lost};
use crate::{Release, ReleaseError, Released};

impl Client {
    /// Returns a candidate for the leadership of this name (see [`LockName`]): the lock of this name, fenced,
    /// and renewed while it is held. Use the name for no other lock.
    ///
    /// ```no_run
    /// # async fn start(client: redlatch::Client) -> Result<(), redlatch::AcquireError> {
    /// use std::ops::ControlFlow;
    ///
    /// let candidate = client.lead("reports").ttl(std::time::Duration::from_secs(5));
    /// candidate
    ///     .run_async(async |leadership| {
    ///         let term = leadership.term();
    ///         // … lead; give `term` to the storage, which refuses an older one …
    ///         ControlFlow::Break(())
    ///     })
    ///     .await
    /// # }
    /// ```
    pub fn lead<'n>(&self, name: impl Into<LockName<'n>>) -> Candidate {
        let request = self.lock_owned(name).fenced().auto_extend(Duration::MAX).wait(Duration::MAX);
        Candidate { request, cancel: None }
    }
}

/// Candidate for a leadership; made by [`Client::lead`]. Sends nothing before it campaigns.
///
/// At most one candidate of a name leads at a time, as long as each leader heeds [`Leadership::is_leader`].
/// The term is a fencing token and grows from leader to leader, so a storage that checks it refuses a paused
/// leader once it has seen a later term. After a crash of the leader, another candidate leads within about a
/// TTL. A leadership is renewed for at most `max_hold`
/// ([`ConfigBuilder::max_hold`](crate::ConfigBuilder::max_hold), 1 h by default), and then ends like a lost
/// one.
#[derive(Debug, Clone)]
#[must_use = "a candidate does nothing before it campaigns"]
pub struct Candidate {
    request: LockRequest<'static>,
    cancel: Option<Cancel>,
}

impl Candidate {
    /// Sets the TTL ([`LockRequest::ttl`]): about the time until another candidate leads after a crash of the
    /// leader. A leader that reaches no quorum of masters for half the TTL or longer may lose its leadership.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// Lets this handle end campaigns from another thread. A leadership goes on until its work is done: the work
    /// finishes its round, and returns when [`Leadership::is_cancelled`] says so.
    pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
        self.request = self.request.cancel_with(cancel);
        self.cancel = Some(cancel.clone());
        self
    }

    /// Waits until this candidate leads, however long that takes, even through an outage of the masters.
    ///
    /// # Errors
    /// An [`AcquireError`] that waiting cannot resolve: `Cancelled`, `Stopped` (also by a drain),
    /// `Overloaded`, `Input`.
    pub fn campaign(&self) -> Result<Leadership, AcquireError> {
        loop {
            if let Some(result) = self.decided(self.request.clone().acquire()) {
                return result;
            }
        }
    }

    /// Returns the future of [`Candidate::campaign`], for tasks. Cancel-safe: dropping it gives up the
    /// campaign, and releases in the background what the campaign had on the masters.
    ///
    /// # Errors
    /// As [`Candidate::campaign`].
    pub fn campaign_async(&self) -> impl Future<Output = Result<Leadership, AcquireError>> + Send + use<> {
        let candidate = self.clone();
        async move {
            loop {
                let acquired = candidate.request.clone().acquire_async().await;
                if let Some(result) = candidate.decided(acquired) {
                    return result;
                }
            }
        }
    }

    /// The result that ends a campaign; `None` if another acquisition may succeed.
    fn decided(&self, result: Result<Guard, AcquireError>) -> Option<Result<Leadership, AcquireError>> {
        match result {
            Ok(guard) => {
                let term = guard.fencing_token().expect("the lock is fenced");
                Some(Ok(Leadership { guard, term, cancel: self.cancel.clone() }))
            }
            Err(error) if error.is_final() => Some(Err(error)),
            Err(_) => None,
        }
    }

    /// Campaigns, leads and resigns, again and again, until `work` breaks. Returns the value of the break.
    ///
    /// `work` is called once for each leadership. It must return soon after [`Leadership::is_leader`] becomes
    /// false.
    ///
    /// # Errors
    /// As [`Candidate::campaign`]: `Cancelled` also if the handle was cancelled during a leadership whose work
    /// then continued.
    pub fn run<T>(&self, mut work: impl FnMut(&Leadership) -> ControlFlow<T>) -> Result<T, AcquireError> {
        loop {
            let leadership = self.campaign()?;
            let done = work(&leadership);
            // An unconfirmed release goes on in the background, or ends with the TTL.
            let _ = leadership.resign();
            if let ControlFlow::Break(value) = done {
                return Ok(value);
            }
        }
    }

    /// Campaigns, leads and resigns, again and again, until `work` breaks. Returns the value of the break.
    ///
    /// `work` makes one future for each leadership. The future is dropped at its next `.await` when the
    /// leadership is lost or about to be lost, a tenth of the validity before its end. The future must not
    /// block, or it notices the loss too late. Dropping the future of this call drops the work, then resigns.
    /// To let the work finish its round first, cancel the handle of [`Candidate::cancel_with`]:
    ///
    /// ```no_run
    /// # use redlatch::{AcquireError, Cancel, Client, FencingToken};
    /// use std::{ops::ControlFlow, time::Duration};
    ///
    /// # async fn round(term: FencingToken) {}
    /// async fn lead(client: &Client, stop: &Cancel) -> Result<(), AcquireError> {
    ///     let candidate = client.lead("scheduler").cancel_with(stop);
    ///     let done = candidate.run_async(async |leadership| {
    ///         while !leadership.is_cancelled() {
    ///             round(leadership.term()).await;
    ///             // `stop` ends the pause early, and no round.
    ///             let pause = client.pause(Duration::from_secs(10));
    ///             if pause.cancel_with(stop).await.is_err() {
    ///                 break;
    ///             }
    ///         }
    ///         ControlFlow::Break(())
    ///     });
    ///     done.await
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Candidate::run`].
    pub fn run_async<T, W: AsyncFnMut(&Leadership) -> ControlFlow<T>>(
        &self,
        mut work: W,
    ) -> impl Future<Output = Result<T, AcquireError>> + use<T, W> {
        let candidate = self.clone();
        async move {
            loop {
                let leadership = candidate.campaign_async().await?;
                let done = leadership.lost().race(work(&leadership)).await;
                // An unconfirmed release goes on in the background, or ends with the TTL.
                let _ = leadership.resign_async().await;
                if let Some(ControlFlow::Break(value)) = done {
                    return Ok(value);
                }
            }
        }
    }
}

/// Leadership that a [`Candidate`] has won. Dropping it resigns, like dropping a [`Guard`] releases.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
    term: FencingToken,
    cancel: Option<Cancel>,
}

impl Leadership {
    /// Returns the term, which is larger than the term of each earlier leader.
    #[must_use]
    pub const fn term(&self) -> FencingToken {
        self.term
    }

    /// Returns whether this candidate leads. Becomes false before another candidate can lead. Takes no mutex.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_valid()
    }

    /// Returns whether the handle of [`Candidate::cancel_with`] was cancelled: finish the round, and return.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Returns a future that is ready when the leadership is lost or about to be lost; see [`Guard::lost`].
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Calls `callback` when the leadership is lost or about to be lost; see [`Guard::on_lost`].
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        self.guard.on_lost(callback);
    }

    /// Returns the lock, for its validity, margin and name.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Resigns: releases the lock. A waiting candidate usually leads after two to three round trips.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn resign(self) -> Result<Released, ReleaseError> {
        self.guard.release()
    }

    /// Returns the future of [`Leadership::resign`], for tasks. [`Release`] says what dropping it does.
    pub fn resign_async(self) -> Release {
        self.guard.release_async()
    }
}
