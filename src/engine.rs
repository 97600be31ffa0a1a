//! The whole protocol without I/O, without a clock and without threads, for people who bring their own event loop, and
//! for simulators: the same calls with the same seed and times give the same history.
//!
//! # Order of calls
//!
//! 1. [`Engine::submit`] requests at any time; it queues bytes and returns at once.
//! 2. Do what [`Engine::poll_link`] asks for: open or close a connection. Tell the result with
//!    [`Engine::handle_connected`] or [`Engine::handle_disconnected`]. Who has no second connection to give for
//!    [`LinkId::News`] says that it was lost.
//! 3. For each connection write [`Engine::send_ready`] and tell how much went out with [`Engine::send_done`].
//! 4. Sleep until a socket is readable or [`Engine::next_timeout`] has come. Read whatever has arrived into
//!    [`Engine::recv_space`] and call [`Engine::recv_done`] with a fresh time, *then* call [`Engine::handle_timeout`]:
//!    an answer that is already here must not be called late.
//! 5. Drain [`Engine::poll_outcome`]; go on with 2.
//!
//! Every call takes `now`, which must never go backwards.
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
//! Keeps I1 to I10, I14 to I16, I18 to I20, I22 and I25 of the rules; the quorum itself is in [`crate::lock`].

mod acquire;
mod broadcast;
mod claim;
mod errand;
mod fair;
mod fence;
mod handover;
mod handshake;
mod hold;
mod inspection;
mod lines;
mod link;
mod link_id;
mod mark;
mod news;
mod op;
mod renew;
mod repair;
mod reports;
mod request;
mod script;
mod sharing;
mod slab;
mod status;
mod timers;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::config::Config;
use crate::limits;
use crate::lock::command;
use crate::lock::{MasterId, MasterSet, Vote, quorum};
use crate::mutants::{self, mutant};
use acquire::Terms;
pub use fair::Ticket;
pub use inspection::{ForceUnlocked, Inspection, Standing, Told};
pub use link_id::{LinkId, LinkRequest, Reason};
pub use request::{Grant, Outcome, Released, Request, SubmitError};
pub use status::{MasterState, MasterStatus};

use broadcast::Broadcast;
use claim::{Claim, Counted};
use lines::Lines;
use link::{Answer, Link, Owed, Predecessor, State};
use news::News;
use op::{Op, OpState};
use slab::{Id, Slab};
use timers::{Timer, Timers, master_timer, op_timer, timer_of};

/// Names one lock of one [`Engine`], from [`Engine::submit`] of its acquisition to its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(Id);

