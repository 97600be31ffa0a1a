//! A holder that is paused, and storage that refuses what it writes when it wakes.
//!
//! ```text
//!   alice   lock, token 1 ── pause ─────────────────────────── write with token 1 ── refused
//!   bob                       (TTL is over) lock, token 2 ── write with token 2 ── taken
//! ```
//!
//! `cargo run --example fenced_storage redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::time::Duration;

use redlatch::{Client, FencingToken};

/// Storage of one value, and of the largest fencing token that came with one. In a database it is a column:
/// `UPDATE … SET value = $1, fence = $2 WHERE id = $3 AND fence <= $2`.
#[derive(Default)]
pub struct Storage {
    value: String,
    fence: Option<FencingToken>,
}

impl Storage {
    /// Writes, unless a holder with a larger token has written before. One holder may write repeatedly.
    pub fn write(&mut self, token: FencingToken, value: &str) -> Result<(), String> {
        if let Some(fence) = self.fence.filter(|fence| token < *fence) {
            return Err(format!("token {token} is older than {fence}"));
        }
        (self.value, self.fence) = (value.to_owned(), Some(token));
        Ok(())
    }

    /// What was written last.
    pub fn value(&self) -> &str {
        &self.value
    }
}

/// Returns what became of the late write.
pub fn alice_and_bob(
    alice: &Client,
    bob: &Client,
    storage: &mut Storage,
) -> Result<Result<(), String>, Box<dyn Error>> {
    let ttl = Duration::from_millis(500);
    let wait = Duration::from_secs(5);
    let of_alice = alice.lock("account:7").ttl(ttl).wait(wait).fenced().acquire()?;
    let token_of_alice = of_alice.fencing_token().ok_or("it was asked for")?;
    storage.write(token_of_alice, "alice was here")?;

    // Here alice's process is stopped, or her machine sleeps. She cannot know that the time is over. Bob gets
    // the lock as soon as it is.
    let of_bob = bob.lock("account:7").ttl(ttl).wait(wait).fenced().acquire()?;
    let token_of_bob = of_bob.fencing_token().ok_or("it was asked for")?;
    storage.write(token_of_bob, "bob was here")?;
    drop(of_bob); // released in the background

    // Alice goes on where she was.
    Ok(storage.write(token_of_alice, "alice is late"))
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let masters: Vec<String> = std::env::args().skip(1).collect();
    let (alice, bob) = (Client::connect(&masters)?, Client::connect(&masters)?);
    let mut storage = Storage::default();
    match alice_and_bob(&alice, &bob, &mut storage)? {
        Ok(()) => Err("the late write was taken".into()),
        Err(why) => {
            println!("the late write was refused: {why}; the storage says \"{}\"", storage.value());
            Ok(())
        }
    }
}
