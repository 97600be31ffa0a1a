//! Fenced locks: which fencing token an attempt has, and what follows when masters refuse it.
//!
//! ```text
//!   caller's wall clock ─┐
//!   learnt correction ───┼──► token ──► all masters ──► quorum of OK: held, with this token
//!   fences that are told ┘      ▲                         │ STALE, PAST, FUTURE
//!                               └── another claim ────────┘ no pause, while time allows
//! ```
//!
//! # Why tokens grow
//!
//! Each vote that counts was given for this attempt's own token, by a master whose fence was smaller then and is as large
//! now. Of two holders, the second of which asked after the first was answered, some master voted for both; it had the
//! first one's fence when it voted for the second, or had lost it. If it lost it in a restart, it was in quarantine until
//! its clock was farther on than its window is wide (`lock/fencing.rs`), so that whatever it then takes is larger than all
//! that it took before. That holds for votes that are given after the quarantine, not for those that are counted after it:
//! masters that are in quarantine when a fenced attempt begins do not count for it at all.
//!
//! No clock of a client matters for this, nor whether the lock itself is valid. What matters is that a master's clock is
//! not set back while it has lost a fence, by a restart or because the fence expired.
//!
//! # What is not done for fenced locks
//!
//! They are never handed over within the engine (`handover.rs`): a swap would leave the fence where it is. Extensions
//! leave the fence alone: it may expire while the lock is held, as its token has left the window by then. Masters that are
//! asked again for a held lock (`repair.rs`) set its fence, too, so that the margin is one of fences as well.

use std::time::Duration;

use super::claim::Claim;
use super::fleet::Fleet;
use super::groups::Notify;
use super::owed::{Owed, Shape, Tag};
use super::slab::Id;
use crate::config::Config;
use crate::limits;
use crate::lock::command::{self, Fence, Refusal, Script, Told};
use crate::lock::{Failure, FencingToken, HolderTtl, MasterId, MasterSet, Tally, TokenRefusal, Ttl};

const NOT_FENCED: &str = "the lock is fenced";

/// What an acquisition of a fenced lock has beside that of a plain one.
#[derive(Debug)]
pub(super) struct Fencing {
    /// The caller's wall clock when it asked, in microseconds since 1970. It may be as wrong as it likes.
    wall_us: u64,
    /// The next token is larger than this.
    floor: u64,
    /// The token of the attempt under way.
    token: FencingToken,
    /// Attempts in a row that followed the one before without a pause.
    renumbering_count: u32,
    /// Masters that were in quarantine when the attempt began.
    pub(super) quarantined: MasterSet,
    /// What masters told that refused it.
    told: Vec<(MasterId, Told)>,
}

/// What was learnt from an attempt that masters refused.
pub(super) struct Judgement {
    /// By how much the clocks of the masters are ahead of the callers' wall clock, in microseconds.
    pub(super) skew_us: i64,
    /// Masters on which somebody has the lock.
    pub(super) busy: MasterSet,
}

impl Fencing {
    pub(super) fn new(wall: Duration) -> Self {
        let wall_us = FencingToken::near(micros(wall)).as_u64();
        let (token, told) = (FencingToken::near(0), Vec::new());
        Self { wall_us, floor: 0, token, renumbering_count: 0, quarantined: MasterSet::EMPTY, told }
    }

    /// The wall clock of the caller, so long after it asked.
    fn wall_after(&self, passed: Duration) -> u64 {
        self.wall_us.saturating_add(micros(passed))
    }

    /// An attempt begins, so long after the caller asked: draws its token.
    pub(super) fn begin_attempt(
        &mut self,
        passed: Duration,
        skew_us: i64,
        quarantined: MasterSet,
    ) -> FencingToken {
        let clock = self.wall_after(passed).saturating_add_signed(skew_us);
        self.token = FencingToken::near(clock.max(self.floor + 1));
        self.quarantined = quarantined;
        self.told.clear();
        self.token
    }

    /// A master refused the attempt under way. Returns what it has against the token, if anything.
    pub(super) fn note_refusal(&mut self, master: MasterId, told: Told) -> Option<Failure> {
        self.told.push((master, told));
        token_refusal(told, self.token).map(Failure::TokenRefused)
    }

