//! The records of a fleet: what each master has recorded, held against this client, and the first record.

use std::time::Instant;

use super::Fleet;
use crate::config::Quarantine;
use crate::engine::ground::Ground;
use crate::engine::masters::link::{Comparison, Link};
use crate::engine::masters::owed::{Access, Owed};
use crate::engine::masters::record::{Found, Origin, Record, Seen};
use crate::engine::masters::trouble::Trouble;
use crate::error::fleet::Unusable;
use crate::event::Event;
use crate::limits;
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;
use crate::resp;

impl Fleet {
    fn seen(&self) -> Vec<Seen<'_>> {
        let masters = self.links.iter().zip(&self.config.labels);
        masters.map(|(link, name)| link.seen(name)).collect()
    }

    /// Compares each record with this client, and reports each new difference.
    pub(in crate::engine) fn compare_records(&mut self, ground: &mut Ground) {
        if mutant!(RecordUncompared) {
            return;
        }
        let seen = self.seen();
        let differences: Vec<_> =
            seen.iter().map(|it| it.found.record()?.difference(&self.config, &seen)).collect();
        for (link, difference) in self.links.iter_mut().zip(differences) {
            if link.comparison.difference == difference {
                continue;
            }
            if let Some(difference) = &difference {
                link.stats.fleet_differences += 1;
                let name = &ground.config.labels[link.master.index()];
                let event = || Event::FleetDiffers { master: name.clone(), difference: difference.clone() };
                ground.events.push(event);
            }
            link.comparison.difference = difference;
        }
    }

    /// Why strict mode does not count a master: an operator declared other settings there.
    pub(in crate::engine) fn refuse_declared(&self, master: MasterId) -> Option<String> {
        let link = self.link(master);
        let is_declared = link.learnt.record.record().is_some_and(|it| it.origin() == Origin::Declared);
        let is_refused =
            self.config.quarantine == Quarantine::Strict && is_declared && !mutant!(DeclaredIgnored);
        let difference = link.comparison.difference.as_ref().filter(|_| is_refused)?;
        Some(Trouble::StrictDeclared { difference }.to_string())
    }

    /// Ready masters that strict mode no longer counts: what another master said showed a difference.
    pub(in crate::engine) fn declared_otherwise(&self) -> MasterSet {
        self.ready.iter().filter(|master| self.refuse_declared(*master).is_some()).collect()
    }

    /// Sets when the record of each ready master is to be looked after. A first one is written when all
    /// masters count, so that `redlatch fleet init` finds none on new ones.
    pub(in crate::engine) fn plan_records(&mut self, ground: &mut Ground) {
        let (now, may_write) = (ground.now, self.may_write_records());
        let counts_at = self.links.iter().filter_map(|link| link.quarantined_until).max();
        for master in self.ready.iter() {
            let link = self.link_mut(master);
            let Comparison { difference, due_at, written_at } = &mut link.comparison;
            let again = written_at.map(|at| at + limits::RECORD_PAUSE);
            *due_at = match &link.learnt.record {
                Found::Absent if may_write => counts_at.max(again).or(Some(now)),
                Found::Known(_) if difference.is_none() => None,
                Found::Known(_) | Found::Unusable(_) => due_at.or(Some(now + limits::RECORD_PAUSE)),
                Found::Absent | Found::Unread => None,
            };
            self.arm(ground, master);
        }
    }

    /// Whether this client knows each master, and nothing contradicts what it would write.
    fn may_write_records(&self) -> bool {
        let is_in_doubt = |link: &Link| {
            link.comparison.difference.is_some() || link.learnt.record == Found::Unusable(Unusable::Newer)
        };
        self.config.records_fleet
            && !self.links.iter().any(is_in_doubt)
            && Record::of_fleet(&self.config, &self.seen(), Origin::Observed).is_some()
    }

    /// Writes the record of a master that has none, and reads it.
    pub(in crate::engine) fn tend_record(&mut self, now: Instant, master: MasterId) {
        let records = Record::of_fleet(&self.config, &self.seen(), Origin::Observed);
        let key = Found::key(&self.config.prefix);
        let to = MasterSet::only(master);
        let link = self.link(master);
        let is_absent = link.learnt.record == Found::Absent;
        if let Some(record) = records.filter(|_| is_absent && self.may_write_records()) {
            self.link_mut(master).comparison.written_at = Some(now);
            let record = record[master.index()].to_string();
            self.queue(to, Owed::Record(Access::Write), |out| {
                let words: [&[u8]; 4] = [b"SET", &key, record.as_bytes(), b"NX"];
                let is_overwriting = mutant!(RecordOverwritten);
                resp::encode_command(out, if is_overwriting { &words[..3] } else { &words });
            });
        }
        self.queue(to, Owed::Record(Access::Read), |out| resp::encode_command(out, &[b"GET", &key]));
    }

    /// A record was read again.
    pub(in crate::engine) fn handle_record(&mut self, ground: &mut Ground, master: MasterId, found: Found) {
        self.link_mut(master).learnt.record = found;
        self.compare_records(ground);
        self.plan_records(ground);
    }
}
