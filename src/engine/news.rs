//! News of released locks: a second connection to each master, on which the first who waits for a lock is told when another
//! client releases it.
//!
//! ```text
//!   attempt ─ refused ─► SUBSCRIBE ─► confirmed by a quorum ─► attempt ─ refused ─► Waiting ◄─────────┐
//!                                                                          │ a quorum says: released  │ refused
//!                                                                          │ the holder's time ends   │
//!                                                                          │ the pause is over        │
//!                                                                          └───────────► attempt ─────┘
//! ```
//!
//! The attempt behind the confirmation is what makes it gapless: a release before it would be told to nobody. A message
//! is a hint. Whatever it says costs an attempt at the most. One that is lost, or that the holder does not send, costs the
//! wait for the holder's time or for the next attempt after a pause. These connections never vote, and what happens to them
//! says nothing about their masters.
//!
//! # Pauses
//!
//! A waiter that a quorum has confirmed need not poll. Its pauses start at the longest `retry_delay` and double up to
//! [`limits::QUIET_PAUSE_FACTOR_MAX`] times that: two seconds by default. Once a message has come, they are drawn from up to
//! [`limits::UNWOKEN_PAUSE_FACTOR`] times that, and more in a crowd. They end early with the holder's time, where masters
//! are asked for it. So each of these is the bound of what a lost message costs. The attempt behind the confirmation is
//! none of those that a caller has limited: the client makes it for its own sake.
//!
//! # Not all come
//!
//! Each waiting client is told. Where they are more than [`limits::WOKEN_COUNT`] the masters say how many, and each client
//! draws whether it tries at once, so that about that many do; the others go on waiting. Who tries does so within one
//! round trip at random, that they do not split the votes.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use super::Engine;
use super::handshake::{Handshake, Step};
use super::link_id::{LinkId, LinkRequest};
use super::op::OpState;
use super::slab::Id;
use super::timers::news_timer;
use crate::limits;
use crate::lock::command::{self, News as Message};
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;
use crate::resp::{self, Reply};
use crate::wire::Wire;

/// What an operation that waits knows of its channel.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Masters that were sent a `SUBSCRIBE`, and those of them that confirmed it.
    asked: MasterSet,
    confirmed: MasterSet,
    /// Whether a quorum has confirmed since the last attempt began: a release before that went unheard.
    is_untried: bool,
    /// Masters that told of the latest release, if it was since the last attempt began.
    freed: MasterSet,
    /// Whether this client tries for it, and after what pause.
    draw: Draw,
    /// How many wait, if a master said so with the latest release that was told.
    waiting_count: u32,
    /// Whether messages come at all: then the pauses between attempts may be long at once.
    has_heard: bool,
    /// Attempts since a quorum confirmed, by which the pauses grow until a message has come.
    quiet_count: u32,
    /// How long the last attempt took.
    took: Duration,
}

/// What came of the draw after a release, by which not all come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Draw {
    #[default]
    Open,
    Skip,
    Try(Duration),
}

/// The connections for news, and who wants them.
#[derive(Debug)]
pub(super) struct News {
    links: Vec<NewsLink>,
    /// Masters to whom there is a connection, or an attempt at one.
    pub(super) open: MasterSet,
    connect_wanted: MasterSet,
    close_wanted: MasterSet,
    watch_count: usize,
    /// Readers among those who want them, who stand in no line.
    pub(super) readers: Vec<Id>,
    /// Attempts that a message brought forward.
    pub(super) woken_count: u64,
    /// Since when nobody has wanted any.
    idle_since: Instant,
    /// Operations that were told something by the bytes that are being read.
    pub(super) told: Vec<Id>,
    /// A channel's name as the key that operations have.
    pub(super) key: Vec<u8>,
}

#[derive(Debug)]
struct NewsLink {
    state: State,
    wire: Wire<Owed>,
    /// When it has to have answered what it owes.
    answer_due: Option<Instant>,
    failure_count: u32,
    /// Why the master refused to tell, in its words.
    refused: Option<Box<str>>,
}

#[derive(Debug)]
enum State {
    /// Not to be opened before this time.
    Closed {
        retry_at: Instant,
    },
    Connecting {
        deadline: Instant,
    },
    Handshake {
        deadline: Instant,
        handshake: Handshake,
    },
    Ready,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    Handshake(Step),
    Subscribe(Id),
    Unsubscribe,
}

