//! Kinds of locks that consist of other locks. Each file decides which of them to acquire, wait for and release; the
//! client's files of the same kind carry the decisions out.

pub mod holds;
pub mod set_acquisition;
pub mod slot_acquisition;

use std::borrow::Cow;

use crate::{Cancel, LockRequest};

/// Adds the label and the handle of the whole to the request for one of its locks.
pub(crate) fn with_label(
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
