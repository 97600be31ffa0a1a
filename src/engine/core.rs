//! The state of an engine, and the steps that follow a decision.
//!
//! A *flow* is a file of functions over this state. A function decides, changes what it decided about, and
//! returns the next step, which the engine's loop performs. Only a first attempt and a hand-over begin
//! directly.

use super::ground::Ground;
use super::locks::Locks;
use super::locks::next::Input;
use super::locks::slab::Id;
use super::masters::Masters;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) ground: Ground,
    pub(super) masters: Masters,
    pub(super) locks: Locks,
}

/// The next step of an operation, performed by `Engine::perform`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing until the next answer, deadline or call.
    Done,
    /// Decide its attempt, if the votes suffice.
    Decide(Id),
    /// Do what the table of acquisitions says (`locks/next.rs`).
    Follow(Id, Input),
    /// End it because there is no room.
    Refuse(Id),
    /// Its caller ends it, and may await the release.
    Release { id: Id, awaited: bool },
    /// Its caller ends it while other callers of this engine wait for the lock.
    PassOn { id: Id, awaited: bool },
}
