//! The session of a run with its masters: the client, caught signals, and verbosity.
//!
//! It lasts from the first connection to the last reply, and releases the locks. The main thread waits for a
//! future of the client, for a time, or for a signal. A signal, a reply and a failed renewal wake it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use redlatch::engine::{Resource, Ttl, quorum};
use redlatch::status::MasterState;
use redlatch::{
    Client, Config, ConfigBuilder, Event, ExtendError, Guard, HeldLocks, Options, Quarantine, Release,
    ReleaseError, Released,
};

use super::process::{self, Signals};
use crate::exit::{Exit, code};
use crate::message::{Message, label, with_lock};
use crate::options::{self, Contradictions, Enough};
use crate::output::say;

/// Longest wait at exit for masters that confirm a release slowly.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// Longest sleep while something is displayed, or while no waker reports changes.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Verbosity on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// Errors only.
    Quiet,
    /// Also why the program waits, and who holds the lock.
    Usual,
    /// Also each event of the lock.
    Verbose,
}

pub(super) struct Session {
    pub(super) client: Client,
    /// Names of the locks, for messages.
    pub(super) label: String,
    pub(super) ttl: Ttl,
    pub(super) options: Options,
    pub(super) voice: Voice,
    pub(super) signals: Signals,
    /// Each [`Event::NotExtended`] of the client.
    failures: Receiver<Event>,
    contradictions: Contradictions,
}

/// Settings whose client sends its failed renewals to the receiver, and wakes the calling thread.
pub(super) fn observed(builder: ConfigBuilder) -> Result<(Config, Receiver<Event>), Exit> {
    let (sender, failures) = mpsc::channel();
    let sleeper = thread::current();
    let builder = builder.on_event(move |event| {
        if matches!(event, Event::NotExtended { .. }) && sender.send(event.clone()).is_ok() {
            sleeper.unpark();
        }
    });
    Ok((builder.build()?, failures))
}

/// Sleeps for at most this time. May return early.
pub(super) fn sleep(limit: Duration) {
    thread::park_timeout(limit);
}

/// Waits for a future of the client, or until `look` returns a value. Calls `look` at least every
/// [`SLEEP_MAX`].
pub(super) fn await_unless<F: Future + Unpin, E>(
    future: &mut F,
    mut look: impl FnMut(&F) -> Option<E>,
) -> Result<F::Output, E> {
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut Context::from_waker(&waker)) {
            return Ok(output);
        }
        if let Some(end) = look(future) {
            return Err(end);
        }
        sleep(SLEEP_MAX);
    }
}

/// Completes when all these futures have completed.
pub(super) fn all<F>(futures: impl Iterator<Item = F>) -> impl Future<Output = Vec<F::Output>> + Unpin
where
    F: Future<Output: Unpin>,
{
    let mut each: Vec<_> = futures.map(|it| (Box::pin(it), None)).collect();
    poll_fn(move |context| {
        for (future, output) in each.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if each.iter().any(|(_, output)| output.is_none()) {
            return Poll::Pending;
        }
        Poll::Ready(each.iter_mut().filter_map(|(_, output)| output.take()).collect())
    })
}

/// Waker of a waiting thread.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Voice {
    pub(super) const fn new(is_quiet: bool, is_verbose: bool) -> Self {
        match (is_quiet, is_verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Usual,
        }
    }
}

