//! The simulator's model master, compared with real servers.
//!
//! Both get the same random commands in the same order, and must reply with the same bytes. Replies that
//! depend on the time (`PTTL`, `TIME`, the uptime in `INFO`) may differ by the duration of the exchange. Only
//! a batch's last command may set a short TTL; the test then waits until the key is gone on both, so that no
//! race decides a reply.
//!
//! ```text
//! REDLATCH_MODEL_SEEDS=0..1000    other seeds than the tests' own
//! REDLATCH_VALKEY=valkey-server   also this server, with the commands that Redis 7.0 does not have
//! ```

mod commands;
mod messages;
mod parked;
mod readers;
mod versions;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp::{self, Decoded};
use redlatch_support::{Fleet, PATIENCE, eventually, valkey_9};
use redlatch_testing::model::{self, Dialect, ModelMaster};

use commands::{Command, Commands, KEYS, wall_us};

const SEEDS: Range<u64> = 0..6;
const BATCHES: usize = 120;
const BATCH_SIZE_MAX: usize = 20;
/// Number of commands shown when replies differ.
const SHOWN_MAX: usize = 12;
/// A longer remaining time is not a short TTL, and is not waited for.
const SHORT_MAX: i64 = 1_000;

const PASSWORD: &str = "right";

// I89
#[test]
fn the_model_answers_as_the_server_does() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr(), None);
}

#[test]
fn the_model_checks_passwords_like_a_server() {
    let mut fleet = Fleet::start_with(
        1,
        &["--requirepass", PASSWORD, "--user", "me", "on", &format!(">{PASSWORD}"), "~*", "+@all"],
    );
    hold_against(fleet.master(0).addr(), Some(PASSWORD));
}

#[test]
fn the_model_answers_as_valkey_does() {
    let Some(place) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![place]);
    let pair = hold_against(fleet.master(0).addr(), None);
    assert_eq!(pair.model.dialect, Dialect::Valkey9, "REDLATCH_VALKEY names another server");
}

/// The comparison of random commands lets a `PTTL` differ by an exchange's duration; this test does not.
#[test]
fn new_key_has_its_whole_ttl_left() {
    let mut fleet = Fleet::start(1);
    let mut pair = Pair::new(0, fleet.master(0).addr(), None);
    eventually(PATIENCE, "no millisecond begins between SET and PTTL", || {
        pair.ask(&[b"DEL", b"a"]);
        let answer = pair.ask(
            b"EVAL|redis.call('set',KEYS[1],'x','PX',5000) return redis.call('pttl',KEYS[1])|1|a"
                .split(|&byte| byte == b'|')
                .collect::<Vec<_>>()
                .as_slice(),
        );
        let now = Instant::now();
        pair.ask_model(now, &[b"DEL", b"a"]);
        pair.ask_model(now, &[b"SET", b"a", b"x", b"NX", b"PX", b"5000"]);
        let model = pair.ask_model(now, &[b"PTTL", b"a"]);
        assert!(integer(&answer) <= integer(&model), "{answer:?} {model:?}");
        answer == model
    });
}

fn hold_against(addr: SocketAddr, password: Option<&str>) -> Pair {
    let seeds = match std::env::var("REDLATCH_MODEL_SEEDS") {
        Ok(text) => range(&text).expect("REDLATCH_MODEL_SEEDS is FIRST..END"),
        Err(_) => SEEDS,
    };
    let (start, mut count, mut last) = (Instant::now(), 0, None);
    for seed in seeds {
        let mut pair = Pair::new(seed, addr, password);
        for _ in 0..BATCHES {
            pair.step();
        }
        count += pair.count;
        last = Some(pair);
    }
    let pair = last.expect("at least one seed");
    println!("{count} commands to {} in {:?}", pair.version, start.elapsed());
    if pair.drops_auth_errors {
        println!("skipped: AUTH behind other commands, whose error reply {} drops", pair.version);
    }
    pair
}

fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

/// A server and its model.
struct Pair {
    seed: u64,
    rng: StdRng,
    stream: TcpStream,
    model: ModelMaster,
    version: String,
    commands: Commands,
    /// Whether the server sends no reply to a wrong `AUTH` behind a pipeline's first command (Redis 8.0,
    /// Valkey 8.1).
    drops_auth_errors: bool,
    /// The longest exchange so far: the largest difference between the two clocks' readings.
    slack: Duration,
    shown: VecDeque<String>,
    count: usize,
}

