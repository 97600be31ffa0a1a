//! Requests of `engine_ops.rs` that are not locks: inspections, forced deletions, pauses. Also unrequested
//! messages, and another client.

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource, SlotLook};
use redlatch::scripts::SCRIPTS;

use super::Run;
use super::callers::NAMES;
use super::model::{fence_key, queue_key};

/// Largest number of simultaneous requests that are not locks.
const QUERY_COUNT_MAX: usize = 4;
/// Another client's connection number at each model master. It acquires and releases locks like any client.
const RIVAL_PLACE: usize = 2;
const RIVAL: &[u8] = b"rival";
const RIVAL_TTL: Duration = Duration::from_secs(2);

/// Messages that are not about locks.
const MESSAGES: [&[u8]; 8] = [
    b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n",
    b">3\r\n$7\r\nmessage\r\n$0\r\n\r\n$9\r\n12345678x\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n:1\r\n",
    b">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n",
    b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\na\r\n$8\r\n12345678\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
    b">3\r\n_\r\n_\r\n_\r\n",
    b">1\r\n:1\r\n",
];

/// Bytes that shift the replies, or end the connection.
const BROKEN_MESSAGES: [&[u8]; 6] = [
    b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b">3\r\n$7\r\nmessage\r\n",
    b">-1\r\n",
    b">99999999999\r\n",
    b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$8\r\n12345678\r\n",
    b"_\r\n",
];

/// A request as its caller sees it.
#[derive(Debug)]
pub struct Query {
    pub id: OpId,
    kind: Kind,
    submitted: Instant,
    /// Deadline of the answer; a pause lasts as long as the engine draws.
    pub deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Inspect,
    ForceUnlock,
    /// Search in a pool with this many slots.
    FreeSlots(u32),
    /// Pause of at least this time.
    Pause(Duration),
}

