//! The task that drives a client on the tokio runtime in which the client was opened.
//!
//! It uses no timer: the client's background thread handles deadlines, and leads while the runtime is late and
//! after it ends. No lock depends on the runtime.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::shared::Shared;
use super::shared::background::Drive;

/// Makes the runtime of the calling task drive the client, if that runtime has one thread. With several
/// workers the background thread is faster.
pub(super) fn drive(client: &Arc<Shared>) {
    if let Ok(runtime) = Handle::try_current()
        && runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
        && let Ok(drive) = client.drive(true)
    {
        runtime.spawn(run(drive));
    }
}

/// Calls `turn` when a socket is ready or a caller leaves a write to the drive. Ends with the client or the runtime.
async fn run(drive: Drive) {
    // If the runtime does no I/O, tokio panics. This ends the task, and drops its drive.
    #[allow(deprecated, reason = "the others are unsafe; a drive owns its descriptor and keeps it open")]
    let watched = AsyncFd::with_interest(drive, Interest::READABLE);
    let Ok(mut drive) = watched else { return };
    poll_fn(move |context| {
        loop {
            // Before the turn: an event that comes after it is a new one.
            match drive.poll_read_ready_mut(context) {
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if drive.get_mut().turn(context.waker()).is_err() {
                return Poll::Ready(());
            }
            if drive.poll_read_ready_mut(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}
