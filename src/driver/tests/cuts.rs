//! A driver and a peer that lets a few bytes through at a time, or ends behind any byte: over TCP, a Unix
//! socket and TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};
use socket2::SockRef;

use super::PATIENCE;
use crate::clock;
use crate::config::{Config, Pem, Quarantine, Tls};
use crate::driver::channel::Channel;
use crate::driver::{Driver, Poller, WAKER_TOKEN};
use crate::engine::{OpId, Outcome, Request};
use crate::event::Event;
use crate::limits;
use crate::lock::{MasterId, Resource};
use crate::options::Options;
use crate::testing::model::ModelMaster;

/// How the connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
    Tls12,
    Tls13,
}

/// How the peer ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// At once behind the last byte.
    Behind,
    /// When the driver has read the last byte.
    Later,
    /// The same by a reset.
    Reset,
}

/// Bytes that the peer lets through.
#[derive(Debug, Clone, Copy)]
struct Conduct {
    /// Bytes at a time, in either direction.
    piece: usize,
    /// Bytes until the end, of replies and of requests.
    sent_max: usize,
    read_max: usize,
    end: End,
}

const WHOLE: Conduct =
    Conduct { piece: usize::MAX, sent_max: usize::MAX, read_max: usize::MAX, end: End::Behind };

trait Stream: Read + Write {
    fn end(&mut self, end: End);
}

impl Stream for TcpStream {
    fn end(&mut self, end: End) {
        if end == End::Reset {
            // The drop that follows resets it.
            SockRef::from(&*self).set_linger(Some(Duration::ZERO)).expect("a socket option");
        } else {
            self.shutdown(Shutdown::Write).expect("it is open");
        }
    }
}

impl Stream for UnixStream {
    fn end(&mut self, _: End) {
        self.shutdown(Shutdown::Write).expect("it is open");
    }
}

/// The part that all peers of a kind share.
struct Host {
    kind: Kind,
    server: Option<Arc<ServerConfig>>,
    /// The certificate, for the client to trust.
    ca: String,
}

impl Host {
    fn new(kind: Kind) -> Self {
        // Each of its signatures has the same size.
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("randomness");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a valid name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let version: Option<&'static SupportedProtocolVersion> = match kind {
            Kind::Tls12 => Some(&TLS12),
            Kind::Tls13 => Some(&TLS13),
            Kind::Tcp | Kind::Unix => None,
        };
        let server = version.map(|version| {
            let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
            let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder =
                builder.with_protocol_versions(&[version]).expect("a version").with_no_client_auth();
            let chain = vec![certificate.der().clone()];
            Arc::new(builder.with_single_cert(chain, key).expect("a certificate with its key"))
        });
        Self { kind, server, ca: certificate.pem() }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, std::path::PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            std::fs::remove_file(path).ok();
        }
    }
}

/// A model master in the test's own thread.
struct Peer {
    listener: Listener,
    stream: Option<Box<dyn Stream>>,
    session: Option<ServerConnection>,
    /// Its clock stands still, so that replies have the same size each time.
    now: Instant,
    model: ModelMaster,
    conduct: Conduct,
    input: Vec<u8>,
    output: Vec<u8>,
    read_size: usize,
    sent_size: usize,
    is_over: bool,
    /// Bytes that it sends instead of replies.
    babble: Option<Vec<u8>>,
    /// Whether it takes a new key before each reply.
    renews_keys: bool,
}

impl Peer {
    fn new(host: &Host, conduct: Conduct) -> Self {
        let listener = if host.kind == Kind::Unix {
            use std::hash::BuildHasher;
            let random = std::hash::RandomState::new().hash_one(0);
            let path =
                std::env::temp_dir().join(format!("redlatch-cuts-{}-{random:08x}.sock", std::process::id()));
            let listener = UnixListener::bind(&path).expect("a free name");
            listener.set_nonblocking(true).expect("a socket option");
            Listener::Unix(listener, path)
        } else {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            // A large write does not fit.
            SockRef::from(&listener).set_recv_buffer_size(4096).expect("a socket option");
            listener.set_nonblocking(true).expect("a socket option");
            Listener::Tcp(listener)
        };
        let session = host.server.clone().map(|server| ServerConnection::new(server).expect("a session"));
        let now = clock::now();
        let model = ModelMaster::new("run", now);
        Self {
            listener,
            stream: None,
            session,
            now,
            model,
            conduct,
            input: Vec::new(),
            output: Vec::new(),
            read_size: 0,
            sent_size: 0,
            is_over: false,
            babble: None,
            renews_keys: false,
        }
    }

