//! [`ReentrantLock`]: a lock that its owner may take again while holding it.
//!
//! [`crate::compose::holds`] counts the holds and decides what the first and the last one do with the lock. This
//! module waits: whichever task polls or thread waits drives the attempt for all callers of the owner, so an
//! unpolled task delays nobody. It never calls a waker, drops a guard or asks the client while the state is
//! locked.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::guard::{self, ExtendCall, Guard, Release};
use super::handle::Client;
use super::loss::{self, LockEnd};
use super::pending::Pending;
use super::request::{Acquire, LockRequest};
use super::shared::Stopped;
use crate::clock;
use crate::compose::holds::Holds;
use crate::engine::{OpId, Released};
use crate::error::{AcquireError, ExtendError, LockReentrantError, ReleaseError};
use crate::lock::{FencingToken, Token};
use attempt::{Attempts, Caller};

mod attempt;

/// Lock that its owner may take again while it holds it; made by [`LockRequest::reentrant`].
///
/// The owner is this handle and its clones, on any threads and in any tasks. No thread is an owner by its
/// identity, so a task that moves between threads stays the owner. All holds of one owner are inside
/// together: the lock excludes other owners, in this process or another, but not callers of the same owner.
/// [`LockRequest::auto_extend`] keeps the lock, and [`ReentrantGuard::extend`] extends it for all holds.
///
/// Only the first hold asks the masters. Callers that come meanwhile wait for its answer: all share a grant,
/// and after a failure callers with a longer wait go on. The end of the last hold releases the lock on the
/// masters. A handle without holds may be kept.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let max_hold = std::time::Duration::from_secs(600);
/// let lock = client.lock("orders:42").auto_extend(max_hold).reentrant();
/// let outer = lock.lock()?;
/// let inner = lock.lock()?; // asks nobody
/// assert_eq!(lock.hold_count(), 2);
/// drop(outer);
/// drop(inner); // the last one: released at the masters
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ReentrantLock {
    owner: Arc<Owner>,
}

/// One hold of a [`ReentrantLock`]. Dropping it ends the hold. The drop of the last hold releases the lock in
/// the background, like dropping a [`Guard`].
#[must_use = "dropping the hold gives it back"]
pub struct ReentrantGuard {
    owner: Arc<Owner>,
    is_armed: bool,
}

/// Acquisition of a hold.
#[must_use = "nothing is acquired before this is awaited"]
struct LockReentrant<'a> {
    owner: &'a Arc<Owner>,
    caller: Caller,
}

struct Owner {
    request: LockRequest<'static>,
    state: Mutex<OwnerHolds>,
}

type OwnerHolds = Holds<UnderWay, Guard>;

/// The acquisition for all callers of the owner.
struct UnderWay {
    attempts: Arc<Attempts>,
    /// The attempt under way; `None` while a task polls it or a thread waits with it.
    pending: Option<Acquire<'static>>,
}

impl LockRequest<'_> {
    /// Returns a lock with these settings that its owner may take again while it holds it. Sends nothing
    /// before [`ReentrantLock::lock`].
    #[must_use = "nothing is asked before it is locked"]
    pub fn reentrant(self) -> ReentrantLock {
        let (request, state) = (self.into_owned(), Mutex::new(OwnerHolds::Free));
        ReentrantLock { owner: Arc::new(Owner { request, state }) }
    }
}

impl ReentrantLock {
    /// Takes a hold. If this owner has the lock, returns at once, with the rest of the validity, however short,
    /// and no new TTL. Otherwise acquires the lock like [`LockRequest::acquire`], in one attempt for all callers
    /// of this owner that want the lock at the same time. Automatic extension serves all holds.
    ///
    /// The holder of a plain [`Guard`] of the same name is another owner, even on the same thread: this call
    /// then waits for that guard.
    ///
    /// An attempt lasts for the shortest wait of its callers, with its own [`LockRequest::max_attempts`]. If
    /// it fails, callers with a longer wait go on with the next attempt, unless waiting cannot help. The
    /// other callers get an error, even if the attempt failed early. A handle given to
    /// [`LockRequest::cancel_with`] ends the attempt for all its callers, and each later attempt.
    ///
    /// # Errors
    /// [`LockReentrantError::Lost`] if this owner has holds of a lock whose validity has ended: end those
    /// holds first. [`LockReentrantError::TooManyHolds`] beyond 4,294,967,295 holds. Other errors are the
    /// errors of [`LockRequest::acquire`]. In a waker that the client calls, a lock that this owner does not
    /// have is [`AcquireError::Stopped`], for this caller alone.
    pub fn lock(&self) -> Result<ReentrantGuard, LockReentrantError> {
        // Needs no wait, even in a waker.
        if let Some(taken) = self.owner.take_again()? {
            return Ok(taken);
        }
        self.owner.request.client.block_on(self.join())?
    }

