//! A model master: the few commands that a lock client sends. Time is an argument: virtual in the simulator,
//! real in [`Double`](super::Double).
//!
//! `tests/masters/model_tests.rs` compares it with real servers, reply for reply. It has no databases and
//! needs no login: a wrong `AUTH` is refused, but later commands are answered. A real server's clock has
//! whole milliseconds, so a key there lives up to 1 ms longer than reported, never shorter.
//!
//! ```text
//! model       a server, and the path of a command through it
//! conns       connections, messages, reports of a server about itself
//! commands    commands on keys ──┐
//! scripts     scripts, in Rust ──┴── data    keys, types, ends, memory
//! lua         Lua scripts: of parked attempts, and all others if a test wants it
//! ```

#![allow(missing_docs, reason = "its tests and the simulator use it: it is hidden")]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redlatch::scripts::SCRIPTS;

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
    /// Role that `INFO` reports; with an empty text `INFO` reports none.
    pub role: String,
    /// How often the first replication id was drawn, and the last offset of the id before; -1 without one.
    pub replid_count: u32,
    pub second_offset: i64,
    pub maxmemory_policy: String,
    pub dialect: Dialect,
    /// Whether `ECHO` answers with another text.
    pub has_wrong_echo: bool,
    /// Password that a login must give.
    pub password: Option<String>,
    /// Commands to answer with an error, by name or by name and key.
    pub errors: BTreeMap<String, String>,
    /// All executed commands.
    pub log: Vec<Vec<Vec<u8>>>,
    /// Messages to connections other than the served one, with the connections' numbers.
    pub pushes: Vec<(usize, Vec<u8>)>,
    conns: Conns,
    pub data: Data,
    /// Places in [`SCRIPTS`] of the cached scripts.
    scripts: BTreeSet<usize>,
    /// Number of requests to run a script.
    pub script_count: u64,
    /// Runs the scripts that have no version in Rust.
    pub interpreter: Interpreter,
    /// Whether the interpreter runs all other scripts, too.
    pub interprets_all: bool,
}

/// Commands and words of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Redis 7.0: needs a script for each comparison.
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

    /// Native command that compares and deletes.
    pub fn native_release(self) -> Option<&'static str> {
        match self {
            Self::Redis7 | Self::Valkey8 => None,
            Self::Redis8 => Some("DELEX"),
            Self::Valkey9 => Some("DELIFEQ"),
        }
    }
}

