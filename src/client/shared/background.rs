//! The threads of a client: the background thread, the observer's thread, event loops that replace the
//! background thread ([`Drive`]), and the ends of threads that dropped guards.

use std::cell::RefCell;
use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Instant;

#[cfg(unix)]
use mio::Registry;

use super::{Driving, Inner, Shared, Stopped, earlier, wake_all};
use crate::client::callbacks::Observing;
use crate::clock;
use crate::limits;

/// Next act of the background thread.
#[derive(Debug)]
pub(super) enum BackgroundAct {
    /// Sleep until it is woken, or until this time.
    Sleep(Option<Instant>),
    LookAgain,
    /// End: the client is closed.
    End,
}

impl Shared {
    /// Closes the client after the drop of its last handle. Lets the background thread send queued requests,
    /// and waits for that at most [`limits::CLOSE_WAIT`].
    pub(crate) fn close(&self) {
        let Ok(mut inner) = self.enter() else { return };
        inner.is_closing = true;
        inner.wake_leader();
        let (waker, drive) = (inner.background.waker.clone(), inner.background.drive.take());
        let is_background = inner.background.thread == Some(thread::current().id());
        self.leave(inner);
        wake_all(drive.map(|drive| drive.waker).into_iter().chain([waker]));
        if !is_background {
            self.ended.sleep(Some(clock::now() + limits::CLOSE_WAIT));
        }
    }

    /// Runs the observer's thread until no further events can come.
    pub(super) fn run_observer(&self, observing: &Observing) {
        loop {
            // Read before the events, because the last events come before the end.
            let has_ended = observing.has_ended();
            let events = self.peek(|inner| observing.take(&mut inner.driver.engine)).unwrap_or_default();
            if !events.is_empty() {
                observing.report(&events);
            } else if has_ended {
                return;
            } else {
                observing.sleep();
            }
        }
    }

    pub(super) fn run_background(&self) {
        let _guard = self.guard();
        // All waiting callers have got the error, and later callers will.
        let _ = self.keep();
        self.ended.wake_by_ref();
        self.observing.iter().for_each(|observing| observing.end());
    }

    /// Leads whenever nobody else does, until the client is closed.
    fn keep(&self) -> Result<(), Stopped> {
        let (mut was_woken, mut seen_drop_count) = (true, 0);
        loop {
            match self.next_act(was_woken, &mut seen_drop_count)? {
                BackgroundAct::Sleep(until) => was_woken = self.background.sleep(until),
                BackgroundAct::LookAgain => {}
                BackgroundAct::End => return Ok(()),
            }
        }
    }

    /// Leads if nobody else does. Returns the background thread's next act.
    pub(super) fn next_act(
        &self,
        was_woken: bool,
        seen_drop_count: &mut u64,
    ) -> Result<BackgroundAct, Stopped> {
        if !was_woken && self.is_locked() {
            // A caller is at work, and does due work along the way.
            return Ok(BackgroundAct::Sleep(Some(clock::now() + limits::DROP_LINGER)));
        }
        let mut inner = self.lock_unless_stopped()?;
        if inner.is_closing {
            self.finish(inner)?;
            return Ok(BackgroundAct::End);
        }
        let is_awaited = inner.completions.task_count() > 0;
        match &mut inner.background.drive {
            Some(drive) if !drive.is_watched => return Ok(BackgroundAct::Sleep(None)),
            Some(drive) if !is_awaited => drive.late_at = None,
            _ => {}
        }
        inner.background.sleeps_until = None;
        let now = clock::now();
        inner.enter_at(now);
        if inner.wants_background()
            && let Some(poller) = inner.poller.take()
        {
            // Also ends when a drive begins, even one with nothing to do: it could not lead before.
            let is_done = |inner: &Inner| {
                inner.is_closing || inner.drive_in_time().is_some() || !inner.wants_background()
            };
            self.leave(self.lead(inner, poller, None, is_done)?);
            return Ok(BackgroundAct::LookAgain);
        }
        let is_led = inner.poller.is_none();
        let look_at = inner.look_at(if is_led { now } else { inner.last_turn });
        if (inner.due().is_some_and(|at| at <= now) || look_at <= now)
            && let Some(poller) = inner.poller.take()
        {
            // One turn does the due work. Most of its requests, such as renewals, are answered within the
            // next moment, and the connection attempts that it began have ended. Older owed replies are
            // awaited, too: they may have arrived while nobody read, and later replies would stay unread as
            // well.
            inner = self.lead(inner, poller, Some(now), |_| false)?;
            if let Some(poller) = inner.poller.take() {
                let is_done = |inner: &Inner| {
                    let engine = &inner.driver.engine;
                    let is_over = engine.is_answered() && !engine.is_connecting();
                    let drive = inner.background.drive.as_ref();
                    inner.is_closing || is_over || drive.is_some_and(|drive| drive.has_unsent)
                };
                let limit = inner.now() + limits::BACKGROUND_STAY;
                inner = self.lead(inner, poller, Some(limit), is_done)?;
            }
            self.leave(inner);
            return Ok(BackgroundAct::LookAgain);
        }
        // While guards are being dropped, the thread checks again after each `DROP_LINGER`, so that a drop
        // need not wake it.
        let are_dropped = std::mem::replace(seen_drop_count, inner.drop_count) != inner.drop_count;
        let look_again = are_dropped.then(|| now + limits::DROP_LINGER);
        // The leader does what is due within `DROP_LINGER`, and wakes this thread if a deadline comes earlier.
        let due = inner.due().map(|at| at.max(now + limits::DROP_LINGER));
        // After a turn of a drive, the thread checks again within `DRIVE_LATE`. Otherwise the next caller
        // pays for a wake-up. While somebody leads, a late drive makes no difference: the end of the lead
        // wakes this thread.
        let watch_at = inner.background.drive.as_ref().filter(|_| !is_led).and_then(|drive| {
            drive.late_at.or(Some(inner.last_turn + limits::DRIVE_LATE).filter(|at| now < *at))
        });
        let until = earlier(earlier(due, look_again), earlier(Some(look_at), watch_at));
        inner.background.sleeps_until = Some(until);
        Ok(BackgroundAct::Sleep(until))
    }

