//! What the checker learns from the scripts of parked attempts, which the tests send by hand.

use std::time::Duration;

use redlatch::Config;
use redlatch::resp;
use redlatch::scripts::SCRIPTS;

use crate::checker::id;
use crate::clock::{Clock, WALL_US};
use crate::lua::{self, Break};
use crate::model::{Protocol, digest, fence_key, queue_key};
use crate::network::{Arrival, ConnState, Weather};
use crate::world::World;

const KEY: &[u8] = b"a";
const HOLDER: &[u8] = b"the-holder's-token-0";
const WAITER: &[u8] = b"the-waiter's-token-0";
const CHANNEL: &[u8] = b"redlatch:c:1";

/// One master and two clients, whose connections speak RESP3. The waiter's connection has subscribed.
struct Stage {
    world: World,
    holder: usize,
    waiter: usize,
}

impl Stage {
    fn new() -> Self {
        let config = Config::builder().masters(["redis://m0"]).max_ttl(Duration::from_secs(10));
        let mut world = World::new(1, config.build().expect("valid settings"));
        world.weather = Weather { delay_min: 0, delay_max: 0, cut_ppm: 0, slow_ppm: 0 };
        world.masters[0].model.load_scripts();
        let [holder, waiter] = [(); 2].map(|()| {
            let client = world.add_client(Clock::new(0, 0), 0);
            world.connect(client, id(0));
            let conn = world.conns.len() - 1;
            world.conns[conn].state = ConnState::Open;
            conn
        });
        let mut stage = Self { world, holder, waiter };
        for conn in [holder, waiter] {
            assert!(stage.say(conn, &[b"HELLO", b"3"]).starts_with("%7"));
        }
        let confirmation = stage.say(waiter, &[b"SUBSCRIBE", CHANNEL]);
        assert_eq!(confirmation, r">3\r\n$9\r\nsubscribe\r\n$12\r\nredlatch:c:1\r\n:1\r\n");
        stage
    }

    /// The holder has the lock, and the waiter is in the queue.
    fn contended() -> Self {
        let mut stage = Self::new();
        let hold: [&[u8]; 6] = [b"SET", KEY, HOLDER, b"NX", b"PX", b"5000"];
        assert_eq!(stage.say(stage.holder, &hold), r"+OK\r\n");
        assert_eq!(stage.say(stage.waiter, &hold), r"_\r\n");
        assert!(stage.park(WAITER, b"").starts_with(r"*11\r\n:0\r\n"));
        stage
    }

    fn say(&mut self, conn: usize, words: &[&[u8]]) -> String {
        let mut command = Vec::new();
        resp::encode_command(&mut command, words);
        let it = &mut self.world.conns[conn];
        it.master_input.extend_from_slice(&command);
        it.input_queued_at = self.world.now;
        self.world.serve(conn);
        self.hear(conn)
    }

    /// Bytes that have arrived over a connection.
    fn hear(&mut self, conn: usize) -> String {
        let (now, mut heard) = (self.world.now, Vec::new());
        while let Ok(Some(Arrival::Bytes { bytes, .. })) = self.world.conns[conn].to_client.arrive(now) {
            heard.extend_from_slice(bytes);
        }
        heard.escape_ascii().to_string()
    }

    fn run(&mut self, conn: usize, script: &str, args: &[&[u8]]) -> String {
        let (queue, fence, sha) = (queue_key(KEY), fence_key(KEY), digest(script).as_bytes());
        let keys: &[&[u8]] = match script {
            "swap_parked" | "shared_acquire_queue" => &[KEY, &queue],
            _ => &[KEY, &queue, &fence],
        };
        let count = keys.len().to_string();
        self.say(conn, &[&[b"EVALSHA".as_slice(), sha, count.as_bytes()], keys, args].concat())
    }

    fn park(&mut self, value: &[u8], old: &[u8]) -> String {
        let ticket = WALL_US.to_string();
        let head: [&[u8]; 9] =
            [b"waiter-00001", b"1", ticket.as_bytes(), b"", b"0", old, b"0", b"p", b"3000"];
        let rest: [&[u8]; 6] = [b"3000", b"1000", CHANNEL, b"the-vote", b"", value];
        self.run(self.waiter, "park", &[&head[..], &rest].concat())
    }

    fn granted_over(&self, token: &[u8]) -> Option<usize> {
        self.world.checker.facts.get(token).and_then(|facts| facts.granted_over[0])
    }

    fn violation(&mut self) -> Option<String> {
        self.world.checker.violation.take()
    }
}

fn broken(script: &'static str, text: &str) -> Vec<Break> {
    assert!(SCRIPTS.iter().any(|it| it.name == script));
    vec![Break { script, text: text.to_owned() }]
}

