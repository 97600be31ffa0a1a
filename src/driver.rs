//! Sockets, time and randomness for an [`Engine`]: the only place below [`crate::Redlock`] that touches any
//! of them.
//!
//! One [`Driver::turn`] writes what is queued (one write for each master), sleeps until something arrives or
//! is due, reads it (one read for each readable master, a few of one that sends much, and none that finds
//! nothing) and lets the engine act on it. The sleep is the [`Poller`]'s, apart from the rest, so that others
//! may queue and write while one thread sleeps.

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
use crate::options::{Mode, Options};
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

/// An [`Engine`] with its sockets.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    registry: Registry,
    /// Ends the poller's sleep.
    waker: Arc<Waker>,
    /// By [`MasterId::index`]; `None` while there is no connection.
    sockets: Vec<Option<Channel>>,
    channels: Channels,
    /// Whether a socket did not take all that was queued for it.
    has_unsent: bool,
    /// Masters whose sockets may have more than the last turn read, and since when. No event comes for
    /// it.
    unread: MasterSet,
    unread_since: Option<Instant>,
    resolver: Resolver,
    /// Calls of the credentials provider.
    asked: Calls<(MasterId, Result<Credentials, CredentialsError>)>,
    /// The attempts to connect to each master that is being connected.
    races: Vec<(MasterId, Race)>,
}

/// Sleeps until something happens to the sockets of a [`Driver`].
#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    /// How long to look again and again before sleeping; see [`crate::ConfigBuilder::spin`].
    spin: Duration,
}

/// Ends the sleep of a [`Poller`], also from another thread.
#[derive(Debug)]
pub(crate) struct PollerWaker(Arc<Waker>);

/// Error of a client that could not be set up. A master that cannot be reached is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The settings cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused what the event loop needs.
    #[error("the event loop cannot start: {0}; check the limits of this process")]
    Io(#[from] io::Error),
    /// The certificates or the key for TLS cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The event of the waker; those of the sockets are their places in the list.
const WAKER_TOKEN: Token = Token(usize::MAX);

/// Reads of one master in a turn, each of 16 KiB or more: nearly all turns need one.
const READ_COUNT_MAX: usize = 4;

/// Events taken from the kernel at once: one for each socket and the waker's.
const EVENT_COUNT_MAX: usize = limits::MASTER_COUNT_MAX + 1;

impl PollerWaker {
    pub(crate) fn wake(&self) {
        // Where it fails, the poller sleeps until its next deadline.
        let _ = self.0.wake();
    }
}

impl Driver {
    /// Prepares everything; the first [`Driver::turn`] starts to connect.
    pub(crate) fn new(config: Arc<Config>) -> Result<(Self, Poller), ConnectError> {
        let channels = Channels::new(&config)?;
        let mut seed = [0; 32];
        SysRng.try_fill_bytes(&mut seed).map_err(io::Error::other)?;
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Arc::new(Waker::new(&registry, WAKER_TOKEN)?);
        let (resolver, asked) = (Resolver::new(waker.clone()), Calls::new(waker.clone()));
        let sockets = (0..limits::MASTER_COUNT_MAX).map(|_| None).collect();
        // With one core the servers' answers would have to wait until the looking ends.
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
        };
        Ok((driver, Poller { poll, events, spin }))
    }

    /// Has the engine take a request. A fenced acquisition begins with a new reading of the wall clock.
    #[inline]
    pub(crate) fn submit(&mut self, now: Instant, request: Request<'_>) -> Result<OpId, SubmitError> {
        if let Request::Acquire { options: Options { mode: Mode::Fenced, .. }, .. } = request {
            // `now` may be a while ago: this is the wall clock's reading of then.
            let passed = clock::now().saturating_duration_since(now);
            self.engine.handle_wall_clock(now, clock::wall().saturating_sub(passed));
        }
        self.engine.submit(now, request)
    }

    /// Turns until each master is ready or has failed once, or shortly after a quorum is ready.
    pub(crate) fn settle(&mut self, poller: &mut Poller) -> io::Result<()> {
        let start = clock::now();
        let mut deadline = start + self.engine.config().connect_timeout * 2;
        while !self.engine.is_settled() {
            let now = clock::now();
            // Later turns compute a later time, so the first one stays.
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

    /// Writes, waits at most `limit` or until the engine's next deadline, reads, and does what is due.
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

    /// The part of a turn before the poller's sleep: opens and closes connections and writes. Returns when
    /// the sleep must end.
    pub(crate) fn begin_turn(&mut self) -> Option<Instant> {
        self.follow_links();
        self.flush();
        self.due()
    }

    /// When something is to be done though no event comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        // It is in the past: a deadline before it is over, too.
        self.unread_since.or_else(|| {
            let deadline = self.engine.next_timeout().map(|(at, _)| at);
            self.races.iter().filter_map(|(_, race)| race.due()).chain(deadline).min()
        })
    }

    /// The part of a turn after the poller's sleep: reads, does what is due, and writes what follows from it.
    /// Returns the present.
    pub(crate) fn end_turn(&mut self, poller: &Poller) -> Instant {
        self.handle_events(&poller.events);
        // Only now: an answer that had already arrived is not late.
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

    /// The event queue, to be watched by another one.
    #[cfg(unix)]
    pub(crate) fn registry(&self) -> io::Result<Registry> {
        self.registry.try_clone()
    }

    /// Does what [`Driver::wake_poller`] does, from any thread.
    pub(crate) fn waker(&self) -> PollerWaker {
        PollerWaker(self.waker.clone())
    }

    /// Ends the poller's sleep, or the next one before it begins. Costs a system call.
    pub(crate) fn wake_poller(&self) -> io::Result<()> {
        self.waker.wake()
    }

    /// Writes what is queued, as far as the sockets take it without waiting.
    pub(crate) fn flush(&mut self) {
        // Most calls find nothing to write.
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

    /// The next flush writes on, though nothing more is queued by then.
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

    /// Reads until the socket is known to be empty; `to_the_end` if the peer has closed it, or if that is
    /// unknown. The next turn goes on behind [`READ_COUNT_MAX`] reads: one master that sends without end
    /// delays no other one, and no deadline.
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

    /// Reads what a server said before it ended the connection.
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

    /// Whether the engine gave this connection up while its bytes were being handled.
    fn engine_wants_close(&mut self, master: MasterId) -> bool {
        self.follow_links();
        self.sockets[master.index()].is_none()
    }

    /// Opens and closes connections as the engine asks for it.
    fn follow_links(&mut self) {
        while let Some(request) = self.engine.poll_link() {
            match request {
                LinkRequest::Close(master) => {
                    self.resolver.forget(master);
                    self.drop_connection(master);
                }
                LinkRequest::LookUp(master) => {
                    let address = &self.engine.config().masters[master.index()].address;
                    if let Address::Tcp { host, port } | Address::Tls { host, port } = address
                        // An address leads nowhere else.
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

    /// The name of a connected master was looked up again. An error says nothing.
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

    /// Starts the attempts to connect to a master that are due.
    fn advance(&mut self, master: MasterId) {
        let Some((_, race)) = self.races.iter_mut().find(|(it, _)| *it == master) else { return };
        let open = |socket| self.channels.open(master, socket);
        if let Err(why) = race.advance(clock::now(), &self.registry, open) {
            self.disconnect(master, &why);
        }
    }

    /// Something happened to an attempt to connect.
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
            // It may hold more than the end of its handshake.
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
    /// Sleeps until something happens, or for `timeout`. False if a signal came: then nothing is known to be
    /// late.
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
