//! Tests with real `redis-server` processes, and a proxy where the network must misbehave.

mod contest;
mod error_tests;
mod foreign_tests;
mod full_tests;
mod handover_tests;
mod harness_tests;
mod lock_tests;
mod lockers;
mod model_tests;
mod netns;
mod network_tests;
mod outage_tests;
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
