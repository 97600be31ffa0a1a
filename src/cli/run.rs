//! `redlatch run`: a command under a lock, like flock(1), across masters.
//!
//! ```text
//!  main thread: Redlock, which renews; the command's end      a thread beside it
//!        ▲                                                          │
//!        └───────────── signals that were caught ◄──────────────────┘
//! ```
//!
//! Uses the pipelined form throughout, so that a signal ends a wait and a command that ended need not wait
//! for the network.

mod acquire;
mod descendants;
mod least;
mod locks;
mod process;
mod session;
#[cfg(target_os = "linux")]
pub(crate) mod stage;
#[cfg(not(target_os = "linux"))]
#[path = "run/no_stage.rs"]
pub(crate) mod stage;
mod supervisor;
mod terminal;
mod timeline;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Resource};
use redlatch::error::InputError;
use redlatch::internals::env::parse_time;
use redlatch::internals::words::is_deceptive;
use redlatch::limits::HOLDER_LABEL_SIZE_MAX;
use redlatch::{Quarantine, Redlock, limits};

use super::exit::{Exit, code};
use super::message::{Message, label};
use super::options::MasterOptions;
use super::output;
use acquire::{FOREVER, acquire};
use least::Leaving;
use process::Process;
use session::{Held, Session, Voice};
use supervisor::{End, Supervisor};

/// Run a command while holding a lock.
///
/// Takes the lock on a majority of the masters, runs the command, keeps extending the lock meanwhile, and
/// releases it when the command has ended.
#[derive(clap::Args)]
#[command(after_help = "See `redlatch run --help` for exit codes, signals and examples.", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    /// How long the lock lives on the masters unless it is extended, which happens at a third of it or
    /// somewhat before.
    ///
    /// After a crash of this machine no other client gets the lock for up to this long. At most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    ttl: Duration,

    /// How long to wait for the lock, or `forever`; 0 makes one attempt [default: one attempt, and 2s
    /// while too few masters can grant].
    ///
    /// Without it a lock that another client holds ends redlatch at once. Too few masters may be a short
    /// stall of some, so redlatch tries again for 2s. With --strict the wait for masters comes before it.
    #[arg(short, long, value_name = "TIME", value_parser = parse_wait)]
    wait: Option<Duration>,

    /// Time between TERM and KILL for the command if the lock is lost [default: a third of the validity].
    ///
    /// KILL comes before the lock's validity ends, by a twentieth of it (at most 1s), however long the
    /// grace is; by up to a sixth where the machine ran redlatch late before. TERM is sent so early that a
    /// grace of up to a quarter of the TTL fits, or a seventh on such a machine. If redlatch could not run
    /// until then (stopped, or the machine slept or was too busy), KILL comes at once when it does.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    grace: Option<Duration>,

    /// How long extensions may keep the lock in all; near the end of it the command is ended as if the lock
    /// were lost. A longer --ttl is not cut.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_time)]
    max_hold: Duration,

    /// How long the lock is held, however early the command ends: for commands that run once per interval. It
    /// counts from the acquisition. A command that cannot be executed releases the lock.
    ///
    /// The lock then ends by itself, also if the command fails or is ended by a signal. If the rest is longer
    /// than --max-ttl, redlatch stays after the command's end until it fits. A signal ends that stay, and
    /// shortens the rest to --max-ttl; a crash shortens it to what is left of the TTL. If too few masters
    /// confirm the rest, redlatch stays at most until no master can have the lock any more. At most
    /// --max-hold.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at_least: Option<Duration>,

    /// The exit code if others hold the lock or are ahead in its queue.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = code::CONTENDED)]
    conflict_exit_code: u8,

    /// Take the lock with a fencing token, for storage that refuses a command whose lock has passed on: the
    /// command finds it in REDLATCH_FENCING_TOKEN.
    #[arg(long, conflicts_with = "shared")]
    fenced: bool,

    /// Wait in a queue with all other --fair callers of the lock: first come, first served.
    ///
    /// Callers without --fair ignore the queue. Without --wait the first attempt succeeds only if no caller
    /// waits for the lock. The masters need HELLO 3 (Redis 6), or there is no order. Not together with
    /// --fenced, --shared or --also.
    #[arg(long, conflicts_with_all = ["fenced", "also", "shared"])]
    fair: bool,

    /// Hold the lock together with other --shared callers. No caller holds it alone meanwhile, and a caller
    /// that holds it alone keeps them out.
    #[arg(short, long)]
    shared: bool,

    /// Text by which others see who holds the lock: 1 to 64 bytes, or empty for none [default:
    /// HOST:PID:PROGRAM].
    ///
    /// `redlatch inspect` and the error of a refused client may show it, to everybody who may read the
    /// masters.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Report on stderr what happens to the lock.
    #[arg(short, long)]
    verbose: bool,

    /// Print nothing while waiting, and nothing if another client holds the lock: the exit code says so.
    /// Errors are printed.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// One more lock, for a command that needs several: it runs once all of them are held. May be repeated.
    ///
    /// No lock is held while the command waits for another one. So commands cannot wait for each other in a
    /// circle, in whatever order they name the locks.
    #[arg(long, value_name = "RESOURCE")]
    also: Vec<OsString>,

    /// The lock's name: nearly any text of 1 to 1024 bytes.
    resource: OsString,

    /// The command and its arguments, behind `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  The command's own; 128+N if signal N ended it or the wait for the lock. Others:
   64  bad usage: the message says what is wrong
   69  too few masters could grant the lock, within 2s or within the --wait: unreachable, in error, or restarted lately
   70  the operating system refused something
   75  another client holds the lock, readers share it, or --fair waiters are ahead (another code: --conflict-exit-code)
   76  the lock was lost, or could not be extended: before the command, while it ran, or before its --at-least time
  126  the command cannot be executed
  127  the command was not found

