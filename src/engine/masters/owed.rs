//! Replies owed: which request each reply is of, and what the reply says.
//!
//! A request of a lock's life is a point of a grid: what is done (the [`Verb`]), by whose commands (the
//! [`Tag`]), and whether the script goes with it (the [`Form`]). A reply is checked against the shape that
//! its request allows whatever has become of the lock meanwhile; one of another shape ends the connection.

use std::fmt;

use super::groups::Commands;
use super::handshake::{self, HandshakeStep, Replication};
use super::mark::{self, MarkFound};
use super::record::{self, Found};
use crate::engine::locks::kind::{AttemptAnswer, Tag};
use crate::engine::locks::slab::Id;
use crate::lock::command::answer::{ReleaseAnswer, WrongShape};
use crate::lock::command::park::ParkAnswer;
use crate::lock::command::{self, ExtendBy, ReleaseBy};
use crate::lock::{Failure, HolderTtl, MasterSet, Vote};
use crate::resp::Reply;

/// Which request a reply is owed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owed {
    /// A request for a lock. The id is the operation's for an extension and a repair, else the claim's. The
    /// number is the round of an extension or a repair, and the place of the claim that a swap replaces.
    Round { verb: Verb, tag: Tag, form: Form, number: u32, id: Id },
    /// An attempt of this claim whose round trip is measured. It is as [`Verb::Acquire`] otherwise.
    Timed { tag: Tag, id: Id },
    /// A question of this operation.
    Query { question: Question, id: Id },
    /// A step of the handshake.
    Handshake(HandshakeStep),
    /// `AUTH` on a connection that stands.
    Login,
    /// The mark, behind the handshake.
    Mark(Access),
    /// The fleet's record, behind the handshake.
    Record(Access),
    /// A fact that may change while a connection stands.
    Fact(Section),
    /// A look whether the first waiter can have the lock of this claim.
    Look(Id),
    /// The subscription to the connection's own channel, which a message confirms.
    Subscription,
    /// The last script for locks of this tag that is loaded.
    Scripts(Tag),
    /// A request by the way, whose reply changes nothing.
    Ignored,
}

const _: () = assert!(size_of::<Owed>() == 16, "each reply owed is copied for each master");

/// Effect of a request on a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Sets the key for an attempt.
    Acquire,
    /// Sets the key of a held lock on a master that missed it.
    Repair,
    /// Sets the key's TTL.
    Extend,
    /// Puts the key of the next holder in the place of the last one's: a vote, and the answer to a release.
    Swap,
    /// Deletes the key.
    Release,
    /// Sets the key's TTL to the rest of the time that the lock is left for.
    Rest,
}

/// Whether a script goes with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is sent first: a native command, a script by its digest, or in full where that is always so.
    Usual,
    /// The script in full: not to be sent again in full.
    Whole,
}

/// Information that an operation asks for about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The time left to the holder of a lock that was refused.
    Holder,
    /// Parts of an inspection: the value, the number of readers (both also asked after a refusal), and the
    /// time left.
    Value,
    ReaderCount,
    TimeLeft,
    /// The free slots of a pool.
    FreeSlots,
    /// The deletion of a forced unlock, by a script or by a native command.
    ForcedDelete,
    ForcedNativeDelete,
}

/// The requests for a key that is no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A section of `INFO` that the handshake asked for, asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Replication,
    Memory,
}

/// What such a section says.
#[derive(Debug)]
pub(crate) enum Fact {
    Replication(Replication),
    /// Its `maxmemory-policy`.
    Policy(Option<Box<str>>),
    /// It does not say it, in its words.
    Refused(Box<str>),
}

/// A reply, taken apart and matched with its request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The nonce came back: the link is ready.
    HandshakeDone,
    Acquire(Id, Vote),
    /// To an attempt that has a script.
    Attempt(Id, AttemptAnswer),
    Extend(Id, u32, Vote),
    /// Whether the master stopped at its limit, and is to serve on.
    Release(Id, ReleaseAnswer, bool),
    /// A look for this claim.
    Looked(Id, command::park::Looked),
    Rest(Id, Vote),
    /// `script.rs` sends no rest again: its time is over.
    RestOver(Id),
    Repair(Id, u32, Vote),
    Swap(Id, u32, Vote),
    /// `script.rs` cannot send a swap again: it has no room, or is void by now.
    SwapUnsent(Id, u32),
    Holder(Id, HolderTtl),
    Value(Id, Result<Box<[u8]>, Failure>),
    ReaderCount(Id, Result<usize, Failure>),
    TimeLeft(Id, Result<HolderTtl, Failure>),
    FreeSlots(Id, Result<Vec<command::slots::SlotMark>, Failure>),
    ForcedDelete(Id, ReleaseAnswer),
    /// Why a login was refused, if it was.
    Login(Option<Box<str>>),
    Mark(MarkFound),
    Record(Found),
    /// The mark or the record was not written, for this reason.
    NotWritten(&'static str, Box<str>),
    Fact(Fact),
    /// To the park of this claim.
    Park(Id, ParkAnswer),
    /// A message: this claim has the lock that it waited for.
    Granted(Id),
    /// A message: the lock that this claim waits for is free.
    Ring(Id),
    /// The connection's own channel was refused.
    NoChannel(Box<str>),
    Ignored,
    /// The script was unknown, or the master is too full for the native command; the request is to be sent
    /// again with the script in full.
    WantsScript(Owed),
}

impl Owed {
    /// A request for a lock, as it is sent first.
    pub(crate) const fn round(verb: Verb, tag: Tag, number: u32, id: Id) -> Self {
        Self::Round { verb, tag, form: Form::Usual, number, id }
    }

