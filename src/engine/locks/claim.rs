//! A claim: the life of one token on the masters, from its `SET` to the proof that it is gone.
//!
//! Each attempt of an acquisition has a claim. After a failed attempt or a release, the claim continues alone
//! until every master that got the `SET` has answered the release (I9). Redis users would call its key an
//! orphan. The claim of a lock left for a time ends in the same way. Until that time is over, the command
//! owed to a master sets the key's TTL to the rest; afterwards it is a release.

use std::time::{Duration, Instant};

use super::doubts::Doubts;
use super::leaving::Leaving;
use super::slab::{Id, Kept};
use crate::config::Config;
use crate::engine::waiting::parking::Parked;
use crate::limits;
use crate::lock::command::entry::Entry;
use crate::lock::{Drift, Failure, Kind, MasterId, MasterSet, Tally, Token, Ttl, Vote};

#[derive(Debug)]
pub(crate) struct Claim {
    /// Key and token as in commands.
    pub(crate) entry: Entry,
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    /// Start of the attempt, read before the first byte was queued (I1).
    pub(crate) started: Instant,
    sent: SentTtls,
    /// Longest wait for the answers of a round.
    pub(crate) answer_limit: Duration,
    /// The operation that started the attempt.
    pub(crate) op: Id,
    /// Whether that operation still wants the claim's results.
    pub(crate) is_owned: bool,
    /// One field for three cases, to keep the claim small.
    pub(crate) course: Course,
    /// Masters that were sent the `SET`.
    pub(crate) asked: MasterSet,
    /// Their votes, including late ones.
    pub(crate) tally: Tally,
    /// Effect of a late vote.
    pub(crate) votes: Votes,
    /// Why masters failed in the current round.
    pub(crate) failures: Vec<(MasterId, Failure)>,
    pub(crate) release: Option<Release>,
    /// Whether the release serves waiters. Such a release is a script even where a native command exists.
    pub(crate) serves: bool,
    pub(crate) doubts: Doubts,
    /// The round, if the attempt is parked.
    pub(crate) parked: Kept<Parked>,
}

/// Effect of the votes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Votes {
    /// Votes may decide the acquisition.
    Decide,
    /// Votes add to the lock's margin.
    AddToMargin,
    /// Votes do not show who holds the lock. A release is queued after the `SET`; or the lock was extended, and
    /// the key ends too early on a master that executed only the `SET`.
    Void,
}

/// The TTLs that masters got.
#[derive(Debug)]
struct SentTtls {
    /// When a TTL was last sent, and the longest TTL. Together they bound the life of any key.
    last_at: Instant,
    longest_ms: u32,
    /// Shortest TTL of all extensions.
    shortest_ms: u32,
}

pub(crate) const NO_RELEASE: &str = "the release has begun";
const NOT_PARKED: &str = "it is parked";

/// What became of the lock: it is ours (being acquired, held or released), handed over, or left for a time.
#[derive(Debug)]
pub(crate) enum Course {
    /// The lock is being acquired, held or released.
    Attempt,
    /// The lock was handed over to the claim with this id.
    HandedOver(Id),
    /// The lock is left for a time.
    Left(Box<Leaving>),
}

/// Progress of a claim's release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    pub(crate) started: Instant,
    /// Masters that may hold the key.
    pub(crate) owed: MasterSet,
    /// Masters that owe an answer to a release.
    pub(crate) sent: MasterSet,
    pub(crate) deleted: MasterSet,
    pub(crate) absent: MasterSet,
    /// See [`Claim::unproven`].
    pub(crate) unproven: MasterSet,
    /// Masters whose pending command looks for the entry in the wrong place. "Absent" from them is no proof.
    pub(crate) astray: MasterSet,
}

/// Possible effect of a vote or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// No effect.
    Open,
    /// It may end the acquisition or the awaited release.
    Decides,
    /// It ends the claim: no operation owns it, and no master may hold its key.
    Done,
}

impl Claim {
    /// Placeholder in a slot before its first claim.
    pub(crate) fn blank(now: Instant) -> Self {
        Self {
            entry: Entry::EMPTY,
            token: Token::UNSET,
            kind: Kind::Plain,
            started: now,
            sent: SentTtls { last_at: now, longest_ms: 0, shortest_ms: u32::MAX },
            answer_limit: Duration::ZERO,
            op: Id::NOBODY,
            is_owned: false,
            course: Course::Attempt,
            asked: MasterSet::EMPTY,
            tally: Tally::default(),
            votes: Votes::Decide,
            failures: Vec::new(),
            release: None,
            serves: false,
            doubts: Doubts::NONE,
            parked: Kept::NONE,
        }
    }

