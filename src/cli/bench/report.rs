//! What `redlatch bench` shows: progress on stderr, the result on stdout as a table or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use redlatch::internals::words::Rounded;
use serde_json::{Value, json};

use super::{Limit, Measured};
use crate::cli::options::{say, stderr_is_terminal};
use crate::cli::ping::RoundTrip;

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
    pub(super) fn print(&self, as_json: bool) {
        let text = if as_json { format!("{}\n", self.json()) } else { self.table() };
        // A reader that closed the pipe does not want it.
        let _ = io::stdout().lock().write_all(text.as_bytes());
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
            writeln!(text, "{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "min", "p50", "p99", "p99.9", "max");
        for (name, histogram) in [("acquire", &measured.acquire), ("release", &measured.release)] {
            if !histogram.is_empty() {
                let _ = write!(text, "{name:<12}");
                for (_, value) in summary(histogram) {
                    let _ = write!(text, "{:>10}", shown(value));
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
            "round trip by PING over plain sockets in this run: {} to one master, {} to all at once",
            Rounded(one),
            Rounded(all),
        );
        if self.depth == 1 && !self.measured.acquire.is_empty() {
            let acquire = Duration::from_nanos(self.measured.acquire.value_at_quantile(0.5));
            let ratio = acquire.as_secs_f64() / all.as_secs_f64();
            let _ = writeln!(text, "an acquire took {ratio:.2} of the round trip to all (p50)");
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
            "ttl_ms": u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            "await_release": self.awaits_release,
            "fair": self.fair,
            "pairs": measured.pairs,
            "elapsed_s": measured.elapsed.as_secs_f64(),
            "pairs_per_s": self.pairs_per_s(),
            "acquire_us": in_json(&measured.acquire),
            "release_us": in_json(&measured.release),
            "round_trip_us": self.round_trip.map(|trip| json!({
                "one": trip.one.as_secs_f64() * 1e6,
                "all": trip.all.as_secs_f64() * 1e6,
            })),
            "errors": errors
                .map(|(kind, (count, first))| json!({ "kind": kind, "count": count, "first": first }))
                .collect::<Vec<_>>(),
        })
    }
}

/// The figures of a histogram in nanoseconds, in the order of the table.
fn summary(histogram: &Histogram<u64>) -> [(&'static str, u64); 5] {
    [
        ("min", histogram.min()),
        ("p50", histogram.value_at_quantile(0.5)),
        ("p99", histogram.value_at_quantile(0.99)),
        ("p99_9", histogram.value_at_quantile(0.999)),
        ("max", histogram.max()),
    ]
}

/// Microseconds, or null if nothing was measured.
fn in_json(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let figures = summary(histogram)
        .map(|(name, ns)| (name.to_owned(), Value::from(Duration::from_nanos(ns).as_secs_f64() * 1e6)));
    Value::Object(figures.into_iter().collect())
}

fn shown(ns: u64) -> String {
    Rounded(Duration::from_nanos(ns)).to_string()
}

/// A bar on a terminal, else a line now and then; both on stderr.
pub(super) struct Progress {
    limit: Limit,
    bar: Option<ProgressBar>,
    shown_at: Duration,
    is_hidden: bool,
}

/// How often the bar moves.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

impl Progress {
    pub(super) fn new(limit: Limit) -> Self {
        let length = match limit {
            Limit::Pairs(count) => count,
            Limit::Time(time) => milliseconds(time),
        };
        let bar = stderr_is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{bar:40} {percent:>3}%  {msg}").expect("a valid template");
            ProgressBar::new(length).with_style(style)
        });
        Self { limit, bar, shown_at: Duration::ZERO, is_hidden: false }
    }

    /// Shows nothing.
    pub(super) const fn hidden() -> Self {
        Self { limit: Limit::Pairs(0), bar: None, shown_at: Duration::ZERO, is_hidden: true }
    }

    pub(super) fn show(&mut self, elapsed: Duration, attempts: u64, pairs: u64) {
        let every = if self.bar.is_some() { BAR_EVERY } else { LINE_EVERY };
        if self.is_hidden || elapsed < self.shown_at + every {
            return;
        }
        self.draw(elapsed, attempts, pairs);
    }

    fn draw(&mut self, elapsed: Duration, attempts: u64, pairs: u64) {
        self.shown_at = elapsed;
        let text = format!("{:.1} s, {pairs} pairs", elapsed.as_secs_f64());
        match &self.bar {
            Some(bar) => {
                let length = bar.length().unwrap_or_default();
                bar.set_message(text);
                bar.set_position(length.min(match self.limit {
                    Limit::Pairs(_) => attempts,
                    Limit::Time(_) => milliseconds(elapsed),
                }));
            }
            None => say(text),
        }
    }

    /// Leaves the bar where the load ended, which a Ctrl-C may have made early.
    pub(super) fn finish(&mut self, elapsed: Duration, attempts: u64, pairs: u64) {
        if self.bar.is_some() {
            self.draw(elapsed, attempts, pairs);
        }
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
