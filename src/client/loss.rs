//! Reports of a lock's end: callbacks, and the future [`Lost`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::completions::{Audience, LossToken};
use super::handle::Client;
use super::shared::Shared;
use crate::engine::{OpId, Request};

/// Reports the first loss among these locks to this callback.
pub(super) fn on_lost(
    client: &Client,
    locks: impl IntoIterator<Item = OpId>,
    callback: impl FnOnce() + Send + 'static,
) {
    let callback = client.callbacks().call_once(callback);
    let waker = Waker::from(callback.clone());
    for lock in locks {
        match notify_loss(client.shared(), lock, None, &waker, Audience::Callback) {
            Listening::Yes(_) => {}
            // A drain has released the lock under the living guard.
            Listening::Released => waker.wake_by_ref(),
            // Nobody would report the loss: the client has stopped, or belongs to another process.
            Listening::Stopped => callback.call(),
        }
    }
}

/// Whether the loss of a lock will be reported.
enum Listening {
    Yes(LossToken),
    /// The lock was released.
    Released,
    /// The client has stopped, or belongs to another process.
    Stopped,
}

/// Reports the loss to this waker, which replaces the listener's last waker.
fn notify_loss(
    shared: &Shared,
    lock: OpId,
    loss_token: Option<LossToken>,
    waker: &Waker,
    audience: Audience,
) -> Listening {
    let listening = shared.with(|inner| {
        inner.driver.engine.valid_until(lock)?;
        let listening = inner.completions.notify_loss(lock, loss_token, waker, audience);
        let _ = inner.submit(Request::NotifyLoss { lock });
        inner.wake_late_leader();
        Some(listening)
    });
    match listening {
        // The replaced waker is dropped outside the mutex, like all wakers.
        Ok(Some((loss_token, _replaced))) => Listening::Yes(loss_token),
        Ok(None) => Listening::Released,
        Err(_) => Listening::Stopped,
    }
}

/// End of a lock, as [`Guard::lost`](crate::Guard::lost) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEnd {
    /// The lock is lost or about to be lost, or the client has stopped: stop the protected work.
    Lost,
    /// The guard was released, left or dropped, or a drain has released its lock.
    Released,
}

/// Future that is ready when a lock is lost, about to be lost, or released; made by
/// [`Guard::lost`](crate::Guard::lost). Cancel-safe: dropping it ends the notification, and does not release
/// the lock.
#[must_use = "nothing is reported before this is awaited"]
#[derive(Debug)]
pub struct Lost {
    client: Client,
    lock: OpId,
    loss_token: Option<LossToken>,
}

impl Lost {
    pub(super) const fn new(client: Client, lock: OpId) -> Self {
        Self { client, lock, loss_token: None }
    }

    /// Does the work, unless the lock ends before; returns `None` then. Drops the work in both cases.
    /// Cancel-safe if the work is.
    pub async fn race<F: Future>(mut self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if Pin::new(&mut self).poll(context).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }
}

impl Future for Lost {
    type Output = LockEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LockEnd> {
        let lock = self.lock;
        let end = self.client.shared().peek(|inner| {
            let engine = &inner.driver.engine;
            match engine.valid_until(lock) {
                None => Some(LockEnd::Released),
                Some(_) => engine.is_losing(inner.now(), lock).then_some(LockEnd::Lost),
            }
        });
        if let Some(end) = end.unwrap_or(Some(LockEnd::Lost)) {
            return Poll::Ready(end);
        }
        match notify_loss(self.client.shared(), lock, self.loss_token, context.waker(), Audience::Task) {
            Listening::Stopped => Poll::Ready(LockEnd::Lost),
            Listening::Released => Poll::Ready(LockEnd::Released),
            Listening::Yes(loss_token) => {
                self.loss_token = Some(loss_token);
                Poll::Pending
            }
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(loss_token) = self.loss_token {
            drop(
                self.client.shared().with(|inner| inner.completions.end_loss_listener(self.lock, loss_token)),
            );
        }
    }
}
