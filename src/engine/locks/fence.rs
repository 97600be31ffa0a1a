//! Fenced locks: the fencing token of each attempt, and what follows when masters refuse it.
//!
//! ```text
//!   caller's wall clock ─┐
//!   learnt correction ───┼──► token ──► all masters ──► quorum of OK: held, with this token
//!   fences that are state ┘      ▲                         │ STALE, PAST, FUTURE
//!                               └── another claim ────────┘ no pause, while time allows
//! ```
//!
//! # Why tokens grow
//!
//! Each vote that counts was given for this attempt's token, by a master whose fence was smaller before and
//! is as large afterwards. Two holders share a master that voted for both. If the second holder asked after
//! the first was answered, that master had the first holder's fence when it voted for the second, or had lost
//! it. If a restart lost the fence, the master was in quarantine until its clock had moved on by more than
//! its window's width (`lock/fencing.rs`). So any token that it accepts afterwards is larger than every token
//! that it accepted before. That holds for votes given after the quarantine, not for votes counted after it.
//! So a master in quarantine at the start of a fenced attempt does not count for that attempt at all.
//!
//! Neither a client's clock nor the validity of the lock matters for this. The one condition is that a
//! master's clock is not set back while the master lacks a fence, after a restart or because the fence
//! expired.
//!
//! # Handover, extension and repair
//!
//! Fenced locks are never handed over within the engine (`handover.rs`), because a swap would not raise the
//! fence. Extensions do not touch the fence either: it may expire while the lock is held, because its token
//! has left the window by that time. A repair of a held lock (`hold.rs`) also sets the fence, so that the
//! margin covers fences.
//!
//! An adopted lock (`adopt.rs`) keeps its token, because the storage sees one holder. The adoption counts on
//! masters with the handle's value, and each of these accepted the token before. So the next holder's token
//! is larger, as after the first quorum. A master with a larger fence refuses, because a late command may
//! have restored the value after another holder. The release raises the fence as usual.

use std::iter;
use std::time::{Duration, Instant};

use super::claim::{Claim, Votes};
use super::obstacle::Obstacle;
use crate::config::Config;
use crate::engine::masters::wall_clock::WallClock;
use crate::limits;
use crate::lock::command::fenced::{Fence, FenceState, FencedAnswer, Refusal};
use crate::lock::{Failure, FencingToken, MasterId, MasterSet, Tally, TokenRefusal, Vote};

/// State of a fenced acquisition.
#[derive(Debug)]
pub(crate) struct Fencing {
    /// The next token exceeds this number.
    floor: u64,
    /// Token of the current attempt.
    token: FencingToken,
    /// Consecutive attempts without a pause before them.
    renumbering_count: u32,
    /// Reports of the masters that refused the current attempt.
    refusals: Vec<(MasterId, FenceState)>,
}

impl Fencing {
    pub(crate) const fn new() -> Self {
        Self { floor: 0, token: FencingToken::near(0), renumbering_count: 0, refusals: Vec::new() }
    }

    /// Begins an attempt at this time of the masters' clocks: draws its token.
    pub(crate) fn begin_attempt(&mut self, masters_us: u64) -> FencingToken {
        self.token = FencingToken::near(masters_us.max(self.floor + 1));
        if self.refusals.is_empty() {
            // No master refused the previous attempt.
            self.renumbering_count = 0;
        }
        self.refusals.clear();
        self.token
    }

    /// Notes a master's refusal of the current attempt. Returns the master's objection to the token, if any.
    pub(crate) fn note_refusal(&mut self, master: MasterId, state: FenceState) -> Option<Failure> {
        self.refusals.push((master, state));
        token_refusal(state, self.token).map(Failure::TokenRefused)
    }

