//! Parking: the place of one waiter in the masters' queues, and when its next round is due.
//!
//! Each round is an attempt with a token of its own. A master delays it until the key is free, and then
//! grants it. For a TTL above 10 s it *rings* instead, and the next round asks for the lock. A round also
//! begins with each heartbeat, by which the masters know that the waiter lives. The place in the queues is
//! the same for all rounds: the ticket, drawn once.

use std::mem::{replace, take};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::engine::locks::slab::Id;
use crate::limits;
use crate::lock::command::park::Waiting;
use crate::lock::{Drift, MasterId, MasterSet, Ttl};

/// Bytes of the name by which the queues know a waiter.
pub(crate) const WAITER_SIZE: usize = 12;

/// Place of a waiter in the masters' queues.
#[derive(Debug)]
pub(crate) struct Parking {
    /// Name of the waiter.
    pub(crate) waiter: [u8; WAITER_SIZE],
    /// Its place in the order, a time of the masters' clocks. Order depends on it, safety never.
    pub(crate) ticket_us: u64,
    /// Rounds begun.
    pub(crate) round: u32,
    /// Whether others have the keys that the round before got: this one lets all of them go first.
    pub(crate) yields: bool,
    /// The claim whose token was last sent to each master, by its index.
    last: Vec<Id>,
    /// Whether any round waited on a master.
    pub(crate) has_waited: bool,
    /// Masters on which the running round waits.
    pub(crate) waiting: MasterSet,
    /// Masters of these where it is the first of the queue.
    pub(crate) first: MasterSet,
    /// Masters that rang for the running round.
    rung: MasterSet,
    /// Masters to which it gave back a part of the lock, and does not ask again before others change.
    pub(crate) aside: MasterSet,
    /// Rounds in a row that got a part of the lock, or all of it too late.
    part_count: u32,
    /// Rounds in a row that got the lock too late.
    late_count: u32,
    /// Digest of the value that each master reported last to this waiter as the first, by its index; zero if it
    /// is unknown.
    values: Vec<u32>,
    /// When it last learnt of another value, which came without a grant or a ring.
    changed: Option<Instant>,
    due: Due,
}

/// A round of a parked acquisition.
#[derive(Debug)]
pub(crate) struct Parked {
    /// Masters that were sent the park, where its entry may stand or its key.
    pub(crate) masters: MasterSet,
    /// The place in the queues that it asks for; a handle does not know it.
    ticket_us: Option<u64>,
    /// Its place there, as they answered.
    at_us: Vec<(MasterId, u64)>,
    /// The claims whose tokens it replaces there, until they answer.
    replaced: Vec<(MasterId, Id)>,
    /// Masters that owe the answer to it. No later park goes to them before.
    pub(crate) owing: MasterSet,
    /// Masters that rang. They do not serve its entry any more.
    rung: MasterSet,
    /// When a master was last sent it: within a stay from then on its entry may be there.
    sent_at: Instant,
    /// Whether it became a lock.
    pub(crate) was_held: bool,
}

impl Parked {
    /// In the memory of another one that is over, if there is one.
    pub(crate) fn new(now: Instant, ticket_us: Option<u64>, over: Option<&mut Self>) -> Self {
        let (mut at_us, mut replaced) =
            over.map(|over| (take(&mut over.at_us), take(&mut over.replaced))).unwrap_or_default();
        at_us.clear();
        replaced.clear();
        Self {
            masters: MasterSet::EMPTY,
            ticket_us,
            at_us,
            replaced,
            owing: MasterSet::EMPTY,
            rung: MasterSet::EMPTY,
            sent_at: now,
            was_held: false,
        }
    }

    /// Whether a master may serve its entry, or its park still come there in time.
    pub(crate) fn may_be_served(&self, now: Instant, master: MasterId, drift: Drift) -> bool {
        let is_there = now < self.sent_at + limits::STAY + drift.of(limits::STAY);
        // A master that owes its answer may carry it out later.
        (is_there || self.owing.contains(master)) && self.masters.without(self.rung).contains(master)
    }

