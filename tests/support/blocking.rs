//! Blocking calls for one lock, on the thread of a [`Redlock`].
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redlatch::engine::{HolderLabel, OpId, Outcome, Request, Resource};
use redlatch::error::LeaveError;
use redlatch::{
    AcquireError, Config, ConnectError, ExtendError, FencingToken, HeldLocks, Left, Options, Redlock,
    ReleaseError, Released, Token, limits,
};

/// A [`Redlock`] with blocking calls.
#[derive(Debug)]
pub struct Blocking {
    redlock: Redlock,
    /// Outcomes of other operations, which arrived while a call waited for its own.
    set_aside: VecDeque<(OpId, Outcome)>,
    dropped: Arc<Mutex<Vec<OpId>>>,
    last_turn: Instant,
}

/// A request for one lock.
#[derive(Debug)]
pub struct LeaseRequest<'a> {
    blocking: &'a mut Blocking,
    name: Vec<u8>,
    options: Options,
    label: Option<&'static str>,
}

/// A held lock. The first turn after its drop releases it.
#[derive(Debug)]
pub struct Lease {
    lock: OpId,
    token: Token,
    fencing_token: Option<FencingToken>,
    valid_until: Instant,
    dropped: Option<Arc<Mutex<Vec<OpId>>>>,
}

impl Blocking {
    pub fn open(config: Config) -> Result<Self, ConnectError> {
        let redlock = Redlock::open(config)?;
        Ok(Self { redlock, set_aside: VecDeque::new(), dropped: Arc::default(), last_turn: Instant::now() })
    }

    pub fn lock(&mut self, name: impl AsRef<[u8]>) -> LeaseRequest<'_> {
        LeaseRequest { blocking: self, name: name.as_ref().to_vec(), options: Options::new(), label: None }
    }

    pub fn extend(&mut self, lease: &mut Lease, ttl: Duration) -> Result<(), ExtendError> {
        let lock = lease.lock;
        let result = match self.submit(Request::Extend { lock, ttl }) {
            Ok(_) => match self.outcome_of(lock) {
                Outcome::Extend(result) => result.map(drop),
                other => unreachable!("{other:?}"),
            },
            Err(_) => Err(ExtendError::NotHeld),
        };
        // Read after an error, too: the TTL may have become shorter, and a lost lock has ended.
        lease.valid_until = self.valid_until(lock).unwrap_or(lease.valid_until);
        result
    }

    pub fn release(&mut self, mut lease: Lease) -> Result<Released, ReleaseError> {
        lease.dropped = None;
        self.submit(Request::Release { lock: lease.lock, awaited: true }).expect("it is always taken");
        match self.outcome_of(lease.lock) {
            Outcome::Release(result) => result,
            other => unreachable!("{other:?}"),
        }
    }

    pub fn leave_for(&mut self, mut lease: Lease, rest: Duration) -> Result<Left, LeaveError> {
        self.submit(Request::LeaveFor { lock: lease.lock, rest }).expect("it is always taken");
        match self.outcome_of(lease.lock) {
            Outcome::Leave(Ok(left)) => {
                lease.dropped = None;
                Ok(left)
            }
            Outcome::Leave(Err(error)) => Err(error),
            other => unreachable!("{other:?}"),
        }
    }

    pub fn margin(&self, lease: &Lease) -> usize {
        self.redlock.margin(lease.lock)
    }

    pub fn poll_outcome(&mut self) -> Option<(OpId, Outcome)> {
        self.set_aside.pop_front().or_else(|| self.redlock.poll_outcome())
    }

    pub fn turn(&mut self, limit: Duration) -> io::Result<()> {
        self.release_dropped();
        self.last_turn = Instant::now();
        self.redlock.turn(if self.set_aside.is_empty() { limit } else { Duration::ZERO })
    }

    pub fn flush(&mut self) {
        self.release_dropped();
        self.redlock.flush();
    }

    pub fn drain(mut self, limit: Duration, held: HeldLocks) -> usize {
        self.release_dropped();
        self.redlock.drain(limit, held)
    }

    fn release_dropped(&mut self) {
        for lock in self.dropped.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let release = Request::Release { lock, awaited: false };
            self.redlock.submit(release).expect("it is always taken");
        }
    }

    fn outcome_of(&mut self, lock: OpId) -> Outcome {
        loop {
            self.release_dropped();
            while let Some((id, outcome)) = self.redlock.poll_outcome() {
                if id == lock {
                    return outcome;
                }
                self.set_aside.push_back((id, outcome));
            }
            self.redlock.turn(Duration::MAX).expect("the loop runs");
            self.last_turn = Instant::now();
        }
    }

    /// Notices connections that ended while nobody called, and reopens them.
    fn revive(&mut self) {
        let begun = Instant::now();
        let is_idle = begun - self.last_turn >= limits::IDLE_MAX;
        if !is_idle {
            return;
        }
        self.turn(Duration::ZERO).expect("the loop runs");
        while begun.elapsed() < limits::REVIVE_MAX && !self.health().has_quorum {
            self.turn(limits::REVIVE_MAX.saturating_sub(begun.elapsed())).expect("the loop runs");
        }
    }
}

impl LeaseRequest<'_> {
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options = self.options.ttl(ttl);
        self
    }

    pub fn wait(mut self, wait: Duration) -> Self {
        self.options = self.options.wait(wait);
        self
    }

    pub fn fenced(mut self) -> Self {
        self.options = self.options.fenced();
        self
    }

    pub fn fair(mut self) -> Self {
        self.options = self.options.fair();
        self
    }

    pub fn shared(mut self) -> Self {
        self.options = self.options.shared();
        self
    }

    pub fn holder_label(mut self, label: &'static str) -> Self {
        self.label = Some(label);
        self
    }

    pub fn try_acquire(self) -> Result<Lease, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    pub fn acquire(self) -> Result<Lease, AcquireError> {
        let Self { blocking, name, options, label } = self;
        blocking.revive();
        let (resource, label) = (Resource::new(&name)?, label.map(HolderLabel::new).transpose()?);
        let lock = blocking.submit(Request::Acquire { resource, options, label })?;
        let Outcome::Acquire(result) = blocking.outcome_of(lock) else {
            unreachable!("it is an acquisition")
        };
        result.map(|grant| Lease {
            lock,
            token: grant.token,
            fencing_token: grant.fencing_token,
            valid_until: grant.valid_until,
            dropped: Some(blocking.dropped.clone()),
        })
    }
}

impl Deref for Blocking {
    type Target = Redlock;

    fn deref(&self) -> &Redlock {
        &self.redlock
    }
}

impl DerefMut for Blocking {
    fn deref_mut(&mut self) -> &mut Redlock {
        &mut self.redlock
    }
}

impl Lease {
    pub const fn id(&self) -> OpId {
        self.lock
    }

    pub const fn token(&self) -> Token {
        self.token
    }

    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    pub const fn valid_until(&self) -> Instant {
        self.valid_until
    }

    pub fn remaining(&self) -> Duration {
        self.valid_until.saturating_duration_since(Instant::now())
    }

    pub fn is_valid(&self) -> bool {
        Instant::now() < self.valid_until
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.lock);
        }
    }
}
