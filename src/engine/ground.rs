//! What every part and flow of an engine uses: settings, time, randomness, deadlines, outcomes, statistics
//! and events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::locks::renewal::Ticks;
use super::locks::slab::Id;
use super::locks::terms::{Pace, Terms};
use super::masters::wall_clock::WallClock;
use super::request::{OpId, Outcome, SubmitError};
use super::stats::{Events, Stats};
use super::timers::Timers;
use crate::config::Config;
use crate::error::AcquireError;
use crate::event::Event;
use crate::lock::{Resource, quorum};

#[derive(Debug)]
pub(super) struct Ground {
    pub(super) config: Arc<Config>,
    /// Time of the latest call that may change operations, claims or connections.
    pub(super) now: Instant,
    pub(super) rng: StdRng,
    pub(super) timers: Timers,
    pub(super) outcomes: VecDeque<(OpId, Outcome)>,
    /// Counters and times. Values kept elsewhere are filled in for a snapshot.
    pub(super) stats: Stats,
    pub(super) events: Events,
    pub(super) pace: Pace,
    pub(super) ticks: Ticks,
    /// Terms of the latest acquisition, shared by all locks of one TTL.
    pub(super) terms: Terms,
    /// The clock for drawing fencing tokens.
    pub(super) wall_clock: WallClock,
}

impl Ground {
    pub(super) fn new(config: Arc<Config>, seed: [u8; 32], now: Instant) -> Self {
        let is_observed = config.observer.is_some();
        Self {
            now,
            rng: StdRng::from_seed(seed),
            timers: Timers::default(),
            outcomes: VecDeque::new(),
            stats: Stats { quorum: quorum(config.master_count()), ..Stats::default() },
            events: Events::new(is_observed),
            pace: Pace::new(now, is_observed),
            ticks: Ticks { started: now },
            terms: Terms::NONE,
            wall_clock: WallClock::unset(now),
            config,
        }
    }

    #[inline]
    pub(super) fn report_outcome(&mut self, id: Id, outcome: Outcome) {
        self.outcomes.push_back((OpId(id), outcome));
    }

    /// Counts and reports an acquisition that finds no room.
    #[cold]
    pub(super) fn refuse_acquisition(&mut self, resource: Resource<'_>) -> SubmitError {
        self.stats.overloaded += 1;
        self.events.push(|| {
            let resource = Bytes::copy_from_slice(resource.as_bytes());
            Event::Denied { resource, error: AcquireError::Overloaded }
        });
        SubmitError::Overloaded
    }
}
