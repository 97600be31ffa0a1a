//! Results, and their tables.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Contest, FamilyPeer, Kept, plot};
use crate::report::{self, pages};

const DASH: &str = "–";
/// Results of the last whole run, below the repository's root.
const RESULTS: &str = "benches/peers/results/family.json";
/// The tables of contests are called `contention` or `costs`, with hold and round trip in ms.
const TABLES: [&str; 12] = [
    "machine",
    "participants",
    "hand-over",
    "contention-0-0",
    "contention-2-0",
    "contention-0-2",
    "contention-2-2",
    "costs-0-0",
    "costs-2-0",
    "costs-0-2",
    "costs-2-2",
    "renewal",
];
const PLOT: &str = "docs/dev/order.svg";

/// Contests with a hold and a round trip, both in ms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Contention {
    pub hold_ms: u64,
    pub round_trip_ms: u64,
    pub contests: Vec<(FamilyPeer, Result<Contest, String>)>,
}

/// A whole run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// Description of the machine, in one line.
    pub machine: String,
    pub quick: bool,
    pub versions: Vec<(FamilyPeer, String)>,
    /// Each peer's hand-overs with a proxy's round trip.
    pub hand_overs: Vec<(FamilyPeer, Result<Contest, String>)>,
    pub contention: Vec<Contention>,
    pub kept: Vec<(FamilyPeer, Result<Kept, String>)>,
    pub round_trip_ms: f64,
    pub lock_count: usize,
    pub ttl_s: u64,
}

impl Results {
    /// All tables.
    #[must_use]
    pub fn text(&self) -> String {
        TABLES.iter().filter_map(|name| self.table(name)).collect::<Vec<_>>().join("\n")
    }

    /// Writes the results, and their tables into the pages.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn write(&self, root: &Path) -> Result<(), String> {
        report::write(&root.join(RESULTS), &report::to_json(self));
        self.show(root)
    }

    /// Writes the tables of the pages again, from the last run's results.
    ///
    /// # Errors
    /// What cannot be read or written.
    pub fn render(root: &Path) -> Result<(), String> {
        let file = root.join(RESULTS);
        let failed = |error: String| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| failed(error.to_string()))?;
        let results: Self = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        results.show(root)
    }

    fn show(&self, root: &Path) -> Result<(), String> {
        if let Some(busy) = self.contention_of("0-0") {
            report::write(&root.join(PLOT), &plot::draw(busy));
        }
        pages::write(root, pages::Kind::Family, |name| self.table(name))
    }

    fn table(&self, name: &str) -> Option<String> {
        Some(match name {
            "machine" => self.machine(),
            "participants" => self.participants(),
            "hand-over" => self.hand_over(),
            "renewal" => self.renewal(),
            name => match name.split_once('-')? {
                ("contention", of) => self.contention_of(of)?.order(),
                ("costs", of) => self.contention_of(of)?.costs(),
                _ => return None,
            },
        })
    }

    fn machine(&self) -> String {
        let quick = if self.quick { " (a quick run: rough figures)" } else { "" };
        format!("Measured on {}{quick}.\n", self.machine)
    }

    fn participants(&self) -> String {
        let mut text =
            String::from("| peer | version | how a waiter waits | how a lock is kept |\n|---|---|---|---|\n");
        for (peer, version) in &self.versions {
            let keeps = peer.keeps_by().unwrap_or(DASH);
            let _ = writeln!(text, "| {} | {version} | {} | {keeps} |", peer.name(), peer.waits_by());
        }
        text
    }

    /// A row for each peer, its cells for each number of waiters.
    fn hand_over(&self) -> String {
        let header = |count: usize| [format!("{} waiting: ms", count - 1), "requests".to_owned()];
        of_contests(&self.hand_overs, header, |contest| {
            let ms = contest.hand_over_us.map_or(f64::NAN, |us| us / 1e3);
            [format!("{ms:.1}"), format!("{:.1}", contest.requests_per_lock)]
        })
    }

    fn contention_of(&self, of: &str) -> Option<&Contention> {
        self.contention.iter().find(|it| format!("{}-{}", it.hold_ms, it.round_trip_ms) == of)
    }

    fn renewal(&self) -> String {
        let mut text = String::from(
            "| peer | of a core | memory, MiB | renewals/s at a master | reported lost | keys left |\n\
             |---|---:|---:|---:|---:|---:|\n",
        );
        for (peer, kept) in &self.kept {
            let _ = match kept {
                Err(why) => writeln!(text, "| {} | {why} | | | | |", peer.name()),
                Ok(it) => writeln!(
                    text,
                    "| {} | {:.1} % | {} | {:.0} | {} | {} |",
                    peer.name(),
                    100.0 * it.core_share,
                    it.memory_mib,
                    it.renewals_per_second,
                    it.lost,
                    it.keys_left
                ),
            };
        }
        text
    }
}

impl Contention {
    fn order(&self) -> String {
        let header =
            |count: usize| [format!("{count}: locks/s"), "longest, ms".to_owned(), "overtaken".to_owned()];
        of_contests(&self.contests, header, |contest| {
            let broken = if contest.overlap_count > 0 { " **two at once**" } else { "" };
            let (locks, longest) = (contest.locks_per_second, contest.longest_wait_ms);
            [format!("{locks:.0}{broken}"), format!("{longest:.0}"), contest.overtaken_most.to_string()]
        })
    }

    fn costs(&self) -> String {
        let header =
            |count: usize| [format!("{count}: clients, µs"), "masters, µs".to_owned(), "requests".to_owned()];
        of_contests(&self.contests, header, |contest| {
            let (clients, masters) = (contest.client_cpu_us, contest.master_cpu_us);
            [format!("{clients:.0}"), format!("{masters:.0}"), format!("{:.1}", contest.requests_per_lock)]
        })
    }
}

/// A row for each peer, with `N` cells for each number of contenders.
fn of_contests<const N: usize>(
    contests: &[(FamilyPeer, Result<Contest, String>)],
    header: impl Fn(usize) -> [String; N],
    cells: impl Fn(&Contest) -> [String; N],
) -> String {
    let mut counts: Vec<usize> =
        contests.iter().filter_map(|(_, it)| Some(it.as_ref().ok()?.contender_count)).collect();
    counts.sort_unstable();
    counts.dedup();
    let headers: Vec<String> = counts.iter().flat_map(|&count| header(count)).collect();
    let mut text = format!("| peer | {} |\n|---|{}\n", headers.join(" | "), "---:|".repeat(headers.len()));
    let mut notes = String::new();
    for peer in FamilyPeer::ALL {
        let own: Vec<_> = contests.iter().filter(|(of, _)| *of == peer).map(|(_, it)| it).collect();
        let shown = counts.iter().flat_map(|&count| {
            let contest = own.iter().filter_map(|it| it.as_ref().ok()).find(|it| it.contender_count == count);
            contest.map_or_else(|| std::array::from_fn(|_| DASH.to_owned()), &cells)
        });
        if !own.is_empty() {
            let _ = writeln!(text, "| {} | {} |", peer.name(), shown.collect::<Vec<_>>().join(" | "));
        }
        if let Some(why) = own.iter().find_map(|it| it.as_ref().err()) {
            let _ = writeln!(notes, "- {}: {why}", peer.name());
        }
    }
    let gap = if notes.is_empty() { "" } else { "\n" };
    format!("{text}{gap}{notes}")
}
