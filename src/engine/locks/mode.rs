//! Mode of a lock: plain, fenced, shared or adopted. An adopted lock may be of any of the other kinds.
//! Acquisitions ask their mode these questions, and know nothing else about it.
//!
//! | | plain | fenced | shared | adopted |
//! | --- | --- | --- | --- | --- |
//! | waits in the engine's own queue | yes | yes | no | no |
//! | may be handed over by a swap | yes | no | no | no |
//! | a refusal reports the holder's time | no | yes | yes | no |
//! | a refusal may be for another reason than a holder | no | its token | no | no |
//! | votes of masters count that were in quarantine when its attempt began | yes | no | yes | no |

use std::time::Instant;

use super::claim::Claim;
use super::fence::{self, Fencing};
use super::kind::{AttemptAnswer, Tag};
use super::obstacle::Obstacle;
use super::sharing;
use super::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Verb};
use crate::engine::masters::wall_clock::WallClock;
use crate::handle::Kind;
use crate::lock::command::fenced::{FenceState, encode_fenced_acquire};
use crate::lock::command::park::{
    encode_release_serve, encode_shared_acquire_queue, encode_swap_parked, encode_unpark,
};
use crate::lock::command::scripts::Script;
use crate::lock::command::shared::encode_shared_extend;
use crate::lock::command::{ExtendBy, ReleaseBy, encode_extend, encode_release, encode_set};
use crate::lock::{InputError, MasterId, MasterSet, Tally, Ttl, Vote};
use crate::options::{Mode, Options, WaitPolicy};

/// Mode of an acquisition, and of the lock that it gets.
#[derive(Debug)]
pub(crate) enum ModeState {
    /// Exclusive.
    Plain,
    /// Exclusive, with a number that grows from holder to holder.
    Fenced(Fencing),
    /// Shared with other readers.
    Shared,
    /// Taken over with a handle.
    Adopted,
}

impl ModeState {
    pub(crate) const fn new(mode: Mode) -> Self {
        match mode {
            Mode::Plain => Self::Plain,
            Mode::Fenced => Self::Fenced(Fencing::new()),
            Mode::Shared => Self::Shared,
        }
    }

    /// Whether waiters form a queue within the engine. Readers do not wait for each other.
    #[inline]
    pub(crate) const fn is_queued(&self) -> bool {
        !matches!(self, Self::Shared | Self::Adopted)
    }

    /// Whether a swap may pass the lock on to the next waiter. A swap does not raise a fence, and compares a
    /// value that a set of readers does not have.
    pub(crate) const fn may_be_handed_over(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Begins an attempt, and returns the kind of its claim. Sets `excluded` to the masters whose votes do
    /// not count, in addition to masters in quarantine at the decision.
    pub(crate) fn begin_attempt(
        &mut self,
        fleet: &Fleet,
        now: Instant,
        wall_clock: &WallClock,
        obstacle: &mut Obstacle,
        excluded: &mut MasterSet,
    ) -> Kind {
        match self {
            Self::Plain => Kind::Plain,
            Self::Fenced(fencing) => {
                *excluded = fleet.quarantined_at(now);
                Kind::Fenced(fencing.begin_attempt(wall_clock.masters_us(now)))
            }
            Self::Shared => {
                obstacle.clear_times();
                Kind::Shared
            }
            Self::Adopted => unreachable!("an adoption is one attempt of its own"),
        }
    }

    /// Returns the masters where a holder is in the way of a refused attempt. `None` in modes where a holder
    /// is the only reason for a refusal.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        wall_clock: &mut WallClock,
        tally: &Tally,
        half_us: u64,
    ) -> Option<MasterSet> {
        match self {
            Self::Fenced(fencing) => Some(fencing.judge(now, wall_clock, tally, half_us)),
            Self::Plain | Self::Shared | Self::Adopted => None,
        }
    }

    /// Whether another attempt may follow without a pause, after [`ModeState::judge`] found too few holders.
    /// Counts that attempt.
    pub(crate) fn may_repeat(&mut self) -> bool {
        match self {
            Self::Fenced(fencing) => fencing.may_renumber(),
            Self::Plain | Self::Shared | Self::Adopted => false,
        }
    }

    /// The attempt failed: moves the masters' reports to `obstacle`. Returns whether every refusal reported
    /// how long the key in the way lives.
    pub(crate) fn gather_reports(&mut self, now: Instant, obstacle: &mut Obstacle) -> bool {
        match self {
            Self::Plain => obstacle.clear_times(),
            Self::Fenced(fencing) => {
                obstacle.clear_times();
                fencing.end_row(now, obstacle);
            }
            // The reports were noted with each refusal.
            Self::Shared | Self::Adopted => {}
        }
        matches!(self, Self::Fenced(_) | Self::Shared)
    }

