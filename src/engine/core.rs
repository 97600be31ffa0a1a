//! The state of an engine, and what follows a decision about it.
//!
//! A *flow* is a file of functions over this state. A function decides, changes what it decided about, and
//! returns the step that follows, which the loop of the engine carries out. The first attempt of an
//! acquisition is begun directly.

use super::ground::Ground;
use super::locks::Locks;
use super::locks::op::Cause;
use super::locks::slab::Id;
use super::masters::Masters;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) ground: Ground,
    pub(super) masters: Masters,
    pub(super) locks: Locks,
}

/// A step that follows for an operation. `Engine::perform` carries it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before the next answer, deadline or call.
    Done,
    /// Its next attempt begins.
    Begin(Id),
    /// Its next round in the masters' queues begins.
    Park(Id),
    /// Votes may decide its attempt.
    Decide(Id),
    /// Its attempt failed.
    Fail(Id, Cause),
    /// It ends as its latest attempt failed.
    Deny(Id),
    /// It ends behind others in its wait queue.
    DenyQueued(Id),
    /// It ends for want of room.
    Refuse(Id),
    /// It ends by its caller, which awaits the release or not.
    Release { id: Id, awaited: bool },
    /// It ends by its caller, and others of this engine wait for its lock.
    PassOn { id: Id, awaited: bool },
}
