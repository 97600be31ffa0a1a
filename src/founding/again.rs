//! Declares masters in use again, with another `max_ttl` or drift allowance, while clients continue.
//!
//! ```text
//!  all masters answer ─► the longest quarantine passes ─► each has the same process ─► declared on each
//! ```
//!
//! Locks acquired under the earlier settings are valid at most for the length of the wait. A process that ran
//! throughout the wait has forgotten none of them, so its record says that it is new, as after `fleet init`.

use std::time::{Duration, Instant};

use super::{Candidate, Change, Refusal, Why, check_record, check_server, seen};
use crate::config::Config;
use crate::engine::masters::record::{Origin, Process, Record};
use crate::error::probe::ProbeError;

/// Next step of a new declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Again {
    /// Wait, then ask the masters again.
    Wait(Duration),
    /// Write these records, then ask the masters again.
    Write(Vec<Change>),
    /// The fleet is declared, with this record on its first master.
    Declared(Record),
}

/// A new declaration in progress.
#[derive(Debug)]
pub struct Redeclaration {
    config: Config,
    /// The masters' processes at the first answers, and the time of these answers.
    begun: Option<(Vec<String>, Instant)>,
}

impl Redeclaration {
    /// Returns the declaration of these settings.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config, begun: None }
    }

    /// Returns the next step. `now` must be later than the masters' answers.
    ///
    /// # Errors
    /// [`Refusal`] says what is wrong. The caller must then write nothing.
    pub fn next(
        &mut self,
        now: Instant,
        masters: &[Result<Candidate, ProbeError>],
    ) -> Result<Again, Refusal> {
        let config = &self.config;
        let (mut processes, mut records) = (Vec::new(), Vec::new());
        for (name, answer) in config.labels.iter().zip(masters) {
            let (candidate, run_id) = check_server(name, answer)?;
            if let Some(place) = processes.iter().position(|it| it == run_id) {
                return Err(Why::SameServer(config.labels[place].clone()).of(name));
            }
            processes.push(run_id.to_owned());
            records.push(check_record(name, &candidate.found)?);
        }
        let seen: Vec<_> =
            config.labels.iter().zip(masters).map(|(name, it)| seen(name, it.as_ref().ok())).collect();
        let mut longest = config.quarantine_time();
        for (name, record) in config.labels.iter().zip(&records) {
            let Some(record) = record else { continue };
            if *record.process() == Process::Joining {
                return Err(Why::Joining.of(name));
            }
            if let Some(difference) = record.difference_of_masters(&seen) {
                return Err(Why::Differs(difference).of(name));
            }
            longest = longest.max(record.quarantine_time(config));
        }
        let (first, since) = self.begun.get_or_insert_with(|| (processes.clone(), now));
        if let Some(place) = first.iter().zip(&processes).position(|(one, other)| one != other) {
            return Err(Why::ChangedMeanwhile.of(&config.labels[place]));
        }
        let declared = Record::of_fleet(config, &seen, Origin::Declared).expect("each process is known");
        let declared = declared.into_iter().zip(&processes).map(|(record, run_id)| record.with_new(run_id));
        let changes: Vec<_> = (records.into_iter().zip(declared).enumerate())
            .map(|(place, (from, to))| Change { place, from: from.cloned(), to })
            .collect();
        if changes.iter().all(|change| change.from.as_ref() == Some(&change.to)) {
            return Ok(Again::Declared(changes[0].to.clone()));
        }
        let left = (*since + longest).saturating_duration_since(now);
        if !left.is_zero() {
            return Ok(Again::Wait(left));
        }
        Ok(Again::Write(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::super::tests::blank;
    use super::*;
    use crate::engine::masters::record::Found;
    use crate::error::fleet::FleetDifference;

    const URLS: [&str; 3] = ["redis://a", "redis://b", "redis://c"];

    fn config(urls: &[&str], seconds: u64) -> Config {
        let max_ttl = Duration::from_secs(seconds);
        Config::builder().masters(urls).max_ttl(max_ttl).build().expect("valid")
    }

    /// Masters in use, declared with a `max_ttl` of 10 s.
    fn used() -> Vec<Candidate> {
        let mut masters = ["r1", "r2", "r3"].map(blank).to_vec();
        let new = masters.iter().cloned().map(Ok).collect::<Vec<_>>();
        apply(&mut masters, found(&config(&URLS, 10), &new).expect("they are new").changes);
        for master in &mut masters {
            (master.uptime, master.key_count, master.clients) =
                (Some(Duration::from_secs(86_400)), None, None);
        }
        masters
    }

    fn apply(masters: &mut [Candidate], changes: Vec<Change>) {
        for Change { place, from, to } in changes {
            assert_eq!(masters[place].found.record(), from.as_ref());
            masters[place].found = Found::Known(to);
        }
    }

    fn next(again: &mut Redeclaration, now: Instant, masters: &[Candidate]) -> Result<Again, Refusal> {
        again.next(now, &masters.iter().cloned().map(Ok).collect::<Vec<_>>())
    }

    // I35
    #[test]
    fn used_masters_are_declared_after_the_longer_ttl() {
        let now = crate::clock::now();
        for (seconds, wait_ms) in [(20, 20_202), (5, 10_102)] {
            let (mut masters, mut again) = (used(), Redeclaration::new(config(&URLS, seconds)));
            let wait = Duration::from_millis(wait_ms);
            assert_eq!(next(&mut again, now, &masters), Ok(Again::Wait(wait)));
            let ns = Duration::from_nanos(1);
            assert_eq!(next(&mut again, now + wait - ns, &masters), Ok(Again::Wait(ns)));
            let Ok(Again::Write(changes)) = next(&mut again, now + wait, &masters) else {
                panic!("it waits")
            };
            // A declaration that failed halfway is completed.
            apply(&mut masters, changes[..1].to_vec());
            let Ok(Again::Write(changes)) = next(&mut again, now + wait, &masters) else {
                panic!("it waits")
            };
            apply(&mut masters, changes);
            let Ok(Again::Declared(record)) = next(&mut again, now + wait, &masters) else {
                panic!("it goes on")
            };
            let text = record.to_string();
            assert!(text.contains(&format!("declared max_ttl_ms={seconds}000 ")), "{text}");
            assert!(text.ends_with(" new=r1"), "{text}");
            // Nothing to do, and nothing to wait for.
            let mut again = Redeclaration::new(config(&URLS, seconds));
            assert_eq!(next(&mut again, now, &masters), Ok(Again::Declared(record)));
        }
    }

    // I35
    #[test]
    fn process_that_changes_meanwhile_is_not_declared() {
        let (mut masters, mut again) = (used(), Redeclaration::new(config(&URLS, 20)));
        let now = crate::clock::now();
        assert!(matches!(next(&mut again, now, &masters), Ok(Again::Wait(_))));
        masters[1].run_id = Some("another".to_owned());
        let changed = Err(Why::ChangedMeanwhile.of(&"redis://b:6379".into()));
        assert_eq!(next(&mut again, now + Duration::from_secs(60), &masters), changed);
    }

    // I35
    #[test]
    fn other_masters_are_not_declared_again() {
        let now = crate::clock::now();
        let refused = |urls: &[&str], masters: &[Candidate]| {
            next(&mut Redeclaration::new(config(urls, 20)), now, masters).expect_err("it is refused").why
        };
        let fewer = FleetDifference::MasterCount { recorded: 3, ours: 2 };
        assert_eq!(refused(&URLS[..2], &used()[..2]), Why::Differs(fewer));
        let mut other = used();
        other[2] = blank("r4");
        let other = refused(&["redis://a", "redis://b", "redis://d"], &other);
        assert!(matches!(other, Why::Differs(FleetDifference::Masters { .. })), "{other:?}");
        let mut joining = used();
        let record = joining[2].found.record().expect("declared").to_string();
        joining[2].found = Found::from_text(format!("{record} joining").as_bytes());
        assert_eq!(refused(&URLS, &joining), Why::Joining);
        let mut twice = used();
        twice[2].run_id = Some("r1".to_owned());
        assert_eq!(refused(&URLS, &twice), Why::SameServer("redis://a:6379".into()));
    }
}
