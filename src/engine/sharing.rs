//! Shared locks: readers, who have a lock together, and writers that keep new readers out while they wait.
//!
//! A writer is whoever has the lock alone, by any other request: nothing about it is different. A reader's attempt, extension
//! and release are a writer's but for the commands (`lock/command/shared.rs`), and for lines: readers stand in none.
//!
//! # Why readers and a writer exclude each other
//!
//! Readers stand in a set at the lock's own key. A quorum that granted a reader and one that granted a writer share a
//! master. If that one took the writer first, its key was there, with the writer's value, until the writer's validity was over or
//! the writer had released it: a reader is refused there, a swap or an extension compares. If it took the reader first, the
//! set was there until the last of the readers' ends, which no request but a release by one of them brings forward, and that to the
//! last end of the others: `SET NX` is refused. A reader's end is its TTL after the master's vote, by that master's
//! clock, its deadline TTL minus drift after the attempt's beginning; so whatever is said of deadlines, drift, quarantine, orphans
//! and margins holds for readers, too.
//!
//! # Whose turn it is
//!
//! By itself a writer waits until no reader is there at some moment, which may be never. One that keeps readers out leaves
//! its intent on all masters with each refusal: while that lives new readers are refused, so that the writer waits for those
//! who have the lock at the longest. The intent is withdrawn when the writer has the lock or gives up; that of a writer that
//! dies ends after [`limits::INTENT_TIME`]. Several writers share the key of the intent: the last one to be refused has it, and only that
//! one withdraws it. The others set it again with their next refusal, which comes in half of that time.
//!
//! ```text
//!  writer   SET NX ─ refused ─► SET intent ─ Waiting (at most half of its time) ─► SET NX ─ granted ─► intent withdrawn
//!  readers    │ in              │ refused from here on                              │ refused by the lock itself
//! ```

use std::time::Instant;

use super::claim::Claim;
use super::fleet::{Fleet, Notify};
use super::op::{Acquisition, Op};
use super::owed::{Owed, Shape, Tag, Verb};
use super::slab::Id;
use super::{Engine, OpId, SubmitError};
use crate::limits;
use crate::lock::command::{self, Entry, Script};
use crate::lock::{Failure, MasterId, MasterSet, Token, Ttl, Vote};
use crate::mutants::mutant;

/// That of a writer, for the operation that waits.
#[derive(Debug, Default)]
pub(super) struct Intent {
    /// Key and value as commands have them; empty before the first refusal.
    entry: Entry,
    /// Masters that were sent it.
    sent: MasterSet,
}

/// Queues the request of a reader's attempt on the usable masters; returns those that had room for it.
#[cold]
#[inline(never)]
pub(super) fn send_attempt(fleet: &mut Fleet, op: &mut Op, claim_id: Id, claim: &mut Claim) -> MasterSet {
    claim.tag = Tag::Shared;
    op.holders.clear();
    let (ttl_ms, prefix_size) = (op.ttl.as_millis(), fleet.config().prefix.len());
    fleet.send(fleet.usable(), Owed::acquire(Tag::Shared, claim_id), |out| {
        command::encode_shared_acquire(out, Script::Known, &claim.entry, ttl_ms, prefix_size);
    })
}

/// Queues a reader's release on those of `to` that are ready; returns those that had room for it.
#[cold]
#[inline(never)]
pub(super) fn send_release(fleet: &mut Fleet, to: MasterSet, id: Id, claim: &Claim) -> MasterSet {
    fleet.send(to.intersection(fleet.ready()), Owed::release(Tag::Shared, id), |out| {
        command::encode_shared_release(out, Script::Known, &claim.entry, claim.tells);
    })
}

/// The same for an extension.
#[cold]
#[inline(never)]
pub(super) fn send_extend(
    fleet: &mut Fleet,
    to: MasterSet,
    owed: Owed,
    entry: &Entry,
    ttl: Ttl,
) -> MasterSet {
    fleet.send(to.intersection(fleet.ready()), owed, |out| {
        command::encode_shared_extend(out, Script::Known, entry, ttl.as_millis());
    })
}

