//! One of K slots: a lock with a number, of which at most K are held.
//!
//! [`crate::compose::slot_acquisition`] decides which slot to try, when to search for free slots, and what to wait
//! for. This module carries out its steps. Each slot is an ordinary lock of the client, and so is the *door*
//! at which callers queue.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::compose;
use crate::compose::slot_acquisition::{self, SlotAcquisition, SlotStep};
use crate::engine::Resource;
use crate::options::{auto_extend_method, option_methods, request_methods, time_methods};
use crate::{Acquire, AcquireError, Cancel, Client, FreeSlots, Guard, LockName, LockRequest};
use crate::{Options, Pause, Release, ReleaseError, Released};

/// Request for one of several slots; made by [`Client::slots`]. Sends nothing before an acquire call. Owns
/// its data: it can be stored, sent to another thread and spawned.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before one of the acquire calls"]
pub struct SlotsRequest {
    client: Client,
    pool: Bytes,
    count: u32,
    options: Options,
    label: Option<Cow<'static, str>>,
    cancel: Option<Cancel>,
}

impl Client {
    /// Returns a request for one of the `count` slots of the pool of this name, 1 to 1,024
    /// ([`SLOT_COUNT_MAX`](crate::limits::SLOT_COUNT_MAX)); see [`LockName`]. At most `count` callers are
    /// inside at a time, and each has a number that no other caller has: a worker id, a shard, a port.
    ///
    /// Each slot is a lock, and promises what a lock promises. All callers of a pool must give the same
    /// `count`. A caller with a smaller `count` gets only lower numbers, while the holders of higher numbers
    /// stay until they release.
    ///
    /// A slot takes one round trip if the first slot tried is free, usually two otherwise, and at most five
    /// (eight for a fenced slot) before the caller first waits or pauses. Waiting callers get slots in the
    /// order in which they began to wait. The page
    /// [slots](https://docs.rs/crate/redlatch/latest/source/docs/slots.md) lists the costs.
    ///
    /// ```no_run
    /// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
    /// let slot = client.slots("migrations", 3).acquire()?; // at most three at once
    /// println!("this is number {}", slot.slot());
    /// // … work while slot.is_valid() …
    /// drop(slot); // released in the background
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slots<'n>(&self, pool: impl Into<LockName<'n>>, count: u32) -> SlotsRequest {
        let (client, pool) = (self.clone(), pool.into().into_shared());
        SlotsRequest { client, pool, count, options: Options::new(), label: None, cancel: None }
    }
}

