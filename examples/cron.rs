//! A job once per interval: every machine starts it, one runs it.
//!
//! `cargo run --example cron redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use redlatch::{AcquireError, Client};

/// Runs the job of this interval, unless another machine does or did within `least`. Returns whether it ran.
///
/// The rest of `least` must fit into the client's `max_ttl`. A job that must not run twice after a crash
/// records its end in its own storage.
pub fn run_once(
    client: &Client,
    interval: u64,
    least: Duration,
    job: impl FnOnce(),
) -> Result<bool, Box<dyn Error>> {
    // Each interval has its own lock.
    let name = format!("report:{interval}");
    let request = client.lock(&name).ttl(Duration::from_secs(10));
    let started = Instant::now();
    let guard = match request.auto_extend(Duration::from_secs(3600)).try_acquire() {
        Err(AcquireError::Contended(_)) => return Ok(false),
        result => result?,
    };
    job();
    // A machine with a late clock finds the lock taken, even after this process has ended.
    guard.leave_for(least.saturating_sub(started.elapsed()))?;
    Ok(true)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let minute = SystemTime::UNIX_EPOCH.elapsed()?.as_secs() / 60;
    let has_run =
        run_once(&client, minute, Duration::from_secs(5), || println!("the report of minute {minute}"))?;
    println!("{}", if has_run { "done" } else { "another machine does it" });
    Ok(())
}
