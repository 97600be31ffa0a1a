//! [`Guard`]: a lock held by a [`Client`], its extension, its release and its loss.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::completions::{Audience, Question, Watcher};
use super::handle::Client;
use super::lingering::note_drop;
use super::name::HeldName;
use super::pending::{Ask, How, Pending, future};
use super::shared::{Core, Shared, Stopped};
use crate::clock;
use crate::engine::{Grant, OpId, Outcome, Released, Request};
use crate::error::{ExtendError, ReleaseError};
use crate::lock::{FencingToken, Token};
use crate::mutants::mutant;

/// A lock held by a [`Client`].
///
/// Dropping it releases the lock in the background: that never blocks, works in a panic and on any thread,
/// and the release goes out with the client's next write: after [`crate::limits::DROP_LINGER`], or when the
/// dropping thread ends, at most. On Linux with glibc that holds for the main thread, too, so a process may
/// end right behind the drop, except in a panic hook. A thread of [`std::thread::scope`] may end after its
/// scope unless it is joined.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    client: Client,
    lock: OpId,
    token: Token,
    fencing_token: Option<FencingToken>,
    resource: HeldName,
    /// Whether the drop is to release.
    is_armed: bool,
    /// A caller that watched it while it was held; dropped with the guard, for that may run anybody's code.
    unwatched: Vec<Waker>,
}

impl Guard {
    pub(super) const fn new(client: Client, lock: OpId, grant: &Grant, resource: HeldName) -> Self {
        let Grant { token, fencing_token, .. } = *grant;
        Self { client, lock, token, fencing_token, resource, is_armed: true, unwatched: Vec::new() }
    }

    /// The lock's name, without the configured prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        self.resource.as_bytes()
    }

    /// The lock's name as text, if it is UTF-8.
    #[must_use]
    pub fn resource_str(&self) -> Option<&str> {
        std::str::from_utf8(self.resource()).ok()
    }

    /// The lock's name as a value of its own. It is shared without a copy if the request came from
    /// [`Client::lock_owned`].
    #[must_use]
    pub fn resource_owned(&self) -> Bytes {
        match &self.resource {
            HeldName::Copied(name) => Bytes::copy_from_slice(name),
            HeldName::Shared(name) => name.clone(),
        }
    }

    /// The value that the masters hold.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Larger than that of each earlier fenced holder of this lock, if it came from
    /// [`crate::LockRequest::fenced`].
    #[must_use]
    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    /// When its validity ends, to be compared with [`Instant::now`]. After this moment nothing is promised:
    /// stop the protected work before. An extension that is lost or was dropped half-way counts, too.
    ///
    /// With the feature `suspend` the time that the machine has slept counts, which [`Instant::now`] does not
    /// on Linux: the moment is right until the machine sleeps again, so ask anew, or ask [`Guard::is_valid`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        clock::to_std(self.deadline())
    }

    /// The validity left, zero when it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline().saturating_duration_since(clock::now())
    }

    /// Whether the validity has not ended. Never true in a fork of the process.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let deadline = self.deadline();
        clock::now() < deadline
    }

    /// By the clock of this crate.
    pub(super) fn deadline(&self) -> Instant {
        valid_until(&self.client, self.lock).unwrap_or_else(clock::now)
    }

    /// How many masters above the quorum are known to hold this lock: so many may lose it without harm.
    #[must_use]
    pub fn margin(&self) -> usize {
        self.client.shared().peek(|core| core.driver.engine.margin(self.lock)).unwrap_or(0)
    }

    /// The client that holds it.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Gives the lock a new TTL, counted from now, if a quorum of masters still has it.
    ///
    /// # Errors
    /// [`ExtendError`]; the lock is valid as long as it was before, unless the error says that it is lost.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        self.extend_async(ttl).wait()
    }

    /// As [`Guard::extend`], for tasks.
    pub const fn extend_async(&mut self, ttl: Duration) -> Extend<'_> {
        Extend::new(self, ttl)
    }

    /// Has `callback` called when the lock is lost or about to be: a tenth of its validity before that ends,
    /// by the local clock and whatever the masters answer, unless it is extended before; or at once when a
    /// majority of masters has shown that it is lost. At most once, and not when the guard is released or
    /// dropped before; also when the client stops.
    ///
    /// Callbacks run on threads of their own, and are started in the order in which losses are reported. They
    /// may use the client. One that takes long delays no other: up to
    /// [`crate::limits::CALLBACK_THREAD_COUNT_MAX`] of a client run at once, and only further ones wait. A
    /// panic ends with its callback. If the lock is over already, the callback is called at once, also on
    /// such a thread. If the client has stopped, or in a fork, it runs on the calling thread. A lock whose
    /// loss was reported is not renewed any more.
    ///
    /// ```no_run
    /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let guard = client.lock("orders:42").auto_extend(std::time::Duration::from_secs(600)).acquire()?;
    /// let must_stop = Arc::new(AtomicBool::new(false));
    /// let tell = must_stop.clone();
    /// guard.on_lost(move || tell.store(true, Ordering::Release));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        on_lost(&self.client, self.lock, callback);
    }

    /// Waits, in a task, until the lock is lost or about to be; see [`Guard::on_lost`]. The future owns what
    /// it needs: it can be stored, sent and spawned, and also ends when the guard is released or dropped.
    pub fn lost(&self) -> Lost {
        Lost { client: self.client.clone(), lock: self.lock, watcher: None }
    }

    /// Releases the lock and waits until a quorum of masters has confirmed it. A lock that has expired is an
    /// answer ([`Released::was_already_gone`]), not an error.
    ///
    /// # Errors
    /// [`ReleaseError`] if too few masters answered in time; the release goes on in the background.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.release_async().wait()
    }

    /// As [`Guard::release`], for tasks.
    pub const fn release_async(self) -> Release {
        Release::new(self)
    }

    pub(super) const fn lock(&self) -> OpId {
        self.lock
    }

    /// The lock is being released: nothing is left for the drop to do, and nobody is notified of its loss.
    pub(super) fn disarm(&mut self, core: &mut Core) {
        self.is_armed = false;
        core.give_name(std::mem::replace(&mut self.resource, HeldName::NONE));
        self.unwatched = core.completions.unwatch(self.lock);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_armed || mutant!(DropForgets) {
            return;
        }
        let (lock, name) = (self.lock, std::mem::replace(&mut self.resource, HeldName::NONE));
        self.client.shared().with_or_later(move |core| core.release_dropped(lock, name));
        note_drop(self.client.shared());
    }
}

