//! Sockets, time and randomness for an [`Engine`]: the only code below [`crate::Redlock`] that uses them.
//!
//! One [`Driver::turn`] writes queued bytes (one write per master), sleeps until something arrives or is due,
//! reads (usually once per readable master), and lets the engine act. The [`Poller`], which sleeps, is
//! separate from the driver, so other threads may queue and write while one thread sleeps.

mod channel;
mod logins;
pub mod probe;
mod race;
mod resolve;
mod socket;
#[cfg(feature = "tls")]
mod tls;

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token, Waker};
use rand::TryRng;
use rand::rngs::SysRng;

use crate::clock;
use crate::config::{Address, Config, Credentials};
use crate::engine::masters::trouble::CLOSED;
use crate::engine::{Engine, LinkRequest, OpId, Request, SubmitError};
use crate::error::{ConfigError, CredentialsError};
use crate::limits;
use crate::lock::{MasterId, MasterSet};
#[cfg(test)]
pub(crate) use channel::NoPlaintext;
use channel::{Channel, Channels};
use race::{Place, Race};
use resolve::{Calls, Resolver};
use socket::Received;
#[cfg(feature = "tls")]
pub use tls::TlsError;
#[cfg(all(test, feature = "tls"))]
pub(crate) use tls::TlsTrouble;

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    registry: Registry,
    /// Ends the poller's sleep.
    waker: Arc<Waker>,
    /// By [`MasterId::index`]; `None` without a connection.
    sockets: Vec<Option<Channel>>,
    channels: Channels,
    /// Whether a socket refused part of its queued bytes.
    has_unsent: bool,
    /// Masters whose sockets may hold more than the last turn read, and since when. They raise no new event.
    unread: MasterSet,
    unread_since: Option<Instant>,
    resolver: Resolver,
    /// Calls of the credentials provider in progress.
    asked: Calls<(MasterId, Result<Credentials, CredentialsError>)>,
    /// For each master being connected, its attempts.
    races: Vec<(MasterId, Race)>,
    /// Whether the simulator opens and closes connections, and moves their bytes. Then no socket exists.
    #[cfg(all(unix, feature = "simulator"))]
    is_simulated: bool,
}

/// Sleeps until an event of a [`Driver`]'s sockets.
#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    /// How long to busy-poll before sleeping; see [`crate::ConfigBuilder::spin`].
    spin: Duration,
}

/// Ends the sleep of a [`Poller`], from any thread.
#[derive(Debug)]
pub(crate) struct PollerWaker(Arc<Waker>);

