//! What must hold for the engine under any sequence of calls that its documentation allows.
//!
//! Input bytes, from a fuzzer or at random, become operations of callers, masters, network and clock around
//! one engine. Shared by the fuzz target beside this file and by `tests/engine_ops.rs`.

#[path = "engine_callers.rs"]
mod callers;
#[path = "engine_extras.rs"]
mod extras;
#[path = "engine_net.rs"]
mod net;
#[path = "engine_words.rs"]
mod words;

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use callers::Lock;
use extras::Query;
use net::{Peer, Token, TokenLog};
use redlatch::engine::{Engine, LinkRequest, MasterId, OpId};
use redlatch::status::MasterState;
use redlatch::{Config, Quarantine, limits};
use redlatch_testing::model::{self, Dialect, ModelMaster};
use words::{ERRORS, REPLIES};

/// Operations of one run; the rest of the input is ignored.
const STEP_COUNT_MAX: usize = 120;
/// Locks of one run.
const LOCK_COUNT_MAX: usize = 16;
/// Consecutive wake-ups; no run needs as many.
const WAKE_COUNT_MAX: usize = 20_000;

const MAX_TTL: Duration = Duration::from_secs(2);
const MAX_HOLD: Duration = Duration::from_secs(3);

/// The property: nothing panics, every checked invariant holds, and the same input gives the same history
/// again. Returns the number of masters' messages that counted.
pub fn engine_keeps_its_promises(input: &[u8]) -> u64 {
    let start = Instant::now();
    let (first, woken_count) = Run::new(input, start).play();
    // Only for every fourth input, to save time.
    if first.is_multiple_of(4) {
        let (second, _) = Run::new(input, start).play();
        assert_eq!(second, first, "one seed, two histories");
    }
    woken_count
}

/// The input as numbers, followed by zeros.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first)
    }
}

struct Run<'a> {
    source: Source<'a>,
    engine: Engine,
    now: Instant,
    peers: Vec<Peer>,
    /// All locks ever submitted.
    locks: Vec<Lock>,
    by_id: HashMap<OpId, usize>,
    tokens: HashMap<Token, TokenLog>,
    queries: Vec<Query>,
    /// Names whose lock was deleted by force, so that exclusion is no longer promised.
    broken_names: BTreeSet<&'static str>,
    history: DefaultHasher,
    /// Whether masters only said true things, and lost keys only where that is allowed.
    is_honest: bool,
    /// Whether requests to close a connection are carried out at once.
    is_prompt: bool,
    trusts: bool,
    /// Whether all requests are counted before their connection may end. Otherwise they may stay gathered.
    is_watchful: bool,
    /// How the run ends.
    end: usize,
    quorum: usize,
    restart_count: usize,
    /// Number of times that outcomes were fetched.
    step_number: u64,
}

/// What the network does between operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Up,
    /// Connections stand, but no bytes move.
    Mute,
    Down,
}

fn id(index: usize) -> MasterId {
    MasterId::new(index).expect("below the limit")
}

impl<'a> Run<'a> {
    fn new(input: &'a [u8], start: Instant) -> Self {
        let mut source = Source(input);
        let (shape, traits, ages, end) = (source.byte(), source.byte(), source.byte(), source.byte());
        let count = 1 + shape % 5;
        let trusts = traits & 1 != 0;
        let now = start + Duration::from_secs(3600);
        let mut builder = Config::builder()
            .masters((0..count).map(|index| format!("redis://m{index}")))
            .max_ttl(MAX_TTL)
            .max_hold(MAX_HOLD)
            .ask_holder(traits & 2 != 0)
            .wake_waiters(ages & 32 != 0)
            .quarantine(if trusts { Quarantine::Trust } else { Quarantine::Uptime });
        match traits >> 2 & 3 {
            0 | 1 => {}
            2 => builder = builder.answer_timeout(Duration::from_millis(1)),
            _ => builder = builder.answer_timeout(Duration::from_secs(1)),
        }
        if traits & 16 != 0 {
            builder = builder.retry_delay(Duration::ZERO..=Duration::from_millis(20));
        }
        let config = Arc::new(builder.build().expect("valid settings"));
        let peers = (0..count).map(|index| {
            let is_young = ages >> index & 1 != 0;
            let mut model = ModelMaster::new(&format!("run{index}"), start);
            if shape >> (3 + index) & 1 != 0 {
                model.dialect = [Dialect::Valkey9, Dialect::Redis8][index % 2];
            }
            if is_young {
                model.restart(&format!("young{index}"), now);
            }
            Peer::new(model)
        });
        let mut run = Self {
            source,
            engine: Engine::new(config, [7; 32], now),
            now,
            peers: peers.collect(),
            locks: Vec::new(),
            by_id: HashMap::new(),
            tokens: HashMap::new(),
            queries: Vec::new(),
            broken_names: BTreeSet::new(),
            history: DefaultHasher::new(),
            is_honest: true,
            is_prompt: traits & 32 == 0,
            trusts,
            is_watchful: traits & 128 != 0,
            end,
            quorum: count / 2 + 1,
            restart_count: 0,
            step_number: 1,
        };
        if traits & 64 == 0 {
            run.handle_timeout();
            run.pump_all();
        }
        run
    }

