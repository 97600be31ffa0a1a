//! The final report of `redlatch drill`.

use std::fmt::Write as _;
use std::time::Duration;

use redlatch::engine::quorum;
use redlatch::words::{Counted, Rounded};
use serde_json::json;

use super::contender::{Record, Second};
use super::course::Course;
use super::faults::Counts;
use super::witness::Found;
use crate::exit::code;

/// Largest number of rows that show the course of a drill.
const ROW_COUNT_MAX: usize = 12;
/// Largest number of overlaps that are shown.
const SHOWN_COUNT_MAX: usize = 5;

pub(super) struct Report {
    time: Duration,
    master_count: usize,
    contenders: usize,
    resources: usize,
    sum: Record,
    found: Found,
    faults: Counts,
    has_pauses: bool,
    has_hooks: bool,
    is_foreign: bool,
}

impl Report {
    pub(super) fn new(course: &Course<'_>, sum: Record, faults: Counts) -> Self {
        let args = course.args;
        Self {
            time: course.begun.elapsed().min(args.time),
            master_count: course.config.master_count(),
            contenders: args.contenders,
            resources: args.resources,
            sum,
            found: course.witness.found(),
            faults,
            has_pauses: args.pause,
            has_hooks: args.hook.is_some(),
            is_foreign: args.contender.is_some(),
        }
    }

    /// Returns the exit code. A defect takes precedence over the signal that ended the drill.
    pub(super) fn code(&self, of_signal: Option<u8>) -> u8 {
        match of_signal {
            _ if self.found.overlap_count > 0 => code::TWO_HOLDERS,
            _ if self.faults.unhealed.is_some() => code::FAULTS,
            Some(of_signal) => of_signal,
            None if self.sum.locked == 0 => code::NO_QUORUM,
            None if self.missing_faults().is_some() => code::FAULTS,
            None => 0,
        }
    }

    /// Longest run of whole seconds without a lock, and the number of all such seconds.
    fn seconds_without_locks(&self) -> (usize, usize) {
        let whole = usize::try_from(self.time.as_secs()).unwrap_or(usize::MAX);
        let (mut longest, mut sum, mut run) = (0, 0, 0);
        for index in 0..whole {
            let is_empty = self.sum.seconds.get(index).is_none_or(|second| !second.is_held);
            run = if is_empty { run + 1 } else { 0 };
            sum += usize::from(is_empty);
            longest = longest.max(run);
        }
        (longest, sum)
    }

    fn least_margin(&self) -> Option<usize> {
        self.sum.seconds.iter().filter_map(|second| second.margin).min()
    }

