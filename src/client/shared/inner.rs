//! Operations with the client's mutex held: requests, writes, turns, and the choice whom to wake.

use std::task::Waker;
use std::time::Instant;

use super::gather::Gather;
use super::{
    CompletionToken, DIRECT_WRITE_MAX, Driving, EARLY_WRITE_COUNT, Inner, SPARE_NAME_COUNT_MAX, Woken,
    earlier, is_before,
};
use crate::client::guard::HeldName;
use crate::clock;
use crate::driver::Poller;
use crate::engine::{OpId, Request, SubmitError};
use crate::limits;

impl Inner {
    /// Time of this entry. Returns the engine's time, which never goes back: another thread may have read the
    /// clock later, but entered earlier.
    pub(in crate::client) fn now(&self) -> Instant {
        self.driver.engine.now()
    }

    /// Takes over the clock reading of the thread that holds the mutex. Long work with the mutex held reads
    /// the clock again.
    pub(in crate::client) fn enter_at(&mut self, now: Instant) {
        self.driver.engine.note_time(now);
    }

    /// Submits a request to the engine. The caller must see to it that the request is written.
    pub(in crate::client) fn submit(&mut self, request: Request<'_>) -> Result<OpId, SubmitError> {
        self.driver.submit(self.now(), request)
    }

    /// Abandons an answer. The waker must be dropped outside the mutex.
    pub(in crate::client) fn abandon(&mut self, completion: CompletionToken) -> Option<Waker> {
        let waker = self.completions.abandon(self.now(), &mut self.driver.engine, completion);
        self.write_drop();
        waker
    }

    /// Releases the lock of a dropped guard. The wakers must be dropped outside the mutex.
    pub(in crate::client) fn release_dropped(&mut self, lock: OpId, name: HeldName) -> Vec<Waker> {
        // A release is always accepted, and nobody wants its outcome.
        let _ = self.submit(Request::Release { lock, awaited: false });
        self.write_drop();
        self.give_name(name);
        self.completions.end_loss_listeners(lock)
    }

    /// Delivers outcomes to their callers.
    pub(in crate::client) fn deliver(&mut self) {
        if self.driver.engine.has_outcome() {
            let caller_count = self.completions.deliver(self.now(), &mut self.driver.engine);
            self.gathering.add(caller_count);
        }
    }

    /// When work is due, whatever else happens.
    pub(super) fn due(&self) -> Option<Instant> {
        earlier(self.driver.due(), self.linger_until)
    }

    /// Next time for the background thread to turn without due work, after a turn that ended at `turn`.
    /// Without such turns, connections that servers closed while idle would stay unnoticed, and a task does
    /// not wait for new ones.
    pub(super) fn look_at(&self, turn: Instant) -> Instant {
        let is_connecting = self.driver.engine.is_connecting();
        turn + if is_connecting { limits::CONNECT_LOOK_PAUSE } else { limits::LOOK_PAUSE }
    }

    pub(super) fn begin_turn(&mut self) -> Option<Instant> {
        (self.linger_until, self.unsent_count) = (None, 0);
        let due = self.driver.begin_turn();
        self.deliver();
        due
    }

    pub(super) fn end_turn(&mut self, poller: &Poller, is_whole: bool) {
        if is_whole {
            self.last_turn = self.driver.end_turn(poller);
            self.enter_at(self.last_turn);
        } else {
            self.enter_at(clock::now());
        }
        self.deliver();
    }

    /// The drive, unless it is late.
    pub(super) fn drive_in_time(&self) -> Option<&Driving> {
        let drive = self.background.drive.as_ref()?;
        drive.late_at.is_none_or(|at| self.now() < at).then_some(drive)
    }

    /// Returns whether the background thread must lead now, or a user's drive must turn. A drive itself
    /// notices when something arrives.
    pub(super) fn wants_background(&self) -> bool {
        match self.drive_in_time() {
            Some(drive) => drive.has_unsent && !drive.is_watched,
            None => {
                // A thread that waits for a future waits as a task, and leads by itself.
                let is_awaited = self.completions.task_count() > 0 && self.blocked.is_empty();
                self.background.is_favoured || is_awaited
            }
        }
    }

    /// Begins to gather, unless a drive is in time: the callers may run on its thread.
    pub(super) fn begin_gathering(&mut self) -> Option<Gather> {
        let (now, waiting_count) = (self.now(), self.completions.waiting_count());
        if self.drive_in_time().is_some() { None } else { self.gathering.begin(now, waiting_count) }
    }

    /// Called by a thread that does not lead. Writes queued requests, and tells the leader about earlier
    /// deadlines.
    pub(super) fn write_beside_leader(&mut self) {
        if self.sleep.is_none() {
            return;
        }
        if self.completions.waiting_count() > DIRECT_WRITE_MAX {
            self.wake_leader();
            return;
        }
        self.flush();
        self.wake_late_leader();
    }

    /// Wakes the leader if it sleeps beyond the next deadline. Called after a flush, which may set a
    /// deadline.
    pub(in crate::client) fn wake_late_leader(&mut self) {
        let due = self.driver.engine.next_timeout().map(|(at, _)| at);
        if self.sleep.as_ref().is_some_and(|sleep| is_before(due, sleep.until)) {
            self.wake_leader();
        }
    }