    /// A master rings for it: only its next round would have the key written there.
    pub(crate) fn note_rung(&mut self, master: MasterId) {
        self.rung.insert(master);
    }

    /// The claims that it was to replace, on masters that have not answered.
    pub(crate) fn all_replaced(&self) -> impl Iterator<Item = (MasterId, Id)> {
        self.replaced.iter().copied()
    }

    /// A master is sent the park.
    pub(crate) fn note_sent(&mut self, now: Instant, master: MasterId, replaced: Option<Id>) {
        self.masters.insert(master);
        self.owing.insert(master);
        self.sent_at = now;
        self.replaced.extend(replaced.map(|id| (master, id)));
    }

    /// A master reports the place of its entry. Returns whether it is where it was looked for so far.
    pub(crate) fn note_at(&mut self, master: MasterId, at_us: u64) -> bool {
        let is_as_asked = self.at(master) == Some(at_us);
        if !is_as_asked {
            self.at_us.push((master, at_us));
        }
        is_as_asked
    }

    /// Its place there, as far as it is known: a master that has not answered may have put it elsewhere.
    pub(crate) fn at(&self, master: MasterId) -> Option<u64> {
        let reported = self.at_us.iter().find(|(other, _)| *other == master);
        reported.map(|(_, at_us)| *at_us).or(self.ticket_us)
    }

    /// The claim that it replaces there.
    pub(crate) fn replaced(&self, master: MasterId) -> Option<Id> {
        self.replaced.iter().find(|(other, _)| *other == master).map(|(_, id)| *id)
    }

    /// The same, once.
    pub(crate) fn take_replaced(&mut self, master: MasterId) -> Option<Id> {
        let place = self.replaced.iter().position(|(other, _)| *other == master)?;
        Some(self.replaced.swap_remove(place).1)
    }
}

/// When something is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// The masters that have not answered the running round by then have failed.
    answers: Option<Instant>,
    /// The next round, at the latest.
    round: Instant,
    /// The next round, as masters rang or a part of the lock is held.
    early: Option<Instant>,
    /// The first waiter has its masters look whether the key is free: no script runs by itself when a key
    /// expires.
    look: Option<Instant>,
    /// The pause before the look after that.
    look_pause: Duration,
}

/// The event that is due for a parked waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Masters have failed to answer.
    AnswersMissed,
    /// The next round begins.
    Round,
    /// The masters look whether the key is free.
    Look,
}

impl Parking {
    /// In the memory of another one that is over, if there is one. Its first round begins right behind this.
    pub(crate) fn new(
        now: Instant,
        master_count: usize,
        ticket_us: u64,
        rng: &mut impl Rng,
        over: Option<&mut Self>,
    ) -> Self {
        let (mut last, mut values) =
            over.map(|over| (take(&mut over.last), take(&mut over.values))).unwrap_or_default();
        last.clear();
        last.resize(master_count, Id::NOBODY);
        values.clear();
        values.resize(master_count, 0);
        let mut waiter = [0; WAITER_SIZE];
        rng.fill_bytes(&mut waiter);
        let due = Due { answers: None, round: now, early: None, look: None, look_pause: Duration::ZERO };
        Self {
            waiter,
            ticket_us,
            round: 0,
            yields: false,
            last,
            has_waited: false,
            waiting: MasterSet::EMPTY,
            first: MasterSet::EMPTY,
            rung: MasterSet::EMPTY,
            aside: MasterSet::EMPTY,
            part_count: 0,
            late_count: 0,
            values,
            changed: None,
            due,
        }
    }

    /// The claim whose token was last sent to a master.
    pub(crate) fn last(&self, master: MasterId) -> Id {
        self.last[master.index()]
    }

