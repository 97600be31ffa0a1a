//! Command, lock and options that `run` and `elect` share.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use redlatch::Options;
use redlatch::engine::Resource;
use redlatch::env::parse_time;
use redlatch::limits::HOLDER_LABEL_SIZE_MAX;
use redlatch::words::is_deceptive;

use super::session::{Session, Voice, observed};
use crate::exit::Exit;
use crate::options::MasterOptions;

/// A command, its lock, and what is said of them.
#[derive(clap::Args)]
pub(crate) struct Job {
    /// How long the lock lives on the masters unless it is extended. redlatch extends it after a third of this
    /// time or a little earlier.
    ///
    /// After a crash of this machine no other client gets the lock for up to this long. At most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(super) ttl: Duration,

    /// Time between TERM and KILL for the command if the lock is lost [default: a third of the validity].
    ///
    /// Even with a longer grace, KILL comes before the validity ends, when a twentieth of it (at most 1s) is
    /// left, or up to a sixth where the machine ran redlatch late before. TERM comes early enough for a grace
    /// of a quarter of the TTL, or of a seventh on such a machine. If redlatch cannot run in time (it is stopped, or the
    /// machine sleeps or is too busy), KILL comes as soon as redlatch runs.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) grace: Option<Duration>,

    /// Longest time for which extensions keep the lock. Near its end the command is ended as if the lock were
    /// lost. A longer --ttl is not cut.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
    pub(super) max_hold: Duration,

    /// Text by which others see who holds the lock: 1 to 64 bytes, or empty for none [default:
    /// HOST:PID:PROGRAM].
    ///
    /// Everybody who may read the masters can see it, with `redlatch inspect` or in the error of a refused
    /// client.
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,

    /// Report on stderr what happens to the lock.
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// Print errors only: nothing while waiting, and nothing if another client holds the lock.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(super) quiet: bool,

    /// The lock's name: nearly any text of 1 to 1024 bytes.
    #[arg(value_name = "NAME")]
    pub(super) resource: OsString,

    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl Job {
    /// Options of the lock, without its mode.
    pub(super) fn options(&self) -> Options {
        // The configuration's `max_hold` is the limit.
        Options::new().ttl(self.ttl).auto_extend(Duration::MAX)
    }

    /// Connects to the masters, and catches signals.
    pub(super) fn open(
        &self,
        masters: &MasterOptions,
        names: &[Resource<'_>],
        options: Options,
    ) -> Result<Session, Exit> {
        let mut builder = masters.builder()?.max_hold(self.max_hold);
        if let Some(label) = holder_label(self.label.as_deref(), &self.command) {
            builder = builder.holder_label(label);
        }
        let observed = observed(builder)?;
        let ttl = observed.0.ttl(self.ttl)?;
        Session::open(observed, ttl, names, options, Voice::new(self.quiet, self.verbose))
    }
}

/// Label in effect: the requested text, or `HOST:PID:PROGRAM` by default. `None` if the requested text is
/// empty.
pub(super) fn holder_label(asked: Option<&str>, command: &[OsString]) -> Option<String> {
    match asked {
        Some("") => None,
        Some(asked) => Some(asked.to_owned()),
        None => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
            Some(default_label(&host, std::process::id(), program))
        }
    }
}

/// Starts with the first component of the host's name, is cut to the size limit, and has `?` for each
/// character that may upset a terminal.
fn default_label(host: &str, pid: u32, program: &OsStr) -> String {
    let host = host.split('.').next().unwrap_or_default();
    let program = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let label = format!("{host}:{pid}:{program}");
    let mut size = 0;
    let is_within = |char: &char| {
        size += char.len_utf8();
        size <= HOLDER_LABEL_SIZE_MAX
    };
    label.chars().map(|char| if is_deceptive(char) { '?' } else { char }).take_while(is_within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch::engine::HolderLabel;

    #[test]
    fn a_default_label_is_always_a_label() {
        assert_eq!(default_label("web-3.example.com", 4711, OsStr::new("/bin/tar")), "web-3:4711:tar");
        assert_eq!(default_label("web", 7, OsStr::new("a\u{202e}b\u{200b}c")), "web:7:a?b?c");
        let long = "é".repeat(100);
        for (host, program) in
            [("", ""), (&*long, "tar"), ("web", &*long), ("a\nb", "c\x1b[31m"), (".", "..")]
        {
            let label = default_label(host, u32::MAX, OsStr::new(program));
            assert!(HolderLabel::new(&label).is_ok(), "{label:?}");
        }
        let longest = default_label("web", 7, OsStr::new(&"x".repeat(HOLDER_LABEL_SIZE_MAX)));
        assert_eq!(longest.len(), HOLDER_LABEL_SIZE_MAX);
    }

    #[test]
    fn an_empty_label_is_none() {
        assert_eq!(holder_label(Some(""), &[]), None);
        assert_eq!(holder_label(Some("job 7"), &[]), Some("job 7".to_owned()));
        assert!(holder_label(None, &["sleep".into()]).is_some_and(|it| it.ends_with(":sleep")));
    }
}
