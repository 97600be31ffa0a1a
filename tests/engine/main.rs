//! Rules of the engine, each on model masters with a virtual clock.

mod acquire;
mod bad_input;
mod crowded;
mod drain;
mod ends;
mod events;
mod fair;
mod fenced;
mod handles;
mod hold;
mod joining;
mod keep;
mod leave;
mod login;
mod loss;
mod masters;
mod pairs;
mod parked;
mod parked_rounds;
mod query;
mod record;
mod regressions;
mod repairs;
mod resync;
mod rig;
mod scriptless;
mod second_faults;
mod stats;
mod strict;
#[cfg(target_os = "linux")]
mod trace;
mod wait_queue;
mod waited;

use std::time::Duration;

use redlatch::engine::{Grant, Outcome};
use redlatch::error::Denial;
use redlatch::{AcquireError, ConfigBuilder};
use redlatch_testing::model;
use rig::Rig;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn defaults(builder: ConfigBuilder) -> ConfigBuilder {
    builder
}

#[track_caller]
pub(crate) fn granted(rig: &mut Rig) -> Grant {
    match rig.outcome() {
        Some(Outcome::Acquire(Ok(grant))) => grant,
        other => panic!("no grant but {other:?}"),
    }
}

#[track_caller]
pub(crate) fn denied(rig: &mut Rig) -> AcquireError {
    match rig.outcome() {
        Some(Outcome::Acquire(Err(error))) => error,
        other => panic!("no denial but {other:?}"),
    }
}

#[track_caller]
pub(crate) fn no_quorum(rig: &mut Rig) -> Box<Denial> {
    match denied(rig) {
        AcquireError::NoQuorum(denial) => denial,
        other => panic!("{other}"),
    }
}
