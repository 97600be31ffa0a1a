//! Counters and times of an engine, and the observer's event queue.
//!
//! The engine has one [`Stats`], and each link its master's [`MasterStats`]. A snapshot combines them.

pub(crate) mod histogram;
mod prometheus;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use self::histogram::Histogram;
use crate::error::AcquireError;
use crate::event::Event;
use crate::limits;
use crate::lock::{Failure, Vote};

/// Counters, gauges and times of one client since its start: a snapshot from `stats()` of
/// [`Client`](crate::Client), [`Redlock`](crate::Redlock) or [`Engine`](crate::engine::Engine).
///
/// Counters only grow. [`Stats::since`] returns the difference of two snapshots, and [`Stats::to_prometheus`]
/// the text for a scrape. Every accepted acquisition ends as `acquired`, `contended`, `no_quorum`, `expired`,
/// `overloaded` or `abandoned`. Each lock counts separately, including attempts repeated by a set, a
/// candidate or `redlatch run`, but not outcomes fetched too late. Every acquired lock ends as `released`,
/// `left` or `lost`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Acquisitions that got the lock.
    pub acquired: u64,
    /// Acquisitions that ended with [`AcquireError::Contended`].
    pub contended: u64,
    /// Acquisitions that ended with [`AcquireError::NoQuorum`].
    pub no_quorum: u64,
    /// Acquisitions that ended with [`AcquireError::Expired`].
    pub expired: u64,
    /// Acquisitions that ended with [`AcquireError::Overloaded`].
    pub overloaded: u64,
    /// Acquisitions that their caller cancelled, or that a drain ended.
    pub abandoned: u64,
    /// Locks released within their validity.
    pub released: u64,
    /// Locks left to the end of their TTL or for a time. Locks left for zero time count as released.
    pub left: u64,
    /// Locks that ended before their release. A loss proved by masters counts at once, any other loss at the
    /// release.
    pub lost: u64,
    /// Number of times that a held lock was extended, or its loss reported, with at most a tenth of its
    /// validity left. Both together count once.
    pub near_losses: u64,
    /// Successful extensions, including renewals.
    pub extended: u64,
    /// Extensions confirmed by too few masters or too late, including renewals.
    pub extensions_failed: u64,
    /// Attempts after the first one of an acquisition, without hand-overs.
    pub retries: u64,
    /// Swaps sent to pass a lock to the same client's next waiter.
    pub hand_overs: u64,
    /// Messages from masters to waiters: grants, and requests to ask again.
    pub notified: u64,
    /// Keys restored on masters that had missed or lost them while the lock was held.
    pub repairs: u64,
    /// Tokens whose release some master did not confirm. Their keys end with the TTL.
    pub orphans: u64,
    /// Events dropped because the observer was too slow.
    pub events_dropped: u64,
    /// Locks held at the start of counting.
    pub(super) held_before: u64,
    /// The client's label ([`crate::ConfigBuilder::holder_label`]), without the labels of requests.
    pub holder_label: Option<Arc<str>>,
    /// Current requests: locks being acquired, held or released, and queries.
    pub operations: usize,
    /// Tokens that may be on some master now, except those left to their TTL.
    pub claims: usize,
    /// Number of masters that form a quorum.
    pub quorum: usize,
    /// Time from request to grant, of acquired locks: of every lock up to about 1,000 per second or with an
    /// observer, otherwise of one in 64 ([`crate::limits::TIMED_SHARE`]). So its count is not the number of
    /// locks.
    pub acquire_time: Histogram,
    /// Time from request to end, of each acquisition that made several attempts or waited in a queue of its
    /// client or of the masters. Excludes acquisitions that were given up.
    pub wait_time: Histogram,
    /// Time from the start of the successful attempt to the release or loss, of the same locks as
    /// `acquire_time`.
    pub hold_time: Histogram,
    /// Each master, in the order of the configuration.
    pub masters: Vec<MasterStats>,
}

