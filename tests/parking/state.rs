//! What the model remembers: masters, the connection between each client and each master, and clients.
//!
//! Times are ticks that are left, so the space is finite.

use std::num::NonZeroU8;

use crate::property::Property;

pub const MASTERS: usize = 3;
/// Votes that make a lock.
pub const QUORUM: usize = 2;
/// Tokens of each client that can be somewhere at the same time. A packed token has four bits.
pub const TOKENS_EACH: usize = 5;

/// Value of one round: its client, and one of the client's tokens that nothing mentions at its begin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(NonZeroU8);

impl Token {
    pub fn new(client: usize, slot: usize) -> Token {
        let number = u8::try_from(1 + client * TOKENS_EACH + slot).expect("a small number");
        Token(NonZeroU8::new(number).expect("it begins with one"))
    }

    fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }

    pub fn owner(self) -> usize {
        self.index() / TOKENS_EACH
    }

    pub fn slot(self) -> usize {
        self.index() % TOKENS_EACH
    }

    /// Of a set of tokens.
    pub fn bit(self) -> u16 {
        1 << self.index()
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", ["A", "B", "C"][self.owner()], self.slot() + 1)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A short queue, first in, first out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue<T: Copy, const N: usize>([Option<T>; N]);

impl<T: Copy, const N: usize> Default for Queue<T, N> {
    fn default() -> Self {
        Queue([None; N])
    }
}

impl<T: Copy, const N: usize> Queue<T, N> {
    pub fn push(&mut self, item: T) {
        let place = self.0.iter_mut().find(|place| place.is_none());
        *place.expect("the queues of the model are long enough for its settings") = Some(item);
    }

    pub fn pop(&mut self) -> Option<T> {
        let first = self.0[0].take();
        self.0.rotate_left(1);
        first
    }

    pub fn first(&self) -> Option<T> {
        self.0[0]
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map_while(Option::as_ref)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map_while(Option::as_mut)
    }

    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        if self.iter().all(&keeps) {
            return;
        }
        let all = *self;
        *self = Self::default();
        all.iter().filter(|item| keeps(item)).for_each(|item| self.push(*item));
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }
}

/// From a client to a master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Set(Token),
    Park { token: Token, old: Option<Token>, yields: bool },
    Unpark(Token),
    Release(Token),
    NativeRelease(Token),
    Serve,
    Repair(Token),
}

/// From a master to a client. Pushes arrive in order with the replies of their connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// `OK` to `SET NX` or a park: a vote.
    Granted(Token),
    /// A refused `SET NX`, or a park whose entry waits.
    Waiting(Token),
    /// A push: the entry was served, a vote.
    Vote(Token),
    /// A push: "ask again".
    Ring(Token),
    /// To an unpark or release: the worst doubt that it `settles`.
    Ended { token: Token, settles: Doubt },
    /// An error to a park, as `NOSCRIPT`: nothing was carried out.
    Rejected { token: Token, old: Option<Token> },
}

/// Which command the client owes for a token that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Unpark,
    Release,
    Native,
}

/// What may still arrive late for a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Doubt {
    #[default]
    None,
    /// Its only command: whoever finds its key or entry knows that the command has arrived.
    Once,
    /// One of two commands: only the end of the old connection is proof.
    Twice,
}

/// The end of a token, owed to one master until it is proven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owed {
    pub token: Token,
    pub end: End,
    pub doubt: Doubt,
    /// Under way on the present connection.
    pub is_sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    Fresh,
    /// No longer fresh: it is rung.
    Stale,
    /// It was rung; its stay is short.
    Rung,
    /// The stay is over.
    Over,
}

/// A parked attempt in a master's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub token: Token,
    pub stay: Stay,
    /// Its channel belongs to a connection that has ended.
    pub is_of_old_channel: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Connection {
    #[default]
    Up,
    /// It broke; the client has not noticed. Answers that arrived before are still read.
    Broken,
    Down,
}

/// All between one client and one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link {
    pub connection: Connection,
    /// The connection was made to a process that has ended.
    pub is_of_old_process: bool,
    /// The master still reads the connection before, and takes it for subscribed.
    pub has_old: bool,
    pub commands: Queue<Command, 5>,
    /// Commands that arrive late, over the connection before.
    pub late: Queue<Command, 5>,
    pub answers: Queue<Answer, 5>,
    /// The client's entry at this master.
    pub entry: Option<Entry>,

    // The client's own notes about this master.
    /// The token last sent there in this wait.
    pub last: Option<Token>,
    /// Of `last`, since the connection that carried its command ended.
    pub doubt: Doubt,
    /// The lock was repaired there, where its first command had been sent.
    pub is_repaired: bool,
    /// The token whose command is to be answered, and the old value in that command.
    pub awaited: Option<Token>,
    pub before: Option<Token>,
    pub has_voted: bool,
    /// The round leaves this master to others.
    pub is_left: bool,
    /// The connection that carried the round's command has ended.
    pub is_void: bool,
    /// The master was in quarantine when the round's command was sent.
    pub is_quarantined: bool,
    pub owed: Queue<Owed, 6>,

    /// For judgement only: a restart brought back what had ended.
    pub is_restored: bool,
    /// For judgement only: the entry may be gone or replaced by rights.
    pub is_entry_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub token: Token,
    pub ttl: u8,
}

