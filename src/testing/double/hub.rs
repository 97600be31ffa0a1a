//! The masters of a double with their sockets, and the loop that serves them.
//!
//! A test changes the masters from its own thread, under the mutex. The loop does not hold the mutex while it
//! sleeps.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use socket2::SockRef;

use crate::error::FleetError;
use crate::model::{self, ModelMaster};
use crate::port::{PORT_ATTEMPTS_MAX, free_port_at};

/// Longest delay: a year, which no test outlasts. A longer delay might overflow the clock.
const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Reported uptime of a new master, longer than any quarantine.
const UPTIME: Duration = Duration::from_secs(30 * 86_400);
/// Largest number of events taken from the kernel at once.
const EVENT_COUNT_MAX: usize = 256;
/// Largest number of bytes read at once.
const READ_SIZE: usize = 16 * 1024;
const READABLE_AND_WRITABLE: Interest = Interest::READABLE.add(Interest::WRITABLE);
/// The waker's token. A listener's token is its master's index; a connection's token is larger.
const WAKER_TOKEN: Token = Token(usize::MAX);

pub(super) struct Hub {
    pub(super) addrs: Vec<SocketAddr>,
    masters: Mutex<Masters>,
    waker: Waker,
}

pub(super) struct Masters {
    registry: Registry,
    all: Vec<Master>,
    conns: BTreeMap<usize, Conn>,
    /// Number of the next connection. Numbers are never reused.
    next_conn: usize,
    is_over: bool,
}

struct Master {
    addr: SocketAddr,
    model: ModelMaster,
    /// `None` after a kill.
    listener: Option<TcpListener>,
    is_stopped: bool,
    delay: Duration,
}

struct Conn {
    master: usize,
    stream: TcpStream,
    input: Vec<u8>,
    /// Answers, each with the earliest time to send it.
    late: VecDeque<(Instant, Vec<u8>)>,
    output: Vec<u8>,
}

impl Hub {
    pub(super) fn new(size: usize, poll: &Poll) -> Result<Self, FleetError> {
        let registry = poll.registry().try_clone().map_err(not_started)?;
        let waker = Waker::new(&registry, WAKER_TOKEN).map_err(not_started)?;
        let host = host();
        let all: Vec<_> =
            (0..size).map(|index| Master::start(&registry, host, index)).collect::<Result<_, _>>()?;
        let addrs = all.iter().map(|master| master.addr).collect();
        let masters = Masters { registry, all, conns: BTreeMap::new(), next_conn: size, is_over: false };
        Ok(Self { addrs, masters: Mutex::new(masters), waker })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Masters> {
        self.masters.lock().expect("the thread of the double has not panicked")
    }

    pub(super) fn end(&self) {
        if let Ok(mut masters) = self.masters.lock() {
            masters.is_over = true;
        }
        // Fails only if there is no memory for an event.
        let _ = self.waker.wake();
    }

    /// Serves all masters until [`Hub::end`] is called.
    ///
    /// # Panics
    /// If the kernel refuses to wait.
    pub(super) fn serve(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(EVENT_COUNT_MAX);
        let mut due: Option<Instant> = None;
        loop {
            let timeout = due.map(|at| at.saturating_duration_since(Instant::now()));
            match poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => panic!("cannot wait: {error}"),
                _ => {}
            }
            let mut masters = self.lock();
            if masters.is_over {
                return;
            }
            for event in &events {
                masters.handle(event.token(), Instant::now());
            }
            due = masters.send(Instant::now());
        }
    }
}

impl Masters {
    fn handle(&mut self, token: Token, now: Instant) {
        if token.0 < self.all.len() {
            self.accept(token.0);
        } else {
            self.receive(token.0, now);
        }
    }