    fn url(&self) -> String {
        match &self.listener {
            Listener::Unix(_, path) => format!("unix://{}", path.display()),
            Listener::Tcp(listener) => {
                let scheme = if self.session.is_some() { "rediss" } else { "redis" };
                format!("{scheme}://{}", listener.local_addr().expect("bound"))
            }
        }
    }

    fn accept(&mut self) {
        let stream: Option<Box<dyn Stream>> = match &self.listener {
            Listener::Tcp(listener) => listener.accept().ok().map(|(stream, _)| {
                stream.set_nonblocking(true).expect("a socket option");
                stream.set_nodelay(true).expect("a socket option");
                Box::new(stream) as _
            }),
            Listener::Unix(listener, _) => listener.accept().ok().map(|(stream, _)| {
                stream.set_nonblocking(true).expect("a socket option");
                Box::new(stream) as _
            }),
        };
        self.stream = stream;
    }

    /// Reads a piece, carries out what is whole, and writes a piece; or ends the connection.
    fn step(&mut self) {
        if self.stream.is_none() && !self.is_over {
            self.accept();
        }
        let Conduct { piece, sent_max, read_max, end } = self.conduct;
        let is_last =
            |peer: &Self| peer.sent_size == sent_max || peer.read_size == read_max && peer.output.is_empty();
        let was_last = is_last(self);
        let Some(stream) = &mut self.stream else { return };
        let mut bytes = vec![0; piece.min(read_max - self.read_size).min(64 * 1024)];
        let size = stream.read(&mut bytes).unwrap_or(0);
        self.read_size += size;
        self.take(&bytes[..size]);
        let size = piece.min(sent_max - self.sent_size).min(self.output.len());
        let Some(stream) = &mut self.stream else { return };
        let size = stream.write(&self.output[..size]).unwrap_or(0);
        self.output.drain(..size);
        self.sent_size += size;
        let is_due = match end {
            End::Behind => true,
            End::Later => was_last,
            // Earlier, it would never have stood.
            End::Reset => was_last && self.read_size > 0,
        };
        if !self.is_over && is_last(self) && is_due {
            self.is_over = true;
            let Some(stream) = &mut self.stream else { return };
            stream.end(end);
            if end == End::Reset {
                self.stream = None;
            }
        }
    }

    fn replies(&mut self) -> Vec<u8> {
        let mut replies = Vec::new();
        self.model.handle(self.now, &mut self.input, &mut replies);
        match &self.babble {
            Some(babble) if !replies.is_empty() => babble.clone(),
            _ => replies,
        }
    }

    /// Takes bytes of requests, and has the replies written.
    fn take(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.session else {
            self.input.extend_from_slice(bytes);
            let replies = self.replies();
            return self.output.extend(replies);
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            session.read_tls(&mut rest).expect("room");
            session.process_new_packets().expect("TLS");
            let mut space = [0; 4096];
            while let Ok(size @ 1..) = session.reader().read(&mut space) {
                self.input.extend_from_slice(&space[..size]);
            }
        }
        let replies = self.replies();
        let session = self.session.as_mut().expect("as before");
        if self.renews_keys && !replies.is_empty() {
            session.refresh_traffic_keys().expect("a session of TLS 1.3");
        }
        // Without replies, there may be records of the handshake.
        for piece in std::iter::once([].as_slice()).chain(replies.chunks(10_000)) {
            session.writer().write_all(piece).expect("room");
            while session.wants_write() {
                session.write_tls(&mut self.output).expect("room");
            }
        }
    }
}

/// Events of a driver, with the bytes of replies and of requests that had passed by then.
type Trace = Vec<(String, usize, usize)>;

struct Rig {
    driver: Driver,
    poller: Poller,
    peer: Peer,
    trace: Trace,
    outcomes: Vec<(OpId, Outcome)>,
    /// The bytes of replies behind which the connection stands for the driver.
    connected_size: Option<usize>,
    given_up: Instant,
}

