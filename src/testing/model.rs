//! A model master: the few commands that a lock client sends. Time is an argument: virtual in the simulator,
//! the present in [`Double`](super::Double).
//!
//! `tests/masters/model_tests.rs` holds it against real servers, reply for reply. It leaves out databases and
//! the logins of connections: a wrong `AUTH` is refused, yet what follows is answered. A server's clock has
//! whole milliseconds, for which a key there lives up to one longer than it reported, never shorter.
//!
//! ```text
//! model       a server, and the way of a command through it
//! conns       connections, messages, what a server says of itself
//! answer      replies in RESP2 and RESP3
//! commands    commands on keys ──┐
//! scripts     scripts, in Rust ──┴── data    keys, types, ends, memory
//!    shared                          of readers
//! lua         scripts themselves: those of parked attempts, and all others where a test wants it
//! park        what parked attempts leave
//! ```

#![allow(missing_docs, reason = "its tests and the simulator use it: `internals` is hidden")]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::lock::SCRIPTS;

pub use answer::{Answer, Protocol};
use commands::integer;
use conns::Conns;
pub use conns::Scope;
pub use data::{Data, Entry, Keys, SortedSet, Value, Wall, lease_end, leases, token_of};
pub use park::{Parked, parking_script, queue_key};
pub use scripts::{Interpreter, WITHOUT_LIKENESS, digest, script};

mod answer;
mod commands;
mod conns;
mod data;
pub mod lua;
mod park;
mod scripts;
mod shared;

/// One server process and its data.
pub struct ModelMaster {
    pub run_id: String,
    pub started: Instant,
    pub wall: Wall,
    /// The role that it reports in `INFO`; an empty text as if it reported nothing.
    pub role: String,
    /// How often it drew its first replication id, and up to which offset it follows the one before; -1 if it
    /// has none.
    pub replid_count: u32,
    pub second_offset: i64,
    pub maxmemory_policy: String,
    pub dialect: Dialect,
    /// Whether it echoes something else.
    pub has_wrong_echo: bool,
    /// The login that it wants.
    pub password: Option<String>,
    /// Commands that it answers with an error, by their first word or by that and the key, and the error.
    pub errors: BTreeMap<String, String>,
    /// All commands that it carried out.
    pub log: Vec<Vec<Vec<u8>>>,
    /// Messages for other connections than the one that is served, with their numbers.
    pub pushes: Vec<(usize, Vec<u8>)>,
    conns: Conns,
    pub data: Data,
    /// Places in [`SCRIPTS`] of the scripts that it knows.
    scripts: BTreeSet<usize>,
    /// Scripts that it was asked to run.
    pub script_count: u64,
    /// Runs the scripts that have no likeness in Rust.
    pub interpreter: Interpreter,
    /// Whether it runs all others, too.
    pub interprets_all: bool,
}

/// Commands and words of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Redis 7.0: all that compares is a script.
    #[default]
    Redis7,
    /// Redis 8.6: `SET IFEQ` and `DELEX`.
    Redis8,
    /// Valkey 8.1: `SET IFEQ`.
    Valkey8,
    /// Valkey 9: `SET IFEQ` and `DELIFEQ`.
    Valkey9,
}

impl Dialect {
    pub const ALL: [Self; 4] = [Self::Redis7, Self::Redis8, Self::Valkey8, Self::Valkey9];

    pub fn is_valkey(self) -> bool {
        matches!(self, Self::Valkey8 | Self::Valkey9)
    }

    pub fn has_set_if_eq(self) -> bool {
        self != Self::Redis7
    }

    /// The command that compares and deletes.
    pub fn native_release(self) -> Option<&'static str> {
        match self {
            Self::Redis7 | Self::Valkey8 => None,
            Self::Redis8 => Some("DELEX"),
            Self::Valkey9 => Some("DELIFEQ"),
        }
    }
}

/// Commands of each dialect.
const NAMES: [&str; 36] = [
    "AUTH",
    "CLIENT",
    "DEL",
    "ECHO",
    "EVAL",
    "EVALSHA",
    "EXISTS",
    "GET",
    "GETRANGE",
    "HELLO",
    "INFO",
    "PEXPIRE",
    "PEXPIREAT",
    "PING",
    "PTTL",
    "PUBLISH",
    "SCRIPT",
    "SELECT",
    "SET",
    "SPUBLISH",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "TIME",
    "TYPE",
    "UNSUBSCRIBE",
    "ZADD",
    "ZCARD",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREM",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANK",
    "ZSCORE",
];

