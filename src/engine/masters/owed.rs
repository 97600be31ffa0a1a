//! Owed replies: the request that each reply answers, and what the reply says.
//!
//! A request of a lock's life has three coordinates: what it does (the [`Verb`]), whose commands it uses (the
//! [`Tag`]), and whether it carries the script (the [`Form`]). A reply must have a shape that its request
//! allows, whatever the state of the lock; a reply of another shape ends the connection.

use std::fmt;

use super::groups::Commands;
use super::handshake::{self, HandshakeStep, Replication};
use super::mark::{self, MarkFound};
use super::record::{self, Found};
use crate::engine::locks::slab::Id;
use crate::lock::command::answer::{ReleaseAnswer, WrongShape};
use crate::lock::command::park::ParkAnswer;
use crate::lock::command::scripts::Script;
use crate::lock::command::{self, ExtendBy, ReleaseBy};
use crate::lock::{AttemptAnswer, Failure, HolderTtl, MasterSet, NamedScript, ScriptAnswer, Vote};
use crate::options::Mode;
use crate::resp::Reply;
use crate::words;

/// The request that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owed {
    /// A request for a lock. The id is the operation's for an extension or a repair, otherwise the claim's.
    /// The number is the round of an extension or repair, or the slot of the claim that a swap replaces.
    Round { verb: Verb, tag: Tag, form: Form, number: u32, id: Id },
    /// An attempt of this claim with a measured round trip; otherwise like [`Verb::Acquire`].
    Timed { tag: Tag, id: Id },
    /// A question of this operation.
    Query { question: Question, id: Id },
    /// A step of the handshake.
    Handshake(HandshakeStep),
    /// `AUTH` on an open connection.
    Login,
    /// The mark, after the handshake.
    Mark(Access),
    /// The fleet's record, after the handshake.
    Record(Access),
    /// A fact that may change on an open connection.
    Fact(Section),
    /// A check whether the first waiter can get this claim's lock.
    Look(Id),
    /// The subscription to the connection's own channel, confirmed by a push message.
    Subscription,
    /// The last of the scripts being loaded for locks of this tag.
    Scripts(Tag),
    /// A request whose reply changes nothing.
    Ignored,
}

const _: () = assert!(size_of::<Owed>() == 16, "each reply owed is copied for each master");

/// Whose commands a request uses. A claim of any kind may be parked: then its attempts are parks, and its
/// releases end parks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Of(Mode),
    Parked,
}

impl Tag {
    pub(crate) const PLAIN: Self = Self::Of(Mode::Plain);
    pub(crate) const COUNT: usize = Mode::ALL.len() + 1;

    /// Returns the place in an array of [`Tag::COUNT`] elements.
    pub(crate) const fn place(self) -> usize {
        match self {
            Self::Of(mode) => mode as usize,
            Self::Parked => Mode::ALL.len(),
        }
    }

    /// Returns the scripts that are loaded after an attempt; none if the attempt is a native command.
    pub(crate) const fn scripts(self) -> &'static [NamedScript] {
        match self {
            Self::Of(mode) => mode.scripts(),
            Self::Parked => &command::scripts::PARKED,
        }
    }

    /// Whether the release is a separate script, even where the server has a native command.
    const fn releases_by_script(self) -> bool {
        match self {
            Self::Of(mode) => !mode.is_released_natively(),
            Self::Parked => true,
        }
    }

    /// Whether the extension is a separate script.
    const fn extends_by_script(self) -> bool {
        match self {
            Self::Of(mode) => mode.extension().is_some(),
            Self::Parked => false,
        }
    }
}

/// Effect of a request on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Sets the key for an attempt.
    Acquire,
    /// Sets the key of a held lock on a master that missed it.
    Repair,
    /// Sets the key's TTL.
    Extend,
    /// Replaces the last holder's key with the next holder's: both a vote and the answer to a release.
    Swap,
    /// Deletes the key.
    Release,
    /// Sets the key's TTL to the rest of the time for which the lock was left.
    Rest,
}

