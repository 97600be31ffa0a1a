//! State that the handles of one client share, and who drives its event loop.
//!
//! ```text
//!   caller: lock ─► submit ─► outcome there? ──yes──► unlock, return
//!                                  │no
//!                nobody leads ◄────┴────► somebody leads
//!    lead until it is there;              write, or let the leader write; sleep until
//!    hand the lead on                     woken with the outcome, or to lead
//! ```
//!
//! The thread with the [`Poller`] leads ("Leader/Followers", Schmidt and others, 2000). The *background*
//! thread leads while tasks wait, and for due work when nobody calls; a [drive](background::Drive) may
//! replace it. The leader sleeps without the mutex, is woken once per sleep, and [gathers](gather) the next
//! requests of woken callers. Nobody sleeps while an outcome can come and nobody leads, no waker is called
//! with the mutex held, and a leader's end is an error for all who wait.

pub(super) mod background;
mod blocking;
mod driving;
mod gather;
mod inner;
#[cfg(all(unix, feature = "simulator"))]
mod simulated;
mod woken;

use std::io;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::callbacks::Observing;
use super::completions::{CompletionToken, Completions, OutcomeKind};
use super::sleeper::{Inside, Sleeper};
use crate::cancel::Cancel;
use crate::caught::caught;
use crate::clock;
use crate::driver::{Driver, Poller};
use crate::engine::Outcome;
use crate::limits;
use crate::process::Process;
use driving::{Background, Driving};
use gather::{Gather, Gathering};
use woken::Woken;

/// With more expected outcomes than this, a write is left to the leader. That costs a wake-up, but gathers
/// what others submit meanwhile; a caller's own write leaves sooner. (`benches/floor`, 16 tasks: 1.6 sends
/// for a pair, and 3.2 if four may write for themselves.)
const DIRECT_WRITE_MAX: usize = 1;

/// Once tasks have submitted this many requests for each master, they write without waiting for the leader. A
/// server then works on some requests while the tasks submit others. (`floor client-tasks 128`, one server:
/// 0.70 of the raw loop without it, 1.10 with it. A write costs a system call for each master, so more
/// masters wait for more.)
const EARLY_WRITE_COUNT: usize = 64;

/// Why the client cannot be used.
pub(super) type Stopped = Arc<str>;

#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// The process that opened the client and runs its background thread.
    pub(super) process: Process,
    observing: Option<Arc<Observing>>,
    /// The leader, while it calls wakers.
    pub(super) waking: Inside,
    background: Arc<Sleeper>,
    /// Woken when the background thread has ended.
    ended: Arc<Sleeper>,
}

/// State behind the mutex.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) driver: Driver,
    pub(super) completions: Completions,
    /// `None` while a thread leads.
    poller: Option<Poller>,
    /// The leader's sleep, while it sleeps.
    sleep: Option<Sleep>,
    /// Wakers of the threads that sleep until a future is ready, and may lead.
    blocked: Vec<Waker>,
    background: Background,
    /// When releases of dropped guards must be sent, if nothing else is written before.
    linger_until: Option<Instant>,
    /// Number of guards dropped so far.
    drop_count: u64,
    /// Number of requests of tasks since the last write.
    unsent_count: usize,
    gathering: Gathering,
    /// When the loop was last driven.
    last_turn: Instant,
    /// Memory of names, for reuse.
    names: Vec<Vec<u8>>,
    is_closing: bool,
    stopped: Option<Stopped>,
    /// Whether a drain has stopped the client.
    pub(super) is_drained: bool,
}

#[derive(Debug)]
struct Sleep {
    until: Option<Instant>,
    is_woken: bool,
}

/// Why the client cannot be used after a panic.
const PANICKED: &str = "a thread panicked while using it; open a new client";

/// Largest number of names whose memory is kept.
const SPARE_NAME_COUNT_MAX: usize = 1024;

/// Whether one time is before another; `None` is never.
fn is_before(at: Option<Instant>, other: Option<Instant>) -> bool {
    at.is_some_and(|at| other.is_none_or(|other| at < other))
}

fn earlier(at: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    at.into_iter().chain(other).min()
}

/// Stops the client if its thread panics, because nobody would lead. Made before the mutex is taken. The
/// thread may already be in the midst of an unrelated panic.
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

