//! The ready masters by the commands with which each of them releases and extends.

use crate::lock::command::{ExtendBy, ReleaseBy};
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

#[derive(Debug)]
pub(super) struct Groups {
    /// Ready masters by the command that releases there.
    pub(super) release: Vec<(ReleaseBy, MasterSet)>,
    /// The same for extending.
    pub(super) extend: Vec<(ExtendBy, MasterSet)>,
    /// Those that run the script which releases and reports how many wait.
    pub(super) notifiers: MasterSet,
    /// The master with which the next search for publishers begins.
    first_publisher: usize,
}

/// How one master releases and extends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Commands {
    pub(super) release: ReleaseBy,
    pub(super) extend: ExtendBy,
    /// Whether it runs the script that releases and notifies waiters.
    pub(super) has_telling: bool,
}

/// Which waiters a release notifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notify {
    Nobody,
    Waiters,
    /// Together with how many wait, so that not all of them come. It takes a script, which costs the master
    /// more.
    Crowd,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Self { release: Vec::new(), extend: Vec::new(), notifiers: MasterSet::EMPTY, first_publisher: 0 }
    }

    /// A master is ready.
    pub(super) fn join(&mut self, master: MasterId, by: Commands) {
        join(&mut self.release, by.release, master);
        join(&mut self.extend, by.extend, master);
        if by.has_telling || by.release.is_script() {
            self.notifiers.insert(master);
        }
    }

    /// The masters that publish a release which goes `to` these: a quorum of those that are `able`, each time
    /// others, so that all bear the cost. If fewer are able, all of them publish.
    ///
    /// A quorum is enough: it has a master in common with any other one, and so with the quorum that has
    /// confirmed a waiter's subscription. Nor can the loss of a minority silence all of it.
    pub(super) fn publishers(&mut self, to: MasterSet, able: MasterSet, quorum: usize) -> MasterSet {
        let able = to.intersection(able);
        if able.count() <= quorum {
            return to;
        }
        let count = if mutant!(OnePublisher) { 1 } else { quorum };
        let first = self.first_publisher;
        self.first_publisher = (first + 1) % able.count();
        able.iter().skip(first).chain(able.iter()).take(count).collect()
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