    /// Plays the whole input, and then until everything has ended. Returns a hash of everything seen, and the
    /// number of messages that counted.
    fn play(mut self) -> (u64, u64) {
        for _ in 0..STEP_COUNT_MAX {
            if self.source.0.is_empty() {
                break;
            }
            self.step();
            self.settle_step();
        }
        self.finish();
        (self.history.finish(), self.engine.woken_count())
    }

    fn step(&mut self) {
        let op = self.source.byte();
        let index = (op >> 5) % self.peers.len();
        match op % 32 {
            0..=3 => self.acquire(op >> 5),
            4 | 5 => self.extend(),
            6..=8 => self.release(),
            9..=11 => self.pass_time(op >> 5),
            12 => self.handle_timeout(),
            13 => self.follow_links(),
            14 => self.connect(index),
            15 => self.disconnect(index),
            16 | 17 => self.send(index),
            18 => self.peers[index].carry_out(self.now),
            19 | 20 => self.deliver(index),
            21 => self.answer_for_it(index),
            22 => self.receive_canned(index),
            23 => self.receive_raw(index),
            24 | 25 => self.pump(index),
            26 | 27 => self.pump_all(),
            28 => self.change_master(index),
            29 => self.peers[index].carry_out_late(self.now),
            30 if op >= 128 => self.run_query(),
            30 => self.nothing_is_no_message(index),
            _ if op >= 128 => self.do_with_messages(index),
            _ => self.call_connected_again(index),
        }
    }

    // ---- clock ----

    fn pass_time(&mut self, kind: usize) {
        let next = self.engine.next_timeout().map_or(self.now, |(at, _)| at.max(self.now));
        let ms = Duration::from_millis;
        let amount = self.source.byte();
        self.now = match kind {
            0 => next,
            1 => next.checked_sub(Duration::from_nanos(1)).unwrap_or(next).max(self.now),
            2 => self.now + Duration::from_nanos(amount as u64),
            3 => self.now + ms(amount as u64),
            4 => self.now + ms(1),
            5 => self.now + ms(50),
            6 => self.now + ms(20 * amount as u64),
            _ => self.now,
        };
        if amount.is_multiple_of(2) {
            self.handle_timeout();
        }
    }

    fn handle_timeout(&mut self) {
        self.count_if_watchful();
        self.engine.handle_timeout(self.now);
        let next = self.engine.next_timeout();
        assert!(next.is_none_or(|(at, _)| at > self.now), "still due after handle_timeout: {next:?}");
        self.follow_if_prompt();
        self.drain_outcomes();
        self.check_deadlines();
    }

    /// Lets time pass as a driver would: no sleep goes beyond the next deadline.
    fn live_until(&mut self, end: Instant, flow: Flow) {
        for _ in 0..WAKE_COUNT_MAX {
            match flow {
                Flow::Up => self.pump_all(),
                Flow::Mute => {}
                Flow::Down => self.refuse_all(),
            }
            self.settle_step();
            match self.engine.next_timeout() {
                Some((at, _)) if at <= end => {
                    self.now = at.max(self.now);
                    self.handle_timeout();
                }
                _ => return self.now = end,
            }
        }
        panic!("{WAKE_COUNT_MAX} wake-ups did not do");
    }

    // ---- network ----

    fn follow_links(&mut self) {
        while let Some(request) = self.engine.poll_link() {
            match request {
                LinkRequest::LookUp(_) => {}
                LinkRequest::Credentials(_) => unreachable!("there is no provider"),
                LinkRequest::Connect(master) => {
                    let peer = &mut self.peers[master.index()];
                    assert!(!peer.is_asked && peer.conn.is_none(), "asked to connect what is connected");
                    peer.is_asked = true;
                }
                LinkRequest::Close(master) => {
                    let peer = &mut self.peers[master.index()];
                    // A connection attempt may be given up before the peer learned of it.
                    let is_there = peer.is_asked || peer.conn.is_some();
                    assert!(is_there || !self.is_prompt, "asked to close what is closed");
                    peer.note_end(master, &mut self.tokens);
                    peer.close(self.step_number, true);
                }
            }
        }
    }

    fn follow_if_prompt(&mut self) {
        if self.is_prompt {
            self.follow_links();
        }
    }

