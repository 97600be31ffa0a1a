//! Attempts that all callers of an owner share, and the answers that each caller has from them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::client::request::LockRequest;
use crate::client::shared::wake_all;
use crate::client::sleeper::Inside;
use crate::clock;
use crate::error::AcquireError;
use crate::limits;

/// Consecutive attempts until the lock is held or nobody wants it, seen from their callers.
#[derive(Default)]
pub(super) struct Attempts {
    answers: Mutex<Answers>,
    pub(super) wakers: Mutex<Vec<Waker>>,
    /// Rises when a caller joins, and when callers are woken.
    pub(super) change_count: AtomicU64,
    /// Marks the thread that polls the attempt.
    pub(super) driving: Inside,
}

#[derive(Default)]
struct Answers {
    failed: Option<FailedAttempt>,
    is_locked: bool,
}

/// The last failed attempt: the answer to each caller whose wait ends by `answered_until`.
struct FailedAttempt {
    answered_until: Instant,
    error: AcquireError,
}

/// A caller that wants a hold.
pub(super) struct Caller {
    /// End of its wait; set when it first asks.
    wait_until: Option<Instant>,
    pub(super) joined: Option<Arc<Attempts>>,
}

impl Caller {
    pub(super) const NEW: Self = Self { wait_until: None, joined: None };

    pub(super) fn wait_until(&mut self, request: &LockRequest<'_>) -> Instant {
        *self.wait_until.get_or_insert_with(|| {
            let now = clock::now();
            let wait = request.options.wait_or_default(request.client.config().max_ttl);
            now.checked_add(wait).unwrap_or(now + limits::FOREVER)
        })
    }

    /// Result of the joined attempts; `None` before it is known.
    pub(super) fn answer(&self) -> Option<Result<(), AcquireError>> {
        self.joined.as_ref()?.answer(self.wait_until?)
    }
}

impl Attempts {
    /// Result for a caller whose wait ends at `wait_until`.
    pub(super) fn answer(&self, wait_until: Instant) -> Option<Result<(), AcquireError>> {
        let answers = self.answers();
        match &answers.failed {
            // This caller's wait is over, even if later attempts got the lock for others.
            Some(failed) if wait_until <= failed.answered_until => Some(Err(failed.error.clone())),
            _ => answers.is_locked.then_some(Ok(())),
        }
    }

    /// The lock is held, with a hold counted for each caller left.
    pub(super) fn note_locked(&self) {
        self.answers().is_locked = true;
    }

    /// An attempt failed: the answer to callers whose waits end by `answered_until`.
    pub(super) fn note_failed(&self, now: Instant, answered_until: Instant, error: AcquireError) {
        let mut answers = self.answers();
        let is_cut_short = answered_until <= now && error.may_be_cut_short();
        let error = match answers.failed.take() {
            Some(before) if is_cut_short => before.error,
            _ => error,
        };
        answers.failed = Some(FailedAttempt { answered_until, error });
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
            self.change_count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the caller that has just registered is the only one that waits.
    pub(super) fn has_one_caller(&self) -> bool {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).len() == 1
    }
}

impl Wake for Attempts {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.change_count.fetch_add(1, Ordering::SeqCst);
        let woken = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        // A panic of one waker must not keep other callers asleep, nor end the thread that answers them.
        let _ = wake_all(woken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use bytes::Bytes;

    use crate::client::Client;
    use crate::config::Config;
    use crate::error::{Denial, Report, Round};

    fn denial() -> Box<Denial> {
        Box::new(Denial { attempts: 1, ..Denial::new(Report::new(Round::Acquire, Bytes::new())) })
    }

    #[test]
    fn a_wait_beyond_the_clock_is_for_ever() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let client = Client::open(config).expect("an event loop");
        let request = client.lock_owned("a").wait(Duration::MAX);
        let (mut caller, now) = (Caller::NEW, clock::now());
        assert!(caller.wait_until(&request) >= now + limits::FOREVER);
    }

    #[test]
    fn attempt_cut_short_keeps_the_earlier_reason() {
        let (attempts, now) = (Attempts::default(), clock::now());
        let (first, second) = (now + Duration::from_secs(1), now + Duration::from_secs(2));
        attempts.note_failed(first, first, AcquireError::Contended(denial()));
        assert!(attempts.answer(second).is_none(), "its wait reaches further");
        attempts.note_failed(second, second, AcquireError::NoQuorum(denial()));
        assert!(matches!(attempts.answer(second), Some(Err(AcquireError::Contended(_)))));
        // A caller whose attempt ran its full time gets that attempt's own error.
        let third = second + Duration::from_secs(1);
        attempts.note_failed(second, third, AcquireError::NoQuorum(denial()));
        assert!(matches!(attempts.answer(third), Some(Err(AcquireError::NoQuorum(_)))));
    }
}
