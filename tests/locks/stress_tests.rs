//! Many threads and tasks use one client while connections are cut, delayed and stopped: every call returns
//! in time, nothing is left, and all threads end.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redlatch::{AcquireError, Client, Config, ExtendError, Guard, ReleaseError, limits};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, Proxy, Until, block_on};
use tokio::runtime::Runtime;

use crate::harness::{await_no_keys, config, drive_on_tokio};

const THREAD_COUNT: usize = 64;
const TASK_COUNT: usize = 256;
const RESOURCE_COUNT: usize = 40;
const TTL: Duration = Duration::from_secs(4);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
/// How much a busy machine may exceed a deadline.
const SLACK: Duration = Duration::from_secs(5);

/// State that all callers share.
struct Stress<'a> {
    client: &'a Client,
    is_over: AtomicBool,
    /// End of each lock's validity, and number of its last entry.
    held: [Mutex<Option<(Instant, usize)>>; RESOURCE_COUNT],
    entry_count: AtomicUsize,
    /// Number of calls with each result.
    counts: Mutex<BTreeMap<&'static str, usize>>,
    running_count: AtomicUsize,
    /// The largest excess over a time limit, and its call.
    late: Mutex<(Duration, &'static str)>,
}

/// A caller's next action, drawn at random.
struct Plan {
    resource: usize,
    name: String,
    wait: Duration,
    is_cancelled: bool,
    extends: bool,
    drops: bool,
}

impl Plan {
    fn draw(rng: &mut SmallRng) -> Self {
        let resource = rng.random_range(0..RESOURCE_COUNT);
        Self {
            resource,
            name: format!("orders:{resource}"),
            wait: Duration::from_millis(rng.random_range(0..200_u64).saturating_sub(50)),
            is_cancelled: rng.random_range(0..5) == 0,
            extends: rng.random_range(0..4) == 0,
            drops: rng.random(),
        }
    }
}

