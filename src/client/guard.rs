//! [`Guard`]: a lock held by a [`Client`]. Its extension, release and loss.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::completions::OutcomeKind;
use super::handle::Client;
use super::loss::{self, Lost};
use super::pending::{Ask, Pending, submit_all};
use super::shared::background::note_drop;
use super::shared::{Inner, Shared, Stopped};
use super::trace::HoldSpan;
use crate::clock;
use crate::engine::{Grant, Left, OpId, Outcome, Released, Request, Validity};
use crate::error::{ExtendError, LeaveError, ReleaseError, Waited};
use crate::lock::{FencingToken, MasterSet, Token};

/// Lock held by a [`Client`].
///
/// Dropping the guard releases the lock in the background, on any thread and even in a panic. The drop does
/// not block; only the client's last handle waits, at most 100 ms. The release is sent with the client's next
/// write, at most 1 ms later ([`crate::limits::DROP_LINGER`]), or when the dropping thread ends. On Linux
/// with glibc this includes the main thread, so a process may end right after a drop on the main thread,
/// except in a panic hook. A thread of [`std::thread::scope`] may end after the scope: join the thread if the
/// release must be sent earlier.
///
/// [`Guard::leave`] and [`Guard::leave_for`] give up the lock without a release, for jobs that run once per
/// interval.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    client: Client,
    lock: OpId,
    granted_until: Instant,
    validity: Validity,
    token: Token,
    fencing_token: Option<FencingToken>,
    resource: HeldName,
    /// Whether the drop must release the lock.
    is_armed: bool,
    /// Wakers of loss listeners. Dropped with the guard, as dropping them may run foreign code.
    loss_wakers: Vec<Waker>,
    pub(super) hold: HoldSpan,
}

/// Name of a guard's lock.
#[derive(Debug)]
pub(super) enum HeldName {
    /// A copy in memory that the client lends.
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl HeldName {
    pub(super) const NONE: Self = Self::Copied(Vec::new());

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Copied(name) => name,
            Self::Shared(name) => name,
        }
    }
}

impl Guard {
    pub(super) fn new(
        client: Client,
        lock: OpId,
        validity: Validity,
        grant: &Grant,
        resource: HeldName,
    ) -> Self {
        let Grant { token, fencing_token, valid_until: granted_until, .. } = *grant;
        Self {
            client,
            lock,
            granted_until,
            validity,
            token,
            fencing_token,
            resource,
            is_armed: true,
            loss_wakers: Vec::new(),
            hold: HoldSpan::new(grant),
        }
    }

