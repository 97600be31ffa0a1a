//! Whether new masters may be declared as a fleet, and the records that say so. No I/O: `redlatch fleet
//! init` asks and writes.
//!
//! ```text
//!  all masters answer ─► each is new and empty ─► declared on each ─► declared on each, with its process
//!                            (checks)               (phase 1)                  (phase 2)
//! ```
//!
//! A declaration with the master's process ends that process's quarantine, as nothing was there that it
//! could have forgotten. So it is written only when each master has the one without. The records follow
//! from the settings and the processes alone. A second run can therefore complete what a first one began,
//! and nothing else: a master that restarted meanwhile has another label, so that the records on the
//! others are not its own.
//!
//! Masters are not asked at one moment: one may be used and another restart in between. So the checks are
//! made again between the phases. Each process that is then declared was named by the first phase before,
//! and shows the keys of any lock that it was asked for since.

use std::time::Duration;

use crate::config::Config;
use crate::engine::masters::record::{Found, Origin, Record, Seen};
use crate::limits;
use crate::mutants::mutant;
use crate::words::{Counted, Rounded};

/// Facts about one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Identity of its process; `None` if it does not report one.
    pub run_id: Option<String>,
    /// Time for which it says that it has run.
    pub uptime: Option<Duration>,
    /// Whether it is a master, and never was a replica, as far as it says.
    pub is_master: bool,
    /// Content of the key of the fleet's record.
    pub found: Found,
    /// Number of other keys behind the prefix, the mark of strict mode included; `None` if the login may
    /// not search for them.
    pub key_count: Option<usize>,
    /// Number of connections of this library; `None` if the login may not list them.
    pub client_count: Option<usize>,
}

/// Records to write: for each master, in the order of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founding {
    /// The declaration of the first phase.
    pub declared: Vec<Record>,
    /// The declaration of the second phase, which names the process.
    pub new: Vec<Record>,
    /// Whether a master has the second one already.
    pub is_done: Vec<bool>,
    /// Whether nothing shows that no client is connected.
    pub is_unsure: bool,
}

/// Why masters are not declared as a new fleet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotNew {
    /// A master did not answer.
    #[error("{master} does not answer: {why}; start it, or correct the list")]
    Unanswered {
        /// Its URL without the login.
        master: String,
        /// The reason.
        why: String,
    },
    /// A master does not report its process.
    #[error("{master} does not report its process; use a login with +info")]
    Unnamed {
        /// Its URL without the login.
        master: String,
    },
    /// It is a replica, or was one.
    #[error("{master} is a replica or was one; list a master that was started as such")]
    Replica {
        /// Its URL without the login.
        master: String,
    },
    /// Two addresses lead to one server.
    #[error("{master} is the same server as {other}; list each server once")]
    SameServer {
        /// Its URL without the login.
        master: String,
        /// URL of the other one.
        other: String,
    },
    /// A master started too long ago.
    #[error("{master} has run for {}, above {}; it counts by itself by now", Rounded(*uptime), Rounded(limits::FOUNDING_UPTIME_MAX))]
    Old {
        /// Its URL without the login.
        master: String,
        /// Time for which it has run.
        uptime: Duration,
    },
    /// A master has a record already.
    #[error("{master} has the record of a fleet; clients have used it, or its process changed")]
    HasRecord {
        /// Its URL without the login.
        master: String,
    },
    /// A master has keys.
    #[error("{master} has {} behind the prefix; it is not empty", Counted(*count, "key"))]
    HasKeys {
        /// Its URL without the login.
        master: String,
        /// Number of keys.
        count: usize,
    },
    /// A master may have keys.
    #[error("{master} does not let keys be listed; use a login with +scan")]
    MayHaveKeys {
        /// Its URL without the login.
        master: String,
    },
    /// Clients are connected.
    #[error("{master} has {} of redlatch; stop all clients", Counted(*count, "connection"))]
    HasClients {
        /// Its URL without the login.
        master: String,
        /// Number of connections.
        count: usize,
    },
}

