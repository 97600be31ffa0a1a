//! A whole run and its forms: tables in text and pages, JSON, charts.

mod blocks;
mod machine;
pub mod pages;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use redlatch_support::Fleet;

use crate::chart;
use crate::child::Job;
use crate::counts::{self, Counters, Counts};
use crate::figures::{Figures, ScenarioFigures};
use crate::load::Work;
use crate::rivals::{Peer, locked_version};
use crate::run::{self, Pace};
use crate::scenario::Scenario;

const FULL: Pace =
    Pace { round: Duration::from_millis(400), round_count: 5, patience: Duration::from_secs(10) };
const QUICK: Pace =
    Pace { round: Duration::from_millis(80), round_count: 2, patience: Duration::from_secs(2) };
/// Prefixes of scenarios that a quick run leaves out.
const FULL_ONLY: [&str; 2] = ["masters-", "rtt-10"];
/// Numbers of callers whose pairs are counted; a quick run counts only with the first.
const COUNTED_CALLERS: [usize; 2] = [1, 128];
const COUNTED_MASTERS: usize = 5;
/// Largest one-minute load average for measurements that go into pages, and how long to wait for it.
const LOAD_MAX: f64 = 0.3;
const QUIET_PATIENCE: Duration = Duration::from_secs(300);
/// How often a kind of work is measured for pages if the raw loop differs from itself. Only that difference
/// decides, whatever redlatch and its peers did.
const PLAYS_MAX: usize = 3;
/// Results of the last whole run, below the repository's root.
const RESULTS: &str = "benches/peers/results/peers.json";

#[derive(Debug, Default)]
pub struct Options {
    pub quick: bool,
    /// Ids of scenarios, or `counts`; empty for all.
    pub only: Vec<String>,
    /// Root of the repository whose results, charts and tables should be written.
    pub write: Option<PathBuf>,
    pub json: Option<PathBuf>,
}

impl Options {
    fn wants(&self, id: &str) -> bool {
        if self.only.is_empty() {
            !(self.quick && FULL_ONLY.iter().any(|prefix| id.starts_with(prefix)))
        } else {
            self.only.iter().any(|wanted| wanted == id)
        }
    }
}

/// # Errors
/// What is wrong with the options.
pub fn check(options: &Options) -> Result<(), String> {
    for id in options.only.iter().filter(|id| *id != "counts") {
        Scenario::find(id).map_err(|unknown| format!("{unknown}, counts"))?;
    }
    if options.write.is_some() && !options.only.is_empty() {
        return Err("--write is for whole runs, not with --only".to_owned());
    }
    Ok(())
}

/// Description of the machine, in one line.
#[must_use]
pub fn machine_line() -> String {
    tables::machine_line(&machine::describe())
}

/// Measures, prints, and writes.
///
/// # Errors
/// The file that cannot be written.
pub fn run(options: &Options, progress: fn(&str)) -> Result<(), String> {
    if options.write.is_some() {
        wait_for_quiet(progress)?;
    }
    let start = Instant::now();
    let pace = if options.quick { QUICK } else { FULL };
    let machine = machine::describe();
    println!("{}\n", tables::machine_line(&machine));
    let versions = Peer::ALL.into_iter().filter_map(|peer| Some((peer, version(peer)?))).collect();
    let mut figures = Figures {
        machine,
        quick: options.quick,
        round_ms: u64::try_from(pace.round.as_millis()).unwrap_or(u64::MAX),
        round_count: pace.round_count,
        versions,
        scenarios: Vec::new(),
        counts: Vec::new(),
        seconds: 0.0,
    };
    let scenarios: Vec<_> = Scenario::all().into_iter().filter(|it| options.wants(it.id)).collect();
    for (index, scenario) in scenarios.iter().enumerate() {
        let place = format!("{}/{}", index + 1, scenarios.len());
        let mut left = if options.write.is_some() { PLAYS_MAX } else { 1 };
        let played = loop {
            let played = play(scenario, pace, &place, start, progress);
            println!("{}", tables::of_scenario(&played).to_text(&heading(&played)));
            if let Some(scatter) = played.scatter() {
                println!("  raw loop ÷ itself: {scatter}\n");
            }
            left -= 1;
            if left == 0 || is_steady(&played) {
                break played;
            }
        };
        figures.scenarios.push(played);
    }
    if options.wants("counts") {
        figures.counts = count_all(options.quick, start, progress);
        println!("{}", tables::of_counts(&figures.counts).to_text(tables::COUNTS_TITLE));
    }
    figures.seconds = start.elapsed().as_secs_f64();
    println!("measured in {:.0} s", figures.seconds);
    if let Some(file) = &options.json {
        write(file, &to_json(&figures));
    }
    match &options.write {
        Some(root) => {
            refuse_scatter(&figures)?;
            write(&root.join(RESULTS), &to_json(&figures));
            show(&figures, root)
        }
        None => Ok(()),
    }
}

