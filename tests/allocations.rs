//! `Redlock` and `Client` allocate nothing for a lock once they have been warmed up, on any thread. Over TLS,
//! rustls allocates once for each record.

#[cfg(feature = "tls")]
#[path = "tls/certificates.rs"]
mod certificates;
#[path = "masters/fleet.rs"]
mod fleet;

use std::alloc::System;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use fleet::Fleet;
use redlatch::engine::{HolderLabel, OpId, Outcome, Request, Resource};
use redlatch::stats::Stats;
use redlatch::{AcquireError, Client, Config, Guard, Lease, LockRequest, Options, Quarantine, Redlock};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(20);
/// Pairs that are measured.
const PAIR_COUNT: usize = 400;

/// The kinds of lock; each has a name of its own.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
    /// With a holder label.
    Labelled,
}

const KINDS: [Kind; 5] = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::Shared, Kind::Labelled];
const LABEL: &str = "web-3:4711:billing";

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "orders:42",
            Self::Fenced => "fenced:42",
            Self::Fair => "fair:42",
            Self::Shared => "shared:42",
            Self::Labelled => "labelled:42",
        }
    }

    /// With a wait, as most callers have it: it must not cost anything where nobody is in the way.
    fn request(self, client: &Client) -> LockRequest<'_> {
        self.of(client.lock(self.name()).ttl(TTL).wait(PATIENCE))
    }

    fn of(self, request: LockRequest<'_>) -> LockRequest<'_> {
        match self {
            Self::Plain => request,
            Self::Fenced => request.fenced(),
            Self::Fair => request.fair(),
            Self::Shared => request.shared(),
            Self::Labelled => request.holder_label(LABEL),
        }
    }

    /// Allocations and reallocations of a pair at the most. Zero is the aim: each acquisition of a fair lock
    /// has a `Parking` and a `Parked` in boxes, and a copy of the key.
    const fn allocation_count_max(self) -> usize {
        match self {
            Self::Plain | Self::Fenced | Self::Shared | Self::Labelled => 0,
            Self::Fair => 10,
        }
    }

    fn acquire(self, redlock: &mut Redlock) -> Result<Lease, AcquireError> {
        match self {
            Self::Plain => redlock.lock(self.name()).ttl(TTL).wait(PATIENCE).acquire(),
            Self::Fenced => redlock.lock(self.name()).ttl(TTL).wait(PATIENCE).fenced().acquire(),
            Self::Fair => redlock.lock(self.name()).ttl(TTL).wait(PATIENCE).fair().acquire(),
            Self::Shared => redlock.lock(self.name()).ttl(TTL).wait(PATIENCE).shared().acquire(),
            Self::Labelled => redlock.lock(self.name()).ttl(TTL).wait(PATIENCE).holder_label(LABEL).acquire(),
        }
    }
}

/// Not a `#[test]`: allocations are counted in the whole process, and the test harness allocates when a test
/// takes long.
fn main() {
    redlock_allocates_nothing();
    client_allocates_nothing();
    #[cfg(feature = "tls")]
    tls_allocates_for_records_alone();
    // The check can fail: an allocation is seen.
    let region = Region::new(COUNTED);
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(region.change().allocations, 1);
    println!("test a_pair_allocates_nothing_in_steady_state ... ok");
}

fn assert_frugal(region: &Region<'_, System>, what: &str, kind: Kind, is_awaited: bool) {
    let change = region.change();
    let what = format!("{what}, {kind:?}, awaited: {is_awaited}");
    assert_at_most(&change, &what, PAIR_COUNT * kind.allocation_count_max());
}

fn assert_at_most(change: &stats_alloc::Stats, what: &str, count_max: usize) {
    let count = change.allocations + change.reallocations;
    assert!(count <= count_max, "{what}, at the most {count_max}: {change:?}");
}

/// Each kind of lock, with releases that are waited for and with drops.
fn variants() -> impl Iterator<Item = (Kind, bool)> {
    KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)])
}

