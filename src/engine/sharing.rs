//! Shared locks: readers, who have a lock together, and writers that keep new readers out while they wait.
//!
//! A writer is whoever has the lock alone, by any other request: nothing about it is different. A reader's
//! attempt, extension and release are a writer's but for the commands (`lock/command/shared.rs`), and for
//! wait queues: readers are in none.
//!
//! # Why readers and a writer exclude each other
//!
//! Readers stand in a set at the lock's own key. A quorum that granted a reader and one that granted a writer
//! share a master. If that one took the writer first, its key was there, with the writer's value, until the
//! writer's validity was over or the writer had released it: a reader is refused there, a swap or an
//! extension compares. If it took the reader first, the set was there until the last of the readers' ends,
//! which no request but a release by one of them brings forward, and that to the last end of the others: `SET
//! NX` is refused. A reader's end is its TTL after the master's vote, by that master's clock, its deadline
//! TTL minus drift after the attempt's beginning; so whatever is said of deadlines, drift, quarantine,
//! orphans and margins holds for readers, too. That a read quorum and a write quorum share a member is the
//! idea of Gifford, "Weighted Voting for Replicated Data" (1979); here both are majorities.
//!
//! # Whose turn it is
//!
//! By itself a writer waits until no reader is there at some moment, which may be never. One that keeps
//! readers out leaves its reservation on all masters with each refusal: while that lives new readers are
//! refused, so that the writer waits for those who have the lock at the longest. The reservation is withdrawn
//! when the writer has the lock or gives up; that of a writer that dies ends after
//! [`limits::RESERVATION_TIME`]. Several writers share the key of the reservation: the last one to be refused
//! has it, and only that one withdraws it. The others set it again with their next refusal, which comes in
//! half of that time.
//!
//! ```text
//!  writer   SET NX ─ refused ─► SET reservation ─ half of its time ─► SET NX ─ granted ─► reservation gone
//!  readers    │ in              │ refused from here on                  │ refused by the lock
//! ```

use std::time::{Duration, Instant};

use rand::Rng;

use super::claim::{Claim, Votes};
use super::fleet::Fleet;
use super::groups::Notify;
use super::owed::{Owed, Shape};
use crate::limits;
use crate::lock::command;
use crate::lock::command::entry::Entry;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Token, Vote};
use crate::mutants::mutant;

/// The reservation of a writer that waits.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    /// Key and value as commands have them; empty before the first refusal.
    entry: Entry,
    /// Masters that were sent it.
    sent: MasterSet,
}

/// The vote in the answer to a reader's attempt. A refusal reports how long the key in the way still lives.
pub(super) fn vote(
    vote: Vote,
    master: MasterId,
    claim: &mut Claim,
    holders: Option<&mut Vec<(MasterId, HolderTtl)>>,
) -> Option<Vote> {
    if vote == Vote::Failed(Failure::SameServer) {
        claim.note_twin(master);
    }
    if claim.votes == Votes::Void {
        return None;
    }
    if let (Vote::Refused { holder }, Some(holders)) = (&vote, holders) {
        holders.push((master, *holder));
    }
    Some(vote)
}

impl Reservation {
    /// An attempt was refused: leaves the reservation on all masters beside this key, for as long as
    /// `answers` may take and longer. Returns by when it is to be renewed.
    #[cold]
    #[inline(never)]
    pub(super) fn send(
        &mut self,
        fleet: &mut Fleet,
        now: Instant,
        key: &[u8],
        answers: Duration,
        rng: &mut impl Rng,
    ) -> Instant {
        let renewal = now + limits::RESERVATION_TIME / 2;
        if self.sent.is_empty() {
            command::shared::set_reservation(
                &mut self.entry,
                key,
                fleet.config.prefix.len(),
                &Token::marked(rng),
            );
        } else if mutant!(ReservationNotRenewed) {
            return renewal;
        }
        let time = limits::RESERVATION_TIME + 2 * answers;
        // A day and a second at the most.
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let sent = fleet.queue(fleet.usable, Owed::Ignored(Shape::Any), |out| {
            command::shared::encode_reservation(out, &self.entry, time_ms);
        });
        self.sent = self.sent.union(sent);
        renewal
    }

    /// The writer has the lock, or has given up: readers need not stay out for its sake any more. Waiters are
    /// notified unless it has the lock.
    #[cold]
    #[inline(never)]
    pub(super) fn withdraw(&self, fleet: &mut Fleet, key: &[u8], has_lock: bool) {
        if self.sent.is_empty() || mutant!(ReservationKept) {
            return;
        }
        fleet.send_release(self.sent, Owed::Ignored(Shape::Any), &self.entry, Notify::Nobody);
        if !has_lock && fleet.config.wakes_waiters {
            let ready = self.sent.intersection(fleet.ready);
            fleet.queue(ready, Owed::Ignored(Shape::Count), |out| command::encode_notification(out, key));
        }
    }
}