    /// Returns the lock's name, without the configured prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        self.resource.as_bytes()
    }

    /// Returns the lock's name as text; `None` if it is not UTF-8.
    #[must_use]
    pub fn resource_str(&self) -> Option<&str> {
        std::str::from_utf8(self.resource()).ok()
    }

    /// Returns the lock's name as an owned value. Copies the name, unless the request came from
    /// [`Client::lock_owned`].
    #[must_use]
    pub fn resource_owned(&self) -> Bytes {
        match &self.resource {
            HeldName::Copied(name) => Bytes::copy_from_slice(name),
            HeldName::Shared(name) => name.clone(),
        }
    }

    /// Returns the random value with which the masters hold this lock.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Returns the fencing token of a [fenced](crate::Options::fenced) lock, which is larger than the token
    /// of each earlier fenced holder. `None` for any other lock.
    #[must_use]
    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    /// Returns the end of the validity, to compare with [`Instant::now`]. Nothing is promised after it: stop
    /// the protected work before. The value accounts for extensions that failed or were dropped half-way.
    ///
    /// With the feature `suspend`, time in which the machine slept counts; on Linux, [`Instant::now`] does
    /// not count it. The returned time is right until the machine sleeps again: call this method again, or
    /// [`Self::is_valid`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        clock::to_std(self.deadline_at(clock::now()))
    }

    /// Returns the remaining validity; zero once it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = clock::now();
        self.deadline_at(now).saturating_duration_since(now)
    }

    /// Returns whether the lock is still valid; always false in a forked child process. Takes no mutex, like
    /// [`Self::remaining`] and [`Self::valid_until`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = clock::now();
        now < self.deadline_at(now)
    }

    /// End of the validity on this crate's clock; `now` in a forked child process.
    pub(super) fn deadline_at(&self, now: Instant) -> Instant {
        let is_forked = self.client.shared().process.is_forked_at(now);
        if is_forked { now } else { self.validity.until(self.granted_until) }
    }

    /// Returns how many masters above the quorum are known to hold this lock. That many masters may lose the
    /// lock without harm.
    #[must_use]
    pub fn margin(&self) -> usize {
        self.client.shared().peek(|inner| inner.driver.engine.margin(self.lock)).unwrap_or(0)
    }

    /// Returns the masters that are known to hold this lock, by their places in [`Client::masters`]. Empty in
    /// a forked child process, and if a drain has released the lock.
    #[must_use]
    pub fn granted(&self) -> MasterSet {
        let granted = self.client.shared().peek(|inner| inner.driver.engine.granted(self.lock));
        granted.flatten().unwrap_or(MasterSet::EMPTY)
    }

    /// Returns how long the acquisition took and for whom it waited, as of the grant. Empty in a forked child
    /// process, and if a drain has released the lock.
    #[must_use]
    pub fn waited(&self) -> Waited {
        self.client.shared().peek(|inner| inner.driver.engine.waited(self.lock)).flatten().unwrap_or_default()
    }

    /// Returns the client that holds the lock.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Gives the lock a new TTL, counted from now, if a quorum of masters still has the lock. Returns within
    /// the answer limit of one round ([`crate::ConfigBuilder::answer_timeout`]).
    ///
    /// # Errors
    /// [`ExtendError`]. Unless the error says that the lock is lost, the lock stays valid as long as before,
    /// or for the new TTL if that ends sooner.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), ExtendError> {
        self.extension(ttl).wait()
    }

    /// Returns the future of [`Guard::extend`], for tasks. [`Extend`] says what dropping it does.
    pub const fn extend_async(&mut self, ttl: Duration) -> Extend<'_> {
        Extend(self.extension(ttl))
    }

    pub(super) const fn extension(&self, ttl: Duration) -> Pending<ExtendCall<'_>> {
        Pending::new(ExtendCall { client: Cow::Borrowed(&self.client), lock: self.lock, ttl })
    }

    /// Calls `callback` when the lock is lost or about to be lost: when so many masters have shown the loss
    /// that no quorum is left, or a tenth of the validity before its end on the local clock, unless the lock
    /// is extended before. The callback is called at most once, also when the client stops, but not if the
    /// guard is released or dropped before.
    ///
    /// All callbacks of a client run one after another on a separate thread, and may use the client there. A
    /// callback that blocks delays the callbacks after it: await [`Guard::lost`] where that matters. A panic
    /// ends only its own callback. If the lock is already over, the callback is called at once, also on that
    /// thread. If the client has stopped, or in a forked child process, the callback runs on the calling
    /// thread. If the system refuses a thread, the callback runs on a thread that uses or drives the client,
    /// and must not wait for the client. A lock whose loss was reported is no longer renewed.
    ///
    /// ```no_run
    /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let max_hold = std::time::Duration::from_secs(600);
    /// let guard = client.lock("orders:42").auto_extend(max_hold).acquire()?;
    /// let must_stop = Arc::new(AtomicBool::new(false));
    /// let tell = must_stop.clone();
    /// guard.on_lost(move || tell.store(true, Ordering::Release));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        loss::on_lost(&self.client, [self.lock], callback);
    }

    /// Returns a future that is ready when the lock is lost or about to be lost, as for [`Guard::on_lost`],
    /// or when the guard is released or dropped. The future owns its data: it can be stored, sent and
    /// spawned.
    pub fn lost(&self) -> Lost {
        Lost::new(self.client.clone(), self.lock)
    }

    /// Releases the lock and waits until a quorum of masters has confirmed it, at most for the answer limit
    /// of one round. If a master that answers owes more than 100 replies, the call waits longer, at most
    /// until the lock's TTL is over. An expired lock is no error: compare the time with
    /// [`Guard::valid_until`] before the release.
    ///
    /// Blocks the thread. In a task, await [`Guard::release_async`]: for `release().await` the compiler
    /// suggests removing the `.await`, and the result compiles and blocks the executor.
    ///
    /// # Errors
    /// [`ReleaseError::Unconfirmed`] if too few masters answered in time. Log it: the release goes on in the
    /// background.
    pub fn release(self) -> Result<Released, ReleaseError> {
        Pending::new(self).wait()
    }

    /// Returns the future of [`Guard::release`], for tasks. [`Release`] says what dropping it does.
    pub const fn release_async(self) -> Release {
        Release(Pending::new(self))
    }

    /// Leaves the lock to the end of its TTL, without a release or further extension. Nobody else gets the
    /// lock before [`Guard::valid_until`]. Does not wait, so it is for threads and tasks.
    ///
    /// # Errors
    /// [`LeaveError`]. A lost lock is released as if dropped.
    pub fn leave(mut self) -> Result<(), LeaveError> {
        let client = self.client.clone();
        let left = client.shared().with(|inner| {
            inner.driver.engine.leave(inner.now(), self.lock)?;
            // Of an extension under way that nobody awaits.
            inner.deliver();
            self.disarm(inner, "left");
            Ok(())
        });
        left.map_err(LeaveError::Stopped)?
    }

    /// Gives up the lock, and leaves it on the masters for `rest`, counted from now: for jobs that run once
    /// per interval. Sets the TTL of the keys to `rest`, which is at most the configured `max_ttl`, and waits
    /// until each master that was asked has answered, at most for the answer limit plus 200 ms. Nobody else
    /// gets the lock before [`Left::held_until`], even if this process ends. A `rest` of zero releases the
    /// lock.
    ///
    /// A master that misses the new TTL gets it after a reconnect, and a release once the time is over, while
    /// the client lives.
    ///
    /// # Errors
    /// [`LeaveError`]. After [`LeaveError::Unconfirmed`] the lock is left, and masters are asked again in the
    /// background. After [`LeaveError::Stopped`] the lock ends with its TTL; in a waker it is released as if
    /// dropped. After any other error the lock is lost, or released as if dropped.
    pub fn leave_for(self, rest: Duration) -> Result<Left, LeaveError> {
        Pending::new(LeaveCall { guard: self, rest }).wait()
    }

    /// Returns the future of [`Guard::leave_for`], for tasks. `rest` counts from the first poll.
    ///
    /// Dropping it before its first poll releases the lock. Afterwards it is cancel-safe: dropping it leaves
    /// the masters' answers to the background.
    pub fn leave_for_async(
        self,
        rest: Duration,
    ) -> impl Future<Output = Result<Left, LeaveError>> + Send + use<> {
        Pending::new(LeaveCall { guard: self, rest })
    }

    pub(super) const fn lock(&self) -> OpId {
        self.lock
    }

    fn note_end(&mut self, outcome: &'static str) {
        if let Some(now) = self.hold.ends_at() {
            self.hold.end(outcome, now, self.deadline_at(now));
        }
    }

    /// Notes that the lock is being released: the drop then does nothing, and no loss is reported. Ends the
    /// lock's span with this outcome.
    pub(super) fn disarm(&mut self, inner: &mut Inner, outcome: &'static str) {
        self.is_armed = false;
        self.note_end(outcome);
        inner.give_name(std::mem::replace(&mut self.resource, HeldName::NONE));
        self.loss_wakers = inner.completions.end_loss_listeners(self.lock);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        self.note_end("dropped");
        let name = std::mem::replace(&mut self.resource, HeldName::NONE);
        let released = self.client.shared().with(|inner| inner.release_dropped(self.lock, name));
        drop(released);
        note_drop(self.client.shared());
    }
}

