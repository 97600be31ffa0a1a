//! A TLS server in front of a plaintext master, with faults on its connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};

use redlatch_support::Certificates;

/// Behaviour of the front on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// Passes bytes, with the certificate of this name.
    Pass(&'static str),
    /// Like `Pass`, with new keys before each reply.
    NewKeys,
    /// Like `Pass`, in records of one byte, with a whole reply in one write.
    SmallRecords,
    /// Like `Pass`, but after [`HANDSHAKE_SIZE_MAX`] bytes of requests, no reply passes until this many have
    /// arrived.
    Withhold { request_size: usize },
    /// Closes the connection without `close_notify` after this many bytes of replies, at the end of a record
    /// or inside the next one.
    Cut { reply_size: usize, inside_record: bool },
    /// Closes the connection with `close_notify` after this many bytes of replies.
    End { reply_size: usize },
    /// Accepts the TCP connection, but never answers.
    Stall,
    /// Passes the master's bytes without TLS.
    Plain,
    /// Answers with garbage.
    Garbage,
}

/// A client sends less than this before its first lock.
const HANDSHAKE_SIZE_MAX: usize = 16 * 1024;

pub(crate) struct Front {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    /// One for each connection, in order of arrival; the last one applies to all later connections.
    conducts: Vec<Conduct>,
    certificates: [(&'static str, Arc<ServerConfig>); 5],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// Copies of the sockets, to close them.
    sockets: Vec<TcpStream>,
    accepted_count: usize,
    /// Kind of each handshake, in the order of their ends.
    handshakes: Vec<HandshakeKind>,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    pub(crate) fn start(target: SocketAddr, certificates: &Certificates, conducts: &[Conduct]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        // Small, so that a large write does not fit.
        socket2::SockRef::from(&listener).set_recv_buffer_size(16 * 1024).expect("a socket option");
        let addr = listener.local_addr().expect("bound");
        let certificates =
            ["server", "named", "expired", "foreign", "early"].map(|name| (name, server(certificates, name)));
        let conducts = conducts.to_vec();
        let shared = Arc::new(Shared { target, conducts, certificates, state: Mutex::default() });
        let acceptor = Some(thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        }));
        Self { addr, shared, acceptor }
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://{}", self.addr)
    }

    pub(crate) fn accepted_count(&self) -> usize {
        self.shared.state().accepted_count
    }

    pub(crate) fn handshakes(&self) -> Vec<HandshakeKind> {
        self.shared.state().handshakes.clone()
    }

    /// Ends all connections, as if the network lost them.
    pub(crate) fn drop_connections(&self) {
        for socket in self.shared.state().sockets.drain(..) {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        TcpStream::connect(self.addr).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor does not panic");
        }
        self.drop_connections();
        let threads = std::mem::take(&mut self.shared.state().threads);
        for thread in threads {
            thread.join().expect("the front's threads do not panic");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, name: &str) -> ServerConnection {
        let (_, config) = self.certificates.iter().find(|(other, _)| *other == name).expect("a certificate");
        ServerConnection::new(config.clone()).expect("a session")
    }
}

fn server(certificates: &Certificates, name: &str) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificates.path(&format!("{name}.pem"))).expect("a file");
    let chain: Vec<_> = chain.map(|certificate| certificate.expect("a certificate")).collect();
    let key = PrivateKeyDer::from_pem_file(certificates.path(&format!("{name}.key"))).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_no_client_auth().with_single_cert(chain, key);
    Arc::new(config.expect("a certificate with its key"))
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        let mut state = shared.state();
        if state.is_over {
            return;
        }
        let conduct = *shared.conducts.get(state.accepted_count).or(shared.conducts.last()).expect("one");
        state.accepted_count += 1;
        client.set_nodelay(true).ok();
        let master = TcpStream::connect(shared.target).expect("the master accepts");
        master.set_nodelay(true).ok();
        state.sockets.extend([client.try_clone(), master.try_clone()].map(|copy| copy.expect("a copy")));
        let own = shared.clone();
        state.threads.push(thread::spawn(move || {
            let session = match conduct {
                Conduct::Pass(name) => own.session(name),
                _ => own.session("server"),
            };
            // An error only ends the connection.
            let _ = Line { client, master, session, conduct, requested_size: 0, passed_size: 0 }.run(&own);
        }));
    }
}

