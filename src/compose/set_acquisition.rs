//! The next step of acquiring a set of locks: which to request, to release and to wait for.
//!
//! ```text
//!               all granted
//!  all at once ──────────────────────────────────────────────────► held
//!      │ some taken: release the granted locks                        ▲
//!      ▼                                                              │ all granted
//!  wait in line for the first taken lock ───────────────► all others at once
//!      ▲              (nothing else is held)                  │ some taken: release all
//!      └──────────────────── a random pause ◄─────────────────┘
//! ```
//!
//! Nobody waits for a lock while holding another, so overlapping sets cannot deadlock (Coffman, Elphick and
//! Shoshani, "System Deadlocks", 1971). No caller ever gets a part of its set, nor a set past its deadline.
//! The module has no connections and no clock, so the simulator takes the same steps as a [`crate::Client`].

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::Config;
use crate::error::{AcquireError, Denial, Report, Round};
use crate::limits;
use crate::lock::Vote;
use crate::options::Options;

/// Acquisition of a set. A lock is known by its place among the sorted names; `L` is a held lock.
#[derive(Debug)]
pub struct SetAcquisition<L> {
    /// Names of the masters.
    labels: Vec<Arc<str>>,
    count: usize,
    min_validity: Duration,
    /// The last attempt may begin until then.
    wait_until: Instant,
    max_rounds: u32,
    failed_count: u32,
    /// How the last round failed.
    failed_before: Option<Failed>,
    /// Unsorted.
    held: Vec<(usize, L)>,
    state: SetState,
}

#[derive(Debug)]
enum SetState {
    /// All missing locks were requested at once. One lock may be held already.
    Together {
        since: Instant,
        /// Number of missing answers.
        asked_count: usize,
        failed: Option<Failed>,
    },
    /// One lock was requested, and the caller waits for it.
    Waiting,
    /// A pause; then the caller waits for the lock at this place.
    Pausing(Failed),
    Over,
}

/// The failed lock that decides: the first by name, unless another lock has a final error.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The lock's place among the sorted names.
    pub place: usize,
    /// The error of its acquisition.
    pub error: AcquireError,
}

/// The next step.
#[derive(Debug)]
pub enum SetStep<L> {
    /// Request the locks at these places, all at once and each for one attempt. Report each answer to
    /// [`SetAcquisition::answer`].
    Ask(Vec<usize>),
    /// Request the lock at this place, waiting for this time. Report the answer to
    /// [`SetAcquisition::answer`].
    Wait(usize, Duration),
    /// Pause as an acquisition would after this many attempts, then call [`SetAcquisition::paused`].
    Pause {
        /// Number of failed rounds.
        attempts: u32,
        /// Duration of the last round.
        took: Duration,
        /// Longest pause: the rest of the wait.
        limit: Duration,
    },
    /// Hand out all locks, sorted by place.
    Held(Vec<L>),
    /// The acquisition is over, and nothing is held.
    Failed(Failed),
}

/// Remaining validity of several locks together: the shortest.
pub fn validity(each: impl IntoIterator<Item = Duration>) -> Duration {
    each.into_iter().min().unwrap_or_default()
}

impl<L> SetAcquisition<L> {
    /// Begins to acquire `count` locks. The wait and the largest number of attempts apply to rounds of the
    /// whole set. At hand-out, each lock must have more validity left than `min_validity`; other options
    /// apply to each lock.
    pub fn begin(
        now: Instant,
        config: impl Borrow<Config>,
        count: usize,
        options: &Options,
    ) -> (Self, SetStep<L>) {
        let config: &Config = config.borrow();
        let wait = options.wait_or_default(config.max_ttl);
        let mut acquisition = Self {
            labels: config.labels.clone(),
            count,
            min_validity: options.min_validity,
            max_rounds: options.max_attempts.unwrap_or(u32::MAX),
            wait_until: now.checked_add(wait).unwrap_or(now + limits::FOREVER),
            failed_count: 0,
            failed_before: None,
            held: Vec::new(),
            state: SetState::Over,
        };
        let step = acquisition.ask_together(now);
        (acquisition, step)
    }

