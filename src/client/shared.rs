//! State that the handles of one client share, and who drives its event loop.
//!
//! ```text
//!   caller: lock ─► submit ─► is the outcome there? ──yes──► unlock, return
//!                                   │no
//!                 nobody leads ◄────┴────► somebody leads
//!                      │                         │
//!             lead: turns until it is      write, or have the leader do it; sleep
//!             there; hand the lead on      until woken with the outcome, or to lead
//! ```
//!
//! The thread that has the [`Poller`] leads. A thread that waits leads itself if nobody does, so a lone one
//! needs no other and no system call but those of the sockets. The *background*, a thread of the client's
//! own, leads while tasks wait, and for what is due when nobody calls: time-outs, reconnects, the releases of
//! dropped guards. The leader sleeps without the lock, so that others can submit and write meanwhile, and is
//! woken at most once in a sleep. The pattern is that of Schmidt and others, "Leader/Followers" (2000).
//!
//! Owns leadership. Does not know what an outcome means. Keeps that nobody sleeps while an outcome can come
//! and nobody leads, that no waker is called with the lock held, and that a leader's end is an error to all
//! who wait.

pub(super) mod background;
mod core;

use std::io;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::callbacks::Observing;
use super::completions::{CompletionToken, Completions, OutcomeKind};
use super::parker::{Inside, Parker};
use crate::caught::caught;
use crate::clock;
use crate::driver::{Driver, Poller};
use crate::engine::Outcome;
use crate::limits;
use crate::process::Process;

/// With more outcomes waited for than this, a write is left to the leader: it costs a wake-up, and gathers
/// what others submit meanwhile. The caller's own is sooner on its way. (`benches/floor`, 16 tasks: 1.6 sends
/// for a pair, and 3.2 if four may write for themselves.)
const DIRECT_WRITE_MAX: usize = 1;

/// Requests of tasks for each master behind which a write no longer waits for the leader. A server then
/// works on some while the tasks ask for others. (`floor client-tasks 128`, one server: 0.70 of the raw loop
/// without it, 1.10 with it. A write costs a system call for each master, so more masters wait for more.)
const EARLY_WRITE_COUNT: usize = 64;

/// Why nothing can be done any more.
pub(super) type Stopped = Arc<str>;

/// State that all handles of a client share.
#[derive(Debug)]
pub(super) struct Shared {
    core: Mutex<Core>,
    /// The process that has the background thread.
    pub(super) process: Process,
    observing: Option<Arc<Observing>>,
    /// The leader while it calls wakers.
    pub(super) waking: Inside,
    background: Arc<Parker>,
    /// Woken when the background thread has ended.
    ended: Arc<Parker>,
    ended_waker: Waker,
}

/// State that is used with the lock held.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) driver: Driver,
    pub(super) completions: Completions,
    /// `None` while somebody leads.
    poller: Option<Poller>,
    /// While the leader sleeps.
    sleep: Option<Sleep>,
    background: Background,
    /// When releases of dropped guards are to be on their way, if nothing else is written before.
    linger_until: Option<Instant>,
    /// Guards dropped so far.
    drop_count: u64,
    /// Requests of tasks since the last write.
    unsent_count: usize,
    /// When the loop was last driven.
    last_turn: Instant,
    /// Memory of names, to be used again.
    names: Vec<Vec<u8>>,
    is_closing: bool,
    stopped: Option<Stopped>,
    /// Whether a drain has stopped it.
    pub(super) is_drained: bool,
}

#[derive(Debug)]
struct Sleep {
    until: Option<Instant>,
    is_woken: bool,
}

#[derive(Debug)]
struct Background {
    waker: Waker,
    thread: Option<thread::ThreadId>,
    /// Until when it sleeps without leading; `None` while it does not.
    sleeps_until: Option<Option<Instant>>,
    /// Whether it leads although nobody waits: the last caller was a task, and the next one probably is.
    is_favoured: bool,
    /// The task that does its work in place of its thread, and is woken like it.
    drive: Option<Waker>,
    /// Whether something was left for it to do.
    has_unsent: bool,
}

/// Why nothing can be done after a panic.
const PANICKED: &str = "a thread panicked while using it; open a new client";

/// Names whose memory is kept.
const SPARE_NAME_COUNT_MAX: usize = 1024;

