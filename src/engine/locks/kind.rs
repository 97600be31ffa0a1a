//! The kinds of lock on the masters: the commands and replies of each.

use crate::handle::Kind;
use crate::lock::command;
use crate::lock::command::answer::WrongShape;
use crate::lock::command::fenced::FencedAnswer;
use crate::lock::{NamedScript, Vote};
use crate::resp::Reply;

impl Kind {
    /// Returns whose commands extend and release the lock.
    #[inline]
    pub(crate) const fn tag(self) -> Tag {
        match self {
            Self::Plain => Tag::Plain,
            Self::Fenced(_) => Tag::Fenced,
            Self::Shared => Tag::Shared,
        }
    }
}

/// Whose commands a request uses. A claim of any kind may be parked: then its attempts are parks, and its
/// releases end parks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Plain,
    Fenced,
    Shared,
    Parked,
}

impl Tag {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Fenced, Self::Shared, Self::Parked];

    /// Returns the scripts that are loaded after an attempt.
    pub(crate) const fn scripts(self) -> &'static [NamedScript] {
        match self {
            Self::Plain => &[],
            Self::Fenced => &command::scripts::FENCED,
            Self::Shared => &command::scripts::SHARED,
            Self::Parked => &command::scripts::PARKED,
        }
    }

    /// Whether the release is a separate script, even where the server has a native command.
    pub(crate) const fn releases_by_script(self) -> bool {
        matches!(self, Self::Fenced | Self::Shared | Self::Parked)
    }

    /// Whether the extension is a separate script.
    pub(crate) const fn extends_by_script(self) -> bool {
        matches!(self, Self::Shared)
    }

    /// Returns the vote in the answer to a repair.
    pub(crate) fn repair_vote(self, reply: &Reply<'_>) -> Result<Vote, WrongShape> {
        match self {
            Self::Plain | Self::Parked => command::answer::acquire_vote(reply),
            Self::Fenced => command::fenced::fenced_answer(reply).map(fenced_repair_vote),
            Self::Shared => command::shared::shared_vote(reply),
        }
    }
}

/// Answer to an attempt that uses a script. It may say more than a vote.
#[derive(Debug)]
pub(crate) enum AttemptAnswer {
    Fenced(FencedAnswer),
    Shared(Vote),
}

fn fenced_repair_vote(answer: FencedAnswer) -> Vote {
    match answer {
        FencedAnswer::Granted => Vote::Granted,
        // The key's TTL began before this request, so its end is unknown.
        FencedAnswer::Own => Vote::Pending,
        FencedAnswer::Refused(refusal) => Vote::Refused { holder: refusal.holder },
        FencedAnswer::Failed(failure) => Vote::Failed(failure),
    }
}
