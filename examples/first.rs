use redlatch::Client;
use std::{thread, time::Duration};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?; // reads REDLATCH_MASTERS
    let guard = client.lock("orders:42").acquire()?;
    println!("I hold the lock");
    thread::sleep(Duration::from_millis(100)); // the work
    println!("still valid: {}", guard.is_valid());
    drop(guard); // releases the lock
    Ok(())
}