/// Whether one time limit is over before another; none is never.
fn is_before(at: Option<Instant>, other: Option<Instant>) -> bool {
    at.is_some_and(|at| other.is_none_or(|other| at < other))
}

fn earlier(at: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    at.into_iter().chain(other).min()
}

/// Stops the client if its thread panics: nobody would lead any more. To be made before the lock is taken. The
/// thread may be in the midst of another panic that is none of ours.
struct PanicGuard<'a> {
    shared: &'a Shared,
    panicked_before: bool,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.panicked_before {
            self.shared.stop(PANICKED);
        }
    }
}

/// Wakes all of them; false if one panicked, which must neither keep the others asleep nor end this thread.
pub(super) fn wake_all(woken: impl IntoIterator<Item = Waker>) -> bool {
    let mut is_sound = true;
    for waker in woken {
        is_sound &= caught(|| waker.wake()).is_some();
    }
    is_sound
}

impl Shared {
    /// Starts the background thread of a driver that has settled.
    pub(super) fn start(driver: Driver, poller: Poller) -> io::Result<Arc<Self>> {
        Self::start_by(driver, poller, |name, run| thread::Builder::new().name(name.to_owned()).spawn(run))
    }

    /// Starts them in this way. After an error no thread is left, and no connection.
    fn start_by(
        driver: Driver,
        poller: Poller,
        spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Arc<Self>> {
        let (background, waker) = Parker::pair();
        let (ended, ended_waker) = Parker::pair();
        let observing = driver.engine.config().observer.clone().map(|it| Arc::new(Observing::new(it)));
        let core = Core {
            driver,
            completions: Completions::default(),
            poller: Some(poller),
            sleep: None,
            background: Background {
                waker,
                thread: None,
                sleeps_until: None,
                is_favoured: false,
                drive: None,
                has_unsent: false,
            },
            linger_until: None,
            drop_count: 0,
            unsent_count: 0,
            last_turn: clock::now(),
            names: Vec::new(),
            is_closing: false,
            stopped: None,
            is_drained: false,
        };
        let shared = Arc::new(Self {
            core: Mutex::new(core),
            process: Process::own(),
            observing,
            waking: Inside::default(),
            background,
            ended,
            ended_waker,
        });
        if let Some(observing) = shared.observing.clone() {
            let its = shared.clone();
            spawn("redlatch-events", Box::new(move || its.run_observer(&observing)))?;
        }
        let its = shared.clone();
        let background = spawn("redlatch", Box::new(move || its.run_background()))
            .inspect_err(|_| shared.observing.iter().for_each(|it| it.end()))?;
        shared.peek(|core| core.background.thread = Some(background.thread().id()));
        Ok(shared)
    }

    /// Takes the lock. An error if the client cannot be used, also in a fork: that has no background thread,
    /// and its parent's connections.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, Core>, Stopped> {
        self.process.check()?;
        self.lock_unless_stopped()
    }