fn redlock_allocates_nothing() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let mut redlock = Redlock::open(config.build().expect("valid")).expect("an event loop");
    raise_high_water_mark(&mut redlock);
    for (kind, is_awaited) in variants() {
        let mut pairs = |count| {
            for _ in 0..count {
                let mut lease = kind.acquire(&mut redlock).expect("free");
                redlock.extend(&mut lease, TTL).expect("held");
                if is_awaited {
                    redlock.release(lease).expect("confirmed");
                } else {
                    drop(lease);
                }
            }
        };
        pairs(100);
        let region = Region::new(COUNTED);
        pairs(PAIR_COUNT);
        assert_frugal(&region, "Redlock", kind, is_awaited);
    }
    let first = submit(&mut redlock);
    let mut held = pass_on(&mut redlock, first, 100);
    let region = Region::new(COUNTED);
    held = pass_on(&mut redlock, held, PAIR_COUNT);
    // After so many hand-overs the lock is free for a moment, and the next caller parks.
    let park_count = PAIR_COUNT / redlatch::limits::HANDOVER_COUNT_MAX as usize + 1;
    assert_at_most(&region.change(), "Redlock, handed over", park_count * Kind::Fair.allocation_count_max());
    redlock.submit(Request::Release { lock: held, awaited: false }).expect("always taken");
    assert_counted(&redlock.stats());
}

/// Statistics were on, and took part in what was measured.
fn assert_counted(stats: &Stats) {
    assert!(stats.acquired > 10 * PAIR_COUNT as u64, "{stats:?}");
    assert_eq!((stats.acquired - stats.held(), stats.lost), (stats.released, 0), "{stats:?}");
    assert!(stats.acquire_time.count() > 0 && stats.hold_time.count() > 0, "{stats:?}");
    assert!(stats.masters.iter().all(|master| master.round_trip.count() > 0), "{stats:?}");
}

/// Each master gets three records for a pair with its extension, and answers each with one.
#[cfg(feature = "tls")]
fn tls_allocates_for_records_alone() {
    const MASTER_COUNT: usize = 5;
    const RECORDS_PER_MASTER: usize = 6;
    let certificates = certificates::Certificates::new();
    let path = |file: &str| certificates.path(file).display().to_string();
    let (certificate, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let mut fleet =
        Fleet::start_with_tls(MASTER_COUNT, &[&files[..], &["--tls-auth-clients", "no"]].concat());
    let urls: Vec<String> = fleet.masters().map(|master| master.tls_url()).collect();
    let tls = redlatch::Tls::new().ca(redlatch::Pem::File(certificates.path("ca.pem")));
    let config =
        Config::builder().masters(urls).tls(tls).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let client = config.connect().expect("an event loop");
    (0..1000).for_each(|_| pair(&client, Kind::Plain, true));
    wait_beside_leader(&client);
    // Its answers follow all that a slow minority still owes.
    client.inspect("orders:42").expect("room");
    let region = Region::new(COUNTED);
    (0..PAIR_COUNT).for_each(|_| pair(&client, Kind::Plain, true));
    let change = region.change();
    // Less than one more for each pair: what grows when a master is slow.
    let count_max = PAIR_COUNT * MASTER_COUNT * RECORDS_PER_MASTER + PAIR_COUNT / 2;
    let count = change.allocations + change.reallocations;
    assert!(count <= count_max, "TLS, at the most {count_max}: {change:?}");
}

fn client_allocates_nothing() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let client = config.connect().expect("an event loop");
    let names: Vec<String> = (0..5000).map(warm_name).collect();
    for kind in KINDS {
        let warm = names.iter().map(|name| kind.of(client.lock(name).ttl(TTL).holder_label(LABEL)));
        let batch = client.acquire_all(warm);
        let guards: Vec<Guard> = batch.into_iter().map(|it| it.block().expect("free")).collect();
        for releasing in client.release_all(guards) {
            releasing.block().expect("confirmed");
        }
    }
    wait_beside_leader(&client);
    for (kind, is_awaited) in variants() {
        let pairs = |count| (0..count).for_each(|_| pair(&client, kind, is_awaited));
        pairs(100);
        let region = Region::new(COUNTED);
        pairs(PAIR_COUNT);
        assert_frugal(&region, "Client, a thread", kind, is_awaited);
    }
    let name = bytes::Bytes::from_static(b"owned:42");
    let owned = |count| {
        for _ in 0..count {
            let guard = client.lock_owned(name.clone()).ttl(TTL).wait(PATIENCE).acquire().expect("free");
            assert_eq!(guard.resource(), b"owned:42");
        }
    };
    owned(100);
    let region = Region::new(COUNTED);
    owned(PAIR_COUNT);
    assert_frugal(&region, "Client, owned names", Kind::Plain, false);
    block_on(measure_async(&client, "Client, a bare task"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure_async(&client, "Client, a task on tokio"));
    assert_counted(&client.stats());
}

/// The first time that a thread waits while another one leads, it allocates what it sleeps by: by chance, and
/// once.
fn wait_beside_leader(client: &Client) {
    let held = client.lock("held").ttl(TTL).acquire().expect("free");
    let mut waiting = pin!(client.lock("held").ttl(TTL).wait(PATIENCE).acquire_async());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Meanwhile the client's own thread leads whenever this one does not.
    (0..1000).for_each(|_| pair(client, Kind::Plain, true));
    drop(held);
}

fn pair(client: &Client, kind: Kind, is_awaited: bool) {
    let mut guard = kind.request(client).acquire().expect("free");
    guard.extend(TTL).expect("held");
    if is_awaited {
        guard.release().expect("confirmed");
    } else {
        drop(guard);
    }
}

/// Within one future, for what starts an executor allocates.
async fn measure_async(client: &Client, what: &str) {
    for (kind, is_awaited) in variants() {
        let pairs = async |count| {
            for _ in 0..count {
                let mut guard = kind.request(client).acquire_async().await.expect("free");
                guard.extend_async(TTL).await.expect("held");
                if is_awaited {
                    guard.release_async().await.expect("confirmed");
                } else {
                    drop(guard);
                }
            }
        };
        pairs(100).await;
        let region = Region::new(COUNTED);
        pairs(PAIR_COUNT).await;
        assert_frugal(&region, what, kind, is_awaited);
    }
}

/// The smallest executor: it allocates its waker, once.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn submit(redlock: &mut Redlock) -> OpId {
    let ttl = TTL;
    let resource = Resource::new("orders:42").expect("valid");
    let request = Request::Acquire { resource, options: Options::new().ttl(ttl).wait(PATIENCE), label: None };
    redlock.submit(request).expect("room")
}