impl Engine {
    /// An acquisition by a reader. It asks the masters whoever wants the lock in this engine: those who have it
    /// together do not wait for each other.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_shared(
        &mut self,
        now: Instant,
        wanted: &Acquisition<'_>,
    ) -> Result<OpId, SubmitError> {
        let Acquisition { resource, wait, .. } = *wanted;
        let id = self.begin_acquire(now, wanted)?;
        let op = self.ops.op_mut(id);
        op.is_shared = true;
        if mutant!(ReadersQueue) && !wait.is_zero() {
            return self.stand_in_line(now, id, resource);
        }
        if wait.is_zero() {
            self.start_attempt(now, id, Some(resource));
        } else {
            command::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
            self.start_attempt(now, id, None);
        }
        Ok(OpId(id))
    }

    /// A master's answer to a reader: a refusal tells how long what is in the way still lives.
    pub(super) fn handle_shared_vote(&mut self, now: Instant, master: MasterId, id: Id, vote: Vote) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        if vote == Vote::Failed(Failure::SameServer) {
            claim.note_twin(master);
        }
        if !claim.counts_grants {
            return;
        }
        if let (Vote::Refused { holder }, Some(op)) = (&vote, claim.owner.map(|op| self.ops.op_mut(op))) {
            op.holders.push((master, *holder));
        }
        self.handle_acquire_vote(now, master, id, vote);
    }

    /// The master forgot a script of a reader, or never knew it: sends it in full. `None` if nobody wants the answer any more.
    pub(super) fn send_whole_shared(&mut self, master: MasterId, owed: Owed) -> Option<MasterSet> {
        let (fleet, only) = (&mut self.fleet, MasterSet::only(master));
        let (whole, prefix_size) = (Script::Whole, self.config.prefix.len());
        let Owed::Round { verb, id, number: round, .. } = owed else { unreachable!("a request for a lock") };
        Some(match verb {
            Verb::Acquire => {
                let claim = self.claims.find(id)?;
                let ttl = claim.owner.map(|op| self.ops.op(op).ttl);
                // Not behind the release: that is on its way, and would be overtaken.
                let Some(ttl) = ttl.filter(|_| claim.release.is_none()) else {
                    return Some(MasterSet::EMPTY);
                };
                let sent = fleet.send(only, owed.whole(), |out| {
                    command::encode_shared_acquire(out, whole, &claim.entry, ttl.as_millis(), prefix_size);
                });
                // The others are not known either, and an extension that is sent twice may come too late.
                for script in command::SHARED_FOLLOWING {
                    fleet.send(sent, Owed::Ignored(Shape::Any), |out| command::encode_load(out, script));
                }
                sent
            }
            Verb::Extend => {
                let op = self.ops.find(id).filter(|op| op.round == round)?;
                let claim = self.claims.claim(op.claim);
                fleet.send(only, owed.whole(), |out| {
                    command::encode_shared_extend(out, whole, &claim.entry, op.ttl.as_millis());
                })
            }
            Verb::Release => {
                let claim = self.claims.find(id)?;
                fleet.send(only, owed.whole(), |out| {
                    command::encode_shared_release(out, whole, &claim.entry, claim.tells);
                })
            }
            Verb::Repair | Verb::Swap => unreachable!("never by a digest"),
        })
    }

    /// New readers are to stay out while this operation waits for the lock, from its next refusal on.
    #[cold]
    pub(super) fn submit_intent(&mut self, id: Id) {
        if let Some(op) = self.ops.find_mut(id)
            && op.wait_until.is_some()
            && !op.is_shared
            && !matches!(op.state, super::op::OpState::Held { .. } | super::op::OpState::Releasing)
        {
            op.intent.get_or_insert_default();
        }
    }

    /// An attempt was refused: leaves its intent on all masters if it is one that keeps readers out, and goes on waiting until
    /// then. Returns when the next attempt is to be made, early enough to renew it.
    #[inline]
    pub(super) fn keep_readers_out(
        &mut self,
        now: Instant,
        id: Id,
        retry_at: Option<Instant>,
    ) -> Option<Instant> {
        let has_intent = self.ops.op(id).intent.is_some();
        if has_intent { retry_at.map(|at| self.send_intent(now, id, at)) } else { retry_at }
    }

    #[cold]
    #[inline(never)]
    fn send_intent(&mut self, now: Instant, id: Id, retry_at: Instant) -> Instant {
        let op = self.ops.op_mut(id);
        let intent = op.intent.as_mut().expect("it keeps readers out");
        if intent.sent.is_empty() {
            let token = Token::marked(&mut self.rng);
            intent.entry.set_intent(&op.key, self.config.prefix.len(), &token);
        } else if mutant!(IntentNotRenewed) {
            return retry_at.min(now + limits::INTENT_TIME / 2);
        }
        let time = limits::INTENT_TIME + 2 * self.config.answer_limit(op.ttl);
        // A day and a second at the most.
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let sent = self.fleet.send(self.fleet.usable(), Owed::Ignored(Shape::Any), |out| {
            command::encode_intent(out, &intent.entry, time_ms);
        });
        intent.sent = intent.sent.union(sent);
        retry_at.min(now + limits::INTENT_TIME / 2)
    }

    /// A writer has the lock, or has given up: readers need not stay out for its sake any more. Those who wait are told
    /// unless it has the lock.
    #[inline]
    pub(super) fn withdraw_intent(&mut self, id: Id, has_lock: bool) {
        if let Some(intent) = self.ops.op_mut(id).intent.take() {
            self.delete_intent(id, &intent, has_lock);
        }
    }

    #[cold]
    #[inline(never)]
    fn delete_intent(&mut self, id: Id, intent: &Intent, has_lock: bool) {
        if intent.sent.is_empty() || mutant!(IntentKept) {
            return;
        }
        self.fleet.send_release(intent.sent, Owed::Ignored(Shape::Any), &intent.entry, Notify::Nobody);
        if has_lock || !self.config.wakes_waiters {
            return;
        }
        let op = self.ops.op(id);
        let ready = intent.sent.intersection(self.fleet.ready());
        self.fleet.send(ready, Owed::Ignored(Shape::Count), |out| command::encode_telling(out, &op.key));
    }
}
