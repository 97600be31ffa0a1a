//! Attempts to connect to the addresses of one name, side by side (RFC 8305). The next attempt starts a
//! quarter of a second after the last one, or as soon as one fails. The first that connects wins. The others
//! end before anything is written to them, so no two of them ever log in.

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
    /// The token of the connection that they are for.
    token: Token,
    /// Places that were not tried, the next one last.
    spare: Vec<Place>,
    /// Attempts in the order of their start; `None` for each that failed.
    attempts: Vec<Option<(Place, Channel)>>,
    /// Pause between two starts.
    stagger: Duration,
    /// When the next one starts; `None` for at once.
    next_at: Option<Instant>,
    /// The trouble with the attempt that came farthest, the latest of several.
    trouble: Option<(Reach, String)>,
}

/// How far an attempt came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Nowhere,
    /// A host refused it.
    Refused,
    /// A peer accepted it, and failed in its handshake.
    Accepted,
}

/// Longest pause between two starts: RFC 8305 recommends it.
const STAGGER: Duration = Duration::from_millis(250);

impl Race {
    /// The token is below [`MASTER_COUNT_MAX`](limits::MASTER_COUNT_MAX). `limit` is the time for all attempts:
    /// each starts within it.
    pub(super) fn new(token: Token, mut places: Vec<Place>, limit: Duration) -> Self {
        let count = u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
        places.reverse();
        let stagger = STAGGER.min(limit / count);
        Self { token, spare: places, attempts: Vec::new(), stagger, next_at: None, trouble: None }
    }

    /// When the next attempt starts, whatever becomes of those under way.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_at.filter(|_| !self.spare.is_empty())
    }

    /// Whether the attempts under way are made over TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.attempts.iter().flatten().any(|(_, channel)| channel.is_tls())
    }

    /// Starts what is due. The error says why no attempt is left.
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

    /// Something happened to the attempt with this token. Returns the winner, whose events have the token of
    /// the connection from now on. Without a winner the caller goes on with [`Race::advance`].
    pub(super) fn drive(&mut self, registry: &Registry, token: Token) -> Option<(Place, Channel)> {
        // The attempt may have failed since.
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

/// Does what can be done now; returns whether the connection stands.
fn connects(channel: &mut Channel, registry: &Registry, token: Token) -> io::Result<bool> {
    channel.handle_writable()?;
    // Over TLS, reading makes the connection.
    if channel.is_tls() && channel.is_accepted() {
        channel.recv(&mut [])?;
    }
    if !channel.is_connected() {
        return Ok(false);
    }
    channel.register_anew(registry, token)?;
    Ok(true)
}

/// The connection that an attempt with this token is for.
pub(super) const fn connection_of(token: Token) -> Token {
    Token(token.0 % limits::MASTER_COUNT_MAX)
}