    /// Takes the answer about one lock, and leaves in `back` the locks to release at once. Returns the next
    /// step after the last missing answer.
    pub fn answer(
        &mut self,
        now: Instant,
        place: usize,
        answer: Result<L, AcquireError>,
        back: &mut Vec<L>,
        remaining: impl Fn(&L) -> Duration,
    ) -> Option<SetStep<L>> {
        match std::mem::replace(&mut self.state, SetState::Over) {
            SetState::Together { since, asked_count, failed } => {
                let failed = self.note(place, answer, back, failed);
                if asked_count > 1 {
                    self.state = SetState::Together { since, asked_count: asked_count - 1, failed };
                    return None;
                }
                Some(self.end_round(now, since, failed, back, remaining))
            }
            SetState::Waiting => Some(match answer {
                Ok(lock) => {
                    self.held.push((place, lock));
                    if self.held.len() == self.count {
                        return Some(self.end_round(now, now, None, back, remaining));
                    }
                    // The lock may have come just as the wait ended. The other locks would need another
                    // attempt.
                    match self.failed_before.take().filter(|_| self.left(now).is_zero()) {
                        Some(failed) => {
                            back.extend(self.held.drain(..).map(|(_, lock)| lock));
                            SetStep::Failed(failed)
                        }
                        None => self.ask_together(now),
                    }
                }
                Err(error) => {
                    let is_cut_short = self.left(now).is_zero() && error.may_be_cut_short();
                    let before = self.failed_before.take().filter(|_| is_cut_short);
                    SetStep::Failed(before.unwrap_or(Failed { place, error }))
                }
            }),
            SetState::Pausing(_) | SetState::Over => unreachable!("nothing was asked"),
        }
    }

    /// Takes the end of the pause, or the error that prevented it.
    pub fn paused(&mut self, now: Instant, paused: Result<(), AcquireError>) -> SetStep<L> {
        let SetState::Pausing(Failed { place, error }) = std::mem::replace(&mut self.state, SetState::Over)
        else {
            unreachable!("no pause was asked for")
        };
        let error = paused.err().unwrap_or(error);
        if self.left(now).is_zero() || error.is_final() {
            return SetStep::Failed(Failed { place, error });
        }
        self.wait_for(now, place)
    }

    /// Gives the acquisition up. Returns the held locks, to be released.
    pub fn give_up(self) -> Vec<L> {
        self.held.into_iter().map(|(_, lock)| lock).collect()
    }

    /// Notes an answer of a round. Once a lock has failed, all granted locks go back.
    fn note(
        &mut self,
        place: usize,
        answer: Result<L, AcquireError>,
        back: &mut Vec<L>,
        mut failed: Option<Failed>,
    ) -> Option<Failed> {
        match answer {
            Ok(lock) => self.held.push((place, lock)),
            Err(error) => {
                // A final error goes before others, because waiting cannot resolve it.
                let rank = |failed: &Failed| (!failed.error.is_final(), failed.place);
                let failed_here = Failed { place, error };
                if failed.as_ref().is_none_or(|before| rank(&failed_here) < rank(before)) {
                    failed = Some(failed_here);
                }
            }
        }
        if failed.is_some() {
            back.extend(self.held.drain(..).map(|(_, lock)| lock));
        }
        failed
    }

    fn ask_together(&mut self, now: Instant) -> SetStep<L> {
        let is_missing = |place: &usize| self.held.iter().all(|(held, _)| held != place);
        let missing: Vec<usize> = (0..self.count).filter(is_missing).collect();
        self.state = SetState::Together { since: now, asked_count: missing.len(), failed: None };
        SetStep::Ask(missing)
    }

    /// Ends a round in which all locks have answered: hands the set out, or says what follows.
    fn end_round(
        &mut self,
        now: Instant,
        since: Instant,
        failed: Option<Failed>,
        back: &mut Vec<L>,
        remaining: impl Fn(&L) -> Duration,
    ) -> SetStep<L> {
        let left = validity(self.held.iter().map(|(_, lock)| remaining(lock)));
        let failed = match failed {
            Some(failed) => failed,
            None if left > self.min_validity => return self.hand_out(),
            // The lock that was waited for has come too near to its end meanwhile (I2).
            None => {
                back.extend(self.held.drain(..).map(|(_, lock)| lock));
                Failed { place: 0, error: self.expired(now, since) }
            }
        };
        self.failed_count += 1;
        let is_last = self.failed_count >= self.max_rounds;
        if is_last || self.left(now).is_zero() || failed.error.is_final() {
            return SetStep::Failed(failed);
        }
        self.failed_before = Some(failed.clone());
        // One refusal does not prove a collision with another set, so it needs no random pause.
        if self.failed_count == 1 && matches!(failed.error, AcquireError::Contended(_)) {
            return self.wait_for(now, failed.place);
        }
        let mut took = now.saturating_duration_since(since);
        if failed.error.lacks_rights() {
            // The engine pauses for at least `took`.
            took = took.max(limits::RIGHTS_PAUSE);
        }
        self.state = SetState::Pausing(failed);
        SetStep::Pause { attempts: self.failed_count, took, limit: self.left(now) }
    }

