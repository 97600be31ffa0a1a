//! A blocking connection to one master, for administration. It takes no part in any lock.
//!
//! It has the sockets, TLS and login of a client, so it meets the same server and the same refusals. One
//! caller uses it. Each exchange has a time limit, and so has the whole session.

mod replies;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use super::ConnectError;
use super::channel::{Channel, Channels};
use super::resolve::look_up;
use super::socket::{Received, Socket};
use crate::clock;
use crate::config::{Address, Config, Login};
use crate::engine::trouble::{Trouble, step_refused};
use crate::error::CredentialsError;
use crate::limits;
use crate::lock::MasterId;
use crate::resp;
pub use replies::Answer;
use replies::{Bounds, Replies};

/// A connection to one master. A drop closes it.
pub struct Probe {
    poll: Poll,
    events: Events,
    channel: Channel,
    /// Whether the socket may have something to read.
    is_readable: bool,
    /// Room for one read.
    space: Box<[u8]>,
    /// Longest time of one exchange.
    limit: Duration,
    /// Time limit of the whole session.
    session: Limit,
    address: Option<IpAddr>,
    /// The login, to keep it out of messages.
    login: Option<Login>,
}

/// Reason why a master cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// There is no connection, or the server did not answer over it.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the login.
    #[error("{0}")]
    LoginRefused(String),
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// Runs `work` with a connection to each master, for all masters in parallel, each in a thread of its own.
/// Returns the results in the order of the configuration, after `limit` at the latest.
///
/// No exchange goes on beyond `limit`, so each thread ends then, too. Only a lookup of a name and a call of
/// the credentials provider cannot be interrupted: each has a thread of its own, which ends when it returns.
///
/// # Errors
/// [`ConnectError`] if certificates cannot be used, or if no thread can be started.
pub fn each<T: Send + 'static>(
    config: &Config,
    limit: Duration,
    work: impl Fn(&mut Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Vec<Result<T, ProbeError>>, ConnectError> {
    some(config, 0..config.master_count(), limit, work)
}

/// The same with one master, by its place in the configuration.
///
/// # Errors
/// As [`each`].
pub fn one<T: Send + 'static>(
    config: &Config,
    master: usize,
    limit: Duration,
    work: impl Fn(&mut Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Result<T, ProbeError>, ConnectError> {
    Ok(some(config, master..master + 1, limit, work)?.remove(0))
}

fn some<T: Send + 'static>(
    config: &Config,
    masters: Range<usize>,
    limit: Duration,
    work: impl Fn(&mut Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Vec<Result<T, ProbeError>>, ConnectError> {
    let shared = Arc::new((config.clone(), Channels::new(config)?, work));
    let now = clock::now();
    let session = Limit { time: limit, end: now.checked_add(limit).unwrap_or(now + limits::FOREVER) };
    let (sender, receiver) = mpsc::channel();
    for index in masters.clone() {
        let (sender, shared) = (sender.clone(), shared.clone());
        let run = move || {
            let (config, channels, work) = &*shared;
            let Some(master) = MasterId::new(index) else { return };
            let result = Probe::open(config, channels, master, session);
            // The caller may be gone by now: then nobody wants the result.
            let _ = sender.send((index, result.and_then(|mut probe| work(&mut probe, master))));
        };
        thread::Builder::new().name("redlatch-probe".to_owned()).spawn(run)?;
    }
    drop(sender);
    let late = || Err(ProbeError::Unreachable(Trouble::NotFinished(limit).to_string()));
    let mut results: Vec<_> = masters.clone().map(|_| late()).collect();
    // A moment more than the threads have, so that their own words arrive.
    let patience = session.end + GRACE;
    while let Ok((index, result)) = receiver.recv_timeout(patience.saturating_duration_since(clock::now())) {
        results[index - masters.start] = result;
    }
    Ok(results)
}

/// Time for a result to arrive that came at the deadline.
const GRACE: Duration = Duration::from_millis(200);

/// Makes a call that cannot be interrupted, in a thread of its own. `None` if it lasts longer than to `end`.
fn call_until<T: Send + 'static>(
    end: Instant,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, ProbeError> {
    let (sender, receiver) = mpsc::channel();
    // The receiver may be gone by then: nobody wants the result.
    let run = move || drop(sender.send(call()));
    thread::Builder::new().name("redlatch-probe".to_owned()).spawn(run).map_err(unreachable)?;
    Ok(receiver.recv_timeout(end.saturating_duration_since(clock::now())).ok())
}

fn unreachable(error: impl fmt::Display) -> ProbeError {
    ProbeError::Unreachable(error.to_string())
}

/// A time limit of the session.
#[derive(Clone, Copy)]
struct Limit {
    time: Duration,
    end: Instant,
}

impl Limit {
    /// So long from now on, and not beyond the deadline.
    fn new(time: Duration, deadline: Instant) -> Self {
        let now = clock::now();
        let time = time.min(deadline.saturating_duration_since(now));
        Self { time, end: now + time }
    }
}

impl Probe {
    /// Connects to a master and logs in, as a client does. Nothing goes on beyond the session.
    fn open(
        config: &Config,
        channels: &Channels,
        master: MasterId,
        session: Limit,
    ) -> Result<Self, ProbeError> {
        let url = &config.masters[master.index()];
        let limit = Limit::new(config.connect_timeout, session.end);
        let mut probe = match &url.address {
            Address::Unix { path } => Self::connect(config, channels, master, session, None, |poll| {
                Socket::unix(path, poll.registry(), TOKEN)
            }),
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                let (host, port) = (host.clone(), *port);
                let addresses = addresses(limit, move || look_up(&host, port, 0))?;
                let none = Err(unreachable("its name has no address; check the name"));
                addresses.into_iter().fold(none, |connected, address| match connected {
                    Ok(probe) => Ok(probe),
                    Err(_) => Self::connect(config, channels, master, session, Some(address), |poll| {
                        Socket::tcp(address, poll.registry(), TOKEN)
                    }),
                })
            }
        }?;
        probe.login.clone_from(&url.login);
        if config.has_provider() {
            let limit = Limit::new(config.connect_timeout, session.end);
            let config = config.clone();
            let credentials = call_until(limit.end, move || config.ask_credentials(master))?;
            let credentials = credentials.unwrap_or(Err(CredentialsError::NoAnswer { limit: limit.time }));
            let credentials = credentials.map_err(|error| ProbeError::LoginRefused(error.to_string()))?;
            probe.login = Some(credentials.login);
        }
        probe.log_in(url.db)?;
        Ok(probe)
    }

    /// Connects to one address.
    fn connect(
        config: &Config,
        channels: &Channels,
        master: MasterId,
        session: Limit,
        address: Option<SocketAddr>,
        open: impl FnOnce(&Poll) -> io::Result<Socket>,
    ) -> Result<Self, ProbeError> {
        let poll = Poll::new().map_err(unreachable)?;
        let socket = open(&poll).map_err(unreachable)?;
        let channel = channels.open(master, socket).map_err(unreachable)?;
        let mut probe = Self {
            poll,
            events: Events::with_capacity(4),
            channel,
            is_readable: false,
            space: vec![0; limits::READ_SIZE].into(),
            limit: config.connect_timeout,
            session,
            address: address.map(|address| address.ip().to_canonical()),
            login: None,
        };
        let limit = Limit::new(config.connect_timeout, session.end);
        while !probe.channel.is_connected() {
            if clock::now() >= limit.end {
                let is_tls = config.masters[master.index()].address.is_tls();
                let (plain, tls) = (Trouble::NoConnection(limit.time), Trouble::NoTlsConnection(limit.time));
                return Err(unreachable(if is_tls { tls } else { plain }));
            }
            // Over TLS, reading makes the connection. One in plaintext stands before it can be read.
            if !probe.is_readable || probe.read().map_err(unreachable)?.is_none() {
                probe.wait(limit.end).map_err(unreachable)?;
            }
        }
        Ok(probe)
    }

    fn log_in(&mut self, db: u32) -> Result<(), ProbeError> {
        let (login, db) = (self.login.clone(), db.to_string());
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        match &login {
            Some(Login { user: Some(user), password }) => commands.push(vec![b"AUTH", user, password]),
            Some(Login { user: None, password }) => commands.push(vec![b"AUTH", password]),
            None => {}
        }
        let login_count = commands.len();
        commands.push(vec![b"PING"]);
        if db != "0" {
            commands.push(vec![b"SELECT", db.as_bytes()]);
        }
        let answers = self.ask(&commands, Bounds::SMALL, Trouble::NoHandshake)?;
        for (index, answer) in answers.iter().enumerate() {
            let Some(text) = answer.error() else { continue };
            if index < login_count || text.starts_with("NOAUTH") || text.starts_with("DENIED") {
                return Err(ProbeError::LoginRefused(step_refused("AUTH", text.as_bytes())));
            }
            if text.starts_with("LOADING") {
                return Err(ProbeError::Unreachable(step_refused("PING", text.as_bytes())));
            }
            if index > login_count {
                return Err(ProbeError::LoginRefused(step_refused("SELECT", text.as_bytes())));
            }
        }
        Ok(())
    }

    /// Returns the name of the user that is logged in.
    #[must_use]
    pub fn user(&self) -> String {
        let user = self.login.as_ref().and_then(|login| login.user.as_deref());
        user.map_or_else(|| USER_DEFAULT.to_owned(), |user| String::from_utf8_lossy(user).into_owned())
    }

    /// Returns the server's address; `None` over a Unix socket.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns the end of the validity of the server's certificate, as a time since the Unix epoch; `None`
    /// without TLS.
    #[must_use]
    pub fn certificate_end(&self) -> Option<Duration> {
        self.channel.certificate_end()
    }

    /// Sends commands in one write, and returns their replies in order.
    ///
    /// # Errors
    /// [`ProbeError::Unreachable`] if the connection ended, if a reply is missing at the time limit, or if
    /// the replies exceed their bounds. The probe is then of no use any more.
    pub fn exchange<C: AsRef<[A]>, A: AsRef<[u8]>>(
        &mut self,
        commands: &[C],
    ) -> Result<Vec<Answer>, ProbeError> {
        self.ask(commands, Bounds::SMALL, Trouble::NoAnswer)
    }

    /// Sends one command, and returns its reply, which may be a large list. A text in it is cut off behind
    /// the longest key of a lock.
    ///
    /// # Errors
    /// As [`Probe::exchange`].
    pub fn exchange_page<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Answer, ProbeError> {
        let answers = self.ask(&[command], Bounds::PAGE, Trouble::NoAnswer)?;
        Ok(answers.into_iter().next().unwrap_or(Answer::Null))
    }

    fn ask<C: AsRef<[A]>, A: AsRef<[u8]>>(
        &mut self,
        commands: &[C],
        bounds: Bounds,
        late: fn(Duration) -> Trouble<'static>,
    ) -> Result<Vec<Answer>, ProbeError> {
        let mut request = Vec::new();
        for command in commands {
            let command: Vec<&[u8]> = command.as_ref().iter().map(AsRef::as_ref).collect();
            resp::encode_command(&mut request, &command);
        }
        let (login, mut unsent) = (self.login.clone(), request.as_slice());
        let mut replies = Replies::new(commands.len(), bounds, login.as_ref());
        let limit = Limit::new(self.limit, self.session.end);
        loop {
            if let Some(answers) = replies.take() {
                return Ok(answers);
            }
            // Looked at between any two reads: a peer that sends without end does not hold this up.
            if clock::now() >= limit.end {
                return Err(unreachable(match late(limit.time) {
                    // A session that is over does not say that the master is slow.
                    Trouble::NoAnswer(time) if time < self.limit => Trouble::NotFinished(self.session.time),
                    trouble => trouble,
                }));
            }
            while !unsent.is_empty() && self.channel.is_writable() {
                let size = self.channel.send(unsent).map_err(unreachable)?;
                unsent = &unsent[size..];
            }
            match self.read().map_err(unreachable)? {
                Some(bytes) => replies.read(bytes).map_err(ProbeError::Unreachable)?,
                None => self.wait(limit.end).map_err(unreachable)?,
            }
        }
    }

    /// Reads once; `None` if there is nothing before the next event.
    fn read(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.is_readable {
            return Ok(None);
        }
        match self.channel.recv(&mut self.space)? {
            Received::Bytes { size, .. } => Ok(Some(&self.space[..size])),
            Received::Connected => Ok(Some(&[])),
            Received::Nothing => {
                self.is_readable = false;
                Ok(None)
            }
            Received::End => Err(io::Error::other("the server closed the connection")),
        }
    }

    /// Waits for the socket.
    fn wait(&mut self, end: Instant) -> io::Result<()> {
        let timeout = end.saturating_duration_since(clock::now());
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let mut is_writable = false;
        for event in &self.events {
            is_writable |= event.is_writable();
            self.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        }
        if is_writable {
            self.channel.handle_writable()?;
        }
        Ok(())
    }
}

/// The addresses of a name, or why there are none.
fn addresses(
    limit: Limit,
    look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>, ProbeError> {
    match call_until(limit.end, look_up)? {
        Some(Ok(addresses)) => Ok(addresses),
        Some(Err(error)) => {
            Err(unreachable(format!("its name cannot be resolved ({error}); check the name")))
        }
        None => Err(unreachable(Trouble::NoAddress(limit.time))),
    }
}

/// The user of a connection without a user's name.
const USER_DEFAULT: &str = "default";

/// The only socket of its poll.
const TOKEN: Token = Token(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_that_hangs_is_named() {
        let (_never, receiver) = mpsc::channel::<()>();
        let limit = Limit::new(Duration::from_millis(20), clock::now() + limits::FOREVER);
        let hanging = addresses(limit, move || {
            let _ = receiver.recv();
            Ok(Vec::new())
        });
        let said = "its name was not resolved within 20ms; check the name and the name server";
        assert_eq!(hanging, Err(ProbeError::Unreachable(said.to_owned())));
    }

    #[test]
    fn a_limit_ends_with_the_session() {
        let second = Duration::from_secs(1);
        assert_eq!(Limit::new(second, clock::now() + limits::FOREVER).time, second);
        assert!(Limit::new(second, clock::now() + second / 2).time <= second / 2);
        assert_eq!(Limit::new(second, clock::now() - second).time, Duration::ZERO);
    }
}