impl OpId {
    /// A small number that no other lock has at the same time.
    pub(crate) const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// The protocol; see the [module](self).
#[derive(Debug)]
pub struct Engine {
    config: Arc<Config>,
    /// The time of the engine's making.
    started: Instant,
    rng: StdRng,
    links: Vec<Link>,
    /// The configured masters.
    all: MasterSet,
    /// Masters that are sent acquisitions: ready and not silent.
    usable: MasterSet,
    /// Masters whose votes may not count yet; each has a time in its link.
    unseasoned: MasterSet,
    connect_wanted: MasterSet,
    close_wanted: MasterSet,
    /// The connections by which waiters are told of releases.
    news: News,
    ops: Slab<Op>,
    /// The operations that hold a lock or wait for one, by its key.
    lines: Lines,
    claims: Slab<Claim>,
    /// The quorum of the configured masters.
    quorum: usize,
    timers: Timers,
    outcomes: VecDeque<(OpId, Outcome)>,
    /// Claims for which a reply that was just counted may have decided something.
    decided: Vec<Id>,
    broadcast: Broadcast,
    /// Whose release is being queued, if it was of a fair lock.
    leaving: Option<fair::Leaving>,
    /// Of the latest acquisition, the same for all of one TTL.
    terms: Terms,
    /// By how much the clocks of the masters are ahead of the callers' wall clock, in microseconds, as learnt from refused
    /// fencing tokens.
    skew_us: i64,
}

impl Engine {
    /// An engine whose masters are all to be connected. The seed must come from the operating system's randomness:
    /// the tokens are drawn from it.
    #[must_use]
    pub fn new(config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        let links: Vec<Link> = (0..config.master_count())
            .filter_map(MasterId::new)
            .map(|master| Link::new(master, now))
            .collect();
        assert_eq!(
            links.len(),
            config.master_count(),
            "a configuration has at most {} masters",
            limits::MASTER_COUNT_MAX
        );
        let mut timers = Timers::default();
        links.iter().for_each(|link| timers.arm(master_timer(link.master), now));
        let mut rng = StdRng::from_seed(mutants::seed(seed));
        let news = News::new(links.len(), now);
        Self {
            quorum: quorum(links.len()),
            all: MasterSet::first(links.len()),
            config,
            started: now,
            links,
            usable: MasterSet::EMPTY,
            unseasoned: MasterSet::EMPTY,
            connect_wanted: MasterSet::EMPTY,
            close_wanted: MasterSet::EMPTY,
            news,
            ops: Slab::new(limits::OPERATION_COUNT_MAX),
            lines: Lines::new(&mut rng),
            rng,
            claims: Slab::new(limits::CLAIM_COUNT_MAX),
            timers,
            outcomes: VecDeque::new(),
            decided: Vec::new(),
            broadcast: Broadcast::new(),
            leaving: None,
            terms: Terms::NONE,
            skew_us: 0,
        }
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// The masters in the order of the configuration.
    pub fn masters(&self) -> impl Iterator<Item = MasterId> + use<> {
        self.all.iter()
    }

    /// Takes a request. Its outcome comes from [`Engine::poll_outcome`], possibly at once.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was queued then.
    pub fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        match request {
            Request::Acquire { resource, ttl, wait, min_validity } => {
                self.submit_acquire(now, resource, ttl, wait, min_validity)
            }
            Request::AcquireFenced { resource, ttl, wait, min_validity, wall } => {
                self.submit_fenced(now, resource, (ttl, wait, min_validity), wall)
            }
            Request::AcquireFair { resource, ttl, wait, min_validity } => {
                self.submit_fair(now, resource, ttl, wait, min_validity)
            }
            Request::AcquireShared { resource, ttl, wait, min_validity } => {
                self.submit_shared(now, resource, (ttl, wait, min_validity))
            }
            Request::KeepReadersOut { lock } => {
                self.submit_intent(lock.0);
                Ok(lock)
            }
            Request::Extend { lock, ttl } => {
                self.submit_extend(now, lock.0, ttl);
                Ok(lock)
            }
            Request::Limit { lock, attempts_max } => {
                self.submit_limit(now, lock.0, attempts_max);
                Ok(lock)
            }
            Request::Keep { lock, max_hold } => {
                self.submit_keep(now, lock.0, max_hold);
                Ok(lock)
            }
            Request::Watch { lock } => {
                self.submit_watch(lock.0);
                Ok(lock)
            }
            Request::Release { lock, awaited } => {
                self.submit_release(now, lock.0, awaited);
                if self.leaving.is_some() {
                    self.finish_leaving();
                }
                Ok(lock)
            }
            Request::Pause { attempts, took } => self.submit_pause(now, attempts, took),
            Request::Inspect { resource } => self.submit_inspect(now, resource),
            Request::ForceUnlock { resource } => self.submit_force_unlock(now, resource),
        }
    }

    /// The next outcome, and the lock that it is about.
    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        self.outcomes.pop_front()
    }

