//! The nouns of the algorithm: [`Resource`], [`Token`], [`Ttl`], [`Drift`], [`MasterSet`], [`Vote`].
//!
//! Each is a small value with a checking constructor, so the engine never meets an invalid value. Nothing
//! here knows about connections or the clock. Keeps invariants I4 (a quorum of the configured masters), I5
//! (votes are sets, not counts) and I10 (release and extend compare; only a forced unlock does not).

pub(crate) mod command;
mod fencing;
mod input_error;
mod kind;
mod label;
mod master_set;
mod name;
mod resource;
mod tally;
mod token;
mod ttl;
mod vote;

pub(crate) use command::scripts::{NamedScript, PROBE_NAME};
pub use fencing::FencingToken;
pub(crate) use fencing::Window;
pub use input_error::InputError;
pub(crate) use kind::{AttemptAnswer, Kind, ScriptAnswer, check};
pub use label::HolderLabel;
pub(crate) use label::split_value;
pub use master_set::{MasterId, MasterSet};
pub use name::LockName;
pub use resource::Resource;
pub(crate) use resource::{FLEET_NAME, MARK_NAME};
pub use tally::quorum;
pub(crate) use tally::{Tally, Verdict};
pub use token::Token;
pub(crate) use ttl::Drift;
pub use ttl::Ttl;
pub(crate) use ttl::{whole_ms, whole_us};
pub(crate) use vote::names_missing_right;
pub use vote::{Failure, HolderTtl, TokenRefusal, Vote};
