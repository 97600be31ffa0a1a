//! What a lock is: plain, fenced or shared. The ordinary path of an acquisition asks its mode these questions and knows no more.
//!
//! | | plain | fenced | shared |
//! | --- | --- | --- | --- |
//! | waits in the engine's own queue | yes | yes | no |
//! | may be handed over by a swap | yes | no | never, as it is in no queue |
//! | a refusal reports the holder's time | no | yes | yes |
//! | a refusal may be for another reason than a holder | no | its token | no |

use super::claim::{Claim, Kind};
use super::fence::{self, Fencing};
use super::fleet::Fleet;
use super::owed::{Owed, Tag};
use super::sharing;
use super::slab::Id;
use crate::lock::command::{self, AcquireTail, ExtendBy, ReleaseBy, Script};
use crate::lock::{MasterSet, Ttl};
use crate::options::Mode;

/// The mode of an acquisition, and of the lock that comes of it.
#[derive(Debug)]
pub(super) enum ModeState {
    /// One owner alone.
    Plain,
    /// One owner alone, with a number that rises from owner to owner.
    Fenced(Fencing),
    /// A reader's, together with others.
    Shared,
}

impl ModeState {
    pub(super) const fn new(mode: Mode) -> Self {
        match mode {
            Mode::Plain => Self::Plain,
            Mode::Fenced => Self::Fenced(Fencing::new()),
            Mode::Shared => Self::Shared,
        }
    }

    /// Whether its waiters form a queue within the engine: readers do not wait for each other.
    #[inline]
    pub(super) const fn is_queued(&self) -> bool {
        !matches!(self, Self::Shared)
    }

    /// Whether it may pass to the next waiter, and be the next one's, by a swap. That leaves a fence as it is.
    pub(super) const fn is_handed_over(&self) -> bool {
        !matches!(self, Self::Fenced(_))
    }

    /// Masters whose votes do not count for the attempt under way, in addition to those in quarantine now.
    #[inline]
    pub(super) fn excluded(&self) -> MasterSet {
        match self {
            Self::Fenced(fencing) => fencing.quarantined,
            Self::Plain | Self::Shared => MasterSet::EMPTY,
        }
    }
}

/// Queues the release of a claim on those of `to` that are ready; returns those that had room for it.
#[inline]
pub(super) fn send_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    match claim.kind {
        Kind::Plain => fleet.send_release(to, Owed::release(Tag::Plain, id), &claim.entry, claim.notify()),
        Kind::Fenced(token) => {
            let owed = Owed::release(Tag::Fenced, id);
            let sent = fence::send_release(fleet, to, owed, claim, token, Script::Known);
            fence::send_notification(fleet, sent, claim);
            sent
        }
        Kind::Shared => {
            sharing::send_release(fleet, to, Owed::release(Tag::Shared, id), claim, Script::Known)
        }
    }
}

/// Queues a release once more, with the script in full.
pub(super) fn send_whole_release(fleet: &mut Fleet, to: MasterSet, owed: Owed, claim: &Claim) -> MasterSet {
    match claim.kind {
        Kind::Plain => fleet.send(to, owed.whole(), |out| {
            command::encode_release(out, ReleaseBy::Eval, &claim.entry, claim.tells);
        }),
        Kind::Fenced(token) => fence::send_release(fleet, to, owed.whole(), claim, token, Script::Whole),
        Kind::Shared => sharing::send_release(fleet, to, owed.whole(), claim, Script::Whole),
    }
}

/// Queues an extension on those of `to` that are ready; returns those that had room for it. `Script::Whole` says that it is
/// sent once more, with the script in full.
pub(super) fn send_extend(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl: Ttl,
    script: Script,
) -> MasterSet {
    match (claim.kind, script) {
        (Kind::Shared, _) => sharing::send_extend(fleet, to, owed, claim, ttl, script),
        (Kind::Plain | Kind::Fenced(_), Script::Known) => fleet.send_extend(to, owed, &claim.entry, ttl),
        (Kind::Plain | Kind::Fenced(_), Script::Whole) => fleet.send(to, owed, |out| {
            command::encode_extend(out, ExtendBy::Eval, &claim.entry, ttl);
        }),
    }
}

/// Queues the command of a held lock for masters that missed it, with this TTL; returns those that had room for it.
pub(super) fn send_repair(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl_ms: u64,
) -> MasterSet {
    match claim.kind {
        Kind::Plain => {
            let mut tail = AcquireTail::EMPTY;
            tail.set(ttl_ms);
            fleet.send(to, owed, |out| command::encode_acquire(out, &claim.entry, &tail))
        }
        Kind::Fenced(token) => fence::send_repair(fleet, to, owed, claim, token, ttl_ms),
        Kind::Shared => sharing::send_acquire(fleet, to, owed, claim, ttl_ms, Script::Whole),
    }
}
