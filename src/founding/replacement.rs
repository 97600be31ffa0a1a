//! Replaces a master with a new one at another address, while clients continue.
//!
//! ```text
//!  the old one refuses writes ─► the new one joins ─► max_ttl and drift ─► each record names the new one,
//!                                                        (the wait)         its own last
//! ```
//!
//! Locks on the old master are valid at most for the length of the wait, and the new master lacks them: a
//! majority of the new list might find no master with the lock. After the wait the old master holds no lock
//! and grants none. So a majority of the old list consists of masters in both lists, and overlaps with each
//! majority of the new list.
//!
//! A client that gets the new list too early reads that the new master is joining, and observes it for as
//! long from then on. A client connected earlier would not know, so nobody may be connected when this record
//! appears.
//!
//! Every step follows from what is found, except the wait, which starts again with each run. Each record is
//! written on most of the other masters in place of the record that was read. So of two operators with
//! different new masters, at most one completes the replacement, and the other finds its record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Candidate, Change, Refusal, Why, check_record, check_server, check_unused, seen};
use crate::config::Config;
use crate::engine::masters::record::{Found, Process, Record, Seen};
use crate::error::probe::ProbeError;

/// How the old master answers the clients' writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OldMaster {
    /// It refuses every command with which a client gets or keeps a lock.
    Refuses,
    /// It does not refuse some of them for lack of rights.
    Takes {
        /// Names of these commands.
        commands: String,
        /// The login's user.
        user: String,
    },
    /// Neither is known, for this reason.
    Unknown(String),
}

/// Next step of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write this record on the new master, then ask again.
    Join(Change),
    /// Wait for the end of the locks on the old master, then ask again.
    Wait(Duration),
    /// Write these records in order. The new master then has the old one's place.
    Name {
        /// The records; empty if the new master already has the place.
        changes: Vec<Change>,
        /// URLs, without login, of masters that do not answer and may have another record.
        unanswered: Vec<Arc<str>>,
    },
}

/// A replacement in progress.
#[derive(Debug)]
pub struct Replacement {
    /// Settings with the old list.
    pub before: Config,
    /// Settings with the new list.
    pub after: Config,
    /// Place of both masters in their lists.
    pub place: usize,
    /// Whether the operator said that the old master is off.
    is_off: bool,
    /// When it was first known to refuse writes.
    refuses_since: Option<Instant>,
    /// The new master's process, once its record says that it joins.
    joined: Option<String>,
    /// Whether the new master's record was once newer than the other masters' records.
    was_overtaken: bool,
}

impl Replacement {
    /// Returns the replacement of a master of `config`. `old` and `new` list one master each. A new URL
    /// without a login gets the old one's login.
    ///
    /// # Errors
    /// [`Refusal`] if the list lacks the old master, or contains the new one.
    pub fn new(config: Config, old: &Config, new: &Config, is_off: bool) -> Result<Self, Refusal> {
        let (old, name) = (old.labels[0].clone(), new.labels[0].clone());
        let mut url = new.masters[0].clone();
        if config.masters.iter().any(|it| it.address.is_same_server(&url.address)) {
            return Err(Why::Listed.of(&name));
        }
        let place = config.labels.iter().position(|it| *it == old).ok_or_else(|| Why::NotListed.of(&old))?;
        url.login = url.login.or_else(|| config.masters[place].login.clone());
        let mut after = config.clone();
        (after.labels[place], after.masters[place]) = (name, url);
        Ok(Self {
            before: config,
            after,
            place,
            is_off,
            refuses_since: None,
            joined: None,
            was_overtaken: false,
        })
    }

    /// Returns the URLs of the old and the new master, without the login.
    #[must_use]
    pub fn names(&self) -> [Arc<str>; 2] {
        [&self.before, &self.after].map(|config| config.labels[self.place].clone())
    }

