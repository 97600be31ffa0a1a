//! Decides whether new masters may be declared as a fleet, or replace a master, and which records say so.
//! Does no I/O: `redlatch fleet` asks and writes.
//!
//! ```text
//!  all masters answer ─► each is new and empty ─► declared on each ─► declared on each, with its process
//!                            (checks)               (phase 1)                  (phase 2)
//! ```
//!
//! A declaration with the master's process ends that process's quarantine, because there was nothing to
//! forget. So it is written only once every master has the declaration without the process. The records
//! follow from settings and processes alone, and the phase follows from the records. So a second run can
//! complete a first run, and nothing else: a master that restarted since then has another label, so the other
//! masters' records do not match it.
//!
//! Masters are asked one after the other, so a master may be used or restart in between. So the checks are
//! repeated between the phases. The second phase declares only processes that the first phase named, and finds
//! the keys of any lock that they have granted since.

mod again;
mod replacement;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::engine::masters::record::{Found, Origin, Record, Seen};
use crate::error::fleet::{FleetDifference, Unusable};
use crate::error::probe::ProbeError;
use crate::limits;
use crate::words::{Counted, Rounded};
pub use again::{Again, Redeclaration};
pub use replacement::{OldMaster, Replacement, Step};

/// Facts about one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Identity of its process; `None` if it reports none.
    pub run_id: Option<String>,
    /// Uptime that it reports.
    pub uptime: Option<Duration>,
    /// Whether it is a master and was never a replica, as far as it reports.
    pub is_master: bool,
    /// Content of the fleet record's key.
    pub found: Found,
    /// Number of other keys with the prefix, including strict mode's mark; `None` if the login may not search
    /// for them.
    pub key_count: Option<usize>,
    /// Names of this library's connections with their numbers; `None` if the login may not list them.
    pub clients: Option<BTreeMap<String, usize>>,
}

/// A record to write in place of what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Place of its master in the configuration.
    pub place: usize,
    /// The present record; `None` if there is none.
    pub from: Option<Record>,
    /// The new record.
    pub to: Record,
}

/// State of a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founding {
    /// Records of the next phase; empty when the fleet is declared.
    pub changes: Vec<Change>,
    /// The first master's final record.
    pub record: Record,
    /// Whether connected clients cannot be ruled out.
    pub is_unsure: bool,
}

/// Returns the facts by which a record is judged; without a candidate, the master is unknown.
#[must_use]
pub fn seen<'a>(name: &'a str, candidate: Option<&'a Candidate>) -> Seen<'a> {
    Seen {
        name,
        found: candidate.map_or(&Found::Unread, |it| &it.found),
        run_id: candidate.and_then(|it| it.run_id.as_deref()),
    }
}

/// Why nothing is declared or replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{master} {why}")]
pub struct Refusal {
    /// URL of the master, without the login.
    pub master: Arc<str>,
    /// The reason.
    pub why: Why,
}