/// What a reply or a message came to.
enum Heard {
    Nothing,
    Ready,
    Subscribed(Id),
    Freed,
    Waiting(u32),
}

impl Watch {
    /// An attempt begins: what was told before is no reason for another.
    pub(super) fn begin_attempt(&mut self, quorum: usize) {
        self.is_untried = false;
        self.quiet_count = self.quiet_count.saturating_add(u32::from(self.confirmed.has(quorum)));
        self.forget_release();
    }

    /// Between which bounds the next pause is drawn, if a quorum of masters other than the `mute` ones tells of releases.
    /// `longest` is that of a waiter that is not told.
    ///
    /// Before the first message nobody knows whether the holder sends one: the pauses double, so that a release without a
    /// message costs at most as long again as the wait so far. Once one has come the bounds are wide at once. The more wait
    /// the wider, so that all of them together do not come too often; the first of them comes as soon as ever.
    pub(super) fn pause_bounds(
        &self,
        quorum: usize,
        mute: MasterSet,
        longest: Duration,
    ) -> Option<RangeInclusive<Duration>> {
        if !self.confirmed.without(mute).has(quorum) {
            return None;
        }
        if self.has_heard {
            let crowd =
                (self.waiting_count / limits::UNWOKEN_CROWD + 1).min(limits::UNWOKEN_CROWD_FACTOR_MAX);
            return Some(longest..=longest * crowd * limits::UNWOKEN_PAUSE_FACTOR);
        }
        let doubled = 1 << self.quiet_count.saturating_sub(1).min(16);
        let bound = longest * doubled.min(limits::QUIET_PAUSE_FACTOR_MAX);
        let least = if mutant!(NoJitter) { bound } else { bound / 2 };
        (!mutant!(SubscribedPolls)).then_some(least..=bound)
    }

    /// Whether a quorum tells of releases.
    pub(super) fn is_confirmed(&self, quorum: usize) -> bool {
        self.confirmed.has(quorum)
    }

    /// A master tells of a release.
    pub(super) fn note_freed(&mut self, master: MasterId) {
        if self.freed.contains(master) {
            // This one tells of a later release.
            self.forget_release();
        }
        if self.freed.is_empty() {
            self.waiting_count = 0;
        }
        self.freed.insert(master);
        self.has_heard = true;
    }

    fn forget_release(&mut self) {
        (self.freed, self.draw) = (MasterSet::EMPTY, Draw::Open);
    }
}

impl News {
    pub(super) fn new(master_count: usize, now: Instant) -> Self {
        let link = || NewsLink {
            state: State::Closed { retry_at: now },
            wire: Wire::new(),
            answer_due: None,
            failure_count: 0,
            refused: None,
        };
        Self {
            links: (0..master_count).map(|_| link()).collect(),
            open: MasterSet::EMPTY,
            connect_wanted: MasterSet::EMPTY,
            close_wanted: MasterSet::EMPTY,
            watch_count: 0,
            readers: Vec::new(),
            woken_count: 0,
            idle_since: now,
            told: Vec::new(),
            key: Vec::new(),
        }
    }

    pub(super) fn poll_link(&mut self) -> Option<LinkRequest> {
        if let Some(master) = self.close_wanted.iter().next() {
            self.close_wanted.remove(master);
            return Some(LinkRequest::Close(LinkId::News(master)));
        }
        let master = self.connect_wanted.iter().next()?;
        self.connect_wanted.remove(master);
        Some(LinkRequest::Connect(LinkId::News(master)))
    }

    pub(super) fn send_ready(&self, master: MasterId) -> &[u8] {
        self.links[master.index()].wire.send_ready()
    }

    pub(super) fn send_done(&mut self, master: MasterId, size: usize) {
        self.links[master.index()].wire.send_done(size);
    }

    pub(super) fn recv_space(&mut self, master: MasterId) -> &mut [u8] {
        self.links[master.index()].wire.recv_space()
    }

    /// Replies that a master owes over its connection for news.
    pub(super) fn owed_count(&self, master: MasterId) -> usize {
        self.links[master.index()].wire.owed_count()
    }

    /// Why a master does not tell, if it refused to.
    pub(super) fn refusal(&self, master: MasterId) -> Option<&str> {
        self.links[master.index()].refused.as_deref()
    }

