//! No spans: built without the feature `tracing`. `trace.rs` documents each item.

use std::time::Instant;

use crate::engine::Grant;
use crate::error::AcquireError;
use crate::error::waited::WaitedFor;
use crate::options::Mode;

#[derive(Debug)]
pub(super) struct AcquireSpan;

#[derive(Debug)]
pub(super) struct HoldSpan;

impl AcquireSpan {
    pub(super) const NEW: Self = Self;

    pub(super) const fn open(&mut self, _: &[u8], _: Mode) {}

    pub(super) const fn is_open(&self) -> bool {
        false
    }

    #[inline]
    pub(super) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        call()
    }

    pub(super) fn granted(&mut self, _: &[u8], _: Mode, _: &mut HoldSpan, _: Option<WaitedFor>) {}
    pub(super) const fn failed(&mut self, _: &AcquireError) {}
}

impl HoldSpan {
    pub(super) const fn new(_: &Grant) -> Self {
        Self
    }

    pub(super) const fn ends_at(&self) -> Option<Instant> {
        None
    }

    pub(super) const fn end(&mut self, _: &'static str, _: Instant, _: Instant) {}
}
