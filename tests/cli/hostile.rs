//! A peer that proxies a master up to one command, and is hostile from there on. Counts the bytes that
//! clients take, and the connections that they leave open.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use redlatch_support::Certificates;

/// What the peer does instead of answering.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Conduct {
    /// Sends the first bytes, then repeats the others as fast as they are taken.
    Endless(&'static [u8], &'static [u8]),
    /// Sends the first bytes, then repeats the others one byte at a time.
    Drip(&'static [u8], &'static [u8]),
    /// Sends these bytes only.
    Say(&'static [u8]),
    /// Sends these bytes, then closes the connection.
    Close(&'static [u8]),
    /// Only slow: each answer, to any command, comes after this time.
    Late(Duration),
}

/// Any command.
pub(crate) const ANY: &[u8] = b"*";

/// How long the peer waits for bytes before it checks its other side.
const LOOK: Duration = Duration::from_millis(5);

/// Size of one write of an endless stream.
const PIECE_SIZE: usize = 16 * 1024;

pub(crate) struct Hostile {
    addr: SocketAddr,
    is_tls: bool,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    /// The master that answers until `command` comes.
    target: SocketAddr,
    command: &'static [u8],
    conduct: Conduct,
    tls: Option<Arc<ServerConfig>>,
    is_over: AtomicBool,
    taken_size: AtomicUsize,
    open_count: AtomicUsize,
    hostile_count: AtomicUsize,
}

impl Hostile {
    /// Hostile from the first request that contains these bytes.
    pub(crate) fn start(target: SocketAddr, command: &'static [u8], conduct: Conduct) -> Self {
        Self::listen(target, command, conduct, None)
    }

    /// Like [`Self::start`], over TLS with the certificate `server`.
    pub(crate) fn start_with_tls(
        target: SocketAddr,
        command: &'static [u8],
        conduct: Conduct,
        certificates: &Certificates,
    ) -> Self {
        let path = |file: &str| certificates.path(file);
        let chain = CertificateDer::pem_file_iter(path("server.pem")).expect("a file");
        let chain: Vec<_> = chain.map(|certificate| certificate.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_file(path("server.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth().with_single_cert(chain, key);
        Self::listen(target, command, conduct, Some(Arc::new(config.expect("a certificate with its key"))))
    }

    fn listen(
        target: SocketAddr,
        command: &'static [u8],
        conduct: Conduct,
        tls: Option<Arc<ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            target,
            command,
            conduct,
            is_over: AtomicBool::new(false),
            taken_size: AtomicUsize::new(0),
            open_count: AtomicUsize::new(0),
            hostile_count: AtomicUsize::new(0),
            tls,
        });
        let (its, is_tls) = (shared.clone(), shared.tls.is_some());
        let acceptor = Some(thread::spawn(move || accept(&listener, &its)));
        Self { addr, is_tls, shared, acceptor }
    }

    /// The peer's URL with this login, as `user:password@` or empty.
    pub(crate) fn url(&self, login: &str) -> String {
        format!("{}://{login}{}", if self.is_tls { "rediss" } else { "redis" }, self.addr)
    }

    /// The peer's URL for a client that speaks TLS although the peer does not.
    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://{}", self.addr)
    }

    /// Bytes of hostile answers taken by clients or socket buffers.
    pub(crate) fn taken_size(&self) -> usize {
        self.shared.taken_size.load(Ordering::SeqCst)
    }

    /// Connections that neither side has closed.
    pub(crate) fn open_count(&self) -> usize {
        self.shared.open_count.load(Ordering::SeqCst)
    }

    /// Connections on which the peer was hostile.
    pub(crate) fn hostile_count(&self) -> usize {
        self.shared.hostile_count.load(Ordering::SeqCst)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        TcpStream::connect(self.addr).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor does not panic");
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        if shared.is_over.load(Ordering::SeqCst) {
            break;
        }
        shared.open_count.fetch_add(1, Ordering::SeqCst);
        let its = shared.clone();
        threads.push(thread::spawn(move || {
            // An error only ends the connection.
            let _ = serve(client, &its);
            its.open_count.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a connection's thread does not panic"));
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn serve(client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(LOOK))?;
    client.set_write_timeout(Some(LOOK))?;
    let mut master = TcpStream::connect(shared.target)?;
    master.set_read_timeout(Some(LOOK))?;
    let mut client: Box<dyn Stream> = match &shared.tls {
        Some(config) => {
            let session = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
            Box::new(StreamOwned::new(session, client))
        }
        None => Box::new(client),
    };
    let mut bytes = vec![0; 64 * 1024];
    while !shared.is_over.load(Ordering::SeqCst) {
        match read(&mut client, &mut bytes)? {
            Some(0) => return Ok(()),
            Some(size)
                if !matches!(shared.conduct, Conduct::Late(_)) && has(&bytes[..size], shared.command) =>
            {
                shared.hostile_count.fetch_add(1, Ordering::SeqCst);
                return act(&mut *client, shared);
            }
            Some(size) => master.write_all(&bytes[..size])?,
            None => {}
        }
        if let Some(size @ 1..) = read(&mut master, &mut bytes)? {
            if let Conduct::Late(time) = shared.conduct {
                thread::sleep(time);
            }
            write(&mut *client, &bytes[..size], shared)?;
        }
    }
    Ok(())
}

/// `None` if nothing has arrived.
fn read(stream: &mut (impl Read + ?Sized), bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
    match stream.read(bytes) {
        Ok(size) => Ok(Some(size)),
        Err(error) if is_pause(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes all bytes, unless the test is over, and counts the bytes taken.
fn write(stream: &mut dyn Stream, bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() && !shared.is_over.load(Ordering::SeqCst) {
        match stream.write(rest) {
            Ok(size) => rest = &rest[size..],
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
        match stream.flush() {
            Err(error) if !is_pause(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn has(request: &[u8], command: &[u8]) -> bool {
    command.is_empty() || request.windows(command.len()).any(|part| part == command)
}

fn act(client: &mut dyn Stream, shared: &Shared) -> std::io::Result<()> {
    let say = |bytes: &[u8], client: &mut dyn Stream| {
        write(client, bytes, shared)?;
        shared.taken_size.fetch_add(bytes.len(), Ordering::SeqCst);
        Ok::<(), std::io::Error>(())
    };
    match shared.conduct {
        Conduct::Endless(first, again) => {
            say(first, client)?;
            let piece = again.repeat(PIECE_SIZE / again.len());
            while !shared.is_over.load(Ordering::SeqCst) {
                say(&piece, client)?;
            }
        }
        Conduct::Drip(first, again) => {
            for byte in first.iter().chain(again.iter().cycle()) {
                if shared.is_over.load(Ordering::SeqCst) {
                    break;
                }
                say(&[*byte], client)?;
                thread::sleep(LOOK);
            }
        }
        Conduct::Say(bytes) => {
            say(bytes, client)?;
            // Until the client closes.
            while !shared.is_over.load(Ordering::SeqCst) {
                if read(client, &mut [0; 1024])? == Some(0) {
                    break;
                }
            }
        }
        Conduct::Close(bytes) => say(bytes, client)?,
        Conduct::Late(_) => unreachable!("it goes on as a proxy"),
    }
    Ok(())
}
