//! A model master: the few commands that a lock client sends, on a virtual clock.
//!
//! `tests/masters/model_tests.rs` holds it against real servers, reply for reply. What it leaves out: databases, what a
//! connection that has subscribed may not say, the
//! logins of connections (a wrong `AUTH` is refused, yet what follows is answered), and that a server's clock has whole
//! milliseconds, for which a key there lives up to one longer than it was told, never shorter.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

#[path = "model_shared.rs"]
mod shared;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use redlatch::resp::{self, Decoded, Reply};
#[allow(unused_imports, reason = "each program that includes this file uses the part it needs")]
pub use shared::{ReaderScript, reader_key};

use queue::Queues;

#[path = "model_queue.rs"]
mod queue;

/// One server process and its data.
pub struct ModelMaster {
    pub run_id: String,
    pub started: Instant,
    /// A whole second of its wall clock, and what that showed then, in microseconds since 1970.
    epoch: Instant,
    epoch_us: i128,
    /// By how much its wall clock was set ahead since this process started.
    clock_step: Duration,
    /// What it tells in `INFO`; an empty text as if it told nothing.
    pub role: String,
    pub maxmemory_policy: String,
    /// Whether it has `SET IFEQ`, `DELIFEQ` and `DELEX`, and the words of Valkey 9; if not, it is Redis 7.0.
    pub is_native: bool,
    /// Whether its memory is at the limit, and its policy `noeviction`.
    pub is_full: bool,
    /// Whether an error in a script names the script though it `is_native`, as with Valkey 8.
    pub names_scripts: bool,
    /// Whether it echoes something else.
    pub has_wrong_echo: bool,
    /// The login that it wants.
    pub password: Option<String>,
    /// Commands that it answers with an error, by their first word or by that and the key, and the error.
    pub errors: HashMap<String, String>,
    /// All commands that it carried out.
    pub log: Vec<Vec<Vec<u8>>>,
    /// Messages for other connections than the one that is served, with their numbers.
    pub pushes: Vec<(usize, Vec<u8>)>,
    /// Who has subscribed to each channel.
    subscribers: BTreeMap<Vec<u8>, BTreeSet<usize>>,
    /// The connection that is served.
    conn: usize,
    keys: Keys,
    /// Those of the keys that hold a list, or a sorted set of somebody else's, instead of a string.
    lists: HashSet<Vec<u8>>,
    sorted_sets: HashSet<Vec<u8>>,
    /// Whether there ever was a reader: only then all keys are looked through for them.
    knows_readers: bool,
    scripts: HashSet<Vec<u8>>,
    /// Scripts that it was asked to run.
    pub script_count: u64,
    /// Who waits for fair locks.
    pub queues: Queues,
}

/// Values and when they expire.
pub type Keys = HashMap<Vec<u8>, (Vec<u8>, Option<Instant>)>;

/// All commands that it has without `is_native`.
const NAMES: [&str; 19] = [
    "AUTH",
    "CLIENT",
    "DEL",
    "ECHO",
    "EVAL",
    "EVALSHA",
    "GET",
    "GETRANGE",
    "INFO",
    "PING",
    "PTTL",
    "PUBLISH",
    "SCRIPT",
    "SELECT",
    "SET",
    "SUBSCRIBE",
    "TIME",
    "UNSUBSCRIBE",
    "ZREVRANK",
];

const OK: Reply<'static> = Reply::Simple(b"OK");
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The member by which a set of readers is known.
const READERS_MARKER: &[u8] = b"redlatch:readers:1";

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

