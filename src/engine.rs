//! The complete protocol without I/O, clock or threads, for your own event loop and for simulators: the same
//! calls with the same seed and times give the same history. Calls that take `now` need times that never go
//! backwards.
//!
//! 1. Call [`Engine::submit`] at any time; it queues bytes and returns at once.
//! 2. Drain [`Engine::poll_link`]: open or close a connection, or ask for credentials. Report the result with
//!    [`Engine::handle_connected`], [`Engine::handle_disconnected`] or [`Engine::handle_credentials`].
//! 3. For each connection, write [`Engine::send_ready`] and report the written size with
//!    [`Engine::send_done`].
//! 4. Sleep until a socket is readable or [`Engine::next_timeout`] has come. Read what has arrived into
//!    [`Engine::recv_space`], call [`Engine::recv_done`] with a new time, and *then* call
//!    [`Engine::handle_timeout`]: an answer that has arrived is not late.
//! 5. Drain [`Engine::poll_outcome`], and continue with step 2.
//!
//! ```text
//!            submit                                    poll_outcome
//!               │                                           ▲
//!               ▼                                           │
//!        Op (a caller's request) ── attempt ──► Claim (one token on the masters) ── release ──► gone
//!               │        ▲                          │  ▲
//!               │        └──── verdict ◄── votes ───┘  │
//!            timers                                 Link × N ◄──► wire bytes
//! ```
//!
//! An acquisition passes through `submit` → `locks/acquire` (operation) → `waiting/turns` (place among this
//! engine's callers) → `locks/attempt` (claim) → `masters/fleet` (outboxes). Its replies pass through
//! `answers` → `locks/claim` (vote) → `locks/acquire` (verdict) → `waiting/rounds` or `waiting/pauses` if
//! refused. A release passes through `locks/release`, or `waiting/handover` if callers of this engine wait.
//!
//! Keeps I1 to I10, I14 to I16, I18 to I20, I22 and I25 of the rules; the quorum is in `src/lock/tally.rs`.

mod answers;
mod core;
mod ground;
mod locks;
pub(crate) mod masters;
pub(crate) mod queries;
pub(crate) mod request;
mod script;
pub(crate) mod stats;
mod timers;
mod view;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Config, Credentials};
use crate::error::{CredentialsError, LeaveError};
use crate::event::Event;
use crate::handle::LockHandle;
use crate::limits;
pub(crate) use masters::handshake::error_without_login;
pub(crate) use masters::status::{Health, MasterStatus};
pub use queries::free_slots::SlotLook;
pub(crate) use queries::inspection::{ForceUnlocked, Inspection};
pub use request::{
    Grant, HandleAct, HeldLocks, LinkRequest, OpId, Outcome, Reason, Request, SubmitError, Validity,
};
pub(crate) use request::{Left, Released};
pub(crate) use stats::Stats;

pub use crate::lock::{HolderLabel, MasterId, MasterSet, Resource, Ttl, quorum};

use self::core::{Core, Step};
use self::locks::next::Input;
use self::locks::op::OpState;
use self::locks::slab::Id;
use self::locks::{Locks, acquire, adopt, deny, hold, leave, release};
use self::masters::Masters;
use self::masters::connection::State;
use self::masters::link::Predecessor;
use self::waiting::{handover, rounds};
use ground::Ground;
use timers::{Timer, timer_of};

/// One client's protocol without I/O; see the [module](self).
#[derive(Debug)]
pub struct Engine {
    core: Core,
}

impl Engine {
    /// Returns an engine that wants a connection to each master. The seed must come from the operating
    /// system's random source, because tokens are drawn from it.
    #[must_use]
    pub fn new(config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        Self::with_room_for(limits::OPERATION_COUNT_MAX, config, seed, now)
    }

    /// Returns an engine with room for this number of operations in place of [`limits::OPERATION_COUNT_MAX`],
    /// and for twice as many tokens.
    #[must_use]
    pub fn with_room_for(operations: usize, config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        let mut ground = Ground::new(config, seed, now);
        let masters = Masters::new(&mut ground);
        Self { core: Core { locks: Locks::new(ground.now, operations, &mut ground.rng), masters, ground } }
    }