impl Run<'_> {
    pub(super) fn run_query(&mut self) {
        let how = self.source.byte();
        let name = NAMES[how / 8 % NAMES.len()];
        let resource = Resource::new(name).expect("valid");
        let limit = self.engine.config().answer_limit(self.longest_ttl());
        let (request, kind, deadline) = match how % 8 {
            0..=2 => (Request::Inspect { resource }, Kind::Inspect, Some(self.now + limit)),
            3 | 4 => (Request::ForceUnlock { resource }, Kind::ForceUnlock, Some(self.now + limit)),
            5 => {
                let took = Duration::from_millis((how / 8) as u64);
                let limit = Duration::from_secs(3600);
                (Request::Pause { attempts: 1, took, limit }, Kind::Pause(took), None)
            }
            6 => {
                let from = u32::try_from(how / 8).expect("a byte");
                let count = from % 12 + 1;
                let request = Request::FreeSlots { pool: resource, count, from };
                (request, Kind::FreeSlots(count), Some(self.now + limit))
            }
            _ => return self.cancel_query(how / 8),
        };
        if self.queries.len() >= QUERY_COUNT_MAX {
            return;
        }
        if kind == Kind::ForceUnlock {
            self.broken_names.insert(name);
        }
        let op = self.engine.submit(self.now, request).expect("a few errands do not overload the client");
        let is_known = self.by_id.contains_key(&op) || self.queries.iter().any(|it| it.id == op);
        assert!(!is_known, "one id for two errands");
        self.queries.push(Query { id: op, kind, submitted: self.now, deadline });
    }

    fn cancel_query(&mut self, pick: usize) {
        if !self.queries.is_empty() {
            let query = self.queries.swap_remove(pick % self.queries.len());
            let request = Request::Release { lock: query.id, awaited: false };
            assert_eq!(self.engine.submit(self.now, request), Ok(query.id));
        }
    }

    pub(super) fn cancel_queries(&mut self) {
        while !self.queries.is_empty() {
            self.cancel_query(0);
        }
    }

    /// Checks the answer to such a request. Returns whether it was one.
    pub(super) fn take_query(&mut self, id: OpId, outcome: &Outcome) -> bool {
        let Some(index) = self.queries.iter().position(|it| it.id == id) else { return false };
        let query = self.queries.swap_remove(index);
        let count = self.peers.len();
        match (query.kind, outcome) {
            (Kind::Inspect, Outcome::Inspect(inspection)) => assert_eq!(inspection.masters.len(), count),
            (Kind::ForceUnlock, Outcome::ForceUnlock(done)) => {
                assert_eq!(done.report.votes.len(), count);
                assert_eq!(done.deleted() + done.absent() + done.unanswered(), count);
            }
            (Kind::FreeSlots(count), Outcome::FreeSlots(SlotLook::Free(slots))) => {
                assert!(!slots.is_empty() && slots.iter().all(|slot| *slot < count), "{slots:?} of {count}");
            }
            (Kind::FreeSlots(_), Outcome::FreeSlots(_)) => {}
            (Kind::Pause(took), Outcome::Paused) => {
                let least = took.max(Duration::from_millis(1));
                assert!(self.now >= query.submitted + least, "a pause that is too short");
            }
            other => panic!("not the answer to {query:?}: {other:?}"),
        }
        true
    }

    /// I22: after timeouts are handled, no request that was due is open.
    pub(super) fn check_queries(&self) {
        let now = self.now;
        for query in &self.queries {
            assert!(query.deadline.is_none_or(|at| at > now), "not answered in time: {query:?}");
        }
    }

    // ---- messages, and another client ----

    pub(super) fn do_with_messages(&mut self, index: usize) {
        let how = self.source.byte();
        self.follow_links();
        let name = NAMES[how / 8 % NAMES.len()];
        match how % 8 {
            0 | 1 => self.send_drawn_message(index, how % 8 == 1),
            2 => self.send_known_message(index, how / 8),
            3 => self.push(index, MESSAGES[how / 8 % MESSAGES.len()]),
            4 => self.receive_forged(index, BROKEN_MESSAGES[how / 8 % BROKEN_MESSAGES.len()]),
            6 => (0..self.peers.len()).for_each(|index| self.take_for_rival(index, name)),
            7 => (0..self.peers.len()).for_each(|index| self.release_rival(index, name, how < 128)),
            _ => {}
        }
    }

    /// Sends a vote or a ring for a random attempt.
    fn send_drawn_message(&mut self, index: usize, is_ring: bool) {
        let mut vote = [0; 8];
        let [place, generation] = [self.source.byte(), self.source.byte()];
        [vote[0], vote[4]] = [place % 16, generation].map(|it| u8::try_from(it).expect("a byte"));
        if generation.is_multiple_of(8) {
            vote[7] = 0xff;
        }
        self.send_message(index, vote, is_ring);
    }

    /// Sends a vote or a ring for an attempt that was parked over this connection.
    fn send_known_message(&mut self, index: usize, pick: usize) {
        let Some(conn) = &self.peers[index].conn else { return };
        let known = conn.parked_count();
        if known > 0 {
            let vote = conn.parked_vote(known - 1 - pick / 2 % known.min(3));
            self.send_message(index, vote, pick.is_multiple_of(2));
        }
    }

    fn send_message(&mut self, index: usize, vote: [u8; 8], is_ring: bool) {
        let peer = &self.peers[index];
        let token = peer.conn.as_ref().and_then(|conn| conn.parked_token(&vote));
        if let Some(token) = token.filter(|_| !is_ring) {
            // A grant is true if the master has written the key, and may then come twice.
            let key = &self.tokens[token].key;
            let holders = peer.model.holders(self.now, key);
            self.is_honest &= holders.iter().any(|value| value.starts_with(token));
        }
        let mut message =
            format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", 8 + usize::from(is_ring)).into_bytes();
        message.extend_from_slice(&vote);
        message.extend_from_slice(if is_ring { b"r\r\n" } else { b"\r\n" });
        self.push(index, &message);
    }

    /// Adds a message after the bytes that the master has sent.
    fn push(&mut self, index: usize, message: &[u8]) {
        if let Some(conn) = &mut self.peers[index].conn {
            conn.to_engine.extend_from_slice(message);
        }
        self.deliver_piece(index, usize::MAX);
    }

    /// Another client requests a lock.
    fn take_for_rival(&mut self, index: usize, name: &str) {
        let (model, now) = (&mut self.peers[index].model, self.now);
        if !model.is_taken(now, name.as_bytes()) {
            model.put(name.as_bytes(), RIVAL, Some(now + RIVAL_TTL));
        }
    }

    /// The other client releases its lock, with or without serving waiters.
    fn release_rival(&mut self, index: usize, name: &str, serves: bool) {
        let (model, now, key) = (&mut self.peers[index].model, self.now, name.as_bytes());
        if model.value(now, key) != Some(RIVAL) {
            return;
        }
        model.carry_out_over(RIVAL_PLACE, now, &[b"DEL", key], &mut Vec::new());
        if serves {
            let serve = SCRIPTS.iter().find(|script| script.name == "serve").expect("there is one");
            let words: [&[u8]; 6] =
                [b"EVAL", serve.text.as_bytes(), b"3", key, &queue_key(key), &fence_key(key)];
            model.carry_out_over(RIVAL_PLACE, now, &words, &mut Vec::new());
        }
        self.peers[index].take_pushes();
    }
}
