//! Queries: operations without a claim, that stand in no queue. No answer to one is a vote for anything, and
//! nothing else sends the deletion that does not compare (I10). And the end of an engine's locks: no more
//! acquisitions, and a wait until nothing is left on any master, which looks every now and then, so that no
//! release of the ordinary path pays for it.

use std::time::{Duration, Instant};

use super::op::{Asked, Op, OpState};
use super::owed::{Owed, Question};
use super::query::Query;
use super::request::Validity;
use super::slab::Id;
use super::{Engine, HeldLocks, OpId, Outcome, SubmitError};
use crate::error::AcquireError;
use crate::event::Event;
use crate::lock::command;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Resource, Vote, split_value};
use crate::mutants::mutant;

/// Why a drained engine acquires nothing.
pub(super) const DRAINED: &str = "it was drained, and acquires no more locks; open a new client";

impl Engine {
    pub(super) fn submit_inspect(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let (id, limit) = self.begin_query(now, Some(resource))?;
        let (key, fleet) = (&self.ops.get(id).key, &mut self.fleet);
        let question = |question| Owed::Query { question, id };
        // A master that has room for the first only has its answer ignored.
        let valued = fleet
            .queue(fleet.usable, question(Question::Value), |out| command::query::encode_value(out, key));
        let counted = fleet.queue(valued, question(Question::ReaderCount), |out| {
            command::shared::encode_reader_count(out, key)
        });
        let asked =
            fleet.queue(counted, question(Question::TimeLeft), |out| command::query::encode_pttl(out, key));
        self.start_query(now, id, Query::inspect(now, limit, asked, self.fleet.absences(asked)));
        Ok(OpId(id))
    }

    pub(super) fn submit_force_unlock(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let (id, limit) = self.begin_query(now, Some(resource))?;
        let asked = self.send_forced_deletion(self.fleet.usable, id);
        self.start_query(now, id, Query::force_unlock(now, limit, asked, self.fleet.absences(asked)));
        Ok(OpId(id))
    }

    pub(super) fn send_forced_deletion(&mut self, to: MasterSet, id: Id) -> MasterSet {
        let owed = Owed::Query { question: Question::ForcedDelete, id };
        let key = &self.ops.get(id).key;
        self.fleet.queue(to, owed, |out| command::query::encode_forced_delete(out, key))
    }

    pub(super) fn submit_pause(
        &mut self,
        now: Instant,
        attempts: u32,
        took: Duration,
        limit: Duration,
    ) -> Result<OpId, SubmitError> {
        let (id, _) = self.begin_query(now, None)?;
        let time = self.draw_pause(took, attempts).min(limit);
        self.start_query(now, id, Query::pause(now, time));
        Ok(OpId(id))
    }

    /// Takes an operation that has the key with it. Returns how long answers are waited for, too.
    pub(super) fn begin_query(
        &mut self,
        now: Instant,
        resource: Option<Resource<'_>>,
    ) -> Result<(Id, Duration), SubmitError> {
        let ttl = self.config.ttl(self.config.max_ttl)?;
        let (id, op) = self.ops.take(|| Op::blank(now, ttl)).ok_or(SubmitError::Overloaded)?;
        op.begin(Asked::of_query(now, ttl));
        op.state = OpState::Query;
        // The operation before in this slot may have left a claim that lives on: it is none of this one's.
        op.claim = Id::NOBODY;
        if let Some(resource) = resource {
            command::entry::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
        }
        Ok((id, self.fleet.answer_limit(ttl)))
    }

    pub(super) fn start_query(&mut self, now: Instant, id: Id, query: Query) {
        self.ops.get_mut(id).query = Some(Box::new(query));
        self.arm_op(id);
        self.check_query(now, id);
    }

    /// The query of this operation, if this master's answer to it is still wanted.
    pub(super) fn query_at(&mut self, master: MasterId, id: Id) -> Option<&mut Query> {
        let query = self.ops.find_mut(id)?.query.as_deref_mut()?;
        query.asked.contains(master).then_some(query)
    }

    pub(super) fn handle_value(&mut self, master: MasterId, id: Id, value: Result<Box<[u8]>, Failure>) {
        if let Some(query) = self.query_at(master, id) {
            query.note_value(master, value);
        } else if let (Some(op), Ok(value)) = (self.ops.find_mut(id), value)
            && let Some(denied) = op.denied_lately()
            && !value.is_empty()
        {
            denied.holder_label = split_value(&value).1.map(|label| label.as_str().into());
        }
    }

    pub(super) fn handle_reader_count(&mut self, master: MasterId, id: Id, count: Result<usize, Failure>) {
        if let Some(query) = self.query_at(master, id) {
            query.note_reader_count(master, count);
        } else if let (Some(op), Ok(count)) = (self.ops.find_mut(id), count)
            && op.denied_lately().is_some()
        {
            // The count known before is kept until an answer says otherwise: a wait may end before the last
            // one.
            op.tries.reader_count = if count == 0 { 0 } else { op.tries.reader_count.max(count) };
        }
    }

