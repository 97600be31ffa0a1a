//! The event loop of a client on somebody else's: its background's work without its background's thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use mio::Registry;

use super::shared::Shared;
use crate::clock;

/// Driver of a [`crate::Client`]'s event loop from an event loop of your own, in place of the client's
/// background thread; made by [`crate::Client::drive`].
///
/// With it an answer reaches a task without a hand-over between threads, and requests of many tasks of one
/// executor share a write.
///
/// 1. Watch the descriptor ([`AsFd`]) for input. It is edge-triggered: note that it has become readable
///    *before* the call that follows.
/// 2. Call [`Drive::turn`] at the start, when the descriptor is readable, at the time that the last call
///    returned, and when its waker is called.
///
/// A call never waits. While a thread waits in a blocking call, that thread may drive, and a turn does
/// nothing. Dropping the drive gives the work back to the client's background thread. A drive is no handle:
/// it ends when the last handle is dropped.
#[derive(Debug)]
pub struct Drive {
    shared: Arc<Shared>,
    /// Keeps the descriptor open.
    registry: Registry,
}

/// Error of a [`Drive`] whose client was dropped or has stopped, or whose second drive was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has ended; drop the drive too")]
#[non_exhaustive]
pub struct DriveEnded;

impl Drive {
    pub(super) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let registry = shared.begin_drive()?;
        Ok(Self { shared, registry })
    }

    /// Reads, writes and does all that is due, without waiting. Returns the time of the next turn if nothing
    /// happens before, to be compared with [`Instant::now`]. Calls `waker` if a turn is needed sooner.
    ///
    /// # Errors
    /// [`DriveEnded`]; drop the drive then.
    pub fn turn(&mut self, waker: &Waker) -> Result<Option<Instant>, DriveEnded> {
        let due = self.shared.drive(waker).ok_or(DriveEnded)?;
        Ok(due.map(clock::to_std))
    }
}

impl AsFd for Drive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.registry.as_fd()
    }
}

impl AsRawFd for Drive {
    fn as_raw_fd(&self) -> RawFd {
        self.registry.as_raw_fd()
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.shared.end_drive();
    }
}
