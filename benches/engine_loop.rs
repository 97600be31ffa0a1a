//! The engine without sockets: masters answer everything at once, so only the engine is measured.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{Engine, LinkRequest, MasterId, MasterSet, OpId, Outcome, Request, Resource};
use redlatch::resp::{self, Decoded, Reply};
use redlatch::{AcquireError, Config, Options, Quarantine};

/// Kind of the lock that a pair acquires and releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
    /// Others hold the locks, so attempts are refused.
    Contended,
}

impl Kind {
    /// In the order of the table of `scripts/instructions`.
    pub const ALL: [(&'static str, Self); 5] = [
        ("plain", Self::Plain),
        ("fenced", Self::Fenced),
        ("fair", Self::Fair),
        ("shared", Self::Shared),
        ("contended", Self::Contended),
    ];

    fn options(self) -> Options {
        let options = Options::new().wait(Duration::ZERO);
        match self {
            Self::Plain | Self::Contended => options,
            Self::Fenced => options.fenced(),
            Self::Fair => options.fair(),
            Self::Shared => options.shared(),
        }
    }

    /// A master's answer to an attempt.
    const fn answer(self) -> &'static [u8] {
        match self {
            Self::Plain | Self::Fenced | Self::Shared => b"+OK\r\n",
            Self::Fair => b"*4\r\n:1\r\n:1700000000000000\r\n:1700000000000000\r\n:0\r\n",
            Self::Contended => b"$-1\r\n",
        }
    }
}

/// An engine and its simulated masters.
pub struct EngineLoop {
    kind: Kind,
    engine: Engine,
    now: Instant,
    names: Vec<String>,
    locks: Vec<OpId>,
    masters: Vec<MasterId>,
    /// One reply for each lock in flight.
    answered: Vec<u8>,
    deleted: Vec<u8>,
}

impl EngineLoop {
    /// `depth` locks in flight at once on `master_count` connected masters.
    pub fn new(kind: Kind, master_count: usize, depth: usize) -> Self {
        let urls = (0..master_count).map(|index| format!("redis://m{index}"));
        let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).ask_holder(false);
        let config = config.build().expect("valid");
        let now = Instant::now();
        let mut engine = Engine::new(Arc::new(config), [7; 32], now);
        engine.handle_timeout(now);
        while let Some(request) = engine.poll_link() {
            let LinkRequest::Connect(link) = request else { unreachable!("nothing was connected") };
            let master = link;
            engine.handle_connected(now, master);
            shake_hands(&mut engine, now, master);
        }
        Self {
            kind,
            masters: engine.masters().collect(),
            engine,
            now,
            names: (0..depth).map(|index| format!("bench:{index}")).collect(),
            locks: Vec::with_capacity(depth),
            answered: kind.answer().repeat(depth),
            deleted: b":1\r\n".repeat(depth),
        }
    }

    /// Acquires and releases each lock once, or is refused once.
    pub fn pairs(&mut self) {
        self.pairs_seen(|_| ());
    }

    /// Like [`Self::pairs`]; returns the number of requests to all masters.
    pub fn count_requests(&mut self) -> usize {
        let mut count = 0;
        self.pairs_seen(|mut bytes| {
            while let Ok(Decoded::Complete { size, .. }) = resp::decode(bytes) {
                bytes = &bytes[size..];
                count += 1;
            }
            assert!(bytes.is_empty(), "whole requests");
        });
        count
    }

    /// `see` gets the bytes to each master.
    fn pairs_seen(&mut self, mut see: impl FnMut(&[u8])) {
        self.now += Duration::from_micros(100);
        for name in &self.names {
            let resource = Resource::new(name).expect("valid");
            let request = Request::Acquire { resource, options: self.kind.options(), label: None };
            self.engine.submit(self.now, request).expect("room");
        }
        exchange(&mut self.engine, self.now, &self.masters, &self.answered, &mut see);
        let mut refused_count = 0;
        while let Some((lock, outcome)) = self.engine.poll_outcome() {
            match outcome {
                Outcome::Acquire(Ok(_)) => self.locks.push(lock),
                Outcome::Acquire(Err(AcquireError::Contended(_))) => refused_count += 1,
                other => panic!("{other:?}"),
            }
        }
        let is_refused = self.kind == Kind::Contended;
        assert_eq!(if is_refused { refused_count } else { self.locks.len() }, self.names.len());
        for lock in self.locks.drain(..) {
            self.engine.submit(self.now, Request::Release { lock, awaited: true }).expect("always taken");
        }
        // The refusal is decided before all masters have answered; the others get a release, too.
        exchange(&mut self.engine, self.now, &self.masters, &self.deleted, &mut see);
        let mut released_count = 0;
        while let Some((_, outcome)) = self.engine.poll_outcome() {
            assert!(matches!(outcome, Outcome::Release(Ok(_))));
            released_count += 1;
        }
        assert_eq!(released_count, if is_refused { 0 } else { self.names.len() });
        if let Some((at, _)) = self.engine.next_timeout()
            && at <= self.now
        {
            self.engine.handle_timeout(self.now);
        }
    }
}

