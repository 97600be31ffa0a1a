//! A program that repeatedly locks with one library, and prints its steps: see `redlatch drill --help`,
//! `--contender`. The contenders in Python and JavaScript do the same.
//!
//! ```text
//!   contender LIBRARY
//! ```

mod none;
mod redis_rs;
mod redlatch_lock;
mod rslock_lock;

use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::time::{ClockId, clock_gettime};

/// Locks of one library, one at a time.
trait Locks {
    /// Requests the lock for at most one TTL. Returns the end of its validity, as the library reports it.
    fn acquire(&mut self) -> Option<Instant>;
    fn release(&mut self);
    /// Lets the library's background tasks run.
    fn pause(&mut self, time: Duration);
    /// Waits for releases under way, if the library has any.
    fn end(self: Box<Self>) {}
}

/// Terms of the drill and the referee.
struct Terms {
    urls: Vec<String>,
    name: String,
    ttl: Duration,
    /// Longest hold.
    hold: Duration,
    /// How long a holder is sometimes stopped; zero for never.
    stop: Duration,
}

fn variable<T: FromStr + Default>(name: &str) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn main() {
    let millis = |name| Duration::from_millis(variable(name));
    let urls: String = variable("REDLATCH_MASTERS");
    let terms = Terms {
        urls: urls.split(',').map(str::to_owned).collect(),
        name: variable("REDLATCH_DRILL_NAME"),
        ttl: millis("REDLATCH_DRILL_TTL_MS"),
        hold: millis("REFEREE_HOLD_MS"),
        stop: millis("REFEREE_STOP_MS"),
    };
    let end = Instant::now() + millis("REDLATCH_DRILL_TIME_MS");
    let library = std::env::args().nth(1).unwrap_or_default();
    let mut locks: Box<dyn Locks> = match library.as_str() {
        "none" => Box::new(none::None { ttl: terms.ttl }),
        "redis-rs" => Box::new(redis_rs::ByHand::open(&terms)),
        "redlatch" => Box::new(redlatch_lock::Ours::open(&terms, redlatch::Quarantine::Uptime)),
        "redlatch-trust" => Box::new(redlatch_lock::Ours::open(&terms, redlatch::Quarantine::Trust)),
        "rslock" => Box::new(rslock_lock::Rslock::open(&terms)),
        _ => panic!("give one of: none, redis-rs, redlatch, redlatch-trust, rslock"),
    };
    while Instant::now() < end {
        visit(locks.as_mut(), &terms);
    }
    locks.end();
}

fn visit(locks: &mut dyn Locks, terms: &Terms) {
    let mut rng = rand::rng();
    println!("asked {}", now_ns());
    let Some(until) = locks.acquire() else {
        println!("refused {}", now_ns());
        return;
    };
    // In this order, a delay between the two readings only shortens the validity.
    let now = now_ns();
    println!("acquired {now} {}", now + until.saturating_duration_since(Instant::now()).as_nanos());
    if !terms.stop.is_zero() && rng.random_bool(0.05) {
        stop(terms.stop);
        locks.pause(Duration::from_millis(500));
    } else {
        let share = if rng.random_bool(0.8) { 0.05 } else { 1.0 };
        locks.pause(terms.hold.mul_f64(rng.random_range(0.0..share)));
    }
    println!("released {}", now_ns());
    locks.release();
    println!("done {}", now_ns());
    locks.pause(Duration::from_millis(rng.random_range(0..20)));
}

/// Makes another process stop this one for this time.
fn stop(time: Duration) {
    let pid = std::process::id();
    let script = format!("(kill -STOP {pid}; sleep {}; kill -CONT {pid}) &", time.as_secs_f64());
    Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status().expect("a shell");
}

/// On the clock that all processes share.
fn now_ns() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)).as_nanos()
}
