//! The first commands of a new connection, sent in one write, and the facts in the answers.
//!
//! The last command echoes a nonce. The connection votes only when the nonce comes back (I20), because every
//! earlier reply has then met its request. Login and database must succeed; all other steps are optional. If
//! an optional step is refused, or gets an unsuitable reply, the text is kept for display. A temporary error
//! ends the connection, so that the next handshake asks again.

use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use rand::Rng;

use super::groups;
use super::mark::{self, Mark, MarkFound};
use super::record::{self, Found};
use super::trouble::{self, Trouble};
use crate::config::{Config, Login, Quarantine};
use crate::handle::hash;
use crate::lock::command::park::SHARDED;
use crate::lock::command::{self, ExtendBy, ReleaseBy};
use crate::lock::{MasterId, NamedScript, PROBE_NAME};
use crate::resp::{self, Reply};
use crate::words;

/// Commands of the handshake, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    Auth,
    /// Only if waiters may park. From here on the connection may carry messages between replies.
    Hello,
    Select,
    SetName,
    LoadScript,
    InfoServer,
    InfoReplication,
    InfoMemory,
    /// In every mode except `Trust`.
    ReadMark,
    ReadRecord,
    TrySetIfEq,
    TryDelIfEq,
    TryDelEx,
    /// The release script, by its digest and in full. `NOSCRIPT` counts as success: the script is loaded
    /// later.
    TryScript,
    /// On this connection's own sharded channel, without subscribers.
    TryShardedPublish,
    /// On the plain channel, which is used if the master refuses sharded channels.
    TryPublish,
    /// Rights that scripts need, but whose absence they would not report: a script would grant a lock and
    /// take it back, or ask no waiter.
    TryQueue,
    Time,
    Echo,
}

impl HandshakeStep {
    /// Whether the connection is useless without it.
    const fn must_succeed(self) -> bool {
        matches!(self, Self::Auth | Self::Select | Self::Echo)
    }

    /// Whether servers commonly lack the command.
    const fn may_be_unknown(self) -> bool {
        matches!(self, Self::TrySetIfEq | Self::TryDelIfEq | Self::TryDelEx | Self::TryShardedPublish)
    }

    /// Name of the command in messages about its refusal.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auth => "AUTH",
            Self::Hello => HELLO,
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::LoadScript => "SCRIPT LOAD",
            Self::InfoServer => "INFO server",
            Self::InfoReplication => "INFO replication",
            Self::InfoMemory => "INFO memory",
            Self::ReadMark => mark::READING,
            Self::ReadRecord => record::READING,
            Self::TrySetIfEq => "SET IFEQ",
            Self::TryDelIfEq => "DELIFEQ",
            Self::TryDelEx => "DELEX IFEQ",
            Self::TryScript => SCRIPTS,
            Self::TryShardedPublish => "SPUBLISH",
            Self::TryPublish => "PUBLISH",
            Self::TryQueue => PARKING,
            Self::Time => "TIME",
            Self::Echo => "ECHO",
        }
    }
}

/// Text for a reply that is no answer to an optional step.
const NO_ANSWER: &str = "its reply is no answer to that";

/// Name of the command that lets a connection carry messages.
pub(crate) const HELLO: &str = "HELLO 3";

/// Refusal named in the warning for a master that runs no scripts.
pub(crate) const SCRIPTS: &str = "scripts (EVALSHA, EVAL)";

/// Refusal named in the warning for a master on which attempts cannot park.
pub(crate) const PARKING: &str = "a waiter's queue (EVALSHA, SUBSCRIBE, sorted sets)";

/// How the errors begin by which a master refuses every park: a right or a command is missing.
const NO_PARKING: [&[u8]; 4] =
    [b"NOPERM", b"ERR unknown command", b"ERR The user executing the script", b"ERR ACL failure in script"];

const NONCE_SIZE: usize = 16;

/// A handshake in progress, and what it has learnt so far.
#[derive(Debug)]
pub(crate) struct Handshake {
    nonce: [u8; NONCE_SIZE],
    /// Channel of this connection; empty for none.
    channel: Arc<[u8]>,
    /// Login to remove from messages.
    login: Option<Login>,
    pub(crate) learnt: Learnt,
}

