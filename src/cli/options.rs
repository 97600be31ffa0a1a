//! Options that the subcommands share: the masters and how to reach them. Also the wait for restarted
//! masters.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use clap::Args as _;

use redlatch::engine::quorum;
use redlatch::error::{ConfigError, Failure};
use redlatch::status::{MasterState, MasterStatus, Warning};
use redlatch::{Config, ConfigBuilder, Redlock, limits};
use redlatch::{env, words};

use super::exit::Exit;
use super::message::Message;
use super::output::{Countdown, say};

/// Added to the longest quarantine, because a master's uptime is rounded.
const QUARANTINE_SLACK: Duration = Duration::from_secs(2);

/// Masters that count this soon after a quorum are waited for, too. Otherwise a short command would end
/// before the client writes their marks.
const NEARLY: Duration = Duration::from_millis(500);

/// Default answer limit of a query.
const QUERY_LIMIT: Duration = Duration::from_secs(1);

/// Masters that are asked about themselves, and the time for it.
#[derive(clap::Args)]
pub(crate) struct AskedOptions {
    /// How long the questions to the masters may take.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = env::parse_time)]
    pub(crate) time_limit: Duration,

    #[command(flatten)]
    pub(crate) masters: MasterOptions,
}

/// The masters and how they are reached. Each option that has a variable stands for it: the library reads
/// both by the same table.
#[derive(clap::Args)]
#[command(next_help_heading = "Masters")]
pub(crate) struct MasterOptions {
    /// A master, as redis://[[user]:password@]host[:port][/db], rediss://… for TLS, or unix:///path[?db=db]; once for
    /// each, or separated by commas or blanks.
    ///
    /// All clients of one lock must name the same masters; an odd number from three up is sensible. A comma
    /// in a password is written %2C. Other users can see arguments, so a password is better kept in the
    /// variable.
    #[arg(short, long = "master", value_name = "URL", env = env::MASTERS, hide_env_values = true)]
    masters: Vec<OsString>,

    /// The longest TTL that any user of these masters may ask for; the same for all of them [default: 30s].
    ///
    /// A master that restarted is not counted for this long, as it may have forgotten a lock that still
    /// lives. A user with a shorter maximum counts it too early, and may take a lock that another user still
    /// holds. Library: max_ttl.
    #[arg(long, value_name = "TIME", env = env::MAX_TTL)]
    max_ttl: Option<OsString>,

    /// How long to wait for a master's answer [default: it follows the round trip; 1s in inspect, ls and
    /// unlock].
    ///
    /// The default is at least a fiftieth of the TTL, between 5ms and 50ms, and at most a fifth of the TTL or
    /// 1s. Set it well above the network's round trip.
    #[arg(long, value_name = "TIME", env = env::ANSWER_TIMEOUT)]
    answer_timeout: Option<OsString>,

    /// How long connecting to a master may take [default: 1s].
    ///
    /// A master that does not answer delays the start by at most about twice this time.
    #[arg(long, value_name = "TIME", env = env::CONNECT_TIMEOUT)]
    connect_timeout: Option<OsString>,

    /// A file with the password for each URL without one; a newline at its end is cut. Each connect reads the
    /// file again.
    #[arg(long, value_name = "FILE", env = env::PASSWORD_FILE)]
    password_file: Option<OsString>,

    #[command(flatten)]
    tls: TlsOptions,

    /// Text in front of each lock's name in its key [default: none]; the same for all users of
    /// these masters.
    #[arg(long, value_name = "TEXT", env = env::PREFIX)]
    prefix: Option<OsString>,

    /// Largest difference between the rates of clocks, in millionths; the same for all users of these masters
    /// [default: 10000].
    #[arg(long, value_name = "PPM", env = env::DRIFT_PPM)]
    drift_ppm: Option<OsString>,

    /// Count masters that restarted lately, too. Variable: REDLATCH_QUARANTINE=trust.
    ///
    /// Right only if each master writes every change to disk before it answers (appendonly yes, appendfsync
    /// always), or if nothing depends on the lock.
    #[arg(long)]
    trust: bool,

    /// Count a master only if a client has observed its process for the maximum TTL, and refuse unfit masters.
    /// Variable: REDLATCH_QUARANTINE=strict.
    ///
    /// Without it a master's reported uptime counts, which its wall clock can falsify. A client writes the
    /// observed time to the masters, into the key PREFIXredlatch:mark, so that later clients need not wait.
    /// Replicas, masters that may evict keys and masters that do not answer INFO are refused.
    #[arg(long, conflicts_with = "trust")]
    strict: bool,
}

impl MasterOptions {
    /// Builder with the settings of these options.
    pub(crate) fn builder(&self) -> Result<ConfigBuilder, Exit> {
        env::check_names(std::env::vars_os().map(|(name, _)| name))?;
        Ok(env::builder(|variable| self.value(variable))?)
    }