    /// The next reply or message of a master; the key of a message is left in `self.key`.
    fn next_heard(&mut self, master: MasterId) -> Result<Option<Heard>, String> {
        let NewsLink { state, wire, refused, .. } = &mut self.links[master.index()];
        let is_ready = matches!(state, State::Ready);
        let is_message = |reply: &Reply<'_>| {
            is_ready && matches!(command::news(reply), Some(Message::Freed(_) | Message::Waiting(..)))
        };
        let next = wire.next_reply_or_push(is_message).map_err(|error| error.to_string())?;
        let Some((owed, reply)) = next else { return Ok(None) };
        let heard = match (owed, command::news(&reply)) {
            (None, Some(Message::Freed(channel))) => {
                self.key.clear();
                resp::encode_bulk(&mut self.key, channel);
                Heard::Freed
            }
            (None, Some(Message::Waiting(channel, count))) => {
                self.key.clear();
                resp::encode_bulk(&mut self.key, channel);
                Heard::Waiting(count)
            }
            (Some(Owed::Handshake(step)), _) => {
                let State::Handshake { handshake, .. } = state else {
                    return Err("a handshake reply out of turn".to_owned());
                };
                if handshake.handle_reply(step, &reply)? { Heard::Ready } else { Heard::Nothing }
            }
            (Some(Owed::Subscribe(id)), Some(Message::Confirmed)) => {
                *refused = None;
                Heard::Subscribed(id)
            }
            (Some(Owed::Unsubscribe), Some(Message::Confirmed)) => Heard::Nothing,
            (Some(_), _) => {
                let Reply::Error(text) = reply else { return Err("a reply of the wrong shape".to_owned()) };
                *refused = Some(command::error_text(text));
                return Err("it refused to tell of releases".to_owned());
            }
            (None, _) => return Err("a reply to no request".to_owned()),
        };
        Ok(Some(heard))
    }
}

impl NewsLink {
    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Closed { .. } => None,
            State::Connecting { deadline } | State::Handshake { deadline, .. } => Some(deadline),
            State::Ready => self.answer_due,
        }
    }
}

impl Engine {
    /// An attempt was refused that took so long, and the operation goes on waiting: sees to it that it is told of a release.
    pub(super) fn watch(&mut self, now: Instant, id: Id, took: Duration) {
        if !self.config.wakes_waiters {
            return;
        }
        let op = self.ops.op_mut(id);
        if let Some(watch) = &mut op.watch {
            watch.took = took;
            return self.follow_watch(now, id);
        }
        if self.news.watch_count >= limits::WATCH_COUNT_MAX {
            return;
        }
        op.watch = Some(Box::new(Watch { took, ..Watch::default() }));
        if op.is_shared {
            self.news.readers.push(id);
        }
        self.news.watch_count += 1;
        for master in self.fleet.all().iter() {
            self.subscribe(now, master, id);
        }
        self.open_news(now);
    }

    /// The operation has its lock, or has given up.
    pub(super) fn unwatch(&mut self, now: Instant, id: Id) {
        let op = self.ops.op_mut(id);
        let Some(watch) = op.watch.take() else { return };
        self.news.readers.retain(|reader| *reader != id);
        let asked = if self.is_watched_by_others(id) { MasterSet::EMPTY } else { watch.asked };
        let op = self.ops.op(id);
        for master in asked.iter() {
            let link = &mut self.news.links[master.index()];
            self.news.key.clear();
            command::encode_unsubscribe(&mut self.news.key, op.channel());
            if link.wire.request(&self.news.key, &[Owed::Unsubscribe]).is_ok() {
                link.answer_due.get_or_insert(now + self.config.connect_timeout);
            }
        }
        asked.iter().for_each(|master| self.arm_news(master));
        self.news.watch_count -= 1;
        if self.news.watch_count == 0 {
            self.news.idle_since = now;
            let idle_until = now + limits::NEWS_IDLE_MAX;
            self.fleet.all().iter().for_each(|master| self.timers.arm(news_timer(master), idle_until));
        }
    }

    /// Opens what is closed, if somebody waits; a master that cannot be sent commands need not be asked for news.
    pub(super) fn open_news(&mut self, now: Instant) {
        if self.news.watch_count == 0 {
            return;
        }
        let deadline = now + self.config.connect_timeout;
        for link in self.fleet.links().filter(|link| link.is_ready()) {
            let master = link.master;
            let news = &mut self.news.links[master.index()];
            match news.state {
                State::Closed { retry_at } if retry_at <= now => {
                    news.state = State::Connecting { deadline };
                    self.news.open.insert(master);
                    self.news.connect_wanted.insert(master);
                    self.timers.arm(news_timer(master), deadline);
                }
                State::Closed { retry_at } => self.timers.arm(news_timer(master), retry_at),
                _ => {}
            }
        }
    }

