//! redlatch compared with the raw loop, which sends the same bytes to the same masters, in turns.
//!
//! ```text
//! cargo bench --bench floor                        the ratios, on five masters of its own
//! floor WHAT DEPTH PAIRS ADDRESS…                  one run, to be counted from outside (scripts/release.d/syscalls)
//! floor tasks | floor tls                          only the ratios of tasks, or of TLS to plaintext
//! floor tls|plain DEPTH PAIRS                      one run of `redlatch`, with or without TLS, on masters of its own
//!       WHAT: raw; redlatch, unawaited (`Redlock`; unawaited: each release goes out with the next acquisition);
//!             client (`Client` on this thread), client-threads, client-tasks (DEPTH of them);
//!             kept: PAIRS locks are kept for DEPTH seconds
//!       after client…: +drop: no release is awaited; +spin: looks for answers before it sleeps; +workers: two
//!             tokio threads; +runtime: driven by the tasks' runtime; +2clients, +4clients: clients with separate names
//! ```

mod client_loop;
mod lock_loop;
mod raw_loop;

use redlatch::HeldLocks;
use redlatch_support::Fleet;
use std::net::SocketAddr;
use std::time::Duration;

use client_loop::{ClientLoop, Executor};
use lock_loop::LockLoop;
use raw_loop::RawLoop;

/// More keys than locks in flight.
const KEY_COUNT: usize = 8192;
/// Somewhat longer than a round trip on loopback.
const SPIN: Duration = Duration::from_micros(200);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_test = std::env::args().any(|arg| arg == "--test");
    match args.as_slice() {
        [what, depth, pairs, addresses @ ..] if !addresses.is_empty() => {
            let number = |text: &String| text.parse().expect("a number");
            let addresses: Vec<SocketAddr> =
                addresses.iter().map(|text| text.parse().expect("an address")).collect();
            run_one(what, number(depth), number(pairs), &addresses);
        }
        [what] if what == "tasks" => compare_tasks(25, 12_800),
        #[cfg(feature = "tls")]
        [what, depth, pairs] if what == "tls" || what == "plain" => {
            let number = |text: &String| text.parse().expect("a number");
            over_tls::run_one(what == "tls", number(depth), number(pairs));
        }
        #[cfg(feature = "tls")]
        [what] if what == "tls" => over_tls::compare(25, 12_800),
        _ => compare(if is_test { 1 } else { 25 }, if is_test { 128 } else { 12_800 }),
    }
}

fn urls(addresses: &[SocketAddr]) -> Vec<String> {
    addresses.iter().map(|address| format!("redis://{address}")).collect()
}

fn run_one(what: &str, depth: usize, pairs: usize, addresses: &[SocketAddr]) {
    let locks = || LockLoop::connect(&urls(addresses), KEY_COUNT);
    let (what, extras) = what.split_once('+').unwrap_or((what, ""));
    let has = |extra| extras.split('+').any(|it| it == extra);
    let client_count = extras.split('+').find_map(|it| it.strip_suffix("clients")?.parse().ok());
    let spin = if has("spin") { SPIN } else { Duration::ZERO };
    let client = || {
        if has("runtime") {
            return ClientLoop::connect_in_runtime(&urls(addresses), KEY_COUNT);
        }
        ClientLoop::connect_with(&urls(addresses), KEY_COUNT, client_count.unwrap_or(1), spin)
    };
    match what {
        "raw" => drop(RawLoop::connect(addresses).pairs(KEY_COUNT, depth, pairs)),
        "redlatch" if depth == 1 => locked(locks(), |locks| locks.blocking_pairs(pairs, true)),
        "redlatch" => locked(locks(), |locks| locks.pipelined_pairs(pairs, depth)),
        "unawaited" => locked(locks(), |locks| locks.blocking_pairs(pairs, false)),
        "client" => settled(client(), |client| client.blocking_pairs(pairs, !has("drop"))),
        "client-threads" => settled(client(), |client| client.thread_pairs(pairs, depth, !has("drop"))),
        "client-tasks" => {
            let executor = if has("workers") { Executor::TwoWorkers } else { Executor::OneThread };
            settled(client(), |client| client.task_pairs(pairs, depth, executor));
        }
        // Here, PAIRS is the number of locks and DEPTH the seconds.
        "kept" => client().keep(pairs, Duration::from_secs(depth.try_into().expect("small"))),
        other => panic!("{other} is none of what this program can do"),
    }
}

