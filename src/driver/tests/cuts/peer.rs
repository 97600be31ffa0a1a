//! A model master behind a socket, in the test's own thread.

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

use crate::clock;
use redlatch_testing::model::ModelMaster;

/// How the connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    Unix,
    Tls12,
    Tls13,
}

/// How the peer ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Immediately after the last byte.
    Behind,
    /// When the driver has read the last byte.
    Later,
    /// When the driver has read the last byte, with a reset.
    Reset,
}

/// Bytes that the peer passes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conduct {
    /// Bytes passed at a time, in each direction.
    pub(super) piece: usize,
    /// Reply bytes and request bytes until the end.
    pub(super) sent_max: usize,
    pub(super) read_max: usize,
    pub(super) end: End,
}

pub(super) const WHOLE: Conduct =
    Conduct { piece: usize::MAX, sent_max: usize::MAX, read_max: usize::MAX, end: End::Behind };

pub(super) trait Stream: Read + Write {
    fn end(&mut self, end: End);
}

impl Stream for TcpStream {
    fn end(&mut self, end: End) {
        if end == End::Reset {
            // The following drop resets the connection.
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

/// Shared by all peers of a kind.
pub(super) struct Host {
    pub(super) kind: Kind,
    pub(super) server: Option<Arc<ServerConfig>>,
    /// The certificate, for the client to trust.
    pub(super) ca: String,
}

impl Host {
    pub(super) fn new(kind: Kind) -> Self {
        // All of its signatures have the same size.
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

pub(super) enum Listener {
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
pub(super) struct Peer {
    pub(super) listener: Listener,
    pub(super) stream: Option<Box<dyn Stream>>,
    pub(super) session: Option<ServerConnection>,
    /// Its clock stands still, so that replies keep their size.
    pub(super) now: Instant,
    pub(super) model: ModelMaster,
    pub(super) conduct: Conduct,
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) read_size: usize,
    pub(super) sent_size: usize,
    pub(super) is_over: bool,
    /// Bytes to send instead of replies.
    pub(super) babble: Option<Vec<u8>>,
    /// Whether to update the TLS key before each reply.
    pub(super) renews_keys: bool,
}

impl Peer {
    pub(super) fn new(host: &Host, conduct: Conduct) -> Self {
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

    pub(super) fn url(&self) -> String {
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

    /// Reads a piece, executes complete commands, and writes a piece; or ends the connection.
    pub(super) fn step(&mut self) {
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
            // Earlier, the connection would never have been open.
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

    /// Takes request bytes, and queues the replies.
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
        // Even without replies there may be handshake records.
        for piece in std::iter::once([].as_slice()).chain(replies.chunks(10_000)) {
            session.writer().write_all(piece).expect("room");
            while session.wants_write() {
                session.write_tls(&mut self.output).expect("room");
            }
        }
    }
}