Environment of the command:
  REDLATCH_RESOURCE   the lock's name; with several locks a line for each, here and in the next two
  REDLATCH_TOKEN      the token that the lock's value on the masters starts with, in hexadecimal
  REDLATCH_FENCING_TOKEN
                      with --fenced: a number that is larger than the number of each earlier --fenced holder
  REDLATCH_TTL_MS     the TTL in milliseconds
  REDLATCH_VALID_MS   the validity left at the start, in milliseconds; extensions renew it

When the lock is lost:
  An extension that too few masters answer is tried again. If none has succeeded after two thirds of the TTL, or
  the masters say that the lock is gone, the command gets TERM, and KILL when the grace has passed. With a --grace
  below a quarter of the TTL the TERM may come later. KILL is due at the latest when a twentieth of the validity is
  left (at most 1s), or up to a sixth of it where the machine ran redlatch late before. It goes to the command's group
  first, then to the other descendants as they are found. A machine that does not run redlatch until the validity has
  ended makes KILL late: it comes at once when redlatch runs. Only fenced storage refuses the work of such a command.

Processes:
  The command leads a process group of its own. A lost lock ends the group and, on Linux, all descendants of the
  command that it may signal, wherever they went (setsid, daemons); redlatch exits when none of these is left.
  When the command ends by itself redlatch releases or leaves the lock and exits. Processes that the command left
  in the background go on without the lock: let the command wait for those that need it.
  If redlatch itself gets KILL (also by the system, which is out of memory), the command gets KILL, too, on Linux with
  /proc. Its descendants do not get it, and go on without the lock. Nor does a command get it whose file is
  set-user-ID or set-group-ID or has capabilities, or that changes its user or group (sudo, setpriv, gosu, chpst -u).
  Run redlatch itself as the final user: setpriv ... redlatch run ... On other systems the command and its descendants go
  on.

Output:
  Messages do not delay redlatch while the command runs: if nobody reads stderr, the oldest are dropped and counted,
  and its end waits at most 1s for a reader.

