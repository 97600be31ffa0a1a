//! Fair locks: those who wait have the lock in the order in which they came, whichever client they are of.
//!
//! ```text
//!   first attempt ──► each master: "you are the n-th" ──► a quorum answered: ticket = the largest n
//!                                                             │ a smaller n is raised by the next attempt
//!      ┌──────────── a third of a heartbeat ───────────────┐  ▼
//!      └─► attempt: "I am still here", and a try ─ refused ┴─ Waiting ◄─ "free, and you are first"
//! ```
//!
//! Each master has a queue for each lock (`lock/command/fair.rs`), and grants the lock to the first in it
//! only. The held lock is a plain one: the same key and value, extended, released, repaired and lost as ever.
//! Whatever becomes of the queues, exclusion does not depend on them: they are advice, which the masters give
//! each other's clients.
//!
//! # Why it is fair
//!
//! A waiter's ticket is *allotted* once a quorum of masters has it with the same number, which is the largest
//! that a quorum proposed to it (the rule by which Skeen's total order multicast numbers messages; Lamport's
//! bakery has its doorway in the same place). A caller that asks after that gets a larger number from some
//! master of any quorum, and so a larger ticket. A lock needs a quorum of masters in whose queue its owner
//! was the first; each quorum has a master that has the older ticket, and there it is not. So **nobody who
//! asks once a ticket is allotted has the lock before it**, as long as
//!
//! - its waiter lives: it is heard by that quorum within every [`limits::FAIR_HEARTBEAT`];
//! - those masters keep their queues: one that restarts empty has forgotten its tickets until the next
//!   heartbeat;
//! - the others ask for a fair lock, too: a plain `SET` asks no queue, and another library's neither.
//!
//! Before that, while two ask at the same time, either may be the first: one or two round trips. A ticket is
//! kept through all attempts, also through one that a minority of masters granted: those keys are released,
//! and the place is still there. Two waiters that each have a minority learn their order at their next
//! attempt.
//!
//! # Waiters that give up or die
//!
//! A waiter that gives up leaves its queues with a command behind whatever was sent, and so does a holder
//! behind its release: the same command notifies the first in the queue that the lock is free. So does, for
//! others, a caller that had a part of the lock and gives that back: the first may have been refused for it,
//! and those behind the first cannot have it. It is a hint, like all notifications (`subscriptions.rs`). If
//! it is lost, or its waiter is dead, the next one is the first when the heartbeat is over. Waiters that die
//! together cost one heartbeat together, for they are not waited for one after the other.
//!
//! # Within one engine
//!
//! Each waiter has its own ticket and its own channel, and waits in no queue of the engine (`turns.rs`): a
//! fair and a plain lock of the same name treat each other as if they were of two clients, and a fair one is
//! never handed over.

use std::time::Duration;

use super::claim::{Claim, Votes};
use super::fleet::Fleet;
use super::owed::Owed;
use crate::config::Config;
use crate::limits;
use crate::lock::command;
use crate::lock::command::fair::{FairAnswer, Place, QueueState, Waiter, Way};
use crate::lock::command::scripts::Script;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Tally, Token, Ttl, Vote};
use crate::mutants::mutant;

/// State that only an acquisition of a fair lock has.
#[derive(Debug)]
pub(super) struct Queuing {
    /// The member of the queues, new for each acquisition.
    id: Token,
    /// Its number, once a quorum has proposed one.
    number: Option<u64>,
    /// Whether it waits: else it leaves no ticket.
    waits: bool,
    /// The numbers that masters have for it, as they reported last.
    numbers: Vec<(MasterId, u64)>,
    /// Reports of masters in the attempt under way.
    queue: Vec<(MasterId, QueueState)>,
    /// Masters that were ever asked.
    asked: MasterSet,
    /// The channel on which it is notified that it is the first, as an encoded bulk string.
    pub(super) channel: Vec<u8>,
}

/// An operation that leaves its queues.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) queuing: Box<Queuing>,
    /// The lock's key as an encoded bulk string.
    pub(super) key: Vec<u8>,
    pub(super) was_held: bool,
}

/// Event that the next attempt waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: the masters are to know the number at once.
    AtOnce,
    /// A random pause, as after any attempt.
    Random,
    /// The next heartbeat.
    Heartbeat,
    /// The end of what is in the way, unless the heartbeat comes before.
    After(Duration),
}

/// Place of a waiter in the queues of a fair lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// Name by which the masters know the waiter.
    pub id: Token,
    /// Number of the ticket: smaller ones are ahead of it.
    pub number: u64,
}

/// Place of a waiter, by the reports of the masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// On no quorum is it the first.
    Behind,
    /// It may be, and somebody has the lock.
    NextToHolder,
    /// Or several have a part of it, or too few masters answered.
    Unclear,
}

