//! Subscriptions to releases: a second connection to each master, on which the first waiter for a lock is
//! notified when another client releases it.
//!
//! ```text
//!   attempt ─ refused ─► SUBSCRIBE ─► confirmed by a quorum ─► attempt ─ refused ─► Waiting ◄─────────┐
//!                                                                          │ a quorum says: released  │ no
//!                                                                          │ the holder's time ends   │
//!                                                                          │ the pause is over        │
//!                                                                          └───────────► attempt ─────┘
//! ```
//!
//! The attempt behind the confirmation is what makes it gapless: a release before it would notify nobody. A
//! message is a hint. Whatever it says costs an attempt at the most. One that is lost, or that the holder
//! does not send, costs the wait for the holder's time or for the next attempt after a pause. These
//! connections never vote, and what happens to them says nothing about their masters.
//!
//! # Pauses
//!
//! A waiter that a quorum has confirmed need not poll. Its pauses start at the longest `retry_delay` and
//! double up to [`limits::QUIET_PAUSE_FACTOR_MAX`] times that: two seconds by default. Once a message has
//! come, they are drawn from up to [`limits::UNWOKEN_PAUSE_FACTOR`] times that, and more in a crowd. They end
//! early with the holder's time, where masters are asked for it. An attempt that follows a reported release
//! does not ask: the next one behind a pause does. So each of these is the bound of what a lost message
//! costs. The attempt behind the confirmation is none of those that a caller has limited: the client makes it
//! for its own sake.
//!
//! # Groups
//!
//! A message to a crowd costs more than the release. So each waiter subscribes to two channels of a lock: its
//! own, and that of one of [`limits::WAKE_GROUP_COUNT`] groups, drawn at random; readers are in a group of
//! their own. The holder chooses how a release is published:
//!
//! - A client that has not waited lately publishes on the lock's own channel, on all masters. That costs
//!   little where nobody listens, and is part of the ordinary path. A quorum of messages causes an attempt.
//! - A client that has waited, for this lock or lately for any, has one master publish to two groups that
//!   have members, and to the readers. If the clients of one group stand still, the other gets the lock. This
//!   message causes an attempt at once: no other master sends one.
//!
//! That master is drawn from those that granted this lock, and on which the holder hears of releases itself.
//! If it does not answer the release, the others publish it on the lock's own channel. A message that is
//! lost behind it costs a pause. A client that is gone and still counts as a subscriber costs nothing, unless
//! two are.
//!
//! A master may confirm a subscription late, and may have published before. So each confirmation behind the
//! quorum is a reason for an attempt, too. One attempt serves them all if they come within a round trip.
//!
//! # Not all come
//!
//! Where more than [`limits::WOKEN_COUNT`] clients got one message, the masters say how many, and each client
//! draws whether it tries at once, so that about that many do; the others go on waiting. A waiter that tries
//! does so within one round trip at random, that they do not split the votes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{LoginState, State, Wishes};
use super::ground::Ground;
use super::handshake::Handshake;
use super::logins::CurrentLogin;
use super::request::{LinkId, LinkRequest};
use super::slab::Id;
use super::subscription::{Subscription, Wake};
use super::subscription_link::{CHANNEL_COUNT_MAX, Heard, Owed, SubscriptionLink};
use super::timers::subscription_timer;
use crate::config::Config;
use crate::limits;
use crate::lock::command;
use crate::lock::{MasterId, MasterSet, quorum};
use crate::mutants::mutant;

