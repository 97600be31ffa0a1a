//! The wait of one acquisition: how long it took, and behind which holder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::words::{Labelled, Rounded};

/// Wait of one acquisition, until the lock or the refusal: [`Guard::waited`](crate::Guard::waited) and
/// [`Denial::waited`](crate::error::Denial::waited). If the first attempt got the lock, in about one round
/// trip, everything is zero or empty except that attempt.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let guard = client.lock("orders:42").acquire()?;
/// let waited = guard.waited();
/// println!("{waited}"); // 450ms, behind web-3:4711 (440ms)
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Waited {
    /// Time from the request to the lock or the refusal; zero if the first attempt got the lock.
    pub total: Duration,
    /// Part of the total spent in the client's wait queue and in the masters' queues. Excludes pauses between
    /// attempts, where masters have no queue.
    pub queued: Duration,
    /// Number of attempts, as in [`Denial::attempts`](crate::error::Denial::attempts).
    pub attempts: u32,
    /// The last reported holder in the way, if any.
    pub holder: Option<WaitedFor>,
}

/// Holder that was in the way of an acquisition, and for how long.
///
/// The time is an estimate. Masters report the holder with each answer to a waiter: at the beginning of a
/// wait, then at each heartbeat, at most 1 s apart. The time runs from the first report of this holder to the
/// end of the wait. A holder that comes and goes between two reports is missing. A holder in the same client
/// is always known.
///
/// `{}` is `web-3:4711 (440ms)`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitedFor {
    /// Label of the holder ([`crate::ConfigBuilder::holder_label`]). `None` if unknown: the holder has no
    /// label, or is a reader.
    pub label: Option<Arc<str>>,
    /// Time for which it was in the way.
    pub time: Duration,
}

impl Waited {
    /// The last holder, as the end of a sentence.
    pub(crate) const fn behind(&self) -> Behind<'_> {
        Behind(self)
    }
}

impl fmt::Display for Waited {
    /// Shows the total and the last holder in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Rounded(self.total), self.behind())
    }
}

impl fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.label.as_deref().map(Labelled::text);
        write!(f, "{} ({})", label.as_deref().unwrap_or("unknown"), Rounded(self.time))
    }
}

/// `, behind web-3 (440ms)`; empty without a holder that took time.
pub(crate) struct Behind<'a>(&'a Waited);

impl fmt::Display for Behind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.holder.as_ref().filter(|holder| !holder.time.is_zero()) {
            Some(holder) => write!(f, ", behind {holder}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_others_are_shown_without_deception() {
        let mut waited = Waited::default();
        assert_eq!(waited.to_string(), "0s");
        let holder = |label: Option<&str>, ms| {
            Some(WaitedFor { label: label.map(Into::into), time: Duration::from_millis(ms) })
        };
        waited.holder = holder(Some("a) (b\u{202e}"), 0);
        assert_eq!(waited.to_string(), "0s", "no time, no mention");
        waited.holder = holder(Some("a) (b\u{202e}"), 1);
        assert_eq!(waited.to_string(), "0s, behind a\\u{29} \\u{28}b\\u{202e} (1ms)");
        waited.holder = holder(None, 1);
        assert_eq!(waited.to_string(), "0s, behind unknown (1ms)");
    }
}
