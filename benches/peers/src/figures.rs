//! Measured figures, and figures computed from them: medians, and ratios of consecutive turns.

use serde::{Deserialize, Serialize};

use crate::counts::Counts;
use crate::load::Round;
use crate::rivals::Peer;
use crate::scenario::Scenario;

/// A whole run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    pub machine: Machine,
    pub quick: bool,
    pub round_ms: u64,
    pub round_count: usize,
    /// Package and version of each peer.
    pub versions: Vec<(Peer, String)>,
    pub scenarios: Vec<ScenarioFigures>,
    pub counts: Vec<Counts>,
    pub seconds: f64,
}

/// Where it was measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    pub cpu: String,
    pub core_count: usize,
    pub kernel: String,
    pub server: String,
    /// The load average over a minute before the run, from other programs.
    pub load_before: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ScenarioFigures {
    /// Its id in the data.
    #[serde(rename = "id")]
    pub scenario: Scenario,
    pub peers: Vec<PeerFigures>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PeerFigures {
    pub peer: Peer,
    pub rounds: Vec<Round>,
    pub fate: Fate,
}

/// A peer's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    Done,
    NotApplicable(String),
    /// It did not end its round, and was stopped after this many seconds.
    StoppedAfter(f64),
    Failed(String),
}

impl ScenarioFigures {
    pub fn of(&self, peer: Peer) -> Option<&PeerFigures> {
        self.peers.iter().find(|figures| figures.peer == peer)
    }

    /// Median over the rounds of this peer's figure divided by the other's.
    pub fn ratio(&self, peer: &PeerFigures, other: Peer, figure: fn(&Round) -> f64) -> Option<f64> {
        median(self.ratios(peer, other, figure))
    }

    fn ratios(
        &self,
        peer: &PeerFigures,
        other: Peer,
        figure: fn(&Round) -> f64,
    ) -> impl Iterator<Item = f64> {
        let others = self.of(other).map(|other| other.rounds.as_slice()).unwrap_or_default();
        let rounds = peer.rounds.iter().zip(others);
        let counted = rounds.filter(|(own, other)| own.pairs > 0 && other.pairs > 0);
        counted.map(move |(own, other)| figure(own) / figure(other))
    }

    /// The raw loop's pairs per second divided by those of the same loop in another process: the machine's
    /// scatter. `None` without a raw loop.
    pub fn scatter(&self) -> Option<Scatter> {
        let raw = self.of(Peer::RawAgain)?;
        let mut ratios: Vec<f64> = self.ratios(raw, Peer::Raw, Round::pairs_per_second).collect();
        ratios.sort_by(f64::total_cmp);
        let median = median(ratios.iter().copied())?;
        Some(Scatter { median, least: *ratios.first()?, most: *ratios.last()? })
    }
}

/// Ratios of a loop to itself.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Scatter {
    const OFF_MAX: f64 = 0.05;

    /// Whether the medians of a table may be published.
    pub fn is_small(self) -> bool {
        (self.median - 1.0).abs() <= Self::OFF_MAX
    }
}

impl std::fmt::Display for Scatter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}

impl PeerFigures {
    pub fn median(&self, figure: fn(&Round) -> f64) -> Option<f64> {
        median(self.rounds.iter().filter(|round| round.pairs > 0).map(figure))
    }

    pub fn errors(&self) -> usize {
        self.rounds.iter().map(|round| round.errors).sum()
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
