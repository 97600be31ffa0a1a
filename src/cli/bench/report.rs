//! Output of `redlatch bench`: progress on stderr, the result on stdout as a table or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use redlatch::internals::words::Rounded;
use redlatch::stats::Histogram;
use serde_json::{Value, json};

use super::ping::{RoundTrip, mean};
use super::{Limit, Measured};
use crate::output::{self, say, stderr_is_terminal, whole_ms};

/// The result, and what is needed to read it.
pub(super) struct Report {
    pub(super) master_count: usize,
    /// Masters whose votes counted at the end.
    pub(super) ready_count: usize,
    pub(super) quorum: usize,
    pub(super) depth: usize,
    pub(super) key_count: usize,
    pub(super) ttl: Duration,
    pub(super) awaits_release: bool,
    pub(super) fair: bool,
    pub(super) round_trip: Option<RoundTrip>,
    pub(super) measured: Measured,
}

impl Report {
    pub(super) fn text(&self, as_json: bool) -> String {
        if as_json { format!("{}\n", self.json()) } else { self.table() }
    }

    fn pairs_per_s(&self) -> f64 {
        let seconds = self.measured.elapsed.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
        let pairs = self.measured.pairs as f64;
        if seconds > 0.0 { pairs / seconds } else { 0.0 }
    }

    fn table(&self) -> String {
        let Self { measured, .. } = self;
        let mut text = format!(
            "{} of {} masters ready, quorum {}; depth {}, {} keys, TTL {}, releases {}awaited\n\n",
            self.ready_count,
            self.master_count,
            self.quorum,
            self.depth,
            self.key_count,
            Rounded(self.ttl),
            if self.awaits_release { "" } else { "not " }
        );
        let _ =
            writeln!(text, "{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "mean", "p50", "p99", "p99.9", "max");
        for (name, histogram) in [("acquire", &measured.acquire), ("release", &measured.release)] {
            if histogram.count() > 0 {
                let _ = write!(text, "{name:<12}");
                for (_, value) in summary(histogram) {
                    let _ = write!(text, "{:>10}", Rounded(value).to_string());
                }
                text.push('\n');
            }
        }
        let _ = writeln!(
            text,
            "\n{} pairs in {:.2} s: {:.0} pairs/s",
            measured.pairs,
            measured.elapsed.as_secs_f64(),
            self.pairs_per_s()
        );
        self.write_round_trip(&mut text);
        for (kind, (count, first)) in &measured.errors {
            let _ = writeln!(text, "{count} errors: {kind}; the first: {first}");
        }
        text
    }

    fn write_round_trip(&self, text: &mut String) {
        let Some(RoundTrip { one, all }) = self.round_trip else { return };
        let _ = writeln!(
            text,
            "round trip of PING in this run: {} to one master, {} to all at once (mean)",
            Rounded(one),
            Rounded(all),
        );
        if self.depth == 1 && self.measured.acquire.count() > 0 {
            let ratio = mean(&self.measured.acquire).as_secs_f64() / all.as_secs_f64();
            let _ = writeln!(text, "an acquire took {ratio:.2} of the round trip to all (mean)");
        }
    }

    fn json(&self) -> Value {
        let Self { measured, .. } = self;
        let errors = measured.errors.iter();
        json!({
            "masters": self.master_count,
            "masters_ready": self.ready_count,
            "quorum": self.quorum,
            "depth": self.depth,
            "keys": self.key_count,
            "ttl_ms": whole_ms(self.ttl),
            "await_release": self.awaits_release,
            "fair": self.fair,
            "pairs": measured.pairs,
            "elapsed_s": measured.elapsed.as_secs_f64(),
            "pairs_per_s": self.pairs_per_s(),
            "acquire_us": in_json(&measured.acquire),
            "release_us": in_json(&measured.release),
            "round_trip_us": self.round_trip.map(|trip| json!({
                "one": micros(trip.one),
                "all": micros(trip.all),
            })),
            "errors": errors
                .map(|(kind, (count, first))| json!({ "kind": kind, "count": count, "first": first }))
                .collect::<Vec<_>>(),
        })
    }
}

/// The figures of a histogram, in the order of the table.
fn summary(histogram: &Histogram) -> [(&'static str, Duration); 5] {
    let quantile = |q| histogram.quantile(q).unwrap_or_default();
    [
        ("mean", mean(histogram)),
        ("p50", quantile(0.5)),
        ("p99", quantile(0.99)),
        ("p99_9", quantile(0.999)),
        ("max", histogram.max()),
    ]
}

/// Microseconds, or null if nothing was measured.
fn in_json(histogram: &Histogram) -> Value {
    if histogram.count() == 0 {
        return Value::Null;
    }
    let figures = summary(histogram).map(|(name, time)| (name.to_owned(), Value::from(micros(time))));
    Value::Object(figures.into_iter().collect())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A line on stderr: on a terminal it changes in place, elsewhere there is another one now and then.
pub(super) struct Progress {
    limit: Limit,
    shown_at: Duration,
    is_hidden: bool,
}

/// How often the line changes.
const CHANGE_EVERY: Duration = Duration::from_millis(100);

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

impl Progress {
    pub(super) const fn new(limit: Limit) -> Self {
        Self { limit, shown_at: Duration::ZERO, is_hidden: false }
    }

    /// Shows nothing.
    pub(super) const fn hidden() -> Self {
        Self { limit: Limit::Pairs(0), shown_at: Duration::ZERO, is_hidden: true }
    }

    pub(super) fn show(&mut self, elapsed: Duration, attempts: u64, pairs: u64) {
        let every = if stderr_is_terminal() { CHANGE_EVERY } else { LINE_EVERY };
        if self.is_hidden || elapsed < self.shown_at + every {
            return;
        }
        self.shown_at = elapsed;
        let (done, all) = match self.limit {
            Limit::Pairs(count) => (attempts, count),
            Limit::Time(time) => (whole_ms(elapsed), whole_ms(time)),
        };
        let percent = (u128::from(done) * 100 / u128::from(all.max(1))).min(100);
        let text = format!("{percent}%, {:.1} s, {pairs} pairs", elapsed.as_secs_f64());
        if stderr_is_terminal() { output::show(&text) } else { say(text) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        output::clear();
    }
}
