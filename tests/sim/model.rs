//! A model master: the few commands that a lock client sends, on a virtual clock.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use redlatch::resp::{self, Decoded, Reply};

/// One server process and its data.
pub struct ModelMaster {
    pub run_id: String,
    pub started: Instant,
    /// A whole second of its wall clock.
    epoch: Instant,
    /// By how much its wall clock was set ahead since this process started.
    clock_step: Duration,
    /// What it tells in `INFO`; an empty text as if it told nothing.
    pub role: String,
    pub maxmemory_policy: String,
    /// Whether it has `SET IFEQ`, `DELIFEQ` and `DELEX`.
    pub is_native: bool,
    /// Whether it echoes something else.
    pub has_wrong_echo: bool,
    /// The login that it wants.
    pub password: Option<String>,
    /// Commands that it answers with an error, by their first word or by that and the key, and the error.
    pub errors: HashMap<String, String>,
    /// All commands that it carried out.
    pub log: Vec<Vec<Vec<u8>>>,
    keys: Keys,
    scripts: HashSet<Vec<u8>>,
}

/// Values and when they expire.
pub type Keys = HashMap<Vec<u8>, (Vec<u8>, Option<Instant>)>;

const RELEASE_SHA: &[u8] = b"b998f9dfb154cdbea8cda65ad5177aadf0e945a2";
const EXTEND_SHA: &[u8] = b"53f2c61c14d7b92a6f44852b306cc8ed3636d4db";

