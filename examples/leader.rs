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

use redlatch::{AcquireError, Client, FencingToken};

/// After a crash of the leader, another candidate takes over within this time.
const TTL: Duration = Duration::from_secs(5);

/// Leads whenever it can, and takes steps until a step breaks. Each step gets the term, for storage that
/// refuses an older term.
pub fn lead(
    client: &Client,
    mut step: impl FnMut(FencingToken) -> ControlFlow<()>,
) -> Result<(), AcquireError> {
    client.lead("leader").ttl(TTL).run(|leadership| {
        // Each step is short, so that a lost leadership is noticed in time.
        while leadership.is_leader() {
            step(leadership.term())?;
        }
        ControlFlow::Continue(()) // lost: campaign again
    })
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    loop {
        let mut steps = 0;
        lead(&client, |term| {
            steps += 1;
            println!("step {steps} of term {term}");
            std::thread::sleep(Duration::from_secs(1));
            if steps < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
}
