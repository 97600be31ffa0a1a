//! Spans of the crate `tracing` for acquisitions and held locks, in the context of the caller.
//!
//! Events of the observer come from another thread; these spans are opened, entered and closed on the threads
//! that call. No subscriber is called with the client's mutex locked: what happens under it is noted, and
//! recorded when the span is closed. `no_trace.rs` stands here without the feature `tracing`.

use std::time::{Duration, Instant};

use tracing::field::{Empty, debug, display};
use tracing::{Span, info_span};

use crate::clock;
use crate::engine::Grant;
use crate::error::AcquireError;
use crate::error::waited::WaitedFor;
use crate::options::Mode;

/// The span of an acquisition, from the first poll or the blocking call to the answer or the drop.
#[derive(Debug)]
pub(super) struct AcquireSpan(State);

#[derive(Debug)]
enum State {
    /// Nothing was asked yet.
    New,
    Open(Span, Instant),
    /// It is over, or no subscriber wants it.
    Closed,
}

/// The span of a held lock, from the grant to the end of its guard.
#[derive(Debug)]
pub(super) struct HoldSpan {
    attempts: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    span: Span,
    since: Instant,
    /// The end once it is known: the time that the lock was held, and how that ended.
    end: Option<(Duration, &'static str)>,
}

impl AcquireSpan {
    pub(super) const NEW: Self = Self(State::New);

    /// Opens it, as a child of the caller's current span.
    pub(super) fn open(&mut self, lock: &[u8], mode: Mode) {
        if let State::New = self.0 {
            let span = info_span!(
                target: "redlatch", "redlatch.acquire",
                lock = %lock.escape_ascii(), ?mode, outcome = Empty, attempts = Empty, took = Empty,
                holder = Empty
            );
            self.0 = if span.is_disabled() { State::Closed } else { State::Open(span, clock::now()) };
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.0, State::Open(..))
    }

    /// Makes a call inside of it.
    pub(super) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        match &self.0 {
            State::Open(span, _) => span.in_scope(call),
            _ => call(),
        }
    }

    /// Closes it, and opens that of the lock, as a child of the caller's current span.
    pub(super) fn granted(
        &mut self,
        lock: &[u8],
        mode: Mode,
        hold: &mut HoldSpan,
        holder: Option<WaitedFor>,
    ) {
        self.close("acquired", Some(hold.attempts), holder.as_ref());
        let span = info_span!(
            target: "redlatch", "redlatch.hold",
            lock = %lock.escape_ascii(), ?mode, outcome = Empty, held = Empty
        );
        if !span.is_disabled() {
            hold.open = Some(Open { span, since: clock::now(), end: None });
        }
    }

    pub(super) fn failed(&mut self, error: &AcquireError) {
        let (outcome, denial) = match error {
            AcquireError::Contended(denial) => ("contended", Some(denial)),
            AcquireError::NoQuorum(denial) => ("no_quorum", Some(denial)),
            AcquireError::Expired(denial) => ("expired", Some(denial)),
            AcquireError::Overloaded => ("overloaded", None),
            AcquireError::Cancelled => ("cancelled", None),
            AcquireError::Input(_) => ("input", None),
            AcquireError::Stopped(_) => ("stopped", None),
        };
        let holder = denial.and_then(|denial| denial.waited.holder.as_ref());
        self.close(outcome, denial.map(|denial| denial.attempts), holder);
    }

    fn close(&mut self, outcome: &'static str, attempts: Option<u32>, holder: Option<&WaitedFor>) {
        if let State::Open(span, since) = std::mem::replace(&mut self.0, State::Closed) {
            span.record("outcome", outcome);
            span.record("took", debug(clock::now().saturating_duration_since(since)));
            if let Some(attempts) = attempts {
                span.record("attempts", attempts);
            }
            if let Some(holder) = holder {
                span.record("holder", display(holder));
            }
        }
    }
}

impl Drop for AcquireSpan {
    fn drop(&mut self) {
        self.close("dropped", None, None);
    }
}

impl HoldSpan {
    pub(super) const fn new(grant: &Grant) -> Self {
        Self { attempts: grant.attempts, open: None }
    }

    /// The present, if the end is wanted.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.open.is_some().then(clock::now)
    }

    /// Notes the end, by what its caller did, of a lock that is valid until this time. A loss comes before
    /// that.
    pub(super) fn end(&mut self, outcome: &'static str, now: Instant, valid_until: Instant) {
        let outcome = if now >= valid_until { "lost" } else { outcome };
        if let Some(open) = &mut self.open {
            let held = now.min(valid_until).saturating_duration_since(open.since);
            open.end = Some((held, outcome));
        }
    }
}

impl Drop for HoldSpan {
    fn drop(&mut self) {
        if let Some(Open { span, end: Some((held, outcome)), .. }) = &self.open {
            span.record("held", debug(held));
            span.record("outcome", outcome);
        }
    }
}