/// Each master answers all that it is sent.
fn exchange(
    engine: &mut Engine,
    now: Instant,
    masters: &[MasterId],
    replies: &[u8],
    see: &mut impl FnMut(&[u8]),
) {
    let mut subscribed = Vec::new(); // the first fair lock of a connection does that
    let mut asked = MasterSet::EMPTY;
    for &master in masters {
        let bytes = engine.send_ready(master);
        let size = bytes.len();
        see(bytes);
        if bytes.starts_with(SUBSCRIBE) {
            subscribed.push((master, confirmation(bytes)));
        }
        engine.send_done(master, size);
        if size > 0 {
            asked.insert(master);
        }
    }
    for (master, confirmation) in subscribed {
        receive(engine, now, master, &confirmation);
    }
    for &master in masters.iter().filter(|master| asked.contains(**master)) {
        receive(engine, now, master, replies);
    }
}

const SUBSCRIBE: &[u8] = b"*2\r\n$10\r\nSSUBSCRIBE\r\n";

/// The answer to `SSUBSCRIBE`, and the size of the command, which comes first in `bytes`.
fn confirmation(bytes: &[u8]) -> Vec<u8> {
    let Ok(Decoded::Complete { size, .. }) = resp::decode(bytes) else { unreachable!("whole requests") };
    [b">3\r\n$10\r\nssubscribe\r\n", &bytes[SUBSCRIBE.len()..size], b":1\r\n"].concat()
}

fn receive(engine: &mut Engine, now: Instant, master: MasterId, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let space = engine.recv_space(master);
        let size = space.len().min(bytes.len());
        space[..size].copy_from_slice(&bytes[..size]);
        bytes = &bytes[size..];
        engine.recv_done(now, master, size);
    }
}

/// Answers the handshake: the last command wants its nonce back, and waiters' queues need RESP3, the time and
/// no refusal. Other commands may fail.
fn shake_hands(engine: &mut Engine, now: Instant, master: MasterId) {
    let commands = engine.send_ready(master).to_vec();
    engine.send_done(master, commands.len());
    let (mut at, mut replies) = (0, Vec::new());
    while let Ok(Decoded::Complete { reply: Reply::Array(args), size }) = resp::decode(&commands[at..]) {
        at += size;
        let words: Vec<Reply<'_>> = args.iter().collect();
        match words[..] {
            [Reply::Bulk(b"ECHO"), nonce] => resp::encode_reply(&mut replies, &nonce),
            [Reply::Bulk(b"HELLO"), _] => replies.extend(b"%1\r\n$5\r\nproto\r\n:3\r\n"),
            [Reply::Bulk(b"PUBLISH" | b"SPUBLISH" | b"EXISTS" | b"ZREM" | b"EVALSHA" | b"EVAL"), ..] => {
                replies.extend(b":0\r\n")
            }
            [Reply::Bulk(b"ZRANGEBYSCORE"), ..] => replies.extend(b"*0\r\n"),
            [Reply::Bulk(b"TIME")] => replies.extend(b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"),
            _ => resp::encode_reply(&mut replies, &Reply::Error(b"ERR unknown command")),
        }
    }
    receive(engine, now, master, &replies);
}
