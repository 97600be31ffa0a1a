//! A TCP proxy on loopback, between a client and one master, that delays, stalls, cuts, resets, isolates and
//! refuses.
//!
//! Owns its listener, its connections and their threads; all end on drop. It never looks at the bytes that it
//! passes. For each connection and direction:
//!
//! ```text
//!   read ──> stamp: due = now + delay ──> queue of (due, bytes) ──> wait until due and not stalled ──> write
//!   reader thread                         at most QUEUE_SIZE_MAX     writer thread
//! ```
//!
//! A delay adds latency and does not limit the rate: all bytes under way wait at the same time. It does not
//! apply to the TCP handshake, which the kernel answers. Delays are exact to about 100 µs.

use crate::fleet::free_port;
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Largest number of waiting bytes in one direction of a connection. Beyond it the proxy stops reading, and
/// the sender meets a full window.
const QUEUE_SIZE_MAX: usize = 16 << 20;
const READ_SIZE: usize = 64 << 10;
/// How often a writer whose peer reads nothing checks whether to end.
const WRITE_PATIENCE: Duration = Duration::from_millis(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long another process may use the port of a refusing proxy before `refuse(false)` gives up.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// `None` while the proxy refuses connections.
    acceptor: Option<Acceptor>,
}

struct Acceptor {
    listener: TcpListener,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes bytes on to `target`, without a delay.
    pub fn start(target: SocketAddr) -> Self {
        let listener = (0..1_000).find_map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).ok());
        let listener = listener.expect("a free port stays free for a moment");
        let addr = listener.local_addr().expect("a bound listener has an address");
        let mut proxy = Self { addr, shared: Arc::new(Shared::default()), acceptor: None };
        proxy.lead_to(target);
        proxy.accept_from(listener);
        proxy
    }

    /// Leads new connections to another master.
    pub fn lead_to(&self, target: SocketAddr) {
        *locked(&self.shared.target) = Some(target);
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Number of accepted connections, including ended ones.
    pub fn accepted_count(&self) -> usize {
        self.shared.accepted_count.load(Ordering::SeqCst)
    }

    /// Delays all bytes read from now on by this much in each direction. The round trip takes twice as long.
    pub fn delay(&self, one_way: Duration) {
        self.shared.requests.set_delay(one_way);
        self.shared.replies.set_delay(one_way);
    }

    /// While true, connections stay and take bytes, but deliver none. Afterwards the bytes arrive in order.
    pub fn stall(&self, stalled: bool) {
        self.stall_requests(stalled);
        self.stall_replies(stalled);
    }

    pub fn stall_requests(&self, stalled: bool) {
        self.shared.requests.stalled.store(stalled, Ordering::SeqCst);
        self.shared.wake_writers();
    }

    /// Stalls replies only: the master carries out requests, and nobody learns of it.
    pub fn stall_replies(&self, stalled: bool) {
        self.shared.replies.stalled.store(stalled, Ordering::SeqCst);
        self.shared.wake_writers();
    }

    /// Limits each write to this size, in both directions; `usize::MAX` removes the limit.
    pub fn chunk(&self, size: usize) {
        assert!(size > 0, "a chunk of nothing never ends");
        self.shared.requests.chunk_size.store(size, Ordering::SeqCst);
        self.shared.replies.chunk_size.store(size, Ordering::SeqCst);
    }

    /// Partitions the network: connections stall, and new ones are accepted without an answer. Afterwards old
    /// connections go on, and connections accepted in the meantime are reset.
    pub fn isolate(&self, isolated: bool) {
        self.shared.isolated.store(isolated, Ordering::SeqCst);
        if !isolated {
            for client in std::mem::take(&mut *locked(&self.shared.unheard)) {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).ok();
            }
        }
        self.stall(isolated);
    }

    /// Passes this many more bytes of replies, over all connections, then resets the connection that carried
    /// the last one.
    pub fn reset_after_reply_bytes(&self, count: usize) {
        *locked(&self.shared.replies.left_until_reset) = Some(count);
    }

    /// Like [`Self::reset_after_reply_bytes`], for requests: the master gets the first part of a request.
    pub fn reset_after_request_bytes(&self, count: usize) {
        *locked(&self.shared.requests.left_until_reset) = Some(count);
    }

    /// Whether a reset is pending.
    pub fn is_reset_due(&self) -> bool {
        [&self.shared.requests, &self.shared.replies].iter().any(|it| locked(&it.left_until_reset).is_some())
    }

    /// Sends these bytes to each client, as if they came from the master.
    pub fn inject_replies(&self, bytes: &[u8]) {
        for connection in locked(&self.shared.connections).iter() {
            connection.line.replies.push(Instant::now(), bytes.to_vec());
        }
    }

    /// Resets all connections (RST to both sides). Bytes under way are lost.
    pub fn drop_connections(&self) {
        // Takes the connections out first, so that their threads can be joined without the mutex.
        let connections = std::mem::take(&mut *locked(&self.shared.connections));
        for connection in &connections {
            connection.line.abort();
        }
        for connection in connections {
            connection.join();
        }
    }

    /// While true, nobody listens on the port. Existing connections stay.
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
        // A child between fork and exec also has the listener. A shutdown closes it for both, and ends
        // `accept`.
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