/// What a master reported about itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learnt {
    /// URL without the login.
    pub(crate) name: Arc<str>,
    pub(crate) run_id: Option<Box<str>>,
    pub(crate) uptime: Option<Duration>,
    pub(crate) version: Option<Box<str>>,
    pub(crate) replication: Replication,
    pub(crate) maxmemory_policy: Option<Box<str>>,
    /// Other clients' mark of the process.
    pub(crate) mark: MarkFound,
    pub(crate) record: Found,
    pub(crate) has_del_if_eq: bool,
    pub(crate) has_del_ex: bool,
    pub(crate) has_set_if_eq: bool,
    /// Channel through which the master reaches this connection; empty if it sends no messages.
    pub(crate) channel: Arc<[u8]>,
    /// The master's clock, in microseconds since 1970.
    pub(crate) clock_us: Option<u64>,
    /// Refused optional commands, with the server's errors.
    pub(crate) refused: Vec<(&'static str, Box<str>)>,
}

/// What `INFO replication` says about a process. A replica has its master's keys and no others; a full resync
/// replaces them without a new `run_id`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Replication {
    /// `master`, or `slave` for a replica.
    pub(crate) role: Option<Box<str>>,
    /// Identity of the process's last promotion: a hash of its replication ids and of the offset up to which
    /// it followed another master. `None` if the process does not remember being a replica.
    pub(crate) promotion: Option<u64>,
}

impl Replication {
    /// Takes the text of `INFO replication`. A new `master_replid` alone proves nothing: it also changes when
    /// the first replica connects, at a backup with `--rdb`, and when the backlog expires. In these three
    /// cases the server clears the second id and sets its offset to -1.
    #[must_use]
    pub(crate) fn of_info(info: &[u8]) -> Self {
        let offset = info_field(info, "second_repl_offset").filter(|offset| *offset != b"-1");
        let promotion = offset.map(|offset| {
            let id = |name| info_field(info, name).unwrap_or_default();
            hash(&[id("master_replid"), id("master_replid2"), offset].join(&b' '))
        });
        Self { role: info_field(info, "role").map(words::error_text), promotion }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.role.as_deref().is_some_and(|role| role != "master")
    }
}

impl Learnt {
    /// Whether this login may use the master's queues of waiters, and gets messages.
    pub(crate) fn parks(&self) -> bool {
        let needed = [PARKING, SCRIPTS];
        !self.channel.is_empty() && !self.refused.iter().any(|(name, _)| needed.contains(name))
    }

    /// The error with which the master refused to run scripts, if it did.
    pub(crate) fn scripts_refusal(&self) -> Option<&str> {
        self.refused.iter().find(|(name, _)| *name == SCRIPTS).map(|(_, text)| &**text)
    }

    pub(crate) const fn has_native_release(&self) -> bool {
        self.has_del_if_eq || self.has_del_ex
    }

    fn shard_channel(&mut self) {
        if !self.channel.is_empty() {
            self.channel = [&self.channel[..], &[SHARDED]].concat().into();
        }
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.channel.last() == Some(&SHARDED)
    }

