//! The next step of acquiring a slot: which slot to try, when to search for free slots, how to wait.
//!
//! ```text
//!                                          granted
//!  try a slot and search, up to 4 times ────────────► held
//!      │ no slot is free                                ▲ granted
//!      ├─ wait: queue at the door ──► few slots: stand in the queue of each
//!      │                         └──► many: search ◄──► pause
//!      └─ no wait: fail if all are taken, else pause and search again
//! ```
//!
//! A slot is an ordinary lock, so exclusion does not depend on this module. The *door* is a fair lock of the
//! pool. Only its holder waits for slots, so every other waiter costs one queue entry, and waiters keep their
//! order. If callers split the votes for a free slot, a caller that does not wait searches again. No
//! connections and no clock, so the simulator takes the same steps as a [`crate::Client`].

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::config::Config;
use crate::engine::SlotLook;
use crate::error::{AcquireError, HeldBy, HolderTtl, SlotHolder};
use crate::limits;
use crate::lock::InputError;
use crate::options::{Options, WaitPolicy};

/// Acquisition of a slot. `L` is a held lock: a slot, or the door.
#[derive(Debug)]
pub struct SlotAcquisition<L> {
    count: u32,
    is_fenced: bool,
    /// Whether the caller does not wait.
    is_brief: bool,
    /// The last attempt may begin until then.
    wait_until: Instant,
    max_tries: u32,
    tries: u32,
    /// Tries since the last pause or wait.
    races: u32,
    /// The last repeated search of a caller that does not wait may begin until then.
    look_until: Instant,
    /// Repeated searches of a caller that does not wait.
    looks_again: u32,
    rng: StdRng,
    /// How the last try failed.
    failed: Option<AcquireError>,
    /// Why no slot is held, according to the last search; `None` if too few masters answered it.
    held_by: Option<HeldBy>,
    /// Holders of refused slots, each slot once, with the time of the refusal.
    holders: Vec<(Instant, SlotHolder)>,
    door: Option<L>,
    entered: Instant,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    /// A slot was requested, together with a search.
    Trying { slot: u32, since: Instant, failed: Option<AcquireError>, looked: Option<SlotLook> },
    /// This many slots were requested, and the caller waits for the first.
    Standing(usize),
    /// A search that began at this time.
    Looking(Instant),
    /// No slot is requested: the caller waits for the door, or pauses.
    Idle,
}

/// The next step. It first gives up whatever the last step left under way.
#[derive(Debug)]
pub enum SlotStep<L> {
    /// Request this slot, for one attempt, and search for free slots from `from` on in the same write. Report
    /// the answers to [`SlotAcquisition::tried`] and [`SlotAcquisition::looked`].
    Try {
        /// The slot to request.
        slot: u32,
        /// First slot of the search.
        from: u32,
    },
    /// Request the door, waiting for this time. Report the answer to [`SlotAcquisition::entered`].
    Enter(Duration),
    /// Request all these slots at once, waiting for this time. Report each answer to
    /// [`SlotAcquisition::tried`].
    Stand(Vec<u32>, Duration),
    /// Search for free slots from this slot on. Report the answer to [`SlotAcquisition::looked`].
    Look(u32),
    /// Pause for exactly this time, then call [`SlotAcquisition::paused`].
    Pause(Duration),
    /// Hand out this slot, and release the door.
    Held(u32, L),
    /// The acquisition is over. Release the door if it is held; no slot is.
    Failed(AcquireError),
}

/// Checks the slot-specific limits of a request.
///
/// # Errors
/// [`InputError`] if the number of slots is out of range or a slot cannot have these options.
pub const fn check(count: u32, options: &Options) -> Result<(), InputError> {
    match options.policy {
        _ if count == 0 || count > limits::SLOT_COUNT_MAX => Err(InputError::SlotCount { count }),
        WaitPolicy::Cohort if options.mode.may_be_slot() => Ok(()),
        WaitPolicy::Cohort | WaitPolicy::Fair => Err(InputError::SlotMode),
    }
}

/// Options of the door's lock, for a caller that waits for this time.
pub fn door_options(config: &Config, left: Duration) -> Options {
    let options = Options::new().ttl(limits::DOOR_TTL.min(config.max_ttl)).wait(left).fair();
    // Without automatic extension, the next waiter enters after the door's TTL and searches beside this
    // caller.
    if config.max_hold.is_zero() { options } else { options.auto_extend(Duration::MAX) }
}