struct Line {
    client: TcpStream,
    master: TcpStream,
    session: ServerConnection,
    conduct: Conduct,
    /// Number of request bytes so far.
    requested_size: usize,
    /// Number of reply bytes so far.
    passed_size: usize,
}

impl Line {
    fn run(mut self, shared: &Shared) -> std::io::Result<()> {
        if self.conduct == Conduct::Garbage {
            self.client.write_all(&[b'?'; 64])?;
        }
        let mut is_reported = false;
        loop {
            let (from_client, from_master) = self.wait()?;
            if from_client && !self.handle_client()? {
                return Ok(());
            }
            if from_master && !self.handle_master()? {
                return Ok(());
            }
            self.flush()?;
            if let Some(kind) = self.session.handshake_kind().filter(|_| !self.session.is_handshaking())
                && !is_reported
            {
                is_reported = true;
                shared.state().handshakes.push(kind);
            }
        }
    }

    /// Which of client and master has something to read.
    fn wait(&self) -> std::io::Result<(bool, bool)> {
        if let Conduct::Withhold { request_size } = self.conduct
            && (HANDSHAKE_SIZE_MAX..request_size).contains(&self.requested_size)
        {
            return Ok((true, false));
        }
        let mut both = [PollFd::new(&self.client, PollFlags::IN), PollFd::new(&self.master, PollFlags::IN)];
        poll(&mut both, None)?;
        Ok((!both[0].revents().is_empty(), !both[1].revents().is_empty()))
    }

    fn handle_client(&mut self) -> std::io::Result<bool> {
        let mut bytes = [0; 16 * 1024];
        if matches!(self.conduct, Conduct::Stall | Conduct::Plain | Conduct::Garbage) {
            let size = self.client.read(&mut bytes)?;
            if self.conduct == Conduct::Plain {
                self.master.write_all(&bytes[..size])?;
            }
            return Ok(size > 0);
        }
        if self.session.read_tls(&mut self.client)? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.session.process_new_packets() {
            self.flush()?;
            return Err(std::io::Error::other(error));
        }
        while let Ok(size @ 1..) = self.session.reader().read(&mut bytes) {
            self.requested_size += size;
            self.master.write_all(&bytes[..size])?;
        }
        Ok(true)
    }

    fn handle_master(&mut self) -> std::io::Result<bool> {
        let mut bytes = [0; 16 * 1024];
        let size = self.master.read(&mut bytes)?;
        let reply = &bytes[..size];
        match self.conduct {
            Conduct::Stall | Conduct::Garbage => return Ok(size > 0),
            Conduct::Plain => {
                self.client.write_all(reply)?;
                return Ok(size > 0);
            }
            Conduct::SmallRecords => {
                let mut records = Vec::new();
                for piece in reply.chunks(1) {
                    self.session.writer().write_all(piece)?;
                    self.session.write_tls(&mut records)?;
                }
                self.client.write_all(&records)?;
                return Ok(size > 0);
            }
            Conduct::NewKeys => self.session.refresh_traffic_keys().map_err(std::io::Error::other)?,
            Conduct::Cut { reply_size, .. } | Conduct::End { reply_size }
                if self.passed_size + size > reply_size =>
            {
                let left = reply_size - self.passed_size;
                self.session.writer().write_all(&reply[..left])?;
                self.flush()?;
                return self.end(&reply[left..]);
            }
            _ => {}
        }
        self.session.writer().write_all(reply)?;
        self.passed_size += size;
        Ok(size > 0)
    }

    /// Ends the connection as configured. First reads until the client closes, because unread bytes would
    /// cause a reset.
    fn end(&mut self, next: &[u8]) -> std::io::Result<bool> {
        match self.conduct {
            Conduct::Cut { inside_record: true, .. } => {
                let mut record = Vec::new();
                self.session.writer().write_all(next)?;
                self.session.write_tls(&mut record)?;
                self.client.write_all(&record[..record.len() / 2])?;
            }
            Conduct::End { .. } => {
                self.session.send_close_notify();
                self.flush()?;
            }
            _ => {}
        }
        self.client.shutdown(Shutdown::Write)?;
        std::io::copy(&mut self.client, &mut std::io::sink())?;
        Ok(false)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if matches!(self.conduct, Conduct::Stall | Conduct::Plain | Conduct::Garbage) {
            return Ok(());
        }
        while self.session.wants_write() {
            self.session.write_tls(&mut self.client)?;
        }
        Ok(())
    }
}
