//! Settings of a request beside the name: [`Options`], and the builder methods that all requests share.

use std::time::Duration;

use crate::limits;

/// The builder methods for the times of a type that has [`Options`]: itself, or in the field that is named.
/// Apart from [`option_methods`], so that they come first on the type's page.
macro_rules! time_methods {
    ($($field:ident).*) => {
        /// Sets how long the lock lives on the masters unless it is extended: at least 1 ms more than the
        /// drift allowance, at most the configured `max_ttl`. The default is 10 s, or `max_ttl` if that is
        /// shorter.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.$($field.)*ttl = Some(ttl);
            self
        }

        /// Sets how long to go on trying; zero makes one attempt. The default is the TTL.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.$($field.)*wait = Some(wait);
            self
        }
    };
}

/// The other builder methods of such a type.
macro_rules! option_methods {
    ($($field:ident).*) => {
        /// Sets the largest number of attempts at the masters; zero counts as one. By default only the wait
        /// limits them, and it still does: give a long wait if only the number is to count. A place in the
        /// wait queue behind other callers of the same client is no attempt, and one in the masters' queues
        /// is one, however long it lasts. A refused fencing token adds up to three attempts. For a set it
        /// bounds the rounds.
        pub fn max_attempts(mut self, count: u32) -> Self {
            self.$($field.)*max_attempts = Some(count);
            self
        }

        /// Sets the validity that must be left when the lock is handed out, less than the TTL minus the
        /// drift. The default is zero: any.
        pub fn min_validity(mut self, min_validity: Duration) -> Self {
            self.$($field.)*min_validity = min_validity;
            self
        }

        /// Asks for a fencing token, for storage that checks it: it is larger than the token of each earlier
        /// fenced holder. The lock excludes plain and shared locks of the same name, which have no token. It
        /// costs each master a script where a plain lock is a `SET`, and never passes to another caller of
        /// this client without being free in between. A lock that is asked to be fenced and shared, or fenced
        /// and fair, is an error.
        pub fn fenced(mut self) -> Self {
            self.$($field.)*set_mode($crate::options::Mode::Fenced);
            self
        }

        /// Asks for the lock of a reader: any number of readers hold it together, and nobody holds it in
        /// another mode meanwhile, with this or another client or library. A refused reader waits in the
        /// queue of the lock, among readers and writers. It costs each master a script where a plain lock is
        /// a `SET`. A lock that is asked to be shared and fenced, or shared and fair, is an error. See
        /// [`RwLock`](crate::RwLock) for the order of readers and writers, and for why there is no upgrade
        /// from reading to writing.
        pub fn shared(mut self) -> Self {
            self.$($field.)*set_mode($crate::options::Mode::Shared);
            self
        }
    };
}

/// The builder methods of a request, which has [`Options`] and a label, and may have a
/// [`Cancel`](crate::Cancel) handle.
macro_rules! request_methods {
    ($lifetime:lifetime) => {
        option_methods!(options);

        /// Replaces all options at once.
        pub const fn options(mut self, options: Options) -> Self {
            self.options = options;
            self
        }

        /// Lets this handle end the acquisition from another thread, also while a thread waits for it. A
        /// thread that waits with it costs a `Client` wake-ups of threads.
        pub fn cancel_with(mut self, cancel: &Cancel) -> Self {
            self.cancel = Some(Registration::new(cancel));
            self
        }

        /// Sets the label that the lock's value has behind the token, such as `host:pid:job`: 1 to 64 bytes
        /// ([`HOLDER_LABEL_SIZE_MAX`](crate::limits::HOLDER_LABEL_SIZE_MAX)) of text without control
        /// characters. The default is the client's
        /// ([`ConfigBuilder::holder_label`](crate::ConfigBuilder::holder_label)). Inspections and contention
        /// errors may show it to everybody who may read the masters, so it must be no secret. Another label
        /// is an error of the acquisition.
        pub fn holder_label(mut self, label: impl Into<::std::borrow::Cow<$lifetime, str>>) -> Self {
            self.label = Some(label.into());
            self
        }
    };
}