impl<L> SlotAcquisition<L> {
    /// Begins to acquire one of `count` slots. The wait and the largest number of attempts apply to the whole
    /// acquisition, other options to the slot's lock. The seed decides the choice among slots.
    pub fn begin(
        now: Instant,
        config: &Config,
        count: u32,
        options: &Options,
        seed: u64,
    ) -> (Self, SlotStep<L>) {
        let wait = options.wait_or_default(config.max_ttl);
        // The first try refuses an impossible TTL.
        let ttl = config.ttl(options.ttl.unwrap_or(config.max_ttl));
        let look_limit = ttl.map_or(Duration::ZERO, |ttl| config.answer_limit(ttl));
        let mut acquisition = Self {
            count,
            is_fenced: options.mode.draws_token(),
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

    /// Takes the answer about a requested slot. Returns `None` while other answers are missing.
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

    /// Takes the answer to a search. Returns `None` while the answer to the try is missing.
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
                // A fenced slot may yet be granted with a better token. Any other slot is as good as refused:
                // the search found a free one, and too many masters are in doubt about the tried one.
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
                    // A try is sure to return an error that says why too few masters answer.
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

    /// Takes the answer about the door.
    pub fn entered(&mut self, now: Instant, answer: Result<L, AcquireError>) -> SlotStep<L> {
        match answer {
            Ok(door) => {
                (self.door, self.entered) = (Some(door), now);
                self.wait_inside(now)
            }
            Err(error) if error.is_final() => SlotStep::Failed(error),
            // The door's error names waiters ahead, not the holders of slots.
            Err(_) => self.fail_as_before(now),
        }
    }

    /// Takes the end of the pause, or the error that prevented it.
    pub fn paused(&mut self, now: Instant, paused: Result<(), AcquireError>) -> SlotStep<L> {
        match paused {
            Err(error) if error.is_final() => SlotStep::Failed(error),
            _ if self.is_brief => self.look(now),
            _ => self.wait_inside(now),
        }
    }

    /// How the last completed try failed; `None` if the next try may well succeed.
    pub fn failed(&self, now: Instant) -> Option<AcquireError> {
        if self.may_be_free() { None } else { self.refusal(now) }
    }

    /// Takes the door, if held, for its release.
    pub fn take_door(&mut self) -> Option<L> {
        self.door.take()
    }

    /// Waits for a slot, with the door held.
    fn wait_inside(&mut self, now: Instant) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() {
            return self.fail_as_before(now);
        }
        if self.count <= limits::SLOT_STAND_MAX {
            let slots: Vec<u32> = (0..self.count).collect();
            self.state = SlotState::Standing(slots.len());
            // A waiter in a slot's queue knows that the slot is taken.
            self.held_by = Some(HeldBy::Slots(self.count));
            return SlotStep::Stand(slots, left);
        }
        self.look(now)
    }

    fn look(&mut self, now: Instant) -> SlotStep<L> {
        self.state = SlotState::Looking(now);
        SlotStep::Look(self.draw())
    }

    /// The tried slot was refused, and the search has its answer.
    fn follow_refusal(
        &mut self,
        now: Instant,
        since: Instant,
        error: AcquireError,
        look: &SlotLook,
    ) -> SlotStep<L> {
        self.failed = Some(match (error, look) {
            // The tried slot is taken, and the state of the others is unknown.
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

    /// A search that began at `since` found no slot to try.
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

    /// A free slot at random, unless the tries or the wait are used up.
    fn choose(&mut self, now: Instant, look: &SlotLook) -> Option<u32> {
        // The first tries count as one attempt, so they ignore the end of the wait.
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

    /// Pauses before the next search: for an eighth of the time since the door, but at least as long as the
    /// last search.
    fn pause(&mut self, now: Instant, took: Duration) -> SlotStep<L> {
        let left = self.left(now);
        if left.is_zero() {
            return self.fail_as_before(now);
        }
        let waited = now.saturating_duration_since(self.entered);
        let pause = (waited / 8).max(took).max(limits::SLOT_LOOK_PAUSE_MIN).min(limits::SLOT_LOOK_PAUSE_MAX);
        SlotStep::Pause(pause.min(left))
    }

    /// Pauses before another search by a caller that does not wait, while some slot may be free. The pause is
    /// random from a range that doubles, so that colliding callers part.
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

    /// Whether other callers, and not failed masters, kept this caller from a slot that may be free.
    const fn may_be_free(&self) -> bool {
        let is_refused = matches!(self.failed, Some(AcquireError::Contended(_)));
        is_refused && matches!(self.held_by, Some(HeldBy::SlotRivals(_)))
    }

    /// Notes the holder of a refused slot, as far as it is known.
    fn note_holder(&mut self, now: Instant, slot: u32, error: &AcquireError) {
        self.holders.retain(|(_, it)| it.slot != slot);
        if let AcquireError::Contended(denial) = error
            && self.holders.len() < limits::SLOT_HOLDERS_MAX
        {
            let (label, ttl) = (denial.holder_label.clone(), denial.holder);
            self.holders.push((now, SlotHolder { slot, label, ttl }));
        }
    }

    /// Error of the last try, completed with the known holders of all slots.
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
                // The noted holder's time is over, and another caller may hold the slot.
                denial.holder = HolderTtl::Unknown;
            }
            denial.held_by = held_by;
        }
        Some(error)
    }

    /// Ends the acquisition with the error of the last try.
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