/// Runs pairs, and waits for their last releases: the next program uses the same locks, and a server that
/// cannot answer a closed connection may ignore its last commands.
fn locked(mut locks: LockLoop, run: impl FnOnce(&mut LockLoop) -> Duration) {
    run(&mut locks);
    assert_eq!(
        locks.redlock.drain(Duration::from_secs(20), HeldLocks::Leave),
        0,
        "locks are left on some master"
    );
}

/// Like [`locked`].
fn settled(clients: ClientLoop, run: impl FnOnce(&ClientLoop) -> Duration) {
    run(&clients);
    clients.settle();
}

/// Runs both in turns, in several rounds. On a shared machine, the medians of the ratios count.
fn compare(rounds: usize, deep_pairs: usize) {
    let mut fleet = Fleet::start(5);
    let addresses = fleet.addrs();
    let mut raw = RawLoop::connect(&addresses);
    let mut locks = LockLoop::connect(&urls(&addresses), KEY_COUNT);
    for (depth, pairs) in [(1, deep_pairs / 16), (128, deep_pairs)] {
        let mut ratios = Vec::new();
        let (mut raw_rates, mut own_rates) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let floor = raw.pairs(KEY_COUNT, depth, pairs);
            let own = if depth == 1 {
                locks.blocking_pairs(pairs, true)
            } else {
                locks.pipelined_pairs(pairs, depth)
            };
            ratios.push(floor.as_secs_f64() / own.as_secs_f64());
            raw_rates.push(rate(pairs, floor));
            own_rates.push(rate(pairs, own));
        }
        println!(
            "N = 5, {depth:3} in flight: raw loop {:.0} pairs/s, redlatch {:.0} pairs/s, ratio {:.2} ({:.2} to {:.2}), medians of {rounds} rounds",
            median(&mut raw_rates),
            median(&mut own_rates),
            median(&mut ratios),
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
    compare_client(&mut raw, &urls(&addresses), rounds, deep_pairs);
    compare_slowest(&mut raw, &urls(&addresses), rounds, deep_pairs * 4);
    compare_spinning(&urls(&addresses), rounds, deep_pairs / 16);
    compare_stopped(&mut fleet, &mut locks, rounds);
    #[cfg(feature = "tls")]
    over_tls::compare(rounds, deep_pairs);
}

/// The same locks with and without TLS, on the same masters.
#[cfg(feature = "tls")]
mod over_tls {
    use redlatch::{Pem, Tls};
    use redlatch_support::{Certificates, Fleet};

    use super::lock_loop::LockLoop;
    use super::{KEY_COUNT, locked, median};

    /// Five masters with a TLS port each, and the certificates.
    fn start() -> (Fleet, Certificates) {
        let certificates = Certificates::new();
        let path = |file: &str| certificates.path(file).display().to_string();
        let (certificate, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        (Fleet::start_with_tls(5, &[&files[..], &["--tls-auth-clients", "no"]].concat()), certificates)
    }

    fn connect(fleet: &mut Fleet, certificates: &Certificates, is_tls: bool) -> LockLoop {
        // Distinct names: a slow minority may still have to delete the other's locks.
        if !is_tls {
            return LockLoop::connect_with(&fleet.urls(), KEY_COUNT, |config| config.prefix("raw:"));
        }
        let urls: Vec<String> = fleet.masters().map(|master| master.tls_url()).collect();
        let tls = Tls::new().ca(Pem::File(certificates.path("ca.pem")));
        LockLoop::connect_with(&urls, KEY_COUNT, |config| config.tls(tls).prefix("tls:"))
    }

    pub(crate) fn run_one(is_tls: bool, depth: usize, pairs: usize) {
        let (mut fleet, certificates) = start();
        let locks = connect(&mut fleet, &certificates, is_tls);
        locked(locks, |locks| {
            if depth == 1 { locks.blocking_pairs(pairs, true) } else { locks.pipelined_pairs(pairs, depth) }
        });
    }

    /// Runs both in turns.
    pub(crate) fn compare(rounds: usize, deep_pairs: usize) {
        let (mut fleet, certificates) = start();
        let [mut plain, mut tls] = [false, true].map(|is_tls| connect(&mut fleet, &certificates, is_tls));
        for (depth, pairs) in [(1, deep_pairs / 16), (128, deep_pairs)] {
            let run = |locks: &mut LockLoop| {
                let time = if depth == 1 {
                    locks.blocking_pairs(pairs, true)
                } else {
                    locks.pipelined_pairs(pairs, depth)
                };
                super::rate(pairs, time)
            };
            let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
            for _ in 0..rounds {
                let (plain, tls) = (run(&mut plain), run(&mut tls));
                ratios.push(tls / plain);
                rates[0].push(plain);
                rates[1].push(tls);
            }
            println!(
                "N = 5, {depth:3} in flight: {:.0} pairs/s in plaintext, {:.0} over TLS, ratio {:.2} ({:.2} to {:.2}), medians of {rounds} rounds",
                median(&mut rates[0]),
                median(&mut rates[1]),
                median(&mut ratios),
                ratios[0],
                ratios[ratios.len() - 1],
            );
        }
    }
}

/// `Client` by one thread that looks for answers before it sleeps, against one that sleeps at once, in turns.
fn compare_spinning(urls: &[String], rounds: usize, pairs: usize) {
    let sleeping = ClientLoop::connect(urls, KEY_COUNT);
    let spinning = ClientLoop::connect_with(urls, KEY_COUNT, 1, SPIN);
    let ratio = |_| {
        let slept = sleeping.blocking_pairs(pairs, true);
        slept.as_secs_f64() / spinning.blocking_pairs(pairs, true).as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..rounds).map(ratio).collect();
    let ratio = median(&mut ratios);
    println!("N = 5,   1 thread that spins for {SPIN:?} ÷ one that sleeps: {ratio:.2} of the pairs/s");
}

/// `Client` with tasks on one thread and on two workers, and with threads, in turns with the raw loop.
fn compare_client(raw: &mut RawLoop, urls: &[String], rounds: usize, deep_pairs: usize) {
    let tasks = |client: &ClientLoop, pairs, depth| client.task_pairs(pairs, depth, Executor::OneThread);
    let shared = |client: &ClientLoop, pairs, depth| client.task_pairs(pairs, depth, Executor::TwoWorkers);
    let threads = |client: &ClientLoop, pairs, depth| client.thread_pairs(pairs, depth, true);
    type Run<'a> = &'a dyn Fn(&ClientLoop, usize, usize) -> Duration;
    let kinds: [(Run<'_>, usize, usize, &str); 5] = [
        (&tasks, 1, deep_pairs / 16, "task"),
        (&tasks, 128, deep_pairs, "tasks on one thread"),
        (&tasks, 1024, deep_pairs / 1024 * 1024, "tasks on one thread"),
        (&shared, 128, deep_pairs, "tasks on two workers"),
        (&threads, 16, deep_pairs / 4, "blocking threads"),
    ];
    for (run, depth, pairs, name) in kinds.into_iter().filter(|(_, depth, pairs, _)| pairs >= depth) {
        let client = ClientLoop::connect(urls, KEY_COUNT);
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            let floor = raw.pairs(KEY_COUNT, depth, pairs);
            ratios.push(floor.as_secs_f64() / run(&client, pairs, depth).as_secs_f64());
        }
        println!(
            "N = 5, {depth} {name} of one Client: ratio to the raw loop {:.2} ({:.2} to {:.2}), median of {rounds} rounds",
            median(&mut ratios),
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
}

/// Tasks of a client with a background thread, and of a client that their runtime drives, in turns with the
/// raw loop.
fn compare_tasks(rounds: usize, deep_pairs: usize) {
    let fleet = Fleet::start(5);
    let addresses = fleet.addrs();
    let mut raw = RawLoop::connect(&addresses);
    let clients = [
        ("background thread", ClientLoop::connect(&urls(&addresses), KEY_COUNT)),
        ("runtime", ClientLoop::connect_in_runtime(&urls(&addresses), KEY_COUNT)),
    ];
    for depth in [1, 4, 16, 64, 128, 1024] {
        let pairs = (deep_pairs * depth.min(16) / 16).next_multiple_of(depth);
        let (mut rates, mut ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
        let (mut slow, mut slow_ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
        for _ in 0..rounds {
            let mut times = Vec::with_capacity(pairs);
            let floor = raw.pairs_noting(KEY_COUNT, depth, pairs, |time| times.push(time));
            let slowest = slowest_hundredth(&mut times);
            rates.push(rate(pairs, floor));
            slow.push(slowest);
            for (index, (_, client)) in clients.iter().enumerate() {
                let mut times = Vec::with_capacity(pairs);
                let own =
                    client.task_pairs_noting(pairs, depth, Executor::OneThread, |its| times.extend(its));
                ratios[index].push(floor.as_secs_f64() / own.as_secs_f64());
                slow_ratios[index].push(slowest_hundredth(&mut times).as_secs_f64() / slowest.as_secs_f64());
            }
        }
        print!(
            "N = 5, {depth:4} tasks: raw loop {:6.0} pairs/s, p99 {:?}",
            median(&mut rates),
            median(&mut slow)
        );
        for (index, (name, _)) in clients.iter().enumerate() {
            let ratio = median(&mut ratios[index]);
            let (least, most) = (ratios[index][0], ratios[index][rounds - 1]);
            print!(
                "; {name} {ratio:.2} ({least:.2} to {most:.2}), p99 {:.1}",
                median(&mut slow_ratios[index])
            );
        }
        println!();
    }
}

/// The slowest hundredth of the acquisitions of 1,024 tasks, and all first acquisitions, in turns with the
/// raw loop.
fn compare_slowest(raw: &mut RawLoop, urls: &[String], rounds: usize, deep_pairs: usize) {
    const DEPTH: usize = 1024;
    let pairs = deep_pairs / DEPTH * DEPTH;
    if pairs == 0 {
        return;
    }
    let client = ClientLoop::connect(urls, KEY_COUNT);
    let (mut ratios, mut bursts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (mut floor, mut own, mut burst) = (Vec::new(), Vec::new(), Duration::ZERO);
        raw.pairs_noting(KEY_COUNT, DEPTH, pairs, |time| floor.push(time));
        client.task_pairs_noting(pairs, DEPTH, Executor::OneThread, |times| {
            burst = burst.max(times[0]);
            own.extend(times);
        });
        ratios.push(slowest_hundredth(&mut own).as_secs_f64() / slowest_hundredth(&mut floor).as_secs_f64());
        bursts.push(burst);
    }
    println!(
        "N = 5, {DEPTH} tasks on one thread: p99 of acquire {:.1} times the raw loop's, first burst {:?}, medians of {rounds} rounds",
        median(&mut ratios),
        median(&mut bursts),
    );
}

/// The median acquisition with one of five masters stopped, compared with all five running, in turns.
fn compare_stopped(fleet: &mut Fleet, locks: &mut LockLoop, rounds: usize) {
    let (mut healthy, mut stopped, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut times = locks.acquire_times(200);
        let all = median(&mut times);
        fleet.master(0).stop();
        // The first acquisition that misses the master pays for the discovery; later ones skip it.
        let mut times = locks.acquire_times(200);
        let four = median(&mut times);
        fleet.master(0).cont();
        locks.acquire_times(200);
        ratios.push(four.as_secs_f64() / all.as_secs_f64());
        healthy.push(all);
        stopped.push(four);
    }
    println!(
        "N = 5, one stopped: median acquire {:?} with five, {:?} with four, ratio {:.2}",
        median(&mut healthy),
        median(&mut stopped),
        median(&mut ratios),
    );
}

#[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
fn rate(pairs: usize, time: Duration) -> f64 {
    pairs as f64 / time.as_secs_f64()
}

fn slowest_hundredth(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

fn median<T: Copy + PartialOrd>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[values.len() / 2]
}
