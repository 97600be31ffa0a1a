//! The end of an engine's locks: no more acquisitions, and a wait until nothing is left on any master.
//!
//! The wait looks every now and then, so that no release of the ordinary path pays for it.

use std::time::{Duration, Instant};

use super::op::OpState;
use super::query::Query;
use super::slab::Id;
use super::validity::Validity;
use super::{Engine, HeldLocks, OpId, Outcome, SubmitError};
use crate::error::AcquireError;
use crate::event::Event;
use crate::mutants::mutant;

/// Why a drained engine acquires nothing.
pub(super) const DRAINED: &str = "it was drained, and acquires no more locks; open a new client";

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
        if let Ok((id, _)) = query {
            self.ops.get_mut(id).clear_state();
        }
        // Those who wait end first: none of them is to get a lock that is released next.
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
        let is_acquired = match op.state {
            OpState::Acquiring { .. }
            | OpState::Asking { .. }
            | OpState::Queued { .. }
            | OpState::Waiting { .. } => false,
            OpState::Held { .. } | OpState::Releasing | OpState::Query(_) => true,
        };
        if !is_acquired && !mutant!(DrainForgetsWaiters) {
            let name = self.name_of(id);
            self.submit_release(now, id, false);
            let error = AcquireError::Stopped(DRAINED.into());
            if self.events.is_observed() {
                let (resource, error) = (name, error.clone());
                self.events.push(|| Event::Denied { resource, error });
            }
            self.outcomes.push_back((OpId(id), Outcome::Acquire(Err(error))));
        }
    }

    fn end_held(&mut self, now: Instant, id: Id) {
        let Some(op) = self.ops.find_mut(id) else { return };
        let OpState::Held { valid_until, .. } = &op.state else { return };
        if now < *valid_until && !mutant!(DrainedStaysValid) {
            op.validity.move_to(now);
        }
        if !mutant!(DrainedValidityReused) {
            // The guard still reads the old one, and the slot's next occupant must not move that.
            op.validity = Validity::new(now);
        }
        if std::mem::take(&mut op.notifies_loss) {
            self.outcomes.push_back((OpId(id), Outcome::Lost(now)));
        }
        self.submit_release(now, id, false);
    }
}
