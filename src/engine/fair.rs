//! Fair locks: those who wait have the lock in the order in which they came, whichever client they are of.
//!
//! ```text
//!   first attempt ──► each master: "you are the n-th here" ──► a quorum told: ticket = the largest n
//!                                                                   │ where it is less, told with the next attempt
//!      ┌──────────── a third of a heartbeat ───────────────┐        ▼
//!      └─► attempt: "I am still here", and a try ─ refused ┴─ Waiting ◄─ "the lock is free, and you are the first"
//! ```
//!
//! Each master has a queue for each lock (`lock/command/fair.rs`), and grants the lock to the first in it only. The held
//! lock is a plain one: the same key and value, extended, released, repaired and lost as ever. Whatever becomes of the
//! queues, exclusion does not depend on them: they are advice, which the masters give each other's clients.
//!
//! # Why it is fair
//!
//! A waiter's ticket is *allotted* once a quorum of masters has it with the same number, which is the largest that a quorum
//! proposed to it (the rule by which Skeen's total order multicast numbers messages; Lamport's bakery has its doorway in
//! the same place). Who asks after that is told a larger number by some master of any quorum, and so gets a larger one. A
//! lock needs a quorum of masters in whose queue its owner was the first; each quorum has a master that has the older
//! ticket, and there it is not. So **nobody who asks once a ticket is allotted has the lock before it**, as long as
//!
//! - its waiter lives: it is heard by that quorum within every [`limits::FAIR_HEARTBEAT`];
//! - those masters keep their queues: one that restarts empty has forgotten its tickets until the next heartbeat;
//! - the others ask for a fair lock, too: a plain `SET` asks no queue, and another library's neither.
//!
//! Before that, while two ask at the same time, either may be the first: one or two round trips. A ticket is kept through
//! all attempts, also through one that a minority of masters granted: those keys are released, and the place is still
//! there. Two who each have a minority are told at their next attempt who is before whom.
//!
//! # Who gives up, and who dies
//!
//! Who gives up leaves its queues with a command behind whatever was sent, and so does a holder behind its release: the
//! same command tells the first in the queue that the lock is free. So does, for others, who had a part of the lock and gives
//! that back: the first may have been refused for it, and those behind the first cannot have it. It is a hint, like all news (`news.rs`). If it is lost, or
//! its waiter is dead, the next one is the first when the heartbeat is over. Waiters that die together cost one heartbeat
//! together, for they are not waited for one after the other.
//!
//! # Within one engine
//!
//! Each waiter has its own ticket and its own channel, and stands in no line with others (`turns.rs`): a fair and a plain lock
//! of the same name treat each other as if they were of two clients, and a fair one is never handed over.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::claim::Claim;
use super::fleet::Fleet;
use super::op::{Acquisition, Op, OpState};
use super::owed::{Owed, Shape, Tag};
use super::slab::Id;
use super::{Engine, OpId, SubmitError};
use crate::config::Config;
use crate::limits;
use crate::lock::command::{self, FairAnswer, FairTold, Place, Script, Waiter, Way};
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Tally, Token, Vote};
use crate::mutants::mutant;

/// Who is told that the lock is free, or that the first one's heartbeat is over, comes so much later at the most.
const JITTER: Duration = Duration::from_millis(2);

const NOT_FAIR: &str = "the lock is fair";

/// What an acquisition of a fair lock has beside that of a plain one.
#[derive(Debug)]
pub(super) struct Queuing {
    /// The member of the queues, new for each acquisition.
    id: Token,
    /// Its number, once a quorum has proposed one.
    number: Option<u64>,
    /// Whether it waits: else it leaves no ticket.
    waits: bool,
    /// The numbers that masters have for it, as they told last.
    numbers: Vec<(MasterId, u64)>,
    /// What masters told in the attempt under way.
    told: Vec<(MasterId, FairTold)>,
    /// Masters that were ever asked.
    asked: MasterSet,
    /// The channel on which it is told that it is the first, as an encoded bulk string.
    pub(super) channel: Vec<u8>,
}

/// Who leaves its queues behind a release: the lock's key as an encoded bulk string, and whether it had the lock.
pub(super) type Leaving = (Box<Queuing>, Vec<u8>, bool);

/// A waiter's place in the queues of a fair lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// What the masters know it by.
    pub id: Token,
    /// Its number: smaller ones are before it.
    pub number: u64,
}

