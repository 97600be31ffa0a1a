//! The floor that redlatch is compared with: the same bytes to the same masters by a loop that is no library.
//!
//! Owns its connections and bytes that were all written down beforehand. Keeps nothing about a lock, knows each reply in
//! advance, and panics if another one comes: no lock is ever contended here, no master ever slow or away.
//!
//! ```text
//!   write SET × depth to each of N ──> poll, read until N × depth "+OK\r\n" ──> the same with the release and ":1\r\n"
//! ```
//!
//! One write per master and phase, one read per readable event, nothing allocated or encoded in the loop. Between two
//! phases all masters are idle; `pairs_in_groups` has several groups of locks take turns instead, and so keeps them busy.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SET_REPLY: &[u8] = b"+OK\r\n";
const RELEASE_REPLY: &[u8] = b":1\r\n";
const RELEASE_SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// Larger than the replies of a whole phase, so that one read empties the socket.
const READ_SIZE: usize = 64 << 10;
const EVENTS_MAX: usize = 64;

/// What deletes the key if it still holds the token.
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
    release: Release,
    /// Of the release script, as the first master named it.
    sha: String,
}

struct Master {
    stream: TcpStream,
    /// The phase whose replies come next.
    phase: usize,
    /// Bytes of these replies that have come.
    received_size: usize,
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
            Master { stream, phase: 0, received_size: 0 }
        });
        let masters = masters.collect();
        Self { poll, events: Events::with_capacity(EVENTS_MAX), masters, release, sha }
    }

    /// Acquires and releases `pairs` locks, `depth` at a time, on `keys` keys in turn, and says how long that took.
    ///
    /// `pairs` and `keys` are multiples of `depth`. The bytes are prepared before the time starts.
    pub(crate) fn pairs(&mut self, keys: usize, depth: usize, pairs: usize) -> Duration {
        self.pairs_in_groups(keys, depth, pairs, 1)
    }

    /// The same with the `depth` locks in flight divided into `groups`, each of which waits for its own replies only.
    ///
    /// `keys` and `pairs` are multiples of `depth`, `depth` is one of `groups`, so that no two groups ever share a key.
    pub(crate) fn pairs_in_groups(
        &mut self,
        keys: usize,
        depth: usize,
        pairs: usize,
        groups: usize,
    ) -> Duration {
        assert!(groups > 0 && depth > 0 && keys > 0);
        assert!(depth.is_multiple_of(groups) && keys.is_multiple_of(depth) && pairs.is_multiple_of(depth));
        let (release, sha) = (self.release, self.sha.as_str());
        let batch_size = depth / groups;
        let plan = Plan {
            groups,
            phase_count: 2 * pairs / batch_size,
            acquires: Batches::new(keys, batch_size, SET_REPLY, set_command),
            releases: Batches::new(keys, batch_size, RELEASE_REPLY, |key, token| {
                release_command(release, sha, key, token)
            }),
        };
        let mut answered_counts = vec![0; groups];
        let mut buffer = vec![0; READ_SIZE];
        let begun = Instant::now();
        self.run(&plan, &mut answered_counts, &mut buffer);
        begun.elapsed()
    }

    /// Every master gets the phases in the same order and answers in that order, so its place in its replies is one
    /// number, and phase p is over before phase p + 1 is. Then the same group's next one is due, which is p + groups.
    fn run(&mut self, plan: &Plan, answered_counts: &mut [usize], buffer: &mut [u8]) {
        for master in &mut self.masters {
            (master.phase, master.received_size) = (0, 0);
        }
        for phase in 0..plan.groups.min(plan.phase_count) {
            send(&mut self.masters, plan.request(phase));
        }
        let mut over_count = 0;
        while over_count < plan.phase_count {
            if let Err(error) = self.poll.poll(&mut self.events, None) {
                assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
                continue;
            }
            for event in &self.events {
                let index = event.token().0;
                let size = self.masters[index].stream.read(buffer).expect("a readable socket");
                assert!(size > 0 && size < buffer.len(), "one read empties the socket");
                let mut received = &buffer[..size];
                while !received.is_empty() {
                    let Some(phase) = self.masters[index].take_replies(&mut received, plan) else { break };
                    let answered_count = &mut answered_counts[phase % plan.groups];
                    *answered_count += 1;
                    if *answered_count == self.masters.len() {
                        *answered_count = 0;
                        over_count += 1;
                        if phase + plan.groups < plan.phase_count {
                            send(&mut self.masters, plan.request(phase + plan.groups));
                        }
                    }
                }
            }
        }
    }
}

impl Master {
    /// Takes what belongs to the phase that this master answers now; returns that phase if it is complete.
    fn take_replies(&mut self, received: &mut &[u8], plan: &Plan) -> Option<usize> {
        let expected = &plan.replies(self.phase)[self.received_size..];
        let (taken, rest) = received.split_at(expected.len().min(received.len()));
        assert!(
            expected.starts_with(taken),
            "{} instead of {}",
            taken.escape_ascii(),
            expected.escape_ascii()
        );
        *received = rest;
        self.received_size += taken.len();
        if taken.len() < expected.len() {
            return None;
        }
        self.received_size = 0;
        self.phase += 1;
        Some(self.phase - 1)
    }
}

fn send(masters: &mut [Master], request: &[u8]) {
    for master in masters {
        let size = master.stream.write(request).expect("the master is there");
        assert_eq!(size, request.len(), "the socket buffer holds a phase");
    }
}

/// All phases of a run: `groups` acquires, the `groups` releases of the same keys, `groups` acquires of the next ones…
struct Plan {
    groups: usize,
    phase_count: usize,
    acquires: Batches,
    releases: Batches,
}

impl Plan {
    fn request(&self, phase: usize) -> &[u8] {
        let batch = phase / (2 * self.groups) * self.groups + phase % self.groups;
        let batches = if self.acquires_in(phase) { &self.acquires } else { &self.releases };
        &batches.requests[batch % batches.requests.len()]
    }

    fn replies(&self, phase: usize) -> &[u8] {
        if self.acquires_in(phase) { &self.acquires.replies } else { &self.releases.replies }
    }

    fn acquires_in(&self, phase: usize) -> bool {
        (phase / self.groups).is_multiple_of(2)
    }
}

/// The bytes of every batch of one phase, and the replies that any of them gets.
struct Batches {
    requests: Vec<Vec<u8>>,
    replies: Vec<u8>,
}

impl Batches {
    fn new(keys: usize, size: usize, reply: &[u8], command: impl Fn(&str, &str) -> Vec<u8>) -> Self {
        let commands: Vec<Vec<u8>> =
            (0..keys).map(|index| command(&format!("bench:{index}"), &format!("{index:020}"))).collect();
        Self { requests: commands.chunks(size).map(<[_]>::concat).collect(), replies: reply.repeat(size) }
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

/// Before the stream is non-blocking. Returns the script's SHA-1.
fn load_script(stream: &mut std::net::TcpStream) -> String {
    stream.write_all(&resp(&["SCRIPT", "LOAD", RELEASE_SCRIPT])).expect("the master is there");
    let mut reply = [0; 47]; // $40, the SHA-1 in hexadecimal, and both line ends
    stream.read_exact(&mut reply).expect("the master answers");
    let sha = reply.strip_prefix(b"$40\r\n").expect("a bulk string of 40 bytes");
    String::from_utf8_lossy(&sha[..40]).into_owned()
}
