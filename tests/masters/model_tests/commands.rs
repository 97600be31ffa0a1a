//! The commands for both, and how their replies are compared.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use redlatch::resp::{self, Decoded, Reply};
use redlatch::scripts::SCRIPTS;

use super::{PASSWORD, field, integer, readers, text};

pub(super) const KEYS: [&[u8]; 5] = [b"orders:42", b"\r\n", b"a\0b", b"\xff\xfe\r\n\0$3\r\n", &[b'k'; 200]];
pub(super) const TOKENS: [&[u8]; 3] =
    [b"0123456789abcdefghij", b"\r\n\0\r\n$-1\r\n+OK\r\n:1\r\n", &[0xff; 20]];

/// Text of a script.
pub(super) fn text_of(name: &str) -> &'static [u8] {
    SCRIPTS.iter().find(|script| script.name == name).expect("a script of this name").text.as_bytes()
}

/// A command, and how its replies are compared.
pub(super) struct Command {
    pub(super) words: Vec<Vec<u8>>,
    pub(super) check: Check,
    /// A key that may be about to expire: nothing may follow before it has.
    pub(super) short_lived: Option<&'static [u8]>,
}

impl Command {
    pub(super) fn of(words: &[&[u8]]) -> Self {
        let words = words.iter().map(|word| word.to_vec()).collect();
        Self { words, check: Check::Bytes, short_lived: None }
    }

