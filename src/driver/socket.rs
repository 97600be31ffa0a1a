//! One non-blocking stream, TCP or Unix, registered for edge-triggered events.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};

/// A connection, or an attempt to open one.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    is_connected: bool,
    /// Whether a write may succeed. A short write clears it until the kernel reports the socket writable.
    is_writable: bool,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(super) enum Received {
    /// Number of bytes, and whether more may have arrived. If not, the next byte raises a new event.
    Bytes {
        size: usize,
        has_more: bool,
    },
    /// The connection is now open, and may hold bytes. Returned only by connections with their own handshake.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "TLS has a handshake"))]
    Connected,
    Nothing,
    End,
}

const INTEREST: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// Idle time before the first keepalive probe, and between probes.
const KEEPALIVE: Duration = Duration::from_secs(5);

impl Socket {
    /// Starts to connect. Disables Nagle's algorithm; on Linux the kernel drops a peer that acknowledges
    /// nothing for [`SILENCE_MAX`](crate::limits::SILENCE_MAX).
    pub(super) fn tcp(address: SocketAddr, registry: &Registry, token: Token) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(crate::limits::SILENCE_MAX))?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if is_under_way(&error) => {}
            Err(error) => return Err(error),
        }
        let mut stream = TcpStream::from_std(socket.into());
        registry.register(&mut stream, token, INTEREST)?;
        Ok(Self { stream: Stream::Tcp(stream), is_connected: false, is_writable: false })
    }

    pub(super) fn unix(path: &Path, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        registry.register(&mut stream, token, INTEREST)?;
        Ok(Self { stream: Stream::Unix(stream), is_connected: false, is_writable: false })
    }

    /// Changes the token of the events, and raises past events again.
    pub(super) fn register_anew(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => registry.reregister(stream, token, INTEREST),
            Stream::Unix(stream) => registry.reregister(stream, token, INTEREST),
        }
    }

    pub(super) const fn is_unix(&self) -> bool {
        matches!(self.stream, Stream::Unix(_))
    }

    /// The peer's address; `None` over a Unix socket.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr().ok(),
            Stream::Unix(_) => None,
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    pub(super) const fn is_writable(&self) -> bool {
        self.is_connected && self.is_writable
    }

    /// Notes that the socket is writable. Returns true when this opens the connection.
    #[inline]
    pub(super) fn handle_writable(&mut self) -> io::Result<bool> {
        self.is_writable = true;
        if self.is_connected { Ok(false) } else { self.finish_connecting() }
    }

    #[cold]
    fn finish_connecting(&mut self) -> io::Result<bool> {
        let (error, peer) = match &self.stream {
            Stream::Tcp(stream) => (SockRef::from(stream).take_error()?, SockRef::from(stream).peer_addr()),
            Stream::Unix(stream) => (SockRef::from(stream).take_error()?, SockRef::from(stream).peer_addr()),
        };
        if let Some(error) = error {
            return Err(error);
        }
        match peer {
            Ok(_) => {
                self.is_connected = true;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    // `send` and `recv` are inlined where the driver has no TLS between: calls cost 2 % of a pair's
    // instructions.

    /// Writes once. Fewer bytes than given mean that the socket accepts no more for now.
    #[inline(always)]
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = match &mut self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        };
        match result {
            Ok(size) => {
                self.is_writable = size == bytes.len();
                Ok(size)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_writable = false;
                Ok(0)
            }
            // The bytes stay queued for the next turn.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Reads once, and again after a signal.
    #[inline(always)]
    pub(super) fn recv(&mut self, space: &mut [u8]) -> io::Result<Received> {
        loop {
            let result = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(space),
                Stream::Unix(stream) => stream.read(space),
            };
            return match result {
                Ok(0) => Ok(Received::End),
                // A short read emptied the socket.
                Ok(size) => Ok(Received::Bytes { size, has_more: size == space.len() }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }
}

/// Whether a non-blocking connect is in progress.
fn is_under_way(error: &io::Error) -> bool {
    // EINPROGRESS on Linux (115), BSD and macOS (36); std has no stable kind for it.
    error.kind() == io::ErrorKind::WouldBlock || matches!(error.raw_os_error(), Some(115 | 36))
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use mio::Poll;

    use super::*;

    /// An open connection, its peer, and the poller that watches it.
    fn connected() -> (Socket, TcpStream, Poll) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let poll = Poll::new().expect("a poller");
        let address = listener.local_addr().expect("bound");
        let mut socket = Socket::tcp(address, poll.registry(), Token(0)).expect("it connects");
        let (peer, _) = listener.accept().expect("it connects");
        while !socket.handle_writable().expect("it connects") {}
        (socket, peer, poll)
    }

    #[test]
    fn a_connection_has_its_options() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let poll = Poll::new().expect("a poller");
        let address = listener.local_addr().expect("bound");
        let socket = Socket::tcp(address, poll.registry(), Token(0)).expect("it connects");
        let Stream::Tcp(stream) = &socket.stream else { panic!("it is TCP") };
        let options = SockRef::from(stream);
        assert!(options.tcp_nodelay().expect("an option") && options.keepalive().expect("an option"));
        #[cfg(target_os = "linux")]
        {
            assert!(options.nonblocking().expect("an option"));
            assert_eq!(options.tcp_keepalive_time().expect("an option"), KEEPALIVE);
            assert_eq!(options.tcp_keepalive_interval().expect("an option"), KEEPALIVE);
            let silence = options.tcp_user_timeout().expect("an option");
            assert_eq!(silence, Some(crate::limits::SILENCE_MAX));
        }
    }

    /// The address of a listener that accepts no more connections, and the sockets that keep it full.
    pub(in crate::driver) fn full() -> (SocketAddr, Vec<socket2::Socket>) {
        let new = || socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = new();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
        listener.listen(0).expect("it listens");
        let address = listener.local_addr().expect("bound");
        // Nobody accepts, so the listener's queue fills up.
        let waiting = [(); 4].map(|()| {
            let other = new();
            other.set_nonblocking(true).expect("a socket option");
            let _ = other.connect(&address);
            other
        });
        (address.as_socket().expect("an address"), [listener].into_iter().chain(waiting).collect())
    }

    #[test]
    fn a_connection_under_way_does_not_stand_yet() {
        let (address, _full) = full();
        let poll = Poll::new().expect("a poller");
        let mut socket = Socket::tcp(address, poll.registry(), Token(0)).expect("it is under way");
        assert!(!socket.handle_writable().expect("nothing has failed"), "nobody has answered");
    }

    #[test]
    fn a_connection_that_was_reset_takes_nothing() {
        let (mut socket, peer, _poll) = connected();
        SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).expect("a socket option");
        drop(peer);
        // The reset may still be on its way.
        for _ in 0..1000 {
            if socket.send(b"x").is_err() {
                return;
            }
            std::thread::yield_now();
        }
        panic!("it takes bytes for ever");
    }

    #[test]
    fn a_full_socket_takes_nothing() {
        let (mut socket, _peer, _poll) = connected();
        while socket.is_writable() {
            assert!(socket.send(&[0; 100_000]).expect("it stands") > 0);
        }
        // As if the kernel had reported the socket writable too early.
        assert!(!socket.handle_writable().expect("it stands") && socket.is_writable());
        assert_eq!(socket.send(&[0; 100_000]).expect("it stands"), 0);
        assert!(!socket.is_writable());
        assert!(matches!(socket.recv(&mut [0; 8]), Ok(Received::Nothing)));
    }
}
