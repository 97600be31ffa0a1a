//! Doubts about the masters of a claim: which answers to its release prove that the key is gone there.

use crate::lock::{MasterId, MasterSet};

/// Masters of which it is not sure what they have carried out, or will.
#[derive(Debug)]
pub(crate) struct Doubts {
    /// Their answer to the `SET` showed that it had been carried out there before. It is sent to each master
    /// once, so another address leads to the same server. They are released as all others, and never vote.
    pub(crate) twins: MasterSet,
    /// Their connection broke before they answered the `SET`: it may still be carried out there, after any
    /// release.
    pub(crate) connection_lost: MasterSet,
    /// They were sent another `SET`: where the first was refused the key may live all the same, and where it
    /// may still be carried out, one key that was deleted does not show which of the two it was. Or another
    /// process answered for them, while the one before may go on with the key: as if that came late.
    pub(crate) sent_again: MasterSet,
    /// They no longer had the key when they were last asked, and were sent no other `SET` since.
    pub(crate) gone: MasterSet,
    /// They refused to run the `SET`, by their answer. They are released as all others, since a proxy may send such
    /// an answer after a `SET` that ran, but their keys do not count as left behind.
    pub(crate) unrun: MasterSet,
    /// They owe an answer to another `SET`: whatever they say before it, the key may be there behind it.
    pub(crate) owes_repair: MasterSet,
    /// They owe an answer to an extension.
    pub(crate) owes_extension: MasterSet,
    /// Their connection broke while they did: it may still be carried out there, after any other.
    pub(crate) lost_extension: MasterSet,
}

impl Doubts {
    pub(crate) const NONE: Self = Self {
        twins: MasterSet::EMPTY,
        connection_lost: MasterSet::EMPTY,
        sent_again: MasterSet::EMPTY,
        gone: MasterSet::EMPTY,
        unrun: MasterSet::EMPTY,
        owes_repair: MasterSet::EMPTY,
        owes_extension: MasterSet::EMPTY,
        lost_extension: MasterSet::EMPTY,
    };

    /// Records that masters were sent the `SET` of a lock that is held.
    pub(crate) fn note_repair(&mut self, sent: MasterSet) {
        self.sent_again = self.sent_again.union(sent);
        self.gone = self.gone.without(sent);
        self.owes_repair = self.owes_repair.union(sent);
    }

    /// Another process answers for a master, which may have been `asked`. Returns whether nothing that was
    /// sent to the one before will be carried out any more: that has ended, and so have all before it.
    pub(crate) fn note_restart(&mut self, master: MasterId, asked: MasterSet, has_ended: bool) -> bool {
        self.gone.remove(master);
        if !has_ended && asked.contains(master) {
            self.sent_again.insert(master);
            self.connection_lost.insert(master);
        }
        // A second `SET` may have gone to a process before that one.
        let is_certain = has_ended && !self.sent_again.contains(master);
        if is_certain {
            self.connection_lost.remove(master);
            self.lost_extension.remove(master);
        }
        is_certain
    }

    /// Masters where a deletion is no proof: one key of two was deleted, and the other may still come. For a
    /// rest, an extension or another rest that may still come is enough.
    #[inline(always)]
    pub(crate) fn unproven(&self, is_rest: bool) -> MasterSet {
        let unproven = self.sent_again.intersection(self.connection_lost);
        if is_rest { unproven.union(self.lost_extension) } else { unproven }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next process may have its data back.
    #[test]
    fn an_absence_says_nothing_of_the_next_process() {
        let master = MasterId::new(0).expect("small");
        for has_ended in [false, true] {
            let gone = MasterSet::first(2);
            let mut doubts = Doubts { gone, ..Doubts::NONE };
            doubts.note_restart(master, MasterSet::first(3), has_ended);
            assert_eq!(doubts.gone, gone.without(MasterSet::only(master)));
        }
    }
}
