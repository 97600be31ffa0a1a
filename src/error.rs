//! Errors of all calls and settings, with every master's answer.
//!
//! The errors of everyday calls are at the root of the crate: [`AcquireError`], [`ExtendError`],
//! [`ReleaseError`], [`RunError`] and [`ConnectError`](crate::ConnectError). This module contains their
//! parts, and the errors of other calls.
//!
//! Contention, an outage and a misconfiguration are different errors. While the client lives, it releases
//! what an attempt may have left on a master, now or once that master can be reached again; otherwise the TTL
//! ends it.

mod advice;
pub(crate) mod class;
pub(crate) mod fleet;
mod handle;
pub(crate) mod probe;
mod report;
mod settings;
#[cfg(test)]
mod tests;
pub(crate) mod usual;
pub(crate) mod waited;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::lock::LockName;
pub use crate::lock::{Failure, HolderTtl, InputError, TokenRefusal, Vote};
use crate::words::{Counted, Labelled, Named, PoolOf, Rounded};
pub use advice::advice;
pub(crate) use class::{ErrorClass, classes};
pub use handle::{AdoptError, ForeignHandle, ParseHandleError, ReleaseHandleError};
pub use report::{Report, Round};
pub use settings::{ConfigError, CredentialsError, ProviderError, UrlError};
pub(crate) use usual::{AcquireError, ExtendError, ReleaseError, RunError};
pub(crate) use waited::Waited;

/// Holder that keeps an acquisition from a lock, although a quorum of masters could grant it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HeldBy {
    /// Another client, or something similar: a reader or a fair lock of this client, or a key that is no
    /// lock.
    #[default]
    AnotherClient,
    /// Another caller of this client.
    ThisClient,
    /// Approximate number of readers. Reported for a refused plain lock if the client asks for the holder
    /// ([`crate::ConfigBuilder::ask_holder`], on by default).
    Readers(usize),
    /// Holders of all slots of a pool with this number of slots.
    Slots(u32),
    /// Other callers for a slot of a pool with this number of slots. Some slot may be free: the attempts were
    /// used up by split votes.
    SlotRivals(u32),
}

/// Holder of one slot of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotHolder {
    /// Number of the slot.
    pub slot: u32,
    /// Label of the holder, as in [`Denial::holder_label`].
    pub label: Option<Arc<str>>,
    /// Time until the slot may be free again, as in [`Denial::holder`].
    pub ttl: HolderTtl,
}

impl SlotHolder {
    pub(crate) const fn left(&self) -> Option<Duration> {
        match self.ttl {
            HolderTtl::Left(left) => Some(left),
            _ => None,
        }
    }

    /// These facts, `time` later.
    pub(crate) fn after(&self, time: Duration) -> Self {
        // After its end, another holder may have the slot.
        let left = self.left().map(|left| left.checked_sub(time).map_or(HolderTtl::Unknown, HolderTtl::Left));
        Self { ttl: left.unwrap_or(self.ttl), ..self.clone() }
    }
}

impl fmt::Display for SlotHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, label, .. } = self;
        write!(f, "slot {slot}{}", Labelled(label.as_deref()))?;
        match self.ttl {
            HolderTtl::Left(left) => write!(f, " for at most {} unless extended", Rounded(left)),
            HolderTtl::Never => f.write_str(" by a key without a TTL, which is no lock"),
            HolderTtl::Unknown | HolderTtl::Gone => Ok(()),
        }
    }
}

/// Details of a failed acquisition.
///
/// `{}` is one line for a log; `{:#}` has a line for each group of masters with the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denial {
    /// Number of attempts; zero if the wait ended in the wait queue behind other callers of this client.
    pub attempts: u32,
    /// Time from the request to the answer.
    pub took: Duration,
    /// Time until a quorum of masters may be free again, as far as they reported it, if the holder neither
    /// extends nor releases.
    pub holder: HolderTtl,
    /// The holder, as far as known. Only meaningful for [`AcquireError::Contended`].
    pub held_by: HeldBy,
    /// Label of the holder ([`crate::ConfigBuilder::holder_label`]), if it has one and this client knows it.
    /// The client knows the label of its own callers, and of the holder for which a request stood in the
    /// masters' queues. It asks refusing masters for other labels ([`crate::ConfigBuilder::ask_holder`], on by
    /// default). Readers have no label. For display; it may belong to an earlier holder.
    pub holder_label: Option<Arc<str>>,
    /// Slots that were refused, at most 8, by number, if `held_by` says that a slot was asked for. `holder`
    /// and `holder_label` describe the slot that may be free first.
    pub slots: Vec<SlotHolder>,
    /// The wait and its parts: how long, and behind whom. Empty in
    /// [`Engine::last_failure`](crate::engine::Engine::last_failure), whose acquisition is in progress.
    pub waited: Waited,
    /// Votes of the last attempt, or of the last complete attempt if the wait ended during one.
    pub report: Report,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.report.is_of_queued() {
            return write!(
                f,
                "waited for {}{}; no master was asked",
                Rounded(self.took),
                self.waited.behind()
            );
        }
        write!(f, "{}", Counted(self.attempts as usize, "attempt"))?;
        if self.took.is_zero() {
            // Masters may have been asked, but too few of them.
            f.write_str(", decided before any answer: ")?
        } else {
            write!(f, " in {}{}: ", Rounded(self.took), self.waited.behind())?
        }
        // The report follows the caller's choice of one line or many.
        fmt::Display::fmt(&self.report, f)
    }
}

