//! The simulator's model master, held against real servers: it is worth something only if it answers as they do.
//!
//! The same random commands go to both, in the same order; the replies have to be the same bytes. Only what depends on
//! the moment is compared with the time that the exchange may have taken: `PTTL`, `TIME`, the uptime in `INFO`. A short
//! TTL is given only with the last command of a batch, and nothing else is sent before both say that the key is gone,
//! so no race decides a reply.
//!
//! ```text
//! REDLATCH_MODEL_SEEDS=0..1000    others than the tests' own
//! REDLATCH_VALKEY=valkey-server   also this server, with the commands that Redis 7.0 does not have
//! ```

#[path = "../sim/model.rs"]
mod model;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp::{self, Decoded, Reply};

use crate::fleet::{Fleet, eventually};
use crate::lock_tests::PATIENCE;
use crate::model_shared_tests;
use crate::valkey_tests::valkey_9;
use model::ModelMaster;

const SEEDS: Range<u64> = 0..6;
const BATCHES: usize = 120;
const BATCH_SIZE_MAX: usize = 20;
/// Commands that are shown when replies differ.
const SHOWN_MAX: usize = 12;
/// A longer time left than this is no short TTL, and is not waited for.
const SHORT_MAX: i64 = 1_000;

const PASSWORD: &str = "right";

pub(crate) const KEYS: [&[u8]; 5] = [b"orders:42", b"\r\n", b"a\0b", b"\xff\xfe\r\n\0$3\r\n", &[b'k'; 200]];
pub(crate) const TOKENS: [&[u8]; 3] =
    [b"0123456789abcdefghij", b"\r\n\0\r\n$-1\r\n+OK\r\n:1\r\n", &[0xff; 20]];

const RELEASE_SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const EXTEND_SCRIPT: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";
const SWAP_SCRIPT: &str = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('set',KEYS[1],ARGV[2],'px',ARGV[3]) return 1 else return 0 end";
const FENCED_ACQUIRE_SCRIPT: &str = "local t=redis.call('time') local n=t[1]*1000000+t[2] local f=tonumber(redis.call('get',KEYS[2]) or \
0) local k=tonumber(ARGV[3]) if not f then return redis.error_reply('ERR the fence is no number') \
end local h=redis.pcall('get',KEYS[1]) if type(h)=='table' and string.sub(h.err,1,9)~='WRONGTYPE' then return h end \
if h==ARGV[1] then return redis.status_reply('OWN') end if h \
then return {0,f,redis.call('pttl',KEYS[1]),n} end if k<=f then return {1,f,0,n} end if k<=n-ARGV[4] \
then return {2,f,0,n} end if k>n+ARGV[5] then return {3,f,0,n} end \
redis.call('set',KEYS[2],ARGV[3],'px',ARGV[6]) return redis.call('set',KEYS[1],ARGV[1],'px',ARGV[2])";
const FENCED_RELEASE_SCRIPT: &str = "local d=0 local h=redis.pcall('get',KEYS[1]) \
if type(h)=='table' and string.sub(h.err,1,9)~='WRONGTYPE' then return h end if h==ARGV[1] then d=redis.call('del',KEYS[1]) end local \
f=tonumber(redis.call('get',KEYS[2]) or 0) local k=tonumber(ARGV[2]) if f and k>f then local \
t=redis.call('time') local n=t[1]*1000000+t[2] if k>n-ARGV[3] and k<=n+ARGV[4] then \
redis.call('set',KEYS[2],ARGV[2],'px',ARGV[5]) end end return d";
const RELEASE_SHA: &str = "b998f9dfb154cdbea8cda65ad5177aadf0e945a2";
const EXTEND_SHA: &str = "53f2c61c14d7b92a6f44852b306cc8ed3636d4db";
const SWAP_SHA: &str = "13152eaad60dec772a76ecc2e4595e89e73c32be";
const FENCED_ACQUIRE_SHA: &str = "c0b702ffe6d6fe923e85ca21e689dce168efb723";
const FENCED_RELEASE_SHA: &str = "f1579b7fa3420d7178df51b228528564e04c104d";

#[test]
fn the_model_answers_as_the_server_does() {
    let mut fleet = Fleet::start(1);
    hold_against(fleet.master(0).addr(), None);
}

#[test]
fn the_model_answers_as_a_server_with_a_password_does() {
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
    assert!(pair.model.is_native, "REDLATCH_VALKEY has no native commands");
}

