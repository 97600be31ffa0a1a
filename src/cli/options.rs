//! What the subcommands share: which masters and how they are reached, how the program ends, what it prints.
//!
//! Everything for stderr goes through [`say`], so that a login in a URL is never shown.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use redlatch::engine::{MasterState, MasterStatus};
use redlatch::lock::{InputError, quorum};
use redlatch::{AcquireError, Config, ConfigBuilder, ConfigError, ConnectError, Quarantine, Redlock};
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};

/// The program's own exit codes; 64 to 76 are those of sysexits(3), 126 and 127 those of the shell.
pub(crate) mod code {
    /// Arguments or settings that cannot work; nothing was sent.
    pub(crate) const USAGE: u8 = 64;
    /// Too few masters could grant.
    pub(crate) const NO_QUORUM: u8 = 69;
    /// The operating system refused something that the program needs.
    pub(crate) const INTERNAL: u8 = 70;
    /// Somebody else holds the lock.
    pub(crate) const CONTENDED: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// The command exists and cannot be executed.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// The command does not exist.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of the signal that ended the command.
    pub(crate) const SIGNAL_BASE: u8 = 128;
}

/// Added to the longest quarantine when waiting for its end, for the rounding of a master's uptime.
const QUARANTINE_SLACK: Duration = Duration::from_secs(2);

/// Masters that count so soon after a quorum does are waited for too: a short command would end before their marks are
/// written.
const NEARLY: Duration = Duration::from_millis(500);

/// How often a wait for masters is shown again.
const WAIT_SHOWN_EVERY: Duration = Duration::from_secs(1);

/// The masters and how they are reached.
#[derive(clap::Args)]
#[command(next_help_heading = "Masters")]
pub(crate) struct MasterOptions {
    /// A master, as redis://[user[:password]@]host[:port][/db] or unix:///path; once for each, or separated by commas.
    ///
    /// All clients of one lock must name the same masters; an odd number from three up is sensible. A comma in a
    /// password is written %2C. Other users can see arguments, so a password is better kept in the variable.
    #[arg(
        short,
        long = "master",
        value_name = "URL",
        env = "REDLATCH_MASTERS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    masters: Vec<String>,

    /// The longest TTL that any user of these masters may ask for; the same for all of them.
    ///
    /// A master that restarted is not counted for this long, as it may have forgotten a lock that still lives. A user with
    /// a shorter maximum counts it too early, and takes a lock that another one still holds. Library: max_ttl.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    max_ttl: Duration,

    /// How long to wait for a master's answer [default: a fiftieth of the TTL, between 5ms and 50ms].
    ///
    /// Set it well above the network's round trip.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    answer_timeout: Option<Duration>,

    /// How long connecting to a master may take; one that answers nothing delays the start by this long.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    connect_timeout: Duration,

    /// Text put in front of the resource's name to make its key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: OsString,

    /// Count masters that restarted lately, too.
    ///
    /// Right only if each master writes every change to disk before it answers (appendonly yes, appendfsync always),
    /// or if nothing depends on the lock.
    #[arg(long)]
    trust: bool,

    /// Count a master only if its process is known to have been watched for the maximum TTL, and refuse unfit ones.
    ///
    /// Without it the uptime that a master tells is believed, which its wall clock can falsify. What a client has
    /// watched is left on the masters, in the key PREFIXredlatch:mark, so that later ones need not wait. Replicas,
    /// masters that may evict keys and masters that do not answer INFO are refused.
    #[arg(long, conflicts_with = "trust")]
    pub(crate) strict: bool,
}