impl Rig {
    fn new(host: &Host, conduct: Conduct) -> Self {
        let peer = Peer::new(host, conduct);
        let config = Config::builder().master(peer.url()).quarantine(Quarantine::Trust).on_event(|_| {});
        // Nothing is late.
        let config = config.answer_timeout(PATIENCE).connect_timeout(PATIENCE).max_ttl(PATIENCE * 4);
        let config = match host.server {
            Some(_) => config.tls(Tls::new().ca(Pem::Bytes(host.ca.clone().into_bytes()))),
            None => config,
        };
        let config = config.build().expect("valid settings");
        let (driver, poller) = Driver::new(Arc::new(config)).expect("an event loop");
        Self {
            driver,
            poller,
            peer,
            trace: Vec::new(),
            outcomes: Vec::new(),
            connected_size: None,
            given_up: clock::now() + PATIENCE,
        }
    }

    /// Both sides do what they can.
    fn turn(&mut self) {
        assert!(clock::now() < self.given_up, "it does not go on behind {:?}", self.trace);
        self.driver.turn(&mut self.poller, Some(Duration::ZERO)).expect("a turn");
        let master = MasterId::new(0).expect("small");
        let is_left = self.driver.sockets[0].is_some() && !self.driver.engine.send_ready(master).is_empty();
        assert_eq!(is_left, self.driver.has_unsent, "a turn writes all that the socket takes");
        assert_eq!(self.driver.engine.poll_link(), None, "a turn follows all links");
        if self.driver.sockets[0].as_ref().is_some_and(Channel::is_connected) {
            self.connected_size.get_or_insert(self.peer.sent_size);
        }
        while let Some(event) = self.driver.engine.poll_event() {
            let shown = match event {
                Event::Connected { is_reconnect: false, .. } => "connected".to_owned(),
                Event::Disconnected { why, .. } => why.to_string(),
                Event::Acquired { attempts: 1, .. } => "acquired".to_owned(),
                Event::Released { .. } => continue,
                other => format!("{other:?}"),
            };
            self.trace.push((shown, self.peer.sent_size, self.peer.read_size));
        }
        while let Some((lock, outcome)) = self.driver.engine.poll_outcome() {
            if let Outcome::Release(Ok(_)) = outcome {
                self.trace.push(("released".to_owned(), self.peer.sent_size, self.peer.read_size));
            }
            self.outcomes.push((lock, outcome));
        }
        self.peer.step();
    }

    fn acquire(&mut self, name: &str) {
        let options = Options { ttl: Some(PATIENCE), wait: Some(Duration::ZERO), ..Options::new() };
        let resource = Resource::new(name).expect("a valid name");
        let request = Request::Acquire { resource, options, label: None };
        self.driver.submit(clock::now(), request).expect("room");
    }

    /// Acquires a lock when the master is connected, and releases it. Ends with that, or with the connection.
    fn run(&mut self) -> Trace {
        let mut shown_count = 0;
        loop {
            self.turn();
            for (lock, outcome) in std::mem::take(&mut self.outcomes) {
                if let Outcome::Acquire(Ok(_)) = outcome {
                    let release = Request::Release { lock, awaited: true };
                    self.driver.submit(clock::now(), release).expect("room");
                }
            }
            for (shown, ..) in self.trace.clone().drain(shown_count..) {
                shown_count += 1;
                match shown.as_str() {
                    "connected" => self.acquire("a"),
                    "acquired" => {}
                    "released" => return std::mem::take(&mut self.trace),
                    // The connection has ended; what follows from it does not count.
                    _ => {
                        self.trace.truncate(shown_count);
                        return std::mem::take(&mut self.trace);
                    }
                }
            }
        }
    }
}

fn shown(trace: &Trace) -> Vec<&str> {
    trace.iter().map(|(shown, ..)| shown.as_str()).collect()
}

const ALL: [&str; 3] = ["connected", "acquired", "released"];

#[test]
fn bytes_may_come_and_go_in_any_pieces() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for piece in [1, 2, 3, 5, 100, 1000, usize::MAX] {
            let trace = Rig::new(&host, Conduct { piece, ..WHOLE }).run();
            assert_eq!(shown(&trace), ALL, "{kind:?} by {piece} bytes");
        }
    }
}

