//! Kinds of lock, and all that differs between them on the masters. How an acquisition of each kind proceeds
//! is in `engine/locks/mode.rs`. A fair lock is a plain lock that waits in another way.
//!
//! | | plain | fenced | shared |
//! | --- | --- | --- | --- |
//! | may be fair; may be a slot | yes; yes | no; yes | no; no |
//! | attempt | `SET NX` | `fenced_acquire` | `shared_acquire_queue` |
//! | extension | compare and set | compare and set | `shared_extend` |
//! | release that serves no waiter | compare and delete | as below | as below |
//! | release that serves waiters | `release_serve` | `fenced_release_serve` | `shared_release_serve` |
//! | entry in a master's queue | `p` | `f`, token and window | `r` |
//! | number in a handle | 0 | 1, and the token | 2 |

use super::command::answer::{WrongShape, acquire_vote};
use super::command::encode_set;
use super::command::entry::Entry;
use super::command::fenced::{Fence, FencedAnswer, encode_fenced_acquire, fenced_answer};
use super::command::scripts::{self, NamedScript, Script};
use super::command::shared::{encode_shared_acquire_queue, encode_shared_extend, shared_vote};
use super::fencing::FencingToken;
use super::input_error::InputError;
use super::vote::Vote;
use crate::options::{Mode, Options, WaitPolicy};
use crate::resp::Reply;

/// Kind of a lock. `F` is what is known about a fenced lock: its token, a token with its window, or what an
/// acquisition has learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<F = FencingToken> {
    Plain,
    Fenced(F),
    Shared,
}

impl<F> Kind<F> {
    pub(crate) const fn mode(&self) -> Mode {
        match self {
            Self::Plain => Mode::Plain,
            Self::Fenced(_) => Mode::Fenced,
            Self::Shared => Mode::Shared,
        }
    }

    /// Returns the kind of this mode, with this about a fenced lock.
    pub(crate) fn new(mode: Mode, fenced: impl FnOnce() -> F) -> Self {
        match mode {
            Mode::Plain => Self::Plain,
            Mode::Fenced => Self::Fenced(fenced()),
            Mode::Shared => Self::Shared,
        }
    }

    /// Returns the same kind with something else about a fenced lock.
    pub(crate) fn map<G>(self, with: impl FnOnce(F) -> G) -> Kind<G> {
        match self {
            Self::Plain => Kind::Plain,
            Self::Fenced(fenced) => Kind::Fenced(with(fenced)),
            Self::Shared => Kind::Shared,
        }
    }
}

impl<F: Copy> Kind<F> {
    /// Returns what is known about a fenced lock.
    #[inline]
    pub(crate) const fn fenced(self) -> Option<F> {
        match self {
            Self::Fenced(fenced) => Some(fenced),
            Self::Plain | Self::Shared => None,
        }
    }
}

impl Kind {
    #[inline]
    pub(crate) const fn fencing_token(self) -> Option<FencingToken> {
        self.fenced()
    }

    /// Returns the kind with this number in a handle, and with this fencing token; 0 stands for none.
    pub(crate) fn in_handle(number: u8, token: u64) -> Option<Self> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.number() == number)?;
        let kind = Self::new(mode, || FencingToken::near(token));
        (kind.fencing_token().is_some() == (token > 0)).then_some(kind)
    }
}

impl Kind<Fence> {
    /// The attempt. A held lock's may come later than its fencing token allows.
    pub(crate) fn encode_attempt(
        &self,
        out: &mut Vec<u8>,
        script: Script,
        entry: &Entry,
        ttl_ms: u64,
        is_held: bool,
        prefix_size: usize,
    ) {
        match self {
            Self::Plain => encode_set(out, entry, ttl_ms),
            Self::Fenced(fence) => encode_fenced_acquire(out, script, entry, ttl_ms, fence, is_held),
            Self::Shared => encode_shared_acquire_queue(out, script, entry, ttl_ms, prefix_size),
        }
    }
}

/// Encodes an extension to a TTL in milliseconds.
type EncodeExtension = fn(&mut Vec<u8>, Script, &Entry, u64);

/// Answer of a master to an attempt.
#[derive(Debug)]
pub(crate) enum AttemptAnswer {
    Vote(Vote),
    Script(ScriptAnswer),
}

/// Answer to an attempt by a script. It may say more than a vote.
#[derive(Debug)]
pub(crate) enum ScriptAnswer {
    Fenced(FencedAnswer),
    Reader(Vote),
}

