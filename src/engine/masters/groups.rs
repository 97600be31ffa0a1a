//! The ready masters by the commands with which each of them releases and extends.

use crate::lock::command::{ExtendBy, ReleaseBy};
use crate::lock::{MasterId, MasterSet};

#[derive(Debug)]
pub(crate) struct Groups {
    /// Ready masters by the command that releases there.
    pub(crate) release: Vec<(ReleaseBy, MasterSet)>,
    /// The same for extending.
    pub(crate) extend: Vec<(ExtendBy, MasterSet)>,
}

/// How one master releases and extends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commands {
    pub(crate) release: ReleaseBy,
    pub(crate) extend: ExtendBy,
    /// Whether a release may be the script that serves waiters.
    pub(crate) serves: bool,
}

impl Groups {
    pub(crate) const fn new() -> Self {
        Self { release: Vec::new(), extend: Vec::new() }
    }

    /// A master is ready.
    pub(crate) fn join(&mut self, master: MasterId, by: Commands) {
        join(&mut self.release, by.release, master);
        join(&mut self.extend, by.extend, master);
    }

    /// It is no longer.
    pub(crate) fn leave(&mut self, master: MasterId) {
        leave(&mut self.release, master);
        leave(&mut self.extend, master);
    }
}

/// Puts a master into the group of its command.
fn join<B: PartialEq>(groups: &mut Vec<(B, MasterSet)>, by: B, master: MasterId) {
    match groups.iter_mut().find(|(other, _)| *other == by) {
        Some((_, group)) => group.insert(master),
        None => groups.push((by, MasterSet::only(master))),
    }
}

/// Takes a master out of its group, and the group out if nobody is left in it.
fn leave<B>(groups: &mut Vec<(B, MasterSet)>, master: MasterId) {
    groups.retain_mut(|(_, group)| {
        group.remove(master);
        !group.is_empty()
    });
}