/// What the masters told of a waiter's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// On no quorum is it the first.
    Behind,
    /// It may be, and somebody has the lock.
    NextToHolder,
    /// Or several have a part of it, or too few masters answered.
    Unclear,
}

impl Queuing {
    fn new(id: Token, waits: bool, config: &Config) -> Self {
        let mut channel = Vec::new();
        command::encode_fair_channel(&mut channel, &config.prefix, &id);
        let (numbers, told) = (Vec::new(), Vec::new());
        Self { id, number: None, waits, numbers, told, asked: MasterSet::EMPTY, channel }
    }

    fn waiter(&self, config: &Config) -> Waiter {
        let ticket = match self.number {
            _ if !self.waits => Place::Outside,
            Some(number) => Place::Number(number),
            None => Place::AtEnd,
        };
        Waiter { id: self.id, ticket, prefix_size: config.prefix.len() }
    }

    /// A master has this number for it.
    fn note_number(&mut self, master: MasterId, number: u64, quorum: usize) {
        match self.numbers.iter_mut().find(|(other, _)| *other == master) {
            Some((_, known)) => *known = number,
            None => self.numbers.push((master, number)),
        }
        if self.number.is_none() && self.numbers.len() >= quorum {
            let proposed = self.numbers.iter().map(|(_, number)| *number);
            self.number = if mutant!(TicketSmallest) { proposed.min() } else { proposed.max() };
        }
    }

    /// Its ticket, once a quorum has the same number for it.
    fn ticket(&self, quorum: usize) -> Option<Ticket> {
        let number = self.number?;
        let count = self.numbers.iter().filter(|(_, known)| *known == number).count();
        (count >= quorum).then_some(Ticket { id: self.id, number })
    }

    /// Where it stands by what was told in an attempt, for which so many masters may refuse.
    fn standing(&self, tally: &Tally, spare: usize) -> Standing {
        let is_behind = |told: &FairTold| match told.way {
            Way::Clear => false,
            Way::Queued(_) => true,
            // The holder may be the one before it.
            Way::Held(_) => told.ahead > 1,
        };
        let behind_count = self.told.iter().filter(|(_, told)| is_behind(told)).count();
        if behind_count > spare {
            Standing::Behind
        } else if tally.granted.is_empty() && tally.refused.count() > spare {
            Standing::NextToHolder
        } else {
            Standing::Unclear
        }
    }

    /// How long the heartbeat of the only one before it lasts, if it is that which is in the way; or no time, where so many
    /// are over that one call does not remove them all.
    fn predecessor_left(&self) -> Option<Duration> {
        let left = self.told.iter().filter_map(|(_, told)| match told.way {
            Way::Queued(left) if told.ahead == 1 || left.is_zero() => Some(left),
            _ => None,
        });
        left.max()
    }

    /// What was told of the key in the way.
    fn holders(&self) -> impl Iterator<Item = (MasterId, HolderTtl)> {
        self.told.iter().filter_map(|(master, told)| match told.way {
            Way::Held(holder) => Some((*master, holder)),
            _ => None,
        })
    }
}

/// Queues the request of an attempt on the usable masters; returns those that had room for it.
#[cold]
#[inline(never)]
pub(super) fn send_attempt(fleet: &mut Fleet, op: &mut Op, claim_id: Id, claim: &Claim) -> MasterSet {
    let queuing = op.queuing.as_mut().expect(NOT_FAIR);
    queuing.told.clear();
    if mutant!(TicketForgotten) {
        (queuing.number, queuing.id) = (None, claim.token);
    }
    let (waiter, ttl) = (queuing.waiter(fleet.config()), op.ttl);
    let sent = fleet.send(fleet.usable(), Owed::acquire(Tag::Fair, claim_id), |out| {
        command::encode_fair_acquire(out, Script::Known, &claim.entry, ttl.as_millis(), &waiter);
    });
    queuing.asked = queuing.asked.union(sent);
    sent
}