    /// Returns the future of [`ReentrantLock::lock`], for tasks. Sends nothing before its first poll.
    ///
    /// Cancel-safe: dropping it gives up only its own hold. The attempt goes on for the other callers that
    /// have joined it, and is given up with the last of them.
    pub fn lock_async(
        &self,
    ) -> impl Future<Output = Result<ReentrantGuard, LockReentrantError>> + Send + use<'_> {
        self.join()
    }

    const fn join(&self) -> LockReentrant<'_> {
        LockReentrant { owner: &self.owner, caller: Caller::NEW }
    }

    /// Returns whether this owner has holds and the lock is valid.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.owner.remaining().is_zero()
    }

    /// Returns the number of holds that have not ended, even of a lost lock. Holds that were acquired but not
    /// fetched count.
    #[must_use]
    pub fn hold_count(&self) -> usize {
        self.owner.state().map_or(0, |state| state.count())
    }

    /// Returns the remaining validity; zero without a hold.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.owner.remaining()
    }

    /// Returns the lock's name, without the configured prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        self.owner.request.resource.as_bytes()
    }

    /// Returns the client that acquires the lock.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.owner.request.client
    }
}

impl ReentrantGuard {
    fn new(owner: &Arc<Owner>) -> Self {
        Self { owner: owner.clone(), is_armed: true }
    }

    /// Returns the lock's remaining validity, zero once it has ended; see [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.owner.remaining()
    }

    /// Returns whether the lock is still valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.owner.remaining().is_zero()
    }

    /// Returns the random value with which the masters hold the lock, the same for all simultaneous holds.
    /// `None` in a forked child process.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.owner.look(Guard::token)
    }

    /// Returns the fencing token of a [fenced](LockRequest::fenced) lock, the same for all simultaneous
    /// holds. `None` for any other lock.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.owner.look(Guard::fencing_token).flatten()
    }

    /// Calls `callback` when the lock is lost or about to be lost; see [`Guard::on_lost`]. The callback
    /// belongs to the lock: it is called even if this hold has ended and others have not.
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        // Asked without the state locked, because `on_lost` may call back at once. This hold keeps the lock.
        match self.owner.look(|guard| (guard.client().clone(), guard.lock())) {
            Some((client, lock)) => loss::on_lost(&client, [lock], callback),
            None => callback(),
        }
    }

    /// Returns the lock's name, without the configured prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        self.owner.request.resource.as_bytes()
    }

    /// Gives the lock a new TTL for all holds, counted from now, if a quorum of masters still has the lock.
    ///
    /// # Errors
    /// As [`Guard::extend`], and [`ExtendError::Busy`] while another extension of the lock is under way.
    pub fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.extension(ttl)?.wait()
    }

    /// Like [`ReentrantGuard::extend`], for tasks. Sends nothing before the future's first poll.
    ///
    /// Cancel-safe: dropping the future does not stop an extension that was sent. The lock then ends as
    /// before, or as asked for.
    pub async fn extend_async(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.extension(ttl)?.await
    }

    fn extension(&self, ttl: Duration) -> Result<Pending<ExtendCall<'_>>, ExtendError> {
        let lock = self.owner.look(Guard::lock).ok_or(ExtendError::NotHeld)?;
        Ok(Pending::new(ExtendCall { client: Cow::Borrowed(&*self.owner.request.client), lock, ttl }))
    }

    /// Returns a future that is ready when the lock is lost or about to be lost, or when the last hold has
    /// ended; see [`Guard::lost`]. Cancel-safe: dropping it ends the notification.
    pub fn lost(&self) -> impl Future<Output = LockEnd> + Send + use<> {
        let lost = self.owner.look(Guard::lost);
        async move {
            match lost {
                Some(lost) => lost.await,
                // Only a forked process has no guard here.
                None => LockEnd::Lost,
            }
        }
    }

    /// Ends this hold. The last hold releases the lock, and waits until a quorum of masters has confirmed the
    /// release. Returns `None` if other holds are left, and in a forked child process.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn release(self) -> Result<Option<Released>, ReleaseError> {
        self.end().map(Release::block).transpose()
    }

    /// Ends this hold at once, and returns the future of [`ReentrantGuard::release`], for tasks. Cancel-safe:
    /// dropping it leaves the release to the background.
    pub fn release_async(
        self,
    ) -> impl Future<Output = Result<Option<Released>, ReleaseError>> + Send + use<> {
        let release = self.end();
        async move {
            match release {
                Some(release) => release.await.map(Some),
                None => Ok(None),
            }
        }
    }

    fn end(mut self) -> Option<Release> {
        self.is_armed = false;
        self.owner.end_hold().map(Guard::release_async)
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        if self.is_armed {
            drop(self.owner.end_hold());
        }
    }
}