/// Reason to refuse a master.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It did not answer, or refused the login.
    #[error(fmt = fmt_unanswered)]
    Unanswered(ProbeError),
    /// It does not report its process.
    #[error("does not report its process; use a login with +info")]
    Unnamed,
    /// It is or was a replica.
    #[error("is a replica or was one; list a master that was started as such")]
    Replica,
    /// It is the server at this other address.
    #[error("is the same server as {0}; list each server once")]
    SameServer(Arc<str>),
    /// It started too long ago.
    #[error("has run for {}, above {}; it counts without a declaration", Rounded(*.0), Rounded(limits::FOUNDING_UPTIME_MAX))]
    Old(Duration),
    /// It already has a record.
    #[error(
        "has the record of a fleet: it was used or restarted. Start it without data; if it never had a lock, delete PREFIXredlatch:fleet"
    )]
    HasRecord,
    /// The content of the record's key is unusable.
    #[error("has an unusable record: {0}")]
    Unusable(Unusable),
    /// It has this number of keys.
    #[error("has {} behind the prefix; it is not empty", Counted(*.0, "key"))]
    HasKeys(usize),
    /// It may have keys.
    #[error("does not let all keys be listed; use a login with +scan, or a server with fewer keys")]
    MayHaveKeys,
    /// It has this number of client connections.
    #[error("has {} of redlatch; stop the clients that use it", Counted(*.0, "connection"))]
    HasClients(usize),
    /// It may have clients.
    #[error("does not let clients be listed; use a login with +client|list")]
    MayHaveClients,
    /// The master to replace is not in the list.
    #[error("is not in the list of masters; give the list that the clients have")]
    NotListed,
    /// The new master is already in the list.
    #[error("is in the list of masters already; give the list that the clients have")]
    Listed,
    /// The master to replace may accept writes.
    #[error(
        "still takes writes ({commands}). To replace it, stop it for good, or run there: ACL SETUSER {user} -set -pexpire -evalsha -eval"
    )]
    TakesWrites {
        /// Commands that it does not refuse for lack of rights.
        commands: String,
        /// The login's user.
        user: String,
    },
    /// Nothing shows that the master to replace refuses writes, for this reason.
    #[error("may take writes: {0}. If it is off for good, give --is-off")]
    MayTakeWrites(String),
    /// Its record differs from these settings.
    #[error("differs: {0}")]
    Differs(FleetDifference),
    /// It restarted or lost its record during the replacement's wait.
    #[error("restarted or lost its record meanwhile; run the command again")]
    ChangedMeanwhile,
    /// It is taking another master's place.
    #[error("is replacing another master; finish that first: redlatch fleet replace")]
    Joining,
    /// Its record does not list the address of the master that this run must replace.
    #[error(
        "has a record without {0}; give the address that clients use, or finish an earlier replacement first"
    )]
    LacksOld(Arc<str>),
    /// It cannot join: too few of the other masters answer and have a record.
    #[error(
        "cannot join: the fleet's record is on {}, {needed} needed; check the prefix, connect a client, or repair them",
        Counted(*count, "other master")
    )]
    TooFewRecords {
        /// Number of records.
        count: usize,
        /// Number of records that are sure to include another operator's replacement.
        needed: usize,
    },
}

fn fmt_unanswered(error: &ProbeError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        ProbeError::Unreachable(why) => write!(f, "does not answer: {why}; repair it, or correct the list"),
        ProbeError::LoginRefused(why) => write!(f, "cannot be asked: {why}"),
    }
}

impl Why {
    fn of(self, master: &Arc<str>) -> Refusal {
        Refusal { master: master.clone(), why: self }
    }
}

/// Returns the records that declare these masters as a new fleet, given each master's facts or the reason why
/// there are none.
///
/// # Errors
/// [`Refusal`] if any master may have been in use. The caller must then write nothing.
pub fn found(config: &Config, masters: &[Result<Candidate, ProbeError>]) -> Result<Founding, Refusal> {
    let mut known: Vec<(usize, &Arc<str>, &Candidate, &str)> = Vec::new();
    for (place, (name, candidate)) in config.labels.iter().zip(masters).enumerate() {
        let (candidate, run_id) = check_server(name, candidate)?;
        if let Some((_, other, ..)) = known.iter().find(|(.., other)| *other == run_id) {
            return Err(Why::SameServer(Arc::clone(other)).of(name));
        }
        let uptime = candidate.uptime.ok_or_else(|| Why::Unnamed.of(name))?;
        if uptime > limits::FOUNDING_UPTIME_MAX {
            return Err(Why::Old(uptime).of(name));
        }
        known.push((place, name, candidate, run_id));
    }
    let seen: Vec<_> = known
        .iter()
        .map(|(_, name, _, run_id)| Seen { name, found: &Found::Absent, run_id: Some(run_id) })
        .collect();
    let records = Record::of_fleet(config, &seen, Origin::Declared).expect("each process is known");
    let (mut first, mut second, mut is_begun) = (Vec::new(), Vec::new(), false);
    for ((place, name, candidate, run_id), declared) in known.iter().zip(&records) {
        let (place, new) = (*place, declared.clone().with_new(run_id));
        match check_record(name, &candidate.found)? {
            None => first.push(Change { place, from: None, to: declared.clone() }),
            Some(record) if record == declared => {
                second.push(Change { place, from: Some(declared.clone()), to: new });
            }
            Some(record) if *record == new => is_begun = true,
            Some(_) => return Err(Why::HasRecord.of(name)),
        }
    }
    let mut is_unsure = false;
    if !is_begun {
        for (_, name, candidate, _) in &known {
            is_unsure |= check_unused(name, candidate)?;
        }
    }
    let changes = if first.is_empty() { second } else { first };
    Ok(Founding { changes, record: records[0].clone(), is_unsure })
}

