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
mod login;
mod logins;
mod mark;
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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::config::Config;
use crate::event::Event;
use crate::limits;
use crate::mutants::{self, mutant};
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

use claim::Claim;
use connection::State;
use fence::WallClock;
use fleet::Fleet;
use link::Predecessor;
use logins::Logins;
use op::Op;
use renewal::Ticks;
use slab::{Id, Slab};
use stats::Events;
use subscriptions::Subscriptions;
use terms::{Pace, Terms};
use timers::{Timer, Timers, op_timer, timer_of};
use wait_queues::WaitQueues;

/// Protocol of one client without I/O; see the [module](self).
#[derive(Debug)]
pub struct Engine {
    config: Arc<Config>,
    ticks: Ticks,
    rng: StdRng,
    /// The masters, and what is on its way to them.
    fleet: Fleet,
    /// The connections by which waiters are notified of releases.
    subscriptions: Subscriptions,
    logins: Logins,
    ops: Slab<Op>,
    /// The operations that hold a lock or wait for one, by its key.
    queues: WaitQueues,
    claims: Slab<Claim>,
    /// Claims for which a reply that was just counted may have decided something.
    decided: Vec<Id>,
    timers: Timers,
    outcomes: VecDeque<(OpId, Outcome)>,
    /// Terms of the latest acquisition, the same for all of one TTL.
    terms: Terms,
    /// The clock from which fencing tokens are drawn.
    wall_clock: WallClock,
    /// Counters and times. Values that others know better are filled in for a snapshot.
    stats: Stats,
    pace: Pace,
    events: Events,
    /// Whether no more acquisitions are taken.
    is_drained: bool,
}

impl Engine {
    /// Returns an engine whose masters are all to be connected. The seed must come from the operating
    /// system's randomness: the tokens are drawn from it.
    #[must_use]
    pub fn new(config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        let mut timers = Timers::default();
        let fleet = Fleet::new(config.clone(), now, &mut timers);
        let mut rng = StdRng::from_seed(mutants::seed(seed));
        let subscriptions = Subscriptions::new(config.clone(), now);
        Self {
            stats: Stats::new(fleet.quorum),
            pace: Pace::new(now, config.observer.is_some()),
            events: Events::new(config.observer.is_some()),
            logins: Logins::new(config.clone()),
            config,
            ticks: Ticks { started: now },
            fleet,
            subscriptions,
            ops: Slab::new(limits::OPERATION_COUNT_MAX),
            queues: WaitQueues::new(&mut rng),
            rng,
            claims: Slab::new(limits::CLAIM_COUNT_MAX),
            decided: Vec::new(),
            timers,
            outcomes: VecDeque::new(),
            terms: Terms::NONE,
            wall_clock: WallClock::unset(now),
            is_drained: false,
        }
    }

    /// Returns the settings.
    #[must_use]
    pub const fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Returns the masters in the order of the configuration.
    pub fn masters(&self) -> impl Iterator<Item = MasterId> + use<> {
        self.fleet.all.iter()
    }

