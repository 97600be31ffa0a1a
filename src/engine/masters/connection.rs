//! One connection to a master: its state, its bytes, and the time of the next attempt.
//!
//! ```text
//!        Connect              handle_connected            nonce echoed
//!  Down ────────► Connecting ─────────────────► Handshake ────────────► Ready
//!   ▲ random, growing pause │                        │                    │
//!   └───────────────────────┴────────────────────────┴────────────────────┘  lost, late, malformed
//! ```

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use super::handshake::{self, Handshake, HandshakeStep, Learnt};
use super::trouble::Trouble;
use crate::config::Login;
use crate::engine::request::LinkRequest;
use crate::limits;
use crate::lock::command::answer::WrongShape;
use crate::lock::{MasterId, MasterSet};
use crate::resp::Reply;
use crate::wire::Wire;

#[derive(Debug)]
pub(crate) struct Connection<T: Copy> {
    pub(crate) state: State,
    pub(crate) wire: Wire<T>,
    /// Consecutive failures.
    failure_count: u32,
    pub(crate) login: LoginState,
}

/// The login sent on a connection, as its version, and the server's answer.
#[derive(Debug)]
pub(crate) struct LoginState {
    version: u32,
    answer: LoginAnswer,
}

#[derive(Debug)]
enum LoginAnswer {
    /// No answer yet. Keeps the login to remove it from messages; a handshake keeps its own.
    Pending(Option<Box<Login>>),
    Accepted,
    /// The earlier login stays valid.
    Refused,
}

#[derive(Debug)]
pub(crate) enum State {
    /// No connection; the next attempt starts at `retry_at`.
    Down { retry_at: Instant },
    /// The driver was asked to connect.
    Connecting { deadline: Instant },
    /// Connected; the first replies are owed.
    Handshake { deadline: Instant, handshake: Box<Handshake> },
    /// The nonce came back.
    Ready { since: Instant },
}

impl<T: Copy> Connection<T> {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            state: State::Down { retry_at: now },
            wire: Wire::new(),
            failure_count: 0,
            login: LoginState::NONE,
        }
    }

    #[inline]
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    pub(crate) const fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Whether the connection was ever lost, or could not be opened.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failure_count > 0
    }

    /// Time of the next attempt, or deadline for the next state. `None` if ready.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            State::Connecting { deadline } | State::Handshake { deadline, .. } => Some(deadline),
            State::Ready { .. } => None,
        }
    }

    pub(crate) fn start_connecting(&mut self, deadline: Instant) {
        self.state = State::Connecting { deadline };
    }

    /// The connection is open: queues the handshake, with `owed` for each step's reply.
    pub(crate) fn start_handshake(
        &mut self,
        deadline: Instant,
        login_version: u32,
        handshake: Handshake,
        commands: &[(HandshakeStep, Vec<u8>)],
        owed: impl Fn(HandshakeStep) -> T,
    ) {
        self.wire.clear();
        self.login = LoginState { version: login_version, answer: LoginAnswer::Pending(None) };
        self.state = State::Handshake { deadline, handshake: Box::new(handshake) };
        for (step, bytes) in commands {
            // The handshake's few hundred bytes always fit an empty queue.
            let queued = self.wire.request(bytes, &[owed(*step)]);
            assert!(queued.is_ok(), "the handshake is larger than the outbox");
        }
    }

    /// Queues `AUTH` on an open connection. False if there is no room.
    pub(crate) fn send_login(&mut self, login: &Login, version: u32, owed: T) -> bool {
        let mut bytes = Vec::new();
        handshake::encode_auth(&mut bytes, login);
        let is_sent = self.wire.request(&bytes, &[owed]).is_ok();
        if is_sent {
            let answer = LoginAnswer::Pending(Some(Box::new(login.clone())));
            self.login = LoginState { version, answer };
        }
        is_sent
    }

    /// The nonce came back. Returns the facts from the handshake.
    pub(crate) fn finish_handshake(&mut self, now: Instant) -> Learnt {
        let before = std::mem::replace(&mut self.state, State::Ready { since: now });
        let State::Handshake { handshake, .. } = before else { unreachable!("its handshake is done") };
        self.login.answer = LoginAnswer::Accepted;
        handshake.learnt
    }

    /// Notes a failure. Returns the pause before the next attempt. The count of failures restarts if the
    /// connection lasted longer than four times the longest pause before it, or than [`limits::BACKOFF_MAX`].
    pub(crate) fn back_off(&mut self, now: Instant, rng: &mut impl Rng) -> Duration {
        let has_lasted = match self.state {
            State::Ready { since } => now - since > (self.longest_pause() * 4).min(limits::BACKOFF_MAX),
            State::Down { .. } | State::Connecting { .. } | State::Handshake { .. } => false,
        };
        self.failure_count = if has_lasted { 1 } else { self.failure_count.saturating_add(1) };
        rng.random_range(Duration::ZERO..self.longest_pause())
    }

    /// Upper bound of the random pause after this many failures.
    fn longest_pause(&self) -> Duration {
        let doublings = self.failure_count.saturating_sub(1).min(16);
        limits::BACKOFF_MIN.saturating_mul(1 << doublings).min(limits::BACKOFF_MAX)
    }

    /// Ends the connection, with all owed replies.
    pub(crate) fn close(&mut self, retry_at: Instant) {
        self.state = State::Down { retry_at };
        self.wire.clear();
    }
}

