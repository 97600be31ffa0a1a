//! Cost of one lock that 16 clients want all the time, each with its own connections and thread: `cargo bench
//! --bench contention`, or with another number of clients after `--`.
//!
//! Clients that park and clients that only poll take turns. Figures for each: locks per second, the longest
//! wait, CPU time of clients and of masters for each lock, and commands to all masters for each lock. The
//! last figure does not depend on the machine's load.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Quarantine};
use redlatch_support::Fleet;

const MASTER_COUNT: usize = 5;
const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest pause between attempts, as for the libraries in `benches/peers`.
const RETRY_DELAY_MAX: Duration = Duration::from_millis(10);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Resources used and commands sent so far.
struct Used {
    client_cpu: Duration,
    master_cpu: Duration,
    commands: BTreeMap<String, u64>,
}

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let client_count = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(16);
    let (rounds, time) = if is_test { (1, Duration::from_millis(100)) } else { (5, Duration::from_secs(3)) };
    let mut fleet = Fleet::start(MASTER_COUNT);
    for _ in 0..rounds {
        for is_parked in [true, false] {
            contend(&mut fleet, client_count, is_parked, time);
        }
    }
}

/// Lets the clients contend for this time, and prints the cost.
fn contend(fleet: &mut Fleet, client_count: usize, is_parked: bool, time: Duration) {
    let urls = fleet.urls();
    let clients: Vec<Client> = (0..client_count).map(|_| connect(&urls, is_parked)).collect();
    let (lock_count, longest_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let (start, stop) = (Barrier::new(client_count + 1), AtomicBool::new(false));
    let (before, began) = thread::scope(|scope| {
        for client in &clients {
            let (lock_count, longest_ns, start, stop) = (&lock_count, &longest_ns, &start, &stop);
            scope.spawn(move || {
                start.wait();
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    let request = client.lock("contended").ttl(TTL).wait(PATIENCE);
                    let guard = request.acquire().expect("free in time");
                    let waited = u64::try_from(asked.elapsed().as_nanos()).expect("short");
                    longest_ns.fetch_max(waited, Ordering::Relaxed);
                    lock_count.fetch_add(1, Ordering::Relaxed);
                    guard.release().expect("the masters answer");
                }
            });
        }
        let before = Used::so_far(fleet);
        start.wait();
        let began = Instant::now();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        (before, began)
    });
    let took = began.elapsed();
    let after = Used::so_far(fleet);
    let locks = lock_count.into_inner() as f64;
    let per_lock = |time: Duration| time.as_secs_f64() * 1e6 / locks;
    println!(
        "{:9} {:5.0} locks/s, longest wait {:4} ms; CPU per lock {:4.0} µs in the clients, {:4.0} µs in the masters",
        if is_parked { "parked:  " } else { "polling:" },
        locks / took.as_secs_f64(),
        longest_ns.into_inner() / 1_000_000,
        per_lock(after.client_cpu - before.client_cpu),
        per_lock(after.master_cpu - before.master_cpu),
    );
    let counts = after.commands.iter().filter_map(|(name, count)| {
        let count = count - before.commands.get(name).unwrap_or(&0);
        (count > 0).then_some((name, count as f64 / locks))
    });
    let counts: Vec<(&String, f64)> = counts.collect();
    print!("          commands per lock: {:.1}", counts.iter().map(|(_, count)| count).sum::<f64>());
    counts.iter().filter(|(_, count)| *count >= 0.05).for_each(|(name, count)| print!(", {name} {count:.1}"));
    println!();
}

fn connect(urls: &[String], is_parked: bool) -> Client {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).max_ttl(TTL);
    let config = config.retry_delay(Duration::from_millis(1)..=RETRY_DELAY_MAX);
    let config = config.answer_timeout(ANSWER_TIMEOUT).wake_waiters(is_parked);
    let client = Client::open(config.build().expect("valid settings")).expect("an event loop");
    assert!(client.lock("warm-up").ttl(TTL).wait(PATIENCE).acquire().is_ok());
    client
}

impl Used {
    /// From `/proc` and the masters' `INFO`.
    fn so_far(fleet: &mut Fleet) -> Self {
        let mut commands = BTreeMap::new();
        let mut master_cpu = Duration::ZERO;
        for master in fleet.masters() {
            master_cpu += cpu_of(master.pid());
            for line in master.ask("INFO commandstats").text().lines() {
                let Some((name, rest)) =
                    line.trim().strip_prefix("cmdstat_").and_then(|it| it.split_once(':'))
                else {
                    continue;
                };
                let calls = rest.strip_prefix("calls=").and_then(|it| it.split(',').next());
                let calls: u64 = calls.and_then(|it| it.parse().ok()).expect("a number of calls");
                *commands.entry(name.to_owned()).or_insert(0) += calls;
            }
        }
        Self { client_cpu: cpu_of(std::process::id()), master_cpu, commands }
    }
}

/// User and system time of a process, the 12th and 13th fields after its name, in hundredths of a second.
fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|it| it.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}
