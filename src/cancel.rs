//! [`Cancel`]: ends an acquisition from another thread or task, even while a thread waits for it.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::caught::caught;

/// Handle that ends acquisitions from another thread or task, passed to
/// [`LockRequest::cancel_with`](crate::LockRequest::cancel_with) and the other requests. Clones share their
/// state.
///
/// A cancelled acquisition ends with [`AcquireError::Cancelled`](crate::AcquireError::Cancelled) and releases
/// everything it acquired, like a dropped future. Locks already handed out are not affected. A handle may
/// serve any number of acquisitions, at once or in turn. Once cancelled, it stays cancelled. Dropping a
/// handle cancels nothing.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let cancel = redlatch::Cancel::new();
/// let on_shutdown = cancel.clone();
/// std::thread::spawn(move || on_shutdown.cancel());
/// let acquired = client.lock("orders:42").cancel_with(&cancel).acquire();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
}

#[derive(Default)]
struct CancelState {
    is_cancelled: bool,
    /// Number of registrations so far.
    count: u64,
    wakers: Vec<(u64, Waker)>,
}

/// An acquisition that a [`Cancel`] may end. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Registration {
    cancel: Cancel,
    id: Option<u64>,
}

impl Cancel {
    /// Returns a handle that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all acquisitions with this handle, and each later one at once. Does not block.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.is_cancelled = true;
        let woken = mem::take(&mut state.wakers);
        drop(state);
        for (_, waker) in woken {
            // A waker that panics does not prevent the other calls.
            let _ = caught(|| waker.wake());
        }
    }

    /// Returns whether the handle was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.state().is_cancelled
    }

    fn state(&self) -> MutexGuard<'_, CancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Cancel")
            .field("is_cancelled", &state.is_cancelled)
            .field("waiting_count", &state.wakers.len())
            .finish()
    }
}

impl Registration {
    pub(crate) fn new(cancel: &Cancel) -> Self {
        Self { cancel: cancel.clone(), id: None }
    }

    pub(crate) const fn handle(&self) -> &Cancel {
        &self.cancel
    }

    /// Registers a waker to call when the handle is cancelled, in place of the last one. Returns whether it
    /// is cancelled already.
    pub(crate) fn register(&mut self, waker: &Waker) -> bool {
        // Cloned and dropped outside the mutex, because both may run foreign code.
        let mut waker = waker.clone();
        let mut state = self.cancel.state();
        if state.is_cancelled {
            return true;
        }
        let known = state.wakers.iter_mut().find(|(id, _)| Some(*id) == self.id);
        if let Some((_, known)) = known {
            mem::swap(known, &mut waker);
        } else {
            let id = state.count;
            state.count += 1;
            state.wakers.push((id, waker));
            self.id = Some(id);
        }
        false
    }
}

/// A cloned request is a separate acquisition.
impl Clone for Registration {
    fn clone(&self) -> Self {
        Self::new(&self.cancel)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.cancel.state();
        let place = state.wakers.iter().position(|(other, _)| *other == id);
        let _waker = place.map(|place| state.wakers.swap_remove(place));
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::client::Count;

    /// A future that moves to another task is polled with another waker.
    #[test]
    fn the_last_waker_of_each_registration_is_called() {
        let cancel = Cancel::new();
        let counts = [(); 3].map(|()| Arc::<Count>::default());
        let wakers = counts.each_ref().map(|count| Waker::from(count.clone()));
        let (mut moved, mut other) = (Registration::new(&cancel), Registration::new(&cancel));
        let mut ended = Registration::new(&cancel);
        assert!(!moved.register(&wakers[0]) && !other.register(&wakers[1]) && !moved.register(&wakers[2]));
        assert!(!ended.register(&wakers[0]));
        drop(ended);
        cancel.cancel();
        assert_eq!(counts.each_ref().map(|count| count.get()), [0, 1, 1]);
        assert!(moved.register(&wakers[0]), "it is cancelled already");
    }

    /// Detects whether the handle's mutex is locked while a waker is called or dropped.
    struct Probe(Cancel, Arc<Count>);

    impl Probe {
        fn waker(cancel: &Cancel, found_free: &Arc<Count>) -> Waker {
            Waker::from(Arc::new(Self(cancel.clone(), found_free.clone())))
        }

        fn look(&self) {
            assert!(self.0.state.try_lock().is_ok(), "called with the handle locked");
            self.1.clone().wake();
        }
    }

    impl Wake for Probe {
        fn wake(self: Arc<Self>) {
            self.look();
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            self.look();
        }
    }

    #[test]
    fn wakers_are_called_and_dropped_without_the_lock() {
        let (cancel, found_free) = (Cancel::new(), Arc::<Count>::default());
        let count = || found_free.get();
        let mut registrations = [(); 3].map(|()| Registration::new(&cancel));
        for registration in &mut registrations {
            assert!(!registration.register(&Probe::waker(&cancel, &found_free)));
        }
        assert!(!registrations[0].register(&Probe::waker(&cancel, &found_free)));
        assert_eq!(count(), 1, "the waker that was replaced");
        let [first, second, _third] = registrations;
        drop(second);
        assert_eq!(count(), 2, "that of the registration that ended");
        cancel.cancel();
        assert_eq!(count(), 6, "two are woken, and dropped");
        drop(first);
        assert_eq!((count(), cancel.is_cancelled()), (6, true));
    }
}