impl Pair {
    fn new(seed: u64, addr: SocketAddr, password: Option<&str>) -> Self {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("a server that listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("no zero");
        let start = Instant::now();
        let mut pair = Self {
            seed,
            rng: StdRng::seed_from_u64(seed),
            stream,
            model: ModelMaster::new("", start),
            version: String::new(),
            commands: Commands::default(),
            drops_auth_errors: false,
            slack: Duration::ZERO,
            shown: VecDeque::new(),
            count: 0,
        };
        pair.model.password = password.map(str::to_owned);
        if password.is_some() {
            let logins: [&[&[u8]]; 4] = [
                &[b"AUTH", b"wrong"],
                &[b"AUTH", b"me", b"wrong"],
                &[b"AUTH", b"nobody", PASSWORD.as_bytes()],
                &[b"AUTH", PASSWORD.as_bytes()],
            ];
            logins.iter().for_each(|login| pair.exchange(&[Command::of(login)]));
        }
        pair.meet(start);
        pair
    }

    /// Empties the server, and makes the model like it.
    fn meet(&mut self, start: Instant) {
        self.ask(&[b"FLUSHALL"]);
        self.ask(&[b"SCRIPT", b"FLUSH"]);
        let asked = Instant::now();
        let info = text(&self.ask(&[b"INFO", b"server"]));
        let number = |name| field(&info, name).expect("a server notifies it");
        let uptime = Duration::from_secs(number("uptime_in_seconds").parse().expect("seconds"));
        let mut model = ModelMaster::new(number("run_id"), asked.checked_sub(uptime).expect("a short life"));
        model.set_wall(Instant::now(), wall_us());
        model.password = self.model.password.take();
        model.dialect = dialect_in(&info);
        self.version =
            field(&info, "valkey_version").or(field(&info, "redis_version")).expect("one").to_owned();
        let has_set_if_eq = self.ask(&[b"SET", b"a", b"x", b"IFEQ", b"x", b"PX", b"1"]) == b"$-1\r\n";
        let has_del_if_eq = self.ask(&[b"DELIFEQ", b"a", b"x"]) == b":0\r\n";
        let has_del_ex = self.ask(&[b"DELEX", b"a", b"IFEQ", b"x"]) == b":0\r\n";
        // The server must lack the commands that the model lacks. Redis 8.0 lacks some of its dialect's
        // commands.
        let (has_if_eq, release) = (model.dialect.has_set_if_eq(), model.dialect.native_release());
        self.commands = Commands {
            set_if_eq: has_set_if_eq || !has_if_eq,
            del_if_eq: has_del_if_eq || release != Some("DELIFEQ"),
            del_ex: has_del_ex || release != Some("DELEX"),
        };
        self.drops_auth_errors = self.drops_auth_errors();
        self.model = model;
        self.slack = self.slack.max(start.elapsed());
    }

    /// Asks only the server: whether it replies to each of a pipeline's three commands.
    fn drops_auth_errors(&mut self) -> bool {
        let mut bytes = Vec::new();
        resp::encode_command(&mut bytes, &[b"ECHO", b"first"]);
        resp::encode_command(&mut bytes, &[b"AUTH", b"nobody", b"wrong"]);
        resp::encode_command(&mut bytes, &[b"ECHO", b"last"]);
        self.stream.write_all(&bytes).expect("the server takes it");
        let mut received = Vec::new();
        while !received.ends_with(b"$4\r\nlast\r\n") {
            self.read_more(&mut received);
        }
        split_replies(&received).len() < 3
    }

    /// Sends one batch, and waits for a key to expire if needed.
    fn step(&mut self) {
        if self.rng.random_range(0..8) == 0 {
            let key = *KEYS.choose(&mut self.rng).expect("not empty");
            self.ask(&[b"DEL", key]);
            if self.rng.random() {
                self.ask(&[b"RPUSH", key, b"x"]);
                self.model.put_list(key);
            } else {
                self.put_sorted_set(key);
            }
        }
        let is_full = self.rng.random_range(0..6) == 0;
        self.fill(is_full);
        let mut batch = Vec::new();
        for _ in 0..self.rng.random_range(1..=BATCH_SIZE_MAX) {
            let command = self.commands.draw(&mut self.rng);
            if self.drops_auth_errors && !batch.is_empty() && command.words[0].eq_ignore_ascii_case(b"AUTH") {
                continue;
            }
            let is_last = command.short_lived.is_some();
            batch.push(command);
            if is_last {
                break;
            }
        }
        self.count += batch.len();
        self.exchange(&batch);
        if is_full {
            self.fill(false);
        }
        let last = batch.pop().expect("at least one");
        if let Some(key) = last.short_lived {
            self.await_end(key);
        }
    }

    /// Sets or lifts the memory limit on both.
    fn fill(&mut self, is_full: bool) {
        if self.model.data.is_full != is_full {
            let limit: &[u8] = if is_full { b"1" } else { b"0" };
            assert_eq!(self.ask(&[b"CONFIG", b"SET", b"maxmemory", limit]), b"+OK\r\n");
            self.model.data.is_full = is_full;
        }
    }

    /// A foreign sorted set, with or without a TTL, whose scores are no times.
    fn put_sorted_set(&mut self, key: &[u8]) {
        const HOUR: Duration = Duration::from_secs(3600);
        self.ask(&[b"ZADD", key, b"5", b"five", b"9999999999999", b"x"]);
        let expires = self.rng.random::<bool>().then(|| Instant::now() + HOUR);
        if expires.is_some() {
            self.ask(&[b"PEXPIRE", key, HOUR.as_millis().to_string().as_bytes()]);
        }
        self.model.put_sorted_set(key, expires);
    }

    /// Waits until a key with a short TTL is gone on both. A key that kept its long TTL stays.
    fn await_end(&mut self, key: &[u8]) {
        let left = integer(&self.ask(&[b"PTTL", key]));
        if left == -1 || left > SHORT_MAX {
            return;
        }
        eventually(PATIENCE, "a key with a short TTL is gone", || {
            !self.model.is_taken(Instant::now(), key) && self.ask(&[b"PTTL", key]) == b":-2\r\n"
        });
    }

    /// Sends the same commands to both, and compares the replies.
    fn exchange(&mut self, batch: &[Command]) {
        let mut bytes = Vec::new();
        for command in batch {
            let words: Vec<&[u8]> = command.words.iter().map(Vec::as_slice).collect();
            resp::encode_command(&mut bytes, &words);
        }
        let now = Instant::now();
        let (mut input, mut of_model) = (Vec::new(), Vec::new());
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let size = self.rng.random_range(1..=rest.len());
            self.stream.write_all(&rest[..size]).expect("the server takes it");
            input.extend_from_slice(&rest[..size]);
            self.model.handle(now, &mut input, &mut of_model);
            rest = &rest[size..];
        }
        assert!(input.is_empty(), "the model left {} of the batch", input.escape_ascii());
        let of_server = self.read_replies(batch.len());
        let took = now.elapsed();
        self.slack = self.slack.max(took);
        let mut of_model = split_replies(&of_model).into_iter();
        for (command, server) in batch.iter().zip(split_replies(&of_server)) {
            let model = of_model.next().unwrap_or_default();
            let is_same = command.check.is_passed_by(server, model, self.slack);
            self.shown.truncate(SHOWN_MAX - 1);
            self.shown.push_front(command.to_string());
            if !is_same {
                self.fail(server, model);
            }
        }
        assert_eq!(of_model.next(), None, "the model says more than the server");
        self.model.log.clear();
    }

