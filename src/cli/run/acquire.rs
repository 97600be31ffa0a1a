//! How `redlatch run` comes to its lock, or to several: all, or none of them.
//!
//! ```text
//!                   one name                                 several names
//!   attempt ─► wait for it in line                all at once ─► some are taken: what was granted is released
//!                                                      ▲                         │
//!                                                      │                         ▼
//!                                            the others at once ◄─── wait for the first one in the way
//! ```
//!
//! The same as the library's sets of locks do, by the pipelined form, so that a signal ends any wait.

use std::time::{Duration, Instant, SystemTime};

use redlatch::AcquireError;
use redlatch::engine::{OpId, Outcome, Request};
use redlatch::lock::Resource;

use super::process;
use super::{Held, Mode, Run, TURN_LIMIT};
use crate::cli::options::{self, Exit, code, say};

/// How long the lock is waited for before it is said why.
const SILENT_WAIT: Duration = Duration::from_millis(300);

/// Less time than this is too little to go on waiting.
const STRETCH_MIN: Duration = Duration::from_millis(5);

/// How often it is said again that the lock is still waited for.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(10);

impl Run {
    /// Acquires the locks, and says why it waits if that takes a while. A signal ends the wait.
    pub(super) fn acquire(&mut self, names: &[Resource<'_>], wait: Duration) -> Result<Vec<Held>, Exit> {
        let start = Instant::now();
        // A place in a queue is kept for as long as one acquisition waits.
        let (first, later) =
            if matches!(self.mode, Mode::Fair) { (wait, wait) } else { (SILENT_WAIT, WAIT_SHOWN_EVERY) };
        let mut stretch = first;
        let mut result = self.attempt(names, Duration::ZERO)?;
        loop {
            let error = match result {
                Ok(held) => {
                    let waited = start.elapsed();
                    held.iter().for_each(|(_, grant)| self.tell(|run| run.describe_grant(grant, waited)));
                    return Ok(held);
                }
                Err(error) => error,
            };
            let left = wait.saturating_sub(start.elapsed());
            let may_pass = matches!(error, AcquireError::Contended(_) | AcquireError::NoQuorum(_));
            if left < STRETCH_MIN || !may_pass {
                return Err(error.into());
            }
            if stretch == later && (self.verbose || options::stderr_is_terminal()) {
                say(&format!("waiting up to {left:.1?} more: {error:#}"));
            }
            // Between two stretches readers would come in.
            let longest = if self.keeps_readers_out { left } else { stretch };
            result = self.attempt(names, longest.min(left))?;
            if result.is_err() {
                // The end of the stretch may have cut its last attempt short; one with the full time tells the reason.
                result = self.attempt(names, Duration::ZERO)?;
            }
            stretch = later;
        }
    }

    /// Tries for so long, or once.
    fn attempt(
        &mut self,
        names: &[Resource<'_>],
        wait: Duration,
    ) -> Result<Result<Vec<Held>, AcquireError>, Exit> {
        let start = Instant::now();
        let left = || wait.saturating_sub(start.elapsed());
        // The place of the name that is waited for, with nothing held.
        let mut waited_for = (names.len() == 1).then_some(0);
        let mut attempts = 0;
        loop {
            let mut held = Vec::with_capacity(names.len());
            if let Some(place) = waited_for {
                match self.ask(&names[place..=place], left())?.remove(0) {
                    Ok(lock) => held.push((place, lock)),
                    Err(error) => return Ok(Err(error)),
                }
            }
            // A wait in line is no reason for a pause as long as that.
            let began = Instant::now();
            let others: Vec<usize> = (0..names.len()).filter(|place| Some(*place) != waited_for).collect();
            let asked: Vec<_> = others.iter().map(|place| names[*place]).collect();
            let answers = self.ask(&asked, Duration::ZERO).inspect_err(|_| self.give_back(&held))?;
            let mut failed = None;
            for (place, answer) in others.into_iter().zip(answers) {
                match answer {
                    Ok(lock) => held.push((place, lock)),
                    Err(error) => failed = failed.or(Some((place, error))),
                }
            }
            let Some((place, error)) = failed else {
                held.sort_unstable_by_key(|(place, _)| *place);
                return Ok(Ok(held.into_iter().map(|(_, lock)| lock).collect()));
            };
            self.give_back(&held);
            attempts += 1;
            if attempts > 1 && left() >= STRETCH_MIN {
                // Others may have met this one in the same place.
                self.pause(attempts, began.elapsed().min(left()))?;
            }
            if left() < STRETCH_MIN {
                return Ok(Err(error));
            }
            waited_for = Some(place);
        }
    }

    /// Asks for all of these at once, and returns the answers in their order.
    fn ask(
        &mut self,
        names: &[Resource<'_>],
        wait: Duration,
    ) -> Result<Vec<Result<Held, AcquireError>>, Exit> {
        let mut locks = Vec::with_capacity(names.len());
        for name in names {
            let lock = match self.redlock.submit(self.request(*name, wait)) {
                Ok(lock) => lock,
                Err(error) => {
                    locks.iter().for_each(|lock| self.release_unawaited(*lock));
                    return Err(Exit::new(code::INTERNAL, error.to_string()));
                }
            };
            if self.keeps_readers_out {
                let _ = self.redlock.submit(Request::KeepReadersOut { lock });
            }
            locks.push(lock);
        }
        let outcomes = self.outcomes(&locks)?;
        let answers = locks.into_iter().zip(outcomes).filter_map(|(lock, outcome)| match outcome {
            Outcome::Acquire(result) => Some(result.map(|grant| (lock, grant))),
            _ => None,
        });
        Ok(answers.collect())
    }

    fn request<'a>(&self, resource: Resource<'a>, wait: Duration) -> Request<'a> {
        let (ttl, min_validity) = (self.ttl, Duration::ZERO);
        match self.mode {
            Mode::Plain => Request::Acquire { resource, ttl, wait, min_validity },
            Mode::Fair => Request::AcquireFair { resource, ttl, wait, min_validity },
            Mode::Shared => Request::AcquireShared { resource, ttl, wait, min_validity },
            Mode::Fenced => {
                // A clock before 1970 is one more that is wrong, which costs a round trip.
                let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                Request::AcquireFenced { resource, ttl, wait, min_validity, wall }
            }
        }
    }

    fn pause(&mut self, attempts: u32, took: Duration) -> Result<(), Exit> {
        match self.redlock.submit(Request::Pause { attempts, took }) {
            Ok(pause) => self.outcomes(&[pause]).map(drop),
            Err(error) => Err(Exit::new(code::INTERNAL, error.to_string())),
        }
    }

    /// Waits for the outcome of each. A signal ends the wait, and gives all of them up.
    fn outcomes(&mut self, ids: &[OpId]) -> Result<Vec<Outcome>, Exit> {
        let mut outcomes: Vec<Option<Outcome>> = ids.iter().map(|_| None).collect();
        loop {
            while let Some((id, outcome)) = self.redlock.poll_outcome() {
                if let Some(place) = ids.iter().position(|it| *it == id) {
                    outcomes[place] = Some(outcome);
                }
            }
            if outcomes.iter().all(Option::is_some) {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            if let Some(signal) = self.signals.take() {
                ids.iter().for_each(|id| self.release_unawaited(*id));
                let why = format!("{} while waiting for the lock", process::name_of(signal));
                return Err(Exit::new(process::code_of(signal), why));
            }
            self.redlock.turn(TURN_LIMIT)?;
        }
    }

    fn give_back(&mut self, held: &[(usize, Held)]) {
        held.iter().for_each(|(_, (lock, _))| self.release_unawaited(*lock));
    }

    fn release_unawaited(&mut self, lock: OpId) {
        let _ = self.redlock.submit(Request::Release { lock, awaited: false });
    }
}
