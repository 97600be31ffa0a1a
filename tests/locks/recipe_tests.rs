//! The Rust jobs of docs/recipes.md, word for word: two machines that start the same job.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Client;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, eventually};

use crate::harness::{LONG, SHORT, TTL, await_held, await_no_keys, open};

const RECIPES: &str = include_str!("../../docs/recipes.md");

mod hourly {
    include!("recipes/hourly.rs");
    pub(super) const TEXT: &str = include_str!("recipes/hourly.rs");
    pub(super) fn run(client: &Client, job: impl FnOnce()) -> Result<(), Box<dyn Error>> {
        hourly(client, job)
    }
}

mod once {
    include!("recipes/once.rs");
    pub(super) const TEXT: &str = include_str!("recipes/once.rs");
    pub(super) fn run(client: &Client, is_done: bool, work: impl FnOnce()) -> Result<bool, AcquireError> {
        once(client, "42", || is_done, work)
    }
}

#[test]
fn the_recipes_have_the_jobs_of_these_tests() {
    for text in [hourly::TEXT, once::TEXT] {
        assert!(RECIPES.contains(&format!("```rust,no_run\n{text}```")), "{text}");
    }
}

#[test]
fn hourly_job_runs_on_one_machine() {
    let mut fleet = Fleet::start(3);
    let machines: [Client; 2] = [0, 1].map(|_| open(&fleet.urls(), LONG));
    let runs = Cell::new(0);
    let began = Instant::now();
    for machine in &machines {
        hourly::run(machine, || runs.set(runs.get() + 1)).expect("it ran, or the other machine ran it");
    }
    // The second start finds the first one's lock, unless this test is very late.
    assert!(runs.get() == 1 || began.elapsed() >= Duration::from_secs(20), "it ran {} times", runs.get());
    for master in fleet.masters() {
        eventually(PATIENCE, "it is left for more than its TTL of 10 s, and at most for 20 s", || {
            let left_ms: i64 = master.ask("PTTL report").text().parse().expect("a number");
            assert!(left_ms <= 20_000, "{left_ms}: longer than the job wants");
            left_ms > 10_000 || began.elapsed() >= Duration::from_secs(10)
        });
    }
}

#[test]
fn failed_hourly_job_holds_no_lock() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let running = thread::spawn(move || drop(hourly::run(&client, || panic!("a job that fails"))));
    running.join().expect_err("the panic of the job");
    await_no_keys(&mut fleet);
    let client = open(&fleet.urls(), SHORT);
    for index in [0, 1] {
        fleet.master(index).stop();
    }
    let error = hourly::run(&client, || panic!("a job without a lock")).expect_err("no quorum");
    assert!(error.to_string().contains("report"), "{error}");
}

#[test]
fn finished_work_is_not_repeated() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let works = Cell::new(0);
    let work = || works.set(works.get() + 1);
    assert!(!once::run(&client, true, work).expect("a free lock"), "another worker has done it");
    await_no_keys(&mut fleet);
    let guard = other.lock("job:42").ttl(TTL).acquire().expect("a free lock");
    await_held(&mut fleet, "job:42");
    assert!(!once::run(&client, false, work).expect("a lock that is held"), "another worker does it");
    guard.release().expect("held");
    await_no_keys(&mut fleet);
    assert_eq!(works.get(), 0);
    assert!(once::run(&client, false, work).expect("a free lock"), "nobody has done it");
    assert_eq!(works.get(), 1);
    await_no_keys(&mut fleet);
}
