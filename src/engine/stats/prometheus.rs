//! Prometheus's text exposition format, version 0.0.4.

use std::fmt::{self, Write};
use std::time::Duration;

use super::{MasterStats, Metric, Stats};
use crate::engine::stats::histogram::Histogram;

const CLIENT: Metric =
    Metric { name: "redlatch_client_info", help: "The holder label of the client; always 1." };
const READY: Metric =
    Metric { name: "redlatch_master_ready", help: "Whether the votes of a master count now." };
const QUARANTINED: Metric = Metric {
    name: "redlatch_master_quarantine_seconds_total",
    help: "Time for which the votes of a master did not count because it may have restarted.",
};
const ROUND_TRIP: Metric = Metric {
    name: "redlatch_master_round_trip_seconds",
    help: "Sampled time from the queuing of a request to its answer.",
};

impl Stats {
    /// Returns Prometheus's text exposition format, version 0.0.4 (content type
    /// `text/plain; version=0.0.4`), with times in seconds and the label `master`. Histograms have one bucket
    /// per power of two. If the client has a [`Stats::holder_label`], `redlatch_client_info` shows it.
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut page = Page(String::new());
        if let Some(holder) = &self.holder_label {
            page.begin(CLIENT, "gauge");
            page.sample(CLIENT.name, "", &label("holder_label", holder), &1);
        }
        for (metric, count) in self.counters() {
            page.begin(metric, "counter");
            page.sample(metric.name, "", "", count);
        }
        for (metric, value) in self.gauges() {
            page.begin(metric, "gauge");
            page.sample(metric.name, "", "", &value);
        }
        for (metric, times) in self.times() {
            page.begin(metric, "histogram");
            page.histogram(metric.name, "", times);
        }
        self.write_masters(&mut page);
        page.0
    }

    fn write_masters(&self, page: &mut Page) {
        let labels: Vec<String> = self.masters.iter().map(|master| label("master", &master.name)).collect();
        let masters = || self.masters.iter().zip(&labels);
        page.begin(READY, "gauge");
        masters().for_each(|(it, label)| page.sample(READY.name, "", label, &u64::from(it.is_ready)));
        let names = self.masters.first().map(MasterStats::counters);
        for (place, (metric, _)) in names.into_iter().flatten().enumerate() {
            page.begin(metric, "counter");
            masters().for_each(|(it, label)| page.sample(metric.name, "", label, it.counters()[place].1));
        }
        page.begin(QUARANTINED, "counter");
        masters().for_each(|(it, label)| page.sample(QUARANTINED.name, "", label, &Seconds(it.quarantined)));
        page.begin(ROUND_TRIP, "histogram");
        masters().for_each(|(it, label)| page.histogram(ROUND_TRIP.name, label, &it.round_trip));
    }
}

/// The text so far. Writing to a string cannot fail.
struct Page(String);

impl Page {
    fn begin(&mut self, metric: Metric, kind: &str) {
        let Metric { name, help } = metric;
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &str, value: &dyn fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name}{suffix} {value}"),
            _ => writeln!(self.0, "{name}{suffix}{{{labels}}} {value}"),
        };
    }

    fn histogram(&mut self, name: &str, labels: &str, times: &Histogram) {
        let separator = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        for (bucket, is_end) in times.buckets().zip(Histogram::octave_ends()) {
            count += bucket.count;
            if is_end {
                // Times are whole nanoseconds, and Prometheus's bucket bounds are inclusive.
                let end = Seconds(bucket.below - Duration::from_nanos(1));
                self.sample(name, "_bucket", &format!("{labels}{separator}le=\"{end}\""), &count);
            }
        }
        let count = times.count();
        self.sample(name, "_bucket", &format!("{labels}{separator}le=\"+Inf\""), &count);
        self.sample(name, "_sum", labels, &Seconds(times.sum()));
        self.sample(name, "_count", labels, &count);
    }
}

/// A time in seconds with nanosecond digits.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