    /// The id of a request for a lock. It is read anew where it is rarely needed, so that nobody has to keep
    /// it meanwhile.
    #[inline]
    pub(crate) const fn round_id(&self) -> Id {
        match self {
            Self::Round { id, .. } => *id,
            _ => Id::NOBODY,
        }
    }

    /// As it is without being measured, and the claim if it is.
    pub(crate) const fn untimed(self) -> (Self, Option<Id>) {
        match self {
            Self::Timed { tag, id } => (Self::round(Verb::Acquire, tag, 0, id), Some(id)),
            other => (other, None),
        }
    }

    /// The same with the script in full.
    pub(crate) const fn whole(self) -> Self {
        match self {
            Self::Round { verb, tag, number, id, .. } => {
                Self::Round { verb, tag, form: Form::Whole, number, id }
            }
            other => other,
        }
    }

    /// Whether the master has to be sent the script: it has forgotten it, or is too full for the native
    /// command.
    pub(crate) fn wants_script(self, reply: &Reply<'_>, by: Commands) -> bool {
        (command::answer::is_noscript(reply) && self.is_by_digest(by))
            || (command::answer::is_out_of_memory(reply) && self.is_native_set(by))
    }

    /// Whether a script was named by its digest, which a master may have forgotten.
    fn is_by_digest(self, by: Commands) -> bool {
        let Self::Round { verb, tag, form: Form::Usual, .. } = self else {
            return matches!(self, Self::Look(_));
        };
        match (verb, tag) {
            (Verb::Acquire, tag) => tag != Tag::Plain,
            // Always in full.
            (Verb::Repair, _) => false,
            (Verb::Extend | Verb::Rest, tag) if tag.extends_by_script() => true,
            (Verb::Release, tag) if tag.releases_by_script() => true,
            (Verb::Swap, Tag::Parked) => true,
            (Verb::Extend | Verb::Rest | Verb::Swap, _) => by.extend == ExtendBy::EvalSha,
            // Where there is a native command it may be the script that serves waiters all the same.
            (Verb::Release, _) => by.release == ReleaseBy::EvalSha || by.serves,
        }
    }

    /// Whether it is a native `SET`, which a full server refuses; the script in its place takes no more
    /// memory.
    fn is_native_set(self, by: Commands) -> bool {
        let Self::Round { verb, tag, form: Form::Usual, .. } = self else { return false };
        let is_set = matches!(verb, Verb::Extend | Verb::Rest | Verb::Swap) && !tag.extends_by_script();
        is_set && by.extend == ExtendBy::SetIfEq
    }

    /// Takes the reply apart. Those of a handshake and to a login are the connection's own affair.
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
                (_, Reply::Error(text)) => Ok(Answer::Fact(Fact::Refused(command::answer::error_text(text)))),
                _ => Err(WrongShape),
            },
            Self::Record(Access::Read) => Found::from_reply(reply).map(Answer::Record),
            Self::Record(Access::Write) => written(record::WRITING, reply),
            Self::Look(id) => Ok(Answer::Looked(id, command::park::looked(reply)?)),
            Self::Subscription => match reply {
                Reply::Push(_) => Ok(Answer::Ignored),
                Reply::Error(text) => Ok(Answer::NoChannel(command::answer::error_text(text))),
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
        (Verb::Acquire, Tag::Plain) => Answer::Acquire(id, command::answer::acquire_vote(reply)?),
        (Verb::Acquire, Tag::Fenced) => {
            Answer::Attempt(id, AttemptAnswer::Fenced(command::fenced::fenced_answer(reply)?))
        }
        (Verb::Acquire, Tag::Parked) => Answer::Park(id, command::park::park_answer(reply)?),
        (Verb::Acquire, Tag::Shared) => {
            Answer::Attempt(id, AttemptAnswer::Shared(command::shared::shared_vote(reply)?))
        }
        (Verb::Repair, _) => Answer::Repair(id, number, tag.repair_vote(reply)?),
        (Verb::Extend, _) => Answer::Extend(id, number, command::answer::compare_vote(reply)?),
        (Verb::Swap, _) => Answer::Swap(id, number, command::answer::compare_vote(reply)?),
        (Verb::Release, _) => {
            let (answer, has_more) = command::park::served_release_answer(reply)?;
            Answer::Release(id, answer, has_more)
        }
        (Verb::Rest, _) => Answer::Rest(id, command::answer::compare_vote(reply)?),
    })
}

fn written(what: &'static str, reply: &Reply<'_>) -> Result<Answer, WrongShape> {
    match reply {
        // Without `OK` another client was faster.
        Reply::Simple(b"OK") | Reply::NullBulk => Ok(Answer::Ignored),
        Reply::Error(text) => Ok(Answer::NotWritten(what, command::answer::error_text(text))),
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

/// Requests, and the replies that each of the masters will owe for them.
#[derive(Default)]
pub(crate) struct Gathered {
    /// For whom requests are gathered, while there are any. Each of them has room for all that may be
    /// gathered.
    pub(crate) masters: MasterSet,
    pub(crate) bytes: Vec<u8>,
    pub(crate) owed: Vec<Owed>,
}

impl fmt::Debug for Gathered {
    /// Without the bytes: a password may be among them.
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
            for tag in Tag::ALL {
                let owed = Owed::round(verb, tag, 0, Id::NOBODY);
                for owed in [owed, owed.whole()] {
                    let answer = owed.answer(&Reply::Bulk(b"text"));
                    assert!(matches!(answer, Err(WrongShape)), "{owed:?} took {answer:?}");
                }
            }
        }
    }
}