    /// Sets the current time, and returns the state.
    #[inline(always)]
    fn at(&mut self, now: Instant) -> &mut Core {
        debug_assert!(now >= self.core.ground.now, "time goes backwards");
        self.core.ground.now = now;
        &mut self.core
    }

    /// The latest time given.
    pub(crate) const fn now(&self) -> Instant {
        self.core.ground.now
    }

    /// Notes the time of a call, which may be earlier than the latest time given.
    pub(crate) fn note_time(&mut self, now: Instant) {
        self.core.ground.now = self.core.ground.now.max(now);
    }

    /// Takes a request. [`Engine::poll_outcome`] returns its outcome, possibly at once.
    ///
    /// # Errors
    /// [`SubmitError`] if the request was not queued. Even a refused [`Request::Drain`] ends acquisitions and
    /// locks.
    pub fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        let core = self.at(now);
        let lock = match request {
            Request::Acquire { resource, options, label } => {
                let (id, step) = acquire::submit(core, resource, &options, label)?;
                self.perform_rare(step);
                return Ok(OpId(id));
            }
            Request::Release { lock, awaited } => {
                let step = release::submit(core, lock.0, awaited);
                self.perform_rare(step);
                lock
            }
            Request::Extend { lock, ttl } => {
                hold::submit_extend(core, lock.0, ttl);
                lock
            }
            Request::NotifyLoss { lock } => {
                hold::submit_notify_loss(&mut core.ground, &mut core.locks, lock.0);
                lock
            }
            Request::LeaveFor { lock, rest } => {
                if let Err(error) = leave::leave_for(core, lock.0, rest) {
                    core.ground.report_outcome(lock.0, Outcome::Leave(Err(error)));
                }
                lock
            }
            Request::ByHandle { handle, act } => return self.submit_by_handle(handle, act),
            Request::Pause { attempts, took, limit } => {
                return queries::submit_pause(core, attempts, took, limit);
            }
            Request::Inspect { resource } => return queries::submit_inspect(core, resource),
            Request::FreeSlots { pool, count, from } => {
                return queries::submit_free_slots(core, pool, count, from);
            }
            Request::ForceUnlock { resource } => return queries::submit_force_unlock(core, resource),
            Request::Drain { held, limit } => return self.drain(held, limit),
        };
        Ok(lock)
    }

    // A separate function, so that frequent requests get more registers.
    #[cold]
    #[inline(never)]
    fn submit_by_handle(&mut self, handle: &LockHandle, act: HandleAct) -> Result<OpId, SubmitError> {
        let (id, step) = adopt::submit(&mut self.core, handle, act)?;
        self.perform(step);
        Ok(OpId(id))
    }

    /// Gives up a held lock without a release and without further extensions: sends nothing, and the keys end
    /// with their TTL. Returns the end of the lock's validity, until which nobody else gets it. There is no
    /// outcome, and the id is unknown from now on.
    ///
    /// # Errors
    /// [`LeaveError::Expired`] if the validity has ended: release the lock. [`LeaveError::NotHeld`] if it is
    /// not held.
    pub fn leave(&mut self, now: Instant, lock: OpId) -> Result<Instant, LeaveError> {
        leave::leave(self.at(now), lock.0)
    }

    /// Leaves a held lock as [`Engine::leave`] does, and returns the handle with which another engine may
    /// adopt it, with this TTL, before its validity ends. `wall` is the caller's wall clock, as time since
    /// 1970.
    ///
    /// # Errors
    /// As [`Engine::leave`].
    pub fn pass(
        &mut self,
        now: Instant,
        wall: Duration,
        lock: OpId,
        ttl: Duration,
    ) -> Result<LockHandle, LeaveError> {
        let handle = self.handle(now, wall, lock).ok_or(LeaveError::NotHeld)?;
        self.leave(now, lock)?;
        Ok(handle.passed(ttl))
    }

    /// Takes a reading of the caller's wall clock, as time since 1970. Fencing tokens are drawn from the
    /// latest reading. A reading before each fenced acquisition saves a round trip if it agrees with the
    /// masters' clocks. Without readings, the first attempts are refused, and tokens follow the masters'
    /// answers.
    pub const fn handle_wall_clock(&mut self, now: Instant, wall: Duration) {
        self.core.ground.wall_clock.set(now, wall);
    }

    /// Notes that nobody has read from the connections until now, for example because the caller submitted
    /// requests for longer than masters take to answer. Masters do not count as silent for that time.
    pub const fn handle_unread(&mut self, now: Instant) {
        self.core.masters.fleet.unread_until = now;
    }

    /// Returns the next outcome and its lock.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        self.core.ground.outcomes.pop_front()
    }

    /// Returns whether [`Engine::poll_outcome`] has an outcome.
    #[must_use]
    pub fn has_outcome(&self) -> bool {
        !self.core.ground.outcomes.is_empty()
    }

    /// Returns the next event for the configured observer
    /// ([`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event)), which an engine does not call. None
    /// without an observer. At most [`limits::EVENT_COUNT_MAX`] events wait.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.ground.events.pop()
    }

    #[must_use]
    pub(crate) fn has_event(&self) -> bool {
        !self.core.ground.events.is_empty()
    }

    /// Returns the next task for a connection.
    pub fn poll_link(&mut self) -> Option<LinkRequest> {
        if self.core.ground.config.has_provider() {
            self.core.masters.tend_logins();
        }
        let Masters { fleet, logins } = &mut self.core.masters;
        fleet.wishes.poll().or_else(|| logins.poll())
    }

    /// Takes the opening of a requested connection. [`Engine::send_ready`] then returns its handshake.
    pub fn handle_connected(&mut self, now: Instant, master: MasterId) {
        let Core { ground, masters: Masters { fleet, logins }, .. } = self.at(now);
        fleet.handle_connected(ground, master, logins.current(master));
    }

    /// Takes the end of a connection, or the failure to open it. `why` is shown to people.
    pub fn handle_disconnected(&mut self, now: Instant, master: MasterId, why: &str) {
        if let Some(why) = self.at(now).masters.fleet.why_lost(master, why) {
            self.fail_link(master, &why);
            self.core.masters.fleet.wishes.forget_close(master);
        }
    }

    /// Takes a master's credentials for a [`LinkRequest::Credentials`], or why there are none. An open
    /// connection gets them through `AUTH`.
    ///
    /// Credentials without a request are accepted too. An empty password, or more than
    /// [`limits::LOGIN_SIZE_MAX`] bytes, counts as an error of the provider.
    pub fn handle_credentials(
        &mut self,
        now: Instant,
        master: MasterId,
        answer: Result<Credentials, CredentialsError>,
    ) {
        let Core { ground, masters, .. } = self.at(now);
        let Some(error) = masters.take_credentials(ground, master, answer) else { return };
        if masters.fleet.wishes.awaiting_login.contains(master) {
            self.handle_disconnected(now, master, &error.to_string());
        }
        self.core.masters.note_no_credentials(&mut self.core.ground, master, error);
    }

    /// Whether [`Engine::send_ready`] may have new bytes since the last call. The rest of a short write does
    /// not count.
    #[inline]
    pub(crate) fn take_queued(&mut self) -> bool {
        self.core.masters.fleet.take_queued()
    }

    /// Returns the bytes to write.
    #[must_use]
    pub fn send_ready(&mut self, master: MasterId) -> &[u8] {
        let fleet = &mut self.core.masters.fleet;
        fleet.distribute_gathered();
        fleet.link(master).connection.wire.send_ready()
    }

    /// Drops `size` written bytes of [`Engine::send_ready`].
    pub fn send_done(&mut self, master: MasterId, size: usize) {
        self.core.masters.fleet.link_mut(master).connection.wire.send_done(size);
    }

    /// Returns the space to read into; never empty.
    pub fn recv_space(&mut self, master: MasterId) -> &mut [u8] {
        self.core.masters.fleet.link_mut(master).connection.wire.recv_space()
    }

    /// Takes `size` bytes read into [`Engine::recv_space`]. `now` must have been read from the clock after
    /// them (I2).
    pub fn recv_done(&mut self, now: Instant, master: MasterId, size: usize) {
        self.at(now);
        self.recv_commands(master, size);
    }

    /// Returns when [`Engine::handle_timeout`] must be called next, and for what. May be earlier than needed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<(Instant, Reason)> {
        self.core.ground.timers.next().map(|(at, id)| {
            let reason = match timer_of(id) {
                Timer::Master(master) | Timer::Login(master) => Reason::Link(master),
                Timer::Op(_) => Reason::Operation,
                Timer::Claim(_) => Reason::Claim,
            };
            (at, reason)
        })
    }

    /// Does everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.at(now);
        while let Some(timer) = self.core.ground.timers.pop_due(now) {
            let Core { ground, masters, locks } = &mut self.core;
            match timer_of(timer) {
                Timer::Master(master) => self.handle_link_timeout(master),
                Timer::Login(master) => masters.handle_login_timeout(ground, master),
                Timer::Op(index) => {
                    if let Some(id) = locks.ops.occupant(index) {
                        self.handle_op_timeout(id);
                    }
                }
                Timer::Claim(index) => {
                    if let Some(id) = locks.claims.occupant(index) {
                        release::handle_timeout(&mut self.core, id);
                    }
                }
            }
        }
    }

    fn handle_op_timeout(&mut self, id: Id) {
        let core = &mut self.core;
        let op = core.locks.ops.get(id);
        if core.locks.deadline(id).is_none_or(|at| at > core.ground.now) {
            acquire::note_missed_set(core, id);
        } else {
            let step = match op.state() {
                OpState::Acquiring { .. } if core.locks.waiting_round(id).is_some() => {
                    rounds::handle_timeout(core, id)
                }
                OpState::Acquiring { .. }
                | OpState::Asking { .. }
                | OpState::Waiting { .. }
                | OpState::Queued { .. } => Step::Follow(id, Input::Due),
                OpState::Held(_) => {
                    hold::handle_timeout(core, id);
                    Step::Done
                }
                OpState::Query => {
                    queries::miss_query(core, id);
                    Step::Done
                }
                OpState::New | OpState::Releasing => unreachable!("it has no deadline"),
            };
            self.perform(step);
        }
        self.core.locks.arm(&mut self.core.ground, id);
    }

    /// Ends acquisitions, and held locks with [`HeldLocks::Release`], then waits until no claim is left.
    fn drain(&mut self, held: HeldLocks, limit: Duration) -> Result<OpId, SubmitError> {
        // First, because the slots of operations that end below stay occupied until their outcomes are
        // fetched.
        let query = queries::begin_drain(&mut self.core);
        // Waiting acquisitions end first, so that none gets a lock that is released next.
        for id in self.core.locks.ops.ids() {
            if queries::is_acquiring(&self.core.locks, id) {
                let name = self.core.locks.name_of(&self.core.ground.config, id);
                self.perform(Step::Release { id, awaited: false });
                queries::report_drained(&mut self.core.ground, id, name);
            }
        }
        if held == HeldLocks::Release {
            for id in self.core.locks.ops.ids() {
                if queries::end_held(&mut self.core.ground, &mut self.core.locks, id) {
                    self.perform(Step::Release { id, awaited: false });
                }
            }
        }
        let id = query?;
        queries::start_drain(&mut self.core, id, limit);
        Ok(OpId(id))
    }

    /// A master's nonce came back. If strict mode then refuses the master, nothing is sent to it.
    fn handle_ready(&mut self, master: MasterId) {
        self.take_in(master);
        self.refuse_declared();
        if self.core.masters.fleet.ready.contains(master) {
            self.bring_back(master);
        }
    }

    /// Ends the connections to masters that strict mode now refuses.
    fn refuse_declared(&mut self) {
        for master in self.core.masters.fleet.declared_otherwise().iter() {
            if let Some(why) = self.core.masters.fleet.refuse_declared(master) {
                self.fail_link(master, &why);
            }
        }
    }

    /// Starts to use a master, unless it must not vote.
    fn take_in(&mut self, master: MasterId) {
        let Core { ground, masters, locks } = &mut self.core;
        let admission = masters.fleet.admit(ground, master);
        if admission.predecessor != Predecessor::Same {
            release::void_grants(locks, master, admission.predecessor);
        }
        if let Some(why) = admission.refusal {
            if admission.is_restart {
                masters.report_restart(ground, master);
            }
            return self.fail_link(master, &why);
        }
        masters.report_connected(ground, master, admission.is_reconnect, admission.is_restart);
    }

    /// Sends a master what it missed: releases, repairs, parks and a newer login.
    fn bring_back(&mut self, master: MasterId) {
        release::release_orphans(&mut self.core, master);
        hold::repair(&mut self.core, master);
        rounds::rejoin(&mut self.core, master);
        let Core { ground, masters, .. } = &mut self.core;
        // The login may have changed during the handshake.
        masters.bring_login(ground, master);
    }

    /// Ends a connection and settles everything that it owed.
    fn fail_link(&mut self, master: MasterId, why: &str) {
        let Core { ground, masters, locks } = &mut self.core;
        let link = masters.fleet.link(master);
        let is_refused = link.connection.is_ready() && *link.why != *why;
        if masters.fleet.ready.contains(master) || !link.connection.has_failed() || is_refused {
            let name = &ground.config.labels[master.index()];
            ground.events.push(|| Event::Disconnected { master: name.clone(), why: why.into() });
        }
        if masters.fleet.fail(ground, master, why) {
            rounds::note_lost(locks, master);
            for id in locks.claims.ids() {
                self.lose_answers(master, id);
            }
            queries::lose_queries(&mut self.core, master);
        }
    }

    /// Settles a claim after the loss of a connection that may have owed answers to it.
    fn lose_answers(&mut self, master: MasterId, claim: Id) {
        let core = &mut self.core;
        let Some(id) = release::lose_answers(core, master, claim) else { return };
        match core.locks.ops.get(id).state() {
            OpState::Acquiring { .. } => {
                let step = acquire::lose_vote(core, master, id);
                self.perform(step);
            }
            OpState::Held(_) => hold::lose_vote(core, master, id),
            OpState::Releasing => release::check(core, claim),
            _ => unreachable!("it owns no claim"),
        }
    }

    fn handle_link_timeout(&mut self, master: MasterId) {
        let Core { ground, masters, .. } = &mut self.core;
        if let Some(why) = masters.fleet.handle_timeout(ground, master) {
            let is_connecting =
                matches!(masters.fleet.link(master).connection.state, State::Connecting { .. });
            if is_connecting && !masters.fleet.wishes.awaiting_login.contains(master) {
                masters.logins.keep_unused(master);
            }
            self.fail_link(master, &why);
        }
    }

    /// Performs a step that is usually [`Step::Done`].
    #[inline(always)]
    fn perform_rare(&mut self, step: Step) {
        if step != Step::Done {
            self.perform(step);
        }
    }

    /// Performs an operation's steps until none follows.
    #[inline(never)]
    fn perform(&mut self, mut step: Step) {
        let core = &mut self.core;
        loop {
            step = match step {
                Step::Done => return,
                Step::Decide(id) => acquire::decide(core, id),
                Step::Follow(id, input) => acquire::follow(core, id, input),
                Step::Release { id, awaited } => release::submit(core, id, awaited),
                Step::PassOn { id, awaited } => handover::pass_on(core, id, awaited),
                Step::Refuse(id) => return deny::refuse(core, id),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_reading_of_the_clock_changes_nothing() {
        let now = Instant::now();
        let config = Config::builder().masters(["redis://m0"]).build().expect("valid settings");
        let mut engine = Engine::new(Arc::new(config), [0; 32], now);
        let later = now + Duration::from_secs(1);
        engine.note_time(later);
        engine.note_time(now);
        assert_eq!(engine.now(), later);
    }
}