/// Waits until the machine's load is low, so that an earlier build has no effect.
///
/// # Errors
/// The load, if it stays above 0.3 for five minutes.
pub fn wait_for_quiet(progress: fn(&str)) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let load = machine::load();
        if load.is_none_or(|load| load <= LOAD_MAX) {
            return Ok(());
        }
        let load = load.unwrap_or_default();
        if start.elapsed() > QUIET_PATIENCE {
            return Err(format!("the load is {load}, above {LOAD_MAX}: measured nothing, wrote nothing"));
        }
        progress(&format!("waiting for a load of at most {LOAD_MAX}, now {load}"));
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Whether the raw loop agreed with itself, or took no part.
fn is_steady(played: &ScenarioFigures) -> bool {
    played.scatter().is_none_or(|scatter| scatter.is_small())
}

/// Refuses figures if a loop differs too much from itself.
fn refuse_scatter(figures: &Figures) -> Result<(), String> {
    let wide = figures.scenarios.iter().filter(|played| !is_steady(played));
    let wide: Vec<_> =
        wide.filter_map(|played| Some(format!("{}: {}", played.scenario.id, played.scatter()?))).collect();
    if wide.is_empty() {
        return Ok(());
    }
    Err(format!("wrote nothing: the raw loop differs from itself by more than 5 %: {}", wide.join("; ")))
}

/// Writes charts and tables of the pages again, from the last run's results.
///
/// # Errors
/// The file that cannot be read or written.
pub fn render(root: &Path) -> Result<(), String> {
    let file = root.join(RESULTS);
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let figures = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    show(&figures, root)
}

fn show(figures: &Figures, root: &Path) -> Result<(), String> {
    write(&root.join("docs/dev/peers.svg"), &chart::draw(figures, &chart::ALL));
    write(&root.join("docs/compare.svg"), &chart::draw(figures, &chart::FRONT));
    pages::write(root, pages::Kind::Bench, |name| blocks::table(figures, name))
}

fn play(scenario: &Scenario, pace: Pace, place: &str, start: Instant, progress: fn(&str)) -> ScenarioFigures {
    progress(&format!("[{place}, {:.0} s] {}: connecting", start.elapsed().as_secs_f64(), scenario.title));
    let played = run::play(scenario, &Peer::ALL, pace, |peer, round| {
        let seconds = start.elapsed().as_secs_f64();
        let (title, rounds) = (scenario.title, pace.round_count);
        progress(&format!(
            "[{place}, {seconds:.0} s] {title}: round {} of {rounds}, {}",
            round + 1,
            peer.name()
        ));
    });
    progress("");
    played
}

fn count_all(quick: bool, start: Instant, progress: fn(&str)) -> Vec<Counts> {
    let counters = Counters::find(quick);
    let fleet = Fleet::start(COUNTED_MASTERS);
    let dir = std::env::temp_dir().join(format!("redlatch-peers-{}", std::process::id()));
    fs::create_dir(&dir).expect("a directory for temporary files");
    let callers = if quick { &COUNTED_CALLERS[..1] } else { &COUNTED_CALLERS };
    let mut list = Vec::new();
    for &callers in callers {
        let work = Work { callers, one_key: false };
        for peer in Peer::ALL.into_iter().filter(|peer| peer.declines(&work, false).is_none()) {
            let seconds = start.elapsed().as_secs_f64();
            progress(&format!("[counts, {seconds:.0} s] {callers} caller(s), {}", peer.name()));
            let job = Job { peer, work: work.clone(), addresses: fleet.addrs() };
            list.push(counts::count(&job, counters, quick, &dir));
        }
    }
    progress("");
    let _ = fs::remove_dir_all(dir);
    list
}

fn heading(played: &ScenarioFigures) -> String {
    format!("{} (N = {})", played.scenario.title, played.scenario.master_count)
}

fn version(peer: Peer) -> Option<String> {
    let (package, prefix) = peer.package()?;
    Some(format!("{package} {}", locked_version(package, prefix)?))
}

pub(crate) fn to_json(figures: &impl Serialize) -> String {
    let mut text = serde_json::to_string(figures).expect("plain data");
    text.push('\n');
    text
}

pub(crate) fn write(file: &Path, text: &str) {
    match fs::write(file, text) {
        Ok(()) => println!("written: {}", file.display()),
        Err(error) => eprintln!("peers: cannot write {}: {error}", file.display()),
    }
}
