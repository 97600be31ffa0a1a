//! Several locks together: one guard for all of them, or none.
//!
//! [`super::set_acquisition`] decides which locks are asked for, given back and waited for, and in which
//! order; this module does it. Owns no protocol: each lock is an acquisition of the client's own.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::completions::Question;
use super::guard::Guard;
use super::handle::Client;
use super::pending::{Ask, How, Pending};
use super::request::{Acquire, LockRequest};
use super::set_acquisition::{Failed, SetAcquisition, Step};
use super::shared::{Core, Stopped};
use crate::cancel::Cancel;
use crate::clock;
use crate::engine::{OpId, Outcome, Request};
use crate::error::{AcquireError, SetError};
use crate::limits;
use crate::lock::{InputError, LockName};
use crate::options::{
    Options, WaitPolicy, auto_extend_method, label_method, option_methods, request_methods,
};

pub use held::GuardSet;

mod held;

/// Request for several locks together; made by [`Client::lock_set`]. It sends nothing before one of the
/// acquire calls.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct LockSetRequest {
    client: Client,
    /// Sorted, each once.
    names: Vec<Bytes>,
    /// What is asked of each lock.
    options: Options,
    label: Option<Cow<'static, str>>,
    cancel: Option<Cancel>,
}

/// Several locks that are being acquired together.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
struct AcquireSet {
    request: LockSetRequest,
    /// `None` before the first step.
    acquisition: Option<SetAcquisition<Guard>>,
    asking: Asking,
}

impl Drop for AcquireSet {
    fn drop(&mut self) {
        if let Some(acquisition) = self.acquisition.take() {
            GuardSet::new(acquisition.give_up()).give_up();
        }
    }
}

