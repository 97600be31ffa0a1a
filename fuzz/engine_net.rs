//! The network of `engine_ops.rs`: a peer for each master, which carries bytes and notes requests and
//! answers.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use redlatch::engine::{Engine, MasterId};
use redlatch::resp::{self, Decoded, Reply};

use super::model::ModelMaster;
use super::words::{
    Call, TOKEN_SIZE, bulk, first_size, is_grant, is_noscript, is_parked_grant, message, swap, whole_commands,
};

pub type Token = Vec<u8>;

/// Commands and answers for one token, as bits by master.
#[derive(Debug)]
pub struct TokenLog {
    pub key: Vec<u8>,
    /// When its first `SET` was seen; no attempt with it began later.
    pub first_seen: Instant,
    /// Masters in whose queue its `SET` was put.
    pub asked: u32,
    /// By master: the connection on which it answered the `SET` with OK.
    pub granted_on: HashMap<usize, u64>,
    /// Masters that said they have the key, and have not denied it since.
    pub holders: u32,
    /// Masters that said they deleted it.
    pub deleted: u32,
    /// Masters that were sent a command that ends it.
    pub ended: u32,
    /// Number of the present or last extension, from 1.
    pub round: u32,
    /// Masters that granted each extension.
    pub extended: HashMap<u32, u32>,
}

/// A request that was queued for a connection and has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Acquire(Token),
    /// A park.
    Park(Token),
    /// The `SET` of a held lock again.
    Again(Token),
    /// The first token replaces the second.
    Swap(Token, Token),
    Extend {
        token: Token,
        round: u32,
        by_digest: bool,
    },
    Release(Token),
    /// The last step of the handshake, with its nonce.
    Echo(Vec<u8>),
    Other,
}

/// Connection numbers at a master: for late bytes, for the other client (`engine_extras.rs`), and for this
/// client's connections.
const LATE_PLACE: usize = 0;
const FIRST_PLACE: usize = 3;

fn place_of(conn_number: u64) -> usize {
    FIRST_PLACE + usize::try_from(conn_number).expect("few connections")
}

/// A connection, as its bytes show.
pub struct Conn {
    pub number: u64,
    pub to_master: Vec<u8>,
    pub to_engine: Vec<u8>,
    /// Queued requests without an answer.
    owed: VecDeque<Asked>,
    /// How many of the bytes to be sent belong to counted requests.
    counted: usize,
    /// Received replies, except a last partial one.
    received: Vec<u8>,
    /// Rounds of extensions that were answered `NOSCRIPT` and will be sent in full.
    again: VecDeque<(Token, u32)>,
    /// Attempts that were parked over it, by vote.
    parked: Vec<([u8; 8], Token)>,
    run_id: String,
    /// Whether the master did not know a script over this connection, so that attempts may come twice.
    lacks_scripts: bool,
}

/// A master, and the engine's connection to it.
pub struct Peer {
    pub model: ModelMaster,
    /// Whether the engine wants a connection.
    pub is_asked: bool,
    pub conn: Option<Conn>,
    conn_count: u64,
    /// The step in which the last connection was closed.
    closed_in: u64,
    /// Bytes of ended connections, still under way to the master.
    pub late: Vec<u8>,
    /// The process that answered the last handshake.
    known_run_id: Option<String>,
}

impl Peer {
    pub fn new(model: ModelMaster) -> Self {
        Self {
            model,
            is_asked: false,
            conn: None,
            conn_count: 0,
            closed_in: 0,
            late: Vec::new(),
            known_run_id: None,
        }
    }

    pub fn open(&mut self) {
        self.is_asked = false;
        self.conn_count += 1;
        self.conn = Some(Conn {
            number: self.conn_count,
            to_master: Vec::new(),
            to_engine: Vec::new(),
            owed: VecDeque::new(),
            counted: 0,
            received: Vec::new(),
            again: VecDeque::new(),
            parked: Vec::new(),
            run_id: self.model.run_id.clone(),
            lacks_scripts: false,
        });
    }

