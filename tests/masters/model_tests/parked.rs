//! The scripts of parked attempts, which the model runs in its own interpreter: the same replies, votes and
//! queues as on a server.
//!
//! Times in a queue depend on each clock. A batch is compared only if it took less than the shortest stay in
//! it, so that no pause of the machine decides.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp::{self, Decoded, Reply};
use redlatch_support::{Fleet, valkey_9};

use super::commands::{text_of, wall_us};
use super::messages::Audience;

const LOCK: &[u8] = b"lock";
const QUEUE: &[u8] = b"redlatch:wait:lock";
const FENCE: &[u8] = b"redlatch:fence:lock";
const READERS: &[u8] = b"redlatch:readers:1";
const WAITER_COUNT: usize = 4;
const BATCHES: usize = 120;
const BATCH_SIZE: usize = 14;
/// Longer arguments are not shown.
const SHOWN_SIZE_MAX: usize = 100;
/// Less than a rung entry's stay.
const BATCH_TIME_MAX: Duration = Duration::from_millis(150);
const HALF_US: u64 = 3_600_000_000;

/// A waiter with its own connection.
struct Waiter {
    conn: usize,
    round: u32,
    ticket: u64,
    channel: Vec<u8>,
    value: Vec<u8>,
}

impl Waiter {
    fn new(conn: usize) -> Self {
        let end = if conn.is_multiple_of(2) { "s" } else { "" };
        let channel = format!("redlatch:c:{conn:032}{end}").into_bytes();
        Self { conn, round: 0, ticket: wall_us() + conn as u64, channel, value: Vec::new() }
    }

    /// Arguments of the waiter's next round.
    fn park(&mut self, rng: &mut StdRng) -> Vec<Vec<u8>> {
        let old = std::mem::take(&mut self.value);
        self.round += 1;
        self.value = format!("token-{:05}-{:08}", self.conn, self.round).into_bytes();
        if rng.random() {
            self.value.extend_from_slice(b"\tits label");
        }
        let mode = *[b"p", b"p", b"f", b"r"].choose(rng).expect("not empty");
        let token = wall_us().saturating_add_signed([0, -60_000_000, -7_200_000_000][rng.random_range(0..3)]);
        let fenced = if mode == b"f" { format!("{token:016}{HALF_US:012}7200000000") } else { String::new() };
        let at = if rng.random() { String::new() } else { self.ticket.to_string() };
        let text = |text: &str| text.as_bytes().to_vec();
        vec![
            format!("waiter-{:05}", self.conn).into_bytes(),
            self.round.to_string().into_bytes(),
            self.ticket.to_string().into_bytes(),
            at.into_bytes(),
            text("0"),
            old,
            text(["0", "1"][rng.random_range(0..2)]),
            mode.to_vec(),
            text(["0", "3000", "3000", "3000"][rng.random_range(0..4)]),
            text(["0", "3000"][rng.random_range(0..2)]),
            text("5000"),
            self.channel.clone(),
            format!("{:08}", self.round).into_bytes(),
            fenced.into_bytes(),
            self.value.clone(),
        ]
    }
}

/// Larger numbers are times: a rung entry has more time left than this.
const TIME_MIN: i64 = 10;

/// A reply with its times masked.
fn masked(bytes: &[u8]) -> String {
    let Ok(Decoded::Complete { reply, size }) = resp::decode(bytes) else {
        return bytes.escape_ascii().to_string();
    };
    let is_time = |it: &Reply<'_>| matches!(it, Reply::Integer(number) if *number >= TIME_MIN);
    let shown = |it: Reply<'_>| match it {
        Reply::Bulk(text) if text.starts_with(b"redlatch:1:") => {
            [&text[..32], &text[58..]].concat().escape_ascii().to_string()
        }
        it if is_time(&it) => "a time".to_owned(),
        it => format!("{it:?}"),
    };
    let first = match reply {
        Reply::Array(elements) => {
            let is_readers = elements.iter().next() == Some(Reply::Bulk(READERS));
            let mut elements: Vec<_> = elements.iter().map(shown).collect();
            // Sorted by expiry, which may be equal on one of the two.
            if is_readers {
                elements.sort();
            }
            format!("{elements:?}")
        }
        reply => shown(reply),
    };
    let rest = &bytes[size..];
    if rest.is_empty() { first } else { format!("{first}, {}", masked(rest)) }
}

struct Stage {
    audience: Audience,
    rng: StdRng,
    waiters: Vec<Waiter>,
    /// The first difference in this batch. Nothing is sent after it.
    difference: Option<String>,
}

