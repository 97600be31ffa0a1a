//! Parking: a round in the masters' queues, the place that it keeps there, and when the next round is due.
//!
//! Each round is an attempt with a separate token. A master delays the attempt until the key is free, then
//! grants it. For a TTL above 10 s it *rings* instead, and the next round asks for the lock. Each heartbeat
//! also begins a round, which shows the masters that the waiter is alive. All rounds keep one place in the
//! queues: the ticket, drawn once.

use std::mem::{replace, take};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::engine::locks::slab::Id;
use crate::limits;
use crate::lock::command::park::Waiting;
use crate::lock::{Drift, MasterId, MasterSet, Ttl};

/// Size of a waiter's name in the queues, in bytes.
pub(crate) const WAITER_SIZE: usize = 12;

/// A round: one token in the masters' queues. The claim owns it. As long as the claim's acquisition waits, the
/// round is the acquisition's place in the queues; later it tells which masters may still serve the token.
#[derive(Debug)]
pub(crate) struct Parked {
    /// What each round hands on to the next.
    pub(crate) place: Place,
    /// Place in the order, as a time of the masters' clocks. Tickets decide the order, never safety. `None` for
    /// the lock of a handle.
    ticket_us: Option<u64>,
    /// Masters that got the park, and may have its entry or its key.
    pub(crate) masters: MasterSet,
    /// The entry's place on each master, as the masters answered.
    at_us: Vec<(MasterId, u64)>,
    /// Claims whose tokens the park replaces, on masters that have not answered.
    replaced: Vec<(MasterId, Id)>,
    /// Masters that owe an answer to the park. They get no later park before.
    pub(crate) owing: MasterSet,
    /// Masters where the round waits.
    pub(crate) waiting: MasterSet,
    /// Masters among `waiting` where this waiter is first in the queue.
    pub(crate) first: MasterSet,
    /// Masters that rang. They no longer serve the entry.
    rung: MasterSet,
    /// When the park was last sent to a master. Its entry may exist for one stay from then on.
    sent_at: Instant,
    /// Whether the round became a held lock.
    pub(crate) was_held: bool,
    due: Due,
}

/// State of a waiter from its first round to its last.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Name of the waiter in the queues.
    pub(crate) waiter: [u8; WAITER_SIZE],
    /// Number of rounds begun.
    pub(crate) round: u32,
    /// Whether this round lets all other waiters take the keys that the last round got.
    pub(crate) yields: bool,
    /// The claim whose token was last sent to each master, by its index.
    last: Vec<Id>,
    /// Whether any round waited on a master.
    pub(crate) has_waited: bool,
    /// Masters that got back a part of the lock. They are asked again after a grant or a ring, or once a
    /// holder's time is over.
    pub(crate) aside: MasterSet,
    /// Consecutive rounds that got a part of the lock, or all of it too late.
    part_count: u32,
    /// Consecutive rounds that got the lock too late.
    late_count: u32,
    /// Digest of the value that each master last reported to this waiter as the first in its queue, by the
    /// master's index. Zero if unknown.
    values: Vec<u32>,
    /// When the key's value last changed without a grant or a ring for this waiter.
    changed: Option<Instant>,
    /// Pause between two looks.
    look_pause: Duration,
}

/// Deadlines of a waiting round.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// Deadline for answers to the round. Masters without an answer then count as failed.
    answers: Option<Instant>,
    /// Latest start of the next round.
    round: Instant,
    /// Earlier start of the next round, after a ring or with a part of the lock.
    early: Option<Instant>,
    /// When the first waiter lets the masters check the key, because no script runs by itself when a key
    /// expires.
    look: Option<Instant>,
}

/// Event due for a parked waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Some masters did not answer in time.
    AnswersMissed,
    /// The next round begins.
    Round,
    /// The masters look whether the key is free.
    Look,
}

impl Place {
    /// Returns the place of a new waiter, in the memory of `over`.
    pub(crate) fn new(master_count: usize, rng: &mut impl Rng, over: Self) -> Self {
        let (mut last, mut values) = (over.last, over.values);
        last.clear();
        last.resize(master_count, Id::NOBODY);
        values.clear();
        values.resize(master_count, 0);
        let mut waiter = [0; WAITER_SIZE];
        rng.fill_bytes(&mut waiter);
        Self { waiter, last, values, ..Self::default() }
    }

    /// Returns the claim whose token was last sent to a master.
    pub(crate) fn last(&self, master: MasterId) -> Id {
        self.last[master.index()]
    }

    /// Returns all masters, each with the claim last sent to it.
    pub(crate) fn all_last(&self) -> impl Iterator<Item = (MasterId, Id)> {
        self.last.iter().enumerate().filter_map(|(index, id)| Some((MasterId::new(index)?, *id)))
    }

    /// Notes that these masters get this claim's token.
    pub(crate) fn note_sent(&mut self, masters: MasterSet, claim: Id) {
        masters.iter().for_each(|master| self.last[master.index()] = claim);
    }

