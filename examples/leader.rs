//! Leader election: the leader keeps a lock, and its fencing token is the term.
//!
//! ```text
//!   alice   lock, term 1 ── step ── step ── resigns or dies
//!   bob     waits ─────────────────────────────────────────── lock, term 2 ── step
//! ```
//!
//! `cargo run --example leader redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;

use redlatch::{Client, FencingToken};

/// After a crash of the leader another one takes over within this time.
const TTL: Duration = Duration::from_secs(5);

/// Waits to become the leader, then takes steps until one of them ends it or the lock is lost.
/// Each step gets the term, for storage that refuses an older one.
pub fn lead(
    client: &Client,
    patience: Duration,
    mut step: impl FnMut(FencingToken) -> ControlFlow<()>,
) -> Result<FencingToken, Box<dyn Error>> {
    let request = client.lock("leader").fenced().ttl(TTL).wait(patience);
    let guard = request.auto_extend(Duration::from_secs(3600)).acquire()?;
    let term = guard.fencing_token().ok_or("the lock is fenced")?;
    // Each step is short, so that the leader notices in time that it is none any more.
    while guard.is_valid() && step(term).is_continue() {}
    guard.release()?;
    Ok(term)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    loop {
        let mut steps = 0;
        lead(&client, Duration::from_secs(3600), |term| {
            steps += 1;
            println!("step {steps} of term {term}");
            std::thread::sleep(Duration::from_secs(1));
            if steps < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
}
