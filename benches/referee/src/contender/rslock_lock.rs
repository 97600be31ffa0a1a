//! The crate rslock: `lock`, because `acquire` never gives up, with as many tries as fit into one TTL.

use std::time::{Duration, Instant};

use rslock::{Lock, LockManager};
use tokio::runtime::{Builder, Runtime};

use crate::{Locks, Terms};

const RETRY_COUNT: u32 = 10;
/// The default; each pause is a random part of it.
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    name: String,
    ttl: Duration,
    lock: Option<Lock>,
}

impl Rslock {
    pub(crate) fn open(terms: &Terms) -> Self {
        let mut manager = LockManager::new(terms.urls.clone());
        manager.set_retry(RETRY_COUNT, RETRY_DELAY);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { runtime, manager, name: terms.name.clone(), ttl: terms.ttl, lock: None }
    }
}

impl Locks for Rslock {
    fn acquire(&mut self) -> Option<Instant> {
        self.lock = self.runtime.block_on(self.manager.lock(self.name.as_bytes(), self.ttl)).ok();
        let validity_ms = self.lock.as_ref()?.validity_time;
        Some(Instant::now() + Duration::from_millis(u64::try_from(validity_ms).unwrap_or(0)))
    }

    fn release(&mut self) {
        if let Some(lock) = self.lock.take() {
            self.runtime.block_on(lock.release());
        }
    }

    fn pause(&mut self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}
