//! The engine alone: submit, encode, votes and decode of acquire and release pairs, no sockets.

mod engine_loop;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine_loop::{EngineLoop, Kind};

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine_pairs");
    for master_count in [1, 3, 5, 7] {
        for depth in [1, 128] {
            let mut engine = EngineLoop::new(Kind::Plain, master_count, depth);
            group.throughput(Throughput::Elements(depth as u64));
            let id = BenchmarkId::new(format!("N={master_count}"), format!("{depth} in flight"));
            group.bench_function(id, |bencher| bencher.iter(|| engine.pairs()));
        }
    }
    group.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
