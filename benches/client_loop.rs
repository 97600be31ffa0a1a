//! Acquire and release pairs through `Client`: from one thread, many threads, and many tasks.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Quarantine};
use redlatch_support::settle;
use tokio::runtime::{self, Runtime};

const TTL: Duration = Duration::from_secs(10);
/// Far longer than a noisy machine delays an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Each lock is renewed about three times in this time.
const KEPT_TTL: Duration = Duration::from_secs(30);

/// The tokio runtime on which tasks run.
#[derive(Clone, Copy)]
pub(crate) enum Executor {
    /// The thread that waits for the tasks.
    OneThread,
    TwoWorkers,
}

impl Executor {
    fn start(self) -> Runtime {
        let mut builder = match self {
            Self::OneThread => runtime::Builder::new_current_thread(),
            Self::TwoWorkers => runtime::Builder::new_multi_thread(),
        };
        builder.worker_threads(2).enable_all().build().expect("an executor")
    }
}

fn config(urls: &[String], spin: Duration) -> Config {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).spin(spin);
    config.answer_timeout(ANSWER_TIMEOUT).build().expect("valid settings")
}

/// Clients, and the names of the locks that they acquire in turn.
pub(crate) struct ClientLoop {
    /// Several clients stand for several event loops in one client: each name belongs to one.
    clients: Vec<Client>,
    /// The runtime of all tasks, in which the clients were opened. With the feature `tokio` it drives them.
    runtime: Option<Runtime>,
    names: Arc<Vec<String>>,
    next_name: Arc<AtomicUsize>,
}

impl ClientLoop {
    pub(crate) fn connect(urls: &[String], key_count: usize) -> Self {
        Self::connect_with(urls, key_count, 1, Duration::ZERO)
    }

    /// Opens this many clients, which look for answers for `spin` before they sleep.
    pub(crate) fn connect_with(
        urls: &[String],
        key_count: usize,
        client_count: usize,
        spin: Duration,
    ) -> Self {
        let config = config(urls, spin);
        let client = |_| Client::open(config.clone()).expect("an event loop");
        Self::new((0..client_count).map(client).collect(), None, key_count)
    }

    /// Opens a client in the runtime of all tasks, which drives it with the feature `tokio`.
    pub(crate) fn connect_in_runtime(urls: &[String], key_count: usize) -> Self {
        let runtime = Executor::OneThread.start();
        let client = runtime.block_on(Client::open_async(config(urls, Duration::ZERO)));
        Self::new(vec![client.expect("an event loop")], Some(runtime), key_count)
    }

    fn new(clients: Vec<Client>, runtime: Option<Runtime>, key_count: usize) -> Self {
        // Names of the others' length, but distinct: a slow minority may still have to delete the others.
        let names = (0..key_count).map(|index| format!("guard:{index}")).collect();
        Self { clients, runtime, names: Arc::new(names), next_name: Arc::default() }
    }

    /// The first client.
    pub(crate) fn client(&self) -> Client {
        self.clients[0].clone()
    }

    /// Waits until all locks are released.
    pub(crate) fn settle(&self) {
        for client in &self.clients {
            assert_eq!(settle(client, Duration::from_secs(20)), 0, "locks are left on some master");
        }
    }

    /// One lock at a time. Each release is awaited, or sent together with the next acquisition.
    pub(crate) fn blocking_pairs(&self, pair_count: usize, is_awaited: bool) -> Duration {
        let start = Instant::now();
        for _ in 0..pair_count {
            let index = self.next_name.fetch_add(1, Ordering::Relaxed);
            let client = &self.clients[index % self.clients.len()];
            let name = &self.names[index % self.names.len()];
            let guard = client.lock(name).ttl(TTL).try_acquire().expect("the lock is free");
            if is_awaited {
                guard.release().expect("the masters answer");
            }
        }
        start.elapsed()
    }

