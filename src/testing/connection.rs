//! A connection of a test to one server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Reply;
use redlatch::probe::Probe;

/// A test's blocking connection to one server, for looking at keys or configuring the server.
#[derive(Debug)]
pub struct Connection(Probe);

impl Connection {
    /// Connects. The limit holds for connecting, and for each command.
    ///
    /// # Errors
    /// If the connection is not accepted in time.
    pub fn open(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        Probe::plain(addr, limit).map(Self).map_err(io::Error::other)
    }

    /// Sends one command and reads its reply. An error reply is [`Reply::Error`].
    ///
    /// # Errors
    /// If the connection fails, or the server does not answer in time. The connection is unusable afterwards.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        Ok(self.0.exchange(&[args]).map_err(io::Error::other)?.remove(0))
    }

    /// Sends one command without reading the reply. The connection is unusable for other commands afterwards.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        self.0.send(&[args]);
        self.0.write_error.take().map_or(Ok(()), Err)
    }
}
