//! The whole protocol without I/O, without a clock and without threads, for event loops of your own
//! and for simulators: the same calls with the same seed and times give the same history.
//!
//! # Order of calls
//!
//! 1. [`Engine::submit`] requests at any time; it queues bytes and returns at once.
//! 2. Do what [`Engine::poll_link`] asks for: open or close a connection, or ask for credentials. Report the
//!    result with [`Engine::handle_connected`], [`Engine::handle_disconnected`] or
//!    [`Engine::handle_credentials`]. A driver that offers no second
//!    connection reports [`LinkId::Subscription`] as lost.
//! 3. For each connection write [`Engine::send_ready`] and report how much went out with
//!    [`Engine::send_done`].
//! 4. Sleep until a socket is readable or [`Engine::next_timeout`] has come. Read whatever has arrived into
//!    [`Engine::recv_space`] and call [`Engine::recv_done`] with a fresh time, *then* call
//!    [`Engine::handle_timeout`]: an answer that is already here must not be called late.
//! 5. Drain [`Engine::poll_outcome`]; go on with 2.
//!
//! Calls that depend on the time take `now`, which must never go backwards.
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
//! Keeps I1 to I10, I14 to I16, I18 to I20, I22 and I25 of the rules; the quorum itself is in
//! `src/lock/tally.rs`.

mod acquire;
mod answers;
mod claim;
mod connection;
mod counting;
mod defects;
mod fair;
mod fence;
mod fleet;
mod ground;
mod groups;
mod handover;
mod handshake;
pub(crate) mod histogram;
mod hold;
pub(crate) mod inspection;
mod keep;
mod kind;
mod leave;
mod leaving;
mod link;
mod locks;
mod logins;
mod mark;
mod masters;
mod mode;
mod op;
mod owed;
mod queries;
mod query;
mod release;
mod renewal;
mod reports;
pub(crate) mod request;
mod script;
mod sharing;
mod slab;
pub(crate) mod stats;
pub(crate) mod status;
mod subscription;
mod subscription_link;
mod subscriptions;
mod terms;
mod timers;
pub(crate) mod trouble;
mod turns;
mod wait_queues;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Config, Credentials};
use crate::error::{CredentialsError, LeaveError};
use crate::event::Event;
use crate::mutants::mutant;
pub use fair::Ticket;
#[cfg(feature = "doctor")]
pub(crate) use handshake::{error_without_login, info_field};
#[cfg(feature = "metrics")]
pub(crate) use histogram::Histogram;
pub(crate) use inspection::{ForceUnlocked, Inspection};
#[cfg(feature = "doctor")]
pub(crate) use mark::{key as mark_key, observed as observed_by_mark};
pub use request::{
    Grant, HeldLocks, LinkId, LinkRequest, OpId, Outcome, Reason, Request, SubmitError, Validity,
};
pub(crate) use request::{Left, Released};
pub(crate) use stats::Stats;
pub(crate) use status::{Health, MasterStatus};

pub use crate::lock::{HolderLabel, MasterId, MasterSet, Resource, Ttl, quorum};

use connection::State;
use ground::Ground;
use link::Predecessor;
use locks::Locks;
use masters::Masters;
use timers::{Timer, timer_of};

/// Protocol of one client without I/O; see the [module](self).
#[derive(Debug)]
pub struct Engine {
    ground: Ground,
    masters: Masters,
    locks: Locks,
}

impl Engine {
    /// Returns an engine whose masters are all to be connected. The seed must come from the operating
    /// system's randomness: the tokens are drawn from it.
    #[must_use]
    pub fn new(config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        let mut ground = Ground::new(config, seed, now);
        let masters = Masters::new(&mut ground);
        Self { locks: Locks::new(&mut ground.rng), masters, ground }
    }

    /// The parts, at the time of a call.
    #[inline(always)]
    const fn at(&mut self, now: Instant) -> (&mut Ground, &mut Masters, &mut Locks) {
        self.ground.now = now;
        (&mut self.ground, &mut self.masters, &mut self.locks)
    }

    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &Arc<Config> {
        &self.ground.config
    }

