//! Settings of a client: its masters, limits and defaults.

mod credentials;
pub mod env;
#[cfg(feature = "tls")]
mod tls;
mod url;

use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ConfigError, CredentialsError};
use crate::event::{Event, Observer};
use crate::limits;
use crate::lock::{Drift, HolderLabel, InputError, MasterId, Ttl, Window};
pub use credentials::Credentials;
use credentials::CredentialsProvider;
#[cfg(feature = "tls")]
pub(crate) use tls::server_name;
#[cfg(feature = "tls")]
pub use tls::{Pem, Tls};
pub use url::MasterUrl;
pub(crate) use url::{Address, Login};

/// Checked settings of a client. All clients of a fleet must share the masters, `max_ttl`, prefix and drift.
///
/// ```
/// use redlatch::Config;
/// use std::time::Duration;
///
/// let config = Config::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .max_ttl(Duration::from_secs(20))
///     .prefix("lock:")
///     .build()?;
/// assert_eq!(config.master_count(), 3);
/// # Ok::<(), redlatch::error::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) masters: Vec<MasterUrl>,
    pub(crate) labels: Vec<Arc<str>>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) client_name: String,
    pub(crate) holder_label: Option<Arc<str>>,
    pub(crate) max_ttl: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) drift: Drift,
    pub(crate) answer_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) retry_delay_min: Duration,
    pub(crate) retry_delay_max: Duration,
    /// Delays after 1, 2, 3 … failed attempts; the last also serves all later attempts.
    pub(crate) retry_delays: Option<Arc<[Duration]>>,
    pub(crate) answer_ppm: Option<u32>,
    pub(crate) quarantine: Quarantine,
    pub(crate) ask_holder: bool,
    pub(crate) spin: Duration,
    pub(crate) wakes_waiters: bool,
    /// Whether to write the fleet's record on masters without one.
    pub(crate) records_fleet: bool,
    pub(crate) observer: Option<Observer>,
    provider: Option<CredentialsProvider>,
    /// File with the password for each URL without a password.
    pub(crate) password_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// When the votes of a master count after it (re)appears, since it may have lost locks that still live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Quarantine {
    /// The default: a master votes once it is known to have run for `max_ttl` plus the drift, from its own
    /// `uptime_in_seconds` or because this client has seen the same `run_id` for that time.
    ///
    /// A newly started fleet therefore grants nothing for `max_ttl`. The uptime follows the master's wall
    /// clock; a clock that jumps ahead there shortens the wait. The uptime does not count if the server
    /// already ran when this client last heard from its predecessor, since it may never have had the
    /// predecessor's locks.
    #[default]
    Uptime,
    /// A master votes once its process has been observed for `max_ttl` plus the drift: by this client, which
    /// has seen the same `run_id` for that time by its own monotonic clock; or by another client, which left
    /// a mark.
    ///
    /// The mark is the key `<prefix>redlatch:mark`, without TTL. A client writes the `run_id` and the
    /// observed time in milliseconds into the mark at the end of its own observation, for later clients. A
    /// mark with another `run_id` or a shorter time counts for nothing. A user that can write to the masters
    /// can forge a mark, as it can delete locks.
    ///
    /// No wall clock counts, and unfit servers are refused: a replica, a server whose `maxmemory-policy` is
    /// not `noeviction`, and a server that does not report its `run_id`, role and policy. The report of a
    /// failed acquisition says so. The login needs `+info +get +set` and access to the mark's key; without
    /// the mark, each client observes for itself. After a restart of all masters, at least one client must
    /// stay connected for [`Config::quarantine_time`].
    ///
    /// Observation proves that a process kept running, not that its data stayed: `FLUSHALL` goes unnoticed.
    Strict,
    /// A master votes as soon as it is connected. Only for tests, or if each master writes every change to
    /// disk before it answers (`appendonly yes`, `appendfsync always`) and restarts with that file.
    Trust,
}

