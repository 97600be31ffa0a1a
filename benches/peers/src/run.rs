//! Plays all scenarios: starts masters and peers' processes, gives each peer its turns, and ends hung
//! processes.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, Proxy};

use crate::child::Job;
use crate::figures::{Fate, PeerFigures, ScenarioFigures};
use crate::load::Round;
use crate::rivals::Peer;
use crate::scenario::{Network, Scenario};

/// How long a peer may take to connect and warm up on a loaded machine.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Pause after a master is stopped, for bytes under way.
const STOP_PAUSE: Duration = Duration::from_millis(50);

/// Durations.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub round: Duration,
    pub round_count: usize,
    /// How much longer than its round a peer may take before it counts as hung.
    pub patience: Duration,
}

/// Plays one scenario; `progress` gets the peer whose turn it is.
pub fn play(
    scenario: &Scenario,
    peers: &[Peer],
    pace: Pace,
    mut progress: impl FnMut(Peer, usize),
) -> ScenarioFigures {
    let mut fleet = Fleet::start(scenario.master_count);
    let proxies = match scenario.network {
        Network::Delayed(round_trips) => delayed(&fleet.addrs(), round_trips),
        Network::Direct | Network::OneStopped => Vec::new(),
    };
    let addresses =
        if proxies.is_empty() { fleet.addrs() } else { proxies.iter().map(Proxy::addr).collect() };
    let mut players: Vec<Player> =
        peers.iter().map(|&peer| Player::start(peer, scenario, addresses.clone())).collect();
    if scenario.network == Network::OneStopped {
        fleet.master(0).stop();
        std::thread::sleep(STOP_PAUSE);
    }
    let pace = Pace { round: pace.round * scenario.stretch(), ..pace };
    for round in 0..pace.round_count {
        for player in players.iter_mut().filter(|player| player.process.is_some()) {
            progress(player.figures.peer, round);
            player.play(pace);
            std::thread::sleep(scenario.straggling());
        }
    }
    let peers = players.into_iter().map(|player| player.figures).collect();
    ScenarioFigures { scenario: scenario.clone(), peers }
}

fn delayed(addresses: &[SocketAddr], round_trips: &[Duration]) -> Vec<Proxy> {
    let pairs = addresses.iter().zip(round_trips);
    pairs
        .map(|(&address, &round_trip)| {
            let proxy = Proxy::start(address);
            proxy.delay(round_trip / 2);
            proxy
        })
        .collect()
}

/// A peer in this scenario.
struct Player {
    figures: PeerFigures,
    /// `None` if it takes no part, or no longer.
    process: Option<Process>,
}

impl Player {
    fn start(peer: Peer, scenario: &Scenario, mut addresses: Vec<SocketAddr>) -> Self {
        let mut player =
            Self { figures: PeerFigures { peer, rounds: Vec::new(), fate: Fate::Done }, process: None };
        let one_stopped = scenario.network == Network::OneStopped;
        if let Some(reason) = peer.declines(&scenario.work, one_stopped) {
            player.figures.fate = Fate::NotApplicable(reason.to_owned());
            return player;
        }
        if one_stopped && peer == Peer::RawQuorum {
            addresses.remove(0); // it cannot lose one; four masters have the same quorum as five
        }
        let process = Process::start(&Job { peer, work: scenario.work.clone(), addresses });
        match process.line(READY_PATIENCE) {
            Ok(_) => player.process = Some(process),
            Err(fate) => player.figures.fate = fate,
        }
        player
    }

    fn play(&mut self, pace: Pace) {
        let Some(process) = &mut self.process else { return };
        let result = process.ask(pace.round, pace.patience);
        match result {
            Ok(round) => self.figures.rounds.push(round),
            Err(fate) => {
                self.figures.fate = fate;
                self.process = None;
            }
        }
    }
}

/// A child process, which ends when this value is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    fn start(job: &Job) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .args(["child", &job.to_json()])
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (heard, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if heard.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, input, lines }
    }

    fn ask(&mut self, time: Duration, patience: Duration) -> Result<Round, Fate> {
        let begun = writeln!(self.input, "{}", time.as_millis());
        begun.map_err(|error| Fate::Failed(error.to_string()))?;
        let line = self.line(time + patience)?;
        serde_json::from_str(&line).map_err(|error| Fate::Failed(format!("{error}: {line}")))
    }

    fn line(&self, patience: Duration) -> Result<String, Fate> {
        let start = Instant::now();
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Fate::StoppedAfter(start.elapsed().as_secs_f64()),
            RecvTimeoutError::Disconnected => Fate::Failed("its process ended".to_owned()),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may already have ended, which is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
