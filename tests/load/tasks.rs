//! The callers: each acquires a lock in some way, holds it, ends it in some way, and starts again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::{AcquireError, Client, Guard, LockRequest};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lateness::Lateness;
use crate::witness::Witness;
use crate::{RETRY_DELAY_MAX, Scale, TTL};

/// Number of resources that most callers want.
const POPULAR_COUNT: usize = 40;
const NAMES_PER_SET: usize = 3;
/// Number of threads that an answer passes: the loop leader, the client's thread that takes over, the
/// runtime's woken thread, and the thread that polls the task.
const THREADS_PASSED: u32 = 4;
/// Largest excess over its wait that a late machine excuses.
const EXCUSE_MAX: Duration = Duration::from_secs(2);
/// On a late machine, one in this many calls may find that its lock has expired.
const CALLS_PER_EXPIRY: u64 = 1000;
/// On average, a caller gets at least one lock in this time.
const TIME_PER_LOCK: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Plain,
    Fenced,
    Fair,
    Reader,
    Kept,
    Set,
    Reentrant,
    Abandoned,
}

const KINDS: [Kind; 8] = [
    Kind::Plain,
    Kind::Fenced,
    Kind::Fair,
    Kind::Reader,
    Kind::Kept,
    Kind::Set,
    Kind::Reentrant,
    Kind::Abandoned,
];

/// Results of the callers.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// By kind: locks, refusals, outages, and other errors.
    counts: BTreeMap<Kind, [u64; 4]>,
    /// By variant, other than contention and too few masters.
    other_errors: BTreeMap<&'static str, u64>,
    pub(crate) latest: LatestCall,
}

/// The acquisition that exceeded its wait most.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LatestCall {
    /// Excess over the wait.
    late: Duration,
    /// Lateness of the machine since the wait's end.
    machine: Duration,
    kind: Option<Kind>,
    wait: Duration,
}

impl LatestCall {
    /// A call that ends now.
    pub(crate) fn of(kind: Option<Kind>, begun: Instant, wait: Duration, lateness: &Lateness) -> Self {
        let wait_until = begun + wait;
        let late = Instant::now().saturating_duration_since(wait_until);
        Self { late, machine: lateness.since(wait_until), kind, wait }
    }

    /// Notes the end of another call.
    pub(crate) fn note(&mut self, call: Self) {
        if call.unexplained() > self.unexplained() || self.wait.is_zero() {
            *self = call;
        }
    }

    /// Excess that the machine does not explain: an answer passes few threads, and each may be late once.
    pub(crate) fn unexplained(&self) -> Duration {
        self.late.saturating_sub((self.machine * THREADS_PASSED).min(EXCUSE_MAX))
    }
}

impl Report {
    /// Unexplained errors: not contention, not too few masters, and not a late machine, which excuses few
    /// errors.
    pub(crate) fn unexplained_errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let excused_max = self.counts.values().flatten().sum::<u64>() / CALLS_PER_EXPIRY;
        let errors = self.other_errors.iter().map(|(name, count)| (*name, *count));
        errors.filter(move |(name, count)| *name != EXPIRED_WITH_MACHINE || *count > excused_max)
    }

    /// Number of tokens that this many callers of one client need.
    ///
    /// If masters hang, each token counts until its TTL ends. After an attempt, a caller pauses for half of
    /// the longest retry delay on average. A set requests all its names at once.
    pub(crate) fn tokens_needed(caller_count: usize) -> usize {
        let pauses = TTL.as_millis() / (RETRY_DELAY_MAX / 2).as_millis();
        let attempt_count = usize::try_from(pauses).expect("a small number");
        caller_count * attempt_count * (KINDS.len() - 1 + NAMES_PER_SET) / KINDS.len()
    }

    /// Kinds with fewer locks than this many callers must have had in this time. Each kind must have at least
    /// a third of its share.
    pub(crate) fn scarce_kinds(&self, caller_count: usize, time: Duration) -> Vec<String> {
        let needed = caller_count as u128 * time.as_millis() / TIME_PER_LOCK.as_millis();
        let needed = needed / KINDS.len() as u128 / 3;
        let locked = KINDS.map(|kind| (kind, self.counts.get(&kind).map_or(0, |[locked, ..]| *locked)));
        let scarce = locked.into_iter().filter(|(_, locked)| u128::from(*locked) < needed.max(1));
        scarce.map(|(kind, locked)| format!("{kind:?}: {locked} locks, {needed} needed")).collect()
    }

    fn add(&mut self, other: &Self) {
        for (kind, counts) in &other.counts {
            let sums = self.counts.entry(*kind).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for (error, count) in &other.other_errors {
            *self.other_errors.entry(error).or_default() += count;
        }
        self.latest.note(other.latest);
    }

    /// Notes the end of an acquisition; `is_late` says whether a late machine explains an expired lock.
    fn count<T>(&mut self, kind: Kind, result: &Result<T, AcquireError>, is_late: bool) {
        let place = match result {
            Ok(_) => 0,
            Err(AcquireError::Contended(_)) => 1,
            Err(AcquireError::NoQuorum(_)) => 2,
            Err(error) => {
                *self.other_errors.entry(name(error, is_late)).or_default() += 1;
                3
            }
        };
        self.counts.entry(kind).or_default()[place] += 1;
    }
}