/// End of the validity of a client's lock; `None` if the lock is over or the client cannot be asked.
pub(super) fn valid_until(client: &Client, lock: OpId) -> Option<Instant> {
    client.shared().peek(|inner| inner.driver.engine.valid_until(lock)).flatten()
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
    /// Starts to extend several locks to the same TTL, with one write for each master. Each [`Extend`] has
    /// its own result.
    pub fn extend_all<'g>(
        &self,
        guards: impl IntoIterator<Item = &'g mut Guard>,
        ttl: Duration,
    ) -> Vec<Extend<'g>> {
        let mut batch: Vec<_> = guards.into_iter().map(|guard| guard.extend_async(ttl)).collect();
        submit_all(self.shared(), batch.iter_mut().map(|it| &mut it.0));
        batch
    }

    /// Starts to release several locks, with one write for each master. Each [`Release`] has its own result.
    /// Dropping one leaves its release to the background.
    pub fn release_all(&self, guards: impl IntoIterator<Item = Guard>) -> Vec<Release> {
        let mut batch: Vec<_> = guards.into_iter().map(Guard::release_async).collect();
        submit_all(self.shared(), batch.iter_mut().map(|it| &mut it.0));
        batch
    }
}

/// Extension under way: a future for any executor, or a value to [`Extend::block`] on.
///
/// Sends nothing before its first poll or `block`, unless it comes from [`Client::extend_all`].
///
/// Cancel-safe: dropping it does not stop an extension that was sent. The validity then ends as before or as
/// asked for, and [`Guard::valid_until`] accounts for both.
#[must_use = "nothing is extended before this is awaited"]
#[derive(Debug)]
pub struct Extend<'g>(Pending<ExtendCall<'g>>);