const BESIDE_SUBSCRIPTIONS: &str =
    ": only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";

impl ModelMaster {
    pub fn new(run_id: &str, started: Instant) -> Self {
        Self {
            run_id: run_id.to_owned(),
            started,
            wall: Wall { epoch: started, epoch_us: 0, step: Duration::ZERO },
            role: "master".to_owned(),
            replid_count: 0,
            second_offset: -1,
            maxmemory_policy: "noeviction".to_owned(),
            dialect: Dialect::default(),
            has_wrong_echo: false,
            password: None,
            errors: BTreeMap::new(),
            log: Vec::new(),
            pushes: Vec::new(),
            conns: Conns::default(),
            data: Data::default(),
            scripts: BTreeSet::new(),
            script_count: 0,
            interpreter: lua::run,
            interprets_all: false,
        }
    }

    /// Another process in its place, without data.
    pub fn restart(&mut self, run_id: &str, now: Instant) {
        self.data.keys.clear();
        self.restart_from_snapshot(run_id, now);
    }

    /// Another process in its place, with the data that this one had.
    pub fn restart_from_snapshot(&mut self, run_id: &str, now: Instant) {
        self.run_id = run_id.to_owned();
        self.forget_promotion();
        self.started = now;
        // The wall clock stays as it is; the uptime counts from now.
        self.wall.epoch_us += i128::try_from(self.wall.step.as_micros()).expect("small");
        self.wall.step = Duration::ZERO;
        self.scripts.clear();
        self.conns.clear();
    }

    /// It becomes a replica of a master with this data, gets all of it, and is promoted: one process, with
    /// another memory.
    pub fn resync(&mut self, keys: Keys) {
        self.load_keys(keys);
        self.promote();
    }

    /// A replica becomes a master: it keeps its first replication id as its second.
    pub fn promote(&mut self) {
        self.role = "master".to_owned();
        self.replid_count += 1;
        self.second_offset = 15;
    }

    /// Its first replica connects, somebody runs `--rdb`, or its backlog expires.
    pub fn forget_promotion(&mut self) {
        self.replid_count += 1;
        self.second_offset = -1;
    }

    /// Its data, as a snapshot would have it.
    pub fn keys(&self) -> &Keys {
        &self.data.keys
    }

    /// Takes other data for its own.
    pub fn load_keys(&mut self, keys: Keys) {
        self.data.keys = keys;
    }

    /// Its wall clock is set ahead, as by NTP; from now on this process reports a larger uptime than it has.
    pub fn set_clock_ahead(&mut self, step: Duration) {
        self.wall.step += step;
    }

    /// Its wall clock shows this many microseconds since 1970.
    pub fn set_wall(&mut self, now: Instant, us: u64) {
        self.wall.epoch_us += i128::from(us) - i128::from(self.wall_us(now));
    }

    /// The time that its wall clock shows, in microseconds since 1970.
    pub fn wall_us(&self, now: Instant) -> u64 {
        self.wall.us(now)
    }

    /// The fence of a lock: the largest token that it remembers, or zero.
    pub fn fence(&self, now: Instant, key: &[u8]) -> u64 {
        fence_in(&self.data.keys, now, key)
    }

    /// Another client has loaded all scripts.
    pub fn load_scripts(&mut self) {
        self.scripts.extend(0..SCRIPTS.len());
    }

    /// It refuses to run scripts with this error.
    pub fn refuse_scripts(&mut self, error: &str) {
        self.errors.extend(["EVALSHA", "EVAL"].map(|name| (name.to_owned(), error.to_owned())));
    }

    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// The live value of a key that holds a string.
    pub fn value(&self, now: Instant, key: &[u8]) -> Option<&[u8]> {
        self.data.string(now, key).ok().flatten()
    }

    /// Whether there is a key of any type.
    pub fn is_taken(&self, now: Instant, key: &[u8]) -> bool {
        self.data.is_taken(now, key)
    }

    /// Puts a key there, as somebody else would.
    pub fn put(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) {
        self.data.put(key, Value::String(value.to_vec()), expires);
    }

    /// Puts something else than a string there, as somebody else would.
    pub fn put_list(&mut self, key: &[u8]) {
        self.data.put(key, Value::List, None);
    }

