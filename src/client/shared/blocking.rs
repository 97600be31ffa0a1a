//! A thread that waits for a future: it polls the future, and leads the loop until the future's waker is
//! called. Also requests that are collected for one write.
//!
//! Such a thread waits like a task, so the client's own thread serves what is left when the wait is over. While
//! the thread polls, it does not wake the client's thread: it leads in a moment. While it sleeps, it may be
//! elected.

use std::cell::Cell;
use std::pin::pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::{Inner, Shared, Stopped};
use crate::client::completions::OutcomeKind;
use crate::client::sleeper::Sleeper;
use crate::clock;

thread_local! {
    /// Address of the client for which this thread collects requests; zero without one.
    static COLLECTING: Cell<usize> = const { Cell::new(0) };
}

impl Inner {
    /// Whether this thread collects requests, and writes them or leads in a moment.
    pub(super) fn is_collecting(&self) -> bool {
        COLLECTING.get() == ptr::from_ref(self).addr()
    }

    /// Whether the background thread goes on leading, because a task waited last.
    #[cfg(test)]
    pub(in crate::client) const fn favours_background(&self) -> bool {
        self.background.is_favoured
    }

    /// Whether a leader sleeps in the kernel, and nobody has woken it.
    #[cfg(test)]
    pub(in crate::client) fn is_led_asleep(&self) -> bool {
        self.sleep.as_ref().is_some_and(|sleep| !sleep.is_woken)
    }

    fn write_collected(&mut self, start: Instant) {
        // Another thread may have written them, or the collection around this one will.
        if self.unsent_count > 0 && !self.is_collecting() {
            self.write_batch(start);
        }
    }
}

/// While it lives, this thread collects.
struct Collecting {
    outer: usize,
}

impl Collecting {
    /// An address of zero is that of no client.
    fn begin(address: usize) -> Self {
        Self { outer: COLLECTING.replace(address) }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        COLLECTING.set(self.outer);
    }
}

/// Its drop writes what was collected, even in a panic.
struct Collected<'a> {
    shared: &'a Shared,
    start: Instant,
}

impl Drop for Collected<'_> {
    fn drop(&mut self) {
        // A client that cannot be used has nothing to write.
        let _ = self.shared.with(|inner| inner.write_collected(self.start));
    }
}

/// A thread that waits for a future: the waker of the future.
struct Blocked {
    sleeper: Arc<Sleeper>,
    shared: Weak<Shared>,
    is_woken: AtomicBool,
    is_leading: AtomicBool,
}

impl Wake for Blocked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if self.is_leading.load(Ordering::SeqCst) {
            // A client that cannot be used ends the lead by itself.
            let _ = self.shared.upgrade().map(|shared| shared.peek(Inner::wake_leader));
        } else {
            self.sleeper.wake_by_ref();
        }
    }
}

impl Blocked {
    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// Zero in a forked child process.
    fn address(&self) -> usize {
        self.peek(|inner| ptr::from_ref(inner).addr()).unwrap_or_default()
    }

    /// Runs this, and sends the requests of all futures that it polls for the first time with one write for
    /// each master.
    pub(in crate::client) fn collect<T>(&self, run: impl FnOnce() -> T) -> T {
        let _collected = Collected { shared: self, start: clock::now() };
        let _collecting = Collecting::begin(self.address());
        run()
    }

    /// Waits on this thread until the future is ready. Fails in a waker that this client calls.
    pub(in crate::client) fn block_on<F: Future>(self: &Arc<Self>, future: F) -> Result<F::Output, Stopped> {
        self.waking.check_outside()?;
        // If the client cannot be used, the future says so. This may lead for a moment.
        let guard = self.guard();
        let _ = self.enter_to_wait(OutcomeKind::Acquire).map(|inner| self.leave(inner));
        drop(guard);
        let address = self.address();
        let blocked = Arc::new(Blocked {
            sleeper: Sleeper::own().0,
            shared: Arc::downgrade(self),
            is_woken: AtomicBool::new(false),
            is_leading: AtomicBool::new(false),
        });
        let waker = Waker::from(blocked.clone());
        let mut future = pin!(future);
        loop {
            blocked.is_woken.store(false, Ordering::SeqCst);
            let collected = Collected { shared: self, start: clock::now() };
            let collecting = Collecting::begin(address);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            drop(collecting);
            if let Poll::Ready(value) = polled {
                return Ok(value);
            }
            // This thread leads, or tells the leader.
            std::mem::forget(collected);
            if self.wait_for_waker(&blocked, &waker, address).is_err() {
                // The future waits for something else.
                while !blocked.is_woken() {
                    blocked.sleeper.sleep(None);
                }
            }
        }
    }

    /// Leads or sleeps until the waker of this thread is called.
    fn wait_for_waker(&self, blocked: &Blocked, waker: &Waker, address: usize) -> Result<(), Stopped> {
        let _guard = self.guard();
        let mut inner = self.enter()?;
        inner.background.is_favoured = false;
        let is_done = |inner: &Inner| blocked.is_woken() || inner.completions.woken_count(waker) > 0;
        if is_done(&inner) {
            // A future that wakes itself in each poll must not keep the client from its work.
            let limit = Some(inner.now());
            match inner.poller.take() {
                Some(poller) => inner = self.lead(inner, poller, limit, |_| false)?,
                None => inner.write_beside_leader(),
            }
        }
        while !is_done(&inner) {
            if let Some(poller) = inner.poller.take() {
                blocked.is_leading.store(true, Ordering::SeqCst);
                let led = self.lead(inner, poller, None, is_done);
                blocked.is_leading.store(false, Ordering::SeqCst);
                inner = led?;
                // Nobody needs to wait for the return of this thread.
                let own_count = inner.completions.woken_count(waker);
                inner.gathering.remove(own_count);
                break;
            }
            inner.write_beside_leader();
            if is_done(&inner) {
                break;
            }
            let to_lead = Waker::from(blocked.sleeper.clone());
            inner.blocked.push(to_lead.clone());
            self.leave(inner);
            // A waker that `leave` called may have slept on this thread, too.
            if !blocked.is_woken() {
                blocked.sleeper.sleep(None);
            }
            inner = self.lock();
            inner.blocked.retain(|other| !other.will_wake(&to_lead));
            if let Some(why) = &inner.stopped {
                return Err(why.clone());
            }
        }
        // This thread polls next, and then leads again: nobody else needs to.
        let _collecting = Collecting::begin(address);
        self.leave(inner);
        Ok(())
    }
}