    /// The connection ends, or the attempt to connect. Bytes to the master may arrive late.
    pub fn close(&mut self, step: u64, keeps_late: bool) {
        self.is_asked = false;
        if let Some(conn) = self.conn.take() {
            self.model.forget_conn(place_of(conn.number));
            self.closed_in = step;
            if keeps_late {
                // An incomplete command is lost with its connection.
                let whole = whole_commands(&conn.to_master);
                self.late.extend_from_slice(&conn.to_master[..whole]);
            }
        }
    }

    /// Whether this is the number of the present connection, or of a connection that ended in this step.
    pub fn is_current(&self, number: u64, step: u64) -> bool {
        number == self.conn_count && (self.conn.is_some() || self.closed_in == step)
    }

    /// The engine ended the connection. Replies that it got before may have counted.
    pub fn note_end(&mut self, master: MasterId, tokens: &mut HashMap<Token, TokenLog>) {
        self.match_replies(master, false, tokens);
        let Some(conn) = &mut self.conn else { return };
        // A request that was queued and answered in the same call may also have counted.
        for (token, round) in conn.again.drain(..) {
            let Some(log) = tokens.get_mut(&token) else { continue };
            log.holders |= 1 << master.index();
            *log.extended.entry(round).or_default() |= 1 << master.index();
        }
    }

    pub fn has_received(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| !conn.received.is_empty())
    }

    /// The master carries out all bytes that have arrived.
    pub fn carry_out(&mut self, now: Instant) {
        if let Some(conn) = &mut self.conn {
            let place = place_of(conn.number);
            self.model.handle_over(place, now, &mut conn.to_master, &mut conn.to_engine);
        }
        self.take_pushes();
    }

    /// Nobody reads the replies to late bytes.
    pub fn carry_out_late(&mut self, now: Instant) {
        self.model.handle_over(LATE_PLACE, now, &mut self.late, &mut Vec::new());
        self.model.begin_conn(LATE_PLACE);
        self.take_pushes();
    }

    /// Puts the master's messages under way.
    pub fn take_pushes(&mut self) {
        self.model.log.clear();
        for (place, message) in std::mem::take(&mut self.model.pushes) {
            if let Some(conn) = self.conn.as_mut().filter(|conn| place_of(conn.number) == place) {
                conn.to_engine.extend_from_slice(&message);
            }
        }
    }

    /// Removes the first command that has arrived, and answers it instead of the master.
    pub fn answer_for_it(&mut self, reply: &[u8]) -> bool {
        let Some(conn) = &mut self.conn else { return false };
        let size = first_size(&conn.to_master);
        conn.to_master.drain(..size);
        if size > 0 {
            conn.to_engine.extend_from_slice(reply);
        }
        size > 0
    }
}

impl Conn {
    pub fn owed_count(&self) -> usize {
        self.owed.len()
    }

    /// Notes the requests queued since the last call. Each must be a whole command.
    pub fn count_requests(
        &mut self,
        now: Instant,
        master: MasterId,
        engine: &mut Engine,
        tokens: &mut HashMap<Token, TokenLog>,
        is_watchful: bool,
    ) {
        let waiting = engine.send_ready(master);
        // Fewer bytes than before: the engine has ended the connection, and will say so.
        let Some(mut rest) = waiting.get(self.counted..) else { return };
        while !rest.is_empty() {
            let decoded = resp::decode(rest);
            let Ok(Decoded::Complete { reply: Reply::Array(args), size }) = decoded else {
                panic!("no whole command is queued: {decoded:?}")
            };
            let args: Vec<&[u8]> = args.iter().map(bulk).collect();
            if is_watchful {
                check_aim(master, &args, tokens);
            }
            let asked = self.note_request(now, master, &args, tokens);
            self.owed.push_back(asked);
            rest = &rest[size..];
        }
        self.counted = waiting.len();
    }