/// A label with an escaped value.
fn label(name: &str, value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// A sample: its name, its labels as written, and its value.
    struct Sample<'a> {
        name: &'a str,
        labels: Vec<(&'a str, String)>,
        value: f64,
    }

    /// Parses a line of the format.
    fn sample(line: &str) -> Sample<'_> {
        let end = line.find(['{', ' ']).expect("a name ends");
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            while !rest.starts_with('}') {
                let (label, behind) = rest.split_once("=\"").expect("a label has a value");
                let (mut value, mut chars) = (String::new(), behind.char_indices());
                let end = loop {
                    match chars.next().expect("a value ends") {
                        (at, '"') => break at,
                        (_, '\\') => match chars.next().expect("an escape ends").1 {
                            'n' => value.push('\n'),
                            char @ ('\\' | '"') => value.push(char),
                            char => panic!("\\{char} is no escape"),
                        },
                        (_, char) => value.push(char),
                    }
                };
                labels.push((label, value));
                rest = behind[end + 1..].trim_start_matches(',');
            }
            rest = &rest[1..];
        }
        let value = rest.strip_prefix(' ').expect("one space").parse().expect("a number");
        Sample { name, labels, value }
    }

    fn is_name(name: &str) -> bool {
        let is_inner = |char: char| char.is_ascii_alphanumeric() || char == '_';
        name.starts_with(|char: char| char.is_ascii_alphabetic()) && name.chars().all(is_inner)
    }

    /// Checks a page of the format. Returns its samples by name and labels.
    fn checked(page: &str) -> BTreeMap<(String, Vec<(String, String)>), f64> {
        let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
        let (mut family, mut kind) = ("", "");
        assert!(page.ends_with('\n'));
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split_once(' ').expect("a help text").0;
                assert!(is_name(family) && families.insert(family), "{family} once");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, its) = rest.split_once(' ').expect("a type");
                assert_eq!(name, family, "the type follows the help text");
                kind = its;
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            } else {
                let Sample { name, labels, value } = sample(line);
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                let is_its = suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(family));
                assert!(is_its && value >= 0.0 && labels.iter().all(|(label, _)| is_name(label)), "{line}");
                let labels = labels.into_iter().map(|(label, value)| (label.to_owned(), value)).collect();
                assert!(samples.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
            }
        }
        samples
    }

    fn stats() -> Stats {
        let mut stats = Stats { quorum: 2, ..Stats::default() };
        for name in ["redis://a:1", "unix:/tmp/a \"b\\c\"\nd"] {
            let mut master = MasterStats { name: name.into(), ..MasterStats::default() };
            master.round_trip.record(Duration::from_micros(300));
            (master.granted, master.is_ready) = (7, true);
            stats.masters.push(master);
        }
        stats.acquired = 3;
        stats.holder_label = Some("web-3:\"a\"".into());
        for ms in [0, 1, 2, 10_000_000] {
            stats.hold_time.record(Duration::from_millis(ms));
        }
        stats
    }

    #[test]
    fn the_page_keeps_the_text_format() {
        let samples = checked(&stats().to_prometheus());
        let plain = |name: &str| samples[&(name.to_owned(), vec![])];
        assert_eq!((plain("redlatch_acquired_total"), plain("redlatch_masters_may_fail")), (3.0, 0.0));
        assert_eq!(
            (plain("redlatch_hold_seconds_count"), plain("redlatch_hold_seconds_sum")),
            (4.0, 10_000.003)
        );
        let nasty = vec![("master".to_owned(), "unix:/tmp/a \"b\\c\"\nd".to_owned())];
        assert_eq!(samples[&("redlatch_master_granted_total".to_owned(), nasty)], 7.0, "escaped");
        let label = vec![("holder_label".to_owned(), "web-3:\"a\"".to_owned())];
        assert_eq!(samples[&("redlatch_client_info".to_owned(), label)], 1.0);
    }

    #[test]
    fn histograms_are_cumulative_and_end_with_all() {
        let samples = checked(&stats().to_prometheus());
        let buckets = samples.iter().filter(|((name, _), _)| name == "redlatch_hold_seconds_bucket");
        let mut buckets: Vec<(f64, f64)> = buckets
            .map(|((_, labels), count)| {
                (labels[0].1.replace("+Inf", "inf").parse().expect("a bound"), *count)
            })
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        let below = |bound: f64| buckets.iter().rfind(|(le, _)| *le < bound).expect("a bucket").1;
        assert_eq!((buckets[0].1, below(0.003), below(4400.0)), (1.0, 3.0, 3.0));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 4.0)));
    }

    #[test]
    fn the_checker_refuses_what_the_format_forbids() {
        for bad in ["a{b=\"c} 1", "a{b=\"\\x\"} 1", "a  1", "a one"] {
            assert!(std::panic::catch_unwind(|| sample(bad).value).is_err(), "{bad}");
        }
    }
}
