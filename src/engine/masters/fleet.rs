//! All masters: their links, which of them may be asked, which may vote, and every request to them.
//!
//! Every request except a handshake and a login passes through [`Fleet::queue`]. Consecutive requests to the
//! same masters are gathered and handed to each link as one piece: before a request to other masters is
//! gathered, before a link's outbox is read, and before a link fails. So each link gets its requests in the
//! order of their creation, with one entry in its queue of owed replies for each request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{State, Wishes};
use super::groups::Groups;
use super::link::{Link, Predecessor, limit_of_quorum, quorum_th};
use super::logins::CurrentLogin;
use super::owed::{Gathered, Owed};
use super::trouble::{self, Trouble};
use crate::config::{Config, Login};
use crate::engine::ground::Ground;
use crate::engine::locks::claim::Claim;
use crate::engine::timers::master_timer;
use crate::limits;
use crate::lock::command::entry::Entry;
use crate::lock::command::{self, ExtendBy};
use crate::lock::{Failure, MasterId, MasterSet, Ttl, Vote, quorum};

/// Size at which gathered requests are handed to the links, in bytes. With one more request the total usually
/// stays below 4 KiB, up to which copies are cheap (`scripts/instructions`) and come from the CPU cache.
const GATHERED_SIZE_MAX: usize = 3584;

/// Lower bound of a request's size, so at most `GATHERED_SIZE_MAX / REQUEST_SIZE_MIN` are gathered.
const REQUEST_SIZE_MIN: usize = 16;

#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) config: Arc<Config>,
    links: Vec<Link>,
    pub(crate) all: MasterSet,
    /// End of the last long time in which no thread read from the connections. A master's silence counts from
    /// here.
    pub(crate) unread_until: Instant,
    pub(crate) quorum: usize,
    /// Masters whose link is ready, including silent ones.
    pub(crate) ready: MasterSet,
    /// Masters that get acquisitions: ready and not silent.
    pub(crate) usable: MasterSet,
    /// Ready masters that can park attempts: they push messages, and have told their time.
    pub(crate) parkers: MasterSet,
    /// Ready masters that refuse scripts but can release plain locks with a native command.
    pub(crate) native_only: MasterSet,
    /// Masters whose votes do not count yet. Their links hold the end of each quarantine.
    quarantined: MasterSet,
    /// Length of a quarantine, from the largest of this client's settings and the settings that operators
    /// declared.
    pub(crate) quarantine_time: Duration,
    /// Time in which a quorum of voting masters normally answers. Zero if it is shorter than any answer
    /// limit.
    pub(crate) round_trip_limit: Duration,
    pub(crate) wishes: Wishes,
    /// Lower bound of all links' `facts_due_at`.
    facts_due_at: Instant,
    /// Whether a link got bytes since the last [`Fleet::take_queued`].
    has_queued: bool,
    gathered: Gathered,
    /// Ready masters, grouped by their commands.
    groups: Groups,
}

/// Result of a finished handshake.
pub(crate) struct Admission {
    pub(crate) predecessor: Predecessor,
    /// Why the master is not used after all.
    pub(crate) refusal: Option<String>,
    pub(crate) is_reconnect: bool,
    pub(crate) is_restart: bool,
}

