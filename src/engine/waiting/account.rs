//! The account of each acquisition that had to wait: its time in queues, and the holder that was in its way
//! last.
//!
//! Accounts stand beside the slots of operations, and are made when one has to wait: an acquisition that gets
//! its lock at once neither makes nor clears one. An account of an earlier occupant of the slot is nobody's.

use std::time::{Duration, Instant};

use crate::engine::locks::slab::Id;
use crate::error::waited::{Waited, WaitedFor};

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By the index of the operation.
    all: Vec<Option<Box<Account>>>,
}

#[derive(Debug)]
pub(crate) struct Account {
    op: Id,
    /// Since when it stands in a queue.
    queued_since: Option<Instant>,
    /// Time in queues that it has left.
    queued: Duration,
    /// Since when the holder that was reported last is in its way.
    holder_since: Option<Instant>,
    /// Label of that holder; empty if it is unknown.
    holder_label: String,
    /// Whole wait, once it is over.
    total: Duration,
    /// For how long the last holder was in its way, once the wait is over.
    holder_time: Duration,
    /// Number of attempts, once the wait is over.
    attempts: u32,
}

impl Accounts {
    /// The account of an operation, if it has one.
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

    /// An operation of this engine ends its wait behind another one: the last holder is that one's, too.
    pub(crate) fn share_holder(&mut self, from: Id, to: Id) {
        let holder = self.find(from).and_then(|it| Some((it.holder_since?, it.holder_label.clone())));
        if let Some((since, label)) = holder {
            self.of(to).see(since, Some(&label));
        }
    }
}

impl Account {
    /// Without a wait, in the memory of an earlier label.
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

    /// It stands in a queue, at the latest since then.
    pub(crate) fn join(&mut self, since: Instant) {
        self.queued_since.get_or_insert(since);
    }

    /// It stands in no queue any more.
    pub(crate) fn leave(&mut self, now: Instant) {
        let since = self.queued_since.take();
        self.queued += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    }

    /// A report names the holder in its way: this label, or none that is known.
    pub(crate) fn see(&mut self, at: Instant, label: Option<&str>) {
        let label = label.unwrap_or_default();
        if self.holder_since.is_none() || self.holder_label != label {
            self.holder_since = Some(at);
            self.holder_label.clear();
            self.holder_label.push_str(label);
        }
    }

    /// The wait is over.
    pub(crate) fn settle(&mut self, now: Instant, submitted: Instant, attempts: u32) {
        self.leave(now);
        self.total = now.saturating_duration_since(submitted);
        self.attempts = attempts;
        let since = self.holder_since.map_or(now, |since| since.max(submitted));
        self.holder_time = now.saturating_duration_since(since);
    }

    /// The wait, once it is over.
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