/// Commands that all dialects have.
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

    /// Replaces the process with another one without data.
    pub fn restart(&mut self, run_id: &str, now: Instant) {
        self.data.keys.clear();
        self.restart_from_snapshot(run_id, now);
    }

    /// Replaces the process with another one that has its data.
    pub fn restart_from_snapshot(&mut self, run_id: &str, now: Instant) {
        self.run_id = run_id.to_owned();
        self.forget_promotion();
        self.started = now;
        // The wall clock goes on, while the uptime starts again from zero.
        self.wall.epoch_us += i128::try_from(self.wall.step.as_micros()).expect("small");
        self.wall.step = Duration::ZERO;
        self.scripts.clear();
        self.conns.clear();
    }

    /// Becomes a replica of a master with this data, copies the data, and is promoted: the process stays, but
    /// its memory is another's.
    pub fn resync(&mut self, keys: Keys) {
        self.load_keys(keys);
        self.promote();
    }

    /// Turns a replica into a master, which keeps its first replication id as its second.
    pub fn promote(&mut self) {
        self.role = "master".to_owned();
        self.replid_count += 1;
        self.second_offset = 15;
    }

    /// Happens when the first replica connects, somebody runs `--rdb`, or the backlog expires.
    pub fn forget_promotion(&mut self) {
        self.replid_count += 1;
        self.second_offset = -1;
    }

    /// Data as in a snapshot.
    pub fn keys(&self) -> &Keys {
        &self.data.keys
    }

    /// Replaces the data.
    pub fn load_keys(&mut self, keys: Keys) {
        self.data.keys = keys;
    }

    /// Sets the wall clock ahead, as NTP might: the process now reports more uptime than it has.
    pub fn set_clock_ahead(&mut self, step: Duration) {
        self.wall.step += step;
    }

    /// Sets the wall clock to this many microseconds since 1970.
    pub fn set_wall(&mut self, now: Instant, us: u64) {
        self.wall.epoch_us += i128::from(us) - i128::from(self.wall_us(now));
    }

    /// Time of the wall clock, in microseconds since 1970.
    pub fn wall_us(&self, now: Instant) -> u64 {
        self.wall.us(now)
    }

    /// Fence of a lock: the largest token that the master remembers, or zero.
    pub fn fence(&self, now: Instant, key: &[u8]) -> u64 {
        fence_in(&self.data.keys, now, key)
    }

    /// Caches all scripts, as if another client had loaded them.
    pub fn load_scripts(&mut self) {
        self.scripts.extend(0..SCRIPTS.len());
    }

    /// Refuses to run scripts, with this error.
    pub fn refuse_scripts(&mut self, error: &str) {
        self.errors.extend(["EVALSHA", "EVAL"].map(|name| (name.to_owned(), error.to_owned())));
    }

    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Live value of a key with a string.
    pub fn value(&self, now: Instant, key: &[u8]) -> Option<&[u8]> {
        self.data.string(now, key).ok().flatten()
    }

    /// Whether the key exists, with any type.
    pub fn is_taken(&self, now: Instant, key: &[u8]) -> bool {
        self.data.is_taken(now, key)
    }

    /// Sets a string, as another client would.
    pub fn put(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) {
        self.data.put(key, Value::String(value.to_vec()), expires);
    }

    /// Sets a key of another type than a string, as another client would.
    pub fn put_list(&mut self, key: &[u8]) {
        self.data.put(key, Value::List, None);
    }

    /// Sets a sorted set that is not a set of readers.
    pub fn put_sorted_set(&mut self, key: &[u8], expires: Option<Instant>) {
        let members: [(f64, &[u8]); 2] = [(5.0, b"five"), (9_999_999_999_999.0, b"x")];
        let set = members.into_iter().collect();
        self.data.put(key, Value::SortedSet(set), expires);
    }

    /// Names of the commands executed since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        let name = |args: Vec<Vec<u8>>| String::from_utf8_lossy(&args[0]).into_owned();
        self.log.drain(..).map(name).collect()
    }

    /// Removes the complete commands from the front of `input`, executes them, and appends the replies.
    pub fn handle(&mut self, now: Instant, input: &mut Vec<u8>, replies: &mut Vec<u8>) {
        self.handle_over(0, now, input, replies);
    }

    /// Like [`Self::handle`], for one of several connections. Puts messages for other connections into
    /// `pushes`.
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

    /// Executes one command of one of several connections. Leaves messages to others in `pushes`, and nothing
    /// in `log`.
    pub fn carry_out_over(&mut self, conn: usize, now: Instant, words: &[&[u8]], replies: &mut Vec<u8>) {
        self.conns.serve(conn);
        self.carry_out(now, words, replies);
    }

    /// Executes a command. Redis 7.0 sends messages to the command's own connection before the reply, later
    /// servers after it.
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

/// Why a command was not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The command does not have these arguments in any form.
    NotUnderstood,
    Says(Vec<u8>),
}

impl Refusal {
    fn says<T>(text: &str) -> Result<T, Self> {
        Err(Self::Says(text.as_bytes().to_vec()))
    }
}

/// A command's name in capitals.
fn in_capitals(word: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(word) {
        Ok(name) if word.iter().all(u8::is_ascii_uppercase) => name.into(),
        _ => String::from_utf8_lossy(word).to_ascii_uppercase().into(),
    }
}

/// Reads the words of the first command in `input`. Returns the command's size, or `None` if it is
/// incomplete.
///
/// # Errors
/// If the bytes are not a command in the only form that clients use: an array of strings with lengths.
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

/// A client's bytes that are not a command.
#[derive(Debug)]
pub struct NoCommand(pub &'static str);

/// Reads a length after its mark. Returns the length and the bytes after its line.
fn length(mark: u8, input: &[u8]) -> Result<Option<(usize, &[u8])>, NoCommand> {
    let Some((first, digits)) = input.split_first() else { return Ok(None) };
    if *first != mark {
        return Err(NoCommand("no command"));
    }
    // A fast path: most lengths have one or two digits.
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

/// Largest number of digits of a length: servers take strings of up to 512 MiB.
const LENGTH_SIZE_MAX: usize = 9;

/// Error in the servers' own words: up to 128 characters of the arguments, each up to its first NUL, with
/// line ends as spaces. Redis 8.6 does not mention absent arguments.
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

/// Largest number of characters shown of an unknown command's arguments.
const ARGUMENTS_SHOWN_MAX: usize = 128;

/// Key of a lock's fence, without a prefix.
pub fn fence_key(key: &[u8]) -> Vec<u8> {
    [b"redlatch:fence:".as_slice(), key].concat()
}

/// Fence of a lock in this data.
pub fn fence_in(keys: &Keys, now: Instant, key: &[u8]) -> u64 {
    let live = keys.get(&fence_key(key)).filter(|entry| entry.expires.is_none_or(|at| now < at));
    let Some(Value::String(value)) = live.map(|entry| &entry.value) else { return 0 };
    std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
