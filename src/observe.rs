//! Passes events to the crate `tracing`.

use crate::event::Event;

/// Returns an observer for [`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event) that emits each
/// [`Event`] as an event of the crate `tracing`, with the target `redlatch`. Needs the feature `tracing`.
///
/// The level is `WARN` for trouble with locks and masters, `INFO` for a connected master, and `DEBUG` for
/// other lock events. The fields are `lock` or `master`, and the event's own fields.
///
/// ```no_run
/// let client = redlatch::Client::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .on_event(redlatch::trace_events())
///     .connect()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn trace_events() -> impl Fn(&Event) + Send + Sync + 'static {
    trace
}

fn trace(event: &Event) {
    use tracing::{debug, info, warn};

    let text = |name: &[u8]| name.escape_ascii().to_string();
    match event {
        Event::Acquired { resource, attempts, took, holder } => {
            let holder = holder.as_ref().map(tracing::field::display);
            debug!(target: "redlatch", lock = text(resource), attempts, ?took, holder, "lock acquired");
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
        Event::NotExtended { resource, error } => {
            warn!(target: "redlatch", lock = text(resource), %error, "lock not extended");
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
        Event::NoScripts { master, refusal } => {
            warn!(target: "redlatch", %master, %refusal, "master runs no scripts");
        }
        Event::Quarantined { master, left } => {
            warn!(target: "redlatch", %master, ?left, "master in quarantine");
        }
    }
}

#[cfg(test)]
mod tests;
