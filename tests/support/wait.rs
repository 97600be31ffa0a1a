//! How tests wait: for something to become true, never for a time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Time limit for anything that must happen. A slow machine only takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look again for something that is waited for.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// At its end the flag is true, also if that is a panic: a scope waits for threads that look at it.
pub struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Fails where something took as long as only a fault takes: the reason says how long that is. A test has no
/// other upper bound on real time, since a machine may be slow.
#[track_caller]
pub fn assert_sooner(since: Instant, bound: Duration, reason: &str) {
    let took = since.elapsed();
    assert!(took < bound, "{took:?}: {reason}");
}

/// Waits for something to become true; panics with `what` if it does not within `patience`.
#[track_caller]
pub fn eventually(patience: Duration, what: &str, mut is_true: impl FnMut() -> bool) {
    let given_up = Instant::now() + patience;
    while !is_true() {
        assert!(Instant::now() < given_up, "not within {patience:?}: {what}");
        thread::sleep(POLL_PAUSE);
    }
}

/// The smallest executor: it allocates its waker, once. Panics if the future hangs.
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
