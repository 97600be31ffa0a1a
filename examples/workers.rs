//! Many workers on many locks: threads share one client, and each acquires its locks in batches.
//!
//! `cargo run --example workers redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::thread;
use std::time::Duration;

use redlatch::{AcquireError, Client};

/// Locks that a worker requests at once.
const BATCH: usize = 16;

/// Has this many workers visit each account once, and returns the number of visits.
pub fn visit_all(
    client: &Client,
    worker_count: usize,
    accounts: &[String],
    visit: impl Fn(&str) + Sync,
) -> Result<usize, AcquireError> {
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..worker_count).map(|_| scope.spawn(|| visit_each(client, accounts, &visit))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
    })
}

fn visit_each(client: &Client, accounts: &[String], visit: impl Fn(&str)) -> Result<usize, AcquireError> {
    let mut visits = 0;
    // Small batches, because a lock's time runs from its grant, not from its visit. All workers acquire
    // batches in the same order, so none waits for another in a circle.
    for batch in accounts.chunks(BATCH) {
        // One write for each master starts the whole batch.
        let requests = batch.iter().map(|account| client.lock(account).wait(Duration::from_secs(60)));
        for (acquiring, account) in client.acquire_all(requests).into_iter().zip(batch) {
            let guard = acquiring.block()?;
            visit(account);
            visits += 1;
            drop(guard); // the next caller of this client gets the lock in one round trip
        }
    }
    Ok(visits)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let accounts: Vec<String> = (0..100).map(|account| format!("accounts:{account}")).collect();
    println!("{} visits", visit_all(&client, 8, &accounts, |_| ())?);
    Ok(())
}
