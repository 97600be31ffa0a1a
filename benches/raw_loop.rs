//! The floor for comparisons: a plain loop that sends the same bytes to the same masters.
//!
//! Owns its connections, and prepares all bytes beforehand. It has no state for locks, and panics at any
//! unexpected reply: locks are never contended here, and masters never slow or away.
//!
//! ```text
//!   write SET × depth to each of N ──> read N × depth "+OK\r\n" ──> the same with releases and ":1\r\n"
//! ```
//!
//! One write for each master and phase, one read for each readable event, nothing allocated or encoded in the
//! loop. A phase ends with the last master's replies, or optionally with a quorum's; later replies are still
//! read and checked.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SET_REPLY: &[u8] = b"+OK\r\n";
const RELEASE_REPLY: &[u8] = b":1\r\n";
/// Larger than a phase's replies, so that one read empties the socket.
const READ_SIZE: usize = 64 << 10;
const EVENTS_MAX: usize = 64;

/// The command that deletes the key if it still holds the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// `EVALSHA sha 1 key token`: any server.
    Evalsha,
    /// `DELIFEQ key token`: Valkey 9.
    Delifeq,
}

/// Connections to N masters that have the release script.
pub(crate) struct RawLoop {
    poll: Poll,
    events: Events,
    masters: Vec<Master>,
    /// Number of masters whose replies a phase waits for.
    awaited_count: usize,
    release: Release,
    /// SHA-1 of the release script, as the first master returned it.
    sha: String,
}

struct Master {
    stream: TcpStream,
    /// Bytes of missing replies, including those of earlier phases.
    owed_size: usize,
    /// Position of its next byte in the replies of one acquire and one release phase.
    place: usize,
}

impl RawLoop {
    pub(crate) fn connect(addrs: &[SocketAddr]) -> Self {
        Self::connect_with(addrs, Release::Evalsha)
    }

    pub(crate) fn connect_with(addrs: &[SocketAddr], release: Release) -> Self {
        let poll = Poll::new().expect("the system polls");
        let mut sha = String::new();
        let masters = addrs.iter().enumerate().map(|(index, addr)| {
            let mut stream = std::net::TcpStream::connect(addr).expect("the master listens");
            stream.set_nodelay(true).expect("a TCP socket");
            sha = load_script(&mut stream);
            stream.set_nonblocking(true).expect("a TCP socket");
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(index), Interest::READABLE).expect("a new socket");
            Master { stream, owed_size: 0, place: 0 }
        });
        let masters: Vec<_> = masters.collect();
        let (events, awaited_count) = (Events::with_capacity(EVENTS_MAX), masters.len());
        Self { poll, events, masters, awaited_count, release, sha }
    }

    /// Makes a phase end when a majority of the masters has answered.
    pub(crate) fn decide_at_quorum(mut self) -> Self {
        self.awaited_count = self.masters.len() / 2 + 1;
        self
    }

    /// Acquires and releases `pairs` locks, `depth` at a time, on `keys` keys in turn. Returns the duration.
    ///
    /// `pairs` and `keys` are multiples of `depth`. The bytes are prepared before the time starts.
    pub(crate) fn pairs(&mut self, keys: usize, depth: usize, pairs: usize) -> Duration {
        self.pairs_noting(keys, depth, pairs, |_| {})
    }

    /// Like [`Self::pairs`]; `note` gets the duration of each acquire phase.
    pub(crate) fn pairs_noting(
        &mut self,
        keys: usize,
        depth: usize,
        pairs: usize,
        mut note: impl FnMut(Duration),
    ) -> Duration {
        assert!(depth > 0 && keys >= depth && keys.is_multiple_of(depth) && pairs.is_multiple_of(depth));
        let acquires = Batches::new(keys, depth, set_command);
        let (release, sha) = (self.release, self.sha.as_str());
        let releases = Batches::new(keys, depth, |key, token| release_command(release, sha, key, token));
        let replies = [SET_REPLY.repeat(depth), RELEASE_REPLY.repeat(depth)].concat();
        let acquire_size = SET_REPLY.len() * depth;
        let mut buffer = vec![0; READ_SIZE];

        let begun = Instant::now();
        for batch in (0..keys / depth).cycle().take(pairs / depth) {
            let asked = Instant::now();
            self.phase(acquires.request(batch), acquire_size, &replies, &mut buffer);
            note(asked.elapsed());
            self.phase(releases.request(batch), replies.len() - acquire_size, &replies, &mut buffer);
        }
        let elapsed = begun.elapsed();
        self.wait_for(self.masters.len(), &replies, &mut buffer);
        elapsed
    }

    /// Sends `request` to every master, and waits until enough masters have sent this many bytes and
    /// everything owed.
    fn phase(&mut self, request: &[u8], reply_size: usize, replies: &[u8], buffer: &mut [u8]) {
        for master in &mut self.masters {
            let size = master.stream.write(request).expect("the master is there");
            assert_eq!(size, request.len(), "the socket buffer holds a phase");
            master.owed_size += reply_size;
        }
        self.wait_for(self.awaited_count, replies, buffer);
    }

    /// Reads until this many masters owe nothing. Their bytes must repeat `replies`.
    fn wait_for(&mut self, finished_count: usize, replies: &[u8], buffer: &mut [u8]) {
        let is_finished = |master: &&Master| master.owed_size == 0;
        let mut unfinished_count =
            finished_count.saturating_sub(self.masters.iter().filter(is_finished).count());
        while unfinished_count > 0 {
            if let Err(error) = self.poll.poll(&mut self.events, None) {
                assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
                continue;
            }
            for event in &self.events {
                let master = &mut self.masters[event.token().0];
                let size = master.stream.read(buffer).expect("a readable socket");
                assert!(size > 0 && size <= master.owed_size, "{} too much", buffer[..size].escape_ascii());
                master.owed_size -= size;
                master.check(&buffer[..size], replies);
                if master.owed_size == 0 {
                    unfinished_count = unfinished_count.saturating_sub(1);
                }
            }
        }
    }
}

