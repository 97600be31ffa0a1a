//! Events, and the user's function that observes them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::caught::caught;
use crate::error::fleet::FleetDifference;
use crate::error::waited::WaitedFor;
use crate::error::{AcquireError, CredentialsError, ExtendError};

/// Event of one client, for the function set with
/// [`ConfigBuilder::on_event`](crate::ConfigBuilder::on_event). Lock names come without the prefix, masters'
/// URLs without the login.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A lock was acquired.
    Acquired {
        /// Name of the lock.
        resource: Bytes,
        /// Number of attempts, at least 1.
        attempts: u32,
        /// Time from the request to the grant.
        took: Duration,
        /// The last known holder in the way, if the acquisition had to wait.
        holder: Option<WaitedFor>,
    },
    /// An acquisition ended without the lock, or there was no room for it (`Overloaded`).
    Denied {
        /// Name of the lock.
        resource: Bytes,
        /// Error of this acquisition. A set, a candidate or `redlatch run` may repeat the acquisition; then
        /// no caller gets the error.
        error: AcquireError,
    },
    /// A held lock was released within its validity.
    Released {
        /// Name of the lock.
        resource: Bytes,
        /// Time for which it was held.
        held: Duration,
    },
    /// A held lock was left to the end of its TTL, or for a time.
    Left {
        /// Name of the lock.
        resource: Bytes,
        /// Time for which its caller held it.
        held: Duration,
    },
    /// An automatic extension failed, and the client tries again while the lock is valid. Or no more
    /// extensions follow: `Lost` if masters proved the loss, `HoldLimit` after the longest hold.
    NotExtended {
        /// Name of the lock.
        resource: Bytes,
        /// Reason, with each master's answer.
        error: ExtendError,
    },
    /// A held lock had at most a tenth of its validity left, and was then extended or reported by a loss
    /// notification.
    NearLoss {
        /// Name of the lock.
        resource: Bytes,
        /// Validity that was left.
        left: Duration,
    },
    /// A held lock ended before its release. Reported at the release if nothing revealed it earlier.
    Lost {
        /// Name of the lock.
        resource: Bytes,
        /// Time for which it was held.
        held: Duration,
    },
    /// A master is connected, with its handshake done.
    Connected {
        /// URL of the master.
        master: Arc<str>,
        /// Whether it had been connected before.
        is_reconnect: bool,
    },
    /// The connection to a master broke, or could not be opened. Reported for each connection that was ready,
    /// and for the first attempt if it fails.
    Disconnected {
        /// URL of the master.
        master: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },
    /// Another process answered than before: the master restarted or was replaced.
    Restarted {
        /// URL of the master.
        master: Arc<str>,
    },
    /// There were no new credentials, or the server refused them on an open connection. Open connections keep
    /// the old ones. Reported once while the reason stays the same. If the provider failed, its own error is
    /// the source of this error.
    CredentialsFailed {
        /// URL of the master.
        master: Arc<str>,
        /// The reason.
        error: CredentialsError,
    },
    /// A master's record of the fleet's settings differs from this client. Reported for each new difference.
    FleetDiffers {
        /// URL of the master.
        master: Arc<str>,
        /// The first difference, with both values.
        difference: FleetDifference,
    },
    /// A connected master runs no scripts and has no native command that releases, so a lock stays there
    /// until its TTL ends.
    NoScripts {
        /// URL of the master.
        master: Arc<str>,
        /// Its error reply.
        refusal: Arc<str>,
    },
    /// A master's votes do not count for a while, because it may have restarted.
    Quarantined {
        /// URL of the master.
        master: Arc<str>,
        /// Time until its votes count.
        left: Duration,
    },
}

/// A user's function to call with each event.
#[derive(Clone)]
pub(crate) struct Observer(Arc<dyn Fn(&Event) + Send + Sync>);

impl Observer {
    pub(crate) fn new(observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Calls the function. The panic hook has already reported a panic, and later events are still delivered.
    pub(crate) fn call(&self, event: &Event) {
        let _ = caught(|| (self.0)(event));
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