    pub(super) fn handle_news_connected(&mut self, now: Instant, master: MasterId) {
        let link = &mut self.news.links[master.index()];
        if !matches!(link.state, State::Connecting { .. }) {
            return;
        }
        let (handshake, commands) = Handshake::for_news(&self.config, master, &mut self.rng);
        let deadline = now + self.config.connect_timeout;
        link.wire.clear();
        link.state = State::Handshake { deadline, handshake };
        for (step, bytes) in &commands {
            let queued = link.wire.request(bytes, &[Owed::Handshake(*step)]);
            assert!(queued.is_ok(), "the handshake is larger than the outbox");
        }
        self.arm_news(master);
    }

    pub(super) fn handle_news_disconnected(&mut self, now: Instant, master: MasterId) {
        if !matches!(self.news.links[master.index()].state, State::Closed { .. }) {
            self.fail_news(now, master);
            self.news.close_wanted.remove(master);
        }
    }

    pub(super) fn recv_news(&mut self, now: Instant, master: MasterId, size: usize) {
        self.news.links[master.index()].wire.recv_done(size);
        loop {
            match self.news.next_heard(master) {
                Ok(None) => break,
                Ok(Some(heard)) => self.handle_heard(now, master, heard),
                Err(_) => {
                    self.fail_news(now, master);
                    break;
                }
            }
        }
        let link = &mut self.news.links[master.index()];
        if link.wire.owed_count() == 0 {
            link.answer_due = None;
        }
        // Only now: how many wait is told right behind the release.
        while let Some(id) = self.news.told.pop() {
            self.follow_watch(now, id);
        }
    }

    fn handle_heard(&mut self, now: Instant, master: MasterId, heard: Heard) {
        match heard {
            Heard::Nothing => {}
            Heard::Ready => {
                let link = &mut self.news.links[master.index()];
                (link.state, link.failure_count) = (State::Ready, 0);
                for id in self.ops.ids() {
                    self.subscribe(now, master, id);
                }
            }
            Heard::Subscribed(id) => {
                let quorum = self.fleet.quorum();
                let Some(watch) = self.ops.find_mut(id).and_then(|op| op.watch.as_mut()) else { return };
                watch.confirmed.insert(master);
                if watch.confirmed.count() == quorum && !mutant!(TryBeforeSubscribe) {
                    watch.is_untried = true;
                    self.news.told.push(id);
                }
            }
            Heard::Freed => {
                self.tell_readers(master);
                let Some((id, watch)) = self.watch_of_key() else { return };
                watch.note_freed(master);
                self.news.told.push(id);
            }
            Heard::Waiting(count) => {
                if let Some((_, watch)) = self.watch_of_key() {
                    watch.waiting_count = watch.waiting_count.max(count);
                }
            }
        }
    }

    /// Brings the next attempt of one that waits forward, if what it was told says so. During an attempt it is looked at
    /// when that has failed.
    fn follow_watch(&mut self, now: Instant, id: Id) {
        let op = self.ops.op_mut(id);
        let (OpState::Waiting { retry_at, .. }, Some(watch)) = (&mut op.state, &mut op.watch) else { return };
        // About a round trip.
        let pause = watch.took.min(self.config.retry_delay_max);
        let at = if watch.is_untried {
            now
        } else if watch.freed.is_empty() {
            return;
        } else {
            if watch.draw == Draw::Open {
                // Of those who wait for a fair lock nobody else was told; and readers take nothing from each other.
                watch.draw = if op.is_shared || op.queuing.is_some() {
                    Draw::Try(Duration::ZERO)
                } else {
                    draw(&mut self.rng, watch.waiting_count, pause)
                };
            }
            // Fewer than a quorum may be the first of one, or all that can tell.
            let is_quorum = watch.freed.count() >= self.fleet.quorum().min(watch.confirmed.count());
            match watch.draw {
                Draw::Try(jitter) if is_quorum => now + jitter,
                Draw::Try(jitter) => now + pause + jitter,
                Draw::Skip | Draw::Open => return,
            }
        };
        if at < *retry_at {
            *retry_at = at;
            op.attempts_max = op.attempts_max.saturating_add(u32::from(watch.is_untried));
            self.news.woken_count += u64::from(watch.draw != Draw::Open);
            self.arm_op(id);
        }
    }