/// What is under way.
#[derive(Debug)]
enum Asking {
    /// Locks, by their places among the names.
    Locks(Vec<(usize, Acquire<'static>)>),
    Pause(Pending<Pause>),
    Nothing,
}

impl Client {
    /// Returns a request for several locks together: one guard for all of them, or none.
    ///
    /// Each name is a lock of its own; see [`LockName`]. A name given twice counts once. A set has at most
    /// 256 locks ([`limits::SET_SIZE_MAX`]).
    ///
    /// The client asks for all of them at once. If all are free, that takes one round trip and one write for
    /// each master. If some are taken, the granted ones are released at once, and the caller waits for the
    /// first taken one, by name, while it holds nothing. So overlapping sets cannot wait for each other in a
    /// circle, in whatever order they are named. When the caller has that lock, the client asks for the
    /// others again at once, until the wait is over. Random pauses separate such rounds.
    ///
    /// A caller of a single lock has a place in the wait queue, and so does a set for the lock that it waits
    /// for. A set may miss the other locks again and again while other callers take them by turns. Ask for
    /// few locks together, and keep contended sets small.
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
    request_methods!();
    label_method!('static);
    auto_extend_method!(options);

    /// Makes one attempt for all of them at once; see [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, that failed. Nothing is held then.
    pub fn try_acquire(self) -> Result<GuardSet, SetError<AcquireError>> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Returns the future of [`LockSetRequest::try_acquire`], for tasks; see
    /// [`LockSetRequest::acquire_async`].
    pub fn try_acquire_async(
        self,
    ) -> impl Future<Output = Result<GuardSet, SetError<AcquireError>>> + Send + use<> {
        self.wait(Duration::ZERO).acquire_async()
    }

    /// Acquires all of them, and retries until the wait is over.
    ///
    /// # Errors
    /// As [`LockSetRequest::try_acquire`], of the last round.
    pub fn acquire(self) -> Result<GuardSet, SetError<AcquireError>> {
        self.start().wait()
    }

    /// Returns the future of [`LockSetRequest::acquire`], for tasks. It sends nothing before it is polled.
    ///
    /// It is cancel-safe: dropping it never blocks and gives all of them up. Everything that it acquired so
    /// far is released in the background.
    pub fn acquire_async(
        self,
    ) -> impl Future<Output = Result<GuardSet, SetError<AcquireError>>> + Send + use<> {
        self.start()
    }

    const fn start(self) -> AcquireSet {
        AcquireSet { request: self, acquisition: None, asking: Asking::Nothing }
    }

    fn one(&self, place: usize, wait: Duration) -> LockRequest<'static> {
        // The set counts its rounds itself.
        let options = Options { max_attempts: None, wait: Some(wait), ..self.options };
        let mut request = self.client.lock_owned(self.names[place].clone()).options(options);
        request.label.clone_from(&self.label);
        request.cancel.clone_from(&self.cancel);
        request
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
    fn wait(mut self) -> Result<GuardSet, SetError<AcquireError>> {
        match self.advance(How::Thread) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }

    /// Goes on until the next answer that is not there.
    fn advance(&mut self, how: How<'_, '_>) -> Poll<Result<GuardSet, SetError<AcquireError>>> {
        loop {
            let step = match (&mut self.acquisition, &mut self.asking) {
                (None, _) => match self.begin() {
                    Ok(step) => step,
                    Err(error) => return Poll::Ready(Err(error)),
                },
                (Some(acquisition), Asking::Locks(asking)) => match settle(acquisition, how, asking) {
                    Some(step) => step,
                    None => return Poll::Pending,
                },
                (Some(acquisition), Asking::Pause(pause)) => {
                    let paused = std::task::ready!(pause.resolve(how));
                    acquisition.paused(clock::now(), paused)
                }
                (Some(_), Asking::Nothing) => panic!("polled after it was ready"),
            };
            self.asking = Asking::Nothing;
            self.asking = match step {
                Step::Ask(places) => {
                    let requests = places.iter().map(|place| self.request.one(*place, Duration::ZERO));
                    let asking = self.request.client.acquire_all(requests);
                    Asking::Locks(places.into_iter().zip(asking).collect())
                }
                Step::Wait(place, wait) => {
                    Asking::Locks(vec![(place, self.request.one(place, wait).acquire_async())])
                }
                Step::Pause { attempts, took } => {
                    let client = self.request.client.clone();
                    Asking::Pause(Pending::new(Pause { client, attempts, took }))
                }
                Step::Held(guards) => return Poll::Ready(Ok(GuardSet::new(guards))),
                Step::Failed(Failed { place, error: source }) => {
                    let resource = self.request.names[place].clone();
                    return Poll::Ready(Err(SetError::new(resource, source)));
                }
            };
        }
    }

    fn begin(&mut self) -> Result<Step<Guard>, SetError<AcquireError>> {
        let LockSetRequest { client, options, .. } = &self.request;
        self.request.check().map_err(|error| SetError::new(Bytes::new(), error.into()))?;
        let config = client.shared_config().clone();
        let (acquisition, step) =
            SetAcquisition::begin(clock::now(), config, self.request.names.len(), options);
        self.acquisition = Some(acquisition);
        Ok(step)
    }
}

/// Takes the answers that are there; the next step when all are. What is to be given back goes at once.
fn settle(
    acquisition: &mut SetAcquisition<Guard>,
    how: How<'_, '_>,
    asking: &mut Vec<(usize, Acquire<'static>)>,
) -> Option<Step<Guard>> {
    let mut step = None;
    asking.retain_mut(|(place, acquire)| {
        let Poll::Ready(result) = acquire.resolve(how) else { return true };
        let mut back = Vec::new();
        step = acquisition.answer(clock::now(), *place, result, &mut back, Guard::remaining);
        GuardSet::new(back).give_up();
        false
    });
    step
}

impl Future for AcquireSet {
    type Output = Result<GuardSet, SetError<AcquireError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.advance(How::Task(context))
    }
}

/// A random pause between two rounds, longer than the last one took.
#[derive(Debug)]
struct Pause {
    client: Client,
    attempts: u32,
    took: Duration,
}

impl Ask for Pause {
    const QUESTION: Question = Question::Pause;
    type Answer = ();
    type Error = AcquireError;

    fn client(&self) -> &Client {
        &self.client
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