    /// Returns the masters in the order of the configuration.
    pub fn masters(&self) -> impl Iterator<Item = MasterId> + use<> {
        self.masters.fleet.all.iter()
    }

    /// Takes a request. Its outcome comes from [`Engine::poll_outcome`], possibly at once.
    ///
    /// # Errors
    /// [`SubmitError`]; the request was not queued then. A refused [`Request::Drain`] ends acquisitions and
    /// locks all the same.
    pub fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        let (ground, masters, locks) = self.at(now);
        let lock = match request {
            Request::Acquire { resource, options, label } => {
                return acquire::submit_acquire(ground, masters, locks, resource, &options, label);
            }
            Request::Release { lock, awaited } => {
                release::submit_release(ground, masters, locks, lock.0, awaited);
                lock
            }
            Request::Extend { lock, ttl } => {
                hold::submit_extend(ground, masters, locks, lock.0, ttl);
                lock
            }
            Request::ReportRenewals { lock } => {
                keep::submit_report_renewals(ground, locks, lock.0);
                lock
            }
            Request::NotifyLoss { lock } => {
                keep::submit_notify_loss(ground, locks, lock.0);
                lock
            }
            Request::LeaveFor { lock, rest } => {
                leave::submit_leave_for(ground, masters, locks, lock.0, rest);
                lock
            }
            Request::Pause { attempts, took, limit } => {
                return queries::submit_pause(ground, masters, locks, attempts, took, limit);
            }
            Request::Inspect { resource } => {
                return queries::submit_inspect(ground, masters, locks, resource);
            }
            Request::ForceUnlock { resource } => {
                return queries::submit_force_unlock(ground, masters, locks, resource);
            }
            Request::Drain { held, limit } => {
                return queries::submit_drain(ground, masters, locks, held, limit);
            }
        };
        Ok(lock)
    }

    /// Takes a reading of the caller's wall clock, as the time since 1970. Fencing tokens are drawn from the
    /// latest reading. A reading before each fenced acquisition saves a round trip if it agrees with the
    /// clocks of the masters. Without one the first attempts are refused, and the tokens follow the masters'
    /// answers.
    pub const fn handle_wall_clock(&mut self, now: Instant, wall: Duration) {
        self.ground.wall_clock.set(now, wall);
    }

    /// Returns the next outcome, and the lock that it is about.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        self.ground.outcomes.pop_front()
    }

    /// Returns whether [`Engine::poll_outcome`] has an outcome.
    #[must_use]
    pub fn has_outcome(&self) -> bool {
        !self.ground.outcomes.is_empty()
    }

    /// Returns the next task for a connection.
    pub fn poll_link(&mut self) -> Option<LinkRequest> {
        if self.ground.config.has_provider() {
            self.masters.tend_logins();
        }
        let Masters { fleet, subscriptions, logins } = &mut self.masters;
        let request = fleet.wishes.poll(LinkId::Commands).or_else(|| subscriptions.poll_link());
        request.or_else(|| logins.poll())
    }

    /// Takes a connection that was opened as asked; its handshake waits in [`Engine::send_ready`].
    pub fn handle_connected(&mut self, now: Instant, link: impl Into<LinkId>) {
        let (ground, Masters { fleet, subscriptions, logins }, _) = self.at(now);
        match link.into() {
            LinkId::Commands(master) => fleet.handle_connected(ground, master, logins.current(master)),
            LinkId::Subscription(master) => {
                subscriptions.handle_connected(ground, master, logins.current(master));
            }
        }
    }

    /// Takes the end of a connection, or the failure to open it; `why` is shown to people.
    pub fn handle_disconnected(&mut self, now: Instant, link: impl Into<LinkId>, why: &str) {
        let (ground, masters, _) = self.at(now);
        match link.into() {
            LinkId::Commands(master) => {
                if let Some(why) = masters.fleet.why_lost(master, why) {
                    self.fail_link(master, &why);
                    self.masters.fleet.wishes.forget_close(master);
                }
            }
            LinkId::Subscription(master) => masters.subscriptions.handle_disconnected(ground, master),
        }
    }

    /// Takes the credentials of a master, as [`LinkRequest::Credentials`](super::LinkRequest::Credentials)
    /// asks for, or the reason why there are none. Open connections get them by `AUTH` in place.
    ///
    /// Credentials that nobody asked for are taken, too. Those with an empty password, or of more than
    /// [`limits::LOGIN_SIZE_MAX`](crate::limits::LOGIN_SIZE_MAX) bytes, count as an error of the provider.
    pub fn handle_credentials(
        &mut self,
        now: Instant,
        master: MasterId,
        answer: Result<Credentials, CredentialsError>,
    ) {
        let (ground, masters, _) = self.at(now);
        let Some(error) = masters.take_credentials(ground, master, answer) else { return };
        if masters.fleet.wishes.awaiting_login.contains(master) {
            self.handle_disconnected(now, master, &error.to_string());
        }
        if self.masters.subscriptions.wishes.awaiting_login.contains(master) {
            self.masters.subscriptions.handle_disconnected(&mut self.ground, master);
        }
        self.masters.note_no_credentials(&mut self.ground, master, error);
    }

    /// Returns whether [`Engine::send_ready`] may have bytes that it did not have at the last call. The rest
    /// of a short write does not count.
    #[inline]
    pub(crate) fn take_queued(&mut self) -> bool {
        // Connections for notifications are few, and open while callers wait and shortly after.
        self.masters.fleet.take_queued() || !self.masters.subscriptions.open_links().is_empty()
    }

    /// Returns the bytes to write.
    #[must_use]
    pub fn send_ready(&mut self, link: impl Into<LinkId>) -> &[u8] {
        match link.into() {
            LinkId::Commands(master) => self.masters.fleet.send_ready(master),
            LinkId::Subscription(master) => self.masters.subscriptions.send_ready(master),
        }
    }

    /// Drops `size` bytes of [`Engine::send_ready`], which were written.
    pub fn send_done(&mut self, link: impl Into<LinkId>, size: usize) {
        match link.into() {
            LinkId::Commands(master) => self.masters.fleet.link_mut(master).connection.wire.send_done(size),
            LinkId::Subscription(master) => self.masters.subscriptions.send_done(master, size),
        }
    }

    /// Returns the space to read into; never empty.
    pub fn recv_space(&mut self, link: impl Into<LinkId>) -> &mut [u8] {
        match link.into() {
            LinkId::Commands(master) => self.masters.fleet.link_mut(master).connection.wire.recv_space(),
            LinkId::Subscription(master) => self.masters.subscriptions.recv_space(master),
        }
    }

    /// Takes `size` bytes that were read into [`Engine::recv_space`]; `now` must have been read after them
    /// (I2).
    pub fn recv_done(&mut self, now: Instant, link: impl Into<LinkId>, size: usize) {
        self.ground.now = now;
        match link.into() {
            LinkId::Commands(master) => self.recv_commands(master, size),
            LinkId::Subscription(master) => self.recv_notification(master, size),
        }
    }

    fn recv_notification(&mut self, master: MasterId, size: usize) {
        let Self { ground, masters, locks } = self;
        masters.subscriptions.recv_done(ground, master, size);
        masters.follow_subscription_login(ground, master);
        while let Some(id) = masters.subscriptions.next_notified() {
            waiting::follow_watch(ground, masters, locks, id);
        }
    }

    /// Returns when [`Engine::handle_timeout`] is to be called next, and for what. It may be earlier than
    /// needed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<(Instant, Reason)> {
        self.ground.timers.next().map(|(at, id)| {
            let reason = match timer_of(id) {
                Timer::Master(master) | Timer::Subscription(master) | Timer::Login(master) => {
                    Reason::Link(master)
                }
                Timer::Op(_) => Reason::Operation,
                Timer::Claim(_) => Reason::Claim,
            };
            (at, reason)
        })
    }

    /// Does all that is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.ground.now = now;
        while let Some(timer) = self.ground.timers.pop_due(now) {
            let Self { ground, masters, locks } = self;
            match timer_of(timer) {
                Timer::Master(master) => self.handle_link_timeout(master),
                Timer::Subscription(master) => {
                    masters.subscriptions.handle_timeout(ground, master, masters.fleet.ready);
                }
                Timer::Login(master) => masters.handle_login_timeout(ground, master),
                Timer::Op(index) => {
                    if let Some(id) = locks.ops.occupant(index) {
                        acquire::handle_op_timeout(ground, masters, locks, id);
                    }
                }
                Timer::Claim(index) => {
                    if let Some(id) = locks.claims.occupant(index) {
                        release::handle_claim_timeout(ground, masters, locks, id);
                    }
                }
            }
        }
    }

    /// Gives up a held lock without a release, and extends it no more: nothing is sent, and its keys end by
    /// their TTL. Returns the end of its validity, until which nobody else gets the lock. There is no
    /// outcome, and the id finds nothing from now on.
    ///
    /// # Errors
    /// [`LeaveError::Expired`] if its validity has ended: release it. [`LeaveError::NotHeld`] if it is not
    /// held.
    pub fn leave(&mut self, now: Instant, lock: OpId) -> Result<Instant, LeaveError> {
        let (ground, masters, locks) = self.at(now);
        leave::leave(ground, masters, locks, lock.0)
    }

    /// Returns the next event for the observer of the configuration
    /// ([`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event)), which an engine does not call itself.
    /// Without an observer there is none. At most [`limits::EVENT_COUNT_MAX`](crate::limits::EVENT_COUNT_MAX)
    /// wait.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.ground.events.pop()
    }

    fn handle_ready(&mut self, master: MasterId) {
        let Self { ground, masters, locks } = self;
        let admission = masters.fleet.admit(ground, master);
        if admission.predecessor != Predecessor::Same {
            locks.forget_tickets(master);
            release::void_grants(locks, master, admission.predecessor);
        }
        if let Some(why) = admission.refusal {
            if admission.is_restart {
                counting::report_restart(ground, master);
            }
            return self.fail_link(master, &why);
        }
        counting::report_connected(ground, masters, master, admission.is_reconnect, admission.is_restart);
        release::release_orphans(ground, masters, locks, master);
        hold::repair(ground, masters, locks, master);
        masters.subscriptions.open(ground, masters.fleet.ready);
        // It may have changed during the handshake.
        if !mutant!(LoginOfHandshakeKept) {
            masters.bring_login(ground, master);
        }
    }

    /// Ends a connection and settles all that it owed.
    fn fail_link(&mut self, master: MasterId, why: &str) {
        let Self { ground, masters, locks } = self;
        let link = masters.fleet.link(master);
        if link.connection.is_ready() || !link.connection.has_failed() {
            let name = &ground.config.labels[master.index()];
            ground.events.push(|| Event::Disconnected { master: name.clone(), why: why.into() });
        }
        if masters.fleet.fail(ground, master, why) {
            for id in locks.claims.ids() {
                release::stray_claim(ground, masters, locks, master, id);
            }
            queries::lose_queries(ground, masters, locks, master);
        }
    }

    fn handle_link_timeout(&mut self, master: MasterId) {
        let Self { ground, masters, .. } = self;
        if let Some(why) = masters.fleet.handle_timeout(ground, master) {
            let is_connecting =
                matches!(masters.fleet.link(master).connection.state, State::Connecting { .. });
            if is_connecting && !masters.fleet.wishes.awaiting_login.contains(master) {
                masters.logins.keep_unused(master);
            }
            self.fail_link(master, &why);
        }
    }
}