    /// The command that subscribes to the channel.
    pub(crate) fn subscribe(&self) -> &'static str {
        if self.is_sharded() { "SSUBSCRIBE" } else { "SUBSCRIBE" }
    }

    /// Whether a master that answers with this error cannot park.
    pub(crate) fn is_parking_refused(error: &[u8]) -> bool {
        NO_PARKING.iter().any(|refusal| error.starts_with(refusal))
    }

    /// The `maxmemory-policy`, if it may evict locks.
    pub(crate) fn evicting_policy(&self) -> Option<&str> {
        self.maxmemory_policy.as_deref().filter(|policy| *policy != "noeviction")
    }

    /// Shortest time for which the process can have had its memory, by the evidence that the mode accepts;
    /// `needed` is the length of a quarantine.
    pub(crate) fn age(&self, config: &Config, needed: Duration) -> Duration {
        match config.quarantine {
            Quarantine::Uptime | Quarantine::Strict if self.is_new() => needed,
            // The process has run for longer than it has had its memory.
            Quarantine::Uptime if self.replication.promotion.is_some() => {
                self.own_mark().and_then(|mark| mark.seen_for(self.clock_us)).unwrap_or_default()
            }
            Quarantine::Uptime => self.run_time().unwrap_or_default(),
            Quarantine::Strict if self.observed() >= needed => self.observed(),
            Quarantine::Strict | Quarantine::Trust => Duration::ZERO,
        }
    }

    /// The mark, if it is valid for this process and history.
    pub(crate) fn own_mark(&self) -> Option<&Mark> {
        self.mark.of(self.run_id.as_deref(), self.replication.promotion)
    }

    /// How long a client has watched this process, according to its mark.
    pub(crate) fn observed(&self) -> Duration {
        self.own_mark().map(|mark| mark.watched).unwrap_or_default()
    }

    /// Whether an operator declared this process as new. A process that has been a replica since then lost
    /// its locks.
    pub(crate) fn is_new(&self) -> bool {
        let is_declared = self.record.is_new(&self.name, self.run_id.as_deref());
        is_declared && self.replication.promotion.is_none()
    }

    /// Lower bound of the process's run time.
    pub(crate) fn run_time(&self) -> Option<Duration> {
        // Uptime is a difference of whole seconds, so its last second may not have passed completely.
        self.uptime.map(|uptime| uptime.saturating_sub(Duration::from_secs(1)))
    }

    /// Upper bound of the process's run time. Uptime is a difference of whole seconds, and a server reads its
    /// clock at least ten times a second.
    pub(crate) fn run_time_max(&self) -> Option<Duration> {
        self.uptime.map(|uptime| uptime.saturating_add(Duration::from_millis(1100)))
    }

    /// Why every mode, or only strict mode, refuses this server.
    pub(crate) fn unfitness(&self, config: &Config) -> Option<String> {
        if self.replication.is_replica() {
            return Some(Trouble::Replica.to_string());
        }
        if config.quarantine != Quarantine::Strict {
            return None;
        }
        if let Some(policy) = self.evicting_policy() {
            return Some(Trouble::StrictEvicting { policy }.to_string());
        }
        let (fields, info_refusal) = self.unreported()?;
        Some(Trouble::StrictUnreported { fields, info_refusal }.to_string())
    }

    /// Fields of `INFO` that the master does not report, and its refusal of `INFO`, if any.
    pub(crate) fn unreported(&self) -> Option<(String, Option<&str>)> {
        let reported = [
            ("run_id", self.run_id.is_some()),
            ("role", self.replication.role.is_some()),
            ("maxmemory_policy", self.maxmemory_policy.is_some()),
        ];
        let missing: Vec<_> =
            reported.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect();
        let refused = self.refused.iter().find(|(name, _)| name.starts_with("INFO"));
        (!missing.is_empty()).then(|| (missing.join(", "), refused.map(|(_, text)| &**text)))
    }

    /// Keeps the last refusal of each command.
    pub(crate) fn note_refused(&mut self, name: &'static str, text: Box<str>) {
        self.refused.retain(|(other, _)| *other != name);
        self.refused.push((name, text));
    }

    pub(crate) const fn commands(&self, config: &Config) -> groups::Commands {
        let release = match (self.has_del_if_eq, self.has_del_ex) {
            (true, _) => ReleaseBy::DelIfEq,
            (false, true) => ReleaseBy::DelEx,
            (false, false) => ReleaseBy::EvalSha,
        };
        let extend = if self.has_set_if_eq { ExtendBy::SetIfEq } else { ExtendBy::EvalSha };
        groups::Commands { release, extend, serves: config.wakes_waiters }
    }
}

struct Opening(Vec<(HandshakeStep, Vec<u8>)>);

impl Opening {
    fn push(&mut self, step: HandshakeStep, arguments: &[&[u8]]) {
        let mut bytes = Vec::new();
        resp::encode_command(&mut bytes, arguments);
        self.0.push((step, bytes));
    }

    fn push_login(&mut self, login: Option<&Login>) {
        if let Some(login) = login {
            let mut bytes = Vec::new();
            encode_auth(&mut bytes, login);
            self.0.push((HandshakeStep::Auth, bytes));
        }
    }
}

/// `AUTH [user] password`
pub(crate) fn encode_auth(out: &mut Vec<u8>, login: &Login) {
    match login {
        Login { user: Some(user), password } => resp::encode_command(out, &[b"AUTH", user, password]),
        Login { user: None, password } => resp::encode_command(out, &[b"AUTH", password]),
    }
}

/// A server's error, without the login and the command's arguments, which servers may repeat.
pub(crate) fn error_without_login(text: &[u8], login: Option<&Login>) -> Box<str> {
    words::error_text(without_password(without_arguments(text), login))
}

fn draw_digits<const N: usize>(rng: &mut impl Rng) -> [u8; N] {
    let mut digits = [0; N];
    rng.fill_bytes(&mut digits);
    digits.map(|random| b"0123456789abcdef"[usize::from(random & 15)])
}