/// Release under way: a future for any executor, or a value to [`Release::block`] on.
///
/// Cancel-safe: dropping it, at any time, releases the lock in the background.
#[must_use = "the answer of the masters is in here"]
#[derive(Debug)]
pub struct Release(Pending<Guard>);

impl Extend<'_> {
    /// Blocks this thread, at most for the answer limit of one round.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    pub fn block(mut self) -> Result<(), ExtendError> {
        self.0.wait()
    }
}

impl Release {
    /// Blocks this thread, as long as [`Guard::release`] does.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn block(mut self) -> Result<Released, ReleaseError> {
        self.0.wait()
    }
}

impl Future for Extend<'_> {
    type Output = Result<(), ExtendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Future for Release {
    type Output = Result<Released, ReleaseError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// Extension of a lock, by its guard or by one hold of a reentrant lock for all holds.
#[derive(Debug)]
pub(super) struct ExtendCall<'g> {
    pub(super) client: Cow<'g, Client>,
    pub(super) lock: OpId,
    pub(super) ttl: Duration,
}

impl Ask for ExtendCall<'_> {
    const OUTCOME: OutcomeKind = OutcomeKind::Extend;
    const STOPPED: fn(Stopped) -> ExtendError = ExtendError::Stopped;
    type Answer = ();
    type Error = ExtendError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), ExtendError> {
        inner.deliver();
        // Another hold's extension is under way, and the answer belongs to that hold.
        if inner.completions.is_expected(self.lock) {
            return Err(ExtendError::Busy);
        }
        if !inner.driver.engine.has(self.lock) {
            return Err(ExtendError::NotHeld);
        }
        let op = inner.submit(Request::Extend { lock: self.lock, ttl: self.ttl });
        Ok((op.map_err(|_| ExtendError::NotHeld)?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<(), ExtendError> {
        match outcome {
            Outcome::Extend(result) => result.map(drop),
            _ => unreachable!("an extension is answered by its own outcome"),
        }
    }
}

impl Ask for Guard {
    const OUTCOME: OutcomeKind = OutcomeKind::Release;
    const STOPPED: fn(Stopped) -> ReleaseError = ReleaseError::Stopped;
    type Answer = Released;
    type Error = ReleaseError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), ReleaseError> {
        self.disarm(inner, "released");
        if !inner.driver.engine.has(self.lock) {
            return Err(ReleaseError::NotHeld);
        }
        let op = inner.submit(Request::Release { lock: self.lock, awaited: true });
        Ok((op.map_err(|_| ReleaseError::NotHeld)?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<Released, ReleaseError> {
        match outcome {
            Outcome::Release(result) => result,
            _ => unreachable!("a release is answered by its own outcome"),
        }
    }
}

#[derive(Debug)]
struct LeaveCall {
    guard: Guard,
    rest: Duration,
}

impl Ask for LeaveCall {
    const OUTCOME: OutcomeKind = OutcomeKind::Leave;
    const STOPPED: fn(Stopped) -> LeaveError = LeaveError::Stopped;
    type Answer = Left;
    type Error = LeaveError;
    type Submitted = ();

    fn shared(&self) -> &Arc<Shared> {
        self.guard.client.shared()
    }

    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, ()), LeaveError> {
        let lock = self.guard.lock();
        if !inner.driver.engine.has(lock) {
            self.guard.disarm(inner, "left");
            return Err(LeaveError::NotHeld);
        }
        let submitted = inner.submit(Request::LeaveFor { lock, rest: self.rest });
        // After an error the guard still holds the lock, and its drop releases the lock.
        if inner.driver.engine.valid_until(lock).is_none() {
            self.guard.disarm(inner, "left");
        }
        Ok((submitted.map_err(|_| LeaveError::NotHeld)?, ()))
    }

    fn answer(&mut self, _: OpId, (): (), outcome: Outcome) -> Result<Left, LeaveError> {
        match outcome {
            Outcome::Leave(result) => Left::by_clock(result, clock::to_std),
            _ => unreachable!("a lock that is left is answered by its own outcome"),
        }
    }
}

#[cfg(test)]
mod tests;