/// Facts and process of a master that answers and has no other master's data.
fn check_server<'a>(
    name: &Arc<str>,
    answer: &'a Result<Candidate, ProbeError>,
) -> Result<(&'a Candidate, &'a str), Refusal> {
    let candidate = answer.as_ref().map_err(|why| Why::Unanswered(why.clone()).of(name))?;
    let run_id = candidate.run_id.as_deref().ok_or_else(|| Why::Unnamed.of(name))?;
    if candidate.is_master { Ok((candidate, run_id)) } else { Err(Why::Replica.of(name)) }
}

fn check_record<'a>(name: &Arc<str>, found: &'a Found) -> Result<Option<&'a Record>, Refusal> {
    match found {
        Found::Absent | Found::Unread => Ok(None),
        Found::Known(record) => Ok(Some(record)),
        Found::Unusable(why) => Err(Why::Unusable(why.clone()).of(name)),
    }
}

/// Fails if the master has keys or clients. Returns whether its clients are unknown.
fn check_unused(name: &Arc<str>, candidate: &Candidate) -> Result<bool, Refusal> {
    match candidate.key_count {
        None => return Err(Why::MayHaveKeys.of(name)),
        Some(0) => {}
        Some(count) => return Err(Why::HasKeys(count).of(name)),
    }
    match candidate.clients.as_ref().map(|names| names.values().sum::<usize>()) {
        None => Ok(true),
        Some(0) => Ok(false),
        Some(count) => Err(Why::HasClients(count).of(name)),
    }
}

#[cfg(test)]
mod tests {
    use redlatch_support::broken_rule;

    use super::*;

    fn config() -> Config {
        let urls = ["redis://a", "redis://b", "redis://c"];
        Config::builder().masters(urls).build().expect("valid")
    }

    /// A newly started, empty master.
    pub(super) fn blank(run_id: &str) -> Candidate {
        Candidate {
            run_id: Some(run_id.to_owned()),
            uptime: Some(Duration::from_secs(3)),
            is_master: true,
            found: Found::Absent,
            key_count: Some(0),
            clients: clients(0),
        }
    }

    fn clients(count: usize) -> Option<BTreeMap<String, usize>> {
        Some([("redlatch/0.1.0".to_owned(), count)].into())
    }

    fn all() -> Vec<Candidate> {
        ["r1", "r2", "r3"].map(blank).to_vec()
    }

    fn found_of(all: Vec<Candidate>) -> Result<Founding, Refusal> {
        found(&config(), &all.into_iter().map(Ok).collect::<Vec<_>>())
    }

    /// The result with a change to the second master.
    fn changed(change: impl FnOnce(&mut Candidate)) -> Result<Founding, Refusal> {
        let mut all = all();
        change(&mut all[1]);
        found_of(all)
    }

    #[test]
    fn new_and_empty_masters_are_declared() {
        let mut masters = all();
        for phase in ["", " new=r1"] {
            let founding = found_of(masters.clone()).expect("they are new");
            assert_eq!((founding.changes.len(), founding.is_unsure), (3, false));
            let first = founding.changes[0].to.to_string();
            assert!(first.ends_with(phase) && first.contains("new=") != phase.is_empty(), "{first}");
            apply(&mut masters, &founding.changes);
        }
        assert_eq!(found_of(masters).expect("they are declared").changes, []);
        assert!(changed(|it| it.clients = None).expect("new").is_unsure);
    }

    fn apply(masters: &mut [Candidate], changes: &[Change]) {
        for Change { place, from, to } in changes {
            assert_eq!(masters[*place].found.record(), from.as_ref());
            masters[*place].found = Found::Known(to.clone());
        }
    }

