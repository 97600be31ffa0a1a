//! Acquire and release pairs on 1, 3, 5 and 7 real masters on loopback, one at a time and 128 in flight.

mod lock_loop;

use redlatch_support::Fleet;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lock_loop::LockLoop;

const KEY_COUNT: usize = 1024;
/// Pairs in a measurement with many in flight.
const BATCH: usize = 1024;

fn pairs(criterion: &mut Criterion) {
    let fleet = Fleet::start(7);
    let mut group = criterion.benchmark_group("pairs");
    for master_count in [1, 3, 5, 7] {
        let mut locks = LockLoop::connect(&fleet.urls()[..master_count], KEY_COUNT);
        let name = format!("N={master_count}");
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new(&name, "1 in flight"), |bencher| {
            bencher.iter(|| locks.blocking_pairs(1, true));
        });
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function(BenchmarkId::new(&name, "128 in flight"), |bencher| {
            bencher.iter(|| locks.pipelined_pairs(BATCH, 128));
        });
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
