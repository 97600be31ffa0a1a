//! The subscription of one waiter, and what follows for its next attempt.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use super::slab::Id;
use crate::limits;
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

/// How the waiters on one channel stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// They take the lock from each other: not all of them come.
    Rival,
    /// It has a place in the masters' queues, and a channel of its own: it was notified alone.
    Queued,
    /// They have the lock together.
    Reader,
}

impl Waiter {
    /// The number of the group with which it is notified. Group 0 is notified of each release: no reader
    /// keeps another one out.
    pub(super) fn group(self, rng: &mut impl Rng) -> Option<u32> {
        match self {
            Self::Rival => Some(rng.random_range(1..=limits::WAKE_GROUP_COUNT)),
            Self::Reader if mutant!(ReaderLeftAsleep) => Some(rng.random_range(1..=limits::WAKE_GROUP_COUNT)),
            Self::Reader => Some(0),
            Self::Queued => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: Id,
    waiter: Waiter,
    /// The channel's name as an encoded bulk string.
    pub(super) channel: Box<[u8]>,
    /// The same for the channel of its group, if it is in one.
    pub(super) group: Option<Box<[u8]>>,
    /// Masters that were sent a `SUBSCRIBE`, and those of them that confirmed it.
    pub(super) asked: MasterSet,
    pub(super) confirmed: MasterSet,
    /// Whether a master has confirmed since the last attempt began, and a quorum has: that master may have
    /// published a release before, which went unheard.
    pub(super) is_untried: bool,
    /// How long the last attempt took.
    pub(super) took: Duration,
    /// Masters that reported the latest release, if it was since the last attempt began.
    freed: MasterSet,
    /// Whether one master alone publishes this release.
    is_alone: bool,
    /// Whether this client tries for it, and after what pause.
    draw: Draw,
    /// Whether the last attempt followed a reported release. If it was refused, another client took the lock
    /// since then. Its time is rarely over before the next attempt, and so is not asked for.
    pub(super) follows_release: bool,
    /// How many wait, if a master said so with the latest reported release.
    waiting_count: u32,
    /// Whether messages come at all: then the pauses between attempts may be long at once.
    has_heard: bool,
    /// Attempts since a quorum confirmed, by which the pauses grow until a message has come.
    quiet_count: u32,
}

/// Outcome of the draw after a release, by which only some waiters try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draw {
    Open,
    Skip,
    Try(Duration),
}

/// An attempt that is to be made earlier than planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wake {
    pub(super) at: Instant,
    /// Whether it is that behind the confirmation, which counts as none of the caller's.
    pub(super) is_extra: bool,
    /// Whether a message brought it about.
    pub(super) is_woken: bool,
}

impl Subscription {
    /// The subscription of an operation whose attempt was refused, and took so long.
    pub(super) fn new(
        id: Id,
        waiter: Waiter,
        channel: &[u8],
        group: Option<Box<[u8]>>,
        took: Duration,
    ) -> Self {
        Self {
            id,
            waiter,
            channel: channel.into(),
            group,
            asked: MasterSet::EMPTY,
            confirmed: MasterSet::EMPTY,
            is_untried: false,
            took,
            freed: MasterSet::EMPTY,
            is_alone: false,
            draw: Draw::Open,
            follows_release: false,
            waiting_count: 0,
            has_heard: false,
            quiet_count: 0,
        }
    }

    /// An attempt begins: what was reported before is no reason for another.
    pub(super) fn begin_attempt(&mut self, quorum: usize) {
        self.is_untried = false;
        self.follows_release = matches!(self.draw, Draw::Try(_));
        self.quiet_count = self.quiet_count.saturating_add(u32::from(self.confirmed.has(quorum)));
        self.forget_release();
    }

    /// Between which bounds the next pause is drawn, if a quorum of masters notifies of releases, and each of
    /// those that are `able` to. `longest` is the bound of a waiter that is not notified.
    ///
    /// Before the first message nobody knows whether the holder sends one: the pauses double, so that a
    /// release without a message costs at most as long again as the wait so far. Once one has come the bounds
    /// are wide at once. The more wait the wider, so that all of them together do not come too often; the
    /// first of them comes as soon as ever.
    pub(super) fn pause_bounds(
        &self,
        quorum: usize,
        able: MasterSet,
        longest: Duration,
    ) -> Option<RangeInclusive<Duration>> {
        // Any of them may be the only one that publishes a release.
        if !self.confirmed.intersection(able).has(quorum) || !able.without(self.confirmed).is_empty() {
            return None;
        }
        if self.has_heard {
            let crowd =
                (self.waiting_count / limits::UNWOKEN_CROWD + 1).min(limits::UNWOKEN_CROWD_FACTOR_MAX);
            return Some(longest..=longest * crowd * limits::UNWOKEN_PAUSE_FACTOR);
        }
        let doubled = 1 << self.quiet_count.saturating_sub(1).min(16);
        let bound = longest * doubled.min(limits::QUIET_PAUSE_FACTOR_MAX);
        let mut least = bound / 2;
        if mutant!(NoJitter) {
            least = bound;
        }
        if mutant!(SubscribedPolls) {
            return None;
        }
        Some(least..=bound)
    }

