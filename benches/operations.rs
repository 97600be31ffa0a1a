//! Operations per second on five real masters on loopback: acquire, release and extend alone, each mode and
//! waiting policy, a `Client` in threads and in tasks, and 16 contenders for one lock.
//!
//! `cargo bench --bench operations` prints the time and the rate of each. One name filters, as in
//! `cargo bench --bench operations -- contended`.

mod client_loop;
mod lock_loop;

use std::thread;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE};

use client_loop::{ClientLoop, Executor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lock_loop::LockLoop;
use redlatch::{Client, Options};

const MASTER_COUNT: usize = 5;
const KEY_COUNT: usize = 1024;
const TTL: Duration = Duration::from_secs(10);
const CONTENDER_COUNT: usize = 16;
/// Pairs in a measurement with many in flight.
const BATCH: usize = 1024;

/// Each mode with each possible waiting policy.
fn kinds() -> [(&'static str, Options); 4] {
    let options = Options::new().ttl(TTL).wait(Duration::ZERO);
    // Without a wait, a fair lock would not queue.
    let fair = options.wait(PATIENCE).fair();
    [("plain", options), ("fenced", options.fenced()), ("shared", options.shared()), ("plain, fair", fair)]
}

/// One operation of one caller, which acquires and releases the lock each time.
fn alone(criterion: &mut Criterion) {
    let fleet = Fleet::start(MASTER_COUNT);
    let mut locks = LockLoop::connect(&fleet.urls(), 1);
    let mut group = criterion.benchmark_group("alone");
    group.throughput(Throughput::Elements(1));
    group.bench_function("acquire", |bencher| {
        bencher.iter_custom(|count| {
            sum(count, || {
                let start = Instant::now();
                let lock = locks.acquire_next();
                let took = start.elapsed();
                locks.release(lock);
                took
            })
        });
    });
    group.bench_function("release", |bencher| {
        bencher.iter_custom(|count| {
            sum(count, || {
                let lock = locks.acquire_next();
                let start = Instant::now();
                locks.release(lock);
                start.elapsed()
            })
        });
    });
    let lock = locks.acquire_next();
    group.bench_function("extend", |bencher| bencher.iter(|| locks.extend(lock)));
    group.finish();
}

fn sum(count: u64, mut timed: impl FnMut() -> Duration) -> Duration {
    (0..count).map(|_| timed()).sum()
}

/// Pairs of acquire and release for each kind of lock, one and 128 in flight.
fn by_kind(criterion: &mut Criterion) {
    let fleet = Fleet::start(MASTER_COUNT);
    let mut locks = LockLoop::connect(&fleet.urls(), KEY_COUNT);
    let mut group = criterion.benchmark_group("pairs_by_kind");
    for (name, options) in kinds() {
        for depth in [1, 128] {
            let count = if depth == 1 { 1 } else { BATCH };
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(BenchmarkId::new(name, format!("{depth} in flight")), |bencher| {
                bencher.iter(|| locks.pipelined_pairs_with(count, depth, options));
            });
        }
    }
    group.finish();
}

/// Duration of a look at a guard, on one thread and on 16 threads at once.
fn validity(criterion: &mut Criterion) {
    let fleet = Fleet::start(MASTER_COUNT);
    let client = ClientLoop::connect(&fleet.urls(), KEY_COUNT).client();
    let names: Vec<String> = (0..16).map(|index| format!("held:{index}")).collect();
    let hold = |name| client.lock(name).ttl(TTL).auto_extend(Duration::MAX).acquire().expect("it is free");
    let guards: Vec<_> = names.iter().map(hold).collect();
    let mut group = criterion.benchmark_group("is_valid");
    for count in [1, 16] {
        group.bench_function(BenchmarkId::new("threads", count), |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for guard in &guards[..count] {
                        scope.spawn(move || (0..iterations).for_each(|_| assert!(guard.is_valid())));
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

/// Pairs of acquire and release through a `Client`: one thread, 16 threads, 128 tasks.
fn through_client(criterion: &mut Criterion) {
    let fleet = Fleet::start(MASTER_COUNT);
    let client = ClientLoop::connect(&fleet.urls(), KEY_COUNT);
    let mut group = criterion.benchmark_group("client_pairs");
    group.throughput(Throughput::Elements(1));
    group.bench_function("1 thread", |bencher| bencher.iter(|| client.blocking_pairs(1, true)));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("16 threads", |bencher| bencher.iter(|| client.thread_pairs(BATCH, 16, true)));
    group.bench_function("128 tasks", |bencher| {
        bencher.iter(|| client.task_pairs(BATCH, 128, Executor::OneThread))
    });
    group.finish();
}

/// Acquire and release pairs of one lock that 16 callers want all the time: callers of one client, and
/// callers with a client each.
fn contended(criterion: &mut Criterion) {
    let fleet = Fleet::start(MASTER_COUNT);
    let urls = fleet.urls();
    let mut group = criterion.benchmark_group("contended");
    group.sample_size(10).throughput(Throughput::Elements(CONTENDER_COUNT as u64));
    for (name, client_count) in [("16 threads, one client", 1), ("16 clients", CONTENDER_COUNT)] {
        let clients: Vec<Client> =
            (0..client_count).map(|_| ClientLoop::connect(&urls, 1).client()).collect();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| contend(&clients, count));
        });
    }
    group.finish();
}

/// Each contender acquires the lock this often.
fn contend(clients: &[Client], count: u64) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for contender in 0..CONTENDER_COUNT {
            let client = &clients[contender % clients.len()];
            scope.spawn(move || {
                for _ in 0..count {
                    drop(client.lock("contended").ttl(TTL).wait(PATIENCE).acquire().expect("free in time"));
                }
            });
        }
    });
    start.elapsed()
}

criterion_group!(benches, alone, by_kind, validity, through_client, contended);
criterion_main!(benches);
