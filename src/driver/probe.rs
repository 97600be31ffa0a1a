//! A blocking connection to one master, for administration. It takes no part in any lock.
//!
//! It has the sockets, TLS and login of a client, so it meets the same server and the same refusals. One
//! caller uses it. Each exchange has a time limit, and so has the whole session.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
use crate::limits;
use crate::lock::MasterId;
use crate::lock::command::error_text;
use crate::resp::{self, Reply};
use crate::wire::Wire;

/// A connection to one master. A drop closes it.
pub struct Probe {
    poll: Poll,
    events: Events,
    channel: Channel,
    wire: Wire<()>,
    /// Longest time of one exchange.
    limit: Duration,
    /// End of the session.
    deadline: Instant,
    address: Option<IpAddr>,
    /// Name of the user that is logged in.
    user: Box<str>,
    /// Whether the server has closed the connection.
    has_ended: bool,
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

/// A reply to one command, with its own memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A status line or a string.
    Text(Vec<u8>),
    /// An error line.
    Error(String),
    /// A number.
    Integer(i64),
    /// Replies one after another.
    List(Vec<Answer>),
    /// No string, or no list.
    Null,
}

impl Answer {
    fn new(reply: &Reply<'_>) -> Self {
        match reply {
            Reply::Simple(text) | Reply::Bulk(text) => Self::Text(text.to_vec()),
            Reply::Error(text) => Self::Error(error_text(text).into()),
            Reply::Integer(number) => Self::Integer(*number),
            Reply::Array(array) => Self::List(array.iter().map(|reply| Self::new(&reply)).collect()),
            Reply::NullBulk | Reply::NullArray => Self::Null,
        }
    }