    /// The claims that were last sent to masters, with those.
    pub(crate) fn all_last(&self) -> impl Iterator<Item = (MasterId, Id)> {
        self.last.iter().enumerate().filter_map(|(index, id)| Some((MasterId::new(index)?, *id)))
    }

    /// The token of this claim is sent to a master.
    pub(crate) fn note_sent(&mut self, master: MasterId, claim: Id) {
        self.last[master.index()] = claim;
    }

    /// The claim of an attempt that was no round was sent to these masters.
    pub(crate) fn note_attempt(&mut self, masters: MasterSet, claim: Id) {
        masters.iter().for_each(|master| self.note_sent(master, claim));
    }

    /// A round begins that waits so long for answers.
    pub(crate) fn begin_round(
        &mut self,
        now: Instant,
        answers: Duration,
        ttl: Ttl,
        waits: bool,
        rng: &mut impl Rng,
    ) {
        self.round += 1;
        (self.waiting, self.first, self.rung) = (MasterSet::EMPTY, MasterSet::EMPTY, MasterSet::EMPTY);
        // A part of each beat at random, so that waiters that came together do not come together again.
        let beat = heartbeat(ttl);
        // A place in the queue is not given up for a moment's silence.
        self.due.answers = Some(now + if waits { answers.max(beat / 2) } else { answers });
        self.due.round = now + rng.random_range(beat / 4 * 3..=beat);
        (self.due.early, self.due.look) = (None, None);
    }

    /// Another process answers for a master, or another connection: what was sent there is unanswered.
    pub(crate) fn note_lost(&mut self, master: MasterId) {
        self.waiting.remove(master);
        self.first.remove(master);
        self.rung.remove(master);
    }

    /// The running round waits on a master, which reports the key in the way.
    pub(crate) fn note_waiting(&mut self, now: Instant, master: MasterId, seen: &Waiting) {
        self.waiting.insert(master);
        self.has_waited = true;
        if seen.is_first {
            self.first.insert(master);
            self.note_value(now, master, seen.digest);
        } else {
            // Releases serve others before it.
            self.values[master.index()] = 0;
        }
    }

    /// A quorum granted the running round so late that too little validity is left. Returns whether another
    /// round may follow: two in a row are a failed attempt.
    pub(crate) const fn note_late(&mut self) -> bool {
        self.late_count += 1;
        self.late_count == 1
    }

    /// The running round ends without the lock.
    pub(crate) const fn note_in_time(&mut self) {
        self.late_count = 0;
    }

    /// A master has granted the running round.
    pub(crate) fn note_granted(&mut self, master: MasterId) {
        self.waiting.remove(master);
        self.first.remove(master);
        self.aside = MasterSet::EMPTY;
    }

    /// A master rings for the running round. The next one follows at once behind a quorum, else after about
    /// a round trip.
    pub(crate) fn note_ring(&mut self, now: Instant, master: MasterId, quorum: usize, round_trip: Duration) {
        self.rung.insert(master);
        self.aside = MasterSet::EMPTY;
        let at = if self.rung.has(quorum) { now } else { now + round_trip };
        self.hasten(at);
    }

    /// The next round begins by then.
    pub(crate) fn hasten(&mut self, at: Instant) {
        self.due.early = Some(self.due.early.map_or(at, |early| early.min(at)));
    }

    /// All masters that were asked have answered, and a part of the lock is not all of it: gives it back
    /// before long, as others may have the other part.
    pub(crate) fn plan_give_back(
        &mut self,
        now: Instant,
        part: MasterSet,
        round_trip: Duration,
        rng: &mut impl Rng,
    ) {
        if part.is_empty() {
            self.part_count = 0;
            return;
        }
        let pause = limits::PART_TIME_MIN.max(round_trip * 5);
        if self.due.early.is_none() {
            self.hasten(now + pause + rng.random_range(Duration::ZERO..=pause));
        }
    }

