//! How `redlatch run` acquires its lock, or several of them: all, or none.
//!
//! Several are acquired as the library's sets are ([`redlatch::internals::set_acquisition`]), through the
//! pipelined form, so that a signal ends any wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{Grant, OpId, Outcome, Request, Resource};
use redlatch::internals::pool::slot_name;
use redlatch::internals::set_acquisition::{Failed, SetAcquisition, SetStep};
use redlatch::{AcquireError, Redlock};

use super::session::{Held, Session, TURN_LIMIT};
use super::slots;
use super::wait::Wait;
use crate::exit::{Exit, code};
use crate::message::{Message, label};

/// How long too few masters are tried again where no wait is asked for: a stall of some must not end a
/// nightly job.
const OUTAGE_GRACE: Duration = Duration::from_secs(2);

/// Locks to be acquired.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    All(&'a [Resource<'a>]),
    /// One slot of the pool of this name, of so many.
    Slot(Resource<'a>, u32),
}

/// Locks that were acquired, in the order of their names, or one slot with its number.
pub(super) struct Acquired {
    pub(super) held: Vec<Held>,
    pub(super) slot: Option<u32>,
}

/// Acquires the locks, and says why it waits if that takes a while. A signal ends the wait. No `wait` is one
/// attempt, and a grace for an outage.
pub(super) fn acquire(
    session: &mut Session,
    wanted: Wanted<'_>,
    wait: Option<Duration>,
) -> Result<Acquired, Exit> {
    let start = Instant::now();
    let first = wait.unwrap_or_default();
    let its_wait = Wait::new(session, start, first, false);
    let mut result = Acquisition { wait: its_wait, wanted }.attempt(first);
    let grace = OUTAGE_GRACE.saturating_sub(start.elapsed());
    let is_outage = result.as_ref().is_err_and(|exit| exit.code == code::NO_QUORUM);
    if is_outage && wait.is_none() && !grace.is_zero() {
        let its_wait = Wait::new(session, start, OUTAGE_GRACE, true);
        result = Acquisition { wait: its_wait, wanted }.attempt(grace);
    }
    let acquired = result?;
    let waited = start.elapsed();
    let labels = match wanted {
        Wanted::All(names) => names.iter().map(|name| label([name.as_bytes()])).collect(),
        Wanted::Slot(pool, count) => {
            let slot = acquired.slot.expect("a slot was asked for");
            session.label = label([&*slot_name(pool.as_bytes(), slot)]);
            session.report(Message::SlotAcquired { slot, count });
            vec![session.label.clone()]
        }
    };
    for (label, (_, grant)) in labels.iter().zip(&acquired.held) {
        session.report(describe_grant(session, label, grant, waited));
    }
    Ok(acquired)
}

/// Locks that are being acquired.
struct Acquisition<'a> {
    wait: Wait<'a>,
    wanted: Wanted<'a>,
}