    /// Notes that a master refused a parked attempt's fencing token.
    pub(crate) fn note_refusal(&mut self, master: MasterId, state: FenceState) {
        if let Self::Fenced(fencing) = self {
            fencing.note_refusal(master, state);
        }
    }

    /// Learns a better token if masters refuse a parked attempt's token. Returns whether the next round
    /// follows without a pause.
    pub(crate) fn renumbers(
        &mut self,
        now: Instant,
        wall_clock: &mut WallClock,
        tally: &Tally,
        half_us: u64,
    ) -> bool {
        let Self::Fenced(fencing) = self else { return false };
        if !fencing.is_token_refused() {
            return false;
        }
        fencing.judge(now, wall_clock, tally, half_us);
        fencing.may_renumber()
    }
}

/// Checks that the mode and the waiting policy fit together.
pub(crate) const fn check(options: &Options) -> Result<(), InputError> {
    match (options.policy, options.mode) {
        _ if options.has_two_modes => Err(InputError::SharedFenced),
        (WaitPolicy::Cohort, _) | (WaitPolicy::Fair, Mode::Plain) => Ok(()),
        (WaitPolicy::Fair, Mode::Fenced) => Err(InputError::FairAndFenced),
        (WaitPolicy::Fair, Mode::Shared) => Err(InputError::SharedFair),
    }
}

/// The parts of an operation that the answers to its attempts update.
pub(crate) struct Learner<'a> {
    pub(crate) now: Instant,
    pub(crate) mode: &'a mut ModeState,
    pub(crate) obstacle: &'a mut Obstacle,
}

/// Returns the vote in a master's answer to an attempt, and notes what else the answer says, unless the
/// operation is over. `None` if the answer cannot decide anything.
pub(crate) fn vote(
    answer: AttemptAnswer,
    master: MasterId,
    claim: &mut Claim,
    op: Option<Learner<'_>>,
) -> Option<Vote> {
    match answer {
        AttemptAnswer::Fenced(answer) => {
            let fencing = op.and_then(|op| match op.mode {
                ModeState::Fenced(fencing) => Some(fencing),
                ModeState::Plain | ModeState::Shared | ModeState::Adopted => None,
            });
            fence::vote(answer, master, claim, fencing)
        }
        AttemptAnswer::Shared(vote) => sharing::vote(vote, master, claim, op.map(|op| (op.now, op.obstacle))),
    }
}

/// Queues an attempt, or the repair of a held lock, with this TTL. Returns the masters that had room for it.
pub(crate) fn send_attempt(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl_ms: u64,
    script: Script,
) -> MasterSet {
    let (entry, prefix_size) = (&claim.entry, fleet.config.prefix.len());
    match claim.kind {
        Kind::Plain => fleet.queue(to, owed, |out| encode_set(out, entry, ttl_ms)),
        Kind::Fenced(token) => {
            let fence = fence::fence(&fleet.config, token);
            let is_held = matches!(owed, Owed::Round { verb: Verb::Repair, .. });
            fleet.queue(to, owed, |out| encode_fenced_acquire(out, script, entry, ttl_ms, &fence, is_held))
        }
        Kind::Shared => {
            fleet.queue(to, owed, |out| encode_shared_acquire_queue(out, script, entry, ttl_ms, prefix_size))
        }
    }
}

/// Queues the release of a claim on the ready masters of `to`. Returns the masters that had room for it.
#[inline(always)]
pub(crate) fn send_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    if claim.parked.is_some() {
        return send_parked_release(fleet, to, id, claim);
    }
    send_usual_release(fleet, to, id, claim)
}

/// Releases a claim that some masters may have parked. Those masters get a script that removes the entry or
/// the key.
#[cold]
#[inline(never)]
fn send_parked_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    let parked = claim.parked.as_ref().map_or(MasterSet::EMPTY, |parked| parked.masters);
    let owed = Owed::round(Verb::Release, Tag::Parked, 0, id);
    let sent = send_unpark(fleet, to.intersection(parked), owed, claim, Script::Sha);
    sent.union(send_usual_release(fleet, to.without(parked), id, claim))
}

