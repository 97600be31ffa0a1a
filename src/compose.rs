//! Kinds of locks that consist of other locks, and [`Fleets`]: made of public calls alone, with the present and
//! the builder methods.
//!
//! A file of decisions has no connections and no clock: which locks to acquire, wait for and release. Another file
//! carries them out.

mod election;
mod fleets;
pub mod holds;
mod set;
pub mod set_acquisition;
pub mod slot_acquisition;
mod slots;

use std::borrow::Cow;

use crate::{Cancel, LockRequest};

pub use election::{Candidate, Leadership};
pub use fleets::{Fleets, FleetsError};
pub use set::{AcquireSet, GuardSet, LockSetRequest};
pub use slots::{AcquireSlot, SlotGuard, SlotsRequest};

/// Adds the label and the handle of the whole to the request for one of its locks.
fn with_label(
    request: LockRequest<'static>,
    label: Option<&Cow<'static, str>>,
    cancel: Option<&Cancel>,
) -> LockRequest<'static> {
    let request = match label {
        Some(label) => request.holder_label(label.clone()),
        None => request,
    };
    match cancel {
        Some(cancel) => request.cancel_with(cancel),
        None => request,
    }
}