impl Handshake {
    /// A handshake and its commands, each as encoded bytes with its step.
    pub(crate) fn new(
        config: &Config,
        master: MasterId,
        login: Option<&Login>,
        rng: &mut impl Rng,
    ) -> (Self, Vec<(HandshakeStep, Vec<u8>)>) {
        let nonce = draw_digits(rng);
        // No lock has this key, and no key ever has the value in the conditions, so the trials write nothing.
        let key = [&config.prefix, PROBE_NAME, &nonce].concat();
        let url = &config.masters[master.index()];
        let db = url.db.to_string();
        let mut commands = Opening(Vec::new());
        commands.push_login(login);
        if config.wakes_waiters {
            commands.push(HandshakeStep::Hello, &[b"HELLO", b"3"]);
        }
        if url.db != 0 {
            commands.push(HandshakeStep::Select, &[b"SELECT", db.as_bytes()]);
        }
        commands.push(HandshakeStep::SetName, &[b"CLIENT", b"SETNAME", config.client_name.as_bytes()]);
        for script in command::scripts::PLAIN {
            commands.push(HandshakeStep::LoadScript, &[b"SCRIPT", b"LOAD", script.text.as_bytes()]);
        }
        commands.push(HandshakeStep::InfoServer, &[b"INFO", b"server"]);
        commands.push(HandshakeStep::InfoReplication, &[b"INFO", b"replication"]);
        commands.push(HandshakeStep::InfoMemory, &[b"INFO", b"memory"]);
        if config.quarantine != Quarantine::Trust {
            commands.push(HandshakeStep::ReadMark, &[b"GET", &mark::key(&config.prefix)]);
        }
        commands.push(HandshakeStep::ReadRecord, &[b"GET", &Found::key(&config.prefix)]);
        commands.push(HandshakeStep::TrySetIfEq, &[b"SET", &key, &nonce, b"IFEQ", &nonce, b"PX", b"1"]);
        commands.push(HandshakeStep::TryDelIfEq, &[b"DELIFEQ", &key, &nonce]);
        commands.push(HandshakeStep::TryDelEx, &[b"DELEX", &key, b"IFEQ", &nonce]);
        let NamedScript { sha, text, .. } = command::scripts::RELEASE;
        commands.push(HandshakeStep::TryScript, &[b"EVALSHA", sha.as_bytes(), b"1", &key, &nonce]);
        commands.push(HandshakeStep::TryScript, &[b"EVAL", text.as_bytes(), b"1", &key, &nonce]);
        let mut channel = Vec::new();
        if config.wakes_waiters {
            let mut random = [0; 16];
            rng.fill_bytes(&mut random);
            command::park::encode_channel(&mut channel, &config.prefix, &random);
            let sharded = [&channel[..], &[SHARDED]].concat();
            commands.push(HandshakeStep::TryShardedPublish, &[b"SPUBLISH", &sharded, b""]);
            commands.push(HandshakeStep::TryPublish, &[b"PUBLISH", &channel, b""]);
            commands.push(HandshakeStep::TryQueue, &[b"EXISTS", &key]);
            commands.push(HandshakeStep::TryQueue, &[b"ZREM", &key, b""]);
            commands.push(HandshakeStep::TryQueue, &[b"ZRANGEBYSCORE", &key, b"0", b"0"]);
        }
        commands.push(HandshakeStep::Time, &[b"TIME"]);
        commands.push(HandshakeStep::Echo, &[b"ECHO", &nonce]);
        let learnt = Learnt { name: config.labels[master.index()].clone(), ..Learnt::default() };
        (Self { nonce, channel: channel.into(), login: login.cloned(), learnt }, commands.0)
    }

