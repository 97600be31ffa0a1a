//! The next step of an acquisition of a slot: which slot to try, when to look for free ones, how to wait.
//!
//! ```text
//!                                     granted
//!  try one, and look for free ones ─────────────────────────────────────────────► held
//!      │  ▲ some are free, and                                                      ▲
//!      │  └─ fewer than four tries ─┐                                               │ granted
//!      ▼                            │                                               │
//!  enter at the door, as one of all waiters ──► few slots: stand in the queue of each
//!                                   │      └──► many: look ◄──► pause
//!                                   └───────────────┘
//! ```
//!
//! A slot is a lock like any other, so two callers never hold one: nothing here decides on exclusion. The
//! door is a fair lock of the pool. Only its holder waits for slots, so a waiter costs one entry in the
//! masters' queues however many slots there are, and waiters get slots in the order in which they came to the
//! door. The door's holder stands in the queues of few slots, where a release serves it at once. It looks for
//! many slots again and again, after pauses of at most [`limits::SLOT_LOOK_PAUSE_MAX`].
//!
//! Owns the decisions, the door, and what failed last. Does not know connections, the clock and the caller:
//! the time is an argument, each step is its caller's to take, and so the simulator takes the same steps as a
//! [`crate::Client`].

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::config::Config;
use crate::error::AcquireError;
use crate::limits;
use crate::lock::InputError;
use crate::mutants::mutant;
use crate::options::{Mode, Options, WaitPolicy};

/// A slot that is being acquired. `L` is a lock that is held: a slot, or the door.
#[derive(Debug)]
pub struct SlotAcquisition<L> {
    /// The number of slots.
    count: u32,
    is_fenced: bool,
    /// When the last attempt may begin.
    wait_until: Instant,
    /// Largest number of tries.
    max_tries: u32,
    tries: u32,
    /// Tries since the last pause or wait.
    races: u32,
    rng: StdRng,
    /// How the last try failed.
    failed: Option<AcquireError>,
    door: Option<L>,
    /// When the door was entered.
    entered: Instant,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    /// A slot is tried, and free ones are looked for.
    Trying {
        slot: u32,
        failed: Option<AcquireError>,
        looked: Option<Free>,
    },
    /// The door is waited for.
    Entering,
    /// So many slots are waited for.
    Standing(usize),
    /// Free slots are looked for, since this time.
    Looking(Instant),
    Pausing,
    Over,
}

/// Result of a look: the slots that are free on a quorum; `None` if fewer masters answered.
pub type Free = Option<Vec<u32>>;

/// The next step. It ends what the step before has left under way: that is given up.
#[derive(Debug)]
pub enum SlotStep<L> {
    /// Ask for this slot, for one attempt, and in the same write look for free slots from `from` on. Answered
    /// by [`SlotAcquisition::tried`] and [`SlotAcquisition::looked`].
    Try {
        /// The slot to ask for.
        slot: u32,
        /// The slot from which to look.
        from: u32,
    },
    /// Ask for the door, and go on for so long. Answered by [`SlotAcquisition::entered`].
    Enter(Duration),
    /// Ask for all these slots at once, and go on for so long. Each is answered by
    /// [`SlotAcquisition::tried`].
    Stand(Vec<u32>, Duration),
    /// Look for free slots from this one on. Answered by [`SlotAcquisition::looked`].
    Look(u32),
    /// Pause for exactly so long. Answered by [`SlotAcquisition::paused`].
    Pause(Duration),
    /// Hand this slot out, and give the door back.
    Held(u32, L),
    /// Nothing is held but the door, which is to be given back, and nothing is to be done any more.
    Failed(AcquireError),
}

/// Checks what is asked of a slot beyond a lock.
///
/// # Errors
/// [`InputError`] if the number of slots or the options cannot be.
pub const fn check(count: u32, options: &Options) -> Result<(), InputError> {
    match (options.mode, options.policy) {
        _ if count == 0 || count > limits::SLOT_COUNT_MAX => Err(InputError::SlotCount { count }),
        (Mode::Shared, _) | (_, WaitPolicy::Fair) => Err(InputError::SlotMode),
        _ => Ok(()),
    }
}