/// Whether a request carries its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As first sent: a native command, a script by its digest, or a script that is always sent in full.
    Usual,
    /// The script in full; never repeated in full.
    Whole,
}

/// What an operation asks about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Remaining time of a refused lock's holder.
    Holder,
    /// Parts of an inspection: the value, the number of readers and the remaining time. The first two are also
    /// asked after a refusal.
    Value,
    ReaderCount,
    TimeLeft,
    FreeSlots,
    /// The deletion of a forced unlock, with a script or with a native command.
    ForcedDelete,
    ForcedNativeDelete,
}

/// Requests for a key that is not a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A section of `INFO` from the handshake, asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Replication,
    Memory,
}

/// Content of a [`Section`].
#[derive(Debug)]
pub(crate) enum Fact {
    Replication(Replication),
    Policy(Option<Box<str>>),
    /// The master refused to say, with this error.
    Refused(Box<str>),
}

/// A decoded reply, matched with its request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The nonce came back: the link is ready.
    HandshakeDone,
    Acquire(Id, Vote),
    /// Answer to an attempt made by a script.
    Attempt(Id, ScriptAnswer),
    Extend(Id, u32, Vote),
    /// The flag says that the master stopped at its limit and must serve more waiters.
    Release(Id, ReleaseAnswer, bool),
    Looked(Id, command::park::Looked),
    Rest(Id, Vote),
    /// Not a reply: `script.rs` does not repeat a rest whose time is over.
    RestOver(Id),
    Repair(Id, u32, Vote),
    Swap(Id, u32, Vote),
    /// Not a reply: `script.rs` cannot repeat a swap, which is void or has no room.
    SwapUnsent(Id, u32),
    Holder(Id, HolderTtl),
    Value(Id, Result<Box<[u8]>, Failure>),
    ReaderCount(Id, Result<usize, Failure>),
    TimeLeft(Id, Result<HolderTtl, Failure>),
    FreeSlots(Id, Result<Vec<command::slots::SlotMark>, Failure>),
    ForcedDelete(Id, ReleaseAnswer),
    /// Why a login was refused; `None` if it was accepted.
    Login(Option<Box<str>>),
    Mark(MarkFound),
    Record(Found),
    /// The mark or the record was not written, for this reason.
    NotWritten(&'static str, Box<str>),
    Fact(Fact),
    /// Answer to the park of this claim.
    Park(Id, ParkAnswer),
    /// Message: this claim got the lock that it waited for.
    Granted(Id),
    /// Message: the lock that this claim waits for is free.
    Ring(Id),
    /// The subscription to the connection's channel was refused.
    NoChannel(Box<str>),
    Ignored,
    /// The master does not know the script, or is too full for the native command: the request must be
    /// repeated with the script in full.
    WantsScript(Owed),
}

impl Owed {
    pub(crate) const fn round(verb: Verb, tag: Tag, number: u32, id: Id) -> Self {
        Self::Round { verb, tag, form: Form::Usual, number, id }
    }

    /// The id of a request for a lock. Code that rarely needs the id reads it again here, so that no register
    /// must hold it.
    #[inline]
    pub(crate) const fn round_id(&self) -> Id {
        match self {
            Self::Round { id, .. } => *id,
            _ => Id::NOBODY,
        }
    }

    /// The request without its measurement, and the measured claim, if any.
    pub(crate) const fn untimed(self) -> (Self, Option<Id>) {
        match self {
            Self::Timed { tag, id } => (Self::round(Verb::Acquire, tag, 0, id), Some(id)),
            other => (other, None),
        }
    }

    /// The request with its script in full.
    pub(crate) const fn whole(self) -> Self {
        match self {
            Self::Round { verb, tag, number, id, .. } => {
                Self::Round { verb, tag, form: Form::Whole, number, id }
            }
            other => other,
        }
    }