    /// Starts a new claim in the memory of the slot's last one. The caller sets the entry.
    #[inline(always)]
    pub(crate) fn begin(&mut self, now: Instant, new_op: Id, new_token: Token, ttl: Ttl, limit: Duration) {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            entry: _,
            token,
            kind,
            started,
            sent,
            answer_limit,
            op,
            is_owned,
            course,
            asked,
            tally,
            votes,
            failures,
            release,
            serves,
            doubts,
            parked,
        } = self;
        (*op, *is_owned, *token, *kind) = (new_op, true, new_token, Kind::Plain);
        (*started, *answer_limit) = (now, limit);
        *sent = SentTtls { last_at: now, longest_ms: whole_ms(ttl), shortest_ms: u32::MAX };
        (*asked, *tally, *votes) = (MasterSet::EMPTY, Tally::default(), Votes::Decide);
        *doubts = Doubts::NONE;
        parked.clear();
        (*release, *serves) = (None, false);
        if !matches!(course, Course::Attempt) {
            *course = Course::Attempt;
        }
        forget(failures);
    }

    /// Returns the operation that wants this claim's results.
    #[inline(always)]
    pub(crate) const fn owner(&self) -> Option<Id> {
        if self.is_owned { Some(self.op) } else { None }
    }

    /// Records that an extension to this TTL is sent now.
    pub(crate) fn note_ttl(&mut self, now: Instant, ttl: Ttl, answer_limit: Duration) {
        let SentTtls { longest_ms, shortest_ms, .. } = self.sent;
        let ms = whole_ms(ttl);
        self.sent =
            SentTtls { last_at: now, longest_ms: longest_ms.max(ms), shortest_ms: shortest_ms.min(ms) };
        self.answer_limit = answer_limit;
    }

    /// Records that a master gets this claim's token now: with a late park, or with a repeated script.
    pub(crate) const fn note_sent(&mut self, now: Instant) {
        self.sent.last_at = now;
    }

    /// Hands the lock over to the claim `successor`. The release needs no separate command on `swapped`
    /// masters.
    pub(crate) fn begin_handover(
        &mut self,
        now: Instant,
        successor: Id,
        swapped: MasterSet,
        released: MasterSet,
    ) {
        let (owed, sent) = (self.holders(), swapped.union(released));
        self.course = Course::HandedOver(successor);
        self.begin_release(now, owed, sent);
    }

    /// Returns when every key and entry of this claim is gone, if clocks drift within the allowance and no
    /// command was stuck on its way.
    pub(crate) fn gone_at(&self, drift: Drift) -> Instant {
        let longest_ttl = self.longest_ttl();
        // A master may write the key as late as the end of the entry's stay.
        let stay = if self.parked.is_some() { limits::STAY } else { Duration::ZERO };
        let longest = stay + longest_ttl;
        let gone_at = self.sent.last_at + longest + drift.of(longest);
        self.leaving().map_or(gone_at, |leaving| gone_at.max(leaving.gone_at(drift)))
    }

    /// Returns the latest end of any key of a lock that is being left. A master that answered started the
    /// rest before now. Another master may execute a command just before its key would end: the rest, or an
    /// earlier extension that is still on its way.
    pub(crate) fn latest_end(&self, now: Instant, drift: Drift) -> Instant {
        let (leaving, release) = self.left();
        let lifetime = |ttl: Duration| ttl + drift.of(ttl);
        let rest = leaving.rest.map_or(Duration::ZERO, |ttl| lifetime(ttl.as_duration()));
        let mut answered_end = now + rest;
        if self.parked.is_some() {
            // A master may serve an entry in its queue, and does not know about the rest.
            answered_end = answered_end.max(self.gone_at(drift));
        }
        if release.owed.is_empty() {
            return answered_end;
        }
        let prolonged = if !self.doubts.lost_extension.is_empty() {
            rest.max(lifetime(self.longest_ttl()))
        } else if !release.sent.is_empty() {
            rest
        } else {
            Duration::ZERO
        };
        answered_end.max(self.gone_at(drift) + prolonged)
    }

    fn longest_ttl(&self) -> Duration {
        Duration::from_millis(u64::from(self.sent.longest_ms))
    }

    /// Returns how the lock is left for a time, if it is.
    pub(crate) const fn leaving(&self) -> Option<&Leaving> {
        match &self.course {
            Course::Left(leaving) => Some(leaving),
            Course::Attempt | Course::HandedOver(_) => None,
        }
    }

    /// Returns how the lock is left for a time, and the progress.
    pub(crate) fn left(&self) -> (&Leaving, &Release) {
        let (Some(leaving), Some(release)) = (self.leaving(), &self.release) else {
            unreachable!("the lock is left for a time")
        };
        (leaving, release)
    }

    /// Whether the lock was handed over to the claim `id`. This claim's key is gone where the swap was
    /// executed.
    pub(crate) fn has_successor(&self, id: Id) -> bool {
        matches!(self.course, Course::HandedOver(successor) if successor == id)
    }

    /// Prepares the next command that ends the claim. Returns its TTL, or `None` for a release.
    pub(crate) fn next_rest(&mut self, now: Instant, config: &Config) -> Option<Ttl> {
        match &mut self.course {
            Course::Left(leaving) => leaving.send(now, self.answer_limit, config),
            Course::Attempt | Course::HandedOver(_) => None,
        }
    }

    /// Whether an answer to the last rest would be in time now.
    pub(crate) fn is_rest_in_time(&self, now: Instant) -> bool {
        self.leaving().is_some_and(|leaving| leaving.is_in_time(now, self.answer_limit))
    }

    /// Takes a master's answer that it has set the rest as the TTL. The rest counts from the arrival of the
    /// command, so a late answer does not prove that the key ends in time. Neither does an answer after a
    /// release has replaced the rest.
    pub(crate) fn note_rest_answer(&mut self, now: Instant, master: MasterId) {
        let is_late = !self.is_rest_in_time(now);
        // The master has also answered every earlier command.
        self.doubts.owes_extension.remove(master);
        if is_late {
            self.release_mut().unproven.insert(master);
        }
    }

    /// Returns the TTL for a master that did not know the script of the rest; `None` once the time is over.
    pub(crate) fn rest_to_repeat(&self, now: Instant) -> Option<Ttl> {
        self.leaving().filter(|leaving| now < leaving.until)?.rest_sent
    }

    /// Returns the masters that have the rest, and where no earlier extension can end the key before it.
    pub(crate) fn confirmed_rest(&self) -> MasterSet {
        let (leaving, release) = self.left();
        release.deleted.without(self.may_cut_short(leaving.rest.map_or(0, |ttl| ttl.as_millis())))
    }

    /// Starts the release on the `owed` masters. The command was `sent` to some of them.
    #[inline(always)]
    pub(crate) fn begin_release(&mut self, now: Instant, owed: MasterSet, sent: MasterSet) {
        self.votes = Votes::Void;
        forget(&mut self.failures);
        let (unproven, empty) = (self.unproven(), MasterSet::EMPTY);
        let (deleted, absent, astray) = (empty, empty, empty);
        self.release = Some(Release { started: now, owed, sent, deleted, absent, unproven, astray });
    }

    /// A connection broke: its answers to this claim will not come.
    pub(crate) fn note_stray(&mut self, master: MasterId) {
        if !self.has_answered(master) {
            self.doubts.connection_lost.insert(master);
        }
        self.doubts.owes_repair.remove(master);
        if let Some(parked) = self.parked.as_mut() {
            parked.owing.remove(master);
        }
        if self.doubts.owes_extension.contains(master) {
            self.doubts.owes_extension.remove(master);
            self.doubts.lost_extension.insert(master);
        }
        if let Some(release) = &mut self.release {
            if matches!(self.course, Course::Left(_)) && release.sent.contains(master) {
                self.doubts.lost_extension.insert(master);
            }
            release.sent.remove(master);
        }
    }

    /// Whether a master has answered its only `SET`. A parked entry gets the key without a `SET`.
    fn has_answered(&self, master: MasterId) -> bool {
        let answered = self.tally.granted.union(self.tally.refused).without(self.doubts.sent_again);
        self.parked.is_none() && answered.contains(master)
    }

    /// The master may be a different process than before: the locks that it granted no longer count. If the
    /// earlier process `has_ended`, commands pending there are never executed.
    pub(crate) fn note_restart(&mut self, master: MasterId, has_ended: bool) {
        self.tally.granted.remove(master);
        let is_certain = self.doubts.note_restart(master, self.asked, has_ended);
        if let Some(parked) = self.parked.as_mut().filter(|_| is_certain) {
            parked.masters.remove(master);
        }
    }

    /// Whether the caller of a release need not wait longer: a quorum has answered, or no answer is pending.
    /// A rest needs all masters' answers. When a release has replaced the rest, the answers must show whether
    /// a quorum had the key.
    pub(crate) fn is_settled(&self, master_count: usize, quorum: usize) -> bool {
        let Some(release) = &self.release else { return false };
        let (had, heard) = (release.deleted, release.deleted.union(release.absent));
        let is_enough = match self.leaving() {
            None => heard.has(quorum),
            Some(leaving) if leaving.rest_sent.is_some() => heard.has(master_count),
            Some(_) => had.has(quorum) || !had.union(release.owed).has(quorum),
        };
        is_enough || release.sent.is_empty()
    }

    /// Returns whether a master may still have the key: it got the `SET`, did not refuse to run it, and has
    /// not confirmed the release.
    pub(crate) fn may_be_left(&self) -> bool {
        let unrun = self.doubts.unrun.without(self.doubts.sent_again);
        self.release.is_none_or(|release| !release.owed.without(unrun).is_empty())
    }

    /// Whether no operation owns the claim, and no master may hold its key.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_owned && self.release.is_some_and(|release| release.owed.is_empty())
    }

    /// Returns the masters that may still cut a key of this TTL short: an extension to a shorter TTL may be
    /// stuck on a broken connection, and be executed last.
    pub(crate) fn may_cut_short(&self, ttl_ms: u64) -> MasterSet {
        let is_longer = ttl_ms > u64::from(self.sent.shortest_ms);
        if is_longer { self.doubts.lost_extension } else { MasterSet::EMPTY }
    }

    /// Records that masters got the `SET` of a held lock again.
    pub(crate) fn note_repair(&mut self, sent: MasterSet) {
        self.asked = self.asked.union(sent);
        self.doubts.note_repair(sent);
    }

    /// Records that a master no longer has the key, by its answer to an extension. An entry in the master's
    /// queue may still bring the key back.
    pub(crate) fn note_gone(&mut self, now: Instant, master: MasterId, drift: Drift) {
        self.tally.granted.remove(master);
        let is_served = |parked: &Parked| parked.may_be_served(now, master, drift);
        let may_get_it = self.parked.as_ref().is_some_and(is_served);
        if !may_get_it && !self.doubts.owes_repair.contains(master) {
            self.doubts.gone.insert(master);
        }
    }

    /// Records that a master wrote the key for a waiting entry.
    pub(crate) fn note_served(&mut self, master: MasterId) {
        self.doubts.gone.remove(master);
    }

    /// Returns the masters that cannot have the key: never asked, or they said so and got no other `SET`
    /// since.
    pub(crate) fn absent(&self, all: MasterSet) -> MasterSet {
        all.without(self.asked).union(self.refused()).union(self.doubts.gone)
    }

    /// Records that a master found the key with this token already there; returns the master's vote.
    pub(crate) fn note_twin(&mut self, master: MasterId) -> Vote {
        self.doubts.twins.insert(master);
        Vote::Failed(Failure::SameServer)
    }

    /// Counts a grant, the usual vote. A grant that comes too late to count is added to `late_count`.
    #[inline]
    pub(crate) fn count_grant(&mut self, master: MasterId, quorum: usize, late_count: &mut u64) -> Counted {
        if self.votes == Votes::Void {
            *late_count += 1;
            return Counted::Open;
        }
        self.grant(master);
        if self.votes == Votes::Decide && self.tally.granted.has(quorum) {
            Counted::Decides
        } else {
            Counted::Open
        }
    }

    /// Counts the usual answer to a release: the key was there and is deleted.
    #[inline]
    pub(crate) const fn count_deleted(&mut self, master: MasterId, quorum: usize) -> Counted {
        let Some(release) = &mut self.release else { return Counted::Open };
        release.sent.remove(master);
        release.owed = release.owed.without(MasterSet::only(master).without(release.unproven));
        release.deleted.insert(master);
        match self.is_owned {
            true if release.has_decided(quorum) => Counted::Decides,
            false if release.owed.is_empty() => Counted::Done,
            _ => Counted::Open,
        }
    }

    fn grant(&mut self, master: MasterId) {
        self.tally.failed.remove(master);
        self.tally.refused.remove(master);
        self.tally.granted.insert(master);
    }

    /// Records a vote of this claim's acquisition. A late vote replaces "no answer".
    pub(crate) fn record(&mut self, master: MasterId, vote: Vote) {
        let Tally { granted, refused, failed } = &mut self.tally;
        match vote {
            Vote::Granted => self.grant(master),
            Vote::Refused { .. } => {
                failed.remove(master);
                refused.insert(master);
            }
            Vote::Failed(failure) => {
                granted.remove(master);
                failed.insert(master);
                self.failures.push((master, failure));
            }
            Vote::Pending => {}
        }
    }

    /// Returns the masters that may have the key.
    pub(crate) fn holders(&self) -> MasterSet {
        self.asked.without(self.refused())
    }

    /// Returns the masters that refused and were not asked again.
    pub(crate) fn refused(&self) -> MasterSet {
        self.tally.refused.without(self.doubts.sent_again)
    }

    /// Returns the round of a parked claim.
    pub(crate) fn parked(&self) -> &Parked {
        self.parked.as_ref().expect(NOT_PARKED)
    }

    pub(crate) fn parked_mut(&mut self) -> &mut Parked {
        self.parked.as_mut().expect(NOT_PARKED)
    }

    /// Returns how long the attempt has taken. A round continues long after its masters have answered.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        let took = now - self.started;
        if self.parked.is_some() { took.min(self.answer_limit) } else { took }
    }

    /// Returns the votes so far. A master where the attempt waits counts as a refusal.
    pub(crate) fn tally_so_far(&self) -> Tally {
        let waiting = self.parked.as_ref().map_or(MasterSet::EMPTY, |parked| parked.waiting);
        let Tally { granted, refused, failed } = self.tally;
        // A master that answered late counts as failed, although the round waits there.
        let failed = failed.without(waiting);
        Tally { granted, refused: refused.union(waiting.without(granted)), failed }
    }

    /// Returns the entry's place in the queue of a master, if it is known.
    pub(crate) fn entry_at(&self, master: MasterId) -> Option<u64> {
        self.parked.as_ref().and_then(|parked| parked.at(master))
    }

    /// Returns the masters where a deletion is no proof ([`Doubts::unproven`]).
    #[inline(always)]
    pub(crate) fn unproven(&self) -> MasterSet {
        self.doubts.unproven(self.leaving().is_some_and(|leaving| leaving.rest_sent.is_some()))
    }

    pub(crate) fn failure(&self, master: MasterId) -> Option<&Failure> {
        self.failures.iter().rev().find(|(failed, _)| *failed == master).map(|(_, failure)| failure)
    }

    /// Returns the release, which must have begun.
    #[inline]
    pub(crate) fn release_mut(&mut self) -> &mut Release {
        self.release.as_mut().expect(NO_RELEASE)
    }

    /// Returns when the release needs work, or when the time of a left lock ends.
    pub(crate) fn release_deadline(&self, now: Instant, drift: Drift) -> Option<Instant> {
        let release = self.release?;
        // Each pause equals all the time so far, so a master is asked about log2(TTL / limit) times.
        let pause = (now - release.started).max(self.answer_limit);
        let again = (now + pause).min(self.gone_at(drift).max(now + self.answer_limit));
        let until = self.leaving().map(|leaving| leaving.until).filter(|until| *until > now);
        Some(until.map_or(again, |until| again.min(until)))
    }
}

/// Forgets failures. There are hardly ever any, and the check costs less than clearing an empty list.
#[inline(always)]
fn forget(failures: &mut Vec<(MasterId, Failure)>) {
    if !failures.is_empty() {
        failures.clear();
    }
}

/// A TTL in 32 bits. Each reply looks a claim up, and the lookup is slower at other sizes of a claim.
fn whole_ms(ttl: Ttl) -> u32 {
    const _: () = assert!(limits::MAX_TTL_MAX.as_millis() < u32::MAX as u128);
    u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)
}

impl Release {
    /// Whether [`Claim::is_settled`] may be true.
    #[inline]
    const fn has_decided(&self, quorum: usize) -> bool {
        self.deleted.union(self.absent).has(quorum) || self.sent.is_empty()
    }

    /// Returns the numbers of masters that deleted the key, that no longer had it, and that may still have
    /// it.
    pub(crate) const fn counts(&self) -> (usize, usize, usize) {
        let heard = self.deleted.union(self.absent);
        (self.deleted.count(), self.absent.count(), self.owed.without(heard).count())
    }
}
