//! How `redlatch run` acquires one of several slots: by the library's decisions
//! ([`redlatch::internals::slot_acquisition`]), through the pipelined form, so that a signal ends any wait.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use redlatch::AcquireError;
use redlatch::engine::{OpId, Outcome, Request, Resource, SubmitError};
use redlatch::internals::pool::{door_name, slot_name};
use redlatch::internals::slot_acquisition::{SlotAcquisition, SlotStep, door_options};

use super::session::{Held, Session, TURN_LIMIT};
use super::wait::Wait;
use crate::exit::Exit;

/// A request that is under way.
#[derive(Clone, Copy)]
enum Call {
    Slot(u32),
    Look,
    Door,
    Pause,
}

/// Tries for so long, or once.
pub(super) fn attempt(
    its_wait: &mut Wait<'_>,
    pool: Resource<'_>,
    count: u32,
    wait: Duration,
) -> Result<(u32, Held), Exit> {
    let session = &its_wait.session;
    let (config, options) = (session.redlock.config(), session.options.wait(wait));
    // The choice among slots needs no secret.
    let seed = RandomState::new().hash_one(pool.as_bytes());
    let (slots, step) = SlotAcquisition::begin(Instant::now(), config, count, &options, seed);
    let mut it = SlotWait { wait: its_wait, pool, count, slots };
    let result = it.follow(step);
    let door = it.slots.take_door();
    its_wait.give_up(door.map(|(lock, _)| lock));
    result
}

struct SlotWait<'a, 'b> {
    wait: &'a mut Wait<'b>,
    pool: Resource<'a>,
    count: u32,
    slots: SlotAcquisition<Held>,
}

impl SlotWait<'_, '_> {
    fn follow(&mut self, mut step: SlotStep<Held>) -> Result<(u32, Held), Exit> {
        loop {
            let asked = match step {
                SlotStep::Try { slot, from } => self.ask(&[slot], Duration::ZERO, Some(from)),
                SlotStep::Stand(slots, wait) => self.ask(&slots, wait, None),
                SlotStep::Look(from) => self.ask(&[], Duration::ZERO, Some(from)),
                SlotStep::Enter(left) => self.enter(left),
                SlotStep::Pause(time) => {
                    let pause = Request::Pause { attempts: 0, took: time, limit: time };
                    let submitted = self.session().redlock.submit(pause);
                    submitted.map(|pause| vec![(Call::Pause, pause)])
                }
                SlotStep::Held(slot, held) => return Ok((slot, held)),
                SlotStep::Failed(error) => return Err(self.wait.failed(error)),
            };
            let asked = asked.map_err(|error| self.wait.failed(AcquireError::from(error)))?;
            step = self.next(asked)?;
        }
    }

    fn session(&mut self) -> &mut Session {
        self.wait.session
    }

    /// Asks for these slots, and for free ones, all at once.
    fn ask(
        &mut self,
        slots: &[u32],
        wait: Duration,
        from: Option<u32>,
    ) -> Result<Vec<(Call, OpId)>, SubmitError> {
        let (pool, count) = (self.pool, self.count);
        let mut asked = Vec::with_capacity(slots.len() + 1);
        for slot in slots {
            let name = slot_name(pool.as_bytes(), *slot);
            let (resource, options) = (Resource::of_any_lock(&name)?, self.session().options.wait(wait));
            let request = Request::Acquire { resource, options, label: None };
            match self.session().redlock.submit(request) {
                Ok(lock) => asked.push((Call::Slot(*slot), lock)),
                Err(error) => {
                    self.wait.give_up(asked.into_iter().map(|(_, lock)| lock));
                    return Err(error);
                }
            }
        }
        if let Some(from) = from {
            match self.session().redlock.submit(Request::FreeSlots { pool, count, from }) {
                Ok(look) => asked.push((Call::Look, look)),
                Err(error) => {
                    self.wait.give_up(asked.into_iter().map(|(_, lock)| lock));
                    return Err(error);
                }
            }
        }
        Ok(asked)
    }

    fn enter(&mut self, left: Duration) -> Result<Vec<(Call, OpId)>, SubmitError> {
        let name = door_name(self.pool.as_bytes());
        let options = door_options(self.session().redlock.config(), left);
        let request = Request::Acquire { resource: Resource::of_any_lock(&name)?, options, label: None };
        self.session().redlock.submit(request).map(|door| vec![(Call::Door, door)])
    }

    /// Waits for the next step. It ends what is left of the step before.
    fn next(&mut self, mut asked: Vec<(Call, OpId)>) -> Result<SlotStep<Held>, Exit> {
        loop {
            while let Some((id, outcome)) = self.session().redlock.poll_outcome() {
                let Some(place) = asked.iter().position(|(_, it)| *it == id) else { continue };
                let (call, _) = asked.swap_remove(place);
                if let Some(step) = self.answer(call, id, outcome) {
                    self.wait.give_up(asked.into_iter().map(|(_, it)| it));
                    return Ok(step);
                }
            }
            let slots = &self.slots;
            if let Some(exit) = self.wait.interrupted(|_| slots.failed(Instant::now())) {
                self.wait.give_up(asked.into_iter().map(|(_, it)| it));
                return Err(exit);
            }
            self.session().redlock.turn(TURN_LIMIT)?;
        }
    }

    fn answer(&mut self, call: Call, id: OpId, outcome: Outcome) -> Option<SlotStep<Held>> {
        let now = Instant::now();
        match (call, outcome) {
            (Call::Slot(slot), Outcome::Acquire(result)) => {
                self.slots.tried(now, slot, result.map(|grant| (id, grant)))
            }
            (Call::Door, Outcome::Acquire(result)) => {
                Some(self.slots.entered(now, result.map(|grant| (id, grant))))
            }
            (Call::Look, Outcome::FreeSlots(look)) => self.slots.looked(now, Ok(look)),
            (Call::Pause, Outcome::Paused) => Some(self.slots.paused(now, Ok(()))),
            _ => unreachable!("each is answered by its own outcome"),
        }
    }
}
