//! One TLS connection and its peer, step by step.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription as Alert, ClientConfig, Error, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};

use redlatch_support::PATIENCE;

use super::{TlsMaster, TlsSocket};
use crate::driver::socket::{Received, Socket};
use crate::limits;

/// A certificate for the server `h` with its key.
struct Certificate {
    chain: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// The names of two CAs must differ.
    fn new(authority: &str, last_year: i32) -> Self {
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("a valid name");
        params.distinguished_name.push(DnType::CommonName, authority);
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(last_year, 1, 1));
        let key = KeyPair::generate().expect("randomness");
        let chain = params.self_signed(&key).expect("a certificate").der().clone();
        Self { chain, key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key") }
    }
}

/// A TLS connection and its other end.
struct Pair {
    socket: TlsSocket,
    peer: TcpStream,
    session: ServerConnection,
    /// Keeps the client's socket registered.
    poll: Poll,
}

impl Pair {
    /// A client that trusts one certificate, and a peer that presents another or the same one.
    fn new(version: &'static SupportedProtocolVersion, trusted: &Certificate, shown: &Certificate) -> Self {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(trusted.chain.clone()).expect("a certificate");
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(vec![shown.chain.clone()], shown.key.clone_key())
            .expect("a certificate with its key");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let poll = Poll::new().expect("a poller");
        let address = listener.local_addr().expect("bound");
        let socket = Socket::tcp(address, poll.registry(), Token(0)).expect("it connects");
        let (peer, _) = listener.accept().expect("it connects");
        peer.set_nonblocking(true).expect("a socket option");
        let master =
            TlsMaster { config: Arc::new(config), server_name: "h".try_into().expect("a valid name") };
        let socket = master.connect(socket).expect("a session");
        let session = ServerConnection::new(Arc::new(server)).expect("a session");
        Self { socket, peer, session, poll }
    }

    /// A pair whose handshake is done on both sides.
    fn established() -> Self {
        let own = Certificate::new("own", 4000);
        let mut pair = Self::new(&TLS13, &own, &own);
        pair.until(|pair| matches!(pair.turn().expect("a handshake"), Received::Connected).then_some(()));
        pair.until(|pair| {
            pair.answer().expect("a handshake");
            (!pair.session.is_handshaking()).then_some(())
        });
        pair
    }

    #[track_caller]
    fn until<T>(&mut self, mut is_done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let given_up = Instant::now() + PATIENCE;
        loop {
            if let Some(result) = is_done(self) {
                return result;
            }
            assert!(Instant::now() < given_up, "it does not come");
            thread::yield_now();
        }
    }

    /// Both sides make as much progress as they can.
    fn turn(&mut self) -> io::Result<Received> {
        self.socket.handle_writable()?;
        let received = self.socket.recv(&mut [0; 64])?;
        self.answer().expect("the peer goes on");
        Ok(received)
    }

    /// Reads as the driver does: at an event, and again while more may have arrived. Returns the bytes
    /// before the end, or until this many have come.
    #[track_caller]
    fn receive(&mut self, size_max: usize) -> Vec<u8> {
        let (mut events, mut space, mut received) = (Events::with_capacity(4), [0; 64], Vec::new());
        while received.len() < size_max {
            self.poll.poll(&mut events, Some(PATIENCE)).expect("a poll");
            let is_timeout = events.is_empty();
            assert!(!is_timeout, "no event for what was left after {} bytes", received.len());
            loop {
                match self.socket.recv(&mut space).expect("records") {
                    Received::Bytes { size, has_more } => {
                        received.extend_from_slice(&space[..size]);
                        if !has_more {
                            break;
                        }
                    }
                    Received::Nothing | Received::Connected => break,
                    Received::End => return received,
                }
            }
        }
        received
    }

    /// The peer encrypts these bytes in records of at most 16 KiB.
    fn encrypt(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        for piece in bytes.chunks(10_000) {
            self.session.writer().write_all(piece).expect("room");
            while self.session.wants_write() {
                self.session.write_tls(&mut records).expect("room");
            }
        }
        records
    }

    /// The peer reads and answers. False at the end.
    fn answer(&mut self) -> Result<bool, Error> {
        let is_open = !matches!(self.session.read_tls(&mut self.peer), Ok(0));
        self.session.process_new_packets()?;
        self.write();
        Ok(is_open)
    }

    /// The peer writes its session's records.
    fn write(&mut self) {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.peer).expect("it fits");
        }
    }
}

// I138
#[test]
fn the_peer_learns_why_its_certificate_is_refused() {
    let certificates = [("own", 4000), ("other", 4000), ("expired", 2001)];
    let [own, other, expired] = certificates.map(|(name, last_year)| Certificate::new(name, last_year));
    for version in [&TLS12, &TLS13] {
        for (trusted, shown, alert) in
            [(&other, &own, Alert::UnknownCA), (&expired, &expired, Alert::CertificateExpired)]
        {
            let mut pair = Pair::new(version, trusted, shown);
            pair.until(|pair| pair.turn().err());
            let learnt = pair.until(|pair| match pair.answer() {
                Ok(true) => None,
                Ok(false) => panic!("the connection ended without an alert"),
                Err(error) => Some(error),
            });
            assert_eq!(learnt, Error::AlertReceived(alert), "{version:?}");
        }
    }
}

// I138
#[test]
fn the_last_words_after_an_end_are_bounded() {
    let mut pair = Pair::established();
    pair.session.send_close_notify();
    let mut bytes = Vec::new();
    pair.session.write_tls(&mut bytes).expect("room");
    // At once, and more than a session takes from one read.
    bytes.extend([b'?'; 20_000]);
    pair.peer.write_all(&bytes).expect("it fits");
    let (sender, receiver) = mpsc::channel();
    // In its own thread, so that a hang is noticed.
    thread::spawn(move || {
        sender.send(pair.until(|pair| {
            let why = pair.socket.why_refused().map(|error| error.to_string());
            (why.is_some() || pair.socket.has_ended).then_some(why)
        }))
    });
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(None));
}