    /// Returns the next step. `now` must be later than the old master's answer; `masters` are the answers of
    /// the new list.
    ///
    /// # Errors
    /// [`Refusal`] says what is wrong. The caller must then write nothing.
    pub fn next(
        &mut self,
        now: Instant,
        old: &OldMaster,
        masters: &[Result<Candidate, ProbeError>],
    ) -> Result<Step, Refusal> {
        self.check_old(old)?;
        let ends_at = *self.refuses_since.get_or_insert(now) + self.after.quarantine_time();
        let (old, name) = (&self.before.labels[self.place], &self.after.labels[self.place]);
        let seen: Vec<_> =
            self.after.labels.iter().zip(masters).map(|(name, it)| seen(name, it.as_ref().ok())).collect();
        let records = self.records(&seen)?;
        let (candidate, run_id) = check_server(name, &masters[self.place])?;
        let is_same = |it: &&Seen<'_>| it.run_id == Some(run_id) && it.name != &**name;
        if let Some(other) = seen.iter().find(is_same) {
            return Err(Why::SameServer(other.name.into()).of(name));
        }
        let (count, needed) = (records.len(), (seen.len() - 1) / 2 + 1);
        let named: Vec<_> = records.iter().filter_map(|(_, record)| record.member(name)).collect();
        let member = named.first().copied().or_else(|| seen[self.place].member());
        let (Some((_, template)), Some(member)) = (records.first().filter(|_| count >= needed), member)
        else {
            return Err(Why::TooFewRecords { count, needed }.of(name));
        };
        let found = check_record(name, &candidate.found)?;
        // Clients may have counted another process, or this process without its record.
        let is_as_it_joined = self.joined.as_ref().is_none_or(|it| it == run_id && found.is_some());
        if !is_as_it_joined {
            return Err(Why::ChangedMeanwhile.of(name));
        }
        let Some(found) = found else {
            self.check_new_unused(candidate)?;
            self.joined = Some(run_id.to_owned());
            let to = template.replaced(old, member).unwrap_or_else(|| (*template).clone()).of_joining(member);
            return Ok(Step::Join(Change { place: self.place, from: None, to }));
        };
        let is_own = found.difference(&self.after, &seen).is_none() && found.member(name) == Some(member);
        let is_joining = match found.process() {
            Process::Joining if is_own => true,
            // The new master's record is written last. A master that was listed before has the same kind of
            // record.
            Process::New(_) if is_own && named.len() >= needed => false,
            // Records are read one by one, and another operator may have completed this replacement
            // meanwhile.
            Process::New(_) if is_own && !self.was_overtaken => {
                self.was_overtaken = true;
                return Ok(Step::Wait(Duration::ZERO));
            }
            _ => return Err(Why::HasRecord.of(name)),
        };
        if is_joining {
            self.check_new_unused(candidate)?;
            self.joined = Some(run_id.to_owned());
            let left = ends_at.saturating_duration_since(now);
            if !left.is_zero() {
                return Ok(Step::Wait(left));
            }
        }
        let change = |(place, record): &(usize, &Record)| {
            let to = record.replaced(old, member)?;
            Some(Change { place: *place, from: Some((*record).clone()), to })
        };
        let mut changes: Vec<_> = records.iter().filter_map(change).collect();
        if is_joining {
            let (from, to) = (Some(found.clone()), found.clone().with_new(run_id));
            changes.push(Change { place: self.place, from, to });
        }
        let silent = self.after.labels.iter().zip(masters).filter(|(_, answer)| answer.is_err());
        Ok(Step::Name { changes, unanswered: silent.map(|(name, _)| name.clone()).collect() })
    }

    /// Fails unless the old master refuses writes, or the operator says that it is off and nothing
    /// contradicts.
    fn check_old(&self, old: &OldMaster) -> Result<(), Refusal> {
        let why = match old.clone() {
            OldMaster::Refuses => return Ok(()),
            OldMaster::Unknown(_) if self.is_off => return Ok(()),
            OldMaster::Takes { commands, user } => Why::TakesWrites { commands, user },
            OldMaster::Unknown(why) => Why::MayTakeWrites(why),
        };
        Err(why.of(&self.before.labels[self.place]))
    }

