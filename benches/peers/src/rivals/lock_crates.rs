//! The crates rslock and redlock: the two Redlock libraries for Rust.

use std::time::{Duration, Instant};

use super::retry_delay;
use crate::load::{AsyncLocks, BlockingLocks, TTL};

/// One manager for all callers, as its documentation recommends.
#[derive(Clone)]
pub(super) struct Rslock(rslock::LockManager);

impl Rslock {
    pub(super) fn connect(urls: &[String]) -> Self {
        let clients = urls.iter().map(|url| super::redis_rs::client(url)).collect();
        let mut manager = rslock::LockManager::from_clients(clients);
        // `acquire` starts again when the tries are used up.
        manager.set_retry(1000, retry_delay());
        Self(manager)
    }
}

impl AsyncLocks for Rslock {
    async fn pair(&self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let guard = self.0.acquire(key, TTL).await.map_err(|error| error.to_string())?;
        let time = asked.elapsed();
        guard.release().await;
        Ok(time)
    }
}

/// One manager for each thread, because managers share no connections.
pub(super) struct RedlockCrate(redlock::RedLock);

impl RedlockCrate {
    pub(super) fn connect(urls: &[String]) -> Self {
        let mut manager = redlock::RedLock::new(urls.to_vec());
        let delay_ms = u32::try_from(retry_delay().as_millis()).expect("some milliseconds");
        manager.set_retry(1000, delay_ms);
        Self(manager)
    }
}

impl BlockingLocks for RedlockCrate {
    fn pair(&mut self, key: &str) -> Result<Duration, String> {
        let ttl_ms = usize::try_from(TTL.as_millis()).expect("some seconds");
        let asked = Instant::now();
        let lock = self.0.lock(key.as_bytes(), ttl_ms).map_err(|error| error.to_string())?;
        let lock = lock.ok_or("not granted")?;
        let time = asked.elapsed();
        self.0.unlock(&lock);
        Ok(time)
    }
}