/// The comparison of random commands lets a `PTTL` be off by what an exchange takes; this one does not.
#[test]
fn a_key_just_set_has_its_whole_time_left() {
    let mut fleet = Fleet::start(1);
    let mut pair = Pair::new(0, fleet.master(0).addr(), None);
    eventually(PATIENCE, "no millisecond begins between SET and PTTL", || {
        pair.ask(&[b"DEL", b"a"]);
        let told = pair.ask(
            b"EVAL|redis.call('set',KEYS[1],'x','PX',5000) return redis.call('pttl',KEYS[1])|1|a"
                .split(|&byte| byte == b'|')
                .collect::<Vec<_>>()
                .as_slice(),
        );
        let now = Instant::now();
        pair.ask_model(now, &[b"DEL", b"a"]);
        pair.ask_model(now, &[b"SET", b"a", b"x", b"NX", b"PX", b"5000"]);
        let model = pair.ask_model(now, &[b"PTTL", b"a"]);
        assert!(integer(&told) <= integer(&model), "{told:?} {model:?}");
        told == model
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
    pair
}

fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

/// A server and the model of it.
struct Pair {
    seed: u64,
    rng: StdRng,
    stream: TcpStream,
    model: ModelMaster,
    version: String,
    commands: Commands,
    /// The longest exchange so far: by so much what the two take for the present may differ.
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

    /// Empties the server and makes the model its likeness.
    fn meet(&mut self, start: Instant) {
        self.ask(&[b"FLUSHALL"]);
        self.ask(&[b"SCRIPT", b"FLUSH"]);
        let asked = Instant::now();
        let info = text(&self.ask(&[b"INFO", b"server"]));
        let number = |name| field(&info, name).expect("a server tells it");
        let uptime = Duration::from_secs(number("uptime_in_seconds").parse().expect("seconds"));
        let mut model = ModelMaster::new(number("run_id"), asked.checked_sub(uptime).expect("a short life"));
        model.set_wall(Instant::now(), wall_us());
        model.password = self.model.password.take();
        self.version =
            field(&info, "valkey_version").or(field(&info, "redis_version")).expect("one").to_owned();
        let has_set_if_eq = self.ask(&[b"SET", b"a", b"x", b"IFEQ", b"x", b"PX", b"1"]) == b"$-1\r\n";
        let has_del_if_eq = self.ask(&[b"DELIFEQ", b"a", b"x"]) == b":0\r\n";
        let has_del_ex = self.ask(&[b"DELEX", b"a", b"IFEQ", b"x"]) == b":0\r\n";
        model.is_native = has_set_if_eq || has_del_if_eq || has_del_ex;
        // A model without native commands refuses all three as the server has to; one with them has all three.
        self.commands = Commands {
            set_if_eq: has_set_if_eq || !model.is_native,
            del_if_eq: has_del_if_eq || !model.is_native,
            del_ex: has_del_ex || !model.is_native,
        };
        self.model = model;
        self.slack = self.slack.max(start.elapsed());
    }

    /// One batch, and what has to be waited for after it.
    fn step(&mut self) {
        if self.rng.random_range(0..8) == 0 {
            let key = *KEYS.choose(&mut self.rng).expect("not empty");
            self.ask(&[b"DEL", key]);
            self.ask(&[b"RPUSH", key, b"x"]);
            self.model.put_list(key);
        }
        let mut batch = Vec::new();
        for _ in 0..self.rng.random_range(1..=BATCH_SIZE_MAX) {
            let command = self.commands.draw(&mut self.rng);
            let is_last = command.short_lived.is_some();
            batch.push(command);
            if is_last {
                break;
            }
        }
        self.count += batch.len();
        self.exchange(&batch);
        let last = batch.pop().expect("at least one");
        if let Some(key) = last.short_lived {
            self.await_end(key);
        }
    }

    /// Waits until a key with a short TTL is gone on both; one that was refused and has a long one stays.
    fn await_end(&mut self, key: &[u8]) {
        let left = integer(&self.ask(&[b"PTTL", key]));
        if left == -1 || left > SHORT_MAX {
            return;
        }
        eventually(PATIENCE, "a key with a short TTL is gone", || {
            self.model.value(Instant::now(), key).is_none() && self.ask(&[b"PTTL", key]) == b":-2\r\n"
        });
    }

    /// Sends the same commands to both and compares the replies.
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

    /// Asks the server alone.
    fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        resp::encode_command(&mut bytes, words);
        self.stream.write_all(&bytes).expect("the server takes it");
        self.read_replies(1)
    }

    /// Asks the model alone.
    fn ask_model(&mut self, now: Instant, words: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        resp::encode_command(&mut bytes, words);
        self.model.handle(now, &mut bytes, &mut reply);
        reply
    }

    fn read_replies(&mut self, count: usize) -> Vec<u8> {
        let mut received = Vec::new();
        let mut space = [0; 4096];
        while split_replies(&received).len() < count {
            let size = self.stream.read(&mut space).expect("the server answers in time");
            assert!(size > 0, "seed {}: the server closed the connection", self.seed);
            received.extend_from_slice(&space[..size]);
        }
        received
    }
}

/// The bytes of each whole reply.
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

/// `name:value` on a line of its own.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// One command and how its replies are compared.
pub(crate) struct Command {
    pub(crate) words: Vec<Vec<u8>>,
    pub(crate) check: Check,
    /// The key that may be about to end: nothing may follow before it has.
    pub(crate) short_lived: Option<&'static [u8]>,
}

impl Command {
    pub(crate) fn of(words: &[&[u8]]) -> Self {
        let words = words.iter().map(|word| word.to_vec()).collect();
        Self { words, check: Check::Bytes, short_lived: None }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.words.iter().try_for_each(|word| write!(f, "{} ", word.escape_ascii()))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Check {
    Bytes,
    TimeLeft,
    /// That, or something else that is the same.
    TimeLeftOr,
    TimeOfDay,
    Info,
    Fenced,
}

impl Check {
    fn is_passed_by(self, server: &[u8], model: &[u8], slack: Duration) -> bool {
        match self {
            Self::Bytes => server == model,
            Self::TimeLeftOr if server.first() != Some(&b':') || model.first() != Some(&b':') => {
                server == model
            }
            Self::TimeLeft | Self::TimeLeftOr => {
                // One more for each time cut down to a millisecond, the server's present and the model's rest, and one for
                // a wall clock that is being corrected.
                let slack_ms = i64::try_from(slack.as_millis()).expect("short") + 3;
                let (server, model) = (integer(server), integer(model));
                if server < 0 || model < 0 { server == model } else { (server - model).abs() <= slack_ms }
            }
            Self::TimeOfDay => is_time(server) && is_time(model),
            Self::Fenced => is_told_alike(server, model, slack),
            Self::Info => is_like(&text(server), &text(model), slack),
        }
    }
}

/// Two bulk strings, seconds and microseconds.
fn is_time(reply: &[u8]) -> bool {
    let text = text(reply);
    let lines: Vec<_> = text.split("\r\n").collect();
    let &["*2", seconds_size, seconds, micros_size, micros, ""] = lines.as_slice() else { return false };
    let sizes = [format!("${}", seconds.len()), format!("${}", micros.len())];
    let numbers = (seconds.parse::<u64>(), micros.parse::<u64>());
    sizes == [seconds_size, micros_size] && matches!(numbers, (Ok(_), Ok(0..=999_999)))
}

/// Whether a refused fencing token is refused alike: the time left and the clock may differ by what an exchange takes.
fn is_told_alike(server: &[u8], model: &[u8], slack: Duration) -> bool {
    let numbers = |reply: &[u8]| match resp::decode(reply) {
        Ok(Decoded::Complete { reply: Reply::Array(told), .. }) => {
            let number = |it| if let Reply::Integer(number) = it { number } else { -1 };
            Some(told.iter().map(number).collect::<Vec<_>>())
        }
        _ => None,
    };
    let (Some(of_server), Some(of_model)) = (numbers(server), numbers(model)) else { return server == model };
    let ([refusal, fence, left, time], [other_refusal, other_fence, other_left, other_time]) =
        (of_server.as_slice(), of_model.as_slice())
    else {
        return false;
    };
    let slack_us = i64::try_from(slack.as_micros()).expect("short") + 3_000;
    (refusal, fence) == (other_refusal, other_fence)
        && (left - other_left).abs() * 1000 <= slack_us
        && (left.is_negative() == other_left.is_negative())
        && (time - other_time).abs() <= slack_us
}

/// The wall clock in microseconds since 1970.
fn wall_us() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    u64::try_from(since.as_micros()).expect("before the year 500,000")
}

/// Whether the fields that a handshake reads are the same, and stand in the same section.
fn is_like(server: &str, model: &str, slack: Duration) -> bool {
    let is_same = |name| field(server, name) == field(model, name);
    let is_there = |name| field(server, name).is_some() == field(model, name).is_some();
    let uptime =
        |info| field(info, "uptime_in_seconds").map(|seconds| seconds.parse::<u64>().expect("seconds"));
    let is_as_old = match (uptime(server), uptime(model)) {
        (Some(server), Some(model)) => server.abs_diff(model) <= slack.as_secs() + 1,
        (server, model) => server == model,
    };
    let title = |info: &str| info.split("\r\n").nth(1).map(str::to_owned);
    title(server) == title(model)
        && ["run_id", "role", "maxmemory_policy"].into_iter().all(is_same)
        && ["redis_version", "valkey_version"].into_iter().all(is_there)
        && is_as_old
}

/// Which commands are drawn: those that the model has if the server does.
#[derive(Default)]
struct Commands {
    set_if_eq: bool,
    del_if_eq: bool,
    del_ex: bool,
}

impl Commands {
    fn draw(&self, rng: &mut StdRng) -> Command {
        let mut command = loop {
            let drawn = match rng.random_range(0..24) {
                20..24 => Some(model_shared_tests::draw(rng)),
                0..10 => self.draw_for_lock(rng),
                10..13 => Some(draw_fenced(rng)),
                13..16 => Some(draw_script(rng)),
                16..18 => Some(draw_for_connection(rng)),
                18 => Some(self.draw_bad(rng)),
                _ => Some(draw_info(rng)),
            };
            if let Some(command) = drawn {
                break command;
            }
        };
        if rng.random_range(0..16) == 0 {
            command.words[0].make_ascii_lowercase();
        }
        command
    }

    /// What is sent while locks are taken, extended and released. `None` if this server has no such command.
    fn draw_for_lock(&self, rng: &mut StdRng) -> Option<Command> {
        let key = *KEYS.choose(rng).expect("not empty");
        let token = *TOKENS.choose(rng).expect("not empty");
        let is_short = rng.random_range(0..8) == 0;
        let ttl = if is_short { rng.random_range(1..=5) } else { rng.random_range(3_600_000..7_200_000) };
        let ttl = u64::to_string(&ttl);
        let ttl = ttl.as_bytes();
        let short_lived = is_short.then_some(key);
        let with_ttl = |words| Command { short_lived, ..Command::of(words) };
        let old = *TOKENS.choose(rng).expect("not empty");
        Some(match rng.random_range(0..17) {
            0..4 => with_ttl(&[b"SET", key, token, b"NX", b"PX", ttl]),
            4 => with_ttl(&[b"EVALSHA", EXTEND_SHA.as_bytes(), b"1", key, token, ttl]),
            5 => with_ttl(&[b"EVAL", EXTEND_SCRIPT.as_bytes(), b"1", key, token, ttl]),
            6 if self.set_if_eq => with_ttl(&[b"SET", key, token, b"IFEQ", old, b"PX", ttl]),
            7 => Command::of(&[b"EVALSHA", RELEASE_SHA.as_bytes(), b"1", key, token]),
            8 => Command::of(&[b"EVAL", RELEASE_SCRIPT.as_bytes(), b"1", key, token]),
            9 if self.del_if_eq => Command::of(&[b"DELIFEQ", key, token]),
            10 if self.del_ex => Command::of(&[b"DELEX", key, b"IFEQ", token]),
            11 => Command { check: Check::TimeLeft, ..Command::of(&[b"PTTL", key]) },
            12 if rng.random_range(0..2) == 0 => Command::of(&[b"GETRANGE", key, b"0", b"255"]),
            12 => Command::of(&[b"GET", key]),
            13 if rng.random_range(0..3) == 0 => Command::of(&[b"SET", key, token]),
            13 => Command::of(&[b"DEL", key]),
            14 => with_ttl(&[b"EVALSHA", SWAP_SHA.as_bytes(), b"1", key, old, token, ttl]),
            15 => with_ttl(&[b"EVAL", SWAP_SCRIPT.as_bytes(), b"1", key, old, token, ttl]),
            16 => with_ttl(&[b"SET", key, token, b"PX", ttl]),
            _ => return None,
        })
    }

    /// What a server refuses by its form.
    fn draw_bad(&self, rng: &mut StdRng) -> Command {
        let key = *KEYS.choose(rng).expect("not empty");
        let bad: &[&[&[u8]]] = &[
            &[b"GET"],
            &[b"GET", key, key],
            &[b"SET", key],
            &[b"SET", key, key, b"ZZ"],
            &[b"SET", key, key, b"NX", b"PX"],
            &[b"GETRANGE", key],
            &[b"PTTL"],
            &[b"DEL"],
            &[b"ECHO"],
            &[b"PING", key, key],
            &[b"EVALSHA", b"x"],
            &[b"EVALSHA", b"x", b"0"],
            &[b"EVAL"],
            &[b"NOSUCH"],
            &[b"NoSuch", key, b"\r\n", key, key, key],
            &[b"DELIFEQ", key],
        ];
        let count = if self.del_if_eq { bad.len() } else { bad.len() - 1 };
        Command::of(bad[rng.random_range(0..count)])
    }
}

/// Fenced locks, with tokens inside and outside of a window of an hour, and fences that are none.
fn draw_fenced(rng: &mut StdRng) -> Command {
    static WALL_US: OnceLock<u64> = OnceLock::new();
    const MINUTE_US: i64 = 60_000_000;
    let key = *KEYS.choose(rng).expect("not empty");
    let value = *TOKENS.choose(rng).expect("not empty");
    let mut fence = [b"redlatch:fence:", key].concat();
    if rng.random_range(0..8) == 0 {
        let other = KEYS.iter().find(|other| **other != key).expect("several");
        fence = other.to_vec();
    }
    let minutes = [-120, -20, -19, 0, 1, 20, 120][rng.random_range(0..7)];
    let token = WALL_US.get_or_init(wall_us).saturating_add_signed(minutes * MINUTE_US);
    let token = u64::to_string(&(token + rng.random_range(0..3)));
    let half = (30 * MINUTE_US).to_string();
    let life = b"7200000".as_slice();
    let is_short = rng.random_range(0..8) == 0;
    let ttl = u64::to_string(&if is_short { rng.random_range(1..=5) } else { 3_600_000 });
    let is_whole = rng.random();
    let name: &[u8] = if is_whole { b"EVAL" } else { b"EVALSHA" };
    if rng.random_range(0..3) == 0 {
        let script = if is_whole { FENCED_RELEASE_SCRIPT } else { FENCED_RELEASE_SHA };
        let (token, half) = (token.as_bytes(), half.as_bytes());
        return Command::of(&[name, script.as_bytes(), b"2", key, &fence, value, token, half, half, life]);
    }
    let script = if is_whole { FENCED_ACQUIRE_SCRIPT } else { FENCED_ACQUIRE_SHA };
    let (token, half, ttl) = (token.as_bytes(), half.as_bytes(), ttl.as_bytes());
    // As for a lock that is held, whose token may be of any age.
    let past = if rng.random_range(0..4) == 0 { b"4503599627370496" } else { half };
    let words = [name, script.as_bytes(), b"2", key, &fence, value, ttl, token, past, half, life];
    Command { check: Check::Fenced, short_lived: is_short.then_some(key), ..Command::of(&words) }
}

fn draw_script(rng: &mut StdRng) -> Command {
    match rng.random_range(0..10) {
        9 => model_shared_tests::draw_load(rng),
        6 => Command::of(&[b"SCRIPT", b"LOAD", FENCED_ACQUIRE_SCRIPT.as_bytes()]),
        7 => Command::of(&[b"SCRIPT", b"LOAD", FENCED_RELEASE_SCRIPT.as_bytes()]),
        0..2 => Command::of(&[b"SCRIPT", b"LOAD", RELEASE_SCRIPT.as_bytes()]),
        2..4 => Command::of(&[b"SCRIPT", b"LOAD", EXTEND_SCRIPT.as_bytes()]),
        4..6 => Command::of(&[b"SCRIPT", b"LOAD", SWAP_SCRIPT.as_bytes()]),
        _ => Command::of(&[b"SCRIPT", b"FLUSH"]),
    }
}

fn draw_for_connection(rng: &mut StdRng) -> Command {
    let key = *KEYS.choose(rng).expect("not empty");
    let password: &[u8] = [PASSWORD.as_bytes(), b"wrong", b""][rng.random_range(0..3)];
    let user: &[u8] = [b"default".as_slice(), b"me", b"nobody"][rng.random_range(0..3)];
    match rng.random_range(0..9) {
        0 => Command::of(&[b"PING"]),
        1 => Command::of(&[b"PING", key]),
        2 => Command::of(&[b"ECHO", key]),
        3 => Command { check: Check::TimeOfDay, ..Command::of(&[b"TIME"]) },
        4 => Command::of(&[b"AUTH", password]),
        5 => Command::of(&[b"AUTH", user, password]),
        6 => {
            let index: &[u8] = [b"0".as_slice(), b"16", b"-1", b"x"][rng.random_range(0..4)];
            Command::of(&[b"SELECT", index])
        }
        _ => {
            let name: &[u8] = [b"redlatch".as_slice(), b"a b", b"\r\n", b"\xff"][rng.random_range(0..4)];
            Command::of(&[b"CLIENT", b"SETNAME", name])
        }
    }
}

fn draw_info(rng: &mut StdRng) -> Command {
    let section: &[u8] = [b"server".as_slice(), b"replication", b"memory"][rng.random_range(0..3)];
    Command { check: Check::Info, ..Command::of(&[b"INFO", section]) }
}