    /// Notes that a quorum granted the current round with too little validity left.
    pub(crate) const fn note_late(&mut self) {
        self.late_count += 1;
    }

    /// Whether the current round is late, and the round before was not. Two consecutive late rounds are a
    /// failed attempt.
    pub(crate) const fn is_first_late(&self) -> bool {
        self.late_count == 1
    }

    /// Notes that the current round ends without the lock, but not too late.
    pub(crate) const fn note_in_time(&mut self) {
        self.late_count = 0;
    }

    /// The round ends, perhaps with a part of the lock, or with all of it too late. After the first such
    /// round, the next round asks again in ticket order, which gives those masters to earlier waiters. After
    /// the second, it lets all others go first. After the third, it leaves these masters alone: a waiter with
    /// a minority must not block the holder's repair.
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
}

impl Parked {
    /// Returns a new round, in the memory of a finished one if `over` has one. `place` gets the memory of the
    /// finished one's place.
    pub(crate) fn new(
        now: Instant,
        ticket_us: Option<u64>,
        over: Option<&mut Self>,
        place: impl FnOnce(Place) -> Place,
    ) -> Self {
        let (mut at_us, mut replaced, memory) = over
            .map(|over| (take(&mut over.at_us), take(&mut over.replaced), take(&mut over.place)))
            .unwrap_or_default();
        at_us.clear();
        replaced.clear();
        Self {
            place: place(memory),
            ticket_us,
            masters: MasterSet::EMPTY,
            at_us,
            replaced,
            owing: MasterSet::EMPTY,
            waiting: MasterSet::EMPTY,
            first: MasterSet::EMPTY,
            rung: MasterSet::EMPTY,
            sent_at: now,
            was_held: false,
            due: Due { answers: None, round: now, early: None, look: None },
        }
    }

    /// Returns the ticket of a waiter.
    pub(crate) fn ticket_us(&self) -> u64 {
        self.ticket_us.expect("a handle does not wait")
    }

