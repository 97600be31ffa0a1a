//! How `redlatch run` acquires its lock, or several of them: all, or none.
//!
//! Several are acquired as the library's sets are ([`redlatch::internals::set_acquisition`]), through the
//! pipelined form, so that a signal ends any wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::AcquireError;
use redlatch::engine::{Grant, OpId, Outcome, Request, Resource};
use redlatch::internals::set_acquisition::{Failed, SetAcquisition, SetStep};

use super::session::{Held, Session, TURN_LIMIT, Voice};
use crate::exit::{Exit, code};
use crate::message::{Message, label, with_lock};
use crate::output::{self, Countdown, say};

/// A wait without an end: no process runs for so long.
pub(super) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How long too few masters are tried again where no wait is asked for: a stall of some must not end a
/// nightly job.
const OUTAGE_GRACE: Duration = Duration::from_secs(2);

/// How long the lock is waited for before it is said why.
const SILENT_WAIT: Duration = Duration::from_millis(300);

/// How often it is said again that the lock is still waited for.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(10);

/// Acquires the locks, and says why it waits if that takes a while. A signal ends the wait. No `wait` is one
/// attempt, and a grace for an outage.
pub(super) fn acquire(
    session: &mut Session,
    names: &[Resource<'_>],
    wait: Option<Duration>,
) -> Result<Vec<Held>, Exit> {
    let start = Instant::now();
    let first = wait.unwrap_or_default();
    let mut result = Acquisition::new(session, names, start, first, false).attempt(first);
    let grace = OUTAGE_GRACE.saturating_sub(start.elapsed());
    let is_outage = result.as_ref().is_err_and(|exit| exit.code == code::NO_QUORUM);
    if is_outage && wait.is_none() && !grace.is_zero() {
        result = Acquisition::new(session, names, start, OUTAGE_GRACE, true).attempt(grace);
    }
    let held = result?;
    let waited = start.elapsed();
    for (name, (_, grant)) in names.iter().zip(&held) {
        session.report(describe_grant(session, name, grant, waited));
    }
    Ok(held)
}

/// A wait for the locks, and what is shown of it.
struct Acquisition<'a> {
    session: &'a mut Session,
    names: &'a [Resource<'a>],
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

