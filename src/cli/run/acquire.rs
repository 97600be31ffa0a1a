//! How `redlatch run` acquires its lock, or several of them: all, or none.
//!
//! Several are acquired as the library's sets are ([`redlatch::internals::set_acquisition`]), through the
//! pipelined form, so that a signal ends any wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::internals::set_acquisition::{Failed, SetAcquisition, Step};
use redlatch::{AcquireError, WaitPolicy};

use super::{FOREVER, Held, Run, TURN_LIMIT, Voice};
use crate::message::{Message, with_lock};
use crate::options::{Countdown, Exit, say};
use crate::output;

/// How long too few masters are tried again where no wait is asked for: a stall of some must not end a
/// nightly job.
const OUTAGE_GRACE: Duration = Duration::from_secs(2);

/// How long the lock is waited for before it is said why.
const SILENT_WAIT: Duration = Duration::from_millis(300);

/// Less time than this is too little to go on waiting.
const STRETCH_MIN: Duration = Duration::from_millis(5);

/// How often it is said again that the lock is still waited for.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(10);

/// How long the lock may be waited for. Where no wait is asked for, contention ends the run after one
/// acquisition, and an outage after a grace.
#[derive(Debug, Clone, Copy)]
struct Patience(Option<Duration>);

impl Patience {
    /// The longest wait after this error: none if another attempt would fail, too.
    fn with(self, error: &AcquireError) -> Duration {
        match error {
            AcquireError::Contended(_) => self.0.unwrap_or_default(),
            AcquireError::NoQuorum(_) | AcquireError::Expired(_) => self.0.unwrap_or(OUTAGE_GRACE),
            _ => Duration::ZERO,
        }
    }

    /// How long the first acquisition waits, and each later one. A place in a queue and a writer's
    /// reservation are kept for as long as one waits.
    fn stretches(self, has_place: bool) -> (Duration, Duration) {
        match self.0 {
            Some(wait) if has_place => (wait, wait),
            Some(_) => (SILENT_WAIT, WAIT_SHOWN_EVERY),
            // An outage may become contention, which ends the wait.
            None => (SILENT_WAIT, SILENT_WAIT),
        }
    }
}

/// A wait that a terminal shows.
#[derive(Default)]
pub(super) struct ShownWait {
    countdown: Countdown,
    /// `None` for a wait without an end.
    until: Option<Instant>,
    why: String,
}

impl ShownWait {
    fn show(&mut self, now: Instant) {
        // Whole seconds, so that the line can be read.
        let left =
            self.until.map(|until| Duration::from_secs(until.saturating_duration_since(now).as_secs()));
        self.countdown.show(&Message::AwaitingLock { left, error: &self.why });
    }
}

