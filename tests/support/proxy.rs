//! A TCP proxy on loopback between a client and one master, that delays, stalls, cuts, resets, isolates and
//! refuses.
//!
//! Owns its listener, the connections through it and their threads; all end on drop. Looks at no byte that it
//! passes, and adds some only on request. Per connection and direction:
//!
//! ```text
//!   read ──> stamp: due = now + delay ──> queue of (due, bytes) ──> wait until due and not stalled ──> write
//!   reader thread                         at most QUEUE_SIZE_MAX     writer thread
//! ```
//!
//! So a delay is a latency and not a rate: everything under way waits at the same time. A delay holds for
//! bytes, not for the TCP handshake, which the kernel answers. Delays are met to some 100 µs (two thread
//! switches and timer slack).

use crate::fleet::free_port;
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes that wait in one direction of one connection; then the sender is no longer read, and meets a full
/// window.
const QUEUE_SIZE_MAX: usize = 16 << 20;
const READ_SIZE: usize = 64 << 10;
/// How often a writer whose peer reads nothing looks whether it shall end.
const WRITE_PATIENCE: Duration = Duration::from_millis(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a port that refuses connections may stay in somebody else's hands before it listens again.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// None while connections are refused.
    acceptor: Option<Acceptor>,
}

struct Acceptor {
    listener: TcpListener,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes what comes on to `target`, for now as fast as it can.
    pub fn start(target: SocketAddr) -> Self {
        let listener = (0..1_000).find_map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).ok());
        let listener = listener.expect("a free port stays free for a moment");
        let addr = listener.local_addr().expect("a bound listener has an address");
        let mut proxy = Self { addr, shared: Arc::new(Shared::default()), acceptor: None };
        proxy.lead_to(target);
        proxy.accept_from(listener);
        proxy
    }

    /// Connections that come from now on lead to another master.
    pub fn lead_to(&self, target: SocketAddr) {
        *locked(&self.shared.target) = Some(target);
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Connections accepted so far, those that have ended too.
    pub fn accepted_count(&self) -> usize {
        self.shared.accepted_count.load(Ordering::SeqCst)
    }

    /// Delays what is read from now on, by this much in each direction: the round trip takes twice as much.
    pub fn delay(&self, one_way: Duration) {
        self.delay_requests(one_way);
        self.delay_replies(one_way);
    }

    pub fn delay_requests(&self, one_way: Duration) {
        self.shared.requests.set_delay(one_way);
    }

    pub fn delay_replies(&self, one_way: Duration) {
        self.shared.replies.set_delay(one_way);
    }

    /// While true, connections stay and bytes are taken, but none come out; afterwards they come out in
    /// order.
    pub fn stall(&self, stalled: bool) {
        self.stall_requests(stalled);
        self.stall_replies(stalled);
    }

    pub fn stall_requests(&self, stalled: bool) {
        self.shared.requests.stalled.store(stalled, Ordering::SeqCst);
        self.shared.wake_writers();
    }

    /// The master gets and carries out what is asked; nobody hears of it.
    pub fn stall_replies(&self, stalled: bool) {
        self.shared.replies.stalled.store(stalled, Ordering::SeqCst);
        self.shared.wake_writers();
    }

    /// Passes bytes on in writes of at most this size, in both directions; `usize::MAX` passes them on as
    /// they came.
    pub fn chunk(&self, size: usize) {
        assert!(size > 0, "a chunk of nothing never ends");
        self.shared.requests.chunk_size.store(size, Ordering::SeqCst);
        self.shared.replies.chunk_size.store(size, Ordering::SeqCst);
    }

    /// Cuts the network in two: connections stay and stall, and new ones are accepted and never heard of
    /// again. When it is whole again, connections go on, and those that never were are reset.
    pub fn isolate(&self, isolated: bool) {
        self.shared.isolated.store(isolated, Ordering::SeqCst);
        if !isolated {
            for client in std::mem::take(&mut *locked(&self.shared.unheard)) {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).ok();
            }
        }
        self.stall(isolated);
    }

    /// Passes this many more bytes of replies, counted over all connections; resets the connection on which
    /// they end.
    pub fn reset_after_reply_bytes(&self, count: usize) {
        *locked(&self.shared.replies.left_until_reset) = Some(count);
    }

    /// The same with requests: the master gets the first part of one.
    pub fn reset_after_request_bytes(&self, count: usize) {
        *locked(&self.shared.requests.left_until_reset) = Some(count);
    }

    /// Whether a reset is still to come.
    pub fn is_reset_due(&self) -> bool {
        [&self.shared.requests, &self.shared.replies].iter().any(|it| locked(&it.left_until_reset).is_some())
    }

    /// Sends each client these bytes as if the master had.
    pub fn inject_replies(&self, bytes: &[u8]) {
        for connection in locked(&self.shared.connections).iter() {
            connection.line.replies.push(Instant::now(), bytes.to_vec());
        }
    }

    /// Resets all connections (RST, both to the client and to the master); what was under way in them is
    /// lost.
    pub fn drop_connections(&self) {
        // Taken out first: the threads that are joined here need the lock no more than new connections do.
        let connections = std::mem::take(&mut *locked(&self.shared.connections));
        for connection in &connections {
            connection.line.abort();
        }
        for connection in connections {
            connection.join();
        }
    }

    /// While true, nobody listens on the port. Connections that exist stay.
    pub fn refuse(&mut self, refusing: bool) {
        if refusing {
            self.close_listener();
        } else if self.acceptor.is_none() {
            let given_up = Instant::now() + LISTEN_PATIENCE;
            let listener = loop {
                match TcpListener::bind(self.addr) {
                    Ok(listener) => break listener,
                    Err(error) => {
                        assert!(Instant::now() < given_up, "cannot listen on {} again: {error}", self.addr)
                    }
                }
                thread::sleep(Duration::from_millis(1));
            };
            self.accept_from(listener);
        }
    }

    fn accept_from(&mut self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        let own = listener.try_clone().expect("a socket can be duplicated");
        let thread = spawn("proxy-accept", move || accept(&own, &shared));
        self.acceptor = Some(Acceptor { listener, thread });
    }

    fn close_listener(&mut self) {
        let Some(Acceptor { listener, thread }) = self.acceptor.take() else { return };
        // A child between fork and exec has the listener, too. This closes it for both, and ends accept().
        SockRef::from(&listener).shutdown(Shutdown::Both).expect("it listens");
        thread.join().expect("the acceptor does not panic");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close_listener();
        self.drop_connections();
    }
}

