//! Parallel attempts to connect to the addresses of one name (RFC 8305). The next attempt starts at most
//! 250 ms after the last, or as soon as an attempt fails. The first to connect wins. The others end before
//! anything is written to them, so no two of them log in.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::{Registry, Token};

use super::channel::Channel;
use super::socket::Socket;
use crate::limits;

/// Address to connect to.
#[derive(Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The attempts for one connection.
#[derive(Debug)]
pub(super) struct Race {
    /// Token of the future connection.
    token: Token,
    /// Untried places, the next one last.
    spare: Vec<Place>,
    /// Attempts in the order of their start; `None` for a failed attempt.
    attempts: Vec<Option<(Place, Channel)>>,
    /// Pause between two starts.
    stagger: Duration,
    /// When the next attempt starts; `None` for at once.
    next_at: Option<Instant>,
    /// Error of the attempt that got furthest; the latest of several.
    trouble: Option<(Reach, String)>,
}

/// How far an attempt got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Nowhere,
    /// A host refused the connection.
    Refused,
    /// A peer accepted the connection, then the handshake failed.
    Accepted,
}

/// Longest pause between two starts, as RFC 8305 recommends.
const STAGGER: Duration = Duration::from_millis(250);

impl Race {
    /// The token must be below [`MASTER_COUNT_MAX`](limits::MASTER_COUNT_MAX). All attempts start within
    /// `limit`.
    pub(super) fn new(token: Token, mut places: Vec<Place>, limit: Duration) -> Self {
        let count = u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
        places.reverse();
        let stagger = STAGGER.min(limit / count);
        Self { token, spare: places, attempts: Vec::new(), stagger, next_at: None, trouble: None }
    }

    /// When the next attempt starts, unless one fails earlier.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_at.filter(|_| !self.spare.is_empty())
    }

    /// Whether the attempts under way are made over TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.attempts.iter().flatten().any(|(_, channel)| channel.is_tls())
    }

    /// Starts due attempts. The error says why no attempt is left.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        registry: &Registry,
        open: impl Fn(Socket) -> io::Result<Channel>,
    ) -> Result<(), String> {
        while self.next_at.is_none_or(|at| at <= now)
            && let Some(place) = self.spare.pop()
        {
            let token = Token(self.token.0 + (self.attempts.len() + 1) * limits::MASTER_COUNT_MAX);
            let socket = match &place {
                Place::Tcp(address) => Socket::tcp(*address, registry, token),
                Place::Unix(path) => Socket::unix(path, registry, token),
            };
            match socket.and_then(&open) {
                Ok(channel) => {
                    self.attempts.push(Some((place, channel)));
                    self.next_at = Some(now + self.stagger);
                }
                Err(error) => self.note(Reach::Nowhere, &error),
            }
        }
        if self.attempts.iter().any(Option::is_some) {
            return Ok(());
        }
        let trouble = self.trouble.take().map(|(_, why)| why);
        Err(trouble.unwrap_or_else(|| "its name has no address; check the name".to_owned()))
    }

    /// Handles an event of the attempt with this token. Returns the winner, whose events have the
    /// connection's token from now on. Without a winner, the caller must call [`Race::advance`].
    pub(super) fn drive(&mut self, registry: &Registry, token: Token) -> Option<(Place, Channel)> {
        // The attempt may have failed since the event.
        let attempt = self.attempts.get_mut((token.0 / limits::MASTER_COUNT_MAX).checked_sub(1)?)?;
        let (_, channel) = attempt.as_mut()?;
        match connects(channel, registry, self.token) {
            Ok(true) => attempt.take(),
            Ok(false) => None,
            Err(error) => {
                let reach = if channel.is_accepted() {
                    Reach::Accepted
                } else if error.kind() == io::ErrorKind::ConnectionRefused {
                    Reach::Refused
                } else {
                    Reach::Nowhere
                };
                *attempt = None;
                self.next_at = None;
                self.note(reach, &error);
                None
            }
        }
    }

    fn note(&mut self, reach: Reach, error: &io::Error) {
        if self.trouble.as_ref().is_none_or(|(farthest, _)| *farthest <= reach) {
            self.trouble = Some((reach, error.to_string()));
        }
    }
}

/// Makes as much progress as possible now. Returns whether the connection is open.
fn connects(channel: &mut Channel, registry: &Registry, token: Token) -> io::Result<bool> {
    channel.handle_writable()?;
    // The TLS handshake advances with reads.
    if channel.is_tls() && channel.is_accepted() {
        channel.recv(&mut [])?;
    }
    if !channel.is_connected() {
        return Ok(false);
    }
    channel.register_anew(registry, token)?;
    Ok(true)
}

/// The connection to which the attempt with this token belongs.
pub(super) const fn connection_of(token: Token) -> Token {
    Token(token.0 % limits::MASTER_COUNT_MAX)
}