    /// Accepts all waiting connections, unless the master hangs: [`Masters::resume`] repeats the event.
    fn accept(&mut self, index: usize) {
        let master = &self.all[index];
        let Some(listener) = master.listener.as_ref().filter(|_| !master.is_stopped) else { return };
        loop {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // No more connections, or no descriptors left. In that case the peer's time limit ends its
                // attempt.
                Err(_) => return,
            };
            let id = self.next_conn;
            self.next_conn += 1;
            let is_ready = stream.set_nodelay(true).is_ok()
                && self.registry.register(&mut stream, Token(id), READABLE_AND_WRITABLE).is_ok();
            if is_ready {
                let (input, late, output) = (Vec::new(), VecDeque::new(), Vec::new());
                self.conns.insert(id, Conn { master: index, stream, input, late, output });
            }
        }
    }

    /// Reads all input of a connection, and executes the commands.
    fn receive(&mut self, id: usize, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let master = &mut self.all[conn.master];
        if master.is_stopped {
            return;
        }
        let mut is_open = conn.read();
        let (mut done, mut words, mut replies) = (0, Vec::new(), Vec::new());
        loop {
            match model::command(&conn.input[done..], &mut words) {
                Ok(Some(size)) => {
                    done += size;
                    master.model.carry_out_over(id, now, &words, &mut replies);
                }
                Ok(None) => break,
                Err(_) => {
                    is_open = false;
                    break;
                }
            }
        }
        conn.input.drain(..done);
        let at = now + master.delay;
        conn.answer(at, replies);
        for (other, message) in std::mem::take(&mut master.model.pushes) {
            if let Some(other) = self.conns.get_mut(&other) {
                other.answer(at, message);
            }
        }
        if !is_open {
            self.close(id);
        }
    }

    /// Writes all due answers. Returns when the next answer is due.
    fn send(&mut self, now: Instant) -> Option<Instant> {
        let (mut next, mut broken) = (None, Vec::new());
        for (id, conn) in &mut self.conns {
            if self.all[conn.master].is_stopped {
                continue;
            }
            match conn.write(now) {
                Ok(due) => next = [next, due].into_iter().flatten().min(),
                Err(_) => broken.push(*id),
            }
        }
        broken.into_iter().for_each(|id| self.close(id));
        next
    }

    fn close(&mut self, id: usize) {
        if let Some(conn) = self.conns.remove(&id) {
            self.all[conn.master].model.forget_conn(id);
        }
    }

    pub(super) fn stop(&mut self, index: usize) -> Result<(), FleetError> {
        self.running(index)?.is_stopped = true;
        Ok(())
    }

    pub(super) fn resume(&mut self, index: usize) -> Result<(), FleetError> {
        self.running(index)?.is_stopped = false;
        // Makes the kernel report events that have arrived meanwhile.
        let refused = |source| FleetError::Io { what: "cannot resume a master".to_owned(), source };
        if let Some(listener) = &mut self.all[index].listener {
            self.registry.reregister(listener, Token(index), Interest::READABLE).map_err(refused)?;
        }
        for (id, conn) in self.conns.iter_mut().filter(|(_, conn)| conn.master == index) {
            self.registry.reregister(&mut conn.stream, Token(*id), READABLE_AND_WRITABLE).map_err(refused)?;
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, index: usize) {
        if let Some(listener) = self.all[index].listener.take() {
            // A child between fork and exec has the socket, too. This closes it for both.
            let _ = SockRef::from(&listener).shutdown(Shutdown::Both);
        }
        self.conns.retain(|_, conn| conn.master != index);
    }

    pub(super) fn restart(&mut self, index: usize) -> Result<(), FleetError> {
        self.kill(index);
        let master = &mut self.all[index];
        let what = || format!("cannot listen on {}", master.addr);
        let listener = listen(&self.registry, master.addr, index);
        master.listener = Some(listener.map_err(|source| FleetError::Io { what: what(), source })?);
        master.model.restart(&run_id(), Instant::now());
        master.is_stopped = false;
        Ok(())
    }

    pub(super) fn delay(&mut self, index: usize, delay: Duration) {
        self.all[index].delay = delay.min(DELAY_MAX);
    }

    pub(super) fn refuse(&mut self, index: usize, command: &str, error: &str) {
        self.all[index].model.errors.insert(command.to_ascii_uppercase(), error.to_owned());
    }

    pub(super) fn allow(&mut self, index: usize, command: &str) {
        self.all[index].model.errors.remove(&command.to_ascii_uppercase());
    }

    pub(super) fn keys(&self, index: usize, now: Instant) -> Vec<String> {
        let model = &self.all[index].model;
        let keys = model.keys().keys().filter(|key| model.is_taken(now, key));
        keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    fn running(&mut self, index: usize) -> Result<&mut Master, FleetError> {
        let master = &mut self.all[index];
        let port = master.addr.port();
        if master.listener.is_some() { Ok(master) } else { Err(FleetError::NotRunning { port }) }
    }
}

impl Master {
    fn start(registry: &Registry, host: IpAddr, index: usize) -> Result<Self, FleetError> {
        for _ in 0..PORT_ATTEMPTS_MAX {
            let addr = SocketAddr::new(host, free_port_at(host).ok_or(FleetError::NoPort)?);
            match listen(registry, addr, index) {
                Ok(listener) => return Ok(Self::new(addr, listener)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(source) => {
                    return Err(FleetError::Io { what: format!("cannot listen on {addr}"), source });
                }
            }
        }
        Err(FleetError::NoPort)
    }

    fn new(addr: SocketAddr, listener: TcpListener) -> Self {
        let now = Instant::now();
        let mut model = ModelMaster::new(&run_id(), now - UPTIME);
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        model.set_wall(now, u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX));
        Self { addr, model, listener: Some(listener), is_stopped: false, delay: Duration::ZERO }
    }
}

impl Conn {
    /// Reads all available input. Returns whether the connection is still open.
    fn read(&mut self) -> bool {
        let mut bytes = [0; READ_SIZE];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(size) => self.input.extend_from_slice(&bytes[..size]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Queues an answer after all earlier answers.
    fn answer(&mut self, at: Instant, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let at = self.late.back().map_or(at, |(before, _)| at.max(*before));
            self.late.push_back((at, bytes));
        }
    }

    /// Writes the due answers, as far as the socket takes them. Returns when the next answer is due.
    fn write(&mut self, now: Instant) -> io::Result<Option<Instant>> {
        let due_count = self.late.partition_point(|(at, _)| *at <= now);
        self.late.drain(..due_count).for_each(|(_, bytes)| self.output.extend_from_slice(&bytes));
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(size) => drop(self.output.drain(..size)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.late.front().map(|(at, _)| *at))
    }
}

pub(super) fn not_started(source: io::Error) -> FleetError {
    FleetError::Io { what: "cannot start a double".to_owned(), source }
}

fn listen(registry: &Registry, addr: SocketAddr, index: usize) -> io::Result<TcpListener> {
    let mut listener = TcpListener::bind(addr)?;
    registry.register(&mut listener, Token(index), Interest::READABLE)?;
    Ok(listener)
}

/// A random loopback address where all of 127.0.0.0/8 belongs to the machine: then nobody takes the port of a
/// killed master.
fn host() -> IpAddr {
    let [a, b, c, ..] = random().to_ne_bytes();
    // The address does not end in 0 or 255.
    let own = Ipv4Addr::new(127, a, b, c.clamp(1, 254));
    if cfg!(target_os = "linux") { own.into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// A `run_id` of 40 characters, like a server's.
fn run_id() -> String {
    format!("{:016x}{:016x}{:08x}", random(), random(), random() >> 32)
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_never_overtakes_the_one_before() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (input, late, output) = (Vec::new(), VecDeque::new(), Vec::new());
        let mut conn = Conn { master: 0, stream, input, late, output };
        let now = Instant::now();
        let due = now + Duration::from_secs(1);
        conn.answer(due, b"1".to_vec());
        conn.answer(now, b"2".to_vec()); // the delay was taken back meanwhile
        assert_eq!(conn.late, [(due, b"1".to_vec()), (due, b"2".to_vec())]);
    }
}
