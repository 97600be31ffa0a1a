//! TLS between a socket and the wire: bytes of the engine in, records out, and back.
//!
//! ```text
//!  engine ── send ──► session ── write_tls ──► socket
//!  engine ◄── recv ── session ◄─ read_tls ── ciphertext ◄── socket
//! ```
//!
//! A connection stands when its handshake is done; until then the engine's time limit for connecting runs. An
//! end without the peer's `close_notify` is an error, as bytes may be missing. None is sent at the own end: a
//! fork of this process that drops its copy would end the connection of its parent.
//!
//! rustls allocates for each record, in both directions. Everything else is allocated once for a connection.

mod expiry;
mod setup;
mod trouble;

use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use mio::{Registry, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::socket::{Received, Socket};
use crate::limits;
pub use setup::TlsError;
pub(super) use setup::masters;
use trouble::Stage;
pub(crate) use trouble::TlsTrouble;

/// The part that all connections to one master share, its sessions included.
pub(super) struct TlsMaster {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// A connection over TLS, or an attempt at one.
pub(super) struct TlsSocket {
    socket: Socket,
    session: ClientConnection,
    /// Room for one read of the socket, all of it in use from the start: bytes that were never written could
    /// be read into with unsafe code only.
    ciphertext: Vec<u8>,
    /// The part of `ciphertext` that the session has not taken yet.
    untaken: Range<usize>,
    /// Whether the last read of the socket filled its room, so that more may wait.
    is_read_full: bool,
    /// Decrypted bytes that were not handed out yet.
    plaintext_size: usize,
    /// Whether the peer's `close_notify` has come.
    has_ended: bool,
    /// Whether the handshake is done, and the driver knows.
    is_established: bool,
    has_client_certificate: bool,
}

impl fmt::Debug for TlsMaster {
    /// Without keys and certificates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMaster").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsSocket {
    /// Without bytes and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, is_established, .. } = self;
        let mut shown = f.debug_struct("TlsSocket");
        shown.field("socket", socket).field("is_established", is_established).finish_non_exhaustive()
    }
}

impl TlsMaster {
    /// TLS over a socket that connects.
    pub(super) fn connect(&self, socket: Socket) -> io::Result<TlsSocket> {
        let session = ClientConnection::new(self.config.clone(), self.server_name.clone());
        Ok(TlsSocket {
            socket,
            session: session.map_err(io::Error::other)?,
            ciphertext: vec![0; limits::READ_SIZE],
            untaken: 0..0,
            is_read_full: false,
            plaintext_size: 0,
            has_ended: false,
            is_established: false,
            has_client_certificate: self.config.client_auth_cert_resolver.has_certs(),
        })
    }
}

impl TlsSocket {
    pub(super) const fn is_connected(&self) -> bool {
        self.is_established
    }

    pub(super) fn peer(&self) -> Option<std::net::SocketAddr> {
        self.socket.peer()
    }

    pub(super) fn register_anew(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.register_anew(registry, token)
    }

    /// Whether a peer has accepted the connection below.
    pub(super) const fn is_accepted(&self) -> bool {
        self.socket.is_connected()
    }

    /// The end of the validity of the peer's certificate, as a time since the Unix epoch.
    pub(super) fn certificate_end(&self) -> Option<std::time::Duration> {
        expiry::not_after(self.session.peer_certificates()?.first()?)
    }

    /// Whether the engine's bytes can be written now: not while earlier records wait.
    pub(super) fn is_writable(&self) -> bool {
        self.is_established && self.socket.is_writable() && !self.session.wants_write()
    }

    /// The kernel says that writing may succeed: records that wait go out, the handshake's first.
    pub(super) fn handle_writable(&mut self) -> io::Result<()> {
        self.socket.handle_writable()?;
        self.write_records()
    }

    /// Encrypts, and writes once unless there is more than the session takes at a time.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut size = 0;
        loop {
            size += self.session.writer().write(&bytes[size..])?;
            self.write_records()?;
            // Records that are left wait for the next event, and hold back further bytes.
            if size == bytes.len() || self.session.wants_write() {
                return Ok(size);
            }
        }
    }

    /// Hands out what the session has decrypted; reads the socket only if there is nothing. Records without
    /// data, such as session tickets, count as a read of no bytes: a peer that sends them without end must
    /// not keep a caller that has a time limit.
    pub(super) fn recv(&mut self, space: &mut [u8]) -> io::Result<Received> {
        loop {
            if self.is_established {
                match self.session.reader().read(space) {
                    Ok(0) => return Ok(Received::End),
                    Ok(size) => return Ok(self.received(size)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Err(TlsTrouble::Truncated.into()),
                }
            } else if !self.session.is_handshaking() {
                self.is_established = true;
                return Ok(Received::Connected);
            }
            if self.untaken.is_empty() {
                match self.read_socket() {
                    Ok(Received::Bytes { .. }) => {}
                    Ok(Received::End) if self.is_established => {
                        // The session knows whether the peer said so before.
                        self.session.read_tls(&mut io::empty())?;
                        continue;
                    }
                    Ok(Received::End) => return Err(TlsTrouble::ClosedInHandshake.into()),
                    Ok(Received::Nothing | Received::Connected) => return Ok(Received::Nothing),
                    Err(error) if self.is_established => return Err(error),
                    Err(error) => return Err(TlsTrouble::BrokenInHandshake(error).into()),
                }
            }
            self.take_records()?;
            self.write_records()?;
            if self.is_established && self.plaintext_size == 0 && !self.has_ended {
                return Ok(Received::Bytes { size: 0, has_more: true });
            }
        }
    }

    /// So many bytes were handed out.
    const fn received(&mut self, size: usize) -> Received {
        self.plaintext_size = self.plaintext_size.saturating_sub(size);
        let has_more = self.plaintext_size > 0
            || self.has_ended
            || self.untaken.start < self.untaken.end
            || self.is_read_full;
        Received::Bytes { size, has_more }
    }

    /// Reads once, when all that was read before is taken.
    fn read_socket(&mut self) -> io::Result<Received> {
        let received = self.socket.recv(&mut self.ciphertext)?;
        if let Received::Bytes { size, has_more } = received {
            (self.untaken, self.is_read_full) = (0..size, has_more);
        }
        Ok(received)
    }

    /// Gives the session records of what was read. An error ends the connection, and the peer learns why.
    fn take_records(&mut self) -> io::Result<()> {
        self.untaken.start += self.session.read_tls(&mut &self.ciphertext[self.untaken.clone()])?;
        match self.session.process_new_packets() {
            Ok(state) => {
                self.plaintext_size = state.plaintext_bytes_to_read();
                self.has_ended = state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                while self.session.wants_write()
                    && self.socket.is_writable()
                    && self.session.write_tls(&mut Records(&mut self.socket)).is_ok()
                {}
                Err(TlsTrouble::new(&error, self.stage(), self.has_client_certificate).into())
            }
        }
    }

    fn stage(&self) -> Stage {
        match self.session.negotiated_cipher_suite() {
            _ if self.is_established => Stage::Established,
            Some(_) => Stage::Agreed,
            None => Stage::Hello,
        }
    }

    /// Writes the records that wait: the handshake's, the engine's, a new key.
    fn write_records(&mut self) -> io::Result<()> {
        while self.session.wants_write() && self.socket.is_writable() {
            if let Err(error) = self.session.write_tls(&mut Records(&mut self.socket)) {
                let error =
                    if self.is_established { error } else { TlsTrouble::BrokenInHandshake(error).into() };
                return Err(self.why_refused().unwrap_or(error));
            }
        }
        Ok(())
    }

    /// The last words of a peer that takes no more, if they have arrived.
    #[cold]
    fn why_refused(&mut self) -> Option<io::Error> {
        // An alert is short; what comes before it was on its way when the peer ended the connection.
        let mut rest = [0; 512];
        for _ in 0..LAST_WORDS_READ_COUNT {
            while self.session.reader().read(&mut rest).is_ok_and(|size| size > 0) {}
            if self.has_ended {
                return None;
            }
            if self.untaken.is_empty() && !matches!(self.read_socket(), Ok(Received::Bytes { .. })) {
                return None;
            }
            if let Err(error) = self.take_records() {
                return Some(error);
            }
        }
        None
    }
}

/// Reads that look for an alert.
const LAST_WORDS_READ_COUNT: usize = 64;

/// A socket as rustls writes to it: record by record, as `writev` could raise `SIGPIPE`.
struct Records<'a>(&'a mut Socket);

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