    /// So many masters refused an attempt, so long after the caller asked, that no quorum is left: learns from them what the
    /// next token should be.
    pub(super) fn judge(&mut self, passed: Duration, tally: &Tally, half_us: u64) -> Judgement {
        let time = self.learn(tally, half_us);
        // Far below 64 bits both.
        let skew_us = time.cast_signed().wrapping_sub(self.wall_after(passed).cast_signed());
        Judgement { skew_us, busy: self.busy().map(|(master, _)| master).collect() }
    }

    /// Whether another attempt may follow without a pause; counts it if so.
    pub(super) fn may_renumber(&mut self) -> bool {
        let may = self.renumbering_count < limits::RENUMBERING_COUNT_MAX;
        self.renumbering_count += u32::from(may);
        may
    }

    /// No more attempts without a pause: what was told of the key in the way is moved to `holders`.
    pub(super) fn end_row(&mut self, holders: &mut Vec<(MasterId, HolderTtl)>) {
        self.renumbering_count = 0;
        holders.extend(self.busy().map(|(master, told)| (master, told.holder)));
    }

    fn busy(&self) -> impl Iterator<Item = (MasterId, Told)> {
        self.told.iter().filter(|(_, told)| told.refusal == Refusal::Busy).copied()
    }

    /// Learns from the answers what the next token should be, and returns the time by the masters' clocks: that of the one
    /// in the middle, for a quorum has to agree. A master that granted tells it by that.
    fn learn(&mut self, tally: &Tally, half_us: u64) -> u64 {
        let granted = tally.granted.iter().map(|_| self.token.as_u64());
        let mut times: Vec<u64> = self.told.iter().map(|(_, told)| told.time_us).chain(granted).collect();
        times.sort_unstable();
        let time = times.get(times.len() / 2).copied().unwrap_or(self.token.as_u64());
        // A fence beyond their window is one that no token of theirs can pass; it is left to its master.
        let granted = tally.granted.iter().map(|_| self.token.as_u64());
        let fences = self.told.iter().map(|(_, told)| told.fence).chain(granted).chain([self.floor]);
        self.floor = fences.filter(|fence| *fence < time.saturating_add(half_us)).max().unwrap_or(0);
        time
    }
}

/// What the fence of a lock with this token is about.
fn fence(config: &Config, token: FencingToken) -> Fence {
    Fence { token, window: config.window(), prefix_size: config.prefix.len() }
}

/// Queues the request of an attempt for this token on the usable masters; returns those that had room for it.
pub(super) fn send_attempt(
    fleet: &mut Fleet,
    claim_id: Id,
    claim: &mut Claim,
    token: FencingToken,
    ttl: Ttl,
) -> MasterSet {
    (claim.fence, claim.tag) = (Some(token), Tag::Fenced);
    let fence = fence(fleet.config(), token);
    fleet.send(fleet.usable(), Owed::acquire(Tag::Fenced, claim_id), |out| {
        command::encode_fenced_acquire(out, Script::Known, &claim.entry, ttl.as_millis(), &fence);
    })
}

/// Queues the release of a fenced lock on those of `to` that are ready, and behind it the message to who waits, or one
/// with it that also tells how many wait if this one met others; returns those that had room for it.
#[cold]
#[inline(never)]
pub(super) fn send_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    let token = claim.fence.expect(NOT_FENCED);
    let fence = fence(fleet.config(), token);
    let to = to.intersection(fleet.ready());
    let sent = fleet.send(to, Owed::release(Tag::Fenced, id), |out| {
        command::encode_fenced_release(out, Script::Known, &claim.entry, &fence, tells_within(claim));
    });
    if claim.notify() == Notify::Waiters {
        fleet.send(sent, Owed::Ignored(Shape::Count), |out| command::encode_telling(out, claim.entry.key()));
    }
    sent
}

/// The same release once more, with the script in full.
pub(super) fn send_whole_release(fleet: &mut Fleet, to: MasterSet, owed: Owed, claim: &Claim) -> MasterSet {
    let fence = fence(fleet.config(), claim.fence.expect(NOT_FENCED));
    fleet.send(to, owed.whole(), |out| {
        command::encode_fenced_release(out, Script::Whole, &claim.entry, &fence, tells_within(claim));
    })
}

