//! Messages: the model sends subscribers the same messages as a server, in the same order.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp::{self, Decoded};
use redlatch_support::{Fleet, PATIENCE, eventually, valkey_9};

use super::commands::{KEYS, wall_us};
use super::dialect_in;
use super::model::{Dialect, ModelMaster};

const TOKEN: &[u8] = b"0123456789abcdefghij";

/// More subscribers than the script's largest reported number.
const SUBSCRIBER_COUNT: usize = 6;
/// Subscribers' connections come after the publisher's.
const PUBLISHER: usize = 0;
const STEPS: usize = 600;

/// A server and its model, with the same connections.
pub(super) struct Audience {
    addr: SocketAddr,
    conns: Vec<TcpStream>,
    pub(super) model: ModelMaster,
    pub(super) message_count: usize,
}

fn open(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("a server that listens");
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("no zero");
    stream
}

fn dialect_of(stream: &mut TcpStream) -> Dialect {
    stream.write_all(b"INFO server\r\n").expect("the server reads");
    let mut received = Vec::new();
    while reply_count(&received) < 1 {
        let mut space = [0; 4096];
        let size = stream.read(&mut space).expect("the server answers in time");
        received.extend_from_slice(&space[..size]);
    }
    dialect_in(&String::from_utf8_lossy(&received))
}

impl Audience {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let mut conns: Vec<_> = (0..=SUBSCRIBER_COUNT).map(|_| open(addr)).collect();
        let mut model = ModelMaster::new("", Instant::now());
        model.set_wall(Instant::now(), wall_us());
        model.dialect = dialect_of(&mut conns[0]);
        Self { addr, conns, model, message_count: 0 }
    }

    /// Sends a connection's command to both, and compares replies and messages.
    pub(super) fn say(&mut self, conn: usize, words: &[&[u8]]) {
        let reply = self.send(conn, words);
        self.hear(conn, &reply, words);
        self.hear_messages(words);
    }

    /// Sends a command without checking messages. Returns the server's and the model's reply, which may
    /// differ.
    pub(super) fn exchange(&mut self, conn: usize, words: &[&[u8]]) -> [Vec<u8>; 2] {
        let model = self.send(conn, words);
        let (count, mut server) = (reply_count(&model), Vec::new());
        while reply_count(&server) < count {
            let mut space = [0; 4096];
            let size = self.conns[conn].read(&mut space).expect("the server answers in time");
            assert!(size > 0, "the server closed the connection");
            server.extend_from_slice(&space[..size]);
        }
        [server, model]
    }

    /// Sends a command to both. Returns the model's reply.
    fn send(&mut self, conn: usize, words: &[&[u8]]) -> Vec<u8> {
        let (mut command, mut reply) = (Vec::new(), Vec::new());
        resp::encode_command(&mut command, words);
        self.conns[conn].write_all(&command).expect("the server takes it");
        self.model.handle_over(conn, Instant::now(), &mut command, &mut reply);
        reply
    }

    /// Sets or lifts the memory limit on both.
    pub(super) fn fill(&mut self, is_full: bool) {
        let mut command = Vec::new();
        let limit: &[u8] = if is_full { b"1" } else { b"0" };
        resp::encode_command(&mut command, &[b"CONFIG", b"SET", b"maxmemory", limit]);
        self.conns[PUBLISHER].write_all(&command).expect("the server takes it");
        self.hear(PUBLISHER, b"+OK\r\n", &[b"CONFIG"]);
        self.model.data.is_full = is_full;
    }

    /// Checks the messages of the last command.
    pub(super) fn hear_messages(&mut self, words: &[&[u8]]) {
        let pushes = std::mem::take(&mut self.model.pushes);
        self.message_count += pushes.len();
        pushes.iter().for_each(|(conn, message)| self.hear(*conn, message, words));
    }

    /// Ends a connection, and gives its number to a new one.
    pub(super) fn reconnect(&mut self, conn: usize) {
        self.conns[conn] = open(self.addr);
        self.model.begin_conn(conn);
    }

    /// Repeats a command until both reply alike, because the server may notice a closed connection late.
    pub(super) fn say_until(&mut self, conn: usize, words: &[&[u8]]) {
        eventually(PATIENCE, "both say the same", || {
            let [server, model] = self.exchange(conn, words);
            server == model
        });
    }

    /// Checks the server's next bytes on this connection.
    fn hear(&mut self, conn: usize, expected: &[u8], words: &[&[u8]]) {
        let mut received = vec![0; expected.len()];
        let heard = self.conns[conn].read_exact(&mut received);
        let words: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
        let (received, expected) = (received.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert!(
            heard.is_ok() && received == expected,
            "{words:?}, connection {conn}: {received}\nmodel: {expected}"
        );
    }

    fn step(&mut self, rng: &mut StdRng) {
        let channel = *KEYS[..2].choose(rng).expect("not empty");
        let subscriber = rng.random_range(1..=SUBSCRIBER_COUNT);
        match rng.random_range(0..20) {
            0..5 => self.say(subscriber, &[b"SUBSCRIBE", channel]),
            5..8 => self.say(subscriber, &[b"UNSUBSCRIBE", channel]),
            8 => self.say(PUBLISHER, &[b"PUBLISH", channel, b"\r\n"]),
            9 => self.say(PUBLISHER, &[b"PUBLISH", channel, b""]),
            10 => self.say(subscriber, &[b"SUBSCRIBE", channel, b"more"]),
            11 => self.say(subscriber, &[b"UNSUBSCRIBE", channel, b"more"]),
            // Sharded channels are separate, with their own count.
            14..17 => self.say(subscriber, &[b"SSUBSCRIBE", channel]),
            17 => self.say(subscriber, &[b"SUNSUBSCRIBE", channel]),
            18 => self.say(PUBLISHER, &[b"SPUBLISH", channel, TOKEN]),
            // Refused while there are subscriptions.
            12 => self.say(subscriber, &[b"AUTH", b"default", b"x"]),
            _ => self.say(PUBLISHER, &[b"PUBLISH", channel, TOKEN]),
        }
    }

    /// Checks that nobody got any other message.
    fn end(&mut self) {
        (1..=SUBSCRIBER_COUNT).for_each(|conn| self.say(conn, &[b"SUBSCRIBE", b"the end"]));
        self.say(PUBLISHER, &[b"PUBLISH", b"the end", b"x"]);
    }
}

