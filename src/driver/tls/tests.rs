//! One connection over TLS and its peer, step by step.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Poll, Token};
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription as Alert, ClientConfig, Error, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};

use super::{TlsMaster, TlsSocket};
use crate::driver::socket::{Received, Socket};

/// How long anything may take that must happen: a slow machine only takes longer.
const PATIENCE: Duration = Duration::from_secs(40);

/// A certificate for the server `h` with its key.
struct Certificate {
    chain: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Names of two authorities must differ.
    fn new(authority: &str, last_year: i32) -> Self {
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("a valid name");
        params.distinguished_name.push(DnType::CommonName, authority);
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(last_year, 1, 1));
        let key = KeyPair::generate().expect("randomness");
        let chain = params.self_signed(&key).expect("a certificate").der().clone();
        Self { chain, key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key") }
    }
}

/// A connection over TLS, and the other end of it.
struct Pair {
    socket: TlsSocket,
    peer: TcpStream,
    session: ServerConnection,
    /// Has the client's socket registered.
    _poll: Poll,
}

impl Pair {
    /// A client that trusts one certificate, and a peer that shows another one, or the same.
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
        Self { socket, peer, session, _poll: poll }
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

    /// Both sides do what they can.
    fn turn(&mut self) -> io::Result<Received> {
        self.socket.handle_writable()?;
        let received = self.socket.recv(&mut [0; 64])?;
        self.answer().expect("the peer goes on");
        Ok(received)
    }

    /// The peer reads what has come, and answers. False at the end.
    fn answer(&mut self) -> Result<bool, Error> {
        let is_open = !matches!(self.session.read_tls(&mut self.peer), Ok(0));
        self.session.process_new_packets()?;
        self.write();
        Ok(is_open)
    }

    /// The peer writes what its session has to say.
    fn write(&mut self) {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.peer).expect("it fits");
        }
    }
}

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

#[test]
fn the_last_words_after_an_end_are_bounded() {
    let mut pair = Pair::established();
    pair.session.send_close_notify();
    let mut bytes = Vec::new();
    pair.session.write_tls(&mut bytes).expect("room");
    // At once, and more than a session takes of one read.
    bytes.extend([b'?'; 20_000]);
    pair.peer.write_all(&bytes).expect("it fits");
    let (sender, receiver) = mpsc::channel();
    // In a thread of its own, as it must not hang.
    thread::spawn(move || {
        sender.send(pair.until(|pair| {
            let why = pair.socket.why_refused().map(|error| error.to_string());
            (why.is_some() || pair.socket.has_ended).then_some(why)
        }))
    });
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(None));
}

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
    assert!(error.contains("it refused the TLS handshake (DecodeError)"), "{error}");
}

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