impl Engine {
    /// An acquisition of a fair lock. One that does not wait has it only if nobody does, and leaves no ticket.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_fair(
        &mut self,
        now: Instant,
        wanted: &Acquisition<'_>,
    ) -> Result<OpId, SubmitError> {
        let Acquisition { resource, wait, .. } = *wanted;
        let id = self.begin_acquire(now, wanted)?;
        let queuing = Queuing::new(Token::marked(&mut self.rng), !wait.is_zero(), &self.config);
        let hash = self.lines.hash(&queuing.channel);
        let op = self.ops.op_mut(id);
        op.queuing = Some(Box::new(queuing));
        command::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
        if !wait.is_zero() {
            // A line of its own, by which news finds it.
            self.lines.found(id.index, hash);
        }
        self.start_attempt(now, id, None);
        Ok(OpId(id))
    }

    /// The place of a fair lock that is waited for or held, from when a quorum of masters has told it until the release: who
    /// asks after that does not have the lock before, within the bounds that the crate's documentation names.
    #[must_use]
    pub fn ticket(&self, lock: OpId) -> Option<Ticket> {
        self.ops.find(lock.0)?.queuing.as_ref()?.ticket(self.fleet.quorum())
    }

    #[inline(never)]
    pub(super) fn handle_fair_answer(&mut self, now: Instant, master: MasterId, id: Id, answer: FairAnswer) {
        let quorum = self.fleet.quorum();
        let Some(claim) = self.claims.find_mut(id) else { return };
        let queuing = self.ops.find_mut(claim.attempter).and_then(|op| op.queuing.as_mut());
        let is_counted = claim.counts_grants;
        let vote = match answer {
            FairAnswer::Failed(failure) => Vote::Failed(failure),
            FairAnswer::Told(told) => {
                if let Some(queuing) = queuing {
                    // A late answer tells the ticket all the same.
                    if let Some(number) = told.ticket {
                        queuing.note_number(master, number, quorum);
                    }
                    if is_counted {
                        queuing.told.push((master, told));
                    }
                }
                if is_counted && matches!(told.way, Way::Queued(_)) {
                    claim.failures.push((master, Failure::OthersFirst { ahead: told.ahead }));
                }
                match told.way {
                    Way::Clear => Vote::Granted,
                    Way::Held(holder) => Vote::Refused { holder },
                    Way::Queued(_) => Vote::Refused { holder: HolderTtl::Unknown },
                }
            }
        };
        self.handle_acquire_vote(now, master, id, vote);
    }

    /// An attempt was refused: notes what was told of the holder, for the error if there is no other attempt.
    pub(super) fn note_fair_holders(&mut self, id: Id) {
        let op = self.ops.op_mut(id);
        if let Some(queuing) = &op.queuing {
            op.holders.extend(queuing.holders());
        }
    }

    /// How long to wait before the next attempt, after one that took so long. Its claim is still there.
    #[cold]
    #[inline(never)]
    pub(super) fn fair_pause(&mut self, id: Id, took: Duration) -> Duration {
        let op = self.ops.op(id);
        let (queuing, claim) = (op.queuing.as_ref().expect(NOT_FAIR), self.claims.claim(op.claim));
        let spare = self.fleet.spare();
        let standing = queuing.standing(&claim.tally, spare);
        let is_told = self.subscriptions.is_confirmed(id);
        let is_known = queuing.ticket(self.fleet.quorum()).is_some();
        // A quorum proposed different numbers: it is to know the largest at once. This is once in an acquisition.
        let is_new = queuing.number.is_some() && !is_known && standing != Standing::Unclear;
        if is_new && op.attempts <= limits::RENUMBERING_COUNT_MAX {
            return Duration::ZERO;
        }
        let (left, attempts) = (queuing.predecessor_left(), op.attempts);
        let holder_left = holder_left(queuing, spare);
        let third = limits::FAIR_HEARTBEAT / 3;
        let heartbeat = self.rng.random_range(third * 3 / 4..=third);
        let jitter = self.rng.random_range(Duration::from_millis(1)..=JITTER);
        let pause = match standing {
            Standing::Unclear => self.draw_pause(took, attempts),
            _ if !is_told => self.draw_pause(took, attempts),
            Standing::Behind => left.map_or(heartbeat, |left| left + jitter),
            Standing::NextToHolder => holder_left.map_or(heartbeat, |left| left + jitter),
        };
        pause.min(heartbeat)
    }

    /// A fair lock is about to be released, or its acquisition to be given up: the release is as ever, and behind it
    /// [`Engine::finish_leaving`] leaves the queues.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_leaving(&mut self, now: Instant, id: Id) {
        self.unwatch(now, id);
        let op = self.ops.op_mut(id);
        // One that does not wait leaves no ticket, but may have been in somebody's way.
        let is_in_the_way = matches!(op.state, OpState::Acquiring { .. })
            && op.queuing.as_ref().is_some_and(|queuing| !queuing.waits);
        let was_held = is_in_the_way || matches!(op.state, OpState::Held { .. });
        // Between two attempts the claim may be gone.
        if let Some(claim) = self.claims.find_mut(op.claim) {
            // Who is to be told the queue says.
            claim.tells = false;
        }
        self.leaving = op.queuing.take().map(|queuing| (queuing, op.key.clone(), was_held));
    }

    /// The release is queued: leaves the queues behind it.
    #[cold]
    #[inline(never)]
    pub(super) fn finish_leaving(&mut self) {
        if let Some((queuing, key, was_held)) = self.leaving.take() {
            self.leave_queues(&queuing, &key, was_held);
        }
    }

    /// The same for an acquisition that failed.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_queues_of(&mut self, id: Id) {
        let op = self.ops.op_mut(id);
        if let Some(queuing) = op.queuing.take() {
            let key = std::mem::take(&mut op.key);
            self.leave_queues(&queuing, &key, false);
        }
    }

    /// An attempt failed, and what it may have set on some masters is being released: tells the first in each queue there,
    /// who may have been refused for it.
    pub(super) fn tell_of_failed(&mut self, id: Id, masters: MasterSet) {
        let tells = self.config.wakes_waiters && !mutant!(FailedUntold);
        if !tells {
            return;
        }
        let op = self.ops.op(id);
        let queuing = op.queuing.as_ref().expect(NOT_FAIR);
        let mut entry = command::Entry::EMPTY;
        entry.set_key(&op.key, &Token::UNSET);
        let waiter = queuing.waiter(&self.config);
        let masters = masters.intersection(self.fleet.ready());
        self.fleet.send(masters, Owed::Ignored(Shape::Count), |out| {
            command::encode_fair_leave(out, &entry, &waiter, (true, true));
        });
    }

    fn leave_queues(&mut self, queuing: &Queuing, key: &[u8], was_held: bool) {
        if (!queuing.waits || mutant!(LeaveForgotten)) && !was_held {
            return;
        }
        let mut entry = command::Entry::EMPTY;
        entry.set_key(key, &Token::UNSET);
        let (waiter, tells) = (queuing.waiter(&self.config), self.config.wakes_waiters);
        let masters = queuing.asked.intersection(self.fleet.ready());
        self.fleet.send(masters, Owed::Ignored(Shape::Count), |out| {
            command::encode_fair_leave(out, &entry, &waiter, (tells, false));
        });
    }

    /// A master turned out to be another process: it has forgotten the tickets that it gave.
    pub(super) fn forget_tickets(&mut self, master: MasterId) {
        for id in self.ops.ids() {
            if let Some(queuing) = &mut self.ops.op_mut(id).queuing {
                queuing.numbers.retain(|(other, _)| *other != master);
            }
        }
    }

    /// The master forgot the script of an attempt: sends it in full, unless its release is on its way already, which it
    /// would come behind.
    pub(super) fn send_whole_fair(&mut self, master: MasterId, id: Id) -> MasterSet {
        let Some(claim) = self.claims.find(id).filter(|claim| claim.release.is_none()) else {
            return MasterSet::EMPTY;
        };
        let Some(op) = claim.owner.map(|op| self.ops.op(op)) else { return MasterSet::EMPTY };
        let queuing = op.queuing.as_ref().expect(NOT_FAIR);
        let waiter = queuing.waiter(&self.config);
        let (only, owed) = (MasterSet::only(master), Owed::acquire(Tag::Fair, id).whole());
        self.fleet.send(only, owed, |out| {
            command::encode_fair_acquire(out, Script::Whole, &claim.entry, op.ttl.as_millis(), &waiter);
        })
    }
}

/// When enough of the masters that refused will be free, by what they told.
fn holder_left(queuing: &Queuing, spare: usize) -> Option<Duration> {
    let mut left: Vec<Duration> = queuing
        .holders()
        .filter_map(|(_, holder)| if let HolderTtl::Left(left) = holder { Some(left) } else { None })
        .collect();
    left.sort_unstable();
    // With all of the others, all but those that may refuse.
    left.get(left.len().saturating_sub(spare + 1)).copied()
}

impl Op {
    /// The channel on which it is told of releases.
    pub(super) fn channel(&self) -> &[u8] {
        self.queuing.as_ref().map_or(&self.key, |queuing| &queuing.channel)
    }
}
