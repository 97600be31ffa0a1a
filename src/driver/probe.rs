//! A blocking connection to one master, for administration. It takes no part in locks.
//!
//! It uses a client's sockets, TLS and login, so it meets the same server and the same refusals. It serves
//! one caller. Every exchange has a time limit, and so does the whole session.

mod replies;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Token};

use super::ConnectError;
use super::channel::{Channel, Channels};
use super::logins;
use super::race::{Place, Race};
use super::resolve::look_up;
use super::socket::{Received, Socket};
use crate::clock;
use crate::config::{Address, Config, Login};
use crate::engine::masters::trouble::{CLOSED, Trouble, is_full, step_refused};
use crate::error::CredentialsError;
pub use crate::error::probe::ProbeError;
use crate::limits;
use crate::lock::MasterId;
use crate::lock::command::answer::is_passing;
use crate::resp;
pub use replies::Answer;
use replies::{Bounds, Replies};

/// Number of bytes at which [`Probe::exchange_list`] cuts a reply off.
pub const LIST_SIZE_MAX: usize = limits::PROBE_LIST_SIZE_MAX;

/// A connection to one master. Dropping it closes the connection.
pub struct Probe {
    poll: Poll,
    events: Events,
    channel: Channel,
    /// Whether the socket may have bytes to read.
    is_readable: bool,
    /// Buffer for one read.
    space: Box<[u8]>,
    /// Commands not yet written.
    unsent: Vec<u8>,
    /// Why no more can be written. Bytes that have arrived are read first.
    pub write_error: Option<io::Error>,
    /// The last error reply, if no reply followed it.
    last_error: Option<String>,
    /// Longest duration of one exchange.
    limit: Duration,
    bounds: Bounds,
    /// Time limit of the whole session.
    session: Limit,
    address: Option<IpAddr>,
    /// The login, kept to remove it from messages.
    login: Option<Login>,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// Runs `work` with a connection to each master; see [`some`].
///
/// # Errors
/// As [`some`].
pub fn each<T: Send + 'static>(
    config: &Config,
    limit: Duration,
    work: impl Fn(&mut Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Vec<Result<T, ProbeError>>, ConnectError> {
    some(config, 0..config.master_count(), limit, move |mut probe, master| work(&mut probe, master))
}

/// Runs `work` in parallel, with a connection to each of these masters (places in the configuration), each in
/// its own thread. Returns the results in the order of the places, within `limit`.
///
/// No exchange continues beyond `limit`, so each thread ends then. Only a name lookup and a call of the
/// credentials provider cannot be interrupted: each has its own thread, which ends when the call returns.
///
/// # Errors
/// [`ConnectError`] if certificates are unusable, or no thread can be started.
pub fn some<T: Send + 'static>(
    config: &Config,
    masters: impl IntoIterator<Item = usize>,
    limit: Duration,
    work: impl Fn(Probe, MasterId) -> Result<T, ProbeError> + Send + Sync + 'static,
) -> Result<Vec<Result<T, ProbeError>>, ConnectError> {
    let shared = Arc::new((config.clone(), Channels::new(config)?, work));
    let session = Limit::new(limit, clock::now() + limits::FOREVER);
    let (sender, receiver) = mpsc::channel();
    let mut results = Vec::new();
    for (place, master) in masters.into_iter().filter_map(MasterId::new).enumerate() {
        let (sender, shared) = (sender.clone(), shared.clone());
        let run = move || {
            let (config, channels, work) = &*shared;
            let result = Probe::open(config, channels, master, session);
            // The caller may have given up.
            let _ = sender.send((place, result.and_then(|probe| work(probe, master))));
        };
        thread::Builder::new().name("redlatch-probe".to_owned()).spawn(run)?;
        results.push(Err(ProbeError::Unreachable(Trouble::NotFinished(limit).to_string())));
    }
    drop(sender);
    // Slightly longer than the threads' limit, so that their own errors arrive.
    let patience = session.end + GRACE;
    while let Ok((place, result)) = receiver.recv_timeout(patience.saturating_duration_since(clock::now())) {
        results[place] = result;
    }
    Ok(results)
}

/// Extra time for the arrival of a result that was ready at the deadline.
const GRACE: Duration = Duration::from_millis(200);

/// Makes an uninterruptible call in its own thread. `None` if it has not returned by `end`.
fn call_until<T: Send + 'static>(
    end: Instant,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, ProbeError> {
    let (sender, receiver) = mpsc::channel();
    // The receiver may have given up.
    let run = move || drop(sender.send(call()));
    thread::Builder::new().name("redlatch-probe".to_owned()).spawn(run).map_err(unreachable)?;
    Ok(receiver.recv_timeout(end.saturating_duration_since(clock::now())).ok())
}

fn unreachable(error: impl fmt::Display) -> ProbeError {
    ProbeError::Unreachable(error.to_string())
}

/// A time limit within the session.
#[derive(Clone, Copy)]
struct Limit {
    time: Duration,
    end: Instant,
}

impl Limit {
    /// Ends after `time`, but not after `deadline`.
    fn new(time: Duration, deadline: Instant) -> Self {
        let now = clock::now();
        let time = time.min(deadline.saturating_duration_since(now));
        Self { time, end: now + time }
    }
}

impl Probe {
    /// Connects to a master and logs in, as a client does, within the session's limit.
    fn open(
        config: &Config,
        channels: &Channels,
        master: MasterId,
        session: Limit,
    ) -> Result<Self, ProbeError> {
        let url = &config.masters[master.index()];
        let limit = Limit::new(config.connect_timeout, session.end);
        let places = match &url.address {
            Address::Unix { path } => vec![Place::Unix(path.clone())],
            Address::Tcp { host, port } | Address::Tls { host, port } => {
                let (host, port) = (host.clone(), *port);
                let addresses = addresses(limit, move || look_up(&host, port, 0))?;
                addresses.into_iter().map(Place::Tcp).collect()
            }
        };
        let open = |socket| channels.open(master, socket);
        let mut probe = Self::connect(config.connect_timeout, session, places, open)?;
        probe.login.clone_from(&url.login);
        if config.has_provider() {
            let limit = Limit::new(config.connect_timeout, session.end);
            let config = config.clone();
            let credentials = call_until(limit.end, move || logins::ask(&config, master))?;
            let credentials = credentials.unwrap_or(Err(CredentialsError::NoAnswer { limit: limit.time }));
            let credentials = credentials.map_err(|error| ProbeError::LoginRefused(error.to_string()))?;
            probe.login = Some(credentials.login);
        }
        probe.log_in(url.db)?;
        Ok(probe)
    }