impl Owner {
    /// Fails in a forked process, which may have inherited the mutex in its locked state.
    fn state(&self) -> Result<MutexGuard<'_, OwnerHolds>, Stopped> {
        self.request.client.shared().process.check()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn look<T>(&self, look: impl FnOnce(&Guard) -> T) -> Option<T> {
        self.state().ok()?.lock().map(look)
    }

    /// The owner's lock, as the client knows it. Asks without the state locked.
    fn see(&self) -> Option<Seen> {
        let lock = self.look(Guard::lock)?;
        let until = guard::valid_until(&self.request.client, lock);
        Some(Seen { lock, valid_until: until.filter(|until| clock::now() < *until) })
    }

    fn remaining(&self) -> Duration {
        let until = self.see().and_then(|seen| seen.valid_until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::now()))
    }

    /// Ends a hold. Returns the guard after the last one: release or drop it without the state locked.
    fn end_hold(&self) -> Option<Guard> {
        self.state().ok()?.end()
    }

    /// Takes a hold of a lock that this owner has; `None` without one. Refuses a thread that drives the attempt:
    /// it would wait for itself.
    fn take_again(self: &Arc<Self>) -> Result<Option<ReentrantGuard>, LockReentrantError> {
        loop {
            let seen = self.see();
            let mut state = self.state().map_err(AcquireError::Stopped)?;
            let Some(is_valid) = judge(seen, &state) else { continue };
            if let OwnerHolds::Acquiring { attempt, .. } = &*state {
                attempt.attempts.driving.check_outside().map_err(AcquireError::Stopped)?;
            }
            let taken = state.take_again(|_| is_valid).transpose()?;
            return Ok(taken.map(|()| ReentrantGuard::new(self)));
        }
    }

    /// Goes on until the caller has a hold or an error, or must wait for its waker.
    fn advance(
        &self,
        caller: &mut Caller,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), LockReentrantError>> {
        loop {
            let seen = self.see();
            let mut state = self.state().map_err(AcquireError::Stopped)?;
            let Some(is_valid) = judge(seen, &state) else { continue };
            // Read with the state locked, because a hold is counted together with its answer.
            if let Some(answer) = caller.answer() {
                caller.joined = None;
                answer?;
                let fetched = state.fetch(|_| is_valid);
                drop(state);
                // Dropped without the state locked.
                return Poll::Ready(fetched.map_err(|(error, _guard)| error));
            }
            if let Some(taken) = state.take_again(|_| is_valid) {
                return Poll::Ready(taken);
            }
            let (attempts, pending) = self.join(&mut state, caller, context.waker());
            let Some(mut pending) = pending else { return Poll::Pending };
            // Read with the state locked. A caller that joins or is woken from here on finds no attempt to drive.
            let change_count = attempts.change_count.load(Ordering::SeqCst);
            drop(state);
            // Polled without the state locked: the poll may wake other tasks, which may do anything.
            // A single caller is woken directly. Another one that joins raises the count, or polls the attempt.
            let its_waker = match attempts.has_one_caller() {
                true => context.waker().clone(),
                false => Waker::from(attempts.clone()),
            };
            let stand_in = StandIn { owner: self, attempts: &attempts };
            let its_context = &mut Context::from_waker(&its_waker);
            let polled = attempts.driving.run(|| Pin::new(&mut pending).poll(its_context));
            std::mem::forget(stand_in);
            match polled {
                Poll::Ready(result) => self.finish(&attempts, result),
                Poll::Pending => {
                    self.put_back(pending);
                    // A caller that has joined or was woken in the meantime found no attempt to drive.
                    if attempts.change_count.load(Ordering::SeqCst) != change_count {
                        attempts.wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Joins the other callers that want the lock, or begins for the first one. Returns the acquisition,
    /// unless another caller drives it.
    fn join(
        &self,
        state: &mut OwnerHolds,
        caller: &mut Caller,
        waker: &Waker,
    ) -> (Arc<Attempts>, Option<Acquire<'static>>) {
        let wait_until = caller.wait_until(&self.request);
        if !matches!(state, OwnerHolds::Acquiring { .. }) {
            state.begin(UnderWay { attempts: Arc::default(), pending: None }, wait_until);
            self.ask(state);
        } else if caller.joined.is_none() {
            state.join(wait_until);
        }
        let OwnerHolds::Acquiring { attempt: UnderWay { attempts, pending }, .. } = state else {
            unreachable!("it was begun")
        };
        caller.joined.get_or_insert_with(|| attempts.clone());
        // Registered first: if cloning the waker panics, the acquisition stays in place.
        attempts.register(waker);
        (attempts.clone(), pending.take())
    }

    /// Prepares the acquisition of the next attempt, if callers are left.
    fn ask(&self, state: &mut OwnerHolds) {
        if let OwnerHolds::Acquiring { attempt, until, .. } = state {
            let wait = until.saturating_duration_since(clock::now());
            attempt.pending = Some(self.request.clone().wait(wait).acquire_async());
        }
    }

    fn put_back(&self, its: Acquire<'static>) {
        if let Ok(mut state) = self.state()
            && let OwnerHolds::Acquiring { attempt, .. } = &mut *state
        {
            attempt.pending = Some(its);
        }
    }

    /// Takes the result of the attempt.
    fn finish(&self, attempts: &Arc<Attempts>, result: Result<Guard, AcquireError>) {
        let Ok(mut state) = self.state() else { return };
        match result {
            Ok(guard) => {
                state.acquired(guard);
                attempts.note_locked();
            }
            Err(error) => {
                let now = clock::now();
                let answered_until = state.fail(now, &error);
                attempts.note_failed(now, answered_until, error);
                self.ask(&mut state);
            }
        }
        drop(state);
        attempts.wake_by_ref();
    }

    /// The caller gives up its hold.
    fn leave(&self, caller: &mut Caller) {
        let Some(attempts) = caller.joined.take() else { return };
        let Ok(mut state) = self.state() else { return };
        let wait_until = caller.wait_until(&self.request);
        match attempts.answer(wait_until) {
            Some(Ok(())) => {
                drop(state);
                drop(self.end_hold());
            }
            Some(Err(_)) => {}
            None => {
                let given_up = state.leave(wait_until);
                drop(state);
                drop(given_up);
                attempts.wake_by_ref();
            }
        }
    }
}

/// An owner's lock, as it was a moment ago.
#[derive(Clone, Copy)]
struct Seen {
    lock: OpId,
    /// `None` if it has ended.
    valid_until: Option<Instant>,
}

/// Whether the owner's lock is valid; `None` if another lock has replaced it or it has just ended, so that
/// the caller must look again.
fn judge(seen: Option<Seen>, state: &OwnerHolds) -> Option<bool> {
    if state.lock().map(Guard::lock) != seen.map(|seen| seen.lock) {
        return None;
    }
    match seen.and_then(|seen| seen.valid_until) {
        // A lock that has just ended may have been extended meanwhile.
        Some(until) => (clock::now() < until).then_some(true),
        None => Some(false),
    }
}

/// Runs if the caller that drives the attempt panics: prepares a new acquisition for the other callers.
struct StandIn<'a> {
    owner: &'a Owner,
    attempts: &'a Arc<Attempts>,
}

impl Drop for StandIn<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.owner.state() {
            self.owner.ask(&mut state);
        }
        self.attempts.wake_by_ref();
    }
}

impl Future for LockReentrant<'_> {
    type Output = Result<ReentrantGuard, LockReentrantError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let owner = self.owner;
        owner.advance(&mut self.caller, context).map_ok(|()| ReentrantGuard::new(owner))
    }
}

impl Drop for LockReentrant<'_> {
    fn drop(&mut self) {
        self.owner.leave(&mut self.caller);
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantLock")
            .field("resource", &self.resource().escape_ascii().to_string())
            .field("hold_count", &self.hold_count())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LockReentrant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockReentrant")
            .field("has_joined", &self.caller.joined.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
