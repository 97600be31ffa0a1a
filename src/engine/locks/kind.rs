//! The kinds of lock as the masters know them: what each one's commands and replies are.

use crate::handle::Kind;
use crate::lock::command;
use crate::lock::command::answer::WrongShape;
use crate::lock::command::fenced::FencedAnswer;
use crate::lock::{NamedScript, Vote};
use crate::resp::Reply;

impl Kind {
    /// By whose commands it is extended and released.
    #[inline]
    pub(crate) const fn tag(self) -> Tag {
        match self {
            Self::Plain => Tag::Plain,
            Self::Fenced(_) => Tag::Fenced,
            Self::Shared => Tag::Shared,
        }
    }
}

/// By whose commands a request is made. A claim of any kind may be parked: then its attempts and their
/// release are parks and their ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Plain,
    Fenced,
    Shared,
    Parked,
}

impl Tag {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Fenced, Self::Shared, Self::Parked];

    /// The scripts that are loaded behind an attempt.
    pub(crate) const fn scripts(self) -> &'static [NamedScript] {
        match self {
            Self::Plain => &[],
            Self::Fenced => &command::scripts::FENCED,
            Self::Shared => &command::scripts::SHARED,
            Self::Parked => &command::scripts::PARKED,
        }
    }

    /// Whether the release is a script of its own, also where the server has a native command.
    pub(crate) const fn releases_by_script(self) -> bool {
        matches!(self, Self::Fenced | Self::Shared | Self::Parked)
    }

    /// Whether the extension is a script of its own.
    pub(crate) const fn extends_by_script(self) -> bool {
        matches!(self, Self::Shared)
    }

    /// The vote in the answer to a held lock that was put back.
    pub(crate) fn repair_vote(self, reply: &Reply<'_>) -> Result<Vote, WrongShape> {
        match self {
            Self::Plain | Self::Parked => command::answer::acquire_vote(reply),
            Self::Fenced => command::fenced::fenced_answer(reply).map(fenced_repair_vote),
            Self::Shared => command::shared::shared_vote(reply),
        }
    }
}

/// The answer to an attempt that has a script, which may say more than a vote.
#[derive(Debug)]
pub(crate) enum AttemptAnswer {
    Fenced(FencedAnswer),
    Shared(Vote),
}

fn fenced_repair_vote(answer: FencedAnswer) -> Vote {
    match answer {
        FencedAnswer::Granted => Vote::Granted,
        // Its TTL began earlier than this request: nothing is known of its end.
        FencedAnswer::Own => Vote::Pending,
        FencedAnswer::Refused(refusal) => Vote::Refused { holder: refusal.holder },
        FencedAnswer::Failed(failure) => Vote::Failed(failure),
    }
}