    /// Something is due for a connection: an answer, its end, or the next attempt to open it.
    pub(super) fn handle_news_timeout(&mut self, now: Instant, master: MasterId) {
        let link = &mut self.news.links[master.index()];
        let is_closed = matches!(link.state, State::Closed { .. });
        let idle_until = self.news.idle_since + limits::NEWS_IDLE_MAX;
        if link.deadline().is_some_and(|at| at <= now) {
            self.fail_news(now, master);
        } else if is_closed {
            self.open_news(now);
        } else if self.news.watch_count == 0 && idle_until <= now {
            self.close_news(master, now);
        } else {
            self.arm_news(master);
            if self.news.watch_count == 0 {
                self.timers.arm(news_timer(master), idle_until);
            }
        }
    }

    /// The connection is of no use any more, or never was: closes it, and tries again after a pause.
    fn fail_news(&mut self, now: Instant, master: MasterId) {
        let link = &mut self.news.links[master.index()];
        link.failure_count = link.failure_count.saturating_add(1);
        let pause = if link.refused.is_some() {
            limits::NEWS_REFUSED_PAUSE
        } else {
            let doubled = limits::BACKOFF_MIN.saturating_mul(1 << (link.failure_count - 1).min(16));
            self.rng.random_range(Duration::ZERO..doubled.min(limits::BACKOFF_MAX))
        };
        self.close_news(master, now + pause);
        for id in self.ops.ids() {
            if let Some(watch) = &mut self.ops.op_mut(id).watch {
                watch.asked.remove(master);
                watch.confirmed.remove(master);
            }
        }
        if self.news.watch_count > 0 {
            self.timers.arm(news_timer(master), now + pause);
        }
    }

    fn close_news(&mut self, master: MasterId, retry_at: Instant) {
        let link = &mut self.news.links[master.index()];
        link.state = State::Closed { retry_at };
        link.answer_due = None;
        link.wire.clear();
        self.news.open.remove(master);
        self.news.connect_wanted.remove(master);
        self.news.close_wanted.insert(master);
    }

    /// Asks a master to tell of releases of the lock that an operation waits for.
    fn subscribe(&mut self, now: Instant, master: MasterId, id: Id) {
        let link = &mut self.news.links[master.index()];
        if !matches!(link.state, State::Ready) {
            return;
        }
        let op = self.ops.op(id);
        if op.watch.as_ref().is_none_or(|watch| watch.asked.contains(master)) {
            return;
        }
        self.news.key.clear();
        command::encode_subscribe(&mut self.news.key, op.channel());
        if link.wire.request(&self.news.key, &[Owed::Subscribe(id)]).is_ok() {
            self.ops.op_mut(id).watch.as_mut().expect("it was there").asked.insert(master);
            link.answer_due.get_or_insert(now + self.config.connect_timeout);
            self.arm_news(master);
        }
    }

    fn arm_news(&mut self, master: MasterId) {
        if let Some(at) = self.news.links[master.index()].deadline() {
            self.timers.arm(news_timer(master), at);
        }
    }

    /// Who waits for the lock that a message is about.
    pub(super) fn watch_of_key(&mut self) -> Option<(Id, &mut Watch)> {
        let key = &self.news.key;
        let leader = self.lines.find(self.lines.hash(key), |place| self.key_of(place) == key)?;
        let is_watching = |id: &Id| self.ops.op(*id).watch.is_some();
        let first_two = [Some(leader), self.lines.behind(leader)].into_iter().flatten();
        let id = first_two.map(|place| self.ops.id_at(place)).find(is_watching)?;
        Some((id, self.ops.op_mut(id).watch.as_mut()?))
    }
}

/// Whether one of so many who were told of a release tries, and after what part of a pause.
fn draw(rng: &mut impl Rng, waiting_count: u32, pause: Duration) -> Draw {
    let is_chosen = waiting_count <= limits::WOKEN_COUNT
        || rng.random_range(0..waiting_count) < limits::WOKEN_COUNT
        || mutant!(AllWoken);
    if !is_chosen {
        Draw::Skip
    } else if pause < limits::SLEEP_MIN {
        // No sleep is so short; and how soon each of them is woken is random enough.
        Draw::Try(Duration::ZERO)
    } else {
        Draw::Try(rng.random_range(Duration::ZERO..=pause))
    }
}
