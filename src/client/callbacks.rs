//! Callbacks of the user, outside the thread that drives the event loop: they may take long, and may use the
//! client.
//!
//! Owns the due callbacks, and the thread that runs them in order. The thread starts when a callback is due,
//! and ends when none is left. A callback that blocks delays later callbacks. Does not know what callbacks
//! are called for.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread;

use super::sleeper::Sleeper;
use crate::caught::caught;
use crate::engine::Engine;
use crate::event::{Event, Observer};

type Callback = Box<dyn FnOnce() + Send>;

/// Due callbacks of one client, shared by clones.
#[derive(Clone, Default)]
pub(super) struct Callbacks {
    due: Arc<Mutex<DueCallbacks>>,
}

#[derive(Default)]
struct DueCallbacks {
    queue: VecDeque<Callback>,
    /// Whether a thread runs the callbacks, or is being started.
    is_running: bool,
}

/// A callback that is called at most once. As a waker, it calls the callback on the thread for callbacks.
pub(super) struct CallOnce {
    callback: Mutex<Option<Callback>>,
    callbacks: Callbacks,
}

impl Callbacks {
    pub(super) fn call_once(&self, callback: impl FnOnce() + Send + 'static) -> Arc<CallOnce> {
        Arc::new(CallOnce { callback: Mutex::new(Some(Box::new(callback))), callbacks: self.clone() })
    }

    fn due(&self) -> MutexGuard<'_, DueCallbacks> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, callback: Callback) {
        let thread = thread::Builder::new().name("redlatch-callback".to_owned());
        self.run_by(callback, |run| thread.spawn(run).map(drop));
    }

    /// Runs the callback on a thread that `spawn` starts, unless a thread already runs callbacks.
    fn run_by(&self, callback: Callback, spawn: impl FnOnce(Callback) -> io::Result<()>) {
        let mut due = self.due();
        due.queue.push_back(callback);
        if std::mem::replace(&mut due.is_running, true) {
            return;
        }
        drop(due);
        let its = self.clone();
        if spawn(Box::new(move || its.run_all())).is_err() {
            // The system refused a thread. A callback that runs here may block the event loop, but is not
            // lost.
            self.run_all();
        }
    }

    fn run_all(&self) {
        let mut due = self.due();
        while let Some(callback) = due.queue.pop_front() {
            drop(due);
            call(callback);
            due = self.due();
        }
        due.is_running = false;
    }
}

impl CallOnce {
    /// Calls the callback on this thread, unless it was called before.
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

/// Calls the callback. Catches a panic, which the panic hook has reported, so that later callbacks run.
fn call(callback: Callback) {
    let _ = caught(callback);
}

/// Largest number of events taken at once, with the mutex held.
const TAKEN_COUNT_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Observing {
    observer: Observer,
    sleeper: Arc<Sleeper>,
    /// Whether the observer's thread will look for events. Changed with the mutex held.
    is_awake: AtomicBool,
    has_ended: AtomicBool,
}

impl Observing {
    /// Creates the state of an observer's thread that is about to start.
    pub(super) fn new(observer: Observer) -> Self {
        let (is_awake, has_ended) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { observer, sleeper: Arc::default(), is_awake, has_ended }
    }

    /// Wakes the observer's thread if the engine has events. Called with the mutex held.
    pub(super) fn notify(&self, engine: &Engine) {
        if engine.has_event() && !self.is_awake.swap(true, Ordering::AcqRel) {
            self.sleeper.wake_by_ref();
        }
    }

    /// Takes events for the observer's thread, with the mutex held. Without events, the thread is about to
    /// sleep.
    pub(super) fn take(&self, engine: &mut Engine) -> Vec<Event> {
        let events: Vec<Event> = std::iter::from_fn(|| engine.poll_event()).take(TAKEN_COUNT_MAX).collect();
        self.is_awake.store(!events.is_empty(), Ordering::Release);
        events
    }

    /// Calls the observer with each event, and catches its panics.
    pub(super) fn report(&self, events: &[Event]) {
        events.iter().for_each(|event| self.observer.call(event));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Sleeps until there are events, or none can follow.
    pub(super) fn sleep(&self) {
        self.sleeper.sleep(None);
    }

    /// Ends the thread, once it has reported the remaining events.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.sleeper.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch_support::PATIENCE;
    use std::sync::mpsc;
    use std::task::Waker;

    fn report(callbacks: &Callbacks, callback: impl FnOnce() + Send + 'static) {
        Waker::from(callbacks.call_once(callback)).wake();
    }

    // I121
    #[test]
    fn callbacks_run_in_order_on_one_thread() {
        let callbacks = Callbacks::default();
        let ((sender, receiver), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        // The other callbacks are due before this one returns.
        report(&callbacks, move || {
            let _ = ended.recv();
        });
        for number in 0..100 {
            let sender = sender.clone();
            report(&callbacks, move || {
                sender.send((number, thread::current().id())).expect("it is waited for");
                std::panic::resume_unwind(Box::new("a callback panics"));
            });
        }
        assert!(callbacks.due().queue.len() >= 100, "they wait for the one that blocks");
        drop((end, sender));
        let called: Vec<_> = (0..100).filter_map(|_| receiver.recv_timeout(PATIENCE).ok()).collect();
        assert!(called.iter().map(|(number, _)| *number).eq(0..100));
        assert!(called.iter().all(|(_, thread)| *thread == called[0].1));
        while callbacks.due().is_running {
            thread::yield_now();
        }
        let (again, receiver) = mpsc::channel();
        report(&callbacks, move || again.send(()).expect("it is waited for"));
        receiver.recv_timeout(PATIENCE).expect("a thread is started again");
    }

    #[test]
    fn a_callback_without_a_thread_runs_at_once() {
        let callbacks = Callbacks::default();
        for number in [1, 2] {
            let (sender, receiver) = mpsc::channel();
            let callback = move || sender.send((number, thread::current().id())).expect("it is waited for");
            callbacks.run_by(Box::new(callback), |_| Err(io::Error::other("no more threads")));
            assert_eq!(receiver.try_recv(), Ok((number, thread::current().id())));
        }
    }

    /// Payload of a panic that panics once more when it is dropped.
    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("the payload panics, too"));
        }
    }

    #[test]
    fn a_payload_that_panics_stops_no_callback() {
        let callbacks = Callbacks::default();
        let (sender, receiver) = mpsc::channel();
        report(&callbacks, || std::panic::resume_unwind(Box::new(PanicsAgain)));
        report(&callbacks, move || sender.send(()).expect("it is waited for"));
        receiver.recv_timeout(PATIENCE).expect("the next callback runs");
    }
}
