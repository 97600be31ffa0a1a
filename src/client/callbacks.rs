//! Callbacks of the users', away from the thread that drives the event loop: they may take long, and use the
//! client.
//!
//! Owns the callbacks that are due, and the threads on which they run: one is started when a callback is due
//! and no other is free for it, and ends when none is due. So a callback that takes long delays none behind
//! it, up to [`limits::CALLBACK_THREAD_COUNT_MAX`] of them. Does not know what they are called for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread;

use crate::limits;

type Callback = Box<dyn FnOnce() + Send>;

/// What is due of one client; clones share it.
#[derive(Clone, Default)]
pub(super) struct Callbacks {
    due: Arc<Mutex<Due>>,
}

#[derive(Default)]
struct Due {
    queue: VecDeque<Callback>,
    /// Threads, also those that are being started.
    thread_count: usize,
    /// Threads inside a callback.
    busy_count: usize,
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
        self.due().queue.push_back(callback);
        if !self.start_thread() {
            // The system has no thread to give. A callback that runs here may block the event loop, and is
            // not lost.
            self.due().thread_count += 1;
            self.run_all();
        }
    }

    /// Starts a thread if callbacks are due and no thread is free for them. False if there is no thread, and
    /// none can be had.
    fn start_thread(&self) -> bool {
        let mut due = self.due();
        let is_wanted = !due.queue.is_empty() && due.thread_count == due.busy_count;
        if !is_wanted || due.thread_count >= limits::CALLBACK_THREAD_COUNT_MAX {
            return true;
        }
        due.thread_count += 1;
        drop(due);
        let its = self.clone();
        let thread = thread::Builder::new().name("redlatch-callback".to_owned());
        let started = thread.spawn(move || its.run_all());
        let mut due = self.due();
        if started.is_err() {
            due.thread_count -= 1;
        }
        started.is_ok() || due.thread_count > 0
    }

    /// Runs what is due on this thread, which is counted.
    fn run_all(&self) {
        let mut due = self.due();
        while let Some(callback) = due.queue.pop_front() {
            due.busy_count += 1;
            drop(due);
            // It may take long: those behind it have a thread of their own.
            self.start_thread();
            call(callback);
            due = self.due();
            due.busy_count -= 1;
        }
        due.thread_count -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::task::Waker;
    use std::time::Duration;

    /// A slow machine only takes longer.
    const PATIENCE: Duration = Duration::from_secs(40);

    fn report(callbacks: &Callbacks, callback: impl FnOnce() + Send + 'static) {
        Waker::from(callbacks.call_once(callback)).wake();
    }

    /// Callbacks that block until the sender is dropped; each says when it is called.
    fn block(callbacks: &Callbacks, count: usize) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((called, is_called), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..count {
            let (called, ended) = (called.clone(), ended.clone());
            report(callbacks, move || {
                let _ = called.send(());
                let _ = ended.lock().expect("no panic").recv();
            });
        }
        (is_called, end)
    }

    #[test]
    fn blocking_callbacks_delay_no_other_up_to_their_bound() {
        let callbacks = Callbacks::default();
        let (is_called, end) = block(&callbacks, limits::CALLBACK_THREAD_COUNT_MAX - 1);
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            report(&callbacks, move || sender.send(number).expect("it is waited for"));
        }
        // One thread is left for them, so they come in order.
        for number in 0..100 {
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(number));
        }
        for _ in 1..limits::CALLBACK_THREAD_COUNT_MAX {
            is_called.recv_timeout(PATIENCE).expect("each that blocks is called");
        }
        let (last_called, last_end) = block(&callbacks, 2);
        last_called.recv_timeout(PATIENCE).expect("there is a thread left");
        {
            let due = callbacks.due();
            assert_eq!((due.thread_count, due.queue.len()), (limits::CALLBACK_THREAD_COUNT_MAX, 1));
        }
        drop((end, last_end));
        last_called.recv_timeout(PATIENCE).expect("a thread has returned");
        while callbacks.due().thread_count > 0 {
            thread::yield_now();
        }
        assert_eq!(callbacks.due().busy_count, 0);
    }
}
