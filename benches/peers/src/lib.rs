//! The same lock work by redlatch and by other libraries, over the same masters and the same keys, in turns.
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
//! Each peer has a process of its own, so that one which hangs can be ended and no allocator, runtime or
//! thread of one is in the way of another. While one peer has its turn the others wait for a line.
//!
//! Times on a busy machine mean little; what counts are ratios of turns that followed each other, and counts.

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
