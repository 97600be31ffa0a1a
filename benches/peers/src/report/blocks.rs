//! The pages' tables, by name. A cell shows a median over the rounds; a ratio is the median of ratios within
//! a round.

use std::fmt::Write;

use super::tables::{Table, machine_line, number, ratio};
use crate::figures::{Fate, Figures, PeerFigures, ScenarioFigures};
use crate::load::Round;
use crate::rivals::Peer;

const DASH: &str = "–";
const CALLERS: [&str; 6] =
    ["callers-1", "callers-4", "callers-16", "callers-64", "callers-128", "callers-1024"];
const OTHERS: [&str; 2] = ["one-key-16", "one-stopped"];
const TIMES: [&str; 8] = [
    "callers-1",
    "callers-4",
    "callers-16",
    "callers-64",
    "callers-128",
    "callers-1024",
    "one-key-16",
    "rtt-mixed",
];
const SIZES: [&str; 4] =
    ["masters-1", "masters-1-callers-128", "masters-3-callers-128", "masters-7-callers-128"];
/// Forms of redlatch in the table of targets.
const OURS: [(Peer, &str); 4] = [
    (Peer::Client, "threads"),
    (Peer::ClientTasks, "tasks"),
    (Peer::Redlatch, "`Redlock`"),
    (Peer::RedlatchPipelined, "pipelined"),
];
const RIVALS: [Peer; 5] = [Peer::RedisRs, Peer::RedisRsThreads, Peer::Fred, Peer::Rslock, Peer::Redlock];

/// The table with this name.
pub(super) fn table(figures: &Figures, name: &str) -> Option<String> {
    Some(match name {
        "machine" => machine(figures),
        "participants" => participants(figures),
        "rates" => of_peers(figures, &CALLERS, &rate) + &scatters(figures, &CALLERS),
        "other-rates" => of_peers(figures, &OTHERS, &rate),
        "cpu" => of_peers(figures, &CALLERS, &|_, peer| {
            peer.median(Round::cpu_us_per_pair).map(|us| number(Some(us)))
        }),
        "times" => of_peers(figures, &TIMES, &|_, peer| {
            let p99 = number(peer.median(|round| round.acquire_p99_us));
            Some(format!("{}/{p99}", number(Some(peer.median(acquire_us)?))))
        }),
        "sizes" => of_peers(figures, &SIZES, &rate),
        "counts" => counts(figures),
        "targets" => targets(figures),
        "front" => front(figures),
        _ => return None,
    })
}

fn machine(figures: &Figures) -> String {
    format!(
        "Measured on {}. {} rounds of {} ms for each peer and kind of work, three times as long on one key{}.\n",
        machine_line(&figures.machine),
        figures.round_count,
        figures.round_ms,
        if figures.quick { " (a quick run: rough figures)" } else { "" }
    )
}

fn participants(figures: &Figures) -> String {
    let mut text = String::from("| peer | version | settings |\n|---|---|---|\n");
    for peer in Peer::shown() {
        let version = figures.versions.iter().find(|(of, _)| *of == peer);
        let version = version.map_or(DASH, |(_, version)| version);
        let _ = writeln!(text, "| {} | {version} | {} |", peer.name(), peer.settings());
    }
    text
}

/// The raw loop compared with itself in each of these scenarios, as a paragraph.
fn scatters(figures: &Figures, ids: &[&str]) -> String {
    let played = ids.iter().filter_map(|id| scenario(figures, id));
    let shown = played.filter_map(|played| Some(format!("{} {}", played.scenario.title, played.scatter()?)));
    let shown = shown.collect::<Vec<_>>().join("; ");
    let intro = "The raw loop ÷ itself, with the least and the most of a round";
    if shown.is_empty() { shown } else { format!("\n{intro}: {shown}.\n") }
}

fn acquire_us(round: &Round) -> f64 {
    round.acquire_p50_us
}

