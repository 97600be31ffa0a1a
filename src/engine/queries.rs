//! Queries: operations without a claim that join no queue. No answer to a query is a vote. Only a forced
//! unlock deletes a key without comparing its value (I10).
//!
//! The drain is a query too: it refuses new acquisitions, then waits until no claim is left. The wait polls,
//! so that ordinary releases pay nothing.

pub(crate) mod free_slots;
pub(crate) mod inspection;
pub(super) mod query;

use std::time::Duration;

use bytes::Bytes;

use self::free_slots::FreeSlots;
use self::query::Query;
use super::core::Core;
use super::ground::Ground;
use super::locks::Locks;
use super::locks::op::{Asked, Op, OpState};
use super::locks::slab::Id;
use super::masters::owed::{Owed, Question};
use super::request::{OpId, Outcome, SubmitError, Validity};
use super::waiting::pauses;

use crate::error::AcquireError;
use crate::event::Event;
use crate::limits;
use crate::lock::command;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::slots::SlotMark;
use crate::lock::{Failure, HolderTtl, InputError, MasterId, Resource, split_value};

/// Why a drained engine acquires nothing.
pub(super) const DRAINED: &str = "it was drained, and acquires no more locks; open a new client";

pub(super) fn submit_inspect(core: &mut Core, resource: Resource<'_>) -> Result<OpId, SubmitError> {
    let (id, limit) = begin_query(core, Some(resource))?;
    let (key, fleet) = (&core.locks.ops.get(id).key, &mut core.masters.fleet);
    let question = |question| Owed::Query { question, id };
    // A master with room for only some of the questions counts as not asked; its answers are ignored.
    let valued =
        fleet.queue(fleet.usable, question(Question::Value), |out| command::query::encode_value(out, key));
    let counted = fleet
        .queue(valued, question(Question::ReaderCount), |out| command::shared::encode_reader_count(out, key));
    let asked =
        fleet.queue(counted, question(Question::TimeLeft), |out| command::query::encode_pttl(out, key));
    start_query(core, id, Query::inspect(core.ground.now, limit, asked, core.masters.fleet.absences(asked)));
    Ok(OpId(id))
}

pub(super) fn submit_free_slots(
    core: &mut Core,
    pool: Resource<'_>,
    count: u32,
    from: u32,
) -> Result<OpId, SubmitError> {
    if !(1..=limits::SLOT_COUNT_MAX).contains(&count) {
        return Err(InputError::SlotCount { count }.into());
    }
    // The search would lead to an acquisition.
    if core.locks.is_drained {
        return Err(SubmitError::Stopped(DRAINED.into()));
    }
    let (id, limit) = begin_query(core, None)?;
    let (now, fleet) = (core.ground.now, &mut core.masters.fleet);
    let prefix = &core.ground.config.prefix;
    let asked = fleet.queue(fleet.usable, Owed::Query { question: Question::FreeSlots, id }, |out| {
        command::slots::encode_free_slots(out, prefix, pool.as_bytes(), count, from % count);
    });
    let slots = FreeSlots::new(count, from % count, fleet.quorum);
    let absences = core.masters.fleet.absences(asked);
    start_query(core, id, Query::free_slots(now, limit, asked, slots, absences));
    Ok(OpId(id))
}

pub(super) fn submit_force_unlock(core: &mut Core, resource: Resource<'_>) -> Result<OpId, SubmitError> {
    let (id, limit) = begin_query(core, Some(resource))?;
    let (now, fleet) = (core.ground.now, &mut core.masters.fleet);
    let (key, prefix_size) = (&core.locks.ops.get(id).key, core.ground.config.prefix.len());
    let owed = |question| Owed::Query { question, id };
    // These masters run no scripts and keep no queues.
    let native = fleet.usable.intersection(fleet.native_only);
    let asked = fleet.queue(native, owed(Question::ForcedNativeDelete), |out| {
        command::query::encode_forced_delete(out, key);
    });
    let scripted = fleet.queue(fleet.usable.without(native), owed(Question::ForcedDelete), |out| {
        command::park::encode_force_unlock_serve(out, key, prefix_size);
    });
    let asked = asked.union(scripted);
    let query = Query::force_unlock(now, limit, asked, fleet.absences(asked));
    start_query(core, id, query);
    Ok(OpId(id))
}

pub(super) fn submit_pause(
    core: &mut Core,
    attempts: u32,
    took: Duration,
    limit: Duration,
) -> Result<OpId, SubmitError> {
    let (id, _) = begin_query(core, None)?;
    let time = pauses::draw_pause(&mut core.ground, took, attempts).min(limit);
    start_query(core, id, Query::pause(core.ground.now, time));
    Ok(OpId(id))
}

/// Takes a slot for the query of a key. Also returns the answer limit.
fn begin_query(core: &mut Core, resource: Option<Resource<'_>>) -> Result<(Id, Duration), SubmitError> {
    let Core { ground, masters, locks } = core;
    let ttl = ground.config.ttl(ground.config.max_ttl)?;
    let (id, op) = locks.ops.take(|| Op::blank(ground.now, ttl)).ok_or(SubmitError::Overloaded)?;
    op.begin(Asked::of_query(ground.now, ttl));
    op.enter(OpState::Query);
    // The slot's last operation may have left a live claim, which this query must not use.
    op.claim = Id::NOBODY;
    if let Some(resource) = resource {
        op.set_key(&ground.config.prefix, resource);
    }
    Ok((id, masters.fleet.answer_limit(ttl)))
}

