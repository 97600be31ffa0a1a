//! A driver and a peer that passes a few bytes at a time, or ends after any byte: over TCP, a Unix
//! socket and TLS.

mod peer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PATIENCE;
use crate::clock;
use crate::config::{Config, Pem, Quarantine, Tls};
use crate::driver::{Driver, Poller, READ_COUNT_MAX, WAKER_TOKEN};
use crate::engine::{OpId, Outcome, Request};
use crate::event::Event;
use crate::limits;
use crate::lock::{MasterId, Resource};
use crate::options::Options;
use peer::{Conduct, End, Host, Kind, Peer, WHOLE};

/// A driver's events, each with the number of reply and request bytes passed before it.
type Trace = Vec<(String, usize, usize)>;

struct Rig {
    driver: Driver,
    poller: Poller,
    peer: Peer,
    trace: Trace,
    outcomes: Vec<(OpId, Outcome)>,
    /// Reply bytes after which the driver considers the connection open.
    connected_size: Option<usize>,
    given_up: Instant,
}

impl Rig {
    fn new(host: &Host, conduct: Conduct) -> Self {
        let peer = Peer::new(host, conduct);
        let config = Config::builder().master(peer.url()).quarantine(Quarantine::Trust).on_event(|_| {});
        // No answer counts as late.
        let config = config.answer_timeout(PATIENCE).connect_timeout(PATIENCE).max_ttl(PATIENCE * 4);
        let config = match host.server {
            Some(_) => config.tls(Tls::new().ca(Pem::Bytes(host.ca.clone().into_bytes()))),
            None => config,
        };
        let config = config.build().expect("valid settings");
        let (driver, poller) = Driver::new(Arc::new(config)).expect("an event loop");
        Self {
            driver,
            poller,
            peer,
            trace: Vec::new(),
            outcomes: Vec::new(),
            connected_size: None,
            given_up: clock::now() + PATIENCE,
        }
    }

    /// Both sides make as much progress as they can.
    fn turn(&mut self) {
        assert!(clock::now() < self.given_up, "it does not go on behind {:?}", self.trace);
        self.driver.turn(&mut self.poller, Some(Duration::ZERO)).expect("a turn");
        let master = MasterId::new(0).expect("small");
        let is_left = self.driver.sockets[0].is_some() && !self.driver.engine.send_ready(master).is_empty();
        assert_eq!(is_left, self.driver.has_unsent, "a turn writes all that the socket takes");
        assert_eq!(self.driver.engine.poll_link(), None, "a turn follows all links");
        if self.driver.sockets[0].is_some() {
            self.connected_size.get_or_insert(self.peer.sent_size);
        }
        while let Some(event) = self.driver.engine.poll_event() {
            let shown = match event {
                Event::Connected { is_reconnect: false, .. } => "connected".to_owned(),
                Event::Disconnected { why, .. } => why.to_string(),
                Event::Acquired { attempts: 1, .. } => "acquired".to_owned(),
                Event::Released { .. } => continue,
                other => format!("{other:?}"),
            };
            self.trace.push((shown, self.peer.sent_size, self.peer.read_size));
        }
        while let Some((lock, outcome)) = self.driver.engine.poll_outcome() {
            if let Outcome::Release(Ok(_)) = outcome {
                self.trace.push(("released".to_owned(), self.peer.sent_size, self.peer.read_size));
            }
            self.outcomes.push((lock, outcome));
        }
        self.peer.step();
    }

    fn acquire(&mut self, name: &str) {
        let options = Options { ttl: Some(PATIENCE), wait: Some(Duration::ZERO), ..Options::new() };
        let resource = Resource::new(name).expect("a valid name");
        let request = Request::Acquire { resource, options, label: None };
        self.driver.submit(clock::now(), request).expect("room");
    }

