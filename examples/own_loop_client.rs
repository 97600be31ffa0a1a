//! A client on your own event loop: `Client::drive` in place of the client's background thread.
//!
//! ```text
//!   poll the futures ──► turn the drive ──► sleep in poll(2): descriptor, next time, waker
//!          ▲                                             │
//!          └─────────────────────────────────────────────┘
//! ```
//!
//! `cargo run --example own_loop_client redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use redlatch::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Notes that a future or the drive must be called again.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    // A loop that other threads wake must also write to a pipe or an eventfd here.
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs one future to its end on this thread. A real loop has more futures, and more descriptors.
pub fn run<T>(client: &Client, future: impl Future<Output = T>) -> Result<T, Box<dyn Error>> {
    let mut drive = client.drive()?;
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(output);
        }
        // Reads, writes, and wakes futures whose answers have arrived.
        let due = drive.turn(&waker)?;
        let is_woken = flag.0.swap(false, Ordering::AcqRel);
        let pause = match due {
            _ if is_woken => Some(Duration::ZERO),
            Some(due) => Some(due.saturating_duration_since(Instant::now())),
            None => None,
        };
        let timeout = pause.map(Timespec::try_from).transpose()?;
        poll(&mut [PollFd::new(&drive, PollFlags::IN)], timeout.as_ref())?;
    }
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    let guard = run(&client, client.lock("own-loop").acquire_async())??;
    println!("held for {:?}", guard.remaining());
    match run(&client, guard.release_async())? {
        Ok(released) => println!("released on {} masters", released.deleted),
        Err(error) => eprintln!("{error}"), // the release goes on in the background
    }
    Ok(())
}
