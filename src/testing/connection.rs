//! A plain RESP2 connection. It shares no code with the rest of the crate, so that a test which looks at a
//! server sees no mistake of the client twice.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A blocking connection of a test to one server: to look at its keys, or to configure it.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects. The limit is that of connecting, and of each read and write.
    ///
    /// # Errors
    /// If nothing accepts the connection in time.
    pub fn open(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends one command and reads its reply. An error reply is [`Reply::Error`].
    ///
    /// # Errors
    /// If the connection fails or the server does not answer in time. The connection is unusable then.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends one command. [`Connection::receive`] reads its reply.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// If the connection fails, the limit passes, or the bytes are no reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(line));
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => {
                let size = usize::try_from(number()?).map_err(|_| malformed(line))?;
                let mut bytes = Vec::new();
                let read = self.0.by_ref().take(size as u64 + 2).read_to_end(&mut bytes)?;
                if read != size + 2 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(size);
                Reply::Bulk(bytes)
            }
            "*" => Reply::Array((0..number()?).map(|_| self.receive()).collect::<io::Result<_>>()?),
            _ => return Err(malformed(line)),
        })
    }
}

/// Reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A simple string, such as `OK`.
    Simple(String),
    /// An error, with its code in front.
    Error(String),
    /// A number.
    Int(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
    /// A null bulk string or a null array.
    Nil,
}

impl Reply {
    /// Returns the reply in words, for assertions: `OK`, `ERR no such key`, `7`, a bulk string, `nil`,
    /// `[a, b]`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Array(items) => {
                format!("[{}]", items.iter().map(Self::text).collect::<Vec<_>>().join(", "))
            }
            Self::Nil => "nil".to_owned(),
        }
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}