impl MasterOptions {
    /// The settings that these options make.
    pub(crate) fn config(&self, more: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Result<Config, Exit> {
        if self.masters.iter().all(String::is_empty) {
            return Err(Exit::usage(
                "no masters given; name each with --master URL, or all in REDLATCH_MASTERS with commas between",
            ));
        }
        for (index, url) in self.masters.iter().enumerate() {
            // Said without the text: it may be one half of a password.
            if !url.contains("://") && !url.starts_with('/') {
                return Err(Exit::usage(format!(
                    "master {index}, counted from 0, does not begin with redis:// or unix://; masters are separated by commas, \
                     and a comma in a password is written %2C"
                )));
            }
        }
        let mut builder = Config::builder()
            .masters(&self.masters)
            .max_ttl(self.max_ttl)
            .connect_timeout(self.connect_timeout)
            .prefix(self.prefix.as_bytes());
        if let Some(limit) = self.answer_timeout {
            builder = builder.answer_timeout(limit);
        }
        if self.trust {
            builder = builder.quarantine(Quarantine::Trust);
        } else if self.strict {
            builder = builder.quarantine(Quarantine::Strict);
        }
        Ok(more(builder).build()?)
    }
}

/// Why the program ends without having done what it was asked for, and with which code.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl Exit {
    pub(crate) fn new(code: u8, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }

    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self::new(code::USAGE, why)
    }
}

impl From<ConfigError> for Exit {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<InputError> for Exit {
    fn from(error: InputError) -> Self {
        match error {
            // Never raised here: the other users of the fleet would not know of it.
            InputError::TtlTooLong { ttl, max_ttl } => Self::usage(format!(
                "--ttl is {ttl:?}, above the fleet's maximum TTL of {max_ttl:?}. Use a shorter --ttl, or set --max-ttl \
                 to the same larger value on every user of these masters (library: max_ttl)"
            )),
            error => Self::usage(error.to_string()),
        }
    }
}

impl From<ConnectError> for Exit {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Config(error) => error.into(),
            error => Self::new(code::INTERNAL, error.to_string()),
        }
    }
}

impl From<io::Error> for Exit {
    fn from(error: io::Error) -> Self {
        Self::new(code::INTERNAL, error.to_string())
    }
}

impl From<AcquireError> for Exit {
    fn from(error: AcquireError) -> Self {
        let code = match &error {
            AcquireError::Contended(_) => code::CONTENDED,
            AcquireError::NoQuorum(_) | AcquireError::Expired(_) => code::NO_QUORUM,
            AcquireError::Input(_) => code::USAGE,
            _ => code::INTERNAL,
        };
        Self::new(code, format!("{error:#}"))
    }
}

/// Prints to stderr, in front of each message the program's name. Prints nothing where the terminal would stop the program
/// for it (`stty tostop`, and another group is in the foreground): a lock must be extended, and its loss followed.
pub(crate) fn say(text: &str) {
    if would_be_stopped() {
        return;
    }
    // There is nowhere to complain to if stderr is gone.
    let _ = writeln!(io::stderr().lock(), "redlatch: {}", without_logins(text));
}

/// Prints the result to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever closed the pipe does not want the rest.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn would_be_stopped() -> bool {
    let stderr = io::stderr();
    tcgetpgrp(&stderr).is_ok_and(|foreground| foreground != getpgrp())
        && tcgetattr(&stderr).is_ok_and(|settings| settings.local_modes.contains(LocalModes::TOSTOP))
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// The text without logins: from each `://` to the last `@` before the next `://` or the end of the line. So it hides
/// too much rather than too little, except for the form of a URL as the library's errors show it, and for the place in a
/// script that servers name at the end of an error: ` on @user_script:1.`
fn without_logins(text: &str) -> Cow<'_, str> {
    if !text.contains("://") || !text.contains('@') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut parts = line.split("://");
        shown.push_str(parts.next().unwrap_or_default());
        for part in parts {
            shown.push_str("://");
            let is_script = |at: usize| part[..at].ends_with(' ') && part[at..].starts_with("@user_script:");
            let end = part.rmatch_indices('@').map(|(at, _)| at).find(|at| !is_script(*at));
            match end.map(|at| part.split_at(at)) {
                Some((login, place)) if login != "[user[:password]" => {
                    shown.push('…');
                    shown.push_str(place);
                }
                _ => shown.push_str(part),
            }
        }
    }
    Cow::Owned(shown)
}

