//! Queries: operations without a claim, that stand in no queue. No answer to one is a vote for anything, and
//! nothing else sends the deletion that does not compare (I10). And the end of an engine's locks: no more
//! acquisitions, and a wait until nothing is left on any master, which looks every now and then, so that no
//! release of the ordinary path pays for it.

use std::time::Duration;

use super::ground::Ground;
use super::locks::Locks;
use super::masters::Masters;
use super::op::{Asked, Op, OpState};
use super::owed::{Owed, Question};
use super::query::Query;
use super::request::Validity;
use super::slab::Id;
use super::{HeldLocks, OpId, Outcome, SubmitError, acquire, release, waiting};
use crate::error::AcquireError;
use crate::event::Event;
use crate::lock::command;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Resource, Vote, split_value};
use crate::mutants::mutant;

/// Why a drained engine acquires nothing.
pub(super) const DRAINED: &str = "it was drained, and acquires no more locks; open a new client";

pub(super) fn submit_inspect(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    resource: Resource<'_>,
) -> Result<OpId, SubmitError> {
    let (id, limit) = begin_query(ground, masters, locks, Some(resource))?;
    let (key, fleet) = (&locks.ops.get(id).key, &mut masters.fleet);
    let question = |question| Owed::Query { question, id };
    // A master that has room for the first only has its answer ignored.
    let valued =
        fleet.queue(fleet.usable, question(Question::Value), |out| command::query::encode_value(out, key));
    let counted = fleet
        .queue(valued, question(Question::ReaderCount), |out| command::shared::encode_reader_count(out, key));
    let asked =
        fleet.queue(counted, question(Question::TimeLeft), |out| command::query::encode_pttl(out, key));
    start_query(
        ground,
        masters,
        locks,
        id,
        Query::inspect(ground.now, limit, asked, masters.fleet.absences(asked)),
    );
    Ok(OpId(id))
}

pub(super) fn submit_force_unlock(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    resource: Resource<'_>,
) -> Result<OpId, SubmitError> {
    let (id, limit) = begin_query(ground, masters, locks, Some(resource))?;
    let asked = send_forced_deletion(masters, locks, masters.fleet.usable, id);
    start_query(
        ground,
        masters,
        locks,
        id,
        Query::force_unlock(ground.now, limit, asked, masters.fleet.absences(asked)),
    );
    Ok(OpId(id))
}

pub(super) fn send_forced_deletion(
    masters: &mut Masters,
    locks: &mut Locks,
    to: MasterSet,
    id: Id,
) -> MasterSet {
    let owed = Owed::Query { question: Question::ForcedDelete, id };
    let key = &locks.ops.get(id).key;
    masters.fleet.queue(to, owed, |out| command::query::encode_forced_delete(out, key))
}

pub(super) fn submit_pause(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    attempts: u32,
    took: Duration,
    limit: Duration,
) -> Result<OpId, SubmitError> {
    let (id, _) = begin_query(ground, masters, locks, None)?;
    let time = waiting::draw_pause(ground, took, attempts).min(limit);
    start_query(ground, masters, locks, id, Query::pause(ground.now, time));
    Ok(OpId(id))
}

/// Takes an operation that has the key with it. Returns how long answers are waited for, too.
pub(super) fn begin_query(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    resource: Option<Resource<'_>>,
) -> Result<(Id, Duration), SubmitError> {
    let ttl = ground.config.ttl(ground.config.max_ttl)?;
    let (id, op) = locks.ops.take(|| Op::blank(ground.now, ttl)).ok_or(SubmitError::Overloaded)?;
    op.begin(Asked::of_query(ground.now, ttl));
    op.state = OpState::Query;
    // The operation before in this slot may have left a claim that lives on: it is none of this one's.
    op.claim = Id::NOBODY;
    if let Some(resource) = resource {
        command::entry::encode_key(&mut op.key, &ground.config.prefix, resource.as_bytes());
    }
    Ok((id, masters.fleet.answer_limit(ttl)))
}

pub(super) fn start_query(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    query: Query,
) {
    locks.ops.get_mut(id).query = Some(Box::new(query));
    locks.arm(ground, id);
    check_query(ground, masters, locks, id);
}

/// The query of this operation, if this master's answer to it is still wanted.
pub(super) fn query_at(locks: &mut Locks, master: MasterId, id: Id) -> Option<&mut Query> {
    let query = locks.ops.find_mut(id)?.query.as_deref_mut()?;
    query.asked.contains(master).then_some(query)
}

pub(super) fn handle_value(locks: &mut Locks, master: MasterId, id: Id, value: Result<Box<[u8]>, Failure>) {
    if let Some(query) = query_at(locks, master, id) {
        query.note_value(master, value);
    } else if let (Some(op), Ok(value)) = (locks.ops.find_mut(id), value)
        && let Some(denied) = op.denied_lately()
        && !value.is_empty()
    {
        denied.holder_label = split_value(&value).1.map(|label| label.as_str().into());
    }
}

