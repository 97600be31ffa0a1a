//! [`GuardSet`]: several locks that are held together.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::client::guard::{Extend, Guard, LockEnd, Lost, Release};
use crate::client::pending::How;
use crate::client::set_acquisition;
use crate::clock;
use crate::engine::Released;
use crate::error::{ExtendError, LeaveError, ReleaseError, SetError};

/// Several locks held together, valid while each of them is valid.
///
/// Dropping it releases all of them in the background. The drop never blocks, and works in a panic and on any
/// thread. The releases go out as for a dropped [`Guard`].
#[must_use = "dropping the set releases its locks"]
pub struct GuardSet {
    /// Sorted by name.
    guards: Vec<Guard>,
}

/// An extension of all locks of a set under way.
#[must_use = "nothing is extended before this is awaited"]
#[derive(Debug)]
struct ExtendSet<'g> {
    pending: Vec<(Bytes, Extend<'g>)>,
    failed: Option<SetError<ExtendError>>,
}

/// The release of all locks of a set under way.
#[must_use = "the answer of the masters is in here"]
#[derive(Debug)]
struct ReleaseSet {
    pending: Vec<(Bytes, Release)>,
    released: Vec<Released>,
    failed: Option<SetError<ReleaseError>>,
}

/// Future that is ready when one of several locks is lost or about to be lost: [`GuardSet::lost`].
#[must_use = "nothing is told before this is awaited"]
#[derive(Debug)]
struct LostSet {
    each: Vec<Lost>,
}

impl GuardSet {
    pub(super) fn new(mut guards: Vec<Guard>) -> Self {
        guards.sort_unstable_by(|one, other| one.resource().cmp(other.resource()));
        Self { guards }
    }

    /// Has all of them released at once, in one write for each master, without waiting for the answers.
    pub(super) fn give_up(mut self) {
        let guards = std::mem::take(&mut self.guards);
        if let Some(client) = guards.first().map(|guard| guard.client().clone()) {
            drop(client.release_all(guards));
        }
    }

    /// Returns the names of the locks, sorted, without the configured prefix.
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        self.guards.iter().map(Guard::resource)
    }

    /// Returns the locks, sorted by name, for the token or the margin of each.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Takes the set apart: each lock is released by itself from now on.
    pub fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards)
    }

    /// Returns the end of the validity that ends first; see [`Guard::valid_until`].
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let first = self.guards.iter().map(Guard::valid_until).min();
        first.unwrap_or_else(|| clock::to_std(clock::now()))
    }

    /// Returns the shortest validity left; zero once one has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        set_acquisition::validity(self.guards.iter().map(Guard::remaining))
    }

    /// Returns whether the validity of each lock lasts.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns the smallest margin; see [`Guard::margin`].
    #[must_use]
    pub fn margin(&self) -> usize {
        self.guards.iter().map(Guard::margin).min().unwrap_or(0)
    }

    /// Gives all of them a new TTL, counted from now, with one write for each master.
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, that was not extended. The others may be extended; the set
    /// is valid as long as each of them is.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), SetError<ExtendError>> {
        self.start_extension(ttl).wait()
    }

    /// Returns the future of [`GuardSet::extend`], for tasks. The extensions are sent at once.
    ///
    /// It is cancel-safe: dropping it does not stop the extensions. Each lock then ends as before, or as
    /// asked for.
    pub fn extend_async(
        &mut self,
        ttl: Duration,
    ) -> impl Future<Output = Result<(), SetError<ExtendError>>> + Send + use<'_> {
        self.start_extension(ttl)
    }

    fn start_extension(&mut self, ttl: Duration) -> ExtendSet<'_> {
        let names: Vec<Bytes> = self.resources().map(Bytes::copy_from_slice).collect();
        let Some(client) = self.guards.first().map(|guard| guard.client().clone()) else {
            return ExtendSet { pending: Vec::new(), failed: None };
        };
        let extending = client.extend_all(&mut self.guards, ttl);
        ExtendSet { pending: names.into_iter().zip(extending).collect(), failed: None }
    }

    /// Calls `callback` at most once, when the first of them is lost or about to be lost; see
    /// [`Guard::on_lost`].
    pub fn on_lost(&self, callback: impl FnOnce() + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        for guard in &self.guards {
            let callback = callback.clone();
            guard.on_lost(move || {
                let first = callback.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(callback) = first {
                    callback();
                }
            });
        }
    }

    /// Returns a future that is ready when the first of them is lost, about to be lost, or released; see
    /// [`Guard::lost`]. It is cancel-safe: dropping it ends the notification only.
    pub fn lost(&self) -> impl Future<Output = LockEnd> + Send + use<> {
        LostSet { each: self.guards.iter().map(Guard::lost).collect() }
    }

    /// Releases all of them, with one write for each master, and waits until a quorum of masters has
    /// confirmed each. Returns the results, sorted by name.
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, whose release is not confirmed. All releases go on in the
    /// background.
    pub fn release(self) -> Result<Vec<Released>, SetError<ReleaseError>> {
        self.start_release().wait()
    }

    /// Returns the future of [`GuardSet::release`], for tasks. The releases are sent at once.
    ///
    /// It is cancel-safe: dropping it, at any time, leaves the releases to the background.
    pub fn release_async(
        self,
    ) -> impl Future<Output = Result<Vec<Released>, SetError<ReleaseError>>> + Send + use<> {
        self.start_release()
    }

    /// Leaves all of them to the end of their TTL; see [`Guard::leave`].
    ///
    /// # Errors
    /// [`SetError`] names the first lock, by name, that was lost. The others are left.
    pub fn leave(mut self) -> Result<(), SetError<LeaveError>> {
        let mut left = Ok(());
        for guard in std::mem::take(&mut self.guards) {
            let name = Bytes::copy_from_slice(guard.resource());
            left = left.and(guard.leave().map_err(|error| SetError::new(name, error)));
        }
        left
    }

    fn start_release(mut self) -> ReleaseSet {
        let names: Vec<Bytes> = self.resources().map(Bytes::copy_from_slice).collect();
        let guards = std::mem::take(&mut self.guards);
        let releasing = match guards.first().map(|guard| guard.client().clone()) {
            Some(client) => client.release_all(guards),
            None => Vec::new(),
        };
        let pending = names.into_iter().zip(releasing).collect();
        ReleaseSet { pending, released: Vec::new(), failed: None }
    }
}