    fn check_new_unused(&self, candidate: &Candidate) -> Result<(), Refusal> {
        let master = &self.after.labels[self.place];
        let is_unsure = check_unused(master, candidate)?;
        if is_unsure { Err(Why::MayHaveClients.of(master)) } else { Ok(()) }
    }

    /// The other masters' records and places. Each must agree with these settings, and with the old or the
    /// new list.
    fn records<'a>(&self, after: &[Seen<'a>]) -> Result<Vec<(usize, &'a Record)>, Refusal> {
        let (old, new) = (&self.before.labels[self.place], &self.after.labels[self.place]);
        let mut before = after.to_vec();
        before[self.place] = Seen { name: old, found: &Found::Unread, run_id: None };
        let mut records = Vec::new();
        for (place, seen) in after.iter().enumerate().filter(|(place, _)| *place != self.place) {
            let master = &self.after.labels[place];
            let Some(record) = check_record(master, seen.found)? else { continue };
            let is_named = record.member(new).is_some();
            let list = if is_named { after } else { &before };
            if let Some(difference) = record.difference(&self.after, list) {
                return Err(Why::Differs(difference).of(master));
            }
            if !is_named && record.member(old).is_none() {
                return Err(Why::LacksOld(old.clone()).of(master));
            }
            records.push((place, record));
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::super::tests::blank;
    use super::*;
    use crate::limits;

    const NEW: &str = "redis://d:6379";
    const TTL: Duration = limits::TTL_DEFAULT;

    fn config(urls: &[&str]) -> Config {
        Config::builder().masters(urls).build().expect("valid")
    }

    #[test]
    fn a_new_master_without_a_login_gets_that_of_the_old_one() {
        let fleet = config(&["redis://u:old@m1", "redis://m2", "redis://m3"]);
        let login = |new: &str| {
            let old = config(&["redis://m1"]);
            let replacement = Replacement::new(fleet.clone(), &old, &config(&[new]), false).expect("it can");
            let url = &replacement.after.masters[replacement.place];
            url.login.as_ref().map(|login| String::from_utf8_lossy(&login.password).into_owned())
        };
        assert_eq!(login("redis://m4").as_deref(), Some("old"));
        assert_eq!(login("redis://u:new@m4").as_deref(), Some("new"));
    }

    /// The replacement of the third master of a declared fleet, and the masters of the new list.
    fn replacement(max_ttl: Duration) -> (Replacement, [Candidate; 3]) {
        let config = |urls: &[&str]| Config::builder().masters(urls).max_ttl(max_ttl).build().expect("valid");
        let fleet = config(&["redis://a", "redis://b", "redis://c"]);
        let founding = found(&fleet, &["r1", "r2", "r3"].map(|it| Ok(blank(it))));
        let mut masters = ["r1", "r2", "r4"].map(blank);
        for change in founding.expect("they are new").changes.into_iter().take(2) {
            masters[change.place].found = Found::Known(change.to);
        }
        let replacement = Replacement::new(fleet, &config(&["redis://c"]), &config(&[NEW]), false);
        (replacement.expect("it can"), masters)
    }

    /// The same replacement after the new master has its record.
    fn joining(max_ttl: Duration) -> (Replacement, [Candidate; 3]) {
        let (mut replacement, mut masters) = replacement(max_ttl);
        let step = next(&mut replacement, &masters);
        let Ok(Step::Join(change)) = step else { panic!("{step:?}") };
        masters[2].found = Found::Known(change.to);
        (replacement, masters)
    }

    fn next(replacement: &mut Replacement, masters: &[Candidate; 3]) -> Result<Step, Refusal> {
        replacement.next(crate::clock::now(), &OldMaster::Refuses, &masters.clone().map(Ok))
    }

    #[test]
    fn key_on_the_new_master_stops_the_replacement() {
        let (mut replacement, mut masters) = joining(TTL);
        let waits = next(&mut replacement, &masters);
        assert!(matches!(waits, Ok(Step::Wait(_))), "{waits:?}");
        masters[2].key_count = Some(1);
        assert_eq!(next(&mut replacement, &masters), Err(Why::HasKeys(1).of(&NEW.into())));
    }

    #[test]
    fn unknown_clients_of_the_new_master_refuse_it() {
        let (mut replacement, mut masters) = replacement(TTL);
        masters[2].clients = None;
        assert_eq!(next(&mut replacement, &masters), Err(Why::MayHaveClients.of(&NEW.into())));
    }

    #[test]
    fn restart_after_joining_makes_another_master() {
        let changed = Err(Why::ChangedMeanwhile.of(&NEW.into()));
        let (mut own, mut masters) = joining(TTL);
        // A later run finds the record.
        let (mut later, _) = replacement(TTL);
        let waits = next(&mut later, &masters);
        assert!(matches!(waits, Ok(Step::Wait(_))), "{waits:?}");
        masters[2].run_id = Some("r5".to_owned());
        assert_eq!(next(&mut own, &masters), changed);
        assert_eq!(next(&mut later, &masters), changed);
        masters[2].found = Found::Absent;
        assert_eq!(next(&mut own, &masters), changed);
    }

    /// Otherwise two operators with two new masters would both complete their replacements.
    // I27
    #[test]
    fn one_record_is_no_majority_of_the_others() {
        let (mut replacement, mut masters) = replacement(TTL);
        masters[0].found = Found::Absent;
        let refused = Err(Why::TooFewRecords { count: 1, needed: 2 }.of(&NEW.into()));
        assert_eq!(next(&mut replacement, &masters), refused);
        // After the wait, too.
        let (mut replacement, mut masters) = joining(TTL);
        assert!(matches!(next(&mut replacement, &masters), Ok(Step::Wait(_))));
        masters[0].found = Found::Absent;
        assert_eq!(next(&mut replacement, &masters), refused);
    }

    /// The other records may belong to another operator's replacement.
    // I27
    #[test]
    fn new_master_that_one_record_names_is_refused() {
        let (mut replacement, mut masters) = joining(TTL);
        let Ok(Step::Wait(left)) = next(&mut replacement, &masters) else { panic!("it does not wait") };
        let ended = crate::clock::now() + left;
        let named = replacement.next(ended, &OldMaster::Refuses, &masters.clone().map(Ok));
        let Ok(Step::Name { changes, .. }) = named else { panic!("{named:?}") };
        for change in changes.into_iter().filter(|change| change.place != 1) {
            masters[change.place].found = Found::Known(change.to);
        }
        assert_eq!(next(&mut replacement, &masters), Ok(Step::Wait(Duration::ZERO)), "to read them again");
        assert_eq!(next(&mut replacement, &masters), Err(Why::HasRecord.of(&NEW.into())));
    }

    /// Two operators run the same replacement, and one completes it while the other reads the records.
    #[test]
    fn a_replacement_that_another_operator_ends_is_ended() {
        let (mut replacement, masters) = joining(TTL);
        let (mut other, _) = joining(TTL);
        let Ok(Step::Wait(left)) = next(&mut other, &masters) else { panic!("it does not wait") };
        let named = other.next(crate::clock::now() + left, &OldMaster::Refuses, &masters.clone().map(Ok));
        let Ok(Step::Name { changes, .. }) = named else { panic!("{named:?}") };
        let [mut early, mut late] = [masters.clone(), masters];
        for change in changes {
            late[change.place].found = Found::Known(change.to.clone());
            if change.place == 2 {
                early[2].found = Found::Known(change.to);
            }
        }
        assert_eq!(next(&mut replacement, &early), Ok(Step::Wait(Duration::ZERO)));
        let ended = next(&mut replacement, &late);
        assert!(matches!(&ended, Ok(Step::Name { changes, .. }) if changes.is_empty()), "{ended:?}");
    }

    #[test]
    fn a_new_master_that_joins_with_other_settings_is_refused() {
        let (mut own, mut masters) = joining(TTL);
        let (_, others) = joining(TTL / 2);
        masters[2] = others[2].clone();
        assert_eq!(next(&mut own, &masters), Err(Why::HasRecord.of(&NEW.into())));
    }
}
