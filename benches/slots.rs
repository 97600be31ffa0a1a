//! Slots compared with K separate locks that are tried one after another: acquisitions per second and
//! requests to a master for each, with some of the slots taken.
//!
//! `cargo bench --bench slots` prints the table of `docs/dev/speed.md`. Both ways take turns on five masters
//! on loopback, so that a busy machine slows both.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::{AcquireError, Client, Config, Guard, Quarantine};
use redlatch_support::Fleet;
use redlatch_support::settle;

const MASTER_COUNT: usize = 5;
const TTL: Duration = Duration::from_secs(120);
const TURNS: usize = 5;
/// Duration of one turn.
const TURN: Duration = Duration::from_millis(300);

/// Sums of one way's turns.
#[derive(Default)]
struct Sum {
    calls: u64,
    time: Duration,
    requests: Requests,
}

/// Requests that reached the first master, without the commands inside scripts.
#[derive(Default, Clone, Copy)]
struct Requests {
    all: u64,
    /// Attempts for a lock, each one round trip.
    attempts: u64,
}

impl Sum {
    fn per_second(&self) -> f64 {
        self.calls as f64 / self.time.as_secs_f64()
    }

    /// Round trips and requests for each call.
    fn each(&self) -> [f64; 2] {
        [self.requests.attempts, self.requests.all].map(|count| count as f64 / self.calls as f64)
    }
}

fn main() {
    let mut fleet = Fleet::start(MASTER_COUNT);
    let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).max_ttl(TTL);
    // The error of a refusal should not cost more requests.
    let config = config.ask_holder(false).answer_timeout(Duration::from_secs(5));
    let [client, holder] = [(); 2].map(|()| config.clone().connect().expect("an event loop"));
    println!(
        "| K | taken | slots: round trips | requests | per second | one after another: round trips | requests \
         | per second | ratio |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (count, taken_percents) in
        [(1, &[0, 100][..]), (16, &[10, 50, 90, 100][..]), (256, &[10, 50, 90, 100][..])]
    {
        for percent in taken_percents {
            let taken = (count * percent + 50) / 100;
            let held = take(&holder, count, taken);
            let mut rng = StdRng::seed_from_u64(1);
            let [mut slots, mut locks] = [Sum::default(), Sum::default()];
            for _ in 0..TURNS {
                turn(&mut fleet, &mut slots, || {
                    client.slots("slots", count).ttl(TTL).try_acquire().map(|slot| slot.into_guard())
                });
                let start = |rng: &mut StdRng| rng.random_range(0..count);
                turn(&mut fleet, &mut locks, || take_place(&client, count, start(&mut rng)));
            }
            drop(held);
            settle(&holder, Duration::from_secs(60));
            let cells = |sum: &Sum| {
                let [attempts, all] = sum.each();
                format!("{attempts:.1} | {all:.1} | {:.0}", sum.per_second())
            };
            let ratio = slots.per_second() / locks.per_second();
            println!("| {count} | {percent} % | {} | {} | {ratio:.1} |", cells(&slots), cells(&locks));
        }
    }
}

/// The holder acquires this many random slots, and as many separate locks.
fn take(holder: &Client, count: u32, taken: u32) -> Vec<Guard> {
    let slots = (0..taken).map(|_| holder.slots("slots", count).ttl(TTL).acquire().expect("one is free"));
    let slots: Vec<_> = slots.collect();
    let locks: Vec<_> = slots
        .iter()
        .map(|slot| holder.lock(format!("locks:{}", slot.slot())).ttl(TTL).acquire().expect("it is free"))
        .collect();
    slots.into_iter().map(|slot| slot.into_guard()).chain(locks).collect()
}

/// Tries the separate locks in turn, from a given place on.
fn take_place(client: &Client, count: u32, start: u32) -> Result<Guard, AcquireError> {
    let mut result = client.lock(format!("locks:{start}")).ttl(TTL).try_acquire();
    for place in start + 1..start + count {
        match result {
            Err(AcquireError::Contended(_)) => {
                result = client.lock(format!("locks:{}", place % count)).ttl(TTL).try_acquire();
            }
            other => return other,
        }
    }
    result
}

/// Acquires and releases repeatedly.
fn turn(fleet: &mut Fleet, sum: &mut Sum, mut acquire: impl FnMut() -> Result<Guard, AcquireError>) {
    let before = requests(fleet);
    let begun = Instant::now();
    let mut now = begun;
    while now - begun < TURN {
        match acquire() {
            Ok(guard) => drop(guard.release().expect("the masters answer")),
            Err(AcquireError::Contended(_)) => {}
            Err(error) => panic!("{error}"),
        }
        sum.calls += 1;
        now = Instant::now();
    }
    sum.time += now - begun;
    let after = requests(fleet);
    sum.requests.all += after.all - before.all;
    sum.requests.attempts += after.attempts - before.attempts;
}

fn requests(fleet: &mut Fleet) -> Requests {
    let stats = fleet.master(0).ask("INFO commandstats").text();
    let calls = |name: &str| {
        let head = format!("cmdstat_{name}:calls=");
        let count = stats.lines().find_map(|line| line.strip_prefix(&head)?.split(',').next());
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let all = ["set", "eval", "evalsha", "delex"].into_iter().map(calls).sum();
    Requests { all, attempts: calls("set") }
}
