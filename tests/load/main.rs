//! Mixed load on five real masters with random faults: all kinds of locks, sets, reentrant locks, notified
//! waiters, and TLS on two masters. It finds what only time shows: two holders, leftover locks, late calls,
//! unexplained errors, and growing tokens, memory and descriptors. A late machine is no fault: [`lateness`]
//! measures it.
//!
//! ```sh
//! REDLATCH_LOAD_SECONDS=3600 cargo test --release --all-features --test load
//! ```
//!
//! Without the variable, it runs for five seconds with fewer tasks, to test itself.

mod crowd;
mod faults;
mod lateness;
mod tasks;
#[path = "../../src/cli/drill/witness.rs"]
#[expect(dead_code, reason = "a task here is never stopped")]
mod witness;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, HeldLocks, Pem, Tls, limits};
use redlatch_support::{Certificates, Fleet, Master, PATIENCE, Raw, eventually};

use faults::Faults;
use lateness::Lateness;
use tasks::{LatestCall, Tasks};
use witness::Witness;

/// TTL of all locks and the fleet's `max_ttl`, so a restarted master does not vote for this long.
const TTL: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
const CLIENT_COUNT: usize = 4;
const RETRY_DELAY_MAX: Duration = Duration::from_millis(50);
/// Limit of a drain: shorter than the TTL, at whose end the masters delete unreleased locks.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// One lock of this many callers may be released later: its master was lost with commands under way, and
/// later connections prove nothing before the TTL ends.
const CALLERS_PER_UNRELEASED: usize = 5;
/// Allowed growth of memory beyond a doubling: tables and buffers keep their size after the worst outage, and
/// a worse one may come late.
const GROWTH_MAX_KB: u64 = 16 * 1024;

/// Amount of load.
#[derive(Debug, Clone, Copy)]
struct Scale {
    time: Duration,
    task_count: usize,
    resource_count: usize,
    waiter_count: u32,
}

impl Scale {
    fn from_env() -> Self {
        let seconds = std::env::var("REDLATCH_LOAD_SECONDS").ok().map(|it| it.parse().expect("seconds"));
        match seconds {
            Some(seconds) => Self {
                time: Duration::from_secs(seconds),
                task_count: 1000,
                resource_count: 10_000,
                waiter_count: 3000,
            },
            None => Self {
                time: Duration::from_secs(5),
                task_count: 100,
                resource_count: 500,
                waiter_count: 1000,
            },
        }
    }

    /// Time of the first measurement of memory: after 5 minutes, or halfway through a shorter run.
    fn first_look(&self) -> Duration {
        Duration::from_secs(300).min(self.time / 2)
    }
}

/// Resources of the process.
#[derive(Debug, Clone, Copy)]
struct Usage {
    memory_kb: u64,
    descriptor_count: usize,
}

impl Usage {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux has it");
        let memory_kb = memory.trim().trim_end_matches(" kB").parse().expect("a number");
        let descriptor_count = fs::read_dir("/proc/self/fd").expect("Linux has it").count();
        Self { memory_kb, descriptor_count }
    }
}

/// A new seed for each run, because timing depends on the machine anyway.
fn seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(0)
}

/// Longest time that an attempt waits for a master.
fn answer_limit(client: &Client) -> Duration {
    let config = client.config();
    config.answer_limit(config.ttl(TTL).expect("a valid TTL"))
}

/// Allowed excess of a call over its wait on a punctual machine: a set's attempt may begin at the wait's end,
/// ask for the holder's time, and find connections that were closed while idle.
fn late_max(client: &Client) -> Duration {
    answer_limit(client) * 2 + limits::REVIVE_MAX
}

fn main() {
    let scale = Scale::from_env();
    println!("{scale:?}");
    let certificates = Certificates::new();
    let mut fleet = start(&certificates);
    let clients: Arc<[Client]> = (0..CLIENT_COUNT).map(|_| open(&mut fleet, &certificates)).collect();
    let is_counted = |client: &Client| client.health().may_fail == 2;
    eventually(PATIENCE, "all masters count", || clients.iter().all(is_counted));
    let witness = Arc::new(Witness::new(scale.resource_count));
    let is_over = Arc::new(AtomicBool::new(false));
    let (lateness, measuring) = Lateness::begin(is_over.clone());
    let crowd = crowd::wait_for_held_locks(&mut fleet, &clients[0], scale.waiter_count, &lateness);
    assert_in_time(&crowd, &clients[0]);
    let begun = Instant::now();
    let mut faults = Faults::begin(fleet, is_over.clone());
    let tasks = Tasks::begin(scale, &clients, &witness, &lateness, &is_over);
    let (mut usages, mut claims_max) = (Vec::new(), 0);
    while begun.elapsed() < scale.time {
        thread::sleep(Duration::from_millis(100));
        assert_none_inside_twice(&witness);
        claims_max =
            clients.iter().map(|client| client.stats().claims).max().max(Some(claims_max)).unwrap_or(0);
        if usages.is_empty() && begun.elapsed() >= scale.first_look() {
            usages.push(Usage::now());
            println!("after {:.0?}: {:?}", begun.elapsed(), usages[0]);
        }
        faults.assert_alive();
    }
    usages.push(Usage::now());
    is_over.store(true, Ordering::SeqCst);
    let mut fleet = faults.end();
    let report = tasks.end();
    measuring.join().expect("no panic");
    println!("latest wake-up of a thread that only sleeps: {:.3?} late", lateness.worst());
    let needed = tasks::Report::tokens_needed(scale.task_count.div_ceil(CLIENT_COUNT));
    println!("most tokens of one client that may be on some master at once: {claims_max}; bound: {needed}");
    report_and_judge(scale, &mut fleet, &clients, &witness, &usages, &report);
    assert!(claims_max <= needed, "{claims_max} tokens of one client, which needs {needed}");
    println!("test mixed_load_leaves_nothing_behind ... ok");
}

