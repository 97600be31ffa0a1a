//! Doubts about a claim's masters: which of their answers to the release prove that the key is gone.

use crate::lock::{MasterId, MasterSet};

/// Masters that may have executed commands without our knowing, or may still do so.
#[derive(Debug)]
pub(crate) struct Doubts {
    /// Masters whose answer to the `SET` showed that the server had already executed it. Each master gets the
    /// `SET` once, so another address leads to the same server. They get releases like the others, but never
    /// vote.
    pub(crate) twins: MasterSet,
    /// Masters whose connection broke before they answered the `SET`. They may still execute it, even after a
    /// release.
    pub(crate) connection_lost: MasterSet,
    /// Masters that got another `SET`. A refused first `SET` does not exclude that the key lives there. If
    /// the first `SET` may still be executed, one deleted key does not show which of the two keys was
    /// deleted. Also masters for which another process answered while the process before may go on with the
    /// key, as if its `SET` came late.
    pub(crate) sent_again: MasterSet,
    /// Masters that no longer had the key in their last answer, and got no other `SET` since.
    pub(crate) gone: MasterSet,
    /// Masters that answered that they did not run the `SET`. They get releases like the others, because a
    /// proxy may send such an answer after a `SET` that ran. Their keys do not count as left behind.
    pub(crate) unrun: MasterSet,
    /// Masters that owe an answer to another `SET`. Whatever they answer before it, that `SET` may still write
    /// the key.
    pub(crate) owes_repair: MasterSet,
    /// Masters that owe an answer to an extension.
    pub(crate) owes_extension: MasterSet,
    /// Masters whose connection broke before they answered an extension. They may still execute it, after any
    /// other command.
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

    /// Records that masters got the `SET` of a held lock again.
    pub(crate) fn note_repair(&mut self, sent: MasterSet) {
        self.sent_again = self.sent_again.union(sent);
        self.gone = self.gone.without(sent);
        self.owes_repair = self.owes_repair.union(sent);
    }

    /// Notes that another process answers for a master, which may have been `asked`. Returns whether every
    /// command sent to the process before is over: that process `has_ended`, and so have all before it.
    pub(crate) fn note_restart(&mut self, master: MasterId, asked: MasterSet, has_ended: bool) -> bool {
        self.gone.remove(master);
        if !has_ended && asked.contains(master) {
            self.sent_again.insert(master);
            self.connection_lost.insert(master);
        }
        // A second `SET` may have gone to an even earlier process.
        let is_certain = has_ended && !self.sent_again.contains(master);
        if is_certain {
            self.connection_lost.remove(master);
            self.lost_extension.remove(master);
        }
        is_certain
    }

    /// Returns the masters where a deletion is no proof: one of two keys was deleted, and the other may still
    /// come. For a rest, a lost extension or a lost earlier rest is enough.
    #[inline(always)]
    pub(crate) fn unproven(&self, is_rest: bool) -> MasterSet {
        let unproven = self.sent_again.intersection(self.connection_lost);
        if is_rest { unproven.union(self.lost_extension) } else { unproven }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next process may have restored its data.
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
