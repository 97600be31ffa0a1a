//! Callers that acquire and release until their time or their count is up, and what they saw.
//!
//! Knows no library: those are behind [`AsyncLocks`], [`BlockingLocks`] and [`Rig`].

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Keys that all callers share in turn: so many that callers do not meet, so few that the masters' tables do
/// not grow.
pub const KEY_COUNT: usize = 1024;
pub const TTL: Duration = Duration::from_secs(10);
/// For how long a caller goes on asking for a lock that others hold.
pub const WAIT: Duration = Duration::from_secs(20);
/// The longest pause of a rival between two tries for a lock that is taken; it draws one between zero and
/// this. With 50 ms the caller that has just released takes the lock again most of the time: more locks per
/// second, but some callers get a hundredth of what others get. With 2 ms the rivals are busy with being
/// refused.
pub const RETRY_DELAY_MAX: Duration = Duration::from_millis(10);

const TIMES_CAPACITY: usize = 4096;

/// What the callers of one rig do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    pub callers: usize,
    /// Whether all want the same lock, and not each another one.
    pub one_key: bool,
}

/// When a round is over.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// Each caller ends the pair that it is in when the time is up.
    Time(Duration),
    /// So many pairs by each caller.
    Pairs(usize),
}

/// One turn of one peer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Round {
    pub pairs: usize,
    pub seconds: f64,
    /// Times from asking for a lock to having it.
    pub acquire_p50_us: f64,
    pub acquire_p99_us: f64,
    pub acquire_max_us: f64,
    /// Processor time of the peer's process, without that of the masters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
    /// Pairs of the caller with the fewest, and of the one with the most.
    pub fewest: usize,
    pub most: usize,
    /// Acquisitions and releases that failed, and what the first said.
    pub errors: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Round {
    #[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
    pub fn pairs_per_second(&self) -> f64 {
        self.pairs as f64 / self.seconds
    }

    /// Not a number where nobody measured it.
    #[expect(clippy::cast_precision_loss, reason = "a count of pairs is far below 2^52")]
    pub fn cpu_us_per_pair(&self) -> f64 {
        self.cpu_us.map_or(f64::NAN, |cpu_us| cpu_us / self.pairs as f64)
    }
}

/// A peer that is connected and has its callers, ready for a round.
pub trait Rig {
    fn round(&mut self, limit: Limit) -> Round;

    /// Lets what is under way come to its end, between rounds.
    fn settle(&mut self) {}
}

/// Locks by futures: all callers share one client.
pub trait AsyncLocks: Clone + Send + Sync + 'static {
    /// Acquires, reports how long that took, and releases. An error says what failed.
    fn pair(&self, key: &str) -> impl Future<Output = Result<Duration, String>> + Send;
}

/// Locks by blocking calls: each caller has a thread.
pub trait BlockingLocks: Send {
    fn pair(&mut self, key: &str) -> Result<Duration, String>;
}

/// What one caller saw.
pub struct Tally {
    times: Vec<Duration>,
    errors: usize,
    first_error: Option<String>,
}

impl Default for Tally {
    /// With room for the runs in which allocations are counted: ours must not be among them.
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

    /// Adds up what the callers saw. Only pairs without an error count.
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

/// The names of all locks, written once.
pub fn names() -> Arc<[String]> {
    // As the raw loop has them.
    (0..KEY_COUNT).map(|index| format!("bench:{index}")).collect()
}

/// The keys of one caller, in turn: always another than those of the other callers, or always the same for
/// all.
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

/// Whether a caller goes on after so many pairs.
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

/// A thread, and a client of its own, for each caller. A lone caller is the thread that asks for the round.
pub struct BlockingRig<B> {
    pub clients: Vec<B>,
    pub work: Work,
    pub names: Arc<[String]>,
    /// What a client does between rounds.
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
