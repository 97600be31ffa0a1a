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

use std::time::{Duration, Instant};

use super::claim::Claim;
use super::fleet::{Fleet, Notify};
use super::op::{Acquisition, Cause, Op};
use super::owed::{Owed, Shape, Tag};
use super::slab::Id;
use super::{Engine, OpId, SubmitError};
use crate::config::Config;
use crate::limits;
use crate::lock::command::{self, Fence, FencedAnswer, Refusal, Script, Told};
use crate::lock::{Failure, FencingToken, HolderTtl, MasterId, MasterSet, Tally, TokenRefusal, Vote};
use crate::mutants::mutant;

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

impl Fencing {
    fn new(wall: Duration) -> Self {
        let wall_us = FencingToken::near(micros(wall)).as_u64();
        let (token, told) = (FencingToken::near(0), Vec::new());
        Self { wall_us, floor: 0, token, renumbering_count: 0, quarantined: MasterSet::EMPTY, told }
    }

    /// The wall clock of the caller, so long after it asked.
    fn wall_after(&self, passed: Duration) -> u64 {
        self.wall_us.saturating_add(micros(passed))
    }

    /// An attempt begins, so long after the caller asked: draws its token.
    fn begin_attempt(&mut self, passed: Duration, skew_us: i64, quarantined: MasterSet) -> FencingToken {
        let clock = self.wall_after(passed).saturating_add_signed(skew_us);
        self.token = FencingToken::near(clock.max(self.floor + 1));
        self.quarantined = quarantined;
        self.told.clear();
        self.token
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
pub(super) fn fence(config: &Config, token: FencingToken) -> Fence {
    Fence { token, window: config.window(), prefix_size: config.prefix.len() }
}

/// Draws the token of an attempt and queues its request on the usable masters; returns those that had room for it.
#[cold]
#[inline(never)]
pub(super) fn send_attempt(
    fleet: &mut Fleet,
    now: Instant,
    op: &mut Op,
    claim_id: Id,
    claim: &mut Claim,
    skew_us: i64,
) -> MasterSet {
    let fencing = op.fencing.as_mut().expect(NOT_FENCED);
    let is_ignored = mutant!(FenceOfQuarantine) || (mutant!(RetryForgetsQuarantine) && op.attempts > 0);
    let quarantined = if is_ignored { MasterSet::EMPTY } else { fleet.quarantined_at(now) };
    let token = fencing.begin_attempt(now - op.submitted, skew_us, quarantined);
    (claim.fence, claim.tag) = (Some(token), Tag::Fenced);
    let fence = fence(fleet.config(), token);
    fleet.send(fleet.usable(), Owed::acquire(Tag::Fenced, claim_id), |out| {
        command::encode_fenced_acquire(out, Script::Known, &claim.entry, op.ttl.as_millis(), &fence);
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

/// Whether the script that releases a fenced lock tells those who wait.
pub(super) fn tells_within(claim: &Claim) -> bool {
    claim.notify() == Notify::Crowd
}

/// Draws a token for a lock that is handed over, which no master gets to know.
#[cold]
pub(super) fn feign_token(now: Instant, op: &mut Op, claim: &mut Claim, skew_us: i64) {
    if let Some(fencing) = &mut op.fencing {
        claim.fence = Some(fencing.begin_attempt(now - op.submitted, skew_us, MasterSet::EMPTY));
        claim.tag = Tag::Fenced;
    }
}

impl Engine {
    /// An acquisition with a fencing token, which starts from the caller's wall clock: the time since 1970.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_fenced(
        &mut self,
        now: Instant,
        wanted: &Acquisition<'_>,
        wall: Duration,
    ) -> Result<OpId, SubmitError> {
        let Acquisition { resource, wait, .. } = *wanted;
        let id = self.begin_acquire(now, wanted)?;
        self.ops.op_mut(id).fencing = Some(Box::new(Fencing::new(wall)));
        if !wait.is_zero() {
            return self.stand_in_line(now, id, resource);
        }
        self.start_attempt(now, id, Some(resource));
        Ok(OpId(id))
    }

    #[inline(never)]
    pub(super) fn handle_fenced_answer(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        answer: FencedAnswer,
    ) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        let vote = match answer {
            FencedAnswer::Granted => Vote::Granted,
            FencedAnswer::Own => claim.note_twin(master),
            FencedAnswer::Failed(failure) => Vote::Failed(failure),
            FencedAnswer::Refused(_) if !claim.counts_grants => return,
            FencedAnswer::Refused(told) => {
                let op = claim.owner.map(|op| self.ops.op_mut(op));
                if let Some(fencing) = op.and_then(|op| op.fencing.as_mut()) {
                    fencing.told.push((master, told));
                    if let Some(why) = token_refusal(told, fencing.token) {
                        claim.failures.push((master, Failure::TokenRefused(why)));
                    }
                }
                Vote::Refused { holder: told.holder }
            }
        };
        self.handle_acquire_vote(now, master, id, vote);
    }

    /// So many masters refused an attempt that no quorum is left. If it was for its token, makes another attempt with a
    /// better one, if there is time; else says how this one failed.
    ///
    /// The votes of the old one are void: each one that counts was given for the token that is handed out.
    #[cold]
    pub(super) fn handle_refused_token(
        &mut self,
        now: Instant,
        id: Id,
        quarantined: MasterSet,
    ) -> Option<Cause> {
        let half_us = self.config.window().half_us;
        let op = self.ops.op_mut(id);
        let fencing = op.fencing.as_mut().expect(NOT_FENCED);
        let claim = self.claims.claim_mut(op.claim);
        let time = fencing.learn(&claim.tally, half_us);
        let wall = fencing.wall_after(now - op.submitted);
        // Far below 64 bits both.
        self.skew_us = time.cast_signed().wrapping_sub(wall.cast_signed());
        let busy: MasterSet = fencing.busy().map(|(master, _)| master).collect();
        let spare = self.fleet.spare();
        if claim.tally.failed.union(quarantined).union(busy).count() > spare {
            return Some(Cause::Contended);
        }
        let limit = claim.answer_limit;
        let last = op.wait_until.unwrap_or(op.submitted + limit);
        if now >= last || fencing.renumbering_count >= limits::RENUMBERING_COUNT_MAX {
            return Some(Cause::NoQuorum);
        }
        fencing.renumbering_count += 1;
        let (claim_id, granted) = (op.claim, claim.tally.granted);
        op.key.clear();
        op.key.extend_from_slice(claim.entry.key());
        claim.owner = None;
        self.release_claim(now, now + limit, claim_id);
        self.start_attempt(now, id, None);
        if mutant!(RenumberingKeepsVotes) {
            self.keep_votes(id, granted);
        }
        None
    }

    #[cold]
    fn keep_votes(&mut self, id: Id, granted: MasterSet) {
        self.claims.claim_mut(self.ops.op(id).claim).tally.granted = granted;
    }

    /// The master forgot the script of an attempt: sends it in full, unless its release is on its way already, which it
    /// would come behind.
    pub(super) fn send_whole_fenced(&mut self, master: MasterId, id: Id) -> MasterSet {
        let Some(claim) = self.claims.find(id).filter(|claim| claim.release.is_none()) else {
            return MasterSet::EMPTY;
        };
        let Some(owner) = claim.owner else { return MasterSet::EMPTY };
        let ttl = self.ops.op(owner).ttl;
        let fence = fence(&self.config, claim.fence.expect(NOT_FENCED));
        let (only, owed) = (MasterSet::only(master), Owed::acquire(Tag::Fenced, id).whole());
        self.fleet.send(only, owed, |out| {
            command::encode_fenced_acquire(out, Script::Whole, &claim.entry, ttl.as_millis(), &fence);
        })
    }
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
    fn the_next_token_is_larger_than_the_fences_that_were_told() {
        let stale = |fence| told(Refusal::Stale, fence, 50_000);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_300), stale(50_200)]), 50_301);
        assert_eq!(next(&mut fencing(50_000), 1, &[stale(50_000), stale(50_000)]), 50_001);
    }

    #[test]
    fn a_fence_that_no_token_can_pass_is_left_to_its_master() {
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