/// The builder method for a fair lock, of a type that asks for one lock.
macro_rules! fair_method {
    ($($field:ident).*) => {
        /// Lets this caller stand in the masters' queues by itself, from its first attempt on. Other requests
        /// ask once before they stand there, and callers of one client stand behind each other: a lock passes
        /// up to 16 times in a row among them.
        ///
        /// Callers that are all fair get the lock in the order in which they asked, whichever client they
        /// belong to. One is overtaken only by callers that asked less than a round trip later, plus the
        /// error of the estimate of the masters' clocks. That holds while its client lives and a quorum of
        /// masters parks ([`ConfigBuilder::wake_waiters`](crate::ConfigBuilder::wake_waiters)); otherwise a
        /// fair caller retries after random delays. Exclusion never depends on the queue.
        ///
        /// Without a wait the lock is granted only if it is free and nobody stands in the queue, and no place
        /// in the queue is left. A fair lock can be neither fenced nor shared: that is an error.
        pub fn fair(mut self) -> Self {
            self.$($field.)*policy = $crate::options::WaitPolicy::Fair;
            self
        }
    };
}

/// The builder method for automatic extension, of a type whose locks are driven while they are held.
macro_rules! auto_extend_method {
    ($($field:ident).*) => {
        /// Extends the lock again and again while it is held, between about a quarter and a third of the
        /// TTL; with a TTL below 200 ms from a sixth on. It does so for at most `max_hold` since the
        /// acquisition (or the configured `max_hold`, 1 h by default, if that is shorter) and 1,000,000,000
        /// times. Zero is an error, also as the configured `max_hold`.
        ///
        /// Extensions begin with the grant, also before a task fetches the guard: a future that is kept and
        /// not polled keeps the lock. Dropping the future gives it up.
        ///
        /// A failed extension is repeated within a second while the lock is valid. The lock still ends about
        /// a TTL after its process dies, at the latest. Extensions that are due for many locks share one
        /// write per master.
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
    /// One holder at a time, with a fencing token that is larger than the token of each earlier holder.
    Fenced,
    /// Any number of readers together, while nobody holds the lock in another mode.
    Shared,
}

/// Way in which a refused attempt waits for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// The first caller of each client stands in the masters' queues, the others behind it. A lock passes up
    /// to 16 times in a row from caller to caller of one client.
    #[default]
    Cohort,
    /// Each caller stands in the masters' queues, as [`Options::fair`] describes.
    Fair,
}

/// Options of a lock: all that is asked of it beside its name. The default is a plain lock with a TTL of 10
/// s, or `max_ttl` if that is shorter, and a wait of the same length.
///
/// [`LockRequest`](crate::LockRequest) and [`LockSetRequest`](crate::LockSetRequest) have these methods, as far
/// as they apply, and build this value; [`Request::Acquire`](crate::engine::Request::Acquire) takes it.
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
    /// Way in which a refused attempt waits.
    pub policy: WaitPolicy,
    /// Time that the lock lives on the masters unless it is extended; `None` is 10 s, or `max_ttl` if that is
    /// shorter.
    pub ttl: Option<Duration>,
    /// Time to go on trying; zero makes one attempt, or a few for a fenced lock; `None` is the TTL.
    pub wait: Option<Duration>,
    /// Largest number of attempts, as [`Options::max_attempts`] counts them; `None` sets no limit, and zero
    /// counts as one.
    pub max_attempts: Option<u32>,
    /// Validity that must be left when the lock is handed out.
    pub min_validity: Duration,
    /// Longest time for which the lock is extended automatically; `None` leaves extensions to the caller.
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

    /// Whether a lock needs nothing but its name, its times, and the commands of a plain lock.
    #[inline]
    pub(crate) const fn is_ordinary(&self) -> bool {
        matches!((self.mode, self.policy), (Mode::Plain, WaitPolicy::Cohort))
            && self.max_attempts.is_none()
            && self.auto_extend.is_none()
    }

    /// The wait in effect with this `max_ttl`.
    pub(crate) fn wait_or_default(&self, max_ttl: Duration) -> Duration {
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