    /// Connects, acquires a lock and releases it. Ends after the release, or with the connection.
    fn run(&mut self) -> Trace {
        let mut shown_count = 0;
        loop {
            self.turn();
            for (lock, outcome) in std::mem::take(&mut self.outcomes) {
                if let Outcome::Acquire(Ok(_)) = outcome {
                    let release = Request::Release { lock, awaited: true };
                    self.driver.submit(clock::now(), release).expect("room");
                }
            }
            for (shown, ..) in self.trace.clone().drain(shown_count..) {
                shown_count += 1;
                match shown.as_str() {
                    "connected" => self.acquire("a"),
                    "acquired" => {}
                    "released" => return std::mem::take(&mut self.trace),
                    // The connection has ended; events after its end do not count.
                    _ => {
                        self.trace.truncate(shown_count);
                        return std::mem::take(&mut self.trace);
                    }
                }
            }
        }
    }
}

fn shown(trace: &Trace) -> Vec<&str> {
    trace.iter().map(|(shown, ..)| shown.as_str()).collect()
}

const ALL: [&str; 3] = ["connected", "acquired", "released"];

#[test]
fn bytes_may_come_and_go_in_any_pieces() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for piece in [1, 2, 3, 5, 100, 1000, usize::MAX] {
            let trace = Rig::new(&host, Conduct { piece, ..WHOLE }).run();
            assert_eq!(shown(&trace), ALL, "{kind:?} by {piece} bytes");
        }
    }
}

/// No event comes for bytes beyond the room of one read.
// I109
#[test]
fn replies_of_more_than_one_read_are_read() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for size in [limits::READ_SIZE / 2, limits::READ_SIZE, 2 * limits::READ_SIZE, 20 * limits::READ_SIZE]
        {
            let mut rig = Rig::new(&host, WHOLE);
            rig.peer.model.maxmemory_policy = "x".repeat(size);
            assert_eq!(shown(&rig.run()), ALL, "{kind:?}: {size} bytes");
        }
    }
}

/// The next turn reads the rest without waiting for an event.
// I109
#[test]
fn a_turn_reads_no_more_of_a_master_than_is_its_share() {
    let mut rig = Rig::new(&Host::new(Kind::Unix), WHOLE);
    while shown(&rig.trace) != ["connected"] {
        rig.turn();
    }
    // Messages without content.
    let share = READ_COUNT_MAX * limits::READ_SIZE;
    rig.peer.babble = Some([b">0\r\n".repeat(share / 2).as_slice(), b"+OK\r\n"].concat());
    rig.acquire("a");
    rig.turn();
    assert!(rig.peer.sent_size > 2 * share && rig.peer.output.is_empty(), "all is there");
    for count in 1..=3 {
        assert!(rig.outcomes.is_empty(), "turn {count}");
        rig.turn();
        let (is_left, due) = (!rig.driver.unread.is_empty(), rig.driver.due());
        assert_eq!(
            (is_left, due.is_some_and(|at| at <= clock::now())),
            (count < 3, count < 3),
            "turn {count}"
        );
    }
    assert!(matches!(rig.outcomes[..], [(_, Outcome::Acquire(Ok(_)))]), "{:?}", rig.outcomes);
}

/// No event comes for an end that arrived together with replies for several turns.
#[test]
fn an_end_behind_replies_of_several_turns_is_noticed() {
    let mut rig = Rig::new(&Host::new(Kind::Unix), WHOLE);
    while shown(&rig.trace) != ["connected"] {
        rig.turn();
    }
    // Everything arrives at once, and the last read of the third turn is short.
    let babble = b">0\r\n".repeat(READ_COUNT_MAX * limits::READ_SIZE / 2 + 1);
    let sent_max = rig.peer.sent_size + babble.len();
    rig.peer.conduct = Conduct { sent_max, end: End::Behind, ..WHOLE };
    rig.peer.babble = Some(babble);
    rig.acquire("a");
    while rig.trace.len() == 1 {
        rig.turn();
    }
    assert_eq!(shown(&rig.trace)[1], "the server closed the connection");
}