/// What the acceptor and all connections go by.
#[derive(Default)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    requests: Conditions,
    replies: Conditions,
    isolated: AtomicBool,
    /// Accepted while isolated; nobody is behind them.
    unheard: Mutex<Vec<TcpStream>>,
    accepted_count: AtomicUsize,
    connections: Mutex<Vec<Connection>>,
}

impl Shared {
    /// Has the writers look at the conditions again.
    fn wake_writers(&self) {
        for connection in locked(&self.connections).iter() {
            connection.line.requests.wake();
            connection.line.replies.wake();
        }
    }
}

/// The weather in one direction.
struct Conditions {
    delay_ns: AtomicU64,
    stalled: AtomicBool,
    chunk_size: AtomicUsize,
    left_until_reset: Mutex<Option<usize>>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay_ns: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            chunk_size: AtomicUsize::new(usize::MAX),
            left_until_reset: Mutex::new(None),
        }
    }
}

impl Conditions {
    fn set_delay(&self, one_way: Duration) {
        let delay_ns = u64::try_from(one_way.as_nanos()).expect("a delay of less than 500 years");
        self.delay_ns.store(delay_ns, Ordering::SeqCst);
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_ns.load(Ordering::SeqCst))
    }

    /// How many of these bytes may pass, and whether the connection is to be reset then.
    fn pass(&self, size: usize) -> (usize, bool) {
        let mut left = locked(&self.left_until_reset);
        match *left {
            None => (size, false),
            Some(count) if count > size => {
                *left = Some(count - size);
                (size, false)
            }
            Some(count) => {
                *left = None;
                (count, true)
            }
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        shared.accepted_count.fetch_add(1, Ordering::SeqCst);
        if shared.isolated.load(Ordering::SeqCst) {
            locked(&shared.unheard).push(client);
            continue;
        }
        let target = locked(&shared.target).expect("it leads somewhere");
        match TcpStream::connect_timeout(&target, CONNECT_PATIENCE) {
            Ok(server) => {
                // The lock is held until it is listed: no byte passes a connection that a test cannot reach.
                let mut connections = locked(&shared.connections);
                connections.retain(|connection| !connection.has_ended());
                connections.push(Connection::start(client, server, shared));
            }
            // The nearest to a refusal once the connection is accepted.
            Err(_) => SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap_or_default(),
        }
    }
}

/// One client's connection and the one to the master behind it.
struct Connection {
    line: Arc<Line>,
    threads: [JoinHandle<()>; 4],
}

/// What the threads of a connection share. They own the sockets, so that these close when the last thread
/// ends.
struct Line {
    sockets: [Weak<TcpStream>; 2],
    requests: Pipe,
    replies: Pipe,
}