    pub(crate) fn config(&self) -> Result<Config, Exit> {
        Ok(self.builder()?.build()?)
    }

    /// Settings for queries, which want an answer from every master, even from a slow one.
    pub(crate) fn query_config(&self) -> Result<Config, Exit> {
        let is_set = self.answer_timeout.as_ref().is_some_and(|text| !text.is_empty());
        let builder = self.builder()?.record_fleet(false);
        Ok(if is_set { builder } else { builder.answer_timeout(QUERY_LIMIT) }.build()?)
    }

    /// URLs of the masters with their logins, for a child's environment.
    pub(crate) fn urls(&self) -> OsString {
        self.masters.join(OsStr::new(","))
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        self.prefix.as_ref().map_or(b"", |prefix| prefix.as_encoded_bytes())
    }

    /// Value of the option that stands for this variable. Without the option, clap takes the variable.
    fn value(&self, variable: &'static str) -> Option<OsString> {
        match variable {
            env::MASTERS => Some(self.urls()),
            env::MAX_TTL => self.max_ttl.clone(),
            env::ANSWER_TIMEOUT => self.answer_timeout.clone(),
            env::CONNECT_TIMEOUT => self.connect_timeout.clone(),
            env::PREFIX => self.prefix.clone(),
            env::PASSWORD_FILE => self.password_file.clone(),
            env::DRIFT_PPM => self.drift_ppm.clone(),
            env::QUARANTINE if self.trust => Some("trust".into()),
            env::QUARANTINE if self.strict => Some("strict".into()),
            env::TLS_CA => self.tls.ca.clone(),
            env::TLS_CERT => self.tls.certificate.clone(),
            env::TLS_KEY => self.tls.key.clone(),
            env::TLS_SERVER_NAME => self.tls.server_name.clone(),
            _ => std::env::var_os(variable),
        }
    }
}

impl From<ConfigError> for Exit {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Variable { variable, reason } => {
                Self::usage(Message::BadSetting { option: &option_of(variable), variable, reason: &reason })
            }
            error => Self::usage(error),
        }
    }
}

/// Name of the option that stands for this variable.
fn option_of(variable: &str) -> String {
    let command = MasterOptions::augment_args(clap::Command::new("redlatch"));
    let mut options = command.get_arguments();
    let option = options.find(|option| option.get_env().is_some_and(|env| env == variable));
    // The quarantine has two options without a value.
    let long = option.and_then(clap::Arg::get_long);
    long.map_or_else(|| "--trust, --strict".to_owned(), |long| format!("--{long}"))
}

/// How the connections of rediss:// URLs are secured.
#[derive(clap::Args)]
#[command(next_help_heading = "TLS, for masters with a rediss:// URL")]
struct TlsOptions {
    /// A file with the only CA certificates to trust, in PEM form [default: those of the system].
    #[arg(long = "tls-ca", value_name = "FILE", env = env::TLS_CA)]
    ca: Option<OsString>,

    /// A file with the client certificate for the masters, in PEM form; needs --tls-key.
    #[arg(long = "tls-cert", value_name = "FILE", env = env::TLS_CERT)]
    certificate: Option<OsString>,

    /// A file with the private key of that certificate, in PEM form.
    #[arg(long = "tls-key", value_name = "FILE", env = env::TLS_KEY)]
    key: Option<OsString>,

    /// The name or IP address that each master's certificate must have [default: the host of its URL].
    #[arg(long = "tls-server-name", value_name = "HOST", env = env::TLS_SERVER_NAME)]
    server_name: Option<OsString>,
}

const fn quarantine_left(master: &MasterStatus) -> Option<Duration> {
    match master.state {
        MasterState::Quarantined(left) => Some(left),
        _ => None,
    }
}

/// Problems of masters: why their votes do not count now, and warnings. Masters with the same problem share a
/// line.
pub(crate) fn doubts(masters: &[MasterStatus]) -> Vec<String> {
    let longest = masters.iter().filter_map(quarantine_left).max().unwrap_or_default();
    let mut lines = Vec::new();
    for MasterStatus { name, state, warnings, .. } in masters {
        let doubt = match state {
            MasterState::Ready => None,
            MasterState::Down(why) => Some(Failure::NotConnected { why: why.clone() }),
            // The longest time for all, so that masters that started together share a line.
            MasterState::Quarantined(_) => Some(Failure::Quarantined { left: longest, is_new: false }),
            MasterState::Silent => Some(Failure::Silent),
            _ => Some(Failure::NotConnected { why: "still connecting".into() }),
        };
        lines.extend(doubt.map(|doubt| (&**name, doubt.to_string())));
        lines.extend(warnings.iter().map(|warning| (&**name, warning.to_string())));
    }
    words::grouped(lines, masters.len())
}

