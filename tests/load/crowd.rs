//! Thousands of waiters of one client, a third of them fair, for locks that are never free: each ends with
//! its wait.

use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client};
use redlatch_support::Fleet;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::TTL;
use crate::lateness::Lateness;
use crate::tasks::{LatestCall, runtime};

/// Number of waiters for each name.
const WAITERS_PER_NAME: u32 = 40;
/// One in this many waiters is fair.
const WAITERS_PER_FAIR: u32 = 3;
/// The longest wait. The shortest is half as long.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// Number of waiters that begin at once.
const BURST: u32 = 10;
const BURST_PAUSE: Duration = Duration::from_millis(1);

/// Runs this many waiters. Returns the waiter that ended latest.
pub(crate) fn wait_for_held_locks(
    fleet: &mut Fleet,
    client: &Client,
    waiter_count: u32,
    lateness: &Lateness,
) -> LatestCall {
    let name = |index: u32| format!("crowd:{}", index / WAITERS_PER_NAME);
    let names: Vec<String> = (0..waiter_count).step_by(WAITERS_PER_NAME as usize).map(name).collect();
    // Put as plain keys, so that nobody must extend them.
    let held: Vec<String> = names.iter().map(|name| format!("{name} held")).collect();
    fleet.masters().for_each(|master| drop(master.ask(&format!("MSET {}", held.join(" ")))));
    let ends = runtime().block_on(async {
        let mut waiters = JoinSet::new();
        for index in 0..waiter_count {
            let wait = WAIT_MAX / 2 + WAIT_MAX / 2 * index / waiter_count;
            let request = client.lock_owned(name(index)).ttl(TTL).wait(wait);
            let is_fair = index % WAITERS_PER_FAIR == 0;
            let request = if is_fair { request.fair() } else { request };
            let lateness = lateness.clone();
            waiters.spawn(async move {
                let begun = Instant::now();
                let result = request.acquire_async().await;
                let call = LatestCall::of(None, begun, wait, &lateness);
                // Masters that are late with thousands of requests count as an outage.
                match result.expect_err("a lock that is held") {
                    AcquireError::Contended(_) => (call, false),
                    AcquireError::NoQuorum(_) => (call, true),
                    other => panic!("{other}"),
                }
            });
            if index % BURST == 0 {
                sleep(BURST_PAUSE).await;
            }
        }
        waiters.join_all().await
    });
    fleet.masters().for_each(|master| drop(master.ask(&format!("DEL {}", names.join(" ")))));
    let outage_count = ends.iter().filter(|(_, is_outage)| *is_outage).count();
    let mut latest = LatestCall::default();
    ends.into_iter().for_each(|(call, _)| latest.note(call));
    println!("latest of {waiter_count} waiters: {latest}; too few masters answered {outage_count} of them");
    latest
}