/// One line on each master whose vote would not count now, and on each that has something wrong with it.
pub(crate) fn doubts(masters: &[MasterStatus]) -> Vec<String> {
    let mut lines = Vec::new();
    for MasterStatus { name, state, warnings, .. } in masters {
        match state {
            MasterState::Ready => {}
            MasterState::Down(why) => lines.push(format!("{name} is not connected: {why}")),
            MasterState::Quarantined(left) => lines.push(format!(
                "{name} does not count for another {left:.1?}: it may have restarted lately and forgotten a lock (max_ttl)"
            )),
            MasterState::Silent => lines.push(format!("{name} owes an answer")),
            _ => lines.push(format!("{name} is being connected")),
        }
        lines.extend(warnings.iter().map(|warning| format!("{name}: {warning}")));
    }
    lines
}

/// For which masters to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enough {
    /// All that can be reached.
    All,
    /// A quorum, and those that will count at nearly the same time; none if a quorum is out of reach.
    Quorum,
}

/// Waits, visibly, until enough masters are out of quarantine, and fails if no quorum of masters counts then. Returns
/// early if it is interrupted.
pub(crate) fn wait_for_masters(
    redlock: &mut Redlock,
    enough: Enough,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<(), Exit> {
    let deadline = Instant::now() + redlock.config().quarantine_time() + QUARANTINE_SLACK;
    let mut shown_at = None;
    loop {
        let masters = redlock.masters();
        let longest = masters.iter().filter_map(|master| match master.state {
            MasterState::Quarantined(left) => Some(left),
            _ => None,
        });
        let (count, longest) =
            longest.fold((0, Duration::ZERO), |(count, max), left| (count + 1, max.max(left)));
        let now = Instant::now();
        if is_interrupted() {
            return Ok(());
        }
        let ready = masters.iter().filter(|master| master.state == MasterState::Ready).count();
        let needed = quorum(masters.len());
        let is_enough = match enough {
            Enough::All => false,
            Enough::Quorum => ready >= needed && longest > NEARLY || ready + count < needed,
        };
        if count == 0 || now >= deadline || is_enough {
            if ready >= needed {
                return Ok(());
            }
            let why = format!("{ready} of {} masters count, {needed} needed", masters.len());
            return Err(Exit::new(code::NO_QUORUM, [vec![why], doubts(&masters)].concat().join("\n  ")));
        }
        if shown_at.is_none_or(|at| now - at >= WAIT_SHOWN_EVERY) {
            let is_first = shown_at.replace(now).is_none();
            say(&format!(
                "waiting {longest:.1?}: {count} of {} masters may have restarted lately and do not count before \
                 max_ttl has passed{}",
                masters.len(),
                if is_first { " (--trust counts them, where nothing depends on the lock)" } else { "" }
            ));
        }
        redlock.turn(longest.min(Duration::from_millis(100)))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_not_shown() {
        for (text, shown) in [
            ("plain text", "plain text"),
            ("mail a@b", "mail a@b"),
            ("redis://h:1", "redis://h:1"),
            ("unexpected argument 'redis://me:s3@h' found", "unexpected argument 'redis://…@h' found"),
            ("'redis://me:s3 s3@h' found", "'redis://…@h' found"),
            ("redis://me:a@b@h,redis://:s3@h2\nredis://h3", "redis://…@h,redis://…@h2\nredis://h3"),
            ("redis://h\nmail a@b", "redis://h\nmail a@b"),
            ("want redis://[user[:password]@]host", "want redis://[user[:password]@]host"),
            (
                "redis://h replied: WRONGTYPE, on @user_script:1.",
                "redis://h replied: WRONGTYPE, on @user_script:1.",
            ),
            ("redis://me:s3 on @user_script:1@h", "redis://…@h"),
            ("redis://me:s3@h replied: x, on @user_script:1.", "redis://…@h replied: x, on @user_script:1."),
            ("redis://me:s3@user_script:1", "redis://…@user_script:1"),
        ] {
            assert_eq!(without_logins(text), shown);
        }
    }
}