    fn connect(&mut self, index: usize) {
        self.follow_links();
        if !self.peers[index].is_asked {
            return;
        }
        if self.source.byte().is_multiple_of(4) {
            self.peers[index].is_asked = false;
            self.engine.handle_disconnected(self.now, id(index), "connection refused");
        } else {
            self.open(index);
        }
    }

    fn open(&mut self, index: usize) {
        self.peers[index].open();
        self.engine.handle_connected(self.now, id(index));
    }

    fn disconnect(&mut self, index: usize) {
        let how = self.source.byte();
        // A connection that was not yet requested cannot break.
        self.follow_links();
        if how.is_multiple_of(2) {
            self.peers[index].carry_out(self.now);
        }
        self.break_connection(index, how % 4 == 1);
    }

    fn break_connection(&mut self, index: usize, keeps_late: bool) {
        self.count_if_watchful();
        self.peers[index].close(self.step_number, keeps_late);
        // From here on its votes do not count, even in this step.
        self.step_number += 1;
        self.engine.handle_disconnected(self.now, id(index), "connection reset");
        assert_eq!(self.engine.owed_count(id(index)), 0);
    }

    fn send(&mut self, index: usize) {
        let piece = self.source.byte();
        self.send_piece(index, if piece < 64 { piece } else { usize::MAX });
    }

    fn send_piece(&mut self, index: usize, size_max: usize) {
        self.count_requests(index);
        let bytes = self.engine.send_ready(id(index));
        let bytes = bytes[..bytes.len().min(size_max)].to_vec();
        if let Some(conn) = &mut self.peers[index].conn {
            self.engine.send_done(id(index), bytes.len());
            conn.note_sent(&bytes);
            bytes.hash(&mut self.history);
        }
    }

    fn deliver(&mut self, index: usize) {
        let piece = self.source.byte();
        self.deliver_piece(index, if piece < 128 { piece } else { usize::MAX });
    }

    fn deliver_piece(&mut self, index: usize, size_max: usize) {
        let Some(conn) = &mut self.peers[index].conn else { return };
        let size = conn.to_engine.len().min(size_max);
        if size == 0 {
            return;
        }
        let bytes: Vec<u8> = conn.to_engine.drain(..size).collect();
        self.receive(index, &bytes);
    }

    /// Passes bytes that no master has sent.
    fn receive_forged(&mut self, index: usize, bytes: &[u8]) {
        self.is_honest = false;
        self.receive(index, bytes);
    }