    /// Takes a request. Its outcome comes from [`Engine::poll_outcome`], possibly at once.
    ///
    /// # Errors
    /// [`SubmitError`]; the request was not queued then. A refused [`Request::Drain`] ends acquisitions and
    /// locks all the same.
    pub fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        match request {
            Request::Acquire { resource, options, label } => {
                self.submit_acquire(now, resource, &options, label)
            }
            Request::Extend { lock, ttl } => {
                self.submit_extend(now, lock.0, ttl);
                Ok(lock)
            }
            Request::ReportRenewals { lock } => {
                self.submit_report_renewals(now, lock.0);
                Ok(lock)
            }
            Request::NotifyLoss { lock } => {
                self.submit_notify_loss(lock.0);
                Ok(lock)
            }
            Request::Release { lock, awaited } => {
                self.submit_release(now, lock.0, awaited);
                Ok(lock)
            }
            Request::LeaveFor { lock, rest } => {
                self.submit_leave_for(now, lock.0, rest);
                Ok(lock)
            }
            Request::Pause { attempts, took, limit } => self.submit_pause(now, attempts, took, limit),
            Request::Inspect { resource } => self.submit_inspect(now, resource),
            Request::ForceUnlock { resource } => self.submit_force_unlock(now, resource),
            Request::Drain { held, limit } => self.submit_drain(now, held, limit),
        }
    }

    /// Takes a reading of the caller's wall clock, as the time since 1970. Fencing tokens are drawn from the
    /// latest reading. A reading before each fenced acquisition saves a round trip if it agrees with the
    /// clocks of the masters. Without one the first attempts are refused, and the tokens follow the masters'
    /// answers.
    pub const fn handle_wall_clock(&mut self, now: Instant, wall: Duration) {
        self.wall_clock.set(now, wall);
    }

    /// Returns the next outcome, and the lock that it is about.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        self.outcomes.pop_front()
    }

    /// Returns whether [`Engine::poll_outcome`] has an outcome.
    #[must_use]
    pub fn has_outcome(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Returns the next task for a connection.
    pub fn poll_link(&mut self) -> Option<LinkRequest> {
        if self.config.has_provider() {
            self.tend_logins();
        }
        let request = self.fleet.wishes.poll(LinkId::Commands).or_else(|| self.subscriptions.poll_link());
        request.or_else(|| self.logins.poll())
    }

    /// Takes a connection that was opened as asked; its handshake waits in [`Engine::send_ready`].
    pub fn handle_connected(&mut self, now: Instant, link: impl Into<LinkId>) {
        let master = match link.into() {
            LinkId::Commands(master) => master,
            LinkId::Subscription(master) => {
                let (login, rng, timers) = (self.logins.current(master), &mut self.rng, &mut self.timers);
                return self.subscriptions.handle_connected(now, master, login, rng, timers);
            }
        };
        let login = self.logins.current(master);
        self.fleet.handle_connected(now, master, login, &mut self.rng, &mut self.timers);
    }

    /// Takes the end of a connection, or the failure to open it; `why` is shown to people.
    pub fn handle_disconnected(&mut self, now: Instant, link: impl Into<LinkId>, why: &str) {
        let master = match link.into() {
            LinkId::Commands(master) => master,
            LinkId::Subscription(master) => {
                let (rng, timers) = (&mut self.rng, &mut self.timers);
                return self.subscriptions.handle_disconnected(now, master, rng, timers);
            }
        };
        if let Some(why) = self.fleet.why_lost(master, why) {
            self.fail_link(now, master, &why);
            self.fleet.wishes.forget_close(master);
        }
    }

    /// Returns whether [`Engine::send_ready`] may have bytes that it did not have at the last call. The rest
    /// of a short write does not count.
    #[inline]
    pub(crate) fn take_queued(&mut self) -> bool {
        // Connections for notifications are few, and open while callers wait and shortly after.
        self.fleet.take_queued() || !self.subscriptions.open_links().is_empty()
    }

    /// Returns the bytes to write.
    #[must_use]
    pub fn send_ready(&mut self, link: impl Into<LinkId>) -> &[u8] {
        match link.into() {
            LinkId::Commands(master) => self.fleet.send_ready(master),
            LinkId::Subscription(master) => self.subscriptions.send_ready(master),
        }
    }

    /// Drops `size` bytes of [`Engine::send_ready`], which were written.
    pub fn send_done(&mut self, link: impl Into<LinkId>, size: usize) {
        match link.into() {
            LinkId::Commands(master) => self.fleet.link_mut(master).connection.wire.send_done(size),
            LinkId::Subscription(master) => self.subscriptions.send_done(master, size),
        }
    }

    /// Returns the space to read into; never empty.
    pub fn recv_space(&mut self, link: impl Into<LinkId>) -> &mut [u8] {
        match link.into() {
            LinkId::Commands(master) => self.fleet.link_mut(master).connection.wire.recv_space(),
            LinkId::Subscription(master) => self.subscriptions.recv_space(master),
        }
    }

    /// Takes `size` bytes that were read into [`Engine::recv_space`]; `now` must have been read after them
    /// (I2).
    pub fn recv_done(&mut self, now: Instant, link: impl Into<LinkId>, size: usize) {
        match link.into() {
            LinkId::Commands(master) => self.recv_commands(now, master, size),
            LinkId::Subscription(master) => self.recv_notification(now, master, size),
        }
    }

    fn recv_notification(&mut self, now: Instant, master: MasterId, size: usize) {
        self.subscriptions.recv_done(now, master, size, &mut self.rng, &mut self.timers);
        self.follow_subscription_login(now, master);
        while let Some(id) = self.subscriptions.next_notified() {
            self.follow_watch(now, id);
        }
    }

    /// Returns when [`Engine::handle_timeout`] is to be called next, and for what. It may be earlier than
    /// needed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<(Instant, Reason)> {
        self.timers.next().map(|(at, id)| {
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
        while let Some(timer) = self.timers.pop_due(now) {
            match timer_of(timer) {
                Timer::Master(master) => self.handle_link_timeout(now, master),
                Timer::Subscription(master) => {
                    let (ready, rng, timers) = (self.fleet.ready, &mut self.rng, &mut self.timers);
                    self.subscriptions.handle_timeout(now, master, ready, rng, timers);
                }
                Timer::Login(master) => self.handle_login_timeout(now, master),
                Timer::Op(index) => {
                    if let Some(id) = self.ops.occupant(index) {
                        self.handle_op_timeout(now, id);
                    }
                }
                Timer::Claim(index) => {
                    if let Some(id) = self.claims.occupant(index) {
                        self.handle_claim_timeout(now, id);
                    }
                }
            }
        }
    }

    /// Returns when the validity of a held lock ends, or ended.
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        Some(self.ops.find(lock.0)?.held()?.valid_until)
    }

    /// Whether this lock's operation goes on: it is acquired, held or released.
    pub(crate) fn has(&self, lock: OpId) -> bool {
        self.ops.find(lock.0).is_some()
    }

    /// Returns where the validity of a lock that is being acquired or held ends, for other threads to read.
    #[must_use]
    pub fn validity(&self, lock: OpId) -> Option<Validity> {
        Some(self.ops.find(lock.0)?.validity.clone())
    }

    /// Returns the masters known to hold a held lock, late answers included. The margin is their number above
    /// the quorum.
    #[must_use]
    pub fn granted(&self, lock: OpId) -> Option<MasterSet> {
        let op = self.ops.find(lock.0)?;
        op.held().map(|_| self.claims.get(op.claim).tally.granted)
    }

    /// Returns how many masters above the quorum are known to hold a held lock. As many masters may lose it
    /// without harm.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        self.granted(lock).map_or(0, |granted| granted.count().saturating_sub(self.fleet.quorum))
    }

    fn handle_ready(&mut self, now: Instant, master: MasterId) {
        let admission = self.fleet.admit(now, master, &mut self.timers);
        if admission.predecessor != Predecessor::Same {
            self.forget_tickets(master);
            self.void_grants(master, admission.predecessor);
        }
        if let Some(why) = admission.refusal {
            if admission.is_restart {
                self.report_restart(master);
            }
            return self.fail_link(now, master, &why);
        }
        self.report_connected(now, master, admission.is_reconnect, admission.is_restart);
        self.release_orphans(now, master);
        self.repair(now, master);
        self.subscriptions.open(now, self.fleet.ready, &mut self.timers);
        // It may have changed during the handshake.
        if !mutant!(LoginOfHandshakeKept) {
            self.bring_login(now, master);
        }
    }

    /// Ends a connection and settles all that it owed.
    fn fail_link(&mut self, now: Instant, master: MasterId, why: &str) {
        let link = self.fleet.link(master);
        if link.connection.is_ready() || !link.connection.has_failed() {
            let name = &self.config.labels[master.index()];
            self.events.push(|| Event::Disconnected { master: name.clone(), why: why.into() });
        }
        if self.fleet.fail(now, master, why, &mut self.rng, &mut self.timers) {
            for id in self.claims.ids() {
                self.stray_claim(now, master, id);
            }
            self.lose_queries(now, master);
        }
    }

    fn handle_link_timeout(&mut self, now: Instant, master: MasterId) {
        if let Some(why) = self.fleet.handle_timeout(now, master, &mut self.timers) {
            let is_connecting = matches!(self.fleet.link(master).connection.state, State::Connecting { .. });
            if is_connecting && !self.fleet.wishes.awaiting_login.contains(master) {
                self.logins.keep_unused(master);
            }
            self.fail_link(now, master, &why);
        }
    }

    fn arm_op(&mut self, id: Id) {
        if let Some(at) = self.ops.find(id).and_then(Op::deadline) {
            self.timers.arm(op_timer(id), at);
        }
    }
}