/// State of the acceptor and all connections.
#[derive(Default)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    requests: Conditions,
    replies: Conditions,
    isolated: AtomicBool,
    /// Connections accepted while isolated, with no master behind them.
    unheard: Mutex<Vec<TcpStream>>,
    accepted_count: AtomicUsize,
    connections: Mutex<Vec<Connection>>,
}

impl Shared {
    /// Wakes all writers, which then check the conditions.
    fn wake_writers(&self) {
        for connection in locked(&self.connections).iter() {
            connection.line.requests.wake();
            connection.line.replies.wake();
        }
    }
}

/// Conditions in one direction.
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

    /// How many of these bytes may pass, and whether to reset the connection afterwards.
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
                // Held until the connection is listed, so that no byte passes a connection that a test cannot
                // reach.
                let mut connections = locked(&shared.connections);
                connections.retain(|connection| !connection.has_ended());
                connections.push(Connection::start(client, server, shared));
            }
            // A reset is the closest to a refusal for an accepted connection.
            Err(_) => SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap_or_default(),
        }
    }
}

/// A client's connection, and the connection to the master behind it.
struct Connection {
    line: Arc<Line>,
    threads: [JoinHandle<()>; 4],
}

/// State of a connection's threads. The threads own the sockets, which close with the last thread.
struct Line {
    sockets: [Weak<TcpStream>; 2],
    requests: Pipe,
    replies: Pipe,
}

impl Connection {
    fn start(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) -> Self {
        for socket in [&client, &server] {
            // A socket may have closed already; its reader notices.
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
    /// Ends the threads. The sockets then close with RST, not FIN.
    fn abort(&self) {
        let sockets: Vec<_> = self.sockets.iter().filter_map(Weak::upgrade).collect();
        for socket in &sockets {
            // Set before any thread can end and close its socket.
            SockRef::from(&**socket).set_linger(Some(Duration::ZERO)).ok();
        }
        self.requests.close();
        self.replies.close();
        for socket in &sockets {
            // Wakes the reader. Shutting down this direction is invisible to the peer.
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
    /// Number of bytes in `chunks`.
    size: usize,
    /// Nothing more may come out.
    closed: bool,
}

struct Chunk {
    due: Instant,
    /// Empty for the sender's close.
    bytes: Vec<u8>,
}

impl Pipe {
    fn wake(&self) {
        // Takes the mutex, so that a writer that has just checked the conditions is already waiting.
        let _queue = locked(&self.queue);
        self.changed.notify_all();
    }

    fn close(&self) {
        locked(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// Reads until the sender or the pipe closes.
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

    /// Writes due bytes until the sender's close is due or the receiver takes no more.
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

    /// `None` once the pipe is closed.
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

    /// `None` if the receiver is gone or the pipe is closed.
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