impl Mode {
    #[doc(hidden)] // The doctor's test of rights.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Fenced, Self::Shared];

    /// Returns the commands that the scripts of this mode need beyond those of plain locks, as an ACL names
    /// them.
    #[doc(hidden)] // The doctor tries them.
    #[must_use]
    pub const fn rights(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Fenced => &["time"],
            Self::Shared => {
                &["time", "type", "pexpireat", "zadd", "zrem", "zrange", "zscore", "zremrangebyscore"]
            }
        }
    }

    /// Whether waiters may insist on the order in which they asked.
    pub(crate) const fn check_policy(self, policy: WaitPolicy) -> Result<(), InputError> {
        match (policy, self) {
            (WaitPolicy::Cohort, _) | (WaitPolicy::Fair, Self::Plain) => Ok(()),
            (WaitPolicy::Fair, Self::Fenced) => Err(InputError::FairAndFenced),
            (WaitPolicy::Fair, Self::Shared) => Err(InputError::SharedFair),
        }
    }

    pub(crate) const fn may_be_slot(self) -> bool {
        match self {
            Self::Plain | Self::Fenced => true,
            Self::Shared => false,
        }
    }

    /// Whether an acquisition draws a fencing token, for which it needs the wall clock.
    pub(crate) const fn draws_token(self) -> bool {
        match self {
            Self::Fenced => true,
            Self::Plain | Self::Shared => false,
        }
    }

    /// Number in a handle.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Fenced => 1,
            Self::Shared => 2,
        }
    }

    /// Letter in an entry of a master's queue (`queue.lua`).
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::Plain => b'p',
            Self::Fenced => b'f',
            Self::Shared => b'r',
        }
    }

    /// Scripts of an attempt and of what may follow it; none if the attempt is a native command.
    pub(crate) const fn scripts(self) -> &'static [NamedScript] {
        match self {
            Self::Plain => &[],
            Self::Fenced => &scripts::FENCED,
            Self::Shared => &scripts::SHARED,
        }
    }

    /// The release that serves waiters.
    pub(crate) const fn release_script(self) -> &'static NamedScript {
        match self {
            Self::Plain => &scripts::RELEASE_SERVE,
            Self::Fenced => &scripts::FENCED_RELEASE_SERVE,
            Self::Shared => &scripts::SHARED_RELEASE_SERVE,
        }
    }

    /// Whether a release that serves no waiter may be a native command: it only compares and deletes.
    #[inline]
    pub(crate) const fn is_released_natively(self) -> bool {
        match self {
            Self::Plain => true,
            Self::Fenced | Self::Shared => false,
        }
    }

    /// The extension, unless it is a compare-and-set like that of a plain lock.
    pub(crate) const fn extension(self) -> Option<EncodeExtension> {
        match self {
            Self::Plain | Self::Fenced => None,
            Self::Shared => Some(encode_shared_extend),
        }
    }

    /// Reads the reply to an attempt.
    #[inline(always)]
    pub(crate) fn attempt_answer(self, reply: &Reply<'_>) -> Result<AttemptAnswer, WrongShape> {
        match self {
            Self::Plain => acquire_vote(reply).map(AttemptAnswer::Vote),
            Self::Fenced => {
                fenced_answer(reply).map(|answer| AttemptAnswer::Script(ScriptAnswer::Fenced(answer)))
            }
            Self::Shared => shared_vote(reply).map(|vote| AttemptAnswer::Script(ScriptAnswer::Reader(vote))),
        }
    }
}

impl AttemptAnswer {
    /// The vote, if the attempt is the repair of a held lock.
    pub(crate) fn repair_vote(self) -> Vote {
        match self {
            Self::Vote(vote) | Self::Script(ScriptAnswer::Reader(vote)) => vote,
            Self::Script(ScriptAnswer::Fenced(answer)) => match answer {
                FencedAnswer::Granted => Vote::Granted,
                // The key's TTL began before this request, so its end is unknown.
                FencedAnswer::Own => Vote::Pending,
                FencedAnswer::Refused(refusal) => Vote::Refused { holder: refusal.holder },
                FencedAnswer::Failed(failure) => Vote::Failed(failure),
            },
        }
    }
}

/// Checks that mode and waiting policy fit together.
pub(crate) const fn check(options: &Options) -> Result<(), InputError> {
    if options.has_two_modes {
        return Err(InputError::SharedFenced);
    }
    options.mode.check_policy(options.policy)
}