impl Config {
    /// The delay after `failed_count` failed attempts (1 or more), from [`ConfigBuilder::retry_delay_by`].
    pub(crate) fn retry_delay_after(&self, failed_count: u32) -> Option<Duration> {
        let delays = self.retry_delays.as_deref()?;
        let index = usize::try_from(failed_count).unwrap_or(usize::MAX).saturating_sub(1);
        delays.get(index).or(delays.last()).map(|delay| (*delay).min(limits::TIME_LIMIT_MAX))
    }

    /// Returns a builder with the default settings and no masters.
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// Returns the number of configured masters. A quorum is a majority of them, reachable or not.
    #[must_use]
    pub const fn master_count(&self) -> usize {
        self.masters.len()
    }

    /// Checks a TTL against the drift and `max_ttl`.
    ///
    /// # Errors
    /// See [`Ttl::new`].
    pub fn ttl(&self, ttl: Duration) -> Result<Ttl, InputError> {
        Ttl::new(ttl, self.drift, self.max_ttl)
    }

    /// Returns the longest time that one round of a lock with this TTL waits for a master's answer; never
    /// longer than the lock would be valid. The configured answer timeout, or by default a fifth of the TTL,
    /// from 5 ms to 1 s.
    #[must_use]
    pub fn answer_limit(&self, ttl: Ttl) -> Duration {
        self.answer_limit_by(ttl, Duration::MAX)
    }

    /// Answer limit of a round, where a quorum normally answers within `round_trip_limit`.
    pub(crate) fn answer_limit_by(&self, ttl: Ttl, round_trip_limit: Duration) -> Duration {
        let share = self.answer_ppm.map(|ppm| {
            let share = ttl.as_duration().as_nanos() * u128::from(ppm) / 1_000_000;
            Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
        });
        let by_round_trip = || {
            let min = Duration::from_millis(ttl.as_millis() / 50);
            let min = min.clamp(limits::ANSWER_LIMIT_MIN, limits::ANSWER_LIMIT_MIN_MAX);
            round_trip_limit.clamp(min, (ttl.as_duration() / 5).clamp(min, limits::ANSWER_LIMIT_MAX))
        };
        self.answer_timeout.or(share).unwrap_or_else(by_round_trip).min(ttl.validity())
    }

    /// Asks the provider set with [`ConfigBuilder::credentials`] for a master's credentials, as
    /// [`LinkRequest::Credentials`](crate::engine::LinkRequest::Credentials) requests. May block.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn ask_credentials(&self, master: MasterId) -> Result<Credentials, CredentialsError> {
        let provider = self.provider.as_ref().ok_or(CredentialsError::NoProvider)?;
        provider.ask(&self.labels[master.index()])
    }

    /// Whether credentials come from a provider or a file.
    pub(crate) const fn has_provider(&self) -> bool {
        self.provider.is_some() || self.password_file.is_some()
    }

    /// The window of fencing tokens that masters accept.
    pub(crate) fn window(&self) -> Window {
        Window::new(self.max_ttl)
    }

    /// Returns the longest TTL that any client of the fleet uses.
    #[must_use]
    pub const fn max_ttl(&self) -> Duration {
        self.max_ttl
    }

    /// Returns the mode that decides when a restarted master votes again.
    #[must_use]
    pub const fn quarantine(&self) -> Quarantine {
        self.quarantine
    }

    /// Returns the longest quarantine of a master, from this client's first connection to its process:
    /// `max_ttl` plus the drift; 30.302 s by default.
    #[must_use]
    pub fn quarantine_time(&self) -> Duration {
        self.quarantine_time_beside(Duration::ZERO, 0)
    }

    /// The quarantine for the larger of these and this client's settings.
    pub(crate) fn quarantine_time_beside(&self, max_ttl: Duration, drift_ppm: u32) -> Duration {
        let max_ttl = max_ttl.min(limits::MAX_TTL_MAX).max(self.max_ttl);
        let drift_ppm = drift_ppm.min(limits::DRIFT_PPM_MAX).max(self.drift.ppm());
        let whole = max_ttl + Drift::from_ppm(drift_ppm).unwrap_or(self.drift).of(max_ttl);
        Duration::from_millis(u64::try_from(whole.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }

    /// Returns the bytes in front of each lock's name in its key.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the names of the masters: their URLs without logins.
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        &self.labels
    }

    /// Returns the name of the connections, as `CLIENT LIST` shows it.
    #[must_use]
    pub fn client_name(&self) -> &str {
        &self.client_name
    }

    /// Returns the drift allowance in millionths of the TTL, without the constant 2 ms.
    #[must_use]
    pub const fn drift_ppm(&self) -> u32 {
        self.drift.ppm()
    }

    /// Returns whether releases wake waiters; see [`ConfigBuilder::wake_waiters`].
    #[must_use]
    pub const fn wakes_waiters(&self) -> bool {
        self.wakes_waiters
    }
}