/// Calls all wakers. Returns false if one panicked, which must neither keep other callers asleep nor end this
/// thread.
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

    /// State without threads.
    pub(super) fn new(driver: Driver, poller: Poller) -> Arc<Self> {
        let (background, waker) = Sleeper::pair();
        let observing = driver.engine.config().observer.clone().map(|it| Arc::new(Observing::new(it)));
        let inner = Inner {
            driver,
            completions: Completions::default(),
            poller: Some(poller),
            sleep: None,
            blocked: Vec::new(),
            background: Background {
                waker,
                thread: None,
                sleeps_until: None,
                is_favoured: false,
                drive: None,
            },
            linger_until: None,
            drop_count: 0,
            unsent_count: 0,
            gathering: Gathering::default(),
            last_turn: clock::now(),
            names: Vec::new(),
            is_closing: false,
            stopped: None,
            is_drained: false,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            process: Process::own(),
            observing,
            waking: Inside::default(),
            background,
            ended: Arc::default(),
        })
    }

    /// Starts the threads with `spawn`. After an error no thread and no connection is left.
    fn start_by(
        driver: Driver,
        poller: Poller,
        spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Arc<Self>> {
        let shared = Self::new(driver, poller);
        if let Some(observing) = shared.observing.clone() {
            let its = shared.clone();
            spawn("redlatch-events", Box::new(move || its.run_observer(&observing)))?;
        }
        let its = shared.clone();
        let background = spawn("redlatch", Box::new(move || its.run_background()))
            .inspect_err(|_| shared.observing.iter().for_each(|it| it.end()))?;
        shared.peek(|inner| inner.background.thread = Some(background.thread().id()));
        Ok(shared)
    }

    /// Takes the mutex. Fails if the client cannot be used, also in a forked child process, which has no
    /// background thread and only its parent's connections.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, Inner>, Stopped> {
        let now = clock::now();
        self.process.check_at(now)?;
        let mut inner = self.lock_unless_stopped()?;
        inner.enter_at(now);
        Ok(inner)
    }

    /// Looks at the state, even of a stopped client; `None` in a forked child process.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        let now = clock::now();
        self.process.check_at(now).ok()?;
        let mut inner = self.lock();
        inner.enter_at(now);
        Some(look(&mut inner))
    }

    /// Runs this with the mutex held. Fails if the client cannot be used.
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut Inner) -> T) -> Result<T, Stopped> {
        let _guard = self.guard();
        let mut inner = self.enter()?;
        let result = run(&mut inner);
        self.leave(inner);
        Ok(result)
    }

    /// Writes queued requests when a thread ends, as far as this needs no waiting. Gives up after
    /// [`limits::CLOSE_WAIT`], because the thread itself may hold the mutex for ever if its process is
    /// exiting.
    #[expect(clippy::disallowed_methods, reason = "sleeps")]
    pub(super) fn flush_at_end(&self) {
        let until = clock::now() + limits::CLOSE_WAIT;
        while self.process.check().is_ok() && self.is_locked() {
            if clock::now() >= until {
                return;
            }
            thread::sleep(limits::DROP_LINGER);
        }
        // A client that cannot be used has nothing to write.
        let _ = self.with(|inner| {
            inner.flush();
            inner.wake_late_leader();
        });
    }

    pub(super) fn is_locked(&self) -> bool {
        matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Takes the mutex; for the leader's files only. A panic with the mutex held stops the client.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| {
            drop(poisoned);
            self.stop(PANICKED);
            self.inner.lock().unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn lock_unless_stopped(&self) -> Result<MutexGuard<'_, Inner>, Stopped> {
        let inner = self.lock();
        match &inner.stopped {
            Some(why) => Err(why.clone()),
            None => Ok(inner),
        }
    }

    /// Ends the client for all current and later callers.
    pub(super) fn stop(&self, why: &str) -> Stopped {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let why = inner.stopped.get_or_insert_with(|| why.into()).clone();
        inner.completions.give_up();
        inner.wake_leader();
        let background = inner.background.waker.clone();
        let woken: Vec<_> = iter::from_fn(|| inner.completions.pop_woken()).collect();
        let drive = inner.background.drive.take();
        drop(inner);
        background.wake();
        wake_all(woken.into_iter().chain(drive.map(|drive| drive.waker)));
        why
    }

    /// Guards a call that takes the mutex and may lead; see [`PanicGuard`].
    fn guard(&self) -> PanicGuard<'_> {
        PanicGuard { shared: self, panicked_before: thread::panicking() }
    }

    /// Takes the mutex for a thread that waits for an outcome of this kind.
    fn enter_to_wait(&self, kind: OutcomeKind) -> Result<MutexGuard<'_, Inner>, Stopped> {
        self.waking.check_outside()?;
        let inner = self.enter()?;
        match kind {
            OutcomeKind::Extend | OutcomeKind::Release | OutcomeKind::Drain => Ok(inner),
            _ => self.revive(inner),
        }
    }

    /// Waits on this thread for the outcome that `ask` expects; `None` if it expects none, or if the call is
    /// cancelled before. A handle must call [`Shared::thread_waker`], because this thread may lead.
    pub(super) fn wait(
        &self,
        kind: OutcomeKind,
        cancel: Option<&Cancel>,
        ask: impl FnOnce(&mut Inner) -> Option<CompletionToken>,
    ) -> Result<Option<Outcome>, Stopped> {
        let _guard = self.guard();
        let mut inner = self.enter_to_wait(kind)?;
        inner.gathering.remove_one();
        inner.background.is_favoured = false;
        let Some(completion) = ask(&mut inner) else {
            self.leave(inner);
            return Ok(None);
        };
        // A task may have waited for the outcome before. Its waker is dropped after the mutex is released.
        let _replaced = inner.completions.stop_waiting(completion);
        if inner.completions.is_done(completion) {
            inner.write_answered();
        }
        let mut inner = self.wait_for(inner, cancel, completion)?;
        let outcome = inner.completions.take(completion);
        self.leave(inner);
        Ok(outcome)
    }

    /// Leads or sleeps until this outcome has come, or the call is cancelled.
    fn wait_for<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        cancel: Option<&Cancel>,
        completion: CompletionToken,
    ) -> Result<MutexGuard<'a, Inner>, Stopped> {
        let is_done =
            |inner: &Inner| inner.completions.is_done(completion) || cancel.is_some_and(Cancel::is_cancelled);
        while !is_done(&inner) {
            if let Some(poller) = inner.poller.take() {
                inner = self.lead(inner, poller, None, is_done)?;
                continue;
            }
            inner.write_beside_leader();
            if is_done(&inner) {
                break;
            }
            let (sleeper, waker) = Sleeper::own();
            inner.completions.wait_as_thread(completion, waker);
            self.leave(inner);
            sleeper.sleep(None);
            inner = self.lock();
            inner.completions.stop_waiting(completion);
            // An outcome that came before the end of a drain is still handed out.
            if let Some(why) = &inner.stopped
                && !(inner.is_drained && is_done(&inner))
            {
                return Err(why.clone());
            }
        }
        Ok(inner)
    }

    /// Waker that ends this thread's wait for this client, whether the thread sleeps or leads.
    pub(super) fn thread_waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(ThreadWaker { sleeper: Sleeper::own().0, shared: Arc::downgrade(self) }))
    }

    /// Returns the answer if it is there. Otherwise wakes `waker` when it is. Like [`Shared::wait`] in other
    /// respects. `is_new` if the answer was not expected before.
    pub(super) fn poll(
        &self,
        waker: &Waker,
        is_new: bool,
        ask: impl FnOnce(&mut Inner) -> Option<CompletionToken>,
    ) -> Poll<Result<Option<Outcome>, Stopped>> {
        let _guard = self.guard();
        // Checked in each poll: in a forked child process no answer would ever come.
        let now = clock::now();
        if let Err(why) = self.process.check_at(now) {
            return Poll::Ready(Err(why));
        }
        let mut inner = self.lock();
        inner.enter_at(now);
        if let Some(why) = inner.stopped.as_ref().filter(|_| is_new || !inner.is_drained) {
            return Poll::Ready(Err(why.clone()));
        }
        let Some(completion) = ask(&mut inner) else {
            self.leave(inner);
            return Poll::Ready(Ok(None));
        };
        if let Some(outcome) = inner.completions.take(completion) {
            if is_new {
                inner.write_answered();
            }
            self.leave(inner);
            return Poll::Ready(Ok(Some(outcome)));
        }
        // An outcome that came before the end of a drain is still handed out.
        if let Some(why) = &inner.stopped {
            return Poll::Ready(Err(why.clone()));
        }
        // Dropped after the mutex is released, as the drop may run foreign code.
        let _replaced = inner.completions.wait_as_task(completion, waker);
        inner.background.is_favoured |= !inner.is_collecting();
        if is_new {
            inner.gathering.remove_one();
            inner.write_for_task();
        }
        self.leave(inner);
        Poll::Pending
    }

    /// Turns until `is_done` or `limit`, at least once unless it is done before. Gives the poller back.
    fn lead<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        mut poller: Poller,
        limit: Option<Instant>,
        is_done: impl Fn(&Inner) -> bool,
    ) -> Result<MutexGuard<'a, Inner>, Stopped> {
        // Gathers at most once between two reads of the sockets, because callers can return for ever. The
        // first time is for callers that the previous leader has woken.
        let mut has_gathered = false;
        if let Some(gather) = inner.begin_gathering() {
            (inner, has_gathered) = (self.gather(inner, Woken::take(|| None), gather)?, true);
        }
        loop {
            let due = inner.begin_turn();
            if is_done(&inner) {
                break;
            }
            self.notify_observer(&inner);
            let woken = inner.pop_woken_as_leader();
            if woken.is_full() {
                drop(inner);
                self.wake_as_leader(woken)?;
                inner = self.lock_unless_stopped()?;
                continue;
            }
            if !has_gathered && let Some(gather) = inner.begin_gathering() {
                (inner, has_gathered) = (self.gather(inner, woken, gather)?, true);
                continue;
            }
            let until = earlier(earlier(due, inner.completions.relay_until()), limit);
            inner.sleep = Some(Sleep { until, is_woken: false });
            drop(inner);
            // The leader sleeps right afterwards, so woken callers find the mutex free.
            self.wake_as_leader(woken)?;
            let timeout = until.map(|at| at.saturating_duration_since(clock::now()));
            let slept = poller.wait(timeout);
            inner = self.lock_unless_stopped()?;
            (inner.sleep, has_gathered) = (None, false);
            match slept {
                Ok(is_whole) => inner.end_turn(&poller, is_whole),
                Err(error) => {
                    drop(inner);
                    return Err(self.stop(&format!("the event queue failed ({error}); open a new client")));
                }
            }
            if is_done(&inner) || limit.is_some_and(|limit| limit <= inner.now()) {
                break;
            }
        }
        inner.poller = Some(poller);
        Ok(inner)
    }

    /// Wakes these callers as the leader, and waits a moment for all callers whose outcomes have come.
    #[expect(clippy::disallowed_methods, reason = "yields")]
    fn gather<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        woken: Woken,
        gather: Gather,
    ) -> Result<MutexGuard<'a, Inner>, Stopped> {
        drop(inner);
        self.wake_as_leader(woken)?;
        let slow_at = gather.run(clock::now, thread::yield_now);
        let mut inner = self.lock_unless_stopped()?;
        inner.gathering.end(slow_at);
        Ok(inner)
    }

    fn notify_observer(&self, inner: &Inner) {
        if let Some(observing) = &self.observing {
            observing.notify(&inner.driver.engine);
        }
    }

    /// Calls these wakers as the leader, without the mutex. A waker that waits for this client meanwhile gets
    /// an error.
    fn wake_as_leader(&self, woken: Woken) -> Result<(), Stopped> {
        if woken.is_empty() { Ok(()) } else { self.waking.run(|| self.wake(woken)) }
    }

    /// Calls these wakers without the mutex. A panic stops the client.
    fn wake(&self, woken: Woken) -> Result<(), Stopped> {
        let is_sound = wake_all(woken.into_iter());
        if is_sound { Ok(()) } else { Err(self.stop("a waker panicked; open a new client")) }
    }

    /// Notices connections that servers have closed in an idle time. If no quorum is left without them, waits
    /// a moment for new ones. Otherwise the first call after a quiet night would fail on healthy masters.
    fn revive<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> Result<MutexGuard<'a, Inner>, Stopped> {
        let now = inner.now();
        let is_idle = now.saturating_duration_since(inner.last_turn) >= limits::IDLE_MAX;
        if inner.driver.engine.has_quorum() && !is_idle {
            return Ok(inner);
        }
        if let Some(poller) = inner.poller.take() {
            inner = self.lead(inner, poller, Some(now), |_| false)?;
        }
        if is_idle
            && !inner.driver.engine.has_quorum()
            && let Some(poller) = inner.poller.take()
        {
            let limit = Some(now + limits::REVIVE_MAX);
            inner = self.lead(inner, poller, limit, |inner| inner.driver.engine.has_quorum())?;
        }
        Ok(inner)
    }

    /// Releases the mutex. Before, makes sure that somebody leads if that is needed; afterwards, wakes due
    /// callers.
    pub(super) fn leave(&self, mut inner: MutexGuard<'_, Inner>) {
        let elected = inner.elect();
        self.notify_observer(&inner);
        if !inner.completions.has_woken() {
            inner.completions.end_relay();
            drop(inner);
            elected.into_iter().flatten().for_each(Waker::wake);
            return;
        }
        let mut woken = inner.pop_woken();
        drop(inner);
        // The elected leader first: nobody leads until it is awake, and foreign wakers may take long.
        elected.into_iter().flatten().for_each(Waker::wake);
        loop {
            let may_be_more = woken.is_full();
            // A client that has stopped has woken all waiting callers.
            if self.wake(woken).is_err() || !may_be_more {
                return;
            }
            let Ok(mut inner) = self.lock_unless_stopped() else { return };
            woken = inner.pop_woken();
        }
    }
}

struct ThreadWaker {
    sleeper: Arc<Sleeper>,
    shared: Weak<Shared>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.sleeper.wake_by_ref();
        // A client that cannot be used has woken all waiting callers.
        let _ = self.shared.upgrade().map(|shared| shared.with(Inner::wake_leader));
    }
}

#[cfg(test)]
mod tests;
