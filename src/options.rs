//! Settings of a request besides the name: [`Options`], and the builder methods that all requests share.

use std::time::Duration;

use crate::limits;

/// Builder methods for times, for a type that has [`Options`] itself or in the named field. Separate from
/// [`option_methods`], so that they come first on the type's page.
macro_rules! time_methods {
    ($($field:ident).*) => {
        /// Sets the lock's TTL on the masters: at least 1 ms more than the drift allowance, at most the
        /// configured `max_ttl`. The default is 10 s, or `max_ttl` if that is shorter.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.$($field.)*ttl = Some(ttl);
            self
        }

        /// Sets how long to keep trying; zero makes one attempt. The default is the TTL.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.$($field.)*wait = Some(wait);
            self
        }
    };
}

/// The other builder methods of a type with [`Options`].
macro_rules! option_methods {
    ($($field:ident).*) => {
        /// Sets the largest number of attempts at the masters; zero counts as one. By default only the wait
        /// limits them. The wait still applies: give a long wait to limit only the number. A place in the
        /// wait queue behind callers of the same client is no attempt; a place in the masters' queues is one,
        /// however long it lasts. A refused fencing token adds up to three attempts. For a set, limits the
        /// rounds.
        pub fn max_attempts(mut self, count: u32) -> Self {
            self.$($field.)*max_attempts = Some(count);
            self
        }

        /// Sets the validity that must be left when the lock is handed out, less than the TTL minus the
        /// drift. Zero by default.
        pub fn min_validity(mut self, min_validity: Duration) -> Self {
            self.$($field.)*min_validity = min_validity;
            self
        }

        /// Asks for a fencing token, for storage that checks it. The token is larger than every earlier
        /// fenced holder's. The lock excludes plain and shared locks of the same name, which have no token.
        /// Each master runs a script where a plain lock is a `SET`. The lock never passes to another caller
        /// of this client without being free in between. A fenced lock that is also shared or fair is an
        /// error.
        pub fn fenced(mut self) -> Self {
            self.$($field.)*set_mode($crate::options::Mode::Fenced);
            self
        }

        /// Asks for a reader's lock: any number of readers hold it together, while nobody holds it in another
        /// mode, in any client or library. A refused reader waits in the lock's queue, among readers and
        /// writers. Each master runs a script where a plain lock is a `SET`. A shared lock that is also
        /// fenced or fair is an error. See [`RwLock`](crate::RwLock) for the order of readers and writers,
        /// and why there is no upgrade from reading to writing.
        pub fn shared(mut self) -> Self {
            self.$($field.)*set_mode($crate::options::Mode::Shared);
            self
        }
    };
}

/// Builder methods of a request, which has [`Options`] and a label, and may have what `$keep` makes of a
/// [`Cancel`](crate::Cancel) handle.
macro_rules! request_methods {
    ($lifetime:lifetime, $keep:path) => {
        option_methods!(options);

        /// Replaces all options.
        pub const fn options(mut self, options: Options) -> Self {
            self.options = options;
            self
        }

        /// Lets this handle end the acquisition from another thread, even while a thread waits for it. A
        /// thread that waits with a handle costs the `Client` extra wake-ups of threads.
        pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
            self.cancel = Some($keep(cancel));
            self
        }

        /// Sets the label after the token in the lock's value, such as `host:pid:job`: 1 to 64 bytes
        /// ([`HOLDER_LABEL_SIZE_MAX`](crate::limits::HOLDER_LABEL_SIZE_MAX)) of text without control
        /// characters. The default is the client's label
        /// ([`ConfigBuilder::holder_label`](crate::ConfigBuilder::holder_label)). Inspections and contention
        /// errors may show it to everybody who can read the masters, so it must not be secret. An invalid
        /// label is an error of the acquisition.
        pub fn holder_label(mut self, label: impl Into<::std::borrow::Cow<$lifetime, str>>) -> Self {
            self.label = Some(label.into());
            self
        }
    };
}

/// Builder method for a fair lock, for types that ask for one lock.
macro_rules! fair_method {
    ($($field:ident).*) => {
        /// Gives this caller its own place in the masters' queues, from its first attempt on. Other requests
        /// ask once before they join a queue, unless their client waited there for the same lock less than
        /// 1 s ago. Callers of one client share a place: a lock passes among them up to 16 times in a row.
        ///
        /// If all callers are fair, they get the lock in the order in which they asked, whichever client they
        /// belong to. Only callers that asked less than a round trip later, plus the error of the estimate of
        /// the masters' clocks, can overtake. This holds while the caller's client lives and a quorum of
        /// masters parks ([`ConfigBuilder::wake_waiters`](crate::ConfigBuilder::wake_waiters)); otherwise a
        /// fair caller retries after random delays. Exclusion never depends on the queue.
        ///
        /// Without a wait, the lock is granted only if it is free and its queue is empty, and no place in the
        /// queue is left behind. A fair lock that is also fenced or shared is an error.
        pub fn fair(mut self) -> Self {
            self.$($field.)*policy = $crate::options::WaitPolicy::Fair;
            self
        }
    };
}

