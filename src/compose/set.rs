//! Several locks together: one guard for all of them, or none.
//!
//! [`crate::compose::set_acquisition`] decides which locks to request, release and wait for, and in which order. This
//! module carries out its steps, with an ordinary acquisition of the client for each lock.

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::clock;
use crate::compose;
use crate::compose::set_acquisition::{self, Failed, SetAcquisition, SetStep};
use crate::error::{InputError, LeaveError, SetError};
use crate::limits;
use crate::options::{auto_extend_method, option_methods, request_methods, time_methods};
use crate::{
    Acquire, AcquireError, Cancel, Client, Extend, ExtendError, Guard, LockEnd, LockName, LockRequest,
};
use crate::{Lost, Options, Pause, Release, ReleaseError, Released, WaitPolicy};

/// Request for several locks together; made by [`Client::lock_set`]. Sends nothing before an acquire call.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockSetRequest {
    client: Client,
    /// Sorted, without duplicates.
    names: Vec<Bytes>,
    options: Options,
    label: Option<Cow<'static, str>>,
    cancel: Option<Cancel>,
}

/// Acquisition of several locks under way: a future for any executor; made by [`LockSetRequest::acquire_async`].
///
/// Sends nothing before its first poll. Cancel-safe: dropping it gives up all of the locks. Everything
/// acquired so far is released in the background.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct AcquireSet {
    request: LockSetRequest,
    /// `None` before the first step.
    acquisition: Option<SetAcquisition<Guard>>,
    asking: Asking,
}

impl Drop for AcquireSet {
    fn drop(&mut self) {
        if let Some(acquisition) = self.acquisition.take() {
            give_up(acquisition.give_up());
        }
    }
}