/// Name for an expiry that a late machine explains.
const EXPIRED_WITH_MACHINE: &str = "Expired on a late machine";

/// Name of an error's variant.
fn name(error: &AcquireError, is_explained: bool) -> &'static str {
    match error {
        AcquireError::Expired(_) if is_explained => EXPIRED_WITH_MACHINE,
        AcquireError::Contended(_) => "Contended",
        AcquireError::NoQuorum(_) => "NoQuorum",
        AcquireError::Expired(_) => "Expired",
        AcquireError::Overloaded => "Overloaded",
        AcquireError::Cancelled => "Cancelled",
        AcquireError::Stopped(_) => "Stopped",
        AcquireError::Input(_) => "Input",
        _ => "another one",
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, [locked, contended, no_quorum, other]) in &self.counts {
            let kind = format!("{kind:?}");
            writeln!(
                f,
                "{kind:>9}: {locked:>8} locks, {contended:>8} contended, {no_quorum:>6} without a quorum, {other} other"
            )?;
        }
        writeln!(f, "errors other than contention and too few masters: {:?}", self.other_errors)?;
        write!(f, "latest call: {}", self.latest)
    }
}

impl fmt::Display for LatestCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { late, machine, kind, wait } = self;
        let kind = kind.map(|kind| format!(" ({kind:?})")).unwrap_or_default();
        write!(
            f,
            "{late:.3?} past its wait of {wait:.3?}{kind}, while the machine was late by {machine:.3?} since"
        )
    }
}

/// A runtime with the number of threads that this load is designed for.
pub(crate) fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// All callers.
pub(crate) struct Tasks {
    runtime: Runtime,
    running: JoinSet<Report>,
}

impl Tasks {
    pub(crate) fn begin(
        scale: Scale,
        clients: &Arc<[Client]>,
        witness: &Arc<Witness>,
        lateness: &Lateness,
        is_over: &Arc<AtomicBool>,
    ) -> Self {
        let answer_limit = crate::answer_limit(&clients[0]);
        let runtime = runtime();
        let mut running = JoinSet::new();
        for number in 0..scale.task_count {
            let caller = Caller {
                client: clients[number % clients.len()].clone(),
                witness: witness.clone(),
                lateness: lateness.clone(),
                answer_limit,
                resource_count: scale.resource_count,
                // Longer for more callers, so that the machine gets some rest.
                pause_max: Duration::from_millis(scale.task_count as u64),
                rng: StdRng::seed_from_u64(crate::seed() ^ number as u64),
                report: Report::default(),
            };
            running.spawn_on(caller.run(is_over.clone()), runtime.handle());
        }
        Self { runtime, running }
    }

    /// Waits until all callers have ended.
    pub(crate) fn end(mut self) -> Report {
        let mut sum = Report::default();
        self.runtime.block_on(async {
            while let Some(report) = self.running.join_next().await {
                sum.add(&report.expect("no panic"));
            }
        });
        sum
    }
}

struct Caller {
    client: Client,
    witness: Arc<Witness>,
    lateness: Lateness,
    answer_limit: Duration,
    resource_count: usize,
    pause_max: Duration,
    rng: StdRng,
    report: Report,
}

impl Caller {
    async fn run(mut self, is_over: Arc<AtomicBool>) -> Report {
        while !is_over.load(Ordering::SeqCst) {
            let kind = KINDS[self.rng.random_range(0..KINDS.len())];
            let wait = Duration::from_millis(self.rng.random_range(0..3000));
            match kind {
                Kind::Set => self.visit_set(wait).await,
                Kind::Reentrant => self.visit_twice(wait).await,
                Kind::Abandoned => self.abandon(wait).await,
                kind => self.visit(kind, wait).await,
            }
            sleep(self.pause_max.mul_f64(self.rng.random_range(0.0..1.0))).await;
        }
        self.report
    }

