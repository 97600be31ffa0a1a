//! A client process: its engine, its connections, and an application that requests locks at random.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::Config;
use redlatch::engine::{Engine, OpId, Outcome};

use crate::clock::{Clock, Time};
use crate::owners::Owner;
use crate::queries::Query;
use crate::sets::SetWorker;
use crate::slots::SlotWorker;
use crate::tasks::Tasks;

pub struct Client {
    /// Also for the next process.
    pub config: Arc<Config>,
    pub engine: Engine,
    pub clock: Clock,
    /// Its wall clock at true time zero, in microseconds since 1970.
    pub wall_us: u64,
    /// Number of its crashes.
    pub life: u32,
    /// Present connection to each master, then the connections for messages.
    pub conns: Vec<Option<usize>>,
    /// Places in `conns` of accepted connections, as bits.
    pub accepted: u64,
    /// Whether something has arrived since the last read.
    pub has_arrivals: bool,
    /// Whether its last write over some connection took only a part of the bytes.
    pub is_cut_short: bool,
    pub is_down: bool,
    pub paused_until: Time,
    /// When its clock was suspended.
    pub suspended_at: Option<Time>,
    /// When its next turn is due, and its place among events of that time.
    pub wake_at: Time,
    pub wake_order: u64,
    /// Next step of the present turn.
    pub step: usize,
    pub turn_began: Time,
    /// Each link's state at the last look.
    pub link_states: Vec<LinkState>,
    /// Number of acquisitions that its engine accepted.
    pub taken_count: u64,
    pub locks: Vec<(OpId, Lock)>,
    pub workers: Vec<Worker>,
    pub queries: Vec<Query>,
    /// When the next query is drawn.
    pub query_due: Time,
    pub sets: Vec<SetWorker>,
    pub slots: Vec<SlotWorker>,
    pub owners: Vec<Owner>,
    /// Its `Client`, with tasks as callers; `None` if it is used like `Redlock`.
    pub tasks: Option<Tasks>,
    /// Outcomes that no worker took.
    pub outcomes: VecDeque<(OpId, Outcome)>,
}

/// State of a link, for statistics.
#[derive(Debug, Clone, Copy)]
pub enum LinkState {
    Down,
    Connecting,
    Ready,
    Quarantined,
    Silent,
    Other,
}

impl LinkState {
    pub const NAMES: [&str; 6] = ["down", "connecting", "ready", "quarantined", "silent", "other"];
}

/// A lock as the application sees it.
pub struct Lock {
    pub key: Vec<u8>,
    pub ttl: Duration,
    /// The awaited answer, and its deadline on the client's clock.
    pub pending: Option<(Pending, Instant)>,
    /// False after a release that nobody awaits.
    pub is_held: bool,
    pub is_shared: bool,
    pub is_kept: bool,
    /// Whether the lock was far from its end when its loss report was last requested.
    pub is_watched_in_time: bool,
    /// When its loss was reported.
    pub loss_notified_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pending {
    Acquire,
    Extend,
    Release,
}

/// A thread of the application: acquires a lock, holds it, may extend it, and ends it.
#[derive(Debug, Clone, Copy)]
pub struct Worker {
    pub lock: Option<OpId>,
    /// Time of its next action.
    pub due: Time,
}

impl Client {
    pub fn lock(&mut self, id: OpId) -> Option<&mut Lock> {
        self.locks.iter_mut().find(|(lock, _)| *lock == id).map(|(_, lock)| lock)
    }

    pub fn forget(&mut self, id: OpId) {
        self.locks.retain(|(lock, _)| *lock != id);
    }
}
