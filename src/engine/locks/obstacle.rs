//! Masters' reports about the key in the way of an acquisition: with a refusal, as the answer to a question,
//! or for a round in their queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::{HolderTtl, MasterId};

/// What is known about the holder in the way of an acquisition.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// The key's times left, and when each was reported.
    reports: Vec<(MasterId, HolderTtl, Instant)>,
    /// Lower bound of the number of readers that have the lock, from the masters' answers.
    pub(crate) readers: usize,
    /// The holder's label, as last reported by a master.
    pub(crate) label: Option<Arc<str>>,
}

impl Obstacle {
    pub(crate) const NONE: Self = Self { reports: Vec::new(), readers: 0, label: None };

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        (self.readers, self.label) = (0, None);
    }

    /// Forgets the times for the next attempt's reports. The readers and the label stay until an answer
    /// changes them, because a wait may end before the last answer.
    pub(crate) fn clear_times(&mut self) {
        self.reports.clear();
    }

    /// Notes a master's report of the key's time left.
    pub(crate) fn note(&mut self, now: Instant, master: MasterId, holder: HolderTtl) {
        self.reports.push((master, holder, now));
    }

    /// Whether this master has reported a time.
    pub(crate) fn has_report_of(&self, master: MasterId) -> bool {
        self.reports.iter().any(|(other, ..)| *other == master)
    }

    pub(crate) const fn is_reported(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Returns the times left at `now`.
    pub(crate) fn times(&self, now: Instant) -> impl Iterator<Item = (MasterId, HolderTtl)> {
        self.reports.iter().map(move |(master, holder, at)| {
            let holder = match holder {
                HolderTtl::Left(left) => HolderTtl::Left(left.saturating_sub(now.duration_since(*at))),
                other => *other,
            };
            (*master, holder)
        })
    }

    /// Returns the shortest time left at `now`.
    pub(crate) fn least_left(&self, now: Instant) -> Option<Duration> {
        let left = |(_, holder)| match holder {
            HolderTtl::Left(left) => Some(left),
            _ => None,
        };
        self.times(now).filter_map(left).min()
    }
}
