//! How `redlatch run` acquires its lock, or several of them: all, or none.
//!
//! Several are acquired as the library's sets are ([`redlatch::internals::set_acquisition`]), through the
//! pipelined form, so that a signal ends any wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::AcquireError;
use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::internals::set_acquisition::{Failed, SetAcquisition, SetStep};

use super::{FOREVER, Held, Run, TURN_LIMIT, Voice};
use crate::exit::Exit;
use crate::message::{Message, with_lock};
use crate::output::{self, Countdown, say};

/// How long too few masters are tried again where no wait is asked for: a stall of some must not end a
/// nightly job.
const OUTAGE_GRACE: Duration = Duration::from_secs(2);

/// How long the lock is waited for before it is said why.
const SILENT_WAIT: Duration = Duration::from_millis(300);

/// How often it is said again that the lock is still waited for.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(10);

/// A wait for the locks, and what is shown of it.
pub(super) struct Wait {
    /// `None` for a wait without an end.
    until: Option<Instant>,
    /// No wait was asked for: it is for an outage alone.
    ends_by_contention: bool,
    /// When to say next why it lasts.
    said_next: Instant,
    countdown: Countdown,
    /// The reason that a terminal shows; empty before there is one.
    why: String,
}

impl Wait {
    fn new(start: Instant, wait: Duration, ends_by_contention: bool) -> Self {
        let until = start.checked_add(wait).filter(|_| wait < FOREVER);
        let said_next = start + SILENT_WAIT;
        Self { until, ends_by_contention, said_next, countdown: Countdown::default(), why: String::new() }
    }

    fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
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
        let first = wait.unwrap_or_default();
        self.wait = Some(Wait::new(start, first, false));
        let mut result = self.attempt(names, first);
        let grace = OUTAGE_GRACE.saturating_sub(start.elapsed());
        if let (Ok(Err(AcquireError::NoQuorum(_) | AcquireError::Expired(_))), None) = (&result, wait)
            && !grace.is_zero()
        {
            self.wait = Some(Wait::new(start, OUTAGE_GRACE, true));
            result = self.attempt(names, grace);
        }
        self.wait = None;
        let held = result?.map_err(|error| Exit::from(error).of_lock(&self.label))?;
        let waited = start.elapsed();
        names.iter().zip(&held).for_each(|(name, (_, grant))| {
            self.report(|run| run.describe_grant(name, grant, waited));
        });
        Ok(held)
    }

    /// Says, or has a terminal show, why these are still waited for. Returns the error that ends the wait.
    fn follow_wait(&mut self, locks: &[OpId]) -> Option<AcquireError> {
        let (now, wait) = (Instant::now(), self.wait.as_mut()?);
        if wait.ends_by_contention || now >= wait.said_next {
            let error = locks.iter().find_map(|lock| self.redlock.last_failure(*lock));
            match error {
                Some(error @ AcquireError::Contended(_)) if wait.ends_by_contention => return Some(error),
                Some(error) if now >= wait.said_next => {
                    wait.said_next = now + WAIT_SHOWN_EVERY;
                    let why = |text: String| with_lock(&self.label, without_patience(text));
                    match self.voice {
                        Voice::Verbose => {
                            let (left, error) = (wait.left(now), why(format!("{error:#}")));
                            say(Message::AwaitingLock { left, error: &error });
                        }
                        Voice::Usual if output::stderr_is_terminal() => wait.why = why(error.to_string()),
                        Voice::Usual | Voice::Quiet => {}
                    }
                }
                _ => {}
            }
        }
        if !wait.why.is_empty() {
            // Whole seconds, so that the line can be read.
            let left = wait.left(now).map(|left| Duration::from_secs(left.as_secs()));
            wait.countdown.show(&Message::AwaitingLock { left, error: &wait.why });
        }
        None
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
                SetStep::Ask(places) => self.answer(&mut set, names, &places, Duration::ZERO),
                SetStep::Wait(place, left) => self.answer(&mut set, names, &[place], left),
                SetStep::Pause { attempts, took, limit } => {
                    let pause = Request::Pause { attempts, took, limit };
                    self.pause(pause).map(|()| set.paused(Instant::now(), Ok(())))
                }
                SetStep::Held(held) => return Ok(Ok(held)),
                SetStep::Failed(Failed { error, .. }) => return Ok(Err(error)),
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
    ) -> Result<SetStep<Held>, Exit> {
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

    fn pause(&mut self, pause: Request<'_>) -> Result<(), Exit> {
        match self.redlock.submit(pause) {
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
            let ended = match self.signals.take() {
                Some(signal) => Some(self.ended_by(signal)),
                None => self.follow_wait(ids).map(|error| Exit::from(error).of_lock(&self.label)),
            };
            if let Some(exit) = ended {
                ids.iter().for_each(|id| self.release_unawaited(*id));
                return Err(exit);
            }
            self.redlock.turn(TURN_LIMIT)?;
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