/// Pairs per second, and redlatch's speed-up.
fn rate(played: &ScenarioFigures, peer: &PeerFigures) -> Option<String> {
    let pairs = number(Some(peer.median(Round::pairs_per_second)?));
    let faster = played.ratio(peer, played.scenario.ours, |round| 1.0 / round.pairs_per_second());
    Some(format!("{pairs} ({})", times(faster)))
}

/// A row for each peer, a column for each of these scenarios, and faults below.
fn of_peers(
    figures: &Figures,
    ids: &[&str],
    cell: &dyn Fn(&ScenarioFigures, &PeerFigures) -> Option<String>,
) -> String {
    let played: Vec<&ScenarioFigures> = ids.iter().filter_map(|id| scenario(figures, id)).collect();
    let titles = played.iter().map(|played| played.scenario.title);
    let mut table = Table::new(&["peer"].into_iter().chain(titles).collect::<Vec<_>>());
    let mut notes = String::new();
    for peer in Peer::shown() {
        let mut row = vec![peer.name().to_owned()];
        for played in &played {
            let figures = played.of(peer);
            row.push(figures.and_then(|it| cell(played, it)).unwrap_or(DASH.to_owned()));
            let Some(trouble) = figures.and_then(trouble) else { continue };
            let _ = writeln!(notes, "- {}, {}: {trouble}", peer.name(), played.scenario.title);
        }
        table.push(row);
    }
    let gap = if notes.is_empty() { "" } else { "\n" };
    format!("{}{gap}{notes}", table.to_markdown())
}

/// Faults that no cell shows.
fn trouble(peer: &PeerFigures) -> Option<String> {
    let error = peer.rounds.iter().find_map(|round| round.first_error.as_ref());
    match (&peer.fate, error) {
        (Fate::StoppedAfter(seconds), _) => Some(format!("no end, stopped after {seconds:.0} s")),
        (Fate::Failed(error), _) => Some(format!("failed: {error}")),
        (Fate::Done | Fate::NotApplicable(_), Some(error)) => {
            Some(format!("{} errors, the first `{error}`", peer.errors()))
        }
        (Fate::Done | Fate::NotApplicable(_), None) => None,
    }
}

/// For one caller and for 128.
fn counts(figures: &Figures) -> String {
    let mut table = Table::new(&["peer", "allocations", "system calls", "user instructions"]);
    for peer in Peer::shown() {
        let lines: Vec<_> = figures.counts.iter().filter(|line| line.peer == peer).collect();
        let cell = |shown: &dyn Fn(&crate::counts::Counts) -> Option<String>| {
            let shown = lines.iter().map(|line| shown(line).unwrap_or(DASH.to_owned()));
            shown.collect::<Vec<_>>().join("; ")
        };
        table.push(vec![
            peer.name().to_owned(),
            cell(&|line| line.allocations.map(|count| format!("{count:.2}"))),
            cell(&|line| line.system_calls.map(|count| format!("{count:.2}"))),
            cell(&|line| line.instructions.map(|count| number(Some(count)))),
        ]);
    }
    table.to_markdown()
}

/// A target that `benches/scripts/bench` measures: scenario, figure, wanted value.
type Target = (&'static str, Share, &'static str);

#[derive(Clone, Copy)]
enum Share {
    /// Pairs per second ÷ the raw loop's.
    Rate,
    /// Median acquisition ÷ that of the raw loop that decides at the quorum.
    Acquire,
    /// p99 acquisition ÷ the raw loop's.
    Slowest,
    /// Median acquisition ÷ that of one caller with five healthy masters.
    OfHealthy,
}

const TARGETS: [Target; 9] = [
    ("callers-1", Share::Rate, DASH),
    ("callers-16", Share::Rate, DASH),
    ("callers-128", Share::Rate, "≥ 0.95; pipelined ≥ 1.06"),
    ("callers-1024", Share::Rate, "≥ 0.90"),
    ("callers-1024", Share::Slowest, "≤ 2.5"),
    ("masters-1-callers-128", Share::Rate, "≥ 0.95"),
    ("rtt-10", Share::Acquire, "≤ 1.03"),
    ("rtt-mixed", Share::Acquire, "≤ 1.10"),
    ("one-stopped", Share::OfHealthy, "≤ 1.10"),
];

