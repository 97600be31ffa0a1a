//! How acquisitions and claims of each kind proceed. The kinds themselves are in `lock/kind.rs`. An adoption
//! takes over a lock of any kind.
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
use super::obstacle::Obstacle;
use super::sharing;
use super::slab::Id;
use crate::config::Config;
use crate::engine::masters::fleet::Fleet;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::masters::wall_clock::WallClock;
use crate::lock::command::fenced::{Fence, FenceState};
use crate::lock::command::park::{encode_release_serve, encode_swap_parked, encode_unpark};
use crate::lock::command::scripts::Script;
use crate::lock::command::{ExtendBy, ReleaseBy, encode_extend, encode_release};
use crate::lock::{Kind, MasterId, MasterSet, ScriptAnswer, Tally, Ttl, Vote};
use crate::options::Mode;

/// The lock that an acquisition wants.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// A lock of this kind. A fenced acquisition learns from refusals.
    Of(Kind<Fencing>),
    /// The lock of a handle.
    Adopted,
}

impl Wanted {
    pub(crate) const PLAIN: Self = Self::Of(Kind::Plain);

    pub(crate) fn new(mode: Mode) -> Self {
        Self::Of(Kind::new(mode, Fencing::new))
    }

    /// Whether waiters form a queue within the engine. Readers do not wait for each other.
    #[inline]
    pub(crate) const fn is_queued(&self) -> bool {
        match self {
            Self::Of(Kind::Plain | Kind::Fenced(_)) => true,
            Self::Of(Kind::Shared) | Self::Adopted => false,
        }
    }

    /// Whether a swap may pass the lock on to the next waiter. A swap does not raise a fence, and compares a
    /// value that a set of readers does not have.
    pub(crate) const fn may_be_handed_over(&self) -> bool {
        match self {
            Self::Of(Kind::Plain) => true,
            Self::Of(Kind::Fenced(_) | Kind::Shared) | Self::Adopted => false,
        }
    }

    /// Whether the votes of a master count that was in quarantine when the attempt began.
    pub(crate) const fn counts_quarantined(&self) -> bool {
        match self {
            Self::Of(Kind::Plain | Kind::Shared) => true,
            Self::Of(Kind::Fenced(_)) | Self::Adopted => false,
        }
    }

