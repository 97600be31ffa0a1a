//! Facts from the handshake that may change on an open connection, and are asked for again from time to time:
//! a server may become a replica, be promoted after a resync, or get a policy that evicts locks.

use std::time::Instant;

use super::Fleet;
use crate::engine::ground::Ground;
use crate::engine::masters::owed::{Fact, Owed, Section};
use crate::limits;
use crate::lock::command;
use crate::lock::{MasterId, MasterSet};
use crate::resp;

impl Fleet {
    pub(super) fn ask_facts(&mut self, now: Instant, master: MasterId) {
        self.link_mut(master).facts_due_at = Some(now + limits::FACTS_PAUSE);
        let sections = [(Section::Replication, b"replication".as_slice()), (Section::Memory, b"memory")];
        for (section, name) in sections {
            let sent = self.queue(MasterSet::only(master), Owed::Fact(section), |out| {
                resp::encode_command(out, &[b"INFO", name]);
            });
            if sent.is_empty() {
                self.ask_facts_soon(now, master);
            }
        }
    }

    /// Asks again soon: the master had no room for the question, or was busy.
    fn ask_facts_soon(&mut self, now: Instant, master: MasterId) {
        let at = now + limits::PAUSE_UNANSWERED;
        self.link_mut(master).facts_due_at = Some(at);
        self.facts_due_at = self.facts_due_at.min(at);
    }

    /// Takes the answer to a repeated question. Returns the reason if the connection must end.
    pub(in crate::engine) fn take_fact(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        fact: Fact,
    ) -> Option<String> {
        if matches!(&fact, Fact::Refused(text) if command::answer::is_passing(text.as_bytes())) {
            self.ask_facts_soon(ground.now, master);
            self.arm(ground, master);
            return None;
        }
        self.link_mut(master).take_fact(&ground.config, fact)
    }

    /// Called just before an attempt is sent: asks due questions in the same write, for example after a pause
    /// of this process. Their answers then precede the attempt's votes.
    pub(in crate::engine) fn ask_due_facts(&mut self, now: Instant) {
        if now >= self.facts_due_at {
            self.ask_all_due_facts(now);
        }
    }

    #[cold]
    fn ask_all_due_facts(&mut self, now: Instant) {
        for master in self.ready.iter() {
            if self.link(master).facts_due_at.is_some_and(|at| at <= now) {
                self.ask_facts(now, master);
            }
        }
        let due = self.ready.iter().filter_map(|master| self.link(master).facts_due_at);
        self.facts_due_at = due.min().unwrap_or(now + limits::FACTS_PAUSE);
    }
}
