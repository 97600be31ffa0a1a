//! A lock in a thread: one client for the process, a guard for each lock.
//!
//! `cargo run --example blocking redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::time::Duration;

use redlatch::{AcquireError, Client};

/// Runs the import unless another client does. Returns whether it ran.
pub fn import(client: &Client, rows: &[&str], mut write: impl FnMut(&str)) -> Result<bool, Box<dyn Error>> {
    let ttl = Duration::from_secs(10);
    let mut guard = match client.lock("import").ttl(ttl).wait(Duration::from_secs(2)).acquire() {
        Err(AcquireError::Contended(_)) => return Ok(false),
        result => result?,
    };
    for row in rows {
        if guard.remaining() < ttl / 2 {
            guard.extend(ttl)?; // an error ends the import: another client may have the lock
        }
        write(row);
    }
    // The rows are written, even if the release is unconfirmed: it goes on in the background.
    if let Err(error) = guard.release() {
        eprintln!("{error}");
    }
    Ok(true)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let has_run = import(&client, &["a", "b"], |row| println!("row {row}"))?;
    println!("{}", if has_run { "imported" } else { "another client imports" });
    Ok(())
}
