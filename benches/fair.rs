//! How long a caller waits for a lock at most, and how often others who asked later have it before, with fair
//! locks, with plain ones whose waiters are parked, and with waiters that only try again and again:
//! `cargo bench --bench fair`, or with other numbers of contenders behind `--`.
//!
//! Each contender has connections and a thread of its own, holds the lock for a millisecond, and asks for it
//! again at once.

#[path = "../tests/masters/fleet.rs"]
mod fleet;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fleet::Fleet;
use redlatch::{Config, Lease, Quarantine, Redlock};

const TTL: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(600);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const HOLD: Duration = Duration::from_millis(1);

/// How the lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fair,
    Woken,
    Polling,
}

/// One acquisition.
struct Turn {
    asked: Instant,
    had: Instant,
}

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let mut fleet = Fleet::start(3);
    let asked: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let (counts, time) = match (is_test, asked.is_empty()) {
        (true, _) => (vec![2], Duration::from_millis(100)),
        (false, true) => (vec![2, 8, 64], Duration::from_secs(5)),
        (false, false) => (asked, Duration::from_secs(5)),
    };
    for count in counts {
        for way in [Way::Fair, Way::Woken, Way::Polling] {
            contend(&mut fleet, count, way, time);
        }
    }
}

fn connect(urls: &[String], way: Way) -> Redlock {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).max_ttl(TTL);
    let config = config.answer_timeout(ANSWER_TIMEOUT).wake_waiters(way != Way::Polling);
    Redlock::open(config.build().expect("valid")).expect("an event loop")
}

fn acquire(redlock: &mut Redlock, way: Way) -> Lease {
    let acquired = match way {
        Way::Fair => redlock.lock("fair").ttl(TTL).wait(WAIT).fair().acquire(),
        Way::Woken | Way::Polling => redlock.lock("fair").ttl(TTL).wait(WAIT).acquire(),
    };
    acquired.expect("it is released")
}

fn contend(fleet: &mut Fleet, count: usize, way: Way, time: Duration) {
    let urls = fleet.urls();
    let (ready, is_over, turns) = (Barrier::new(count + 1), AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut attempts = 0;
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let mut redlock = connect(&urls, way);
                drop(redlock.lock(format!("warm {:?}", thread::current().id())).ttl(TTL).try_acquire());
                let mut own = Vec::new();
                ready.wait();
                while !is_over.load(Ordering::SeqCst) {
                    let asked = Instant::now();
                    let lease = acquire(&mut redlock, way);
                    own.push(Turn { asked, had: Instant::now() });
                    thread::sleep(HOLD);
                    redlock.release(lease).expect("the masters answer");
                }
                turns.lock().expect("no panic").extend(own);
            });
        }
        ready.wait();
        let before = tries(fleet, way);
        thread::sleep(time);
        is_over.store(true, Ordering::SeqCst);
        attempts = tries(fleet, way) - before;
    });
    let mut turns = turns.into_inner().expect("no panic");
    turns.sort_by_key(|turn| turn.had);
    report(count, way, &turns, time, attempts);
}

fn report(count: usize, way: Way, turns: &[Turn], time: Duration, attempts: u32) {
    let mut waits: Vec<Duration> = turns.iter().map(|turn| turn.had - turn.asked).collect();
    waits.sort_unstable();
    // Callers that came between asking and having, and had asked later.
    let passed_by = |index: usize| {
        let asked = turns[index].asked;
        turns[..index].iter().rev().take_while(|it| it.had > asked).filter(|it| it.asked > asked).count()
    };
    let overtakes: Vec<usize> = (0..turns.len()).map(passed_by).collect();
    let (total, most) = (overtakes.iter().sum::<usize>(), overtakes.iter().max().copied().unwrap_or(0));
    let turn_count = f64::from(u32::try_from(turns.len()).expect("few"));
    println!(
        "{count:3} contenders, {way:?}: {:.0} pairs/s, wait {:.1?} at the median, {:.1?} at the longest; overtaken {total} times, \
         one waiter at most {most} times; {:.1} attempts a pair",
        turn_count / time.as_secs_f64(),
        waits[waits.len() / 2],
        waits[waits.len() - 1],
        f64::from(attempts) / turn_count,
    );
}

/// Attempts that the first master has seen.
fn tries(fleet: &mut Fleet, way: Way) -> u32 {
    let stats = fleet.master(0).ask("INFO commandstats").text();
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    // Only an attempt that enters a queue sets the end of a key again.
    match way {
        Way::Fair => calls("pexpire"),
        Way::Woken | Way::Polling => calls("set"),
    }
}
