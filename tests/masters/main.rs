//! Tests against real `redis-server` processes, with a proxy in between where the network is to misbehave.

mod fleet;
mod harness_tests;
mod lease_tests;
mod lock_tests;
mod model_tests;
mod proxy;
mod strict_tests;
