//! Hand-over, fairness and renewal of redlatch and of others, for `benches/scripts/bench --family`.
//!
//! ```text
//! family [--quick] [--only PEER]… [--write ROOT]
//! family --render ROOT                               the pages again, from the results of the last run
//! family play PEER WORK …                            its own processes
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use redlatch_peers::family::{self, Contention, FamilyPeer, Pace, Results};
use redlatch_peers::report;

const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Length of a hold: long enough that the next contender waits, or short enough for many turns.
const LONG_HOLD: Duration = Duration::from_millis(100);
/// Hold and round trip of the contests, in ms; without a round trip there is no proxy.
const CONTENTIONS: [(u64, u64); 4] = [(0, 0), (2, 0), (0, 2), (2, 2)];
const TTL: Duration = Duration::from_secs(6);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["play", ..] => {
            family::play(&words[1..]);
            return ExitCode::SUCCESS;
        }
        ["--render", root] => return exit(Results::render(Path::new(root))),
        _ => {}
    }
    let (mut is_quick, mut only, mut root) = (false, Vec::new(), None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match (word.as_str(), rest.as_slice()) {
            ("--quick", _) => is_quick = true,
            ("--only", [peer, ..]) if FamilyPeer::ALL.iter().any(|it| it.id() == peer) => {
                only.extend(rest.next())
            }
            ("--write", [_, ..]) => root = rest.next(),
            _ => {
                let ids: Vec<&str> = FamilyPeer::ALL.iter().map(|peer| peer.id()).collect();
                eprintln!(
                    "usage: family [--quick] [--only PEER]... [--write ROOT] | --render ROOT; peers: {}",
                    ids.join(", ")
                );
                return ExitCode::from(64);
            }
        }
    }
    if root.is_some() && !only.is_empty() {
        eprintln!("family: --write is for whole runs, not with --only");
        return ExitCode::from(64);
    }
    if root.is_some()
        && let Err(message) = report::wait_for_quiet(|_| {})
    {
        return exit(Err(message));
    }
    let peers =
        FamilyPeer::ALL.into_iter().filter(|peer| only.is_empty() || only.iter().any(|it| *it == peer.id()));
    let results = measure(is_quick, &peers.collect::<Vec<_>>());
    println!("{}", results.text());
    exit(root.map_or(Ok(()), |root| results.write(Path::new(root))))
}

fn exit(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("family: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(is_quick: bool, peers: &[FamilyPeer]) -> Results {
    let seconds = |count| Duration::from_secs(if is_quick { 1 } else { count });
    let lock_count = if is_quick { 50 } else { 500 };
    let mut results = Results {
        machine: report::machine_line(),
        quick: is_quick,
        versions: peers.iter().map(|&peer| (peer, peer.version())).collect(),
        round_trip_ms: ROUND_TRIP.as_secs_f64() * 1e3,
        lock_count,
        ttl_s: TTL.as_secs(),
        ..Results::default()
    };
    let progress = |what: &str, peer: FamilyPeer| eprintln!("family: {what}, {}", peer.name());
    for count in [2, 11, 101] {
        for &peer in peers {
            progress(&format!("hand-over, {} waiting", count - 1), peer);
            let pace = Pace { time: seconds(6), hold: LONG_HOLD, pause: LONG_HOLD / 2 };
            let contest = family::contest(peer, count, pace, ROUND_TRIP);
            results.hand_overs.push((peer, contest));
        }
    }
    for (hold_ms, round_trip_ms) in CONTENTIONS {
        let mut contention = Contention { hold_ms, round_trip_ms, ..Contention::default() };
        for count in [2, 16, 64] {
            for &peer in peers {
                progress(
                    &format!("{count} contenders, hold {hold_ms} ms, round trip {round_trip_ms} ms"),
                    peer,
                );
                let hold = Duration::from_millis(hold_ms);
                let pace = Pace { time: seconds(3), hold, pause: Duration::ZERO };
                let contest = family::contest(peer, count, pace, Duration::from_millis(round_trip_ms));
                contention.contests.push((peer, contest));
            }
        }
        results.contention.push(contention);
    }
    for &peer in peers.iter().filter(|peer| peer.keeps_by().is_some()) {
        progress(&format!("{lock_count} locks kept"), peer);
        results.kept.push((peer, family::keep(peer, lock_count, seconds(15), TTL)));
    }
    results
}