    /// Whether [`Engine::poll_outcome`] has something.
    #[must_use]
    pub fn has_outcome(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// The next thing to do with a connection.
    pub fn poll_link(&mut self) -> Option<LinkRequest> {
        if let Some(master) = self.close_wanted.iter().next() {
            self.close_wanted.remove(master);
            return Some(LinkRequest::Close(master.into()));
        }
        let Some(master) = self.connect_wanted.iter().next() else { return self.news.poll_link() };
        self.connect_wanted.remove(master);
        Some(LinkRequest::Connect(master.into()))
    }

    /// The connection that was asked for stands; its handshake waits in [`Engine::send_ready`].
    pub fn handle_connected(&mut self, now: Instant, link: impl Into<LinkId>) {
        let master = match link.into() {
            LinkId::Commands(master) => master,
            LinkId::News(master) => return self.handle_news_connected(now, master),
        };
        let link = &mut self.links[master.index()];
        if !matches!(link.state, State::Connecting { .. }) {
            return;
        }
        // The handshake's few hundred bytes always fit an empty queue.
        let queued = link.start_handshake(now, &self.config, &mut self.rng);
        assert!(queued.is_ok(), "the handshake is larger than the outbox");
        self.arm_link(master);
    }

    /// The connection broke, or could not be made; `why` is shown to people.
    pub fn handle_disconnected(&mut self, now: Instant, link: impl Into<LinkId>, why: &str) {
        let master = match link.into() {
            LinkId::Commands(master) => master,
            LinkId::News(master) => return self.handle_news_disconnected(now, master),
        };
        let link = &self.links[master.index()];
        if !matches!(link.state, State::Down { .. }) {
            match link.last_refusal() {
                // A server that is full says so in place of its first reply, and then closes the connection.
                Some(text) => self.fail_link(now, master, &format!("{why}, after \"{text}\"")),
                None => self.fail_link(now, master, why),
            }
            // The driver has no connection left that would have to be closed.
            self.close_wanted.remove(master);
        }
    }

    /// Bytes to write.
    #[must_use]
    pub fn send_ready(&mut self, link: impl Into<LinkId>) -> &[u8] {
        match link.into() {
            LinkId::Commands(master) => {
                self.broadcast.flush(&mut self.links);
                self.links[master.index()].wire.send_ready()
            }
            LinkId::News(master) => self.news.send_ready(master),
        }
    }

    /// `size` bytes of [`Engine::send_ready`] were written.
    pub fn send_done(&mut self, link: impl Into<LinkId>, size: usize) {
        match link.into() {
            LinkId::Commands(master) => self.links[master.index()].wire.send_done(size),
            LinkId::News(master) => self.news.send_done(master, size),
        }
    }

    /// Where to read into; never empty.
    pub fn recv_space(&mut self, link: impl Into<LinkId>) -> &mut [u8] {
        match link.into() {
            LinkId::Commands(master) => self.links[master.index()].wire.recv_space(),
            LinkId::News(master) => self.news.recv_space(master),
        }
    }

    /// `size` bytes were read into [`Engine::recv_space`]; `now` must have been read after them (I2).
    pub fn recv_done(&mut self, now: Instant, link: impl Into<LinkId>, size: usize) {
        match link.into() {
            LinkId::Commands(master) => self.recv_commands(now, master, size),
            LinkId::News(master) => self.recv_news(now, master, size),
        }
    }

    fn recv_commands(&mut self, now: Instant, master: MasterId, size: usize) {
        let link = &mut self.links[master.index()];
        link.wire.recv_done(size);
        if size > 0 {
            link.heard_at = now;
            if let State::Ready { silent_since: silent @ Some(_), .. } = &mut link.state {
                *silent = None;
                self.usable.insert(master);
                self.repair(now, master);
            }
        }
        loop {
            let link = &mut self.links[master.index()];
            count_usual(link, &mut self.claims, self.quorum, &mut self.decided);
            if !self.decided.is_empty() {
                self.handle_decided(now);
            }
            if !self.links[master.index()].wire.has_received() || !self.recv_any(now, master) {
                return;
            }
        }
    }

    /// Looks after the claims for which counted replies may have decided something.
    #[inline(never)]
    fn handle_decided(&mut self, now: Instant) {
        let mut handled_count = 0;
        while let Some(&id) = self.decided.get(handled_count) {
            self.handle_counted(now, id);
            handled_count += 1;
        }
        self.decided.clear();
    }

    /// Handles one reply of any kind; false if none is whole. Not inlined, for it is rarely needed.
    #[inline(never)]
    fn recv_any(&mut self, now: Instant, master: MasterId) -> bool {
        match self.links[master.index()].next_answer() {
            Ok(Some(answer)) => self.handle_answer(now, master, answer),
            Ok(None) => return false,
            Err(why) => {
                self.fail_link(now, master, &why);
                return false;
            }
        }
        true
    }

    /// When [`Engine::handle_timeout`] is to be called next, and for what. It may be earlier than needed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<(Instant, Reason)> {
        self.timers.next().map(|(at, id)| {
            let reason = match timer_of(id) {
                Timer::Master(master) | Timer::News(master) => Reason::Link(master),
                Timer::Op(_) => Reason::Operation,
                Timer::Claim(_) => Reason::Claim,
            };
            (at, reason)
        })
    }