    pub(super) fn handle_time_left(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        left: Result<HolderTtl, Failure>,
    ) {
        if mutant!(LookIsVote) && left == Ok(HolderTtl::Gone) {
            let next = self.ops.occupant(id.index).and_then(|id| self.ops.find(id));
            let claim = next.map_or(Id::NOBODY, |op| op.claim);
            return self.handle_acquire_vote(now, master, claim, Vote::Granted);
        }
        let left_in_quarantine = self.fleet.left_in_quarantine(now, master);
        if let Some(query) = self.query_at(master, id) {
            query.note_time_left(master, left, left_in_quarantine);
            self.check_query(now, id);
        }
    }

    pub(super) fn handle_forced_delete(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        answer: ReleaseAnswer,
    ) {
        if let Some(query) = self.query_at(master, id) {
            query.note_deletion(master, answer);
            self.check_query(now, id);
        }
    }

    /// The query's time is over: masters that have not answered have failed.
    pub(super) fn miss_query(&mut self, now: Instant, id: Id) {
        let query = self.ops.get_mut(id).query.as_mut().expect("a query was due");
        let (limit, missing) = (query.limit, query.asked);
        for master in missing.iter() {
            query.fail_at(master, Failure::NoAnswer { limit });
            self.fleet.note_missed(now, master, limit, &mut self.timers);
        }
        self.check_query(now, id);
    }

    /// A connection broke on which queries may have something under way.
    pub(super) fn lose_queries(&mut self, now: Instant, master: MasterId) {
        if mutant!(ForcedDeletionAgain) {
            return;
        }
        for id in self.ops.ids() {
            if let Some(query) = self.query_at(master, id) {
                query.fail_at(master, Failure::ConnectionLost);
                self.check_query(now, id);
            }
        }
    }

    /// Ends a query for which no answer is to be waited for any more.
    fn check_query(&mut self, now: Instant, id: Id) {
        let claim_count = self.claims.count();
        let is_drained = claim_count == 0 && (self.is_answered() || mutant!(DrainEndsUnanswered));
        let op = self.ops.get_mut(id);
        let query = op.query.as_mut().expect("it is a query");
        if !query.is_over(now) {
            return;
        }
        if query.looks_again(now, is_drained) {
            return self.arm_op(id);
        }
        let query = op.query.take().expect("it is a query");
        let name = command::entry::name_in(&op.key, self.config.prefix.len());
        let outcome = query.into_outcome(&self.config.labels, name, claim_count);
        self.ops.free(id);
        self.outcomes.push_back((OpId(id), outcome));
    }
}

impl Engine {
    pub(super) fn submit_drain(
        &mut self,
        now: Instant,
        held: HeldLocks,
        limit: Duration,
    ) -> Result<OpId, SubmitError> {
        self.is_drained = true;
        // First: the slots of those that end now are free again only when their outcomes are fetched.
        let query = self.begin_query(now, None);
        // Waiting acquisitions end first, so that none gets a lock that is released next.
        for id in self.ops.ids() {
            self.end_acquisition(now, id);
        }
        if held == HeldLocks::Release || mutant!(DrainReleasesLeft) {
            for id in self.ops.ids() {
                self.end_held(now, id);
            }
        }
        let (id, _) = query?;
        self.start_query(now, id, Query::drain(now, limit));
        Ok(OpId(id))
    }

    fn end_acquisition(&mut self, now: Instant, id: Id) {
        let Some(op) = self.ops.find(id) else { return };
        let is_acquired = matches!(op.state, OpState::Held(_) | OpState::Releasing | OpState::Query);
        if !is_acquired && !mutant!(DrainForgetsWaiters) {
            let name = self.name_of(id);
            self.submit_release(now, id, false);
            let error = AcquireError::Stopped(DRAINED.into());
            if self.events.is_observed {
                let (resource, error) = (name, error.clone());
                self.events.push(|| Event::Denied { resource, error });
            }
            self.outcomes.push_back((OpId(id), Outcome::Acquire(Err(error))));
        }
    }

    fn end_held(&mut self, now: Instant, id: Id) {
        let Some(op) = self.ops.find_mut(id) else { return };
        let OpState::Held(held) = &mut op.state else { return };
        if now < held.valid_until && !mutant!(DrainedStaysValid) {
            op.validity.move_to(now);
        }
        if !mutant!(DrainedValidityReused) {
            // The guard still reads the old one, and the slot's next occupant must not move that.
            op.validity = Validity::new(now);
        }
        if std::mem::take(&mut held.notifies_loss) {
            self.outcomes.push_back((OpId(id), Outcome::Lost(now)));
        }
        self.submit_release(now, id, false);
    }
}