    /// Puts a sorted set there that is none of readers.
    pub fn put_sorted_set(&mut self, key: &[u8], expires: Option<Instant>) {
        let members: [(f64, &[u8]); 2] = [(5.0, b"five"), (9_999_999_999_999.0, b"x")];
        let set = members.into_iter().collect();
        self.data.put(key, Value::SortedSet(set), expires);
    }

    /// The first words of the commands carried out since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        let name = |args: Vec<Vec<u8>>| String::from_utf8_lossy(&args[0]).into_owned();
        self.log.drain(..).map(name).collect()
    }

    /// Carries out the whole commands at the front of `input`, takes them out, and appends the replies.
    pub fn handle(&mut self, now: Instant, input: &mut Vec<u8>, replies: &mut Vec<u8>) {
        self.handle_over(0, now, input, replies);
    }

    /// The same for one of several connections; what it publishes is left in `pushes`.
    pub fn handle_over(&mut self, conn: usize, now: Instant, input: &mut Vec<u8>, replies: &mut Vec<u8>) {
        self.conns.serve(conn);
        let (mut done, mut words) = (0, Vec::new());
        while let Some(size) = command(&input[done..], &mut words).expect("commands of clients") {
            done += size;
            self.carry_out(now, &words, replies);
            self.log.push(words.iter().map(|word| word.to_vec()).collect());
        }
        input.drain(..done);
    }

    /// Carries out one command of one of several connections; what it publishes is left in `pushes`, and
    /// nothing in `log`.
    pub fn carry_out_over(&mut self, conn: usize, now: Instant, words: &[&[u8]], replies: &mut Vec<u8>) {
        self.conns.serve(conn);
        self.carry_out(now, words, replies);
    }

    /// Carries out a command. Redis 7.0 sends messages to its own connection before the reply, later
    /// servers behind it.
    fn carry_out(&mut self, now: Instant, words: &[&[u8]], replies: &mut Vec<u8>) {
        self.conns.begin_command();
        let answer = self.answer(now, words);
        let (protocol, pushes) = self.conns.end_command();
        if self.dialect == Dialect::Redis7 {
            replies.extend_from_slice(&pushes);
            answer.encode(protocol, replies);
        } else {
            answer.encode(protocol, replies);
            replies.extend_from_slice(&pushes);
        }
    }

    fn answer(&mut self, now: Instant, words: &[&[u8]]) -> Answer {
        let name = &*in_capitals(words[0]);
        if !self.errors.is_empty() {
            let key = words.get(1).map(|key| format!("{name} {}", String::from_utf8_lossy(key)));
            let error = self.errors.get(name).or_else(|| self.errors.get(key.as_ref()?));
            if let Some(error) = error {
                return Answer::Error(error.as_bytes().to_vec());
            }
        }
        let carried_out = match name {
            "SUBSCRIBE" | "UNSUBSCRIBE" | "SSUBSCRIBE" | "SUNSUBSCRIBE" | "PING" => {
                self.carry_out_for_connection(now, name, &words[1..])
            }
            _ if self.conns.allows_only_subscriptions() => Refusal::says(&format!(
                "ERR Can't execute '{}'{BESIDE_SUBSCRIPTIONS}",
                name.to_ascii_lowercase()
            )),
            "SCRIPT" | "EVALSHA" | "EVAL" => self.carry_out_script(now, name, &words[1..]),
            "DELIFEQ" | "DELEX" if self.dialect.native_release() != Some(name) => Err(Refusal::NotUnderstood),
            _ => match self.command(now, name, &words[1..]) {
                Some(answer) => answer,
                None => self.carry_out_for_connection(now, name, &words[1..]),
            },
        };
        carried_out.unwrap_or_else(|refusal| {
            Answer::Error(match refusal {
                Refusal::NotUnderstood
                    if NAMES.contains(&name) || self.dialect.native_release() == Some(name) =>
                {
                    let name = name.to_ascii_lowercase();
                    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
                }
                Refusal::NotUnderstood => unknown_command(self.dialect, words),
                Refusal::Says(text) => text,
            })
        })
    }
}

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No form of it has these arguments.
    NotUnderstood,
    Says(Vec<u8>),
}

impl Refusal {
    fn says<T>(text: &str) -> Result<T, Self> {
        Err(Self::Says(text.as_bytes().to_vec()))
    }
}

