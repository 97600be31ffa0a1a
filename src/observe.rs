//! Feeds the crates `tracing` and `metrics`.

#[cfg(feature = "metrics")]
use crate::engine::{Histogram, Stats};
#[cfg(feature = "tracing")]
use crate::event::Event;

/// Returns an observer for [`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event) that emits each
/// [`Event`] as an event of the crate `tracing`, with the target `redlatch`. It needs the feature `tracing`.
///
/// The level is `WARN` for trouble with locks and masters, `INFO` for a master that is connected, and `DEBUG`
/// for other events of locks. The fields are `lock` or `master`, and the event's own.
///
/// ```no_run
/// let client = redlatch::Client::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .on_event(redlatch::trace_events())
///     .connect()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tracing")]
pub fn trace_events() -> impl Fn(&Event) + Send + Sync + 'static {
    trace
}

#[cfg(feature = "tracing")]
fn trace(event: &Event) {
    use tracing::{debug, info, warn};

    let text = |name: &[u8]| name.escape_ascii().to_string();
    match event {
        Event::Acquired { resource, attempts, took } => {
            debug!(target: "redlatch", lock = text(resource), attempts, ?took, "lock acquired");
        }
        Event::Denied { resource, error } => {
            debug!(target: "redlatch", lock = text(resource), %error, "lock not acquired");
        }
        Event::Released { resource, held } => {
            debug!(target: "redlatch", lock = text(resource), ?held, "lock released");
        }
        Event::Left { resource, held } => {
            debug!(target: "redlatch", lock = text(resource), ?held, "lock left to its TTL");
        }
        Event::NearLoss { resource, left } => {
            warn!(target: "redlatch", lock = text(resource), ?left, "lock nearly lost");
        }
        Event::Lost { resource, held } => {
            warn!(target: "redlatch", lock = text(resource), ?held, "lock lost");
        }
        Event::Connected { master, is_reconnect } => {
            info!(target: "redlatch", %master, is_reconnect, "master connected");
        }
        Event::Disconnected { master, why } => {
            warn!(target: "redlatch", %master, %why, "master not connected");
        }
        Event::Restarted { master } => {
            warn!(target: "redlatch", %master, "master restarted or replaced");
        }
        Event::CredentialsFailed { master, error } => {
            warn!(target: "redlatch", %master, %error, "new credentials not in use");
        }
        Event::FleetDiffers { master, difference } => {
            warn!(target: "redlatch", %master, %difference, "settings differ");
        }
        Event::Quarantined { master, left } => {
            warn!(target: "redlatch", %master, ?left, "master in quarantine");
        }
    }
}

/// Adds what was counted since the last call to the recorder of the crate `metrics`. It needs the feature
/// `metrics`.
///
/// Give it the difference of two snapshots, so that nothing counts twice. Names and units are those of
/// [`Stats::to_prometheus`], without `redlatch_client_info` and contended locks, and except the time in
/// quarantine: it is the gauge `redlatch_master_quarantine_seconds`, as a counter there has whole numbers
/// only. A time is recorded as the mean of its bucket, which is off by at most 6.3 % but for the first and
/// the last bucket.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let mut before = client.stats();
/// loop {
///     std::thread::sleep(std::time::Duration::from_secs(10));
///     let stats = client.stats();
///     redlatch::record_metrics(&stats.since(&before));
///     before = stats;
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "metrics")]
pub fn record_metrics(since: &Stats) {
    use metrics::{counter, gauge, histogram};

    for (metric, count) in since.counters() {
        counter!(metric.name).increment(*count);
    }
    for (metric, value) in since.gauges() {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float there")]
        gauge!(metric.name).set(value as f64);
    }
    for (metric, times) in since.times() {
        record(&histogram!(metric.name), times);
    }
    for master in &since.masters {
        let name = || master.name.to_string();
        for (metric, count) in master.counters() {
            counter!(metric.name, "master" => name()).increment(*count);
        }
        gauge!("redlatch_master_ready", "master" => name()).set(f64::from(u8::from(master.is_ready)));
        gauge!("redlatch_master_quarantine_seconds", "master" => name())
            .increment(master.quarantined.as_secs_f64());
        record(&histogram!("redlatch_master_round_trip_seconds", "master" => name()), &master.round_trip);
    }
}

#[cfg(feature = "metrics")]
fn record(histogram: &metrics::Histogram, times: &Histogram) {
    for bucket in times.buckets().filter(|bucket| bucket.count > 0) {
        let below = bucket.below.min(times.max()).max(bucket.from);
        let mean = (bucket.from + below) / 2;
        histogram.record_many(mean.as_secs_f64(), usize::try_from(bucket.count).unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests;
