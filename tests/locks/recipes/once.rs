use redlatch::{AcquireError, Client};

/// Returns whether this caller did the work.
fn once(
    client: &Client,
    job: &str,
    is_done: impl Fn() -> bool,
    work: impl FnOnce(),
) -> Result<bool, AcquireError> {
    let guard = match client.lock(format!("job:{job}")).try_acquire() {
        Err(AcquireError::Contended(_)) => return Ok(false), // another worker has it
        result => result?,
    };
    let must_work = !is_done(); // checked under the lock: another worker may just have finished
    if must_work {
        work();
    }
    drop(guard);
    Ok(must_work)
}
