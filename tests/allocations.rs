//! After a warm-up, `Redlock` and `Client` allocate nothing for a lock, on any thread. Over TLS, rustls
//! allocates once for each record.

use std::alloc::System;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use redlatch::engine::{HolderLabel, OpId, Outcome, Request, Resource};
use redlatch::stats::Stats;
use redlatch::{Client, Config, Guard, LockRequest, Options, Quarantine, Redlock};
use redlatch_support::{Fleet, PATIENCE, block_on};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TTL: Duration = Duration::from_secs(10);
/// Number of measured pairs.
const PAIR_COUNT: usize = 400;

/// The kinds of lock, each with its own name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
    /// With a holder label.
    Labelled,
}

/// The fair kind last: see [`Kind::warm_count`].
const KINDS: [Kind; 5] = [Kind::Plain, Kind::Fenced, Kind::Shared, Kind::Labelled, Kind::Fair];
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

    /// With a wait, as most callers have: it must cost nothing for a free lock.
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

    /// Number of locks held at once before the measurement. Most kinds hold more locks than the measured
    /// pairs send commands, because a slow minority may lag behind by all of them. Fair locks exceed only the
    /// number of pairs, so that a loaded machine answers them before their next heartbeat. They come last,
    /// because the places used last are used next.
    const fn warm_count(self) -> usize {
        match self {
            Self::Plain | Self::Fenced | Self::Shared | Self::Labelled => 5000,
            Self::Fair => 1000,
        }
    }

    fn options(self) -> Options {
        let options = Options::new().ttl(TTL).wait(PATIENCE);
        match self {
            Self::Plain | Self::Labelled => options,
            Self::Fenced => options.fenced(),
            Self::Fair => options.fair(),
            Self::Shared => options.shared(),
        }
    }

    /// Acquires, extends and releases a lock.
    fn pair(self, redlock: &mut Redlock, is_awaited: bool) {
        let resource = Resource::new(self.name()).expect("valid");
        let label = (self == Self::Labelled).then(|| HolderLabel::new(LABEL).expect("valid"));
        let request = Request::Acquire { resource, options: self.options(), label };
        let lock = redlock.submit(request).expect("room");
        assert!(matches!(outcome_of(redlock, lock), Outcome::Acquire(Ok(_))));
        redlock.submit(Request::Extend { lock, ttl: TTL }).expect("room");
        assert!(matches!(outcome_of(redlock, lock), Outcome::Extend(Ok(_))));
        redlock.submit(Request::Release { lock, awaited: is_awaited }).expect("always taken");
        if is_awaited {
            assert!(matches!(outcome_of(redlock, lock), Outcome::Release(Ok(_))));
        }
    }
}

/// Not a `#[test]`: the whole process is counted, and the test harness allocates during long tests.
fn main() {
    redlock_allocates_nothing();
    client_allocates_nothing();
    #[cfg(feature = "tls")]
    tls_allocates_for_records_alone();
    // Proves that an allocation is seen.
    let region = Region::new(COUNTED);
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(region.change().allocations, 1);
    println!("test a_pair_allocates_nothing_in_steady_state ... ok");
}

/// Number of measurements, one of which must show no allocation. A late answer on a busy machine can make a
/// list grow once, but allocations of each pair show in all measurements.
const MEASUREMENT_COUNT: usize = 5;

/// Returns whether nothing was allocated. Fails if something was, in the last measurement.
fn is_none(
    region: &Region<'_, System>,
    what: &str,
    kind: Kind,
    is_awaited: bool,
    measurement: usize,
) -> bool {
    let change = region.change();
    let count = change.allocations + change.reallocations;
    assert!(
        count == 0 || measurement < MEASUREMENT_COUNT,
        "{what}, {kind:?}, awaited: {is_awaited}: {change:?}"
    );
    count == 0
}

/// Each kind of lock, with awaited releases and with drops.
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
        let pairs = |redlock: &mut Redlock, count| {
            for _ in 0..count {
                kind.pair(redlock, is_awaited);
            }
        };
        pairs(&mut redlock, 100);
        for measurement in 1.. {
            let region = Region::new(COUNTED);
            pairs(&mut redlock, PAIR_COUNT);
            let is_none = is_none(&region, "Redlock", kind, is_awaited, measurement);
            settle(&mut redlock);
            if is_none {
                break;
            }
        }
    }
    let first = submit(&mut redlock);
    let mut held = pass_on(&mut redlock, first, 100);
    for measurement in 1.. {
        let region = Region::new(COUNTED);
        held = pass_on(&mut redlock, held, PAIR_COUNT);
        if is_none(&region, "Redlock, handed over", Kind::Plain, false, measurement) {
            break;
        }
    }
    redlock.submit(Request::Release { lock: held, awaited: false }).expect("always taken");
    assert_counted(&redlock.stats());
}

/// Statistics were on during the measurement.
fn assert_counted(stats: &Stats) {
    assert!(stats.acquired > 10 * PAIR_COUNT as u64, "{stats:?}");
    assert_eq!((stats.acquired - stats.held(), stats.lost), (stats.released, 0), "{stats:?}");
    assert!(stats.acquire_time.count() > 0 && stats.hold_time.count() > 0, "{stats:?}");
    assert!(stats.masters.iter().all(|master| master.round_trip.count() > 0), "{stats:?}");
}

