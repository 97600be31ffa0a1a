//! Which masters park attempts, and what time they have.

use std::time::{Duration, Instant};

use super::Fleet;
use crate::engine::link::{Link, PARKING};
use crate::limits;
use crate::lock::{Failure, MasterId};

/// How the errors begin by which a master refuses each park: a right or a command is missing.
const NO_PARKING: [&str; 4] =
    ["NOPERM", "ERR unknown command", "ERR The user executing the script", "ERR ACL failure in script"];

impl Fleet {
    /// Whether a quorum can park attempts now.
    pub(in crate::engine) fn can_park(&self) -> bool {
        self.parkers.intersection(self.usable).has(self.quorum)
    }

    /// A master refused a park. Without the right or the script it is polled from now on.
    pub(in crate::engine) fn note_park_refused(&mut self, master: MasterId, failure: &Failure) {
        if let Failure::Replied(text) = failure
            && NO_PARKING.iter().any(|refusal| text.starts_with(refusal))
        {
            self.stop_parking(master, text.clone());
        }
    }

    /// A master cannot park, for this reason, until the next connection.
    pub(in crate::engine) fn stop_parking(&mut self, master: MasterId, why: Box<str>) {
        self.parkers.remove(master);
        self.link_mut(master).learnt.note_refused(PARKING, why);
    }

    /// A master said its time.
    pub(in crate::engine) fn note_clock(&mut self, now: Instant, master: MasterId, clock_us: u64) {
        self.link_mut(master).clock = Some((now, clock_us));
    }

    /// The time by the masters' clocks at that moment: that of the one in the middle. Zero if nobody said it.
    pub(in crate::engine) fn masters_us(&self, at: Instant) -> u64 {
        let clock = |link: &Link| {
            let (then, clock_us) = link.clock?;
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let (later, earlier) = (at.saturating_duration_since(then), then.saturating_duration_since(at));
            Some(clock_us.saturating_add(micros(later)).saturating_sub(micros(earlier)))
        };
        let mut clocks = [0; limits::MASTER_COUNT_MAX];
        let mut count = 0;
        for clock_us in self.links.iter().filter_map(clock) {
            clocks[count] = clock_us;
            count += 1;
        }
        let clocks = &mut clocks[..count];
        clocks.sort_unstable();
        clocks.get(count / 2).copied().unwrap_or(0)
    }
}