    /// Returns the bytes of a status line or a string.
    #[must_use]
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the error line.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// Runs `work` with a connection to each master, for all masters in parallel, each in a thread of its own.
/// Returns the results in the order of the configuration, after `limit` at the latest.
///
/// A thread that is still busy then, as with the lookup of a name, ends by itself.
///
/// # Errors
/// [`ConnectError`] if certificates cannot be used, or if no thread can be started.
pub fn each<T: Send + 'static>(
    config: &Config,
    limit: Duration,
    work: impl Fn(&mut Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Vec<Result<T, ProbeError>>, ConnectError> {
    let shared = Arc::new((config.clone(), Channels::new(config)?, work));
    let now = clock::now();
    let deadline = now.checked_add(limit).unwrap_or(now + limits::FOREVER);
    let (sender, receiver) = mpsc::channel();
    for index in 0..config.master_count() {
        let (sender, shared) = (sender.clone(), shared.clone());
        let run = move || {
            let (config, channels, work) = &*shared;
            let Some(master) = MasterId::new(index) else { return };
            let result = Probe::open(config, channels, master, deadline);
            // The caller may be gone by now: then nobody wants the result.
            let _ = sender.send((index, result.and_then(|mut probe| work(&mut probe, master))));
        };
        thread::Builder::new().name("redlatch-probe".to_owned()).spawn(run)?;
    }
    drop(sender);
    let late = || Err(ProbeError::Unreachable(Trouble::NoHandshake(limit).to_string()));
    let mut results: Vec<_> = (0..config.master_count()).map(|_| late()).collect();
    // A moment more than the threads have, so that their own words arrive.
    let patience = deadline + GRACE;
    while let Ok((index, result)) = receiver.recv_timeout(patience.saturating_duration_since(clock::now())) {
        results[index] = result;
    }
    Ok(results)
}

/// Time for a result to arrive that came at the deadline.
const GRACE: Duration = Duration::from_millis(200);

impl Probe {
    /// Connects to a master and logs in, as a client does. No exchange goes on beyond `deadline`.
    fn open(
        config: &Config,
        channels: &Channels,
        master: MasterId,
        deadline: Instant,
    ) -> Result<Self, ProbeError> {
        let url = &config.masters[master.index()];
        let connect = |address: Option<SocketAddr>| -> io::Result<Self> {
            let poll = Poll::new()?;
            let socket = match (&url.address, address) {
                (Address::Unix { path }, _) => Socket::unix(path, poll.registry(), TOKEN)?,
                (_, Some(address)) => Socket::tcp(address, poll.registry(), TOKEN)?,
                (_, None) => return Err(io::Error::other("its name has no address; check the name")),
            };
            let (channel, address) =
                (channels.open(master, socket)?, address.map(|address| address.ip().to_canonical()));
            let (events, wire, limit) = (Events::with_capacity(4), Wire::new(), config.connect_timeout);
            let mut probe = Self {
                poll,
                events,
                channel,
                wire,
                limit,
                deadline,
                address,
                user: USER_DEFAULT.into(),
                has_ended: false,
            };
            let end = deadline.min(clock::now() + limit);
            while !probe.channel.is_connected() {
                if !probe.turn(end)? {
                    let is_tls = url.address.is_tls();
                    let why =
                        if is_tls { Trouble::NoTlsConnection(limit) } else { Trouble::NoConnection(limit) };
                    return Err(io::Error::other(why.to_string()));
                }
            }
            Ok(probe)
        };
        let addresses = match &url.address {
            Address::Unix { .. } => Vec::new(),
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                let unresolved = |error| format!("its name cannot be resolved ({error}); check the name");
                look_up(host, *port, 0).map_err(|error| ProbeError::Unreachable(unresolved(error)))?
            }
        };
        let mut attempts = addresses.into_iter().map(Some);
        let mut connected = connect(attempts.next().flatten());
        for address in attempts {
            if connected.is_ok() {
                break;
            }
            connected = connect(address);
        }
        let mut probe = connected.map_err(|error| ProbeError::Unreachable(error.to_string()))?;
        if config.has_provider() {
            let credentials = config.ask_credentials(master);
            let credentials = credentials.map_err(|error| ProbeError::LoginRefused(error.to_string()))?;
            probe.log_in(Some(&credentials.login), url.db)?;
        } else {
            probe.log_in(url.login.as_ref(), url.db)?;
        }
        Ok(probe)
    }

    fn log_in(&mut self, login: Option<&Login>, db: u32) -> Result<(), ProbeError> {
        let db = db.to_string();
        if let Some(user) = login.and_then(|login| login.user.as_ref()) {
            self.user = String::from_utf8_lossy(user).into();
        }
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        match login {
            Some(Login { user: Some(user), password }) => commands.push(vec![b"AUTH", user, password]),
            Some(Login { user: None, password }) => commands.push(vec![b"AUTH", password]),
            None => {}
        }
        let login_count = commands.len();
        commands.push(vec![b"PING"]);
        if db != "0" {
            commands.push(vec![b"SELECT", db.as_bytes()]);
        }
        let answers = self.exchange(&commands)?;
        for (index, answer) in answers.iter().enumerate() {
            let Some(text) = answer.error() else { continue };
            // What follows a repeated command are its arguments: a password is one.
            let text = text.split(", with args").next().unwrap_or(text);
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
    pub fn user(&self) -> &str {
        &self.user
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
    /// [`ProbeError::Unreachable`] if the connection ended, or if a reply is missing at the time limit. The
    /// probe is then of no use any more.
    pub fn exchange<C: AsRef<[A]>, A: AsRef<[u8]>>(
        &mut self,
        commands: &[C],
    ) -> Result<Vec<Answer>, ProbeError> {
        let unreachable = |error: io::Error| ProbeError::Unreachable(error.to_string());
        let (mut bytes, tags) = (Vec::new(), vec![(); commands.len()]);
        for command in commands {
            let command: Vec<&[u8]> = command.as_ref().iter().map(AsRef::as_ref).collect();
            resp::encode_command(&mut bytes, &command);
        }
        let full = || ProbeError::Unreachable("the request is too large".to_owned());
        self.wire.request(&bytes, &tags).map_err(|_| full())?;
        let end = self.deadline.min(clock::now() + self.limit);
        let mut answers = Vec::with_capacity(commands.len());
        loop {
            self.write().map_err(unreachable)?;
            while let Some((_, reply)) =
                self.wire.next_reply().map_err(io::Error::other).map_err(unreachable)?
            {
                answers.push(Answer::new(&reply));
            }
            if answers.len() == commands.len() {
                return Ok(answers);
            }
            if !self.turn(end).map_err(unreachable)? {
                return Err(ProbeError::Unreachable(Trouble::NoHandshake(self.limit).to_string()));
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.wire.send_ready().is_empty() && self.channel.is_writable() {
            let size = self.channel.send(self.wire.send_ready())?;
            self.wire.send_done(size);
        }
        Ok(())
    }

    /// Waits for the socket, and reads what has arrived. False if it is too late.
    fn turn(&mut self, end: Instant) -> io::Result<bool> {
        let now = clock::now();
        if self.has_ended {
            return Err(io::Error::other("the server closed the connection"));
        }
        if now >= end {
            return Ok(false);
        }
        match self.poll.poll(&mut self.events, Some(end - now)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let (mut is_writable, mut is_readable) = (false, false);
        for event in &self.events {
            is_writable |= event.is_writable();
            is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        }
        if is_writable {
            self.channel.handle_writable()?;
        }
        while is_readable {
            match self.channel.recv(self.wire.recv_space())? {
                Received::Bytes { size, .. } => self.wire.recv_done(size),
                Received::Connected => {}
                Received::Nothing => is_readable = false,
                // Replies that came before it still count.
                Received::End => (is_readable, self.has_ended) = (false, true),
            }
        }
        Ok(true)
    }
}

/// The user of a connection without a user's name.
const USER_DEFAULT: &str = "default";

/// The only socket of its poll.
const TOKEN: Token = Token(0);