    /// Notes the end of an acquisition with this wait.
    fn count<T>(&mut self, kind: Kind, begun: Instant, wait: Duration, result: &Result<T, AcquireError>) {
        let now = Instant::now();
        // An expired lock was requested one validity earlier, and its answers came within the answer limit.
        let validity_from = now.checked_sub(TTL).unwrap_or(begun).max(begun);
        let needed = TTL.saturating_sub(self.answer_limit * 2);
        let is_late = self.lateness.since(validity_from) * THREADS_PASSED / 2 >= needed;
        self.report.count(kind, result, is_late);
        self.report.latest.note(LatestCall::of(Some(kind), begun, wait, &self.lateness));
    }

    fn resource(&mut self) -> usize {
        let is_popular = self.rng.random_bool(0.5);
        self.rng.random_range(0..if is_popular { POPULAR_COUNT } else { self.resource_count })
    }

    fn request(&self, resource: usize, wait: Duration) -> LockRequest<'static> {
        self.client.lock_owned(format!("r{resource}")).ttl(TTL).wait(wait)
    }

    async fn visit(&mut self, kind: Kind, wait: Duration) {
        let resource = self.resource();
        let request = self.request(resource, wait);
        let request = match kind {
            Kind::Fenced => request.fenced(),
            Kind::Fair => request.fair(),
            Kind::Reader => request.shared(),
            Kind::Kept => request.auto_extend(TTL * 4),
            _ => request,
        };
        let begun = Instant::now();
        let result = request.acquire_async().await;
        self.count(kind, begun, wait, &result);
        let Ok(mut guard) = result else { return };
        let from = Instant::now();
        self.hold(if kind == Kind::Kept { 2 * TTL } else { TTL / 4 }).await;
        if self.rng.random_bool(0.2) {
            let _ = guard.extend_async(TTL).await;
            self.hold(TTL / 8).await;
        }
        self.leave(resource, from, guard, kind == Kind::Reader).await;
    }

    /// Mostly short visits, and some long ones.
    async fn hold(&mut self, longest: Duration) {
        let share = if self.rng.random_bool(0.9) { 0.02 } else { 1.0 };
        let share = self.rng.random_range(0.0..share);
        sleep(longest.mul_f64(share)).await;
    }

    async fn leave(&mut self, resource: usize, from: Instant, guard: Guard, is_reader: bool) {
        self.witness.note(resource, from, Instant::now(), guard.valid_until(), is_reader);
        if self.rng.random_bool(0.5) {
            let _ = guard.release_async().await;
        }
    }

    async fn visit_set(&mut self, wait: Duration) {
        let resources: Vec<usize> = (0..NAMES_PER_SET).map(|_| self.resource()).collect();
        let request = self.client.lock_set(resources.iter().map(|it| format!("r{it}"))).ttl(TTL).wait(wait);
        let begun = Instant::now();
        let result = request.acquire_async().await.map_err(|error| error.source);
        self.count(Kind::Set, begun, wait, &result);
        let Ok(set) = result else { return };
        let from = Instant::now();
        self.hold(TTL / 8).await;
        let now = Instant::now();
        let mut noted = resources;
        noted.sort_unstable();
        noted.dedup();
        noted.iter().for_each(|resource| self.witness.note(*resource, from, now, set.valid_until(), false));
        if self.rng.random_bool(0.5) {
            let _ = set.release_async().await;
        }
    }

    async fn visit_twice(&mut self, wait: Duration) {
        let resource = self.resource();
        let lock = self.request(resource, wait).reentrant();
        let begun = Instant::now();
        let result = lock.lock_async().await.map_err(|error| match error {
            redlatch::error::LockReentrantError::Acquire(error) => error,
            error => panic!("a fresh owner: {error}"),
        });
        self.count(Kind::Reentrant, begun, wait, &result);
        let Ok(outer) = result else { return };
        let from = Instant::now();
        let inner = lock.lock_async().await;
        self.hold(TTL / 8).await;
        let now = Instant::now();
        self.witness.note(resource, from, now, now + outer.remaining(), false);
        drop(inner);
        let _ = outer.release_async().await;
    }

    /// Gives up at a random moment. Nothing may be left.
    async fn abandon(&mut self, wait: Duration) {
        let resource = self.resource();
        let request = self.request(resource, wait);
        let request = if self.rng.random_bool(0.5) { request.fair() } else { request };
        let patience = wait.mul_f64(self.rng.random_range(0.0..1.0));
        let begun = Instant::now();
        if let Ok(result) = timeout(patience, request.acquire_async()).await {
            self.count(Kind::Abandoned, begun, wait, &result);
            let Ok(guard) = result else { return };
            let from = Instant::now();
            self.leave(resource, from, guard, false).await;
        }
    }
}