Signals:
  TERM, INT, HUP and QUIT to redlatch go on to the whole group, USR1 and USR2 to the command. TERM, INT, HUP or QUIT
  that was ignored when redlatch started stays ignored (nohup, background jobs of scripts).

In a terminal:
  The command has the terminal's foreground, as under a shell, so keys reach the command only. In a pipeline it gets
  the foreground when it reads from the terminal. If Ctrl-C ends the command, redlatch passes it on to its own job.
  Ctrl-Z stops the command's group, on Linux its other descendants, and redlatch, so nothing extends the lock. After `fg` or `bg` the
  command goes on if enough validity is left; else it gets KILL and does nothing more.
  STOP to the command alone leaves it its lock.
  Under `stty tostop` redlatch says what happened when the command has ended, and as a background job nothing.

Examples:
  redlatch run -m redis://a,redis://b,redis://c nightly-report -- ./report.sh
  redlatch run --ttl 30s --wait 5min deploy:web -- sh -c 'make build && make deploy'
  redlatch run --fair --wait 10min printer -- lp report.ps          first come, first served
  redlatch run --fenced backup -- ./backup.sh                       with REDLATCH_FENCING_TOKEN
  redlatch run --shared prices -- ./report.sh                       together with other readers
  redlatch run account:1 --also account:2 -- ./transfer.sh          both locks, or none
  redlatch run --at-least 5min report -- ./report.sh                once, whichever machines start it within 5 minutes
  redlatch run backup -- tar cf /backup/home.tar /home || [ $? -eq 75 ]     fine if another machine does it";

/// Runs the subcommand; the result is the program's exit code.
pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let names = names(args)?;
    if let Some(at_least) = args.at_least.filter(|at_least| *at_least > args.max_hold) {
        let why = Message::LeastTimeTooLong { at_least, max_hold: args.max_hold };
        return Err(Exit::new(code::USAGE, why));
    }
    let mut builder = args.masters.builder()?.max_hold(args.max_hold);
    if let Some(label) = holder_label(args.label.as_deref(), &args.command) {
        builder = builder.holder_label(label);
    }
    let config = builder.build()?;
    let ttl = config.ttl(args.ttl)?;
    let signals = process::Signals::catch()?;
    let started = Instant::now();
    let redlock = Redlock::open(config)?;
    signals.wake(&redlock);
    let label = label(names.iter().map(Resource::as_bytes));
    let options = lock_options(args);
    let voice = match (args.quiet, args.verbose) {
        (true, _) => Voice::Quiet,
        (_, true) => Voice::Verbose,
        _ => Voice::Usual,
    };
    let mut session = Session { redlock, label, ttl, options, voice, signals };
    session.report(session.describe_masters(started));
    // No master of a new fleet counts before somebody has stayed to watch it, whoever asks how often.
    let is_strict = session.redlock.config().quarantine() == Quarantine::Strict;
    let masters = if is_strict { session.wait_for_masters() } else { Ok(()) };
    let result = masters
        .and_then(|()| acquire(&mut session, &names, args.wait))
        .and_then(|held| hold(&mut session, args, &names, &held));
    session.close();
    result.or_else(|exit| match exit.code {
        code::CONTENDED if args.quiet => Ok(args.conflict_exit_code),
        code::CONTENDED => Err(Exit { code: args.conflict_exit_code, ..exit }),
        _ => Err(exit),
    })
}

/// How the lock is asked for.
fn lock_options(args: &Args) -> redlatch::Options {
    // The configuration has the longest hold.
    let mut options = redlatch::Options::new().ttl(args.ttl).auto_extend(Duration::MAX);
    options = if args.fenced { options.fenced() } else { options };
    options = if args.fair { options.fair() } else { options };
    options = if args.shared { options.shared() } else { options };
    options
}

