//! Messages: who has subscribed is sent the same by the model as by a server, in the same order.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp;

use super::commands::{KEYS, text_of};
use super::model::ModelMaster;
use crate::fleet::Fleet;
use crate::lock_tests::PATIENCE;
use crate::valkey_tests::valkey_9;

const TOKEN: &[u8] = b"0123456789abcdefghij";

/// More than the script reports a number for.
const SUBSCRIBER_COUNT: usize = 6;
/// Subscribers come behind the connection that publishes.
const PUBLISHER: usize = 0;
const STEPS: usize = 600;

/// A server and the model of it, each with the same connections.
struct Audience {
    conns: Vec<TcpStream>,
    model: ModelMaster,
    message_count: usize,
}

impl Audience {
    fn new(addr: SocketAddr) -> Self {
        let open = |_| {
            let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("a server that listens");
            stream.set_nodelay(true).expect("a TCP socket");
            stream.set_read_timeout(Some(PATIENCE)).expect("no zero");
            stream
        };
        let conns = (0..=SUBSCRIBER_COUNT).map(open).collect();
        Self { conns, model: ModelMaster::new("", Instant::now()), message_count: 0 }
    }

    /// Has both carry out a command of one connection, and compares what they say to whom.
    fn say(&mut self, conn: usize, words: &[&[u8]]) {
        let mut command = Vec::new();
        resp::encode_command(&mut command, words);
        self.conns[conn].write_all(&command).expect("the server takes it");
        let mut reply = Vec::new();
        self.model.handle_over(conn, Instant::now(), &mut command, &mut reply);
        self.hear(conn, &reply, words);
        let pushes = std::mem::take(&mut self.model.pushes);
        self.message_count += pushes.len();
        pushes.iter().for_each(|(conn, message)| self.hear(*conn, message, words));
    }

    /// The server's next bytes on this connection are these.
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
        let group: &[u8] = [b"w:0".as_slice(), b"w:1", b"w:2"][rng.random_range(0..3)];
        match rng.random_range(0..19) {
            0..5 => self.say(subscriber, &[b"SUBSCRIBE", channel]),
            5..8 => self.say(subscriber, &[b"UNSUBSCRIBE", channel]),
            8 => self.say(PUBLISHER, &[b"PUBLISH", channel, b"\r\n"]),
            9 => self.say(PUBLISHER, &[b"PUBLISH", channel, b""]),
            10 => self.say(PUBLISHER, &[b"EVAL", text_of("release_notify"), b"1", channel, TOKEN]),
            14 => self.say(subscriber, &[b"SUBSCRIBE", channel, group]),
            15 => self.say(subscriber, &[b"UNSUBSCRIBE", channel, group]),
            16 | 17 => {
                self.say(PUBLISHER, &[b"SET", channel, TOKEN, b"NX", b"PX", b"3600000"]);
                let (script, first) =
                    (text_of("release_wake"), [b"0".as_slice(), b"1"][rng.random_range(0..2)]);
                self.say(PUBLISHER, &[b"EVAL", script, b"1", channel, TOKEN, b"w:", first, b"2"]);
            }
            // Refused beside subscriptions.
            18 => self.say(subscriber, &[b"AUTH", b"default", b"x"]),
            11 => {
                self.say(PUBLISHER, &[b"SET", channel, TOKEN, b"NX", b"PX", b"3600000"]);
                let (script, fence) = (text_of("fenced_release_notify"), b"redlatch:fence:a");
                // A token beyond its window: the fence stays as it is.
                self.say(
                    PUBLISHER,
                    &[b"EVAL", script, b"2", channel, fence, TOKEN, b"1", b"1", b"1", b"1000"],
                );
            }
            _ => {
                self.say(PUBLISHER, &[b"SET", channel, TOKEN, b"NX", b"PX", b"3600000"]);
                self.say(PUBLISHER, &[b"EVAL", text_of("release_notify"), b"1", channel, TOKEN]);
            }
        }
    }

    /// Nothing else was said to anybody.
    fn end(&mut self) {
        (1..=SUBSCRIBER_COUNT).for_each(|conn| self.say(conn, &[b"SUBSCRIBE", b"the end"]));
        self.say(PUBLISHER, &[b"PUBLISH", b"the end", b"x"]);
    }
}

fn hold_against(addr: SocketAddr, is_native: bool) {
    let mut audience = Audience::new(addr);
    audience.model.is_native = is_native;
    let mut rng = StdRng::seed_from_u64(1);
    (0..STEPS).for_each(|_| audience.step(&mut rng));
    audience.end();
    assert!(audience.message_count > STEPS / 4, "only {} messages", audience.message_count);
}

#[test]
fn the_model_publishes_like_the_server() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr(), false);
}

#[test]
fn the_model_publishes_like_valkey() {
    let Some(place) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![place]);
    hold_against(fleet.master(0).addr(), true);
}

/// What is refused by its form.
#[test]
fn the_model_refuses_subscriptions_as_the_server_does() {
    let mut fleet = Fleet::start(1);
    let mut audience = Audience::new(fleet.master(0).addr());
    for words in
        [&[b"SUBSCRIBE".as_slice()][..], &[b"PUBLISH"], &[b"PUBLISH", b"a"], &[b"PUBLISH", b"a", b"b", b"c"]]
    {
        audience.say(PUBLISHER, words);
    }
}
