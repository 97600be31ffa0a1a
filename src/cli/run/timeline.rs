//! Deadlines for ending a command whose locks are not extended. Reads no clock: time is an argument.
//!
//! ```text
//!   0          1/3                2/3                 19/20  validity's end
//!   ├───────────┼──────────────────┼────────────────────┼──────┤
//!   granted     the engine         TERM if no           KILL deadline
//!               extends            extension succeeded
//! ```
//!
//! Each successful extension restarts the timeline. KILL is due [`Timeline::kill_allowance`] before the
//! validity ends: the time that may pass between a deadline and its signal. A machine that ran this program
//! late may do so again, so past lateness adds to the allowance. If this program did not run at the KILL
//! deadline (stopped, or the machine slept or was too busy), KILL follows as soon as it runs, without a
//! grace.

use std::time::{Duration, Instant};

use redlatch::engine::Ttl;

/// Longest allowance on a machine that runs this program on time.
const KILL_ALLOWANCE_MAX: Duration = Duration::from_secs(1);

/// Largest allowance on any machine, as a divisor of the validity.
const LATE_PART: u32 = 6;

/// Deadlines of a lock, or of several that are extended together, and how far the command's end has come.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Validity after an extension.
    validity: Duration,
    grace: Duration,
    valid_until: Instant,
    /// How much later than planned this program ran lately.
    lateness: Duration,
    ending: Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotWanted,
    /// TERM was sent at this time.
    Asked(Instant),
    Killed,
}

/// Signal that the command must get now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Term,
    Kill,
}

impl Timeline {
    /// Timeline of locks with this TTL. The default grace is a third of the validity.
    pub(super) fn new(ttl: Ttl, grace: Option<Duration>, valid_until: Instant) -> Self {
        let validity = ttl.validity();
        let grace = grace.unwrap_or(validity / 3);
        Self { validity, grace, valid_until, lateness: Duration::ZERO, ending: Ending::NotWanted }
    }

    /// An extension succeeded. Half of the lateness is forgotten, as old lateness says less about the
    /// machine.
    pub(super) fn renew(&mut self, valid_until: Instant) {
        self.valid_until = valid_until;
        self.lateness /= 2;
    }

    /// This program ran later than planned by this time.
    pub(super) fn run_late(&mut self, by: Duration) {
        self.lateness = self.lateness.max(by);
    }

    /// The machine slept, which the clock does not count: each deadline moves nearer by that time.
    pub(super) fn shift(&mut self, slept: Duration) {
        self.valid_until = earlier(self.valid_until, slept);
        if let Ending::Asked(since) = &mut self.ending {
            *since = earlier(*since, slept);
        }
    }

    /// TERM was sent.
    pub(super) fn asked(&mut self, now: Instant) {
        self.ending = Ending::Asked(now);
    }

    /// KILL was sent.
    pub(super) fn killed(&mut self) {
        self.ending = Ending::Killed;
    }

    /// Whether TERM or KILL was sent.
    pub(super) fn is_ending(&self) -> bool {
        self.ending != Ending::NotWanted
    }

    pub(super) fn is_killed(&self) -> bool {
        self.ending == Ending::Killed
    }

    pub(super) fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.valid_until.saturating_duration_since(now)
    }

    pub(super) fn due(&self, now: Instant) -> Due {
        match self.ending {
            Ending::Killed => Due::Nothing,
            _ if now >= self.kill_deadline() => Due::Kill,
            Ending::NotWanted if now >= self.term_at() => Due::Term,
            Ending::Asked(since) if now >= self.kill_at(since) => Due::Kill,
            Ending::NotWanted | Ending::Asked(_) => Due::Nothing,
        }
    }

    /// When the next signal is due, if no extension succeeds.
    pub(super) fn next_due(&self) -> Option<Instant> {
        match self.ending {
            Ending::NotWanted => Some(self.term_at()),
            Ending::Asked(since) => Some(self.kill_at(since)),
            Ending::Killed => None,
        }
    }

    /// Grace of a command that gets TERM now.
    pub(super) fn grace(&self, now: Instant) -> Duration {
        self.kill_at(now).saturating_duration_since(now)
    }

    /// Time between the KILL deadline and the validity's end: a twentieth of the validity, at most 1 s, plus
    /// twice the lateness; at most a sixth of the validity.
    fn kill_allowance(&self) -> Duration {
        let least = (self.validity / 20).min(KILL_ALLOWANCE_MAX);
        least.saturating_add(self.lateness.saturating_mul(2)).min(self.validity / LATE_PART)
    }

    fn kill_deadline(&self) -> Instant {
        earlier(self.valid_until, self.kill_allowance())
    }

    /// End of the grace after TERM, at most the KILL deadline.
    fn kill_at(&self, since: Instant) -> Instant {
        let deadline = self.kill_deadline();
        since.checked_add(self.grace).map_or(deadline, |end| end.min(deadline))
    }

    /// Early enough that the grace, within bounds, ends at the KILL deadline.
    fn term_at(&self) -> Instant {
        let longest = self.validity / 3 - self.kill_allowance();
        earlier(self.kill_deadline(), self.grace.clamp((self.validity / 10).min(longest), longest))
    }
}

