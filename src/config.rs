//! Settings of a client: which masters, and how long anything may take.

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

/// Checked settings of a client. All clients of one fleet must share the masters, `max_ttl`, prefix and
/// drift.
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
    /// The delay after each number of failed attempts, from one; the last one serves all later ones.
    pub(crate) retry_delays: Option<Arc<[Duration]>>,
    pub(crate) answer_ppm: Option<u32>,
    pub(crate) quarantine: Quarantine,
    pub(crate) ask_holder: bool,
    pub(crate) spin: Duration,
    pub(crate) wakes_waiters: bool,
    /// Whether it writes the fleet's record where there is none.
    pub(crate) records_fleet: bool,
    pub(crate) observer: Option<Observer>,
    provider: Option<CredentialsProvider>,
    /// File of the password for each URL without one.
    pub(crate) password_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// Condition under which the votes of a master that (re)appears count: it may have lost locks that still
/// live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Quarantine {
    /// The default: its votes count once it is known to have run for `max_ttl` plus the drift. Its own
    /// `uptime_in_seconds` shows that, or this client has seen the same `run_id` for that long.
    ///
    /// A fleet that was just started therefore grants nothing for `max_ttl`. The uptime is wall-clock time of
    /// the master: a clock that jumps ahead there shortens the wait. The uptime does not count if another
    /// server has taken the place of the one before: a server that already ran when this client last heard
    /// from its predecessor.
    #[default]
    Uptime,
    /// Its votes count once its process is known to have been observed for `max_ttl` plus the drift. This
    /// client observes it, if it has seen the same `run_id` for that long by its own monotonic clock; or
    /// another client did, and left a mark that says so.
    ///
    /// The mark is the key `<prefix>redlatch:mark`, without TTL. A client whose own observation is over
    /// writes the `run_id` and the observed time in milliseconds into it, for later clients. A mark with
    /// another `run_id`, or with a shorter time than needed, counts for nothing. A user that can write to the
    /// masters can forge a mark, as it can delete locks.
    ///
    /// No wall clock counts, and a server that should not grant locks is refused: a replica, a server whose
    /// `maxmemory-policy` is not `noeviction`, and a server that does not report its `run_id`, role and
    /// policy. The report of a failed acquisition that asked the masters says so. The login needs `+info +get
    /// +set` and the mark's key; without the mark each client observes for itself. After a restart of all
    /// masters some client has to stay for [`Config::quarantine_time`].
    ///
    /// It proves that a process went on, and not that its data stayed: `FLUSHALL` is not noticed.
    Strict,
    /// Its votes count as soon as it is connected. That is right only in tests, or if each master writes
    /// every change to disk before it answers (`appendonly yes`, `appendfsync always`) and comes back with
    /// that file.
    Trust,
}

impl Config {
    /// The delay after so many failed attempts, at least one, by the function given to
    /// [`ConfigBuilder::retry_delay_by`].
    pub(crate) fn retry_delay_after(&self, failed_count: u32) -> Option<Duration> {
        let delays = self.retry_delays.as_deref()?;
        let index = usize::try_from(failed_count).unwrap_or(usize::MAX).saturating_sub(1);
        delays.get(index).or(delays.last()).map(|delay| (*delay).min(limits::TIME_LIMIT_MAX))
    }

    /// Returns a builder with the default settings and no master.
    #[must_use]
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// Returns the number of configured masters. The quorum is a majority of them, however many are
    /// reachable.
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

    /// Returns the longest time that one round of a lock with this TTL waits for a master; never longer than
    /// the lock would be valid. It is the configured answer time-out, and by default a fifth of the TTL, from
    /// 5 ms to 1 s.
    #[must_use]
    pub fn answer_limit(&self, ttl: Ttl) -> Duration {
        self.answer_limit_by(ttl, Duration::MAX)
    }

    /// How long one round waits where a quorum of masters answers within this limit, if nothing is wrong.
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