const RELEASE_SHA: &[u8] = b"b998f9dfb154cdbea8cda65ad5177aadf0e945a2";
const TELLING_SHA: &[u8] = b"5933056f90a2bc1d11a960282dc78a3199ab5ac0";
const EXTEND_SHA: &[u8] = b"53f2c61c14d7b92a6f44852b306cc8ed3636d4db";
const SWAP_SHA: &[u8] = b"e4975e6d8e4814dcc271cedbf9abad377e06a755";
const FENCED_ACQUIRE_SHA: &[u8] = b"db8eaad87595a7ed22afe1ccb0d9cd9c2a565d70";
const FENCED_TELLING_SHA: &[u8] = b"84c6c9632e4d388280b2204a140bfbde6810ef39";
const FENCED_RELEASE_SHA: &[u8] = b"3d5d344ebf5c4e77efdc0c8d0b721b8d576fe40a";
/// Only ever sent in full.
const INTENT: &[u8] = b"1739c8a5f97d6c31b57fd4ea6ae2883c60dd3a19";
/// The beginning of an intent's value.
const INTENT_MARK: &[u8] = b"redlatch:1:";
const FORCE: &[u8] = b"db92369204d779fca19eb68b65b7546ebb006767";
const NO_LOCK: &str = "WRONGTYPE a key of another type is there, which is no lock: nothing was deleted";
/// Scripts with a deliberate defect, which are only ever sent in full.
const NOT_STRICT: &[u8] = b"a token as large as the fence is taken";
const FENCE_DELETED: &[u8] = b"a release deletes the fence";
const NO_NUMBER: &str = "ERR the fence is no number";

impl ModelMaster {
    pub fn new(run_id: &str, started: Instant) -> Self {
        Self {
            run_id: run_id.to_owned(),
            started,
            epoch: started,
            epoch_us: 0,
            clock_step: Duration::ZERO,
            role: "master".to_owned(),
            maxmemory_policy: "noeviction".to_owned(),
            is_native: false,
            is_full: false,
            names_scripts: false,
            has_wrong_echo: false,
            password: None,
            errors: HashMap::new(),
            log: Vec::new(),
            pushes: Vec::new(),
            subscribers: BTreeMap::new(),
            conn: 0,
            keys: HashMap::new(),
            lists: HashSet::new(),
            sorted_sets: HashSet::new(),
            knows_readers: false,
            scripts: HashSet::new(),
            script_count: 0,
            queues: Queues::default(),
        }
    }

    /// Another process in its place, without data.
    pub fn restart(&mut self, run_id: &str, now: Instant) {
        self.keys.clear();
        self.restart_from_snapshot(run_id, now);
    }

    /// Another process in its place, with the data that this one had.
    pub fn restart_from_snapshot(&mut self, run_id: &str, now: Instant) {
        self.run_id = run_id.to_owned();
        self.started = now;
        // The wall clock stays as it is; the uptime counts from now.
        self.epoch_us += i128::try_from(self.clock_step.as_micros()).expect("small");
        self.clock_step = Duration::ZERO;
        self.scripts.clear();
        self.subscribers.clear();
        self.queues.lose();
    }

    /// Its data, as a snapshot would have it.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Takes other data for its own.
    pub fn load_keys(&mut self, keys: Keys) {
        self.keys = keys;
        self.lists.clear();
        self.sorted_sets.clear();
        self.queues.lose();
    }

    /// Its wall clock is set ahead, as by NTP; from now on this process tells a larger uptime than it has.
    pub fn set_clock_ahead(&mut self, step: Duration) {
        self.clock_step += step;
    }

    /// Its wall clock shows this many microseconds since 1970.
    pub fn set_wall(&mut self, now: Instant, us: u64) {
        self.epoch_us += i128::from(us) - i128::from(self.wall_us(now));
    }

    /// What its wall clock shows, in microseconds since 1970.
    pub fn wall_us(&self, now: Instant) -> u64 {
        let now = now + self.clock_step;
        let us = |time: Duration| i128::try_from(time.as_micros()).expect("small");
        let passed =
            us(now.saturating_duration_since(self.epoch)) - us(self.epoch.saturating_duration_since(now));
        u64::try_from((self.epoch_us + passed).max(0)).expect("small")
    }

    /// The fence of a lock: the largest token that it remembers, or zero.
    pub fn fence(&self, now: Instant, key: &[u8]) -> u64 {
        fence_in(&self.keys, now, key)
    }

    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// The live value of a key.
    pub fn value(&self, now: Instant, key: &[u8]) -> Option<&[u8]> {
        let (value, expires) = self.keys.get(key)?;
        expires.is_none_or(|at| now < at).then_some(value.as_slice())
    }