/// Counters and times of one master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterStats {
    /// URL of the master, without the login.
    pub name: Arc<str>,
    /// Whether the master's votes count now: [`MasterState::Ready`](crate::status::MasterState::Ready).
    pub is_ready: bool,
    /// Answers that granted an attempt, including late ones.
    pub granted: u64,
    /// Grants too late to count: the attempt had failed, or the lock was extended or released.
    pub late: u64,
    /// Answers that refused an attempt.
    pub refused: u64,
    /// Errors in answer to attempts.
    pub errors: u64,
    /// Attempts without an answer before their verdict: the master was not connected, silent, or its queue
    /// was full; its connection broke; or it did not answer in time.
    pub unanswered: u64,
    /// Connections that replaced an earlier one.
    pub reconnects: u64,
    /// Number of times that a different process answered, after a restart or in place of the server.
    pub restarts: u64,
    /// Number of times that a credentials provider returned no credentials, or that the server refused them
    /// on an open connection.
    pub credentials_failed: u64,
    /// Number of times that the master's record of the fleet's settings differed from this client's settings.
    pub fleet_differences: u64,
    /// Time for which the master's votes did not count because it may have restarted.
    pub quarantined: Duration,
    /// Time from the queuing of a request to its answer. Sampled: at most one acquisition per
    /// [`limits::ROUND_TRIP_PAUSE`](crate::limits::ROUND_TRIP_PAUSE).
    pub round_trip: Histogram,
}

impl Stats {
    /// Returns the number of locks held at the time of the snapshot. A lock that ended unnoticed counts until
    /// its release.
    #[must_use]
    pub const fn held(&self) -> u64 {
        let ended = self.released.saturating_add(self.left).saturating_add(self.lost);
        self.acquired.saturating_add(self.held_before).saturating_sub(ended)
    }

    /// Returns the number of connections that replaced an earlier one, of all masters.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.masters.iter().map(|master| master.reconnects).sum()
    }

    /// Returns the number of times that a different process answered, summed over all masters.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.masters.iter().map(|master| master.restarts).sum()
    }

    /// Returns the number of masters whose votes count now.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.masters.iter().filter(|master| master.is_ready).count()
    }

    /// Returns how many voting masters may fail before the quorum is lost.
    #[must_use]
    pub fn may_fail(&self) -> usize {
        self.ready().saturating_sub(self.quorum)
    }

    /// Returns the current values, to export as gauges.
    pub(crate) fn gauges(&self) -> [(Metric, u64); 6] {
        let gauge = |name, help, value| (Metric { name, help }, value);
        [
            gauge("redlatch_held", "Locks held now.", self.held()),
            gauge(
                "redlatch_operations",
                "Requests under way now, held locks included.",
                self.operations as u64,
            ),
            gauge("redlatch_claims", "Tokens that may be on some master now.", self.claims as u64),
            gauge("redlatch_quorum", "Number of masters that make a quorum.", self.quorum as u64),
            gauge("redlatch_masters_ready", "Masters whose votes count now.", self.ready() as u64),
            gauge(
                "redlatch_masters_may_fail",
                "Masters that may fail before no quorum is left.",
                self.may_fail() as u64,
            ),
        ]
    }

    /// Returns the counts and times since an earlier snapshot of the same client. Gauges keep this snapshot's
    /// values.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        since.held_before = earlier.held();
        for ((_, counter), (_, before)) in since.counters_mut().into_iter().zip(earlier.counters()) {
            *counter = counter.saturating_sub(*before);
        }
        for ((_, time), (_, before)) in since.times_mut().into_iter().zip(earlier.times()) {
            *time = time.since(before);
        }
        for (master, before) in since.masters.iter_mut().zip(&earlier.masters) {
            *master = master.since(before);
        }
        since
    }

    #[cold]
    pub(super) fn count_denial(&mut self, error: &AcquireError) {
        match error {
            AcquireError::Contended(_) => self.contended += 1,
            AcquireError::NoQuorum(_) => self.no_quorum += 1,
            AcquireError::Expired(_) => self.expired += 1,
            AcquireError::Overloaded => self.overloaded += 1,
            // An accepted acquisition never ends with these errors.
            AcquireError::Input(_) | AcquireError::Stopped(_) | AcquireError::Cancelled => {}
        }
    }
}

impl MasterStats {
    fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for ((_, counter), (_, before)) in since.counters_mut().into_iter().zip(earlier.counters()) {
            *counter = counter.saturating_sub(*before);
        }
        since.quarantined = self.quarantined.saturating_sub(earlier.quarantined);
        since.round_trip = self.round_trip.since(&earlier.round_trip);
        since
    }

    pub(super) const fn count_vote(&mut self, vote: &Vote) {
        match vote {
            Vote::Granted => self.granted += 1,
            Vote::Refused { .. } | Vote::Failed(Failure::TokenRefused(_)) => self.refused += 1,
            Vote::Failed(_) => self.errors += 1,
            Vote::Pending => {}
        }
    }
}

/// Name and help text of a counter or histogram, for export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

