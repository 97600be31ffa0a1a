//! The wait of one acquisition: how long it took, and for whom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::words::{Labelled, Rounded};

/// Holders that the text of a wait names.
const SHOWN_COUNT_MAX: usize = 3;

/// Wait of one acquisition, until the lock or the refusal: [`Guard::waited`](crate::Guard::waited) and
/// [`Denial::waited`](crate::error::Denial::waited). For a lock that the first attempt got, in about one
/// round trip, all is zero and empty but for that one attempt.
///
/// The times of the holders are estimates, from what masters report. They report the holder with each answer
/// to a waiter: at the beginning of a wait, and then once in each heartbeat, which is at most 1 s. A holder's
/// time runs from the first report that names it to the first report that names another one, or to the end of
/// the wait. A holder that came and went between two reports is missing. The holder in the same client is
/// always known.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let guard = client.lock("orders:42").acquire()?;
/// let waited = guard.waited();
/// println!("{waited}"); // 450ms, behind web-3:4711 (440ms)
/// for holder in &waited.holders {
///     println!("{:?} was in the way for {:?}", holder.label, holder.time);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Waited {
    /// Time from the request to the lock or the refusal; zero for a lock that the first attempt got.
    pub total: Duration,
    /// Time of it behind others: in the wait queue of this client, and in the masters' queues. Pauses between
    /// attempts, where masters have no queue, are not in it.
    pub queued: Duration,
    /// Number of attempts, as [`Denial::attempts`](crate::error::Denial::attempts).
    pub attempts: u32,
    /// Number of rounds in the masters' queues: heartbeats, and answers to a master's call to ask again. They
    /// are no attempts.
    pub rounds: u32,
    /// Holders in the way, the one that took the most time first: at most 8
    /// ([`crate::limits::WAITED_HOLDER_COUNT_MAX`]), those that took the most. Empty if nobody reported one.
    ///
    /// Their times add up to the total or less: the first round trip is nobody's, nor is time that no report
    /// covers. A client remembers the last 32 changes of the holder of a lock, for the 128 locks that were
    /// waited for last.
    pub holders: Vec<WaitedFor>,
}

/// Holder that was in the way of an acquisition, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitedFor {
    /// Label of the holder ([`crate::ConfigBuilder::holder_label`]). `None` for all holders whose label is
    /// unknown: they have none, or they are readers.
    pub label: Option<Arc<str>>,
    /// Time for which it was in the way, all its turns together.
    pub time: Duration,
}

impl Waited {
    /// Adds the time of a holder to what it has. More holders than the limit are left out by
    /// [`Waited::rank`].
    pub(crate) fn add(&mut self, label: Option<&Arc<str>>, time: Duration) {
        match self.holders.iter_mut().find(|holder| holder.label.as_ref() == label) {
            Some(holder) => holder.time += time,
            None => self.holders.push(WaitedFor { label: label.cloned(), time }),
        }
    }

    /// Sorts the holders, and leaves those out that took the least.
    pub(crate) fn rank(&mut self) {
        self.holders.sort_by_key(|holder| std::cmp::Reverse(holder.time));
        self.holders.truncate(crate::limits::WAITED_HOLDER_COUNT_MAX);
    }

    /// The holders that took time, behind what they delayed.
    pub(crate) const fn behind(&self) -> Behind<'_> {
        Behind(self)
    }
}

impl fmt::Display for Waited {
    /// Shows the total and the three holders that took the most time, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Rounded(self.total), self.behind())
    }
}

/// ` behind web-3 (440ms), unknown (10ms) and 2 more`; nothing without a holder that took time.
pub(crate) struct Behind<'a>(&'a Waited);

impl fmt::Display for Behind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.holders.iter().filter(|holder| !holder.time.is_zero()).count();
        for (place, holder) in self.0.holders.iter().take(count.min(SHOWN_COUNT_MAX)).enumerate() {
            let before = if place == 0 { ", behind " } else { ", " };
            let label = holder.label.as_deref().map(Labelled::text);
            let label = label.as_deref().unwrap_or("unknown");
            write!(f, "{before}{label} ({})", Rounded(holder.time))?;
        }
        match count.saturating_sub(SHOWN_COUNT_MAX) {
            0 => Ok(()),
            rest => write!(f, " and {rest} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_holders_are_kept_and_shown_first() {
        let mut waited = Waited { total: Duration::from_secs(1), ..Waited::default() };
        let labels: Vec<Arc<str>> = (0..12).map(|number| format!("job {number}").into()).collect();
        for (label, ms) in labels.iter().zip(1..) {
            waited.add(Some(label), Duration::from_millis(ms));
        }
        waited.add(None, Duration::from_millis(300));
        waited.add(Some(&labels[0]), Duration::from_millis(400));
        waited.rank();
        assert_eq!(waited.holders.len(), crate::limits::WAITED_HOLDER_COUNT_MAX);
        assert_eq!(waited.holders[7].time, Duration::from_millis(7), "the shortest are left out");
        assert_eq!(waited.to_string(), "1s, behind job 0 (401ms), unknown (300ms), job 11 (12ms) and 5 more");
    }

    #[test]
    fn labels_of_others_are_shown_without_deception() {
        let mut waited = Waited::default();
        assert_eq!(waited.to_string(), "0s");
        waited.add(Some(&"a) (b\u{202e}".into()), Duration::ZERO);
        assert_eq!(waited.to_string(), "0s", "no time, no mention");
        waited.add(Some(&"a) (b\u{202e}".into()), Duration::from_millis(1));
        assert_eq!(waited.to_string(), "0s, behind a\\u{29} \\u{28}b\\u{202e} (1ms)");
    }
}