/// No event comes for the rest of what one read has no room for.
#[test]
fn replies_of_more_than_one_read_are_read() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for size in [limits::READ_SIZE / 2, limits::READ_SIZE, 2 * limits::READ_SIZE] {
            let mut rig = Rig::new(&host, WHOLE);
            rig.peer.model.maxmemory_policy = "x".repeat(size);
            assert_eq!(shown(&rig.run()), ALL, "{kind:?}: {size} bytes");
        }
    }
}

/// The reason that a connection is to end for, if it ends like this behind so many bytes of replies.
fn why(kind: Kind, end: End, size: usize, connected_size: usize) -> &'static str {
    match (kind, end) {
        (Kind::Tcp, End::Reset) if size == 0 => {
            "Connection reset by peer (os error 104) before its first reply; if it wants TLS, write rediss://"
        }
        (Kind::Tcp, _) if size == 0 => {
            "the server closed the connection before its first reply; if it wants TLS, write rediss://"
        }
        (Kind::Unix, _) if size == 0 => {
            "the server closed the connection before its first reply; read the server's log"
        }
        (Kind::Tcp, End::Reset) => "Connection reset by peer (os error 104)",
        (Kind::Tcp | Kind::Unix, _) => "the server closed the connection",
        (Kind::Tls12 | Kind::Tls13, End::Reset) if size < connected_size => {
            "Connection reset by peer (os error 104) in the TLS handshake; check that the port speaks TLS"
        }
        (Kind::Tls12 | Kind::Tls13, _) if size < connected_size => {
            "the server closed the connection in the TLS handshake; check that the port speaks TLS"
        }
        (Kind::Tls12 | Kind::Tls13, End::Reset) => "Connection reset by peer (os error 104)",
        (Kind::Tls12 | Kind::Tls13, _) => {
            "the connection was cut without an end of TLS (close_notify); check the master and the network"
        }
    }
}

#[test]
fn a_connection_may_end_behind_any_byte() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, Conduct { piece: 1, ..WHOLE });
        let whole = rig.run();
        assert_eq!(shown(&whole), ALL, "{kind:?}");
        let (connected_size, total) = (rig.connected_size.expect("it stood"), whole[2].1);
        for sent_max in 0..total {
            let mut ends = whole.iter().map(|(_, size, _)| *size).chain([0, connected_size]);
            let is_near = ends.any(|size| sent_max.abs_diff(size) < 3);
            for end in [End::Behind, End::Later, End::Reset] {
                let step = match (kind, end) {
                    (Kind::Unix, End::Reset) => continue,
                    (Kind::Tcp | Kind::Unix, End::Behind) => 1,
                    (Kind::Tcp | Kind::Unix, _) => 7,
                    (Kind::Tls12 | Kind::Tls13, _) => 29,
                };
                if !is_near && sent_max % step != 0 {
                    continue;
                }
                let trace = Rig::new(&host, Conduct { sent_max, end, ..WHOLE }).run();
                let before = whole.iter().filter(|(_, size, _)| *size <= sent_max).map(|it| it.0.as_str());
                let mut expected: Vec<_> = before.collect();
                expected.push(why(kind, end, sent_max, connected_size));
                assert_eq!(shown(&trace), expected, "{kind:?} {end:?} behind {sent_max} of {total} bytes");
            }
        }
    }
}

/// The less of the requests arrives, the less comes of it.
#[test]
fn a_peer_may_end_behind_any_byte_of_a_request() {
    for kind in [Kind::Tcp, Kind::Tls13] {
        let host = Host::new(kind);
        let total = Rig::new(&host, WHOLE).run()[2].2;
        let mut counts = Vec::new();
        for read_max in (1..total).step_by(if kind == Kind::Tcp { 13 } else { 101 }) {
            let trace = Rig::new(&host, Conduct { read_max, ..WHOLE }).run();
            let mut shown = shown(&trace);
            // The last bytes of all may have been of no request for the lock.
            if let Some(end) = shown.pop_if(|last| *last != "released") {
                assert!(end.contains("the server closed") || end.contains("was cut without"), "{trace:?}");
            }
            assert!(ALL.starts_with(&shown), "{kind:?}, {read_max} of {total} bytes: {trace:?}");
            counts.push(shown.len());
        }
        assert!(
            counts.starts_with(&[0]) && counts.contains(&1) && counts.contains(&2),
            "{kind:?}: {counts:?}"
        );
    }
}

