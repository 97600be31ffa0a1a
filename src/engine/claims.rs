//! The claims of one engine: which token is on its way to the masters, on them, or on its way off.
//!
//! A release goes to every master that may hold the key, behind whatever was sent before, and again until
//! each has answered or the key has expired (I9). So does the rest of the time that a lock is left for.

use std::time::Instant;

use super::claim::{Claim, Counted, Course, NO_RELEASE};
use super::fleet::Fleet;
use super::groups::Notify;
use super::kind::Tag;
use super::leaving::Leaving;
use super::link::{Link, Predecessor};
use super::mode::{send_release, send_rest};
use super::owed::{Owed, Shape, Verb};
use super::slab::{Id, Slab};
use super::timers::{Timers, claim_timer};
use crate::limits;
use crate::lock::command::{self, ReleaseAnswer, Script};
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

/// Claims by their ids. An id that came with a reply may be stale, and so may that of an operation's latest
/// attempt once it has failed: these are looked for with [`Claims::find`]. Any other is of a claim that is
/// there, and [`Claims::claim`] asserts that.
#[derive(Debug)]
pub(super) struct Claims {
    table: Slab<Claim>,
    /// Claims for which a reply that was just counted may have decided something.
    decided: Vec<Id>,
    /// Claims that ended before each master had confirmed the release.
    orphan_count: u64,
}

impl Claims {
    pub(super) const fn new() -> Self {
        Self { table: Slab::new(limits::CLAIM_COUNT_MAX), decided: Vec::new(), orphan_count: 0 }
    }

