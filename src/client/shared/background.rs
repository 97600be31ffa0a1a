//! The background thread: the thread of a client that leads while tasks wait, and for what is due when nobody
//! calls; and the event loops of others that do its work ([`crate::Drive`]).

use std::io;
use std::sync::MutexGuard;
use std::task::Waker;
use std::thread;
use std::time::Instant;

use super::observing::Observing;
use super::{Core, Shared, Stopped, earlier, wake_all};
use crate::clock;
use crate::limits;

impl Shared {
    /// The last handle is gone: has the background thread bring out what is queued, and waits for it,
    /// [`limits::CLOSE_WAIT`] at most.
    pub(in crate::client) fn close(&self) {
        let Ok(mut core) = self.enter() else { return };
        core.is_closing = true;
        core.wake_leader();
        let (waker, drive) = (core.background.waker.clone(), core.background.drive.take());
        let is_background = core.background.thread == Some(thread::current().id());
        self.leave(core);
        wake_all(drive.into_iter().chain([waker]));
        if !is_background {
            self.ended.park(Some(clock::now() + limits::CLOSE_WAIT));
        }
    }

    /// The thread that reports events, until there will be no more.
    pub(super) fn run_observer(&self, observing: &Observing) {
        loop {
            // Read before the events: those of the end come before it.
            let has_ended = observing.has_ended();
            let events = self.peek(|core| observing.take(&mut core.driver.engine)).unwrap_or_default();
            if !events.is_empty() {
                observing.report(&events);
            } else if has_ended {
                return;
            } else {
                observing.park();
            }
        }
    }

    pub(super) fn run_background(&self) {
        let mut seen_drop_count = 0;
        // All waiters have got the error, and all later callers will.
        let _ = self.guarded(|| self.keep(&mut seen_drop_count));
        self.ended_waker.wake_by_ref();
        self.observing.iter().for_each(|observing| observing.end());
    }

    /// Leads whenever nobody else would, until the client is closed.
    pub(super) fn keep(&self, seen_drop_count: &mut u64) -> Result<(), Stopped> {
        let mut was_woken = true;
        loop {
            if !was_woken && self.is_locked() {
                // Somebody is at work, and what is due is done by the way.
                was_woken = self.background.park(Some(clock::now() + limits::DROP_LINGER));
                continue;
            }
            let mut core = self.lock_unless_stopped()?;
            if core.is_closing {
                return self.finish(core);
            }
            if core.background.drive.is_some() {
                drop(core);
                was_woken = self.background.park(None);
                continue;
            }
            core.background.sleeps_until = None;
            let now = clock::now();
            if core.wants_background()
                && let Some(poller) = core.poller.take()
            {
                // Also when a drive has begun meanwhile, whatever that wants: it finds the lead taken until
                // then.
                let is_done = |core: &Core| {
                    core.is_closing || core.background.drive.is_some() || !core.wants_background()
                };
                self.leave(self.lead(core, poller, None, is_done)?);
                continue;
            }
            let is_guarded = core.poller.is_none();
            let look_at = core.look_at(if is_guarded { now } else { core.last_turn });
            if (core.due().is_some_and(|at| at <= now) || look_at <= now)
                && let Some(poller) = core.poller.take()
            {
                // What is due is done by one turn. What that has sent, as renewals, is mostly answered within
                // the next moment, and so is a connect that it has begun. Also if something was owed before:
                // it may have come when nobody looked, and what follows would not be heard either.
                core = self.lead(core, poller, Some(now), |_| false)?;
                if let Some(poller) = core.poller.take() {
                    let is_done = |core: &Core| {
                        let engine = &core.driver.engine;
                        core.is_closing || (engine.is_answered() && !engine.is_connecting())
                    };
                    core = self.lead(core, poller, Some(clock::now() + limits::BACKGROUND_STAY), is_done)?;
                }
                self.leave(core);
                continue;
            }
            // While guards are being dropped it looks each time they may linger, so that a drop need not wake
            // it.
            let are_dropped = std::mem::replace(seen_drop_count, core.drop_count) != core.drop_count;
            let look_again = are_dropped.then(|| now + limits::DROP_LINGER);
            // The leader does what is due within the next moment, and wakes the background thread for what is
            // due before this.
            let due = core.due().map(|at| at.max(now + limits::DROP_LINGER));
            let until = earlier(earlier(due, look_again), Some(look_at));
            core.background.sleeps_until = Some(until);
            drop(core);
            was_woken = self.background.park(until);
        }
    }

    /// Leaves the background thread's work to the calls of [`Shared::drive`]; returns what to watch.
    #[cfg(unix)]
    pub(in crate::client) fn begin_drive(&self) -> io::Result<mio::Registry> {
        let mut core = self.enter().map_err(|why| io::Error::other(why.to_string()))?;
        let registry = core.driver.registry()?;
        let replaced = core.background.drive.replace(Waker::noop().clone());
        core.background.is_favoured = false;
        core.wake_leader();
        drop(core);
        // It learns that another one drives.
        wake_all(replaced);
        Ok(registry)
    }

    /// Gives the background thread's work back to its thread.
    #[cfg(unix)]
    pub(in crate::client) fn end_drive(&self) {
        let driving = self.with(|core| {
            core.background.sleeps_until = None;
            let waker = core.background.waker.clone();
            core.completions.wake_too(waker);
            core.background.drive.take()
        });
        drop(driving);
    }

    /// A turn of the background thread's without waiting; returns when it is to have the next one. `None` if
    /// the client has ended.
    #[cfg(unix)]
    pub(in crate::client) fn drive(&self, waker: &Waker) -> Option<Option<Instant>> {
        self.guarded(|| self.drive_guarded(waker))
    }

    #[cfg(unix)]
    pub(super) fn drive_guarded(&self, waker: &Waker) -> Option<Option<Instant>> {
        let mut core = self.enter().ok().filter(|core| !core.is_closing)?;
        let drive = core.background.drive.as_mut()?;
        // Dropped after the lock is given back, as all wakers are.
        let _replaced = (!drive.will_wake(waker)).then(|| std::mem::replace(drive, waker.clone()));
        core.background.sleeps_until = None;
        core.background.has_unsent = false;
        if let Some(poller) = core.poller.take() {
            core = self.lead(core, poller, Some(clock::now()), |_| false).ok()?;
        } else {
            // A thread leads, and may have read all before what this turn was for: it has the drive look
            // again.
            core.background.has_unsent = true;
        }
        let due = core.due();
        core.background.sleeps_until = Some(due);
        self.leave(core);
        Some(due)
    }

    /// Brings out what is queued to the masters that answer.
    pub(super) fn finish(&self, mut core: MutexGuard<'_, Core>) -> Result<(), Stopped> {
        let limit = Some(clock::now() + limits::CLOSE_WAIT);
        if let Some(poller) = core.poller.take() {
            drop(self.lead(core, poller, limit, |core| core.driver.engine.is_answered())?);
        }
        Ok(())
    }
}