    /// The request with this part of its script.
    pub(crate) const fn with(self, script: Script) -> Self {
        match script {
            Script::Sha => self,
            Script::Text => self.whole(),
        }
    }

    /// Whether the master must get the script: it forgot the script, or is too full for the native command.
    pub(crate) fn wants_script(self, reply: &Reply<'_>, by: Commands) -> bool {
        (command::answer::is_noscript(reply) && self.is_by_digest(by))
            || (command::answer::is_out_of_memory(reply) && self.is_native_set(by))
    }

    /// Whether the request named a script by its digest, which a master may forget.
    fn is_by_digest(self, by: Commands) -> bool {
        let Self::Round { verb, tag, form: Form::Usual, .. } = self else {
            return matches!(self, Self::Look(_));
        };
        match (verb, tag) {
            (Verb::Acquire, tag) => !tag.scripts().is_empty(),
            // Always in full.
            (Verb::Repair, _) => false,
            (Verb::Extend | Verb::Rest, tag) if tag.extends_by_script() => true,
            (Verb::Release, tag) if tag.releases_by_script() => true,
            (Verb::Swap, Tag::Parked) => true,
            (Verb::Extend | Verb::Rest | Verb::Swap, _) => by.extend == ExtendBy::EvalSha,
            // Despite a native command, it may be the script that serves waiters.
            (Verb::Release, _) => by.release == ReleaseBy::EvalSha || by.serves,
        }
    }

    /// Whether it is a native `SET`, which a full server refuses. The script in its place needs no more
    /// memory.
    fn is_native_set(self, by: Commands) -> bool {
        let Self::Round { verb, tag, form: Form::Usual, .. } = self else { return false };
        let is_set = matches!(verb, Verb::Extend | Verb::Rest | Verb::Swap) && !tag.extends_by_script();
        is_set && by.extend == ExtendBy::SetIfEq
    }

    /// Decodes the reply. A connection takes the replies to its handshake and logins itself.
    pub(crate) fn answer(self, reply: &Reply<'_>) -> Result<Answer, WrongShape> {
        match self {
            Self::Round { verb, tag, number, id, .. } => round_answer(verb, tag, number, id, reply),
            Self::Timed { tag, id } => round_answer(Verb::Acquire, tag, 0, id, reply),
            Self::Query { question, id } => query_answer(question, id, reply),
            Self::Mark(Access::Read) => MarkFound::from_reply(reply).map(Answer::Mark),
            Self::Mark(Access::Write) => written(mark::WRITING, reply),
            Self::Fact(section) => match (section, reply) {
                (Section::Replication, Reply::Bulk(info)) => {
                    Ok(Answer::Fact(Fact::Replication(Replication::of_info(info))))
                }
                (Section::Memory, Reply::Bulk(info)) => {
                    Ok(Answer::Fact(Fact::Policy(handshake::maxmemory_policy(info))))
                }
                (_, Reply::Error(text)) => Ok(Answer::Fact(Fact::Refused(words::error_text(text)))),
                _ => Err(WrongShape),
            },
            Self::Record(Access::Read) => Found::from_reply(reply).map(Answer::Record),
            Self::Record(Access::Write) => written(record::WRITING, reply),
            Self::Look(id) => Ok(Answer::Looked(id, command::park::looked(reply)?)),
            Self::Subscription => match reply {
                Reply::Push(_) => Ok(Answer::Ignored),
                Reply::Error(text) => Ok(Answer::NoChannel(words::error_text(text))),
                _ => Err(WrongShape),
            },
            Self::Scripts(_) => ignored(reply),
            Self::Ignored => ignored(reply),
            Self::Handshake(_) | Self::Login => unreachable!("a connection takes its own replies"),
        }
    }
}