    /// Asks the provider given to [`ConfigBuilder::credentials`] for the credentials of a master, as
    /// [`LinkRequest::Credentials`](crate::engine::LinkRequest::Credentials) wants. It may block.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn ask_credentials(&self, master: MasterId) -> Result<Credentials, CredentialsError> {
        let provider = self.provider.as_ref().ok_or(CredentialsError::NoProvider)?;
        provider.ask(&self.labels[master.index()])
    }

    /// Whether a provider returns the credentials, or a file has them.
    pub(crate) const fn has_provider(&self) -> bool {
        self.provider.is_some() || self.password_file.is_some()
    }

    /// Which fencing tokens masters take.
    pub(crate) fn window(&self) -> Window {
        Window::new(self.max_ttl)
    }

    /// Returns the longest TTL that any client of the fleet uses.
    #[must_use]
    pub const fn max_ttl(&self) -> Duration {
        self.max_ttl
    }

    /// Returns how masters that may have restarted are kept from voting.
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

    /// Returns the quarantine by the larger of each of these settings and this client's.
    #[doc(hidden)]
    #[must_use]
    pub fn quarantine_time_beside(&self, max_ttl: Duration, drift_ppm: u32) -> Duration {
        let max_ttl = max_ttl.min(limits::MAX_TTL_MAX).max(self.max_ttl);
        let drift_ppm = drift_ppm.min(limits::DRIFT_PPM_MAX).max(self.drift.ppm());
        let whole = max_ttl + Drift::from_ppm(drift_ppm).unwrap_or(self.drift).of(max_ttl);
        Duration::from_millis(u64::try_from(whole.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

/// Settings that the command line's doctor reads.
#[doc(hidden)]
impl Config {
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Names of the masters: their URLs without logins.
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        &self.labels
    }

    #[must_use]
    pub fn client_name(&self) -> &str {
        &self.client_name
    }

    #[must_use]
    pub const fn drift_ppm(&self) -> u32 {
        self.drift.ppm()
    }

    #[must_use]
    pub const fn wakes_waiters(&self) -> bool {
        self.wakes_waiters
    }
}

/// Builder of a [`Config`]. Its setters check nothing: [`ConfigBuilder::build`] does.
#[derive(Clone)]
pub struct ConfigBuilder {
    urls: Vec<String>,
    config: Config,
    drift_ppm: Option<u32>,
}

impl fmt::Debug for ConfigBuilder {
    /// Without the URLs, which may hold passwords.
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

    /// Sets the bytes put in front of each resource name to make its key; empty by default, at most 256 bytes
    /// ([`limits::PREFIX_SIZE_MAX`]).
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.config.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets the name that the masters show for the connections (`CLIENT SETNAME`): printable ASCII without
    /// spaces; `redlatch/` and the version of this library by default.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.config.client_name = name.into();
        self
    }

    /// Sets the label of all locks of this client, such as `host:pid:job`: 1 to 64 bytes of text without
    /// control characters; none by default. It is in each lock's value, so it must be no secret.
    /// [`crate::Client::inspect`], [`crate::error::Denial::holder_label`] and
    /// [`crate::stats::Stats::holder_label`] may show it. A request may have its own
    /// ([`crate::LockRequest::holder_label`]).
    #[must_use]
    pub fn holder_label(mut self, label: impl Into<String>) -> Self {
        self.config.holder_label = Some(label.into().into());
        self
    }

    /// Sets the longest TTL that any client of the fleet uses; 30 s by default, at most 7 days
    /// ([`limits::MAX_TTL_MAX`]).
    ///
    /// A longer TTL is refused. The quarantine of a restarted master follows from it
    /// ([`Config::quarantine_time`]).
    #[must_use]
    pub const fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.config.max_ttl = max_ttl;
        self
    }

    /// Sets the time since its acquisition that no extension of a lock goes beyond; one hour by default,
    /// without a bound. It bounds neither the TTL of the acquisition nor `leave_for`. With zero no lock is
    /// extended, and [`crate::LockRequest::auto_extend`] is refused.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.config.max_hold = max_hold;
        self
    }

    /// Sets by how much clock rates may differ, in parts per million of the TTL; 10,000 (1 %) by default, at
    /// most 500,000 ([`limits::DRIFT_PPM_MAX`]). 2 ms are added to it.
    #[must_use]
    pub const fn drift_ppm(mut self, ppm: u32) -> Self {
        self.drift_ppm = Some(ppm);
        self
    }

    /// Sets how long one round waits for a master's answer: from 1 ms to one day.
    ///
    /// By default it follows the measured round trips of the masters that a quorum needs, by the rule of
    /// TCP's retransmission timer (RFC 6298): from a fiftieth of the TTL, between 5 and 50 ms, to a fifth of
    /// it, at most 1 s ([`limits::ANSWER_LIMIT_MAX`]).
    ///
    /// A master that says nothing for so long is skipped until it does. So set it well above the usual round
    /// trip.
    #[must_use]
    pub const fn answer_timeout(mut self, limit: Duration) -> Self {
        self.config.answer_timeout = Some(limit);
        self
    }

    /// Sets how long one round waits for a master's answer, in parts per million of the lock's TTL: from 1 to
    /// 1,000,000, and at least 1 ms. redsync uses 50,000 (5 %). [`ConfigBuilder::answer_timeout`] takes
    /// precedence.
    #[must_use]
    pub const fn answer_timeout_ppm(mut self, ppm: u32) -> Self {
        self.config.answer_ppm = Some(ppm);
        self
    }

    /// Sets how long one attempt to connect may take, and then the handshake: from 1 ms to one day, 1 s by
    /// default.
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.config.connect_timeout = limit;
        self
    }

    /// Sets the least delay between two attempts of a waiting acquisition that stands in no queue, and the
    /// most random time that is added to it: 1 ms and 100 ms by default, at most one day. The end of the
    /// holder's time and the end of the wait shorten it. An attempt that others refuse has no such delay
    /// where the masters have queues ([`ConfigBuilder::wake_waiters`]); one that too few masters answered, or
    /// too late, has it everywhere.
    ///
    /// A drawn delay is not shorter than the attempt was. The range of its random part doubles with each
    /// attempt, up to its bound.
    #[must_use]
    pub const fn retry_delay(mut self, bounds: RangeInclusive<Duration>) -> Self {
        self.config.retry_delay_min = *bounds.start();
        self.config.retry_delay_max = *bounds.end();
        self
    }

    /// Sets the delay between two attempts of a waiting acquisition by a function of your own, in place of
    /// [`ConfigBuilder::retry_delay`]. Its argument is the number of failed attempts. It is called here, for
    /// 1 to 64 or until it returns a day ([`limits::TIME_LIMIT_MAX`]) or more, and the results are kept.
    /// Later attempts use the last one. So a function that doubles 10 ms each time is not called where it
    /// overflows. A panic in it reaches the caller of this method.
    ///
    /// The delay is at least the result, the time that the attempt took, and 1 ms. A random time of up to
    /// the larger of the last two is added, so that clients that met once do not meet again and again. The
    /// end of the holder's time and the end of the wait shorten the delay.
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

    /// Sets the condition under which a master that restarted votes; [`Quarantine::Uptime`] by default.
    ///
    /// A master that reports its `run_id` waits for [`Config::quarantine_time`] at most, counted from the
    /// first connection: 30.302 s by default. Clients of one fleet may differ in it; together they are as
    /// safe as the weakest mode.
    #[must_use]
    pub const fn quarantine(mut self, quarantine: Quarantine) -> Self {
        self.config.quarantine = quarantine;
        self
    }

    /// Sets whether a refused attempt asks how long the holder's key still lives, and for the holder's label;
    /// on by default.
    ///
    /// A refused attempt that does not wait then costs one more round trip, except of a fair lock. A plain
    /// lock's waiter that stands in no queue retries when the holder's time ends. The masters' queues report
    /// both by themselves.
    #[must_use]
    pub const fn ask_holder(mut self, ask: bool) -> Self {
        self.config.ask_holder = ask;
        self
    }

    /// Sets whether callers that wait for a lock stand in a queue on each master; on by default.
    ///
    /// A refused attempt is *parked* then: its master stores it, and carries it out when the lock is free, in
    /// the order in which callers asked. The client that frees the lock has the master do so in the same
    /// script, and a message reaches the waiter: a hand-over takes about one round trip. A lock with a TTL
    /// above 10 s ([`limits::GRANTED_TTL_MAX`]) takes two.
    ///
    /// The connection speaks RESP3 for it (`HELLO 3`) and subscribes to a channel of its own. The login needs
    /// [rights](https://docs.rs/crate/redlatch/latest/source/docs/operating.md#access-rights). A master that refuses them, or knows no RESP3, is asked
    /// again and again instead, and its warnings say so. If fewer than a quorum can park, or if this is off,
    /// waiters retry after random delays ([`ConfigBuilder::retry_delay`]), in no order.
    ///
    /// A waiter that dies loses its place within 3 s ([`limits::STAY`]), or when it would be its turn.
    #[must_use]
    pub const fn wake_waiters(mut self, wake: bool) -> Self {
        self.config.wakes_waiters = wake;
        self
    }

    /// Sets whether the client writes the record of a fleet's settings on masters that have none. Not for
    /// users: the command line's questions leave nothing behind.
    #[doc(hidden)]
    #[must_use]
    pub const fn record_fleet(mut self, record: bool) -> Self {
        self.config.records_fleet = record;
        self
    }

    /// Sets a function that is called with each event of locks and masters; none by default. A later function
    /// replaces it.
    ///
    /// [`Client`](crate::Client) calls it on a thread of its own, one event at a time and in order. It may
    /// block there, and use the client. Events of a client's end may come after the last handle is dropped.
    /// [`Redlock`](crate::Redlock) calls it at the end of each call that drives its event loop, and so delays
    /// that. An [`Engine`](crate::engine::Engine) does not call it: drain
    /// [`Engine::poll_event`](crate::engine::Engine::poll_event).
    ///
    /// A panic in it ends that one call. Meanwhile up to 1,024 events wait ([`limits::EVENT_COUNT_MAX`]);
    /// further ones are dropped and counted.
    #[must_use]
    pub fn on_event(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.observer = Some(Observer::new(observe));
        self
    }

    /// Sets a function that returns the credentials of a master; none by default. Its argument is the
    /// master's URL as messages show it. A login in a URL is an error then.
    ///
    /// The client calls it for a connect that has no unused answer, and after three quarters of
    /// [`Credentials::valid_for`]. New credentials reach open connections by `AUTH` in place. It runs on a
    /// thread of its own, one for each master at a time, so it may block. At a connect, `connect_timeout`
    /// covers it. If it fails, panics or hangs, only this master is affected, and its open connections stay.
    /// The error that it returns is the source of the [`CredentialsError`] in [`Event::CredentialsFailed`].
    /// No text of the client shows it, as it may have a secret. The page
    /// [operating](https://docs.rs/crate/redlatch/latest/source/docs/operating.md#credentials-that-change)
    /// has more.
    #[must_use]
    pub fn credentials(
        mut self,
        provide: impl Fn(&str) -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.config.provider = Some(CredentialsProvider::new(provide));
        self.config.password_file = None;
        self
    }

    /// Sets the file of the password for each URL without one. It is read again at each connect.
    pub(crate) fn password_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.password_file = Some(file.into());
        self
    }

    /// Sets how long the thread that drives the event loop polls for answers before it sleeps; zero by
    /// default, at most 10 ms ([`limits::SPIN_MAX`]).
    ///
    /// Polling saves the time that the kernel takes to wake a thread, and burns a core meanwhile. On a
    /// machine with a single core it does nothing.
    #[must_use]
    pub const fn spin(mut self, spin: Duration) -> Self {
        self.config.spin = spin;
        self
    }

    /// Sets how connections of `rediss://` URLs are secured; without it the CAs of the platform are trusted,
    /// and there is no client certificate.
    ///
    /// These settings with no `rediss://` URL are an error: nothing would be encrypted.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// [`ConfigError`] says which settings cannot work.
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
mod tests;