/// Queues the end of a parked round on the ready masters of `to`. Returns the masters that had room for it.
pub(crate) fn send_unpark(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    script: Script,
) -> MasterSet {
    let prefix_size = fleet.config.prefix.len();
    // Only a lock that was held raises the fence.
    let fence = match (claim.kind, claim.parked.as_ref()) {
        (Kind::Fenced(token), Some(parked)) if parked.was_held => Some(fence::fence(&fleet.config, token)),
        _ => None,
    };
    let (mut sent, mut left) = send_without_script(fleet, to, owed, claim);
    // The entry's place is nearly always the same on all masters.
    while let Some(first) = left.iter().next() {
        let at_us = claim.entry_at(first);
        let same: MasterSet = left.iter().filter(|master| claim.entry_at(*master) == at_us).collect();
        sent = sent.union(fleet.queue(same, owed, |out| {
            encode_unpark(out, script, &claim.entry, at_us, fence.as_ref(), prefix_size);
        }));
        left = left.without(same);
    }
    sent
}

/// Queues a swap of a token that these masters have parked. Returns the masters that had room for it.
pub(crate) fn send_parked_swap(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    old: &Claim,
    new: &Claim,
    ttl: Ttl,
    script: Script,
) -> MasterSet {
    let prefix_size = fleet.config.prefix.len();
    let sent = to.iter().map(|master| {
        fleet.queue(MasterSet::only(master), owed, |out| {
            encode_swap_parked(out, script, &old.entry, &new.entry, old.entry_at(master), ttl, prefix_size);
        })
    });
    sent.fold(MasterSet::EMPTY, MasterSet::union)
}

#[inline(always)]
fn send_usual_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    let owed = Owed::round(Verb::Release, claim.kind.tag(), 0, id);
    match claim.kind {
        Kind::Plain if !claim.serves => fleet.send_release(to, owed, &claim.entry),
        _ => send_scripted_release(fleet, to, owed, claim, Script::Sha),
    }
}

/// Queues the script of a release. A plain lock that serves no waiters gets the script in full, because its
/// first release may have been a native command.
#[cold]
#[inline(never)]
pub(crate) fn send_scripted_release(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    script: Script,
) -> MasterSet {
    let (sent, to) = send_without_script(fleet, to, owed, claim);
    let entry = &claim.entry;
    let prefix_size = fleet.config.prefix.len();
    if matches!(claim.kind, Kind::Plain) && !claim.serves {
        return sent.union(fleet.queue(to, owed, |out| encode_release(out, ReleaseBy::Eval, entry)));
    }
    let mode = fence::park_mode(&fleet.config, claim.kind);
    sent.union(fleet.queue(to, owed, |out| encode_release_serve(out, script, entry, mode, prefix_size)))
}

/// Releases a plain lock natively on the ready masters of `to` that refuse scripts. An entry in the queue
/// there ends with its stay. Returns the masters that had room, and the other ready masters.
fn send_without_script(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
) -> (MasterSet, MasterSet) {
    let to = to.intersection(fleet.ready);
    let native = to.intersection(fleet.native_only);
    if native.is_empty() || claim.kind != Kind::Plain {
        return (MasterSet::EMPTY, to);
    }
    (fleet.send_release(native, owed, &claim.entry), to.without(native))
}

/// Queues an extension on the ready masters of `to`. Returns the masters that had room for it. `Script::Text`
/// repeats the extension with its script in full.
pub(crate) fn send_extend(
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

/// Queues the rest of a lock left for a time on the ready masters of `to`. Returns the masters that had room
/// for it.
pub(crate) fn send_rest(
    fleet: &mut Fleet,
    to: MasterSet,
    id: Id,
    claim: &Claim,
    rest: Ttl,
    script: Script,
) -> MasterSet {
    let owed = Owed::round(Verb::Rest, claim.kind.tag(), 0, id).with(script);
    send_extend(fleet, to, owed, claim, rest, script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use crate::lock::HolderTtl;
    use crate::lock::command::fenced::Refusal;

    #[test]
    fn a_parked_attempt_renumbers_anew_when_no_master_refuses_its_token() {
        let (now, master) = (Instant::now(), MasterId::new(0).expect("small"));
        let mut clock = WallClock::unset(now);
        let mut mode = ModeState::Fenced(Fencing::new());
        let mut is_hastened = || {
            let ModeState::Fenced(fencing) = &mut mode else { unreachable!("it is fenced") };
            fencing.begin_attempt(1);
            let state =
                FenceState { refusal: Refusal::Stale, fence: 1, holder: HolderTtl::Unknown, time_us: 1 };
            mode.note_refusal(master, state);
            mode.renumbers(now, &mut clock, &Tally::default(), 0)
        };
        assert_eq!((0..10).filter(|_| is_hastened()).count(), limits::RENUMBERING_COUNT_MAX as usize);
        let ModeState::Fenced(fencing) = &mut mode else { unreachable!("it is fenced") };
        // The second attempt follows an attempt that no master refused.
        fencing.begin_attempt(1);
        fencing.begin_attempt(1);
        assert!(fencing.may_renumber());
    }
}