#[test]
fn a_served_waiter_is_granted_over_its_own_connection() {
    let mut stage = Stage::contended();
    assert_eq!(stage.granted_over(WAITER), None);
    assert!(stage.world.checker.refused(1, KEY).contains(id(0)));
    assert_eq!(stage.run(stage.holder, "release_serve", &[HOLDER]), r":2\r\n");
    assert_eq!(stage.hear(stage.waiter), r">3\r\n$7\r\nmessage\r\n$12\r\nredlatch:c:1\r\n$8\r\nthe-vote\r\n");
    assert_eq!(stage.granted_over(WAITER), Some(stage.waiter));
    assert_eq!(stage.run(stage.waiter, "unpark", &[b"", WAITER, b"", b"0", b"0"]), r":1\r\n");
    assert_eq!(stage.violation(), None);
}

#[test]
fn a_park_that_is_granted_at_once_is_noted() {
    let mut stage = Stage::new();
    assert!(stage.park(WAITER, b"").starts_with(r"*4\r\n:1\r\n"));
    assert_eq!(stage.granted_over(WAITER), Some(stage.waiter));
    let next = b"the-waiter's-token-1";
    assert!(stage.park(next, WAITER).starts_with(r"*4\r\n:1\r\n"));
    assert_eq!(stage.granted_over(next), Some(stage.waiter));
    assert_eq!(stage.violation(), None);
}

#[test]
fn absent_key_in_an_answer_is_a_denial() {
    let mut stage = Stage::contended();
    let denied = |stage: &Stage| stage.world.checker.facts[HOLDER].denied.contains(id(0));
    assert_eq!(stage.run(stage.holder, "release_serve", &[HOLDER]), r":2\r\n");
    assert!(!denied(&stage));
    assert_eq!(stage.run(stage.holder, "release_serve", &[HOLDER]), r":0\r\n");
    assert!(denied(&stage));
    assert_eq!(stage.violation(), None);
}

#[test]
fn a_swap_and_a_reader_are_noted() {
    let mut stage = Stage::contended();
    let next = b"the-holder's-token-1";
    assert_eq!(stage.run(stage.holder, "swap_parked", &[b"", HOLDER, next, b"5000"]), r":1\r\n");
    assert_eq!(stage.granted_over(next), Some(stage.holder));
    assert!(stage.world.checker.facts[next.as_slice()].is_handed_over);
    assert_eq!(stage.run(stage.holder, "unpark", &[b"", next, b"", b"0", b"0"]), r":2\r\n");
    let mut stage = Stage::new();
    assert_eq!(stage.run(stage.holder, "shared_acquire_queue", &[HOLDER, b"5000"]), r"+OK\r\n");
    assert_eq!(stage.granted_over(HOLDER), Some(stage.holder));
    assert_eq!(stage.violation(), None);
}

#[test]
fn a_forced_unlock_that_serves_takes_and_gives() {
    let mut stage = Stage::contended();
    stage.world.checker.forced.insert((0, 0, KEY.to_vec()), 1);
    assert_eq!(stage.run(stage.holder, "force_unlock_serve", &[]), r":2\r\n");
    assert!(stage.world.checker.facts[HOLDER].lost.contains(id(0)));
    assert_eq!(stage.granted_over(WAITER), Some(stage.waiter));
    assert_eq!(stage.violation(), None);
    assert_eq!(stage.run(stage.holder, "force_unlock_serve", &[]), r":1\r\n");
    assert!(stage.violation().is_some_and(|it| it.starts_with("I10")), "nobody asked for it");
}

#[test]
fn judge_notices_an_unnamed_deletion() {
    let mut stage = Stage::contended();
    let script = broken("release_serve", "redis.call('del', KEYS[1]) return 1");
    lua::with_broken(script, || stage.run(stage.waiter, "release_serve", &[WAITER]));
    assert!(stage.violation().is_some_and(|it| it.starts_with("P5")));
}

#[test]
fn judge_notices_an_unrequested_grant() {
    let mut stage = Stage::new();
    let script = broken("serve", "redis.call('set', KEYS[1], 'somebody-else-token0') return 1");
    lua::with_broken(script, || stage.run(stage.waiter, "serve", &[]));
    assert!(stage.violation().is_some_and(|it| it.starts_with("P4")));
}

#[test]
fn judge_notices_a_leftover_entry() {
    let mut stage = Stage::contended();
    stage.world.check_entries(0);
    assert_eq!(stage.violation(), None);
    stage.world.check_entries(1);
    assert!(stage.violation().is_some_and(|it| it.starts_with("I9")));
    assert_eq!(stage.run(stage.waiter, "unpark", &[b"", WAITER, b"", b"0", b"0"]), r":0\r\n");
    stage.world.check_entries(1);
    assert_eq!(stage.violation(), None);
}

#[test]
fn closed_connection_receives_no_grant() {
    let mut stage = Stage::contended();
    stage.world.leave_conn(1, 0);
    stage.world.conns[stage.waiter].master_input.clear();
    stage.say(stage.waiter, &[b"SUBSCRIBE", CHANNEL]);
    assert!(!stage.world.masters[0].model.has_subscribers(CHANNEL));
    assert_eq!(stage.world.masters[0].model.protocol(stage.waiter), Protocol::Resp3);
    assert_eq!(stage.run(stage.holder, "release_serve", &[HOLDER]), r":1\r\n");
    assert_eq!(stage.granted_over(WAITER), None, "the write is undone");
    assert_eq!(stage.violation(), None);
}