impl Queuing {
    pub(super) fn new(id: Token, waits: bool, config: &Config) -> Self {
        let mut channel = Vec::new();
        command::fair::encode_fair_channel(&mut channel, &config.prefix, &id);
        let (numbers, queue) = (Vec::new(), Vec::new());
        Self { id, number: None, waits, numbers, queue, asked: MasterSet::EMPTY, channel }
    }

    fn waiter(&self, config: &Config) -> Waiter {
        let ticket = match self.number {
            _ if !self.waits => Place::Outside,
            Some(number) => Place::Number(number),
            None => Place::AtEnd,
        };
        Waiter { id: self.id, ticket, prefix_size: config.prefix.len() }
    }

    /// Whether it waits: else it leaves no ticket.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// A new attempt begins, with this token.
    pub(super) fn begin_attempt(&mut self, token: Token) {
        self.queue.clear();
        if mutant!(TicketForgotten) {
            (self.number, self.id) = (None, token);
        }
    }

    /// Queues the request of an attempt; returns the masters that had room for it.
    pub(super) fn send_attempt(
        &mut self,
        fleet: &mut Fleet,
        to: MasterSet,
        owed: Owed,
        claim: &Claim,
        ttl: Ttl,
        script: Script,
    ) -> MasterSet {
        let waiter = self.waiter(&fleet.config);
        let sent = fleet.queue(to, owed, |out| {
            command::fair::encode_fair_acquire(out, script, &claim.entry, ttl.as_millis(), &waiter);
        });
        self.asked = self.asked.union(sent);
        sent
    }

    /// A master answered an attempt. A late answer, which is not `counted`, reports the ticket all the same.
    pub(super) fn note_answer(
        &mut self,
        master: MasterId,
        queue: QueueState,
        is_counted: bool,
        quorum: usize,
    ) {
        if let Some(number) = queue.ticket {
            self.note_number(master, number, quorum);
        }
        if is_counted {
            self.queue.push((master, queue));
        }
    }

    /// A master turned out to be another process: it has forgotten the ticket that it gave.
    pub(super) fn forget(&mut self, master: MasterId) {
        self.numbers.retain(|(other, _)| *other != master);
    }

    /// An attempt failed, and what it may have set on some masters is being released: notifies the first in
    /// each queue there, which may have been refused for it.
    pub(super) fn notify_first(&self, fleet: &mut Fleet, masters: MasterSet, key: &[u8]) {
        if !masters.is_empty() && fleet.config.wakes_waiters && !mutant!(FailedUnreported) {
            let (entry, waiter) = (key_only(key), self.waiter(&fleet.config));
            fleet.queue(masters.intersection(fleet.ready), Owed::EndOfWait, |out| {
                command::fair::encode_fair_notify(out, &entry, &waiter);
            });
        }
    }

    /// The event that the next attempt waits for after one with these votes, the last of so many. `spare`
    /// masters may refuse.
    pub(super) fn next(&self, tally: &Tally, spare: usize, quorum: usize, attempts: u32) -> Next {
        let standing = self.standing(tally, spare);
        let is_known = self.ticket(quorum).is_some();
        // A quorum proposed different numbers: it is to know the largest at once. This is once in an
        // acquisition.
        let is_new = self.number.is_some() && !is_known && standing != Rank::Unclear;
        if is_new && attempts <= limits::RENUMBERING_COUNT_MAX {
            return Next::AtOnce;
        }
        let left = match standing {
            Rank::Unclear => return Next::Random,
            Rank::Behind => self.predecessor_left(),
            Rank::NextToHolder => holder_left(self, spare),
        };
        left.map_or(Next::Heartbeat, Next::After)
    }

    /// A master has this number for it.
    fn note_number(&mut self, master: MasterId, number: u64, quorum: usize) {
        match self.numbers.iter_mut().find(|(other, _)| *other == master) {
            Some((_, known)) => *known = number,
            None => self.numbers.push((master, number)),
        }
        if self.number.is_none() && self.numbers.len() >= quorum {
            let proposed = self.numbers.iter().map(|(_, number)| *number);
            self.number = proposed.clone().max();
            if mutant!(TicketSmallest) {
                self.number = proposed.min();
            }
        }
    }

    /// Its ticket, once a quorum has the same number for it.
    pub(super) fn ticket(&self, quorum: usize) -> Option<Ticket> {
        let number = self.number?;
        let count = self.numbers.iter().filter(|(_, known)| *known == number).count();
        (count >= quorum).then_some(Ticket { id: self.id, number })
    }