/// A command's name as the model knows it.
fn in_capitals(word: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(word) {
        Ok(name) if word.iter().all(u8::is_ascii_uppercase) => name.into(),
        _ => String::from_utf8_lossy(word).to_ascii_uppercase().into(),
    }
}

/// Takes the words of the command at the front of `input`; returns its size, or nothing if not all of it is
/// there.
///
/// # Errors
/// If the bytes are no command in the one form that clients use: an array of strings, each with its length.
pub fn command<'a>(input: &'a [u8], words: &mut Vec<&'a [u8]>) -> Result<Option<usize>, NoCommand> {
    words.clear();
    let Some((word_count, mut rest)) = length(b'*', input)? else { return Ok(None) };
    if word_count == 0 {
        return Err(NoCommand("a command without a name"));
    }
    for _ in 0..word_count {
        let Some((size, behind)) = length(b'$', rest)? else { return Ok(None) };
        let Some((word, behind)) = behind.split_at_checked(size) else { return Ok(None) };
        words.push(word);
        rest = match behind {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(NoCommand("a string without an end")),
        };
    }
    Ok(Some(input.len() - rest.len()))
}

/// Bytes of a client that are no command.
#[derive(Debug)]
pub struct NoCommand(pub &'static str);

/// A length behind its mark, and what follows its line.
fn length(mark: u8, input: &[u8]) -> Result<Option<(usize, &[u8])>, NoCommand> {
    let Some((first, digits)) = input.split_first() else { return Ok(None) };
    if *first != mark {
        return Err(NoCommand("no command"));
    }
    // Most lengths have one digit or two.
    match digits {
        [ones @ b'0'..=b'9', b'\r', b'\n', behind @ ..] => {
            return Ok(Some((usize::from(ones - b'0'), behind)));
        }
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', behind @ ..] => {
            return Ok(Some((10 * usize::from(tens - b'0') + usize::from(ones - b'0'), behind)));
        }
        _ => {}
    }
    let Some(end) = memchr::memchr(b'\r', digits) else {
        let is_length = digits.len() <= LENGTH_SIZE_MAX && digits.iter().all(u8::is_ascii_digit);
        return if is_length { Ok(None) } else { Err(NoCommand("no length")) };
    };
    let number = integer(&digits[..end]).ok().filter(|_| end <= LENGTH_SIZE_MAX);
    let number = number.and_then(|number| usize::try_from(number).ok()).ok_or(NoCommand("no length"))?;
    match &digits[end + 1..] {
        [] => Ok(None),
        [b'\n', behind @ ..] => Ok(Some((number, behind))),
        _ => Err(NoCommand("a broken line")),
    }
}

/// Digits of the longest length: servers take no string of more than 512 MiB.
const LENGTH_SIZE_MAX: usize = 9;

/// The servers' own words: up to 128 characters of the arguments, each up to its first NUL, line ends as
/// spaces. Redis 8.6 says nothing about arguments if there are none.
fn unknown_command(dialect: Dialect, words: &[&[u8]]) -> Vec<u8> {
    let mut shown = Vec::new();
    for word in &words[1..] {
        if shown.len() >= ARGUMENTS_SHOWN_MAX {
            break;
        }
        let size = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
        let size = size.min(ARGUMENTS_SHOWN_MAX - shown.len());
        shown.extend_from_slice(&[b"'", &word[..size], b"' "].concat());
    }
    for byte in &mut shown {
        *byte = if matches!(*byte, b'\r' | b'\n') { b' ' } else { *byte };
    }
    let mut error = [b"ERR unknown command '", words[0], b"'"].concat();
    if !shown.is_empty() || dialect != Dialect::Redis8 {
        error.extend_from_slice(b", with args beginning with: ");
        error.extend_from_slice(&shown);
    }
    error
}

/// How much of the arguments of an unknown command is shown.
const ARGUMENTS_SHOWN_MAX: usize = 128;

/// The key of a lock's fence, without a prefix.
pub fn fence_key(key: &[u8]) -> Vec<u8> {
    [b"redlatch:fence:".as_slice(), key].concat()
}

/// The fence of a lock in some data.
pub fn fence_in(keys: &Keys, now: Instant, key: &[u8]) -> u64 {
    let live = keys.get(&fence_key(key)).filter(|entry| entry.expires.is_none_or(|at| now < at));
    let Some(Value::String(value)) = live.map(|entry| &entry.value) else { return 0 };
    std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
