//! Queries: operations without a claim, that stand in no queue. No answer to one is a vote for anything, and
//! nothing else sends the deletion that does not compare (I10).

use std::time::{Duration, Instant};

use super::op::{Op, OpState};
use super::owed::{Owed, Question};
use super::query::Query;
use super::slab::Id;
use super::{Engine, OpId, SubmitError};
use crate::lock::command::{self, ReleaseAnswer};
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Resource, Vote, split_value};
use crate::mutants::mutant;

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
        let valued =
            fleet.send(fleet.usable(), question(Question::Value), |out| command::encode_value(out, key));
        let counted =
            fleet.send(valued, question(Question::ReaderCount), |out| command::encode_reader_count(out, key));
        let asked = fleet.send(counted, question(Question::TimeLeft), |out| command::encode_pttl(out, key));
        self.start_query(now, id, Query::inspect(now, limit, asked, self.fleet.absences(asked)));
        Ok(OpId(id))
    }

    pub(super) fn submit_force_unlock(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let (id, limit) = self.begin_query(now, Some(resource))?;
        let asked = self.send_forced_deletion(self.fleet.usable(), id);
        self.start_query(now, id, Query::force_unlock(now, limit, asked, self.fleet.absences(asked)));
        Ok(OpId(id))
    }

    pub(super) fn send_forced_deletion(&mut self, to: MasterSet, id: Id) -> MasterSet {
        let owed = Owed::Query { question: Question::ForcedDelete, id };
        let key = &self.ops.get(id).key;
        self.fleet.send(to, owed, |out| command::encode_forced_delete(out, key))
    }

    pub(super) fn submit_pause(
        &mut self,
        now: Instant,
        attempts: u32,
        took: Duration,
    ) -> Result<OpId, SubmitError> {
        let (id, _) = self.begin_query(now, None)?;
        let time = self.draw_pause(took, attempts);
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
        op.begin(now, ttl, Duration::ZERO, None);
        // The operation before in this slot may have left a claim that lives on: it is none of this one's.
        op.claim = Id::NOBODY;
        if let Some(resource) = resource {
            command::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
        }
        Ok((id, self.fleet.answer_limit(ttl)))
    }

    pub(super) fn start_query(&mut self, now: Instant, id: Id, query: Query) {
        self.ops.get_mut(id).state = OpState::Query(Box::new(query));
        self.arm_op(id);
        self.check_query(now, id);
    }

    /// The query of this operation, if this master's answer to it is still wanted.
    pub(super) fn query_at(&mut self, master: MasterId, id: Id) -> Option<&mut Query> {
        match &mut self.ops.find_mut(id)?.state {
            OpState::Query(query) if query.asked().contains(master) => Some(query),
            _ => None,
        }
    }

    pub(super) fn handle_value(&mut self, master: MasterId, id: Id, value: Result<Box<[u8]>, Failure>) {
        if let Some(query) = self.query_at(master, id) {
            query.note_value(master, value);
        } else if let (Some(op), Ok(value)) = (self.ops.find_mut(id), value)
            && let OpState::Asking { denied, .. } | OpState::Waiting { denied, .. } = &mut op.state
            && !value.is_empty()
        {
            denied.holder_label = split_value(&value).1.map(|label| label.as_str().into());
        }
    }

    pub(super) fn handle_reader_count(&mut self, master: MasterId, id: Id, count: Result<usize, Failure>) {
        if let Some(query) = self.query_at(master, id) {
            query.note_reader_count(master, count);
        } else if let (Some(op), Ok(count)) = (self.ops.find_mut(id), count)
            && matches!(op.state, OpState::Asking { .. } | OpState::Waiting { .. })
        {
            // What was known before is kept until an answer says otherwise: a wait may end before the last
            // one.
            op.reader_count = if count == 0 { 0 } else { op.reader_count.max(count) };
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
        let OpState::Query(query) = &mut self.ops.get_mut(id).state else { unreachable!("a query was due") };
        let (limit, missing) = (query.limit(), query.asked());
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
        let OpState::Query(query) = &mut op.state else { unreachable!("it is a query") };
        if !query.is_over(now) {
            return;
        }
        if query.looks_again(now, is_drained) {
            return self.arm_op(id);
        }
        let OpState::Query(query) = std::mem::replace(&mut op.state, OpState::Releasing) else {
            unreachable!("it is a query")
        };
        let name = command::name_in(&op.key, self.config.prefix.len());
        let outcome = query.into_outcome(&self.config.labels, name, claim_count);
        self.ops.free(id);
        self.outcomes.push_back((OpId(id), outcome));
    }
}
