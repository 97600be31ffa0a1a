//! Locks that pass between clients with a handle.

use std::time::Duration;

use rand::RngExt;
use redlatch::completions::OutcomeKind;
use redlatch::engine::{HandleAct, OpId, Request};
use redlatch::simulated::Call;
use redlatch::{LockHandle, Mode};

use crate::client::{Lock, Pending};
use crate::clock::Time;
use crate::network::chance;
use crate::world::{World, note, shown};

/// Number of handles to keep, because handles are tried more than once.
const HANDLE_COUNT_MAX: usize = 4;

impl World {
    /// Passes a worker's lock on as a handle.
    pub fn pass_on(&mut self, client: usize, lock: OpId) {
        match self.pass(client, lock) {
            // The lock goes on if its caller waits for something.
            Some(handle) if self.clients[client].engine.valid_until(lock).is_none() => {
                *self.statistics.calls.entry("handles made").or_default() += 1;
                self.handles.truncate(HANDLE_COUNT_MAX - 1);
                self.handles.push_front(handle);
            }
            _ => self.submit_release(client, lock, false),
        }
    }

    /// A worker adopts or releases a handle's lock; the handle may be used up. Returns false if the worker
    /// should do something else.
    pub fn try_handle(&mut self, client: usize, worker: usize) -> bool {
        if self.handles.is_empty() || !chance(&mut self.rng, self.habits.handle_ppm) {
            return false;
        }
        let place = self.rng.random_range(0..self.handles.len());
        let handle = self.handles[place].clone();
        let mut due = Time::MAX;
        let mut lock = None;
        if self.rng.random_range(0..4) == 0 {
            self.submit_release_by(client, &handle);
            *self.statistics.calls.entry("released by a handle").or_default() += 1;
        } else {
            let auto_extend = handle.hold_until().map(|_| 2 * handle.ttl());
            lock = self.submit_adopt(client, &handle, auto_extend);
        }
        if lock.is_none_or(|lock| self.clients[client].lock(lock).is_none()) {
            due = self.now + self.habits.pause_max / 4;
        }
        let worker = &mut self.clients[client].workers[worker];
        worker.lock = lock.filter(|_| due == Time::MAX);
        worker.due = due;
        true
    }

    pub fn wall(&self, client: usize) -> Duration {
        Duration::from_micros(self.clients[client].wall_us + self.now / 1000)
    }

    /// Makes a handle of a held lock, which goes on.
    pub fn handle_of(&self, client: usize, lock: OpId) -> LockHandle {
        let (now, wall) = (self.local(client), self.wall(client));
        self.clients[client].engine.handle(now, wall, lock).expect("it is held")
    }

    /// Gives up a held lock for a handle; `None` if its validity has ended.
    pub fn pass(&mut self, client: usize, lock: OpId) -> Option<LockHandle> {
        let now = self.local(client);
        self.clients[client].engine.valid_until(lock).filter(|end| *end > now)?;
        note!(self, "c{client} passes {lock:?} on");
        if self.clients[client].tasks.is_some() {
            return self.leave_now(client, lock, true);
        }
        let handle = self.handle_of(client, lock);
        self.submit_leave(client, lock, None);
        Some(handle)
    }

    /// Adopts a lock like `Client`, without reading the clock.
    pub fn submit_adopt(
        &mut self,
        client: usize,
        handle: &LockHandle,
        auto_extend: Option<Duration>,
    ) -> Option<OpId> {
        let ttl = self.config.ttl(handle.ttl()).expect("a valid TTL");
        let now = self.local(client);
        let act = HandleAct::Adopt { auto_extend };
        self.deliver(client);
        let lock = match self.clients[client].tasks {
            None => self.clients[client].engine.submit(now, Request::ByHandle { handle, act }).ok()?,
            Some(_) => self.begin_call(client, OutcomeKind::Acquire, |it| Call::adopt(it, handle))?,
        };
        self.clients[client].taken_count += 1;
        note!(self, "c{client} adopts {}, as {lock:?}", shown(handle.resource()));
        *self.statistics.calls.entry("handles adopted").or_default() += 1;
        let lock_state = Lock {
            key: handle.resource().to_vec(),
            ttl: ttl.as_duration(),
            pending: Some((Pending::Acquire, now + self.config.answer_limit(ttl))),
            is_held: false,
            is_shared: handle.mode() == Mode::Shared,
            is_kept: auto_extend.is_some(),
            is_watched_in_time: false,
            loss_notified_at: None,
        };
        self.clients[client].locks.push((lock, lock_state));
        self.deliver(client);
        self.wake(client, self.now);
        Some(lock)
    }

    /// Releases a lock with its handle. Nobody awaits the outcome.
    pub fn submit_release_by(&mut self, client: usize, handle: &LockHandle) {
        let now = self.local(client);
        note!(self, "c{client} releases {} by its handle", shown(handle.resource()));
        let request = Request::ByHandle { handle, act: HandleAct::Release { awaited: false } };
        match self.clients[client].tasks {
            // There may be no room.
            None => drop(self.clients[client].engine.submit(now, request)),
            Some(_) => self.release_handle_as_task(client, handle),
        }
        self.wake(client, self.now);
    }
}