/// Why a client could not be set up. An unreachable master is no such error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused a resource for the event loop.
    #[error("the event loop cannot start: {0}; check the limits of this process")]
    Io(#[from] io::Error),
    /// The certificates or the key for TLS are unusable.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Token of the waker's events. The sockets' tokens are their indices.
const WAKER_TOKEN: Token = Token(usize::MAX);

/// Reads from one master in a turn, each of 16 KiB or more. Nearly all turns need one read.
const READ_COUNT_MAX: usize = 4;

/// Events taken from the kernel at once: one per socket, and the waker's.
const EVENT_COUNT_MAX: usize = limits::MASTER_COUNT_MAX + 1;

impl PollerWaker {
    pub(crate) fn wake(&self) {
        // If waking fails, the poller sleeps until its next deadline.
        let _ = self.0.wake();
    }
}

impl Driver {
    /// Prepares the event loop; the first [`Driver::turn`] starts to connect.
    pub(crate) fn new(config: Arc<Config>) -> Result<(Self, Poller), ConnectError> {
        let mut seed = [0; 32];
        SysRng.try_fill_bytes(&mut seed).map_err(io::Error::other)?;
        Self::with_seed(config, seed)
    }

    /// Driver of an engine whose connections belong to the simulator.
    #[cfg(all(unix, feature = "simulator"))]
    pub(crate) fn simulated(config: Arc<Config>, seed: [u8; 32]) -> Result<(Self, Poller), ConnectError> {
        let (driver, poller) = Self::with_seed(config, seed)?;
        Ok((Self { is_simulated: true, ..driver }, poller))
    }

    #[expect(clippy::disallowed_methods, reason = "asks for the number of cores")]
    fn with_seed(config: Arc<Config>, seed: [u8; 32]) -> Result<(Self, Poller), ConnectError> {
        let channels = Channels::new(&config)?;
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Arc::new(Waker::new(&registry, WAKER_TOKEN)?);
        let (resolver, asked) = (Resolver::new(waker.clone()), Calls::new(waker.clone()));
        let sockets = (0..limits::MASTER_COUNT_MAX).map(|_| None).collect();
        // With a single core, busy polling would delay the servers' answers.
        let has_cores_to_spare = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        let spin = if has_cores_to_spare { config.spin } else { Duration::ZERO };
        let engine = Engine::new(config, seed, clock::now());
        let events = Events::with_capacity(EVENT_COUNT_MAX);
        let driver = Self {
            engine,
            registry,
            waker,
            sockets,
            channels,
            has_unsent: false,
            unread: MasterSet::EMPTY,
            unread_since: None,
            resolver,
            asked,
            races: Vec::new(),
            #[cfg(all(unix, feature = "simulator"))]
            is_simulated: false,
        };
        Ok((driver, Poller { poll, events, spin }))
    }

    /// Submits a request to the engine, after a reading of the wall clock if the request wants one.
    #[inline]
    pub(crate) fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        if request.wants_wall_clock() {
            // `now` may be in the past: gives the engine the wall clock's reading of that moment.
            let passed = clock::now().saturating_duration_since(now);
            self.engine.handle_wall_clock(now, clock::wall().saturating_sub(passed));
        }
        self.engine.submit(now, request)
    }

    /// Turns until every master is ready or has failed once, or shortly after a quorum is ready.
    pub(crate) fn settle(&mut self, poller: &mut Poller) -> io::Result<()> {
        let start = clock::now();
        let mut deadline = start + self.engine.config().connect_timeout * 2;
        while !self.engine.is_settled() {
            let now = clock::now();
            // Later turns would compute a later deadline, so the first one stays.
            if self.engine.has_quorum() {
                deadline = deadline.min(now + (now - start).max(limits::STRAGGLER_WAIT));
            }
            if now >= deadline {
                break;
            }
            self.turn(poller, Some(deadline - now))?;
        }
        Ok(())
    }

    /// Writes, waits for an event, for `limit` or for the engine's next deadline, then reads and handles due
    /// deadlines.
    pub(crate) fn turn(&mut self, poller: &mut Poller, limit: Option<Duration>) -> io::Result<()> {
        let due = self.begin_turn().map(|at| at.saturating_duration_since(clock::now()));
        let timeout = match (due, limit) {
            (Some(due), Some(limit)) => Some(due.min(limit)),
            (due, limit) => due.or(limit),
        };
        if poller.wait(timeout)? {
            self.end_turn(poller);
        }
        Ok(())
    }

    /// The part of a turn before the poller's sleep: opens and closes connections, and writes. Returns when
    /// the sleep must end.
    pub(crate) fn begin_turn(&mut self) -> Option<Instant> {
        self.follow_links();
        self.flush();
        self.due()
    }

    /// When the next work is due without an event.
    pub(crate) fn due(&self) -> Option<Instant> {
        // This is in the past, so earlier than any other deadline.
        self.unread_since.or_else(|| {
            let deadline = self.engine.next_timeout().map(|(at, _)| at);
            self.races.iter().filter_map(|(_, race)| race.due()).chain(deadline).min()
        })
    }

    /// The part of a turn after the poller's sleep: reads, handles due deadlines, and writes the results.
    /// Returns the current time.
    pub(crate) fn end_turn(&mut self, poller: &Poller) -> Instant {
        self.handle_events(&poller.events);
        // Read after the events: an answer that had arrived is not late.
        let now = clock::now();
        if self.engine.next_timeout().is_some_and(|(at, _)| at <= now) {
            self.engine.handle_timeout(now);
        }
        self.follow_links();
        let is_due = |race: &Race| race.due().is_some_and(|at| at <= now);
        while let Some((master, _)) = self.races.iter().find(|(_, race)| is_due(race)) {
            self.advance(*master);
        }
        self.flush();
        now
    }

    /// A handle to the poll's registry, with which another event loop can watch the poll.
    #[cfg(unix)]
    pub(crate) fn registry(&self) -> io::Result<Registry> {
        self.registry.try_clone()
    }

    /// [`Driver::wake_poller`] for other threads.
    pub(crate) fn waker(&self) -> PollerWaker {
        PollerWaker(self.waker.clone())
    }

    /// Ends the poller's current sleep, or its next one. Costs a system call.
    pub(crate) fn wake_poller(&self) -> io::Result<()> {
        self.waker.wake()
    }

    /// Writes queued bytes, as far as the sockets accept them without blocking.
    pub(crate) fn flush(&mut self) {
        // Usually there is nothing to write.
        if !self.engine.take_queued() && !self.has_unsent {
            return;
        }
        self.has_unsent = false;
        for master in self.engine.masters() {
            self.send(master);
        }
    }

    #[inline]
    fn send(&mut self, master: MasterId) {
        let Some(socket) = &mut self.sockets[master.index()] else { return };
        let bytes = self.engine.send_ready(master);
        if bytes.is_empty() {
            return;
        }
        if !socket.is_writable() {
            return self.note_unsent();
        }
        let ready_size = bytes.len();
        match socket.send(bytes) {
            Ok(size) => {
                self.engine.send_done(master, size);
                if size < ready_size {
                    self.note_unsent();
                }
            }
            Err(error) => {
                self.hear_out(master);
                if self.sockets[master.index()].is_some() {
                    self.disconnect(master, &error.to_string());
                }
            }
        }
    }

    /// Lets the next flush continue, even if nothing more is queued by then.
    fn note_unsent(&mut self) {
        self.has_unsent = true;
    }

    fn handle_events(&mut self, events: &Events) {
        self.unread_since = None;
        for master in mem::take(&mut self.unread).iter() {
            self.receive(master, true);
        }
        for event in events {
            if event.token() == WAKER_TOKEN {
                while let Some((master, found)) = self.resolver.poll_found() {
                    match &self.sockets[master.index()] {
                        Some(socket) if socket.is_connected() => {
                            self.compare(master, &found.unwrap_or_default());
                        }
                        _ => self.open(master, found),
                    }
                }
                while let Some((master, answer)) = self.asked.poll() {
                    self.engine.handle_credentials(clock::now(), master, answer);
                }
                continue;
            }
            let Some(master) = MasterId::new(event.token().0) else {
                self.handle_attempt(event.token());
                continue;
            };
            let Some(socket) = &mut self.sockets[master.index()] else { continue };
            if event.is_writable()
                && let Err(error) = socket.handle_writable()
            {
                self.disconnect(master, &error.to_string());
                continue;
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.receive(master, event.is_read_closed() || event.is_error());
            }
        }
    }

    /// Reads until the socket is known to be empty. `to_the_end` says that the peer has closed it, or may
    /// have. After [`READ_COUNT_MAX`] reads the next turn continues, so a master that sends without end
    /// delays neither other masters nor deadlines.
    fn receive(&mut self, master: MasterId, to_the_end: bool) {
        for _ in 0..READ_COUNT_MAX {
            let Some(socket) = &mut self.sockets[master.index()] else { return };
            let space = self.engine.recv_space(master);
            match socket.recv(space) {
                Ok(Received::Bytes { size, has_more }) => {
                    self.engine.recv_done(clock::now(), master, size);
                    if !(has_more || to_the_end) {
                        return;
                    }
                }
                Ok(Received::Nothing | Received::Connected) => return,
                Ok(Received::End) => return self.disconnect(master, CLOSED),
                Err(error) => return self.disconnect(master, &error.to_string()),
            }
            if self.engine_wants_close(master) {
                return;
            }
        }
        self.unread.insert(master);
        self.unread_since.get_or_insert_with(clock::now);
    }

    /// Reads what a server sent before it ended the connection.
    #[cold]
    fn hear_out(&mut self, master: MasterId) {
        for _ in 0..READ_COUNT_MAX {
            let Some(socket) = &mut self.sockets[master.index()] else { return };
            match socket.recv(self.engine.recv_space(master)) {
                Ok(Received::Bytes { size, .. }) => self.engine.recv_done(clock::now(), master, size),
                _ => return,
            }
            self.follow_links();
        }
    }

    /// Whether the engine gave up this connection while it handled the bytes.
    fn engine_wants_close(&mut self, master: MasterId) -> bool {
        self.follow_links();
        self.sockets[master.index()].is_none()
    }

    /// Opens and closes connections as the engine asks.
    fn follow_links(&mut self) {
        #[cfg(all(unix, feature = "simulator"))]
        if self.is_simulated {
            return;
        }
        while let Some(request) = self.engine.poll_link() {
            match request {
                LinkRequest::Close(master) => {
                    self.resolver.forget(master);
                    self.drop_connection(master);
                }
                LinkRequest::LookUp(master) => {
                    let address = &self.engine.config().masters[master.index()].address;
                    if let Address::Tcp { host, port } | Address::Tls { host, port } = address
                        // Only names are looked up again.
                        && let Some(found) = self.resolver.resolve(master, host, *port)
                    {
                        self.compare(master, &found.unwrap_or_default());
                    }
                }
                LinkRequest::Credentials(master) => {
                    let config = self.engine.config().clone();
                    let ask = move || (master, logins::ask(&config, master));
                    if self.asked.start("redlatch-login", ask).is_err() {
                        let answer = Err(CredentialsError::NoThread);
                        self.engine.handle_credentials(clock::now(), master, answer);
                    }
                }
                LinkRequest::Connect(master) => {
                    let config = self.engine.config().clone();
                    match &config.masters[master.index()].address {
                        Address::Unix { path } => self.race(master, vec![Place::Unix(path.clone())]),
                        Address::Tcp { host, port } | Address::Tls { host, port } => {
                            if let Some(found) = self.resolver.resolve(master, host, *port) {
                                self.open(master, found);
                            }
                        }
                    }
                }
            }
        }
    }

    fn open(&mut self, master: MasterId, found: io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(addresses) => self.race(master, addresses.into_iter().map(Place::Tcp).collect()),
            Err(error) => {
                self.disconnect(master, &format!("its name cannot be resolved ({error}); check the name"))
            }
        }
    }

    /// Compares a connection with a new lookup of its master's name. A failed lookup changes nothing.
    fn compare(&mut self, master: MasterId, found: &[SocketAddr]) {
        let peer = self.sockets[master.index()].as_ref().and_then(Channel::peer);
        if !found.is_empty() && peer.is_some_and(|peer| !found.contains(&peer)) {
            self.disconnect(master, "its name leads to another server now");
        }
    }

    fn race(&mut self, master: MasterId, places: Vec<Place>) {
        let limit = self.engine.config().connect_timeout;
        self.drop_connection(master);
        self.races.push((master, Race::new(Token(master.index()), places, limit)));
        self.advance(master);
    }

    /// Starts due attempts to connect to a master.
    fn advance(&mut self, master: MasterId) {
        let Some((_, race)) = self.races.iter_mut().find(|(it, _)| *it == master) else { return };
        let open = |socket| self.channels.open(master, socket);
        if let Err(why) = race.advance(clock::now(), &self.registry, open) {
            self.disconnect(master, &why);
        }
    }

    /// Handles an event of an attempt to connect.
    #[cold]
    fn handle_attempt(&mut self, token: Token) {
        let Some(master) = MasterId::new(race::connection_of(token).0) else { return };
        let Some((_, race)) = self.races.iter_mut().find(|(it, _)| *it == master) else { return };
        let Some((_, channel)) = race.drive(&self.registry, token) else { return self.advance(master) };
        self.drop_connection(master);
        let has_read = channel.is_tls();
        self.sockets[master.index()] = Some(channel);
        self.engine.handle_connected(clock::now(), master);
        if has_read {
            // TLS may already have decrypted more than the handshake.
            self.receive(master, true);
        }
    }

    /// Closes the connection to a master, and ends all attempts to connect.
    fn drop_connection(&mut self, master: MasterId) {
        self.races.retain(|(it, _)| *it != master);
        self.unread.remove(master);
        self.sockets[master.index()] = None;
    }

    fn disconnect(&mut self, master: MasterId, why: &str) {
        self.drop_connection(master);
        self.engine.handle_disconnected(clock::now(), master, why);
    }
}

impl Poller {
    /// Sleeps until an event or for `timeout`. False after a signal: then nothing is known to be late.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut timeout = timeout;
        if !self.spin.is_zero() && timeout != Some(Duration::ZERO) {
            let limit = timeout.map_or(self.spin, |timeout| timeout.min(self.spin));
            let start = clock::now();
            loop {
                if !self.look(Some(Duration::ZERO))? {
                    return Ok(false);
                }
                if !self.events.is_empty() {
                    return Ok(true);
                }
                if clock::now() - start >= limit {
                    break;
                }
                std::hint::spin_loop();
            }
            timeout = timeout.map(|timeout| timeout.saturating_sub(limit));
        }
        self.look(timeout)
    }

    fn look(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests;
