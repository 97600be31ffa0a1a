//! The connections of a model master: protocol versions, subscriptions, and the commands about a connection
//! or the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::commands::integer;
use super::{Answer, Dialect, ModelMaster, Protocol, Refusal, in_capitals};

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const NO_PROTOCOL: &str = "NOPROTO unsupported protocol version";

/// Kind of a channel. Channels with the same name but different kinds are different channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// `SUBSCRIBE`, `PUBLISH`
    Server,
    /// `SSUBSCRIBE`, `SPUBLISH`
    Shard,
}

impl Scope {
    /// Word for this kind in messages and confirmations.
    const fn word(self, words: [&'static [u8]; 2]) -> &'static [u8] {
        words[self as usize]
    }
}

#[derive(Default)]
pub(super) struct Conns {
    /// Connection whose command is executed.
    served: usize,
    /// Connections that speak RESP3.
    new: BTreeSet<usize>,
    subscribers: BTreeMap<(Scope, Vec<u8>), BTreeSet<usize>>,
    /// Messages to the served connection while its command is executed.
    own_pushes: Option<Vec<u8>>,
}

impl Conns {
    pub(super) fn serve(&mut self, conn: usize) {
        self.served = conn;
    }

    pub(super) fn clear(&mut self) {
        self.new.clear();
        self.subscribers.clear();
    }

    pub(super) fn begin_command(&mut self) {
        self.own_pushes = Some(Vec::new());
    }

    /// Returns the protocol of the reply, and the messages that go with the reply.
    pub(super) fn end_command(&mut self) -> (Protocol, Vec<u8>) {
        (self.protocol(self.served), self.own_pushes.take().unwrap_or_default())
    }

    fn protocol(&self, conn: usize) -> Protocol {
        if self.new.contains(&conn) { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// Whether the served connection has subscribed, in RESP2.
    pub(super) fn allows_only_subscriptions(&self) -> bool {
        self.subscribers.values().any(|conns| conns.contains(&self.served))
            && !self.new.contains(&self.served)
    }

    /// Number of channels of this kind to which the served connection has subscribed.
    fn channel_count(&self, scope: Scope) -> usize {
        let channels = self.subscribers.iter().filter(|((its, _), _)| *its == scope);
        channels.filter(|(_, conns)| conns.contains(&self.served)).count()
    }

    fn unsubscribe_all(&mut self, conn: usize) {
        self.subscribers.retain(|_, conns| {
            conns.remove(&conn);
            !conns.is_empty()
        });
    }

    fn confirmation(&self, scope: Scope, what: &[u8], channel: &[u8]) -> Vec<Answer> {
        let count = Answer::count(self.channel_count(scope));
        vec![Answer::bulk(Some(what)), Answer::bulk(Some(channel)), count]
    }
}

impl ModelMaster {
    /// Ends a connection, which receives nothing more. Commands that it has sent may still be executed, in
    /// its protocol version.
    pub fn forget_conn(&mut self, conn: usize) {
        self.conns.unsubscribe_all(conn);
        self.pushes.retain(|(other, _)| *other != conn);
    }

    /// Begins a connection with a number that another connection may have had.
    pub fn begin_conn(&mut self, conn: usize) {
        self.forget_conn(conn);
        self.conns.new.remove(&conn);
    }

    pub fn protocol(&self, conn: usize) -> Protocol {
        self.conns.protocol(conn)
    }

    /// Sends a message to all subscribers. Returns their number.
    pub fn publish(&mut self, scope: Scope, channel: &[u8], payload: &[u8]) -> usize {
        let Some(conns) = self.conns.subscribers.get(&(scope, channel.to_vec())) else { return 0 };
        let message = Answer::Pushes(vec![vec![
            Answer::bulk(Some(scope.word([b"message", b"smessage"]))),
            Answer::bulk(Some(channel)),
            Answer::bulk(Some(payload)),
        ]]);
        for &conn in conns {
            let protocol = self.conns.protocol(conn);
            match &mut self.conns.own_pushes {
                Some(own) if conn == self.conns.served => message.encode(protocol, own),
                _ => {
                    let mut bytes = Vec::new();
                    message.encode(protocol, &mut bytes);
                    self.pushes.push((conn, bytes));
                }
            }
        }
        conns.len()
    }

    /// Channels with subscribers.
    pub fn channels(&self) -> Vec<Vec<u8>> {
        let with_conns = self.conns.subscribers.iter().filter(|(_, conns)| !conns.is_empty());
        with_conns.map(|((_, channel), _)| channel.clone()).collect()
    }

    pub fn has_subscribers(&self, channel: &[u8]) -> bool {
        self.conns.subscribers.iter().any(|((_, its), conns)| its == channel && !conns.is_empty())
    }

    pub(super) fn carry_out_for_connection(
        &mut self,
        now: Instant,
        name: &str,
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        Ok(match (name, args) {
            ("AUTH", [_]) if self.password.is_none() => return Refusal::says(NO_PASSWORD),
            ("AUTH", [password]) => self.log_in(b"default", password)?,
            ("AUTH", [user, password]) => self.log_in(user, password)?,
            ("HELLO", args) => self.greet(args)?,
            ("SELECT", [index]) => match std::str::from_utf8(index).ok().and_then(|index| index.parse().ok())
            {
                Some(0..=15) => Answer::ok(),
                Some(_) => return Refusal::says("ERR DB index is out of range"),
                None::<i32> => return Refusal::says("ERR value is not an integer or out of range"),
            },
            ("CLIENT", [b"SETNAME", name]) => set_name(name)?,
            ("SUBSCRIBE" | "SSUBSCRIBE", channels @ [_, ..]) => {
                let scope = if name == "SUBSCRIBE" { Scope::Server } else { Scope::Shard };
                let word = scope.word([b"subscribe", b"ssubscribe"]);
                let mut confirmations = Vec::new();
                for channel in channels {
                    let served = self.conns.served;
                    self.conns.subscribers.entry((scope, channel.to_vec())).or_default().insert(served);
                    confirmations.push(self.conns.confirmation(scope, word, channel));
                }
                Answer::Pushes(confirmations)
            }
            ("UNSUBSCRIBE" | "SUNSUBSCRIBE", channels @ [_, ..]) => {
                let scope = if name == "UNSUBSCRIBE" { Scope::Server } else { Scope::Shard };
                let word = scope.word([b"unsubscribe", b"sunsubscribe"]);
                let mut confirmations = Vec::new();
                for channel in channels {
                    if let Some(conns) = self.conns.subscribers.get_mut(&(scope, channel.to_vec())) {
                        conns.remove(&self.conns.served);
                    }
                    confirmations.push(self.conns.confirmation(scope, word, channel));
                }
                Answer::Pushes(confirmations)
            }
            ("PING", []) => Answer::Status(b"PONG".to_vec()),
            ("ECHO", [_]) if self.has_wrong_echo => Answer::bulk(Some(b"0123456789abcdef")),
            ("PING" | "ECHO", [text]) => Answer::bulk(Some(text)),
            ("INFO", [section]) => Answer::Verbatim(self.info(now, section).into_bytes()),
            _ => return Err(Refusal::NotUnderstood),
        })
    }

    /// `HELLO`: version, login and name. If any part is refused, only the login takes effect.
    fn greet(&mut self, args: &[&[u8]]) -> Result<Answer, Refusal> {
        let Some((version, mut options)) = args.split_first() else { return Ok(self.greeting()) };
        let is_new = match integer(version) {
            Ok(2) => false,
            Ok(3) => true,
            Ok(_) => return Refusal::says(NO_PROTOCOL),
            Err(_) => return Refusal::says("ERR Protocol version is not an integer or out of range"),
        };
        while let [option, rest @ ..] = options {
            options = match (&*in_capitals(option), rest) {
                ("AUTH", [user, password, rest @ ..]) => {
                    self.log_in(user, password)?;
                    rest
                }
                ("SETNAME", [name, rest @ ..]) => {
                    set_name(name)?;
                    rest
                }
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Refusal::says(&format!("ERR Syntax error in HELLO option '{option}'"));
                }
            };
        }
        if is_new {
            self.conns.new.insert(self.conns.served);
        } else {
            self.conns.new.remove(&self.conns.served);
        }
        Ok(self.greeting())
    }

    fn greeting(&self) -> Answer {
        let text = |text: &str| Answer::Bulk(text.as_bytes().to_vec());
        let server = if self.dialect.is_valkey() { "valkey" } else { "redis" };
        let version = self.version();
        let proto = if self.protocol(self.conns.served) == Protocol::Resp3 { 3 } else { 2 };
        Answer::Map(vec![
            ("server", text(server)),
            ("version", text(version)),
            ("proto", Answer::Integer(proto)),
            ("id", Answer::Integer(i64::try_from(self.conns.served).unwrap_or(0))),
            ("mode", text("standalone")),
            ("role", text("master")),
            ("modules", Answer::Array(Vec::new())),
        ])
    }

    fn version(&self) -> &'static str {
        match self.dialect {
            Dialect::Redis7 => "7.0.15",
            Dialect::Redis8 => "8.6.2",
            Dialect::Valkey8 => "8.1.4",
            Dialect::Valkey9 => "9.1.2",
        }
    }

    /// With a password there are two users, `default` and `me`, with the same password.
    fn log_in(&self, user: &[u8], password: &[u8]) -> Result<Answer, Refusal> {
        let is_right = match &self.password {
            Some(own) => matches!(user, b"default" | b"me") && own.as_bytes() == password,
            None => user == b"default",
        };
        if is_right {
            Ok(Answer::ok())
        } else {
            Refusal::says("WRONGPASS invalid username-password pair or user is disabled.")
        }
    }

    /// Only the fields that clients read.
    fn info(&self, now: Instant, section: &[u8]) -> String {
        match section {
            b"server" => {
                // Like Redis: the difference of two wall-clock times, each in whole seconds.
                let seconds = |at: Instant| at.saturating_duration_since(self.wall.epoch).as_secs();
                let uptime = seconds(now + self.wall.step).saturating_sub(seconds(self.started));
                let mut version = self.version().to_owned();
                if self.dialect.is_valkey() {
                    version = format!("7.2.4\r\nserver_name:valkey\r\nvalkey_version:{version}");
                }
                let run_id = &self.run_id;
                format!(
                    "# Server\r\nredis_version:{version}\r\nrun_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n"
                )
            }
            b"replication" => {
                let replid = |count: u32| format!("{}{count:08x}", "0".repeat(32));
                let second = if self.second_offset < 0 { 0 } else { self.replid_count.saturating_sub(1) };
                format!(
                    "# Replication\r\nrole:{}\r\nmaster_replid:{}\r\nmaster_replid2:{}\r\nmaster_repl_offset:0\r\n\
                     second_repl_offset:{}\r\n",
                    self.role,
                    replid(self.replid_count),
                    replid(second),
                    self.second_offset
                )
            }
            b"memory" => format!("# Memory\r\nmaxmemory_policy:{}\r\n", self.maxmemory_policy),
            _ => String::new(),
        }
    }
}

/// Whether this is a valid name for a connection.
fn set_name(name: &[u8]) -> Result<Answer, Refusal> {
    if name.iter().all(u8::is_ascii_graphic) { Ok(Answer::ok()) } else { Refusal::says(BAD_NAME) }
}
