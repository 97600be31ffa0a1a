//! How tests wait: for a condition, never for a time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use redlatch::Client;

/// Time limit for anything that must happen. A slow machine only takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two checks of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// Sets the flag when dropped, even in a panic, because a scope waits for threads that read the flag.
pub struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Fails if something took at least `bound`, as only a fault would; `reason` explains the bound. Tests have
/// no other upper bounds on real time, because a machine may be slow.
#[track_caller]
pub fn assert_sooner(since: Instant, bound: Duration, reason: &str) {
    let took = since.elapsed();
    assert!(took < bound, "{took:?}: {reason}");
}

/// Waits until a condition is true; panics with `what` after `patience`.
#[track_caller]
pub fn eventually(patience: Duration, what: &str, mut is_true: impl FnMut() -> bool) {
    let given_up = Instant::now() + patience;
    while !is_true() {
        assert!(Instant::now() < given_up, "not within {patience:?}: {what}");
        thread::sleep(POLL_PAUSE);
    }
}

/// Waits until a client has no claim on any master, at most `limit`. Returns the number of locks that are not released
/// everywhere. Unlike after a drain, the client goes on.
pub fn settle(client: &Client, limit: Duration) -> usize {
    let given_up = Instant::now() + limit;
    loop {
        let count = client.stats().claims;
        if count == 0 || given_up <= Instant::now() {
            return count;
        }
        thread::sleep(POLL_PAUSE);
    }
}

/// The smallest executor. It allocates its waker once, and panics if the future hangs.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let given_up = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = given_up.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a future hangs");
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