/// Lists fields with names and help texts, so that every export contains all of them.
macro_rules! listed {
    ($of:ty, $list:ident $list_mut:ident: [$type:ty; $count:literal] {
        $($field:ident $name:literal $help:literal,)*
    }) => {
        impl $of {
            pub(crate) const fn $list(&self) -> [(Metric, &$type); $count] {
                [$((Metric { name: $name, help: $help }, &self.$field),)*]
            }

            pub(crate) const fn $list_mut(&mut self) -> [(Metric, &mut $type); $count] {
                [$((Metric { name: $name, help: $help }, &mut self.$field),)*]
            }
        }
    };
}

listed! { Stats, counters counters_mut: [u64; 18] {
    acquired "redlatch_acquired_total" "Acquisitions that got the lock.",
    contended "redlatch_contended_total" "Acquisitions that ended because others hold the lock.",
    no_quorum "redlatch_no_quorum_total" "Acquisitions that ended because too few masters could grant.",
    expired "redlatch_expired_total" "Acquisitions whose quorum came too late.",
    overloaded "redlatch_overloaded_total" "Acquisitions refused because the client has too much to do.",
    abandoned "redlatch_abandoned_total" "Acquisitions that their caller gave up, or that a drain ended.",
    released "redlatch_released_total" "Locks released within their validity.",
    left "redlatch_left_total" "Locks left to the end of their TTL, or for a time.",
    lost "redlatch_lost_total" "Locks that ended before their release.",
    near_losses "redlatch_near_losses_total" "Times that a lock came within a tenth of its validity of its end.",
    extended "redlatch_extended_total" "Extensions that succeeded, renewals included.",
    extensions_failed "redlatch_extensions_failed_total" "Extensions that too few masters confirmed, or too late, renewals included.",
    retries "redlatch_retries_total" "Attempts of an acquisition after its first one, without hand-overs.",
    hand_overs "redlatch_hand_overs_total" "Swaps sent to pass a lock on to the next waiter of the same client.",
    notified "redlatch_notified_total" "Messages of masters to waiters: grants, and calls to ask again.",
    repairs "redlatch_repairs_total" "Keys put back on masters that had missed or lost them.",
    orphans "redlatch_orphans_total" "Tokens whose release some master never confirmed, so that the TTL ended what was left.",
    events_dropped "redlatch_events_dropped_total" "Events dropped because the observer did not keep up.",
} }

listed! { Stats, times times_mut: [Histogram; 3] {
    acquire_time "redlatch_acquire_seconds" "Time from a request to its grant.",
    wait_time "redlatch_wait_seconds" "Time from a request to its end, of acquisitions that had to wait.",
    hold_time "redlatch_hold_seconds" "Time from the winning attempt to the release or loss of a lock.",
} }

listed! { MasterStats, counters counters_mut: [u64; 9] {
    granted "redlatch_master_granted_total" "Answers that granted an attempt.",
    late "redlatch_master_late_grants_total" "Grants that came when their attempt or lock had ended.",
    refused "redlatch_master_refused_total" "Answers that refused an attempt.",
    errors "redlatch_master_errors_total" "Answers to attempts that are errors.",
    unanswered "redlatch_master_unanswered_total" "Attempts without an answer.",
    reconnects "redlatch_master_reconnects_total" "Connections that replaced an earlier one.",
    restarts "redlatch_master_restarts_total" "Times that another process answered in place of the one before.",
    credentials_failed "redlatch_master_credentials_failed_total" "Times that new credentials could not be had, or were refused.",
    fleet_differences "redlatch_master_fleet_differences_total" "Times that the fleet's record was found to differ from the client.",
} }

#[derive(Debug)]
pub(super) struct Events {
    /// Whether an observer wants events. Without one, no event is built.
    pub(super) is_observed: bool,
    queue: VecDeque<Event>,
    pub(super) dropped_count: u64,
}

impl Events {
    pub(super) const fn new(is_observed: bool) -> Self {
        Self { is_observed, queue: VecDeque::new(), dropped_count: 0 }
    }

    /// Queues the event that `event` builds, if an observer wants events and there is room.
    #[inline]
    pub(super) fn push(&mut self, event: impl FnOnce() -> Event) {
        if self.is_observed {
            self.push_observed(event);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_observed(&mut self, event: impl FnOnce() -> Event) {
        if self.queue.len() < limits::EVENT_COUNT_MAX {
            self.queue.push_back(event());
        } else {
            self.dropped_count += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