    fn hand_out(&mut self) -> SetStep<L> {
        self.held.sort_unstable_by_key(|(place, _)| *place);
        SetStep::Held(self.held.drain(..).map(|(_, lock)| lock).collect())
    }

    fn wait_for(&mut self, now: Instant, place: usize) -> SetStep<L> {
        self.state = SetState::Waiting;
        SetStep::Wait(place, self.left(now))
    }

    fn left(&self, now: Instant) -> Duration {
        self.wait_until.saturating_duration_since(now)
    }

    fn expired(&self, now: Instant, since: Instant) -> AcquireError {
        let votes = self.labels.iter().map(|name| (name.clone(), Vote::Pending)).collect();
        let report = Report { votes, ..Report::new(Round::Acquire, Bytes::new()) };
        let took = now.saturating_duration_since(since);
        AcquireError::Expired(Box::new(Denial { attempts: 1, took, ..Denial::new(report) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::lock::Failure;

    fn contended(config: &Config) -> AcquireError {
        let votes = config.labels.iter().map(|name| (name.clone(), Vote::Pending)).collect();
        let report = Report { votes, ..Report::new(Round::Acquire, Bytes::new()) };
        AcquireError::Contended(Box::new(Denial { attempts: 1, ..Denial::new(report) }))
    }

    /// Threads and tasks may get the answers in different orders.
    #[test]
    fn a_final_error_ends_a_set_in_any_order_of_the_answers() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let config = Arc::new(config);
        let now = clock::now();
        for order in [[0, 1], [1, 0]] {
            let options = Options::new().wait(Duration::from_secs(60));
            let (mut acquisition, _) = SetAcquisition::<()>::begin(now, config.clone(), 2, &options);
            let mut step = None;
            for place in order {
                let error = if place == 0 { contended(&config) } else { AcquireError::Overloaded };
                step = acquisition.answer(now, place, Err(error), &mut Vec::new(), |()| Duration::ZERO);
            }
            let Some(SetStep::Failed(Failed { place, error })) = step else { panic!("{order:?}: {step:?}") };
            assert_eq!((place, error), (1, AcquireError::Overloaded));
        }
    }

    #[test]
    fn missing_rights_pause_a_set_for_a_second() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let (config, now) = (Arc::new(config), clock::now());
        for (text, least) in [("NOPERM no", limits::RIGHTS_PAUSE), ("MISCONF no", Duration::ZERO)] {
            let votes = vec![(config.labels[0].clone(), Vote::Failed(Failure::Replied(text.into())))];
            let report = Report { votes, ..Report::new(Round::Acquire, Bytes::new()) };
            let error = AcquireError::NoQuorum(Box::new(Denial::new(report)));
            let options = Options::new().wait(Duration::from_secs(60));
            let (mut acquisition, _) = SetAcquisition::<()>::begin(now, config.clone(), 1, &options);
            match acquisition.answer(now, 0, Err(error), &mut Vec::new(), |()| Duration::ZERO) {
                Some(SetStep::Pause { took, .. }) => assert_eq!(took, least, "{text}"),
                step => panic!("{step:?}"),
            }
        }
    }

    /// Asked twice, the masters had enough time to answer, so missing answers are an outage.
    #[test]
    fn attempt_cut_by_the_deadline_is_no_outage() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let (config, wait) = (Arc::new(config), Duration::from_secs(1));
        for (attempts, is_outage) in [(1, false), (2, true)] {
            let (now, back) = (clock::now(), &mut Vec::new());
            let (mut acquisition, _) =
                SetAcquisition::<()>::begin(now, config.clone(), 1, &Options::new().wait(wait));
            let step = acquisition.answer(now, 0, Err(contended(&config)), back, |()| wait);
            assert!(matches!(step, Some(SetStep::Wait(0, _))), "{step:?}");
            let AcquireError::Contended(mut denial) = contended(&config) else { unreachable!("it is") };
            denial.attempts = attempts;
            let outage = Err(AcquireError::NoQuorum(denial));
            let step = acquisition.answer(now + wait, 0, outage, back, |()| wait);
            let Some(SetStep::Failed(Failed { error, .. })) = step else { panic!("{step:?}") };
            assert_eq!(error.is_outage(), is_outage, "{error}");
        }
    }

    #[test]
    fn an_expired_set_says_how_long_it_took() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let (now, took) = (clock::now(), Duration::from_millis(20));
        let (mut acquisition, _) =
            SetAcquisition::<()>::begin(now, Arc::new(config), 2, &Options::new().wait(Duration::ZERO));
        let mut back = Vec::new();
        assert!(acquisition.answer(now, 0, Ok(()), &mut back, |()| Duration::ZERO).is_none());
        match acquisition.answer(now + took, 1, Ok(()), &mut back, |()| Duration::ZERO) {
            Some(SetStep::Failed(Failed { error: AcquireError::Expired(denial), .. })) => {
                assert_eq!((denial.attempts, denial.took), (1, took))
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn no_round_begins_after_the_wait() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let config = Arc::new(config);
        let (now, wait) = (clock::now(), Duration::from_secs(1));
        for (took, is_asked) in [(wait / 2, true), (wait, false)] {
            let (mut acquisition, _) =
                SetAcquisition::<()>::begin(now, config.clone(), 2, &Options::new().wait(wait));
            let mut back = Vec::new();
            for place in [0, 1] {
                acquisition.answer(now, place, Err(contended(&config)), &mut back, |()| wait);
            }
            let step = acquisition.answer(now + took, 0, Ok(()), &mut back, |()| wait);
            match step {
                Some(SetStep::Ask(places)) if is_asked => assert_eq!((places, back.len()), (vec![1], 0)),
                Some(SetStep::Failed(_)) if !is_asked => assert_eq!(back.len(), 1, "it is given back"),
                step => panic!("{took:?}: {step:?}"),
            }
        }
    }

    #[test]
    fn a_wait_beyond_the_clock_is_for_ever() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let (config, now) = (Arc::new(config), clock::now());
        let (mut acquisition, _) =
            SetAcquisition::<()>::begin(now, config.clone(), 1, &Options::new().wait(Duration::MAX));
        let step = acquisition.answer(now, 0, Err(contended(&config)), &mut Vec::new(), |()| WAIT);
        assert!(matches!(step, Some(SetStep::Wait(0, left)) if left == limits::FOREVER), "{step:?}");
    }

    #[test]
    fn contended_set_waits_first_and_pauses_later() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let config = Arc::new(config);
        let (now, wait) = (clock::now(), Duration::from_secs(60));
        let (mut acquisition, step) =
            SetAcquisition::<()>::begin(now, config.clone(), 2, &Options::new().wait(wait).max_attempts(5));
        assert!(matches!(step, SetStep::Ask(places) if places == [0, 1]));
        let mut back = Vec::new();
        let remaining = |&(): &()| wait;
        assert!(acquisition.answer(now, 0, Ok(()), &mut back, remaining).is_none());
        let step = acquisition.answer(now, 1, Err(contended(&config)), &mut back, remaining);
        assert!(matches!(step, Some(SetStep::Wait(1, left)) if left == wait), "{step:?}");
        assert_eq!(back.len(), 1, "nothing is held meanwhile");
        // The awaited lock is granted and the other one is refused, in turn.
        let mut waited = 1;
        for failed_count in 2..5 {
            let step = acquisition.answer(now, waited, Ok(()), &mut back, remaining);
            let other = 1 - waited;
            assert!(matches!(step, Some(SetStep::Ask(places)) if places == [other]));
            match acquisition.answer(now, other, Err(contended(&config)), &mut back, remaining) {
                Some(SetStep::Pause { attempts, .. }) => assert_eq!(attempts, failed_count),
                step => panic!("{step:?}"),
            }
            assert!(matches!(acquisition.paused(now, Ok(())), SetStep::Wait(place, _) if place == other));
            waited = other;
        }
        assert!(matches!(
            acquisition.answer(now, waited, Ok(()), &mut back, remaining),
            Some(SetStep::Ask(_))
        ));
        let step = acquisition.answer(now, 1 - waited, Err(contended(&config)), &mut back, remaining);
        assert!(matches!(step, Some(SetStep::Failed(_))), "the fifth round is the last: {step:?}");
    }