    /// Connects in plaintext to one address, without a login. `limit` applies to the connect and to each
    /// exchange, whose replies may be large.
    pub fn plain(address: SocketAddr, limit: Duration) -> Result<Self, ProbeError> {
        let session = Limit::new(limits::FOREVER, clock::now() + limits::FOREVER);
        let open = |socket| Ok(Channel::plain(socket));
        let probe = Self::connect(limit, session, vec![Place::Tcp(address)], open)?;
        Ok(Self { bounds: Bounds::WIDE, ..probe })
    }

    /// Connects to the first of several addresses that answers.
    fn connect(
        limit: Duration,
        session: Limit,
        places: Vec<Place>,
        open: impl Fn(Socket) -> io::Result<Channel>,
    ) -> Result<Self, ProbeError> {
        let mut poll = Poll::new().map_err(unreachable)?;
        let mut events = Events::with_capacity(limits::ADDRESS_COUNT_MAX);
        let connecting = Limit::new(limit, session.end);
        let mut race = Race::new(TOKEN, places, connecting.time);
        let (place, channel) = loop {
            race.advance(clock::now(), poll.registry(), &open).map_err(unreachable)?;
            if clock::now() >= connecting.end {
                let time = connecting.time;
                let (plain, tls) = (Trouble::NoConnection(time), Trouble::NoTlsConnection(time));
                return Err(unreachable(if race.is_tls() { tls } else { plain }));
            }
            let end = race.due().map_or(connecting.end, |at| at.min(connecting.end));
            sleep(&mut poll, &mut events, end).map_err(unreachable)?;
            let drive = |event: &Event| race.drive(poll.registry(), event.token());
            if let Some(winner) = events.iter().find_map(drive) {
                break winner;
            }
        };
        Ok(Self {
            poll,
            events,
            channel,
            // TLS may have decrypted bytes after its handshake.
            is_readable: true,
            space: vec![0; limits::READ_SIZE].into(),
            unsent: Vec::new(),
            write_error: None,
            last_error: None,
            limit,
            bounds: Bounds::SMALL,
            session,
            address: match place {
                Place::Tcp(address) => Some(address.ip().to_canonical()),
                Place::Unix(_) => None,
            },
            login: None,
        })
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
        self.send(&commands);
        let answers = self.receive_within(commands.len(), self.bounds, Trouble::NoHandshake)?;
        for (index, answer) in answers.iter().enumerate() {
            let Some(text) = answer.error() else { continue };
            if is_full(text) {
                return Err(ProbeError::Unreachable(step_refused("AUTH", text.as_bytes())));
            }
            if index < login_count || text.starts_with("NOAUTH") || text.starts_with("DENIED") {
                return Err(ProbeError::LoginRefused(step_refused("AUTH", text.as_bytes())));
            }
            if is_passing(text.as_bytes()) {
                return Err(ProbeError::Unreachable(step_refused("PING", text.as_bytes())));
            }
            if index > login_count {
                return Err(ProbeError::Unreachable(step_refused("SELECT", text.as_bytes())));
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

    /// Returns the end of the server certificate's validity, as time since the Unix epoch; `None` without
    /// TLS.
    #[must_use]
    pub fn certificate_end(&self) -> Option<Duration> {
        self.channel.certificate_end()
    }

    /// Sends commands in one write, and returns their replies in order.
    ///
    /// # Errors
    /// As [`Probe::receive`].
    pub fn exchange<C: AsRef<[A]>, A: AsRef<[u8]>>(
        &mut self,
        commands: &[C],
    ) -> Result<Vec<Answer>, ProbeError> {
        self.send(commands);
        self.receive(commands.len())
    }

    /// Sends one command, and returns its reply, which may be a large list. Its texts are cut off at the
    /// length of the longest lock key.
    ///
    /// # Errors
    /// As [`Probe::receive`].
    pub fn exchange_page<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Answer, ProbeError> {
        self.exchange_within(command, Bounds::PAGE)
    }

    /// Sends one command, and returns its reply, which may be a long text, cut off at
    /// [`PROBE_LIST_SIZE_MAX`](limits::PROBE_LIST_SIZE_MAX).
    ///
    /// # Errors
    /// As [`Probe::receive`].
    pub fn exchange_list<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Answer, ProbeError> {
        self.exchange_within(command, Bounds::LIST)
    }

    fn exchange_within<A: AsRef<[u8]>>(
        &mut self,
        command: &[A],
        bounds: Bounds,
    ) -> Result<Answer, ProbeError> {
        self.send(&[command]);
        let answers = self.receive_within(1, bounds, Trouble::NoAnswer)?;
        Ok(answers.into_iter().next().unwrap_or(Answer::Null))
    }

    /// Returns the present, by the clock of [`pause_until`](Self::pause_until).
    #[must_use]
    pub fn now() -> Instant {
        clock::now()
    }

    /// Sends nothing until this time.
    #[expect(clippy::disallowed_methods, reason = "sleeps")]
    pub fn pause_until(&self, at: Instant) {
        thread::sleep(at.saturating_duration_since(clock::now()));
    }

    /// Sends commands. [`Probe::receive`] writes what the socket does not accept now, reads the replies, and
    /// reports a broken connection.
    pub fn send<C: AsRef<[A]>, A: AsRef<[u8]>>(&mut self, commands: &[C]) {
        for command in commands {
            let command: Vec<&[u8]> = command.as_ref().iter().map(AsRef::as_ref).collect();
            resp::encode_command(&mut self.unsent, &command);
        }
        self.write();
    }

    /// Returns the `count` replies to all commands sent since the last call.
    ///
    /// # Errors
    /// [`ProbeError::Unreachable`] if the connection ended, if a reply is missing at the time limit, or if
    /// the replies exceed their bounds. The probe is unusable afterwards.
    pub fn receive(&mut self, count: usize) -> Result<Vec<Answer>, ProbeError> {
        self.receive_within(count, self.bounds, Trouble::NoAnswer)
    }

    fn receive_within(
        &mut self,
        count: usize,
        bounds: Bounds,
        late: fn(Duration) -> Trouble<'static>,
    ) -> Result<Vec<Answer>, ProbeError> {
        let login = self.login.clone();
        let mut replies = Replies::new(count, bounds, login.as_ref());
        let read = self.read_replies(&mut replies, late);
        if let Some(last) = replies.last() {
            self.last_error = last.error().map(str::to_owned);
        }
        match (&read, &self.last_error) {
            (Err(Ended::Closed(why)), Some(refusal)) => {
                Err(unreachable(Trouble::ClosedAfter { why: &why.to_string(), refusal }))
            }
            (Err(Ended::Closed(why)), None) => Err(unreachable(why)),
            (Err(Ended::Other(why)), _) => Err(unreachable(why)),
            (Ok(()), _) => Ok(replies.take()),
        }
    }

    /// Reads until all replies have come.
    fn read_replies(
        &mut self,
        replies: &mut Replies<'_>,
        late: fn(Duration) -> Trouble<'static>,
    ) -> Result<(), Ended> {
        let limit = Limit::new(self.limit, self.session.end);
        while !replies.are_complete() {
            // Checked between reads, so a peer that sends without end does not prevent it.
            if clock::now() >= limit.end {
                return Err(Ended::Other(match late(limit.time) {
                    // The session's end does not mean that the master is slow.
                    Trouble::NoAnswer(time) if time < self.limit => {
                        Trouble::NotFinished(self.session.time).to_string()
                    }
                    trouble => trouble.to_string(),
                }));
            }
            self.write();
            match self.read().map_err(Ended::Closed)? {
                Some(bytes) => replies.read(bytes).map_err(Ended::Other)?,
                None => match self.write_error.take() {
                    Some(error) => return Err(Ended::Closed(error)),
                    None => self.wait(limit.end).map_err(Ended::Closed)?,
                },
            }
        }
        Ok(())
    }

    /// Writes as much as the socket accepts.
    fn write(&mut self) {
        while self.write_error.is_none() && !self.unsent.is_empty() && self.channel.is_writable() {
            match self.channel.send(&self.unsent) {
                Ok(size) => drop(self.unsent.drain(..size)),
                Err(error) => {
                    self.write_error = Some(error);
                    self.is_readable = true;
                }
            }
        }
    }

    /// Reads once; `None` if nothing comes before the next event.
    fn read(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.is_readable {
            return Ok(None);
        }
        match self.channel.recv(&mut self.space)? {
            Received::Bytes { size, .. } => Ok(Some(&self.space[..size])),
            Received::Nothing | Received::Connected => {
                self.is_readable = false;
                Ok(None)
            }
            Received::End => Err(io::Error::other(CLOSED)),
        }
    }

    fn wait(&mut self, end: Instant) -> io::Result<()> {
        sleep(&mut self.poll, &mut self.events, end)?;
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

/// Why an exchange has no replies.
enum Ended {
    /// The connection ended.
    Closed(io::Error),
    /// A time limit passed, or the replies are unusable.
    Other(String),
}

fn sleep(poll: &mut Poll, events: &mut Events, end: Instant) -> io::Result<()> {
    let timeout = end.saturating_duration_since(clock::now());
    poll.poll(events, Some(timeout)).or_else(|error| match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    })
}

/// Addresses of a name, or why there are none.
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

/// User of a connection without a user name.
const USER_DEFAULT: &str = "default";

/// Token of the poll's only socket.
const TOKEN: Token = Token(0);

#[cfg(test)]
mod tests;