impl ModelMaster {
    pub fn new(run_id: &str, started: Instant) -> Self {
        Self {
            run_id: run_id.to_owned(),
            started,
            epoch: started,
            clock_step: Duration::ZERO,
            role: "master".to_owned(),
            maxmemory_policy: "noeviction".to_owned(),
            is_native: false,
            has_wrong_echo: false,
            password: None,
            errors: HashMap::new(),
            log: Vec::new(),
            keys: HashMap::new(),
            scripts: HashSet::new(),
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
        self.clock_step = Duration::ZERO;
        self.scripts.clear();
    }

    /// Its data, as a snapshot would have it.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Takes other data for its own.
    pub fn load_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Its wall clock is set ahead, as by NTP; from now on this process tells a larger uptime than it has.
    pub fn set_clock_ahead(&mut self, step: Duration) {
        self.clock_step += step;
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
        self.keys.insert(key.to_vec(), (value.to_vec(), expires));
    }

    /// The first words of the commands carried out since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        let name = |args: Vec<Vec<u8>>| String::from_utf8_lossy(&args[0]).into_owned();
        self.log.drain(..).map(name).collect()
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
        match (name.as_str(), &words[1..]) {
            ("AUTH", [.., password]) => {
                let is_right = self.password.as_ref().is_some_and(|own| own.as_bytes() == *password);
                let wrong = Reply::Error(b"WRONGPASS invalid username-password pair");
                resp::encode_reply(replies, &if is_right { Reply::Simple(b"OK") } else { wrong });
            }
            ("SELECT" | "CLIENT", _) => resp::encode_reply(replies, &Reply::Simple(b"OK")),
            ("SCRIPT", [b"LOAD", script]) => {
                let sha = self.load(script);
                resp::encode_reply(replies, &Reply::Bulk(sha));
            }
            ("INFO", _) => {
                // As Redis does it: the difference of two wall-clock times, each cut down to a whole second.
                let seconds = |at: Instant| at.saturating_duration_since(self.epoch).as_secs();
                let uptime = seconds(now + self.clock_step).saturating_sub(seconds(self.started));
                let text = format!(
                    "run_id:{}\r\nuptime_in_seconds:{uptime}\r\nrole:{}\r\nmaxmemory_policy:{}\r\n",
                    self.run_id, self.role, self.maxmemory_policy
                );
                resp::encode_reply(replies, &Reply::Bulk(text.as_bytes()));
            }
            ("ECHO", [_]) if self.has_wrong_echo => {
                resp::encode_reply(replies, &Reply::Bulk(b"0123456789abcdef"))
            }
            ("ECHO", [text]) => resp::encode_reply(replies, &Reply::Bulk(text)),
            ("GET", [key]) => {
                let reply = self.value(now, key).map_or(Reply::NullBulk, Reply::Bulk);
                resp::encode_reply(replies, &reply);
            }
            ("SET", [key, value]) => {
                self.put(key, value, None);
                resp::encode_reply(replies, &Reply::Simple(b"OK"));
            }
            ("SET", [key, value, b"NX", b"PX", ttl]) => {
                let reply = if self.value(now, key).is_some() {
                    Reply::NullBulk
                } else {
                    self.put(key, value, Some(now + millis(ttl)));
                    Reply::Simple(b"OK")
                };
                resp::encode_reply(replies, &reply);
            }
            ("SET", [key, value, b"IFEQ", old, b"PX", ttl]) if self.is_native => {
                let reply = if self.value(now, key) == Some(*old) {
                    self.put(key, value, Some(now + millis(ttl)));
                    Reply::Simple(b"OK")
                } else {
                    Reply::NullBulk
                };
                resp::encode_reply(replies, &reply);
            }
            ("DELIFEQ", [key, value]) if self.is_native => self.release(now, key, value, replies),
            ("DELEX", [key, b"IFEQ", value]) if self.is_native => self.release(now, key, value, replies),
            ("DEL", [key]) => {
                let had = self.value(now, key).is_some();
                self.keys.remove(*key);
                resp::encode_reply(replies, &Reply::Integer(i64::from(had)));
            }
            ("PTTL", [key]) => {
                let left = match self.keys.get(*key).filter(|_| self.value(now, key).is_some()) {
                    None => -2,
                    Some((_, None)) => -1,
                    Some((_, Some(at))) => i64::try_from((*at - now).as_millis()).expect("small"),
                };
                resp::encode_reply(replies, &Reply::Integer(left));
            }
            ("EVALSHA", [sha, rest @ ..]) => {
                if self.scripts.contains(*sha) {
                    self.run(now, sha, rest, replies);
                } else {
                    resp::encode_reply(
                        replies,
                        &Reply::Error(b"NOSCRIPT No matching script. Please use EVAL."),
                    );
                }
            }
            ("EVAL", [script, rest @ ..]) => {
                let sha = self.load(script);
                self.run(now, sha, rest, replies);
            }
            _ => {
                let text = if name == "SET" {
                    "ERR syntax error".to_owned()
                } else {
                    format!("ERR unknown command '{name}'")
                };
                resp::encode_reply(replies, &Reply::Error(text.as_bytes()));
            }
        }
    }

    fn load(&mut self, script: &[u8]) -> &'static [u8] {
        let is_release = script.windows(5).any(|window| window == b"'del'");
        let sha = if is_release { RELEASE_SHA } else { EXTEND_SHA };
        self.scripts.insert(sha.to_vec());
        sha
    }

    fn run(&mut self, now: Instant, sha: &[u8], args: &[&[u8]], replies: &mut Vec<u8>) {
        match args {
            [b"1", key, value] if sha == RELEASE_SHA => self.release(now, key, value, replies),
            [b"1", key, value, ttl] if sha == EXTEND_SHA => {
                let is_own = self.value(now, key) == Some(*value);
                if is_own {
                    self.put(key, value, Some(now + millis(ttl)));
                }
                resp::encode_reply(replies, &Reply::Integer(i64::from(is_own)));
            }
            _ => panic!("no script is called like this"),
        }
    }

    fn release(&mut self, now: Instant, key: &[u8], value: &[u8], replies: &mut Vec<u8>) {
        let is_own = self.value(now, key) == Some(value);
        if is_own {
            self.keys.remove(key);
        }
        resp::encode_reply(replies, &Reply::Integer(i64::from(is_own)));
    }
}

fn millis(digits: &[u8]) -> Duration {
    Duration::from_millis(std::str::from_utf8(digits).expect("digits").parse().expect("digits"))
}