impl Run {
    /// Acquires the locks, and says why it waits if that takes a while. A signal ends the wait. No `wait`
    /// is one attempt, and a grace for an outage.
    pub(super) fn acquire(
        &mut self,
        names: &[Resource<'_>],
        wait: Option<Duration>,
    ) -> Result<Vec<Held>, Exit> {
        let start = Instant::now();
        let acquired = self.acquire_within(start, names, Patience(wait));
        self.shown = None;
        let held = acquired?;
        let waited = start.elapsed();
        names.iter().zip(&held).for_each(|(name, (_, grant))| {
            self.tell(|run| run.describe_grant(name, grant, waited));
        });
        Ok(held)
    }

    fn acquire_within(
        &mut self,
        start: Instant,
        names: &[Resource<'_>],
        patience: Patience,
    ) -> Result<Vec<Held>, Exit> {
        let has_place = self.options.policy == WaitPolicy::Fair || self.options.keeps_readers_out;
        let (first, later) = patience.stretches(has_place);
        let mut stretch = first;
        let mut result = self.attempt(names, Duration::ZERO)?;
        loop {
            let error = match result {
                Ok(held) => return Ok(held),
                Err(error) => error,
            };
            let wait = patience.with(&error);
            let left = wait.saturating_sub(start.elapsed());
            if left < STRETCH_MIN {
                return Err(Exit::from(error).of_lock(&self.label));
            }
            if stretch == later {
                self.show_wait((wait < FOREVER).then_some(left), &error);
            }
            if patience.0.is_none() {
                // No attempt waits: an outage may become contention, which ends the run.
                self.turn_for(stretch.min(left))?;
                result = self.attempt(names, Duration::ZERO)?;
                continue;
            }
            let (limit, begun) = (stretch.min(left), Instant::now());
            result = self.attempt(names, limit)?;
            if let Err(error) = &result
                && begun.elapsed() + STRETCH_MIN < limit
            {
                // Nothing can change within the stretch, as when a quarantine outlasts it: the whole wait,
                // once.
                let wait = patience.with(error);
                let left = wait.saturating_sub(start.elapsed());
                self.show_wait((wait < FOREVER).then_some(left), error);
                return self.attempt(names, left)?.map_err(|error| Exit::from(error).of_lock(&self.label));
            } else if result.is_err() {
                // The end of the stretch may have cut its last attempt short; one with the full time has the
                // reason.
                result = self.attempt(names, Duration::ZERO)?;
            }
            stretch = later;
        }
    }

    /// Says, or has a terminal show, that and why the lock is waited for.
    fn show_wait(&mut self, left: Option<Duration>, error: &AcquireError) {
        let why = |text: String| with_lock(&self.label, without_patience(text));
        match self.voice {
            Voice::Verbose => {
                say(Message::AwaitingLock { left, error: &why(format!("{error:#}")) });
            }
            Voice::Usual if output::stderr_is_terminal() => {
                let why = why(error.to_string());
                let shown = self.shown.get_or_insert_default();
                (shown.until, shown.why) = (left.and_then(|left| Instant::now().checked_add(left)), why);
            }
            Voice::Usual | Voice::Quiet => {}
        }
    }

    /// Tries for so long, or once.
    fn attempt(
        &mut self,
        names: &[Resource<'_>],
        wait: Duration,
    ) -> Result<Result<Vec<Held>, AcquireError>, Exit> {
        if names.len() == 1 {
            return Ok(self.ask(names, wait)?.remove(0).map(|held| vec![held]));
        }
        let config = Arc::new(self.redlock.config().clone());
        let (mut set, mut step) =
            SetAcquisition::begin(Instant::now(), config, names.len(), &self.options.wait(wait));
        loop {
            let next = match step {
                Step::Ask(places) => self.answer(&mut set, names, &places, Duration::ZERO),
                Step::Wait(place, left) => self.answer(&mut set, names, &[place], left),
                Step::Pause { attempts, took } => {
                    self.pause(attempts, took).map(|()| set.paused(Instant::now(), Ok(())))
                }
                Step::Held(held) => return Ok(Ok(held)),
                Step::Failed(Failed { error, .. }) => return Ok(Err(error)),
            };
            step = match next {
                Ok(step) => step,
                Err(exit) => {
                    self.give_back(set.give_up());
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
    ) -> Result<Step<Held>, Exit> {
        let asked: Vec<_> = places.iter().map(|place| names[*place]).collect();
        let answers = self.ask(&asked, wait)?;
        let (mut step, mut back) = (None, Vec::new());
        for (place, answer) in places.iter().zip(answers) {
            let now = Instant::now();
            let remaining = |(_, grant): &Held| grant.valid_until.saturating_duration_since(now);
            step = set.answer(now, *place, answer, &mut back, remaining);
        }
        self.give_back(back);
        Ok(step.expect("the last answer brings the next step"))
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
                    return Err(Exit::from(AcquireError::from(error)).of_lock(&self.label));
                }
            };
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
        Request::Acquire { resource, options: self.options.wait(wait), label: None }
    }

    fn pause(&mut self, attempts: u32, took: Duration) -> Result<(), Exit> {
        match self.redlock.submit(Request::Pause { attempts, took }) {
            Ok(pause) => self.outcomes(&[pause]).map(drop),
            Err(error) => Err(Exit::internal(error).of_lock(&self.label)),
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
                return Err(self.ended_by(signal));
            }
            self.shown.iter_mut().for_each(|shown| shown.show(Instant::now()));
            self.redlock.turn(TURN_LIMIT)?;
        }
    }

    /// Lets the connections work for so long. A signal ends it.
    fn turn_for(&mut self, time: Duration) -> Result<(), Exit> {
        let start = Instant::now();
        loop {
            if let Some(signal) = self.signals.take() {
                return Err(self.ended_by(signal));
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            self.shown.iter_mut().for_each(|shown| shown.show(Instant::now()));
            self.redlock.turn(left.min(TURN_LIMIT))?;
        }
    }

    fn give_back(&mut self, held: Vec<Held>) {
        held.into_iter().for_each(|(lock, _)| self.release_unawaited(lock));
    }

    fn release_unawaited(&mut self, lock: OpId) {
        let _ = self.redlock.submit(Request::Release { lock, awaited: false });
    }
}

/// The error's text without the advice to wait: for a wait.
fn without_patience(text: String) -> String {
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    match first.rsplit_once("; ") {
        Some((what, advice)) if advice.contains("wait longer") => format!("{what}{rest}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_waits_in_short_stretches() {
        for has_place in [false, true] {
            assert_eq!(Patience(None).stretches(has_place), (SILENT_WAIT, SILENT_WAIT));
        }
    }

    #[test]
    fn one_acquisition_keeps_a_place_for_the_whole_wait() {
        let wait = Duration::from_secs(60);
        assert_eq!(Patience(Some(wait)).stretches(true), (wait, wait));
        assert_eq!(Patience(Some(wait)).stretches(false), (SILENT_WAIT, WAIT_SHOWN_EVERY));
    }
}