    /// Allowed kinds of fault that never happened.
    pub(super) fn missing_faults(&self) -> Option<String> {
        let Counts { pauses, hooks, .. } = self.faults;
        let kinds = [(self.has_pauses && pauses == 0, "pause"), (self.has_hooks && hooks == 0, "hook")];
        let missing: Vec<_> =
            kinds.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, name)| name).collect();
        (!missing.is_empty()).then(|| missing.join(" and no "))
    }

    fn faults_text(&self) -> String {
        let Counts { pauses, hooks, failed, unhealed } = &self.faults;
        if let Some(master) = unhealed {
            format!("{master} IS NOT HEALED: its hook failed at the end; heal it by hand")
        } else if self.has_pauses || self.has_hooks {
            format!(
                "{}, {}, {}",
                counted(*pauses, "pause"),
                counted(*hooks, "hook"),
                counted(*failed, "failed call")
            )
        } else {
            "none allowed (--pause, --hook)".to_owned()
        }
    }

    pub(super) fn text(&self) -> String {
        let Self { sum, found, .. } = self;
        let mut text = String::new();
        let (masters, quorum) = (self.master_count, quorum(self.master_count));
        let _ = writeln!(
            text,
            "{}, quorum {quorum}; {} clients, {}, {}",
            Counted(masters, "master"),
            self.contenders,
            Counted(self.resources, "lock"),
            Rounded(self.time)
        );
        let (longest, empty) = self.seconds_without_locks();
        let holders = match found.overlap_count {
            0 => format!("never, in {}", counted(found.visit_count, "visit")),
            1 => format!("ONCE in {}", counted(found.visit_count, "visit")),
            count => format!("{count} TIMES in {}", counted(found.visit_count, "visit")),
        };
        let margin = self.least_margin().map_or_else(
            || "unknown".to_owned(),
            |margin| format!("at least {} above the quorum", Counted(margin, "master")),
        );
        for (name, value) in [
            ("two holders", holders),
            ("locks", sum.locked.to_string()),
            (
                "refused",
                format!(
                    "{} contended, {} without a quorum, {} other",
                    sum.contended, sum.no_quorum, sum.failed
                ),
            ),
            (
                "ended early",
                format!(
                    "{} of the holders outlasted their lock, {} beside a holder",
                    sum.lost, found.outlasted_count
                ),
            ),
            ("late calls", format!("at most {} past the deadline", Rounded(sum.latest_call))),
            (
                "no locks",
                format!(
                    "{empty} s in all, {longest} s at most at a time; one lock for at most {}",
                    Rounded(found.longest_gap)
                ),
            ),
            ("margin", margin),
            ("faults", self.faults_text()),
            ("left", self.left()),
        ] {
            let _ = writeln!(text, "{name:<12} {value}");
        }
        for overlap in found.overlaps.iter().take(SHOWN_COUNT_MAX) {
            let _ = writeln!(text, "  {overlap}");
        }
        text.push_str("\n   second    locks  margin\n");
        let size = sum.seconds.len().div_ceil(ROW_COUNT_MAX).max(1);
        for (row, seconds) in sum.seconds.chunks(size).enumerate() {
            let mut all = Second::default();
            seconds.iter().for_each(|second| all.add(*second));
            let _ = writeln!(text, "{:>9} {:>8} {:>7}", row * size, all.locked, shown(all.margin));
        }
        text
    }

    fn left(&self) -> String {
        if self.is_foreign {
            return "unknown: the contenders are other programs".to_owned();
        }
        format!("{} not released everywhere; they end with their TTL", self.sum.unreleased)
    }

    pub(super) fn json(&self) -> String {
        let Self { sum, found, faults, .. } = self;
        let (longest, empty) = self.seconds_without_locks();
        let seconds: Vec<_> =
            sum.seconds.iter().map(|it| json!({ "locks": it.locked, "least_margin": it.margin })).collect();
        let value = json!({
            "seconds": self.time.as_secs_f64(),
            "masters": self.master_count,
            "quorum": quorum(self.master_count),
            "contenders": self.contenders,
            "resources": self.resources,
            "visits": found.visit_count,
            "two_holders": found.overlaps,
            "locks": sum.locked,
            "contended": sum.contended,
            "no_quorum": sum.no_quorum,
            "other_errors": sum.failed,
            "ended_early": sum.lost,
            "outlasted_beside_a_holder": found.outlasted_count,
            "latest_call_ms": sum.latest_call.as_secs_f64() * 1000.0,
            "seconds_without_locks": empty,
            "longest_seconds_without_locks": longest,
            "longest_gap_ms": found.longest_gap.as_secs_f64() * 1000.0,
            "least_margin": self.least_margin(),
            "faults": { "pauses": faults.pauses, "hooks": faults.hooks, "failed": faults.failed, "unhealed": faults.unhealed },
            "unreleased": (!self.is_foreign).then_some(sum.unreleased),
            "by_second": seconds,
        });
        format!("{value}\n")
    }
}

/// A count of another type than [`Counted`] takes.
fn counted(count: impl TryInto<usize>, what: &'static str) -> Counted {
    Counted(count.try_into().unwrap_or(usize::MAX), what)
}