impl Acquisition<'_> {
    /// Tries for so long, or once.
    fn attempt(&mut self, wait: Duration) -> Result<Acquired, Exit> {
        let names = match self.wanted {
            Wanted::All(names) => names,
            Wanted::Slot(pool, count) => {
                let (slot, held) = slots::attempt(&mut self.wait, pool, count, wait)?;
                return Ok(Acquired { held: vec![held], slot: Some(slot) });
            }
        };
        let held = match names {
            [name] => vec![self.ask(&[*name], wait)?.remove(0).map_err(|error| self.wait.failed(error))?],
            _ => self.attempt_set(names, wait)?,
        };
        Ok(Acquired { held, slot: None })
    }

    fn attempt_set(&mut self, names: &[Resource<'_>], wait: Duration) -> Result<Vec<Held>, Exit> {
        let config = Arc::new(self.wait.session.redlock.config().clone());
        let options = self.wait.session.options.wait(wait);
        let (mut set, mut step) = SetAcquisition::begin(Instant::now(), config, names.len(), &options);
        loop {
            let next = match step {
                SetStep::Ask(places) => self.answer(&mut set, names, &places, Duration::ZERO),
                SetStep::Wait(place, left) => self.answer(&mut set, names, &[place], left),
                SetStep::Pause { attempts, took, limit } => {
                    match self.wait.session.redlock.submit(Request::Pause { attempts, took, limit }) {
                        Ok(pause) => self.outcomes(&[pause]).map(|_| set.paused(Instant::now(), Ok(()))),
                        Err(error) => Ok(set.paused(Instant::now(), Err(error.into()))),
                    }
                }
                SetStep::Held(held) => return Ok(held),
                SetStep::Failed(Failed { error, .. }) => return Err(self.wait.failed(error)),
            };
            step = match next {
                Ok(step) => step,
                Err(exit) => {
                    self.wait.give_back(set.give_up());
                    return Err(exit);
                }
            };
        }
    }

    /// Asks for the locks at these places, and takes the answers into the set.
    fn answer(
        &mut self,
        set: &mut SetAcquisition<Held>,
        names: &[Resource<'_>],
        places: &[usize],
        wait: Duration,
    ) -> Result<SetStep<Held>, Exit> {
        let (mut step, mut back) = (None, Vec::new());
        let asked: Vec<_> = places.iter().map(|place| names[*place]).collect();
        for (place, answer) in places.iter().zip(self.ask(&asked, wait)?) {
            let now = Instant::now();
            let remaining = |(_, grant): &Held| grant.valid_until.saturating_duration_since(now);
            step = set.answer(now, *place, answer, &mut back, remaining);
        }
        self.wait.give_back(back);
        Ok(step.expect("the last answer brings the next step"))
    }

    /// Asks for these locks, all at once, and returns the answers in their order.
    fn ask(
        &mut self,
        names: &[Resource<'_>],
        wait: Duration,
    ) -> Result<Vec<Result<Held, AcquireError>>, Exit> {
        let mut locks = Vec::with_capacity(names.len());
        for resource in names.iter().copied() {
            let options = self.wait.session.options.wait(wait);
            match self.wait.session.redlock.submit(Request::Acquire { resource, options, label: None }) {
                Ok(lock) => locks.push(lock),
                Err(error) => {
                    self.wait.give_up(locks);
                    return Err(self.wait.failed(error.into()));
                }
            }
        }
        let outcomes = self.outcomes(&locks)?;
        let answers = locks.into_iter().zip(outcomes).filter_map(|(lock, outcome)| match outcome {
            Outcome::Acquire(result) => Some(result.map(|grant| (lock, grant))),
            _ => None,
        });
        Ok(answers.collect())
    }

    /// Waits for the outcome of each. A signal ends the wait, and gives all of them up.
    fn outcomes(&mut self, ids: &[OpId]) -> Result<Vec<Outcome>, Exit> {
        let mut outcomes: Vec<Option<Outcome>> = ids.iter().map(|_| None).collect();
        loop {
            while let Some((id, outcome)) = self.wait.session.redlock.poll_outcome() {
                if let Some(place) = ids.iter().position(|it| *it == id) {
                    outcomes[place] = Some(outcome);
                }
            }
            if outcomes.iter().all(Option::is_some) {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            let why = |redlock: &Redlock| ids.iter().find_map(|lock| redlock.last_failure(*lock));
            if let Some(exit) = self.wait.interrupted(why) {
                self.wait.give_up(ids.iter().copied());
                return Err(exit);
            }
            self.wait.session.redlock.turn(TURN_LIMIT)?;
        }
    }
}

fn describe_grant(session: &Session, lock: &str, grant: &Grant, waited: Duration) -> String {
    let left = grant.valid_until.saturating_duration_since(Instant::now());
    // The validity counts from the start of the attempt that succeeded.
    let took = session.ttl.validity().saturating_sub(left);
    let later = (grant.attempts > 1).then_some((grant.attempts, waited));
    let masters = session.redlock.masters();
    let names: Vec<&str> = grant.granted.iter().map(|master| &*masters[master.index()].name).collect();
    let rest = masters.len() - names.len();
    let names =
        if rest == 0 && names.len() > 1 { format!("all {} masters", names.len()) } else { names.join(", ") };
    let acquired = Message::Acquired { lock, took, later, left }.to_string();
    format!("{acquired}\n  {}", Message::GrantedBy { masters: &names, rest })
}