    fn note_request(
        &mut self,
        now: Instant,
        master: MasterId,
        args: &[&[u8]],
        tokens: &mut HashMap<Token, TokenLog>,
    ) -> Asked {
        if let Some(call) = Call::of(args) {
            return self.note_call(now, master, &call, tokens);
        }
        if let Some([key, old, new]) = swap(args) {
            return note_swap(now, master, [key, old, new], tokens);
        }
        match *args {
            [b"SET", key, token, b"NX", b"PX", _] => note_set(now, master, key, token, tokens),
            [b"DELIFEQ", key, token] | [b"DELEX", key, b"IFEQ", token] if token.len() == TOKEN_SIZE => {
                note_end(now, master, key, token, tokens);
                Asked::Release(token.to_vec())
            }
            [b"SET", .., token, b"PX", _] if token.len() == TOKEN_SIZE => {
                self.note_extension(token, (false, false), tokens)
            }
            [b"ECHO", nonce] => Asked::Echo(nonce.to_vec()),
            _ => Asked::Other,
        }
    }

    /// Notes a script's purpose.
    fn note_call(
        &mut self,
        now: Instant,
        master: MasterId,
        call: &Call<'_>,
        tokens: &mut HashMap<Token, TokenLog>,
    ) -> Asked {
        let Call { is_digest, name, key, args } = call;
        match (*name, &args[..]) {
            ("fenced_acquire" | "shared_acquire_queue", [token, ..]) => {
                note_first(now, master, key, token, !is_digest || self.lacks_scripts, tokens);
                Asked::Acquire(token.to_vec())
            }
            ("park", [_, _, _, _, _, old, _, _, _, _, _, _, vote, _, token]) => {
                note_first(now, master, key, token, !is_digest || self.lacks_scripts, tokens);
                if !old.is_empty() {
                    note_end(now, master, key, old, tokens);
                }
                let vote = (*vote).try_into().expect("a vote has 8 bytes");
                if *is_digest {
                    let is_known = self.parked.iter().any(|(other, it)| *other == vote && it != token);
                    assert!(!is_known, "one vote for two attempts");
                    self.parked.push((vote, token.to_vec()));
                }
                Asked::Park(token.to_vec())
            }
            ("release" | "release_serve" | "fenced_release_serve" | "shared_release_serve", [token, ..])
            | ("unpark", [_, token, ..]) => {
                note_end(now, master, key, token, tokens);
                Asked::Release(token.to_vec())
            }
            ("extend" | "shared_extend", [token, _]) => {
                self.note_extension(token, (true, *is_digest), tokens)
            }
            ("swap", [old, new, _]) | ("swap_parked", [_, old, new, _]) => {
                note_swap(now, master, [key, old, new], tokens)
            }
            ("serve" | "force_unlock_serve", []) | ("free_slots", [_, _, _]) => Asked::Other,
            _ => panic!("no script is called like this: {name}"),
        }
    }

    fn note_extension(
        &mut self,
        token: &[u8],
        (is_script, by_digest): (bool, bool),
        tokens: &HashMap<Token, TokenLog>,
    ) -> Asked {
        let mut round = tokens.get(token).map_or(0, |log| log.round);
        if is_script
            && !by_digest
            && let Some(at) = self.again.iter().position(|(other, _)| other == token)
        {
            round = self.again.remove(at).expect("found just now").1;
        }
        Asked::Extend { token: token.to_vec(), round, by_digest }
    }

    /// Number of attempts that were parked over this connection.
    pub fn parked_count(&self) -> usize {
        self.parked.len()
    }

    pub fn parked_vote(&self, place: usize) -> [u8; 8] {
        self.parked[place].0
    }

    /// Token of the attempt with this vote.
    pub fn parked_token(&self, vote: &[u8]) -> Option<&Token> {
        self.parked.iter().find(|(other, _)| other == vote).map(|(_, token)| token)
    }

    pub fn note_sent(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.counted, "sent before it was counted");
        self.counted -= bytes.len();
        self.to_master.extend_from_slice(bytes);
    }

    /// Notes bytes that the engine received.
    pub fn note_received(&mut self, bytes: &[u8]) {
        self.lacks_scripts |= bytes.windows(8).any(|window| window == b"NOSCRIPT");
        self.received.extend_from_slice(bytes);
    }
}