    // I36
    #[test]
    fn each_sign_of_use_refuses_it() {
        let mut unanswered: Vec<_> = all().into_iter().map(Ok).collect();
        unanswered[1] = Err(ProbeError::Unreachable("connection refused".into()));
        let damaged = Found::from_text(b"redlatch:fleet:1 x");
        let other = Found::Known(found_of(all()).expect("new").changes[0].to.clone());
        let uptime = limits::FOUNDING_UPTIME_MAX * 2;
        let rows = [
            (
                found(&config(), &unanswered),
                Why::Unanswered(ProbeError::Unreachable("connection refused".into())),
            ),
            (changed(|it| it.run_id = None), Why::Unnamed),
            (changed(|it| it.is_master = false), Why::Replica),
            (changed(|it| it.run_id = Some("r1".into())), Why::SameServer("redis://a:6379".into())),
            (changed(|it| it.uptime = Some(uptime)), Why::Old(uptime)),
            (changed(|it| it.uptime = None), Why::Unnamed),
            (changed(|it| it.found = damaged), Why::Unusable(Unusable::Damaged)),
            (changed(|it| it.found = other), Why::HasRecord),
            (changed(|it| it.key_count = Some(2)), Why::HasKeys(2)),
            (changed(|it| it.key_count = None), Why::MayHaveKeys),
            (changed(|it| it.clients = clients(1)), Why::HasClients(1)),
        ];
        for (result, why) in rows {
            let error = result.expect_err("a sign of use");
            assert_eq!(broken_rule(&error.to_string()), None, "{error}");
            assert_eq!(error, why.of(&"redis://b:6379".into()));
        }
    }

    #[test]
    fn a_master_may_have_run_for_an_hour() {
        let (limit, ns) = (limits::FOUNDING_UPTIME_MAX, Duration::from_nanos(1));
        assert_eq!(changed(|it| it.uptime = Some(limit)), found_of(all()));
        let refused = changed(|it| it.uptime = Some(limit + ns));
        assert_eq!(refused, Err(Why::Old(limit + ns).of(&"redis://b:6379".into())));
    }

    #[test]
    fn each_refusal_of_a_replacement_is_readable() {
        let commands = "SET, PEXPIRE, EVALSHA, EVAL".to_owned();
        for why in [
            Why::MayHaveClients,
            Why::Joining,
            Why::NotListed,
            Why::Listed,
            Why::TakesWrites { commands, user: "default".to_owned() },
            Why::MayTakeWrites("not connected within 1s".to_owned()),
            Why::Differs(FleetDifference::MasterCount { recorded: 3, ours: 5 }),
            Why::LacksOld("redis://old:6379".into()),
            Why::TooFewRecords { count: 1, needed: 2 },
        ] {
            let refusal = why.of(&"redis://b:6379".into());
            assert_eq!(broken_rule(&refusal.to_string()), None, "{refusal}");
        }
    }

    // I36
    #[test]
    fn a_second_run_completes_the_same_processes_only() {
        let first = found_of(all()).expect("new").changes;
        // The first run ended in its first phase: the checks are made again.
        let mut begun = all();
        apply(&mut begun, &first[..1]);
        assert_eq!(found_of(begun.clone()).expect("the same processes").changes, first[1..]);
        let mut restarted = begun.clone();
        restarted[2].run_id = Some("another".to_owned());
        assert!(matches!(found_of(restarted), Err(Refusal { why: Why::HasRecord, .. })));
        begun[2].clients = clients(1);
        assert!(matches!(found_of(begun), Err(Refusal { why: Why::HasClients(_), .. })));
        // The first run ended in its second phase: clients may be working.
        let mut declared = all();
        apply(&mut declared, &first);
        let second = found_of(declared.clone()).expect("new").changes;
        apply(&mut declared, &second[1..2]);
        declared.iter_mut().for_each(|candidate| candidate.clients = clients(3));
        let left = found_of(declared.clone()).expect("it goes on").changes;
        assert_eq!(left, [second[0].clone(), second[2].clone()]);
        declared[0].run_id = Some("another".to_owned());
        assert!(matches!(found_of(declared), Err(Refusal { why: Why::HasRecord, .. })));
    }
}
