//! A peer in a separate process: connects, then plays a round for each line on stdin.
//!
//! ```text
//!   parent: child JSON ──► connected, warmed up: "ready" ──► "300" (ms) ──► a Round as JSON ──► "300" …
//! ```
//!
//! It ends with its standard input, whatever the peer is doing, so a killed parent leaves nothing behind.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::{Limit, Work};
use crate::rivals::Peer;

/// Makes connections, loads scripts and fills caches before the first round.
const WARM_UP: Limit = Limit::Time(Duration::from_millis(50));

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub peer: Peer,
    pub work: Work,
    pub addresses: Vec<SocketAddr>,
}

impl Job {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    pub fn from_json(text: &str) -> Self {
        serde_json::from_str(text).expect("a job as the parent wrote it")
    }
}

/// Plays rounds until stdin ends.
pub fn serve(job: &Job) -> ! {
    let (asked, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let time_ms = line.trim().parse().expect("a number of milliseconds");
            if asked.send(Duration::from_millis(time_ms)).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    let mut rig = job.peer.rig(&job.addresses, &job.work);
    rig.round(WARM_UP);
    rig.settle();
    say("ready");
    for time in requests {
        let before = cpu_time();
        let mut round = rig.round(Limit::Time(time));
        round.cpu_us = Some((cpu_time() - before).as_secs_f64() * 1e6);
        rig.settle();
        say(&serde_json::to_string(&round).expect("plain data"));
    }
    std::process::exit(0)
}

/// Plays `pairs` pairs of each caller, for counting, and exits without the peer's cleanup.
pub fn play_once(job: &Job, pairs: usize) -> ! {
    let round = job.peer.rig(&job.addresses, &job.work).round(Limit::Pairs(pairs));
    assert_eq!(round.errors, 0, "{:?}", round.first_error);
    std::process::exit(0)
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().expect("a time since the start")
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody reads any more; the end of standard input ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