    /// Learns the next token from the refusals of an attempt that can get no quorum. Returns the masters
    /// where another holder has the lock.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        clock: &mut WallClock,
        tally: &Tally,
        half_us: u64,
    ) -> MasterSet {
        clock.learn(now, self.learn(tally, half_us));
        self.busy().map(|(master, _)| master).collect()
    }

    /// Whether another attempt may follow without a pause. Counts that attempt.
    pub(crate) fn may_renumber(&mut self) -> bool {
        let may = self.renumbering_count < limits::RENUMBERING_COUNT_MAX;
        self.renumbering_count += u32::from(may);
        may
    }

    /// Ends a series of attempts without pauses: passes the reports about the key in the way to `obstacle`.
    pub(crate) fn end_row(&mut self, now: Instant, obstacle: &mut Obstacle) {
        self.renumbering_count = 0;
        self.busy().for_each(|(master, state)| obstacle.note(now, master, state.holder));
    }

    /// Whether a master objects to the token.
    pub(crate) fn is_token_refused(&self) -> bool {
        self.refusals.iter().any(|(_, state)| state.refusal != Refusal::Busy)
    }

    fn busy(&self) -> impl Iterator<Item = (MasterId, FenceState)> {
        self.refusals.iter().filter(|(_, state)| state.refusal == Refusal::Busy).copied()
    }

    /// Learns the next token from the answers. Returns the masters' time: the middle of their clocks, because
    /// a quorum must agree. A master that granted does not tell its time; the token stands in for it.
    fn learn(&mut self, tally: &Tally, half_us: u64) -> u64 {
        let token = self.token.as_u64();
        let granted = iter::repeat_n(token, tally.granted.count());
        let mut times: Vec<u64> =
            self.refusals.iter().map(|(_, state)| state.time_us).chain(granted.clone()).collect();
        times.sort_unstable();
        let middle = times.get(times.len() / 2).copied().unwrap_or(token);
        let time = if middle == token { self.beside(half_us) } else { middle };
        // No token in their window can pass a fence beyond it. Such a fence is left to its master.
        let fences = self.refusals.iter().map(|(_, state)| state.fence).chain(granted).chain([self.floor]);
        self.floor = fences.filter(|fence| *fence < time.saturating_add(half_us)).max().unwrap_or(0);
        time
    }

    /// Returns a time beside the token, for the case that a grant hides the middle clock: the same token
    /// would get the same answers. The time lies a quarter of the window from the token, towards the closest
    /// clock out of reach. On the wrong side, more masters refuse and so tell their time.
    fn beside(&self, half_us: u64) -> u64 {
        let (token, step) = (self.token.as_u64(), half_us / 2);
        let refused = self.refusals.iter().map(|(_, state)| state);
        let out_of_reach = refused.filter(|it| matches!(it.refusal, Refusal::Past | Refusal::Future));
        match out_of_reach.map(|it| it.time_us).min_by_key(|time| time.abs_diff(token)) {
            Some(time) if time.abs_diff(token) > half_us + step => token,
            Some(time) if time < token => token.saturating_sub(step),
            Some(_) => token.saturating_add(step),
            None => token,
        }
    }
}

/// Returns the fence for a token.
pub(crate) fn fence(config: &Config, token: FencingToken) -> Fence {
    Fence { token, window: config.window(), prefix_size: config.prefix.len() }
}

/// Returns the vote in the answer to an attempt. `fencing` learns from the answer.
pub(crate) fn vote(
    answer: FencedAnswer,
    master: MasterId,
    claim: &mut Claim,
    fencing: Option<&mut Fencing>,
) -> Option<Vote> {
    Some(match answer {
        FencedAnswer::Granted => Vote::Granted,
        FencedAnswer::Own => claim.note_twin(master),
        FencedAnswer::Failed(failure) => Vote::Failed(failure),
        FencedAnswer::Refused(_) if claim.votes == Votes::Void => return None,
        FencedAnswer::Refused(state) => {
            if let Some(failure) = fencing.and_then(|fencing| fencing.note_refusal(master, state)) {
                claim.failures.push((master, failure));
            }
            Vote::Refused { holder: state.holder }
        }
    })
}

