//! How long it takes from the release of a lock by one client to its acquisition by another one that waits,
//! against a round trip, and how many attempts that costs: `cargo bench --bench relay`.
//!
//! Each client has connections and a thread of its own. A round trip takes 20 ms, by a proxy before each of
//! three masters: with a hundred clients on one machine the threads that wake take far longer than one on
//! loopback. `relay direct` goes without it.

#[path = "../tests/masters/fleet.rs"]
mod fleet;
#[path = "../tests/masters/proxy.rs"]
mod proxy;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fleet::Fleet;
use proxy::Proxy;
use redlatch::{Config, Quarantine, Redlock};

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(600);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const ONE_WAY: Duration = Duration::from_millis(10);
/// How long each holder keeps the lock.
const HOLD: Duration = Duration::from_millis(60);

fn main() {
    let is_test = std::env::args().any(|arg| arg == "--test");
    let is_direct = std::env::args().any(|arg| arg == "direct");
    let mut fleet = Fleet::start(3);
    let proxies: Vec<Proxy> = fleet.addrs().into_iter().map(Proxy::start).collect();
    let urls = if is_direct { fleet.urls() } else { proxies.iter().map(Proxy::url).collect() };
    proxies.iter().for_each(|proxy| proxy.delay(ONE_WAY));
    for count in if is_test { vec![1] } else { vec![1, 10, 100] } {
        relay(&mut fleet, &urls, count, if is_test { 2 } else { count.max(30) });
    }
}

fn connect(urls: &[String]) -> Redlock {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).max_ttl(TTL);
    Redlock::open(config.answer_timeout(ANSWER_TIMEOUT).build().expect("valid")).expect("an event loop")
}

/// `waiter_count` clients wait for a lock that passes from one to the next so many times.
fn relay(fleet: &mut Fleet, urls: &[String], waiter_count: usize, hand_over_count: usize) {
    let mut first = connect(urls);
    let mut trips: Vec<Duration> = (0..9).map(|_| round_trip(&mut first)).collect();
    let (left, released, times) =
        (AtomicUsize::new(hand_over_count), Mutex::new(Instant::now()), Mutex::new(Vec::new()));
    let ready = Barrier::new(waiter_count + 1);
    let lease = first.lock("relay").ttl(TTL).wait(WAIT).acquire().expect("free");
    let mut set_counts = (0, 0);
    thread::scope(|scope| {
        for _ in 0..waiter_count {
            scope.spawn(|| {
                let mut redlock = connect(urls);
                ready.wait();
                while left.load(Ordering::SeqCst) > 0 {
                    let lease = redlock.lock("relay").ttl(TTL).wait(WAIT).acquire().expect("it is released");
                    let took = released.lock().expect("no panic").elapsed();
                    if left.load(Ordering::SeqCst) > 0 {
                        left.fetch_sub(1, Ordering::SeqCst);
                        times.lock().expect("no panic").push(took);
                        thread::sleep(HOLD);
                    }
                    *released.lock().expect("no panic") = Instant::now();
                    redlock.release(lease).expect("the masters answer");
                    // With one client alone the lock would never be waited for.
                    thread::sleep(if waiter_count == 1 { 4 * HOLD } else { Duration::ZERO });
                }
            });
        }
        ready.wait();
        // They are refused, subscribe, and try once more.
        thread::sleep(Duration::from_millis(500));
        set_counts.0 = attempts(fleet);
        *released.lock().expect("no panic") = Instant::now();
        first.release(lease).expect("the masters answer");
        if waiter_count == 1 {
            take_turns(&mut first, &left, &released);
        }
        while left.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        set_counts.1 = attempts(fleet);
    });
    let mut times = times.into_inner().expect("no panic");
    let (trip, took) = (median(&mut trips), median(&mut times));
    let attempts =
        f64::from(set_counts.1 - set_counts.0) / f64::from(u32::try_from(hand_over_count).expect("few"));
    println!(
        "{waiter_count:3} waiting: hand-over in {took:?} at the median of {}, round trip {trip:?}, ratio {:.2}; {attempts:.1} attempts each",
        times.len(),
        took.as_secs_f64() / trip.as_secs_f64(),
    );
}

/// The other one of two.
fn take_turns(first: &mut Redlock, left: &AtomicUsize, released: &Mutex<Instant>) {
    while left.load(Ordering::SeqCst) > 0 {
        thread::sleep(HOLD);
        let lease = first.lock("relay").ttl(TTL).wait(WAIT).acquire().expect("it is released");
        // The other one waits by then.
        thread::sleep(8 * HOLD);
        *released.lock().expect("no panic") = Instant::now();
        first.release(lease).expect("the masters answer");
    }
}

fn round_trip(redlock: &mut Redlock) -> Duration {
    let start = Instant::now();
    let lease = redlock.lock("trip").ttl(TTL).try_acquire().expect("free");
    let took = start.elapsed();
    redlock.release(lease).expect("the masters answer");
    took
}

/// `SET`s that the first master has carried out.
fn attempts(fleet: &mut Fleet) -> u32 {
    let stats = fleet.master(0).ask("INFO commandstats").text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
