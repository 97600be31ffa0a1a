//! The next step of an acquisition of a slot: which slot to try, when to look for free ones, how to wait.
//!
//! ```text
//!                                     granted
//!  try one, and look for free ones ─────────────────────────────────────────────► held
//!      │  ▲ some are free, and                                                      ▲
//!      │  └─ fewer than four tries ─┐                                               │ granted
//!      ▼                            │                                               │
//!  enter at the door, as one of all waiters ──► few slots: stand in the queue of each
//!      │                            │      └──► many: look ◄──► pause
//!      │ without a wait             └───────────────┤
//!      └──► fail if all are taken, else pause, and look again
//! ```
//!
//! A slot is a lock like any other, so two callers never hold one: nothing here decides on exclusion. The
//! door is a fair lock of the pool. Only its holder waits for slots, so a waiter costs one entry in the
//! masters' queues however many slots there are, and waiters get slots in the order in which they came to the
//! door. The door's holder stands in the queues of few slots, where a release serves it at once. It looks for
//! many slots again and again, after pauses of at most [`limits::SLOT_LOOK_PAUSE_MAX`].
//!
//! Callers that come together may split the masters' votes, so that each is refused though slots are free. A
//! look shows that: no quorum has the same holder in each slot. A caller without a wait then looks again,
//! after a random pause, `limits::SLOT_LOOKS_AGAIN_MAX` times at most and within the answer limit of its
//! TTL.
//!
//! Owns the decisions, the door, and what failed last. Does not know connections, the clock and the caller:
//! the time is an argument, each step is its caller's to take, and so the simulator takes the same steps as a
//! [`crate::Client`].

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::config::Config;
use crate::engine::SlotLook;
use crate::error::{AcquireError, HeldBy, HolderTtl, SlotHolder};
use crate::limits;
use crate::lock::InputError;
use crate::options::{Mode, Options, WaitPolicy};