    /// Moves the background thread's work to a drive. With `is_watched`, the thread still handles deadlines.
    #[cfg(unix)]
    pub(crate) fn drive(self: &Arc<Self>, is_watched: bool) -> io::Result<Drive> {
        let mut inner = self.enter().map_err(|why| io::Error::other(why.to_string()))?;
        let registry = inner.driver.registry()?;
        let replaced = inner.background.drive.replace(Driving::new(is_watched));
        inner.background.is_favoured = false;
        inner.wake_leader();
        drop(inner);
        // Wakes the replaced drive, which then finds the new drive in its place.
        wake_all(replaced.map(|drive| drive.waker));
        Ok(Drive { shared: Arc::downgrade(self), registry, is_watched })
    }

    /// Sends queued requests to the masters that answer, within [`limits::CLOSE_WAIT`].
    pub(super) fn finish(&self, mut inner: MutexGuard<'_, Inner>) -> Result<(), Stopped> {
        inner.enter_at(clock::now());
        let limit = Some(inner.now() + limits::CLOSE_WAIT);
        if let Some(poller) = inner.poller.take() {
            drop(self.lead(inner, poller, limit, |inner| inner.driver.engine.is_answered())?);
        }
        Ok(())
    }
}

/// Driver of a [`crate::Client`]'s event loop from an event loop of your own, in place of the client's
/// background thread; made by [`crate::Client::drive`].
///
/// Answers then reach tasks without a hand-over between threads, and requests of many tasks on one executor
/// share a write.
///
/// 1. Watch the descriptor ([`AsFd`]) for input. It is edge-triggered: note that it has become readable
///    *before* the next call.
/// 2. Call [`Drive::turn`] at the start, when the descriptor is readable, at the time that the last call
///    returned, and when its waker is called.
///
/// A call never waits. While a thread waits in a blocking call, that thread may drive, and a turn does
/// nothing. Dropping the drive gives the work back to the client's background thread. A drive is no handle:
/// it ends when the last handle is dropped.
#[cfg(unix)]
#[derive(Debug)]
pub struct Drive {
    shared: Weak<Shared>,
    /// Keeps the descriptor open.
    registry: Registry,
    is_watched: bool,
}

/// Error of a [`Drive`] whose client was dropped or has stopped, or if another drive of the client was
/// dropped.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has ended; drop the drive too")]
#[non_exhaustive]
pub struct DriveEnded;