/// The lock passes from caller to caller, from the `first` on, with always one more in line. Returns the last
/// one.
fn pass_on(redlock: &mut Redlock, first: OpId, count: usize) -> OpId {
    let mut last = first;
    for _ in 0..count {
        let next = submit(redlock);
        while redlock.poll_outcome().is_none_or(|(lock, _)| lock != last) {
            redlock.turn(PATIENCE).expect("the loop runs");
        }
        redlock.submit(Request::Release { lock: last, awaited: false }).expect("always taken");
        last = next;
    }
    last
}

/// Longer than the name that is measured, and always with a label: whatever slot a measured lock comes to,
/// its memory is large enough.
fn warm_name(index: u32) -> String {
    format!("warmed-up:{index}")
}

/// More locks at once than the measured pairs have commands: a slow minority may lag behind by all of them.
/// Each is extended, as they are: its place keeps memory for that, too.
fn raise_high_water_mark(redlock: &mut Redlock) {
    let names: Vec<String> = (0..5000).map(warm_name).collect();
    // The first one alone: its scripts are sent in full.
    for (kind, names) in KINDS.into_iter().flat_map(|kind| [(kind, &names[..1]), (kind, &names[..])]) {
        for name in names {
            let options = Options::new().ttl(TTL).wait(PATIENCE);
            let options = match kind {
                Kind::Plain => options,
                Kind::Fenced => options.fenced(),
                Kind::Fair => options.fair(),
                Kind::Shared => options.shared(),
                Kind::Labelled => options,
            };
            let label = Some(HolderLabel::new(LABEL).expect("valid"));
            let resource = Resource::new(name).expect("valid");
            let request = Request::Acquire { resource, options, label };
            redlock.submit(request).expect("room");
        }
        release_as_they_come(redlock, names.len());
    }
}

fn release_as_they_come(redlock: &mut Redlock, count: usize) {
    let mut released_count = 0;
    while released_count < count {
        redlock.turn(PATIENCE).expect("the loop runs");
        while let Some((lock, outcome)) = redlock.poll_outcome() {
            match outcome {
                Outcome::Acquire(Ok(_)) => {
                    redlock.submit(Request::Extend { lock, ttl: TTL }).expect("room");
                }
                Outcome::Extend(Ok(_)) => {
                    redlock.submit(Request::Release { lock, awaited: true }).expect("always taken");
                }
                Outcome::Release(Ok(_)) => released_count += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}