impl Peer {
    /// Matches the whole replies that the engine received with the counted requests, oldest first. Returns
    /// false if there are more replies than requests. `is_open` says that the engine accepted them all.
    pub fn match_replies(
        &mut self,
        master: MasterId,
        is_open: bool,
        tokens: &mut HashMap<Token, TokenLog>,
    ) -> bool {
        let Some(conn) = &mut self.conn else { return true };
        let (mut done, mut is_matched) = (0, true);
        while let Ok(Decoded::Complete { reply, size }) = resp::decode(&conn.received[done..]) {
            if let Some(payload) = message(&reply) {
                done += size;
                if let Some(token) = payload.and_then(|vote| conn.parked_token(vote)) {
                    let log = tokens.get_mut(token).expect("logged with its park");
                    log.granted_on.insert(master.index(), conn.number);
                    log.holders |= 1 << master.index();
                }
                continue;
            }
            let Some(asked) = conn.owed.pop_front() else {
                is_matched = false;
                break;
            };
            done += size;
            match asked {
                Asked::Echo(nonce) => {
                    // Another process holds none of its predecessor's locks.
                    if is_open && reply == Reply::Bulk(&nonce) {
                        if self.known_run_id.as_ref() != Some(&conn.run_id) {
                            tokens.values_mut().for_each(|log| log.holders &= !(1 << master.index()));
                        }
                        self.known_run_id = Some(conn.run_id.clone());
                    }
                }
                Asked::Extend { token, round, by_digest: true } if is_noscript(&reply) => {
                    conn.again.push_back((token, round));
                }
                asked => note_answer(master, (conn.number, is_open), &asked, &reply, tokens),
            }
        }
        conn.received.drain(..done);
        is_matched
    }
}

impl TokenLog {
    fn new(now: Instant, key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            first_seen: now,
            asked: 0,
            granted_on: HashMap::new(),
            holders: 0,
            deleted: 0,
            ended: 0,
            round: 0,
            extended: HashMap::new(),
        }
    }
}

fn note_answer(
    master: MasterId,
    (number, is_open): (u64, bool),
    asked: &Asked,
    reply: &Reply<'_>,
    tokens: &mut HashMap<Token, TokenLog>,
) {
    let bit = 1 << master.index();
    match asked {
        Asked::Acquire(token) if is_grant(reply) => {
            let log = tokens.get_mut(token).expect("logged with its SET");
            log.granted_on.insert(master.index(), number);
            log.holders |= bit;
        }
        Asked::Park(token) if is_parked_grant(reply) => {
            let log = tokens.get_mut(token).expect("logged with its park");
            log.granted_on.insert(master.index(), number);
            log.holders |= bit;
        }
        Asked::Swap(token, old) if matches!(reply, Reply::Simple(b"OK") | Reply::Integer(1)) => {
            let log = tokens.get_mut(token).expect("logged with its swap");
            log.granted_on.insert(master.index(), number);
            log.holders |= bit;
            if let Some(log) = tokens.get_mut(old) {
                log.deleted |= bit;
                log.holders &= !bit;
            }
        }
        Asked::Again(token) if *reply == Reply::Simple(b"OK") => {
            let log = tokens.get_mut(token).expect("logged with its SET");
            log.holders |= bit;
        }
        Asked::Extend { token, round, .. } => {
            let Some(log) = tokens.get_mut(token) else { return };
            match reply {
                Reply::Simple(b"OK") | Reply::Integer(1) => {
                    *log.extended.entry(*round).or_default() |= bit;
                    log.holders |= bit;
                }
                // The reply may have come before the one that ended the connection.
                Reply::NullBulk | Reply::Null | Reply::Integer(0) if is_open => log.holders &= !bit,
                _ => {}
            }
        }
        Asked::Release(token) if matches!(reply, Reply::Integer(1 | 2 | 5 | 6)) => {
            // Its `SET` may have gone with a connection before it was counted.
            if let Some(log) = tokens.get_mut(token) {
                log.deleted |= bit;
            }
        }
        _ => {}
    }
}

