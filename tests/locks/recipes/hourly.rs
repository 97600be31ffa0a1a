use redlatch::{AcquireError, Client};
use std::error::Error;
use std::time::{Duration, Instant};

fn hourly(client: &Client, job: impl FnOnce()) -> Result<(), Box<dyn Error>> {
    let least = Duration::from_secs(20);
    let started = Instant::now();
    match client.lock("report").auto_extend(Duration::from_secs(3000)).try_acquire() {
        Ok(guard) => {
            job();
            // The lock stays for 20 s, however early the job ends.
            guard.leave_for(least.saturating_sub(started.elapsed()))?;
            Ok(())
        }
        Err(AcquireError::Contended(_)) => Ok(()), // it ran lately, or another machine runs it
        Err(error) => Err(error.into()),           // no quorum: the job did not run here
    }
}