// I138
#[test]
fn an_alert_behind_unread_replies_is_named() {
    let mut pair = Pair::established();
    // More than a session has room for.
    for _ in 0..4 {
        pair.session.writer().write_all(&[b'+'; 10_000]).expect("room");
        pair.write();
    }
    pair.session.read_tls(&mut &[b'?'; 100][..]).expect("room");
    pair.session.process_new_packets().expect_err("it is no TLS");
    pair.write();
    let error = pair.until(|pair| pair.socket.why_refused()).to_string();
    assert!(error.contains("it refused the TLS handshake (decode error)"), "{error}");
}

#[test]
fn an_alert_in_place_of_a_handshake_is_named() {
    let own = Certificate::new("own", 4000);
    let mut pair = Pair::new(&TLS13, &own, &own);
    pair.peer.write_all(&[21, 3, 3, 0, 2, 2, 40]).expect("it fits");
    let error = pair.until(|pair| {
        pair.socket.socket.handle_writable().expect("it is connected");
        pair.socket.why_refused()
    });
    assert!(error.to_string().contains("it has no TLS cipher or kind of key in common"), "{error}");
}

/// No further event announces the rest of the bytes: of one record larger than the room of a read, of several
/// records, of more records than one read of the socket takes, and of half a record.
#[test]
fn one_event_reads_all_arrived_bytes() {
    for size in [1000, 10_001, limits::READ_SIZE, 3 * limits::READ_SIZE + 7] {
        for tail_size in [0, 1, 500] {
            let mut pair = Pair::established();
            let sent: Vec<u8> = (0..=250).cycle().take(size).collect();
            let mut records = pair.encrypt(&sent);
            let tail = records.split_off(records.len() - tail_size);
            let reader = pair.peer.try_clone().expect("a copy");
            let writing = thread::spawn(move || write_all(reader, &records, &tail));
            assert!(pair.receive(size) == sent, "{size} bytes, the last {tail_size} of them apart");
            writing.join().expect("it is read");
        }
    }
}

/// Writes both parts to a socket that does not block.
fn write_all(mut peer: TcpStream, first: &[u8], second: &[u8]) {
    peer.set_nonblocking(false).expect("a socket option");
    [first, second].into_iter().for_each(|part| peer.write_all(part).expect("it is read"));
    peer.set_nonblocking(true).expect("a socket option");
}

/// The peer leaves the underlying connection open.
#[test]
fn close_after_a_reply_is_read_with_it() {
    for size in [1, 64, 10_000] {
        let mut pair = Pair::established();
        let sent = vec![b'+'; size];
        let mut records = pair.encrypt(&sent);
        pair.session.send_close_notify();
        pair.session.write_tls(&mut records).expect("room");
        pair.peer.write_all(&records).expect("it fits");
        assert!(pair.receive(usize::MAX) == sent, "{size} bytes before the end");
    }
}

/// Neither the session's nor the socket's limit for one call ends a write.
#[test]
fn a_write_of_any_size_arrives_whole() {
    for size in [1, 20_000, 200_000, 4_000_000] {
        let mut pair = Pair::established();
        let sent: Vec<u8> = (0..=250).cycle().take(size).collect();
        let (mut rest, mut received) = (sent.as_slice(), Vec::new());
        let (mut events, given_up) = (Events::with_capacity(4), Instant::now() + PATIENCE);
        while received.len() < size {
            assert!(Instant::now() < given_up, "{} of {size} bytes have come", received.len());
            // As the driver does: writes until the socket accepts less than given, then waits for an event.
            while !rest.is_empty() && pair.socket.is_writable() {
                let written = pair.socket.send(rest).expect("it stands");
                assert!(
                    written > 0 || !pair.socket.is_writable(),
                    "a write that is neither done nor refused"
                );
                rest = &rest[written..];
            }
            assert!(pair.answer().expect("records"), "it ended");
            let mut bytes = [0; 16 * 1024];
            while let Ok(size @ 1..) = std::io::Read::read(&mut pair.session.reader(), &mut bytes) {
                received.extend_from_slice(&bytes[..size]);
            }
            pair.poll.poll(&mut events, Some(Duration::ZERO)).expect("a poll");
            if events.iter().any(mio::event::Event::is_writable) {
                pair.socket.handle_writable().expect("it stands");
            }
        }
        assert!(received == sent, "{size} bytes");
    }
}

// I150
#[test]
fn records_without_data_return_to_the_caller() {
    let mut pair = Pair::established();
    for _ in 0..4 {
        pair.session.refresh_traffic_keys().expect("a session of TLS 1.3");
        pair.write();
        pair.until(|pair| {
            matches!(pair.turn(), Ok(Received::Bytes { size: 0, has_more: true })).then_some(())
        });
    }
    pair.session.writer().write_all(b"+OK").expect("room");
    pair.write();
    pair.until(|pair| matches!(pair.turn(), Ok(Received::Bytes { size: 3, .. })).then_some(()));
}

#[test]
fn a_connection_that_breaks_later_does_not_blame_its_handshake() {
    let Pair { mut socket, peer, session: _, poll: _poll } = Pair::established();
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("a socket option");
    drop(peer);
    let given_up = Instant::now() + PATIENCE;
    let error = loop {
        if let Err(error) = socket.send(b"x") {
            break error.to_string();
        }
        assert!(Instant::now() < given_up, "it takes bytes for ever");
    };
    assert!(!error.contains("handshake"), "{error}");
}
