//! A whole client for the simulator of `tests/sim`: without threads and sockets, on the simulator's clock.
//!
//! ```text
//!   simulator ── owns the engine: opens connections, moves bytes, judges
//!       │  lends it for each call, with the present
//!   SimulatedClient ── mutex, completions, futures, guards, wakers: the code of every client
//!       └── a Drive, which the simulator turns, in place of the background thread
//! ```
//!
//! Between two calls the client has an engine without masters, which nothing may use.

use std::borrow::Cow;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::completions::OutcomeKind;
use super::guard::{ExtendCall, Guard};
use super::handle::Client;
use super::inspect::{ForceUnlockCall, FreeSlotsCall, InspectCall};
use super::loss::Lost;
use super::passing::{AdoptCall, ReleaseCall};
use super::pending::{Ask, Pending};
use super::request::LockRequest;
use super::shared::background::Drive;
use super::shared::{Inner, Shared, Stopped};
use super::wait::PauseCall;
use crate::cancel::Registration;
use crate::clock;
use crate::config::Config;
use crate::driver::Driver;
use crate::engine::{Engine, OpId, Outcome, Request};
use crate::error::AcquireError;
use crate::handle::LockHandle;
use crate::lock::{LockName, Resource};
use crate::options::Options;

/// A client, and its drive; see the [module](self).
#[derive(Debug)]
pub struct SimulatedClient {
    client: Client,
    drive: Drive,
    /// Wake-ups of the drive since its last turn.
    wakes: Arc<Wakes>,
    waker: Waker,
    /// When the drive turns next, as its last turn said.
    planned: Option<Instant>,
    /// When it must turn, as of the last call.
    due: Option<Instant>,
}

/// A client's monotonic and wall clock, as they show the present.
pub type Times = (Instant, Duration);

impl SimulatedClient {
    /// Opens a client, which connects at its first turn. Returns its engine, too.
    ///
    /// # Panics
    /// If the system refuses an event queue.
    #[must_use]
    pub fn open(config: &Arc<Config>, seed: [u8; 32], times: Times) -> (Self, Engine) {
        let _clock = Clock::show(times);
        let (driver, poller) = Driver::simulated(config.clone(), seed).expect("an event queue");
        let client = Client::from_shared(Shared::simulated(driver, poller), config.clone());
        let drive = client.drive().expect("an event queue");
        let (wakes, waker) = Wakes::new(client.shared());
        let simulated = Self { client, drive, wakes, waker, planned: Some(times.0), due: None };
        let mut engine = Engine::new(config.clone(), [0; 32], times.0);
        simulated.swap(&mut engine);
        (simulated, engine)
    }

    /// Runs calls of the application.
    pub fn call<T>(&mut self, times: Times, engine: &mut Engine, call: impl FnOnce(&Client) -> T) -> T {
        let _clock = Clock::show(times);
        self.swap(engine);
        let result = call(&self.client);
        self.due = self.client.shared().peek(|inner| inner.turn_due()).flatten();
        self.swap(engine);
        result
    }

    /// Turns the drive once.
    ///
    /// # Panics
    /// If the client has ended.
    pub fn turn(&mut self, times: Times, engine: &mut Engine) {
        let _clock = Clock::show(times);
        self.swap(engine);
        self.wakes.count.store(0, Ordering::Relaxed);
        self.planned = self.drive.turn(&self.waker).expect("the client goes on");
        self.due = self.client.shared().peek(|inner| inner.turn_due()).flatten();
        self.swap(engine);
    }

    /// When the drive turns unless it is woken or something arrives, as its last turn has said.
    #[must_use]
    pub const fn planned(&self) -> Option<Instant> {
        self.planned
    }

    /// When the drive must turn even if nothing arrives.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Wake-ups of the drive since its last turn.
    #[must_use]
    pub const fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// Number of calls whose outcome is expected or not fetched.
    ///
    /// # Panics
    /// In a forked child process.
    #[must_use]
    pub fn kept_count(&self) -> usize {
        self.client.shared().peek(|inner| inner.completions.kept_count()).expect("no fork")
    }

    fn swap(&self, engine: &mut Engine) {
        self.client.shared().peek(|inner| mem::swap(&mut inner.driver.engine, engine)).expect("no fork");
    }
}

/// The process ends: later drops of calls and guards do nothing.
impl Drop for SimulatedClient {
    fn drop(&mut self) {
        self.client.shared().stop("its process has ended");
    }
}

/// Shows simulated times to this thread while it exists.
struct Clock;

impl Clock {
    fn show(times: Times) -> Self {
        clock::simulate(Some(times));
        Self
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        clock::simulate(None);
    }
}

/// Wake-ups of a task, or of the drive.
pub struct Wakes {
    client: Weak<Shared>,
    count: AtomicUsize,
    was_locked: AtomicBool,
}