/// A snapshot of a master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved<const C: usize> {
    pub key: Option<Key>,
    pub entries: [Option<Entry>; C],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Master<const C: usize> {
    pub key: Option<Key>,
    /// Ticks until the master votes again.
    pub quarantine: u8,
    pub saved: Option<Saved<C>>,
    /// The client whose tickets are the lowest there, if masters order differently.
    pub lowest: u8,
    /// For judgement only: the key became free and no script served the queue.
    pub is_silent: bool,
    /// For judgement only: tokens that were written, while something could write them again.
    pub written: u16,
    pub links: [Link; C],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    #[default]
    Idle,
    Trying,
    Holding,
    Crashed,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    pub phase: Phase,
    /// Of the round that runs, or of the lock.
    pub token: Option<Token>,
    /// Ticks of validity, by the client's own clock.
    pub validity: u8,
    /// Rounds of this wait so far, as far as they are limited.
    pub rounds: u8,
    pub locks: u8,
    /// The round's command is `SET NX`.
    pub is_set: bool,
    /// A ring for this round arrived.
    pub is_rung: bool,
    /// For judgement only: its key was deleted by force.
    pub is_forced: bool,
}

/// Faults, calls and ends of stays that may still come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub breaks: u8,
    pub restarts: u8,
    pub saves: u8,
    pub crashes: u8,
    pub cancels: u8,
    pub forces: u8,
    /// Stays or freshness of live clients' entries that end.
    pub stays: u8,
    /// Writes that fail.
    pub full: u8,
    /// Parks that are answered by an error.
    pub rejections: u8,
    pub repairs: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct State<const C: usize> {
    pub masters: [Master<C>; MASTERS],
    pub clients: [Client; C],
    pub left: Faults,
    /// The property that the step to this state broke.
    pub broken: Option<Property>,
}

impl<const C: usize> Master<C> {
    /// Tokens that a command or an entry may write here.
    pub fn mentioned(&self) -> u16 {
        let of_entries = |entries: &mut dyn Iterator<Item = &Option<Entry>>| {
            entries.flatten().fold(0, |sum, entry| sum | entry.token.bit())
        };
        let mut all = of_entries(&mut self.links.iter().map(|link| &link.entry));
        if let Some(saved) = &self.saved {
            all |= of_entries(&mut saved.entries.iter());
        }
        for link in &self.links {
            for command in link.commands.iter().chain(link.late.iter()) {
                if let Command::Set(token) | Command::Park { token, .. } = command {
                    all |= token.bit();
                }
            }
        }
        all
    }
}

impl<const C: usize> State<C> {
    pub fn link(&self, client: usize, master: usize) -> &Link {
        &self.masters[master].links[client]
    }

    pub fn link_mut(&mut self, client: usize, master: usize) -> &mut Link {
        &mut self.masters[master].links[client]
    }

    /// The token that a client tries with or holds.
    pub fn current(&self, client: usize) -> Option<Token> {
        let client = &self.clients[client];
        matches!(client.phase, Phase::Trying | Phase::Holding).then_some(client.token).flatten()
    }

    pub fn holds(&self, client: usize) -> bool {
        self.clients[client].phase == Phase::Holding && self.clients[client].validity > 0
    }

    /// Whether anything anywhere names the token, so that it is not new.
    pub fn mentions(&self, token: Token) -> bool {
        let owner = token.owner();
        let it = Some(token);
        self.clients[owner].token == it
            || self.masters.iter().any(|master| {
                let link = &master.links[owner];
                let is_of = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.token == token);
                let saved = master.saved.as_ref();
                master.key.is_some_and(|key| key.token == token)
                    || saved.is_some_and(|saved| saved.key.is_some_and(|key| key.token == token))
                    || saved.is_some_and(|saved| is_of(&saved.entries[owner]))
                    || is_of(&link.entry)
                    || [link.last, link.awaited, link.before].contains(&it)
                    || link.owed.iter().any(|owed| owed.token == token)
                    || link.commands.iter().chain(link.late.iter()).any(|command| command.names(token))
                    || link.answers.iter().any(|answer| answer.names(token))
            })
    }
}

impl Command {
    /// Whether the command can still write the token, or ends it.
    pub fn names(&self, it: Token) -> bool {
        match *self {
            Command::Park { token, old, .. } => token == it || old == Some(it),
            Command::Set(token) | Command::Unpark(token) | Command::Release(token) => token == it,
            Command::NativeRelease(token) | Command::Repair(token) => token == it,
            Command::Serve => false,
        }
    }
}

impl Answer {
    /// Whether it can have an effect on a client that tries with this token.
    pub fn matters(&self, current: Option<Token>) -> bool {
        match *self {
            Answer::Vote(token) | Answer::Ring(token) => current == Some(token),
            _ => true,
        }
    }

    fn names(&self, it: Token) -> bool {
        match *self {
            Answer::Granted(token) | Answer::Waiting(token) | Answer::Vote(token) => token == it,
            Answer::Ring(token) | Answer::Ended { token, .. } => token == it,
            Answer::Rejected { token, old } => token == it || old == Some(it),
        }
    }
}
