//! Ready masters grouped by the commands with which they release and extend.

use crate::lock::command::{ExtendBy, ReleaseBy};
use crate::lock::{MasterId, MasterSet};

#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) release: Vec<(ReleaseBy, MasterSet)>,
    pub(crate) extend: Vec<(ExtendBy, MasterSet)>,
}

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

    pub(crate) fn join(&mut self, master: MasterId, by: Commands) {
        join(&mut self.release, by.release, master);
        join(&mut self.extend, by.extend, master);
    }

    pub(crate) fn leave(&mut self, master: MasterId) {
        leave(&mut self.release, master);
        leave(&mut self.extend, master);
    }
}

fn join<B: PartialEq>(groups: &mut Vec<(B, MasterSet)>, by: B, master: MasterId) {
    match groups.iter_mut().find(|(other, _)| *other == by) {
        Some((_, group)) => group.insert(master),
        None => groups.push((by, MasterSet::only(master))),
    }
}

fn leave<B>(groups: &mut Vec<(B, MasterSet)>, master: MasterId) {
    groups.retain_mut(|(_, group)| {
        group.remove(master);
        !group.is_empty()
    });
}
