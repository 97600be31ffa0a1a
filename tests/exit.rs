//! A guard or a call that is dropped just before its process ends is released, though nobody else writes: the
//! client is in a `static`, so nothing drops it.
//!
//! The program runs itself as the ending process, because the test harness has threads and its own exit.

use std::cell::Cell;
use std::pin::pin;
use std::process::{Command, ExitCode, exit};
use std::sync::OnceLock;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Config, Guard, Quarantine};
use redlatch_support::{Fleet, PATIENCE};

/// Longer than any wait for a key's expiry.
const TTL: Duration = Duration::from_secs(300);
/// Names the masters and the kind of end, for the second process.
const TASK: &str = "REDLATCH_EXIT_TEST";

/// Ways to drop a guard and end the process, on platforms where the end of a thread, or of the main thread,
/// runs destructors.
const ENDS: &[&str] = if cfg!(all(target_os = "linux", target_env = "gnu")) {
    &[
        "a thread is joined",
        "a thread has it to its end",
        "main returns",
        "exit is called",
        "two clients",
        "a call is dropped",
        "a batch is dropped",
    ]
} else {
    &["a thread is joined", "a thread has it to its end"]
};

static CLIENTS: [OnceLock<Client>; 2] = [OnceLock::new(), OnceLock::new()];

thread_local! {
    /// A guard that is dropped at the end of its thread.
    static HELD: Cell<Option<Guard>> = const { Cell::new(None) };
}

fn main() -> ExitCode {
    match std::env::var(TASK) {
        Ok(task) => end(&task),
        Err(_) => {
            a_guard_is_released_whichever_way_its_process_ends();
            ExitCode::SUCCESS
        }
    }
}

// I128
fn a_guard_is_released_whichever_way_its_process_ends() {
    let mut fleet = Fleet::start(3);
    for &end in ENDS {
        let program = std::env::current_exe().expect("this program has a path");
        let task = format!("{end};{}", fleet.urls().join(","));
        let status = Command::new(program).env(TASK, task).status().expect("it starts again");
        assert!(status.success(), "{end}: {status}");
        let given_up = Instant::now() + PATIENCE;
        for master in fleet.masters() {
            while master.key_count() != "0" {
                assert!(Instant::now() < given_up, "{end}: a key is left: {}", master.keys());
                thread::yield_now();
            }
        }
        println!("test a_guard_is_released_though_{} ... ok", end.replace(' ', "_"));
    }
}

/// Acquires, drops, and ends at once.
fn end(task: &str) -> ExitCode {
    let (end, urls) = task.split_once(';').expect("a way to end and the masters");
    let acquire =
        |client: usize| acquire(CLIENTS[client].get_or_init(|| open(urls)), &format!("lock {client}"));
    match end {
        "main returns" => drop(acquire(0)),
        "exit is called" => {
            drop(acquire(0));
            exit(0);
        }
        "a thread is joined" => {
            let guard = acquire(0);
            thread::spawn(move || drop(guard)).join().expect("no panic");
        }
        "a thread has it to its end" => {
            let client = CLIENTS[0].get_or_init(|| open(urls));
            let hold = || {
                // Set before the client has thread-local values, which are then destroyed first.
                HELD.set(None);
                HELD.set(Some(self::acquire(client, "lock 0")));
            };
            thread::spawn(hold).join().expect("no panic");
        }
        "a call is dropped" => {
            drop(acquire(0));
            let client = CLIENTS[0].get().expect("it is open");
            let mut acquiring = pin!(client.lock("lock 0").ttl(TTL).wait(PATIENCE).acquire_async());
            assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        "a batch is dropped" => {
            // Nothing else is dropped on this thread.
            let client = CLIENTS[0].get_or_init(|| open(urls));
            drop(client.acquire_all([client.lock("lock 0").ttl(TTL).wait(PATIENCE)]));
        }
        "two clients" => drop([acquire(0), acquire(1)]),
        other => panic!("there is no end {other}"),
    }
    ExitCode::SUCCESS
}

fn acquire(client: &'static Client, name: &str) -> Guard {
    // Repeated, so that the last drop is one of many.
    for _ in 0..10 {
        drop(client.lock(name).ttl(TTL).wait(PATIENCE).acquire().expect("free"));
    }
    client.lock(name).ttl(TTL).wait(PATIENCE).acquire().expect("free")
}

fn open(urls: &str) -> Client {
    let config = Config::builder().masters(urls.split(',')).quarantine(Quarantine::Trust).max_ttl(TTL);
    // Silent masters would get no release before they answer, so the limit must outlast a slow machine.
    let client = config.answer_timeout(PATIENCE).connect().expect("an event loop");
    while client.health().may_fail == 0 {
        thread::yield_now();
    }
    client
}