    /// Begins the round, which waits this long for answers.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        answers: Duration,
        ttl: Ttl,
        waits: bool,
        rng: &mut impl Rng,
    ) {
        self.place.round += 1;
        // A quarter of each heartbeat is random, so that waiters that came together spread out.
        let beat = heartbeat(ttl);
        // A short silence must not cost the place in the queue.
        let answers_due = now + if waits { answers.max(beat / 2) } else { answers };
        let next_round = now + rng.random_range(beat / 4 * 3..=beat);
        self.due.answers = Some(answers_due);
        // Without a wait there is no place to keep, and a round that begins earlier makes late grants void.
        self.due.round = if waits { next_round } else { next_round.max(answers_due) };
    }

    /// The round became a held lock.
    pub(crate) const fn hold(&mut self) {
        self.was_held = true;
        self.rung = MasterSet::EMPTY;
    }

    /// Whether a master may still serve the entry, or get a late park.
    pub(crate) fn may_be_served(&self, now: Instant, master: MasterId, drift: Drift) -> bool {
        let is_there = now < self.sent_at + limits::STAY + drift.of(limits::STAY);
        // A master that owes its answer may still execute the park.
        (is_there || self.owing.contains(master)) && self.masters.without(self.rung).contains(master)
    }

    /// Returns the claims to replace, with the masters that have not answered.
    pub(crate) fn all_replaced(&self) -> impl Iterator<Item = (MasterId, Id)> {
        self.replaced.iter().copied()
    }

    /// Notes that the park is sent to a master.
    pub(crate) fn note_sent(&mut self, now: Instant, master: MasterId, replaced: Option<Id>) {
        self.masters.insert(master);
        self.owing.insert(master);
        self.sent_at = now;
        self.replaced.extend(replaced.map(|id| (master, id)));
    }

    /// Notes the place of the entry on a master. Returns whether it is the place assumed so far.
    pub(crate) fn note_at(&mut self, master: MasterId, at_us: u64) -> bool {
        let is_as_asked = self.at(master) == Some(at_us);
        if !is_as_asked {
            self.at_us.push((master, at_us));
        }
        is_as_asked
    }

    /// Returns the entry's place on a master, if known. A master without an answer may have put it elsewhere.
    pub(crate) fn at(&self, master: MasterId) -> Option<u64> {
        let reported = self.at_us.iter().find(|(other, _)| *other == master);
        reported.map(|(_, at_us)| *at_us).or(self.ticket_us)
    }

    /// Returns the claim to replace on a master.
    pub(crate) fn replaced(&self, master: MasterId) -> Option<Id> {
        self.replaced.iter().find(|(other, _)| *other == master).map(|(_, id)| *id)
    }

    /// Removes and returns the claim to replace on a master.
    pub(crate) fn take_replaced(&mut self, master: MasterId) -> Option<Id> {
        let place = self.replaced.iter().position(|(other, _)| *other == master)?;
        Some(self.replaced.swap_remove(place).1)
    }

    /// A different process or connection answers for a master: what it got before stays unanswered.
    pub(crate) fn note_lost(&mut self, master: MasterId) {
        self.waiting.remove(master);
        self.first.remove(master);
        self.rung.remove(master);
    }

    /// Notes that the round waits on a master, and what the master reports about the key in the way.
    pub(crate) fn note_waiting(&mut self, now: Instant, master: MasterId, seen: &Waiting) {
        self.waiting.insert(master);
        self.place.has_waited = true;
        if seen.is_first {
            self.first.insert(master);
            self.note_value(now, master, seen.digest);
        } else {
            // Releases serve earlier waiters first.
            self.place.values[master.index()] = 0;
        }
    }

    /// Notes that a master granted the round.
    pub(crate) fn note_granted(&mut self, master: MasterId) {
        self.waiting.remove(master);
        self.first.remove(master);
        self.place.aside = MasterSet::EMPTY;
    }

    /// Notes a ring: only the next round can get the key written on that master. The next round follows at
    /// once after a quorum of rings, otherwise after about a round trip.
    pub(crate) fn note_ring(&mut self, now: Instant, master: MasterId, quorum: usize, round_trip: Duration) {
        self.rung.insert(master);
        self.place.aside = MasterSet::EMPTY;
        let at = if self.rung.has(quorum) { now } else { now + round_trip };
        self.hasten(at);
    }

    /// Moves the next round forward to `at`, if it would begin later.
    pub(crate) fn hasten(&mut self, at: Instant) {
        self.due.early = Some(self.due.early.map_or(at, |early| early.min(at)));
    }

    /// All asked masters have answered. Plans to give a part of the lock back soon, because other waiters may
    /// have the other part.
    pub(crate) fn plan_give_back(
        &mut self,
        now: Instant,
        part: MasterSet,
        round_trip: Duration,
        rng: &mut impl Rng,
    ) {
        if part.is_empty() {
            self.place.part_count = 0;
            return;
        }
        let pause = limits::PART_TIME_MIN.max(round_trip * 5);
        if self.due.early.is_none() {
            self.hasten(now + pause + rng.random_range(Duration::ZERO..=pause));
        }
    }

    /// Plans when the first waiter lets the masters check the key: when the holder's time is over, and at
    /// growing intervals, because another library may have released the lock. `left` is the shortest time
    /// left to a holder.
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
        let place = &mut self.place;
        let least = limits::LOOK_PAUSE_MIN.max(round_trip * 4);
        let most = heartbeat(ttl).max(least);
        place.look_pause = match place.changed {
            Some(at) => ((now - at) / 32).max(draw_unserved_pause(round_trip, rng)).min(most),
            None => (place.look_pause * 2).clamp(least, most),
        };
        if left.is_some_and(|left| left.is_zero()) {
            // The holder has had time to return to the masters that it missed.
            place.aside = MasterSet::EMPTY;
        }
        let behind = |left: Duration| (left + Duration::from_millis(1)).min(place.look_pause);
        let pause = left.map_or(place.look_pause, behind);
        self.due.look = Some(now + pause);
    }

    /// The first waiter learns the key's value, and nobody was served. A different value than before means
    /// that the lock changes hands and no release serves this waiter. Then the waiter looks as often as a
    /// polling client, and less often only as long as the value stays. Returns whether the value changed.
    pub(crate) fn note_value(&mut self, now: Instant, master: MasterId, digest: u32) -> bool {
        if digest == 0 {
            return false;
        }
        let before = replace(&mut self.place.values[master.index()], digest);
        let is_changed = before != 0 && before != digest;
        if is_changed {
            self.place.changed = Some(now);
        }
        is_changed
    }

    /// The lock changes hands: the next look comes as soon as a polling client's.
    pub(crate) fn hasten_look(&mut self, now: Instant, round_trip: Duration, rng: &mut impl Rng) {
        let at = now + draw_unserved_pause(round_trip, rng);
        self.due.look = self.due.look.map(|look| look.min(at));
    }

    /// Notes that all masters have answered. Returns whether answers were awaited.
    pub(crate) const fn note_answered(&mut self) -> bool {
        self.due.answers.take().is_some()
    }

    /// Returns the earliest deadline.
    pub(crate) fn deadline(&self) -> Instant {
        let Due { answers, round, early, look } = self.due;
        [answers, early, look].into_iter().flatten().fold(round, Instant::min)
    }

    /// Returns the next due event, and clears its deadline, except the next round's.
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

/// Returns the time between two rounds without a ring: 1 s, or a quarter of the TTL if that is shorter and
/// the TTL is at least 2 s.
fn heartbeat(ttl: Ttl) -> Duration {
    let ttl = ttl.as_duration();
    if ttl < limits::SHORT_TTL { limits::HEARTBEAT } else { limits::HEARTBEAT.min(ttl / 4) }
}

#[cfg(test)]
mod tests;