impl SlotsRequest {
    time_methods!(options);
    request_methods!('static, Cancel::clone);
    auto_extend_method!(options);

    /// Tries to get a slot without waiting: one attempt, and up to three more if other callers are faster at
    /// a free slot. While simultaneous callers keep each other from a free slot, it searches again after a
    /// random pause of at most 50 ms: at most 8 times, and within the answer limit of the TTL
    /// ([`Config::answer_limit`](crate::Config::answer_limit)).
    ///
    /// # Errors
    /// [`AcquireError`]. [`AcquireError::Contended`] means that no slot was free on a quorum at the last
    /// search: [`HeldBy::Slots`](crate::error::HeldBy::Slots), with the known holders, or
    /// [`HeldBy::SlotRivals`](crate::error::HeldBy::SlotRivals) if the repeated searches were used up. Shared
    /// and fair slots are [`AcquireError::Input`], and so is a number of slots of 0 or above 1,024.
    pub fn try_acquire(self) -> Result<SlotGuard, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Returns the future of [`SlotsRequest::try_acquire`], for tasks. [`AcquireSlot`] says what dropping it
    /// does.
    pub fn try_acquire_async(self) -> AcquireSlot {
        self.wait(Duration::ZERO).acquire_async()
    }

    /// Gets a slot, and waits for one until the wait is over, by default one TTL.
    ///
    /// # Errors
    /// As [`SlotsRequest::try_acquire`].
    pub fn acquire(self) -> Result<SlotGuard, AcquireError> {
        let client = self.client.clone();
        client.block_on(self.acquire_async())?
    }

    /// Returns the future of [`SlotsRequest::acquire`], for tasks. [`AcquireSlot`] says what dropping it
    /// does.
    pub const fn acquire_async(self) -> AcquireSlot {
        AcquireSlot { request: self, acquisition: None, asking: Asking::Nothing }
    }

    /// Returns the request for one of the pool's locks.
    fn lock(&self, name: LockName<'static>, options: Options) -> LockRequest<'static> {
        let request = self.client.lock_owned(name).options(options);
        compose::with_label(request, self.label.as_ref(), self.cancel.as_ref())
    }

    fn slot(&self, slot: u32, wait: Duration) -> (u32, Acquire<'static>) {
        // The acquisition counts its own tries.
        let options = Options { max_attempts: None, wait: Some(wait), ..self.options };
        (slot, self.lock(LockName::of_slot(&self.pool, slot), options).acquire_async())
    }

    fn look(&self, from: u32) -> FreeSlots {
        let look = self.client.free_slots(self.pool.clone(), self.count, from);
        match &self.cancel {
            Some(cancel) => look.cancel_with(cancel),
            None => look,
        }
    }

    fn pause(&self, time: Duration) -> Pause {
        let pause = self.client.pause(time);
        match &self.cancel {
            Some(cancel) => pause.cancel_with(cancel),
            None => pause,
        }
    }
}

/// Acquisition of a slot under way: a future for any executor; made by [`SlotsRequest::acquire_async`].
///
/// Sends nothing before its first poll. Cancel-safe: dropping it gives up the slot and the place among the
/// waiters. Everything acquired so far is released in the background.
#[must_use = "nothing is acquired before this is awaited"]
#[derive(Debug)]
pub struct AcquireSlot {
    request: SlotsRequest,
    /// `None` before the first step. Dropping it drops the door's guard, which releases the door.
    acquisition: Option<SlotAcquisition<Guard>>,
    asking: Asking,
}

#[derive(Debug)]
enum Asking {
    Slots(AskingSlots),
    Door(Acquire<'static>),
    Pause(Pause),
    Nothing,
}

/// Requested slots, and a search for free slots.
#[derive(Debug)]
struct AskingSlots {
    slots: Vec<(u32, Acquire<'static>)>,
    look: Option<FreeSlots>,
    is_sent: bool,
}

impl AcquireSlot {
    /// Returns the error with which the acquisition would end now, like [`Acquire::last_failure`]. `None`
    /// also while a slot may be free.
    #[must_use]
    pub fn last_failure(&self) -> Option<AcquireError> {
        self.acquisition.as_ref()?.failed(clock::now())
    }

    /// Carries out steps until an answer is missing.
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<SlotGuard, AcquireError>> {
        loop {
            let step = match (&mut self.acquisition, &mut self.asking) {
                (None, _) => match self.begin() {
                    Ok(step) => step,
                    Err(error) => return Poll::Ready(Err(error)),
                },
                (Some(acquisition), Asking::Slots(asking)) => {
                    std::task::ready!(asking.resolve(acquisition, &self.request.client, context))
                }
                (Some(acquisition), Asking::Door(door)) => {
                    let door = std::task::ready!(Pin::new(door).poll(context));
                    acquisition.entered(clock::now(), door)
                }
                (Some(acquisition), Asking::Pause(pause)) => {
                    let paused = std::task::ready!(Pin::new(pause).poll(context));
                    acquisition.paused(clock::now(), paused)
                }
                (Some(_), Asking::Nothing) => panic!("polled after it was ready"),
            };
            // The drop gives up what the last step left under way. Its releases go out with the next step's
            // requests.
            self.asking = Asking::Nothing;
            let request = &self.request;
            self.asking = match step {
                SlotStep::Try { slot, from } => {
                    AskingSlots::begin([request.slot(slot, Duration::ZERO)], Some(request.look(from)))
                }
                SlotStep::Stand(slots, wait) => {
                    AskingSlots::begin(slots.into_iter().map(|slot| request.slot(slot, wait)), None)
                }
                SlotStep::Look(from) => AskingSlots::begin([], Some(request.look(from))),
                SlotStep::Enter(left) => {
                    let options = slot_acquisition::door_options(request.client.config(), left);
                    Asking::Door(request.lock(LockName::of_door(&request.pool), options).acquire_async())
                }
                SlotStep::Pause(time) => Asking::Pause(request.pause(time)),
                SlotStep::Held(slot, guard) => {
                    self.leave_door();
                    return Poll::Ready(Ok(SlotGuard { guard, slot, pool: self.request.pool.clone() }));
                }
                SlotStep::Failed(error) => {
                    self.leave_door();
                    return Poll::Ready(Err(error));
                }
            };
        }
    }

    fn begin(&mut self) -> Result<SlotStep<Guard>, AcquireError> {
        let SlotsRequest { client, pool, count, options, .. } = &self.request;
        slot_acquisition::check(*count, options)?;
        // The pool's name must be valid as a lock's name.
        Resource::new(pool)?;
        // Any seed will do: the choice among slots is no secret.
        let seed = RandomState::new().hash_one(pool);
        let (acquisition, step) =
            SlotAcquisition::begin(clock::now(), client.config(), *count, options, seed);
        self.acquisition = Some(acquisition);
        Ok(step)
    }

    /// Releases the door at once, for the next waiter.
    fn leave_door(&mut self) {
        // The acquisition stays, so that a poll after the end does not begin another.
        let door = self.acquisition.as_mut().and_then(SlotAcquisition::take_door);
        drop(self.request.client.release_all(door));
    }
}

impl AskingSlots {
    fn begin(slots: impl IntoIterator<Item = (u32, Acquire<'static>)>, look: Option<FreeSlots>) -> Asking {
        Asking::Slots(Self { slots: slots.into_iter().collect(), look, is_sent: false })
    }

    /// Takes answers until there is a next step. Sends all requests with one write for each master.
    fn resolve(
        &mut self,
        acquisition: &mut SlotAcquisition<Guard>,
        client: &Client,
        context: &mut Context<'_>,
    ) -> Poll<SlotStep<Guard>> {
        if std::mem::replace(&mut self.is_sent, true) {
            return self.poll(acquisition, context);
        }
        client.batch(|| self.poll(acquisition, context))
    }

    fn poll(
        &mut self,
        acquisition: &mut SlotAcquisition<Guard>,
        context: &mut Context<'_>,
    ) -> Poll<SlotStep<Guard>> {
        let mut next = None;
        self.slots.retain_mut(|(slot, acquire)| {
            // The drop of the step gives up the slots behind the first granted one.
            if next.is_some() {
                return true;
            }
            let Poll::Ready(answer) = Pin::new(acquire).poll(context) else { return true };
            next = acquisition.tried(clock::now(), *slot, answer);
            false
        });
        if next.is_none()
            && let Some(look) = &mut self.look
            && let Poll::Ready(looked) = Pin::new(look).poll(context)
        {
            self.look = None;
            next = acquisition.looked(clock::now(), looked);
        }
        next.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Future for AcquireSlot {
    type Output = Result<SlotGuard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.advance(context)
    }
}

/// Slot held by a [`Client`]: a [`Guard`] with a number. Dropping it releases the slot in the background,
/// like dropping the guard.
///
/// Dereferences to the guard of the slot's lock: validity, extension, loss, fencing token. The lock's name is
/// `redlatch:slot:NUMBER:POOL`.
#[must_use = "dropping the guard releases the slot"]
pub struct SlotGuard {
    guard: Guard,
    slot: u32,
    pool: Bytes,
}

impl SlotGuard {
    /// Returns the slot's number, counted from 0. No other valid guard of the pool has this number.
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the pool's name, without the configured prefix.
    #[must_use]
    pub fn pool(&self) -> &[u8] {
        &self.pool
    }

    /// Returns the guard of the slot's lock, which releases the slot from now on.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    /// Releases the slot and waits until a quorum of masters has confirmed it; see [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.guard.release()
    }

    /// Returns the future of [`SlotGuard::release`], for tasks. [`Release`] says what dropping it does.
    pub fn release_async(self) -> Release {
        self.guard.release_async()
    }
}

impl Deref for SlotGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl DerefMut for SlotGuard {
    fn deref_mut(&mut self) -> &mut Guard {
        &mut self.guard
    }
}

impl fmt::Debug for SlotGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotGuard")
            .field("pool", &self.pool.escape_ascii().to_string())
            .field("slot", &self.slot)
            .field("remaining", &self.guard.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