impl Share {
    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "pairs/s ÷ raw loop",
            Self::Acquire => "acquire ÷ raw loop",
            Self::Slowest => "p99 of acquire ÷ raw loop",
            Self::OfHealthy => "acquire ÷ five healthy",
        }
    }

    fn of(self, figures: &Figures, played: &ScenarioFigures, peer: Peer) -> Option<f64> {
        let own = played.of(peer)?;
        match self {
            Self::Rate => played.ratio(own, played.scenario.floor?, Round::pairs_per_second),
            Self::Acquire => played.ratio(own, Peer::RawQuorum, acquire_us),
            Self::Slowest => played.ratio(own, played.scenario.floor?, |round| round.acquire_p99_us),
            Self::OfHealthy => {
                let healthy = scenario(figures, "callers-1")?.of(peer)?.median(acquire_us)?;
                Some(own.median(acquire_us)? / healthy)
            }
        }
    }

    /// The best rival.
    fn best(self, figures: &Figures, played: &ScenarioFigures) -> Option<f64> {
        let shares = RIVALS.iter().filter_map(|&peer| self.of(figures, played, peer));
        match self {
            Self::Rate => shares.max_by(f64::total_cmp),
            Self::Acquire | Self::Slowest | Self::OfHealthy => shares.min_by(f64::total_cmp),
        }
    }
}

fn targets(figures: &Figures) -> String {
    let mut header = vec!["work", "figure", "target", "best rival"];
    header.extend(OURS.iter().map(|(_, name)| *name));
    let mut table = Table::new(&header);
    for (id, share, target) in TARGETS {
        let Some(played) = scenario(figures, id) else { continue };
        let words = [played.scenario.title, share.name(), target].map(str::to_owned);
        let mut row = Vec::from(words);
        row.push(times(share.best(figures, played)));
        row.extend(OURS.iter().map(|(peer, _)| ratio(share.of(figures, played, *peer))));
        table.push(row);
    }
    table.to_markdown()
}

/// Figures of the front page.
fn front(figures: &Figures) -> String {
    const PEERS: [Peer; 4] = [Peer::ClientTasks, Peer::RedisRs, Peer::Fred, Peer::Rslock];
    let mut header = vec!["N = 5"];
    header.extend(PEERS.iter().map(|peer| peer.name()));
    let mut table = Table::new(&header);
    let mut add = |id: &str, what: &str, cell: &dyn Fn(&PeerFigures) -> String| {
        let Some(played) = scenario(figures, id) else { return };
        let mut row = vec![format!("{}: {what}", played.scenario.title)];
        row.extend(PEERS.iter().map(|&peer| played.of(peer).map_or(DASH.to_owned(), cell)));
        table.push(row);
    };
    add("callers-128", "pairs/s", &|peer| number(peer.median(Round::pairs_per_second)));
    let acquire = |peer: &PeerFigures| format!("{} ms", number_of_ms(peer));
    add("rtt-mixed", "acquire", &acquire);
    add("one-stopped", "acquire", &acquire);
    table.to_markdown()
}

fn number_of_ms(peer: &PeerFigures) -> String {
    peer.median(|round| round.acquire_p50_us / 1e3)
        .map_or(DASH.to_owned(), |ms| if ms < 1.0 { format!("{ms:.2}") } else { number(Some(ms)) })
}

/// A ratio; large ratios are shown without hundredths.
fn times(value: Option<f64>) -> String {
    if value.is_some_and(|value| value >= 100.0) { number(value) } else { ratio(value) }
}

fn scenario<'a>(figures: &'a Figures, id: &str) -> Option<&'a ScenarioFigures> {
    figures.scenarios.iter().find(|played| played.scenario.id == id)
}
