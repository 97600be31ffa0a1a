//! One contest: a library, a fault, separate masters, and the witness's findings.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redlatch_support::Proxy;
use redlatch_testing::{Fleet, Server};
use serde_json::Value;

use crate::faults::{Fault, Field, sleep_until};
use crate::libraries::{Library, NO_LOCK};

pub(crate) const TTL: Duration = Duration::from_secs(2);
pub(crate) const MASTER_COUNT: usize = 5;
pub(crate) const CONTENDER_COUNT: usize = 4;
/// Time until all contenders are at work. The first fault, and the count of locks, begin then.
const START_TIME: Duration = Duration::from_secs(2);
/// A quarantine lasts one maximum TTL, and a master reports its age in whole seconds.
const QUARANTINE_TIME: Duration = Duration::from_secs(4);
/// How long one holder is stopped.
const STOP_MS: u64 = 3000;
/// Lines shown of a failed contender's stderr.
const SHOWN_COUNT_MAX: usize = 20;
/// Prefixes of keys that are no locks of the contest: the drill's own, and ours, such as the fleet's record.
const OTHER_KEYS: [&str; 2] = ["redlatch-drill:own", "redlatch:"];

pub(crate) struct Contest {
    pub(crate) library: Library,
    pub(crate) fault: Fault,
    pub(crate) time: Duration,
}

/// Result of a contest.
pub(crate) struct Outcome {
    pub(crate) library: &'static str,
    pub(crate) fault: Fault,
    pub(crate) two_holders: u64,
    /// Simultaneous holders, one of them after the end of its validity.
    pub(crate) outlasted: u64,
    /// Largest excess of a call over its deadline.
    pub(crate) late_ms: f64,
    /// Keys left on all masters at the end, and how many of them without an expiry.
    pub(crate) keys_left: usize,
    pub(crate) keys_for_ever: usize,
    pub(crate) longest_gap_ms: f64,
    pub(crate) locks_per_second: f64,
    /// Contenders that ended with an error, or did not end.
    pub(crate) failed: u64,
}

impl Contest {
    /// Whether the name of its library or its fault contains one of the words.
    pub(crate) fn is_of(&self, words: &[String]) -> bool {
        // Without locks, a fault would change nothing.
        if self.library.name == NO_LOCK && self.fault != Fault::Calm {
            return false;
        }
        words.is_empty()
            || words.iter().any(|it| self.library.name.contains(it) || self.fault.name().contains(it))
    }

    pub(crate) fn run(&self) -> Outcome {
        let mut field = field(self.fault);
        let mut urls = field.fleet.urls();
        if self.fault.needs_proxies() {
            field.proxies = field.fleet.masters().map(|master| Proxy::start(master.addr())).collect();
            urls = field.proxies.iter().map(Proxy::url).collect();
        }
        if self.library.has_quarantine {
            thread::sleep(QUARANTINE_TIME);
        }
        let drilling = self.drill(&urls);
        let begun = Instant::now();
        sleep_until(begun + START_TIME);
        field.suffer(self.fault, begun + self.time);
        let output = drilling.join().expect("the drill is awaited");
        self.outcome(&output, &mut field)
    }

    /// Starts the drill and waits for its end on another thread.
    fn drill(&self, urls: &[String]) -> thread::JoinHandle<Output> {
        let program =
            std::env::var_os("REFEREE_REDLATCH").expect("REFEREE_REDLATCH names the program redlatch");
        let mut command = Command::new(program);
        command.args([
            "drill",
            "--trust",
            "--json",
            "--resources",
            "1",
            "--contender",
            &self.library.command,
        ]);
        command.args(["--contenders", &CONTENDER_COUNT.to_string()]);
        command.args([
            "--time",
            &format!("{}s", self.time.as_secs()),
            "--ttl",
            &format!("{}s", TTL.as_secs()),
        ]);
        command.env("REDLATCH_MASTERS", urls.join(","));
        command.env("REFEREE_HOLD_MS", self.fault.longest_hold().as_millis().to_string());
        command.env("REFEREE_STOP_MS", if self.fault == Fault::Paused { STOP_MS } else { 0 }.to_string());
        command.stdin(Stdio::null());
        thread::spawn(move || command.output().expect("the drill runs"))
    }