fn start_query(core: &mut Core, id: Id, query: Query) {
    core.locks.ops.get_mut(id).query = Some(Box::new(query));
    core.locks.arm(&mut core.ground, id);
    check_query(core, id);
}

pub(super) fn handle_value(locks: &mut Locks, master: MasterId, id: Id, value: Result<Box<[u8]>, Failure>) {
    if let Some(query) = locks.query_at(master, id) {
        query.note_value(master, value);
    } else if let (Some(op), Ok(value)) = (locks.ops.find_mut(id), value)
        && op.is_denied()
        && !value.is_empty()
    {
        op.tries.obstacle.label = split_value(&value).1.map(|label| label.as_str().into());
    }
}

pub(super) fn handle_reader_count(
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    count: Result<usize, Failure>,
) {
    if let Some(query) = locks.query_at(master, id) {
        query.note_reader_count(master, count);
    } else if let (Some(op), Ok(count)) = (locks.ops.find_mut(id), count)
        && op.is_denied()
    {
        // Keeps the largest count, unless a master reports 0 readers. The wait may end before the last answer.
        let readers = &mut op.tries.obstacle.readers;
        *readers = if count == 0 { 0 } else { count.max(*readers) };
    }
}

pub(super) fn handle_time_left(core: &mut Core, master: MasterId, id: Id, left: Result<HolderTtl, Failure>) {
    let left_in_quarantine = core.masters.fleet.left_in_quarantine(core.ground.now, master);
    if let Some(query) = core.locks.query_at(master, id) {
        query.note_time_left(master, left, left_in_quarantine);
        check_query(core, id);
    }
}

/// A master in quarantine may have forgotten a slot that it reports as free (I8).
pub(super) fn handle_free_slots(
    core: &mut Core,
    master: MasterId,
    id: Id,
    report: Result<Vec<SlotMark>, Failure>,
) {
    let left = core.masters.fleet.left_in_quarantine(core.ground.now, master);
    let quarantined = left.map(|left| Failure::Quarantined { left, is_new: false });
    if let Some(query) = core.locks.query_at(master, id) {
        query.note_free_slots(master, quarantined.map_or(report, Err));
        check_query(core, id);
    }
}

pub(super) fn handle_forced_delete(core: &mut Core, master: MasterId, id: Id, answer: ReleaseAnswer) {
    if let Some(query) = core.locks.query_at(master, id) {
        query.note_deletion(master, answer);
        check_query(core, id);
    }
}

/// The query's time is over: masters without an answer have failed.
pub(super) fn miss_query(core: &mut Core, id: Id) {
    let query = core.locks.ops.get_mut(id).query.as_mut().expect("a query was due");
    let (limit, missing) = (query.limit, query.asked);
    for master in missing.iter() {
        query.fail_at(master, Failure::NoAnswer { limit });
        core.masters.fleet.note_missed(&mut core.ground, master, limit);
    }
    check_query(core, id);
}

/// A connection broke: fails the queries that wait for this master.
pub(super) fn lose_queries(core: &mut Core, master: MasterId) {
    for id in core.locks.ops.ids() {
        if let Some(query) = core.locks.query_at(master, id) {
            query.fail_at(master, Failure::ConnectionLost);
            check_query(core, id);
        }
    }
}

/// Ends a query that waits for no further answers.
fn check_query(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    let claim_count = locks.claims.count();
    let is_drained = claim_count == 0 && masters.fleet.is_answered();
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

/// Refuses acquisitions from now on, and begins the query that ends when no claim is left.
pub(super) fn begin_drain(core: &mut Core) -> Result<Id, SubmitError> {
    core.locks.is_drained = true;
    begin_query(core, None).map(|(id, _)| id)
}

pub(super) fn start_drain(core: &mut Core, id: Id, limit: Duration) {
    start_query(core, id, Query::drain(core.ground.now, limit));
}

/// Whether an operation is an acquisition that a drain must end.
pub(super) fn is_acquiring(locks: &Locks, id: Id) -> bool {
    let is_acquired = |op: &Op| matches!(op.state(), OpState::Held(_) | OpState::Releasing | OpState::Query);
    locks.ops.find(id).is_some_and(|op| !is_acquired(op))
}

pub(super) fn report_drained(ground: &mut Ground, id: Id, name: Bytes) {
    let error = AcquireError::Stopped(DRAINED.into());
    if ground.events.is_observed {
        let error = error.clone();
        ground.events.push(|| Event::Denied { resource: name, error });
    }
    ground.report_outcome(id, Outcome::Acquire(Err(error)));
}

/// Ends the validity of a held lock before a drain releases it. False if it is not held.
pub(super) fn end_held(ground: &mut Ground, locks: &mut Locks, id: Id) -> bool {
    let Some(op) = locks.ops.find_mut(id) else { return false };
    let Some(held) = op.held_mut() else { return false };
    let is_valid = ground.now < held.valid_until;
    let notifies_loss = std::mem::take(&mut held.notifies_loss);
    if is_valid {
        op.validity.move_to(ground.now);
    }
    // The guard still reads the old validity, which the slot's next occupant must not change.
    op.validity = Validity::new(ground.now);
    if notifies_loss {
        ground.report_outcome(id, Outcome::Lost(ground.now));
    }
    true
}
