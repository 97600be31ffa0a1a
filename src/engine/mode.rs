//! Mode of a lock: plain, fenced or shared. The ordinary path of an acquisition asks its mode these questions
//! and knows no more.
//!
//! | | plain | fenced | shared |
//! | --- | --- | --- | --- |
//! | waits in the engine's own queue | yes | yes | no |
//! | may be handed over by a swap | yes | no | in no queue, so it never is |
//! | a refusal reports the holder's time | no | yes | yes |
//! | a refusal may be for another reason than a holder | no | its token | no |

use std::time::Instant;

use super::claim::Claim;
use super::fair::{self, Policy};
use super::fence::{self, Fencing};
use super::fleet::Fleet;
use super::groups::Notify;
use super::kind::{AttemptAnswer, Kind};
use super::owed::{Owed, Shape, Verb};
use super::sharing;
use super::slab::Id;
use super::subscription::Waiter;
use super::wall_clock::WallClock;
use crate::lock::command::entry::AcquireTail;
use crate::lock::command::fenced::{encode_fenced_acquire, encode_fenced_release, encode_fenced_repair};
use crate::lock::command::scripts::Script;
use crate::lock::command::shared::{encode_shared_acquire, encode_shared_extend, encode_shared_release};
use crate::lock::command::wake::encode_release_wake;
use crate::lock::command::{
    ExtendBy, ReleaseBy, encode_acquire, encode_extend, encode_notification, encode_release,
};
use crate::lock::{HolderTtl, InputError, MasterId, MasterSet, Tally, Ttl, Vote};
use crate::mutants::mutant;
use crate::options::{Mode, Options, WaitPolicy};

/// Reports gathered about the key that was in the way of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldersKnown {
    /// All that masters report of it.
    All,
    /// Their reports of it beside the queue, which says when to come again.
    InQueue,
    /// Nothing: they are to be asked.
    None,
}

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

    /// Whether it may pass to the next waiter, and be the next one's, by a swap. That leaves a fence as it
    /// is.
    pub(super) const fn may_be_handed_over(&self) -> bool {
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

    /// An attempt begins: returns the kind of its claim.
    pub(super) fn begin_attempt(
        &mut self,
        fleet: &Fleet,
        now: Instant,
        wall_clock: &WallClock,
        is_retry: bool,
        holders: &mut Vec<(MasterId, HolderTtl)>,
    ) -> Kind {
        match self {
            Self::Plain => Kind::Plain,
            Self::Fenced(fencing) => {
                let mut quarantined = fleet.quarantined_at(now);
                if mutant!(FenceOfQuarantine) {
                    quarantined = MasterSet::EMPTY;
                }
                if mutant!(RetryForgetsQuarantine) && is_retry {
                    quarantined = MasterSet::EMPTY;
                }
                Kind::Fenced(fencing.begin_attempt(wall_clock.masters_us(now), quarantined))
            }
            Self::Shared => {
                holders.clear();
                Kind::Shared
            }
        }
    }

    /// The masters on which a holder is in the way of an attempt that no quorum granted, if masters may have
    /// refused it for another reason.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        wall_clock: &mut WallClock,
        tally: &Tally,
        half_us: u64,
    ) -> Option<MasterSet> {
        match self {
            Self::Fenced(fencing) => Some(fencing.judge(now, wall_clock, tally, half_us)),
            Self::Plain | Self::Shared => None,
        }
    }

    /// Whether another attempt may follow without a pause, where [`ModeState::judge`] found nobody; counts it
    /// if so.
    pub(super) fn may_repeat(&mut self) -> bool {
        match self {
            Self::Fenced(fencing) => fencing.may_renumber(),
            Self::Plain | Self::Shared => false,
        }
    }

    /// An attempt failed: leaves in `holders` what masters reported of the key in the way.
    pub(super) fn gather_holders(&mut self, holders: &mut Vec<(MasterId, HolderTtl)>) -> HoldersKnown {
        match self {
            Self::Plain => {
                holders.clear();
                HoldersKnown::None
            }
            Self::Fenced(fencing) => {
                holders.clear();
                fencing.end_row(holders);
                HoldersKnown::All
            }
            // They were reported with each refusal.
            Self::Shared => HoldersKnown::All,
        }
    }

    /// How it stands to the other waiters on its channel.
    pub(super) const fn waiter(&self) -> Waiter {
        match self {
            Self::Plain | Self::Fenced(_) => Waiter::Rival,
            Self::Shared => Waiter::Reader,
        }
    }
}

/// Whether the mode and the waiting policy go together.
pub(super) const fn check(options: &Options) -> Result<(), InputError> {
    match (options.policy, options.mode) {
        _ if options.has_two_modes => Err(InputError::SharedFenced),
        (WaitPolicy::Notified, _) | (WaitPolicy::Fair, Mode::Plain) => Ok(()),
        (WaitPolicy::Fair, Mode::Fenced) => Err(InputError::FairAndFenced),
        (WaitPolicy::Fair, Mode::Shared) => Err(InputError::SharedFair),
    }
}

/// State of an operation that answers to its attempts update.
pub(super) struct Learner<'a> {
    pub(super) mode: &'a mut ModeState,
    pub(super) policy: &'a mut Policy,
    pub(super) holders: &'a mut Vec<(MasterId, HolderTtl)>,
}

