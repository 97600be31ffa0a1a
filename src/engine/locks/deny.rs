//! The end of an acquisition without the lock, and of any operation.

use std::sync::Arc;
use std::time::Duration;

use super::slab::Id;
use crate::engine::core::Core;
use crate::engine::request::Outcome;
use crate::engine::waiting::{accounting, turns};
use crate::error::{AcquireError, Denial, HeldBy, Report, Round, Waited};
use crate::event::Event;
use crate::lock::{Failure, HolderTtl, Vote};

/// Ends an acquisition with the failure of its latest attempt.
pub(crate) fn deny(core: &mut Core, id: Id) {
    let Core { ground, locks, .. } = core;
    let denied = locks.ops.get_mut(id).tries.denied.take().expect("an attempt failed");
    let op = locks.ops.get(id);
    let error = op.denial(ground.now, *denied, &op.tries.obstacle, locks.held_by(ground.now, id));
    end_denied(core, id, error);
}

/// Ends the wait of a queued acquisition. The error says what the engine's callers before it, or the masters,
/// know about the lock.
pub(crate) fn deny_queued(core: &mut Core, id: Id) {
    let now = core.ground.now;
    let op = core.locks.ops.get(id);
    let head = core.locks.head_for(id);
    let (mut holder, mut held_by, mut asking) = (HolderTtl::Unknown, HeldBy::default(), head);
    let mut holder_label = None;
    if let Some(held_until) = head.and_then(|place| core.locks.held_until(place)) {
        asking = head.and_then(|place| core.locks.queues.behind(place)).filter(|_| held_until <= now);
        if let Some(holding) = head.map(|place| core.locks.ops.at(place))
            && let Some(held) = holding.held()
        {
            // The keys outlive the validity by the drift allowance.
            let end = held_until + core.ground.config.drift.of(held.ttl.as_duration());
            holder = if now < end { HolderTtl::Left(end - now) } else { HolderTtl::Gone };
            held_by = HeldBy::ThisClient;
            holder_label = holding.shown_label().map(Arc::from);
            core.locks.accounts.of(id).see(held.since, holding.shown_label());
        }
    }
    let asking = asking.filter(|place| *place != id.index);
    if let Some(place) = asking {
        core.locks.accounts.share_holder(core.locks.ops.id_at(place), id);
    }
    let asking = asking.map(|place| core.locks.ops.at(place));
    let error = match asking.and_then(|asking| Some((asking, asking.tries.denied.as_deref()?))) {
        // Masters would give this caller the same answer: contention, or an outage.
        Some((asking, denied)) => op.denial(now, denied.clone(), &asking.tries.obstacle, asking.readers()),
        None => {
            let labels = core.ground.config.labels.iter().cloned();
            let votes = labels.map(|label| (label, Vote::Failed(Failure::Queued))).collect();
            let resource = core.locks.name_of(&core.ground.config, id);
            let report = Report { round: Round::Acquire, resource, votes };
            let (attempts, took) = (op.tries.count, now - op.asked.submitted);
            let waited = Waited::default();
            let denial =
                Denial { attempts, took, holder, held_by, holder_label, waited, report, slots: Vec::new() };
            AcquireError::Contended(Box::new(denial))
        }
    };
    end_denied(core, id, error);
}

/// Ends an acquisition because there is no room.
pub(crate) fn refuse(core: &mut Core, id: Id) {
    end_denied(core, id, AcquireError::Overloaded);
}

/// Ends an acquisition that did not get the lock.
fn end_denied(core: &mut Core, id: Id, mut error: AcquireError) {
    accounting::note_denied(core.ground.now, &mut core.locks, id, &mut error);
    let op = core.locks.ops.get(id);
    if op.has_waited() {
        core.ground.stats.wait_time.record(core.ground.now.saturating_duration_since(op.asked.submitted));
    }
    core.ground.stats.count_denial(&error);
    if core.ground.events.is_observed {
        let (resource, error) = (core.locks.name_of(&core.ground.config, id), error.clone());
        core.ground.events.push(|| Event::Denied { resource, error });
    }
    end_op(core, id);
    core.ground.report_outcome(id, Outcome::Acquire(Err(error)));
}

/// Frees a finished operation.
pub(crate) fn end_op(core: &mut Core, id: Id) {
    turns::leave_queue(&mut core.ground, &core.masters.fleet, &mut core.locks, id, Duration::ZERO);
    let op = core.locks.ops.get_mut(id);
    op.query = None;
    core.locks.ops.free(id);
}
