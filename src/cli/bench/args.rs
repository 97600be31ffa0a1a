//! Options of `redlatch bench`, and its help.

use std::time::Duration;

use redlatch::env::parse_time;
use redlatch::limits;

use crate::exit::Exit;
use crate::options::{MasterOptions, check_bounds, check_time};

/// Largest depth. Releases that masters still owe also take room among the operations.
const DEPTH_MAX: usize = limits::OPERATION_COUNT_MAX / 4;

/// Largest number of keys. Each keeps its name in memory.
const KEY_COUNT_MAX: usize = 10_000_000;

/// Measure acquire and release pairs per second, and their latency.
///
/// Acquires and releases locks on its own keys for five seconds, unless an option says otherwise, and
/// shows percentiles of the latency beside the round trip of a PING in the same run. A percentile is at most
/// an eighth too long; mean and maximum are exact. It loads the masters, so do not run it on busy ones.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Pairs in progress at the same time.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    pub(super) depth: usize,

    /// Different locks to use in turn [default: four times the depth, at least 1000].
    #[arg(long, value_name = "COUNT")]
    pub(super) keys: Option<usize>,

    /// Stop after this many attempts.
    #[arg(long, value_name = "COUNT", conflicts_with = "time")]
    pub(super) pairs: Option<u64>,

    /// Stop after this time.
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub(super) time: Duration,

    /// The locks' TTL; at most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(super) ttl: Duration,

    /// Do not wait for the answers to releases; they go out in one write with the next acquire.
    #[arg(long)]
    pub(super) no_await_release: bool,

    /// Ask for fair locks.
    #[arg(long)]
    pub(super) fair: bool,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  0 if at least one pair succeeded, 64 bad usage, 69 if none did or too few
  masters can grant, 70 if the operating system refused something, 130 after
  Ctrl-C, 143 after SIGTERM

Examples:
  redlatch bench -m redis://a,redis://b,redis://c
      one lock after the other: the latency
  redlatch bench --depth 64 --no-await-release --pairs 1000000
      many at once: the throughput
  redlatch bench --json --time 2s | jq .acquire_us.p99";

impl Args {
    /// Refuses numbers and times that cannot work.
    pub(super) fn check(&self) -> Result<(), Exit> {
        check_bounds("--depth", self.depth, 1, DEPTH_MAX)?;
        // No two pairs share a key.
        check_bounds("--keys", self.key_count(), self.depth, KEY_COUNT_MAX)?;
        check_bounds("--pairs", self.pairs.unwrap_or(1), 1, u64::MAX)?;
        check_time("--time", self.time)
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.unwrap_or(self.depth.saturating_mul(4).max(1000))
    }
}