    /// Takes the [plain](Reply::plain) reply to one step. `Ok(true)` ends the handshake; an error ends the
    /// connection.
    pub(crate) fn handle_reply(&mut self, step: HandshakeStep, reply: &Reply<'_>) -> Result<bool, String> {
        let learnt = &mut self.learnt;
        match (step, reply) {
            (_, Reply::Error(text)) => {
                let text = without_password(without_arguments(text), self.login.as_ref());
                if step.must_succeed() || command::answer::is_passing(text) {
                    return Err(trouble::step_refused(step.name(), text));
                }
                let is_worth_a_word = match step {
                    _ if step.may_be_unknown() => text.starts_with(b"NOPERM"),
                    HandshakeStep::TryPublish => !learnt.is_sharded(),
                    HandshakeStep::TryScript => !command::answer::is_noscript(reply),
                    HandshakeStep::TryQueue => Learnt::is_parking_refused(text),
                    HandshakeStep::ReadMark => {
                        learnt.mark = MarkFound::from_reply(&Reply::Error(text)).unwrap_or_default();
                        true
                    }
                    HandshakeStep::ReadRecord => {
                        learnt.record = Found::from_reply(&Reply::Error(text)).unwrap_or_default();
                        true
                    }
                    _ => true,
                };
                // Reveals a replica even without the right to `INFO`.
                if command::answer::is_of_replica(text) {
                    learnt.replication.role.get_or_insert_with(|| "slave".into());
                }
                if is_worth_a_word {
                    learnt.note_refused(step.name(), words::error_text(text));
                }
            }
            (HandshakeStep::Echo, Reply::Bulk(echo) | Reply::Simple(echo)) if *echo == self.nonce => {
                return Ok(true);
            }
            (HandshakeStep::Auth | HandshakeStep::Select | HandshakeStep::SetName, Reply::Simple(b"OK")) => {}
            // Only a server that speaks RESP3 answers with a map; its content does not matter.
            (HandshakeStep::Hello, Reply::Map(_)) => learnt.channel = std::mem::take(&mut self.channel),
            (HandshakeStep::Time, Reply::Array(time)) => learnt.clock_us = command::answer::clock_us(time),
            (HandshakeStep::LoadScript, Reply::Bulk(_)) => {}
            (HandshakeStep::TryPublish, Reply::Integer(_)) => {}
            (HandshakeStep::TryShardedPublish, Reply::Integer(_)) => learnt.shard_channel(),
            (HandshakeStep::TryQueue, Reply::Integer(0) | Reply::Array(_)) => {}
            (HandshakeStep::InfoServer, Reply::Bulk(info)) => {
                learnt.run_id = info_field(info, "run_id").map(words::error_text);
                learnt.uptime = info_field(info, "uptime_in_seconds").and_then(parse_seconds);
                let version =
                    info_field(info, "valkey_version").or_else(|| info_field(info, "redis_version"));
                learnt.version = version.map(words::error_text);
            }
            (HandshakeStep::InfoReplication, Reply::Bulk(info)) => {
                learnt.replication = Replication::of_info(info);
            }
            (HandshakeStep::InfoMemory, Reply::Bulk(info)) => {
                learnt.maxmemory_policy = maxmemory_policy(info);
            }
            (HandshakeStep::ReadMark, Reply::NullBulk | Reply::Bulk(_)) => {
                learnt.mark = MarkFound::from_reply(reply).unwrap_or_default();
            }
            (HandshakeStep::ReadRecord, Reply::NullBulk | Reply::Bulk(_)) => {
                learnt.record = Found::from_reply(reply).unwrap_or_default();
            }
            (HandshakeStep::TrySetIfEq, Reply::NullBulk) => learnt.has_set_if_eq = true,
            (HandshakeStep::TryDelIfEq, Reply::Integer(0)) => learnt.has_del_if_eq = true,
            (HandshakeStep::TryDelEx, Reply::Integer(0)) => learnt.has_del_ex = true,
            (HandshakeStep::TryScript, Reply::Integer(0)) => {}
            _ if step.must_succeed() => return Err(Trouble::WrongStep { step: step.name() }.to_string()),
            // Counts as a refusal: the echo shows whether later replies still meet their requests.
            _ => learnt.note_refused(step.name(), NO_ANSWER.into()),
        }
        Ok(false)
    }
}

/// Removes the arguments that a server repeats for an unknown command: one may be a password.
fn without_arguments(text: &[u8]) -> &[u8] {
    memmem::find(text, b", with args").and_then(|end| text.get(..end)).unwrap_or(text)
}

/// Only the error's first word if the error repeats the password.
fn without_password<'a>(text: &'a [u8], login: Option<&Login>) -> &'a [u8] {
    let has_password = |text: &[u8]| login.is_some_and(|login| memmem::find(text, &login.password).is_some());
    if !has_password(text) {
        return text;
    }
    let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    if has_password(code) { b"ERR" } else { code }
}

/// The policy in the text of `INFO memory`.
pub(crate) fn maxmemory_policy(info: &[u8]) -> Option<Box<str>> {
    info_field(info, "maxmemory_policy").map(words::error_text)
}

/// The value of a line `name:value` in the text of `INFO`.
pub(crate) fn info_field<'a>(info: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = info;
    while !rest.is_empty() {
        let (line, next) = match memmem::find(rest, b"\r\n") {
            Some(end) => (rest.get(..end)?, rest.get(end + 2..)?),
            None => (rest, b"".as_slice()),
        };
        if let Some(value) = line.strip_prefix(name.as_bytes()).and_then(|value| value.strip_prefix(b":")) {
            return Some(value).filter(|value| !value.is_empty());
        }
        rest = next;
    }
    None
}

fn parse_seconds(digits: &[u8]) -> Option<Duration> {
    std::str::from_utf8(digits).ok()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
