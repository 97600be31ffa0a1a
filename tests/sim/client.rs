//! A client process: its engine, its connections, and an application that takes locks at random.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::Config;
use redlatch::engine::{Engine, OpId, Outcome};

use crate::callers::Callers;
use crate::clock::{Clock, Time};
use crate::owners::Owner;
use crate::queries::Query;
use crate::sets::SetWorker;
use crate::slots::SlotWorker;

pub struct Client {
    /// Of the next process, too.
    pub config: Arc<Config>,
    pub engine: Engine,
    pub clock: Clock,
    /// What its wall clock shows at true time zero, in microseconds since 1970.
    pub wall_us: u64,
    /// Counts its crashes.
    pub life: u32,
    /// The present connection to each master, and behind those the one for news.
    pub conns: Vec<Option<usize>>,
    /// The places in `conns` of those that have been accepted, as bits.
    pub accepted: u64,
    /// Something has arrived since its connections were read last.
    pub has_arrivals: bool,
    /// Its last write over some connection took only a part of the bytes.
    pub is_cut_short: bool,
    pub is_down: bool,
    pub paused_until: Time,
    /// Since when its clock stands still.
    pub suspended_at: Option<Time>,
    /// When its next turn is due, and its place among the events of that time.
    pub wake_at: Time,
    pub wake_order: u64,
    /// The next step of the turn under way.
    pub step: usize,
    pub turn_began: Time,
    /// The state of each link when it was looked at last.
    pub link_states: Vec<LinkState>,
    /// Acquisitions that its engine has taken.
    pub taken_count: u64,
    pub locks: Vec<(OpId, Lock)>,
    pub workers: Vec<Worker>,
    pub queries: Vec<Query>,
    /// When the next is drawn.
    pub query_due: Time,
    pub sets: Vec<SetWorker>,
    pub slots: Vec<SlotWorker>,
    pub owners: Vec<Owner>,
    /// Callers at its completion table; `None` if it is used the way of `Redlock`.
    pub callers: Option<Callers>,
    /// Outcomes that no worker took.
    pub outcomes: VecDeque<(OpId, Outcome)>,
}

/// The state of a link, as it is counted.
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

/// A lock as the application knows it.
pub struct Lock {
    pub key: Vec<u8>,
    pub ttl: Duration,
    /// What is waited for, and until when by the client's clock.
    pub pending: Option<(Pending, Instant)>,
    /// A release not waited for was submitted, and nothing more will come.
    pub is_held: bool,
    pub is_shared: bool,
    pub is_kept: bool,
    /// When its loss was asked to be reported last, it was not over nor nearly so.
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

/// A thread of the application: takes a lock, holds it, extends it perhaps, lets it go.
#[derive(Debug, Clone, Copy)]
pub struct Worker {
    pub lock: Option<OpId>,
    /// When it does something next.
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