impl Connection {
    fn start(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) -> Self {
        for socket in [&client, &server] {
            // Either may be gone already; its reader finds out.
            socket.set_nodelay(true).ok();
            socket.set_write_timeout(Some(WRITE_PATIENCE)).ok();
        }
        let (client, server) = (Arc::new(client), Arc::new(server));
        let sockets = [Arc::downgrade(&client), Arc::downgrade(&server)];
        let line = Arc::new(Line { sockets, requests: Pipe::default(), replies: Pipe::default() });
        let (client_too, server_too) = (Arc::clone(&client), Arc::clone(&server));
        let threads = [
            line_thread("proxy-req-in", &line, shared, move |line, all| {
                line.requests.fill(&client, &all.requests);
            }),
            line_thread("proxy-req-out", &line, shared, move |line, all| {
                line.requests.drain(&server, &all.requests, line);
            }),
            line_thread("proxy-rep-in", &line, shared, move |line, all| {
                line.replies.fill(&server_too, &all.replies);
            }),
            line_thread("proxy-rep-out", &line, shared, move |line, all| {
                line.replies.drain(&client_too, &all.replies, line);
            }),
        ];
        Self { line, threads }
    }

    fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn join(self) {
        for thread in self.threads {
            thread.join().expect("the proxy's threads do not panic");
        }
    }
}

impl Line {
    /// Makes the threads end and the sockets, as they close, send RST rather than FIN.
    fn abort(&self) {
        let sockets: Vec<_> = self.sockets.iter().filter_map(Weak::upgrade).collect();
        for socket in &sockets {
            // Before anything that may end a thread, and so close its socket.
            SockRef::from(&**socket).set_linger(Some(Duration::ZERO)).ok();
        }
        self.requests.close();
        self.replies.close();
        for socket in &sockets {
            // Wakes the reader; unlike the other direction, this shows the peer nothing.
            socket.shutdown(Shutdown::Read).ok();
        }
    }
}

/// One direction of one connection.
#[derive(Default)]
struct Pipe {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    /// The bytes in `chunks`.
    size: usize,
    /// Nothing more is to come out.
    closed: bool,
}

struct Chunk {
    due: Instant,
    /// Empty where the sender closed its side.
    bytes: Vec<u8>,
}

impl Pipe {
    fn wake(&self) {
        // Under the lock: a writer that has just looked at the conditions is then waiting already.
        let _queue = locked(&self.queue);
        self.changed.notify_all();
    }

    fn close(&self) {
        locked(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// Reads until the sender closes or the pipe does.
    fn fill(&self, mut from: &TcpStream, conditions: &Conditions) {
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let size = match from.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result.unwrap_or(0), // a reset passes as a close
            };
            let due = Instant::now() + conditions.delay();
            let mut queue = locked(&self.queue);
            while queue.size >= QUEUE_SIZE_MAX && !queue.closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.closed {
                return;
            }
            drop(queue);
            self.push(due, buffer[..size].to_vec());
            if size == 0 {
                return;
            }
        }
    }

    fn push(&self, due: Instant, bytes: Vec<u8>) {
        let mut queue = locked(&self.queue);
        queue.size += bytes.len();
        queue.chunks.push_back(Chunk { due, bytes });
        self.changed.notify_all();
    }

    /// Writes what is due until the sender's close is, or until the receiver takes no more.
    fn drain(&self, to: &TcpStream, conditions: &Conditions, line: &Line) {
        while let Some(bytes) = self.next_due(conditions) {
            if bytes.is_empty() {
                to.shutdown(Shutdown::Write).ok();
                return;
            }
            for piece in bytes.chunks(conditions.chunk_size.load(Ordering::SeqCst)) {
                let (size, is_reset) = conditions.pass(piece.len());
                if self.write(to, &piece[..size]).is_none() {
                    self.close();
                    return;
                }
                if is_reset {
                    line.abort();
                    return;
                }
            }
        }
    }

    /// None once the pipe is closed.
    fn next_due(&self, conditions: &Conditions) -> Option<Vec<u8>> {
        let mut queue = locked(&self.queue);
        loop {
            if queue.closed {
                return None;
            }
            let wait = match queue.chunks.front() {
                Some(chunk) if !conditions.stalled.load(Ordering::SeqCst) => {
                    Some(chunk.due.saturating_duration_since(Instant::now()))
                }
                _ => None,
            };
            queue = match wait {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let chunk = queue.chunks.pop_front()?;
                    queue.size -= chunk.bytes.len();
                    self.changed.notify_all();
                    return Some(chunk.bytes);
                }
                Some(wait) => {
                    self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// None if the receiver is gone or the pipe is closed.
    fn write(&self, mut to: &TcpStream, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(size) => bytes = &bytes[size..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if locked(&self.queue).closed {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
        Some(())
    }
}

fn line_thread(
    name: &str,
    line: &Arc<Line>,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Line, &Shared) + Send + 'static,
) -> JoinHandle<()> {
    let (line, shared) = (Arc::clone(line), Arc::clone(shared));
    spawn(name, move || work(&line, &shared))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).expect("the system gives us a thread")
}

/// A panicking test must not hide its message behind poisoned locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