/// The names in their order, each once.
fn names(args: &Args) -> Result<Vec<Resource<'_>>, InputError> {
    let mut names = Vec::with_capacity(1 + args.also.len());
    for resource in std::iter::once(&args.resource).chain(&args.also) {
        let name = Resource::new(resource.as_bytes())?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let count = names.len();
    if count > limits::SET_SIZE_MAX { Err(InputError::SetTooLarge { count }) } else { Ok(names) }
}

/// `forever`, or a time.
fn parse_wait(text: &str) -> Result<Duration, &'static str> {
    match text {
        "forever" => Ok(FOREVER),
        text => parse_time(text).map_err(|_| "give a time such as 500ms, 30s, 5min or 2h 30min, or forever"),
    }
}

/// Runs the command under the locks. Then releases them, or leaves them for their least time.
fn hold(session: &mut Session, args: &Args, names: &[Resource<'_>], held: &[Held]) -> Result<u8, Exit> {
    let locks: Vec<OpId> = held.iter().map(|(lock, _)| *lock).collect();
    let end = run_command(session, args, names, held).inspect_err(|_| {
        session.release(&locks);
    })?;
    if let Ok(code) = end.code {
        session.report(Message::CommandEnded { code });
    }
    let since =
        held.iter().filter_map(|(_, grant)| grant.valid_until.checked_sub(session.ttl.validity())).max();
    let until = since.zip(args.at_least).and_then(|(since, at_least)| since.checked_add(at_least));
    let was_held = match until {
        Some(until) if !end.is_lost => {
            Leaving { session, locks: &locks, is_signalled: end.is_signalled }.leave_until(until)
        }
        _ => session.release(&locks),
    };
    let code = end.code?;
    Ok(if end.is_lost || !was_held { code::LOST } else { code })
}

/// Runs the command to its end. Fails if it never ran.
fn run_command(
    session: &mut Session,
    args: &Args,
    names: &[Resource<'_>],
    held: &[Held],
) -> Result<End, Exit> {
    let valid_until = held.iter().map(|(_, grant)| grant.valid_until).min().expect("a run has a lock");
    let left = valid_until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Exit::new(code::LOST, Message::OverBeforeStart { lock: &session.label }));
    }
    if let Some(exit) = session.interrupted() {
        return Err(exit);
    }
    let lines = |of: &dyn Fn(&Held) -> Option<String>| {
        held.iter().map(of).collect::<Option<Vec<_>>>().map(|lines| lines.join("\n").into())
    };
    let names: Vec<&[u8]> = names.iter().map(Resource::as_bytes).collect();
    let variables = [
        ("REDLATCH_RESOURCE", Some(OsString::from_vec(names.join(&b'\n')))),
        ("REDLATCH_TOKEN", lines(&|(_, grant)| Some(grant.token.to_string()))),
        // Not that of a lock around this one.
        ("REDLATCH_FENCING_TOKEN", lines(&|(_, grant)| Some(grant.fencing_token?.to_string()))),
        ("REDLATCH_TTL_MS", Some(session.ttl.as_millis().to_string().into())),
        ("REDLATCH_VALID_MS", Some(left.as_millis().to_string().into())),
    ];
    let _beside_command = output::BesideCommand::begin();
    let process = Process::spawn(&args.command, variables)?;
    Supervisor::new(session, process, held, args.grace).supervise()
}

/// The label in effect: what was asked for, none if that is empty, or else `HOST:PID:PROGRAM`.
fn holder_label(asked: Option<&str>, command: &[OsString]) -> Option<String> {
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

/// The host's first name, as much of the rest as fits, and nothing that upsets a terminal.
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
    }

    #[test]
    fn an_empty_label_is_none() {
        assert_eq!(holder_label(Some(""), &[]), None);
        assert_eq!(holder_label(Some("job 7"), &[]), Some("job 7".to_owned()));
        assert!(holder_label(None, &["sleep".into()]).is_some_and(|it| it.ends_with(":sleep")));
    }
}