impl Wakes {
    fn new(client: &Arc<Shared>) -> (Arc<Self>, Waker) {
        let client = Arc::downgrade(client);
        let wakes = Arc::new(Self { client, count: AtomicUsize::new(0), was_locked: AtomicBool::new(false) });
        (wakes.clone(), Waker::from(Arc::new(Waking(wakes))))
    }

    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether the client called or dropped the waker with its mutex held.
    #[must_use]
    pub fn was_locked(&self) -> bool {
        self.was_locked.load(Ordering::Relaxed)
    }

    fn look(&self) {
        if self.client.upgrade().is_some_and(|shared| shared.is_locked()) {
            self.was_locked.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// Waker that counts. The client has all references.
struct Waking(Arc<Wakes>);

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.0.look();
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        self.0.look();
    }
}

/// A call under way: the future of a public call, with its operation and outcome in view. All its methods and
/// its drop need [`SimulatedClient::call`].
#[derive(Debug)]
pub struct Call {
    kind: CallKind,
    client: Client,
    /// Wake-ups of the task that polled last.
    wakes: Arc<Wakes>,
}

#[derive(Debug)]
enum CallKind {
    Acquire(Pending<Seen<LockRequest<'static>>>),
    Adopt(Pending<Seen<AdoptCall>>),
    Extend(Pending<Seen<ExtendCall<'static>>>),
    Release(Pending<Seen<Guard>>),
    ReleaseHandle(Pending<Seen<ReleaseCall>>),
    Inspect(Pending<Seen<InspectCall<'static>>>),
    FreeSlots(Pending<Seen<FreeSlotsCall>>),
    ForceUnlock(Pending<Seen<ForceUnlockCall<'static>>>),
    Pause(Pending<Seen<PauseCall>>),
}

/// Runs this with the call, whatever its kind is.
macro_rules! each {
    ($kind:expr, $pending:ident => $run:expr) => {
        match $kind {
            CallKind::Acquire($pending) => $run,
            CallKind::Adopt($pending) => $run,
            CallKind::Extend($pending) => $run,
            CallKind::Release($pending) => $run,
            CallKind::ReleaseHandle($pending) => $run,
            CallKind::Inspect($pending) => $run,
            CallKind::FreeSlots($pending) => $run,
            CallKind::ForceUnlock($pending) => $run,
            CallKind::Pause($pending) => $run,
        }
    };
}

/// What a caller gets.
#[derive(Debug)]
pub enum Fetched {
    /// An acquired or adopted lock.
    Guard(Guard),
    /// No lock; without the error of an adoption.
    Denied(Option<AcquireError>),
    /// Any other answer.
    Other,
}

impl Call {
    fn new(client: &Client, kind: CallKind) -> Self {
        Self { kind, client: client.clone(), wakes: Wakes::new(client.shared()).0 }
    }

    /// [`LockRequest::acquire_async`]. The name may be a pool's.
    #[must_use]
    pub fn acquire(client: &Client, name: &[u8], options: Options, label: Option<&str>) -> Self {
        let own = Bytes::copy_from_slice(name);
        let name = if Resource::new(name).is_ok() { own.into() } else { LockName::of_pool(own) };
        let mut request = LockRequest::new(Cow::Owned(client.clone()), name).options(options);
        request.label = label.map(|label| Cow::Owned(label.to_owned()));
        Self::new(client, CallKind::Acquire(seen(request)))
    }

    /// [`Client::adopt_async`].
    #[must_use]
    pub fn adopt(client: &Client, handle: &LockHandle) -> Self {
        let call = AdoptCall { client: client.clone(), handle: handle.clone() };
        Self::new(client, CallKind::Adopt(seen(call)))
    }

    /// [`Guard::extend_async`]. The guard may not end before the call.
    #[must_use]
    pub fn extend(guard: &Guard, ttl: Duration) -> Self {
        let (client, lock) = (guard.client(), guard.lock());
        Self::new(
            client,
            CallKind::Extend(seen(ExtendCall { client: Cow::Owned(client.clone()), lock, ttl })),
        )
    }

    /// [`Guard::release_async`].
    #[must_use]
    pub fn release(guard: Guard) -> Self {
        Self::new(&guard.client().clone(), CallKind::Release(seen(guard)))
    }

    /// [`Client::release_handle_async`].
    #[must_use]
    pub fn release_handle(client: &Client, handle: &LockHandle) -> Self {
        let call = ReleaseCall { client: client.clone(), handle: handle.clone() };
        Self::new(client, CallKind::ReleaseHandle(seen(call)))
    }

    /// A call that is no lock's.
    ///
    /// # Panics
    /// If the request is a lock's.
    #[must_use]
    pub fn errand(client: &Client, request: &Request<'_>) -> Self {
        let own = || client.clone();
        let name = |name: Resource<'_>| LockName::of_pool(Bytes::copy_from_slice(name.as_bytes()));
        let kind = match *request {
            Request::Inspect { resource } => {
                let (client, name) = (Cow::Owned(own()), name(resource));
                CallKind::Inspect(seen(InspectCall { client, name }))
            }
            Request::ForceUnlock { resource } => {
                let (client, name) = (Cow::Owned(own()), name(resource));
                CallKind::ForceUnlock(seen(ForceUnlockCall { client, name }))
            }
            Request::FreeSlots { pool, count, from } => {
                let pool = Bytes::copy_from_slice(pool.as_bytes());
                CallKind::FreeSlots(seen(FreeSlotsCall { client: own(), pool, count, from, cancel: None }))
            }
            Request::Pause { attempts, took, limit } => {
                CallKind::Pause(seen(PauseCall { client: own(), cancel: None, attempts, took, limit }))
            }
            ref other => panic!("no errand: {other:?}"),
        };
        Self::new(client, kind)
    }

    /// Polls as another task than before.
    pub fn poll(&mut self) -> Poll<Fetched> {
        let (wakes, waker) = Wakes::new(self.client.shared());
        self.wakes = wakes;
        let context = &mut Context::from_waker(&waker);
        match &mut self.kind {
            CallKind::Acquire(call) => Pin::new(call)
                .poll(context)
                .map(|it| it.map_or_else(|error| Fetched::Denied(Some(error)), Fetched::Guard)),
            CallKind::Adopt(call) => {
                Pin::new(call).poll(context).map(|it| it.map_or(Fetched::Denied(None), Fetched::Guard))
            }
            CallKind::Extend(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::Release(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::ReleaseHandle(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::Inspect(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::FreeSlots(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::ForceUnlock(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
            CallKind::Pause(call) => Pin::new(call).poll(context).map(|_| Fetched::Other),
        }
    }

    /// Returns its operation; `None` if its request was refused, or not submitted yet.
    #[must_use]
    pub fn op(&self) -> Option<OpId> {
        each!(&self.kind, call => call.ask().op)
    }

    /// Returns its outcome if it has come, fetched or not.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        let (fetched, token) = each!(&self.kind, call => (call.ask().outcome.clone(), call.token()));
        let shared = self.client.shared();
        fetched.or_else(|| shared.peek(|inner| inner.completions.outcome(token?).cloned()).flatten())
    }

    /// Returns the wake-ups of the task that polled last.
    #[must_use]
    pub const fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }
}

/// [`Guard::lost`], awaited by a task. All its methods and its drop need [`SimulatedClient::call`], except the
/// views.
#[derive(Debug)]
pub struct Watch {
    lost: Lost,
    wakes: Arc<Wakes>,
    waker: Waker,
    is_over: bool,
}

impl Watch {
    /// Polls for the first time.
    #[must_use]
    pub fn begin(guard: &Guard) -> Self {
        let (wakes, waker) = Wakes::new(guard.client().shared());
        let mut watch = Self { lost: guard.lost(), wakes, waker, is_over: false };
        watch.is_over = watch.poll();
        watch
    }

    /// Returns whether the lock is lost or about to be.
    pub fn poll(&mut self) -> bool {
        self.is_over || Pin::new(&mut self.lost).poll(&mut Context::from_waker(&self.waker)).is_ready()
    }

    /// Returns whether the first poll returned that.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the wake-ups of the task.
    #[must_use]
    pub const fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }
}

/// Gives a lock up for a handle, with the TTL that the lock has. Needs [`SimulatedClient::call`].
#[must_use]
pub fn pass(guard: Guard) -> Option<LockHandle> {
    let ttl = guard.to_handle()?.ttl();
    guard.pass(ttl, Ok(())).ok()
}

/// A call that notes its operation and its outcome.
#[derive(Debug)]
struct Seen<A> {
    ask: A,
    op: Option<OpId>,
    outcome: Option<Outcome>,
}

const fn seen<A: Ask>(ask: A) -> Pending<Seen<A>> {
    Pending::new(Seen { ask, op: None, outcome: None })
}

impl<A: Ask> Ask for Seen<A> {
    const OUTCOME: OutcomeKind = A::OUTCOME;
    const STOPPED: fn(Stopped) -> A::Error = A::STOPPED;
    type Answer = A::Answer;
    type Error = A::Error;
    type Submitted = A::Submitted;

    fn shared(&self) -> &Arc<Shared> {
        self.ask.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, A::Submitted), A::Error> {
        let submitted = self.ask.submit(inner);
        self.op = submitted.as_ref().ok().map(|(op, _)| *op);
        submitted
    }

    fn answer(&mut self, op: OpId, submitted: A::Submitted, outcome: Outcome) -> Result<A::Answer, A::Error> {
        self.outcome = Some(outcome.clone());
        self.ask.answer(op, submitted, outcome)
    }

    fn cancellation(&mut self) -> Option<(&mut Registration, A::Error)> {
        self.ask.cancellation()
    }
}
