//! The background thread of a client, and a drive that replaces it.

use std::task::Waker;
use std::thread::ThreadId;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Background {
    pub(super) waker: Waker,
    pub(super) thread: Option<ThreadId>,
    /// End of the thread's sleep; `None` while it does not sleep, or leads.
    pub(super) sleeps_until: Option<Option<Instant>>,
    /// Whether to lead although nobody waits: the last caller was a task, and the next caller probably is
    /// one, too.
    pub(super) is_favoured: bool,
    /// Leads in place of the thread.
    pub(super) drive: Option<Driving>,
}

/// State of a [`Drive`](super::background::Drive).
#[derive(Debug)]
pub(super) struct Driving {
    /// Wakes the drive for its next turn.
    pub(super) waker: Waker,
    /// Whether something was left for it to do.
    pub(super) has_unsent: bool,
    /// Whether the background thread watches the drive's deadlines, and leads while the drive is late. Such a
    /// drive belongs to a runtime, which its user may block.
    pub(super) is_watched: bool,
    /// Time from which a watched drive counts as late, [`DRIVE_LATE`](crate::limits::DRIVE_LATE) ahead. Set when a
    /// task waits, cleared by each turn.
    pub(super) late_at: Option<Instant>,
}

impl Driving {
    pub(super) fn new(is_watched: bool) -> Self {
        Self { waker: Waker::noop().clone(), has_unsent: false, is_watched, late_at: None }
    }
}

impl Background {
    /// Waker of the thread or drive that handles deadlines.
    pub(super) fn keeper(&self) -> &Waker {
        self.drive.as_ref().filter(|drive| !drive.is_watched).map_or(&self.waker, |drive| &drive.waker)
    }
}