impl ExtendSet<'_> {
    fn wait(mut self) -> Result<(), SetError<ExtendError>> {
        match self.resolve(How::Thread) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }

    fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<(), SetError<ExtendError>>> {
        while let Some((name, extend)) = self.pending.last_mut() {
            if let Err(source) = std::task::ready!(extend.resolve(how)) {
                self.failed = Some(SetError::new(std::mem::take(name), source));
            }
            self.pending.pop();
        }
        Poll::Ready(self.failed.take().map_or(Ok(()), Err))
    }
}

impl Future for ExtendSet<'_> {
    type Output = Result<(), SetError<ExtendError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.resolve(How::Task(context))
    }
}

impl ReleaseSet {
    fn wait(mut self) -> Result<Vec<Released>, SetError<ReleaseError>> {
        match self.resolve(How::Thread) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a thread waits until it is over"),
        }
    }

    fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<Vec<Released>, SetError<ReleaseError>>> {
        // From the last, so that the error that stays is that of the first.
        while let Some((name, release)) = self.pending.last_mut() {
            match std::task::ready!(release.resolve(how)) {
                Ok(released) => self.released.push(released),
                Err(source) => {
                    self.failed = Some(SetError::new(std::mem::take(name), source));
                }
            }
            self.pending.pop();
        }
        let mut released = std::mem::take(&mut self.released);
        released.reverse();
        Poll::Ready(self.failed.take().map_or(Ok(released), Err))
    }
}

impl Future for ReleaseSet {
    type Output = Result<Vec<Released>, SetError<ReleaseError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.resolve(How::Task(context))
    }
}

impl Future for LostSet {
    type Output = LockEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LockEnd> {
        // Each is polled, so that each has the waker.
        let mut end = self.each.is_empty().then_some(LockEnd::Released);
        for lost in &mut self.each {
            match Pin::new(lost).poll(context) {
                Poll::Ready(LockEnd::Lost) => end = Some(LockEnd::Lost),
                Poll::Ready(LockEnd::Released) => end = end.or(Some(LockEnd::Released)),
                Poll::Pending => {}
            }
        }
        end.map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for GuardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
