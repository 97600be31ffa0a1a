//! The ready masters by the commands with which each of them releases and extends.

use crate::lock::command::{ExtendBy, ReleaseBy};
use crate::lock::{MasterId, MasterSet, Token};

#[derive(Debug)]
pub(super) struct Groups {
    /// Ready masters by the command that releases there.
    pub(super) release: Vec<(ReleaseBy, MasterSet)>,
    /// The same for extending.
    pub(super) extend: Vec<(ExtendBy, MasterSet)>,
    /// Those that run the script which releases and notifies groups.
    pub(super) notifiers: MasterSet,
}

/// How one master releases and extends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Commands {
    pub(super) release: ReleaseBy,
    pub(super) extend: ExtendBy,
    /// Whether it runs the script that releases and notifies groups.
    pub(super) has_notifications: bool,
}

/// Which waiters a release notifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notify {
    Nobody,
    Waiters,
    /// One group of them, by one master: a message to all waiters costs more than the release. It takes a
    /// script, which costs the master more.
    Group {
        publisher: MasterId,
    },
}

impl Groups {
    pub(super) const fn new() -> Self {
        Self { release: Vec::new(), extend: Vec::new(), notifiers: MasterSet::EMPTY }
    }

    /// A master is ready.
    pub(super) fn join(&mut self, master: MasterId, by: Commands) {
        join(&mut self.release, by.release, master);
        join(&mut self.extend, by.extend, master);
        if by.has_notifications || by.release.is_script() {
            self.notifiers.insert(master);
        }
    }

    /// The master that publishes a release alone: one of those that are `able`, at random by the lock's
    /// token. So all bear the cost, and none of them can silence a lock for long.
    pub(super) fn publisher(&self, able: MasterSet, token: &Token) -> MasterSet {
        let able = able.intersection(self.notifiers);
        let [.., draw, _] = token.as_bytes();
        let place = usize::from(*draw) % able.count().max(1);
        able.iter().nth(place).map_or(MasterSet::EMPTY, MasterSet::only)
    }

    /// It is no longer.
    pub(super) fn leave(&mut self, master: MasterId) {
        leave(&mut self.release, master);
        leave(&mut self.extend, master);
        self.notifiers.remove(master);
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