#[cfg(unix)]
impl Drive {
    /// Reads, writes and does all due work, without waiting. Returns the time of the next turn if nothing
    /// happens before, to compare with [`Instant::now`]. Calls `waker` if a turn is needed sooner.
    ///
    /// # Errors
    /// [`DriveEnded`]: drop the drive.
    pub fn turn(&mut self, waker: &Waker) -> Result<Option<Instant>, DriveEnded> {
        let shared = self.shared.upgrade().ok_or(DriveEnded)?;
        let _guard = shared.guard();
        let mut inner = shared.enter().ok().filter(|inner| !inner.is_closing).ok_or(DriveEnded)?;
        let is_led = inner.poller.is_none();
        let drive = inner.background.drive.as_mut();
        let drive = drive.filter(|drive| drive.is_watched == self.is_watched).ok_or(DriveEnded)?;
        // Dropped after the mutex is released, like all wakers.
        let _replaced =
            (!drive.waker.will_wake(waker)).then(|| std::mem::replace(&mut drive.waker, waker.clone()));
        // A leading thread may have read before this event came. It wakes the drive when it stops leading.
        (drive.has_unsent, drive.late_at) = (is_led, None);
        if inner.unsent_count > 0 {
            // Callers that have not returned do not return soon.
            inner.gathering.end(None);
        }
        if let Some(poller) = inner.poller.take() {
            let now = inner.now();
            let lead = shared.lead(inner, poller, Some(now), |_| false);
            inner = lead.map_err(|_| DriveEnded)?;
        } else if self.is_watched && inner.background.sleeps_until.is_none() {
            // The background thread leads, and gives the lead back.
            inner.wake_leader();
        }
        let due = inner.due();
        if !self.is_watched {
            inner.background.sleeps_until = Some(due);
        }
        shared.leave(inner);
        Ok(due.map(clock::to_std))
    }
}

#[cfg(unix)]
impl AsFd for Drive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.registry.as_fd()
    }
}

#[cfg(unix)]
impl AsRawFd for Drive {
    fn as_raw_fd(&self) -> RawFd {
        self.registry.as_raw_fd()
    }
}

#[cfg(unix)]
impl Drop for Drive {
    /// Gives the work back to the background thread.
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let _driving = shared.with(|inner| {
            let waker = inner.background.waker.clone();
            inner.completions.wake_too(waker);
            inner.background.drive.take_if(|drive| drive.is_watched == self.is_watched)
        });
    }
}

// Releases of dropped guards wait for a write that they can join, but never longer than the thread that
// dropped the guards lives. A process may end right after the drop, and a client in a `static` is never
// dropped. So each thread remembers the clients of its drops, and writes their queued requests when it ends.
// The main thread ends when `main` returns and in `std::process::exit`, if the system runs destructors of
// thread-local values (Linux with glibc does).
//
// A thread ends a moment after its closure: `std::thread::scope` waits only for the closures, `join` waits
// for the end. An exit inside a panic hook writes nothing.
thread_local! {
    static DROPPED_OF: DroppedOf = const { DroppedOf(RefCell::new(Vec::new())) };
}

/// Clients of which this thread dropped something, the latest client last.
struct DroppedOf(RefCell<Vec<Weak<Shared>>>);

/// Notes that something of this client was dropped.
pub(crate) fn note_drop(client: &Arc<Shared>) {
    // A thread that is ending may have lost its list. Its drops are written at once.
    if DROPPED_OF.try_with(|dropped| dropped.note(client)).is_err() {
        client.flush_at_end();
    }
}

impl DroppedOf {
    fn note(&self, client: &Arc<Shared>) {
        let mut clients = self.0.borrow_mut();
        if clients.last().is_some_and(|last| last.as_ptr() == Arc::as_ptr(client)) {
            return;
        }
        clients.retain(|other| other.as_ptr() != Arc::as_ptr(client) && other.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }
}

impl Drop for DroppedOf {
    fn drop(&mut self) {
        // An exit in a panic hook: the panic may have left a client half-way, or locked by this thread.
        if thread::panicking() {
            return;
        }
        self.0.take().iter().filter_map(Weak::upgrade).for_each(|client| client.flush_at_end());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;
    use crate::config::Config;

    #[test]
    fn a_thread_notes_each_living_client_once() {
        let dropped = DroppedOf(RefCell::default());
        let [first, second, third] = [(); 3].map(|()| {
            let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
            Client::open(config).expect("an event loop")
        });
        let noted = || dropped.0.borrow().iter().map(|it| it.upgrade().map(|it| Arc::as_ptr(&it))).collect();
        let is = |client: &Client| Some(Arc::as_ptr(client.shared()));
        for client in [&first, &second, &first, &first] {
            dropped.note(client.shared());
        }
        let both: Vec<_> = noted();
        assert_eq!(both, [is(&second), is(&first)], "the last one last");
        let left = Arc::downgrade(first.shared());
        drop(first);
        // The client's thread ends a moment later.
        let begun = clock::now();
        while left.strong_count() > 0 {
            assert!(clock::now() - begun < Duration::from_secs(40), "its thread goes on");
            thread::yield_now();
        }
        dropped.note(third.shared());
        let alive: Vec<_> = noted();
        assert_eq!(alive, [is(&second), is(&third)]);
    }
}