/// Builder method for automatic extension, for types whose locks are driven while held.
macro_rules! auto_extend_method {
    ($($field:ident).*) => {
        /// Extends the lock automatically while it is held, between about a quarter and a third of the TTL;
        /// with a TTL below 200 ms, from a sixth on. Stops after `max_hold` since the acquisition, after the
        /// configured `max_hold` (1 h by default) if that is shorter, or after 1,000,000,000 extensions. Zero
        /// is an error for either.
        ///
        /// Extensions begin with the grant, even before a task fetches the guard: a future that is kept but
        /// not polled keeps the lock. Dropping the future gives up the lock.
        ///
        /// A failed extension is repeated within a second while the lock is valid. The lock still ends within
        /// about a TTL of its process's death. Extensions due for many locks share one write per master.
        pub fn auto_extend(mut self, max_hold: Duration) -> Self {
            self.$($field.)*auto_extend = Some(max_hold);
            self
        }
    };
}

pub(crate) use {auto_extend_method, fair_method, option_methods, request_methods, time_methods};

/// Mode of a lock: which other holders it excludes, and whether it has a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    #[default]
    Plain,
    /// One holder at a time, with a fencing token larger than every earlier holder's.
    Fenced,
    /// Any number of readers together, while nobody holds the lock in another mode.
    Shared,
}

/// How a refused attempt waits for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// The first caller of each client stands in the masters' queues, the client's other callers behind it. A
    /// lock passes up to 16 times in a row among callers of one client.
    #[default]
    Cohort,
    /// Each caller stands in the masters' queues itself, as [`Options::fair`] describes.
    Fair,
}

/// Options of a lock: everything a request says besides the name. By default a plain lock with a TTL of 10 s,
/// or `max_ttl` if that is shorter, and a wait of the same length.
///
/// [`LockRequest`](crate::LockRequest) and [`LockSetRequest`](crate::LockSetRequest) have the same methods
/// where they apply, and build this value; [`Request::Acquire`](crate::engine::Request::Acquire) takes it.
///
/// ```
/// use redlatch::{Mode, Options};
/// use std::time::Duration;
///
/// let options = Options::new().ttl(Duration::from_secs(30)).fenced();
/// assert_eq!(options.mode, Mode::Fenced);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[must_use]
pub struct Options {
    /// Mode of the lock.
    pub mode: Mode,
    /// How a refused attempt waits.
    pub policy: WaitPolicy,
    /// TTL of the lock on the masters; `None` is 10 s, or `max_ttl` if that is shorter.
    pub ttl: Option<Duration>,
    /// Time to keep trying; zero makes one attempt, or a few for a fenced lock; `None` is the TTL.
    pub wait: Option<Duration>,
    /// Largest number of attempts, as [`Options::max_attempts`] counts them; zero counts as one, and `None`
    /// sets no limit.
    pub max_attempts: Option<u32>,
    /// Validity that must be left when the lock is handed out.
    pub min_validity: Duration,
    /// Longest time for which to extend the lock automatically; `None` leaves extensions to the caller.
    pub auto_extend: Option<Duration>,
    /// Whether two modes were asked for.
    pub(crate) has_two_modes: bool,
}

impl Options {
    /// Returns the default options.
    pub const fn new() -> Self {
        Self {
            mode: Mode::Plain,
            policy: WaitPolicy::Cohort,
            ttl: None,
            wait: None,
            max_attempts: None,
            min_validity: Duration::ZERO,
            auto_extend: None,
            has_two_modes: false,
        }
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.has_two_modes |= self.mode != Mode::Plain && self.mode != mode;
        self.mode = mode;
    }

    /// Whether a lock needs only its name, its times, and a plain lock's commands.
    #[inline]
    pub(crate) const fn is_ordinary(&self) -> bool {
        matches!((self.mode, self.policy), (Mode::Plain, WaitPolicy::Cohort))
            && self.max_attempts.is_none()
            && self.auto_extend.is_none()
    }

    /// Returns the wait of a client with this `max_ttl`: the wait that was set, or one TTL.
    #[must_use]
    pub fn wait_or_default(&self, max_ttl: Duration) -> Duration {
        let ttl = || self.ttl.unwrap_or(limits::TTL_DEFAULT.min(max_ttl));
        self.wait.unwrap_or_else(ttl)
    }

    time_methods!();
    option_methods!();
    fair_method!();
    auto_extend_method!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_its_ttl_unless_it_says_otherwise() {
        let seconds = Duration::from_secs;
        let waits = |options: Options| [2, 60].map(|max_ttl| options.wait_or_default(seconds(max_ttl)));
        assert_eq!(waits(Options::new()), [seconds(2), seconds(10)]);
        assert_eq!(waits(Options::new().ttl(seconds(5))), [seconds(5); 2]);
        assert_eq!(waits(Options::new().ttl(seconds(5)).wait(seconds(7))), [seconds(7); 2]);
    }
}