    /// A script by digest or in full, with the number of its keys, the keys and the arguments.
    pub(super) fn of_script(is_whole: bool, name: &str, rest: &[&[u8]]) -> Self {
        let script = SCRIPTS.iter().find(|script| script.name == name).expect("a script of this name");
        let head: [&[u8]; 2] =
            if is_whole { [b"EVAL", script.text.as_bytes()] } else { [b"EVALSHA", script.sha.as_bytes()] };
        Self::of(&[&head, rest].concat())
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.words.iter().try_for_each(|word| write!(f, "{} ", word.escape_ascii()))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Check {
    Bytes,
    TimeLeft,
    /// A remaining time, or another equal reply.
    TimeLeftOr,
    TimeOfDay,
    Info,
    Fenced,
}

impl Check {
    pub(super) fn is_passed_by(self, server: &[u8], model: &[u8], slack: Duration) -> bool {
        match self {
            Self::Bytes => server == model,
            Self::TimeLeftOr if server.first() != Some(&b':') || model.first() != Some(&b':') => {
                server == model
            }
            Self::TimeLeft | Self::TimeLeftOr => {
                // One more for each time that is rounded down to a millisecond, on the server and in the
                // model, and one for a wall clock that is being adjusted.
                let slack_ms = i64::try_from(slack.as_millis()).expect("short") + 3;
                let (server, model) = (integer(server), integer(model));
                if server < 0 || model < 0 { server == model } else { (server - model).abs() <= slack_ms }
            }
            Self::TimeOfDay => is_time(server) && is_time(model),
            Self::Fenced => is_alike(server, model, slack),
            Self::Info => is_like(&text(server), &text(model), slack),
        }
    }
}

/// Two bulk strings: seconds and microseconds.
fn is_time(reply: &[u8]) -> bool {
    let text = text(reply);
    let lines: Vec<_> = text.split("\r\n").collect();
    let &["*2", seconds_size, seconds, micros_size, micros, ""] = lines.as_slice() else { return false };
    let sizes = [format!("${}", seconds.len()), format!("${}", micros.len())];
    let numbers = (seconds.parse::<u64>(), micros.parse::<u64>());
    sizes == [seconds_size, micros_size] && matches!(numbers, (Ok(_), Ok(0..=999_999)))
}

/// Whether both refuse a fencing token alike: remaining time and clock may differ by an exchange's duration.
fn is_alike(server: &[u8], model: &[u8], slack: Duration) -> bool {
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

/// Numbers in an array.
pub(super) fn numbers(reply: &[u8]) -> Option<Vec<i64>> {
    match resp::decode(reply) {
        Ok(Decoded::Complete { reply: Reply::Array(numbers), .. }) => {
            let number = |it| if let Reply::Integer(number) = it { number } else { -1 };
            Some(numbers.iter().map(number).collect())
        }
        _ => None,
    }
}

/// Wall clock in microseconds since 1970.
pub(super) fn wall_us() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    u64::try_from(since.as_micros()).expect("before the year 500,000")
}

/// Whether the fields that a handshake reads are equal, and in the same section.
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

/// Which commands to draw: those that the model has, if the server has them.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) set_if_eq: bool,
    pub(super) del_if_eq: bool,
    pub(super) del_ex: bool,
}

impl Commands {
    pub(super) fn draw(&self, rng: &mut StdRng) -> Command {
        let mut command = loop {
            let drawn = match rng.random_range(0..24) {
                20..24 => Some(readers::draw(rng)),
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

    /// A command that clients send to acquire, extend or release. `None` if the server lacks it.
    fn draw_for_lock(&self, rng: &mut StdRng) -> Option<Command> {
        let key = *KEYS.choose(rng).expect("not empty");
        let token = *TOKENS.choose(rng).expect("not empty");
        let is_short = rng.random_range(0..8) == 0;
        let ttl = if is_short { rng.random_range(1..=5) } else { rng.random_range(3_600_000..7_200_000) };
        let ttl = u64::to_string(&ttl);
        let ttl = ttl.as_bytes();
        let short_lived = is_short.then_some(key);
        let with_ttl = |words| Command { short_lived, ..Command::of(words) };
        let script = |is_whole, name, rest: &[&[u8]]| Command::of_script(is_whole, name, rest);
        let script_with_ttl =
            |is_whole, name, rest: &[&[u8]]| Command { short_lived, ..script(is_whole, name, rest) };
        let old = *TOKENS.choose(rng).expect("not empty");
        Some(match rng.random_range(0..17) {
            0..4 => with_ttl(&[b"SET", key, token, b"NX", b"PX", ttl]),
            4 => script_with_ttl(false, "extend", &[b"1", key, token, ttl]),
            5 => script_with_ttl(true, "extend", &[b"1", key, token, ttl]),
            6 if self.set_if_eq => with_ttl(&[b"SET", key, token, b"IFEQ", old, b"PX", ttl]),
            7 => script(false, "release", &[b"1", key, token]),
            8 => script(true, "release", &[b"1", key, token]),
            9 if self.del_if_eq => Command::of(&[b"DELIFEQ", key, token]),
            10 if self.del_ex => Command::of(&[b"DELEX", key, b"IFEQ", token]),
            11 => Command { check: Check::TimeLeft, ..Command::of(&[b"PTTL", key]) },
            12 if rng.random_range(0..2) == 0 => Command::of(&[b"GETRANGE", key, b"0", b"255"]),
            12 => Command::of(&[b"GET", key]),
            13 if rng.random_range(0..3) == 0 => Command::of(&[b"SET", key, token]),
            13 => Command::of(&[b"DEL", key]),
            14 => script_with_ttl(false, "swap", &[b"1", key, old, token, ttl]),
            15 => script_with_ttl(true, "swap", &[b"1", key, old, token, ttl]),
            16 => with_ttl(&[b"SET", key, token, b"PX", ttl]),
            _ => return None,
        })
    }

    /// A malformed command.
    fn draw_bad(&self, rng: &mut StdRng) -> Command {
        let key = *KEYS.choose(rng).expect("not empty");
        let bad: [&[&[u8]]; 16] = [
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
            &[b"NoSuch", key, b"\r\n", key, key, key],
            &[b"NOSUCH"],
            &[b"DELIFEQ", key],
        ];
        // Redis 8.0, which lacks DELEX, words the refusal of an unknown command without arguments differently
        // from 8.6.
        let is_right = |it: &&&[&[u8]]| match it[..] {
            [b"NOSUCH"] => self.del_ex,
            [b"DELIFEQ", _] => self.del_if_eq,
            _ => true,
        };
        let bad: Vec<_> = bad.iter().filter(is_right).collect();
        Command::of(bad.choose(rng).expect("not empty"))
    }
}

/// Fenced locks, with tokens inside and outside an hour's window, and keys that are no fences.
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
    let (token, half) = (token.as_bytes(), half.as_bytes());
    if rng.random_range(0..3) == 0 {
        let queue = [b"redlatch:wait:", key].concat();
        let rest = [b"3", key, &queue, &fence, value, token, half, half, life];
        return Command::of_script(is_whole, "fenced_release_serve", &rest);
    }
    // As for a held lock, whose token may have any age.
    let past = if rng.random_range(0..4) == 0 { b"4503599627370496" } else { half };
    let rest = [b"2", key, &fence, value, ttl.as_bytes(), token, past, half, life];
    let command = Command::of_script(is_whole, "fenced_acquire", &rest);
    Command { check: Check::Fenced, short_lived: is_short.then_some(key), ..command }
}

fn draw_script(rng: &mut StdRng) -> Command {
    if rng.random_range(0..8) == 0 {
        return Command::of(&[b"SCRIPT", b"FLUSH"]);
    }
    let script = SCRIPTS.choose(rng).expect("not empty");
    Command::of(&[b"SCRIPT", b"LOAD", script.text.as_bytes()])
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