pub(super) fn handle_reader_count(
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    count: Result<usize, Failure>,
) {
    if let Some(query) = query_at(locks, master, id) {
        query.note_reader_count(master, count);
    } else if let (Some(op), Ok(count)) = (locks.ops.find_mut(id), count)
        && op.denied_lately().is_some()
    {
        // The count known before is kept until an answer says otherwise: a wait may end before the last
        // one.
        op.tries.reader_count = if count == 0 { 0 } else { op.tries.reader_count.max(count) };
    }
}

pub(super) fn handle_time_left(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    left: Result<HolderTtl, Failure>,
) {
    if mutant!(LookIsVote) && left == Ok(HolderTtl::Gone) {
        let next = locks.ops.occupant(id.index).and_then(|id| locks.ops.find(id));
        let claim = next.map_or(Id::NOBODY, |op| op.claim);
        return acquire::handle_acquire_vote(ground, masters, locks, master, claim, Vote::Granted);
    }
    let left_in_quarantine = masters.fleet.left_in_quarantine(ground.now, master);
    if let Some(query) = query_at(locks, master, id) {
        query.note_time_left(master, left, left_in_quarantine);
        check_query(ground, masters, locks, id);
    }
}

pub(super) fn handle_forced_delete(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    answer: ReleaseAnswer,
) {
    if let Some(query) = query_at(locks, master, id) {
        query.note_deletion(master, answer);
        check_query(ground, masters, locks, id);
    }
}

/// The query's time is over: masters that have not answered have failed.
pub(super) fn miss_query(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let query = locks.ops.get_mut(id).query.as_mut().expect("a query was due");
    let (limit, missing) = (query.limit, query.asked);
    for master in missing.iter() {
        query.fail_at(master, Failure::NoAnswer { limit });
        masters.fleet.note_missed(ground, master, limit);
    }
    check_query(ground, masters, locks, id);
}

/// A connection broke on which queries may have something under way.
pub(super) fn lose_queries(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, master: MasterId) {
    if mutant!(ForcedDeletionAgain) {
        return;
    }
    for id in locks.ops.ids() {
        if let Some(query) = query_at(locks, master, id) {
            query.fail_at(master, Failure::ConnectionLost);
            check_query(ground, masters, locks, id);
        }
    }
}

/// Ends a query for which no answer is to be waited for any more.
fn check_query(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let claim_count = locks.claims.count();
    let is_drained = claim_count == 0 && (masters.fleet.is_answered() || mutant!(DrainEndsUnanswered));
    let op = locks.ops.get_mut(id);
    let query = op.query.as_mut().expect("it is a query");
    if !query.is_over(ground.now) {
        return;
    }
    if query.looks_again(ground.now, is_drained) {
        return locks.arm(ground, id);
    }
    let query = op.query.take().expect("it is a query");
    let name = command::entry::name_in(&op.key, ground.config.prefix.len());
    let outcome = query.into_outcome(&ground.config.labels, name, claim_count);
    locks.ops.free(id);
    ground.report_outcome(id, outcome);
}

pub(super) fn submit_drain(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    held: HeldLocks,
    limit: Duration,
) -> Result<OpId, SubmitError> {
    locks.is_drained = true;
    // First: the slots of those that end ground.now are free again only when their outcomes are fetched.
    let query = begin_query(ground, masters, locks, None);
    // Waiting acquisitions end first, so that none gets a lock that is released next.
    for id in locks.ops.ids() {
        end_acquisition(ground, masters, locks, id);
    }
    if held == HeldLocks::Release || mutant!(DrainReleasesLeft) {
        for id in locks.ops.ids() {
            end_held(ground, masters, locks, id);
        }
    }
    let (id, _) = query?;
    start_query(ground, masters, locks, id, Query::drain(ground.now, limit));
    Ok(OpId(id))
}

fn end_acquisition(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let Some(op) = locks.ops.find(id) else { return };
    let is_acquired = matches!(op.state, OpState::Held(_) | OpState::Releasing | OpState::Query);
    if !is_acquired && !mutant!(DrainForgetsWaiters) {
        let name = locks.name_of(&ground.config, id);
        release::submit_release(ground, masters, locks, id, false);
        let error = AcquireError::Stopped(DRAINED.into());
        if ground.events.is_observed {
            let (resource, error) = (name, error.clone());
            ground.events.push(|| Event::Denied { resource, error });
        }
        ground.report_outcome(id, Outcome::Acquire(Err(error)));
    }
}

fn end_held(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let Some(op) = locks.ops.find_mut(id) else { return };
    let OpState::Held(held) = &mut op.state else { return };
    if now < held.valid_until && !mutant!(DrainedStaysValid) {
        op.validity.move_to(now);
    }
    if !mutant!(DrainedValidityReused) {
        // The guard still reads the old one, and the slot's next occupant must not move that.
        op.validity = Validity::new(now);
    }
    if std::mem::take(&mut held.notifies_loss) {
        ground.report_outcome(id, Outcome::Lost(now));
    }
    release::submit_release(ground, masters, locks, id, false);
}