/// Builder of a [`Config`]. The setters check nothing; [`ConfigBuilder::build`] does.
#[derive(Clone)]
pub struct ConfigBuilder {
    urls: Vec<String>,
    config: Config,
    drift_ppm: Option<u32>,
}

impl fmt::Debug for ConfigBuilder {
    /// Omits the URLs, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigBuilder").field("master_count", &self.urls.len()).finish_non_exhaustive()
    }
}

impl Default for ConfigBuilder {
    fn default() -> Self {
        let config = Config {
            masters: Vec::new(),
            labels: Vec::new(),
            prefix: Vec::new(),
            client_name: concat!("redlatch/", env!("CARGO_PKG_VERSION")).to_owned(),
            holder_label: None,
            max_ttl: Duration::from_secs(30),
            max_hold: Duration::from_secs(3600),
            drift: Drift::DEFAULT,
            answer_timeout: None,
            connect_timeout: Duration::from_secs(1),
            retry_delay_min: Duration::from_millis(1),
            retry_delay_max: Duration::from_millis(100),
            retry_delays: None,
            answer_ppm: None,
            quarantine: Quarantine::default(),
            ask_holder: true,
            spin: Duration::ZERO,
            wakes_waiters: true,
            records_fleet: true,
            observer: None,
            provider: None,
            password_file: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        Self { urls: Vec::new(), config, drift_ppm: None }
    }
}

impl ConfigBuilder {
    /// Adds a master by its URL (see [`MasterUrl`]). A client has 1 to 32 masters.
    #[must_use]
    pub fn master(mut self, url: impl AsRef<str>) -> Self {
        self.urls.push(url.as_ref().to_owned());
        self
    }

    /// Adds several masters.
    #[must_use]
    pub fn masters<U: AsRef<str>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        urls.into_iter().fold(self, Self::master)
    }

