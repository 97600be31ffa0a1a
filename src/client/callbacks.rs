//! Callbacks of the users', away from the thread that drives the event loop: they may take long, and use the client.
//!
//! Owns the callbacks that are due, and the thread on which they run one after another: it is started for the first one and
//! ends with the last. Refuses to know what they are called for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread;

type Callback = Box<dyn FnOnce() + Send>;

/// What is due of one client; clones share it.
#[derive(Clone, Default)]
pub(super) struct Callbacks {
    due: Arc<Mutex<Due>>,
}

#[derive(Default)]
struct Due {
    queue: VecDeque<Callback>,
    has_thread: bool,
}

/// A callback that is called at most once: on the thread for callbacks when it is woken.
pub(super) struct CallOnce {
    callback: Mutex<Option<Callback>>,
    callbacks: Callbacks,
}

impl Callbacks {
    pub(super) fn call_once(&self, callback: impl FnOnce() + Send + 'static) -> Arc<CallOnce> {
        Arc::new(CallOnce { callback: Mutex::new(Some(Box::new(callback))), callbacks: self.clone() })
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, callback: Callback) {
        let mut due = self.due();
        due.queue.push_back(callback);
        if std::mem::replace(&mut due.has_thread, true) {
            return;
        }
        drop(due);
        let its = self.clone();
        let started =
            thread::Builder::new().name("redlatch-callback".to_owned()).spawn(move || its.run_all());
        if started.is_err() {
            // The system has no thread to give. A callback that runs here may block the event loop, and is not lost.
            self.run_all();
        }
    }

    fn run_all(&self) {
        loop {
            let mut due = self.due();
            let Some(callback) = due.queue.pop_front() else {
                due.has_thread = false;
                return;
            };
            drop(due);
            call(callback);
        }
    }
}

impl CallOnce {
    /// Calls it on this thread, unless it was called before.
    pub(super) fn call(&self) {
        self.take().into_iter().for_each(call);
    }

    fn take(&self) -> Option<Callback> {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Wake for CallOnce {
    fn wake(self: Arc<Self>) {
        if let Some(callback) = self.take() {
            self.callbacks.run(callback);
        }
    }
}

/// The panic hook has shown its panic, and the callbacks behind it are to run all the same.
fn call(callback: Callback) {
    let _ = catch_unwind(AssertUnwindSafe(callback));
}
