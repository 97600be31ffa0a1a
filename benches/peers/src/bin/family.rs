//! Hand-over, fairness and renewal by redlatch and by others; `scripts/bench --family` calls it.
//!
//! ```text
//! family [--quick] [--only PEER]… [--write FILE]
//! family play PEER WORK …                            its own processes
//! ```

use std::process::ExitCode;
use std::time::Duration;

use redlatch_peers::family::{self, FamilyPeer, Pace, Page};

const ROUND_TRIP: Duration = Duration::from_millis(10);
/// How long a lock is held: so that the next one certainly waits, and so that many have their turn.
const LONG_HOLD: Duration = Duration::from_millis(100);
const HOLD: Duration = Duration::from_millis(2);
const TTL: Duration = Duration::from_secs(6);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = words.as_slice()
        && first == "play"
    {
        family::play(rest);
        return ExitCode::SUCCESS;
    }
    let (mut is_quick, mut only, mut file) = (false, Vec::new(), None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match (word.as_str(), rest.as_slice()) {
            ("--quick", _) => is_quick = true,
            ("--only", [peer, ..]) if FamilyPeer::ALL.iter().any(|it| it.id() == peer) => {
                only.extend(rest.next())
            }
            ("--write", [_, ..]) => file = rest.next(),
            _ => {
                let ids: Vec<&str> = FamilyPeer::ALL.iter().map(|peer| peer.id()).collect();
                eprintln!(
                    "usage: family [--quick] [--only PEER]... [--write FILE]; peers: {}",
                    ids.join(", ")
                );
                return ExitCode::from(64);
            }
        }
    }
    let peers =
        FamilyPeer::ALL.into_iter().filter(|peer| only.is_empty() || only.iter().any(|it| *it == peer.id()));
    let text = measure(is_quick, &peers.collect::<Vec<_>>()).text();
    println!("{text}");
    match file.map(|file| std::fs::write(file, text)) {
        Some(Err(error)) => {
            eprintln!("family: cannot write the page: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn measure(is_quick: bool, peers: &[FamilyPeer]) -> Page {
    let seconds = |count| Duration::from_secs(if is_quick { 1 } else { count });
    let lock_count = if is_quick { 50 } else { 500 };
    let mut page = Page {
        round_trip_ms: ROUND_TRIP.as_secs_f64() * 1e3,
        hold_ms: u64::try_from(HOLD.as_millis()).expect("few"),
        lock_count,
        ttl_s: TTL.as_secs(),
        ..Page::default()
    };
    let progress = |what: &str, peer: FamilyPeer| eprintln!("family: {what}, {}", peer.name());
    for count in [2, 11] {
        for &peer in peers {
            progress(&format!("hand-over, {} waiting", count - 1), peer);
            let pace = Pace { time: seconds(8), hold: LONG_HOLD, pause: LONG_HOLD / 2 };
            let contest = family::contest(peer, count, pace, ROUND_TRIP);
            page.hand_overs.push((peer, contest));
        }
    }
    for count in [2, 8, 64] {
        for &peer in peers {
            progress(&format!("{count} contenders"), peer);
            let pace = Pace { time: seconds(5), hold: HOLD, pause: Duration::ZERO };
            page.contests.push((peer, family::contest(peer, count, pace, Duration::ZERO)));
        }
    }
    for &peer in peers.iter().filter(|peer| peer.keeps_by().is_some()) {
        progress(&format!("{lock_count} locks kept"), peer);
        page.kept.push((peer, family::keep(peer, lock_count, seconds(15), TTL)));
    }
    page
}
