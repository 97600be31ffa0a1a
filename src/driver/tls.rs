//! TLS between a socket and the wire: takes the engine's bytes and writes records, and back.
//!
//! ```text
//!  engine ── send ──► session ── write_tls ──► socket
//!  engine ◄── recv ── session ◄─ read_tls ── ciphertext ◄── socket
//! ```
//!
//! A connection is open once its handshake is done; until then the engine's connect timeout runs. An end
//! without the peer's `close_notify` is an error, because bytes may be missing. This side sends none: when a
//! fork of this process dropped its copy, a `close_notify` would end the parent's connection.
//!
//! rustls allocates for each record, in both directions. Everything else is allocated once per connection.

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

/// What all connections to one master share, including TLS sessions for resumption.
pub(super) struct TlsMaster {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// A TLS connection, or an attempt to open one.
pub(super) struct TlsSocket {
    socket: Socket,
    session: ClientConnection,
    /// Buffer for one read of the socket, initialized: reading into uninitialized bytes would need unsafe
    /// code.
    ciphertext: Vec<u8>,
    /// Part of `ciphertext` that the session has not taken yet.
    untaken: Range<usize>,
    /// Whether the last read filled the buffer, so that more may wait.
    is_read_full: bool,
    /// Number of decrypted bytes not yet returned.
    plaintext_size: usize,
    /// Whether the peer's `close_notify` has come.
    has_ended: bool,
    /// Whether the handshake is done, and the driver has learnt so.
    is_established: bool,
    has_client_certificate: bool,
}

impl fmt::Debug for TlsMaster {
    /// Omits keys and certificates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMaster").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsSocket {
    /// Omits bytes and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, is_established, .. } = self;
        let mut shown = f.debug_struct("TlsSocket");
        shown.field("socket", socket).field("is_established", is_established).finish_non_exhaustive()
    }
}

impl TlsMaster {
    /// Starts TLS over a connecting socket.
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

    /// Whether a peer has accepted the underlying connection.
    pub(super) const fn is_accepted(&self) -> bool {
        self.socket.is_connected()
    }

    /// Expiry of the peer's certificate, since the Unix epoch.
    pub(super) fn certificate_end(&self) -> Option<std::time::Duration> {
        expiry::not_after(self.session.peer_certificates()?.first()?)
    }

    /// False while earlier records wait.
    pub(super) fn is_writable(&self) -> bool {
        self.is_established && self.socket.is_writable() && !self.session.wants_write()
    }

    /// The socket is writable: writes waiting records, the handshake's first.
    pub(super) fn handle_writable(&mut self) -> io::Result<()> {
        self.socket.handle_writable()?;
        self.write_records()
    }

    /// Encrypts, then writes once, or more often if the session cannot take all bytes at once.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut size = 0;
        loop {
            size += self.session.writer().write(&bytes[size..])?;
            self.write_records()?;
            // Remaining records wait for the next event, and hold back further bytes.
            if size == bytes.len() || self.session.wants_write() {
                return Ok(size);
            }
        }
    }

    /// Returns decrypted bytes; reads the socket only if there are none. Records without data, such as
    /// session tickets, count as a read of no bytes, so that a peer that sends them without end cannot hold a
    /// caller beyond its time limit.
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
                        // The session knows whether the peer sent `close_notify`.
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

    /// Accounts for bytes returned to the caller.
    const fn received(&mut self, size: usize) -> Received {
        self.plaintext_size = self.plaintext_size.saturating_sub(size);
        let has_more = self.plaintext_size > 0
            || self.has_ended
            || self.untaken.start < self.untaken.end
            || self.is_read_full;
        Received::Bytes { size, has_more }
    }

    /// Reads once; all earlier bytes must have been taken.
    fn read_socket(&mut self) -> io::Result<Received> {
        let received = self.socket.recv(&mut self.ciphertext)?;
        if let Received::Bytes { size, has_more } = received {
            (self.untaken, self.is_read_full) = (0..size, has_more);
        }
        Ok(received)
    }

    /// Passes records to the session. An error ends the connection, and the peer gets an alert.
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

    /// Writes waiting records: the handshake's, the engine's, a key update.
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

    /// The alert of a peer that accepts no more bytes, if it has arrived.
    #[cold]
    fn why_refused(&mut self) -> Option<io::Error> {
        // An alert is short. Earlier data was in flight when the peer ended the connection.
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

/// Number of reads that look for an alert.
const LAST_WORDS_READ_COUNT: usize = 64;

/// The socket as rustls writes to it: record by record, because `writev` could raise `SIGPIPE`.
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
