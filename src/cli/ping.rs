//! The round trip to the masters, measured without redlatch: blocking `PING`s over sockets of the standard
//! library.
//!
//! It is the yardstick for the time that a lock takes. Logs in nowhere: "NOAUTH" comes as fast as "PONG".

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long one master may take to connect, or to answer in full.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest answer that is read: an error line, at most.
const ANSWER_SIZE_MAX: usize = 1024;

/// Medians of what blocking exchanges took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundTrip {
    /// One `PING` to one master and its answer: the median over all masters.
    pub(crate) one: Duration,
    /// One `PING` to each master, all written before the first answer is read, until the last is.
    pub(crate) all: Duration,
}

/// Measures the round trip to these masters (names as the library shows them) for about `time`.
///
/// # Errors
/// Of the first master that cannot be connected or does not answer.
pub(crate) fn measure(names: &[impl AsRef<str>], time: Duration) -> io::Result<RoundTrip> {
    let mut lines = names.iter().map(|name| Line::open(name.as_ref())).collect::<io::Result<Vec<_>>>()?;
    if lines.is_empty() {
        return Err(io::Error::other("no master to ask"));
    }
    let (mut one, mut all) = (Vec::new(), Vec::new());
    let start = Instant::now();
    // The first round warms up the connections and is not counted.
    for round in 0.. {
        for line in &mut lines {
            let asked = Instant::now();
            line.ask()?;
            line.hear()?;
            one.push(asked.elapsed());
        }
        let asked = Instant::now();
        lines.iter_mut().try_for_each(Line::ask)?;
        lines.iter_mut().try_for_each(Line::hear)?;
        all.push(asked.elapsed());
        if round == 0 {
            one.clear();
            all.clear();
        } else if start.elapsed() >= time {
            break;
        }
    }
    Ok(RoundTrip { one: median(one), all: median(all) })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A connection to one master.
struct Line(Box<dyn Stream>);

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Line {
    /// `name` is a URL without login: `redis://host:port[/db]` or `unix:///path`.
    fn open(name: &str) -> io::Result<Self> {
        if let Some(path) = name.strip_prefix("unix://") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(Self(Box::new(stream)));
        }
        let place = name.strip_prefix("redis://").unwrap_or(name);
        let place = place.split_once('/').map_or(place, |(place, _)| place);
        let address = place.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(Box::new(stream)))
    }

    fn ask(&mut self) -> io::Result<()> {
        self.0.write_all(b"*1\r\n$4\r\nPING\r\n")
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut answer = [0; ANSWER_SIZE_MAX];
        let mut size = 0;
        let until = Instant::now() + PATIENCE;
        while !answer[..size].contains(&b'\n') {
            // An answer of one byte after the other is none in time, either.
            if size > 0 && Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.0.read(&mut answer[size..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => size += read,
                // What a read beyond its time limit is called differs by system.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
        // A peer that sends without end would be read for the whole time of the measurement.
        match answer[..size].split_last() {
            Some((b'\n', line)) if !line.contains(&b'\n') => Ok(()),
            _ => Err(io::Error::other("more came than one answer")),
        }
    }
}