    const WAIT: Duration = Duration::from_secs(60);
    const MIN_VALIDITY: Duration = Duration::from_secs(2);

    /// A lock: its place, and its remaining validity.
    type Lock = (usize, Duration);

    /// `g` is a grant, and `e` a grant that is too close to its end. The other letters are errors.
    fn answer(config: &Config, place: usize, letter: char) -> Result<Lock, AcquireError> {
        match letter {
            'g' => Ok((place, MIN_VALIDITY + Duration::from_nanos(1))),
            'e' => Ok((place, MIN_VALIDITY)),
            'c' => Err(contended(config)),
            'n' => match contended(config) {
                AcquireError::Contended(denial) => Err(AcquireError::NoQuorum(denial)),
                _ => unreachable!(),
            },
            _ => Err(AcquireError::Overloaded),
        }
    }

    /// All answers that a step may get. An answer with `!` comes as the wait ends.
    fn answers<L>(step: &SetStep<L>) -> Vec<String> {
        let all = match step {
            SetStep::Ask(places) if places.len() > 1 => {
                "gg gc gn go cg cc cn co ng nc nn no og oc on oo ge eg gg! gc! nc!"
            }
            SetStep::Ask(_) => "g e c n o g! c!",
            SetStep::Wait(..) => "g e c n o g! c! n!",
            SetStep::Pause { .. } => "p o p!",
            SetStep::Held(_) | SetStep::Failed(_) => "",
        };
        all.split_whitespace().map(str::to_owned).collect()
    }

