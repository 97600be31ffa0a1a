//! One connection to a master: its state, its bytes, and when it is tried again.
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
    /// Failures in a row.
    failure_count: u32,
    pub(crate) login: LoginState,
}

/// With which login a connection stands, by its version.
#[derive(Debug)]
pub(crate) struct LoginState {
    version: u32,
    answer: LoginAnswer,
}

/// Answer of the server to a login.
#[derive(Debug)]
enum LoginAnswer {
    /// Nothing yet. The login is kept to keep it out of messages; a handshake keeps its own.
    Pending(Option<Box<Login>>),
    Accepted,
    /// The login before stays.
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

    /// Whether it was ever lost, or not reached.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failure_count > 0
    }

    /// When it is to be tried, or has to have come as far as the next state. A ready one has no such time.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            State::Connecting { deadline } | State::Handshake { deadline, .. } => Some(deadline),
            State::Ready { .. } => None,
        }
    }

    /// The driver is asked to connect.
    pub(crate) fn start_connecting(&mut self, deadline: Instant) {
        self.state = State::Connecting { deadline };
    }

    /// The connection stands, if it was asked for: queues the handshake with this login, whose replies are
    /// owed as `owed` says.
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

    /// Queues `AUTH` on a connection that stands. False if there is no room for it.
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

    /// The nonce came back: the connection is ready. Returns what was learnt.
    pub(crate) fn finish_handshake(&mut self, now: Instant) -> Learnt {
        let before = std::mem::replace(&mut self.state, State::Ready { since: now });
        let State::Handshake { handshake, .. } = before else { unreachable!("its handshake is done") };
        self.login.answer = LoginAnswer::Accepted;
        handshake.learnt
    }

    /// The connection failed: how long to wait before the next one. A connection that lasted four times the
    /// longest pause before it starts a new row of failures.
    pub(crate) fn back_off(&mut self, now: Instant, rng: &mut impl Rng) -> Duration {
        let has_lasted = match self.state {
            State::Ready { since } => now - since > (self.longest_pause() * 4).min(limits::BACKOFF_MAX),
            State::Down { .. } | State::Connecting { .. } | State::Handshake { .. } => false,
        };
        self.failure_count = if has_lasted { 1 } else { self.failure_count.saturating_add(1) };
        rng.random_range(Duration::ZERO..self.longest_pause())
    }

    /// Upper bound of the random pause after this row of failures.
    fn longest_pause(&self) -> Duration {
        let doublings = self.failure_count.saturating_sub(1).min(16);
        limits::BACKOFF_MIN.saturating_mul(1 << doublings).min(limits::BACKOFF_MAX)
    }

    /// The connection is gone, or must go: all that was owed is lost.
    pub(crate) fn close(&mut self, retry_at: Instant) {
        self.state = State::Down { retry_at };
        self.wire.clear();
    }
}

impl LoginState {
    const NONE: Self = Self { version: 0, answer: LoginAnswer::Accepted };

    /// Whether this login is to be sent. One that is sent is answered before the next one is.
    pub(crate) const fn wants(&self, version: u32) -> bool {
        self.version != version && !matches!(self.answer, LoginAnswer::Pending(_))
    }

    /// Whether the server has accepted this login.
    pub(crate) const fn is_accepted(&self, version: u32) -> bool {
        self.version == version && matches!(self.answer, LoginAnswer::Accepted)
    }

    /// Whether the server has refused this login.
    pub(crate) const fn is_refused(&self, version: u32) -> bool {
        self.version == version && matches!(self.answer, LoginAnswer::Refused)
    }

    /// Takes the reply to `AUTH` on a connection that stands: why it was refused, if it was.
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
    /// Takes the reply to a step of the handshake. `Ok(true)` ends it; an error ends the connection.
    pub(crate) fn handle_step(&mut self, step: HandshakeStep, reply: &Reply<'_>) -> Result<bool, String> {
        let Self::Handshake { handshake, .. } = self else {
            return Err(Trouble::WrongShape.to_string());
        };
        handshake.handle_reply(step, reply)
    }
}

/// Connections of one kind that the driver is to open or close.
#[derive(Debug)]
pub(crate) struct Wishes {
    connect: MasterSet,
    close: MasterSet,
    /// Masters whose names must be looked up again.
    look_up: MasterSet,
    /// Masters to connect once the provider has returned their credentials.
    pub(crate) awaiting_login: MasterSet,
}

impl Wishes {
    pub(crate) const fn new() -> Self {
        let none = MasterSet::EMPTY;
        Self { connect: none, close: none, look_up: none, awaiting_login: none }
    }

    /// Asks for a connection to a master, behind its credentials if a provider has them.
    pub(crate) const fn connect(&mut self, master: MasterId, has_provider: bool) {
        if has_provider {
            self.awaiting_login.insert(master);
        } else {
            self.connect.insert(master);
        }
    }

    /// Asks for a new lookup of a connected master's name: it may lead to another server now.
    pub(crate) const fn look_up(&mut self, master: MasterId) {
        self.look_up.insert(master);
    }

    /// The credentials of a master are there.
    pub(crate) fn note_login(&mut self, master: MasterId) {
        if self.awaiting_login.contains(master) {
            self.awaiting_login.remove(master);
            self.connect.insert(master);
        }
    }

    /// Wants no connection any more, and the present one closed if it `is_open`.
    pub(crate) const fn close(&mut self, master: MasterId, is_open: bool) {
        self.connect.remove(master);
        self.look_up.remove(master);
        self.awaiting_login.remove(master);
        if is_open {
            self.close.insert(master);
        }
    }

    /// The driver has no connection left that would have to be closed.
    pub(crate) const fn forget_close(&mut self, master: MasterId) {
        self.close.remove(master);
    }

    /// The next thing to do.
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
    fn a_link_that_ended_is_not_connected_for_an_earlier_wish() {
        let (mut wishes, master) = (Wishes::new(), MasterId::new(0).expect("the first"));
        wishes.connect(master, false);
        wishes.close(master, false);
        assert_eq!(wishes.poll(), None);
    }

    /// Longest of many pauses after `failure_count` failures and a connection that stood for `lasted`.
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
    fn a_connection_that_lasted_ends_the_row_of_failures() {
        // Four pauses of at most 50 ms, 200 ms or 2 s; 2 s are always enough.
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
