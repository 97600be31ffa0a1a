//! Tests against real `redis-server` processes, with a proxy in between where the network is to misbehave.

mod bad_input_tests;
mod fleet;
mod harness_tests;
mod lease_tests;
mod lock_tests;
mod proxy;