/// The connections for notifications, and the waiters that want them.
#[derive(Debug)]
pub(super) struct Subscriptions {
    config: Arc<Config>,
    /// The configured masters.
    all: MasterSet,
    quorum: usize,
    links: Vec<SubscriptionLink>,
    pub(super) wishes: Wishes,
    /// Masters to which there is a connection, or an attempt at one.
    open: MasterSet,
    /// Masters whose connection has done its handshake.
    ready: MasterSet,
    /// The waiters' subscriptions, each at the place of its operation.
    subscriptions: Vec<Option<Box<Subscription>>>,
    watch_count: usize,
    /// The waiters that are notified on each channel.
    channels: BTreeMap<Box<[u8]>, Vec<Id>>,
    /// Attempts that a message brought forward.
    woken_count: u64,
    /// Since when there has been no waiter.
    idle_since: Instant,
    /// Waiters that were notified by the bytes that are being read.
    notified: Vec<Id>,
    /// A command, or the channel of a message.
    buffer: Vec<u8>,
}

impl Subscriptions {
    pub(super) fn new(config: Arc<Config>, now: Instant) -> Self {
        let master_count = config.master_count();
        Self {
            all: MasterSet::first(master_count),
            quorum: quorum(master_count),
            links: (0..master_count).map(|_| SubscriptionLink::new(now)).collect(),
            wishes: Wishes::new(config.has_provider()),
            config,
            open: MasterSet::EMPTY,
            ready: MasterSet::EMPTY,
            subscriptions: Vec::new(),
            watch_count: 0,
            channels: BTreeMap::new(),
            woken_count: 0,
            idle_since: now,
            notified: Vec::new(),
            buffer: Vec::new(),
        }
    }

    // ---- waiters ----

    /// An attempt that took so long was refused, and the operation goes on waiting. Returns whether it is
    /// subscribed.
    pub(super) fn note_refused(&mut self, id: Id, took: Duration) -> bool {
        let Some(watch) = self.find_mut(id) else { return false };
        watch.took = took;
        true
    }

    /// Whether there is room for another waiter.
    pub(super) const fn has_room(&self) -> bool {
        self.watch_count < limits::WATCH_COUNT_MAX
    }

    /// Begins to have an operation notified.
    pub(super) fn watch(&mut self, ground: &mut Ground, watch: Subscription) {
        let id = watch.id;
        let place = id.index as usize;
        if self.subscriptions.len() <= place {
            self.subscriptions.resize_with(place + 1, || None);
        }
        for channel in watch.channels() {
            self.channels.entry(channel.into()).or_default().push(id);
        }
        assert!(self.subscriptions[place].replace(Box::new(watch)).is_none(), "it is notified already");
        self.watch_count += 1;
        for master in self.all.iter() {
            self.subscribe(ground, master, id);
        }
    }

