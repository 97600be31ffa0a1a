//! One connection as the driver sees it: a plain socket, or TLS over a socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::{Registry, Token};

use super::ConnectError;
use super::socket::{Received, Socket};
#[cfg(feature = "tls")]
use super::tls::{TlsMaster, TlsSocket};
use crate::config::Config;
use crate::lock::MasterId;

/// A connection, or an attempt to open one.
#[derive(Debug)]
pub(super) enum Channel {
    Plain {
        socket: Socket,
        /// Whether the peer has sent anything.
        has_received: bool,
    },
    #[cfg(feature = "tls")]
    Tls(Box<TlsSocket>),
}

/// Opens connections to each master.
#[derive(Debug)]
pub(super) struct Channels {
    /// By [`MasterId::index`]; `None` for a master without TLS.
    #[cfg(feature = "tls")]
    tls: Vec<Option<TlsMaster>>,
}

impl Channels {
    /// Reads the certificates, if any master uses TLS.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unnecessary_wraps, reason = "TLS can fail"))]
    pub(super) fn new(config: &Config) -> Result<Self, ConnectError> {
        #[cfg(not(feature = "tls"))]
        let _ = config;
        Ok(Self {
            #[cfg(feature = "tls")]
            tls: super::tls::masters(config)?,
        })
    }

    /// Wraps a connecting socket. Never falls back to plaintext.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "TLS needs it"))]
    pub(super) fn open(&self, master: MasterId, socket: Socket) -> io::Result<Channel> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls[master.index()] {
            return Ok(Channel::Tls(Box::new(tls.connect(socket)?)));
        }
        #[cfg(not(feature = "tls"))]
        let _ = master;
        Ok(Channel::plain(socket))
    }
}

impl Channel {
    pub(super) const fn plain(socket: Socket) -> Self {
        Self::Plain { socket, has_received: false }
    }

    pub(super) const fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }

    /// The peer's address; `None` over a Unix socket.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain { socket, .. } => socket.peer(),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.peer(),
        }
    }

    /// Whether the connection is, or was, open.
    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Plain { socket, .. } => socket.is_connected(),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.is_connected(),
        }
    }

    /// Whether a peer has accepted the connection; the TLS handshake may still be missing.
    pub(super) const fn is_accepted(&self) -> bool {
        match self {
            Self::Plain { socket, .. } => socket.is_connected(),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.is_accepted(),
        }
    }

    pub(super) fn register_anew(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Plain { socket, .. } => socket.register_anew(registry, token),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.register_anew(registry, token),
        }
    }

    /// Expiry of the peer's certificate, since the Unix epoch; `None` without TLS.
    pub(super) fn certificate_end(&self) -> Option<Duration> {
        match self {
            Self::Plain { .. } => None,
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.certificate_end(),
        }
    }

    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        match self {
            Self::Plain { socket, .. } => socket.is_writable(),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.is_writable(),
        }
    }

    /// Notes that the socket is writable. Returns true when this opens a plain connection.
    #[inline]
    pub(super) fn handle_writable(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain { socket, .. } => socket.handle_writable(),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.handle_writable().map(|()| false),
        }
    }

    /// Writes. Fewer bytes than given mean that the socket accepts no more for now.
    #[inline]
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain { socket, .. } => socket.send(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.send(bytes),
        }
    }

    /// Reads as many arrived bytes as fit.
    #[inline]
    pub(super) fn recv(&mut self, space: &mut [u8]) -> io::Result<Received> {
        match self {
            Self::Plain { socket, has_received } => {
                let received = socket.recv(space);
                if *has_received || !socket.is_connected() {
                    received
                } else {
                    first_reply(received, space, socket.is_unix(), has_received)
                }
            }
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.recv(space),
        }
    }
}

/// Checks the first bytes from a plaintext peer, or its end: the peer may speak TLS, unless it is a Unix
/// socket.
#[cold]
fn first_reply(
    received: io::Result<Received>,
    space: &[u8],
    is_unix: bool,
    has_received: &mut bool,
) -> io::Result<Received> {
    *has_received = matches!(received, Ok(Received::Bytes { .. }));
    match received {
        Ok(Received::End) if is_unix => Err(io::Error::other(NoPlaintext::EndOfUnix)),
        received if is_unix => received,
        Ok(Received::Bytes { .. }) if space.first() == Some(&TLS_ALERT) => {
            Err(io::Error::other(NoPlaintext::Alert))
        }
        Ok(Received::End) => Err(io::Error::other(NoPlaintext::End)),
        Err(error) => Err(io::Error::other(NoPlaintext::Broken(error))),
        received => received,
    }
}

/// Record type in which a TLS server refuses.
const TLS_ALERT: u8 = 21;

/// Why a peer addressed in plaintext did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlaintext {
    #[error("it answers in TLS; write rediss:// in its URL")]
    Alert,
    #[error("the server closed the connection before its first reply; if it wants TLS, write rediss://")]
    End,
    #[error("{0} before its first reply; if it wants TLS, write rediss://")]
    Broken(io::Error),
    #[error("the server closed the connection before its first reply; read the server's log")]
    EndOfUnix,
}

#[cfg(test)]
mod tests;
