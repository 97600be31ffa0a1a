//! redlatch and other libraries do the same lock work on the same masters and keys, in turns.
//!
//! ```text
//!   peers (main) ──► run ──► Fleet, proxies          the servers, started and ended here
//!                     │
//!                     │  one process per peer and scenario, which lines of text ask for rounds
//!                     ▼
//!                   child ──► rivals ──► load        connect, then acquire and release until the time is up
//!                     │
//!                     ▼
//!                   figures ──► report, chart        medians, ratios in a round; text, JSON, Markdown, SVG
//! ```
//!
//! Each peer has a separate process, so that a hung peer can be ended, and no peer's allocator, runtime or
//! threads affect another. Only ratios of consecutive turns, and counts, mean anything on a busy machine.

#![warn(unreachable_pub)]

pub mod chart;
pub mod child;
pub mod counts;
pub mod family;
pub mod figures;
pub mod load;
pub mod report;
pub mod rivals;
pub mod run;
pub mod scenario;

#[path = "../../raw_loop.rs"]
mod raw_loop;