    /// Puts a key there, as somebody else would.
    pub fn put(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) {
        self.lists.remove(key);
        self.sorted_sets.remove(key);
        self.remove_readers(key);
        self.keys.insert(key.to_vec(), (value.to_vec(), expires));
    }

    /// Puts something else than a string there, as somebody else would.
    pub fn put_list(&mut self, key: &[u8]) {
        self.put(key, b"", None);
        self.lists.insert(key.to_vec());
    }

    /// Puts a sorted set there that is none of readers.
    pub fn put_sorted_set(&mut self, key: &[u8], expires: Option<Instant>) {
        self.put(key, b"", expires);
        self.sorted_sets.insert(key.to_vec());
    }

    /// Whether a key holds neither a string nor a sorted set.
    fn is_no_sorted_set(&self, now: Instant, key: &[u8]) -> bool {
        self.value(now, key).is_some() && !self.sorted_sets.contains(key)
    }

    /// The first words of the commands carried out since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        let name = |args: Vec<Vec<u8>>| String::from_utf8_lossy(&args[0]).into_owned();
        self.log.drain(..).map(name).collect()
    }

    /// The same for one of several connections; what it publishes is left in `pushes`.
    pub fn handle_over(&mut self, conn: usize, now: Instant, input: &mut Vec<u8>, replies: &mut Vec<u8>) {
        self.conn = conn;
        self.handle(now, input, replies);
    }

    /// A connection has ended.
    pub fn forget_conn(&mut self, conn: usize) {
        self.subscribers.retain(|_, conns| {
            conns.remove(&conn);
            !conns.is_empty()
        });
    }

    /// Sends a message to who has subscribed; returns how many that are.
    pub fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        if self.errors.contains_key("PUBLISH") {
            return 0;
        }
        let conns = self.subscribers.get(channel).cloned().unwrap_or_default();
        for conn in &conns {
            let mut message = Vec::new();
            resp::encode_command(&mut message, &[b"message", channel, payload]);
            self.pushes.push((*conn, message));
        }
        conns.len()
    }

    /// Tells that a lock was released, as the script does it.
    fn tell(&mut self, key: &[u8]) {
        let count = self.publish(key, b"");
        if count > 3 {
            self.publish(key, count.to_string().as_bytes());
        }
    }

    /// Carries out the whole commands at the front of `input`, takes them out, and appends the replies.
    pub fn handle(&mut self, now: Instant, input: &mut Vec<u8>, replies: &mut Vec<u8>) {
        let mut done = 0;
        loop {
            let (args, size) = match resp::decode(&input[done..]) {
                Ok(Decoded::Complete { reply: Reply::Array(args), size }) => {
                    let bulk = |reply| {
                        if let Reply::Bulk(bytes) = reply { bytes.to_vec() } else { panic!("no bulk") }
                    };
                    (args.iter().map(bulk).collect::<Vec<_>>(), size)
                }
                Ok(Decoded::Partial { .. }) => break,
                other => panic!("the client sent no command: {:?}", other.map(|_| ())),
            };
            done += size;
            self.carry_out(now, &args, replies);
            self.log.push(args);
        }
        input.drain(..done);
    }

    fn carry_out(&mut self, now: Instant, args: &[Vec<u8>], replies: &mut Vec<u8>) {
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        let key = args.get(1).map(|key| format!("{name} {}", String::from_utf8_lossy(key)));
        let error = self.errors.get(&name).or_else(|| self.errors.get(key.as_ref()?));
        if let Some(error) = error {
            return resp::encode_reply(replies, &Reply::Error(error.as_bytes()));
        }
        let words: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let carried_out = match name.as_str() {
            "SET" | "GET" | "GETRANGE" | "DEL" | "PTTL" | "ZREVRANK" => {
                self.carry_out_on_key(now, &name, &words[1..], replies)
            }
            "DELIFEQ" | "DELEX" if self.is_native => self.carry_out_on_key(now, &name, &words[1..], replies),
            "SCRIPT" | "EVALSHA" | "EVAL" => self.carry_out_script(now, &name, &words[1..], replies),
            _ => self.carry_out_for_connection(now, &name, &words[1..], replies),
        };
        if let Err(error) = carried_out {
            let text = match error {
                Refusal::NotUnderstood if NAMES.contains(&name.as_str()) || self.is_native_name(&name) => {
                    let name = name.to_ascii_lowercase();
                    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
                }
                Refusal::NotUnderstood => unknown_command(&words),
                Refusal::Says(text) => text,
            };
            resp::encode_reply(replies, &Reply::Error(&text));
        }
    }

    fn is_native_name(&self, name: &str) -> bool {
        self.is_native && matches!(name, "DELIFEQ" | "DELEX")
    }

    fn carry_out_for_connection(
        &mut self,
        now: Instant,
        name: &str,
        args: &[&[u8]],
        replies: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        match (name, args) {
            ("AUTH", [_]) if self.password.is_none() => return refuse(NO_PASSWORD),
            ("AUTH", [password]) => {
                self.log_in(b"default", password)?;
                resp::encode_reply(replies, &OK);
            }
            ("AUTH", [user, password]) => {
                self.log_in(user, password)?;
                resp::encode_reply(replies, &OK);
            }
            ("SELECT", [index]) => match std::str::from_utf8(index).ok().and_then(|index| index.parse().ok())
            {
                Some(0..=15) => resp::encode_reply(replies, &OK),
                Some(_) => return refuse("ERR DB index is out of range"),
                None::<i32> => return refuse("ERR value is not an integer or out of range"),
            },
            ("CLIENT", [b"SETNAME", name]) => {
                if !name.iter().all(u8::is_ascii_graphic) {
                    return refuse("ERR Client names cannot contain spaces, newlines or special characters.");
                }
                resp::encode_reply(replies, &OK);
            }
            ("SUBSCRIBE", [channel]) => {
                self.subscribers.entry(channel.to_vec()).or_default().insert(self.conn);
                self.confirm(b"subscribe", channel, replies);
            }
            ("UNSUBSCRIBE", [channel]) => {
                if let Some(conns) = self.subscribers.get_mut(*channel) {
                    conns.remove(&self.conn);
                }
                self.confirm(b"unsubscribe", channel, replies);
            }
            ("PUBLISH", [channel, payload]) => {
                let count = self.publish(channel, payload);
                resp::encode_reply(replies, &Reply::Integer(i64::try_from(count).expect("small")));
            }
            ("PING", []) => resp::encode_reply(replies, &Reply::Simple(b"PONG")),
            ("ECHO", [_]) if self.has_wrong_echo => {
                resp::encode_reply(replies, &Reply::Bulk(b"0123456789abcdef"));
            }
            ("PING" | "ECHO", [text]) => resp::encode_reply(replies, &Reply::Bulk(text)),
            ("TIME", []) => {
                let time = Duration::from_micros(self.wall_us(now));
                resp::encode_array_header(replies, 2);
                resp::encode_bulk(replies, time.as_secs().to_string().as_bytes());
                resp::encode_bulk(replies, time.subsec_micros().to_string().as_bytes());
            }
            ("INFO", [section]) => {
                let text = self.info(now, section);
                resp::encode_reply(replies, &Reply::Bulk(text.as_bytes()));
            }
            _ => return Err(Refusal::NotUnderstood),
        }
        Ok(())
    }

    fn confirm(&self, what: &[u8], channel: &[u8], replies: &mut Vec<u8>) {
        let count = self.subscribers.values().filter(|conns| conns.contains(&self.conn)).count();
        resp::encode_array_header(replies, 3);
        resp::encode_bulk(replies, what);
        resp::encode_bulk(replies, channel);
        resp::encode_reply(replies, &Reply::Integer(i64::try_from(count).expect("small")));
    }

    /// With a password there are two users that have it: `default` and `me`.
    fn log_in(&self, user: &[u8], password: &[u8]) -> Result<(), Refusal> {
        let is_right = match &self.password {
            Some(own) => matches!(user, b"default" | b"me") && own.as_bytes() == password,
            None => user == b"default",
        };
        if is_right {
            Ok(())
        } else {
            refuse("WRONGPASS invalid username-password pair or user is disabled.")
        }
    }

    /// As far as it is read by clients.
    fn info(&self, now: Instant, section: &[u8]) -> String {
        match section {
            b"server" => {
                // As Redis does it: the difference of two wall-clock times, each cut down to a whole second.
                let seconds = |at: Instant| at.saturating_duration_since(self.epoch).as_secs();
                let uptime = seconds(now + self.clock_step).saturating_sub(seconds(self.started));
                let version = if self.is_native {
                    "7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2"
                } else {
                    "7.0.15"
                };
                let run_id = &self.run_id;
                format!(
                    "# Server\r\nredis_version:{version}\r\nrun_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n"
                )
            }
            b"replication" => format!("# Replication\r\nrole:{}\r\n", self.role),
            b"memory" => format!("# Memory\r\nmaxmemory_policy:{}\r\n", self.maxmemory_policy),
            _ => String::new(),
        }
    }

    fn carry_out_on_key(
        &mut self,
        now: Instant,
        name: &str,
        args: &[&[u8]],
        replies: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        match (name, args) {
            ("GET", [key]) => {
                let reply = self.string(now, key)?.map_or(Reply::NullBulk, Reply::Bulk);
                resp::encode_reply(replies, &reply);
            }
            ("GETRANGE", [key, b"0", b"255"]) => {
                let value = self.string(now, key)?.unwrap_or_default();
                resp::encode_reply(replies, &Reply::Bulk(&value[..value.len().min(256)]));
            }
            ("SET", [_, _, ..]) if self.is_full => return refuse(OUT_OF_MEMORY),
            ("SET", [key, value]) => {
                self.put(key, value, None);
                resp::encode_reply(replies, &OK);
            }
            ("SET", [key, value, b"NX"]) => {
                let is_free = !self.is_taken(now, key);
                if is_free {
                    self.put(key, value, None);
                }
                resp::encode_reply(replies, &if is_free { OK } else { Reply::NullBulk });
            }
            ("SET", [key, value, b"PX", ttl]) => {
                self.put(key, value, Some(now + millis(ttl)));
                resp::encode_reply(replies, &OK);
            }
            ("SET", [key, value, b"NX", b"PX", ttl]) => {
                let is_free = !self.is_taken(now, key);
                if is_free {
                    self.put(key, value, Some(now + millis(ttl)));
                }
                resp::encode_reply(replies, &if is_free { OK } else { Reply::NullBulk });
            }
            ("SET", [key, value, b"IFEQ", old, b"PX", ttl]) if self.is_native => {
                let is_own = self.swap(now, key, old, value, ttl)? == 1;
                resp::encode_reply(replies, &if is_own { OK } else { Reply::NullBulk });
            }
            ("SET", [_, _, _, ..]) => return refuse("ERR syntax error"),
            ("DELIFEQ", [key, value]) | ("DELEX", [key, b"IFEQ", value]) => {
                let deleted = self.release(now, key, value)?;
                resp::encode_reply(replies, &Reply::Integer(deleted));
            }
            ("DEL", [key]) => {
                let deleted = self.delete(now, key);
                resp::encode_reply(replies, &Reply::Integer(deleted));
            }
            ("ZREVRANK", [key, _]) if self.is_no_sorted_set(now, key) => return refuse(WRONG_TYPE),
            ("ZREVRANK", [key, READERS_MARKER]) => {
                let count = i64::try_from(self.member_count(now, key)).expect("small");
                let count = if count == 0 { Reply::NullBulk } else { Reply::Integer(count) };
                resp::encode_reply(replies, &count);
            }
            ("PTTL", [key]) => {
                let left = self.time_left(now, key);
                resp::encode_reply(replies, &Reply::Integer(left));
            }
            _ => return Err(Refusal::NotUnderstood),
        }
        Ok(())
    }

    /// The live value of a key that holds a string or nothing.
    fn string(&self, now: Instant, key: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        let value = self.value(now, key);
        let is_other = self.lists.contains(key) || self.sorted_sets.contains(key);
        let is_other = (value.is_some() && is_other) || self.readers_end(now, key).is_some();
        if is_other { refuse(WRONG_TYPE) } else { Ok(value) }
    }

    /// Whether there is a key of any kind.
    pub fn is_taken(&self, now: Instant, key: &[u8]) -> bool {
        self.value(now, key).is_some() || self.readers_end(now, key).is_some()
    }

    /// A writer keeps readers out, unless somebody else's text is there.
    fn leave_intent(&mut self, now: Instant, key: &[u8], value: &[u8], ttl: &[u8]) -> Result<i64, Refusal> {
        let is_foreign = self.string(now, key)?.is_some_and(|old| !old.starts_with(INTENT_MARK));
        if !is_foreign {
            self.refuse_if_full()?;
            self.put(key, value, Some(now + millis(ttl)));
        }
        Ok(i64::from(!is_foreign))
    }

    /// Whether a key is neither a string nor a set of readers.
    fn is_no_lock(&self, now: Instant, key: &[u8]) -> bool {
        self.value(now, key).is_some() && (self.lists.contains(key) || self.sorted_sets.contains(key))
    }

    fn delete(&mut self, now: Instant, key: &[u8]) -> i64 {
        let had = self.is_taken(now, key);
        self.keys.remove(key);
        self.remove_readers(key);
        i64::from(had)
    }

    fn release(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<i64, Refusal> {
        let is_own = self.string(now, key)? == Some(value);
        if is_own {
            self.keys.remove(key);
        }
        Ok(i64::from(is_own))
    }

    fn carry_out_script(
        &mut self,
        now: Instant,
        name: &str,
        args: &[&[u8]],
        replies: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        self.script_count += u64::from(name != "SCRIPT");
        let (sha, args) = match (name, args) {
            ("SCRIPT", [b"LOAD", script]) => {
                resp::encode_reply(replies, &Reply::Bulk(self.load(script)));
                return Ok(());
            }
            ("SCRIPT", [b"FLUSH"]) => {
                self.flush_scripts();
                resp::encode_reply(replies, &OK);
                return Ok(());
            }
            ("EVALSHA", [sha, args @ ..]) if self.scripts.contains(*sha) => (*sha, args),
            ("EVALSHA", [_, _, ..]) if self.is_native => return refuse("NOSCRIPT No matching script."),
            ("EVALSHA", [_, _, ..]) => return refuse("NOSCRIPT No matching script. Please use EVAL."),
            ("EVAL", [script, args @ ..]) => (self.load(script), args),
            _ => return Err(Refusal::NotUnderstood),
        };
        if let (Some(ReaderScript::Acquire), [b"2", lock, intent, value, ttl]) = (ReaderScript::of(sha), args)
        {
            let reply = self.acquire_shared(now, sha, [lock, intent], [value, ttl]);
            return reply.map_err(|refusal| self.in_script(refusal, sha)).map(|reply| replies.extend(reply));
        }
        if let [b"2", lock, fence, args @ ..] = args {
            let reply = self.carry_out_fenced(now, sha, [*lock, *fence], args);
            return reply.map_err(|refusal| self.in_script(refusal, sha)).map(|reply| replies.extend(reply));
        }
        if let [b"3", lock, _tickets, _heartbeats, args @ ..] = args {
            let done = self.carry_out_fair(now, sha, lock, args, replies);
            return done.map_err(|refusal| self.in_script(refusal, sha));
        }
        let done = match args {
            [b"1", key, value, ttl] if sha == INTENT => self.leave_intent(now, key, value, ttl),
            [b"1", key] if sha == FORCE && self.is_no_lock(now, key) => return refuse(NO_LOCK),
            [b"1", key] if sha == FORCE => Ok(self.delete(now, key)),
            [b"1", key, value, ttl] if ReaderScript::of(sha) == Some(ReaderScript::Extend) => {
                self.extend_shared(now, sha, key, [value, ttl])
            }
            [b"1", key, value, tells] if ReaderScript::of(sha) == Some(ReaderScript::Release) => {
                self.release_shared(now, sha, key, [value, tells])
            }
            [b"1", key, value] if sha == RELEASE_SHA => self.release(now, key, value),
            [b"1", key, value] if sha == TELLING_SHA => self.release(now, key, value).inspect(|done| {
                if *done == 1 {
                    self.tell(key)
                }
            }),
            [b"1", key, value, ttl] if sha == EXTEND_SHA => self.swap(now, key, value, value, ttl),
            [b"1", key, old, new, ttl] if sha == SWAP_SHA => self.swap(now, key, old, new, ttl),
            _ => panic!("no script is called like this"),
        };
        let done = done.map_err(|refusal| self.in_script(refusal, sha))?;
        resp::encode_reply(replies, &Reply::Integer(done));
        Ok(())
    }

    /// The first command of a script that may take memory. What has written may go on.
    fn refuse_if_full(&self) -> Result<(), Refusal> {
        if self.is_full { refuse(OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// An error of a command in a script.
    fn in_script(&self, refusal: Refusal, sha: &[u8]) -> Refusal {
        let is_named = !self.is_native || self.names_scripts;
        let place = if is_named { [sha, b", "].concat() } else { Vec::new() };
        match refusal {
            Refusal::Says(text) if text == NO_NUMBER.as_bytes() => Refusal::Says(text),
            Refusal::Says(text) => {
                Refusal::Says([&text, b" script: ".as_slice(), &place, b"on @user_script:1."].concat())
            }
            other => other,
        }
    }

    /// The scripts of fenced locks. The two deliberate defects in them have digests of their own here.
    fn carry_out_fenced(
        &mut self,
        now: Instant,
        sha: &[u8],
        [lock, fence]: [&[u8]; 2],
        args: &[&[u8]],
    ) -> Result<Vec<u8>, Refusal> {
        let clock = number(self.wall_us(now).to_string().as_bytes());
        let mut reply = Vec::new();
        let done = match *args {
            [value, ttl, token, past, future, life] if sha == FENCED_ACQUIRE_SHA || sha == NOT_STRICT => {
                let Some(old) = self.fence_value(now, fence)? else { return refuse(NO_NUMBER) };
                // A list, or readers, are in the way as they are for `SET NX`.
                let holder = self.string(now, lock).unwrap_or(Some(b""));
                let time = number(token);
                if holder == Some(value) {
                    resp::encode_reply(&mut reply, &Reply::Simple(b"OWN"));
                    return Ok(reply);
                }
                let refusal = if holder.is_some() {
                    Some(0)
                } else if time < old || (time == old && sha != NOT_STRICT) {
                    Some(1)
                } else if time <= clock - number(past) {
                    Some(2)
                } else {
                    (time > clock + number(future)).then_some(3)
                };
                if let Some(refusal) = refusal {
                    let left = if refusal == 0 { self.time_left(now, lock) } else { 0 };
                    resp::encode_array_header(&mut reply, 4);
                    for number in [refusal, old, left, clock] {
                        resp::encode_reply(&mut reply, &Reply::Integer(number));
                    }
                    return Ok(reply);
                }
                self.refuse_if_full()?;
                self.put(fence, token, Some(now + millis(life)));
                self.put(lock, value, Some(now + millis(ttl)));
                resp::encode_reply(&mut reply, &OK);
                return Ok(reply);
            }
            [value, token, past, future, life] if sha == FENCED_RELEASE_SHA || sha == FENCED_TELLING_SHA => {
                let done = self.release(now, lock, value).unwrap_or(0);
                if done == 1 && sha == FENCED_TELLING_SHA {
                    self.tell(lock);
                }
                let time = number(token);
                let old = self.fence_value(now, fence)?;
                if (done == 1 || !self.is_full)
                    && old.is_some_and(|old| time > old)
                    && time > clock - number(past)
                    && time <= clock + number(future)
                {
                    self.put(fence, token, Some(now + millis(life)));
                }
                done
            }
            [value, ..] if sha == FENCE_DELETED => {
                let done = self.release(now, lock, value)?;
                if done == 1 {
                    self.keys.remove(fence);
                }
                done
            }
            _ => panic!("no script is called like this"),
        };
        resp::encode_reply(&mut reply, &Reply::Integer(done));
        Ok(reply)
    }

    /// The number in a fence, zero without one, `None` if it is something else.
    fn fence_value(&self, now: Instant, fence: &[u8]) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.string(now, fence)? else { return Ok(Some(0)) };
        let digits =
            std::str::from_utf8(value).ok().filter(|digits| digits.bytes().all(|it| it.is_ascii_digit()));
        Ok(digits.and_then(|digits| digits.parse().ok()))
    }

    /// As `PTTL` tells it.
    fn time_left(&self, now: Instant, key: &[u8]) -> i64 {
        if let Some(end) = self.readers_end(now, key) {
            return i64::try_from((end - now).as_millis()).expect("small");
        }
        match self.keys.get(key).filter(|_| self.value(now, key).is_some()) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(at))) => i64::try_from((*at - now).as_millis()).expect("small"),
        }
    }

    fn load(&mut self, script: &[u8]) -> &'static [u8] {
        let calls = |name: &[u8]| script.windows(name.len()).any(|window| window == name);
        let sha = match (calls(b"'del'"), calls(b"'set'")) {
            _ if calls(b"nothing was deleted") => FORCE,
            _ if calls(b"'redlatch:1:'") => INTENT,
            (true, _) if calls(b"'publish'") && calls(b"'time'") => FENCED_TELLING_SHA,
            (true, _) if calls(b"'publish'") => TELLING_SHA,
            _ if calls(b"status_reply") => {
                if calls(b"k<=f ") {
                    FENCED_ACQUIRE_SHA
                } else {
                    NOT_STRICT
                }
            }
            _ if calls(b"'time'") => FENCED_RELEASE_SHA,
            _ if calls(b"'del',KEYS[2]") => FENCE_DELETED,
            (true, _) => RELEASE_SHA,
            (_, true) => SWAP_SHA,
            _ => EXTEND_SHA,
        };
        let sha =
            if calls(b"'zrank'") { queue::digest(calls) } else { shared::digest(script).unwrap_or(sha) };
        self.scripts.insert(sha.to_vec());
        sha
    }

    /// An extension, too, is a swap: of a value for the same.
    fn swap(&mut self, now: Instant, key: &[u8], old: &[u8], new: &[u8], ttl: &[u8]) -> Result<i64, Refusal> {
        let is_own = self.string(now, key)? == Some(old);
        if is_own {
            self.put(key, new, Some(now + millis(ttl)));
        }
        Ok(i64::from(is_own))
    }
}