    /// This many threads, each with one lock at a time.
    pub(crate) fn thread_pairs(&self, pair_count: usize, thread_count: usize, is_awaited: bool) -> Duration {
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..thread_count {
                scope.spawn(|| self.blocking_pairs(pair_count / thread_count, is_awaited));
            }
        });
        start.elapsed()
    }

    /// This many tasks, each with one lock at a time, on one thread or on two workers.
    pub(crate) fn task_pairs(&self, pair_count: usize, task_count: usize, executor: Executor) -> Duration {
        self.task_pairs_noting(pair_count, task_count, executor, |_| {})
    }

    /// Like [`Self::task_pairs`]; `note` gets the durations of each task's acquisitions, in order.
    pub(crate) fn task_pairs_noting(
        &self,
        pair_count: usize,
        task_count: usize,
        executor: Executor,
        note: impl FnMut(Vec<Duration>),
    ) -> Duration {
        let started = self.runtime.is_none().then(|| executor.start());
        let runtime = started.as_ref().or(self.runtime.as_ref()).expect("it is started");
        let start = Instant::now();
        let tasks: Vec<_> = (0..task_count)
            .map(|_| {
                let (clients, names, next_name) =
                    (self.clients.clone(), self.names.clone(), self.next_name.clone());
                runtime.spawn(async move {
                    let mut times = Vec::with_capacity(pair_count / task_count);
                    for _ in 0..pair_count / task_count {
                        let index = next_name.fetch_add(1, Ordering::Relaxed);
                        let name = &names[index % names.len()];
                        let request = clients[index % clients.len()].lock(name).ttl(TTL).wait(Duration::ZERO);
                        let asked = Instant::now();
                        let guard = request.acquire_async().await.expect("the lock is free");
                        times.push(asked.elapsed());
                        guard.release_async().await.expect("the masters answer");
                    }
                    times
                })
            })
            .collect();
        let times: Vec<_> = tasks.into_iter().map(|task| runtime.block_on(task).expect("no panic")).collect();
        let elapsed = start.elapsed();
        times.into_iter().for_each(note);
        elapsed
    }

    /// Keeps this many locks for this time. Prints the cost, and the number of lost locks.
    pub(crate) fn keep(&self, lock_count: usize, time: Duration) {
        let before = Usage::of_this_process();
        let names: Vec<String> = (0..lock_count).map(|index| format!("kept:{index}")).collect();
        let mut guards = Vec::with_capacity(lock_count);
        for names in names.chunks(1000) {
            let request = |name| self.clients[0].lock(name).ttl(KEPT_TTL).auto_extend(Duration::MAX);
            for acquiring in self.clients[0].acquire_all(names.iter().map(request)) {
                guards.push(acquiring.block().expect("the lock is free"));
            }
        }
        let held = Usage::of_this_process();
        thread::sleep(time);
        let after = Usage::of_this_process();
        let lost_count = guards.iter().filter(|guard| !guard.is_valid()).count();
        let cpu = (after.cpu - held.cpu).as_secs_f64() / time.as_secs_f64();
        println!(
            "{lock_count} locks of {KEPT_TTL:?} kept for {time:?}: {lost_count} lost, {:.1} % of a core, {} KiB resident, {} B a lock",
            cpu * 100.0,
            after.resident_kib,
            after.resident_kib.saturating_sub(before.resident_kib) * 1024 / lock_count,
        );
        while !guards.is_empty() {
            let some = guards.drain(guards.len().saturating_sub(1000)..);
            for releasing in self.clients[0].release_all(some) {
                releasing.block().expect("the masters answer");
            }
        }
    }
}

/// Resources used by this process so far.
struct Usage {
    cpu: Duration,
    resident_kib: usize,
}

impl Usage {
    /// From `/proc`.
    fn of_this_process() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
        // After the name, which may contain anything. The 12th and 13th fields are user and system time in
        // hundredths of a second.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        let ticks: u64 = [fields[11], fields[12]].iter().map(|it| it.parse::<u64>().expect("a number")).sum();
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("it has memory");
        let resident_kib = line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number");
        Self { cpu: Duration::from_millis(ticks * 10), resident_kib }
    }
}