/// An attempt once more, with the script in full.
pub(super) fn send_whole_attempt(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl: Ttl,
) -> MasterSet {
    let fence = fence(fleet.config(), claim.fence.expect(NOT_FENCED));
    fleet.send(to, owed.whole(), |out| {
        command::encode_fenced_acquire(out, Script::Whole, &claim.entry, ttl.as_millis(), &fence);
    })
}

/// Queues the `SET` of a held lock, which sets its fence, too.
pub(super) fn send_repair(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    claim: &Claim,
    ttl_ms: u64,
) -> MasterSet {
    let fence = fence(fleet.config(), claim.fence.expect(NOT_FENCED));
    fleet.send(to, owed, |out| command::encode_fenced_repair(out, &claim.entry, ttl_ms, &fence))
}

/// Whether the script that releases a fenced lock tells those who wait.
fn tells_within(claim: &Claim) -> bool {
    claim.notify() == Notify::Crowd
}

/// What a refusal says against the token, if it does.
fn token_refusal(told: Told, token: FencingToken) -> Option<TokenRefusal> {
    let by = Duration::from_micros(told.time_us.abs_diff(token.as_u64()));
    match told.refusal {
        Refusal::Busy => None,
        Refusal::Stale => Some(TokenRefusal::Stale),
        Refusal::Past => Some(TokenRefusal::Past { by }),
        Refusal::Future => Some(TokenRefusal::Future { by }),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_US: u64 = 1_000;

    fn fencing(wall_us: u64) -> Fencing {
        let mut fencing = Fencing::new(Duration::from_micros(wall_us));
        fencing.begin_attempt(Duration::ZERO, 0, MasterSet::EMPTY);
        fencing
    }

    fn told(refusal: Refusal, fence: u64, time_us: u64) -> Told {
        Told { refusal, fence, holder: HolderTtl::Unknown, time_us }
    }

    /// The answers of masters to a token, then the token after it.
    fn next(fencing: &mut Fencing, granted: usize, answers: &[Told]) -> u64 {
        let master = |index| MasterId::new(index).expect("small");
        fencing.told.extend(answers.iter().enumerate().map(|(index, told)| (master(granted + index), *told)));
        let tally = Tally { granted: MasterSet::first(granted), ..Tally::default() };
        let time = fencing.learn(&tally, HALF_US);
        let skew_us = time.cast_signed() - fencing.wall_us.cast_signed();
        fencing.begin_attempt(Duration::ZERO, skew_us, MasterSet::EMPTY).as_u64()
    }

    #[test]
    fn the_next_token_exceeds_all_reported_fences() {
        let stale = |fence| told(Refusal::Stale, fence, 50_000);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_300), stale(50_200)]), 50_301);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_000), stale(50_000)]), 50_001);
    }

    #[test]
    fn an_unpassable_fence_is_left_to_its_master() {
        let answers = [told(Refusal::Stale, 90_000, 50_000), told(Refusal::Stale, 50_001, 50_000)];
        assert_eq!(next(&mut fencing(50_000), 1, &answers), 50_002);
    }

    #[test]
    fn the_next_token_follows_the_clocks_of_a_quorum() {
        let (now, ahead) = (50_000, 3_600_050_000);
        let future = told(Refusal::Future, 0, now);
        // One master's clock is an hour ahead, and so is the client's.
        assert_eq!(next(&mut fencing(ahead), 1, &[future, future]), now);
        // The client's alone is wrong.
        assert_eq!(next(&mut fencing(ahead), 0, &[future, future, future]), now);
        let past = |time_us| told(Refusal::Past, 0, time_us);
        assert_eq!(next(&mut fencing(1), 0, &[past(now), past(ahead), past(now + 3)]), now + 3);
    }

    #[test]
    fn clocks_beyond_all_bounds_still_give_a_token() {
        let mut fencing = Fencing::new(Duration::MAX);
        fencing.floor = u64::MAX - 1;
        assert_eq!(
            fencing.begin_attempt(Duration::MAX, i64::MAX, MasterSet::EMPTY),
            FencingToken::near(u64::MAX)
        );
        fencing.floor = 0;
        assert_eq!(fencing.begin_attempt(Duration::ZERO, i64::MIN, MasterSet::EMPTY), FencingToken::near(1));
    }
}