    /// Looks at something, also in a client that was stopped; `None` in a fork.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&mut Core) -> T) -> Option<T> {
        self.process.check().ok()?;
        Some(look(&mut self.lock()))
    }

    /// Does something with the lock held. An error if the client cannot be used.
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut Core) -> T) -> Result<T, Stopped> {
        let _guard = self.guard();
        let mut core = self.enter()?;
        let result = run(&mut core);
        self.leave(core);
        Ok(result)
    }

    /// Writes what is queued, as far as that needs no waiting, when a thread ends. The thread itself may have
    /// the lock for ever, if its process exits meanwhile.
    pub(super) fn flush_at_end(&self) {
        let until = clock::now() + limits::CLOSE_WAIT;
        while self.process.check().is_ok() && self.is_locked() {
            if clock::now() >= until {
                return;
            }
            thread::sleep(limits::DROP_LINGER);
        }
        // A client that cannot be used has nothing to write.
        let _ = self.with(|core| {
            core.flush();
            core.wake_late_leader();
        });
    }

    /// Whether some thread has the lock.
    fn is_locked(&self) -> bool {
        matches!(self.core.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The lock itself; for the files of the leader only. A panic with the lock held stops the client.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| {
            drop(poisoned);
            self.stop(PANICKED);
            self.core.lock().unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn lock_unless_stopped(&self) -> Result<MutexGuard<'_, Core>, Stopped> {
        let core = self.lock();
        match &core.stopped {
            Some(why) => Err(why.clone()),
            None => Ok(core),
        }
    }

    /// Ends the client for all who wait and all who come.
    pub(super) fn stop(&self, why: &str) -> Stopped {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let why = core.stopped.get_or_insert_with(|| why.into()).clone();
        core.completions.give_up();
        core.wake_leader();
        let background = core.background.waker.clone();
        let woken: Vec<_> = iter::from_fn(|| core.completions.pop_woken()).collect();
        let drive = core.background.drive.take();
        drop(core);
        background.wake();
        wake_all(woken.into_iter().chain(drive));
        why
    }

    /// Guards a call that takes the lock, and may lead; see [`PanicGuard`].
    fn guard(&self) -> PanicGuard<'_> {
        PanicGuard { shared: self, panicked_before: thread::panicking() }
    }

    /// Takes the lock for a thread that waits for an outcome of this kind.
    fn enter_to_wait(&self, kind: OutcomeKind) -> Result<MutexGuard<'_, Core>, Stopped> {
        self.waking.check_outside()?;
        let core = self.enter()?;
        match kind {
            OutcomeKind::Extend | OutcomeKind::Release | OutcomeKind::Drain => Ok(core),
            _ => self.revive(core),
        }
    }

    /// Prepares a thread that polls as a task does, and waits between its polls.
    pub(super) fn begin_wait(&self, kind: OutcomeKind) -> Result<(), Stopped> {
        let _guard = self.guard();
        let core = self.enter_to_wait(kind)?;
        self.leave(core);
        Ok(())
    }

    /// Waits on this thread for the outcome that `ask` expects; `None` if it expects none.
    pub(super) fn wait(
        &self,
        kind: OutcomeKind,
        ask: impl FnOnce(&mut Core) -> Option<CompletionToken>,
    ) -> Result<Option<Outcome>, Stopped> {
        let _guard = self.guard();
        let mut core = self.enter_to_wait(kind)?;
        core.background.is_favoured = false;
        let Some(completion) = ask(&mut core) else {
            self.leave(core);
            return Ok(None);
        };
        loop {
            if let Some(outcome) = core.completions.take(completion) {
                self.leave(core);
                return Ok(Some(outcome));
            }
            if let Some(poller) = core.poller.take() {
                core = self.lead(core, poller, None, |core| core.completions.is_done(completion))?;
                continue;
            }
            core.write_beside_leader();
            if core.completions.is_done(completion) {
                continue;
            }
            let (parker, waker) = Parker::own();
            core.completions.wait_as_thread(completion, waker);
            self.leave(core);
            parker.park(None);
            core = self.lock();
            core.completions.stop_waiting(completion);
            // An outcome that came before the end of a drain is still handed out.
            if let Some(why) = &core.stopped
                && !(core.is_drained && core.completions.is_done(completion))
            {
                return Err(why.clone());
            }
        }
    }

    /// The answer if it is there; else `waker` is woken when it is. As [`Shared::wait`] otherwise; `is_new`
    /// if it was not expected before.
    pub(super) fn poll(
        &self,
        waker: &Waker,
        is_new: bool,
        ask: impl FnOnce(&mut Core) -> Option<CompletionToken>,
    ) -> Poll<Result<Option<Outcome>, Stopped>> {
        let _guard = self.guard();
        // Also later on: in a fork no answer would ever come.
        if let Err(why) = self.process.check() {
            return Poll::Ready(Err(why));
        }
        let mut core = self.lock();
        if let Some(why) = core.stopped.as_ref().filter(|_| is_new || !core.is_drained) {
            return Poll::Ready(Err(why.clone()));
        }
        let Some(completion) = ask(&mut core) else {
            self.leave(core);
            return Poll::Ready(Ok(None));
        };
        if let Some(outcome) = core.completions.take(completion) {
            self.leave(core);
            return Poll::Ready(Ok(Some(outcome)));
        }
        // An outcome that came before the end of a drain is still handed out.
        if let Some(why) = &core.stopped {
            return Poll::Ready(Err(why.clone()));
        }
        // Dropped after the lock is given back, whatever it drops with itself.
        let _replaced = core.completions.wait_as_task(completion, waker);
        core.background.is_favoured = true;
        if is_new {
            core.write_for_task();
        }
        self.leave(core);
        Poll::Pending
    }

    /// Turns until `is_done`, or until `limit`; at least one turn unless it is done before. Gives the poller
    /// back.
    fn lead<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        mut poller: Poller,
        limit: Option<Instant>,
        is_done: impl Fn(&Core) -> bool,
    ) -> Result<MutexGuard<'a, Core>, Stopped> {
        loop {
            core = self.wake_as_leader(core)?;
            let due = core.begin_turn();
            if is_done(&core) {
                break;
            }
            self.notify_observer(&core);
            if core.completions.wakes_as_leader() {
                continue;
            }
            let until = earlier(earlier(due, core.completions.relay_until()), limit);
            let timeout = until.map(|at| at.saturating_duration_since(clock::now()));
            core.sleep = Some(Sleep { until, is_woken: false });
            drop(core);
            let slept = poller.wait(timeout);
            core = self.lock_unless_stopped()?;
            core.sleep = None;
            match slept {
                Ok(is_whole) => core.end_turn(&poller, is_whole),
                Err(error) => {
                    drop(core);
                    return Err(self.stop(&format!("the event queue failed ({error}); open a new client")));
                }
            }
            if is_done(&core) || limit.is_some_and(|limit| limit <= clock::now()) {
                break;
            }
        }
        core.poller = Some(poller);
        Ok(core)
    }

    fn notify_observer(&self, core: &Core) {
        if let Some(observing) = &self.observing {
            observing.notify(&core.driver.engine);
        }
    }

    /// Wakes the threads, and of the tasks as many as the loop leader wakes. A waker that waits for this
    /// client meanwhile gets an error.
    fn wake_as_leader<'a>(&'a self, core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, Stopped> {
        if !core.completions.has_woken() {
            return Ok(core);
        }
        let now = clock::now();
        self.waking.run(|| self.wake_others(core, |core| core.completions.pop_woken_as_leader(now)))
    }

    /// Wakes those whose outcome has come, without the lock.
    fn wake_others<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        mut next: impl FnMut(&mut Core) -> Option<Waker>,
    ) -> Result<MutexGuard<'a, Core>, Stopped> {
        loop {
            let mut woken = [const { None }; WOKEN_COUNT];
            for (place, waker) in woken.iter_mut().zip(iter::from_fn(|| next(&mut core))) {
                *place = Some(waker);
            }
            if woken[0].is_none() {
                return Ok(core);
            }
            drop(core);
            if !wake_all(woken.into_iter().flatten()) {
                return Err(self.stop("a waker panicked; open a new client"));
            }
            core = self.lock_unless_stopped()?;
        }
    }

    /// After an idle time servers may have closed connections; see [`crate::Redlock`], which does the same.
    fn revive<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, Stopped> {
        let has_quorum = core.driver.engine.has_quorum();
        if has_quorum && core.poller.is_none() {
            return Ok(core);
        }
        let now = clock::now();
        let is_idle = now.saturating_duration_since(core.last_turn) >= limits::IDLE_MAX;
        if has_quorum && !is_idle {
            return Ok(core);
        }
        if let Some(poller) = core.poller.take() {
            core = self.lead(core, poller, Some(now), |_| false)?;
        }
        if is_idle
            && !core.driver.engine.has_quorum()
            && let Some(poller) = core.poller.take()
        {
            let limit = Some(now + limits::REVIVE_MAX);
            core = self.lead(core, poller, limit, |core| core.driver.engine.has_quorum())?;
        }
        Ok(core)
    }

    /// Gives the lock back; before, sees to it that somebody leads if that is needed, and after, wakes whom
    /// to wake.
    pub(super) fn leave(&self, mut core: MutexGuard<'_, Core>) {
        let elected = core.elect();
        self.notify_observer(&core);
        if !core.completions.has_woken() {
            core.completions.end_relay();
            drop(core);
            elected.into_iter().for_each(Waker::wake);
            return;
        }
        // Woken first: nobody leads until it is awake, and what others' wakers do may take long.
        if let Some(elected) = elected {
            core.completions.wake_first(elected);
        }
        if let Ok(core) = self.wake_others(core, |core| core.completions.pop_woken()) {
            drop(core);
        }
    }
}

/// Wakers that are called with the lock given back once.
const WOKEN_COUNT: usize = 32;

#[cfg(test)]
mod tests;
