//! What callers see of locks: `Client` with threads and tasks over one set of connections, and `Redlock`.
//!
//! The masters are the double's, or real servers with `REDLATCH_STAGE=servers`. A test that needs a real server
//! starts with `Fleet::servers`, and is skipped on the double.

mod batch_tests;
#[cfg(target_os = "linux")]
mod blocked_tests;
mod callback_tests;
mod credentials_tests;
mod drain_tests;
#[cfg(unix)]
mod drive_tests;
mod dropping_tests;
mod early_tests;
#[cfg(all(unix, feature = "tokio"))]
mod example_tests;
mod expired_tests;
mod fair_tests;
mod handle_tests;
mod harness;
mod health_tests;
mod idle_tests;
mod inspect_tests;
mod keep_tests;
mod label_tests;
mod lead_tests;
mod leading_tests;
mod leave_tests;
mod life_tests;
mod name_tests;
mod options_tests;
mod overload_tests;
mod owned_tests;
mod recipe_tests;
mod record_tests;
mod redlock_tests;
mod reentrant_tests;
mod run_tests;
#[cfg(all(unix, feature = "tokio"))]
mod runtime_tests;
mod rw_tests;
mod set_tests;
mod slot_tests;
mod stopping_tests;
mod stress_tests;
mod trace;
#[cfg(feature = "tracing")]
mod trace_tests;
mod waiting_tests;