impl Fleet {
    pub(crate) fn new(ground: &mut Ground) -> Self {
        let config = ground.config.clone();
        let links: Vec<Link> = (0..config.master_count())
            .filter_map(MasterId::new)
            .zip(&config.labels)
            .map(|(master, name)| Link::new(master, name.clone(), ground.now))
            .collect();
        assert_eq!(
            links.len(),
            config.master_count(),
            "a configuration has at most {} masters",
            limits::MASTER_COUNT_MAX
        );
        links.iter().for_each(|link| ground.timers.arm(master_timer(link.master), ground.now));
        Self {
            wishes: Wishes::new(),
            facts_due_at: ground.now + limits::FACTS_PAUSE,
            quarantine_time: config.quarantine_time(),
            config,
            all: MasterSet::first(links.len()),
            unread_until: ground.now,
            quorum: quorum(links.len()),
            links,
            ready: MasterSet::EMPTY,
            usable: MasterSet::EMPTY,
            parkers: MasterSet::EMPTY,
            native_only: MasterSet::EMPTY,
            quarantined: MasterSet::EMPTY,
            round_trip_limit: Duration::ZERO,
            has_queued: false,
            gathered: Gathered::default(),
            groups: Groups::new(),
        }
    }

    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.links.len()
    }

    /// Number of masters that may fail before a quorum is impossible.
    #[inline]
    pub(crate) const fn spare(&self) -> usize {
        self.links.len() - self.quorum
    }

    /// Links in the order of the configuration.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    #[inline]
    pub(crate) fn link(&self, master: MasterId) -> &Link {
        &self.links[master.index()]
    }

    #[inline]
    pub(crate) fn link_mut(&mut self, master: MasterId) -> &mut Link {
        &mut self.links[master.index()]
    }

    // ---- requests ----

    /// Queues a request for the masters `to`, to be written by the driver's next flush. Returns the masters
    /// that had room for it.
    #[inline]
    pub(crate) fn queue(
        &mut self,
        to: MasterSet,
        owed: Owed,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> MasterSet {
        if to.is_empty() {
            return to;
        }
        let is_gathering = self.gathered.masters == to && self.gathered.bytes.len() < GATHERED_SIZE_MAX;
        let has_room = is_gathering || self.gather_for(to);
        encode(&mut self.gathered.bytes);
        self.gathered.owed.push(owed);
        if has_room { to } else { self.distribute() }
    }

    /// Queues a compare-and-delete on the ready masters among `to`. Returns the masters that had room.
    #[inline]
    pub(crate) fn send_release(&mut self, to: MasterSet, owed: Owed, entry: &Entry) -> MasterSet {
        let mut sent = MasterSet::EMPTY;
        for index in 0..self.groups.release.len() {
            let (by, group) = self.groups.release[index];
            let group = group.intersection(to);
            sent = sent.union(self.queue(group, owed, |out| command::encode_release(out, by, entry)));
        }
        sent
    }

    /// Queues a compare-and-set (an extension or a swap) on the ready masters among `to`. Returns the masters
    /// that had room.
    pub(crate) fn send_compared(
        &mut self,
        to: MasterSet,
        owed: Owed,
        encode: impl Fn(&mut Vec<u8>, ExtendBy),
    ) -> MasterSet {
        let mut sent = MasterSet::EMPTY;
        for index in 0..self.groups.extend.len() {
            let (by, group) = self.groups.extend[index];
            sent = sent.union(self.queue(group.intersection(to), owed, |out| encode(out, by)));
        }
        sent
    }

    /// Queues a login, which may exceed the size limit of gathered requests. False if the outbox has no room.
    pub(crate) fn send_login(&mut self, master: MasterId, login: &Login, version: u32) -> bool {
        self.distribute_gathered();
        self.has_queued = true;
        self.link_mut(master).connection.send_login(login, version, Owed::Login)
    }

    /// Starts to gather for `masters`. False if one of them may lack room.
    #[inline(never)]
    fn gather_for(&mut self, masters: MasterSet) -> bool {
        self.distribute_gathered();
        self.gathered.masters = masters;
        let size_max = GATHERED_SIZE_MAX + limits::REQUEST_SIZE_MAX;
        let count_max = GATHERED_SIZE_MAX / REQUEST_SIZE_MIN + 1;
        self.links
            .iter()
            .all(|link| !masters.contains(link.master) || link.connection.wire.has_room(size_max, count_max))
    }

    /// Appends the gathered requests to the outbox of each addressed master.
    #[inline]
    pub(crate) fn distribute_gathered(&mut self) {
        if !self.gathered.masters.is_empty() {
            self.distribute();
        }
    }

    /// Like [`Fleet::distribute_gathered`]; returns the masters that had room.
    #[inline(never)]
    fn distribute(&mut self) -> MasterSet {
        let Gathered { masters, bytes, owed } = &mut self.gathered;
        let mut taken = *masters;
        for link in &mut self.links {
            if taken.contains(link.master) && link.connection.wire.request(bytes, owed).is_err() {
                taken.remove(link.master);
                link.is_unasked = true;
            }
        }
        assert!(taken == *masters || owed.len() == 1, "no room for what was gathered");
        self.has_queued = true;
        bytes.clear();
        owed.clear();
        *masters = MasterSet::EMPTY;
        taken
    }

    // ---- connections ----

    /// The driver has opened a connection: queues its handshake.
    pub(crate) fn handle_connected(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        login: CurrentLogin<'_>,
    ) {
        let link = &mut self.links[master.index()];
        if !matches!(link.connection.state, State::Connecting { .. }) {
            return;
        }
        // Needs no timer, because the connect's timer fires before this deadline.
        link.start_handshake(ground.now, &self.config, login, &mut ground.rng);
        self.has_queued = true;
    }

    /// Reason to show for a broken connection; `None` if the link had no connection.
    pub(crate) fn why_lost<'a>(&self, master: MasterId, why: &'a str) -> Option<Cow<'a, str>> {
        let link = self.link(master);
        if link.connection.is_down() {
            return None;
        }
        // A server at its connection limit answers the first request with an error, then closes the
        // connection.
        let refused = link.last_refusal().map(|refusal| Trouble::ClosedAfter { why, refusal }.to_string());
        Some(refused.map_or(Cow::Borrowed(why), Cow::Owned))
    }

    /// Distributes the gathered requests. Returns whether bytes were queued for a link since the last call.
    #[inline]
    pub(crate) fn take_queued(&mut self) -> bool {
        self.distribute_gathered();
        std::mem::take(&mut self.has_queued)
    }

    /// Whether [`Fleet::take_queued`] would return true.
    pub(crate) const fn has_queued(&self) -> bool {
        self.has_queued || !self.gathered.masters.is_empty()
    }

    /// Notes bytes from a master. Returns whether the caller must call [`Fleet::hear_again`].
    pub(crate) fn recv_done(&mut self, now: Instant, master: MasterId, size: usize) -> bool {
        let link = &mut self.links[master.index()];
        link.connection.wire.recv_done(size);
        if size == 0 {
            return false;
        }
        link.heard_at = now;
        link.is_unasked
    }

    /// Accepts requests again for a master that was silent or had no room. Returns whether it was silent, and
    /// whether it has room now.
    #[cold]
    pub(crate) fn hear_again(&mut self, master: MasterId) -> (bool, bool) {
        let link = &mut self.links[master.index()];
        let was_silent = link.silent_since.take().is_some();
        link.is_unasked = !link.connection.wire.is_half_empty();
        let has_room = !link.is_unasked;
        if was_silent {
            self.usable.insert(master);
        }
        (was_silent, has_room)
    }

    /// The master has echoed this connection's nonce: the client starts to use it, unless it must not vote.
    pub(crate) fn admit(&mut self, ground: &mut Ground, master: MasterId) -> Admission {
        if let Some(why) = self.is_listed_twice(master) {
            let predecessor = Predecessor::Same;
            return Admission { predecessor, refusal: Some(why), is_reconnect: false, is_restart: false };
        }
        let link = &mut self.links[master.index()];
        let (predecessor, is_restart) = link.finish_handshake(ground.now, &self.config, self.quarantine_time);
        self.follow_records(ground, master);
        let unfit = self.links[master.index()].refuse_unfit(&self.config);
        let refusal = unfit.or_else(|| self.refuse_declared(master));
        let mut is_reconnect = false;
        if refusal.is_none() {
            let link = &mut self.links[master.index()];
            is_reconnect = link.note_connected(ground.now);
            self.usable.insert(master);
            self.ready.insert(master);
            self.groups.join(master, link.by);
            if link.learnt.scripts_refusal().is_some() && link.learnt.has_native_release() {
                self.native_only.insert(master);
            }
            if link.learnt.parks() && link.clock.is_some() {
                self.parkers.insert(master);
                self.subscribe(master);
            }
            self.note_quarantines(MasterSet::only(master));
            self.mark_promotion(master);
            self.tend_records(ground, master);
            if is_restart {
                self.read_other_records(ground, master);
            }
        }
        Admission { predecessor, refusal, is_reconnect, is_restart }
    }

    /// Reason to refuse a master whose process another configured URL already reaches.
    fn is_listed_twice(&self, master: MasterId) -> Option<String> {
        let State::Handshake { handshake, .. } = &self.link(master).connection.state else {
            unreachable!("its handshake is done")
        };
        let run_id = handshake.learnt.run_id.as_deref()?;
        let other = self.links.iter().find(|link| link.run_id() == Some(run_id))?;
        let other = &self.config.labels[other.master.index()];
        Some(Trouble::ListedTwice { other, run_id }.to_string())
    }

    /// Ends a connection. Returns whether it was ready, and so may have owed replies.
    pub(crate) fn fail(&mut self, ground: &mut Ground, master: MasterId, why: &str) -> bool {
        // Requests gathered so far must not reach the next connection.
        self.distribute_gathered();
        self.groups.leave(master);
        let link = &mut self.links[master.index()];
        let was_open = !link.connection.is_down();
        let was_ready = link.connection.is_ready();
        link.fail(ground.now, why, &mut ground.rng);
        self.ready.remove(master);
        self.usable.remove(master);
        self.parkers.remove(master);
        self.native_only.remove(master);
        self.follow_round_trips();
        self.wishes.close(master, was_open);
        self.arm(ground, master);
        was_ready
    }

    /// Handles the due deadlines of a link. Returns the reason if the connection must end.
    pub(crate) fn handle_timeout(&mut self, ground: &mut Ground, master: MasterId) -> Option<String> {
        let link = &mut self.links[master.index()];
        let limit = self.config.connect_timeout;
        if link.deadline().is_none_or(|at| at > ground.now) {
            self.arm(ground, master);
            return None;
        }
        match link.connection.state {
            State::Down { .. } => {
                link.connection.start_connecting(ground.now + limit);
                self.wishes.connect(master, self.config.has_provider());
                self.arm(ground, master);
                None
            }
            State::Connecting { .. } => {
                let is_tls = self.config.masters[master.index()].address.is_tls();
                Some(trouble::no_connection(limit, is_tls, self.wishes.awaiting_login.contains(master)))
            }
            State::Handshake { .. } => Some(Trouble::NoHandshake(limit).to_string()),
            State::Ready { .. } if link.mark_due_at.take_if(|at| *at <= ground.now).is_some() => {
                self.read_mark(ground.now, master);
                self.arm(ground, master);
                None
            }
            State::Ready { .. } if link.comparison.due_at.take_if(|at| *at <= ground.now).is_some() => {
                self.tend_record(ground.now, master);
                self.arm(ground, master);
                None
            }
            State::Ready { .. } if link.facts_due_at.is_some_and(|at| at <= ground.now) => {
                self.ask_facts(ground.now, master);
                self.arm(ground, master);
                None
            }
            State::Ready { .. } => Some(Trouble::Silent.to_string()),
        }
    }

    /// A master missed a deadline. If it has sent nothing for `limit`, it gets no acquisitions until it sends
    /// something. A master that owes nothing is not silent: the unanswered request ended with an earlier
    /// connection.
    pub(crate) fn note_missed(&mut self, ground: &mut Ground, master: MasterId, limit: Duration) {
        if self.owed_count(master) == 0 {
            return;
        }
        let link = &mut self.links[master.index()];
        let is_silent = ground.now - link.heard_at.max(self.unread_until) >= limit;
        if link.connection.is_ready() && link.silent_since.is_none() && is_silent {
            (link.silent_since, link.is_unasked) = (Some(ground.now), true);
            self.usable.remove(master);
            self.follow_round_trips();
            self.arm(ground, master);
        }
    }

    pub(crate) fn note_round_trip(&mut self, master: MasterId, round_trip: Duration) {
        let link = &mut self.links[master.index()];
        link.stats.round_trip.record(round_trip);
        link.round_trip.note(round_trip);
        // Round trips matter only if they are longer than the shortest limit that a TTL gives, which is rare.
        if !self.round_trip_limit.is_zero() || link.round_trip.limit() > limits::ANSWER_LIMIT_MIN {
            self.follow_round_trips();
        }
    }

    /// Usual time until a quorum has answered.
    pub(crate) fn round_trip(&self) -> Duration {
        quorum_th(self.usable.iter().map(|master| self.links[master.index()].round_trip.mean()), self.quorum)
    }

    /// Recomputes `round_trip_limit`. Masters without a vote do not count.
    fn follow_round_trips(&mut self) {
        let voters = self.usable.without(self.quarantined);
        let limits = voters.iter().map(|master| self.links[master.index()].round_trip.limit());
        self.round_trip_limit = limit_of_quorum(limits, self.quorum);
    }

    /// How long a round for a lock with this TTL waits for answers.
    pub(crate) fn answer_limit(&self, ttl: Ttl) -> Duration {
        self.config.answer_limit_by(ttl, self.round_trip_limit)
    }

    fn arm(&self, ground: &mut Ground, master: MasterId) {
        if let Some(at) = self.link(master).deadline() {
            ground.timers.arm(master_timer(master), at);
        }
    }

    /// Number of replies that a master owes, gathered requests included.
    pub(crate) fn owed_count(&self, master: MasterId) -> usize {
        let is_gathered = self.gathered.masters.contains(master);
        self.link(master).connection.wire.owed_count()
            + if is_gathered { self.gathered.owed.len() } else { 0 }
    }

    /// Extra time for the longest queue of owed replies, among the `masters` that sent something within
    /// `limit`.
    pub(crate) fn backlog(&self, now: Instant, masters: MasterSet, limit: Duration) -> Duration {
        let is_heard = |master: &MasterId| {
            let heard_at = self.link(*master).heard_at.max(self.unread_until);
            now - heard_at < limit
        };
        let most = masters.iter().filter(is_heard).map(|master| self.owed_count(master)).max();
        let count = most.unwrap_or_default().saturating_sub(limits::BACKLOG_MIN);
        limits::REPLY_TIME * count.try_into().unwrap_or(u32::MAX)
    }

    /// Whether every usable master has answered all its requests.
    pub(crate) fn is_answered(&self) -> bool {
        self.usable.iter().all(|master| self.owed_count(master) == 0)
    }

    // ---- votes ----

    /// Masters whose votes do not count now (I8).
    #[inline]
    pub(crate) fn quarantined(&mut self, now: Instant) -> MasterSet {
        if !self.quarantined.is_empty() {
            self.end_quarantines(now);
        }
        self.quarantined
    }

    #[inline(never)]
    fn end_quarantines(&mut self, now: Instant) {
        for master in self.quarantined.iter() {
            let link = &mut self.links[master.index()];
            if link.quarantined_until.is_none_or(|at| at <= now) {
                link.count_quarantine(now);
                link.quarantined_until = None;
                self.quarantined.remove(master);
            }
        }
    }

    /// Takes over the quarantines just set in the links of these ready masters.
    fn note_quarantines(&mut self, masters: MasterSet) {
        for master in masters.iter() {
            if self.link(master).quarantined_until.is_some() {
                self.quarantined.insert(master);
            } else {
                self.quarantined.remove(master);
            }
        }
        self.follow_round_trips();
    }

    /// False if no master is in quarantine.
    #[inline]
    pub(crate) const fn has_quarantines(&self) -> bool {
        !self.quarantined.is_empty()
    }

    /// Masters, connected or not, still in quarantine at this time.
    pub(crate) fn quarantined_at(&self, at: Instant) -> MasterSet {
        let is_quarantined = |link: &&Link| link.quarantined_until.is_some_and(|until| until > at);
        self.links.iter().filter(is_quarantined).map(|link| link.master).collect()
    }

    /// Records a `Failed` vote for each master that was not asked: it was down or silent, or its outbox was
    /// full.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_unasked(&mut self, claim: &mut Claim, left: MasterSet) {
        for master in self.all.without(claim.asked).without(left).iter() {
            claim.record(master, Vote::Failed(self.why_unasked(master)));
            self.link_mut(master).stats.unanswered += 1;
        }
    }

    /// The answer limit of an attempt has passed: records a failure for each master without an answer, except
    /// where the attempt is parked (`waiting`).
    pub(crate) fn note_unanswered(&mut self, ground: &mut Ground, claim: &mut Claim, waiting: MasterSet) {
        let (took, limit) = (ground.now - claim.started, claim.answer_limit);
        let missing = claim.asked.without(claim.tally.heard()).without(waiting);
        for master in missing.iter() {
            claim.record(master, Vote::Failed(Failure::NoAnswer { limit: took }));
            self.link_mut(master).stats.unanswered += 1;
        }
        if took >= limit {
            missing.iter().for_each(|master| self.note_missed(ground, master, limit));
        }
    }

    /// Why a request to all usable masters did not go to this master.
    pub(crate) fn why_unasked(&self, master: MasterId) -> Failure {
        if self.usable.contains(master) { Failure::QueueFull } else { self.link(master).absence() }
    }

    /// [`Fleet::why_unasked`] for each master, `None` if it was asked.
    pub(crate) fn absences(&self, asked: MasterSet) -> impl Iterator<Item = Option<Failure>> {
        self.all.iter().map(move |master| (!asked.contains(master)).then(|| self.why_unasked(master)))
    }

    /// Rest of a master's quarantine.
    pub(crate) fn left_in_quarantine(&mut self, now: Instant, master: MasterId) -> Option<Duration> {
        let until = self.link(master).quarantined_until;
        let is_quarantined = self.quarantined(now).contains(master);
        until.filter(|_| is_quarantined).map(|at| at.saturating_duration_since(now))
    }
}

mod facts;
mod marks;
mod parkers;
mod records;
#[cfg(test)]
mod tests;