/// Returns `time - by`, or `time` if the clock does not reach back that far.
fn earlier(time: Instant, by: Duration) -> Instant {
    time.checked_sub(by).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch::Config;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A lock of 10 s granted now, and the present.
    fn granted(grace: Option<Duration>) -> (Timeline, Instant, Duration) {
        let config = Config::builder().masters(["redis://h"]).build().expect("valid settings");
        let ttl = config.ttl(ms(10_000)).expect("a valid TTL");
        let now = Instant::now();
        (Timeline::new(ttl, grace, now + ttl.validity()), now, ttl.validity())
    }

    /// When TERM and KILL are due without extensions or delays.
    fn signals(timeline: &mut Timeline) -> (Instant, Instant) {
        let term_at = timeline.next_due().expect("TERM");
        assert_eq!((timeline.due(term_at - ms(1)), timeline.due(term_at)), (Due::Nothing, Due::Term));
        timeline.asked(term_at);
        let kill_at = timeline.next_due().expect("KILL");
        assert_eq!((timeline.due(kill_at - ms(1)), timeline.due(kill_at)), (Due::Nothing, Due::Kill));
        timeline.killed();
        assert_eq!((timeline.due(kill_at), timeline.next_due()), (Due::Nothing, None));
        (term_at, kill_at)
    }

    // I101
    #[test]
    fn kill_precedes_the_validitys_end_for_any_grace() {
        for grace in [None, Some(Duration::ZERO), Some(ms(2000)), Some(ms(60_000)), Some(Duration::MAX)] {
            let (mut timeline, now, validity) = granted(grace);
            let (term_at, kill_at) = signals(&mut timeline);
            let end = now + validity;
            assert!(kill_at <= end - validity / 20, "{grace:?}");
            assert!(term_at >= now + validity * 2 / 3 - ms(1) && term_at <= kill_at, "{grace:?}");
            if grace.is_none() {
                assert_eq!(term_at, kill_at - (validity / 3 - validity / 20), "a third, less the allowance");
            }
            if grace == Some(ms(2000)) {
                assert_eq!(kill_at - term_at, ms(2000), "a grace that fits is granted in full");
            }
        }
    }

    // I101
    #[test]
    fn a_validity_that_is_over_leaves_no_grace() {
        let (timeline, now, validity) = granted(Some(ms(60_000)));
        for late in [validity - validity / 20, validity, validity * 100] {
            assert_eq!(timeline.due(now + late), Due::Kill, "{late:?}");
        }
        let (mut timeline, now, validity) = granted(Some(ms(60_000)));
        timeline.asked(now);
        assert_eq!((timeline.due(now), timeline.due(now + validity)), (Due::Nothing, Due::Kill));
    }

    // I101
    #[test]
    fn a_machines_sleep_leaves_no_late_grace() {
        let (mut timeline, now, validity) = granted(None);
        timeline.shift(ms(1000));
        assert_eq!(timeline.remaining(now), validity - ms(1000));
        let end = now + validity - ms(1000);
        assert!(timeline.is_valid(end - ms(1)) && !timeline.is_valid(end));
        timeline.asked(now);
        timeline.shift(ms(500));
        assert_eq!(timeline.grace(now) - ms(500), timeline.next_due().expect("KILL") - now, "of the grace");
        timeline.shift(validity);
        assert_eq!(timeline.due(now), Due::Kill);
        assert!(!timeline.is_valid(now));
    }

    // I101
    #[test]
    fn a_supervisor_that_runs_late_kills_earlier() {
        let (mut timeline, now, validity) = granted(Some(Duration::MAX));
        let end = now + validity;
        let allowance = |timeline: &Timeline| end - timeline.kill_deadline();
        assert_eq!(allowance(&timeline), validity / 20);
        timeline.run_late(ms(300));
        timeline.run_late(ms(1));
        assert_eq!(allowance(&timeline), validity / 20 + ms(600));
        timeline.renew(end);
        assert_eq!(allowance(&timeline), validity / 20 + ms(300));
        timeline.run_late(ms(300));
        let (term_at, kill_at) = signals(&mut timeline);
        assert!(term_at >= now + validity * 2 / 3 - ms(1) && kill_at == end - validity / 20 - ms(600));
        // The lateness has a bound, and is forgotten.
        timeline.run_late(Duration::MAX);
        assert_eq!(allowance(&timeline), validity / LATE_PART);
        (0..100).for_each(|_| timeline.renew(end));
        assert_eq!(allowance(&timeline), validity / 20);
    }

    #[test]
    fn the_allowance_of_a_long_ttl_is_a_second() {
        let config = Config::builder().masters(["redis://h"]).max_ttl(ms(60_000)).build();
        let ttl = config.expect("valid settings").ttl(ms(60_000)).expect("a valid TTL");
        let end = Instant::now() + ttl.validity();
        assert_eq!(end - Timeline::new(ttl, None, end).kill_deadline(), ms(1000));
    }

    #[test]
    fn an_extension_moves_the_timeline_and_the_kill() {
        let (mut timeline, now, validity) = granted(Some(Duration::MAX));
        timeline.asked(now + validity / 2);
        timeline.renew(now + validity * 3 / 2);
        let kill_at = timeline.next_due().expect("KILL");
        assert_eq!(kill_at, now + validity * 3 / 2 - timeline.kill_allowance());
        assert_eq!(timeline.grace(now), kill_at - now);
    }

    #[test]
    fn the_shortest_ttl_has_a_line_too() {
        let config = Config::builder().masters(["redis://h"]).build().expect("valid settings");
        let ttl = config.ttl(ms(4)).expect("a valid TTL");
        let now = Instant::now();
        let (term_at, kill_at) = signals(&mut Timeline::new(ttl, Some(Duration::MAX), now + ttl.validity()));
        assert!(now < term_at && term_at <= kill_at && kill_at < now + ttl.validity());
    }
}