    /// Does what is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer_of(timer) {
                Timer::Master(master) => self.handle_link_timeout(now, master),
                Timer::News(master) => self.handle_news_timeout(now, master),
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

    /// When the validity of a held lock ends, or ended.
    #[must_use]
    pub fn valid_until(&self, lock: OpId) -> Option<Instant> {
        match self.ops.find(lock.0)?.state {
            OpState::Held { valid_until, .. } => Some(valid_until),
            _ => None,
        }
    }

    /// The masters known to hold a held lock, late answers included; the margin is what they are above the quorum.
    #[must_use]
    pub fn granted(&self, lock: OpId) -> Option<MasterSet> {
        let op = self.ops.find(lock.0)?;
        match op.state {
            OpState::Held { .. } => self.claims.find(op.claim).map(|claim| claim.tally.granted),
            _ => None,
        }
    }

    /// How many masters above the quorum are known to hold a held lock: so many may lose it without harm.
    #[must_use]
    pub fn margin(&self, lock: OpId) -> usize {
        self.granted(lock).map_or(0, |granted| granted.count().saturating_sub(self.quorum))
    }

    fn handle_answer(&mut self, now: Instant, master: MasterId, answer: Answer) {
        match answer {
            Answer::Acquire(id, vote) => self.handle_acquire_vote(now, master, id, vote),
            Answer::AcquireFenced(id, answer) => self.handle_fenced_answer(now, master, id, answer),
            Answer::AcquireFair(id, answer) => self.handle_fair_answer(now, master, id, answer),
            Answer::AcquireShared(id, vote) => self.handle_shared_vote(now, master, id, vote),
            Answer::Release(id, answer) => self.handle_release_answer(now, master, id, answer),
            Answer::Swap(id, from, vote) => self.handle_swap_vote(now, master, id, from, vote),
            Answer::Extend(id, round, vote) => self.handle_extend_vote(now, master, id, round, vote),
            Answer::Holder(id, told) => self.handle_holder(now, master, id, told),
            Answer::Repair(id, round, vote) => self.handle_repair_vote(master, id, round, &vote),
            Answer::Value(id, value) => self.handle_value(master, id, value),
            Answer::ReaderCount(id, count) => self.handle_reader_count(master, id, count),
            Answer::TimeLeft(id, left) => self.handle_time_left(now, master, id, left),
            Answer::ForcedDelete(id, answer) => self.handle_forced_delete(now, master, id, answer),
            Answer::Mark(answer) => self.handle_mark(master, answer),
            Answer::MarkRefused(text) => self.handle_mark_refused(master, text),
            Answer::WantsScript(owed) => self.send_whole_script(now, master, owed),
            Answer::HandshakeStep | Answer::MarkWritten | Answer::Told => {}
            Answer::HandshakeDone => self.handle_ready(now, master),
        }
    }

    fn handle_ready(&mut self, now: Instant, master: MasterId) {
        let learnt_run_id = match &self.links[master.index()].state {
            State::Handshake { handshake, .. } => handshake.learnt.run_id.clone(),
            _ => None,
        };
        if let Some(run_id) = learnt_run_id
            && !mutant!(SameServerTwice)
            && let Some(other) = self.links.iter().find(|link| link.run_id() == Some(&run_id))
        {
            let other = &self.config.labels[other.master.index()];
            let why = format!(
                "it is the same server as {other} (run_id {run_id}), and may vote only once: list each server once"
            );
            self.fail_link(now, master, &why);
            return;
        }
        let link = &mut self.links[master.index()];
        let predecessor = link.finish_handshake(now, &self.config);
        let unfitness = link.refuse_unfit(&self.config);
        if predecessor != Predecessor::Same {
            self.void_grants(master, predecessor);
        }
        if let Some(why) = unfitness {
            return self.fail_link(now, master, &why);
        }
        let link = &mut self.links[master.index()];
        self.usable.insert(master);
        self.broadcast.add_ready(link);
        if link.seasoned_at.is_some() {
            self.unseasoned.insert(master);
        } else {
            self.unseasoned.remove(master);
        }
        self.release_orphans(master);
        self.repair(now, master);
        self.arm_link(master);
        self.open_news(now);
    }

