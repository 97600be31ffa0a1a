//! What masters reported of the key in the way of an acquisition: with a refusal, as the answer to a question,
//! or to a round that waits in their queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::{HolderTtl, MasterId};

/// The holder in the way of an acquisition, as far as it is known.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// Times left of the key, and when each was reported.
    reports: Vec<(MasterId, HolderTtl, Instant)>,
    /// Readers that have the lock, as far as masters were asked; at least as many do.
    pub(crate) readers: usize,
    /// The holder's label, as a master reported it last.
    pub(crate) label: Option<Arc<str>>,
}

impl Obstacle {
    pub(crate) const NONE: Self = Self { reports: Vec::new(), readers: 0, label: None };

    /// Nothing is known any more.
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        (self.readers, self.label) = (0, None);
    }

    /// Another attempt is reported of. Readers and label are those known before until an answer says otherwise:
    /// a wait may end before the last answer.
    pub(crate) fn clear_times(&mut self) {
        self.reports.clear();
    }

    /// A master reports how long the key lives.
    pub(crate) fn note(&mut self, now: Instant, master: MasterId, holder: HolderTtl) {
        self.reports.push((master, holder, now));
    }

    /// Whether a master has reported it.
    pub(crate) fn has_report_of(&self, master: MasterId) -> bool {
        self.reports.iter().any(|(other, ..)| *other == master)
    }

    pub(crate) const fn is_reported(&self) -> bool {
        !self.reports.is_empty()
    }

    /// The times left now.
    pub(crate) fn times(&self, now: Instant) -> impl Iterator<Item = (MasterId, HolderTtl)> {
        self.reports.iter().map(move |(master, holder, at)| {
            let holder = match holder {
                HolderTtl::Left(left) => HolderTtl::Left(left.saturating_sub(now.duration_since(*at))),
                other => *other,
            };
            (*master, holder)
        })
    }

    /// The shortest time left now.
    pub(crate) fn least_left(&self, now: Instant) -> Option<Duration> {
        let left = |(_, holder)| match holder {
            HolderTtl::Left(left) => Some(left),
            _ => None,
        };
        self.times(now).filter_map(left).min()
    }
}