/// The options of the door's lock, for a caller that waits for so long.
pub fn door_options(config: &Config, left: Duration) -> Options {
    let options = Options::new().ttl(limits::DOOR_TTL.min(config.max_ttl)).wait(left).fair();
    // Without automatic extension the next waiter enters when the TTL is over, and looks, too.
    if config.max_hold.is_zero() { options } else { options.auto_extend(Duration::MAX) }
}

impl<L> SlotAcquisition<L> {
    /// Begins to acquire one of `count` slots. The options are those of a slot's lock; the wait and the
    /// largest number of attempts count for all of it. The seed is for the choice among the slots.
    pub fn begin(
        now: Instant,
        config: &Config,
        count: u32,
        options: &Options,
        seed: u64,
    ) -> (Self, SlotStep<L>) {
        let wait = options.wait_or_default(config.max_ttl);
        let mut acquisition = Self {
            count,
            is_fenced: options.mode == Mode::Fenced,
            wait_until: now.checked_add(wait).unwrap_or(now + limits::FOREVER),
            max_tries: options.max_attempts.unwrap_or(u32::MAX),
            tries: 0,
            races: 0,
            rng: StdRng::seed_from_u64(seed),
            failed: None,
            door: None,
            entered: now,
            state: SlotState::Over,
        };
        let slot = acquisition.draw();
        let step = acquisition.try_slot(slot);
        (acquisition, step)
    }

    /// The answer about a slot that was asked for. There is no next step while more answers are to come.
    pub fn tried(&mut self, now: Instant, slot: u32, answer: Result<L, AcquireError>) -> Option<SlotStep<L>> {
        let error = match answer {
            Ok(lock) => return Some(self.hold(slot, lock)),
            Err(error) if error.is_final() => return Some(self.fail(error)),
            Err(error) => error,
        };
        match std::mem::replace(&mut self.state, SlotState::Over) {
            SlotState::Trying { looked: Some(free), .. } => Some(self.follow_refusal(now, error, free)),
            SlotState::Trying { slot, looked: None, .. } => {
                self.state = SlotState::Trying { slot, failed: Some(error), looked: None };
                None
            }
            SlotState::Standing(2..) if mutant!(StandEndsWithFirst) => Some(self.fail(error)),
            SlotState::Standing(count @ 2..) => {
                self.state = SlotState::Standing(count - 1);
                None
            }
            SlotState::Standing(_) => Some(self.fail(error)),
            state => unreachable!("no slot was asked for in {state:?}"),
        }
    }

    /// The answer to a look.
    pub fn looked(&mut self, now: Instant, answer: Result<Free, AcquireError>) -> Option<SlotStep<L>> {
        let free = match answer {
            Ok(free) => free,
            Err(error) if error.is_final() => return Some(self.fail(error)),
            Err(_) => None,
        };
        match std::mem::replace(&mut self.state, SlotState::Over) {
            SlotState::Trying { failed: Some(error), .. } => Some(self.follow_refusal(now, error, free)),
            SlotState::Trying { slot, failed: None, .. } => {
                // A fenced one may be asked for again with a better token. Any other is refused, or so many
                // masters are in doubt about it that another is the better choice.
                if !self.is_fenced
                    && let Some(other) = self.choose(now, free.as_ref())
                {
                    return Some(self.try_slot(other));
                }
                self.state = SlotState::Trying { slot, failed: None, looked: Some(free) };
                None
            }
            SlotState::Looking(since) => {
                self.races = 0;
                let slot = match &free {
                    // The error of a try says why too few masters answer.
                    None => Some(self.draw()),
                    Some(_) => self.choose(now, free.as_ref()),
                };
                Some(match slot {
                    Some(slot) => self.try_slot(slot),
                    None => self.pause(now, now.saturating_duration_since(since)),
                })
            }
            state => unreachable!("no look was asked for in {state:?}"),
        }
    }

    /// The answer about the door.
    pub fn entered(&mut self, now: Instant, answer: Result<L, AcquireError>) -> SlotStep<L> {
        match answer {
            Ok(door) => {
                (self.door, self.entered) = (Some(door), now);
                self.wait_inside(now)
            }
            Err(error) if error.is_final() => self.fail(error),
            // It names the callers ahead of this one, and nothing of the slots.
            Err(error) => {
                let error = self.failed.take().unwrap_or(error);
                self.fail(error)
            }
        }
    }

