//! Tests against real `redis-server` processes, with a proxy in between where the network is to misbehave.

mod bad_input_tests;
#[path = "../support/blocking.rs"]
mod blocking;
mod contest;
mod error_tests;
mod example_tests;
mod fence_tests;
#[path = "../support/fleet.rs"]
mod fleet;
mod foreign_tests;
mod full_tests;
mod handover_tests;
mod harness_tests;
#[path = "../support/judge.rs"]
mod judge;
mod lease_tests;
mod lock_tests;
mod lockers;
mod model_tests;
mod netns;
mod network_tests;
mod outage_tests;
#[path = "../support/proxy.rs"]
mod proxy;
mod record_tests;
mod refusal_tests;
mod restart_tests;
mod resync_tests;
mod rights_tests;
mod rogue;
mod shared_tests;
mod slot_tests;
mod storage_tests;
mod strict_tests;
mod valkey_tests;
