//! The account of each acquisition that had to wait: its time in queues, and the last holder in its way.
//!
//! Accounts are stored beside the slots of operations, and made only for a wait: an acquisition that gets its
//! lock at once neither makes nor clears an account. An earlier occupant's account does not count.

use std::time::{Duration, Instant};

use crate::engine::locks::slab::Id;
use crate::error::waited::{Waited, WaitedFor};

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Accounts by the index of the operation.
    all: Vec<Option<Box<Account>>>,
}

#[derive(Debug)]
pub(crate) struct Account {
    op: Id,
    /// When the operation joined its current queue.
    queued_since: Option<Instant>,
    /// Time in the queues that the operation has left.
    queued: Duration,
    /// Time of the first report of the latest holder.
    holder_since: Option<Instant>,
    /// Label of that holder; empty if it is unknown.
    holder_label: String,
    /// Whole wait, once it is over.
    total: Duration,
    /// How long the last holder was in the way, once the wait is over.
    holder_time: Duration,
    /// Number of attempts, once the wait is over.
    attempts: u32,
}

impl Accounts {
    /// Returns the account of an operation, if it has one.
    pub(crate) fn find(&self, op: Id) -> Option<&Account> {
        self.all.get(op.index as usize)?.as_deref().filter(|account| account.op == op)
    }

    /// Returns the account of an operation. Opens one if there is none.
    pub(crate) fn of(&mut self, op: Id) -> &mut Account {
        let place = op.index as usize;
        if place >= self.all.len() {
            self.all.resize_with(place + 1, || None);
        }
        let account = self.all[place].get_or_insert_with(|| Box::new(Account::new(op, String::new())));
        if account.op != op {
            let mut label = std::mem::take(&mut account.holder_label);
            label.clear();
            **account = Account::new(op, label);
        }
        account
    }

    /// Copies the last holder from the account `from` to the account `to`, for an operation that ends its
    /// wait behind another operation.
    pub(crate) fn share_holder(&mut self, from: Id, to: Id) {
        let holder = self.find(from).and_then(|it| Some((it.holder_since?, it.holder_label.clone())));
        if let Some((since, label)) = holder {
            self.of(to).see(since, Some(&label));
        }
    }
}

impl Account {
    /// Returns an empty account that reuses the memory of an earlier label.
    const fn new(op: Id, holder_label: String) -> Self {
        Self {
            op,
            queued_since: None,
            queued: Duration::ZERO,
            holder_since: None,
            holder_label,
            total: Duration::ZERO,
            holder_time: Duration::ZERO,
            attempts: 0,
        }
    }

    /// Notes that the operation joined a queue at `since`, unless it already stands in one.
    pub(crate) fn join(&mut self, since: Instant) {
        self.queued_since.get_or_insert(since);
    }

    /// Notes that the operation stands in no queue.
    pub(crate) fn leave(&mut self, now: Instant) {
        let since = self.queued_since.take();
        self.queued += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    }

    /// Notes a report of the holder: its label, or no known label.
    pub(crate) fn see(&mut self, at: Instant, label: Option<&str>) {
        let label = label.unwrap_or_default();
        if self.holder_since.is_none() || self.holder_label != label {
            self.holder_since = Some(at);
            self.holder_label.clear();
            self.holder_label.push_str(label);
        }
    }

    /// Ends the wait.
    pub(crate) fn settle(&mut self, now: Instant, submitted: Instant, attempts: u32) {
        self.leave(now);
        self.total = now.saturating_duration_since(submitted);
        self.attempts = attempts;
        let since = self.holder_since.map_or(now, |since| since.max(submitted));
        self.holder_time = now.saturating_duration_since(since);
    }

    /// Returns the wait, once it is over.
    pub(crate) fn waited(&self) -> Waited {
        let label = Some(&*self.holder_label).filter(|label| !label.is_empty());
        let holder = WaitedFor { label: label.map(Into::into), time: self.holder_time };
        Waited {
            total: self.total,
            queued: self.queued,
            attempts: self.attempts,
            holder: self.holder_since.map(|_| holder),
        }
    }
}
