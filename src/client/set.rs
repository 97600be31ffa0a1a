//! Several locks together: one guard for all of them, or none.
//!
//! ```text
//!               all granted
//!  all at once ──────────────────────────────────────────────────► GuardSet
//!      │ some taken: what was granted is released                     ▲
//!      ▼                                                              │ all granted
//!  wait in line for the first one that was in the way ──► the others at once
//!      ▲                      (nothing else is held)          │ some taken: all are released
//!      └──────────────────── a random pause ◄─────────────────┘
//! ```
//!
//! Nobody waits for a lock while holding another, so no two can wait for each other, in whatever order they name their
//! locks. Owns no protocol: each lock is an acquisition of the client's own. Keeps that no subset is ever handed out, and
//! that what was granted is released before anything is waited for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::desk::Question;
use super::pending::{Acquire, Ask, How, Pending};
use super::shared::{Core, Stopped};
use super::{Client, Guard, LockRequest};
use crate::clock;
use crate::engine::{OpId, Outcome, Request};
use crate::error::{AcquireError, AcquireSetError, Denial, Report, Round};
use crate::limits;
use crate::lock::{HolderTtl, InputError, Vote};

pub use held::{ExtendSet, GuardSet, LostSet, ReleaseSet};

mod held;

/// Several locks to be acquired together; made by [`Client::lock_set`].
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockSetRequest<'a> {
    /// Sorted, each once.
    names: Vec<&'a [u8]>,
    /// What each lock is asked for with; the name is none of them.
    template: LockRequest<'a>,
}

/// Several locks that are being acquired together: a future for any executor, or something to [`AcquireSet::wait`] for.
///
/// Nothing is sent before it is polled or waited for. Dropping it gives all of them up: that never blocks, and what was
/// acquired so far is released in the background.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct AcquireSet<'a> {
    request: LockSetRequest<'a>,
    /// When the last attempt may begin; `None` before the first.
    wait_until: Option<Instant>,
    /// Rounds that failed.
    failed_count: u32,
    /// How the last of them did.
    failed_before: Option<Failed>,
    state: State<'a>,
}

#[derive(Debug)]
enum State<'a> {
    Idle,
    /// All that are missing are asked for at once; one may be held already.
    Together {
        since: Instant,
        held: Vec<Guard>,
        asking: Vec<Acquire<'a>>,
        failed: Option<Failed>,
    },
    /// Nothing is held; the lock that was in the way, by its place among the names, is due in the line or at the masters.
    Waiting(usize, Acquire<'a>),
    /// Nothing is held; afterwards the lock at this place is waited for.
    Pausing(usize, Pending<Pause<'a>>, AcquireError),
    Over,
}

/// The first lock by name that was in the way.
#[derive(Debug)]
struct Failed {
    place: usize,
    error: AcquireError,
}

impl Client {
    /// A request for several locks together: one guard for all of them, or none.
    ///
    /// Each name is a lock of its own, of 1 to [`limits::RESOURCE_SIZE_MAX`] bytes; names that are given twice are one. At
    /// most [`limits::SET_SIZE_MAX`] are possible.
    ///
    /// All are asked for at once: if all are free, that is one round trip and one write for each master. If some are taken,
    /// those that were granted are released at once, and nothing is held while the first one in the way, by name, is waited
    /// for: so sets that overlap, in whatever order they are named, cannot wait for each other in a circle. With that
    /// one the others are asked for again at once, until the wait is over; between such rounds there are random pauses.
    ///
    /// Who waits for a single lock stands in line, and so does a set for the one in its way; but it may miss the others again
    /// and again while they are taken by turns. Ask for few locks together, and keep sets small where they are contended.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let both = client.lock_set(["account:1", "account:2"]).acquire()?;
    /// // … move money while both.is_valid() …
    /// both.release()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_set<'a, N: AsRef<[u8]> + ?Sized + 'a>(
        &'a self,
        names: impl IntoIterator<Item = &'a N>,
    ) -> LockSetRequest<'a> {
        let mut names: Vec<&[u8]> = names.into_iter().map(AsRef::as_ref).collect();
        names.sort_unstable();
        names.dedup();
        LockSetRequest { names, template: self.lock(b"") }
    }
}