    /// Ends a connection and settles all that it owed.
    fn fail_link(&mut self, now: Instant, master: MasterId, why: &str) {
        self.broadcast.remove(&mut self.links, master);
        let link = &mut self.links[master.index()];
        let was_open = !matches!(link.state, State::Down { .. });
        let was_ready = link.is_ready();
        link.fail(now, why, &mut self.rng);
        self.usable.remove(master);
        self.connect_wanted.remove(master);
        if was_open {
            self.close_wanted.insert(master);
        }
        self.arm_link(master);
        if was_ready {
            for id in self.claims.ids() {
                self.stray_claim(now, master, id);
            }
            self.lose_errands(now, master);
        }
    }

    fn handle_link_timeout(&mut self, now: Instant, master: MasterId) {
        let link = &mut self.links[master.index()];
        let limit = self.config.connect_timeout;
        if link.deadline().is_none_or(|at| at > now) {
            self.arm_link(master);
            return;
        }
        match link.state {
            State::Down { .. } if mutant!(NoReconnect) && link.has_failed() => {}
            State::Down { .. } => {
                link.state = State::Connecting { deadline: now + limit };
                self.connect_wanted.insert(master);
                self.arm_link(master);
            }
            State::Connecting { .. } => {
                self.fail_link(now, master, &format!("no connection within {limit:?}"))
            }
            State::Handshake { .. } => {
                self.fail_link(now, master, &format!("no answer to the handshake within {limit:?}"))
            }
            State::Ready { .. } if link.mark_due_at.take_if(|at| *at <= now).is_some() => {
                self.read_mark(master);
                self.arm_link(master);
            }
            State::Ready { .. } => {
                self.fail_link(now, master, &format!("no answer for {:?}", limits::SILENCE_MAX));
            }
        }
    }

    /// A master let a deadline pass. If it has said nothing at all for so long, it is skipped until it does. One that owes
    /// nothing has nothing to say: what it was asked went down with an earlier connection.
    fn note_missed(&mut self, now: Instant, master: MasterId, limit: Duration) {
        if self.owed_count(master) == 0 {
            return;
        }
        let link = &mut self.links[master.index()];
        if let State::Ready { silent_since: silent @ None, .. } = &mut link.state
            && now - link.heard_at >= limit
        {
            *silent = Some(now);
            self.usable.remove(master);
            self.arm_link(master);
        }
    }

    fn arm_link(&mut self, master: MasterId) {
        if let Some(at) = self.links[master.index()].deadline() {
            self.timers.arm(master_timer(master), at);
        }
    }

    fn arm_op(&mut self, id: Id) {
        if let Some(at) = self.ops.find(id).and_then(Op::deadline) {
            self.timers.arm(op_timer(id), at);
        }
    }

    /// The masters whose votes do not count at this moment (I8).
    fn quarantined(&mut self, now: Instant) -> MasterSet {
        if self.unseasoned.is_empty() {
            return MasterSet::EMPTY;
        }
        for master in self.unseasoned.iter() {
            let link = &mut self.links[master.index()];
            let early = Duration::from_nanos(u64::from(mutant!(QuarantineTickShort)));
            if link.seasoned_at.is_none_or(|at| at <= now + early) {
                link.seasoned_at = None;
                self.unseasoned.remove(master);
            }
        }
        self.unseasoned
    }
}

/// Counts grants and deletions up to the first other reply, and notes the claims for which one may have decided
/// something. All that is done about them is elsewhere, so that the loop has the registers for itself.
#[inline(always)]
fn count_usual(link: &mut Link, claims: &mut Slab<Claim>, quorum: usize, decided: &mut Vec<Id>) {
    let master = link.master;
    link.wire.take_known(|owed, received| {
        let (id, rest, counted) = match *owed {
            Owed::Acquire(id) => {
                let rest = command::split_granted(received)?;
                (id, rest, claims.find_mut(id).map(|claim| claim.count_grant(master, quorum)))
            }
            Owed::Release(id) => {
                let rest = command::split_deleted(received)?;
                (id, rest, claims.find_mut(id).map(|claim| claim.count_deleted(master, quorum)))
            }
            Owed::Told => return command::split_untold(received),
            _ => return None,
        };
        match counted {
            None | Some(Counted::Open) => {}
            Some(Counted::Decides) => decided.push(id),
            Some(Counted::Done) => claims.free(id),
        }
        Some(rest)
    });
}
