//! The account of each acquisition that had to wait: its time in queues, its rounds, and in the end for whom
//! it waited.
//!
//! Accounts stand beside the slots of operations, and are made when one has to wait: an acquisition that gets
//! its lock at once neither makes nor clears one. An account of an earlier occupant of the slot is nobody's.

use std::time::{Duration, Instant};

use super::sightings::Sightings;
use crate::engine::locks::slab::Id;
use crate::error::Waited;

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By the index of the operation.
    all: Vec<Option<Box<Account>>>,
    sightings: Sightings,
}

#[derive(Debug)]
pub(crate) struct Account {
    op: Id,
    /// Since when it stands in a queue.
    queued_since: Option<Instant>,
    /// Whether others were in its way.
    pub(crate) is_contended: bool,
    /// The wait so far; complete when it is over.
    pub(crate) waited: Waited,
}

impl Accounts {
    /// The account of an operation, if it has one.
    pub(crate) fn find(&self, op: Id) -> Option<&Account> {
        self.all.get(op.index as usize)?.as_deref().filter(|account| account.op == op)
    }

    /// The same, with what is known of holders; a new one if it has none.
    pub(crate) fn of(&mut self, op: Id) -> (&mut Account, &mut Sightings) {
        let place = op.index as usize;
        if place >= self.all.len() {
            self.all.resize_with(place + 1, || None);
        }
        let blank =
            || Box::new(Account { op, queued_since: None, is_contended: false, waited: Waited::default() });
        let account = self.all[place].get_or_insert_with(blank);
        if account.op != op {
            (account.op, account.queued_since, account.is_contended) = (op, None, false);
            let Waited { total, queued, attempts, rounds, holders } = &mut account.waited;
            (*total, *queued, *attempts, *rounds) = (Duration::ZERO, Duration::ZERO, 0, 0);
            holders.clear();
        }
        (account, &mut self.sightings)
    }
}

impl Account {
    /// It stands in a queue, at the latest since then.
    pub(crate) fn join(&mut self, since: Instant) {
        self.is_contended = true;
        self.queued_since.get_or_insert(since);
    }

    /// It stands in no queue any more, after so many rounds in it.
    pub(crate) fn leave(&mut self, now: Instant, rounds: u32) {
        let since = self.queued_since.take();
        self.waited.queued += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.waited.rounds += rounds;
    }
}