fn report_and_judge(
    scale: Scale,
    fleet: &mut Fleet,
    clients: &[Client],
    witness: &Witness,
    usages: &[Usage],
    report: &tasks::Report,
) {
    let keys = |fleet: &mut Fleet| fleet.masters().map(|it| key_count(it, true)).sum::<usize>();
    let keys_before = keys(fleet);
    let stats: Vec<_> = clients.iter().map(Client::stats).collect();
    let unreleased: usize = clients.iter().map(|client| client.drain(DRAIN_TIME, HeldLocks::Leave)).sum();
    // Counted at once, because the TTL soon deletes any leftover.
    let locks_left: usize = fleet.masters().map(|it| key_count(it, false)).sum();
    let sum = |count: fn(&redlatch::stats::Stats) -> u64| stats.iter().map(count).sum::<u64>();
    println!("{report}");
    println!(
        "clients: {} locks, {} lost, {} near losses, {} hand-overs, {} repairs, {} reconnects, {} restarts",
        sum(|it| it.acquired),
        sum(|it| it.lost),
        sum(|it| it.near_losses),
        sum(|it| it.hand_overs),
        sum(|it| it.repairs),
        sum(redlatch::stats::Stats::reconnects),
        sum(redlatch::stats::Stats::restarts),
    );
    let [first, last] = usages else { panic!("two looks") };
    println!(
        "memory {} kB, then {} kB; descriptors {}, then {}; visits witnessed: {}; keys when the load ended: \
         {keys_before}; locks not released everywhere: {unreleased}, keys of locks then: {locks_left}",
        first.memory_kb,
        last.memory_kb,
        first.descriptor_count,
        last.descriptor_count,
        witness.found().visit_count,
    );
    eventually(PATIENCE, "all keys are released or end", || keys(fleet) == 0);
    assert_none_inside_twice(witness);
    let unreleased_max = scale.task_count / CALLERS_PER_UNRELEASED;
    assert!(unreleased <= unreleased_max, "{unreleased} locks are not released, {unreleased_max} may be");
    let master_count = fleet.masters().count();
    assert!(
        locks_left <= unreleased * master_count,
        "{locks_left} keys stay, and clients know of {unreleased} locks"
    );
    let scarce = report.scarce_kinds(scale.task_count, scale.time);
    assert!(scarce.is_empty(), "hardly a lock was acquired: {scarce:?}");
    assert_in_time(&report.latest, &clients[0]);
    let errors: Vec<_> = report.unexplained_errors().collect();
    assert!(errors.is_empty(), "errors that nothing explains: {errors:?}");
    assert!(last.memory_kb < 2 * first.memory_kb + GROWTH_MAX_KB, "memory grows: {first:?}, then {last:?}");
    // Connections come and go with faults and waiters.
    let many = CLIENT_COUNT * 5 * 2;
    assert!(last.descriptor_count < first.descriptor_count + many, "{first:?}, then {last:?}");
}

fn assert_in_time(latest: &LatestCall, client: &Client) {
    let unexplained = latest.unexplained();
    assert!(
        unexplained < late_max(client),
        "a call ended {unexplained:?} past its wait, beyond what the machine was late"
    );
}

fn assert_none_inside_twice(witness: &Witness) {
    let overlaps = witness.found().overlaps;
    assert!(overlaps.is_empty(), "{overlaps:#?}");
}

/// Number of lock keys on a master, including wait queues if `has_queues`. Fences and marks do not count.
fn key_count(master: &mut Master, has_queues: bool) -> usize {
    let Raw::List(keys) = master.ask("KEYS *") else { panic!("a list of keys") };
    let is_queue = |key: &str| key.starts_with("redlatch:wait:");
    let is_counted = |key: &str| !key.starts_with("redlatch:") || (has_queues && is_queue(key));
    keys.iter().filter(|key| is_counted(&key.text())).count()
}

/// Five masters, each with a TLS port beside the plaintext port.
fn start(certificates: &Certificates) -> Fleet {
    let path = |file: &str| certificates.path(file).display().to_string();
    let files = [path("server.pem"), path("server.key"), path("ca.pem")];
    let [certificate, key, ca] = &files;
    let args = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca];
    Fleet::start_with_tls(5, &[&args[..], &["--tls-auth-clients", "no"]].concat())
}

/// A client of three masters in plaintext and two over TLS.
fn open(fleet: &mut Fleet, certificates: &Certificates) -> Client {
    let urls = fleet.masters().enumerate().map(|(index, it)| if index < 3 { it.url() } else { it.tls_url() });
    let config = Config::builder()
        .masters(urls)
        .max_ttl(TTL)
        .answer_timeout(ANSWER_TIMEOUT)
        .tls(Tls::new().ca(Pem::File(certificates.path("ca.pem"))))
        .retry_delay(Duration::from_millis(2)..=RETRY_DELAY_MAX);
    Client::open(config.build().expect("valid settings")).expect("an event loop")
}
