//! Feeds a client's statistics to the recorder of the crate `metrics`, every ten seconds.
//!
//! ```sh
//! cargo run --example metrics -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! Install a recorder first, such as `metrics-exporter-statsd`; without one, values go nowhere. An exporter for
//! Prometheus needs no recorder: serve [`Stats::to_prometheus`](redlatch::stats::Stats::to_prometheus) itself.

use std::time::Duration;

use metrics::{counter, gauge};
use redlatch::Client;
use redlatch::stats::Stats;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(std::env::args().skip(1))?;
    loop {
        record(&client.stats());
        std::thread::sleep(Duration::from_secs(10));
    }
}

/// Records each sample of the Prometheus page except histogram buckets. Counters are whole numbers in
/// `metrics`, so sums of seconds become gauges.
fn record(stats: &Stats) {
    for line in stats.to_prometheus().lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels: Vec<(String, String)> = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        let is_count = name.ends_with("_total") || name.ends_with("_count");
        match (value.parse::<u64>(), value.parse::<f64>()) {
            _ if name.ends_with("_bucket") => {}
            (Ok(count), _) if is_count => counter!(name.to_owned(), &labels).absolute(count),
            (_, Ok(value)) => gauge!(name.to_owned(), &labels).set(value),
            _ => {}
        }
    }
}
