//! Where a thread sleeps until it is woken. A wake-up that comes before the sleep is kept. Also which thread
//! is inside a call of foreign code.
//!
//! Not [`std::thread::park`]: a thread has one park token, so this sleep could take a wake-up that is meant
//! for the caller's own use of `park`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::clock;

#[derive(Debug, Default)]
pub(super) struct Sleeper {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

thread_local! {
    static OWN: (Arc<Sleeper>, Waker) = Sleeper::pair();
}

impl Sleeper {
    pub(super) fn pair() -> (Arc<Self>, Waker) {
        let sleeper = Arc::<Self>::default();
        let waker = Waker::from(sleeper.clone());
        (sleeper, waker)
    }

    /// Sleeper of the calling thread.
    pub(super) fn own() -> (Arc<Self>, Waker) {
        // A thread that is ending may have lost it.
        OWN.try_with(Clone::clone).unwrap_or_else(|_| Self::pair())
    }

    /// Sleeps until it is woken, or until this time; without a time, for ever. A wake-up since the last sleep
    /// counts. Returns whether it was woken.
    pub(super) fn sleep(&self, until: Option<Instant>) -> bool {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_woken {
            is_woken = match until.map(|until| until.saturating_duration_since(clock::now())) {
                None => self.changed.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let waited = self.changed.wait_timeout(is_woken, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *is_woken = false;
        true
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// The thread that is inside a call, at most one.
///
/// Stored with the call's target, not with the thread, which may be inside several targets at once.
#[derive(Debug, Default)]
pub(super) struct Inside(AtomicUsize);

/// Mark of a thread. A later thread may get the mark of a thread that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread(pub(super) usize);

impl Thread {
    pub(super) fn own() -> Self {
        // The address is the mark. It has no destructor, so it exists even while the thread ends.
        thread_local!(static MARK: u8 = const { 0 });
        Self(MARK.with(|mark| std::ptr::from_ref(mark).addr()))
    }
}

impl Inside {
    pub(super) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        self.0.store(Thread::own().0, Ordering::Relaxed);
        let _guard = InsideGuard(self);
        run()
    }

    /// Fails if this thread is inside: it would wait for its own return.
    pub(super) fn check_outside(&self) -> Result<(), Arc<str>> {
        if self.0.load(Ordering::Relaxed) == Thread::own().0 { Err(IN_WAKER.into()) } else { Ok(()) }
    }
}

/// Why a blocking call inside a waker fails.
const IN_WAKER: &str = "a waker that it calls would wait for it; wait in another thread or task";

/// The thread leaves, even in a panic.
struct InsideGuard<'a>(&'a Inside);

impl Drop for InsideGuard<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}

/// Counts the wake-ups of a task of a unit test.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

#[cfg(test)]
impl Count {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_wake_up_is_kept_and_limits_end_sleep() {
        let (sleeper, waker) = Sleeper::pair();
        waker.wake_by_ref();
        waker.wake();
        assert!(sleeper.sleep(None));
        let (start, limit) = (clock::now(), Duration::from_millis(2));
        assert!(!sleeper.sleep(Some(start + limit)), "two wake-ups are one");
        assert!(clock::now() - start >= limit);
    }

    #[test]
    fn another_thread_ends_the_sleep() {
        let (sleeper, waker) = Sleeper::pair();
        let waking = std::thread::spawn(move || waker.wake());
        sleeper.sleep(None);
        waking.join().expect("it wakes");
    }
}