    /// Takes a slot with whatever its last claim left there; `None` if the table is full.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<(Id, &mut Claim)> {
        self.table.take(|| Claim::blank(now))
    }

    /// Frees a slot; ids of its claim find nothing from now on.
    #[inline]
    pub(super) fn free(&mut self, id: Id) {
        self.table.free(id);
    }

    /// The claim of an id that may be stale.
    #[inline]
    pub(super) fn find(&self, id: Id) -> Option<&Claim> {
        self.table.find(id)
    }

    #[inline]
    pub(super) fn find_mut(&mut self, id: Id) -> Option<&mut Claim> {
        self.table.find_mut(id)
    }

    /// The claim of an id that is in use: its operation holds it or acquires with it.
    #[inline]
    pub(super) fn claim(&self, id: Id) -> &Claim {
        self.table.find(id).unwrap_or_else(|| gone())
    }

    #[inline]
    pub(super) fn claim_mut(&mut self, id: Id) -> &mut Claim {
        self.table.find_mut(id).unwrap_or_else(|| gone())
    }

    /// The id of the claim in a slot, if there is one.
    pub(super) fn occupant(&self, place: u32) -> Option<Id> {
        self.table.occupant(place)
    }

    /// All ids as of now, for walking the table while changing it.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        self.table.ids()
    }

    /// Number of claims.
    pub(super) fn count(&self) -> usize {
        self.table.count()
    }

    /// Number of claims that ended before each master had confirmed the release.
    pub(super) const fn orphan_count(&self) -> u64 {
        self.orphan_count
    }

    /// Whether [`Claims::take`] would find no slot.
    pub(super) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    /// Counts grants and deletions of a master up to the first other reply, and notes the claims for which
    /// one may have decided something. All that is done about them is elsewhere, so that the loop has the
    /// registers for itself.
    #[inline(always)]
    pub(super) fn count_usual(&mut self, link: &mut Link, quorum: usize) {
        let master = link.master;
        let Self { table, decided, .. } = self;
        let votes = &mut link.stats;
        link.connection.wire.take_known(|owed, received| {
            let (rest, counted) = match owed {
                Owed::Round { verb: Verb::Acquire, tag: Tag::Plain, id, .. } => {
                    let rest = command::split_granted(received)?;
                    votes.granted += 1;
                    let claim = table.find_mut(*id);
                    (rest, claim.map(|claim| claim.count_grant(master, quorum, &mut votes.late)))
                }
                Owed::Round { verb: Verb::Release, id, .. } => {
                    let rest = command::split_deleted(received)?;
                    (rest, table.find_mut(*id).map(|claim| claim.count_deleted(master, quorum)))
                }
                Owed::Ignored(Shape::Count) => return command::split_untold(received),
                _ => return None,
            };
            match counted {
                None | Some(Counted::Open) => {}
                Some(Counted::Decides) => decided.push(owed.round_id()),
                Some(Counted::Done) => table.free(owed.round_id()),
            }
            Some(rest)
        });
    }

    /// Whether there is any claim for which a reply may have decided something.
    #[inline]
    pub(super) const fn has_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// One of them, if there are so many.
    pub(super) fn decided(&self, index: usize) -> Option<Id> {
        self.decided.get(index).copied()
    }

    /// All of them are looked after.
    pub(super) fn clear_decided(&mut self) {
        self.decided.clear();
    }

    /// Starts to release a claim on every master that may hold its key, behind whatever was sent before; a
    /// silent one will come to it in order. Answers are `due` at that time; before it nothing has to be done
    /// for this claim. False if none will come.
    // Inlined, for it is the better part of submitting a release.
    #[inline(always)]
    pub(super) fn release(
        &mut self,
        fleet: &mut Fleet,
        timers: &mut Timers,
        now: Instant,
        due: Instant,
        id: Id,
    ) -> bool {
        let claim = self.claim_mut(id);
        if claim.release.is_some() {
            return true;
        }
        let owed = claim.holders();
        claim.failures.clear();
        if mutant!(LabelForgotten) {
            let key = claim.entry.key().to_vec();
            claim.entry.set_key(&key, &claim.token);
        }
        if !claim.publishers.is_empty() {
            claim.publishers =
                fleet.publisher(claim.publishers.intersection(claim.tally.granted), &claim.token);
        }
        let sent = send_release(fleet, owed, id, claim);
        claim.begin_release(now, owed, sent);
        timers.arm(claim_timer(id), due);
        if owed.is_empty() {
            self.free_if_done(id);
        }
        !sent.is_empty()
    }

    /// Gives a held lock up for a time: each master that may hold its key is sent the rest, behind whatever
    /// was sent before. As [`Claims::release`] otherwise.
    pub(super) fn leave(
        &mut self,
        fleet: &mut Fleet,
        timers: &mut Timers,
        now: Instant,
        id: Id,
        leaving: Leaving,
    ) -> bool {
        let claim = self.claim_mut(id);
        let owed = claim.holders();
        claim.failures.clear();
        claim.course = Course::Left(Box::new(leaving));
        claim.begin_release(now, owed, MasterSet::EMPTY);
        timers.arm(claim_timer(id), now + claim.answer_limit);
        self.send_end(fleet, now, id, owed);
        !self.claim_mut(id).release_mut().sent.is_empty()
    }

    /// Queues the release, or the rest of the time, on those of `masters` that owe no answer to the last one.
    pub(super) fn send_end(&mut self, fleet: &mut Fleet, now: Instant, id: Id, masters: MasterSet) {
        let claim = self.claim_mut(id);
        // Whatever became of the script, a message to all waiters is as good.
        claim.publishers = MasterSet::EMPTY;
        let under_way = claim.release_mut().sent;
        let mut to = masters.without(under_way);
        if mutant!(RestSentOnce) && claim.leaving().is_some_and(|leaving| leaving.rest_sent.is_some()) {
            to = MasterSet::EMPTY;
        }
        let is_in_time = claim.is_rest_in_time(now);
        let rest = claim.next_rest(now, fleet.config());
        let sent = match rest {
            Some(ttl) => send_rest(fleet, to, id, claim, ttl, Script::Sha),
            None if mutant!(RestWithoutEnd) && claim.leaving().is_some() => MasterSet::EMPTY,
            None => send_release(fleet, to, id, claim),
        };
        let mut unproven = claim.unproven();
        if rest.is_some() && !is_in_time && !mutant!(LateRestCounts) {
            // Their rest was sent too early for an answer to come in time.
            unproven = unproven.union(under_way);
        }
        let release = claim.release_mut();
        release.unproven = unproven;
        release.sent = under_way.union(sent);
    }

    /// Any answer to a release. Returns the operation whose awaited release it has settled.
    pub(super) fn handle_release_answer(
        &mut self,
        fleet: &Fleet,
        master: MasterId,
        id: Id,
        answer: ReleaseAnswer,
    ) -> Option<Id> {
        let claim = self.table.find_mut(id)?;
        let needed = claim.needed_answers(fleet);
        let release = claim.release.as_mut().expect(NO_RELEASE);
        match answer {
            ReleaseAnswer::Deleted => {
                return match claim.count_deleted(master, needed) {
                    Counted::Open => None,
                    Counted::Decides => claim.owner,
                    Counted::Done => {
                        self.table.free(id);
                        None
                    }
                };
            }
            ReleaseAnswer::Absent => {
                release.absent.insert(master);
                // On the connection that carried the SET, its absence is proof; elsewhere the SET may come
                // later.
                if !claim.connection_lost.contains(master) || mutant!(AbsentIsProof) {
                    release.owed.remove(master);
                }
            }
            ReleaseAnswer::Failed(_) if mutant!(ReleaseErrorIsDone) => release.owed.remove(master),
            ReleaseAnswer::Failed(failure) => claim.failures.push((master, failure)),
        }
        release.sent.remove(master);
        let settled = claim.owner.filter(|_| release.is_settled(needed));
        self.free_if_done(id);
        settled
    }

    /// A deadline of a release may have passed. Returns whether it has: then masters that have not answered
    /// in time are noted, and [`Claims::repeat_release`] is to follow.
    pub(super) fn miss_release(
        &mut self,
        fleet: &mut Fleet,
        timers: &mut Timers,
        now: Instant,
        id: Id,
    ) -> bool {
        let claim = self.claim(id);
        // Without one the deadline is of the claim before in this slot.
        let Some(release) = claim.release else { return false };
        let (limit, due) = (claim.answer_limit, release.started + claim.answer_limit);
        if now < due {
            timers.arm(claim_timer(id), due);
            return false;
        }
        for master in release.sent.iter() {
            fleet.note_missed(now, master, limit, timers);
            self.publish_without(fleet, master, id);
        }
        true
    }

    /// Sends again what is owed, or gives up once the key has expired everywhere.
    pub(super) fn repeat_release(&mut self, fleet: &mut Fleet, timers: &mut Timers, now: Instant, id: Id) {
        // The claim may have ended with its operation.
        let Some(owed) = self.table.find(id).and_then(|claim| claim.release).map(|release| release.owed)
        else {
            return;
        };
        self.send_end(fleet, now, id, owed);
        let (claim, drift) = (self.claim(id), fleet.config().drift);
        if now >= claim.gone_at(drift) && claim.owner.is_none() {
            self.orphan_count += 1;
            self.table.free(id);
        } else if let Some(at) = claim.release_deadline(now, drift) {
            timers.arm(claim_timer(id), at);
        }
    }

    /// A connection broke: what it owed to this claim will not come. Returns its owner, if it was asked
    /// there.
    pub(super) fn stray(&mut self, fleet: &mut Fleet, master: MasterId, id: Id) -> Option<Id> {
        self.publish_without(fleet, master, id);
        let is_forgotten = mutant!(LateSwapForgotten)
            && self.ids().any(|other| self.table.find(other).is_some_and(|claim| claim.has_successor(id)));
        let claim = self.table.find_mut(id).filter(|claim| claim.asked.contains(master))?;
        claim.note_stray(master, is_forgotten);
        claim.owner
    }

    /// A master has not carried out a release, for all that is known. If it was to publish that alone, the
    /// others publish it, to all waiters.
    pub(super) fn publish_without(&mut self, fleet: &mut Fleet, master: MasterId, id: Id) {
        let Some(claim) = self.table.find_mut(id) else { return };
        let is_awaited = claim.release.is_some_and(|release| release.sent.contains(master));
        if is_awaited && claim.notify() == (Notify::Group { publisher: master }) && !mutant!(PublisherTrusted)
        {
            claim.publishers = MasterSet::EMPTY;
            fleet.publish_without(master, &claim.entry);
        }
    }

    /// A link is ready: sends what claims still owe there, before anything else.
    pub(super) fn release_orphans(&mut self, fleet: &mut Fleet, now: Instant, master: MasterId) {
        for id in self.ids() {
            let claim = self.claim(id);
            let is_owed = claim.release.is_some_and(|release| release.owed.contains(master));
            if is_owed && !(mutant!(AwaitedSentOnce) && claim.owner.is_some()) {
                self.send_end(fleet, now, id, MasterSet::only(master));
            }
        }
    }

    /// The table is full: leaves the keys of claims that nobody owns to their TTL, so that a master which
    /// does not let go of locks cannot keep the others from granting new ones.
    pub(super) fn forget_orphans(&mut self) {
        for id in self.ids() {
            if self.claim(id).owner.is_none() {
                self.orphan_count += 1;
                self.table.free(id);
            }
        }
    }

    /// Another process than before answered for a master.
    pub(super) fn void_grants(&mut self, master: MasterId, before: Predecessor) {
        let has_ended = before == Predecessor::Ended || mutant!(SuccessorIsProof);
        for id in self.ids().filter(|_| !mutant!(RestartedGrantsKept)) {
            self.claim_mut(id).note_restart(master, has_ended);
        }
    }

    fn free_if_done(&mut self, id: Id) {
        if self.claim(id).is_done() {
            self.table.free(id);
        }
    }
}

#[cold]
#[inline(never)]
fn gone() -> ! {
    panic!("a claim is gone while it is in use")
}
