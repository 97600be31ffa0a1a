//! Callers that acquire and release until their time or count is up, and their measurements.
//!
//! Independent of the libraries, which are behind [`AsyncLocks`], [`BlockingLocks`] and [`Rig`].

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Keys that all callers share in turn: enough that callers do not meet, and few enough that the masters'
/// tables do not grow.
pub const KEY_COUNT: usize = 1024;
pub const TTL: Duration = Duration::from_secs(10);
/// How long a caller waits for a contended lock.
pub const WAIT: Duration = Duration::from_secs(20);
/// Longest pause of a rival between two tries for a contended lock; the pause is random from zero up. With 50
/// ms, the last holder usually gets the lock again: more locks per second, but some callers get a hundredth
/// of others' share. With 2 ms, refusals keep the rivals busy.
pub const RETRY_DELAY_MAX: Duration = Duration::from_millis(10);

const TIMES_CAPACITY: usize = 4096;

/// Work of a rig's callers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    pub callers: usize,
    /// Whether all callers want the same lock.
    pub one_key: bool,
}

/// End of a round.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// Each caller finishes its pair when the time is up.
    Time(Duration),
    /// This many pairs of each caller.
    Pairs(usize),
}

/// One turn of one peer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Round {
    pub pairs: usize,
    pub seconds: f64,
    /// Times from request to grant.
    pub acquire_p50_us: f64,
    pub acquire_p99_us: f64,
    pub acquire_max_us: f64,
    /// Processor time of the peer's process, without the masters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// Pairs of the callers with the fewest and the most.
    pub fewest: usize,
    pub most: usize,
    /// Failed acquisitions and releases, and the first error.
    pub errors: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Round {
    #[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
    pub fn pairs_per_second(&self) -> f64 {
        self.pairs as f64 / self.seconds
    }

    /// NaN without a measurement.
    #[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
    pub fn cpu_us_per_pair(&self) -> f64 {
        self.cpu_us.map_or(f64::NAN, |cpu_us| cpu_us / self.pairs as f64)
    }
}

/// A connected peer with its callers, ready for a round.
pub trait Rig {
    fn round(&mut self, limit: Limit) -> Round;

    /// Finishes work under way, between rounds.
    fn settle(&mut self) {}
}

/// Locks with futures; all callers share one client.
pub trait AsyncLocks: Clone + Send + Sync + 'static {
    /// Acquires and releases. Returns the acquisition's duration. An error says what failed.
    fn pair(&self, key: &str) -> impl Future<Output = Result<Duration, String>> + Send;
}

/// Locks with blocking calls; each caller has a thread.
pub trait BlockingLocks: Send {
    fn pair(&mut self, key: &str) -> Result<Duration, String>;
}

/// Measurements of one caller.
pub struct Tally {
    times: Vec<Duration>,
    errors: usize,
    first_error: Option<String>,
}

impl Default for Tally {
    /// Preallocated, so that counted runs do not see its allocations.
    fn default() -> Self {
        Self { times: Vec::with_capacity(TIMES_CAPACITY), errors: 0, first_error: None }
    }
}

