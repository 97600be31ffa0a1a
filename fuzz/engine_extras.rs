//! What `engine_ops.rs` does beside locks: looks, deletions by force, pauses; and the connections for
//! subscriptions.

use std::hash::Hash;
use std::time::{Duration, Instant};

use redlatch::engine::{LinkId, MasterId, OpId, Outcome, Request, Resource};

use super::callers::NAMES;
use super::net::REPLIES;
use super::{Flow, Run, id};

/// Errands that are waited for at the same time.
const QUERY_COUNT_MAX: usize = 4;
/// The place of a connection for subscriptions at its model master; commands come over another one.
const SUBSCRIPTION_PLACE: usize = 1;
/// The lock of another client, which takes locks as all do, and lets them go.
const RIVAL_PLACE: usize = 2;
const RIVAL: &[u8] = b"rival";
const RIVAL_TTL: Duration = Duration::from_secs(2);

/// What may come over a connection for subscriptions that nobody has sent.
const MESSAGES: [&[u8]; 9] = [
    b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n",
    b"*3\r\n$7\r\nmessage\r\n$0\r\n\r\n$20\r\n99999999999999999999\r\n",
    b"*3\r\n$7\r\nmessage\r\n",
    b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n9\r\n",
    b"*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n0\r\n",
    b"*3\r\n$-1\r\n$-1\r\n$-1\r\n",
    b"+PONG\r\n",
];

/// An errand as its caller knows it.
#[derive(Debug)]
pub struct Query {
    pub id: OpId,
    kind: Kind,
    submitted: Instant,
    /// When it must be answered; a pause is as long as is drawn.
    pub deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Inspect,
    ForceUnlock,
    /// At least so long.
    Pause(Duration),
}

/// The engine's connection for subscriptions to one master.
#[derive(Debug, Default)]
pub struct SubscriptionPeer {
    is_asked: bool,
    is_open: bool,
    to_master: Vec<u8>,
    to_engine: Vec<u8>,
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