    /// The round ends, perhaps with a part of the lock, or all of it too late. The first such round asks
    /// again in the order of the tickets, which gives those masters to earlier waiters. The second lets all
    /// others go first. The third leaves these masters alone: a waiter with a minority must not be in the way
    /// of the holder's repair.
    pub(crate) fn give_back(&mut self, part: MasterSet, is_waiting: bool) {
        self.yields = false;
        if part.is_empty() {
            return;
        }
        self.part_count += 1;
        self.yields = self.part_count.is_multiple_of(2);
        if self.part_count > 2 && is_waiting {
            self.aside = part;
        }
    }

    /// The first waiter has the masters look by itself: when the holder's time is over, and in growing
    /// pauses, as another library may have released the lock. `left` is the shortest time left to the holder.
    pub(crate) fn plan_look(
        &mut self,
        now: Instant,
        left: Option<Duration>,
        round_trip: Duration,
        ttl: Ttl,
        rng: &mut impl Rng,
    ) {
        if self.first.is_empty() {
            return;
        }
        let least = limits::LOOK_PAUSE_MIN.max(round_trip * 4);
        let most = heartbeat(ttl).max(least);
        self.due.look_pause = match self.changed {
            Some(at) => ((now - at) / 32).max(draw_unserved_pause(round_trip, rng)).min(most),
            None => (self.due.look_pause * 2).clamp(least, most),
        };
        if left.is_some_and(|left| left.is_zero()) {
            // The holder has had the time to come back to the masters that it missed.
            self.aside = MasterSet::EMPTY;
        }
        let behind = |left: Duration| (left + Duration::from_millis(1)).min(self.due.look_pause);
        let pause = left.map_or(self.due.look_pause, behind);
        self.due.look = Some(now + pause);
    }

    /// The first waiter learns that the key has this value, and nobody was served. If it had another one before,
    /// the lock changes hands and no release serves this waiter: it looks as often as a client that polls, and
    /// in longer pauses only the longer the value stays. Returns whether it had another one.
    pub(crate) fn note_value(&mut self, now: Instant, master: MasterId, digest: u32) -> bool {
        if digest == 0 {
            return false;
        }
        let before = replace(&mut self.values[master.index()], digest);
        let is_changed = before != 0 && before != digest;
        if is_changed {
            self.changed = Some(now);
        }
        is_changed
    }

    /// The lock changes hands: the next look is no later than that of a client that polls.
    pub(crate) fn hasten_look(&mut self, now: Instant, round_trip: Duration, rng: &mut impl Rng) {
        let at = now + draw_unserved_pause(round_trip, rng);
        self.due.look = self.due.look.map(|look| look.min(at));
    }

    /// All have answered. Returns whether that was awaited.
    pub(crate) const fn note_answered(&mut self) -> bool {
        self.due.answers.take().is_some()
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Instant {
        let Due { answers, round, early, look, .. } = self.due;
        [answers, early, look].into_iter().flatten().fold(round, Instant::min)
    }

    /// Takes the next event that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Event> {
        if self.due.answers.take_if(|at| *at <= now).is_some() {
            Some(Event::AnswersMissed)
        } else if self.due.round <= now || self.due.early.is_some_and(|at| at <= now) {
            Some(Event::Round)
        } else if self.due.look.take_if(|at| *at <= now).is_some() {
            Some(Event::Look)
        } else {
            None
        }
    }
}

fn draw_unserved_pause(round_trip: Duration, rng: &mut impl Rng) -> Duration {
    rng.random_range(limits::LOOK_PAUSES_UNSERVED).max(round_trip)
}

/// Time between two rounds of a waiter that nobody rings: a second, or a quarter of the TTL if that is from
/// two seconds on.
fn heartbeat(ttl: Ttl) -> Duration {
    let ttl = ttl.as_duration();
    if ttl < limits::SHORT_TTL { limits::HEARTBEAT } else { limits::HEARTBEAT.min(ttl / 4) }
}

#[cfg(test)]
mod tests;