/// Has the loss of a held lock reported to this callback.
pub(super) fn on_lost(client: &Client, lock: OpId, callback: impl FnOnce() + Send + 'static) {
    let callback = client.callbacks().call_once(callback);
    client.shared().do_or_later(move |shared| {
        if let Watching::Stopped =
            watch(shared, lock, None, &Waker::from(callback.clone()), Audience::Callback)
        {
            // Nobody would report it: the client has stopped, or belongs to another process.
            callback.call();
        }
    });
}

/// Until when a lock of this client's is valid; `None` if it is over or cannot be looked at.
pub(super) fn valid_until(client: &Client, lock: OpId) -> Option<Instant> {
    client.shared().peek(|core| core.driver.engine.valid_until(lock)).flatten()
}

/// Whether the loss of a lock will be reported.
enum Watching {
    Yes(Watcher),
    /// The lock was released.
    Released,
    /// The client has stopped, or belongs to another process.
    Stopped,
}

/// Has the loss reported to this waker, in place of the watcher's last one.
fn watch(
    shared: &Shared,
    lock: OpId,
    watcher: Option<Watcher>,
    waker: &Waker,
    audience: Audience,
) -> Watching {
    let watched = shared.with(|core| {
        core.driver.engine.valid_until(lock)?;
        let watched = core.completions.watch(lock, watcher, waker, audience);
        let _ = core.submit(Request::NotifyLoss { lock });
        core.deliver();
        core.wake_late_leader();
        Some(watched)
    });
    match watched {
        // The waker that was replaced is dropped without the lock, as all wakers are.
        Ok(Some((watcher, _replaced))) => Watching::Yes(watcher),
        Ok(None) => Watching::Released,
        Err(_) => Watching::Stopped,
    }
}

/// How a lock ended whose loss was awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEnd {
    /// It is lost or about to be: stop the protected work.
    Lost,
    /// Its guard was released or dropped before.
    Released,
}

/// A future that is ready when a lock is lost or about to be, or released: [`Guard::lost`]. It is
/// cancel-safe, and dropping it only ends the report.
#[must_use = "nothing is reported before this is awaited"]
#[derive(Debug)]
pub struct Lost {
    client: Client,
    lock: OpId,
    watcher: Option<Watcher>,
}