/// The expected reason for a connection that ends like this after this many reply bytes.
fn why(kind: Kind, end: End, size: usize, connected_size: usize) -> &'static str {
    match (kind, end) {
        (Kind::Tcp, End::Reset) if size == 0 => {
            "Connection reset by peer (os error 104) before its first reply; if it wants TLS, write rediss://"
        }
        (Kind::Tcp, _) if size == 0 => {
            "the server closed the connection before its first reply; if it wants TLS, write rediss://"
        }
        (Kind::Unix, _) if size == 0 => {
            "the server closed the connection before its first reply; read the server's log"
        }
        (Kind::Tcp, End::Reset) => "Connection reset by peer (os error 104)",
        (Kind::Tcp | Kind::Unix, _) => "the server closed the connection",
        (Kind::Tls12 | Kind::Tls13, End::Reset) if size < connected_size => {
            "Connection reset by peer (os error 104) in the TLS handshake; check that the port speaks TLS"
        }
        (Kind::Tls12 | Kind::Tls13, _) if size < connected_size => {
            "the server closed the connection in the TLS handshake; check that the port speaks TLS"
        }
        (Kind::Tls12 | Kind::Tls13, End::Reset) => "Connection reset by peer (os error 104)",
        (Kind::Tls12 | Kind::Tls13, _) => {
            "the connection was cut without an end of TLS (close_notify); check the master and the network"
        }
    }
}

#[test]
fn a_connection_may_end_behind_any_byte() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, Conduct { piece: 1, ..WHOLE });
        let whole = rig.run();
        assert_eq!(shown(&whole), ALL, "{kind:?}");
        let (connected_size, total) = (rig.connected_size.expect("it stood"), whole[2].1);
        for sent_max in 0..total {
            let mut ends = whole.iter().map(|(_, size, _)| *size).chain([0, connected_size]);
            let is_near = ends.any(|size| sent_max.abs_diff(size) < 3);
            for end in [End::Behind, End::Later, End::Reset] {
                let step = match (kind, end) {
                    (Kind::Unix, End::Reset) => continue,
                    (Kind::Tcp | Kind::Unix, End::Behind) => 1,
                    (Kind::Tcp | Kind::Unix, _) => 7,
                    (Kind::Tls12 | Kind::Tls13, _) => 29,
                };
                if !is_near && sent_max % step != 0 {
                    continue;
                }
                let trace = Rig::new(&host, Conduct { sent_max, end, ..WHOLE }).run();
                let before = whole.iter().filter(|(_, size, _)| *size <= sent_max).map(|it| it.0.as_str());
                let mut expected: Vec<_> = before.collect();
                expected.push(why(kind, end, sent_max, connected_size));
                assert_eq!(shown(&trace), expected, "{kind:?} {end:?} behind {sent_max} of {total} bytes");
            }
        }
    }
}

/// Fewer request bytes never lead to more events.
#[test]
fn a_peer_may_end_behind_any_byte_of_a_request() {
    for kind in [Kind::Tcp, Kind::Tls13] {
        let host = Host::new(kind);
        let total = Rig::new(&host, WHOLE).run()[2].2;
        let mut counts = Vec::new();
        for read_max in (1..total).step_by(if kind == Kind::Tcp { 13 } else { 101 }) {
            let trace = Rig::new(&host, Conduct { read_max, ..WHOLE }).run();
            let mut shown = shown(&trace);
            // The last bytes may not belong to a request for the lock.
            if let Some(end) = shown.pop_if(|last| *last != "released") {
                assert!(end.contains("the server closed") || end.contains("was cut without"), "{trace:?}");
            }
            assert!(ALL.starts_with(&shown), "{kind:?}, {read_max} of {total} bytes: {trace:?}");
            counts.push(shown.len());
        }
        assert!(
            counts.starts_with(&[0]) && counts.contains(&1) && counts.contains(&2),
            "{kind:?}: {counts:?}"
        );
    }
}

