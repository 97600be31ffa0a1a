//! Charts as SVG: a panel of bars for each of a few scenarios.

use std::fmt::Write;

use crate::figures::{Fate, Figures, PeerFigures, ScenarioFigures};
use crate::load::Round;
use crate::rivals::Peer;

const PANEL_WIDTH: f64 = 470.0;
const NAME_WIDTH: f64 = 190.0;
const BAR_WIDTH: f64 = 190.0;
const LINE_HEIGHT: f64 = 20.0;
const MARGIN: f64 = 16.0;

/// One chart.
pub struct Chart {
    /// Scenario, unit, figure.
    panels: &'static [(&'static str, &'static str, Figure)],
    columns: usize,
    /// Peers to show; empty for all.
    peers: &'static [Peer],
}

/// The chart of `docs/dev/peers.md`.
pub const ALL: Chart = Chart {
    panels: &[
        ("callers-1", "pairs per second", Figure::Rate),
        ("callers-128", "pairs per second", Figure::Rate),
        ("callers-1024", "pairs per second", Figure::Rate),
        ("one-key-16", "locks per second", Figure::Rate),
        ("rtt-mixed", "median acquire, ms (shorter is better)", Figure::Acquire),
        ("one-stopped", "median acquire, ms (shorter is better)", Figure::Acquire),
    ],
    columns: 2,
    peers: &[],
};

/// The chart of `README.md`.
pub const FRONT: Chart = Chart {
    panels: &[
        ("callers-128", "pairs per second (longer is better)", Figure::Rate),
        ("rtt-mixed", "median acquire, ms (shorter is better)", Figure::Acquire),
        ("one-stopped", "median acquire, ms (shorter is better)", Figure::Acquire),
    ],
    columns: 3,
    peers: &[Peer::ClientTasks, Peer::RedisRs, Peer::Fred, Peer::Rslock],
};

#[derive(Clone, Copy)]
enum Figure {
    Rate,
    Acquire,
}

impl Figure {
    fn of(self, peer: &PeerFigures) -> Option<f64> {
        match self {
            Self::Rate => peer.median(Round::pairs_per_second),
            Self::Acquire => peer.median(|round| round.acquire_p50_us / 1e3),
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Self::Rate => format!("{value:.0}"),
            Self::Acquire => format!("{value:.2}"),
        }
    }
}

pub fn draw(figures: &Figures, chart: &Chart) -> String {
    let panels = chart.panels.iter().filter_map(|(id, unit, figure)| {
        let played = figures.scenarios.iter().find(|played| played.scenario.id == *id)?;
        Some(panel(played, unit, *figure, chart.peers))
    });
    let panels: Vec<(String, f64)> = panels.collect();
    let (mut body, mut top) = (String::new(), MARGIN);
    for row in panels.chunks(chart.columns) {
        let mut left = MARGIN;
        for (panel, _) in row {
            let _ = writeln!(body, "<g transform=\"translate({left:.0} {top:.0})\">{panel}</g>");
            left += PANEL_WIDTH;
        }
        top += row.iter().map(|(_, height)| *height).fold(0.0, f64::max) + MARGIN;
    }
    let width = (0..chart.columns).map(|_| PANEL_WIDTH).sum::<f64>() + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {top:.0}\" width=\"{width:.0}\" height=\"{top:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// One panel and its height.
fn panel(played: &ScenarioFigures, unit: &str, figure: Figure, shown: &[Peer]) -> (String, f64) {
    let takes_part = |it: &&PeerFigures| {
        !matches!(it.fate, Fate::NotApplicable(_)) && (shown.is_empty() || shown.contains(&it.peer))
    };
    let peers: Vec<&PeerFigures> = played.peers.iter().filter(takes_part).collect();
    let largest = peers.iter().filter_map(|peer| figure.of(peer)).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!("\n<text y=\"12\" font-weight=\"bold\">{}</text>", escaped(played.scenario.title));
    let _ = write!(text, "<text y=\"28\" fill=\"#555\">{}</text>", escaped(unit));
    let mut top = 38.0;
    for peer in peers {
        let colour = match peer.peer {
            peer if peer.is_ours() => "#c0392b",
            peer if peer.is_raw() => "#b0b0b0",
            _ => "#4a78a8",
        };
        let (width, label) = match (figure.of(peer), &peer.fate) {
            (Some(value), _) => ((value / largest * BAR_WIDTH).max(1.0), figure.label(value)),
            (None, Fate::StoppedAfter(seconds)) => (0.0, format!("hung: stopped after {seconds:.0} s")),
            (None, _) => (0.0, "failed".to_owned()),
        };
        let _ = write!(
            text,
            "\n<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{name}</text><rect x=\"{NAME_WIDTH}\" y=\"{top}\" width=\"{width:.1}\" \
             height=\"14\" fill=\"{colour}\"/><text x=\"{end:.1}\" y=\"{y}\">{label}</text>",
            x = NAME_WIDTH - 6.0,
            y = top + 11.0,
            name = escaped(peer.peer.name()),
            end = NAME_WIDTH + width + 5.0,
        );
        top += LINE_HEIGHT;
    }
    text.push('\n');
    (text, top)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
