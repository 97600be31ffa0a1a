//! Facts of the handshake that may change while a connection stands: a server may become a replica, or be
//! promoted after a resync, and a policy may be set that evicts locks. They are asked for again once in a
//! while.

use std::time::Instant;

use super::Fleet;
use crate::engine::masters::owed::{Owed, Section};
use crate::limits;
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;
use crate::resp;

impl Fleet {
    pub(super) fn ask_facts(&mut self, now: Instant, master: MasterId) {
        self.link_mut(master).facts_due_at = Some(now + limits::FACTS_PAUSE);
        if mutant!(FactsKept) {
            return;
        }
        let sections = [(Section::Replication, b"replication".as_slice()), (Section::Memory, b"memory")];
        for (section, name) in sections {
            self.queue(MasterSet::only(master), Owed::Fact(section), |out| {
                resp::encode_command(out, &[b"INFO", name]);
            });
        }
    }

    /// An acquisition is about to be sent: asks in the same write what is due, as after a pause of this
    /// process. The answers come before any vote.
    #[cold]
    pub(in crate::engine) fn ask_due_facts(&mut self, now: Instant) {
        let is_due = |master: &MasterId| self.link(*master).facts_due_at.is_some_and(|at| at <= now);
        let due: MasterSet = self.usable.iter().filter(is_due).collect();
        due.iter().for_each(|master| self.ask_facts(now, master));
    }
}