/// Returns the records that declare these masters as a new fleet, each a fact or the reason why there is
/// none.
///
/// # Errors
/// [`NotNew`] if any of them may have been in use. Nothing is to be written then.
pub fn found(config: &Config, masters: &[Result<Candidate, String>]) -> Result<Founding, NotNew> {
    let names: Vec<&str> = config.labels.iter().map(AsRef::as_ref).collect();
    let mut known: Vec<(&str, &Candidate, &str)> = Vec::new();
    for (name, candidate) in names.iter().zip(masters) {
        let master = (*name).to_owned();
        let candidate = match candidate {
            Ok(candidate) => candidate,
            Err(_) if mutant!(FoundedWithoutMaster) => continue,
            Err(why) => return Err(NotNew::Unanswered { master, why: why.clone() }),
        };
        let Some(run_id) = candidate.run_id.as_deref() else { return Err(NotNew::Unnamed { master }) };
        if !candidate.is_master {
            return Err(NotNew::Replica { master });
        }
        if let Some((other, ..)) = known.iter().find(|(_, _, other)| *other == run_id) {
            return Err(NotNew::SameServer { master, other: (*other).to_owned() });
        }
        let Some(uptime) = candidate.uptime else { return Err(NotNew::Unnamed { master }) };
        if uptime > limits::FOUNDING_UPTIME_MAX {
            return Err(NotNew::Old { master, uptime });
        }
        known.push((name, candidate, run_id));
    }
    let seen: Vec<_> = known
        .iter()
        .map(|(name, _, run_id)| Seen { name, found: &Found::Absent, run_id: Some(run_id) })
        .collect();
    let declared = Record::of_fleet(config, &seen, Origin::Declared).unwrap_or_default();
    let new: Vec<_> =
        declared.iter().zip(&known).map(|(record, (_, _, run_id))| record.clone().with_new(run_id)).collect();
    let mut is_done = Vec::new();
    for (((name, candidate, _), declared), new) in known.iter().zip(&declared).zip(&new) {
        match &candidate.found {
            Found::Absent => {}
            Found::Known(record) if record == declared || record == new => {}
            _ => return Err(NotNew::HasRecord { master: (*name).to_owned() }),
        }
        is_done.push(candidate.found.record() == Some(new));
    }
    let mut is_unsure = false;
    for (name, candidate, _) in known.iter().filter(|_| !is_done.contains(&true)) {
        let master = (*name).to_owned();
        match candidate.key_count {
            None => return Err(NotNew::MayHaveKeys { master }),
            Some(0) => {}
            Some(count) => return Err(NotNew::HasKeys { master, count }),
        }
        match candidate.client_count {
            None => is_unsure = true,
            Some(0) => {}
            Some(count) => return Err(NotNew::HasClients { master, count }),
        }
    }
    Ok(Founding { declared, new, is_done, is_unsure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::rules::broken_rule;

    fn config() -> Config {
        let urls = ["redis://a", "redis://b", "redis://c"];
        Config::builder().masters(urls).build().expect("valid")
    }

    fn blank(run_id: &str) -> Candidate {
        Candidate {
            run_id: Some(run_id.to_owned()),
            uptime: Some(Duration::from_secs(3)),
            is_master: true,
            found: Found::Absent,
            key_count: Some(0),
            client_count: Some(0),
        }
    }

    fn all() -> Vec<Candidate> {
        ["r1", "r2", "r3"].map(blank).to_vec()
    }

    fn found_of(all: Vec<Candidate>) -> Result<Founding, NotNew> {
        found(&config(), &all.into_iter().map(Ok).collect::<Vec<_>>())
    }

    /// The result where the second master is changed.
    fn changed(change: impl FnOnce(&mut Candidate)) -> Result<Founding, NotNew> {
        let mut all = all();
        change(&mut all[1]);
        found_of(all)
    }

    #[test]
    fn new_and_empty_masters_are_declared() {
        let founding = found_of(all()).expect("they are new");
        assert_eq!((founding.is_done.as_slice(), founding.is_unsure), ([false; 3].as_slice(), false));
        for (place, run_id) in ["r1", "r2", "r3"].into_iter().enumerate() {
            assert!(founding.new[place].to_string().ends_with(&format!(" new={run_id}")));
            assert!(!founding.declared[place].to_string().contains("new="));
        }
        assert!(changed(|it| it.client_count = None).expect("new").is_unsure);
    }

    #[test]
    fn each_sign_of_use_refuses_it() {
        let master = || "redis://b:6379".to_owned();
        let mut unanswered: Vec<_> = all().into_iter().map(Ok).collect();
        unanswered[1] = Err("connection refused".to_owned());
        let damaged = Found::from_text(b"redlatch:fleet:1 x");
        let uptime = limits::FOUNDING_UPTIME_MAX * 2;
        let rows = [
            (
                found(&config(), &unanswered),
                NotNew::Unanswered { master: master(), why: "connection refused".into() },
            ),
            (changed(|it| it.run_id = None), NotNew::Unnamed { master: master() }),
            (changed(|it| it.is_master = false), NotNew::Replica { master: master() }),
            (
                changed(|it| it.run_id = Some("r1".into())),
                NotNew::SameServer { master: master(), other: "redis://a:6379".into() },
            ),
            (changed(|it| it.uptime = Some(uptime)), NotNew::Old { master: master(), uptime }),
            (changed(|it| it.uptime = None), NotNew::Unnamed { master: master() }),
            (changed(|it| it.found = damaged), NotNew::HasRecord { master: master() }),
            (changed(|it| it.key_count = Some(2)), NotNew::HasKeys { master: master(), count: 2 }),
            (changed(|it| it.key_count = None), NotNew::MayHaveKeys { master: master() }),
            (changed(|it| it.client_count = Some(1)), NotNew::HasClients { master: master(), count: 1 }),
        ];
        for (result, expected) in rows {
            let error = result.expect_err("a sign of use");
            assert_eq!(broken_rule(&error.to_string()), None, "{error}");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_second_run_completes_the_same_processes_only() {
        let first = found_of(all()).expect("new");
        // The first run ended in its first phase: the checks are made again.
        let mut begun = all();
        begun[0].found = Found::Known(first.declared[0].clone());
        assert_eq!(found_of(begun.clone()).expect("the same processes").new, first.new);
        let mut restarted = begun.clone();
        restarted[2].run_id = Some("another".to_owned());
        assert!(matches!(found_of(restarted), Err(NotNew::HasRecord { .. })));
        begun[2].client_count = Some(1);
        assert!(matches!(found_of(begun), Err(NotNew::HasClients { .. })));
        // It ended in its second phase: clients may be at work.
        let mut declared = all();
        for (candidate, record) in declared.iter_mut().zip(&first.declared) {
            (candidate.found, candidate.client_count) = (Found::Known(record.clone()), Some(3));
        }
        declared[1].found = Found::Known(first.new[1].clone());
        let founding = found_of(declared.clone()).expect("it goes on");
        assert_eq!(founding.is_done, [false, true, false]);
        declared[0].run_id = Some("another".to_owned());
        assert!(matches!(found_of(declared), Err(NotNew::HasRecord { .. })));
    }
}
