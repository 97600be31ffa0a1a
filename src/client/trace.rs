//! Spans of the crate `tracing` for acquisitions and held locks, in the context of the caller.
//!
//! The observer's events come from another thread; these spans are opened, entered and closed on the calling
//! threads. No subscriber is called with the client's mutex held: the span notes what happens, and records it
//! when it is closed. Without the feature `tracing`, `no_trace.rs` replaces this file.

use std::time::{Duration, Instant};

use tracing::field::{Empty, debug, display};
use tracing::{Span, info_span};

use crate::clock;
use crate::engine::Grant;
use crate::error::AcquireError;
use crate::error::waited::WaitedFor;
use crate::options::Mode;

/// Span of an acquisition, from the first poll or the blocking call to the answer or the drop.
#[derive(Debug)]
pub(super) struct AcquireSpan(State);

#[derive(Debug)]
enum State {
    /// Nothing was asked yet.
    New,
    Open(Span, Instant),
    /// The acquisition is over, or no subscriber wants the span.
    Closed,
}

/// Span of a held lock, from the grant to the end of its guard.
#[derive(Debug)]
pub(super) struct HoldSpan {
    attempts: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    span: Span,
    since: Instant,
    /// Once the end is known: how long the lock was held, and how it ended.
    end: Option<(Duration, &'static str)>,
}

impl AcquireSpan {
    pub(super) const NEW: Self = Self(State::New);

    /// Opens the span, as a child of the caller's current span.
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

    /// Makes a call inside the span.
    pub(super) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        match &self.0 {
            State::Open(span, _) => span.in_scope(call),
            _ => call(),
        }
    }

    /// Closes the span, and opens the lock's span, as a child of the caller's current span.
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

    /// The current time, if a subscriber wants the end.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        self.open.is_some().then(clock::now)
    }

    /// Notes how the caller ended the lock, which is valid until this time. If the validity ended before, the
    /// lock was lost.
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