    pub(in crate::client) fn flush(&mut self) {
        (self.linger_until, self.unsent_count) = (None, 0);
        self.driver.flush();
        self.deliver();
    }

    pub(super) fn wake_leader(&mut self) {
        if let Some(sleep) = &mut self.sleep
            && !std::mem::replace(&mut sleep.is_woken, true)
        {
            // Fails only without kernel memory, and the sleep has an end.
            let _ = self.driver.wake_poller();
        }
    }

    /// Writes, or leaves the write to another thread, after a task has submitted a request.
    pub(super) fn write_for_task(&mut self) {
        self.unsent_count += 1;
        if self.unsent_count >= EARLY_WRITE_COUNT * self.driver.engine.config().masters.len() {
            self.flush();
            return self.wake_late_leader();
        }
        if self.is_collecting() {
            return;
        }
        if self.poller.is_none() {
            return self.write_beside_leader();
        }
        // A drive writes once for all callers that wait or are about to return.
        let is_shared =
            self.completions.waiting_count() > DIRECT_WRITE_MAX || self.gathering.expects_callers();
        let is_driven = is_shared && self.drive_in_time().is_some();
        match &mut self.background.drive {
            Some(drive) if is_driven => drive.has_unsent = true,
            // Nobody leads, and the background thread is being woken: the request need not wait for that
            // thread.
            _ => self.flush(),
        }
    }

    /// Writes the commands of a request that was answered at once, so nobody waits for it. A fenced attempt that
    /// fails because masters are in quarantine has such commands.
    #[cold]
    pub(super) fn write_answered(&mut self) {
        if self.poller.is_none() {
            self.write_beside_leader();
        } else if self.linger_until.is_none() {
            self.flush();
        }
    }

    /// Writes several requests that were submitted together, since `start`.
    pub(in crate::client) fn write_batch(&mut self, start: Instant) {
        self.flush();
        self.enter_at(clock::now());
        if self.now() - start >= limits::ANSWER_LIMIT_MIN {
            self.driver.engine.handle_unread(self.now());
        }
        self.wake_late_leader();
    }

    /// Notes the drop of a guard, whose release is sent with the next write, soon.
    pub(super) fn write_drop(&mut self) {
        self.deliver();
        self.drop_count += 1;
        if self.poller.is_some() {
            self.linger_until.get_or_insert(self.now() + limits::DROP_LINGER);
        } else {
            self.write_beside_leader();
        }
    }

    pub(super) fn pop_woken(&mut self) -> Woken {
        Woken::take(|| self.completions.pop_woken())
    }

    /// Wakers of threads, and of as many tasks as the loop leader wakes.
    pub(super) fn pop_woken_as_leader(&mut self) -> Woken {
        if !self.completions.has_woken() {
            return Woken::take(|| None);
        }
        Woken::take(|| self.completions.pop_woken_as_leader(self.now()))
    }

    /// Returns whom to wake to lead, since the caller does not lead.
    pub(super) fn elect(&mut self) -> [Option<Waker>; 2] {
        if self.poller.is_none() {
            return [None, None];
        }
        if let Some(thread) = self.completions.sleeping_thread().or_else(|| self.blocked.last().cloned()) {
            return [Some(thread), None];
        }
        let (late_at, look_at) = (self.now() + limits::DRIVE_LATE, Some(self.look_at(self.last_turn)));
        let (mut turning, mut at) = (None, self.due());
        match &mut self.background.drive {
            Some(drive) if drive.is_watched => {
                turning = std::mem::take(&mut drive.has_unsent).then(|| drive.waker.clone());
                if self.completions.task_count() > 0 {
                    drive.late_at.get_or_insert(late_at);
                }
                at = earlier(earlier(at, look_at), drive.late_at);
            }
            // A user's drive itself notices when something arrives.
            Some(_) => {}
            None => at = earlier(at, look_at),
        }
        let is_late = |until| is_before(at, until);
        // A thread that collects leads in a moment, but what is due must not wait for it.
        let wants_background = self.wants_background() && !self.is_collecting();
        let is_woken = |until| wants_background || self.is_closing || is_late(until);
        let is_woken = self.background.sleeps_until.is_some_and(is_woken);
        let keeper = is_woken.then(|| {
            self.background.sleeps_until = None;
            self.background.keeper().clone()
        });
        [turning, keeper]
    }

    /// Copies a name, into memory that was used before if there is some.
    pub(in crate::client) fn take_name(&mut self, name: &[u8]) -> Vec<u8> {
        let mut copy = self.names.pop().unwrap_or_default();
        copy.extend_from_slice(name);
        copy
    }

    /// Keeps the memory of a name.
    pub(in crate::client) fn give_name(&mut self, name: HeldName) {
        let HeldName::Copied(mut name) = name else { return };
        if self.names.len() < SPARE_NAME_COUNT_MAX && name.capacity() > 0 {
            name.clear();
            self.names.push(name);
        }
    }
}