    /// The pause is over, or cannot be had.
    pub fn paused(&mut self, now: Instant, paused: Result<(), AcquireError>) -> SlotStep<L> {
        match paused {
            Err(error) if error.is_final() => self.fail(error),
            _ => self.wait_inside(now),
        }
    }

    /// How the last try that is over failed.
    pub const fn failed(&self) -> Option<&AcquireError> {
        self.failed.as_ref()
    }

    /// The door, if it is held: nobody wants the slot any more, or it is handed out.
    pub fn into_door(self) -> Option<L> {
        self.door.filter(|_| !mutant!(DoorKept))
    }

    /// The door is held, or nobody needs it: waits for a slot.
    fn wait_inside(&mut self, now: Instant) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() {
            return self.fail_as_before();
        }
        if self.count <= limits::SLOT_STAND_MAX {
            let mut slots: Vec<u32> = (0..self.count).collect();
            if mutant!(StandsAtOneSlot) {
                slots.truncate(1);
            }
            self.state = SlotState::Standing(slots.len());
            return SlotStep::Stand(slots, left);
        }
        self.state = SlotState::Looking(now);
        SlotStep::Look(self.draw())
    }

    /// The slot that was tried is refused, and the look has its answer.
    fn follow_refusal(&mut self, now: Instant, error: AcquireError, free: Free) -> SlotStep<L> {
        self.failed = Some(error);
        if let Some(slot) = self.choose(now, free.as_ref()) {
            return self.try_slot(slot);
        }
        if self.door.is_some() {
            return self.pause(now, Duration::ZERO);
        }
        let left = self.left(now);
        if left.is_zero() || self.tries >= self.max_tries {
            return self.fail_as_before();
        }
        if mutant!(DoorStandsOpen) {
            return self.wait_inside(now);
        }
        self.state = SlotState::Entering;
        SlotStep::Enter(left)
    }

    /// One of the free slots at random, if there may be another try.
    fn choose(&mut self, now: Instant, free: Option<&Vec<u32>>) -> Option<u32> {
        // The first tries are one attempt, whatever is left of the wait.
        let is_in_time = self.door.is_none() || !self.left(now).is_zero();
        let may_try = is_in_time && self.races < limits::SLOT_RACES_MAX && self.tries < self.max_tries;
        free.filter(|_| may_try)?.choose(&mut self.rng).copied()
    }

    fn try_slot(&mut self, slot: u32) -> SlotStep<L> {
        self.tries = self.tries.saturating_add(1);
        self.races += 1;
        self.state = SlotState::Trying { slot, failed: None, looked: None };
        SlotStep::Try { slot, from: self.draw() }
    }

    /// Pauses before the next look: longer the longer it has waited, and not shorter than a look took.
    fn pause(&mut self, now: Instant, took: Duration) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() || self.tries >= self.max_tries {
            return self.fail_as_before();
        }
        let waited = now.saturating_duration_since(self.entered);
        let mut pause = (waited / 8).max(took).max(limits::SLOT_LOOK_PAUSE_MIN);
        if !mutant!(LookPauseUncapped) {
            pause = pause.min(limits::SLOT_LOOK_PAUSE_MAX);
        }
        self.state = SlotState::Pausing;
        SlotStep::Pause(pause.min(left))
    }

    fn hold(&mut self, mut slot: u32, lock: L) -> SlotStep<L> {
        if mutant!(SlotOfAnother) {
            slot = 0;
        }
        self.state = SlotState::Over;
        SlotStep::Held(slot, lock)
    }

    fn fail(&mut self, error: AcquireError) -> SlotStep<L> {
        self.state = SlotState::Over;
        SlotStep::Failed(error)
    }

    /// The wait is over: the last try says why.
    fn fail_as_before(&mut self) -> SlotStep<L> {
        let error = self.failed.take().expect("a try failed before anything was waited for");
        self.fail(error)
    }

    fn draw(&mut self) -> u32 {
        self.rng.random_range(0..self.count)
    }

    fn left(&self, now: Instant) -> Duration {
        self.wait_until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::error::{Denial, Report, Round};

    const WAIT: Duration = Duration::from_secs(60);

    fn config() -> Config {
        Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings")
    }

    fn contended() -> AcquireError {
        AcquireError::Contended(Box::new(Denial::new(Report::new(Round::Acquire, "a"))))
    }

    fn begin(now: Instant, count: u32, options: Options) -> (SlotAcquisition<&'static str>, u32) {
        match SlotAcquisition::begin(now, &config(), count, &options, 1) {
            (acquisition, SlotStep::Try { slot, .. }) => (acquisition, slot),
            (_, step) => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_free_slot_is_tried_without_the_refusal() {
        let now = clock::now();
        let (mut acquisition, first) = begin(now, 16, Options::new());
        let step = acquisition.looked(now, Ok(Some(vec![9])));
        assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{first} is refused, or in doubt");
        // A fenced one may be asked for once more by the engine.
        let (mut acquisition, first) = begin(now, 16, Options::new().fenced());
        assert!(acquisition.looked(now, Ok(Some(vec![9]))).is_none());
        let step = acquisition.tried(now, first, Err(contended()));
        assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{step:?}");
    }

    #[test]
    fn a_caller_without_wait_tries_four_times() {
        let now = clock::now();
        let (mut acquisition, mut slot) = begin(now, 16, Options::new().wait(Duration::ZERO));
        for tries in 1.. {
            assert!(acquisition.tried(now, slot, Err(contended())).is_none());
            match acquisition.looked(now, Ok(Some(vec![3, 4]))) {
                Some(SlotStep::Try { slot: next, .. }) => slot = next,
                Some(SlotStep::Failed(error)) => {
                    assert_eq!((tries, error), (limits::SLOT_RACES_MAX, contended()));
                    return;
                }
                step => panic!("{step:?}"),
            }
        }
    }

    #[test]
    fn the_largest_number_of_attempts_bounds_tries() {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT).max_attempts(1));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        let step = acquisition.looked(now, Ok(Some(vec![3])));
        assert!(matches!(step, Some(SlotStep::Failed(AcquireError::Contended(_)))), "{step:?}");
    }

    #[test]
    fn a_wait_at_the_door_ends_with_the_slots_error() {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        let step = acquisition.looked(now, Ok(Some(Vec::new())));
        assert!(matches!(step, Some(SlotStep::Enter(WAIT))), "{step:?}");
        let at_door = AcquireError::Contended(Box::new(Denial::new(Report::new(Round::Acquire, "door"))));
        let step = acquisition.entered(now + WAIT, Err(at_door));
        assert!(matches!(step, SlotStep::Failed(error) if error == contended()));
    }

    #[test]
    fn pauses_grow_up_to_their_limit() {
        let mut now = clock::now();
        let until = now + WAIT;
        let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        acquisition.looked(now, Ok(Some(Vec::new())));
        let mut step = acquisition.entered(now, Ok("door"));
        let mut pauses = Vec::new();
        loop {
            step = match step {
                SlotStep::Look(_) => acquisition.looked(now, Ok(Some(Vec::new()))).expect("the answer"),
                SlotStep::Pause(time) => {
                    pauses.push(time);
                    now += time;
                    acquisition.paused(now, Ok(()))
                }
                SlotStep::Failed(error) => break assert_eq!(error, contended()),
                step => panic!("{step:?}"),
            };
        }
        assert_eq!((now, acquisition.into_door()), (until, Some("door")));
        assert_eq!(pauses[0], limits::SLOT_LOOK_PAUSE_MIN);
        assert!(pauses[..pauses.len() - 1].is_sorted(), "the last one ends with the wait");
        assert_eq!(pauses.iter().max(), Some(&limits::SLOT_LOOK_PAUSE_MAX));
    }

    #[test]
    fn unreachable_masters_are_no_taken_slots() {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        acquisition.looked(now, Ok(None));
        assert!(matches!(acquisition.entered(now, Ok("door")), SlotStep::Look(_)));
        let step = acquisition.looked(now, Ok(None));
        assert!(matches!(step, Some(SlotStep::Try { .. })), "its error says why: {step:?}");
    }
}