/// Returns the objection to the token in a refusal, if any.
fn token_refusal(state: FenceState, token: FencingToken) -> Option<TokenRefusal> {
    let by = Duration::from_micros(state.time_us.abs_diff(token.as_u64()));
    match state.refusal {
        Refusal::Busy => None,
        Refusal::Stale => Some(TokenRefusal::Stale),
        Refusal::Past => Some(TokenRefusal::Past { by }),
        Refusal::Future => Some(TokenRefusal::Future { by }),
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::lock::{HolderTtl, whole_us};

    const HALF_US: u64 = 1_000;

    #[test]
    fn an_objection_to_a_token_has_the_distance_of_the_clocks() {
        let by = Duration::from_micros(7);
        for (refusal, objection) in [
            (Refusal::Busy, None),
            (Refusal::Stale, Some(TokenRefusal::Stale)),
            (Refusal::Past, Some(TokenRefusal::Past { by })),
            (Refusal::Future, Some(TokenRefusal::Future { by })),
        ] {
            assert_eq!(token_refusal(state(refusal, 0, 1_007), FencingToken::near(1_000)), objection);
        }
    }

    fn fencing(wall_us: u64) -> Fencing {
        let mut fencing = Fencing::new();
        fencing.begin_attempt(wall_us);
        fencing
    }

    fn state(refusal: Refusal, fence: u64, time_us: u64) -> FenceState {
        FenceState { refusal, fence, holder: HolderTtl::Unknown, time_us }
    }

    /// Feeds the masters' answers to a token, and returns the next token.
    fn next(fencing: &mut Fencing, granted: usize, answers: &[FenceState]) -> u64 {
        let master = |index| MasterId::new(index).expect("small");
        fencing
            .refusals
            .extend(answers.iter().enumerate().map(|(index, state)| (master(granted + index), *state)));
        let tally = Tally { granted: MasterSet::first(granted), ..Tally::default() };
        let time = fencing.learn(&tally, HALF_US);
        fencing.begin_attempt(time).as_u64()
    }

    #[test]
    fn the_next_token_exceeds_all_reported_fences() {
        let stale = |fence| state(Refusal::Stale, fence, 50_000);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_300), stale(50_200)]), 50_301);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_000), stale(50_000)]), 50_001);
    }

    #[test]
    fn an_unpassable_fence_is_left_to_its_master() {
        let answers = [state(Refusal::Stale, 90_000, 50_000), state(Refusal::Stale, 50_001, 50_000)];
        assert_eq!(next(&mut fencing(50_000), 1, &answers), 50_002);
    }

    #[test]
    fn the_next_token_follows_the_clocks_of_a_quorum() {
        let (now, ahead) = (50_000, 3_600_050_000);
        let future = state(Refusal::Future, 0, now);
        // The clocks of one master and of the client are an hour ahead.
        assert_eq!(next(&mut fencing(ahead), 1, &[future, future]), now);
        // Only the client's clock is wrong.
        assert_eq!(next(&mut fencing(ahead), 0, &[future, future, future]), now);
        let past = |time_us| state(Refusal::Past, 0, time_us);
        assert_eq!(next(&mut fencing(1), 0, &[past(now), past(ahead), past(now + 3)]), now + 3);
    }

    #[test]
    fn clocks_beyond_all_bounds_still_give_a_token() {
        let now = Instant::now();
        let mut clock = WallClock::unset(now);
        clock.set(now, Duration::MAX);
        clock.learn(now, u64::MAX);
        let mut fencing = Fencing::new();
        fencing.floor = u64::MAX - 1;
        let token = |fencing: &mut Fencing, clock: &WallClock| fencing.begin_attempt(clock.masters_us(now));
        assert_eq!(token(&mut fencing, &clock), FencingToken::near(u64::MAX));
        fencing.floor = 0;
        clock.learn(now, 0);
        assert_eq!(token(&mut fencing, &clock), FencingToken::near(1));
    }

    #[test]
    fn each_series_of_attempts_may_renumber() {
        let mut fencing = fencing(1);
        for _ in 0..3 {
            let count = (0..10).filter(|_| fencing.may_renumber()).count();
            assert_eq!(count, limits::RENUMBERING_COUNT_MAX as usize);
            let mut obstacle = Obstacle::NONE;
            fencing.end_row(Instant::now(), &mut obstacle);
        }
    }

    /// Masters with separate clocks that answer like the script, and a client that asks them every
    /// millisecond.
    struct Masters {
        ahead_us: [i64; 5],
        fences: [u64; 5],
    }

    impl Masters {
        const HALF_US: u64 = 1_000_000;
        const START_US: u64 = 3_600_000_000;

        /// Returns a master's answer to a token, this long after the start.
        fn ask(&mut self, master: usize, passed_us: u64, token: u64) -> Result<(), FenceState> {
            let time_us = (Self::START_US + passed_us).saturating_add_signed(self.ahead_us[master]);
            let refusal = if token <= self.fences[master] {
                Refusal::Stale
            } else if token <= time_us - Self::HALF_US {
                Refusal::Past
            } else if token > time_us + Self::HALF_US {
                Refusal::Future
            } else {
                self.fences[master] = token;
                return Ok(());
            };
            Err(state(refusal, self.fences[master], time_us))
        }

        /// Returns when a quorum grants to a client whose clock is this far ahead.
        fn granted_after(&mut self, client_ahead_us: i64) -> Option<Duration> {
            let start = Instant::now();
            let mut clock = WallClock::unset(start);
            clock.set(start, Duration::from_micros(Self::START_US.saturating_add_signed(client_ahead_us)));
            let mut fencing = Fencing::new();
            (0..5_000).map(Duration::from_millis).find(|&passed| {
                let token = fencing.begin_attempt(clock.masters_us(start + passed)).as_u64();
                let mut tally = Tally::default();
                for index in 0..5 {
                    let master = MasterId::new(index).expect("small");
                    match self.ask(index, whole_us(passed), token) {
                        Ok(()) => tally.granted.insert(master),
                        Err(state) => drop(fencing.note_refusal(master, state)),
                    }
                }
                let is_granted = tally.granted.count() >= 3;
                if !is_granted {
                    fencing.judge(start + passed, &mut clock, &tally, Self::HALF_US);
                }
                is_granted
            })
        }
    }

    /// Two granting masters hide their clocks behind the token, which must move anyway.
    #[test]
    fn agreeing_clocks_of_a_quorum_grant_in_time() {
        let as_seen = [868_000, -477_000, -66_000, 126_000_000, -480_000];
        let after = Masters { ahead_us: as_seen, fences: [0; 5] }.granted_after(830_000);
        assert!(after.is_some_and(|after| after < Duration::from_secs(1)), "{after:?}");
        for seed in 0..10_000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let spread_us = i64::try_from(Masters::HALF_US / 2).expect("small");
            let middle_us = rng.random_range(-2_000_000..2_000_000);
            let mut ahead_us = [0; 5].map(|_: i64| middle_us + rng.random_range(0..=spread_us));
            for other in &mut ahead_us[..2] {
                *other = rng.random_range(-4_000_000..4_000_000);
            }
            let client_us = rng.random_range(-4_000_000..4_000_000);
            let after = Masters { ahead_us, fences: [0; 5] }.granted_after(client_us);
            assert!(after.is_some_and(|after| after < Duration::from_secs(2)), "seed {seed}: {after:?}");
        }
    }
}
