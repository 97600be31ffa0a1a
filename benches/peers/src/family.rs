//! The lock family beyond plain locks, by redlatch and comparable libraries: waiters' speed and order, and
//! kept locks.
//!
//! ```text
//!   family (bin) ──► PEER contend COUNT SECONDS HOLD_MS PAUSE_MS ADDRESS…  ──► "ready", a line each lock
//!                └─► PEER keep    COUNT SECONDS TTL_MS  0        ADDRESS…  ──► "held", "kept LOST"
//! ```
//!
//! Each peer runs in a separate process: this program for Rust libraries, `others/` for other languages.
//! Contenders have separate clients and connections, and pause between locks. Libraries keep their default
//! settings, because their pauses are the subject; only giving up is switched off.

mod contend;
mod keep;
mod peers;
mod players;
mod plot;
mod tables;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

pub use contend::{Contest, contest};
pub use keep::{Kept, keep};
pub use peers::FamilyPeer;
pub use players::play;
pub use tables::{Contention, Results};

/// All contenders are connected, and begin.
const READY: &str = "ready";

/// How long contenders go on, keep a lock, and pause before the next.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub time: Duration,
    pub hold: Duration,
    pub pause: Duration,
}

/// A peer's process, which ends when this value is dropped.
struct Player {
    child: Child,
    lines: Receiver<String>,
}

impl Player {
    fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (heard, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).take_while(|line| heard.send(line.clone()).is_ok()).count()
        });
        Ok(Self { child, lines })
    }

    fn line(&self, patience: Duration) -> Result<String, String> {
        self.lines.recv_timeout(patience).map_err(|error| format!("stopped after {patience:?}: {error}"))
    }

    /// User and system time of the process so far, and its memory in MiB.
    fn usage(&self) -> (Duration, u64) {
        let status = of_process(self.child.id(), "status");
        let rss = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok());
        (cpu_of(self.child.id()), rss.unwrap_or(0u64) / 1024)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may already have ended; it is reaped in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn of_process(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// User and system time of a process so far.
fn cpu_of(pid: u32) -> Duration {
    let stat = of_process(pid, "stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // Fields 14 and 15 of the whole line, in hundredths of a second.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// The value in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// How often masters ran this command, from `INFO commandstats`.
fn calls(stats: &str, name: &str) -> u64 {
    let lines = stats.lines().filter_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
    lines.filter_map(|line| line.split(',').next()?.parse::<u64>().ok()).sum()
}
