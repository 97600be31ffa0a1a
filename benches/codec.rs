//! Cost of decoding typical replies and of encoding a command, compared with redis-protocol in the same run.
//!
//! `cargo bench --bench codec`; with `-- --test`, each benchmark runs once as a test.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use redis_protocol::resp2::decode::{decode as their_decode, decode_range};
use redis_protocol::resp2::encode::encode as their_encode;
use redis_protocol::resp2::types::{OwnedFrame, RangeFrame};
use redlatch::resp::{Decoded, Reply, decode, encode_bulk, encode_command};

/// Replies to a lock's commands, on the fast path for fixed replies and on the general path.
fn replies() -> [(&'static str, Vec<u8>); 8] {
    let mut info = Vec::new();
    encode_bulk(&mut info, &b"redis_version:7.2.4\r\n".repeat(240));
    [
        ("fixed/ok", b"+OK\r\n".to_vec()),
        ("fixed/null", b"$-1\r\n".to_vec()),
        ("fixed/zero", b":0\r\n".to_vec()),
        ("fixed/one", b":1\r\n".to_vec()),
        ("integer", b":1732152345123456\r\n".to_vec()),
        ("error", b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec()),
        ("busy", b"*3\r\n$4\r\nBUSY\r\n:29874\r\n:1732152345123456\r\n".to_vec()),
        ("info", info),
    ]
}

/// Class of the vote, and size of the reply. Measured instead of the bare reply, which would have to be
/// written to memory only for the benchmark.
fn vote(input: &[u8]) -> (u8, usize) {
    match decode(input) {
        Ok(Decoded::Complete { reply, size }) => match reply {
            Reply::Simple(b"OK") | Reply::Integer(1) => (1, size),
            Reply::NullBulk | Reply::Integer(0) => (2, size),
            Reply::Error(_) => (3, size),
            _ => (4, size),
        },
        Ok(Decoded::Partial { .. }) => (0, 0),
        Err(_) => (5, 0),
    }
}

/// The same with redis-protocol without copies, which returns ranges of the input.
fn their_vote(input: &[u8]) -> (u8, usize) {
    match decode_range(input) {
        Ok(Some((frame, size))) => match frame {
            RangeFrame::SimpleString((start, end)) if input.get(start..end) == Some(b"OK") => (1, size),
            RangeFrame::Integer(1) => (1, size),
            RangeFrame::Null | RangeFrame::Integer(0) => (2, size),
            RangeFrame::Error(_) => (3, size),
            _ => (4, size),
        },
        Ok(None) => (0, 0),
        Err(_) => (5, 0),
    }
}

fn decoding(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    // Cost of passing input and result, which is part of each figure below.
    let ok = b"+OK\r\n".to_vec();
    group.bench_function("floor", |b| b.iter(|| (1u8, black_box(&ok[..]).len())));
    for (name, bytes) in replies() {
        assert_eq!(vote(&bytes), their_vote(&bytes));
        group.bench_with_input(BenchmarkId::new("redlatch", name), &bytes[..], |b, bytes| {
            b.iter(|| vote(black_box(bytes)));
        });
        group.bench_with_input(BenchmarkId::new("redis-protocol-range", name), &bytes[..], |b, bytes| {
            b.iter(|| their_vote(black_box(bytes)));
        });
        // Its usual, copying form. Only whole frames can be compared, so their content is not used.
        group.bench_with_input(BenchmarkId::new("redis-protocol-owned", name), &bytes[..], |b, bytes| {
            b.iter(|| their_decode(black_box(bytes)));
        });
    }
    group.finish();
}

/// 128 replies of one read. The size of each decides where the next starts, so decoding cannot overlap.
fn draining(c: &mut Criterion) {
    let stream = b"+OK\r\n:1\r\n".repeat(64);
    let mut group = c.benchmark_group("drain");
    group.throughput(Throughput::Elements(128));
    group.bench_function("redlatch", |b| b.iter(|| drain(black_box(&stream), vote)));
    group.bench_function("redis-protocol-range", |b| b.iter(|| drain(black_box(&stream), their_vote)));
    group.finish();
}

/// Number of granted votes in a stream of whole replies.
fn drain(mut rest: &[u8], vote: impl Fn(&[u8]) -> (u8, usize)) -> usize {
    let mut granted = 0;
    while !rest.is_empty() {
        let (class, size) = vote(rest);
        granted += usize::from(class == 1);
        rest = &rest[size..];
    }
    granted
}

fn encoding(c: &mut Criterion) {
    let args: [&[u8]; 6] = [b"SET", b"lock:{orders}:4711", b"0123456789abcdefghij", b"NX", b"PX", b"30000"];
    let mut group = c.benchmark_group("encode");
    let mut out = Vec::with_capacity(256);
    group.bench_function("redlatch/set", |b| {
        b.iter(|| {
            out.clear();
            encode_command(&mut out, black_box(&args));
            black_box(out.len())
        });
    });
    let frame = OwnedFrame::Array(args.iter().map(|arg| OwnedFrame::BulkString(arg.to_vec())).collect());
    let mut theirs = vec![0; 256];
    group.bench_function("redis-protocol/set", |b| {
        b.iter(|| black_box(their_encode(&mut theirs, black_box(&frame), false)));
    });
    group.finish();
}

criterion_group!(benches, decoding, draining, encoding);
criterion_main!(benches);