/// Why a command was not carried out.
enum Refusal {
    /// No form of it has these arguments.
    NotUnderstood,
    Says(Vec<u8>),
}

fn refuse<T>(text: &str) -> Result<T, Refusal> {
    Err(Refusal::Says(text.as_bytes().to_vec()))
}

/// The servers' own words: up to 128 characters of the arguments, each up to its first NUL, line ends as spaces.
fn unknown_command(words: &[&[u8]]) -> Vec<u8> {
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
    [b"ERR unknown command '", words[0], b"', with args beginning with: ", &shown].concat()
}

/// How much of the arguments of an unknown command is shown.
const ARGUMENTS_SHOWN_MAX: usize = 128;

/// The key of a lock's fence, without a prefix.
pub fn fence_key(key: &[u8]) -> Vec<u8> {
    [b"redlatch:fence:".as_slice(), key].concat()
}

/// The fence of a lock in some data.
pub fn fence_in(keys: &Keys, now: Instant, key: &[u8]) -> u64 {
    let live = keys.get(&fence_key(key)).filter(|(_, expires)| expires.is_none_or(|at| now < at));
    live.and_then(|(value, _)| std::str::from_utf8(value).ok()?.parse().ok()).unwrap_or(0)
}

fn number(digits: &[u8]) -> i64 {
    std::str::from_utf8(digits).expect("digits").parse().expect("digits")
}

fn millis(digits: &[u8]) -> Duration {
    Duration::from_millis(std::str::from_utf8(digits).expect("digits").parse().expect("digits"))
}
