//! Tables for a terminal.

use std::fmt::Write;

use crate::counts::Counts;
use crate::figures::{Fate, Machine, PeerFigures, ScenarioFigures};
use crate::load::Round;
use crate::rivals::Peer;
use crate::scenario::Network;

pub(super) const COUNTS_TITLE: &str = "Counts per pair (N = 5)";

/// The first column is text, and the others are figures.
pub(super) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&text| text.to_owned()).collect(), rows: Vec::new() }
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(super) fn to_text(&self, title: &str) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells =
                    self.rows.iter().filter(|row| row.len() > 2).map(|row| row[column].chars().count());
                let names = self.rows.iter().map(|row| if column == 0 { row[0].chars().count() } else { 0 });
                cells.chain(names).chain([self.header[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let mut text = format!("{title}\n");
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let _ = write!(text, "  {:<width$}", row[0], width = widths[0]);
            if let [_, note] = row.as_slice() {
                let _ = write!(text, "  {note}");
            } else {
                for (cell, width) in row.iter().zip(&widths).skip(1) {
                    let _ = write!(text, "  {cell:>width$}");
                }
            }
            text.push('\n');
        }
        text
    }

    pub(super) fn to_markdown(&self) -> String {
        let mut text =
            format!("| {} |\n|---|{}\n", self.header.join(" | "), "---:|".repeat(self.header.len() - 1));
        for row in &self.rows {
            let mut cells = row.clone();
            cells.resize(self.header.len(), String::new());
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }
}

/// A column: its name, and a peer's cell.
type Column<'a> = (&'a str, Box<dyn Fn(&PeerFigures) -> String + 'a>);

pub(super) fn of_scenario(played: &ScenarioFigures) -> Table {
    let columns = columns(played);
    let mut header = vec!["peer"];
    header.extend(columns.iter().map(|(name, _)| *name));
    let mut table = Table::new(&header);
    for figures in &played.peers {
        let name = figures.peer.name().to_owned();
        if matches!(figures.fate, Fate::NotApplicable(_)) {
            continue;
        }
        if figures.rounds.is_empty() {
            table.push(vec![name, fate(&figures.fate)]);
            continue;
        }
        let mut row = vec![name];
        row.extend(columns.iter().map(|(_, cell)| cell(figures)));
        if figures.fate != Fate::Done {
            row[0] = format!("{} ({})", row[0], fate(&figures.fate));
        }
        table.push(row);
    }
    table
}

fn columns(played: &ScenarioFigures) -> Vec<Column<'_>> {
    let scenario = &played.scenario;
    let median = |figure: fn(&Round) -> f64| move |peer: &PeerFigures| number(peer.median(figure));
    let mut columns: Vec<Column<'_>> = Vec::new();
    let rate: fn(&Round) -> f64 = Round::pairs_per_second;
    let acquire: fn(&Round) -> f64 = |round| round.acquire_p50_us;
    if matches!(scenario.network, Network::Delayed(_)) {
        columns.push(("acquire, median µs", Box::new(median(acquire))));
        if let Some(round_trip) = scenario.quorum_round_trip() {
            let nominal_us = round_trip.as_secs_f64() * 1e6;
            columns.push((
                "÷ quorum round trip",
                Box::new(move |peer| ratio(peer.median(acquire).map(|time| time / nominal_us))),
            ));
        }
        columns.push((
            "÷ raw loop at the quorum",
            Box::new(move |peer| ratio(played.ratio(peer, Peer::RawQuorum, acquire))),
        ));
        columns.push(("÷ redlatch", Box::new(move |peer| ratio(played.ratio(peer, scenario.ours, acquire)))));
    } else {
        columns.push(("pairs/s", Box::new(median(rate))));
        columns.push((
            "redlatch is × faster",
            Box::new(move |peer| {
                ratio(played.ratio(peer, scenario.ours, |round| 1.0 / round.pairs_per_second()))
            }),
        ));
        if let Some(floor) = scenario.floor {
            let name =
                if floor == Peer::RawQuorum { "÷ raw loop at the quorum" } else { "÷ raw loop for all" };
            columns.push((name, Box::new(move |peer| ratio(played.ratio(peer, floor, rate)))));
        }
        columns.push(("acquire, median µs", Box::new(median(acquire))));
    }
    columns.push(("p99 µs", Box::new(median(|round| round.acquire_p99_us))));
    columns.push(("CPU µs a pair", Box::new(median(Round::cpu_us_per_pair))));
    if scenario.work.one_key || scenario.network == Network::OneStopped {
        columns.push(("longest ms", Box::new(longest)));
    }
    if scenario.work.one_key {
        columns.push(("fewest ÷ most of a caller", Box::new(|peer| ratio(peer.median(fairness)))));
    }
    columns.push(("errors", Box::new(|peer| peer.errors().to_string())));
    columns
}

/// One caller's longest wait over all rounds.
fn longest(peer: &PeerFigures) -> String {
    let longest = peer.rounds.iter().map(|round| round.acquire_max_us / 1e3).fold(0.0, f64::max);
    number(Some(longest))
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs are far below 2^52")]
fn fairness(round: &Round) -> f64 {
    round.fewest as f64 / round.most.max(1) as f64
}

fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Done => "no pair".to_owned(),
        Fate::NotApplicable(reason) => format!("not applicable: {reason}"),
        Fate::StoppedAfter(seconds) => format!("stopped after {seconds:.0} s"),
        Fate::Failed(error) => format!("failed: {error}"),
    }
}

pub(super) fn of_counts(counts: &[Counts]) -> Table {
    let mut table = Table::new(&["peer", "callers", "allocations", "system calls", "user instructions"]);
    for line in counts {
        let name = line.peer.name().to_owned();
        let cells = [line.allocations, line.system_calls, line.instructions];
        let mut row = vec![name, line.callers.to_string()];
        row.extend(cells.into_iter().enumerate().map(|(index, cell)| match cell {
            Some(count) if index == 2 => number(Some(count)),
            Some(count) => format!("{count:.2}"),
            None => "–".to_owned(),
        }));
        table.push(row);
    }
    table
}

pub(super) fn machine_line(machine: &Machine) -> String {
    format!(
        "{}, {} cores shared by the peers and the servers, {}, {}; {}; load before the run {}",
        machine.cpu, machine.core_count, machine.kernel, machine.server, machine.date, machine.load_before
    )
}

/// Three significant digits, with thousands separators.
pub(super) fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "–".to_owned() };
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2}"))
}