impl Stress<'_> {
    fn count(&self, what: &'static str) {
        *self.counts.lock().expect("no panic").entry(what).or_default() += 1;
    }

    fn note_time(&self, call: &'static str, begun: Instant, limit: Duration) {
        let late = begun.elapsed().saturating_sub(limit);
        let mut latest = self.late.lock().expect("no panic");
        *latest = (late, call).max(*latest);
    }

    /// Returns the number of this entry. A holder that leaves only after its lock's end is no witness.
    fn enter(&self, plan: &Plan, guard: &Guard) -> usize {
        let entry = self.entry_count.fetch_add(1, Ordering::SeqCst);
        let until = guard.valid_until();
        let before = self.held[plan.resource].lock().expect("no panic").replace((until, entry));
        let now = Instant::now();
        assert!(before.is_none_or(|(before, _)| before <= now || until <= now), "two hold {}", plan.name);
        entry
    }

    fn exit(&self, plan: &Plan, entry: usize) {
        self.held[plan.resource].lock().expect("no panic").take_if(|(_, other)| *other == entry);
    }

    fn count_acquired(&self, result: &Result<Guard, AcquireError>) {
        self.count(match result {
            Ok(_) => "acquired",
            Err(AcquireError::Contended(_)) => "contended",
            Err(AcquireError::NoQuorum(_)) => "no quorum",
            Err(AcquireError::Expired(_)) => "expired",
            Err(error) => panic!("{error}"),
        });
    }

    fn count_extended(&self, result: Result<(), ExtendError>) {
        self.count(match result {
            Ok(()) => "extended",
            Err(ExtendError::Busy) => "extension busy",
            Err(ExtendError::Lost(_) | ExtendError::NoQuorum(_) | ExtendError::Expired) => "not extended",
            Err(error) => panic!("{error}"),
        });
    }

    fn count_released<T>(&self, result: Result<T, ReleaseError>) {
        self.count(match result {
            Ok(_) => "released",
            Err(ReleaseError::Unconfirmed(_)) => "not confirmed",
            Err(error) => panic!("{error}"),
        });
    }

    /// One round of a thread. All calls block, except those that it gives up.
    fn visit(&self, rng: &mut SmallRng) {
        let plan = Plan::draw(rng);
        let request = self.client.lock(&plan.name).ttl(TTL).wait(plan.wait);
        if plan.is_cancelled {
            drop(self.client.acquire_all([request]));
            return self.count("cancelled");
        }
        let begun = Instant::now();
        let result = request.acquire();
        self.note_time("acquire", begun, plan.wait + 2 * ANSWER_TIMEOUT + limits::REVIVE_MAX);
        self.count_acquired(&result);
        let Ok(mut guard) = result else { return };
        let entry = self.enter(&plan, &guard);
        if plan.extends {
            let begun = Instant::now();
            let result = guard.extend(TTL);
            self.note_time("extend", begun, ANSWER_TIMEOUT);
            self.count_extended(result);
        }
        self.exit(&plan, entry);
        if !plan.drops {
            let begun = Instant::now();
            let result = guard.release();
            self.note_time("release", begun, ANSWER_TIMEOUT);
            self.count_released(result);
        }
    }

    /// One round of a task. It polls calls several times before giving them up.
    async fn visit_async(&self, rng: &mut SmallRng) {
        let plan = Plan::draw(rng);
        let mut acquiring = self.client.lock(&plan.name).ttl(TTL).wait(plan.wait).acquire_async();
        let begun = Instant::now();
        let result = if plan.is_cancelled {
            let poll_count = rng.random_range(0..4);
            Give { future: &mut acquiring, poll_count }.await
        } else {
            Some(acquiring.await)
        };
        self.note_time("acquire_async", begun, plan.wait + 2 * ANSWER_TIMEOUT);
        let Some(result) = result else { return self.count("cancelled") };
        self.count_acquired(&result);
        let Ok(mut guard) = result else { return };
        let entry = self.enter(&plan, &guard);
        if plan.extends {
            let poll_count = rng.random_range(0..3);
            let mut extending = guard.extend_async(TTL);
            match (Give { future: &mut extending, poll_count }).await {
                Some(result) => self.count_extended(result),
                None => self.count("extension cancelled"),
            }
        }
        tokio::task::yield_now().await;
        self.exit(&plan, entry);
        if !plan.drops {
            let begun = Instant::now();
            let result = guard.release_async().await;
            self.note_time("release_async", begun, ANSWER_TIMEOUT);
            self.count_released(result);
        }
    }
}

/// Polls a future this many times, whenever its task is polled, and then gives it up.
struct Give<'a, F> {
    future: &'a mut F,
    poll_count: usize,
}

impl<F: Future + Unpin> Future for Give<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        if self.poll_count == 0 {
            return Poll::Ready(None);
        }
        self.poll_count -= 1;
        let poll = Pin::new(&mut *self.future).poll(context).map(Some);
        // Polled again perhaps before its answer.
        context.waker().wake_by_ref();
        poll
    }
}

/// Harms one master or its connections at a time, then heals it.
fn harm(fleet: &mut Fleet, proxies: &[Proxy], limit: Duration) {
    let mut rng = SmallRng::seed_from_u64(7);
    let begun = Instant::now();
    while begun.elapsed() < limit {
        let index = rng.random_range(0..proxies.len());
        let pause = Duration::from_millis(rng.random_range(5..150));
        match rng.random_range(0..5) {
            0 => {
                fleet.master(index).stop();
                thread::sleep(pause * 3);
                fleet.master(index).cont();
            }
            1 => proxies[index].drop_connections(),
            2 => {
                proxies[index].delay(Duration::from_millis(rng.random_range(1..20)));
                thread::sleep(pause);
                proxies[index].delay(Duration::ZERO);
            }
            3 => {
                proxies[index].stall(true);
                thread::sleep(pause * 3);
                proxies[index].stall(false);
            }
            _ => proxies[index].reset_after_reply_bytes(rng.random_range(0..2000)),
        }
        thread::sleep(pause);
    }
}