/// The vote in a master's answer to an attempt, from which the operation learns more, unless it is over.
/// `None` where the answer decides nothing any more.
pub(super) fn vote(
    answer: AttemptAnswer,
    master: MasterId,
    claim: &mut Claim,
    op: Option<Learner<'_>>,
    quorum: usize,
) -> Option<Vote> {
    match answer {
        AttemptAnswer::Fenced(answer) => {
            let fencing = op.and_then(|op| match op.mode {
                ModeState::Fenced(fencing) => Some(fencing),
                ModeState::Plain | ModeState::Shared => None,
            });
            fence::vote(answer, master, claim, fencing)
        }
        AttemptAnswer::Fair(answer) => {
            let queuing = op.and_then(|op| op.policy.queuing_mut());
            Some(fair::vote(answer, master, claim, queuing, quorum))
        }
        AttemptAnswer::Shared(vote) => sharing::vote(vote, master, claim, op.map(|op| op.holders)),
    }
}

/// Queues the request of an attempt that has a script; returns the masters that had room for it.
pub(super) fn send_attempt(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl: Ttl,
    script: Script,
) -> MasterSet {
    let (entry, ttl_ms, prefix_size) = (&claim.entry, ttl.as_millis(), fleet.config.prefix.len());
    match claim.kind {
        Kind::Plain => unreachable!("its attempt has no script"),
        Kind::Fenced(token) => {
            let fence = fence::fence(&fleet.config, token);
            fleet.queue(to, owed, |out| encode_fenced_acquire(out, script, entry, ttl_ms, &fence))
        }
        Kind::Shared => {
            fleet.queue(to, owed, |out| encode_shared_acquire(out, script, entry, ttl_ms, prefix_size))
        }
    }
}

/// Queues the release of a claim on those of `to` that are ready; returns those that had room for it.
#[inline(always)]
pub(super) fn send_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    let owed = Owed::round(Verb::Release, claim.kind.tag(), 0, id);
    match claim.kind {
        Kind::Plain => fleet.send_release(to, owed, &claim.entry, claim.notify()),
        Kind::Fenced(_) | Kind::Shared => send_scripted_release(fleet, to, owed, claim, Script::Sha),
    }
}

/// Queues the script of a release; that of a plain lock, whose first release may be a native command, in
/// full.
#[cold]
#[inline(never)]
pub(super) fn send_scripted_release(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    script: Script,
) -> MasterSet {
    let (to, entry, notify) = (to.intersection(fleet.ready), &claim.entry, claim.notify());
    let prefix_size = fleet.config.prefix.len();
    match claim.kind {
        Kind::Plain => fleet.queue(to, owed, |out| match notify {
            Notify::Group { publisher } if to == MasterSet::only(publisher) => {
                encode_release_wake(out, script, entry, prefix_size);
            }
            notify => encode_release(out, ReleaseBy::Eval, entry, notify == Notify::Waiters),
        }),
        Kind::Fenced(token) => {
            let fence = fence::fence(&fleet.config, token);
            // This script publishes the release, with the number of waiters.
            let notifies = matches!(notify, Notify::Group { .. });
            let sent =
                fleet.queue(to, owed, |out| encode_fenced_release(out, script, entry, &fence, notifies));
            if script == Script::Sha && notify == Notify::Waiters {
                let owed = Owed::Ignored(Shape::Count);
                fleet.queue(sent, owed, |out| encode_notification(out, entry.key()));
            }
            sent
        }
        Kind::Shared => {
            fleet.queue(to, owed, |out| encode_shared_release(out, script, entry, claim.notifies))
        }
    }
}

/// Queues an extension on those of `to` that are ready; returns those that had room for it. `Script::Text`
/// says that it is sent once more, with the script in full.
pub(super) fn send_extend(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl: Ttl,
    script: Script,
) -> MasterSet {
    let entry = &claim.entry;
    match (claim.kind, script) {
        (Kind::Shared, _) => {
            let to = to.intersection(fleet.ready);
            fleet.queue(to, owed, |out| encode_shared_extend(out, script, entry, ttl.as_millis()))
        }
        (Kind::Plain | Kind::Fenced(_), Script::Sha) => {
            fleet.send_compared(to, owed, |out, by| encode_extend(out, by, entry, ttl))
        }
        (Kind::Plain | Kind::Fenced(_), Script::Text) => {
            fleet.queue(to, owed, |out| encode_extend(out, ExtendBy::Eval, entry, ttl))
        }
    }
}

/// Queues the rest of the time for which a lock is left on those of `to` that are ready; returns those that
/// had room for it.
pub(super) fn send_rest(
    fleet: &mut Fleet,
    to: MasterSet,
    id: Id,
    claim: &Claim,
    rest: Ttl,
    script: Script,
) -> MasterSet {
    let owed = Owed::round(Verb::Rest, claim.kind.tag(), 0, id);
    let owed = if script == Script::Text { owed.whole() } else { owed };
    send_extend(fleet, to, owed, claim, rest, script)
}

/// Queues the command of a held lock for masters that missed it, with this TTL; returns those that had room
/// for it.
pub(super) fn send_repair(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl_ms: u64,
) -> MasterSet {
    let (entry, prefix_size) = (&claim.entry, fleet.config.prefix.len());
    match claim.kind {
        Kind::Plain => {
            let mut tail = AcquireTail::EMPTY;
            tail.set(ttl_ms);
            fleet.queue(to, owed, |out| encode_acquire(out, entry, &tail))
        }
        Kind::Fenced(token) => {
            let fence = fence::fence(&fleet.config, token);
            fleet.queue(to, owed, |out| encode_fenced_repair(out, entry, ttl_ms, &fence))
        }
        Kind::Shared => {
            fleet.queue(to, owed, |out| encode_shared_acquire(out, Script::Text, entry, ttl_ms, prefix_size))
        }
    }
}
