//! Output of `redlatch bench`: progress on stderr, the result on stdout as a table or as JSON. Also the limit
//! and the measurements of a phase, which both show.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::output::whole_ms;
use redlatch::engine::quorum;
use redlatch::stats::Histogram;
use redlatch::status::{MasterState, MasterStatus};
use redlatch::words::{Counted, Rounded};
use serde_json::{Value, json};

use super::args::Args;
use super::ping::{RoundTrip, mean};
use crate::output::{self, stderr_is_terminal};

/// When a phase ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    Pairs(u64),
    Time(Duration),
}

impl Limit {
    pub(super) fn is_reached(self, attempts: u64, elapsed: Duration) -> bool {
        match self {
            Self::Pairs(count) => attempts >= count,
            Self::Time(time) => elapsed >= time,
        }
    }

    /// Percentage of the phase that is over.
    fn percent(self, attempts: u64, elapsed: Duration) -> u128 {
        let (done, all) = match self {
            Self::Pairs(count) => (attempts, count),
            Self::Time(time) => (whole_ms(elapsed), whole_ms(time)),
        };
        (u128::from(done) * 100 / u128::from(all.max(1))).min(100)
    }
}

/// Measurements of one phase.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) acquire: Histogram,
    pub(super) release: Histogram,
    pub(super) pairs: u64,
    pub(super) elapsed: Duration,
    /// Errors by kind: their number, and the text of the first one.
    pub(super) errors: BTreeMap<&'static str, (u64, String)>,
}

impl Measured {
    pub(super) fn note_error(&mut self, kind: &'static str, error: &dyn fmt::Display) {
        self.errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
    }
}

/// The result, with the facts that a reader needs.
pub(super) struct Report<'a> {
    pub(super) args: &'a Args,
    pub(super) masters: Vec<MasterStatus>,
    pub(super) round_trip: Option<RoundTrip>,
    pub(super) measured: Measured,
}

impl Report<'_> {
    pub(super) fn text(&self) -> String {
        if self.args.json { format!("{}\n", self.json()) } else { self.table() }
    }

    fn ready_count(&self) -> usize {
        self.masters.iter().filter(|master| master.state == MasterState::Ready).count()
    }

    fn pairs_per_s(&self) -> f64 {
        let seconds = self.measured.elapsed.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
        let pairs = self.measured.pairs as f64;
        if seconds > 0.0 { pairs / seconds } else { 0.0 }
    }

    fn table(&self) -> String {
        let Self { args, masters, measured, .. } = self;
        let mut text = format!(
            "{} of {} masters ready, quorum {}; depth {}, {}, TTL {}, releases {}awaited\n\n",
            self.ready_count(),
            masters.len(),
            quorum(masters.len()),
            args.depth,
            Counted(args.key_count(), "key"),
            Rounded(args.ttl),
            if args.no_await_release { "not " } else { "" }
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
            "\n{} in {:.2} s: {:.0} pairs/s",
            counted(measured.pairs, "pair"),
            measured.elapsed.as_secs_f64(),
            self.pairs_per_s()
        );
        self.write_round_trip(&mut text);
        for (kind, (count, first)) in &measured.errors {
            let _ = writeln!(text, "{}: {kind}; the first: {first}", counted(*count, "error"));
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
        if self.args.depth == 1 && self.measured.acquire.count() > 0 {
            let ratio = mean(&self.measured.acquire).as_secs_f64() / all.as_secs_f64();
            let _ = writeln!(text, "an acquire took {ratio:.2} of the round trip to all (mean)");
        }
    }

    fn json(&self) -> Value {
        let Self { args, masters, measured, .. } = self;
        let errors = measured.errors.iter();
        json!({
            "masters": masters.len(),
            "masters_ready": self.ready_count(),
            "quorum": quorum(masters.len()),
            "depth": args.depth,
            "keys": args.key_count(),
            "ttl_ms": whole_ms(args.ttl),
            "await_release": !args.no_await_release,
            "fair": args.fair,
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

/// Figures of a histogram, in the order of the table.
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

/// Figures in microseconds, or null if nothing was measured.
fn in_json(histogram: &Histogram) -> Value {
    if histogram.count() == 0 {
        return Value::Null;
    }
    let figures = summary(histogram).map(|(name, time)| (name.to_owned(), Value::from(micros(time))));
    Value::Object(figures.into_iter().collect())
}

fn counted(count: u64, what: &'static str) -> Counted {
    Counted(usize::try_from(count).unwrap_or(usize::MAX), what)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Progress on stderr: in place on a terminal, otherwise a new line now and then.
pub(super) struct Progress {
    pub(super) limit: Limit,
    pub(super) shown_at: Duration,
}

/// Interval of changes on a terminal.
const CHANGE_EVERY: Duration = Duration::from_millis(100);

/// Interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

impl Progress {
    pub(super) fn show(&mut self, elapsed: Duration, attempts: u64, pairs: u64) {
        let every = if stderr_is_terminal() { CHANGE_EVERY } else { LINE_EVERY };
        if elapsed < self.shown_at + every {
            return;
        }
        self.shown_at = elapsed;
        let percent = self.limit.percent(attempts, elapsed);
        let text = format!("{percent}%, {:.1} s, {}", elapsed.as_secs_f64(), counted(pairs, "pair"));
        output::show_progress(&text);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        output::clear();
    }
}

#[cfg(test)]
mod tests;