impl Session {
    /// Connects to the masters, and catches signals.
    pub(super) fn open(
        (config, failures): (Config, Receiver<Event>),
        ttl: Ttl,
        names: &[Resource<'_>],
        options: Options,
        voice: Voice,
    ) -> Result<Self, Exit> {
        let signals = Signals::catch()?;
        let started = Instant::now();
        let client = Client::open(config)?;
        let label = label(names.iter().map(Resource::as_bytes));
        let contradictions = Contradictions::default();
        let mut session = Self { client, label, ttl, options, voice, signals, failures, contradictions };
        session.report(session.describe_masters(started));
        session.look();
        Ok(session)
    }

    /// Reports each new contradiction between the settings and the fleet's record on stderr.
    pub(super) fn look(&mut self) {
        self.contradictions.look(&self.client.masters());
    }

    /// Waits for the masters of a strict fleet. In a new strict fleet, masters count only after a client has
    /// watched them for long enough, which a short-lived client never does.
    pub(super) fn wait_if_strict(&mut self) -> Result<(), Exit> {
        match self.client.config().quarantine() {
            Quarantine::Strict => self.wait_for_masters(),
            _ => Ok(()),
        }
    }

    /// Waits for quarantined masters if a lock needs their votes. A signal ends the wait.
    fn wait_for_masters(&mut self) -> Result<(), Exit> {
        let Self { client, signals, voice, label, .. } = self;
        let mut ended = None;
        let masters = |pause| {
            sleep(pause);
            Ok(client.masters())
        };
        let is_shown = *voice != Voice::Quiet;
        let result = options::wait_for_masters(client.config(), Enough::Quorum, is_shown, masters, || {
            ended = signals.take().map(|signal| ended_by(signal, label));
            ended.is_some()
        });
        match (ended, result) {
            (Some(exit), _) => Err(exit),
            // A quorum may still form during the wait for the lock. If not, that wait's error says so.
            (None, Err(exit)) if exit.code != code::NO_QUORUM => Err(exit),
            (None, _) => Ok(()),
        }
    }

    /// Exit for a signal that arrived while no command runs.
    pub(super) fn interrupted(&self) -> Option<Exit> {
        self.signals.take().map(|signal| ended_by(signal, &self.label))
    }

    /// Drops reports about earlier locks.
    pub(super) fn forget_failures(&self) {
        self.failures.try_iter().for_each(drop);
    }

    /// Next failed renewal: the lock's name and the reason.
    pub(super) fn failed_renewal(&self) -> Option<(Bytes, ExtendError)> {
        match self.failures.try_recv() {
            Ok(Event::NotExtended { resource, error }) => Some((resource, error)),
            _ => None,
        }
    }

    /// Releases the locks. Returns false if the replies prove that a lock was no longer held.
    pub(super) fn release(&self, guards: Vec<Guard>) -> bool {
        let released: Vec<_> = self.client.release_all(guards).into_iter().map(Release::block).collect();
        // Not `all`: every result is reported, even after a lost lock.
        released.into_iter().filter(|result| !self.describe_release(result)).count() == 0
    }

    /// Reports how a lock was released. Returns false if the replies prove that it was no longer held.
    fn describe_release(&self, result: &Result<Released, ReleaseError>) -> bool {
        let (count, lock) = (self.client.config().master_count(), &self.label);
        match result {
            // The masters that still had the key are fewer than a quorum.
            &Ok(Released { absent, .. }) if count - absent < quorum(count) => {
                say(Message::GoneBefore { lock, absent, count });
                return false;
            }
            Ok(_) => self.report(Message::Released { lock }),
            Err(error) => say(self.described(error)),
        }
        true
    }

    /// Waits up to [`CLOSE_LIMIT`] for releases under way.
    pub(super) fn close(mut self) {
        self.look();
        let is_verbose = self.voice == Voice::Verbose;
        let left = self.client.drain(CLOSE_LIMIT, HeldLocks::Leave);
        if left > 0 && is_verbose {
            say(Message::ReleasesUnconfirmed { left });
        }
    }

    /// Prints with `--verbose` only.
    pub(super) fn report(&self, what: impl fmt::Display) {
        if self.voice == Voice::Verbose {
            say(what);
        }
    }

    /// Text of the error with the lock's name and a line for each master.
    pub(super) fn described(&self, error: &impl fmt::Display) -> String {
        with_lock(&self.label, format!("{error:#}"))
    }

    pub(super) fn describe_masters(&self, started: Instant) -> String {
        let took = started.elapsed();
        let masters = self.client.masters();
        let up = |state: &MasterState| !matches!(state, MasterState::Down(_) | MasterState::Connecting);
        let ready = masters.iter().filter(|master| up(&master.state)).count();
        let count = masters.len();
        let mut lines = vec![Message::Connected { ready, count, needed: quorum(count), took }.to_string()];
        lines.extend(options::doubts(&masters));
        lines.join("\n  ")
    }
}

fn ended_by(signal: i32, lock: &str) -> Exit {
    let name = process::name_of(signal);
    Exit::new(code::of_signal(signal), Message::EndedBySignal { name, lock })
}