impl Master {
    /// Checks the next bytes against the replies, which repeat.
    fn check(&mut self, mut bytes: &[u8], replies: &[u8]) {
        while !bytes.is_empty() {
            let expected = &replies[self.place..];
            let size = bytes.len().min(expected.len());
            assert!(
                bytes[..size] == expected[..size],
                "{} instead of {}",
                bytes.escape_ascii(),
                expected.escape_ascii()
            );
            self.place = (self.place + size) % replies.len();
            bytes = &bytes[size..];
        }
    }
}

/// Bytes of all batches of one phase.
struct Batches {
    requests: Vec<Vec<u8>>,
}

impl Batches {
    fn new(keys: usize, depth: usize, command: impl Fn(&str, &str) -> Vec<u8>) -> Self {
        let commands: Vec<Vec<u8>> =
            (0..keys).map(|index| command(&format!("bench:{index}"), &format!("{index:020}"))).collect();
        Self { requests: commands.chunks(depth).map(<[_]>::concat).collect() }
    }

    fn request(&self, batch: usize) -> &[u8] {
        &self.requests[batch]
    }
}

fn set_command(key: &str, token: &str) -> Vec<u8> {
    resp(&["SET", key, token, "NX", "PX", "10000"])
}

fn release_command(release: Release, sha: &str, key: &str, token: &str) -> Vec<u8> {
    match release {
        Release::Evalsha => resp(&["EVALSHA", sha, "1", key, token]),
        Release::Delifeq => resp(&["DELIFEQ", key, token]),
    }
}

fn resp(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    for arg in args {
        bytes.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    bytes.into_bytes()
}

/// Runs before the stream becomes non-blocking. Returns the script's SHA-1.
fn load_script(stream: &mut std::net::TcpStream) -> String {
    // The script with which `redlatch` releases short, uncontended holds.
    let script = redlatch::scripts::SCRIPTS.iter().find(|script| script.name == "release");
    let text = script.expect("a script of this name").text;
    stream.write_all(&resp(&["SCRIPT", "LOAD", text])).expect("the master is there");
    let mut reply = [0; 47]; // $40, the SHA-1 in hexadecimal, and both line ends
    stream.read_exact(&mut reply).expect("the master answers");
    let sha = reply.strip_prefix(b"$40\r\n").expect("a bulk string of 40 bytes");
    String::from_utf8_lossy(&sha[..40]).into_owned()
}