impl<'a> LockSetRequest<'a> {
    /// As [`LockRequest::ttl`], for each of them.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.template = self.template.ttl(ttl);
        self
    }

    /// How long to go on trying, for all of them; zero makes one attempt. By default as long as the TTL.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.template = self.template.wait(wait);
        self
    }

    /// The validity that must be left of each when the set is handed out; see [`LockRequest::min_validity`].
    pub const fn min_validity(mut self, min_validity: Duration) -> Self {
        self.template = self.template.min_validity(min_validity);
        self
    }

    /// As [`LockRequest::auto_extend`], for each of them.
    pub const fn auto_extend(mut self, max_hold: Duration) -> Self {
        self.template = self.template.auto_extend(max_hold);
        self
    }

    /// As [`LockRequest::fenced`], for each of them: each lock has a token of its own, in [`GuardSet::guards`].
    pub const fn fenced(mut self) -> Self {
        self.template = self.template.fenced();
        self
    }

    /// As [`LockRequest::shared`], for each of them: the set of a reader.
    pub const fn shared(mut self) -> Self {
        self.template = self.template.shared();
        self
    }

    /// Makes one attempt for all of them at once; see [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// [`AcquireSetError`] names the first lock, by name, that was in the way. Nothing is held then.
    pub fn try_acquire(self) -> Result<GuardSet, AcquireSetError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Acquires all of them, trying again until the wait is over.
    ///
    /// # Errors
    /// As [`LockSetRequest::try_acquire`]; of the last round.
    pub fn acquire(self) -> Result<GuardSet, AcquireSetError> {
        self.acquire_async().wait()
    }

    /// As [`LockSetRequest::acquire`], for tasks.
    pub const fn acquire_async(self) -> AcquireSet<'a> {
        AcquireSet {
            request: self,
            wait_until: None,
            failed_count: 0,
            failed_before: None,
            state: State::Idle,
        }
    }

    fn one(&self, place: usize, wait: Duration) -> LockRequest<'a> {
        LockRequest { resource: self.names[place], ..self.template }.wait(wait)
    }

    fn check(&self) -> Result<(), InputError> {
        match self.names.len() {
            0 => Err(InputError::SetEmpty),
            count if count > limits::SET_SIZE_MAX => Err(InputError::SetTooLarge { count }),
            _ => Ok(()),
        }
    }
}

impl<'a> AcquireSet<'a> {
    /// Waits on this thread; returns by the end of the request's wait, or of one attempt if that is later.
    ///
    /// # Errors
    /// As [`LockSetRequest::acquire`].
    pub fn wait(mut self) -> Result<GuardSet, AcquireSetError> {
        match self.advance(How::Thread) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }

    /// Goes on until the next answer that is not there.
    fn advance(&mut self, how: How<'_, '_>) -> Poll<Result<GuardSet, AcquireSetError>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => panic!("polled after it was ready"),
                State::Idle => {
                    if let Err(error) = self.begin() {
                        return Poll::Ready(Err(error));
                    }
                }
                State::Together { since, mut held, mut asking, mut failed } => {
                    let is_pending = settle(&self.request, how, &mut held, &mut asking, &mut failed);
                    if is_pending {
                        self.state = State::Together { since, held, asking, failed };
                        return Poll::Pending;
                    }
                    match self.end_round(since, held, failed) {
                        Some(result) => return Poll::Ready(result),
                        None => continue,
                    }
                }
                State::Waiting(place, mut acquire) => {
                    let Poll::Ready(result) = acquire.resolve(how) else {
                        self.state = State::Waiting(place, acquire);
                        return Poll::Pending;
                    };
                    match result {
                        Ok(guard) => self.ask_together(Some((place, guard))),
                        Err(error) => {
                            let is_cut_short =
                                self.left().is_zero() && matches!(error, AcquireError::NoQuorum(_));
                            // An attempt that had to end with the wait says nothing of its masters: the round before does.
                            let before = self.failed_before.take().filter(|_| is_cut_short);
                            let Failed { place, error } = before.unwrap_or(Failed { place, error });
                            return Poll::Ready(Err(self.error(place, error)));
                        }
                    }
                }
                State::Pausing(place, mut pause, error) => {
                    let Poll::Ready(paused) = pause.resolve(how) else {
                        self.state = State::Pausing(place, pause, error);
                        return Poll::Pending;
                    };
                    let error = paused.err().unwrap_or(error);
                    if self.left().is_zero() || is_final(&error) {
                        return Poll::Ready(Err(self.error(place, error)));
                    }
                    self.wait_for(place);
                }
            }
        }
    }

    fn begin(&mut self) -> Result<(), AcquireSetError> {
        let LockRequest { client, ttl, wait, .. } = self.request.template;
        self.request
            .check()
            .map_err(|error| AcquireSetError { resource: Vec::new(), source: error.into() })?;
        let wait = wait.unwrap_or_else(|| ttl.unwrap_or(limits::TTL_DEFAULT.min(client.config().max_ttl)));
        let now = clock::now();
        self.wait_until = Some(now.checked_add(wait).unwrap_or(now + limits::MAX_TTL_MAX));
        self.ask_together(None);
        Ok(())
    }

    /// Asks for all that are missing at once, in one write for each master.
    fn ask_together(&mut self, held: Option<(usize, Guard)>) {
        let since = clock::now();
        let has = held.as_ref().map(|(place, _)| *place);
        let missing = (0..self.request.names.len()).filter(|place| Some(*place) != has);
        let requests: Vec<_> = missing.map(|place| self.request.one(place, Duration::ZERO)).collect();
        let asking = self.request.template.client.acquire_all(requests);
        let held = held.into_iter().map(|(_, guard)| guard).collect();
        self.state = State::Together { since, held, asking, failed: None };
    }

    /// All have answered: hands the set out, or says what is next.
    fn end_round(
        &mut self,
        since: Instant,
        held: Vec<Guard>,
        failed: Option<Failed>,
    ) -> Option<Result<GuardSet, AcquireSetError>> {
        let set = GuardSet::new(held);
        let Failed { place, error } = match failed {
            None if set.remaining() > self.request.template.min_validity => return Some(Ok(set)),
            // The first of them was waited for, and has come too near to its end meanwhile (I2).
            None => Failed { place: 0, error: self.expired(since) },
            Some(failed) => failed,
        };
        set.give_up();
        self.failed_count += 1;
        if self.left().is_zero() || is_final(&error) {
            return Some(Err(self.error(place, error)));
        }
        self.failed_before = Some(Failed { place, error: error.clone() });
        // The first time nobody else needs to have been in the same place.
        if self.failed_count == 1 && matches!(error, AcquireError::Contended(_)) {
            self.wait_for(place);
        } else {
            let took = clock::now().saturating_duration_since(since).min(self.left());
            let (client, attempts) = (self.request.template.client, self.failed_count);
            self.state = State::Pausing(place, Pending::new(Pause { client, attempts, took }), error);
        }
        None
    }

    fn wait_for(&mut self, place: usize) {
        let acquire = self.request.one(place, self.left()).acquire_async();
        self.state = State::Waiting(place, acquire);
    }

    fn left(&self) -> Duration {
        self.wait_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::now()))
    }

    fn error(&self, place: usize, source: AcquireError) -> AcquireSetError {
        AcquireSetError { resource: self.request.names[place].to_vec(), source }
    }

    fn expired(&self, since: Instant) -> AcquireError {
        let masters = self.request.template.client.config().labels.iter();
        let votes = masters.map(|name| (name.clone(), Vote::Pending)).collect();
        let report = Report { round: Round::Acquire, votes };
        let took = clock::now().saturating_duration_since(since);
        let denial = Denial { attempts: 1, took, holder: HolderTtl::Unknown, report };
        AcquireError::Expired(Box::new(denial))
    }
}

/// Takes the answers that are there; true if some are not. As soon as one lock is not to be had, what was granted goes.
fn settle(
    request: &LockSetRequest<'_>,
    how: How<'_, '_>,
    held: &mut Vec<Guard>,
    asking: &mut Vec<Acquire<'_>>,
    failed: &mut Option<Failed>,
) -> bool {
    asking.retain_mut(|acquire| {
        let name = acquire.resource();
        let Poll::Ready(result) = acquire.resolve(how) else { return true };
        match result {
            Ok(guard) => held.push(guard),
            Err(error) => {
                let place = request.names.iter().position(|it| *it == name).unwrap_or(0);
                if failed.as_ref().is_none_or(|before| is_final(&error) || place < before.place) {
                    *failed = Some(Failed { place, error });
                }
            }
        }
        if failed.is_some() {
            GuardSet::new(std::mem::take(held)).give_up();
        }
        false
    });
    !asking.is_empty()
}

/// Whether there is no sense in trying again.
const fn is_final(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Input(_) | AcquireError::Stopped(_) | AcquireError::Overloaded)
}

impl Future for AcquireSet<'_> {
    type Output = Result<GuardSet, AcquireSetError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.advance(How::Task(context))
    }
}

/// A random pause between two rounds, longer than the last one took.
#[derive(Debug)]
struct Pause<'a> {
    client: &'a Client,
    attempts: u32,
    took: Duration,
}

impl Ask for Pause<'_> {
    const QUESTION: Question = Question::Pause;
    type Answer = ();
    type Error = AcquireError;

    fn client(&self) -> &Client {
        self.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, AcquireError> {
        let request = Request::Pause { attempts: self.attempts, took: self.took };
        core.submit(request).map_err(|_| AcquireError::Overloaded)
    }

    fn answer(&mut self, _: OpId, _: Outcome) -> Result<(), AcquireError> {
        Ok(())
    }

    fn stopped(why: Stopped) -> AcquireError {
        AcquireError::Stopped(why)
    }
}