/// Each master gets three records for a pair with its extension, and answers each with one record.
#[cfg(feature = "tls")]
fn tls_allocates_for_records_alone() {
    const MASTER_COUNT: usize = 5;
    const RECORDS_PER_MASTER: usize = 6;
    let certificates = redlatch_support::Certificates::new();
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
    settle_client(&client);
    let region = Region::new(COUNTED);
    (0..PAIR_COUNT).for_each(|_| pair(&client, Kind::Plain, true));
    let change = region.change();
    // Less than one more for each pair, for buffers that grow while a master is slow.
    let count_max = PAIR_COUNT * MASTER_COUNT * RECORDS_PER_MASTER + PAIR_COUNT / 2;
    let count = change.allocations + change.reallocations;
    assert!(count <= count_max, "TLS, at the most {count_max}: {change:?}");
}

fn client_allocates_nothing() {
    let fleet = Fleet::start(5);
    let config =
        Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).answer_timeout(PATIENCE);
    let client = config.connect().expect("an event loop");
    for kind in KINDS {
        let names: Vec<String> = (0..kind.warm_count()).map(warm_name).collect();
        let warm = names.iter().map(|name| kind.of(client.lock(name).ttl(TTL).holder_label(LABEL)));
        let batch = client.acquire_all(warm);
        let guards: Vec<Guard> = batch.into_iter().map(|it| it.block().expect("free")).collect();
        for releasing in client.release_all(guards) {
            releasing.block().expect("confirmed");
        }
        settle_client(&client);
    }
    wait_beside_leader(&client);
    for (kind, is_awaited) in variants() {
        let pairs = |count| (0..count).for_each(|_| pair(&client, kind, is_awaited));
        pairs(100);
        for measurement in 1.. {
            let region = Region::new(COUNTED);
            pairs(PAIR_COUNT);
            let is_none = is_none(&region, "Client, a thread", kind, is_awaited, measurement);
            settle_client(&client);
            if is_none {
                break;
            }
        }
    }
    let name = bytes::Bytes::from_static(b"owned:42");
    let owned = |count| {
        for _ in 0..count {
            let guard = client.lock_owned(name.clone()).ttl(TTL).wait(PATIENCE).acquire().expect("free");
            assert_eq!(guard.resource(), b"owned:42");
        }
    };
    owned(100);
    for measurement in 1.. {
        let region = Region::new(COUNTED);
        owned(PAIR_COUNT);
        if is_none(&region, "Client, owned names", Kind::Plain, false, measurement) {
            break;
        }
    }
    block_on(measure_async(&client, "Client, a bare task"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure_async(&client, "Client, a task on tokio"));
    assert_counted(&client.stats());
}

/// A thread allocates its sleep state the first time that it waits while another thread leads.
fn wait_beside_leader(client: &Client) {
    let held = client.lock("held").ttl(TTL).acquire().expect("free");
    let mut waiting = pin!(client.lock("held").ttl(TTL).wait(PATIENCE).acquire_async());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Meanwhile, the client's own thread leads whenever this thread does not.
    for _ in 0..2 {
        (0..500).for_each(|_| pair(client, Kind::Plain, true));
        settle_client(client);
    }
    drop(held);
}

/// Waits for everything that a slow minority still owes, because the answers to this inspection come later.
/// The next locks then reuse the places and memory of the last ones.
fn settle_client(client: &Client) {
    client.inspect("orders:42").expect("room");
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

/// Within one future, because an executor's start allocates.
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
        for measurement in 1.. {
            let region = Region::new(COUNTED);
            pairs(PAIR_COUNT).await;
            let is_none = is_none(&region, what, kind, is_awaited, measurement);
            settle_client(client);
            if is_none {
                break;
            }
        }
    }
}

fn outcome_of(redlock: &mut Redlock, lock: OpId) -> Outcome {
    loop {
        match redlock.poll_outcome() {
            Some((id, outcome)) => {
                assert_eq!(id, lock);
                return outcome;
            }
            None => redlock.turn(PATIENCE).expect("the loop runs"),
        }
    }
}

fn submit(redlock: &mut Redlock) -> OpId {
    let ttl = TTL;
    let resource = Resource::new("orders:42").expect("valid");
    let request = Request::Acquire { resource, options: Options::new().ttl(ttl).wait(PATIENCE), label: None };
    redlock.submit(request).expect("room")
}

/// Passes the lock from caller to caller, beginning with `first`, with one more caller always in line.
/// Returns the last caller.
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

/// Longer than the measured name, and always with a label, so that each slot's memory is large enough.
fn warm_name(index: usize) -> String {
    format!("warmed-up:{index}")
}

/// Extends each lock, as the measurement does, because extensions also use memory of the place.
fn raise_high_water_mark(redlock: &mut Redlock) {
    // The first lock alone, because its scripts are sent in full.
    for (kind, count) in KINDS.into_iter().flat_map(|kind| [(kind, 1), (kind, kind.warm_count())]) {
        for name in (0..count).map(warm_name) {
            let label = Some(HolderLabel::new(LABEL).expect("valid"));
            let resource = Resource::new(&name).expect("valid");
            let request = Request::Acquire { resource, options: kind.options(), label };
            redlock.submit(request).expect("room");
        }
        release_as_they_come(redlock, count);
        settle(redlock);
    }
}

/// Like [`settle_client`].
fn settle(redlock: &mut Redlock) {
    let resource = Resource::new("orders:42").expect("valid");
    redlock.submit(Request::Inspect { resource }).expect("room");
    while !matches!(redlock.poll_outcome(), Some((_, Outcome::Inspect(_)))) {
        redlock.turn(PATIENCE).expect("the loop runs");
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