impl Stage {
    fn new(addr: SocketAddr, rng: StdRng) -> Self {
        let mut audience = Audience::new(addr);
        let waiters: Vec<_> = (1..=WAITER_COUNT).map(Waiter::new).collect();
        for conn in 0..=WAITER_COUNT {
            audience.exchange(conn, &[b"HELLO", b"3"]);
        }
        let mut stage = Self { audience, rng, waiters, difference: None };
        for place in 0..WAITER_COUNT {
            let channel = stage.waiters[place].channel.clone();
            let command: &[u8] = if channel.ends_with(b"s") { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
            stage.say(place + 1, &[command, &channel]);
        }
        stage
    }

    fn say(&mut self, conn: usize, words: &[&[u8]]) {
        if self.difference.is_some() {
            return;
        }
        let [server, model] = self.audience.exchange(conn, words).map(|reply| masked(&reply));
        if server == model {
            return self.audience.hear_messages(words);
        }
        let short = words.iter().filter(|word| word.len() <= SHOWN_SIZE_MAX);
        let shown: Vec<_> = short.map(|word| word.escape_ascii().to_string()).collect();
        self.difference = Some(format!("{shown:?}\nserver: {server}\nmodel: {model}"));
    }

    fn run(&mut self, conn: usize, script: &str, args: &[&[u8]]) {
        let keys: &[&[u8]] = match script {
            "swap_parked" | "shared_acquire_queue" => &[LOCK, QUEUE],
            _ => &[LOCK, QUEUE, FENCE],
        };
        let count = keys.len().to_string();
        self.say(conn, &[&[b"EVAL", text_of(script), count.as_bytes()], keys, args].concat());
    }

    fn step(&mut self) {
        let place = self.rng.random_range(0..WAITER_COUNT);
        let (conn, value) = (self.waiters[place].conn, self.waiters[place].value.clone());
        let token = wall_us().to_string();
        match self.rng.random_range(0..20) {
            0..7 => {
                let args = self.waiters[place].park(&mut self.rng);
                let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
                self.run(conn, "park", &args);
            }
            7..9 => {
                let at = self.waiters[place].ticket.to_string();
                let at = if self.rng.random() { at.as_bytes() } else { b"" };
                let token = if self.rng.random() { token.as_bytes() } else { b"" };
                self.run(conn, "unpark", &[at, &value, token, b"3600000000", b"7200000"]);
            }
            9 => self.run(0, "serve", &[]),
            10..12 => self.run(0, "release_serve", &[&value]),
            12 => {
                let half = HALF_US.to_string();
                let (token, half) = (token.as_bytes(), half.as_bytes());
                self.run(0, "fenced_release_serve", &[&value, token, half, half, b"7200000"]);
            }
            13 => self.run(0, "shared_acquire_queue", &[b"a-reader-of-20-bytes", b"5000"]),
            14 => self.run(0, "shared_release_serve", &[b"a-reader-of-20-bytes"]),
            15 => self.run(conn, "shared_release_serve", &[&value]),
            16 => self.run(0, "force_unlock_serve", &[]),
            17 => self.run(0, "swap_parked", &[b"", &value, b"another-of-20-bytes!", b"5000"]),
            18 => self.say(0, &[b"SET", LOCK, b"a-holder-of-20-bytes", b"NX", b"PX", b"5000"]),
            _ => {
                let key = *[LOCK, LOCK, QUEUE, FENCE].choose(&mut self.rng).expect("not empty");
                match self.rng.random_range(0..3) {
                    0 => self.say(0, &[b"DEL", key]),
                    1 => self.say(0, &[b"SET", key, b"foreign", b"PX", b"5000"]),
                    _ => {
                        self.say(0, &[b"DEL", key]);
                        self.say(0, &[b"ZADD", key, b"5", b"foreign"]);
                    }
                }
            }
        }
    }

    /// Sends some commands to an empty server. Returns whether they were fast enough for a comparison.
    fn batch(&mut self) -> bool {
        for key in [LOCK, QUEUE, FENCE] {
            self.say(0, &[b"DEL", key]);
        }
        let (start, now_us) = (Instant::now(), wall_us());
        self.waiters.iter_mut().for_each(|waiter| waiter.ticket = now_us + waiter.conn as u64);
        let is_full = self.rng.random_range(0..6) == 0;
        let full_from = if is_full { self.rng.random_range(0..BATCH_SIZE) } else { BATCH_SIZE };
        for step in 0..BATCH_SIZE {
            if step == full_from {
                self.audience.fill(true);
            }
            self.step();
            self.say(0, &[b"ZRANGE", QUEUE, b"0", b"-1"]);
            self.say(0, &[b"GET", LOCK]);
            self.say(0, &[b"ZRANGE", LOCK, b"0", b"-1"]);
        }
        self.audience.fill(false);
        start.elapsed() < BATCH_TIME_MAX
    }
}

fn hold_against(addr: SocketAddr) {
    let mut stage = Stage::new(addr, StdRng::seed_from_u64(1));
    let mut count = 0;
    for _ in 0..BATCHES {
        let is_in_time = stage.batch();
        count += usize::from(is_in_time);
        if let Some(difference) = stage.difference.take() {
            assert!(!is_in_time, "{difference}");
            stage = Stage::new(addr, stage.rng);
        }
    }
    println!("{count} batches were in time, {} messages", stage.audience.message_count);
    assert!(count > BATCHES / 4, "only {count} batches were in time");
}

#[test]
fn the_model_parks_like_the_server() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr());
}

#[test]
fn the_model_parks_like_valkey() {
    let Some(place) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![place]);
    hold_against(fleet.master(0).addr());
}