impl LoginState {
    const NONE: Self = Self { version: 0, answer: LoginAnswer::Accepted };

    /// Whether to send this login. A login is sent only after the last one was answered.
    pub(crate) const fn wants(&self, version: u32) -> bool {
        self.version != version && !matches!(self.answer, LoginAnswer::Pending(_))
    }

    pub(crate) const fn is_accepted(&self, version: u32) -> bool {
        self.version == version && matches!(self.answer, LoginAnswer::Accepted)
    }

    pub(crate) const fn is_refused(&self, version: u32) -> bool {
        self.version == version && matches!(self.answer, LoginAnswer::Refused)
    }

    /// Takes the reply to `AUTH` on an open connection. Returns the error if it was refused.
    pub(crate) fn take_answer(&mut self, reply: &Reply<'_>) -> Result<Option<Box<str>>, WrongShape> {
        let (answer, refusal) = match (&self.answer, reply) {
            (LoginAnswer::Pending(_), Reply::Simple(b"OK")) => (LoginAnswer::Accepted, None),
            (LoginAnswer::Pending(sent), Reply::Error(text)) => {
                (LoginAnswer::Refused, Some(handshake::error_without_login(text, sent.as_deref())))
            }
            _ => return Err(WrongShape),
        };
        self.answer = answer;
        Ok(refusal)
    }
}

impl State {
    /// Takes the reply to a step of the handshake. `Ok(true)` ends the handshake; an error ends the
    /// connection.
    pub(crate) fn handle_step(&mut self, step: HandshakeStep, reply: &Reply<'_>) -> Result<bool, String> {
        let Self::Handshake { handshake, .. } = self else {
            return Err(Trouble::WrongShape.to_string());
        };
        handshake.handle_reply(step, reply)
    }
}

/// Connections that the driver must open or close, and names that it must look up again.
#[derive(Debug)]
pub(crate) struct Wishes {
    connect: MasterSet,
    close: MasterSet,
    look_up: MasterSet,
    /// Masters to connect once the provider has returned their credentials.
    pub(crate) awaiting_login: MasterSet,
}

impl Wishes {
    pub(crate) const fn new() -> Self {
        let none = MasterSet::EMPTY;
        Self { connect: none, close: none, look_up: none, awaiting_login: none }
    }

    /// Asks for a connection to a master; with a provider, only once it has returned credentials.
    pub(crate) const fn connect(&mut self, master: MasterId, has_provider: bool) {
        if has_provider {
            self.awaiting_login.insert(master);
        } else {
            self.connect.insert(master);
        }
    }

    /// Asks for a new lookup of a connected master's name, which may now lead to another server.
    pub(crate) const fn look_up(&mut self, master: MasterId) {
        self.look_up.insert(master);
    }

    /// The provider has returned the credentials of a master.
    pub(crate) fn note_login(&mut self, master: MasterId) {
        if self.awaiting_login.contains(master) {
            self.awaiting_login.remove(master);
            self.connect.insert(master);
        }
    }

    /// Withdraws the wish for a connection, and asks to close the present one if it `is_open`.
    pub(crate) const fn close(&mut self, master: MasterId, is_open: bool) {
        self.connect.remove(master);
        self.look_up.remove(master);
        self.awaiting_login.remove(master);
        if is_open {
            self.close.insert(master);
        }
    }

    /// The driver has already closed the connection.
    pub(crate) const fn forget_close(&mut self, master: MasterId) {
        self.close.remove(master);
    }

    pub(crate) fn poll(&mut self) -> Option<LinkRequest> {
        if let Some(master) = self.close.iter().next() {
            self.close.remove(master);
            return Some(LinkRequest::Close(master));
        }
        if let Some(master) = self.connect.iter().next() {
            self.connect.remove(master);
            return Some(LinkRequest::Connect(master));
        }
        let master = self.look_up.iter().next()?;
        self.look_up.remove(master);
        Some(LinkRequest::LookUp(master))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn ended_link_ignores_an_earlier_connect_request() {
        let (mut wishes, master) = (Wishes::new(), MasterId::new(0).expect("the first"));
        wishes.connect(master, false);
        wishes.close(master, false);
        assert_eq!(wishes.poll(), None);
    }

    /// Longest of many pauses after `failure_count` failures and a connection with the duration `lasted`.
    fn longest_pause_after(failure_count: u32, lasted: Duration) -> Duration {
        let (since, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
        let pauses = (0..500).map(|_| {
            let mut connection = Connection::<u8>::new(since);
            connection.failure_count = failure_count;
            connection.state = State::Ready { since };
            connection.back_off(since + lasted, &mut rng)
        });
        pauses.max().expect("some")
    }

    #[test]
    fn lasting_connection_resets_the_failure_count() {
        // A connection is lasting after four times the longest pause (50 ms, 200 ms or 2 s), or after 2 s.
        for (failure_count, enough) in [(1, 200), (3, 800), (20, 2000)] {
            let enough = Duration::from_millis(enough);
            let next = (limits::BACKOFF_MIN * (1 << failure_count)).min(limits::BACKOFF_MAX);
            for (lasted, bound) in [(enough, next), (enough + Duration::from_nanos(1), limits::BACKOFF_MIN)] {
                let longest = longest_pause_after(failure_count, lasted);
                assert!(
                    longest < bound && longest > bound * 9 / 10,
                    "{longest:?} after {failure_count}, {lasted:?}"
                );
            }
        }
    }
}
