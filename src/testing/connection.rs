//! A connection of a test to one server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Reply;
use crate::driver::probe::Probe;

/// A blocking connection of a test to one server: to look at its keys, or to configure it.
#[derive(Debug)]
pub struct Connection(Probe);

impl Connection {
    /// Connects. The limit is that of connecting, and of each command.
    ///
    /// # Errors
    /// If nothing accepts the connection in time.
    pub fn open(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        Probe::plain(addr, limit).map(Self).map_err(io::Error::other)
    }

    /// Sends one command and reads its reply. An error reply is [`Reply::Error`].
    ///
    /// # Errors
    /// If the connection fails or the server does not answer in time. The connection is unusable then.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        Ok(self.0.exchange(&[args]).map_err(io::Error::other)?.remove(0))
    }

    /// Sends one command whose reply nobody reads. The connection is of no use for another command then.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        self.0.send(&[args]);
        self.0.write_error.take().map_or(Ok(()), Err)
    }
}
