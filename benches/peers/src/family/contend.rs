//! Contenders for one lock: speed and order of hand-overs, and their cost.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use redlatch_support::{Fleet, Proxy};

use super::{FamilyPeer, Pace, Player, READY, calls, cpu_of, median};

/// A caller has overtaken another if it asked this much later and got the lock earlier: the time of a request
/// and its refusal.
const LATER_US: u64 = 5_000;
const READY_PATIENCE: Duration = Duration::from_secs(60);

/// Result of a contest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contest {
    pub contender_count: usize,
    pub locks_per_second: f64,
    /// From a release to the next acquisition, if that contender was waiting: median in µs.
    pub hand_over_us: Option<f64>,
    /// From request to grant, in ms: median and longest.
    pub wait_ms: f64,
    pub longest_wait_ms: f64,
    /// Number of later callers that came first: mean and largest.
    pub overtaken_mean: f64,
    pub overtaken_most: usize,
    /// Locks of the contender with the fewest ÷ locks of the one with the most.
    pub evenness: f64,
    /// Requests to all masters for each lock.
    pub requests_per_lock: f64,
    /// CPU time of all contenders and of all masters for each lock, in µs.
    pub client_cpu_us: f64,
    pub master_cpu_us: f64,
    /// Number of times that two contenders had the lock.
    pub overlap_count: usize,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    who: usize,
    asked: u64,
    acquired: u64,
    released: u64,
}

/// Runs a contest of this many contenders, through a proxy if there is a round trip.
///
/// # Errors
/// Why the peer takes no part, or did not end.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn contest(
    peer: FamilyPeer,
    contender_count: usize,
    pace: Pace,
    round_trip: Duration,
) -> Result<Contest, String> {
    let mut command = peer.command()?;
    let mut fleet = Fleet::start(peer.master_count());
    let proxies: Vec<Proxy> = if round_trip.is_zero() {
        Vec::new()
    } else {
        fleet.addrs().into_iter().map(Proxy::start).inspect(|proxy| proxy.delay(round_trip / 2)).collect()
    };
    let addresses: Vec<SocketAddr> =
        if proxies.is_empty() { fleet.addrs() } else { proxies.iter().map(Proxy::addr).collect() };
    command.args(["contend", &contender_count.to_string(), &pace.time.as_secs().to_string()]);
    let times = [pace.hold, pace.pause].map(|time| time.as_millis().to_string());
    command.args(times).args(addresses.iter().map(SocketAddr::to_string));
    let player = Player::start(command)?;
    let first = player.line(READY_PATIENCE)?;
    if first != READY {
        return Err(format!("{first} in place of {READY}"));
    }
    let before = Used::so_far(&player, &mut fleet);
    // The first line comes at the end.
    let mut events = vec![event(&player.line(READY_PATIENCE + pace.time)?)?];
    let after = Used::so_far(&player, &mut fleet);
    while let Ok(line) = player.line(READY_PATIENCE) {
        events.push(event(&line)?);
    }
    let calls_since = |name: &str| calls(&after.stats, name) - calls(&before.stats, name);
    let first_sets = (events.len() * peer.master_count()) as u64;
    let contest = summary(events, contender_count, pace.time);
    let per_lock = |figure: f64| figure / (contest.locks_per_second * pace.time.as_secs_f64());
    Ok(Contest {
        requests_per_lock: per_lock(peer.requests(calls_since, first_sets) as f64),
        client_cpu_us: per_lock((after.client_cpu.saturating_sub(before.client_cpu)).as_secs_f64() * 1e6),
        master_cpu_us: per_lock((after.master_cpu.saturating_sub(before.master_cpu)).as_secs_f64() * 1e6),
        ..contest
    })
}

/// CPU time of the processes, and the masters' counts, so far.
struct Used {
    client_cpu: Duration,
    master_cpu: Duration,
    stats: String,
}

impl Used {
    fn so_far(player: &Player, fleet: &mut Fleet) -> Self {
        Self {
            client_cpu: player.usage().0,
            master_cpu: fleet.masters().map(|master| cpu_of(master.pid())).sum(),
            stats: fleet.masters().map(|master| master.ask("INFO commandstats").text()).collect(),
        }
    }
}

fn event(line: &str) -> Result<Event, String> {
    let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some([who, asked, acquired, released]) => Ok(Event {
            who: usize::try_from(*who).unwrap_or(usize::MAX),
            asked: *asked,
            acquired: *acquired,
            released: *released,
        }),
        _ => Err(format!("not a lock: {line}")),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and times far below 2^52")]
fn summary(mut events: Vec<Event>, contender_count: usize, time: Duration) -> Contest {
    events.sort_unstable_by_key(|event| event.acquired);
    let pairs = || events.windows(2).map(|pair| (pair[0], pair[1]));
    let waited = pairs().filter(|(last, next)| next.asked < last.released && next.acquired >= last.released);
    let hand_overs = waited.map(|(last, next)| (next.acquired - last.released) as f64).collect();
    let waits: Vec<f64> = events.iter().map(|event| (event.acquired - event.asked) as f64 / 1e3).collect();
    let overtaken: Vec<usize> = events
        .iter()
        .enumerate()
        .map(|(index, event)| {
            events[..index].iter().filter(|other| other.asked > event.asked + LATER_US).count()
        })
        .collect();
    let shares: Vec<usize> =
        (0..contender_count).map(|who| events.iter().filter(|event| event.who == who).count()).collect();
    let (fewest, most) = (shares.iter().min(), shares.iter().max());
    let count = events.len().max(1) as f64;
    Contest {
        contender_count,
        locks_per_second: events.len() as f64 / time.as_secs_f64(),
        hand_over_us: median(hand_overs),
        wait_ms: median(waits.clone()).unwrap_or(0.0),
        longest_wait_ms: waits.iter().copied().fold(0.0, f64::max),
        overtaken_mean: overtaken.iter().sum::<usize>() as f64 / count,
        overtaken_most: overtaken.iter().copied().max().unwrap_or(0),
        evenness: *fewest.unwrap_or(&0) as f64 / (*most.unwrap_or(&1)).max(1) as f64,
        overlap_count: pairs().filter(|(last, next)| next.acquired < last.released).count(),
        ..Contest::default()
    }
}