#[derive(Debug)]
enum Asking {
    /// Acquisitions, each with the lock's place among the names.
    Locks(Vec<(usize, Acquire<'static>)>),
    Pause(Pause),
    Nothing,
}

impl Client {
    /// Returns a request for several locks together: one guard for all of them, or none.
    ///
    /// Each name is a separate lock; see [`LockName`]. A name given twice counts once. A set has at most 256
    /// locks ([`limits::SET_SIZE_MAX`]).
    ///
    /// The client asks for all locks at once. If all are free, that takes one round trip and one write for
    /// each master. If some are taken, the granted locks are released at once, and the caller waits for the
    /// first taken lock, by name, while it holds nothing. So overlapping sets cannot wait for each other in a
    /// circle, in whatever order they are named. When the caller has that lock, the client asks for the
    /// others again at once, until the wait is over. Random pauses separate these rounds.
    ///
    /// Like a caller of a single lock, a set has a place in the wait queue of the lock that it waits for. It
    /// may miss the other locks again and again while other callers take them in turn. Ask for few locks
    /// together, and keep contended sets small.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let both = client.lock_set(["account:1", "account:2"]).acquire()?;
    /// // … move money while both.is_valid() …
    /// drop(both); // released in the background
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_set<'n, N: Into<LockName<'n>>>(&self, names: impl IntoIterator<Item = N>) -> LockSetRequest {
        let mut names: Vec<Bytes> = names.into_iter().map(|name| name.into().into_shared()).collect();
        names.sort_unstable();
        names.dedup();
        LockSetRequest { client: self.clone(), names, options: Options::new(), label: None, cancel: None }
    }
}

impl LockSetRequest {
    time_methods!(options);
    request_methods!('static, Cancel::clone);
    auto_extend_method!(options);

    /// Makes one attempt for all locks at once; see [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// [`SetError`] names a lock that failed. Nothing is held afterwards.
    pub fn try_acquire(self) -> Result<GuardSet, SetError<AcquireError>> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Returns the future of [`LockSetRequest::try_acquire`], for tasks. [`AcquireSet`] says what dropping it
    /// does.
    pub fn try_acquire_async(self) -> AcquireSet {
        self.wait(Duration::ZERO).acquire_async()
    }

    /// Acquires all locks. Retries until the wait is over.
    ///
    /// # Errors
    /// As [`LockSetRequest::try_acquire`].
    pub fn acquire(self) -> Result<GuardSet, SetError<AcquireError>> {
        let (client, name) = (self.client.clone(), self.names.first().cloned().unwrap_or_default());
        let acquired = client.block_on(self.acquire_async());
        acquired.unwrap_or_else(|error| Err(SetError::new(name, error)))
    }

    /// Returns the future of [`LockSetRequest::acquire`], for tasks. [`AcquireSet`] says what dropping it
    /// does.
    pub const fn acquire_async(self) -> AcquireSet {
        AcquireSet { request: self, acquisition: None, asking: Asking::Nothing }
    }

    fn one(&self, place: usize, wait: Duration) -> LockRequest<'static> {
        // The set counts its own rounds.
        let options = Options { max_attempts: None, wait: Some(wait), ..self.options };
        let request = self.client.lock_owned(self.names[place].clone()).options(options);
        compose::with_label(request, self.label.as_ref(), self.cancel.as_ref())
    }

    fn check(&self) -> Result<(), InputError> {
        match self.names.len() {
            0 => Err(InputError::SetEmpty),
            _ if self.options.policy == WaitPolicy::Fair => Err(InputError::SetFair),
            count if count > limits::SET_SIZE_MAX => Err(InputError::SetTooLarge { count }),
            _ => Ok(()),
        }
    }
}

impl AcquireSet {
    /// Returns why one of the locks is not acquired yet, like [`Acquire::last_failure`]. `None` also in the
    /// pause between two rounds.
    #[must_use]
    pub fn last_failure(&self) -> Option<AcquireError> {
        let Asking::Locks(asking) = &self.asking else { return None };
        asking.iter().find_map(|(_, acquire)| acquire.last_failure())
    }

    /// Carries out steps until an answer is missing.
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<GuardSet, SetError<AcquireError>>> {
        loop {
            let step = match (&mut self.acquisition, &mut self.asking) {
                (None, _) => match self.begin() {
                    Ok(step) => step,
                    Err(error) => return Poll::Ready(Err(error)),
                },
                (Some(acquisition), Asking::Locks(asking)) => match settle(acquisition, context, asking) {
                    Some(step) => step,
                    None => return Poll::Pending,
                },
                (Some(acquisition), Asking::Pause(pause)) => {
                    let paused = std::task::ready!(Pin::new(pause).poll(context));
                    acquisition.paused(clock::now(), paused)
                }
                (Some(_), Asking::Nothing) => panic!("polled after it was ready"),
            };
            self.asking = Asking::Nothing;
            self.asking = match step {
                SetStep::Ask(places) => {
                    let requests = places.iter().map(|place| self.request.one(*place, Duration::ZERO));
                    let asking = self.request.client.acquire_all(requests);
                    Asking::Locks(places.into_iter().zip(asking).collect())
                }
                SetStep::Wait(place, wait) => {
                    Asking::Locks(vec![(place, self.request.one(place, wait).acquire_async())])
                }
                SetStep::Pause { attempts, took, limit } => {
                    let pause = self.request.client.retry_pause(attempts, took, limit);
                    Asking::Pause(match &self.request.cancel {
                        Some(cancel) => pause.cancel_with(cancel),
                        None => pause,
                    })
                }
                SetStep::Held(guards) => return Poll::Ready(Ok(GuardSet { guards })),
                SetStep::Failed(Failed { place, error: source }) => {
                    let resource = self.request.names[place].clone();
                    return Poll::Ready(Err(SetError::new(resource, source)));
                }
            };
        }
    }

    fn begin(&mut self) -> Result<SetStep<Guard>, SetError<AcquireError>> {
        let LockSetRequest { client, options, .. } = &self.request;
        self.request.check().map_err(|error| SetError::new(Bytes::new(), error.into()))?;
        let (acquisition, step) =
            SetAcquisition::begin(clock::now(), client.config(), self.request.names.len(), options);
        self.acquisition = Some(acquisition);
        Ok(step)
    }
}

/// Takes the answers that have arrived, and returns the next step once all have. Releases locks that the set
/// gives back at once.
fn settle(
    acquisition: &mut SetAcquisition<Guard>,
    context: &mut Context<'_>,
    asking: &mut Vec<(usize, Acquire<'static>)>,
) -> Option<SetStep<Guard>> {
    let mut step = None;
    asking.retain_mut(|(place, acquire)| {
        let Poll::Ready(result) = Pin::new(acquire).poll(context) else { return true };
        let mut back = Vec::new();
        step = acquisition.answer(clock::now(), *place, result, &mut back, Guard::remaining);
        give_up(back);
        false
    });
    step
}

/// Releases all guards with one write for each master, without waiting for the answers.
fn give_up(guards: Vec<Guard>) {
    if let Some(client) = guards.first().map(|guard| guard.client().clone()) {
        drop(client.release_all(guards));
    }
}

impl Future for AcquireSet {
    type Output = Result<GuardSet, SetError<AcquireError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.advance(context)
    }
}

/// Several locks held together, valid while each of them is valid.
///
/// Dropping it releases all locks in the background, like dropping each [`Guard`].
#[must_use = "dropping the set releases its locks"]
pub struct GuardSet {
    /// Sorted by name.
    guards: Vec<Guard>,
}

impl GuardSet {
    /// Returns the names of the locks, sorted, without the configured prefix.
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        self.guards.iter().map(Guard::resource)
    }

    /// Returns the guards, sorted by name, for the token or the margin of each lock.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Takes the set apart: each guard releases its own lock from now on.
    pub fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards)
    }

    /// Returns the earliest end of a validity; see [`Guard::valid_until`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let first = self.guards.iter().map(Guard::valid_until).min();
        first.unwrap_or_else(|| clock::to_std(clock::now()))
    }

    /// Returns the shortest remaining validity; zero once a validity has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        set_acquisition::validity(self.guards.iter().map(Guard::remaining))
    }

    /// Returns whether all locks are still valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns the smallest margin; see [`Guard::margin`].
    #[must_use]
    pub fn margin(&self) -> usize {
        self.guards.iter().map(Guard::margin).min().unwrap_or(0)
    }

    /// Gives all locks a new TTL, counted from now, with one write for each master.
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, that was not extended. The other locks may be extended.
    /// The set is valid as long as each lock is.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), SetError<ExtendError>> {
        let mut extended = Ok(Vec::new());
        for (name, extending) in self.start_extension(ttl) {
            add(&mut extended, name, extending.block());
        }
        extended.map(drop)
    }

    /// Returns the future of [`GuardSet::extend`], for tasks. The extensions are sent at once.
    ///
    /// Cancel-safe: dropping it does not stop the extensions. Each lock then ends as before, or as asked for.
    pub fn extend_async(
        &mut self,
        ttl: Duration,
    ) -> impl Future<Output = Result<(), SetError<ExtendError>>> + Send + use<'_> {
        let all = self.start_extension(ttl);
        async move {
            let mut extended = Ok(Vec::new());
            for (name, extending) in all {
                add(&mut extended, name, extending.await);
            }
            extended.map(drop)
        }
    }

    fn start_extension(&mut self, ttl: Duration) -> Vec<(Bytes, Extend<'_>)> {
        let names: Vec<Bytes> = self.resources().map(Bytes::copy_from_slice).collect();
        let client = self.guards.first().map(|guard| guard.client().clone());
        let extending = client.map(|client| client.extend_all(&mut self.guards, ttl));
        names.into_iter().zip(extending.unwrap_or_default()).collect()
    }

    /// Calls `callback` at most once, when the first lock is lost or about to be lost; see
    /// [`Guard::on_lost`].
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        for guard in &self.guards {
            let callback = callback.clone();
            guard.on_lost(move || {
                let callback = callback.lock().unwrap_or_else(PoisonError::into_inner).take();
                callback.into_iter().for_each(|callback| callback());
            });
        }
    }

    /// Returns a future that is ready when the first lock is lost, about to be lost, or released; see
    /// [`Guard::lost`]. Cancel-safe: dropping it ends the notification.
    pub fn lost(&self) -> impl Future<Output = LockEnd> + Send + use<> {
        let mut each: Vec<Lost> = self.guards.iter().map(Guard::lost).collect();
        poll_fn(move |context| {
            // Polls every future, so that each one keeps the waker.
            let mut end = each.is_empty().then_some(LockEnd::Released);
            for lost in &mut each {
                match Pin::new(lost).poll(context) {
                    Poll::Ready(LockEnd::Lost) => end = Some(LockEnd::Lost),
                    Poll::Ready(LockEnd::Released) => end = end.or(Some(LockEnd::Released)),
                    Poll::Pending => {}
                }
            }
            end.map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Releases all locks, with one write for each master, and waits until a quorum of masters has confirmed
    /// each release. Returns the results, sorted by name.
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, whose release is not confirmed. Releases that were sent go
    /// on in the background.
    pub fn release(self) -> Result<Vec<Released>, SetError<ReleaseError>> {
        let mut released = Ok(Vec::new());
        for (name, releasing) in self.start_release() {
            add(&mut released, name, releasing.block());
        }
        released
    }

    /// Returns the future of [`GuardSet::release`], for tasks. The releases are sent at once.
    ///
    /// Cancel-safe: dropping it, at any time, leaves the releases to the background.
    pub fn release_async(
        self,
    ) -> impl Future<Output = Result<Vec<Released>, SetError<ReleaseError>>> + Send + use<> {
        let all = self.start_release();
        async move {
            let mut released = Ok(Vec::new());
            for (name, releasing) in all {
                add(&mut released, name, releasing.await);
            }
            released
        }
    }

    /// Leaves all locks to the end of their TTL; see [`Guard::leave`].
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, that could not be left. Each other
    /// lock ends with its TTL unless it failed, too.
    pub fn leave(mut self) -> Result<(), SetError<LeaveError>> {
        let mut left = Ok(Vec::new());
        for guard in std::mem::take(&mut self.guards) {
            let name = Bytes::copy_from_slice(guard.resource());
            add(&mut left, name, guard.leave());
        }
        left.map(drop)
    }

    fn start_release(mut self) -> Vec<(Bytes, Release)> {
        let names: Vec<Bytes> = self.resources().map(Bytes::copy_from_slice).collect();
        let guards = std::mem::take(&mut self.guards);
        let client = guards.first().map(|guard| guard.client().clone());
        let releasing = client.map(|client| client.release_all(guards));
        names.into_iter().zip(releasing.unwrap_or_default()).collect()
    }
}

/// Adds one lock's result, in the order of the names. The first error stays.
fn add<T, E>(all: &mut Result<Vec<T>, SetError<E>>, name: Bytes, one: Result<T, E>) {
    match (&mut *all, one) {
        (Ok(all), Ok(one)) => all.push(one),
        (Ok(_), Err(source)) => *all = Err(SetError::new(name, source)),
        (Err(_), _) => {}
    }
}

impl fmt::Debug for GuardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