fn shown(margin: Option<usize>) -> String {
    margin.map_or_else(|| "-".to_owned(), |margin| margin.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_seconds_without_locks_and_longest_run() {
        let seconds_of = |held: &str, time: u64| {
            let seconds = held.chars().map(|it| Second { is_held: it == 'x', ..Second::default() }).collect();
            let report = Report {
                time: Duration::from_secs(time),
                master_count: 3,
                contenders: 2,
                resources: 1,
                sum: Record { seconds, ..Record::default() },
                found: Found::default(),
                faults: Counts::default(),
                has_pauses: false,
                has_hooks: false,
                is_foreign: false,
            };
            report.seconds_without_locks()
        };
        assert_eq!(seconds_of("x--x---xx-", 10), (3, 6));
        assert_eq!(seconds_of("---x-", 5), (3, 4));
        assert_eq!(seconds_of("xxx", 3), (0, 0));
        assert_eq!(seconds_of("x", 4), (3, 3), "nobody recorded the others");
        assert_eq!(seconds_of("xx---", 2), (0, 0), "the rest is after the end");
    }

    #[test]
    fn the_worst_finding_is_the_exit_code() {
        let code_of = |overlap_count, unhealed: Option<&str>, locked, of_signal| {
            let report = Report {
                time: Duration::from_secs(1),
                master_count: 3,
                contenders: 1,
                resources: 1,
                sum: Record { locked, ..Record::default() },
                found: Found { overlap_count, ..Found::default() },
                faults: Counts { unhealed: unhealed.map(Into::into), ..Counts::default() },
                has_pauses: false,
                has_hooks: false,
                is_foreign: false,
            };
            report.code(of_signal)
        };
        assert_eq!(code_of(0, None, 1, None), 0);
        assert_eq!(code_of(0, None, 0, None), code::NO_QUORUM);
        assert_eq!(code_of(0, None, 0, Some(130)), 130);
        assert_eq!(code_of(0, Some("m"), 1, Some(130)), code::FAULTS);
        assert_eq!(code_of(1, Some("m"), 1, Some(130)), code::TWO_HOLDERS);
    }

    #[test]
    fn report_names_faults_that_never_happened() {
        let missing = |options: &[&str], pauses, hooks| {
            super::super::course::course_of(options, |course| {
                let record = Record { locked: 1, ..Record::default() };
                let report = Report::new(course, record, Counts { pauses, hooks, ..Counts::default() });
                (report.missing_faults(), report.code(None), report.code(Some(130)))
            })
        };
        let both = ["--pause", "--hook", "true"];
        assert_eq!(missing(&[], 0, 0), (None, 0, 130));
        assert_eq!(missing(&["--pause"], 1, 0), (None, 0, 130));
        assert_eq!(missing(&["--pause"], 0, 0), (Some("pause".to_owned()), 2, 130));
        assert_eq!(missing(&both, 0, 0), (Some("pause and no hook".to_owned()), 2, 130));
        assert_eq!(missing(&both, 2, 0), (Some("hook".to_owned()), 2, 130));
        assert_eq!(missing(&both, 1, 1), (None, 0, 130));
    }

    #[test]
    fn each_count_has_its_place() {
        let second = |locked, is_held, margin| Second { locked, is_held, margin };
        let record = Record {
            locked: 11,
            contended: 12,
            no_quorum: 13,
            failed: 14,
            lost: 15,
            latest_call: Duration::from_millis(16),
            seconds: vec![second(17, true, Some(2)), second(0, false, None), second(18, true, Some(1))],
            unreleased: 19,
        };
        let mut sum = record.clone();
        sum.add(&Record { latest_call: Duration::from_millis(1), ..record });
        let faults = Counts { pauses: 20, hooks: 21, failed: 22, unhealed: None };
        let mut report = Report {
            time: Duration::from_secs(3),
            master_count: 5,
            contenders: 23,
            resources: 24,
            sum,
            found: Found {
                visit_count: 25,
                overlap_count: 26,
                overlaps: vec!["both".to_owned()],
                outlasted_count: 27,
                longest_gap: Duration::from_millis(28),
            },
            faults,
            has_pauses: true,
            has_hooks: true,
            is_foreign: false,
        };
        let found: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        let expected = json!({
            "seconds": 3.0, "masters": 5, "quorum": 3, "contenders": 23, "resources": 24,
            "visits": 25, "two_holders": ["both"], "locks": 22, "contended": 24, "no_quorum": 26,
            "other_errors": 28, "ended_early": 30, "outlasted_beside_a_holder": 27, "latest_call_ms": 16.0,
            "seconds_without_locks": 1, "longest_seconds_without_locks": 1, "longest_gap_ms": 28.0, "least_margin": 1,
            "faults": { "pauses": 20, "hooks": 21, "failed": 22, "unhealed": null }, "unreleased": 38,
            "by_second": [
                { "locks": 34, "least_margin": 2 },
                { "locks": 0, "least_margin": null },
                { "locks": 36, "least_margin": 1 },
            ],
        });
        assert_eq!(found, expected);
        let mut pages = vec![report.text()];
        report.faults.unhealed = Some("redis://10.0.0.1:6379".into());
        report.found = Found { visit_count: 25, ..Found::default() };
        pages.push(report.text());
        report.faults = Counts::default();
        (report.has_pauses, report.has_hooks) = (false, false);
        report.sum.seconds = (0..30).map(|locked| second(locked, true, None)).collect();
        pages.push(report.text());
        redlatch_support::assert_golden("drill", &pages.join("\n"));
    }

    #[test]
    fn report_names_limits_and_contenders() {
        for (options, said) in [
            (&[][..], &["none allowed (--pause, --hook)", "0 not released everywhere"][..]),
            (&["--pause"], &["0 pauses, 0 hooks, 0 failed calls", "2 clients"]),
            (&["--hook", "true"], &["0 pauses, 0 hooks, 0 failed calls"]),
            (&["--contender", "true"], &["none allowed", "unknown: the contenders are other"]),
        ] {
            let words = [&["--contenders", "2"], options].concat();
            let text = super::super::course::course_of(&words, |course| {
                Report::new(course, Record::default(), Counts::default()).text()
            });
            for part in said {
                assert!(text.contains(part), "{options:?}: {part} is not in {text}");
            }
        }
    }
}