    /// Whether a quorum notifies of releases.
    pub(super) fn is_confirmed(&self, quorum: usize) -> bool {
        self.confirmed.has(quorum)
    }

    /// The channels on which it is notified.
    pub(super) fn channels(&self) -> impl Iterator<Item = &[u8]> {
        [Some(&self.channel), self.group.as_ref()].into_iter().flatten().map(|channel| &**channel)
    }

    /// A master reports a release on one of the channels.
    pub(super) fn note_freed(&mut self, master: MasterId, channel: &[u8]) {
        let is_alone = self.group.as_deref() == Some(channel);
        if self.freed.contains(master) || is_alone || self.is_alone {
            // This one reports a later release.
            self.forget_release();
        }
        if self.freed.is_empty() {
            self.waiting_count = 0;
        }
        self.freed.insert(master);
        self.is_alone = is_alone;
        self.has_heard = true;
    }

    /// A master reports how many wait.
    pub(super) fn note_waiting(&mut self, count: u32) {
        if self.waiter != Waiter::Reader {
            self.waiting_count = self.waiting_count.max(count);
        }
    }

    /// When the next attempt is to be made, if what was reported says so. During an attempt that is asked
    /// when it has failed.
    pub(super) fn wake(
        &mut self,
        now: Instant,
        quorum: usize,
        longest: Duration,
        rng: &mut impl Rng,
    ) -> Option<Wake> {
        // About a round trip.
        let pause = self.took.min(longest);
        let at = if self.is_untried {
            // The other masters confirm about now, and each later confirmation is worth an attempt.
            if self.confirmed == self.asked { now } else { now + pause }
        } else if self.freed.is_empty() {
            return None;
        } else {
            if self.draw == Draw::Open {
                self.draw = match self.waiter {
                    Waiter::Rival => draw(rng, self.waiting_count, pause),
                    Waiter::Queued | Waiter::Reader => Draw::Try(Duration::ZERO),
                };
            }
            // Fewer than a quorum may be the first of one, or all that publish releases.
            let is_quorum = self.is_alone || self.freed.count() >= quorum.min(self.confirmed.count());
            match self.draw {
                Draw::Try(jitter) if is_quorum => now + jitter,
                Draw::Try(jitter) => now + pause + jitter,
                Draw::Skip | Draw::Open => return None,
            }
        };
        Some(Wake { at, is_extra: self.is_untried, is_woken: self.draw != Draw::Open })
    }

    fn forget_release(&mut self) {
        (self.freed, self.is_alone, self.draw) = (MasterSet::EMPTY, false, Draw::Open);
    }
}

/// Whether one of so many who were notified of a release tries, and after what part of a pause.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const LONGEST: Duration = Duration::from_millis(100);
    const QUORUM: usize = 2;
    const CROWD: u32 = 1000;

    fn rival() -> Subscription {
        let group = Some(b"group".as_slice().into());
        Subscription::new(Id::NOBODY, Waiter::Rival, b"lock", group, Duration::from_millis(1))
    }

    fn master(index: usize) -> MasterId {
        MasterId::new(index).expect("small")
    }

    #[test]
    fn pauses_are_wide_only_if_no_publisher_is_missing() {
        let all = MasterSet::first(3);
        for has_heard in [false, true] {
            let mut rival = Subscription { has_heard, ..rival() };
            let bounds = |rival: &Subscription, able| rival.pause_bounds(QUORUM, able, LONGEST);
            rival.confirmed.insert(master(0));
            assert_eq!(bounds(&rival, MasterSet::only(master(0))), None, "no quorum");
            rival.confirmed.insert(master(1));
            assert_eq!(bounds(&rival, all), None, "the third master may publish alone");
            assert!(bounds(&rival, MasterSet::first(2)).is_some(), "the third master cannot publish");
            assert_eq!(bounds(&rival, MasterSet::only(master(0))), None, "of those, no quorum");
            rival.confirmed.insert(master(2));
            assert!(bounds(&rival, all).is_some());
        }
    }

    #[test]
    fn a_skipped_release_of_a_group_hides_no_later_one() {
        let now = Instant::now();
        let mut try_count = 0;
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut rival = rival();
            (0..3).for_each(|index| rival.confirmed.insert(master(index)));
            rival.note_freed(master(0), b"group");
            rival.note_waiting(CROWD);
            let is_skipped = rival.wake(now, QUORUM, LONGEST, &mut rng).is_none();
            // Another client, which has not waited, releases the lock: few wait now.
            (1..3).for_each(|index| rival.note_freed(master(index), b"lock"));
            let wake = rival.wake(now, QUORUM, LONGEST, &mut rng);
            assert!(wake.is_some_and(|wake| wake.is_woken), "{is_skipped}");
            try_count += u32::from(!is_skipped);
        }
        assert!(try_count < 100, "some are skipped");
    }
}
