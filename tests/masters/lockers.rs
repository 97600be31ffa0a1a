//! The contests' common interface to the crate's kinds of clients.

use std::time::{Duration, Instant};

use redlatch_support::settle;
use redlatch_support::{Blocking, Lease};

use redlatch::status::MasterStatus;
use redlatch::{AcquireError, Client, ExtendError, Guard, HeldLocks, LockRequest, ReleaseError, Released};

/// The handle with which contestants lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Each contestant has its own `Redlock`.
    Redlock,
    /// Two contestants share a `Client`: a blocking thread, and a task.
    Client,
}

/// Mode of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    Fair,
    Fenced,
    Shared,
}

pub(crate) enum Locker {
    Redlock(Box<Blocking>),
    Thread(Client),
    Task(Client),
}

pub(crate) enum Held {
    Lease(Lease),
    Guard(Guard),
}

impl Locker {
    pub(crate) fn acquire(
        &mut self,
        name: &str,
        ttl: Duration,
        wait: Duration,
        mode: Mode,
    ) -> Result<Held, AcquireError> {
        match self {
            Self::Redlock(redlock) => {
                let request = redlock.lock(name).ttl(ttl).wait(wait);
                let request = match mode {
                    Mode::Plain => request,
                    Mode::Fair => request.fair(),
                    Mode::Fenced => request.fenced(),
                    Mode::Shared => request.shared(),
                };
                request.acquire().map(Held::Lease)
            }
            Self::Thread(client) => {
                request(client, name, mode).ttl(ttl).wait(wait).acquire().map(Held::Guard)
            }
            Self::Task(client) => {
                let request = request(client, name, mode).ttl(ttl).wait(wait);
                smol::block_on(request.acquire_async()).map(Held::Guard)
            }
        }
    }

    pub(crate) fn extend(&mut self, held: &mut Held, ttl: Duration) -> Result<(), ExtendError> {
        match (self, held) {
            (Self::Redlock(redlock), Held::Lease(lease)) => redlock.extend(lease, ttl),
            (Self::Task(_), Held::Guard(guard)) => smol::block_on(guard.extend_async(ttl)),
            (_, Held::Guard(guard)) => guard.extend(ttl),
            (_, Held::Lease(_)) => unreachable!("a lease belongs to a Redlock"),
        }
    }

    pub(crate) fn release(&mut self, held: Held) -> Result<Released, ReleaseError> {
        match (self, held) {
            (Self::Redlock(redlock), Held::Lease(lease)) => redlock.release(lease),
            (Self::Task(_), Held::Guard(guard)) => smol::block_on(guard.release_async()),
            (_, Held::Guard(guard)) => guard.release(),
            (_, Held::Lease(_)) => unreachable!("a lease belongs to a Redlock"),
        }
    }

    /// Lets time pass, and drives a client that has no thread.
    pub(crate) fn turn(&mut self, limit: Duration) {
        match self {
            Self::Redlock(redlock) => redlock.turn(limit).expect("the loop runs"),
            Self::Thread(_) | Self::Task(_) => std::thread::sleep(limit),
        }
    }

    pub(crate) fn masters(&self) -> Vec<MasterStatus> {
        match self {
            Self::Redlock(redlock) => redlock.masters(),
            Self::Thread(client) | Self::Task(client) => client.masters(),
        }
    }

    /// Waits until all locks are released. Returns the number of locks that are not.
    pub(crate) fn close(self, limit: Duration) -> usize {
        match self {
            Self::Redlock(redlock) => redlock.drain(limit, HeldLocks::Leave),
            Self::Thread(client) | Self::Task(client) => settle(&client, limit),
        }
    }
}

fn request<'a>(client: &'a Client, name: &'a str, mode: Mode) -> LockRequest<'a> {
    match mode {
        Mode::Plain => client.rw_lock(name).write(),
        Mode::Fair => client.lock(name).fair(),
        Mode::Fenced => client.lock(name).fenced(),
        Mode::Shared => client.rw_lock(name).read(),
    }
}

impl Held {
    pub(crate) fn fencing_token(&self) -> Option<u64> {
        let token = match self {
            Self::Lease(lease) => lease.fencing_token(),
            Self::Guard(guard) => guard.fencing_token(),
        };
        token.map(u64::from)
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Lease(lease) => lease.is_valid(),
            Self::Guard(guard) => guard.is_valid(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Lease(lease) => lease.remaining(),
            Self::Guard(guard) => guard.remaining(),
        }
    }

    pub(crate) fn valid_until(&self) -> Instant {
        match self {
            Self::Lease(lease) => lease.valid_until(),
            Self::Guard(guard) => guard.valid_until(),
        }
    }
}