/// Runs threads, and tasks on further threads. One of these runs this runtime, which ends with the others.
fn hammer(stress: &Stress, runtime: Runtime) {
    thread::scope(|scope| {
        for index in 0..THREAD_COUNT {
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(index as u64);
                while !stress.is_over.load(Ordering::SeqCst) {
                    stress.visit(&mut rng);
                }
                stress.running_count.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let tasks = |count: usize, first: usize| async move {
            let mut running: Vec<_> = (first..first + count)
                .map(|index| {
                    Box::pin(async move {
                        let mut rng = SmallRng::seed_from_u64(1000 + index as u64);
                        while !stress.is_over.load(Ordering::SeqCst) {
                            stress.visit_async(&mut rng).await;
                        }
                        stress.running_count.fetch_sub(1, Ordering::SeqCst);
                    })
                })
                .collect();
            std::future::poll_fn(|context| {
                running.retain_mut(|it| it.as_mut().poll(context).is_pending());
                if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        };
        // In groups, because a wake-up of one task polls its whole group.
        for group in 1..TASK_COUNT / 32 {
            scope.spawn(move || block_on(tasks(32, group * 32)));
        }
        runtime.block_on(async {
            tasks(32, 0).await;
            // The drive must outlive the other callers.
            while stress.running_count.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    });
}

fn withstand(open: fn(&Runtime, Config) -> Client) {
    let seconds = std::env::var("REDLATCH_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let limit = Duration::from_secs_f64(seconds.unwrap_or(1.5));
    let mut fleet = Fleet::start(3);
    let proxies: Vec<Proxy> = fleet.addrs().into_iter().map(Proxy::start).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let config = config(&urls, ANSWER_TIMEOUT).build().expect("valid settings");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = open(&runtime, config);
    let stress = Stress {
        client: &client,
        is_over: AtomicBool::new(false),
        held: std::array::from_fn(|_| Mutex::default()),
        entry_count: AtomicUsize::new(0),
        counts: Mutex::default(),
        running_count: AtomicUsize::new(THREAD_COUNT + TASK_COUNT),
        late: Mutex::default(),
    };
    thread::scope(|scope| {
        let hammering = scope.spawn(|| hammer(&stress, runtime));
        let end = Until(&stress.is_over);
        harm(&mut fleet, &proxies, limit);
        drop(end);
        let given_up = Instant::now() + PATIENCE;
        while !hammering.is_finished() {
            if Instant::now() >= given_up {
                // No assertion, because the scope would then wait for the hanging threads.
                eprintln!("{} callers hang; {client:?}", stress.running_count.load(Ordering::SeqCst));
                std::process::abort();
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let counts = stress.counts.into_inner().expect("no panic");
    let late = stress.late.into_inner().expect("no panic");
    println!("{counts:?}, latest {late:?}");
    assert!(late.0 < SLACK, "{} came back {:?} after its limit", late.1, late.0);
    for what in ["acquired", "contended", "cancelled", "extended", "released"] {
        assert!(counts.contains_key(what), "never {what}: {counts:?}");
    }
    assert_eq!(settle(&client, PATIENCE), 0, "locks left on some master");
    await_no_keys(&mut fleet);
}

// I119
#[test]
fn client_withstands_many_threads_tasks_and_faults() {
    withstand(|_, config| Client::open(config).expect("an event loop"));
}

#[test]
fn a_driven_client_withstands_threads_tasks_and_harm() {
    withstand(|runtime, config| {
        let client = Client::open(config).expect("an event loop");
        runtime.spawn(drive_on_tokio(client.clone()));
        client
    });
}

// I143
#[cfg(all(unix, feature = "tokio"))]
#[test]
fn runtime_driven_client_withstands_threads_tasks_and_faults() {
    withstand(|runtime, config| runtime.block_on(Client::open_async(config)).expect("an event loop"));
}
