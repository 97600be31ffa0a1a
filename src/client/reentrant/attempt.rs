//! One attempt for all callers of an owner who want a hold at the same time, and what each caller knows of
//! it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crate::client::parker::Inside;
use crate::client::request::LockRequest;
use crate::client::shared::wake_all;
use crate::clock;
use crate::error::{AcquireError, LockReentrantError};
use crate::limits;

/// One attempt, as its callers know it.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) result: OnceLock<Result<(), AcquireError>>,
    pub(super) wakers: Mutex<Vec<Waker>>,
    /// Goes up when they are woken, and when a thread comes.
    pub(super) change_count: AtomicU64,
    /// The thread that polls it, or waits with it.
    pub(super) driving: Inside,
}

/// A caller that wants a hold.
#[derive(Default)]
pub(super) struct Caller {
    /// When its last attempt may begin; set with the first.
    pub(super) wait_until: Option<Instant>,
    pub(super) joined: Option<Arc<Attempt>>,
    /// How the attempt before the one under way failed.
    pub(super) failed_before: Option<AcquireError>,
}

impl Caller {
    pub(super) fn wait_left(&mut self, request: &LockRequest<'_>) -> Duration {
        let now = clock::now();
        let until = self.wait_until.get_or_insert_with(|| {
            let wait = request.options.wait_or_default(request.client.config().max_ttl);
            now.checked_add(wait).unwrap_or(now + limits::FOREVER)
        });
        until.saturating_duration_since(now)
    }

    pub(super) fn is_answered(&self) -> bool {
        self.joined.as_ref().is_some_and(|attempt| attempt.result.get().is_some())
    }

    /// What has come of the attempt that it joined, unless it is to try again.
    pub(super) fn take_result(&mut self) -> Option<Result<(), LockReentrantError>> {
        let result = self.joined.as_ref()?.result.get()?.clone();
        self.joined = None;
        let is_over = self.wait_until.is_none_or(|until| until <= clock::now());
        match result {
            Ok(()) => Some(Ok(())),
            // An attempt that had to end with the wait says nothing of its masters: the one before it does.
            Err(AcquireError::NoQuorum(error)) if is_over => {
                let error = self.failed_before.take().unwrap_or(AcquireError::NoQuorum(error));
                Some(Err(error.into()))
            }
            Err(error) if is_over || error.is_final() => Some(Err(error.into())),
            Err(error) => {
                self.failed_before = Some(error);
                None
            }
        }
    }
}

impl Attempt {
    pub(super) fn register(&self, waker: &Waker, is_thread: bool) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        if is_thread {
            self.change_count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Wake for Attempt {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.change_count.fetch_add(1, Ordering::SeqCst);
        let woken = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        // A waker that panics must neither keep the others asleep nor end the thread that answers them.
        let _ = wake_all(woken);
    }
}