/// A write that the socket accepts in part is neither lost nor repeated.
#[test]
fn slow_peer_gets_all_bytes_later() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, WHOLE);
        while shown(&rig.trace) != ["connected"] {
            rig.turn();
        }
        let mut count = 0;
        while !rig.driver.has_unsent {
            assert!(count < 50_000, "{kind:?}: it takes all");
            count += 1;
            rig.acquire(&format!("{count:01000}"));
            rig.driver.flush();
        }
        let left = |rig: &mut Rig| rig.driver.engine.send_ready(MasterId::new(0).expect("small")).len();
        for _ in 0..3 {
            let before = left(&mut rig);
            rig.driver.flush();
            assert!(rig.driver.has_unsent && left(&mut rig) == before, "{kind:?}: nothing has changed");
        }
        let mut acquired = Vec::new();
        while acquired.len() < count {
            rig.turn();
            for (_, outcome) in rig.outcomes.drain(..) {
                assert!(matches!(outcome, Outcome::Acquire(Ok(_))), "{kind:?}: {outcome:?}");
                acquired.push(outcome);
            }
        }
        assert!(!rig.driver.has_unsent && left(&mut rig) == 0, "{kind:?}");
        // One more contains the fleet's record.
        assert_eq!(rig.peer.model.keys().len(), count + 1, "{kind:?}");
    }
}

/// Bytes after a malformed reply are not read.
#[test]
fn a_peer_that_breaks_the_protocol_is_left() {
    for kind in [Kind::Tcp, Kind::Unix, Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        let mut rig = Rig::new(&host, WHOLE);
        while shown(&rig.trace) != ["connected"] {
            rig.turn();
        }
        // A lookup has ended, and its result was not taken.
        let master = MasterId::new(0).expect("small");
        assert!(rig.driver.resolver.resolve(master, "localhost", 1).is_none());
        loop {
            rig.poller.wait(Some(PATIENCE)).expect("a poll");
            if rig.poller.events.iter().any(|event| event.token() == WAKER_TOKEN) {
                break;
            }
            rig.driver.end_turn(&rig.poller);
        }
        rig.peer.babble = Some(b"?\r\n+OK\r\n".repeat(100));
        rig.acquire("a");
        while rig.trace.len() < 2 {
            rig.turn();
        }
        assert!(
            rig.trace[1].0.starts_with("a reply starts with the unknown type byte '?'"),
            "{kind:?}: {:?}",
            rig.trace
        );
        assert!(rig.driver.resolver.poll_found().is_none(), "{kind:?}: nobody wants it");
    }
}

/// With `close_notify`, nothing is missing. The underlying connection may stay open.
#[test]
fn a_notified_end_is_a_close() {
    for kind in [Kind::Tls12, Kind::Tls13] {
        let host = Host::new(kind);
        for (piece, is_open) in [(1, true), (1, false), (usize::MAX, true), (usize::MAX, false)] {
            let mut rig = Rig::new(&host, Conduct { piece, ..WHOLE });
            rig.run();
            let session = rig.peer.session.as_mut().expect("it is TLS");
            session.send_close_notify();
            session.write_tls(&mut rig.peer.output).expect("room");
            if !is_open {
                rig.peer.conduct.sent_max = rig.peer.sent_size + rig.peer.output.len();
            }
            while rig.trace.is_empty() {
                rig.turn();
            }
            assert_eq!(shown(&rig.trace), ["the server closed the connection"], "{kind:?} {piece} {is_open}");
        }
    }
}

#[test]
fn new_keys_may_come_in_any_pieces() {
    let host = Host::new(Kind::Tls13);
    for piece in [1, 7, usize::MAX] {
        let mut rig = Rig::new(&host, Conduct { piece, ..WHOLE });
        rig.peer.renews_keys = true;
        assert_eq!(shown(&rig.run()), ALL, "by {piece} bytes");
    }
}