    /// The operation has its lock, or has given up.
    pub(super) fn unwatch(&mut self, ground: &mut Ground, id: Id) {
        let watch = self.subscriptions[id.index as usize].take().expect("it was notified");
        let mut left = Vec::new();
        for channel in watch.channels() {
            let ids = self.channels.get_mut(channel).expect("its channel is there");
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.channels.remove(channel);
                left.push(channel);
            }
        }
        if !left.is_empty() {
            self.buffer.clear();
            command::wake::encode_unsubscribe(&mut self.buffer, &left);
            let owed = [Owed::Channel; CHANNEL_COUNT_MAX];
            for master in watch.asked.iter() {
                let link = &mut self.links[master.index()];
                if link.connection.wire.request(&self.buffer, &owed[..left.len()]).is_ok() {
                    link.answer_due.get_or_insert(ground.now + self.config.connect_timeout);
                }
                self.arm(ground, master);
            }
        }
        self.watch_count -= 1;
        if self.watch_count == 0 {
            self.idle_since = ground.now;
            let idle_until = ground.now + limits::SUBSCRIPTION_IDLE_MAX;
            self.all.iter().for_each(|master| ground.timers.arm(subscription_timer(master), idle_until));
        }
    }

    fn find(&self, id: Id) -> Option<&Subscription> {
        self.subscriptions.get(id.index as usize)?.as_deref().filter(|watch| watch.id == id)
    }

    fn find_mut(&mut self, id: Id) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(id.index as usize)?.as_deref_mut().filter(|watch| watch.id == id)
    }

    /// An attempt begins: what was reported before is no reason for another.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_attempt(&mut self, id: Id) {
        let quorum = self.quorum;
        if let Some(watch) = self.find_mut(id) {
            watch.begin_attempt(quorum);
        }
    }

    /// Between which bounds the next pause is drawn, if a quorum of masters notifies, and all of those that
    /// are `able` to.
    pub(super) fn pause_bounds(&self, id: Id, able: MasterSet) -> Option<RangeInclusive<Duration>> {
        self.find(id)?.pause_bounds(self.quorum, able, self.config.retry_delay_max)
    }

    /// Whether the last attempt of a waiter followed a reported release.
    pub(super) fn follows_release(&self, id: Id) -> bool {
        self.find(id).is_some_and(|watch| watch.follows_release) && !mutant!(HolderAskedAlways)
    }

    /// Whether a quorum notifies of releases.
    pub(super) fn is_confirmed(&self, id: Id) -> bool {
        self.find(id).is_some_and(|watch| watch.is_confirmed(self.quorum))
    }

    /// When the next attempt of a waiter is to be made, if its notification says so.
    pub(super) fn wake(&mut self, ground: &mut Ground, id: Id) -> Option<Wake> {
        let (quorum, longest) = (self.quorum, self.config.retry_delay_max);
        self.find_mut(id)?.wake(ground.now, quorum, longest, &mut ground.rng)
    }

    /// An attempt was brought forward by a message.
    pub(super) const fn note_woken(&mut self) {
        self.woken_count += 1;
    }

    /// Waiters that were notified by what was read, one after the other.
    pub(super) fn next_notified(&mut self) -> Option<Id> {
        self.notified.pop()
    }

    // ---- connections ----

    pub(super) fn poll_link(&mut self) -> Option<LinkRequest> {
        self.wishes.poll(LinkId::Subscription)
    }

    pub(super) fn send_ready(&self, master: MasterId) -> &[u8] {
        self.links[master.index()].connection.wire.send_ready()
    }

    pub(super) fn send_done(&mut self, master: MasterId, size: usize) {
        self.links[master.index()].connection.wire.send_done(size);
    }

    pub(super) fn recv_space(&mut self, master: MasterId) -> &mut [u8] {
        self.links[master.index()].connection.wire.recv_space()
    }

    /// Masters to which there is a connection, or an attempt at one.
    pub(super) const fn open_links(&self) -> MasterSet {
        self.open
    }

    /// Masters on which this client hears of releases, or would.
    #[inline]
    pub(super) const fn ready(&self) -> MasterSet {
        self.ready
    }

    /// Replies that a master owes.
    pub(super) fn owed_count(&self, master: MasterId) -> usize {
        self.links[master.index()].connection.wire.owed_count()
    }

    /// Why a master does not notify, if it refused to.
    pub(super) fn refusal(&self, master: MasterId) -> Option<&str> {
        self.links[master.index()].refused.as_deref()
    }

    /// Attempts that a message brought forward.
    pub(super) const fn woken_count(&self) -> u64 {
        self.woken_count
    }

    /// Opens what is closed, if there are waiters; a master that is not `ready` for commands need not be
    /// asked.
    pub(super) fn open(&mut self, ground: &mut Ground, ready: MasterSet) {
        if self.watch_count == 0 {
            return;
        }
        let deadline = ground.now + self.config.connect_timeout;
        for master in ready.iter() {
            let connection = &mut self.links[master.index()].connection;
            match connection.state {
                State::Down { retry_at } if retry_at <= ground.now => {
                    connection.start_connecting(deadline);
                    self.open.insert(master);
                    self.wishes.connect(master);
                    ground.timers.arm(subscription_timer(master), deadline);
                }
                State::Down { retry_at } => ground.timers.arm(subscription_timer(master), retry_at),
                _ => {}
            }
        }
    }

    pub(super) fn handle_connected(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        login: CurrentLogin<'_>,
    ) {
        let connection = &mut self.links[master.index()].connection;
        if !matches!(connection.state, State::Connecting { .. }) {
            return;
        }
        let (handshake, commands) = Handshake::for_subscription(&self.config, login.login, &mut ground.rng);
        let deadline = ground.now + self.config.connect_timeout;
        connection.start_handshake(deadline, login.version, handshake, &commands, Owed::Handshake);
        self.arm(ground, master);
    }

    pub(super) fn handle_disconnected(&mut self, ground: &mut Ground, master: MasterId) {
        if !self.links[master.index()].connection.is_down() {
            self.fail(ground, master);
            self.wishes.forget_close(master);
        }
    }

    /// Bytes were read. Waiters that they notify are in [`Subscriptions::next_notified`] once all are taken
    /// apart, as the number of waiters comes right behind the release.
    pub(super) fn recv_done(&mut self, ground: &mut Ground, master: MasterId, size: usize) {
        self.links[master.index()].connection.wire.recv_done(size);
        loop {
            match self.links[master.index()].next_heard(&mut self.buffer) {
                Ok(None) => break,
                Ok(Some(heard)) => self.handle_heard(ground, master, heard),
                Err(_) => {
                    self.fail(ground, master);
                    break;
                }
            }
        }
        let link = &mut self.links[master.index()];
        if link.connection.wire.owed_count() == 0 {
            link.answer_due = None;
        }
    }

    fn handle_heard(&mut self, ground: &mut Ground, master: MasterId, heard: Heard) {
        match heard {
            Heard::Nothing => {}
            Heard::Ready => {
                self.links[master.index()].connection.finish_handshake(ground.now);
                self.ready.insert(master);
                let ids: Vec<Id> = self.subscriptions.iter().flatten().map(|watch| watch.id).collect();
                ids.into_iter().for_each(|id| self.subscribe(ground, master, id));
            }
            Heard::Subscribed(id) => {
                let quorum = self.quorum;
                // The waiter may be gone.
                let Some(watch) = self.find_mut(id) else { return };
                watch.confirmed.insert(master);
                let count = watch.confirmed.count();
                let is_reason = count == quorum || (count > quorum && !mutant!(LateConfirmationIgnored));
                if is_reason && !mutant!(TryBeforeSubscribe) {
                    watch.is_untried = true;
                    self.notified.push(id);
                }
            }
            Heard::Freed => {
                for id in self.channels.get(self.buffer.as_slice()).into_iter().flatten() {
                    let watch = self.subscriptions[id.index as usize].as_mut().expect("it is notified");
                    watch.note_freed(master, &self.buffer);
                    self.notified.push(*id);
                }
            }
            Heard::Waiting(count) => {
                for id in self.channels.get(self.buffer.as_slice()).into_iter().flatten() {
                    let watch = self.subscriptions[id.index as usize].as_mut().expect("it is notified");
                    watch.note_waiting(count);
                }
            }
        }
    }

    /// Something is due for a connection: an answer, its end, or the next attempt to open it.
    pub(super) fn handle_timeout(&mut self, ground: &mut Ground, master: MasterId, ready: MasterSet) {
        let is_down = self.links[master.index()].connection.is_down();
        let idle_until = self.idle_since + limits::SUBSCRIPTION_IDLE_MAX;
        if self.deadline(master).is_some_and(|at| at <= ground.now) {
            self.fail(ground, master);
        } else if is_down {
            self.open(ground, ready);
        } else if self.watch_count == 0 && idle_until <= ground.now {
            self.links[master.index()].connection.forget_failures(ground.now);
            self.close(master, ground.now);
        } else {
            self.arm(ground, master);
            if self.watch_count == 0 {
                ground.timers.arm(subscription_timer(master), idle_until);
            }
        }
    }

    /// The connection is of no use any more, or never was: closes it, and tries again after a pause.
    fn fail(&mut self, ground: &mut Ground, master: MasterId) {
        let link = &mut self.links[master.index()];
        let pause = link.connection.back_off(ground.now, &mut ground.rng);
        let pause = if link.refused.is_some() { limits::SUBSCRIPTION_REFUSED_PAUSE } else { pause };
        self.close(master, ground.now + pause);
        for watch in self.subscriptions.iter_mut().flatten() {
            watch.asked.remove(master);
            watch.confirmed.remove(master);
        }
        if self.watch_count > 0 {
            ground.timers.arm(subscription_timer(master), ground.now + pause);
        }
    }

    fn close(&mut self, master: MasterId, retry_at: Instant) {
        let link = &mut self.links[master.index()];
        link.connection.close(retry_at);
        link.answer_due = None;
        self.open.remove(master);
        self.ready.remove(master);
        self.wishes.close(master, true);
    }

    /// Asks a master to notify a waiter, if it is connected and was not asked before.
    fn subscribe(&mut self, ground: &mut Ground, master: MasterId, id: Id) {
        let link = &mut self.links[master.index()];
        let watch = self.subscriptions[id.index as usize].as_mut().expect("it is notified");
        if !link.connection.is_ready() || watch.asked.contains(master) {
            return;
        }
        self.buffer.clear();
        let channels: Vec<&[u8]> = watch.channels().collect();
        command::wake::encode_subscribe(&mut self.buffer, &channels);
        let owed = [Owed::Channel, Owed::Subscribe(id)];
        if link.connection.wire.request(&self.buffer, &owed[CHANNEL_COUNT_MAX - channels.len()..]).is_ok() {
            watch.asked.insert(master);
            link.answer_due.get_or_insert(ground.now + self.config.connect_timeout);
            self.arm(ground, master);
        }
    }

    // ---- logins ----

    /// Sends `AUTH` on a connection that stands with another login.
    pub(super) fn bring_login(&mut self, ground: &mut Ground, master: MasterId, current: CurrentLogin<'_>) {
        let Some(login) = current.login.filter(|_| self.wants_login(master, current.version)) else {
            return;
        };
        let mut watches: Vec<_> = self.subscriptions.iter_mut().flatten().collect();
        watches.retain(|watch| watch.asked.contains(master));
        watches.iter_mut().for_each(|watch| watch.confirmed.remove(master));
        let link = &mut self.links[master.index()];
        if link.send_login(login, current.version, watches.iter().map(|watch| &***watch)).is_err() {
            // The next connection has it.
            return self.fail(ground, master);
        }
        link.answer_due.get_or_insert(ground.now + self.config.connect_timeout);
        self.arm(ground, master);
    }

    /// Whether a connection stands that is to be sent this login.
    pub(super) fn wants_login(&self, master: MasterId, version: u32) -> bool {
        self.open_login(master).is_some_and(|login| login.wants(version))
    }

    /// The login of a connection that stands.
    pub(super) fn open_login(&self, master: MasterId) -> Option<&LoginState> {
        self.ready.contains(master).then(|| &self.links[master.index()].connection.login)
    }

    /// The answer to `AUTH`: why it was refused, if it was.
    pub(super) fn take_login_answer(&mut self, master: MasterId) -> Option<Option<Box<str>>> {
        self.links[master.index()].login_answer.take()
    }

    /// When a connection must have come farther, or have answered. One that is down is tried when there are
    /// waiters.
    fn deadline(&self, master: MasterId) -> Option<Instant> {
        let link = &self.links[master.index()];
        if link.connection.is_down() {
            return None;
        }
        link.connection.deadline().or(link.answer_due)
    }

    fn arm(&self, ground: &mut Ground, master: MasterId) {
        if let Some(at) = self.deadline(master) {
            ground.timers.arm(subscription_timer(master), at);
        }
    }
}
