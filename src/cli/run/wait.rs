//! One wait of `redlatch run`: what ends it, and what it shows.

use std::time::{Duration, Instant};

use redlatch::AcquireError;

use super::session::{Session, Voice, await_unless};
use crate::exit::Exit;
use crate::message::{Message, with_lock};
use crate::output::{self, Countdown, say};

/// A wait without end: no process runs this long.
pub(super) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How long to wait before showing the reason.
const SILENT_WAIT: Duration = Duration::from_millis(300);

/// How often to show the reason again.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Wait<'a> {
    pub(super) session: &'a mut Session,
    /// `None` for a wait without end.
    until: Option<Instant>,
    /// Whether only an outage is waited out, because no wait was asked for.
    ends_by_contention: bool,
    /// When to show the reason next.
    said_next: Instant,
    countdown: Countdown,
    /// Reason shown in a terminal; empty until there is one.
    why: String,
}

impl<'a> Wait<'a> {
    pub(super) fn new(
        session: &'a mut Session,
        start: Instant,
        wait: Duration,
        ends_by_contention: bool,
    ) -> Self {
        let until = start.checked_add(wait).filter(|_| wait < FOREVER);
        let (said_next, countdown) = (start + SILENT_WAIT, Countdown::default());
        Self { session, until, ends_by_contention, said_next, countdown, why: String::new() }
    }

    /// Waits for an acquisition, and shows why it lasts. A signal, or an error that waiting cannot resolve,
    /// ends the wait.
    pub(super) fn follow<F: Future + Unpin>(
        &mut self,
        mut acquiring: F,
        last_failure: fn(&F) -> Option<AcquireError>,
    ) -> Result<F::Output, Exit> {
        await_unless(&mut acquiring, |acquiring| {
            self.session.interrupted().or_else(|| self.look(last_failure(acquiring)))
        })
    }

    fn look(&mut self, last_failure: Option<AcquireError>) -> Option<Exit> {
        self.session.look();
        let now = Instant::now();
        let left = self.until.map(|until| until.saturating_duration_since(now));
        match last_failure {
            Some(error @ AcquireError::Contended(_)) if self.ends_by_contention => {
                return Some(self.failed(error));
            }
            // Only an operator can resolve this.
            Some(error) if error.lacks_rights() => return Some(self.failed(error)),
            Some(error) if now >= self.said_next => {
                self.said_next = now + WAIT_SHOWN_EVERY;
                let why = |text: String| with_lock(&self.session.label, without_patience(text));
                match self.session.voice {
                    Voice::Verbose => {
                        say(Message::AwaitingLock { left, error: &why(format!("{error:#}")) });
                    }
                    Voice::Usual if output::stderr_is_terminal() => self.why = why(error.to_string()),
                    Voice::Usual | Voice::Quiet => {}
                }
            }
            _ => {}
        }
        if !self.why.is_empty() {
            // Whole seconds, so that the line can be read.
            let left = left.map(|left| Duration::from_secs(left.as_secs()));
            self.countdown.show(&Message::AwaitingLock { left, error: &self.why });
        }
        None
    }

    pub(super) fn failed(&self, error: AcquireError) -> Exit {
        Exit::from(error).of_lock(&self.session.label)
    }
}

/// Removes the advice to wait longer from an error's text, for a program that already waits.
fn without_patience(text: String) -> String {
    let (first, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
    match first.rsplit_once("; ") {
        Some((what, advice)) if advice.contains("wait longer") => format!("{what}{rest}"),
        _ => text,
    }
}