/// Notes the `SET` of a plain lock.
fn note_set(
    now: Instant,
    master: MasterId,
    key: &[u8],
    token: &[u8],
    tokens: &mut HashMap<Token, TokenLog>,
) -> Asked {
    let log = tokens.entry(token.to_vec()).or_insert_with(|| TokenLog::new(now, key));
    assert_eq!(log.key, key);
    let is_first = log.asked >> master.index() & 1 == 0;
    log.asked |= 1 << master.index();
    if is_first {
        return Asked::Acquire(token.to_vec());
    }
    // A repeated `SET` goes to a master that was away, so other masters have granted the lock.
    assert!(!log.granted_on.is_empty(), "one token in two attempts");
    Asked::Again(token.to_vec())
}

/// A token's first command for a master. Only the full script may be repeated.
fn note_first(
    now: Instant,
    master: MasterId,
    key: &[u8],
    token: &[u8],
    is_again: bool,
    tokens: &mut HashMap<Token, TokenLog>,
) {
    let log = tokens.entry(token.to_vec()).or_insert_with(|| TokenLog::new(now, key));
    assert_eq!(log.key, key);
    // The full script is a repetition, for a master that forgot the script or was away.
    let is_first = log.asked >> master.index() & 1 == 0;
    assert!(is_first || is_again, "one token in two attempts");
    log.asked |= 1 << master.index();
}

/// A command that ends a token is queued for a master.
fn note_end(now: Instant, master: MasterId, key: &[u8], token: &[u8], tokens: &mut HashMap<Token, TokenLog>) {
    // Its first command may have gone with a connection before it was counted.
    let log = tokens.entry(token.to_vec()).or_insert_with(|| TokenLog::new(now, key));
    assert_eq!(log.key, key);
    log.ended |= 1 << master.index();
}

fn note_swap(
    now: Instant,
    master: MasterId,
    [key, old, new]: [&[u8]; 3],
    tokens: &mut HashMap<Token, TokenLog>,
) -> Asked {
    note_end(now, master, key, old, tokens);
    let log = tokens.entry(new.to_vec()).or_insert_with(|| TokenLog::new(now, key));
    assert_eq!(log.key, key);
    log.asked |= 1 << master.index();
    Asked::Swap(new.to_vec(), old.to_vec())
}

/// Releases and extensions must go where their token's first command went, and to its key.
fn check_aim(master: MasterId, args: &[&[u8]], tokens: &HashMap<Token, TokenLog>) {
    let (key, token) = if let Some(call) = Call::of(args) {
        match (call.name, &call.args[..]) {
            ("park", [_, _, _, _, _, token, ..]) if !token.is_empty() => (call.key, *token),
            ("unpark", [_, token, ..]) => (call.key, *token),
            ("swap_parked", [_, token, ..]) => (call.key, *token),
            (
                "release"
                | "release_serve"
                | "fenced_release_serve"
                | "shared_release_serve"
                | "extend"
                | "shared_extend"
                | "swap",
                [token, ..],
            ) => (call.key, *token),
            _ => return,
        }
    } else {
        match *args {
            [b"DELIFEQ", key, token] | [b"DELEX", key, b"IFEQ", token] => (key, token),
            [b"SET", key, _, b"IFEQ", token, b"PX", _] => (key, token),
            _ => return,
        }
    };
    // The handshake tests some commands with its nonce.
    if token.len() != TOKEN_SIZE {
        return;
    }
    let log = tokens.get(token).expect("no release or extension of a token that was never set");
    assert_eq!(log.key, key, "not the key of the lock");
    // The repeated SET of a held lock may have gone with its connection before it was counted.
    let may_be_unseen = !log.granted_on.is_empty();
    let is_asked = log.asked >> master.index() & 1 == 1;
    assert!(is_asked || may_be_unseen, "a master that was not sent the token is asked");
}