    fn shown(step: &SetStep<Lock>) -> String {
        match step {
            SetStep::Ask(places) => format!("ask {places:?}"),
            SetStep::Wait(place, left) => format!("wait for {place}, {left:?}"),
            SetStep::Pause { attempts, took, limit } => format!("pause {attempts}, {took:?}, {limit:?}"),
            SetStep::Held(locks) => format!("held {:?}", locks.iter().map(|it| it.0).collect::<Vec<_>>()),
            SetStep::Failed(Failed { place, error }) => match error {
                AcquireError::Contended(_) => format!("failed, {place} contended"),
                AcquireError::NoQuorum(_) => format!("failed, {place} without a quorum"),
                AcquireError::Expired(denial) => format!("failed, {place} expired after {:?}", denial.took),
                error => format!("failed, {place}: {error:?}"),
            },
        }
    }

    /// Each answer comes a second after the step. Adds the step that follows these answers, and all later
    /// steps, unless the page already has them.
    fn walk(count: usize, path: &[String], seen: &mut Vec<String>, page: &mut String) {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let config = Arc::new(config);
        let begun = clock::now();
        let options = Options::new().wait(WAIT).max_attempts(3).min_validity(MIN_VALIDITY);
        let (mut acquisition, mut step) = SetAcquisition::begin(begun, config.clone(), count, &options);
        let (mut now, mut back) = (begun, Vec::new());
        for letters in path {
            now = if letters.ends_with('!') { begun + WAIT } else { now + Duration::from_secs(1) };
            back.clear();
            let places = match step {
                SetStep::Ask(places) => places,
                SetStep::Wait(place, _) => vec![place],
                _ => Vec::new(),
            };
            let mut next = None;
            for (place, letter) in places.into_iter().zip(letters.chars()) {
                assert!(next.is_none(), "{path:?}: an answer is to come");
                next = acquisition.answer(now, place, answer(&config, place, letter), &mut back, |it| it.1);
            }
            step = next.unwrap_or_else(|| {
                let paused = if letters.starts_with('o') { Err(AcquireError::Overloaded) } else { Ok(()) };
                acquisition.paused(now, paused)
            });
        }
        let back = back.iter().map(|it| it.0).collect::<Vec<_>>();
        let line = format!(
            "{}{}: {}; back {back:?}",
            "  ".repeat(path.len()),
            path.last().map_or("", String::as_str),
            shown(&step)
        );
        let held: Vec<_> = acquisition.held.iter().map(|it| it.0).collect();
        let before = acquisition.failed_before.as_ref().map(|it| (it.place, it.error.is_contended()));
        let kind = shown(&step).chars().take(12).collect::<String>();
        let state = format!("{count} {kind} {held:?} {before:?} {}", acquisition.failed_count);
        *page += &line;
        let next = answers(&step);
        let is_known = !next.is_empty() && seen.contains(&state);
        *page += if is_known { "; as before\n" } else { "\n" };
        if !is_known {
            seen.push(state);
            next.into_iter().for_each(|letters| walk(count, &[path, &[letters]].concat(), seen, page));
        }
        assert!(acquisition.give_up().len() == held.len());
    }

    #[test]
    fn each_set_step_matches_its_golden_file() {
        let (mut page, mut seen) = (String::new(), Vec::new());
        for count in [1, 2] {
            page += &format!("# {count}\n");
            walk(count, &[], &mut seen, &mut page);
        }
        redlatch_support::assert_golden("sets", &page);
    }
}