/// A write that the socket takes in part is neither lost nor repeated.
#[test]
fn a_peer_that_does_not_read_gets_all_later() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, WHOLE);
        while shown(&rig.trace) != ["connected"] {
            rig.turn();
        }
        let mut count = 0;
        while !rig.driver.has_unsent {
            assert!(count < 50_000, "{kind:?}: it takes all");
            count += 1;
            rig.acquire(&format!("{count:01000}"));
            rig.driver.flush();
        }
        let left = |rig: &mut Rig| rig.driver.engine.send_ready(MasterId::new(0).expect("small")).len();
        for _ in 0..3 {
            let before = left(&mut rig);
            rig.driver.flush();
            assert!(rig.driver.has_unsent && left(&mut rig) == before, "{kind:?}: nothing has changed");
        }
        let mut acquired = Vec::new();
        while acquired.len() < count {
            rig.turn();
            for (_, outcome) in rig.outcomes.drain(..) {
                assert!(matches!(outcome, Outcome::Acquire(Ok(_))), "{kind:?}: {outcome:?}");
                acquired.push(outcome);
            }
        }
        assert!(!rig.driver.has_unsent && left(&mut rig) == 0, "{kind:?}");
        // One more has the record of the fleet.
        assert_eq!(rig.peer.model.keys().len(), count + 1, "{kind:?}");
    }
}

/// Bytes behind a reply that is none are not read.
#[test]
fn a_peer_that_breaks_the_protocol_is_left() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, WHOLE);
        while shown(&rig.trace) != ["connected"] {
            rig.turn();
        }
        // A lookup has ended, and nobody has looked at it.
        let master = MasterId::new(0).expect("small");
        assert!(rig.driver.resolver.resolve(master, "localhost", 1).is_none());
        loop {
            rig.poller.wait(Some(PATIENCE)).expect("a poll");
            if rig.poller.events.iter().any(|event| event.token() == WAKER_TOKEN) {
                break;
            }
            rig.driver.end_turn(&rig.poller);
        }
        rig.driver.addresses[0].spare = vec![([127, 0, 0, 1], 1).into()];
        rig.peer.babble = Some(b"?\r\n+OK\r\n".repeat(100));
        rig.acquire("a");
        while rig.trace.len() < 2 {
            rig.turn();
        }
        assert!(
            rig.trace[1].0.starts_with("a reply starts with the unknown type byte '?'"),
            "{kind:?}: {:?}",
            rig.trace
        );
        assert!(rig.driver.resolver.poll_found().is_none(), "{kind:?}: nobody wants it");
        assert!(rig.driver.addresses[0].spare.is_empty(), "{kind:?}");
    }
}

/// With it, nothing is missing. The connection below may stay open.
#[test]
fn a_notified_end_is_a_close() {
    for kind in [Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for (piece, is_open) in [(1, true), (1, false), (usize::MAX, true), (usize::MAX, false)] {
            let mut rig = Rig::new(&host, Conduct { piece, ..WHOLE });
            rig.run();
            let session = rig.peer.session.as_mut().expect("it is TLS");
            session.send_close_notify();
            session.write_tls(&mut rig.peer.output).expect("room");
            if !is_open {
                rig.peer.conduct.sent_max = rig.peer.sent_size + rig.peer.output.len();
            }
            while rig.trace.is_empty() {
                rig.turn();
            }
            assert_eq!(shown(&rig.trace), ["the server closed the connection"], "{kind:?} {piece} {is_open}");
        }
    }
}

#[test]
fn new_keys_may_come_in_any_pieces() {
    let host = Host::new(Kind::Tls13);
    for piece in [1, 7, usize::MAX] {
        let mut rig = Rig::new(&host, Conduct { piece, ..WHOLE });
        rig.peer.renews_keys = true;
        assert_eq!(shown(&rig.run()), ALL, "by {piece} bytes");
    }
}
