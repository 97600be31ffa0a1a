//! Thousands of waiters of one client, of which a third are fair, for locks that are never free: each ends
//! when its wait does, and leaves no place in a queue.

use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client};
use tokio::task::JoinSet;

use crate::TTL;
use crate::lateness::Lateness;
use crate::tasks::{LatestCall, runtime};

/// Waiters of one name.
const WAITERS_PER_NAME: u32 = 4;
/// One waiter in so many is fair.
const WAITERS_PER_FAIR: u32 = 3;
/// The longest wait; the shortest one is half of it.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// Has so many wait. Returns the latest of all.
pub(crate) fn wait_for_held_locks(client: &Client, waiter_count: u32, lateness: &Lateness) -> LatestCall {
    let name = |index: u32| format!("crowd:{index}");
    runtime().block_on(async {
        let mut guards = Vec::new();
        for index in 0..waiter_count.div_ceil(WAITERS_PER_NAME) {
            let request = client.lock_owned(name(index)).ttl(TTL).auto_extend(WAIT_MAX * 10);
            guards.push(request.acquire_async().await.expect("a free lock"));
        }
        let mut waiters = JoinSet::new();
        for index in 0..waiter_count {
            let wait = WAIT_MAX / 2 + WAIT_MAX / 2 * index / waiter_count;
            let request = client.lock_owned(name(index / WAITERS_PER_NAME)).ttl(TTL).wait(wait);
            let is_fair = index % WAITERS_PER_FAIR == 0;
            let request = if is_fair { request.fair() } else { request };
            let lateness = lateness.clone();
            waiters.spawn(async move {
                let begun = Instant::now();
                let result = request.acquire_async().await;
                let call = LatestCall::of(None, begun, wait, &lateness);
                let refusal = result.expect_err("a lock that is held");
                assert!(matches!(refusal, AcquireError::Contended(_)), "{refusal}");
                assert!(begun.elapsed() >= wait, "a wait of {wait:?} ended after {:?}", begun.elapsed());
                call
            });
        }
        let mut latest = LatestCall::default();
        while let Some(call) = waiters.join_next().await {
            latest.note(call.expect("no panic"));
        }
        for guard in guards {
            assert!(!guard.remaining().is_zero(), "a lock was lost while others waited");
            guard.release_async().await.expect("a lock that is held");
        }
        latest
    })
}