impl Denial {
    /// Returns a denial with this report, without attempts or a known holder. All fields can be set. For
    /// tests of error handling, such as a double of a service that takes locks.
    ///
    /// ```
    /// use redlatch::AcquireError;
    /// use redlatch::error::{Denial, Report, Round};
    ///
    /// let denial = Denial::new(Report::new(Round::Acquire, "orders:42"));
    /// let error = AcquireError::Contended(Box::new(denial));
    /// assert!(error.is_contended() && error.to_string().contains("orders:42"));
    /// ```
    #[must_use]
    pub fn new(report: Report) -> Self {
        Self {
            attempts: 0,
            took: Duration::ZERO,
            holder: HolderTtl::Unknown,
            held_by: HeldBy::default(),
            holder_label: None,
            slots: Vec::new(),
            waited: Waited::default(),
            report,
        }
    }

    fn lock(&self) -> Named<'_> {
        Named(&self.report.resource)
    }

    /// What is in the way of a contended lock, for how long, and what to do.
    fn fmt_contended(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = self.lock();
        if self.holder == HolderTtl::Never && self.slots.is_empty() {
            return write!(
                f,
                "{lock} is held by a key without a TTL, which is no lock; inspect it, then delete it \
                 (redlatch unlock --force)"
            );
        }
        let advice = match self.held_by {
            HeldBy::ThisClient => {
                let holder = Labelled(self.holder_label.as_deref());
                write!(f, "{lock} is held by another caller of this client{holder}")?;
                "release it, or wait longer"
            }
            HeldBy::Readers(count) => {
                write!(f, "{lock} is shared by {}", Counted(count, "reader"))?;
                "wait longer, or retry later"
            }
            HeldBy::AnotherClient if self.report.is_of_queued() => {
                return write!(
                    f,
                    "other callers of this client came first for {lock}; wait longer, or retry later"
                );
            }
            HeldBy::AnotherClient => {
                write!(f, "{lock} is held by another client{}", Labelled(self.holder_label.as_deref()))?;
                "wait longer, or retry later"
            }
            HeldBy::Slots(count) => {
                let pool = PoolOf(&self.report.resource);
                match count {
                    1 => write!(f, "the only slot of {pool} is taken")?,
                    _ => write!(f, "all {count} slots of {pool} are taken")?,
                }
                for (index, holder) in self.slots.iter().enumerate() {
                    write!(f, "{}{holder}", if index == 0 { ": " } else { ", " })?;
                }
                return f.write_str("; wait longer, or retry later");
            }
            HeldBy::SlotRivals(count) => {
                let (slots, pool) = (Counted(count as usize, "slot"), PoolOf(&self.report.resource));
                return write!(
                    f,
                    "no quorum agrees on one of the {slots} of {pool}: other callers compete for them; retry"
                );
            }
        };
        match self.holder {
            HolderTtl::Left(left) => {
                // A colon ends the long sentence.
                let before = if self.held_by == HeldBy::ThisClient { ':' } else { ',' };
                write!(f, "{before} for at most {} unless extended; {advice}", Rounded(left))
            }
            HolderTtl::Gone => f.write_str(", or was until a moment ago; retry"),
            HolderTtl::Unknown | HolderTtl::Never => write!(f, "; {advice}"),
        }
    }

    /// Why too few masters can grant, and what to do.
    fn fmt_no_quorum(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.report.is_queue_full() {
            return write!(f, "the wait queue of {} is full; retry later", self.lock());
        }
        write!(f, "no quorum of masters for {}", self.lock())?;
        let Some((left, count)) = self.report.quarantine() else {
            return f.write_str("; repair what the masters report, then retry");
        };
        let (left, masters) = (Rounded(left), Counted(count, "master"));
        write!(f, " for another {left}: {masters} may have restarted and forgotten a lock; wait")?;
        let line = if f.alternate() { "\n  " } else { ". " };
        write!(f, "{line}Quarantine::Trust (--trust) is safe only if masters sync each write to disk")?;
        if self.report.is_of_new_masters() {
            write!(f, "{line}For new, empty masters: redlatch fleet init")?;
        }
        Ok(())
    }
}

/// Text of all errors of an overloaded client.
pub(crate) const OVERLOADED: &str =
    "this client has too many locks, waiters or queued bytes; release some, or retry later";

