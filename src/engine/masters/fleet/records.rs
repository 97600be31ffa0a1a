//! The fleet's records: compares each master's record with this client, and writes missing records.
//!
//! A record is read in the handshake and once a minute. Where it is missing, a copy of the other masters'
//! record is written, so a client that reaches a master at another address changes no label.

use std::time::{Duration, Instant};

use super::Fleet;
use crate::config::Quarantine;
use crate::engine::ground::Ground;
use crate::engine::masters::link::Link;
use crate::engine::masters::owed::{Access, Owed};
use crate::engine::masters::record::{Found, Origin, Record, Seen};
use crate::engine::masters::trouble::Trouble;
use crate::error::fleet::Unusable;
use crate::event::Event;
use crate::limits;
use crate::lock::{MasterId, MasterSet};
use crate::resp;

impl Fleet {
    fn seen(&self) -> Vec<Seen<'_>> {
        let masters = self.links.iter().zip(&self.config.labels);
        masters.map(|(link, name)| link.seen(name)).collect()
    }

    /// A master's record was read: compares all records with this client, and decides again when the master
    /// counts. If the longest quarantine changed, decides that for every master.
    pub(super) fn follow_records(&mut self, ground: &mut Ground, master: MasterId) {
        self.compare_records(ground);
        let (now, longest) = (ground.now, self.longest_quarantine());
        let is_changed = self.quarantine_time != longest;
        self.quarantine_time = longest;
        let others = if is_changed { self.ready.without(MasterSet::only(master)) } else { MasterSet::EMPTY };
        for it in others.union(MasterSet::only(master)).iter() {
            let link = &mut self.links[it.index()];
            link.set_quarantine(now, &self.config, longest);
        }
        self.note_quarantines(others);
        if is_changed {
            // The other records may have been declared again together with this one.
            self.read_other_records(ground, master);
        }
    }

    /// Reads the other masters' records now, because they decide about a restarted master.
    pub(super) fn read_other_records(&mut self, ground: &mut Ground, master: MasterId) {
        for it in self.ready.without(MasterSet::only(master)).iter() {
            self.link_mut(it).comparison.due_at = Some(ground.now);
            self.arm(ground, it);
        }
    }

    /// Quarantine from the largest of this client's settings and the declared settings.
    fn longest_quarantine(&self) -> Duration {
        let records = self.links.iter().filter_map(|link| link.learnt.record.record());
        let declared = records.filter(|it| it.origin() == Origin::Declared);
        let times = declared.map(|it| it.quarantine_time(&self.config));
        times.fold(self.config.quarantine_time(), Duration::max)
    }

    /// Compares each record with this client, and reports new differences.
    fn compare_records(&mut self, ground: &mut Ground) {
        let seen = self.seen();
        let is_whole = seen.iter().all(|it| it.member().is_some());
        let differences: Vec<_> =
            seen.iter().map(|it| it.found.record()?.difference(&self.config, &seen)).collect();
        for (link, difference) in self.links.iter_mut().zip(differences) {
            let is_known = link.learnt.record.record().is_some();
            link.comparison.has_agreed |= is_whole && is_known && difference.is_none();
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

    /// Why strict mode refuses a master: its declared settings differ. A master whose
    /// record agreed earlier on this connection stays: an operator may be changing the fleet right now.
    pub(in crate::engine) fn refuse_declared(&self, master: MasterId) -> Option<String> {
        let link = self.link(master);
        let is_declared = link.learnt.record.record().is_some_and(|it| it.origin() == Origin::Declared);
        let is_refused =
            self.config.quarantine == Quarantine::Strict && is_declared && !link.comparison.has_agreed;
        let difference = link.comparison.difference.as_ref().filter(|_| is_refused)?;
        Some(Trouble::StrictDeclared { difference }.to_string())
    }

    /// Ready masters that strict mode now refuses, because another master's record revealed a difference.
    pub(in crate::engine) fn declared_otherwise(&self) -> MasterSet {
        self.ready.iter().filter(|master| self.refuse_declared(*master).is_some()).collect()
    }

    /// A master is in use: schedules the next read of its record, and writes missing records if possible.
    pub(super) fn tend_records(&mut self, ground: &mut Ground, master: MasterId) {
        self.link_mut(master).comparison.due_at = Some(ground.now + limits::RECORD_PAUSE);
        self.write_records(ground);
    }

    fn write_records(&mut self, ground: &mut Ground) {
        for master in self.ready.iter() {
            let is_asked = self.link(master).comparison.due_at.is_none();
            if !is_asked && self.first_record(ground.now, master).is_some() {
                self.tend_record(ground.now, master);
            }
            self.arm(ground, master);
        }
    }

    /// Writes a master's missing record if allowed, then reads it.
    pub(super) fn tend_record(&mut self, now: Instant, master: MasterId) {
        let key = Found::key(&self.config.prefix);
        let to = MasterSet::only(master);
        if let Some(record) = self.first_record(now, master) {
            let record = record.to_string();
            self.queue(to, Owed::Record(Access::Write), |out| {
                resp::encode_command(out, &[b"SET", &key, record.as_bytes(), b"NX"]);
            });
        }
        let sent =
            self.queue(to, Owed::Record(Access::Read), |out| resp::encode_command(out, &[b"GET", &key]));
        self.link_mut(master).comparison.due_at = sent.is_empty().then_some(now + limits::RECORD_PAUSE);
    }

    /// The record to write on a master without one: a copy of the others', or the first. `None` while a
    /// master is unknown or in quarantine, so that `redlatch fleet init` finds new masters without records,
    /// and while a record contradicts this client.
    fn first_record(&self, now: Instant, master: MasterId) -> Option<Record> {
        let is_in_doubt = |link: &Link| {
            link.comparison.difference.is_some()
                || link.learnt.record == Found::Unusable(Unusable::Newer)
                || link.quarantined_until.is_some_and(|at| at > now)
        };
        let is_absent = self.link(master).learnt.record == Found::Absent;
        if !is_absent || !self.config.records_fleet || self.links.iter().any(is_in_doubt) {
            return None;
        }
        let seen = self.seen();
        let mut first = Record::of_fleet(&self.config, &seen, Origin::Observed)?;
        match seen.iter().find_map(|it| it.found.record()) {
            Some(other) => other.on(&seen[master.index()]),
            None => Some(first.swap_remove(master.index())),
        }
    }

    /// Takes a record that was read again. If the master refuses the read, for example for a moment, the
    /// known record stays.
    pub(in crate::engine) fn handle_record(&mut self, ground: &mut Ground, master: MasterId, found: Found) {
        let link = self.link_mut(master);
        link.comparison.due_at = Some(ground.now + limits::RECORD_PAUSE);
        let is_refused = matches!(found, Found::Unusable(Unusable::Refused(_)));
        let is_kept = is_refused && link.learnt.record.record().is_some();
        if link.learnt.record != found && !is_kept {
            link.learnt.record = found;
            if link.learnt.record.is_joining() {
                link.doubt();
            }
            self.follow_records(ground, master);
            self.note_quarantines(MasterSet::only(master));
            self.write_records(ground);
        }
        self.arm(ground, master);
    }
}
