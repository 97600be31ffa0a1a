//! The engine without sockets: masters that grant everything at once, so that what is measured is the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{Engine, LinkRequest, MasterId, OpId, Outcome, Request, Resource};
use redlatch::resp::{self, Decoded, Reply};
use redlatch::{Config, Options, Quarantine};

/// An engine and what stands for its masters.
pub struct EngineLoop {
    engine: Engine,
    now: Instant,
    names: Vec<String>,
    locks: Vec<OpId>,
    masters: Vec<MasterId>,
    /// As many replies as locks are in flight.
    granted: Vec<u8>,
    deleted: Vec<u8>,
}

impl EngineLoop {
    /// `depth` locks in flight at once on `master_count` connected masters.
    pub fn new(master_count: usize, depth: usize) -> Self {
        let urls = (0..master_count).map(|index| format!("redis://m{index}"));
        let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).build().expect("valid");
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
            masters: engine.masters().collect(),
            engine,
            now,
            names: (0..depth).map(|index| format!("bench:{index}")).collect(),
            locks: Vec::with_capacity(depth),
            granted: b"+OK\r\n".repeat(depth),
            deleted: b":1\r\n".repeat(depth),
        }
    }

    /// Acquires and releases each lock once.
    pub fn pairs(&mut self) {
        self.now += Duration::from_micros(100);
        let wait = Duration::ZERO;
        for name in &self.names {
            let resource = Resource::new(name).expect("valid");
            let request = Request::Acquire { resource, options: Options::new().wait(wait), label: None };
            self.engine.submit(self.now, request).expect("room");
        }
        exchange(&mut self.engine, self.now, &self.masters, &self.granted);
        while let Some((lock, outcome)) = self.engine.poll_outcome() {
            assert!(matches!(outcome, Outcome::Acquire(Ok(_))));
            self.locks.push(lock);
        }
        assert_eq!(self.locks.len(), self.names.len());
        for lock in self.locks.drain(..) {
            self.engine.submit(self.now, Request::Release { lock, awaited: true }).expect("always taken");
        }
        exchange(&mut self.engine, self.now, &self.masters, &self.deleted);
        let mut released_count = 0;
        while let Some((_, outcome)) = self.engine.poll_outcome() {
            assert!(matches!(outcome, Outcome::Release(Ok(_))));
            released_count += 1;
        }
        assert_eq!(released_count, self.names.len());
        if let Some((at, _)) = self.engine.next_timeout()
            && at <= self.now
        {
            self.engine.handle_timeout(self.now);
        }
    }
}

fn exchange(engine: &mut Engine, now: Instant, masters: &[MasterId], replies: &[u8]) {
    for &master in masters {
        let size = engine.send_ready(master).len();
        engine.send_done(master, size);
    }
    for &master in masters {
        receive(engine, now, master, replies);
    }
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

/// Answers the handshake as an old server would: the last command wants its nonce back, the others may fail.
fn shake_hands(engine: &mut Engine, now: Instant, master: MasterId) {
    let commands = engine.send_ready(master).to_vec();
    engine.send_done(master, commands.len());
    let (mut at, mut replies) = (0, Vec::new());
    while let Ok(Decoded::Complete { reply: Reply::Array(args), size }) = resp::decode(&commands[at..]) {
        at += size;
        let words: Vec<Reply<'_>> = args.iter().collect();
        match words[..] {
            [Reply::Bulk(b"ECHO"), nonce] => resp::encode_reply(&mut replies, &nonce),
            _ => resp::encode_reply(&mut replies, &Reply::Error(b"ERR unknown command")),
        }
    }
    receive(engine, now, master, &replies);
}