    /// Sets the bytes in front of each lock's name in its key; empty by default, at most 256 bytes
    /// ([`limits::PREFIX_SIZE_MAX`]).
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.config.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets the name of the connections on the masters (`CLIENT SETNAME`): printable ASCII without spaces;
    /// `redlatch/` and this library's version by default.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.config.client_name = name.into();
        self
    }

    /// Sets the label of all this client's locks, such as `host:pid:job`: 1 to 64 bytes of text without
    /// control characters; none by default. The label is part of each lock's value, so it must not be secret.
    /// [`crate::Client::inspect`], [`crate::error::Denial::holder_label`] and
    /// [`crate::stats::Stats::holder_label`] may show it. A request may override it
    /// ([`crate::LockRequest::holder_label`]).
    #[must_use]
    pub fn holder_label(mut self, label: impl Into<String>) -> Self {
        self.config.holder_label = Some(label.into().into());
        self
    }

    /// Sets the longest TTL that any client of the fleet uses; 30 s by default, at most 7 days
    /// ([`limits::MAX_TTL_MAX`]).
    ///
    /// Requests with a longer TTL are refused. The quarantine of a restarted master depends on it
    /// ([`Config::quarantine_time`]).
    #[must_use]
    pub const fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.config.max_ttl = max_ttl;
        self
    }

    /// Sets the longest time from a lock's acquisition to the end of any extension; one hour by default, no
    /// upper bound. Limits neither the TTL of the acquisition nor `leave_for`. With zero no lock is extended,
    /// and [`crate::LockRequest::auto_extend`] is refused.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.config.max_hold = max_hold;
        self
    }

    /// Sets the allowed difference between clock rates, in parts per million of the TTL; 10,000 (1 %) by
    /// default, at most 500,000 ([`limits::DRIFT_PPM_MAX`]). 2 ms are added.
    #[must_use]
    pub const fn drift_ppm(mut self, ppm: u32) -> Self {
        self.drift_ppm = Some(ppm);
        self
    }

    /// Sets how long one round waits for a master's answer: 1 ms to one day.
    ///
    /// The default follows the measured round trips of the masters that a quorum needs, as in TCP's
    /// retransmission timer (RFC 6298). Its lower bound is a fiftieth of the TTL, between 5 and 50 ms; its
    /// upper bound a fifth of the TTL, at most 1 s ([`limits::ANSWER_LIMIT_MAX`]).
    ///
    /// A master that sends nothing for this time is skipped until it does. So set it well above the usual
    /// round trip.
    #[must_use]
    pub const fn answer_timeout(mut self, limit: Duration) -> Self {
        self.config.answer_timeout = Some(limit);
        self
    }

    /// Sets how long one round waits for a master's answer, in parts per million of the lock's TTL: 1 to
    /// 1,000,000, and at least 1 ms. redsync uses 50,000 (5 %). [`ConfigBuilder::answer_timeout`] takes
    /// precedence.
    #[must_use]
    pub const fn answer_timeout_ppm(mut self, ppm: u32) -> Self {
        self.config.answer_ppm = Some(ppm);
        self
    }

    /// Sets how long one attempt to connect may take, and then the handshake: 1 ms to one day; 1 s by
    /// default.
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.config.connect_timeout = limit;
        self
    }

    /// Sets the delay between two attempts of a waiting acquisition that stands in no queue: the fixed
    /// minimum, and the upper bound of the added random time. 1 ms and 100 ms by default, at most one day.
    /// The end of the holder's time and the end of the wait shorten the delay. If the masters have queues
    /// ([`ConfigBuilder::wake_waiters`]), an attempt refused because of other clients has no delay; an
    /// attempt without enough timely answers always has one.
    ///
    /// A random delay is at least as long as the attempt was. Its upper bound doubles with each attempt, up
    /// to this setting.
    #[must_use]
    pub const fn retry_delay(mut self, bounds: RangeInclusive<Duration>) -> Self {
        self.config.retry_delay_min = *bounds.start();
        self.config.retry_delay_max = *bounds.end();
        self
    }

    /// Sets the delay between two attempts of a waiting acquisition with your own function of the number of
    /// failed attempts, in place of [`ConfigBuilder::retry_delay`]. The function is called now, for 1 to 64
    /// or until it returns a day ([`limits::TIME_LIMIT_MAX`]) or more. Later attempts use the last result, so
    /// a function that doubles 10 ms each time is not called where it would overflow. A panic in it reaches
    /// the caller of this method.
    ///
    /// The delay is at least the function's result, the attempt's duration, and 1 ms. A random time is added,
    /// up to the larger of the result and the duration, so that clients that collide once do not collide
    /// again. The end of the holder's time and the end of the wait shorten the delay.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = redlatch::Config::builder()
    ///     .masters(["redis://10.0.0.1"])
    ///     .retry_delay_by(|failed| Duration::from_millis(10) * failed.min(20))
    ///     .build()?;
    /// # Ok::<(), redlatch::error::ConfigError>(())
    /// ```
    #[must_use]
    pub fn retry_delay_by(mut self, mut delay: impl FnMut(u32) -> Duration) -> Self {
        let mut delays = Vec::new();
        for failed_count in 1..=limits::RETRY_DELAY_COUNT {
            let delay = delay(failed_count);
            delays.push(delay);
            if delay >= limits::TIME_LIMIT_MAX {
                break;
            }
        }
        self.config.retry_delays = Some(delays.into());
        self
    }

    /// Sets when a restarted master votes again; [`Quarantine::Uptime`] by default.
    ///
    /// A master that reports its `run_id` waits at most [`Config::quarantine_time`] from the first
    /// connection: 30.302 s by default. Clients of one fleet may use different modes; together they are as
    /// safe as the weakest.
    #[must_use]
    pub const fn quarantine(mut self, quarantine: Quarantine) -> Self {
        self.config.quarantine = quarantine;
        self
    }

    /// Sets whether a refused attempt asks how long the holder's key still lives, and for the holder's label;
    /// on by default.
    ///
    /// A refused attempt that does not wait then takes one more round trip, except for a fair lock. A plain
    /// lock's waiter that stands in no queue then retries when the holder's time ends. The masters' queues
    /// report both without a question.
    #[must_use]
    pub const fn ask_holder(mut self, ask: bool) -> Self {
        self.config.ask_holder = ask;
        self
    }

    /// Sets whether callers that wait for a lock stand in a queue on each master; on by default.
    ///
    /// A refused attempt is *parked*: its master stores the attempt and executes it when the lock is free, in
    /// the order in which callers asked. The script that frees the lock does this, and notifies the waiter,
    /// so a hand-over takes about one round trip. A lock with a TTL above 10 s ([`limits::GRANTED_TTL_MAX`])
    /// takes two.
    ///
    /// Parking uses RESP3 (`HELLO 3`) and a subscription to the connection's own channel. The login needs
    /// [rights](https://docs.rs/crate/redlatch/latest/source/docs/operating.md#access-rights). A master that
    /// refuses them, or lacks RESP3, is polled instead, and its warnings say so. If fewer than a quorum can
    /// park, or if this setting is off, waiters retry after random delays ([`ConfigBuilder::retry_delay`]),
    /// in no order.
    ///
    /// A waiter that dies loses its place within 3 s ([`limits::STAY`]), or when its turn comes.
    #[must_use]
    pub const fn wake_waiters(mut self, wake: bool) -> Self {
        self.config.wakes_waiters = wake;
        self
    }

    /// Sets whether the client writes the fleet's record on masters without one; `true` by default. `false`
    /// suits a program that only inspects locks and must change no key.
    #[must_use]
    pub const fn record_fleet(mut self, record: bool) -> Self {
        self.config.records_fleet = record;
        self
    }

    /// Sets a function to call with each event of locks and masters, in place of an earlier one; none by
    /// default.
    ///
    /// [`Client`](crate::Client) calls it on a separate thread, one event at a time and in order. It may
    /// block there, and use the client. The last events may come after the last handle is dropped.
    /// [`Redlock`](crate::Redlock) calls it at the end of each call that drives the event loop, which it
    /// delays. An [`Engine`](crate::engine::Engine) does not call it: drain
    /// [`Engine::poll_event`](crate::engine::Engine::poll_event).
    ///
    /// A panic ends only that one call. Up to 1,024 events wait for the function
    /// ([`limits::EVENT_COUNT_MAX`]); further events are dropped and counted.
    #[must_use]
    pub fn on_event(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.observer = Some(Observer::new(observe));
        self
    }

    /// Sets a function that returns a master's credentials; none by default. Its argument is the master's URL
    /// as messages show it. Logins in URLs are then an error.
    ///
    /// The client calls it for a connect that has no unused answer, and after three quarters of
    /// [`Credentials::valid_for`]. New credentials reach open connections through `AUTH`. The function runs
    /// on its own thread, one call per master at a time, so it may block. During a connect, `connect_timeout`
    /// covers it. If it fails, panics or hangs, only this master is affected, and its open connections stay.
    /// Its error is the source of the [`CredentialsError`] in [`Event::CredentialsFailed`]. The client never
    /// prints that error, which may contain a secret. See
    /// [operating](https://docs.rs/crate/redlatch/latest/source/docs/operating.md#credentials-that-change).
    #[must_use]
    pub fn credentials(
        mut self,
        provide: impl Fn(&str) -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.config.provider = Some(CredentialsProvider::new(provide));
        self.config.password_file = None;
        self
    }

    /// Sets the file with the password for each URL without one. Read at each connect.
    pub(crate) fn password_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.password_file = Some(file.into());
        self
    }

    /// Sets how long the thread that drives the event loop polls for answers before it sleeps; zero by
    /// default, at most 10 ms ([`limits::SPIN_MAX`]).
    ///
    /// Polling saves the kernel's time to wake a thread, and keeps a core busy. It has no effect on a machine
    /// with a single core.
    #[must_use]
    pub const fn spin(mut self, spin: Duration) -> Self {
        self.config.spin = spin;
        self
    }

    /// Sets how connections of `rediss://` URLs are secured. By default the platform's CAs are trusted, and
    /// there is no client certificate.
    ///
    /// An error if no URL has the scheme `rediss://`: nothing would be encrypted.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// [`ConfigError`] says which settings are invalid.
    pub fn build(self) -> Result<Config, ConfigError> {
        let Self { urls, mut config, drift_ppm } = self;
        if urls.is_empty() || urls.len() > limits::MASTER_COUNT_MAX {
            return Err(ConfigError::MasterCount { count: urls.len() });
        }
        for (index, url) in urls.iter().enumerate() {
            let url: MasterUrl = url.parse().map_err(|source| ConfigError::Url { index, source })?;
            if let Some(other) = config.masters.iter().position(|it| it.address.is_same_server(&url.address))
            {
                return Err(ConfigError::SameMaster { index, other, address: url.to_string() });
            }
            if url.login.is_some() && config.provider.is_some() {
                return Err(ConfigError::TwoLogins { index });
            }
            let lacks_password = url.login.as_ref().is_some_and(|login| login.password.is_empty());
            if lacks_password && config.password_file.is_none() {
                return Err(ConfigError::NoPassword { index });
            }
            config.labels.push(url.to_string().into());
            config.masters.push(url);
        }
        #[cfg(feature = "tls")]
        tls::check(config.tls.as_ref(), &config.masters)?;
        if let Some(ppm) = drift_ppm {
            config.drift = Drift::from_ppm(ppm)?;
        }
        if let Some(ppm) = config.answer_ppm.filter(|ppm| !(1..=1_000_000).contains(ppm)) {
            return Err(ConfigError::AnswerTimeoutShare { ppm });
        }
        if config.prefix.len() > limits::PREFIX_SIZE_MAX {
            return Err(ConfigError::PrefixTooLong { size: config.prefix.len() });
        }
        if config.client_name.is_empty() || !config.client_name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ConfigError::ClientName);
        }
        if let Some(label) = &config.holder_label {
            HolderLabel::new(label)?;
        }
        let bounded = |setting, value, min, max| {
            if value < min || value > max {
                Err(ConfigError::OutOfBounds { setting, value, min, max })
            } else {
                Ok(())
            }
        };
        let ms = Duration::from_millis(1);
        bounded("max_ttl", config.max_ttl, ms, limits::MAX_TTL_MAX)?;
        Ttl::new(config.max_ttl, config.drift, config.max_ttl)?;
        bounded("answer_timeout", config.answer_timeout.unwrap_or(ms), ms, limits::TIME_LIMIT_MAX)?;
        bounded("connect_timeout", config.connect_timeout, ms, limits::TIME_LIMIT_MAX)?;
        bounded("spin", config.spin, Duration::ZERO, limits::SPIN_MAX)?;
        bounded("retry_delay max", config.retry_delay_max, config.retry_delay_min, limits::TIME_LIMIT_MAX)?;
        Ok(config)
    }
}

#[cfg(test)]
pub(crate) mod tests;