    /// Whether this was the answer to an errand, which is then judged.
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
            (Kind::Pause(took), Outcome::Paused) => {
                let least = took.max(Duration::from_millis(1));
                assert!(self.now >= query.submitted + least, "a pause that is too short");
            }
            other => panic!("not the answer to {query:?}: {other:?}"),
        }
        true
    }

    /// I22: after the time-outs were handled, no errand is open that was due.
    pub(super) fn check_queries(&self) {
        let now = self.now;
        for query in &self.queries {
            assert!(query.deadline.is_none_or(|at| at > now), "not answered in time: {query:?}");
        }
    }

    // ---- news ----

    pub(super) fn ask_subscription(&mut self, master: MasterId) {
        let link = LinkId::Subscription(master);
        if !self.has_subscription {
            // No release is published; that is nobody's fault.
            return self.engine.handle_disconnected(self.now, link, "no news");
        }
        let subscription = &mut self.subscription[master.index()];
        assert!(!subscription.is_asked && !subscription.is_open, "asked to connect what is connected");
        subscription.is_asked = true;
    }

    pub(super) fn close_subscription(&mut self, master: MasterId) {
        let subscription = &self.subscription[master.index()];
        let is_there = subscription.is_asked || subscription.is_open || !self.has_subscription;
        assert!(is_there || !self.is_prompt, "asked to close what is closed");
        self.forget_subscription(master.index());
    }

    fn forget_subscription(&mut self, index: usize) {
        self.subscription[index] = SubscriptionPeer::default();
        self.peers[index].model.forget_conn(SUBSCRIPTION_PLACE);
    }

    pub(super) fn do_with_subscription(&mut self, index: usize) {
        let how = self.source.byte();
        self.follow_links();
        match how % 8 {
            0 | 1 => self.pump_subscription(index),
            2 => self.break_subscription(index, "connection reset"),
            3 if self.subscription[index].is_asked => self.break_subscription(index, "connection refused"),
            4 => self.receive_subscription(index, MESSAGES[how / 8 % MESSAGES.len()]),
            5 => self.receive_subscription(index, REPLIES[how / 8 % REPLIES.len()]),
            6 => (0..self.peers.len())
                .for_each(|index| self.take_for_rival(index, NAMES[how / 8 % NAMES.len()])),
            7 => (0..self.peers.len())
                .for_each(|index| self.release_rival(index, NAMES[how / 8 % NAMES.len()])),
            _ => {}
        }
    }

    /// Another client asks for a lock.
    fn take_for_rival(&mut self, index: usize, name: &str) {
        let (model, now) = (&mut self.peers[index].model, self.now);
        if model.value(now, name.as_bytes()).is_none() {
            model.put(name.as_bytes(), RIVAL, Some(now + RIVAL_TTL));
        }
    }

    /// It releases it, and reports that.
    fn release_rival(&mut self, index: usize, name: &str) {
        let (model, now) = (&mut self.peers[index].model, self.now);
        if model.value(now, name.as_bytes()) != Some(RIVAL) {
            return;
        }
        let mut command = format!("*2\r\n$3\r\nDEL\r\n${}\r\n{name}\r\n", name.len()).into_bytes();
        model.handle_over(RIVAL_PLACE, now, &mut command, &mut Vec::new());
        model.publish(name.as_bytes(), b"");
        model.log.clear();
        for (_, message) in std::mem::take(&mut model.pushes) {
            self.subscription[index].to_engine.extend_from_slice(&message);
        }
    }

    /// The connection is made if it is wanted, and all that is under way arrives.
    pub(super) fn pump_subscription(&mut self, index: usize) {
        let link = LinkId::Subscription(id(index));
        if std::mem::take(&mut self.subscription[index].is_asked) {
            self.subscription[index].is_open = true;
            self.engine.handle_connected(self.now, link);
        }
        if !self.subscription[index].is_open {
            return;
        }
        let bytes = self.engine.send_ready(link).to_vec();
        self.engine.send_done(link, bytes.len());
        bytes.hash(&mut self.history);
        let (subscription, model) = (&mut self.subscription[index], &mut self.peers[index].model);
        subscription.to_master.extend_from_slice(&bytes);
        model.handle_over(
            SUBSCRIPTION_PLACE,
            self.now,
            &mut subscription.to_master,
            &mut subscription.to_engine,
        );
        model.log.clear();
        for (place, message) in std::mem::take(&mut model.pushes) {
            assert_eq!(place, SUBSCRIPTION_PLACE, "a connection for commands has subscribed");
            subscription.to_engine.extend_from_slice(&message);
        }
        let bytes = std::mem::take(&mut self.subscription[index].to_engine);
        self.receive_subscription(index, &bytes);
    }

    fn receive_subscription(&mut self, index: usize, bytes: &[u8]) {
        let (link, mut rest) = (LinkId::Subscription(id(index)), bytes);
        while !rest.is_empty() && self.subscription[index].is_open {
            let space = self.engine.recv_space(link);
            assert!(!space.is_empty(), "no room to read into");
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            self.engine.recv_done(self.now, link, size);
            rest = &rest[size..];
            self.follow_if_prompt();
        }
        self.settle_step();
    }

    pub(super) fn call_subscription_connected_again(&mut self, index: usize) {
        if self.subscription[index].is_open {
            self.engine.handle_connected(self.now, LinkId::Subscription(id(index)));
        }
    }

    pub(super) fn break_subscription(&mut self, index: usize, why: &str) {
        if self.subscription[index].is_open || self.subscription[index].is_asked {
            self.forget_subscription(index);
            self.engine.handle_disconnected(self.now, LinkId::Subscription(id(index)), why);
            self.follow_if_prompt();
        }
    }

    /// At the end of a run.
    pub(super) fn end_subscription(&mut self, flow: Flow) {
        if flow == Flow::Down {
            self.follow_links();
            (0..self.subscription.len()).for_each(|index| self.break_subscription(index, "connection reset"));
        }
    }

    /// Long after the last caller has gone nobody listens.
    pub(super) fn check_no_subscription(&mut self) {
        self.follow_links();
        assert_eq!(
            self.engine.subscription_links().count(),
            0,
            "connections for subscriptions that nobody waits for"
        );
    }
}
