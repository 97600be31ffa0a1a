//! Description of the machine, without its name.

use std::fs;
use std::process::Command;

use crate::figures::Machine;

pub(super) fn describe() -> Machine {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let server = std::env::var("REDLATCH_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let version = server.split_whitespace().next().map(|program| first_line(program, &["--version"]));
    Machine {
        date: first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        cpu: cpu.map_or("unknown", |(_, name)| name).to_owned(),
        core_count: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: kernel(),
        server: version.unwrap_or_default().split(" sha=").next().unwrap_or_default().to_owned(),
        load_before: load().map_or("unknown".to_owned(), |load| format!("{load:.2}")),
    }
}

/// The load average over the last minute.
pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Name and version, without a builder's suffix.
fn kernel() -> String {
    let release = first_line("uname", &["-r"]);
    let version: Vec<&str> = release.split('.').take(2).collect();
    format!("{} {}", first_line("uname", &["-s"]), version.join("."))
}

fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}