impl Future for Lost {
    type Output = LockEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LockEnd> {
        let lock = self.lock;
        let end = self.client.shared().peek(|core| {
            let engine = &core.driver.engine;
            match engine.valid_until(lock) {
                None => Some(LockEnd::Released),
                Some(_) => engine.is_losing(clock::now(), lock).then_some(LockEnd::Lost),
            }
        });
        if let Some(end) = end.unwrap_or(Some(LockEnd::Lost)) {
            return Poll::Ready(end);
        }
        match watch(self.client.shared(), lock, self.watcher, context.waker(), Audience::Task) {
            Watching::Stopped => Poll::Ready(LockEnd::Lost),
            Watching::Released => Poll::Ready(LockEnd::Released),
            Watching::Yes(watcher) => {
                self.watcher = Some(watcher);
                Poll::Pending
            }
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher {
            let lock = self.lock;
            self.client.shared().with_or_later(move |core| core.completions.unwatch_one(lock, watcher));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resource", &self.resource().escape_ascii().to_string())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Starts to extend several locks to the same TTL, with one write for each master. The results are had
    /// one by one.
    pub fn extend_all<'g>(
        &self,
        guards: impl IntoIterator<Item = &'g mut Guard>,
        ttl: Duration,
    ) -> Vec<Extend<'g>> {
        let mut batch: Vec<_> = guards.into_iter().map(|guard| Extend::new(guard, ttl)).collect();
        self.submit_all(batch.iter_mut().map(|it| (it.client().is(self), it)), Extend::submit);
        batch
    }

    /// Starts to release several locks, with one write for each master. The results are had one by one; those
    /// that are dropped are released all the same.
    pub fn release_all(&self, guards: impl IntoIterator<Item = Guard>) -> Vec<Release> {
        let mut batch: Vec<_> = guards.into_iter().map(Release::new).collect();
        self.submit_all(batch.iter_mut().map(|it| (it.client().is(self), it)), Release::submit);
        batch
    }
}

/// An extension under way: a future for any executor, or something to [`Extend::wait`] for.
///
/// Nothing is sent before it is polled or waited for, unless it comes from [`Client::extend_all`]. Dropping
/// it leaves the extension to itself: the guard's validity then ends as before or as asked for.
#[must_use = "nothing is extended before this is awaited"]
#[derive(Debug)]
pub struct Extend<'g>(Pending<Extension<'g>>);

/// A release under way: a future for any executor, or something to [`Release::wait`] for.
///
/// Dropping it, at any time, has the lock released in the background.
#[must_use = "the answer of the masters is in here"]
#[derive(Debug)]
pub struct Release(Pending<Guard>);

impl<'g> Extend<'g> {
    pub(super) const fn new(guard: &'g mut Guard, ttl: Duration) -> Self {
        Self(Pending::new(Extension { guard, ttl }))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask().client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.0.submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<(), ExtendError>> {
        self.0.resolve(how)
    }

    /// Waits on this thread, for the limit of one answer at most.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    pub fn wait(self) -> Result<(), ExtendError> {
        self.0.wait()
    }
}

impl Release {
    pub(super) const fn new(guard: Guard) -> Self {
        Self(Pending::new(guard))
    }

    pub(super) fn client(&self) -> &Client {
        self.0.ask().client()
    }

    pub(super) fn submit(&mut self, core: &mut Core) {
        self.0.submit(core);
    }

    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<Released, ReleaseError>> {
        self.0.resolve(how)
    }

    /// Waits on this thread, for the limit of one answer at most.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn wait(self) -> Result<Released, ReleaseError> {
        self.0.wait()
    }
}

future!(Extend<'_>, Result<(), ExtendError>);
future!(Release, Result<Released, ReleaseError>);

/// What [`Extend`] asks.
#[derive(Debug)]
struct Extension<'g> {
    guard: &'g mut Guard,
    ttl: Duration,
}

impl Ask for Extension<'_> {
    const QUESTION: Question = Question::Extend;
    type Answer = ();
    type Error = ExtendError;

    fn client(&self) -> &Client {
        self.guard.client()
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ExtendError> {
        submit_extension(core, self.guard.lock(), self.ttl)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<(), ExtendError> {
        extension_result(outcome)
    }

    fn stopped(why: Stopped) -> ExtendError {
        ExtendError::Stopped(why)
    }
}

pub(super) fn submit_extension(core: &mut Core, lock: OpId, ttl: Duration) -> Result<OpId, ExtendError> {
    core.submit(Request::Extend { lock, ttl }).map_err(|_| ExtendError::NotHeld)
}

pub(super) fn extension_result(outcome: Outcome) -> Result<(), ExtendError> {
    match outcome {
        Outcome::Extend(result) => result.map(drop),
        _ => unreachable!("an extension is answered by its own outcome"),
    }
}

/// The release of a guard.
impl Ask for Guard {
    const QUESTION: Question = Question::Release;
    type Answer = Released;
    type Error = ReleaseError;

    fn client(&self) -> &Client {
        self.client()
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, ReleaseError> {
        self.disarm(core);
        let request = Request::Release { lock: self.lock(), awaited: true };
        core.submit(request).map_err(|_| ReleaseError::NotHeld)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<Released, ReleaseError> {
        match outcome {
            Outcome::Release(result) => result,
            _ => unreachable!("a release is answered by its own outcome"),
        }
    }

    fn stopped(why: Stopped) -> ReleaseError {
        ReleaseError::Stopped(why)
    }
}