/// Reports contradictions between the settings of clients, once each. They can give one lock two holders, so
/// a command that takes locks reports them even with `--quiet`. Also reports masters that run no scripts,
/// which keep each lock until its TTL ends.
#[derive(Default)]
pub(crate) struct Contradictions {
    said: Vec<String>,
}

impl Contradictions {
    /// Prints each new contradiction.
    pub(crate) fn look(&mut self, masters: &[MasterStatus]) {
        self.new_lines(masters).into_iter().for_each(say);
    }

    fn new_lines(&mut self, masters: &[MasterStatus]) -> Vec<String> {
        let found = masters.iter().filter_map(|master| Some((&*master.name, contradiction(master)?)));
        let new: Vec<_> = found.filter(|(_, text)| !self.said.contains(text)).collect();
        self.said.extend(new.iter().map(|(_, text)| text.clone()));
        words::grouped(new, masters.len())
    }
}

/// How this client's settings contradict a master: the master's record of the fleet differs, or the master
/// refuses the login or scripts.
fn contradiction(master: &MasterStatus) -> Option<String> {
    let said = |is_it: fn(&&Warning) -> bool| master.warnings.iter().find(is_it).map(Warning::to_string);
    let difference = said(|it| matches!(it, Warning::FleetDiffers { .. }))
        .or_else(|| said(|it| matches!(it, Warning::NoScripts { .. })));
    let MasterState::Down(why) = &master.state else { return difference };
    // Strict mode refuses the master because of the difference, and its reason includes the difference.
    let is_said =
        master.state.is_of_settings() || difference.as_ref().is_some_and(|it| why.starts_with(&**it));
    if is_said { Some(why.to_string()) } else { difference }
}

/// Fails if a number is out of bounds.
pub(crate) fn check_bounds<N: PartialOrd + fmt::Display>(
    option: &'static str,
    value: N,
    min: N,
    max: N,
) -> Result<(), Exit> {
    if min <= value && value <= max {
        return Ok(());
    }
    Err(Exit::usage(Message::OutOfBounds { option, value: &value, min: &min, max: &max }))
}

/// Fails if a time is zero, or longer than the library's timers.
pub(crate) fn check_time(option: &'static str, time: Duration) -> Result<(), Exit> {
    let (value, max) = (&words::Rounded(time), &words::Rounded(limits::TIME_LIMIT_MAX));
    if !time.is_zero() && time <= limits::TIME_LIMIT_MAX {
        return Ok(());
    }
    Err(Exit::usage(Message::OutOfBounds { option, value, min: &"more than 0", max }))
}

/// Which masters to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enough {
    All,
    /// A quorum, and masters that will count soon after; none if a quorum is out of reach.
    Quorum,
}

/// Waits until all reachable masters are out of quarantine; see [`wait_for_masters`].
pub(crate) fn wait_for_all(redlock: &mut Redlock, is_interrupted: impl FnMut() -> bool) -> Result<(), Exit> {
    let config = redlock.config().clone();
    let masters = |time| redlock.turn(time).map(|()| redlock.masters());
    wait_for_masters(&config, Enough::All, true, masters, is_interrupted)
}

/// Waits until enough masters are out of quarantine. Fails if no quorum counts then. Shows the wait if
/// `is_shown`, and returns early if `is_interrupted`. `masters_after` lets the client work for a time and
/// returns the masters' status.
pub(crate) fn wait_for_masters(
    config: &Config,
    enough: Enough,
    is_shown: bool,
    mut masters_after: impl FnMut(Duration) -> io::Result<Vec<MasterStatus>>,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<(), Exit> {
    let longest =
        |masters: &[MasterStatus]| masters.iter().filter_map(quarantine_left).max().unwrap_or_default();
    // A declared `max_ttl` may be longer than this client's.
    let mut masters = masters_after(Duration::ZERO)?;
    let limit = config.quarantine_time().max(longest(&masters));
    let deadline = Instant::now() + limit + QUARANTINE_SLACK;
    let mut countdown = Countdown::default();
    while !is_interrupted() {
        let restarted = masters.iter().filter_map(quarantine_left).count();
        let left = longest(&masters);
        let ready = masters.iter().filter(|master| master.state == MasterState::Ready).count();
        let (count, needed) = (masters.len(), quorum(masters.len()));
        let is_enough = match enough {
            Enough::All => false,
            Enough::Quorum => ready >= needed && left > NEARLY || ready + restarted < needed,
        };
        if restarted == 0 || Instant::now() >= deadline || is_enough {
            return if ready >= needed {
                Ok(())
            } else {
                Err(Exit::no_quorum(ready, count, doubts(&masters)))
            };
        }
        if is_shown {
            countdown.show(&Message::AwaitingMasters { left, restarted, count });
        }
        masters = masters_after(left.min(Duration::from_millis(100)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