/// Error of [`Guard::leave`](crate::Guard::leave) and [`Guard::leave_for`](crate::Guard::leave_for).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The validity had ended: another caller may hold the lock. This holder's keys are being released.
    #[error("the lock's validity has ended, so there is nothing to leave; stop the protected work")]
    Expired,
    /// Too many masters no longer have the key, so a quorum is impossible: another caller may hold the lock.
    #[error(fmt = fmt_left_lost)]
    Lost(Report),
    /// Too few masters confirmed the rest within the answer limit and the validity. Until the latest end,
    /// others may be excluded for longer than the rest, or not for all of it. The client continues in the
    /// background: a master that can be reached again gets the rest, or a release once the time is over.
    #[error(fmt = fmt_unconfirmed_rest)]
    Unconfirmed {
        /// Answers of the masters.
        report: Box<Report>,
        /// Latest time at which any master may still have the key.
        latest_end: Instant,
    },
    /// The lock is not held by this client: a drain has released it, or it belongs to another client. Another
    /// caller may hold it.
    #[error("the lock is not held by this client; acquire it first")]
    NotHeld,
    /// The time exceeds the configured `max_ttl`. The lock is released.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: its event loop failed, this is a fork of its process, or the call comes from a
    /// waker that the client is calling. In the last case the lock is released as if dropped; otherwise it
    /// ends with its TTL.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of an inspection without a result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The client has too many locks and queries, 131,072.
    #[error("{OVERLOADED}")]
    Overloaded,
    /// No lock may have this name; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: its event loop failed, this is a fork of its process, or the call comes from a
    /// waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of a forced unlock that may not have worked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForceUnlockError {
    /// Too few masters deleted the lock or had none, so it may exclude others until its TTL ends. Nothing
    /// continues in the background. A repetition may delete the next holder's lock: inspect it first.
    #[error(fmt = fmt_unconfirmed)]
    Unconfirmed(Report),
    /// The client has too many locks and queries, 131,072.
    #[error("{OVERLOADED}")]
    Overloaded,
    /// No lock may have this name; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The client is unusable: its event loop failed, this is a fork of its process, or the call comes from a
    /// waker that the client is calling.
    #[error("the client cannot be used: {0}")]
    Stopped(Arc<str>),
}

/// Error of several locks, not all of which were acquired, extended, released or left.
///
/// After a failed acquisition, none is held. After a failed extension or leave, some may be extended or left.
/// An unconfirmed release continues in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetError<E> {
    /// Name of a lock that failed; empty if the set itself is at fault.
    pub resource: Bytes,
    /// Error of that lock.
    pub source: E,
}

impl<E> SetError<E> {
    /// Returns the error of the lock with this name. For tests of error handling.
    pub fn new<'n>(name: impl Into<LockName<'n>>, source: E) -> Self {
        Self { resource: name.into().into_shared(), source }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for SetError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl<E: fmt::Display> fmt::Display for SetError<E> {
    /// Adds the lock's name in front of an error that lacks it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Named(&self.resource).to_string();
        let text = if f.alternate() { format!("{:#}", self.source) } else { self.source.to_string() };
        if !self.resource.is_empty() && !text.contains(&name) {
            write!(f, "{name}: ")?;
        }
        f.write_str(&text)
    }
}

/// Error of a reentrant lock that was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockReentrantError {
    /// The owner holds a lock whose validity has ended, so another caller may have it. Stop the work that
    /// these holds protect, and end them; then the lock can be acquired again.
    #[error("the lock is lost; end its {}, then acquire it anew", Counted(*hold_count, "hold"))]
    Lost {
        /// Number of holds that have not ended.
        hold_count: usize,
    },
    /// The owner has 4,294,967,295 holds ([`crate::limits::HOLD_COUNT_MAX`]).
    #[error("this owner has too many holds of the lock; end some")]
    TooManyHolds,
    /// The owner's attempt failed.
    #[error(fmt = fmt_not_acquired)]
    Acquire(#[from] AcquireError),
}

fn fmt_not_acquired(error: &AcquireError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fmt::Display::fmt(error, f)
}

/// Texts in front of a report. A format string would not pass `{:#}` to the report.
macro_rules! before_reports {
    ($($name:ident => $text:literal;)*) => {$(
        fn $name(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, $text, lock = Named(&report.resource))?;
            fmt::Display::fmt(report, f)
        }
    )*};
}

before_reports! {
    fmt_lost => "{lock} is lost; stop the protected work: ";
    fmt_not_extended => "{lock} was not extended; retry while it is valid: ";
    fmt_left_lost => "{lock} is lost, so there is nothing to leave: ";
    fmt_rest => "{lock} may end earlier or later than asked; check the masters: ";
    fmt_unconfirmed => "the release of {lock} is not confirmed; it ends with its TTL: ";
    fmt_gone => "the handle of {lock} was used, or the lock has ended; acquire it anew: ";
    fmt_not_adopted => "no quorum of masters to adopt {lock}; repair what they report, then retry before its end: ";
    fmt_adopted_late => "{lock} expired while it was adopted; use a longer TTL, or check slow masters: ";
}

fn fmt_unconfirmed_rest(report: &Report, _: &Instant, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fmt_rest(report, f)
}
