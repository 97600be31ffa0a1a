//! Snowflake ids that never collide: each worker has a slot of a pool, and puts the slot's number into each
//! id.
//!
//! `cargo run --example worker_id redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redlatch::{AcquireError, Client, SlotGuard};

/// Largest number of workers: ten bits of an id.
const WORKERS: u32 = 1 << 10;
/// Ids of one worker in a millisecond: twelve bits.
const PER_MS: u64 = 1 << 12;
/// 2026-01-01 in milliseconds since 1970. An id has 41 bits for later milliseconds, 69 years.
const EPOCH_MS: u64 = 1_767_225_600_000;

/// Ids of one worker, in ascending order.
pub struct Ids {
    slot: SlotGuard,
    /// No id is issued earlier.
    from: Instant,
    last_ms: u64,
    sequence: u64,
}

impl Ids {
    /// Acquires a worker number. The wall clocks of two machines must never differ by more than
    /// `clock_difference`: the number's last owner may have issued ids with times that far ahead.
    pub fn open(client: &Client, clock_difference: Duration) -> Result<Self, AcquireError> {
        // Extended up to the configured `max_hold`, 1 h by default. Then `next` ends, and `open` acquires
        // another.
        let request = client.slots("snowflake", WORKERS).auto_extend(Duration::MAX);
        // `redlatch ls` and other clients' errors show which process has a number.
        let slot = request.holder_label(format!("worker-id:{}", std::process::id())).acquire()?;
        Ok(Self { slot, from: Instant::now() + clock_difference, last_ms: 0, sequence: 0 })
    }

    pub fn worker(&self) -> u32 {
        self.slot.slot()
    }
}

impl Iterator for Ids {
    type Item = u64;

    /// Returns the next id; `None` once the slot is lost, because another worker may have its number.
    fn next(&mut self) -> Option<u64> {
        thread::sleep(self.from.saturating_duration_since(Instant::now()));
        self.sequence += 1;
        // An id's time never falls, even if the clock is set back.
        let mut now_ms = wall_ms();
        while self.sequence == PER_MS && now_ms <= self.last_ms {
            thread::sleep(Duration::from_micros(100));
            now_ms = wall_ms();
        }
        if now_ms > self.last_ms {
            (self.last_ms, self.sequence) = (now_ms, 0);
        }
        let id = self.last_ms << 22 | u64::from(self.worker()) << 12 | self.sequence;
        // Checked last: the id is valid if the slot was held at the id's time.
        self.slot.is_valid().then_some(id)
    }
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_sub(EPOCH_MS)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    // Each error has a text for people, and so do its causes.
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    eprintln!("{error}{}", causes.map(|cause| format!(": {cause}")).collect::<String>());
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let ids = Ids::open(&client, Duration::from_secs(1))?;
    println!("worker {}", ids.worker());
    ids.take(10).for_each(|id| println!("{id}"));
    Ok(())
}