    fn receive(&mut self, index: usize, bytes: &[u8]) {
        self.count_if_watchful();
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.engine.recv_space(id(index));
            assert!(!space.is_empty(), "no room to read into");
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            if let Some(conn) = &mut self.peers[index].conn {
                conn.note_received(&rest[..size]);
            }
            self.engine.recv_done(self.now, id(index), size);
            rest = &rest[size..];
        }
        self.settle_step();
    }

    fn receive_canned(&mut self, index: usize) {
        let reply = REPLIES[self.source.byte() % REPLIES.len()];
        self.receive_forged(index, reply);
    }

    fn receive_raw(&mut self, index: usize) {
        let size = (self.source.byte() % 64).min(self.source.0.len());
        let (bytes, rest) = self.source.0.split_at(size);
        self.source.0 = rest;
        self.receive_forged(index, bytes);
    }

    fn answer_for_it(&mut self, index: usize) {
        let reply = REPLIES[self.source.byte() % REPLIES.len()];
        self.send_piece(index, usize::MAX);
        if self.peers[index].answer_for_it(reply) {
            self.is_honest = false;
        }
    }

    /// A master gets its queued bytes, and answers.
    fn pump(&mut self, index: usize) {
        self.follow_links();
        if self.peers[index].is_asked {
            self.open(index);
        }
        self.send_piece(index, usize::MAX);
        self.peers[index].carry_out(self.now);
        self.deliver_piece(index, usize::MAX);
    }

    fn pump_all(&mut self) {
        (0..self.peers.len()).for_each(|index| self.pump(index));
    }

    /// Reports a connection twice.
    fn call_connected_again(&mut self, index: usize) {
        self.follow_links();
        if self.peers[index].conn.is_some() {
            self.engine.handle_connected(self.now, id(index));
        }
    }

    /// Refuses all connections.
    fn refuse_all(&mut self) {
        self.follow_links();
        for index in 0..self.peers.len() {
            if std::mem::take(&mut self.peers[index].is_asked) {
                self.engine.handle_disconnected(self.now, id(index), "connection refused");
            }
        }
    }

    /// An empty read or write changes nothing.
    fn nothing_is_no_message(&mut self, index: usize) {
        let owed = self.engine.owed_count(id(index));
        self.engine.recv_done(self.now, id(index), 0);
        self.engine.send_done(id(index), 0);
        assert_eq!(self.engine.owed_count(id(index)), owed);
    }

    // ---- masters ----

    fn change_master(&mut self, index: usize) {
        let (how, now) = (self.source.byte(), self.now);
        let (name, text) = ERRORS[how / 8 % ERRORS.len()];
        let model = &mut self.peers[index].model;
        match how % 8 {
            0 | 1 => drop(model.errors.insert(name.to_owned(), text.to_owned())),
            2 | 3 => model.errors.clear(),
            4 => model.flush_scripts(),
            5 => model.put(callers::NAMES[how / 8 % 4].as_bytes(), b"other", None),
            6 => {
                let until = now + Duration::from_millis(how as u64);
                model.put(callers::NAMES[how / 8 % 4].as_bytes(), b"other", Some(until));
            }
            _ => return self.restart(index),
        }
        // A foreign `SET` may have replaced a lock's key.
        self.is_honest &= how % 8 < 5;
    }

    /// Replaces the process with an empty one. Commands to the old process do not reach it.
    fn restart(&mut self, index: usize) {
        self.restart_count += 1;
        self.follow_links();
        self.peers[index].late.clear();
        self.peers[index].model.restart(&format!("restart{}", self.restart_count), self.now);
        self.break_connection(index, false);
        self.is_honest &= !self.trusts;
    }

    // ---- what must hold ----

    fn settle_step(&mut self) {
        self.follow_if_prompt();
        for index in 0..self.peers.len() {
            self.check_link(index);
        }
        self.drain_outcomes();
        self.check_locks();
        self.engine.next_timeout().map(|(at, _)| at).hash(&mut self.history);
    }

    fn count_requests(&mut self, index: usize) {
        if let Some(conn) = &mut self.peers[index].conn {
            conn.count_requests(self.now, id(index), &mut self.engine, &mut self.tokens, self.is_watchful);
        }
    }

    fn count_if_watchful(&mut self) {
        // A forged reply may answer a request that was not sent.
        if self.is_watchful || !self.is_honest {
            self.count_all_requests();
        }
    }

    fn count_all_requests(&mut self) {
        (0..self.peers.len()).for_each(|index| self.count_requests(index));
    }

    /// I14: a master owes exactly the requests queued for this connection without an answer.
    fn check_link(&mut self, index: usize) {
        let owed = self.engine.owed_count(id(index));
        if self.peers[index].conn.is_none() {
            assert_eq!(owed, 0, "master {index} is not connected");
            return;
        }
        if !self.peers[index].has_received() {
            return;
        }
        if !self.is_prompt && self.is_down(index) {
            // The engine wants it closed, but the peer has not learned that yet.
            return self.peers[index].note_end(id(index), &mut self.tokens);
        }
        // Requests that a reply caused are counted in between.
        self.peers[index].match_replies(id(index), true, &mut self.tokens);
        self.count_requests(index);
        let is_matched = self.peers[index].match_replies(id(index), true, &mut self.tokens);
        assert!(is_matched, "a reply to no request was taken");
        let counted = self.peers[index].conn.as_ref().map_or(0, net::Conn::owed_count);
        assert_eq!(self.engine.owed_count(id(index)), counted, "master {index} owes as many as were queued");
    }

    fn is_down(&self, index: usize) -> bool {
        let state = self.engine.master_status(self.now, id(index)).state;
        matches!(state, MasterState::Down(_) | MasterState::Connecting)
    }

    /// No lock may be left after its callers have dropped it and its time has passed.
    fn finish(&mut self) {
        let flow = [Flow::Up, Flow::Up, Flow::Mute, Flow::Down][self.end % 4];
        self.follow_links();
        if flow == Flow::Up {
            self.peers.iter_mut().for_each(|peer| peer.model.errors.clear());
        }
        // A forged stream may be in the middle of anything.
        if flow == Flow::Down || flow == Flow::Up && !self.is_honest {
            (0..self.peers.len()).for_each(|index| self.break_connection(index, false));
        }
        self.live_until(self.last_deadline(), flow);
        self.check_deadlines();
        self.cancel_queries();
        self.release_all(self.end & 128 != 0);
        // An entry's stay and the TTL, their drift allowance, and the answer limits before and after.
        let longest = limits::STAY + MAX_TTL;
        let end = self.now + longest + longest / 50 + self.limit_max() * 2;
        self.live_until(end, flow);
        assert_eq!(self.engine.operation_count(), 0);
        assert_eq!(self.engine.claim_count(), 0, "tokens outlive their keys");
        assert!(!self.engine.has_outcome());
        if flow == Flow::Up {
            self.live_until(self.now + limits::SILENCE_MAX + limits::BACKOFF_MAX, flow);
            for index in 0..self.peers.len() {
                assert_eq!(self.engine.owed_count(id(index)), 0, "master {index} has answered all");
            }
            self.a_lock_can_be_had();
        }
    }
}