    /// What a fenced acquisition has learnt. Only its attempts may be refused for another reason than a
    /// holder: for their token.
    pub(crate) const fn fencing(&mut self) -> Option<&mut Fencing> {
        match self {
            Self::Of(Kind::Fenced(fencing)) => Some(fencing),
            Self::Of(Kind::Plain | Kind::Shared) | Self::Adopted => None,
        }
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
        if !self.counts_quarantined() {
            *excluded = fleet.quarantined_at(now);
        }
        match self {
            Self::Of(Kind::Plain) => Kind::Plain,
            Self::Of(Kind::Fenced(fencing)) => {
                Kind::Fenced(fencing.begin_attempt(wall_clock.masters_us(now)))
            }
            Self::Of(Kind::Shared) => {
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
        Some(self.fencing()?.judge(now, wall_clock, tally, half_us))
    }

    /// Whether another attempt may follow without a pause, after [`Wanted::judge`] found too few holders.
    /// Counts that attempt.
    pub(crate) fn may_repeat(&mut self) -> bool {
        self.fencing().is_some_and(Fencing::may_renumber)
    }

    /// The attempt failed: moves the masters' reports to `obstacle`. Returns whether every refusal reported
    /// how long the key in the way lives.
    pub(crate) fn gather_reports(&mut self, now: Instant, obstacle: &mut Obstacle) -> bool {
        match self {
            Self::Of(Kind::Plain) => {
                obstacle.clear_times();
                false
            }
            Self::Of(Kind::Fenced(fencing)) => {
                obstacle.clear_times();
                fencing.end_row(now, obstacle);
                true
            }
            // The reports were noted with each refusal.
            Self::Of(Kind::Shared) => true,
            Self::Adopted => false,
        }
    }

    /// Notes that a master refused a parked attempt's fencing token.
    pub(crate) fn note_refusal(&mut self, master: MasterId, state: FenceState) {
        if let Some(fencing) = self.fencing() {
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
        let Some(fencing) = self.fencing() else { return false };
        if !fencing.is_token_refused() {
            return false;
        }
        fencing.judge(now, wall_clock, tally, half_us);
        fencing.may_renumber()
    }
}

/// The parts of an operation that the answers to its attempts update.
pub(crate) struct Learner<'a> {
    pub(crate) now: Instant,
    pub(crate) mode: &'a mut Wanted,
    pub(crate) obstacle: &'a mut Obstacle,
}

/// Returns the vote in a master's answer to an attempt, and notes what else the answer says, unless the
/// operation is over. `None` if the answer cannot decide anything.
pub(crate) fn vote(
    answer: ScriptAnswer,
    master: MasterId,
    claim: &mut Claim,
    op: Option<Learner<'_>>,
) -> Option<Vote> {
    match answer {
        ScriptAnswer::Fenced(answer) => {
            fence::vote(answer, master, claim, op.and_then(|op| op.mode.fencing()))
        }
        ScriptAnswer::Reader(vote) => sharing::vote(vote, master, claim, op.map(|op| (op.now, op.obstacle))),
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
    let (kind, prefix_size) = (with_fence(&fleet.config, claim.kind), fleet.config.prefix.len());
    let is_held = matches!(owed, Owed::Round { verb: Verb::Repair, .. });
    fleet.queue(to, owed, |out| {
        kind.encode_attempt(out, script, &claim.entry, ttl_ms, is_held, prefix_size);
    })
}

/// Returns the kind with the fence of its token.
pub(crate) fn with_fence(config: &Config, kind: Kind) -> Kind<Fence> {
    kind.map(|token| fence::fence(config, token))
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
    let was_held = claim.parked.as_ref().is_some_and(|parked| parked.was_held);
    let fence = with_fence(&fleet.config, claim.kind).fenced().filter(|_| was_held);
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
    let mode = claim.kind.mode();
    let owed = Owed::round(Verb::Release, Tag::Of(mode), 0, id);
    if mode.is_released_natively() && !claim.serves {
        return fleet.send_release(to, owed, &claim.entry);
    }
    send_scripted_release(fleet, to, owed, claim, Script::Sha)
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
    if claim.kind.mode().is_released_natively() && !claim.serves {
        return sent.union(fleet.queue(to, owed, |out| encode_release(out, ReleaseBy::Eval, entry)));
    }
    let kind = with_fence(&fleet.config, claim.kind);
    sent.union(fleet.queue(to, owed, |out| encode_release_serve(out, script, entry, kind, prefix_size)))
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
    let native = to.intersection(native_only(fleet, claim.kind));
    if native.is_empty() {
        return (MasterSet::EMPTY, to);
    }
    (fleet.send_release(native, owed, &claim.entry), to.without(native))
}

/// Returns the masters that refuse scripts, if native commands can replace the scripts of this kind.
pub(crate) const fn native_only(fleet: &Fleet, kind: Kind) -> MasterSet {
    if kind.mode().is_released_natively() { fleet.native_only } else { MasterSet::EMPTY }
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
    match (claim.kind.mode().extension(), script) {
        (Some(encode), _) => {
            let to = to.intersection(fleet.ready);
            fleet.queue(to, owed, |out| encode(out, script, entry, ttl.as_millis()))
        }
        (None, Script::Sha) => fleet.send_compared(to, owed, |out, by| encode_extend(out, by, entry, ttl)),
        (None, Script::Text) => fleet.queue(to, owed, |out| encode_extend(out, ExtendBy::Eval, entry, ttl)),
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
    let owed = Owed::round(Verb::Rest, Tag::Of(claim.kind.mode()), 0, id).with(script);
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
        let mut mode = Wanted::new(Mode::Fenced);
        let mut is_hastened = || {
            let fencing = mode.fencing().expect("it is fenced");
            fencing.begin_attempt(1);
            let state =
                FenceState { refusal: Refusal::Stale, fence: 1, holder: HolderTtl::Unknown, time_us: 1 };
            mode.note_refusal(master, state);
            mode.renumbers(now, &mut clock, &Tally::default(), 0)
        };
        assert_eq!((0..10).filter(|_| is_hastened()).count(), limits::RENUMBERING_COUNT_MAX as usize);
        let fencing = mode.fencing().expect("it is fenced");
        // The second attempt follows an attempt that no master refused.
        fencing.begin_attempt(1);
        fencing.begin_attempt(1);
        assert!(fencing.may_renumber());
    }
}