impl<'a> Acquisition<'a> {
    fn new(
        session: &'a mut Session,
        names: &'a [Resource<'a>],
        start: Instant,
        wait: Duration,
        ends_by_contention: bool,
    ) -> Self {
        let until = start.checked_add(wait).filter(|_| wait < FOREVER);
        let (said_next, countdown) = (start + SILENT_WAIT, Countdown::default());
        Self { session, names, until, ends_by_contention, said_next, countdown, why: String::new() }
    }

    /// Tries for so long, or once.
    fn attempt(&mut self, wait: Duration) -> Result<Vec<Held>, Exit> {
        if self.names.len() == 1 {
            let held = self.ask(&[0], wait)?.remove(0).map_err(|error| self.failed(error))?;
            return Ok(vec![held]);
        }
        let config = Arc::new(self.session.redlock.config().clone());
        let options = self.session.options.wait(wait);
        let (mut set, mut step) = SetAcquisition::begin(Instant::now(), config, self.names.len(), &options);
        loop {
            let next = match step {
                SetStep::Ask(places) => self.answer(&mut set, &places, Duration::ZERO),
                SetStep::Wait(place, left) => self.answer(&mut set, &[place], left),
                SetStep::Pause { attempts, took, limit } => {
                    match self.session.redlock.submit(Request::Pause { attempts, took, limit }) {
                        Ok(pause) => self.outcomes(&[pause]).map(|_| set.paused(Instant::now(), Ok(()))),
                        Err(error) => Ok(set.paused(Instant::now(), Err(error.into()))),
                    }
                }
                SetStep::Held(held) => return Ok(held),
                SetStep::Failed(Failed { error, .. }) => return Err(self.failed(error)),
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
        places: &[usize],
        wait: Duration,
    ) -> Result<SetStep<Held>, Exit> {
        let (mut step, mut back) = (None, Vec::new());
        for (place, answer) in places.iter().zip(self.ask(places, wait)?) {
            let now = Instant::now();
            let remaining = |(_, grant): &Held| grant.valid_until.saturating_duration_since(now);
            step = set.answer(now, *place, answer, &mut back, remaining);
        }
        self.give_back(back);
        Ok(step.expect("the last answer brings the next step"))
    }

    /// Asks for the locks at these places, all at once, and returns the answers in their order.
    fn ask(&mut self, places: &[usize], wait: Duration) -> Result<Vec<Result<Held, AcquireError>>, Exit> {
        let mut locks = Vec::with_capacity(places.len());
        for place in places {
            let (resource, options) = (self.names[*place], self.session.options.wait(wait));
            match self.session.redlock.submit(Request::Acquire { resource, options, label: None }) {
                Ok(lock) => locks.push(lock),
                Err(error) => {
                    self.give_up(locks);
                    return Err(self.failed(error.into()));
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
            while let Some((id, outcome)) = self.session.redlock.poll_outcome() {
                if let Some(place) = ids.iter().position(|it| *it == id) {
                    outcomes[place] = Some(outcome);
                }
            }
            if outcomes.iter().all(Option::is_some) {
                return Ok(outcomes.into_iter().flatten().collect());
            }
            if let Some(exit) = self.session.interrupted().or_else(|| self.follow_wait(ids)) {
                self.give_up(ids.iter().copied());
                return Err(exit);
            }
            self.session.redlock.turn(TURN_LIMIT)?;
        }
    }

    /// Says, or has a terminal show, why these are still waited for. Returns the error that ends the wait.
    fn follow_wait(&mut self, locks: &[OpId]) -> Option<Exit> {
        let now = Instant::now();
        let left = self.until.map(|until| until.saturating_duration_since(now));
        if self.ends_by_contention || now >= self.said_next {
            let error = locks.iter().find_map(|lock| self.session.redlock.last_failure(*lock));
            match error {
                Some(error @ AcquireError::Contended(_)) if self.ends_by_contention => {
                    return Some(self.failed(error));
                }
                Some(error) if now >= self.said_next => {
                    self.said_next = now + WAIT_SHOWN_EVERY;
                    let why = |text: String| with_lock(&self.session.label, without_patience(text));
                    match self.session.voice {
                        Voice::Verbose => {
                            say(Message::AwaitingLock { left, error: &why(format!("{error:#}")) });
                        }
                        Voice::Usual if output::stderr_is_terminal() => self.why = why(error.to_string()),
                        Voice::Usual | Voice::Quiet => {}
                    }
                }
                _ => {}
            }
        }
        if !self.why.is_empty() {
            // Whole seconds, so that the line can be read.
            let left = left.map(|left| Duration::from_secs(left.as_secs()));
            self.countdown.show(&Message::AwaitingLock { left, error: &self.why });
        }
        None
    }

    fn failed(&self, error: AcquireError) -> Exit {
        Exit::from(error).of_lock(&self.session.label)
    }

    fn give_back(&mut self, held: Vec<Held>) {
        self.give_up(held.into_iter().map(|(lock, _)| lock));
    }

    /// Has these released, and awaits nothing.
    fn give_up(&mut self, locks: impl IntoIterator<Item = OpId>) {
        for lock in locks {
            let _ = self.session.redlock.submit(Request::Release { lock, awaited: false });
        }
    }
}

fn describe_grant(session: &Session, name: &Resource<'_>, grant: &Grant, waited: Duration) -> String {
    let left = grant.valid_until.saturating_duration_since(Instant::now());
    // The validity counts from the start of the attempt that succeeded.
    let took = session.ttl.validity().saturating_sub(left);
    let later = (grant.attempts > 1).then_some((grant.attempts, waited));
    let masters = session.redlock.masters();
    let names: Vec<&str> = grant.granted.iter().map(|master| &*masters[master.index()].name).collect();
    let rest = masters.len() - names.len();
    let names =
        if rest == 0 && names.len() > 1 { format!("all {} masters", names.len()) } else { names.join(", ") };
    let acquired = Message::Acquired { lock: &label([name.as_bytes()]), took, later, left }.to_string();
    format!("{acquired}\n  {}", Message::GrantedBy { masters: &names, rest })
}

/// The error's text without the advice to wait: for a wait.
fn without_patience(text: String) -> String {
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    match first.rsplit_once("; ") {
        Some((what, advice)) if advice.contains("wait longer") => format!("{what}{rest}"),
        _ => text,
    }
}