fn round_answer(verb: Verb, tag: Tag, number: u32, id: Id, reply: &Reply<'_>) -> Result<Answer, WrongShape> {
    Ok(match (verb, tag) {
        (Verb::Acquire, Tag::Of(mode)) => match mode.attempt_answer(reply)? {
            AttemptAnswer::Vote(vote) => Answer::Acquire(id, vote),
            AttemptAnswer::Script(answer) => Answer::Attempt(id, answer),
        },
        (Verb::Acquire, Tag::Parked) => Answer::Park(id, command::park::park_answer(reply)?),
        (Verb::Repair, Tag::Of(mode)) => Answer::Repair(id, number, repair_vote(mode, reply)?),
        (Verb::Repair, Tag::Parked) => unreachable!("a repair is never parked"),
        (Verb::Extend, _) => Answer::Extend(id, number, command::answer::compare_vote(reply)?),
        (Verb::Swap, _) => Answer::Swap(id, number, command::answer::compare_vote(reply)?),
        (Verb::Release, _) => {
            let (answer, has_more) = command::park::served_release_answer(reply)?;
            Answer::Release(id, answer, has_more)
        }
        (Verb::Rest, _) => Answer::Rest(id, command::answer::compare_vote(reply)?),
    })
}

#[cold]
fn repair_vote(mode: Mode, reply: &Reply<'_>) -> Result<Vote, WrongShape> {
    mode.attempt_answer(reply).map(AttemptAnswer::repair_vote)
}

fn written(what: &'static str, reply: &Reply<'_>) -> Result<Answer, WrongShape> {
    match reply {
        // A null means that another client was faster.
        Reply::Simple(b"OK") | Reply::NullBulk => Ok(Answer::Ignored),
        Reply::Error(text) => Ok(Answer::NotWritten(what, words::error_text(text))),
        _ => Err(WrongShape),
    }
}

fn ignored(reply: &Reply<'_>) -> Result<Answer, WrongShape> {
    match reply {
        Reply::Integer(_) | Reply::Error(_) | Reply::Simple(b"OK") | Reply::Bulk(_) => Ok(Answer::Ignored),
        _ => Err(WrongShape),
    }
}

fn query_answer(question: Question, id: Id, reply: &Reply<'_>) -> Result<Answer, WrongShape> {
    Ok(match question {
        Question::Holder => Answer::Holder(id, command::answer::holder_ttl(reply)?),
        Question::Value => Answer::Value(id, command::query::value(reply)?),
        Question::ReaderCount => Answer::ReaderCount(id, command::query::reader_count(reply)?),
        Question::TimeLeft => Answer::TimeLeft(id, command::query::time_left(reply)?),
        Question::FreeSlots => Answer::FreeSlots(id, command::slots::slot_marks(reply)?),
        Question::ForcedDelete => Answer::ForcedDelete(id, command::park::served_forced_answer(reply)?.0),
        Question::ForcedNativeDelete => Answer::ForcedDelete(id, command::query::forced_answer(reply)?),
    })
}

/// Requests, and the replies that each master will owe for them.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Addressed masters; empty if nothing is gathered. Each has room for all that may be gathered.
    pub(crate) masters: MasterSet,
    pub(crate) bytes: Vec<u8>,
    pub(crate) owed: Vec<Owed>,
}

impl fmt::Debug for Gathered {
    /// Omits the bytes, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered")
            .field("masters", &self.masters)
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_shape_is_always_noticed() {
        let verbs = [Verb::Acquire, Verb::Repair, Verb::Extend, Verb::Swap, Verb::Release, Verb::Rest];
        for verb in verbs {
            for tag in Mode::ALL.map(Tag::Of).into_iter().chain([Tag::Parked]) {
                if (verb, tag) == (Verb::Repair, Tag::Parked) {
                    continue;
                }
                let owed = Owed::round(verb, tag, 0, Id::NOBODY);
                for owed in [owed, owed.whole()] {
                    let answer = owed.answer(&Reply::Bulk(b"text"));
                    assert!(matches!(answer, Err(WrongShape)), "{owed:?} took {answer:?}");
                }
            }
        }
    }
}
