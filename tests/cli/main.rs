//! The command line as users meet it: the built `redlatch` with real `redis-server` processes.
//!
//! Each command leads its own process group, so that the tests do the same with and without a terminal.

mod address_tests;
mod again_tests;
mod bad_input_tests;
mod bench_tests;
mod blocked_tests;
mod deploy_tests;
mod descendant_tests;
mod doctor_tests;
mod drill_tests;
mod elect_tests;
mod fleet_tests;
mod habits_tests;
mod handle_tests;
mod harness;
mod harness_tests;
mod hostile;
mod hostile_tests;
mod inspect_tests;
mod interval_tests;
mod least_tests;
mod list_tests;
mod loss_tests;
mod outage_tests;
mod page_tests;
mod replace_tests;
mod run_tests;
mod settings_tests;
mod several_tests;
mod shared_tests;
mod slot_tests;
mod terminal;
mod terminal_tests;
mod tls_tests;
mod transcript_tests;
mod trial_tests;
mod verdict_tests;