    /// Where it stands by what was reported in an attempt, for which so many masters may refuse.
    fn standing(&self, tally: &Tally, spare: usize) -> Rank {
        let is_behind = |queue: &QueueState| match queue.way {
            Way::Clear => false,
            Way::Queued(_) => true,
            // The holder may be the one before it.
            Way::Held(_) => queue.ahead > 1,
        };
        let behind_count = self.queue.iter().filter(|(_, queue)| is_behind(queue)).count();
        if behind_count > spare {
            Rank::Behind
        } else if tally.granted.is_empty() && tally.refused.count() > spare {
            Rank::NextToHolder
        } else {
            Rank::Unclear
        }
    }

    /// How long the heartbeat of the only one before it lasts, if it is that which is in the way; or no time,
    /// where so many are over that one call does not remove them all.
    fn predecessor_left(&self) -> Option<Duration> {
        let left = self.queue.iter().filter_map(|(_, queue)| match queue.way {
            Way::Queued(left) if queue.ahead == 1 || left.is_zero() => Some(left),
            _ => None,
        });
        left.max()
    }

    /// Times left of the key in the way, as masters reported them.
    pub(super) fn holders(&self) -> impl Iterator<Item = (MasterId, HolderTtl)> {
        self.queue.iter().filter_map(|(master, queue)| match queue.way {
            Way::Held(holder) => Some((*master, holder)),
            _ => None,
        })
    }
}

/// The vote in the answer to a fair attempt, from which `queuing` learns.
pub(super) fn vote(
    answer: FairAnswer,
    master: MasterId,
    claim: &mut Claim,
    queuing: Option<&mut Queuing>,
    quorum: usize,
) -> Vote {
    let queue = match answer {
        FairAnswer::Failed(failure) => return Vote::Failed(failure),
        FairAnswer::Answered(queue) => queue,
    };
    let is_counted = claim.votes != Votes::Void;
    if let Some(queuing) = queuing {
        queuing.note_answer(master, queue, is_counted, quorum);
    }
    if is_counted && matches!(queue.way, Way::Queued(_)) {
        claim.failures.push((master, Failure::OthersFirst { ahead: queue.ahead }));
    }
    match queue.way {
        Way::Clear => Vote::Granted,
        Way::Held(holder) => Vote::Refused { holder },
        Way::Queued(_) => Vote::Refused { holder: HolderTtl::Unknown },
    }
}

/// Leaves the queues of a lock behind whatever was sent: its release, or what an attempt that was given up
/// has sent.
pub(super) fn leave(fleet: &mut Fleet, leaving: &Leaving) {
    let Leaving { queuing, key, was_held } = leaving;
    if (!queuing.waits || mutant!(LeaveForgotten)) && !was_held {
        return;
    }
    let (entry, waiter) = (key_only(key), queuing.waiter(&fleet.config));
    let notifies = fleet.config.wakes_waiters;
    fleet.queue(queuing.asked.intersection(fleet.ready), Owed::EndOfWait, |out| {
        command::fair::encode_fair_leave(out, &entry, &waiter, notifies);
    });
}

fn key_only(key: &[u8]) -> command::entry::Entry {
    let mut entry = command::entry::Entry::EMPTY;
    entry.set_key(key, &Token::UNSET);
    entry
}

/// When enough of the masters that refused will be free, by what they reported.
fn holder_left(queuing: &Queuing, spare: usize) -> Option<Duration> {
    let mut left: Vec<Duration> = queuing
        .holders()
        .filter_map(|(_, holder)| if let HolderTtl::Left(left) = holder { Some(left) } else { None })
        .collect();
    left.sort_unstable();
    // With all of the others, all but those that may refuse.
    left.get(left.len().saturating_sub(spare + 1)).copied()
}

#[derive(Debug)]
pub(super) enum Policy {
    /// At random, and until a message says that the lock was released; in the engine's own queue before that.
    Notified,
    /// In a queue on each master.
    Queue(Box<Queuing>),
}

impl Policy {
    /// The place in the masters' queues.
    #[inline]
    pub(super) const fn queuing(&self) -> Option<&Queuing> {
        match self {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }

    #[inline]
    pub(super) const fn queuing_mut(&mut self) -> Option<&mut Queuing> {
        match self {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }

    /// Gives up the place in the masters' queues.
    #[inline]
    pub(super) fn take_queuing(&mut self) -> Option<Box<Queuing>> {
        match std::mem::replace(self, Self::Notified) {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predecessor_is_waited_for_where_it_lasts_longest() {
        let config = Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings");
        let mut queuing = Queuing::new(Token::UNSET, true, &config);
        for (index, seconds) in [2, 3, 1].into_iter().enumerate() {
            let way = Way::Queued(Duration::from_secs(seconds));
            let queue = QueueState { way, ticket: Some(2), ahead: 1 };
            queuing.queue.push((MasterId::new(index).expect("small"), queue));
        }
        assert_eq!(queuing.predecessor_left(), Some(Duration::from_secs(3)));
    }
}
