//! What a service logs about its locks with the crate `tracing`: [the output](../docs/monitoring.md#spans).
//!
//! `REDLATCH_MASTERS=redis://10.0.0.1,… cargo run --example tracing --features tracing`

use redlatch::Client;
use tracing_subscriber::fmt::format::FmtSpan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A line when a span closes. Its last field is the span's duration.
    let subscriber =
        tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).with_ansi(false).without_time();
    subscriber.with_max_level(tracing::Level::INFO).init();
    let client = Client::from_env()?;

    let request = tracing::info_span!("request", path = "/orders/42/pay");
    let guard = request.in_scope(|| client.lock("orders:42").acquire())?;
    tracing::info!(parent: &request, "charged");
    drop(guard);
    Ok(())
}