/// A slot that is being acquired. `L` is a lock that is held: a slot, or the door.
#[derive(Debug)]
pub struct SlotAcquisition<L> {
    /// The number of slots.
    count: u32,
    is_fenced: bool,
    /// Whether it does not wait.
    is_brief: bool,
    /// When the last attempt may begin.
    wait_until: Instant,
    /// Largest number of tries.
    max_tries: u32,
    tries: u32,
    /// Tries since the last pause or wait.
    races: u32,
    /// When the last further look of a caller without a wait may begin.
    look_until: Instant,
    /// Further looks of a caller without a wait.
    looks_again: u32,
    rng: StdRng,
    /// How the last try failed.
    failed: Option<AcquireError>,
    /// Why no slot is held, by the last look; `None` if too few masters answered it.
    held_by: Option<HeldBy>,
    /// Holders of slots that were refused, each slot once, and when each was noted.
    holders: Vec<(Instant, SlotHolder)>,
    door: Option<L>,
    /// When the door was entered.
    entered: Instant,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    /// A slot is tried, and free ones are looked for.
    Trying { slot: u32, since: Instant, failed: Option<AcquireError>, looked: Option<SlotLook> },
    /// So many slots are waited for.
    Standing(usize),
    /// Free slots are looked for, since this time.
    Looking(Instant),
    /// Nothing is asked of a slot: the door is waited for, or it pauses.
    Idle,
}

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
        // An impossible TTL is refused with the first try.
        let ttl = config.ttl(options.ttl.unwrap_or(config.max_ttl));
        let look_limit = ttl.map_or(Duration::ZERO, |ttl| config.answer_limit(ttl));
        let mut acquisition = Self {
            count,
            is_fenced: options.mode == Mode::Fenced,
            is_brief: wait.is_zero(),
            wait_until: now.checked_add(wait).unwrap_or(now + limits::FOREVER),
            max_tries: options.max_attempts.unwrap_or(u32::MAX),
            tries: 0,
            races: 0,
            look_until: now + look_limit,
            looks_again: 0,
            rng: StdRng::seed_from_u64(seed),
            failed: None,
            held_by: None,
            holders: Vec::new(),
            door: None,
            entered: now,
            state: SlotState::Idle,
        };
        let slot = acquisition.draw();
        let step = acquisition.try_slot(now, slot);
        (acquisition, step)
    }

    /// The answer about a slot that was asked for. There is no next step while more answers are to come.
    pub fn tried(&mut self, now: Instant, slot: u32, answer: Result<L, AcquireError>) -> Option<SlotStep<L>> {
        let error = match answer {
            Ok(lock) => return Some(SlotStep::Held(slot, lock)),
            Err(error) if error.is_final() => return Some(SlotStep::Failed(error)),
            Err(error) => error,
        };
        self.note_holder(now, slot, &error);
        match std::mem::replace(&mut self.state, SlotState::Idle) {
            SlotState::Trying { since, looked: Some(look), .. } => {
                Some(self.follow_refusal(now, since, error, &look))
            }
            SlotState::Trying { slot, since, looked: None, .. } => {
                self.state = SlotState::Trying { slot, since, failed: Some(error), looked: None };
                None
            }
            SlotState::Standing(count @ 2..) => {
                self.state = SlotState::Standing(count - 1);
                None
            }
            SlotState::Standing(_) => {
                let is_cut_short = self.left(now).is_zero() && error.may_be_cut_short();
                if !is_cut_short {
                    self.failed = Some(error);
                }
                Some(self.fail_as_before(now))
            }
            state => unreachable!("no slot was asked for in {state:?}"),
        }
    }

    /// The answer to a look.
    pub fn looked(&mut self, now: Instant, answer: Result<SlotLook, AcquireError>) -> Option<SlotStep<L>> {
        let look = match answer {
            Ok(look) => look,
            Err(error) if error.is_final() => return Some(SlotStep::Failed(error)),
            Err(_) => SlotLook::Unknown(Vec::new()),
        };
        match std::mem::replace(&mut self.state, SlotState::Idle) {
            SlotState::Trying { since, failed: Some(error), .. } => {
                Some(self.follow_refusal(now, since, error, &look))
            }
            SlotState::Trying { slot, since, failed: None, .. } => {
                // A fenced one may be asked for again with a better token. Any other is refused, or so many
                // masters are in doubt about it that another is the better choice.
                if !self.is_fenced
                    && let Some(other) = self.choose(now, &look)
                {
                    return Some(self.try_slot(now, other));
                }
                self.state = SlotState::Trying { slot, since, failed: None, looked: Some(look) };
                None
            }
            SlotState::Looking(since) => {
                self.races = 0;
                let slot = match &look {
                    // The error of a try says why too few masters answer.
                    SlotLook::Unknown(_) => Some(self.draw()),
                    _ => self.choose(now, &look),
                };
                Some(match slot {
                    Some(slot) => self.try_slot(now, slot),
                    None => self.go_on(now, since, &look),
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
            Err(error) if error.is_final() => SlotStep::Failed(error),
            // It names the callers ahead of this one, and nothing of the slots.
            Err(_) => self.fail_as_before(now),
        }
    }

    /// The pause is over, or cannot be had.
    pub fn paused(&mut self, now: Instant, paused: Result<(), AcquireError>) -> SlotStep<L> {
        match paused {
            Err(error) if error.is_final() => SlotStep::Failed(error),
            _ if self.is_brief => self.look(now),
            _ => self.wait_inside(now),
        }
    }

    /// How the last try that is over failed; `None` if the next one may well succeed.
    pub fn failed(&self, now: Instant) -> Option<AcquireError> {
        if self.may_be_free() { None } else { self.refusal(now) }
    }

    /// The door, if it is held: nobody wants the slot any more, or it is handed out.
    pub fn take_door(&mut self) -> Option<L> {
        self.door.take()
    }

    /// The door is held, or nobody needs it: waits for a slot.
    fn wait_inside(&mut self, now: Instant) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() {
            return self.fail_as_before(now);
        }
        if self.count <= limits::SLOT_STAND_MAX {
            let slots: Vec<u32> = (0..self.count).collect();
            self.state = SlotState::Standing(slots.len());
            // Each of their queues says whether its slot is taken.
            self.held_by = Some(HeldBy::Slots(self.count));
            return SlotStep::Stand(slots, left);
        }
        self.look(now)
    }

    fn look(&mut self, now: Instant) -> SlotStep<L> {
        self.state = SlotState::Looking(now);
        SlotStep::Look(self.draw())
    }

    /// The slot that was tried is refused, and the look has its answer.
    fn follow_refusal(
        &mut self,
        now: Instant,
        since: Instant,
        error: AcquireError,
        look: &SlotLook,
    ) -> SlotStep<L> {
        self.failed = Some(match (error, look) {
            // One slot is taken, and nothing is known of the others.
            (AcquireError::Contended(mut denial), SlotLook::Unknown(votes)) if self.count > 1 => {
                denial.report.votes.clone_from(votes);
                AcquireError::NoQuorum(denial)
            }
            (error, _) => error,
        });
        match self.choose(now, look) {
            Some(slot) => self.try_slot(now, slot),
            None => self.go_on(now, since, look),
        }
    }

    /// A look that began at `since` has brought no slot that may be tried.
    fn go_on(&mut self, now: Instant, since: Instant, look: &SlotLook) -> SlotStep<L> {
        self.held_by = match look {
            SlotLook::Taken => Some(HeldBy::Slots(self.count)),
            SlotLook::Free(_) | SlotLook::Contested => Some(HeldBy::SlotRivals(self.count)),
            SlotLook::Unknown(_) => None,
        };
        let (left, took) = (self.left(now), now.saturating_duration_since(since));
        if self.tries >= self.max_tries {
            return self.fail_as_before(now);
        }
        match self.door.is_some() {
            true => self.pause(now, took),
            false if self.is_brief => self.look_again(now, took),
            false if left.is_zero() => self.fail_as_before(now),
            false => SlotStep::Enter(left),
        }
    }

    /// One of the free slots at random, if there may be another try.
    fn choose(&mut self, now: Instant, look: &SlotLook) -> Option<u32> {
        // The first tries are one attempt, whatever is left of the wait.
        let is_in_time = self.door.is_none() || !self.left(now).is_zero();
        let may_try = is_in_time && self.races < limits::SLOT_RACES_MAX && self.tries < self.max_tries;
        match look {
            SlotLook::Free(slots) if may_try => slots.choose(&mut self.rng).copied(),
            _ => None,
        }
    }

    fn try_slot(&mut self, now: Instant, slot: u32) -> SlotStep<L> {
        self.tries = self.tries.saturating_add(1);
        self.races += 1;
        self.state = SlotState::Trying { slot, since: now, failed: None, looked: None };
        SlotStep::Try { slot, from: self.draw() }
    }

    /// Pauses before the next look: longer the longer it has waited, and not shorter than a look took.
    fn pause(&mut self, now: Instant, took: Duration) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() {
            return self.fail_as_before(now);
        }
        let waited = now.saturating_duration_since(self.entered);
        let pause = (waited / 8).max(took).max(limits::SLOT_LOOK_PAUSE_MIN).min(limits::SLOT_LOOK_PAUSE_MAX);
        SlotStep::Pause(pause.min(left))
    }

    /// The pause of a caller that does not wait, while some slot may be free. It is random, and the range
    /// doubles: callers that met once are not to meet again.
    fn look_again(&mut self, now: Instant, took: Duration) -> SlotStep<L> {
        if !self.may_be_free() || self.looks_again >= limits::SLOT_LOOKS_AGAIN_MAX || now >= self.look_until {
            return self.fail_as_before(now);
        }
        self.looks_again += 1;
        let least = took.clamp(limits::SLOT_LOOK_PAUSE_MIN, limits::SLOT_LOOK_PAUSE_MAX);
        let most = (least * (1 << self.looks_again)).min(limits::SLOT_LOOK_PAUSE_MAX);
        let pause = self.rng.random_range(least..=most);
        SlotStep::Pause(pause.min(self.look_until.saturating_duration_since(now)))
    }

    /// Whether others kept this caller from a slot that may be free. Masters that failed did not.
    const fn may_be_free(&self) -> bool {
        let is_refused = matches!(self.failed, Some(AcquireError::Contended(_)));
        is_refused && matches!(self.held_by, Some(HeldBy::SlotRivals(_)))
    }

    /// Notes what is known of the holder of a slot that was refused.
    fn note_holder(&mut self, now: Instant, slot: u32, error: &AcquireError) {
        self.holders.retain(|(_, it)| it.slot != slot);
        if let AcquireError::Contended(denial) = error
            && self.holders.len() < limits::SLOT_HOLDERS_MAX
        {
            let (label, ttl) = (denial.holder_label.clone(), denial.holder);
            self.holders.push((now, SlotHolder { slot, label, ttl }));
        }
    }

    /// The last try's error, with what is known of all slots.
    fn refusal(&self, now: Instant) -> Option<AcquireError> {
        let mut error = self.failed.clone()?;
        if let (AcquireError::Contended(denial), Some(held_by)) = (&mut error, self.held_by) {
            let holders =
                self.holders.iter().map(|(noted, it)| it.after(now.saturating_duration_since(*noted)));
            denial.slots = holders.collect();
            denial.slots.sort_unstable_by_key(|it| it.slot);
            let known = denial.slots.iter().filter_map(|it| Some((it.left()?, it)));
            if let Some((_, first)) = known.min_by_key(|it| it.0) {
                (denial.holder, denial.holder_label) = (first.ttl, first.label.clone());
            } else if let HolderTtl::Left(_) = denial.holder {
                // It is over by now, and another one may hold the slot.
                denial.holder = HolderTtl::Unknown;
            }
            denial.held_by = held_by;
        }
        Some(error)
    }

    /// The wait is over: the last try says why.
    fn fail_as_before(&mut self, now: Instant) -> SlotStep<L> {
        let error = self.refusal(now).expect("a try failed before anything was waited for");
        SlotStep::Failed(error)
    }

    fn draw(&mut self) -> u32 {
        self.rng.random_range(0..self.count)
    }

    fn left(&self, now: Instant) -> Duration {
        self.wait_until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests;