impl Tally {
    pub fn note(&mut self, result: Result<Duration, String>) {
        match result {
            Ok(time) => self.times.push(time),
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Sums the callers' measurements. Only pairs without errors count.
    pub fn sum(tallies: Vec<Self>, elapsed: Duration) -> Round {
        let shares = || tallies.iter().map(|tally| tally.times.len());
        let (fewest, most) = (shares().min().unwrap_or(0), shares().max().unwrap_or(0));
        let errors = tallies.iter().map(|tally| tally.errors).sum();
        let first_error = tallies.iter().find_map(|tally| tally.first_error.clone());
        let mut times: Vec<Duration> = tallies.into_iter().flat_map(|tally| tally.times).collect();
        times.sort_unstable();
        let at = |permille: usize| {
            let place = (times.len() * permille / 1000).min(times.len().saturating_sub(1));
            times.get(place).map_or(0.0, |time| (time.as_secs_f64() * 1e7).round() / 10.0)
        };
        Round {
            pairs: times.len(),
            seconds: elapsed.as_secs_f64(),
            acquire_p50_us: at(500),
            acquire_p99_us: at(990),
            acquire_max_us: at(1000),
            cpu_us: None,
            fewest,
            most,
            errors,
            first_error,
        }
    }
}

/// Names of all locks.
pub fn names() -> Arc<[String]> {
    // The raw loop's names.
    (0..KEY_COUNT).map(|index| format!("bench:{index}")).collect()
}

/// Keys of one caller in turn: distinct from other callers', or the same for all.
pub struct Keys {
    names: Arc<[String]>,
    next: usize,
    step: usize,
}

impl Keys {
    pub fn of(caller: usize, work: &Work, names: &Arc<[String]>) -> Self {
        let (next, step) = if work.one_key { (0, 0) } else { (caller, work.callers) };
        Self { names: names.clone(), next, step }
    }

    pub fn next_name(&mut self) -> &str {
        let name = &self.names[self.next];
        self.next = (self.next + self.step) % self.names.len();
        name
    }
}

/// Whether a caller goes on after this many pairs.
fn goes_on(limit: Limit, start: Instant, pairs: usize) -> bool {
    match limit {
        Limit::Time(time) => start.elapsed() < time,
        Limit::Pairs(count) => pairs < count,
    }
}

/// A runtime with one task for each caller.
pub struct AsyncRig<L> {
    pub runtime: tokio::runtime::Runtime,
    pub locks: L,
    pub work: Work,
    pub names: Arc<[String]>,
}

impl<L: AsyncLocks> Rig for AsyncRig<L> {
    fn round(&mut self, limit: Limit) -> Round {
        let start = Instant::now();
        let tallies = self.runtime.block_on(async {
            let callers = (0..self.work.callers).map(|caller| {
                let (locks, mut keys) = (self.locks.clone(), Keys::of(caller, &self.work, &self.names));
                tokio::spawn(async move {
                    let mut tally = Tally::default();
                    let mut pairs = 0;
                    while goes_on(limit, start, pairs) {
                        tally.note(locks.pair(keys.next_name()).await);
                        pairs += 1;
                    }
                    tally
                })
            });
            let callers: Vec<_> = callers.collect();
            let mut tallies = Vec::with_capacity(callers.len());
            for caller in callers {
                tallies.push(caller.await.expect("a caller does not panic"));
            }
            tallies
        });
        Tally::sum(tallies, start.elapsed())
    }

    fn settle(&mut self) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }
}

/// A thread and a client for each caller. A lone caller uses the thread that requests the round.
pub struct BlockingRig<B> {
    pub clients: Vec<B>,
    pub work: Work,
    pub names: Arc<[String]>,
    /// Work of a client between rounds.
    pub settle: fn(&mut B),
}

impl<B: BlockingLocks> Rig for BlockingRig<B> {
    fn round(&mut self, limit: Limit) -> Round {
        let start = Instant::now();
        let (work, names) = (&self.work, &self.names);
        let call = |caller: usize, client: &mut B| {
            let (mut tally, mut keys) = (Tally::default(), Keys::of(caller, work, names));
            let mut pairs = 0;
            while goes_on(limit, start, pairs) {
                tally.note(client.pair(keys.next_name()));
                pairs += 1;
            }
            tally
        };
        let tallies = if let [client] = self.clients.as_mut_slice() {
            vec![call(0, client)]
        } else {
            std::thread::scope(|scope| {
                let callers = self.clients.iter_mut().enumerate();
                let callers = callers.map(|(caller, client)| scope.spawn(move || call(caller, client)));
                let callers: Vec<_> = callers.collect();
                callers.into_iter().map(|caller| caller.join().expect("a caller does not panic")).collect()
            })
        };
        Tally::sum(tallies, start.elapsed())
    }

    fn settle(&mut self) {
        self.clients.iter_mut().for_each(self.settle);
    }
}
