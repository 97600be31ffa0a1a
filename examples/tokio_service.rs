//! A service on tokio: a task for each order, cancellation by dropping, and an orderly shutdown.
//!
//! `cargo run --example tokio_service redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use redlatch::{Client, HeldLocks, RunError};
use tokio::task::JoinSet;

/// How the service ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub handled: usize,
    pub failed: usize,
    /// Orders that the shutdown cancelled.
    pub cancelled: usize,
    /// Locks whose release was not confirmed in time; they end with their TTL.
    pub unreleased: usize,
}

/// Handles each order under its lock until all are handled, or `shutdown` is ready.
pub async fn serve(
    client: Client,
    orders: Vec<String>,
    work: fn(&str),
    shutdown: impl Future<Output = ()>,
) -> Summary {
    let mut summary = Summary::default();
    let mut tasks = JoinSet::new();
    for order in orders {
        let client = client.clone();
        tasks.spawn(async move { handle(&client, &order, work).await });
    }
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            // Dropped tasks give up their waits, and release their locks.
            () = &mut shutdown => {
                summary.cancelled = tasks.len();
                tasks.shutdown().await;
                break;
            }
            handled = tasks.join_next() => match handled {
                Some(Ok(Ok(()))) => summary.handled += 1,
                Some(_) => summary.failed += 1,
                None => break,
            }
        }
    }
    // Last: the remaining locks are released and confirmed, or the time is over.
    summary.unreleased = client.drain_async(Duration::from_secs(1), HeldLocks::Release).await;
    summary
}

/// A loss of the lock ends the work at its next `.await`.
async fn handle(client: &Client, order: &str, work: fn(&str)) -> Result<(), RunError> {
    let request = client.lock(order).wait(Duration::from_secs(60)).auto_extend(Duration::from_secs(600));
    let handled = request.run_async(async |_guard| work(order)).await;
    handled.inspect_err(|error| eprintln!("{order}: {error}"))
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let orders = (1..=5).map(|order| format!("orders:{order}")).collect();
    // A real service waits for a signal here.
    let shutdown = tokio::time::sleep(Duration::from_secs(5));
    println!("{:?}", serve(client, orders, |order| println!("{order}"), shutdown).await);
    Ok(())
}