    fn outcome(&self, output: &Output, field: &mut Field) -> Outcome {
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
        let [start, time] = [START_TIME, self.time].map(|it| usize::try_from(it.as_secs()).unwrap_or(0));
        let number = |name: &str| report[name].as_f64().unwrap_or_default();
        let seconds = report["by_second"].as_array().map(Vec::as_slice).unwrap_or_default();
        let locks: u64 = seconds.iter().take(time).skip(start).filter_map(|it| it["locks"].as_u64()).sum();
        let expiries = keys_left(field);
        let failed = report["other_errors"].as_u64().unwrap_or_default();
        if failed > 0 {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines()
                .filter(|line| !line.trim().is_empty())
                .take(SHOWN_COUNT_MAX)
                .for_each(|it| eprintln!("    {it}"));
        }
        // Seconds without a lock at the end, which may be the longest time without a lock.
        let is_idle = |it: &&Value| it["locks"] == 0;
        let seconds_read = seconds.len().min(time);
        let idle = time - seconds_read + seconds[..seconds_read].iter().rev().take_while(is_idle).count();
        Outcome {
            library: self.library.name,
            fault: self.fault,
            two_holders: report["two_holders"].as_array().map_or(0, |it| it.len() as u64),
            outlasted: report["outlasted_beside_a_holder"].as_u64().unwrap_or_default(),
            late_ms: number("latest_call_ms"),
            keys_left: expiries.len(),
            keys_for_ever: expiries.iter().filter(|ms| **ms < 0).count(),
            longest_gap_ms: number("longest_gap_ms").max(idle as f64 * 1000.0),
            locks_per_second: locks as f64 / (time.saturating_sub(start)).max(1) as f64,
            failed,
        }
    }
}

impl Outcome {
    pub(crate) fn line(&self) -> String {
        format!(
            "{}, {}: {} with two holders, {} past the validity, {:.0} ms late, {} keys left, {:.0} ms without a lock, {:.1} locks/s, {} failed",
            self.library,
            self.fault.name(),
            self.two_holders,
            self.outlasted,
            self.late_ms,
            self.keys_left,
            self.longest_gap_ms,
            self.locks_per_second,
            self.failed
        )
    }
}

fn field(fault: Fault) -> Field {
    let mut clocks = Vec::new();
    let mut servers = vec![Server::new(); MASTER_COUNT];
    if fault == Fault::Clocks {
        let preload = std::env::var("REFEREE_CLOCK_LIBRARY").expect("REFEREE_CLOCK_LIBRARY names the clock");
        for (index, server) in servers.iter_mut().enumerate() {
            let file = std::env::temp_dir().join(format!("referee-clock-{}-{index}", std::process::id()));
            std::fs::write(&file, 0_i64.to_ne_bytes()).expect("a clock is set");
            let words = ["env".into(), format!("LD_PRELOAD={preload}"), clock_variable(&file)];
            *server = Server::new().program(words.into_iter().chain(["redis-server".to_owned()]));
            clocks.push(file);
        }
    }
    if let Some(dir) = std::env::var_os("REDLATCH_TEST_PIDS") {
        servers = servers.into_iter().map(|server| server.pid_dir(&dir)).collect();
    }
    Field { fleet: Fleet::start_with(servers).expect("masters"), proxies: Vec::new(), clocks }
}

fn clock_variable(file: &Path) -> String {
    format!("REFEREE_CLOCK={}", file.display())
}

/// Remaining milliseconds of each lock's key; -1 for ever.
fn keys_left(field: &mut Field) -> Vec<i64> {
    let mut expiries = Vec::new();
    for master in field.fleet.masters() {
        let keys = master.command(&["KEYS", "*"]).map(|reply| reply.text()).unwrap_or_default();
        let keys = keys.trim_matches(['[', ']']).split(", ").filter(|key| !key.is_empty());
        for key in keys.filter(|key| !OTHER_KEYS.iter().any(|other| key.starts_with(other))) {
            let left = master.command(&["PTTL", key]).ok().and_then(|reply| reply.integer());
            // The key may have expired meanwhile.
            expiries.extend(left.filter(|ms| *ms != -2));
        }
    }
    expiries
}