    fn fail(&self, server: &[u8], model: &[u8]) -> ! {
        let shown: Vec<_> = self.shown.iter().rev().map(String::as_str).collect();
        panic!(
            "seed {}, the last commands:\n  {}\nserver {}: {}\nmodel: {}",
            self.seed,
            shown.join("\n  "),
            self.version,
            server.escape_ascii(),
            model.escape_ascii()
        );
    }

    /// Asks only the server.
    fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        resp::encode_command(&mut bytes, words);
        self.stream.write_all(&bytes).expect("the server takes it");
        self.read_replies(1)
    }

    /// Asks only the model.
    fn ask_model(&mut self, now: Instant, words: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        resp::encode_command(&mut bytes, words);
        self.model.handle(now, &mut bytes, &mut reply);
        reply
    }

    fn read_replies(&mut self, count: usize) -> Vec<u8> {
        let mut received = Vec::new();
        while split_replies(&received).len() < count {
            self.read_more(&mut received);
        }
        received
    }

    fn read_more(&mut self, received: &mut Vec<u8>) {
        let mut space = [0; 4096];
        let size = self.stream.read(&mut space).expect("the server answers in time");
        assert!(size > 0, "seed {}: the server closed the connection", self.seed);
        received.extend_from_slice(&space[..size]);
    }
}

/// The dialect of the server with this `INFO server`.
fn dialect_in(info: &str) -> Dialect {
    let major = |name| field(info, name)?.split('.').next()?.parse::<u32>().ok();
    match (major("valkey_version"), major("redis_version")) {
        (Some(..9), _) => Dialect::Valkey8,
        (Some(_), _) => Dialect::Valkey9,
        (None, Some(8..)) => Dialect::Redis8,
        (None, _) => Dialect::Redis7,
    }
}

/// Splits bytes into whole replies.
fn split_replies(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut replies = Vec::new();
    while let Ok(Decoded::Complete { size, .. }) = resp::decode(bytes) {
        let (reply, rest) = bytes.split_at(size);
        replies.push(reply);
        bytes = rest;
    }
    replies
}

fn text(reply: &[u8]) -> String {
    String::from_utf8_lossy(reply).into_owned()
}

/// The number in an integer reply.
#[track_caller]
fn integer(reply: &[u8]) -> i64 {
    let digits = text(reply);
    let digits = digits.strip_prefix(':').and_then(|digits| digits.strip_suffix("\r\n"));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{}", reply.escape_ascii()))
}

/// Value of a line `name:value`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