/// Number of whole replies.
fn reply_count(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Ok(Decoded::Complete { size, .. }) = resp::decode(bytes) {
        (count, bytes) = (count + 1, &bytes[size..]);
    }
    count
}

fn hold_against(addr: SocketAddr) {
    let mut audience = Audience::new(addr);
    let mut rng = StdRng::seed_from_u64(1);
    (0..STEPS).for_each(|_| audience.step(&mut rng));
    audience.end();
    assert!(audience.message_count > STEPS / 4, "only {} messages", audience.message_count);
}

// I54
#[test]
fn the_model_publishes_like_the_server() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr());
}

#[test]
fn the_model_publishes_like_valkey() {
    let Some(place) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![place]);
    hold_against(fleet.master(0).addr());
}

/// Malformed subscriptions.
#[test]
fn the_model_refuses_subscriptions_as_the_server_does() {
    let mut fleet = Fleet::start(1);
    let mut audience = Audience::new(fleet.master(0).addr());
    for [subscribe, publish] in [[b"SUBSCRIBE".as_slice(), b"PUBLISH"], [b"SSUBSCRIBE", b"SPUBLISH"]] {
        for words in [&[subscribe][..], &[publish], &[publish, b"a"], &[publish, b"a", b"b", b"c"]] {
            audience.say(PUBLISHER, words);
        }
    }
}
